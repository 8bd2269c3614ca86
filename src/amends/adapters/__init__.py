"""One module for each framework or SDK, named after its distribution; each is an extra of its own."""

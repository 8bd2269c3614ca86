"""One module for each framework or SDK, named after its distribution; each brings its own extra."""

"""One module per framework, named after its distribution. None is imported here: each brings its own framework."""

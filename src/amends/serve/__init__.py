"""The service: a runtime behind HTTP."""

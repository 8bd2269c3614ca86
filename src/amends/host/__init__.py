"""What one process brings: the one place where engine, drivers and stores meet."""

"""The command line, tested as a process, like a user runs it."""

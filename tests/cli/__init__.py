"""The command line, driven as a user drives it: as a process."""

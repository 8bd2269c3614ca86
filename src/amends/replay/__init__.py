"""Replaying a recorded run, forking it, and comparing two runs."""

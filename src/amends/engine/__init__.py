"""The decisions: flows that await operations and perform none. No clock, no socket, no thread, no database."""

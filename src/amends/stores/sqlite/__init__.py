"""The ledger in a SQLite file."""

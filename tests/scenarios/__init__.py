"""The end-to-end cases: real processes, real kills, a ledger in a file and a world that nobody can roll back."""

"""The audit of a record: verify a ledger, export and load bundles."""

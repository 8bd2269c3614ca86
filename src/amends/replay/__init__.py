"""The record, played again, forked and compared."""

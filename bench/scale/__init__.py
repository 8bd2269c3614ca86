"""What one PostgreSQL ledger carries, what global operations cost, and how tenants spread over ledgers: ``make scale``."""

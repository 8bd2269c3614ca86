"""The ledger in MariaDB or MySQL."""

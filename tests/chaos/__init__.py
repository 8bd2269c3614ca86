"""Real processes over one ledger, killed, frozen and starved; then the ledger is compared with the world."""

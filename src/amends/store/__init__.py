"""Ledgers: what they promise (``protocol``), how they decide (flows over rows), and where they keep it."""

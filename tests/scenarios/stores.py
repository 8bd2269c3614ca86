"""A fresh ledger of every kind, by its URL."""

from __future__ import annotations

from pathlib import Path

import pytest

STORES = ("sqlite", "postgresql", pytest.param("mysql", marks=pytest.mark.rest))
"""To save time, MariaDB is left to ``make test-rest``: a scenario is about the engine, and the stores have their own suite."""


def fresh(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """The URL of a ledger that nobody has used."""
    if kind == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    url: str = request.getfixturevalue({"postgresql": "postgres_url", "mysql": "mysql_url"}[kind])
    return url

"""What the tests of behaviour share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from amends.store.sqlite import SqliteStore


@pytest.fixture(autouse=True)
def no_connection_outlives_its_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close the SQLite ledgers that a test leaves open: newer Pythons count a forgotten connection as a fault."""
    made: list[SqliteStore] = []
    begin = SqliteStore.__init__

    def remember(store: SqliteStore, *args: Any, **options: Any) -> None:
        made.append(store)
        begin(store, *args, **options)

    monkeypatch.setattr(SqliteStore, "__init__", remember)
    yield
    for store in made:
        if hasattr(store, "_pool"):  # made to its end
            store.close()

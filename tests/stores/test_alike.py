"""SQLite keeps the record to the number as the memory does, over more seeds than the public suite has."""

from pathlib import Path

import pytest

from amends.stores.sqlite.store import SqliteStore
from amends.testing.conformance.equivalence import SEEDS, compare_with_memory
from amends.testing.conformance.ledger import Clock, Ledger, audit


@pytest.mark.parametrize("seed", range(SEEDS, 30))
def test_sqlite_answers_as_the_memory_does(seed: int, tmp_path: Path) -> None:
    clock = Clock()
    sqlite = Ledger(SqliteStore(tmp_path / "ledger.db", "NORMAL", clock), clock=clock)
    memory = compare_with_memory(sqlite, seed, asked=250)
    assert sqlite.everything() == memory.everything()
    audit(sqlite)
    sqlite.store.close()

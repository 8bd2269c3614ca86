"""SQLite keeps the record to the number as the memory does, over more seeds than the public suite has."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from amends.stores.sqlite.store import SqliteStore
from amends.testing.conformance.equivalence import SEEDS, compare_lives, compare_with_memory
from amends.testing.conformance.ledger import Clock, Ledger, audit


@pytest.mark.parametrize("seed", range(SEEDS, 30))
def test_sqlite_answers_as_the_memory_does(seed: int, tmp_path: Path) -> None:
    clock = Clock()
    sqlite = Ledger(SqliteStore(tmp_path / "ledger.db", "NORMAL", clock), clock=clock)
    memory = compare_with_memory(sqlite, seed, asked=250)
    assert sqlite.everything() == memory.everything()
    audit(sqlite)
    sqlite.store.close()


@pytest.mark.parametrize("seed", range(SEEDS, 20))
def test_sqlite_leads_ordinary_lives_as_the_memory_does(seed: int, tmp_path: Path) -> None:
    clock = Clock()
    with closing(SqliteStore(tmp_path / "ledger.db", "NORMAL", clock)) as store:
        store.open(create=True)
        sqlite = Ledger(store, clock=clock)
        compare_lives(sqlite, seed, lives=8)
        audit(sqlite)
        counts = (
            "select count(*), count(hash), count(settled_hash), count(comp_hash), count(undone_hash) from amends_call"
        )
        with closing(sqlite3.connect(store.path)) as raw:
            calls, started, settled, begun, undone = raw.execute(counts).fetchone()
            [(failed,)] = raw.execute("select count(settled_hash) from amends_call where state = 'failed'")
    # What is compared are plain statements, not the flow with itself.
    assert started > calls / 2
    assert settled - failed > calls / 4
    assert failed > calls / 20
    assert begun >= undone > 0

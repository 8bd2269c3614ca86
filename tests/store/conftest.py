"""Every test of a store runs on every store and in both colours."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from amends.store.sqlite import SqliteStore
from tests.store.ledger import Clock, Ledger, audit, make_store
from tests.store.many import Gate

STORES = ("memory", "sqlite")
COLOURS = ("blocking", "async")


@pytest.fixture(params=[f"{store}-{colour}" for store in STORES for colour in COLOURS])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    kind, _, colour = request.param.partition("-")
    clock = Clock()
    under_test = Ledger(make_store(kind, tmp_path, clock), colour, clock)
    assert under_test.store.open(create=True)
    yield under_test
    audit(under_test)
    under_test.store.close()


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def shared(tmp_path: Path, gate: Gate) -> Iterator[SqliteStore]:
    """A file that many callers share; its clock is the gate."""
    made = SqliteStore(tmp_path / "ledger.db", "NORMAL", gate)
    made.open(create=True)
    yield made
    if not made._closed:
        audit(Ledger(made))
    made.close()

"""Every test of a store runs on every store and in both colours."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store.ledger import Clock, Ledger, audit, make_store

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

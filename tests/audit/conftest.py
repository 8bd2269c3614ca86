from collections.abc import Iterator

import pytest

from tests.audit import forger


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """No connection outlives its test: newer Pythons count that as a fault."""
    yield
    while forger.OPEN:
        forger.OPEN[-1].close()

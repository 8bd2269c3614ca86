"""Every store passes every check of the public suite, in both colours."""

import pytest

from amends.testing.conformance import CHECKS, COLOURS, Skipped, check_store
from amends.testing.conformance.prove import Colour
from tests.store.harness import NEW_LEDGER, SERVERS, STORES, Harness


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("kind", STORES)
def test_a_store_conforms(request: pytest.FixtureRequest, kind: str, colour: Colour, name: str) -> None:
    if kind in SERVERS and name == NEW_LEDGER:
        return  # their database was emptied, not made; their own tests make one
    harness: Harness = request.getfixturevalue(f"{kind}_harness")
    try:
        check_store(name, harness.make, second=harness.second, colour=colour)
    except Skipped as skip:
        pytest.skip(str(skip))

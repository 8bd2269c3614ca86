"""Every store passes every check of the public suite, in both colours."""

from importlib import import_module

import pytest

from amends.testing.conformance import CHECKS, COLOURS, Skipped, check_store
from amends.testing.conformance.prove import Colour
from tests.stores.harness import NEW_LEDGER, SERVERS, STORES, Harness

# A server's database was emptied, not made, so it cannot say that it is new; test_servers_make_new_ledgers does.
CASES = [(kind, name) for kind in STORES for name in CHECKS if kind not in SERVERS or name != NEW_LEDGER]


@pytest.mark.parametrize("kind, name", CASES)
@pytest.mark.parametrize("colour", COLOURS)
def test_a_store_conforms(request: pytest.FixtureRequest, kind: str, colour: Colour, name: str) -> None:
    harness: Harness = request.getfixturevalue(f"{kind}_harness")
    try:
        check_store(name, harness.make, second=harness.second, colour=colour)
    except Skipped as skip:
        pytest.skip(str(skip))


@pytest.mark.parametrize("kind", [kind for kind in STORES if kind in SERVERS])
@pytest.mark.parametrize("colour", COLOURS)
def test_servers_make_new_ledgers(request: pytest.FixtureRequest, kind: str, colour: Colour) -> None:
    module, name = SERVERS[kind]
    url = request.getfixturevalue("postgres_url" if kind == "postgresql" else "mysql_url")
    check_store(NEW_LEDGER, lambda clock: getattr(import_module(module), name)(url, clock=clock), colour=colour)

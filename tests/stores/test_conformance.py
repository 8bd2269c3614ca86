"""Every store passes every check of the public suite, in both colours; on the servers see ``is_rest``."""

from importlib import import_module

import pytest

from amends.testing.conformance import CHECKS, COLOURS, Skipped, check_store
from amends.testing.conformance.prove import Colour
from tests.stores.harness import NEW_LEDGER, REST, SERVERS, STORES, Harness, in_share

IN_BOTH = ("racing.", "storing.", "atomic.an_operation_that_fails_in_the_middle_leaves_nothing_behind[")
"""Checks of what a server's store does for itself in each colour: pools, locks, values, cancellation and rollback."""


def is_rest(kind: str, name: str, colour: Colour) -> bool:
    """Return whether this check is left to ``make test-rest``.

    What an operation decides is the same flow on every store and in both colours. To save time, ``make test`` makes a check
    outside ``IN_BOTH`` on one of the servers and in one colour.
    """
    return kind in SERVERS and not name.startswith(IN_BOTH) and not in_share(kind, name, colour)


CASES = [
    pytest.param(colour, kind, name, marks=[REST] if is_rest(kind, name, colour) else [])
    for kind in STORES
    for name in CHECKS
    # A server's database was emptied, not made, so it cannot say that it is new; test_servers_make_new_ledgers does.
    if kind not in SERVERS or name != NEW_LEDGER
    for colour in COLOURS
]


@pytest.mark.parametrize("colour, kind, name", CASES)
def test_a_store_conforms(request: pytest.FixtureRequest, kind: str, colour: Colour, name: str) -> None:
    harness: Harness = request.getfixturevalue(f"{kind}_harness")
    # A store that stays connected is not asked about opening and closing.
    is_kept = colour == "blocking" and not name.startswith(("opening.", "racing.", "storing."))
    try:
        check_store(name, (is_kept and harness.kept) or harness.make, second=harness.second, colour=colour)
    except Skipped as skip:
        pytest.skip(str(skip))


@pytest.mark.parametrize("kind", [kind for kind in STORES if kind in SERVERS])
@pytest.mark.parametrize("colour", COLOURS)
def test_servers_make_new_ledgers(request: pytest.FixtureRequest, kind: str, colour: Colour) -> None:
    module, name = SERVERS[kind]
    url = request.getfixturevalue("postgres_url" if kind == "postgresql" else "mysql_url")
    check_store(NEW_LEDGER, lambda clock: getattr(import_module(module), name)(url, clock=clock), colour=colour)

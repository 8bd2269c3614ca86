"""Every store passes every check of the public suite, in both colours; on a server see ``colours_on``."""

import os
from importlib import import_module
from zlib import crc32

import pytest

from amends.testing.conformance import CHECKS, COLOURS, Skipped, check_store
from amends.testing.conformance.prove import Colour
from tests.stores.harness import NEW_LEDGER, SERVERS, STORES, Harness

ALL_COLOURS = bool(os.environ.get("AMENDS_TEST_ALL_COLOURS"))
IN_BOTH = ("racing.", "storing.", "atomic.an_operation_that_fails_in_the_middle_leaves_nothing_behind[")
"""Checks of what a server's store does for itself in each colour: pools, locks, values, cancellation and rollback."""


def colours_on(kind: str, name: str) -> tuple[Colour, ...]:
    """Return the colours in which a check is made on this kind of store.

    What an operation decides is the same flow in both colours. To save time, a check outside ``IN_BOTH`` is made there in one
    colour, half of them in each, always the same; with AMENDS_TEST_ALL_COLOURS=1 in both.
    """
    if kind not in SERVERS or ALL_COLOURS or name.startswith(IN_BOTH):
        return COLOURS
    return (COLOURS[crc32(f"{kind} {name}".encode()) % 2],)


CASES = [
    (colour, kind, name)
    for kind in STORES
    for name in CHECKS
    # A server's database was emptied, not made, so it cannot say that it is new; test_servers_make_new_ledgers does.
    if kind not in SERVERS or name != NEW_LEDGER
    for colour in colours_on(kind, name)
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

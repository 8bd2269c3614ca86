"""Every store passes every check of the public suite, in both colours; what ``make test`` leaves out says ``is_rest``."""

from importlib import import_module
from zlib import crc32

import pytest

from amends.testing.conformance import CHECKS, COLOURS, Skipped, check_store
from amends.testing.conformance.prove import Colour
from tests.stores.harness import NEW_LEDGER, REST, SERVERS, STORES, Harness, in_share

IN_BOTH = ("racing.", "storing.")
"""Checks of what a store does for itself in each colour: pools, locks, values and cancellation."""
ON_ALL = ("atomic.",)
"""Checks of what every database does for itself, whoever asks: rolling back."""


def is_rest(kind: str, name: str, colour: Colour) -> bool:
    """Return whether this check is left to ``make test-rest``.

    What an operation decides is the same flow on every store and in both colours. To save time, ``make test`` makes a check
    in one colour on a database, always the same, and only on one of the servers; those of ``IN_BOTH`` and in memory
    everywhere, those of ``ON_ALL`` on every server.
    """
    if kind == "memory" or name.startswith(IN_BOTH):
        return False
    if name.startswith(ON_ALL):
        return COLOURS[crc32(name.encode()) % 2] != colour
    return not in_share(kind, name, colour)


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

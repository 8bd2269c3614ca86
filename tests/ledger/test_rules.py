"""Every rule of the ledger holds in memory in both colours, on SQLite in one, and on one of the servers."""

from __future__ import annotations

from zlib import crc32

import pytest

from amends.testing.conformance import COLOURS, Skipped
from amends.testing.conformance.prove import Colour, run_check
from tests.ledger.rules import RULES
from tests.stores.harness import SERVERS, STORES, Harness
from tests.stores.test_conformance import ALL_COLOURS


def is_asked(kind: str, name: str, colour: Colour) -> bool:
    """Return whether a rule is checked on this kind of store, in this colour.

    A decision is the same flow on every store and in both colours; ``amends.testing.conformance`` proves what differs. To
    save time each rule is checked on SQLite in one colour, and on one server in one colour, always the same. With
    AMENDS_TEST_ALL_COLOURS=1 it is checked everywhere.
    """
    dice = crc32(name.encode())
    servers = [one for one in STORES if one in SERVERS]
    is_here = kind not in SERVERS or servers[dice // 2 % len(servers)] == kind
    return ALL_COLOURS or kind == "memory" or (is_here and COLOURS[dice % 2] == colour)


CASES = [
    (kind, name, colour) for kind in STORES for name in RULES for colour in COLOURS if is_asked(kind, name, colour)
]


@pytest.mark.parametrize("kind, name, colour", CASES)
def test_a_rule_holds(request: pytest.FixtureRequest, kind: str, name: str, colour: Colour) -> None:
    harness: Harness = request.getfixturevalue(f"{kind}_harness")
    try:
        make = (colour == "blocking" and harness.kept) or harness.make
        run_check(RULES[name], make, second=harness.second, colour=colour)
    except Skipped as skip:
        pytest.skip(str(skip))

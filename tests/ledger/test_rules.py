"""Every rule of the ledger holds in memory in both colours, on SQLite in one, and on one of the servers.

A decision is the same flow on every store and in both colours; ``amends.testing.conformance`` proves what differs. Each rule
is checked on the other stores and in the other colour by ``make test-rest``.
"""

from __future__ import annotations

import pytest

from amends.testing.conformance import COLOURS, Skipped
from amends.testing.conformance.prove import Colour, run_check
from tests.ledger.rules import RULES
from tests.stores.harness import REST, STORES, Harness, in_share

CASES = [
    pytest.param(kind, name, colour, marks=[] if kind == "memory" or in_share(kind, name, colour) else [REST])
    for kind in STORES
    for name in RULES
    for colour in COLOURS
]


@pytest.mark.parametrize("kind, name, colour", CASES)
def test_a_rule_holds(request: pytest.FixtureRequest, kind: str, name: str, colour: Colour) -> None:
    harness: Harness = request.getfixturevalue(f"{kind}_harness")
    try:
        make = (colour == "blocking" and harness.kept) or harness.make
        run_check(RULES[name], make, second=harness.second, colour=colour)
    except Skipped as skip:
        pytest.skip(str(skip))

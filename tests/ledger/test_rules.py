"""Every rule of the ledger holds on every store: in both colours in this process, in one colour on a server."""

from __future__ import annotations

from zlib import crc32

import pytest

from amends.testing.conformance import COLOURS, Skipped
from amends.testing.conformance.prove import Colour, run_check
from tests.ledger.rules import RULES
from tests.stores.harness import SERVERS, STORES, Harness


def colours_on(kind: str, name: str) -> tuple[Colour, ...]:
    """Return the colours in which a rule is checked on this kind of store.

    A decision is the same flow on every store and in both colours; ``amends.testing.conformance`` proves what differs.
    So a server, which takes ten times as long, gets each rule in one colour: half of them in each, always the same.
    """
    return (COLOURS[crc32(f"{kind} {name}".encode()) % 2],) if kind in SERVERS else COLOURS


CASES = [(kind, name, colour) for kind in STORES for name in RULES for colour in colours_on(kind, name)]


@pytest.mark.parametrize("kind, name, colour", CASES)
def test_a_rule_holds(request: pytest.FixtureRequest, kind: str, name: str, colour: Colour) -> None:
    harness: Harness = request.getfixturevalue(f"{kind}_harness")
    try:
        make = (colour == "blocking" and harness.kept) or harness.make
        run_check(RULES[name], make, second=harness.second, colour=colour)
    except Skipped as skip:
        pytest.skip(str(skip))

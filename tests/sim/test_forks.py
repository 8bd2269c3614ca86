"""Who forks dies at every operation of it, its answers are lost, it stands still: both runs keep their promises."""

from __future__ import annotations

import pytest

from amends.testing.simulation import Fault
from tests.sim.forking import fork_scenarios
from tests.sim.scenarios import Scenario, Variant
from tests.sim.schedule import LEDGER, Schedule, play

POINTS = 20
KINDS = ("before", "after", "pause after", *LEDGER)
"""Operations of the second process at which something goes wrong; longer than the longest of them."""
SCENARIOS = {one.name.split()[0]: one for one in fork_scenarios(Variant(probe=True))}


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS.keys())
def test_a_fork_survives_whatever_happens_to_who_makes_it(scenario: Scenario) -> None:
    forked = blocked = 0
    for at in range(POINTS):
        for kind in KINDS:
            outcome = play(scenario, Schedule(second=(Fault(at, kind),), raced=True, seed=at))
            assert not outcome.violations, "\n".join(map(str, outcome.violations))
            assert outcome.sim is not None
            events = outcome.sim.store.events
            forked += any(event.what == "forked" for event in events)
            blocked += any(event.to_state == "blocked" and "fork" in event.facts for event in events)
    assert forked, "a sweep in which nothing is forked proves nothing"
    assert blocked or scenario.name.split()[0] in ("F29c", "F29e")

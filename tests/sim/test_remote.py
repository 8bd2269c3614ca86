"""The flows with performers and clients do what they say when nothing goes wrong: a program that fails proves nothing."""

from __future__ import annotations

import pytest

from tests.sim.remote import remote_scenarios
from tests.sim.scenarios import Scenario, Variant
from tests.sim.schedule import Schedule, play

PROBED = Variant(probe=True)
ENDS = {
    "W1 claimed, reported, commits": "committed",
    "W1 claimed, reported, raises": "rolled_back",
    "W1 claimed, silent, commits": "committed",
    "W1 claimed, silent, raises": "rolled_back",
    "W1 claimed, reported late, commits": "committed",
    "W1 claimed, reported late, raises": "rolled_back",
    "W2 claimed by an owner that is stuck": "rolled_back",
    "W5 taken over twice": "rolled_back",
    "W3 performed elsewhere, commits": "committed",
    "W3 performed elsewhere, raises": "rolled_back",
    "W6 a compensation reported to another server": "rolled_back",
    "W6 a compensation reported as its lease ends": "rolled_back",
    "W6 a compensation reported as not done": "rolled_back",
    "W7 a compensation that nobody takes, first untaken": "rolled_back",
    "W7 a compensation that nobody takes, first lost": "rolled_back",
    "W4 a client, goes": "rolled_back",
    "W4 a client, comes back": "committed",
    "W4 a client, comes back late": "committed",  # nobody recovered it before
    "W4 a client, never comes back": "rolled_back",
    "W4 a client, whose server dies": "rolled_back",
    "W4 a client, whose server lets go": "rolled_back",
    "W7 a client that moves goes on": "committed",
    "W7 a client that moves has asked too late": "committed",
    "W7 a client that moves is silent then": "rolled_back",
    "W7 a client that moves has claimed": "committed",
    "W7 a client that moves renews its claim": "rolled_back",
    "W7 a client that moves loses its server": "rolled_back",
    "W7 a client that moves renews and loses both servers": "rolled_back",
}

REPEATED = Variant(probe=True, repeat="idempotent", comp_idempotent=True)
FLOWS = [*remote_scenarios(PROBED), *(one for one in remote_scenarios(REPEATED) if one.name.startswith("W7"))]


@pytest.mark.parametrize("scenario", FLOWS, ids=lambda one: one.name)
def test_a_flow_ends_as_it_says(scenario: Scenario) -> None:
    outcome = play(scenario, Schedule(raced=scenario.second is not None and scenario.name[:2] in ("W2", "W5", "W7")))
    assert not outcome.violations
    assert outcome.sim is not None
    assert outcome.world is not None
    first = next(run for run in outcome.sim.store.runs.values() if run.uid == run.root)
    assert first.state == ENDS[scenario.name]
    assert {one.tool for one in outcome.world.landings if one.phase == "execute"} >= {"a", "b"}
    assert {call.remote_s for call in outcome.sim.store.calls.values()} <= {0.0, 400.0}

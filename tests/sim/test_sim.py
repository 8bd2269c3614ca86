"""The simulator in ``make test``: a share of every kind of schedule, and every seeded bug. ``make sim`` plays more."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from amends.testing.checkers import CHECKERS
from amends.testing.simulation import Simulation
from tests.sim.bugs import BUGS, Bug, killed_by
from tests.sim.ledgers import LEDGERS, played_on
from tests.sim.scenarios import VARIANTS, Variant
from tests.sim.schedule import Schedule, play
from tests.sim.sweep import Tally, one, random_part, random_schedule, scenarios_of, single_faults

SHARES = 8


def verdict(tally: Tally) -> str:
    return "\n".join(str(violation) for violation in tally.violations[:10])


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_every_flow_ends_well_when_nothing_goes_wrong(variant: Variant) -> None:
    tally = Tally()
    for index in range(len(scenarios_of(variant))):
        one(variant, index, Schedule(raced=scenarios_of(variant)[index].second is not None, seed=3), tally)
    assert not tally.violations, verdict(tally)


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize(
    "variant",
    [Variant(), Variant(probe=True), Variant(repeat="idempotent", twin="absent_ok", comp_idempotent=True)],
    ids=str,
)
def test_every_single_fault_at_every_operation_is_survived(variant: Variant, share: int) -> None:
    """All of them are played by ``make sim ARGS=--exhaustive``; here every fifth, spread over the shares."""
    tally = Tally()
    for number, (index, schedule) in enumerate(single_faults(variant)):
        if number % SHARES == share and (number // SHARES) % 5 == 0:
            one(variant, index, schedule, tally)
    assert tally.schedules > 100, "a sweep that plays nothing proves nothing"
    assert not tally.violations, verdict(tally)


@pytest.mark.parametrize("seed", range(8))
def test_random_faults_in_agents_recoveries_and_beside_them_are_survived(seed: int) -> None:
    tally = random_part((seed, 500, 120.0))
    assert tally.schedules == 500
    assert not tally.violations, verdict(tally)


@pytest.mark.parametrize("seed", range(2))
def test_random_faults_on_sqlite_are_survived(seed: int) -> None:
    """Its SQL, its quick statements and its group commit meet the same faults: ``make sim ARGS="--store sqlite"``."""
    with played_on("sqlite"):
        tally = random_part((100 + seed, 150, 120.0))
    assert tally.schedules == 150
    assert not tally.violations, verdict(tally)


def test_a_schedule_leaves_the_same_record_on_sqlite_as_in_memory() -> None:
    luck = random.Random(5)
    for _ in range(60):
        variant, index, schedule = random_schedule(luck)
        records = []
        for kind in LEDGERS:
            with played_on(kind):
                sim = play(scenarios_of(variant)[index], schedule).sim
                assert sim is not None
                records.append((_events(sim), list(sim.store.runs.values()), list(sim.store.calls.values())))
        assert records[0] == records[1], f"{variant} {scenarios_of(variant)[index].name}: {schedule}"


def _events(sim: Simulation) -> list[tuple[object, ...]]:
    """Return the events with their facts in any order: a quick statement may write them in another one."""
    return [(replace(event, facts="", hash=""), json.loads(event.facts)) for event in sim.store.events]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.number)
def test_every_seeded_bug_is_killed_by_its_named_checker(bug: Bug) -> None:
    assert set(bug.checkers) <= {*CHECKERS, "assertion", "recovery_survives"}, "the checkers of a bug exist"
    checker, after = killed_by(bug, seconds=120.0)
    assert checker, f"{bug.what} survived {after} schedules"


def test_a_schedule_is_the_same_every_time_it_is_played() -> None:
    scenario = scenarios_of(Variant(probe=True))[8]
    schedule = Schedule(seed=11)
    first, second = play(scenario, schedule), play(scenario, schedule)
    assert first.sim is not None
    assert second.sim is not None
    assert first.sim.store.events == second.sim.store.events


def test_at_least_22_of_the_25_bugs_are_seeded() -> None:
    assert len({bug.number.rstrip("ab") for bug in BUGS if bug.number[0].isdigit()}) >= 22

"""The simulator in ``make test``: a share of every kind of schedule, and every seeded bug. ``make sim`` does far more."""

from __future__ import annotations

import pytest

from amends.testing.checkers import CHECKERS
from tests.sim.bugs import BUGS, Bug, killed_by
from tests.sim.scenarios import VARIANTS, Variant
from tests.sim.schedule import Schedule, play
from tests.sim.sweep import Tally, one, random_part, scenarios_of, single_faults

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

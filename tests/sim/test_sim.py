"""The simulator in ``make test``: a share of every kind of schedule, and every seeded bug. ``make sim`` plays more."""

from __future__ import annotations

import random
import re
import warnings
from unittest import mock

import pytest

from amends.engine import rollback
from amends.ledger.plain import TurnPlain
from amends.ledger.rows import EventRow
from amends.testing.checkers import CHECKERS
from amends.testing.simulation import Simulation
from tests.sim import kills
from tests.sim.bugs import BUGS, Bug, killed_by
from tests.sim.kills import StaleKill, killed_as_remembered, remembered
from tests.sim.ledgers import LEDGERS, played_on
from tests.sim.scenarios import MAIN_VARIANTS, VARIANTS, Variant
from tests.sim.schedule import CRASHES, Schedule, play
from tests.sim.sweep import (
    Tally,
    chosen_faults,
    clean_trace,
    one,
    random_part,
    random_schedule,
    scenarios_of,
    single_faults,
)

SHARES = 16
WHOLE = (
    "F6 rollback",
    "F7 compensation once",
    "F7 compensation lost",
    "F8b side by side",
    "F29e fork at the moment of failure",
)
"""Flows with a rollback that a store may take as a whole."""
SEARCHED = "G4"
REMEMBER = "run make sim ARGS=--remember-kills"


def verdict(tally: Tally) -> str:
    return "\n".join(str(violation) for violation in tally.violations[:10])


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_every_flow_ends_well_when_nothing_goes_wrong(variant: Variant) -> None:
    """Each flow in a third of the variants, another third for the next flow; random schedules have the others."""
    tally = Tally()
    for index in range(VARIANTS.index(variant) % 3, len(scenarios_of(variant)), 3):
        one(variant, index, Schedule(raced=scenarios_of(variant)[index].second is not None, seed=3), tally)
    assert not tally.violations, verdict(tally)


@pytest.mark.parametrize("share", [n if n % 8 == 0 else pytest.param(n, marks=pytest.mark.rest) for n in range(SHARES)])
def test_every_kind_of_single_fault_is_survived(share: int) -> None:
    """Every kind of fault at every kind of operation of every flow, and a death or a pause at every place.

    Three quarters of them are left to ``make test-rest``. Which of the equal places, which variant and which host is fixed by
    ``chosen_faults``. All places of these variants are played by ``make sim ARGS="--exhaustive main"``, those of all
    variants by ``make sim ARGS=--exhaustive``.
    """
    tally = Tally()
    for variant, index, schedule in chosen_faults(MAIN_VARIANTS)[share::SHARES]:
        one(variant, index, schedule, tally)
    assert tally.schedules > 500, "a sweep that plays nothing proves nothing"
    assert not tally.violations, verdict(tally)


def test_the_chosen_faults_leave_out_no_kind() -> None:
    """Counted here without the help of ``chosen_faults``: a choice that became too small fails."""
    every = {_told(v, index, schedule) for v in MAIN_VARIANTS for index, schedule in single_faults(v)}
    chosen = {_told(*each) for each in chosen_faults(MAIN_VARIANTS)}
    assert {(variant, *what) for variant, _, *what in every} == {(variant, *what) for variant, _, *what in chosen}
    assert {(flow, operation) for _, flow, operation, *_ in every} == {(f, operation) for _, f, operation, *_ in chosen}
    alike = {"unsent": "lost", "clock forward": "clock back"}
    wanted = {(flow, operation, alike.get(kind, kind)) for _, flow, operation, kind, _ in every if kind not in CRASHES}
    assert wanted <= {(flow, operation, alike.get(kind, kind)) for _, flow, operation, kind, _ in chosen}


def _told(variant: Variant, index: int, schedule: Schedule) -> tuple[Variant, str, str, str, bool]:
    """Return variant, flow, operation, kind of fault, and whether the host of the recovery is the one that died."""
    [fault] = schedule.agent
    died = schedule.same_host and fault.kind in CRASHES
    return variant, scenarios_of(variant)[index].name, clean_trace(variant, index)[fault.at], fault.kind, died


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(n, marks=pytest.mark.rest) for n in range(3, 8))])
def test_random_faults_in_agents_recoveries_and_beside_them_are_survived(seed: int) -> None:
    tally = random_part((seed, 300, 120.0))
    assert tally.schedules == 300
    assert not tally.violations, verdict(tally)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.rest)])
def test_random_faults_on_sqlite_are_survived(seed: int) -> None:
    """Its SQL, its plain statements and its batches meet the same faults: ``make sim ARGS="--store sqlite"``."""
    with played_on("sqlite"):
        tally = random_part((100 + seed, 150, 120.0))
    assert tally.schedules == 150
    assert not tally.violations, verdict(tally)


def test_a_schedule_leaves_the_same_record_on_sqlite_as_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    # Only on SQLite is a whole rollback begun by one operation instead of two: every later fault would strike elsewhere.
    monkeypatch.setattr(rollback, "_known_effects", lambda _session: [])
    luck = random.Random(5)
    for _ in range(60):
        _assert_alike(*random_schedule(luck))


@pytest.mark.parametrize("index", range(len(WHOLE)), ids=WHOLE)
def test_a_whole_rollback_leaves_the_same_record_on_sqlite_as_in_memory(index: int) -> None:
    variant = VARIANTS[7 * index % len(VARIANTS)]
    flow = next(place for place, flow in enumerate(scenarios_of(variant)) if flow.name == WHOLE[index])
    with mock.patch.object(rollback, "TurnPlain", wraps=TurnPlain) as asked:
        _assert_alike(variant, flow, Schedule(seed=3))
    assert asked.called


def _assert_alike(variant: Variant, index: int, schedule: Schedule) -> None:
    records = []
    for kind in LEDGERS:
        with played_on(kind):
            sim = play(scenarios_of(variant)[index], schedule).sim
            assert sim is not None
            records.append((_events(sim), list(sim.store.runs.values()), dict(sim.store.calls)))
    assert records[0] == records[1], f"{variant} {scenarios_of(variant)[index].name}: {schedule}"


def _events(sim: Simulation) -> list[EventRow]:
    """Return the events in the order of their trees and numbers, folded ones too: every hash is the same."""
    return sorted(sim.store.events, key=lambda event: (event.root, event.n))


@pytest.mark.filterwarnings("default::tests.sim.kills.StaleKill")
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.number)
def test_every_seeded_bug_is_killed_by_its_named_checker(bug: Bug) -> None:
    """In the schedule that is remembered in ``kills.json``, which correct code survives, else in any that is found."""
    assert set(bug.checkers) <= {*CHECKERS, "assertion", "recovery_survives"}, "the checkers of a bug exist"
    tally = Tally()
    with played_on(bug.store):
        for variant, index, schedule in remembered(bug):
            one(variant, index, schedule, tally)
    assert not tally.violations, verdict(tally)
    if killed_as_remembered(bug) is None:
        warnings.warn(StaleKill(f"no remembered schedule kills {bug.number}: {REMEMBER}"), stacklevel=1)
        kill, after = killed_by(bug, seconds=120.0)
        assert kill is not None, f"{bug.what} survived {after} schedules"


def test_a_bug_without_a_remembered_schedule_is_searched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search that follows a stale schedule must not rot while nothing needs it: it runs here for one bug."""
    monkeypatch.setattr(kills, "_read", dict)
    [bug] = [bug for bug in BUGS if bug.number == SEARCHED]
    assert killed_as_remembered(bug) is None
    kill, after = killed_by(bug, seconds=120.0)
    assert kill is not None, f"{bug.what} survived {after} schedules"
    assert kill.checker in bug.checkers


def test_no_schedule_is_remembered_for_a_bug_that_is_gone() -> None:
    assert kills.known() <= {bug.number for bug in BUGS}, REMEMBER


def test_every_bug_has_a_number_of_its_own() -> None:
    """Otherwise the remembered schedule of one of them is played for the other."""
    numbers = [bug.number for bug in BUGS]
    assert len(numbers) == len(set(numbers)), sorted(number for number in set(numbers) if numbers.count(number) > 1)
    written = re.findall(r'^  "(\w+)":', kills.FILE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(written) == len(set(written)), sorted(number for number in set(written) if written.count(number) > 1)


def test_a_schedule_is_the_same_every_time_it_is_played() -> None:
    scenario = scenarios_of(Variant(probe=True))[8]
    schedule = Schedule(seed=11)
    first, second = play(scenario, schedule), play(scenario, schedule)
    assert first.sim is not None
    assert second.sim is not None
    assert first.sim.store.events == second.sim.store.events


def test_at_least_22_of_the_25_bugs_are_seeded() -> None:
    assert len({bug.number.rstrip("ab") for bug in BUGS if bug.number[0].isdigit()}) >= 22

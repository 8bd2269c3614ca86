"""Schedules that once broke something, each with what it broke. A bug gets its seed here before it gets its fix."""

from __future__ import annotations

import pytest

from amends.testing.simulation import Fault
from tests.sim.scenarios import Variant
from tests.sim.schedule import Schedule, play
from tests.sim.sweep import scenarios_of

SEEDS: list[tuple[str, str, Variant, Schedule]] = [
    (
        "the commit of a run went round while an agent of it was incomplete after its pivot",
        "D5 incomplete agent, nobody",
        Variant(),
        Schedule(seed=3),
    ),
    (
        "a rollback did not end when the pivot of a child turned out not to have happened since it began",
        "F14e only a lost pivot",
        Variant(probe=True),
        Schedule((Fault(2, "after"),)),
    ),
    (
        "a rollback did not end while the pivot of a child was in doubt",
        "F14 child with pivot",
        Variant(),
        Schedule((Fault(9, "after"),)),
    ),
    (
        "the decision to commit, asked for again after a lost answer, waited for the pivot that it had started",
        "F11 at commit, ok",
        Variant(),
        Schedule((Fault(8, "lost"),)),
    ),
    (
        "the late word of a fenced worker compensated a second time what it had seen happen",
        "F1 call",
        Variant(probe=True),
        Schedule((Fault(2, "pause after"),)),
    ),
    (
        "no two hosts ever agreed that the settle delay was over",
        "F1 call",
        Variant(probe=True),
        Schedule((Fault(1, "after"),), same_host=False),
    ),
    (
        "leaving a block took a call that another thread had just begun for one that nobody was behind",
        "F8c leaves early",
        Variant(True, "idempotent", "", True),
        Schedule(
            (Fault(16, "clock back"), Fault(10, "redeliver")),
            (Fault(3, "body no effect"), Fault(18, "after")),
            same_host=False,
            seed=1064260577,
        ),
    ),
    (
        "the probe of a compensation was handed the call's key, and so the compensation was done twice",
        "F7p probed, answer lost",
        Variant(),
        Schedule((Fault(39, "before"),), (Fault(21, "body request lost"),), seed=829486980, rivals=True),
    ),
    (
        "no two hosts ever agreed that the settle delay of a compensation was over",
        "F7p probed, answer lost",
        Variant(True, "window"),
        Schedule((Fault(13, "clock forward"),), same_host=False, seed=388706690),
    ),
    (
        "a run was blocked for good by a child whose compensation was to be tried again later",
        "F16b child slowly back",
        Variant(False, "idempotent"),
        Schedule((Fault(26, "lost"),), same_host=False, seed=945697240, rivals=True),
    ),
    (
        "a repeated start that was never sent said that the start before it had had no effect",
        "F17b opened again, commits",
        Variant(False, "window", "wins", True),
        Schedule(
            (Fault(10, "cancel before"),), (Fault(20, "pause before"),), (Fault(0, "after"),), False, True, 872949326
        ),
    ),
    (
        "a read of a resumed run, asked for again after a lost answer, got the next recorded one, and then a body ran",
        "F5b resumed reads",
        Variant(),
        Schedule(recovery=(Fault(0, "after"),), later=(Fault(8, "lost"),), same_host=False, seed=1),
    ),
    (
        "the probe of a compensation could not be asked about a call without a result, and every worker failed for ever",
        "F7p probed, request lost",
        Variant(False, "idempotent", "absent_ok"),
        Schedule(
            (Fault(5, "pause after"),),
            (Fault(7, "body no effect"),),
            same_host=False,
            seed=714552450,
            later=(Fault(18, "body raise"),),
            rivals=True,
        ),
    ),
    (
        "the same, where the compensation wins over a late effect",
        "F7p probed, answer lost",
        Variant(False, "idempotent", "wins"),
        Schedule(
            (Fault(4, "pause after"),),
            (Fault(22, "body raise"), Fault(1, "after")),
            same_host=False,
            seed=83227991,
            rivals=True,
        ),
    ),
    (
        "a rollback did not end over a child's pivot whose next start was due although it had had no effect",
        "F14d child passed over",
        Variant(True, "idempotent", "wins"),
        Schedule((Fault(15, "before"), Fault(7, "body request lost")), seed=897873586),
    ),
    (
        "a run was blocked, and what it had done stayed, although its pivot had certainly had no effect",
        "F9 staged, pivot",
        Variant(True, "idempotent", "wins"),
        Schedule((Fault(14, "before"), Fault(6, "body request lost")), seed=1),
    ),
    (
        "the same, and nothing said why",
        "F9b beside the pivot",
        Variant(True, "idempotent", "wins"),
        Schedule((Fault(11, "before"), Fault(3, "body request lost")), seed=1),
    ),
]


@pytest.mark.parametrize("what, name, variant, schedule", SEEDS, ids=[seed[0][:40] for seed in SEEDS])
def test_what_was_broken_once_stays_mended(what: str, name: str, variant: Variant, schedule: Schedule) -> None:
    found = [scenario for scenario in scenarios_of(variant) if scenario.name == name]
    assert found, f"the flow {name!r} is still there"
    for scenario in found:
        assert play(scenario, schedule).violations == [], what

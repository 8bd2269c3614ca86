"""What a person is shown of a state that some crash left is what the ledger then does, in thousands of such states."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from amends.encoding.chain import moment
from amends.engine import recovery
from amends.engine.rollback import roll_back
from amends.errors import LedgerError
from amends.host import runs
from amends.host.host import Host
from amends.ledger.flow import Flow, run_flow
from amends.ledger.operations import StoreOp
from amends.ledger.rows import RunRow
from amends.ledger.world import (
    Clocks,
    DrawRandom,
    Ended,
    Invoke,
    IsDead,
    LazyCall,
    LiveCalls,
    ReadClocks,
    RunTogether,
    Sleep,
)
from amends.model import Absent, Happened, Probed, Unknown
from amends.people import doubts
from amends.people import rollback as rollback_plans
from amends.people.rollback import MICROSECOND
from amends.report import Next, RollbackPlan
from amends.states import RUN_FINAL
from amends.stores.memory import MemoryStore
from amends.testing.simulation import NOBODY, Simulation
from tests.sim import schedule
from tests.sim.sweep import random_schedule, scenarios_of

STATES_MIN = 100
ANSWERS: dict[str, Probed[Any]] = {"happened": Happened(None), "absent": Absent(), "unknown": Unknown()}


def _copied(value: Any) -> Any:
    """Rows are never changed: only what holds them is copied, and what is held in that."""
    if isinstance(value, dict):
        return {name: _copied(item) for name, item in value.items()}
    return [*map(_copied, value)] if isinstance(value, list) else set(value) if isinstance(value, set) else value


class Copy:
    """The whole ledger, copied; in it flows are really driven, and every body succeeds."""

    def __init__(self, sim: Simulation, probes_say: Absent | Unknown) -> None:
        self.store = MemoryStore(clock=lambda: self.clocks.wall)
        for name, value in vars(sim.store).items():
            if isinstance(value, dict | list):
                setattr(self.store, name, _copied(value))
        self.store._undo = []
        clocks = sim.clock.read("host")
        newest = self.store.events[-1].at if self.store.events else 0.0
        # As in a rehearsal nothing takes time, and ledger time is whole microseconds: due is due.
        self.clocks: Clocks = replace(clocks, wall=moment(max(clocks.wall, newest)))
        self.probes_say = probes_say
        self.seen: list[tuple[str, str]] = []

    def drive(self, flow: Flow[Any]) -> Any:
        return run_flow(flow, self.perform)

    def perform(self, op: Any) -> Any:
        match op:
            case StoreOp():
                return self.store.perform(op)
            case Invoke():
                call = op.call.whole() if isinstance(op.call, LazyCall) else op.call
                if op.phase == "probe" and not op.probes:  # nobody else has changed what is put back
                    self.seen.append(("guard", call.id))
                    return Ended(value=True)
                self.seen.append(({"execute": "start"}.get(op.phase, op.phase), call.id))
                return Ended(value=self.probes_say if op.phase == "probe" else None)
            case ReadClocks():
                return self.clocks
            case Sleep():
                wait = max(0.0, min(op.seconds, 1e9))
                wall = moment(self.clocks.wall + wait + MICROSECOND)
                self.clocks = replace(self.clocks, wall=wall, mono=self.clocks.mono + wait)
            case DrawRandom():
                return 0.5
            case LiveCalls():
                return 0
            case IsDead():
                return False
            case RunTogether():
                return [self.drive(flow) for flow in op.flows]
        return None


def _followed(sim: Simulation, host: Host, call_id: str, root: str, answer: Probed[Any]) -> tuple[Copy, str]:
    """As ``rt.resolve`` does it in a process that has no agent."""
    copy = Copy(sim, Unknown("assumed"))
    copy.drive(doubts.resolve(host, NOBODY, call_id, answer, by="anna", why=doubts.YOUR_WHY))
    found = copy.drive(runs.one(host, root))
    if found is not None:
        row, lease = copy.drive(runs.claim(host, found, force=True))
        session = host.session(row, lease, resumed=True, wait_s=runs.patience(host))
        try:
            done = copy.drive(recovery.recover_tree(session, row, has_agent=False))
            assert done.how == "done"
        except LedgerError:
            pass
    return copy, copy.store.runs[root].state


def _states(seed: int, look: Any) -> int:
    """Play random schedules up to where a person is asked, and look at each state that is left."""
    luck, count = random.Random(seed), 0

    class Stage(schedule._Stage):
        def _persons(self) -> None:
            nonlocal count
            host = self.host
            host.store = self.sim.store
            for run in list(self.sim.store.runs.values()):
                if run.state not in RUN_FINAL and not run.parent and not run.owner:
                    count += look(self.sim, host, run)

    original = schedule._Stage
    schedule._Stage = Stage  # type: ignore[misc]
    try:
        for _ in range(600):
            variant, index, one = random_schedule(luck)
            outcome = schedule.play(scenarios_of(variant)[index], one)
            assert not outcome.violations, "\n".join(str(violation) for violation in outcome.violations)
    finally:
        schedule._Stage = original  # type: ignore[misc]
    return count


def _look_at_doubts(sim: Simulation, host: Host, run: RunRow) -> int:
    looked = 0
    for call in list(sim.store.calls.values()):
        doubtful = call.state in ("in_doubt", "compensation_in_doubt", "compensation_failed")
        if call.root != run.uid or not doubtful:
            continue
        reader = Copy(sim, Unknown())
        before = list(sim.store.events)
        preview = reader.drive(doubts.preview(host, NOBODY, call.id))
        assert list(sim.store.events) == before
        for name, answer in ANSWERS.items():
            told: Next = getattr(preview, name)
            copy, state = _followed(sim, host, call.id, run.uid, answer)
            shown = [(one.what, one.call.id) for one in told.does]
            assert copy.seen == shown, f"{call.tool} {call.state} {name} in {run.state}: {told}"
            assert (copy.store.calls[call.id].state, state) == (told.call_state, told.run_state)
            looked += 1
    return looked


def _look_at_plan(sim: Simulation, host: Host, run: RunRow) -> int:
    reader = Copy(sim, Absent())
    plan: RollbackPlan = reader.drive(rollback_plans.plan_rollback(host, NOBODY, run.id))
    if plan.refused is not None:
        return 0
    copy = Copy(sim, Absent())
    copy.drive(rollback_plans.rollback(host, NOBODY, run.id, plan=plan.hash, by="anna", why="..."))
    found = copy.drive(runs.one(host, run.uid))
    assert found is not None
    row, lease = copy.drive(runs.claim(host, found, force=True))
    session = host.session(row, lease, resumed=True, wait_s=float("inf"))
    back = copy.drive(roll_back(session, by="recovery", why="..."))
    undone = [id for what, id in copy.seen if what == "compensate"]
    assert undone == [one.call.id for one in plan.compensations]
    left = {call.id for call in copy.store.calls.values() if call.root == run.uid and _stands(copy.store, call)}
    named = {one.call.id for one in plan.cannot} | {one.call.id for one in plan.doubts if one.what == "ask"}
    assert left <= named, f"{left - named} stand, and the plan does not say so"
    if plan.complete:
        assert back.run.state == "rolled_back"
    return 1


def _stands(store: MemoryStore, call: Any) -> bool:
    standing = ("succeeded", "in_doubt", "compensation_failed", "compensation_in_doubt")
    kept = store.runs[call.run].state in ("committed", "pivoted") and call.id != store.runs[call.run].pivot
    return call.kind != "read" and not call.shared and call.state in standing and not kept


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.rest)])
def test_previews_are_true_in_whatever_state_a_crash_left(seed: int) -> None:
    assert _states(seed, _look_at_doubts) >= STATES_MIN


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.rest)])
def test_plans_are_true_in_whatever_state_a_crash_left(seed: int) -> None:
    assert _states(seed + 50, _look_at_plan) >= STATES_MIN // 2

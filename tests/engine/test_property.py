"""Random sequences of calls of every kind, with random failures: the promises, checked against the world."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from amends import Absent, Error, Happened, Report, Retry, Runtime, current_call, current_run, tool
from amends.states import CALL_MOVES, RUN_MOVES
from amends.stores.memory import MemoryStore

pytestmark = pytest.mark.rest  # seconds of random cases

FAST = Retry(attempts=2, delay=0.0, jitter=0.0)


class Failure(Exception):
    pass


@dataclass
class Model:
    """The world outside: effects by the key that the destination was given."""

    standing: dict[str, str] = field(default_factory=dict)
    ever: list[str] = field(default_factory=list)
    pivoted: set[str] = field(default_factory=set)
    deciding: bool = False
    outcome: str = "ok"
    undo: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def act(self, *, once: bool = True) -> str:
        call = current_call()
        turn, self.outcome = self.outcome, "ok"
        if turn == "fail":
            raise Failure
        if turn == "dropped":
            raise TimeoutError
        if once and call.key in self.ever:
            self.broken.append(f"{call.tool} happened twice under one key")
        self.ever.append(call.key)
        self.standing[call.key] = call.id
        if turn == "lost":
            raise TimeoutError
        return call.tool


world = Model()


def _compensatable(name: str, *, probed: bool) -> Any:
    @tool(name=name, retry=FAST)
    def body(x: str) -> str:
        if current_run().id in world.pivoted:
            world.broken.append(f"{name} started after the pivot")
        return world.act()

    @body.compensate(retry=FAST)
    def undo(call: Any) -> None:
        turn = world.undo.pop(0) if world.undo else "ok"
        if turn == "fail":
            raise Failure
        if turn == "dropped":
            raise TimeoutError
        if call.key not in world.standing:
            world.broken.append(f"{name} was taken back although it does not stand")
        world.standing.pop(call.key, None)
        if turn == "lost":
            raise TimeoutError

    if probed:
        body.probe(_look)
    return body


def _look(call: Any) -> Any:
    return Happened(call.tool) if call.key in world.standing else Absent()


def _pivot(name: str, **options: Any) -> Any:
    @tool(name=name, kind="pivot", retry=FAST, **options)
    def body(x: str) -> str:
        run = current_run().id
        if run in world.pivoted:
            world.broken.append(f"{name} is a second pivot")
        turn = world.outcome
        if turn in ("ok", "lost"):
            world.pivoted.add(run)
        return world.act()

    return body


def _retriable(name: str, **options: Any) -> Any:
    @tool(name=name, kind="retriable", retry=FAST, **options)
    def body(x: str) -> str:
        if current_run().id not in world.pivoted and not world.deciding:
            world.broken.append(f"{name} ran before the decision")
        return world.act(once=not options.get("idempotent"))

    return body


@tool(kind="read")
def look(x: str) -> int:
    if world.outcome != "ok":
        world.outcome = "ok"
        raise Failure
    return len(world.standing)


COMPENSATABLES = [_compensatable("plain", probed=False), _compensatable("asked", probed=True)]
PIVOTS = [_pivot("wire"), _pivot("asked_wire", probe=_look), _pivot("late_wire", at="commit")]
RETRIABLES = [_retriable("mail", idempotent=True), _retriable("asked_mail", probe=_look)]
TOOLS = [*COMPENSATABLES, *PIVOTS, *RETRIABLES, look]
STORE = MemoryStore()
RT = Runtime(store=STORE, tools=TOOLS, wait=0.0, lease=3600)

OUTCOMES = st.sampled_from([*["ok"] * 14, "fail", "fail", "lost", "dropped"])
# More of what may come first, so that most sequences have something to take back.
CHOICES = [*COMPENSATABLES * 12, *TOOLS]
CALLS = st.tuples(st.sampled_from(range(len(CHOICES))), st.sampled_from("ab"), OUTCOMES)
CHILDREN = st.tuples(st.lists(CALLS, min_size=1, max_size=4), st.booleans())
STEPS = st.lists(st.one_of(CALLS, CALLS, CALLS, CHILDREN), min_size=4, max_size=12)


def _do(run: Any, step: tuple[Any, ...]) -> None:
    if len(step) == 3:
        number, x, world.outcome = step
        with contextlib.suppress(Failure, TimeoutError, Error):
            run.call(CHOICES[number], x=x)
        world.outcome = "ok"
        return
    calls, fails = step
    with contextlib.suppress(Failure, Error), run.child() as inner:
        for call in calls:
            _do(inner, call)
        if fails:
            raise Failure


def _all(report: Report) -> list[Any]:
    return [*report.calls, *(call for child in report.children for call in _all(child))]


@settings(max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)
@given(STEPS, st.sampled_from(["commit", "commit", "raise", "rollback"]), st.lists(OUTCOMES, max_size=3))
def test_the_promises_hold_for_every_sequence(steps, end, undo) -> None:
    global world
    world = Model(undo=undo)
    first_event = len(STORE.events)
    with contextlib.suppress(Failure, Error), RT.run() as run:
        for step in steps:
            _do(run, step)
        if end == "rollback":
            run.rollback("asked")
        if end == "raise":
            raise Failure
        world.deciding = True
    report = RT.report(run.id)
    event(f"{end} -> {report.state}")
    assert world.broken == []
    _check_end(report)
    _check_events(first_event)


def _check_end(report: Report) -> None:
    calls = _all(report)
    standing = set(world.standing.values())
    succeeded = {call.id for call in calls if call.state == "succeeded" and call.kind != "read"}
    assert not [call for call in calls if call.state in ("started", "compensating")]
    match report.state:
        case "rolled_back":
            assert standing == set()
            assert report.residue == ()
        case "committed":
            assert standing == succeeded
            assert not [call for call in calls if call.staged]
        case "pivoted":
            assert [call for call in calls if call.state == "backing_off" or call.staged]
            assert succeeded <= standing
        case "blocked":
            named = {left.call.id for left in report.residue}
            gone_back = {one.run.id for one in _runs(report) if one.run.goal == "rollback" and not _pivot_in_doubt(one)}
            left = {call.id for call in calls if call.id in standing and call.run_id in gone_back}
            assert report.run.causes
            assert left <= named
        case "open":
            # Decided, and waiting for a child that pivoted.
            assert report.run.goal == "commit"
            assert any(child.state == "pivoted" for child in report.children)
        case other:
            raise AssertionError(other)


def _pivot_in_doubt(report: Report) -> bool:
    """It neither goes back nor forward until that is settled."""
    return any(call.kind == "pivot" and call.state == "in_doubt" for call in report.calls)


def _runs(report: Report) -> list[Report]:
    return [report, *(one for child in report.children for one in _runs(child))]


def _check_events(first: int) -> None:
    seen: dict[str, str] = {}
    for line in STORE.events[first:]:
        if line.what in ("call", "run"):
            moves: Any = CALL_MOVES if line.what == "call" else RUN_MOVES
            place = line.call if line.what == "call" else line.run
            assert seen.get(place, "(new)") == line.frm
            assert line.to_state in moves[line.frm]
            seen[place] = line.to_state
    for place, state in seen.items():
        row: Any = STORE.calls.get(place) or STORE.runs[place]
        assert row.state == state

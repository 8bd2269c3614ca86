"""The ledger against the world, at the end. Four counts that must be zero, and the rules of the record itself, with its chains."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, cast

from amends import Runtime
from amends.audit.verify import Audit, verify_chains
from amends.ledger.flow import run_flow
from amends.ledger.operations import ListRuns, ReadEvents, SearchCalls
from amends.ledger.rows import CallRow, EventRow, RunRow
from amends.ledger.store import Store
from amends.states import RUN_FINAL
from amends.testing import checkers
from tests.chaos.tools import TRAITS
from tests.chaos.world import Standing, World, standing

COUNTS: Final = ("duplicated", "lost", "stuck", "unnamed")
PAGE: Final = 1000
GONE: Final = ("failed", "compensated", "dropped", "refused", "held", "backing_off")
RECORD: Final = (
    checkers.compensation_order,
    checkers.pivot_law,
    checkers.outbox,
    checkers.event_per_transition,
    checkers.blocked_for_a_person,
    checkers.attempts_in_order,
    checkers.pivot_moves_its_run,
    checkers.work_left,
    checkers.child_outbox,
    checkers.children_closed,
    checkers.goal_kept,
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One violation. ``count``: one of COUNTS, or the name of a checker of the record."""

    count: str
    run_id: str
    what: str


@dataclass(slots=True)
class Rows:
    """A part of the ledger, in the shape that the simulator's checkers read."""

    runs: dict[str, RunRow] = field(default_factory=dict)
    calls: dict[str, CallRow] = field(default_factory=dict)
    events: list[EventRow] = field(default_factory=list)


# ---- reading ------------------------------------------------------------------------------


def read_runs(store: Store, states: tuple[str, ...] = ()) -> Iterator[RunRow]:
    """Every run, newest first."""
    before: tuple[float, str] | None = None
    while page := store.perform(ListRuns(None, states, before, PAGE)):
        yield from page
        before = (page[-1].created_at, page[-1].uid)


def read_calls(store: Store, states: tuple[str, ...] = ()) -> Iterator[CallRow]:
    """Every call, newest first."""
    before: str | None = None
    while page := store.perform(SearchCalls(None, states, before, PAGE)):
        yield from page
        before = page[-1].id


def read_events(store: Store) -> Iterator[EventRow]:
    """Every event, oldest first."""
    after = ""
    while page := store.perform(ReadEvents(None, None, after, PAGE)):
        yield from page
        after = page[-1].place


def read_all(store: Store) -> dict[str, Rows]:
    """The ledger by the id of the root run, all its generations together."""
    found: dict[str, Rows] = defaultdict(Rows)
    runs = {run.uid: run for run in read_runs(store)}
    for run in runs.values():
        found[runs[run.root].id].runs[run.uid] = run
    for call in read_calls(store):
        found[runs[call.root].id].calls[call.id] = call
    for event in read_events(store):
        found[runs[event.root].id].events.append(event)
    return found


# ---- judging ------------------------------------------------------------------------------


def audit(rt: Runtime, store: Store, world: World, *, run_ids: dict[str, int]) -> list[Finding]:
    """Everything that is wrong. ``run_ids``: the runs that were to be, with their numbers in the world."""
    findings: list[Finding] = []
    ledger = read_all(store)
    for run_id, number in run_ids.items():
        there = standing(world.lines(number), TRAITS)
        rows = ledger.get(run_id, Rows())
        findings += [Finding(name, run_id, what) for name, what in judged(rows, there, run_id)]
        findings += [Finding("unnamed", run_id, what) for what in unnamed(rt, rows, there)]
    findings += [Finding("record_is_whole", "", what) for what in broken(store, ledger)]
    return findings


def broken(store: Store, ledger: dict[str, Rows]) -> Iterator[str]:
    """What an audit says of the hash chains, and of rows that are not as their events prove."""
    verified = run_flow(verify_chains(Audit()), store.perform).verified()
    yield from map(str, verified.problems)
    events = sum(len(rows.events) for rows in ledger.values())
    if verified.events != events:
        yield f"{events} events can be read, and {verified.events} are in chains"


def judged(rows: Rows, there: Standing, run_id: str) -> Iterator[tuple[str, str]]:
    """What is wrong with one run and all its generations."""
    for name, found in (
        ("duplicated", duplicated(rows, there)),
        ("lost", lost(rows, there, run_id)),
        ("stuck", stuck(rows)),
    ):
        for what in found:
            yield name, what
    for checker in (*RECORD, settled_by_owner):
        for what in checker(cast("Any", rows), cast("Any", there)):
            yield checker.__name__, what


def duplicated(rows: Rows, there: Standing) -> Iterator[str]:
    """One effect per call, one compensation per call, and one standing effect per intent."""
    for call, count in there.done.items():
        if count > 1:
            yield f"{there.tools[call]} {call} took effect {count} times"
    for call, count in there.undone.items():
        if count > 1:
            yield f"{there.tools[call]} {call} was taken back {count} times"
    for (_, tool, args), count in there.standing_intents(rows).items():
        if count > 1:
            yield f"{tool}{args} stands {count} times"


def lost(rows: Rows, there: Standing, run_id: str) -> Iterator[str]:
    """What the ledger says was done stands; what it says was not, or was taken back, does not; all is known."""
    if not rows.runs:
        yield "the run is not in the ledger"
    for call in rows.calls.values():
        if call.kind == "read":
            continue
        if call.state == "succeeded" and not there.stands(call.id):
            yield f"{call.tool} {call.id} is succeeded and not in the world"
        if call.state in GONE and there.stands(call.id):
            yield f"{call.tool} {call.id} is {call.state} and stands in the world"
    for call_id in {*there.done, *there.undone} - set(rows.calls):
        yield f"{there.tools[call_id]} {call_id} is in the world and not in the ledger"
    newest = max((run for run in rows.runs.values() if run.uid == run.root), key=lambda r: r.generation, default=None)
    if there.told and newest is not None and newest.phase not in ("committed", "pivoted"):
        yield f"the caller was told that {run_id} is done, and it is {newest.state}"


def stuck(rows: Rows) -> Iterator[str]:
    """Every tree has ended, or waits visibly for a person over a call that has neither probe nor idempotency."""
    for call in rows.calls.values():
        if call.state in ("started", "compensating"):
            yield f"{call.tool} {call.id} is {call.state} and nobody is behind it"
    for run in rows.runs.values():
        if run.uid != run.root or run.state in RUN_FINAL:
            continue
        why = not_visible(run, [call for call in rows.calls.values() if call.root == run.uid])
        if why:
            yield f"the run is {run.state} (goal {run.goal or 'none'}, policy {run.policy}): {why}"


def not_visible(run: RunRow, calls: list[CallRow]) -> str:
    """Why an unended tree is not simply waiting for a person; "" when it is."""
    asked = [call for call in calls if is_asked(call)]
    safe = [f"{call.tool} {call.id} is {call.state}" for call in asked if TRAITS[call.tool].safe]
    if safe:
        return f"{', '.join(safe)}, which nobody needs to be asked about"
    if not asked and not (run.phase == "rolling_back" and any(is_kept(call, run) for call in calls)):
        return "there is no doubt in it"
    return "" if run.state == "blocked" and json.loads(run.causes) else "its doubt is not named as its cause"


def is_asked(call: CallRow) -> bool:
    """Whether a person is asked about this call."""
    gave_up = call.state == "backing_off" and call.retry_at is None
    return gave_up or call.state in ("in_doubt", "compensation_in_doubt", "compensation_failed")


def is_kept(call: CallRow, root: RunRow) -> bool:
    """Whether it is a child's pivot: nobody can take it back, so a person must accept it."""
    return call.kind == "pivot" and call.state == "succeeded" and call.run != root.uid


def unnamed(rt: Runtime, rows: Rows, there: Standing) -> Iterator[str]:
    """What stands after its run went back, or may stand and is no simple success, is in the report's residue."""
    for run in rows.runs.values():
        if run.uid != run.root or run.state == "committed":
            continue
        forward = run.phase in ("open", "pivoted")
        left = [
            call
            for call in rows.calls.values()
            if call.root == run.uid
            and there.stands(call.id)
            and not (forward and call.state == "succeeded")
            and not _behind_pivot(rows.runs[call.run], call)
        ]
        if not left:
            continue
        named = {one.call.id for one in rt._report(uid=run.uid).residue}
        for call in left:
            if call.id not in named:
                yield f"{call.tool} {call.id} ({call.state}) stands after the run is {run.state}, and is not named"


def _behind_pivot(run: RunRow, call: CallRow) -> bool:
    """Whether it stands rightly in a child whose pivot passed: the pivot is what its parent names."""
    return bool(run.parent and run.pivot) and run.phase in ("pivoted", "committed") and call.id != run.pivot


def settled_by_owner(rows: Rows, there: Standing) -> Iterator[str]:
    """Only the process that owns a tree moves its calls; whoever was taken over can settle nothing."""
    owners: dict[str, str] = {}
    for event in rows.events:
        opened = event.what == "taken over" or (
            event.what == "run" and event.frm == "(new)" and event.run == event.root
        )
        if opened:
            owners[event.root] = event.by_whom
        elif event.what == "call" and "|" in event.by_whom and event.by_whom != owners.get(event.root):
            yield f"{event.call} was moved to {event.to_state} by a process that had been taken over"

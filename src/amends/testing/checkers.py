"""What must hold at the end of every schedule, each by its name. Always the ledger against the world."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from amends.rows import CallRow, EventRow
from amends.states import RUN_FINAL, call_may, run_may
from amends.store.memory import MemoryStore
from amends.testing.forkcheckers import by_word
from amends.testing.topics import TOPIC_CHECKERS
from amends.testing.world import World, result_of


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that a schedule broke."""

    checker: str
    what: str
    schedule: str = ""

    def __str__(self) -> str:
        return f"{self.checker}: {self.what}" + (f"   [{self.schedule}]" if self.schedule else "")


Checker = Callable[[MemoryStore, World], Iterator[str]]


def effects_once(store: MemoryStore, world: World) -> Iterator[str]:
    """One effect per call (a key's generation), and one per intent, whatever crashed."""
    for call_id, count in world.landed_counts("execute").items():
        if count > 1:
            yield f"{_name(store, call_id)} took effect {count} times"
    for (root, tool, args), standing in world.standing_intents(store).items():
        if standing > 1:
            yield f"{tool}{args} of {root} stands {standing} times"


def compensated_once(store: MemoryStore, world: World) -> Iterator[str]:
    """A compensation takes effect at most once."""
    for call_id, count in world.landed_counts("compensate").items():
        if count > 1:
            yield f"{_name(store, call_id)} was compensated {count} times"


def ledger_against_world(store: MemoryStore, world: World) -> Iterator[str]:
    """What the ledger says stands, stands; what it says is gone, is gone."""
    for call in store.calls.values():
        if call.kind == "read" or call.shared:
            continue
        stands = world.stands(call.id)
        if call.state == "succeeded" and not stands:
            yield f"{call.tool} {call.id} is succeeded and not in the world"
        if call.state in ("failed", "compensated", "dropped", "refused", "held") and stands:
            yield f"{call.tool} {call.id} is {call.state} and stands in the world"
    for run in store.runs.values():
        if run.state == "rolled_back":
            left = [c.tool for c in store.calls.values() if c.run == run.uid and world.stands(c.id)]
            if left:
                yield f"run {run.id} is rolled_back and {left} stand"


def effects_are_known(store: MemoryStore, world: World) -> Iterator[str]:
    """No effect without a row; no body before its start is durable."""
    for call_id in world.landed_counts("execute"):
        if call_id not in store.calls:
            yield f"an effect of {call_id} is in the world and not in the ledger"
    yield from world.unwritten


def compensation_order(store: MemoryStore, world: World) -> Iterator[str]:
    """Reverse of settling; none while a call of the tree is started. Read from the record itself."""
    state: dict[str, str] = {}
    settled: dict[str, int] = {}
    for event in store.events:
        if event.what != "call":
            continue
        call = store.calls.get(event.call)
        if event.to_state == "compensating" and call is not None and event.frm in ("succeeded", "in_doubt"):
            yield from _wrong_turn(store, call, state, settled)
        state[event.call] = event.to_state
        if event.to_state in ("succeeded", "in_doubt"):
            settled[event.call] = event.seq


def _wrong_turn(store: MemoryStore, call: CallRow, state: dict[str, str], settled: dict[str, int]) -> Iterator[str]:
    for other_id, now in state.items():
        other = store.calls.get(other_id)
        if other is None or other.root != call.root or other_id == call.id or other.kind == "read":
            continue
        if now == "started" and _inside(store, other, call):
            yield f"{call.tool} was compensated while {other.tool} was started"
        later = settled.get(other_id, 0) > settled.get(call.id, 0)
        done = now == "succeeded" and later and other.undoable
        if done and other.grp != (call.grp or None) and _same_end(store, other, call):
            yield f"{call.tool} was compensated before {other.tool}, which was settled after it"


def _inside(store: MemoryStore, other: CallRow, call: CallRow) -> bool:
    """Whether ``other`` belongs to the run of ``call`` or to one below it."""
    uid = other.run
    while uid:
        if uid == call.run:
            return True
        uid = store.runs[uid].parent
    return False


def _same_end(store: MemoryStore, other: CallRow, call: CallRow) -> bool:
    """Whether ``other`` had to be taken back with ``call``: not if its child's pivot stood, or might have."""
    pivots = any(one.run == other.run and one.kind == "pivot" for one in store.calls.values())
    kept = other.run != call.run and pivots
    return not kept and _inside(store, other, call)


def world_order(store: MemoryStore, world: World) -> Iterator[str]:
    """In the world, too, what was done last is undone first (within one tree, where both were simply done)."""
    doubts = ("in_doubt", "compensation_in_doubt")  # these may be passed over, and taken back later
    doubted = {event.call for event in store.events if event.to_state in doubts}
    undone = [landing.call_id for landing in world.landings if landing.phase == "compensate"]
    for earlier, later in itertools.pairwise(undone):
        first, second = store.calls.get(earlier), store.calls.get(later)
        if first is None or second is None or first.root != second.root or (first.grp and first.grp == second.grp):
            continue
        clean = first.comp_attempt == second.comp_attempt == 1 and not {first.id, second.id} & doubted
        if clean and first.settled_seq < second.settled_seq and first.run == second.run:
            yield f"{first.tool} was undone before {second.tool}, which was done after it"


def pivot_law(store: MemoryStore, world: World) -> Iterator[str]:
    """One pivot per run; nothing compensatable from its start on; nothing taken back once it stands."""
    for run in store.runs.values():
        calls = [c for c in store.calls.values() if c.run == run.uid]
        pivots = [c for c in calls if c.kind == "pivot" and world.stands(c.id) and not c.violation]
        if len(pivots) > 1:
            yield f"run {run.id} made {len(pivots)} irreversible calls"
        if pivots and any(c.state in ("compensated", "compensating") for c in calls):
            yield f"run {run.id} was taken back over its pivot {pivots[0].tool}"
        if pivots and run.state == "rolled_back":
            yield f"run {run.id} says rolled_back over its pivot {pivots[0].tool}"
    yield from _after_pivot(store)


def _after_pivot(store: MemoryStore) -> Iterator[str]:
    in_flight: dict[str, str] = {}
    for event in store.events:
        call = store.calls.get(event.call)
        if event.what != "call" or call is None:
            continue
        if call.kind == "pivot" and not call.violation:
            if event.to_state == "started":
                in_flight[event.run] = call.id
            elif event.to_state == "failed":
                in_flight.pop(event.run, None)
        elif call.kind == "compensatable" and not call.violation and event.run in in_flight and event.frm == "(new)":
            yield f"{call.tool} was admitted from its pivot's start on"
        if event.to_state == "compensating" and event.run in in_flight:
            yield f"{call.tool} was compensated while the pivot was in flight or had passed"


def outbox(store: MemoryStore, world: World) -> Iterator[str]:
    """A staged call starts only after the decision, and never after a rollback."""
    decided: dict[str, int] = {}
    for event in store.events:
        if event.what == "run" and event.to_state == "pivoted":
            decided[event.run] = event.seq
        if event.what == "call" and event.to_state == "started":
            call = store.calls.get(event.call)
            if call is not None and call.kind == "retriable" and event.run not in decided:
                yield f"{call.tool} was sent before its run had decided"
    for call in store.calls.values():
        if call.state == "dropped" and world.stands(call.id):
            yield f"{call.tool} was dropped and stands"


def event_per_transition(store: MemoryStore, world: World) -> Iterator[str]:
    """The record, replayed, gives exactly the rows; every move is one that the tables have."""
    calls: dict[str, str] = {}
    runs: dict[str, str] = {}
    for event in store.events:
        if event.what == "call":
            yield from _replayed(calls, event.call, event, call_may)
        elif event.what == "shared":
            calls[event.call] = event.to_state
        elif event.what == "run":
            yield from _replayed(runs, event.run, event, run_may)
    for call in store.calls.values():
        if calls.get(call.id) != call.state:
            yield f"{call.tool} {call.id} is {call.state}, the record says {calls.get(call.id)}"
    for run in store.runs.values():
        if runs.get(run.uid) != run.state:
            yield f"run {run.id} is {run.state}, the record says {runs.get(run.uid)}"


def _replayed(states: dict[str, str], key: str, event: EventRow, may: Callable[[str, str], bool]) -> Iterator[str]:
    was = states.get(key, "(new)")
    if event.frm != was:
        yield f"event {event.seq} moves {key} from {event.frm}, it was {was}"
    if not may(event.frm, event.to_state):
        yield f"event {event.seq} moves {key} from {event.frm} to {event.to_state}, which no table has"
    states[key] = event.to_state


def nothing_stuck(store: MemoryStore, world: World) -> Iterator[str]:
    """Every run is final, waits for a person with a named cause, or waits because it was told to."""
    for call in store.calls.values():
        if call.state in ("started", "compensating"):
            yield f"{call.tool} {call.id} is {call.state} and nobody is behind it"
    for run in store.runs.values():
        if run.state in RUN_FINAL or run.uid != run.root:
            continue
        if run.state == "blocked":
            if not json.loads(run.causes):
                yield f"run {run.id} is blocked and names no cause"
        elif run.wake_at is None and not run.suspended and not (run.policy == "wait" and not run.goal) and run.opener:
            yield f"run {run.id} is {run.state}, and nothing will ever wake it"
        elif run.wake_at is not None and run.owner:
            yield f"run {run.id} is {run.state} and still owned by {run.owner}"


def blocked_for_a_person(store: MemoryStore, world: World) -> Iterator[str]:
    """A run is blocked only when amends can do nothing more alone: what is to be tried again later will be."""
    for run in store.runs.values():
        if run.state != "blocked" or run.uid != run.root or run.wake_at is not None:
            continue
        for call in store.calls.values():
            later = call.comp_retry_at is not None and not call.comp_gave_up and call.state == "compensation_failed"
            if call.root == run.uid and later:
                yield f"run {run.id} is blocked although {call.tool} is to be compensated again"


def settled_by_owner(store: MemoryStore, world: World) -> Iterator[str]:
    """Only the process that owns a tree moves its calls; whoever was taken over can settle nothing."""
    owners: dict[str, str] = {}
    for event in store.events:
        opened = event.what == "taken over" or (
            event.what == "run" and event.frm == "(new)" and event.run == event.root
        )
        if opened:
            owners[event.root] = event.by_whom
        elif event.what == "call" and "|boot|" in event.by_whom and event.by_whom != owners.get(event.root):
            yield f"{_name(store, event.call)} was moved to {event.to_state} by a process that had been taken over"


def attempts_in_order(store: MemoryStore, world: World) -> Iterator[str]:
    """An attempt settles itself and no other one."""
    started: dict[str, int] = {}
    for event in store.events:
        attempt = json.loads(event.facts).get("attempt") if event.what == "call" else None
        if event.to_state == "started":
            started[event.call] = attempt or 1
        elif event.frm == "started" and attempt is not None and attempt != started.get(event.call):
            yield f"attempt {attempt} of {_name(store, event.call)} settled attempt {started.get(event.call)}"


def pivot_moves_its_run(store: MemoryStore, world: World) -> Iterator[str]:
    """A pivot that succeeded has moved its run in the same transaction."""
    succeeded: dict[str, str] = {}
    for event in store.events:
        call = store.calls.get(event.call)
        if event.what == "run" and event.frm == "blocked":
            continue  # on its way: a word on a doubt lets a blocked run go on
        if event.what == "run" and event.to_state == "pivoted":
            succeeded.pop(event.run, None)
        for run, tool in succeeded.items():
            if event.run == run:
                yield f"{tool} succeeded and its run was not pivoted in the same breath"
        succeeded = {run: tool for run, tool in succeeded.items() if event.run != run}
        pivots = call is not None and call.kind == "pivot" and not call.violation
        if pivots and call is not None and event.what == "call" and event.to_state == "succeeded":
            succeeded[event.run] = call.tool


def work_left(store: MemoryStore, world: World) -> Iterator[str]:
    """What could be taken back was, whatever else could not."""
    for run in store.runs.values():
        if run.phase == "rolling_back":
            for call in store.calls.values():
                if call.run == run.uid and call.state == "succeeded" and call.undoable:
                    yield f"{call.tool} of run {run.id} could have been taken back and was not"


def owner_undisturbed(store: MemoryStore, world: World) -> Iterator[str]:
    """Nobody takes a run from a process that lives and renews its lease."""
    yield from world.sim.disturbed


def lease_kept(store: MemoryStore, world: World) -> Iterator[str]:
    """Nobody gives a run back while a body of it runs that asks for calls: what those do would be nobody's.

    A call that is admitted beside a block which is being left is another matter: its outcome is evidence.
    """
    outer = {row.parent for row in store.calls.values() if row.parent}
    started: dict[str, str] = {}
    for event in store.events:
        if event.what == "call" and event.to_state == "started" and event.call in outer:
            started[event.call] = event.root
        elif event.what == "call":
            started.pop(event.call, None)
        elif event.what == "let go":
            for call_id, root in started.items():
                if root == event.root:
                    yield f"run {event.run_id} was let go while {_name(store, call_id)} ran"


def waited_in_place(store: MemoryStore, world: World) -> Iterator[str]:
    """A call inside a body waits for its person as long as the body has."""
    yield from world.impatient


def answered_for_good(store: MemoryStore, world: World) -> Iterator[str]:
    """A run that committed was told only results that stand."""
    for root, tool, value in world.answers:
        run = store.runs.get(root)
        keys = {one.key for one in world.landings if result_of(one.key) == value and one.phase == "execute"}
        calls = {one.call_id for one in world.landings if one.key in keys}
        said = run is not None and run.forked_from and any(by_word(store, one) for one in calls)
        if run is not None and run.state == "committed" and not said and not any(map(world.stands, calls)):
            yield f"run {run.id} committed on an answer of {tool} that was taken back"


def child_outbox(store: MemoryStore, world: World) -> Iterator[str]:
    """A child without a pivot decides nothing: what it staged is its parent's."""
    for event in store.events:
        run = store.runs.get(event.run)
        decides = (
            event.what == "run" and event.to_state == "pivoted" and json.loads(event.facts).get("pivot") == "commit"
        )
        if decides and run is not None and run.parent:
            yield f"child {run.id} sent what it had staged although its parent could still go back"


def children_closed(store: MemoryStore, world: World) -> Iterator[str]:
    """No run commits over a child that is not closed."""
    for run in store.runs.values():
        parent = store.runs.get(run.parent)
        if parent is not None and parent.state == "committed" and run.state not in RUN_FINAL:
            yield f"run {parent.id} committed over its child {run.id}, which is {run.state}"


def busy_with_itself(store: MemoryStore, world: World) -> Iterator[str]:
    """A request waits for its twins, never for itself."""
    yield from world.alone


def conflicts_told(store: MemoryStore, world: World) -> Iterator[str]:
    """Another request under the same identity is a conflict, never a silent replay."""
    yield from world.merged


def goal_kept(store: MemoryStore, world: World) -> Iterator[str]:
    """A run whose block ended cleanly is not rolled back by a policy."""
    decided = {e.run for e in store.events if e.what == "goal" and e.to_state == "commit"}
    for run in store.runs.values():
        # A pivot that failed at commit by its own error takes its run back; one that was merely lost does not.
        failed_pivot = any(
            c.run == run.uid and c.at_commit and c.state == "failed" and c.why != "lost" for c in store.calls.values()
        )
        asked = run.goal_by in ("person", "deadline", "deadlock", "budget") or run.forked_from
        if run.uid in decided and run.state == "rolled_back" and not failed_pivot and not asked and not run.parent:
            yield f"run {run.id} had ended cleanly and was rolled back"


def answers_true(store: MemoryStore, world: World) -> Iterator[str]:
    """What the program was told is what the world did."""
    yield from world.lies


def no_orphans(store: MemoryStore, world: World) -> Iterator[str]:
    """A flow that stops in a living process is turned into doubt by that process."""
    yield from world.orphans


def body_got_what_was_recorded(store: MemoryStore, world: World) -> Iterator[str]:
    """Every attempt's body, and every compensation, gets what was written down when it was asked for."""
    yield from world.mistaken


def classes_are_told_apart(store: MemoryStore, world: World) -> Iterator[str]:
    """Two requests that differ only in the class of a value are two calls."""
    yield from world.mixed


def no_stale_body(store: MemoryStore, world: World) -> Iterator[str]:
    """No body starts in a process whose lease has run out."""
    yield from world.stale


def _name(store: MemoryStore, call_id: str) -> str:
    call = store.calls.get(call_id)
    return call_id if call is None else f"{call.tool} {call_id}"


CHECKERS: Final[dict[str, Checker]] = {
    checker.__name__: checker
    for checker in (
        effects_once,
        compensated_once,
        effects_are_known,
        ledger_against_world,
        compensation_order,
        world_order,
        pivot_law,
        outbox,
        event_per_transition,
        nothing_stuck,
        blocked_for_a_person,
        settled_by_owner,
        attempts_in_order,
        pivot_moves_its_run,
        work_left,
        owner_undisturbed,
        lease_kept,
        waited_in_place,
        answered_for_good,
        child_outbox,
        children_closed,
        busy_with_itself,
        conflicts_told,
        goal_kept,
        answers_true,
        no_orphans,
        no_stale_body,
        body_got_what_was_recorded,
        classes_are_told_apart,
        *TOPIC_CHECKERS,
    )
}


def check_all(store: MemoryStore, world: World, *, skip: tuple[str, ...] = ()) -> list[Violation]:
    """Every violation, by the name of its checker."""
    return [
        Violation(name, what)
        for name, checker in CHECKERS.items()
        if name not in skip
        for what in checker(store, world)
    ]

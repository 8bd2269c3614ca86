"""The checkers: what must hold at the end of every schedule, by name. Each compares the ledger with the world."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from amends.audit.verify import Audit, verify_chains
from amends.encoding.chain import GENESIS, read_heads
from amends.encoding.payloads import decode
from amends.engine.ending import STOPPED_S_MAX
from amends.host.notices import CLAIM_S
from amends.ledger.directives import directive_after
from amends.ledger.flow import run_flow
from amends.ledger.locks import is_held_back
from amends.ledger.operations import NOTICES_MAX
from amends.ledger.rows import (
    FINAL_NO,
    GONE,
    OPEN,
    PLAIN,
    SYSTEM,
    ApprovalRow,
    CallRow,
    DirectiveRow,
    EventRow,
    RunRow,
)
from amends.ledger.trees import accepted_in
from amends.report import RollbackPlan
from amends.states import RUN_FINAL, STANDING, UNSETTLED, call_may, run_may
from amends.stores.memory import MemoryStore
from amends.testing.world import World, imbalances, overdrawn, result_of, unpaid

Checker = Callable[[MemoryStore, World], Iterator[str]]
"""Yields one sentence for each violation of its promise."""

CHECKERS: Final[dict[str, Checker]] = {}
"""Every checker by name, in the order in which they are defined here and listed in the docs."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that a schedule broke."""

    checker: str
    what: str
    schedule: str = ""

    def __str__(self) -> str:
        return f"{self.checker}: {self.what}" + (f"   [{self.schedule}]" if self.schedule else "")


def checker(check: Checker) -> Checker:
    """Register a checker under its own name (a decorator)."""
    assert check.__name__ not in CHECKERS, f"two checkers are named {check.__name__}"
    CHECKERS[check.__name__] = check
    return check


def check_all(store: MemoryStore, world: World, *, skip: tuple[str, ...] = ()) -> list[Violation]:
    """Return every violation, with the name of its checker."""
    return [
        Violation(name, what) for name, check in CHECKERS.items() if name not in skip for what in check(store, world)
    ]


# ---- Effects, compensations and states


@checker
def effects_once(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that each call has at most one effect, and each intent too, whatever crashed."""
    for call_id, count in world.landed_counts("execute").items():
        if count > 1:
            yield f"{_name(store, call_id)} took effect {count} times"
    for (root, tool, args), standing in world.standing_intents(store).items():
        if standing > 1:
            yield f"{tool}{args} of {root} stands {standing} times"


def _name(store: MemoryStore, call_id: str) -> str:
    call = store.calls.get(call_id)
    return call_id if call is None else f"{call.tool} {call_id}"


@checker
def before_is_true(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that a setter records the old value before it starts, and that the value set last stands at the end."""
    yield from world.misread
    if not world.sets:
        return
    world.land_puts(at_once=True)  # after the end of a run nothing of it may arrive
    wanted = 0
    runs = [run for run in store.runs.values() if run.uid == run.root]
    if any(run.closed_at is None or run.state == "abandoned" for run in runs):
        wanted = world.value if world.stranger is None else world.stranger
    else:
        for run in sorted(runs, key=lambda run: run.closed_at or 0.0):
            calls = [call for call in store.calls.values() if call.root == run.uid and call.tool in world.sets]
            done = [call for call in calls if call.state == "succeeded"]
            if run.state == "committed" and done:
                wanted = decode(max(done, key=lambda call: call.settled_seq).args)["n"]
                if world.asked.get(run.uid, wanted) != wanted:
                    yield f"run {run.id} was told {world.asked[run.uid]}, and has set {wanted} last"
        wanted = wanted if world.stranger is None else world.stranger
    if world.value != wanted:
        yield f"the value is {world.value}, not {wanted}"


@checker
def compensated_once(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that a compensation takes effect at most once."""
    for call_id, count in world.landed_counts("compensate").items():
        if count > 1:
            yield f"{_name(store, call_id)} was compensated {count} times"


@checker
def effects_are_known(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that every effect has a row, and no body runs before its start is durable."""
    for call_id in world.landed_counts("execute"):
        if call_id not in store.calls:
            yield f"an effect of {call_id} is in the world and not in the ledger"
    yield from world.unwritten


@checker
def erased_stays_erased(store: MemoryStore, _world: World) -> Iterator[str]:
    """Check that a tree that was erased keeps no text, whatever arrives later, and that one erasure is one event."""
    for root in store.runs.values():
        if root.uid != root.root or not root.is_erased:
            continue
        runs = [run for run in store.runs.values() if run.root == root.uid]
        texts: list[str | None] = [text for run in runs for text in (run.input, run.output)]
        calls = [call for call in store.calls.values() if call.root == root.uid]
        texts += [text for call in calls for text in (call.args, call.result, call.before)]
        if any(run.principal or run.tags != "[]" for run in runs) or any(call.principal for call in calls):
            yield f"run {root.id} was erased and still says whose it is"
        if any(text not in PLAIN and not text.startswith(GONE) for text in texts if text is not None):
            yield f"run {root.id} was erased and has a payload"
        orders = [json.loads(event.facts)["order"] for event in store.events if _is_erasure(event, root)]
        if not orders or len(set(orders)) != len(orders):
            yield f"run {root.id} was erased by the orders {orders}"


def _is_erasure(event: EventRow, root: RunRow) -> bool:
    return event.root == root.uid and event.what == "erased"


@checker
def ledger_against_world(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that the world has every effect that the ledger says stands, and none that it says is gone."""
    for call in store.calls.values():
        if call.kind == "read" or call.shared or call.tool in world.sets:
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


@checker
def compensation_order(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that calls are compensated in reverse order of settling, never while a call of the tree is started."""
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
            settled[event.call] = event.n


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
    """Return whether ``other`` belongs to the run of ``call`` or to one below it."""
    uid = other.run
    while uid:
        if uid == call.run:
            return True
        uid = store.runs[uid].parent
    return False


def _same_end(store: MemoryStore, other: CallRow, call: CallRow) -> bool:
    """Return whether ``other`` had to be compensated with ``call``: not if its child's pivot stood, or might have."""
    pivots = any(one.run == other.run and one.kind == "pivot" for one in store.calls.values())
    kept = other.run != call.run and pivots
    return not kept and _inside(store, other, call)


@checker
def world_order(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that the world, too, sees the last effect undone first (within one tree, where both simply succeeded)."""
    doubts = ("in_doubt", "compensation_in_doubt")  # these may be skipped, and compensated later
    doubted = {event.call for event in store.events if event.to_state in doubts}
    undone = [landing.call_id for landing in world.landings if landing.phase == "compensate"]
    for earlier, later in itertools.pairwise(undone):
        first, second = store.calls.get(earlier), store.calls.get(later)
        if first is None or second is None or first.root != second.root or (first.grp and first.grp == second.grp):
            continue
        clean = first.comp_attempt == second.comp_attempt == 1 and not {first.id, second.id} & doubted
        if clean and first.settled_seq < second.settled_seq and first.run == second.run:
            yield f"{first.tool} was undone before {second.tool}, which was done after it"


@checker
def pivot_law(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that a run has one pivot, starts nothing compensatable after it, and compensates nothing once it stands."""
    unknown = {event.call for event in store.events if _is_unknown(event)}
    for run in store.runs.values():
        calls = [c for c in store.calls.values() if c.run == run.uid]
        pivots = [c for c in calls if c.kind == "pivot" and world.stands(c.id) and not c.violation]
        if len(pivots) > 1:
            yield f"run {run.id} made {len(pivots)} irreversible calls"
        if pivots and pivots[0].id in (accepted_in(store.runs[run.root].plan) or ()):
            continue  # a person accepted that it stays when the committed run was taken back
        known = pivots and pivots[0].id not in unknown  # else a person said that the rest may be taken back
        if known and any(c.state in ("compensated", "compensating") for c in calls):
            yield f"run {run.id} was rolled back although its pivot {pivots[0].tool} had passed"
        if pivots and run.state == "rolled_back":
            yield f"run {run.id} is rolled_back although its pivot {pivots[0].tool} had passed"
    yield from _after_pivot(store)


def _after_pivot(store: MemoryStore) -> Iterator[str]:
    in_flight: dict[str, str] = {}
    for event in store.events:
        call = store.calls.get(event.call)
        if event.what == "rollback planned" and in_flight.get(event.run) in (_accepted(event) or ()):
            del in_flight[event.run]
        if event.what != "call" or call is None:
            continue
        if call.kind == "pivot" and not call.violation:
            if event.to_state == "started":
                in_flight[event.run] = call.id
            elif event.to_state == "failed" or _is_unknown(event):
                in_flight.pop(event.run, None)
        elif call.kind == "compensatable" and not call.violation and event.run in in_flight and event.frm == "(new)":
            yield f"{call.tool} was admitted after its run's pivot had started"
        if event.to_state == "compensating" and event.run in in_flight:
            yield f"{call.tool} was compensated while the pivot was in flight or had passed"


def _is_unknown(event: EventRow) -> bool:
    """Return whether a person said that nobody can know whether a call happened."""
    return event.what == "call" and event.to_state == "residue" and "resolved" in json.loads(event.facts)


def _accepted(event: EventRow) -> frozenset[str] | None:
    return accepted_in(json.loads(event.facts)["plan"])


@checker
def outbox(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that a staged call starts only after the decision to commit, never after a rollback, and is not left behind."""
    decided: dict[str, int] = {}
    for event in store.events:
        if event.what == "run" and event.to_state == "pivoted":
            decided[event.run] = event.n
        if event.what == "call" and event.to_state == "started":
            call = store.calls.get(event.call)
            if call is not None and call.kind == "retriable" and event.run not in decided:
                yield f"{call.tool} was sent before its run had decided"
    for call in store.calls.values():
        if call.state == "dropped" and world.stands(call.id):
            yield f"{call.tool} was dropped, but its effect exists"
        if call.state in UNSETTLED and store.runs[call.run].state == "committed":
            yield f"{call.tool} is {call.state}, but its run was committed"


@checker
def nothing_follows_an_unknown_pivot(store: MemoryStore, _world: World) -> Iterator[str]:
    """Check that a run whose pivot nobody can know sends nothing that was staged, makes no other pivot and is not committed."""
    pivoted: set[str] = set()
    stages: set[str] = set()
    unknown: dict[str, str] = {}
    for event in store.events:
        call, pivot = store.calls.get(event.call), unknown.get(event.run, "")
        if event.what == "run" and event.to_state == "pivoted":
            pivoted.add(event.run)
        is_concerned = event.run == event.root or event.run in stages  # another child leaves it to its parent
        if event.what == "run" and event.to_state in ("pivoted", "committed") and pivot and is_concerned:
            yield f"run {event.run_id} is {event.to_state} although nobody can know of its pivot {pivot}"
        if event.what != "call" or call is None:
            continue
        if call.kind == "retriable" and event.frm == "(new)":
            stages.add(event.run)
        if call.kind == "pivot" and event.to_state == "residue" and event.run not in pivoted:
            unknown[event.run] = call.tool
        elif call.kind in ("pivot", "retriable") and event.to_state == "started" and pivot and not call.violation:
            yield f"{call.tool} was started although nobody can know of the pivot {pivot}"


@checker
def event_per_transition(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that the replayed events give exactly the rows, and every move is in the tables of states."""
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
        yield f"event {event.n} of {event.run_id} moves {key} from {event.frm}, it was {was}"
    if not may(event.frm, event.to_state):
        yield f"event {event.n} of {event.run_id} moves {key} from {event.frm} to {event.to_state}, which no table has"
    states[key] = event.to_state


@checker
def nothing_stuck(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that every run is final, waits for a person with a named cause, or waits because its policy says so."""
    for call in store.calls.values():
        if call.state in ("started", "compensating"):
            yield f"{call.tool} {call.id} is {call.state} and no process is working on it"
    for run in store.runs.values():
        if run.state in RUN_FINAL or run.uid != run.root:
            continue
        if run.state == "blocked":
            if not json.loads(run.causes):
                yield f"run {run.id} is blocked and names no cause"
        elif run.wake_at is None and not run.suspended and not (run.recover == "wait" and not run.goal) and run.opener:
            yield f"run {run.id} is {run.state}, and nothing will ever wake it"
        elif run.wake_at is not None and run.owner:
            yield f"run {run.id} is {run.state} and still owned by {run.owner}"


@checker
def blocked_for_a_person(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that a run is blocked only if amends can do nothing more alone: retries still happen."""
    for run in store.runs.values():
        if run.state != "blocked" or run.uid != run.root or run.wake_at is not None:
            continue
        for call in store.calls.values():
            later = call.comp_retry_at is not None and not call.comp_gave_up and call.state == "compensation_failed"
            if call.root == run.uid and later:
                yield f"run {run.id} is blocked although {call.tool} is to be compensated again"
            if call.id == run.pivot and call.state == "backing_off" and run.goal == "rollback":
                yield f"run {run.id} is blocked although its pivot {call.tool} certainly had no effect"


@checker
def reports_are_believed(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that no person is asked about a call whose performer has reported, and the ledger has answered."""
    for call in store.calls.values():
        for phase, doubtful, attempts in (
            ("execute", ("in_doubt",), range(1, call.attempt + 1)),
            # Those that somebody has decided about do not count any more.
            (
                "compensate",
                ("compensation_in_doubt", "compensation_failed"),
                range(call.comp_from + 1, call.comp_attempt + 1),
            ),
        ):
            if call.state not in doubtful:
                continue
            said = [world.reported.get((call.id, phase, attempt)) for attempt in attempts]
            if True in said:
                yield f"{call.tool} {call.id} is {call.state}, and its performer has reported that it happened"
            elif call.state == doubtful[0] and said and None not in said:
                yield f"{call.tool} {call.id} is {call.state}, and every attempt was reported as not done"


@checker
def nobody_there_is_no_try(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that a compensation that may be repeated is not given up because no performer was available."""
    settled = {
        (event.call, json.loads(event.facts).get("attempt"))
        for event in store.events
        if world.untaken and event.what == "call" and event.to_state == "compensation_failed"
    }
    for call in store.calls.values():
        tries_max, untaken = world.untaken.get(call.id, (0, set()))
        untaken = {one for one in untaken if (call.id, one) in settled}  # of the others the ledger does not know
        tried = len(set(range(1, call.comp_attempt + 1)) - untaken)
        is_stuck = call.state == "compensation_in_doubt" and store.runs[call.root].state == "blocked"
        if untaken and is_stuck and tried < tries_max:
            yield f"{call.tool} {call.id} is given up after {tried} of {tries_max} tries: nobody took it before"


@checker
def settled_by_owner(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that only the process that owns a tree moves its calls: the old owner settles nothing."""
    owners: dict[str, str] = {}
    for event in store.events:
        opened = event.what == "taken over" or (
            event.what == "run" and event.frm == "(new)" and event.run == event.root
        )
        if opened:
            owners[event.root] = event.by_whom
        elif event.what == "call" and "|boot|" in event.by_whom and event.by_whom != owners.get(event.root):
            yield f"{_name(store, event.call)} was moved to {event.to_state} by a process that had been taken over"


@checker
def attempts_in_order(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that an attempt settles itself and no other attempt."""
    started: dict[str, int] = {}
    for event in store.events:
        attempt = json.loads(event.facts).get("attempt") if event.what == "call" else None
        if event.to_state == "started":
            started[event.call] = attempt or 1
        elif event.frm == "started" and attempt is not None and attempt != started.get(event.call):
            yield f"attempt {attempt} of {_name(store, event.call)} settled attempt {started.get(event.call)}"


@checker
def pivot_moves_its_run(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that a pivot that succeeds moves its run in the same transaction."""
    succeeded: dict[str, str] = {}
    for event in store.events:
        call = store.calls.get(event.call)
        if event.what == "run" and event.frm == "blocked":
            continue  # a decision on a doubt unblocks the run first
        if event.what == "run" and event.to_state == "pivoted":
            succeeded.pop(event.run, None)
        for run, tool in succeeded.items():
            if event.run == run:
                yield f"{tool} succeeded and its run was not pivoted in the same transaction"
        succeeded = {run: tool for run, tool in succeeded.items() if event.run != run}
        pivots = call is not None and call.kind == "pivot" and not call.violation
        if pivots and call is not None and event.what == "call" and event.to_state == "succeeded":
            succeeded[event.run] = call.tool


@checker
def work_left(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that a rollback compensates whatever can be compensated, even if something else cannot."""
    for run in store.runs.values():
        if run.phase == "rolling_back":
            for call in store.calls.values():
                if (
                    call.run == run.uid
                    and call.state == "succeeded"
                    and call.undoable
                    and not _waits(store, world, call)
                ):
                    yield f"{call.tool} of run {run.id} could have been compensated and was not"


def _waits(store: MemoryStore, world: World, call: CallRow) -> bool:
    """Return whether compensating it could overwrite what somebody else has set, or what a lost setter may still set."""
    others = [
        other for other in store.calls.values() if other.root == call.root and other.settled_seq > call.settled_seq
    ]
    lost = [
        other for other in others if other.tool in world.sets and other.state in ("in_doubt", "compensation_in_doubt")
    ]
    return any(is_held_back(call, later) for later in others) or (call.tool in world.sets and bool(lost))


@checker
def resume_is_no_rollback(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that a doubt that an agent meets after recovery has started it again does not roll its run back."""
    for event in store.events:
        run = store.runs.get(event.root)
        why = str(json.loads(event.facts).get("why", "")) if event.what == "goal" else ""
        if run is not None and run.recover == "resume" and event.epoch > 1 and why.startswith("InDoubt"):
            yield f"run {event.run_id} is to be resumed, and a doubt turned it back: {why}"


@checker
def interrupted_as_told(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that a run whose block ended early after its pivot commits if it was told to, and only then."""
    for run in store.runs.values():
        pending = [call for call in store.calls.values() if call.root == run.uid and call.state in UNSETTLED]
        if run.state == "blocked" and run.interrupted and run.commits_interrupted and not pending:
            yield f"run {run.id} was to commit when its block ends early, and waits for a person"
        if run.state == "committed" and run.uid in world.interrupted and not run.commits_interrupted:
            finished = any(e.run == run.uid and e.to_state == "blocked" for e in store.events)
            if not finished:
                yield f"the block of run {run.id} ended early after its pivot, and it was committed without a person"


FAILED_PROBES_MAX: Final = 30
"""The most failures in a row of a probe before its run is blocked: some processes begin to count anew."""


@checker
def broken_probes_are_told(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that a probe that keeps failing blocks its run for a person, and is still asked."""
    failed: Counter[str] = Counter()
    state: dict[str, str] = {}
    for event in store.events:
        if event.what == "run" and event.run == event.root:
            state[event.root] = event.to_state
            if event.to_state == "blocked":
                failed = Counter({call: n for call, n in failed.items() if store.calls[call].root != event.root})
        if event.what != "probed":
            continue
        is_untold = state.get(event.root) != "blocked" and str(json.loads(event.facts).get("answer")).startswith(
            "failed"
        )
        failed[event.call] = failed[event.call] + 1 if is_untold else 0
        if failed[event.call] > FAILED_PROBES_MAX:
            yield f"the probe of {_name(store, event.call)} keeps failing, and no person was asked"
            return
    for call in store.calls.values():
        run = store.runs[call.root]
        if call.state == "in_doubt" and call.probe_at is not None and run.state == "blocked" and run.wake_at is None:
            yield f"{call.tool} of blocked run {run.id} has a probe, and it is not asked any more"


@checker
def owner_undisturbed(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that nobody takes over a run from a process that lives and renews its lease."""
    yield from world.sim.disturbed


@checker
def clients_keep_their_runs(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that recovery leaves a run to its client until its client lease has passed since the last sign of its owner."""
    yield from world.sim.hasty


@checker
def remembered_under_a_lease(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that a process answers from its own memory only while it certainly owns the run."""
    yield from world.sim.remembered


@checker
def closing_runs_start_nothing(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that a run that ends or rolls back starts no new call."""
    closing: set[str] = set()
    for event in store.events:
        if (event.what == "goal" and event.to_state == "rollback") or (
            event.what == "run" and event.to_state in ("rolling_back", *RUN_FINAL)
        ):
            closing.add(event.run)
        elif event.what == "run" and event.to_state == "pivoted":
            closing.discard(event.run)  # the pivot that was in flight has happened: nothing is rolled back any more
        elif event.frm == "(new)" and event.to_state == "started" and event.run in closing:
            yield f"{_name(store, event.call)} was started in a run that was closing"


@checker
def lease_kept(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that no run is released while one of its bodies runs and makes calls: those would have no owner.

    This does not cover a call that is admitted while its block is being left: its outcome is evidence.
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
                    yield f"run {event.run_id} was released while {_name(store, call_id)} ran"


@checker
def waited_in_place(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that a call inside a body waits for a person's decision as long as the body may run."""
    yield from world.impatient


@checker
def answered_for_good(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that a committed run was given only results of effects that still stand."""
    for root, tool, value in world.answers:
        run = store.runs.get(root)
        keys = {one.key for one in world.landings if result_of(one.key) == value and one.phase == "execute"}
        calls = {one.call_id for one in world.landings if one.key in keys}
        said = run is not None and run.forked_from and any(by_word(store, one) for one in calls)
        if run is not None and run.state == "committed" and not said and not any(map(world.stands, calls)):
            yield f"run {run.id} committed with a result of {tool} that had been compensated"


def by_word(store: MemoryStore, call_id: str) -> bool:
    """Return whether the tree of this call rolls back because a person said so."""
    return call_id in store.calls and store.runs[store.calls[call_id].root].goal_by == "person"


@checker
def child_outbox(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that a child without a pivot decides nothing: its parent sends what it staged."""
    for event in store.events:
        run = store.runs.get(event.run)
        decides = (
            event.what == "run" and event.to_state == "pivoted" and json.loads(event.facts).get("pivot") == "commit"
        )
        if decides and run is not None and run.parent:
            yield f"child {run.id} started what it had staged although its parent could still roll back"


@checker
def children_closed(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that no run commits while one of its children is not closed."""
    for run in store.runs.values():
        parent = store.runs.get(run.parent)
        if parent is not None and parent.state == "committed" and run.state not in RUN_FINAL:
            yield f"run {parent.id} committed although its child {run.id} is {run.state}"


def _agent_of(run: RunRow) -> str:
    """Return the tool of which this child run is the agent; empty: it is none."""
    name, _, key = run.id.rpartition("/")[2].partition(":")
    return name if run.parent and run.input and key else ""


@checker
def same_agent(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that the same request to an agent finds the same child run, and that it is allowed once."""
    found: dict[tuple[str, str, str], set[str]] = {}
    for run in store.runs.values():
        if tool := _agent_of(run):
            found.setdefault((run.parent, tool, run.input_digest), set()).add(run.id)
            rows = [row for row in store.calls.values() if (row.run, row.tool) == (run.uid, tool)]
            if sum(row.state == "succeeded" for row in rows) > 1:
                yield f"the request to {tool} in {run.id} was asked about again although it was allowed"
    for ids in found.values():
        if len(ids) > 1:
            yield f"one request has several child runs: {', '.join(sorted(ids))}"


@checker
def agent_waits(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that an agent that waits for a person has not ended: its child run does not decide to commit."""
    held: dict[str, str] = {}
    for event in store.events:
        if event.what == "call" and event.call in store.calls:
            held.pop(event.call, None)
            if event.to_state == "held" and not store.calls[event.call].is_staged:
                held[event.call] = event.run
        run = store.runs.get(event.run)
        decides = event.what == "goal" and event.to_state == "commit"
        if decides and run is not None and _agent_of(run) and run.uid in held.values():
            yield f"{run.id} decided to commit while a call of it waits for a person"


@checker
def busy_with_itself(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that a request waits for equal requests, never for itself."""
    yield from world.alone


@checker
def conflicts_told(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that a different request under the same identity is a conflict, never a silent replay."""
    yield from world.merged


@checker
def goal_kept(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that no policy rolls back a run whose block ended without an error."""
    decided = {e.run for e in store.events if e.what == "goal" and e.to_state == "commit"}
    for run in store.runs.values():
        # A pivot that failed at commit with its own error rolls its run back; one whose start was lost does not.
        failed_pivot = any(
            c.run == run.uid and c.at_commit and c.state == "failed" and c.why != "lost" for c in store.calls.values()
        )
        asked = bool(run.goal_by in ("person", "deadline", "deadlock", "budget") or run.forked_from)
        asked = asked or (bool(run.completion) and run.goal_why.startswith("incomplete: "))  # see two_outcomes
        if run.uid in decided and run.state == "rolled_back" and not failed_pivot and not asked and not run.parent:
            yield f"run {run.id} had ended cleanly and was rolled back"


@checker
def two_outcomes(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that a run with ``requires=`` or judged failures commits only if it is complete, and fails only if not."""
    for run in store.runs.values():
        if not run.completion or run.parent:
            continue
        missing = list(_missing(store, run))
        ends = [event for event in store.events if event.what == "run" and event.run == run.uid]
        finished = "why" in json.loads(ends[-1].facts)  # a person has closed it as it is
        if run.state == "committed" and missing and not finished:
            yield f"run {run.id} was committed without {', '.join(missing)}"
        failed = run.goal_why if run.state == "rolled_back" else run.causes
        if "incomplete: " in failed and not missing:
            yield f"run {run.id} failed as incomplete, and nothing is missing"


def _missing(store: MemoryStore, run: RunRow) -> Iterator[str]:
    """Yield the required tools without an effect, and the failures after which the tool has not succeeded."""
    said = json.loads(run.completion)
    calls = [call for call in store.calls.values() if call.root == run.uid]
    moves = [event for event in store.events if event.what == "call" and event.root == run.uid]
    for tool, _ in said.get("requires", ()):
        done = {event.call for event in moves if event.to_state == "succeeded"}
        if not any(call.tool == tool and (call.id in done or call.kind == "retriable") for call in calls):
            yield tool
    for call in calls:
        if said.get("on_open_failure") != "rollback" or call.state != "failed" or call.kind == "read":
            continue
        place = next(n for n, event in enumerate(moves) if event.call == call.id and event.frm == "started")
        began = {later.call for later in moves[place:] if later.frm == "(new)"}
        good = {later.call for later in moves[place:] if later.to_state == "succeeded"} & began
        if not any(store.calls[id].tool == call.tool for id in good):
            yield f"{call.tool}, which had failed"


@checker
def answers_true(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that every answer to the program agrees with what happened in the world."""
    yield from world.lies


@checker
def no_orphans(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that a flow that stops in a living process is turned into doubt by that process."""
    yield from world.orphans


@checker
def no_stale_body(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that no body starts in a process whose lease has expired."""
    yield from world.stale


@checker
def body_got_what_was_recorded(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that every body and every compensation gets the arguments that were recorded for it."""
    yield from world.mistaken


@checker
def classes_are_told_apart(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that two requests that differ only in the class of a value are two calls."""
    yield from world.mixed


# ---- Locks


@checker
def one_holder(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that a lock has one holder, from the first start of a call that names it until that tree has ended."""
    holders: dict[tuple[str, str], str] = {}
    for event in store.events:
        call = store.calls.get(event.call)
        if event.what == "call" and event.to_state == "started" and call is not None and call.locks:
            if store.runs[call.root].goal == "rollback" and event.frm == "in_doubt":
                continue  # started again during a rollback, to learn a result
            for name in json.loads(call.locks):
                other = holders.setdefault((call.tenant, name), call.root)
                if other != call.root:
                    yield f"{call.tool} of {call.run_id} had {name} while run {store.runs[other].id} had not ended"
        for key in _released(event, holders):
            del holders[key]


def _released(event: EventRow, holders: dict[tuple[str, str], str]) -> list[tuple[str, str]]:
    if event.what == "lock let go":
        key = (event.tenant, json.loads(event.facts)["lock"])
        return [key] if holders.get(key) == event.root else []
    ended = event.what == "run" and event.run == event.root and event.to_state in RUN_FINAL
    return [key for key, root in holders.items() if ended and root == event.root]


@checker
def body_holds_its_locks(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that a body runs only while the ledger shows its root as the holder of its locks."""
    yield from world.unlocked


@checker
def locks_end_with_their_run(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that a run that has ended holds no lock and waits for none."""
    for lock in store.locks.values():
        if store.runs[lock.root].state in RUN_FINAL:
            yield f"run {lock.run_id} is {store.runs[lock.root].state} and still has {lock.name}"
    for wait in store.waits.values():
        if store.runs[wait.root].state in RUN_FINAL:
            yield f"run {wait.run_id} is {store.runs[wait.root].state} and still waits for {wait.name}"


@checker
def deadlocks_end(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that nobody waits for the whole timeout in a cycle that a rollback could have broken."""
    yield from world.deadlocks


@checker
def victims_had_not_pivoted(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that a run rolled back to end a deadlock had no pivot, neither passed nor in flight."""
    pivots: dict[str, set[str]] = {}
    for event in store.events:
        call = store.calls.get(event.call)
        seen = pivots.setdefault(event.root, set())
        if event.what == "call" and call is not None and call.kind == "pivot" and not call.violation:
            (seen.discard if event.to_state == "failed" else seen.add)(call.tool if event.to_state != "held" else "")
            seen.discard("")
        if event.what == "run" and event.to_state == "pivoted":
            seen.add("its commit")
        if event.what == "goal" and event.by_whom == "deadlock" and seen:
            yield f"run {event.run_id} was chosen to roll back although it had made {', '.join(sorted(seen))}"


@checker
def compensations_never_wait(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that a tree that rolls back waits for no lock."""
    going_back: set[str] = set()
    for event in store.events:
        if event.what == "run" and event.run == event.root and event.to_state == "rolling_back":
            going_back.add(event.root)
        if event.what == "waits" and event.root in going_back:
            yield f"run {event.run_id} rolls back and waits for {json.loads(event.facts)['lock']}"


# ---- Rollback plans


@checker
def plans_bind(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that when a planned rollback began, every call stood as the plan showed it, and there was no other."""
    state: dict[str, str] = {}
    for event in store.events:
        if event.what == "call":
            state[event.call] = event.to_state
        if event.what != "rollback planned":
            continue
        plan = world.plans.get(_plan_in(event))
        if plan is None:
            yield f"run {event.run_id} rolls back by a plan that no person was shown"
            continue
        shown = _shown(plan)
        for call_id, now in state.items():
            call = store.calls[call_id]
            if call.root != event.root or call.kind == "read" or now not in STANDING | UNSETTLED:
                continue
            if shown.get(call_id) != now:
                yield f"{call.tool} is {now}, and the plan of {event.run_id} has it as {shown.get(call_id)}"


def _plan_in(event: EventRow) -> str:
    """Return the hash of the plan; of a committed run, what was accepted follows it."""
    return str(json.loads(event.facts)["plan"]).partition(" ")[0]


def _shown(plan: RollbackPlan) -> dict[str, str]:
    shown = {one.call.id: one.call.state for one in (*plan.compensations, *plan.doubts)}
    shown |= {left.call.id: left.call.state for left in plan.cannot if left.call.id not in shown}
    return {**shown, **{call.id: call.state for call in (*plan.dropped, *plan.running)}}


@checker
def stale_plans_do_nothing(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that no rollback followed a plan whose person was told that it is stale."""
    for event in store.events:
        if event.what == "rollback planned" and _plan_in(event) in world.told_stale:
            yield f"run {event.run_id} rolls back by a plan that was reported as stale"


@checker
def committed_runs_are_taken_back_as_accepted(store: MemoryStore, _world: World) -> Iterator[str]:
    """Check that a committed root run is rolled back only by a plan that accepts what stays, and then ends abandoned."""
    planned: dict[str, frozenset[str] | None] = {}
    state: dict[str, str] = {}
    for event in store.events:
        if event.what == "call":
            state[event.call] = event.to_state
        if event.what == "rollback planned":
            planned[event.run] = _accepted(event)
        if event.what != "run" or (event.frm, event.to_state) != ("committed", "rolling_back"):
            continue
        accepted = planned.get(event.run)
        if event.run == event.root and accepted is None:
            yield f"run {event.run_id} was committed and goes back without a person's plan"
        for call in store.calls.values():
            mine = event.run == event.root == call.root and call.kind != "read" and not call.undoable
            if mine and state.get(call.id) == "succeeded" and call.id not in (accepted or ()):
                yield f"run {event.run_id} goes back, and nobody accepted that {call.tool} stays"
    for uid, accepted in planned.items():
        run = store.runs[uid]
        left = [call for call in store.calls.values() if call.root == uid and call.kind != "read"]
        stands = [call.id for call in left if call.state in STANDING | UNSETTLED]
        if accepted and run.state in ("rolled_back", "blocked") and set(stands) <= accepted:
            yield f"run {run.id} is {run.state}, and what stays of it was accepted"


# ---- Approvals


@checker
def approvals_against_starts(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that a call that needs approval starts by using up an approval of exactly this call.

    The approval is unexpired and unused, and is used up in the transaction of the start.
    """
    yield from world.unapproved
    used: dict[str, EventRow] = {}
    judged = 0.0
    newest: dict[str, float] = {}
    for event in store.events:
        # Ledger time: a clock that is set back does not make an expired approval valid. Every event about an approval,
        # whichever its tree, has moved the mark.
        newest[event.root] = max(newest.get(event.root, 0.0), event.at)
        judged = max(judged, event.at) if event.what == "approval" else judged
        if event.what == "approval" and event.to_state == "used":
            yield from _badly_used(store, event, used, max(judged, newest[event.root]))
            used[_id(event)] = event
        call = store.calls.get(event.call)
        if event.what != "call" or event.to_state != "started" or call is None:
            continue
        first = json.loads(event.facts).get("attempt", 1) == 1
        if not first or not (call.approval or call.tool in world.asks):
            continue
        mine = used.get(call.approval)
        if mine is None or mine.call != call.id:
            yield f"{call.tool} {call.id} was started without using up an approval of it"
        elif call.kind != "retriable" and not call.at_commit and not _one_breath(store, mine, event):
            yield f"the approval of {call.tool} {call.id} was not used up in the transaction of its start"


def _badly_used(store: MemoryStore, event: EventRow, used: dict[str, EventRow], now: float) -> Iterator[str]:
    row = store.approvals[_id(event)]
    if row.id in used:
        yield f"approval {row.id} was used up twice"
    if now >= row.expires_at:
        yield f"approval {row.id} of {row.tool} was used after it had expired"
    if event.frm != "approved":
        yield f"approval {row.id} of {row.tool} was used while it was {event.frm}"
    people = {said["by"].casefold() for said in row.yeses}
    if people & {row.principal.casefold(), row.agent.casefold()} - {""}:
        yield f"approval {row.id} of {row.tool} was given by the person who asked for it"
    if people & {name.casefold() for name in row.edited_by}:
        yield f"approval {row.id} of {row.tool} was given by a person who edited it"


def _id(event: EventRow) -> str:
    return str(json.loads(event.facts)["approval"])


def _one_breath(store: MemoryStore, used: EventRow, started: EventRow) -> bool:
    """Return whether nothing of another transaction is between the two events of one tree."""
    between = (one for one in store.events if one.root == started.root and used.n < one.n < started.n)
    return used.root == started.root and all(one.what in ("approval", "call") and one.at == used.at for one in between)


@checker
def approvals_recorded(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that the replayed events give exactly the requests, and that no request is decided twice."""
    states: dict[str, str] = {}
    for event in store.events:
        if event.what != "approval":
            continue
        was = states.get(_id(event), "(new)")
        if event.frm != was or (was not in OPEN and was != "(new)"):
            yield f"event {event.place} moves approval {_id(event)} from {event.frm} to {event.to_state}; it was {was}"
        states[_id(event)] = event.to_state
    for row in store.approvals.values():
        if states.get(row.id) != row.state:
            yield f"approval {row.id} is {row.state}, the record says {states.get(row.id)}"
        call = store.calls.get(row.call)
        if row.state in OPEN and call is not None and call.approval == row.id and call.state not in ("held", "ready"):
            yield f"the request for {row.tool} {row.call} is still pending, but the call is {call.state}"


@checker
def people_are_waited_for(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that no policy rolls back a run while its request for approval is pending or approved."""
    states: dict[str, str] = {}
    now = 0.0
    for event in store.events:
        now = max(now, event.at)
        if event.what == "approval":
            states[_id(event)] = event.to_state
        by_policy = event.what == "goal" and event.to_state == "rollback" and event.by_whom == "recovery"
        if not by_policy or event.run != event.root:
            continue
        for id, state in states.items():
            row = store.approvals[id]
            if row.root == event.root and state in OPEN and row.expires_at > now:
                yield f"run {event.run_id} was rolled back while {row.tool} waited for a person ({state})"


@checker
def stopped_runs_are_left_alone(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that no policy rolls back a run that was stopped, for the day in which it may be resumed."""
    for root in sorted(world.stopped):
        mine = [event for event in store.events if event.run == root]
        # A process that was lost before it could release the run has not told anybody that it was stopped.
        released = next((event for event in mine if event.what == "let go"), None)
        for event in mine:
            by_policy = event.what == "goal" and event.to_state == "rollback" and event.by_whom == "recovery"
            if released is not None and by_policy and event.n > released.n and event.at < released.at + STOPPED_S_MAX:
                yield f"run {event.run_id} was stopped, and rolled back {event.at - released.at:.0f} s later"


@checker
def repeats_are_offered(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that no call repeats another on purpose where no repeat was offered."""
    for call in store.calls.values():
        if call.again and call.tool in world.unrepeated:
            yield f"{call.tool} {call.id} was done once more ({call.again}), and no repeat was offered"


# ---- Budgets


@checker
def sum_of_budgets(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that standing effects never cost more than a cap, and that spent and reserved amounts stay within it."""
    yield from world.overspent
    # An effect that arrives after it was believed absent is still spent; and a person may approve an excess.
    if not any(call.late or '"passed"' in call.cost for call in store.calls.values()):
        yield from overdrawn(store.slices.values())


@checker
def books_balance(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that every slice holds what its calls hold, and that the slices of a budget add up to its cap."""
    yield from imbalances(store.slices.values(), store.calls.values())


@checker
def paid_before_it_starts(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that a body runs only while its cost is reserved, and that a possible effect keeps the reservation."""
    yield from world.unpaid
    yield from unpaid(store.calls.values())


@checker
def no_budget_on_the_way_back(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that no budget refuses anything to a tree that rolls back, or rolls back a run that has pivoted."""
    going_back: set[str] = set()
    pivoted: set[str] = set()
    for event in store.events:
        if event.what == "run" and event.to_state == "rolling_back":
            going_back.add(event.run)
        if event.what == "run" and event.to_state == "pivoted":
            pivoted.add(event.run)
        by_budget = event.what == "refused" and json.loads(event.facts).get("law") == "budget"
        if by_budget and event.run in going_back:
            yield f"run {event.run_id} is rolling back, but a budget refused it"
        if event.what == "goal" and event.by_whom == "budget" and event.run in pivoted:
            yield f"run {event.run_id} was rolled back by a budget although its pivot had passed"


# ---- Notices


LIFE_CLAIMS: Final = 10
"""A request that lives for this many claims is notified even if some of the notifying processes die."""


@checker
def people_are_told(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that no request waits for people who were never notified, even after a crash."""
    told = {one.approval for one in world.notices if one.arrived}
    newest = {(one.approval, one.reached) for one in world.notices if one.arrived}
    now = max(store._clock(), store.events[-1].at) if store.events else 0.0
    for row in store.approvals.values():
        if not world.asks:
            continue
        reached = row.reached - (row.by_whom == SYSTEM)  # nobody is notified of a refusal by the deadline
        if row.told_at is not None and (row.id, reached) not in newest:
            yield f"{row.id} ({row.tool}) is recorded as notified, but nobody was notified"
        elif row.id in told:
            continue
        elif row.state_at(now) == "pending" and row.tells < NOTICES_MAX:
            yield f"{row.id} ({row.tool}) waits for people who were never notified"
        elif row.state_at(now) == "expired" and _lived_long(row, world):
            yield f"{row.id} ({row.tool}) expired, and nobody was ever notified of it"


def _lived_long(row: ApprovalRow, world: World) -> bool:
    """Return whether there was time to notify anybody: a clock that jumped forward leaves none."""
    return row.expires_at - row.requested_at > LIFE_CLAIMS * CLAIM_S and not world.sim.jumped


@checker
def told_once(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that each claim notifies at most once, and that without faults people are notified once."""
    fired = Counter((one.approval, one.reached) for one in world.notices)
    failed = {(one.approval, one.reached) for one in world.notices if one.failed}
    for row in store.approvals.values():
        newest = fired[row.id, row.reached]
        if newest > row.tells:
            yield f"{row.id} ({row.tool}) was notified {newest} times, but claimed {row.tells} times"
    for (id, reached), count in fired.items():
        if count > 1 and world.is_quiet and (id, reached) not in failed:
            yield f"notice {reached} of {id} was sent {count} times although there was no fault"


@checker
def timetables_are_followed(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that nobody is reminded or asked early, or twice, and that a deadline refuses what nobody answered, once."""
    seen: dict[str, int] = {}
    asked: dict[str, int] = Counter()
    for event in store.events:
        facts = json.loads(event.facts)
        if "entry" not in facts:
            continue
        row, number = store.approvals[facts["approval"]], facts["entry"]
        entry = row.entries[number - 1]
        if event.at < row.requested_at + entry.after_s:
            yield f"{row.id} ({row.tool}): entry {number} ({entry.what}) was carried out too early"
        if number <= seen.get(row.id, 0):
            yield f"{row.id} ({row.tool}): entry {number} ({entry.what}) was carried out twice"
        seen[row.id] = number
        asked[row.id] += entry.what == "escalate"
    now = max(store._clock(), store.events[-1].at) if store.events else 0.0
    for row in store.approvals.values():
        done = seen.get(row.id, 0)
        if row.reached != done:
            yield f"{row.id} ({row.tool}) has reached {row.reached} entries of its timetable, its events {done}"
        if asked[row.id] != sum(one.what == "escalate" for one in row.entries[:done]):
            yield f"{row.id} ({row.tool}): an escalation was left out"
        if row.due_at is not None and row.due_at <= now and row.state_at(now) == "pending":
            yield f"{row.id} ({row.tool}) waits, and nobody followed its timetable"
        yield from _decided_in_role(store, row)


def _decided_in_role(store: MemoryStore, row: ApprovalRow) -> Iterator[str]:
    """Check that each yes came from a role that was asked by then."""
    for said in row.yeses if row.timetable and json.loads(row.roles) else ():
        by_then = {
            role
            for event in store.events
            if event.what == "escalated" and event.at <= said["at"] and _id(event) == row.id
            for role in json.loads(event.facts)["roles"]
        }
        if not said["bypass"] and not {*json.loads(row.roles), *by_then} & set(said["roles"]):
            yield f"{row.id} ({row.tool}) was approved by {said['by']}, whose role had not been asked"
        late = [one for one in row.entries if one.what == "refuse" and row.requested_at + one.after_s <= said["at"]]
        if late and store.calls[row.call].kind != "retriable":
            yield f"{row.id} ({row.tool}) was approved by {said['by']} after its deadline"


# ---- Checkpoints


@checker
def checkpoints_chain(store: MemoryStore, _world: World) -> Iterator[str]:
    """Check that each checkpoint follows the one before it, whoever wrote it."""
    rows = store.checkpoints
    if rows and (rows[0].n, rows[0].prev) != (1, GENESIS):
        yield f"the first checkpoint is {rows[0].n}"
    for one, other in pairwise(rows):
        if (other.n, other.prev, other.ledger) != (one.n + 1, one.hash, one.ledger):
            yield f"checkpoint {other.n} does not follow {one.n}"
    yield from (f"checkpoint {row.n} is not what its hash says" for row in rows if row.hash != row.true_hash)


@checker
def checkpoints_cover(store: MemoryStore, _world: World) -> Iterator[str]:
    """Check that the events a checkpoint names exist, and that what is marked as covered is named by a checkpoint."""
    hashes = {(event.root, event.n): event.hash for event in store.events}
    behind: dict[str, int] = {}
    for row in store.checkpoints:
        for root, n, hash in read_heads(row.heads):
            behind[root] = max(behind.get(root, 0), n)
            if hashes.get((root, n)) != hash:
                yield f"checkpoint {row.n} names event {n} of {root}, which is not there"
    for root, n in store.sealed.items():
        if behind.get(root, 0) != n:
            yield f"{root} is marked as covered up to event {n}, and a checkpoint names event {behind.get(root, 0)}"


@checker
def checkpoints_anchored(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that the anchor knows the newest checkpoint and none that the ledger lacks."""
    mark = world.sim.anchor.mark
    known = None if mark is None else mark.checkpoint
    newest = store.checkpoints[-1].anchored if store.checkpoints else None
    if known != newest:
        yield f"the anchor knows checkpoint {known and known.n}, and the ledger ends with {newest and newest.n}"


# ---- The audit log


@checker
def record_is_whole(store: MemoryStore, _world: World) -> Iterator[str]:
    """Check that the hash chain is whole and that every row is in the state that its events prove."""
    verified = run_flow(verify_chains(Audit()), store.perform).verified()
    yield from map(str, verified.problems)
    if verified.events != len(store.events):
        yield f"{len(store.events) - verified.events} events are in no chain"


# ---- Replays


@checker
def replays_start_nothing(_: MemoryStore, world: World) -> Iterator[str]:
    """Check that a replay starts no body, no compensation and no probe."""
    yield from world.replay_bodies


@checker
def readings_repeat(_: MemoryStore, world: World) -> Iterator[str]:
    """Check that the nth reading of a run's clock, random number or id stays the same when its program starts again."""
    known: dict[tuple[str, int], object] = {}
    for run, number, value in world.read:
        first = known.setdefault((run, number), value)
        if first != value:
            yield f"reading {number} of run {run} was {first} and is {value}"


# ---- Forks


@checker
def not_taken_back_under_a_fork(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that only a person may compensate calls that a fork shares, as long as the fork stands."""
    standing: set[str] = set()
    sharing: dict[str, set[str]] = {}
    for event in store.events:
        if event.what == "shared":
            sharing.setdefault(json.loads(event.facts)["shared"], set()).add(event.root)
            standing.add(event.root)
        if event.what == "run" and event.run == event.root and event.to_state in ("rolled_back", "abandoned"):
            standing.discard(event.root)
        forks = sharing.get(event.call, set()) & standing
        undone = event.what == "call" and event.to_state == "compensating"
        if undone and forks and not by_word(store, event.call):
            yield f"{store.calls[event.call].tool} of {event.run_id} was compensated, but {sorted(forks)} depend on it"


@checker
def shared_stays_as_it_is(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that a call that a fork shares is never started, moved or compensated in the fork."""
    shared = {call.id: call for call in store.calls.values() if call.shared}
    for event in store.events:
        if event.what == "call" and event.call in shared:
            yield f"{shared[event.call].tool} is shared, and was moved to {event.to_state} in {event.run_id}"
    for phase in ("execute", "compensate"):
        for call_id in world.landed_counts(phase):
            if call_id in shared:
                yield f"{shared[call_id].tool} is shared, and {phase} of it landed in the fork"


@checker
def shared_is_not_done_again(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that a shared request is answered from the record: it starts nothing in the fork."""
    done = {_asked(call) for call in store.calls.values() if call.shared and call.state == "succeeded"}
    for call in store.calls.values():
        if not call.shared and call.attempt and call.kind != "read" and _asked(call) in done:
            yield f"{call.tool} of fork {call.run_id} was done again, although the fork shares it"


def _asked(call: CallRow) -> tuple[str, ...]:
    return (call.root, call.tool, call.ident, call.again)


@checker
def forks_end_with_what_they_share(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that a fork neither commits nor starts anything after a person rolled back its original."""
    turned: set[str] = set()
    pivoted: set[str] = set()
    for event in store.events:
        run = store.runs.get(event.root)
        if event.what == "run" and event.run == event.root and event.to_state == "rolling_back":
            turned.add(event.root)
        if run is None or run.forked_from not in turned:
            if event.what == "call" and event.to_state == "started" and _kind(store, event.call) == "pivot":
                pivoted.add(event.root)
            continue
        begins = event.what == "call" and event.frm == "(new)" and event.to_state == "started"
        commits = (
            event.what == "run" and event.run == event.root and (event.frm, event.to_state) == ("open", "committed")
        )
        if (begins or commits) and event.root not in pivoted and _kind(store, event.call) != "read":
            yield f"fork {event.run_id} went on ({event.to_state}) after {run.forked_from} was rolled back"


def _kind(store: MemoryStore, call_id: str) -> str:
    return store.calls[call_id].kind if call_id in store.calls else ""


@checker
def forks_are_of_what_stood(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that a run that rolls back, or will, is not forked."""
    going: dict[str, str] = {}
    for event in store.events:
        if event.what == "goal" and event.run == event.root:
            going[event.root] = event.to_state
        if event.what == "forked" and going.get(event.root) == "rollback":
            yield f"run {event.run_id} was forked while it was rolling back"


@checker
def waits_for_forks_that_stand(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that a rollback that waited for forks continues once none of them stands."""
    forks = {run.uid: run for run in store.runs.values() if run.forked_from and run.uid == run.root}
    for run in store.runs.values():
        waits = run.state == "blocked" and run.came_from == "open" and run.goal == "rollback" and not run.pivot
        if run.uid != run.root or not waits or run.wake_at is not None:
            continue
        mine = {call.id for call in store.calls.values() if call.root == run.uid}
        sharing = {call.root for call in store.calls.values() if call.shared in mine}
        if not any(forks[uid].state not in ("rolled_back", "abandoned") for uid in sharing):
            yield f"run {run.id} waits for forks, and none of them depends on it any more"


# ---- Directives of people


@checker
def halts_hold(store: MemoryStore, _world: World) -> Iterator[str]:
    """Check that nothing starts while a halt of it stands, in the order of the ledger's transactions."""
    standing: dict[str, DirectiveRow] = {}
    for event in store.events:
        if event.what == "halted":
            row = directive_after(None, event)
            assert row is not None, "a halt begins its chain"
            standing[event.root] = row
        elif event.what == "unhalted":
            standing.pop(event.root, None)
        elif standing and event.what == "call" and event.to_state == "started":
            call, run = store.calls[event.call], store.runs[event.run]
            for halt in standing.values():
                if halt.is_about(call.tool, run, store.runs[run.root]):
                    yield f"{call.tool} {call.id} started (event {event.n}) while a halt of it stood"


@checker
def permits_are_used_as_given(store: MemoryStore, world: World) -> Iterator[str]:
    """Check that a permit approves as many calls as it was given for, before it ends, each with its own approval.

    It is used when the call starts: only a staged call, and one that reads first, are approved before.
    """
    rows: dict[str, DirectiveRow] = {}
    approved: Counter[str] = Counter()
    for event in store.events:
        if event.what == "permitted":
            row = directive_after(None, event)
            assert row is not None, "a permit begins its chain"
            rows[event.root] = row
        if event.what == "approval" and (permit := json.loads(event.facts).get("permit")):
            approved[permit] += 1
            if event.at >= (rows[permit].until_at or 0.0):
                yield f"permit {permit} approved a call after its end"
            call = store.calls[event.call]
            starts = not call.is_staged and not call.is_reading and call.tool not in world.sets
            if starts and not store.approvals[json.loads(event.facts)["approval"]].used_at:
                yield f"permit {permit} was used for {call.tool} {call.id}, which never started"
    for permit, count in approved.items():
        if count > rows[permit].uses:
            yield f"permit {permit} was given for {rows[permit].uses} calls, and approved {count}"
        left = store.directives[permit].uses
        if left != rows[permit].uses - count:
            yield f"permit {permit} approved {count} calls, and has {left} of {rows[permit].uses} uses left"


@checker
def tokens_end_for_good(store: MemoryStore, _world: World) -> Iterator[str]:
    """Check that a token is made once, ends once and does not expire before its time.

    Its row says what its events say. Whoever makes or ends a token by another one is the person whom that one was given
    to.
    """
    rows: dict[str, DirectiveRow] = {}
    for event in store.events:
        if event.what not in ("token made", "token revoked", "token expired"):
            continue
        row = directive_after(rows.get(event.root), event)
        if row is None:
            yield f"token {event.root} was not such that it could be {event.what} (event {event.n})"
            continue
        if event.what == "token expired" and event.at < (row.until_at or 0.0):
            yield f"token {row.id} was found expired before its time"
        rows[row.id] = row
        by = rows.get(str(json.loads(event.facts).get("token")))
        if by is not None and event.by_whom != (whose := json.loads(by.words)["principal"]):
            yield f"{event.by_whom} did something (event {event.n} of {event.root}) by a token of {whose}"
    for row in rows.values():
        if store.directives.get(row.id) != row:
            yield f"token {row.id} differs from its events"


@checker
def a_final_no_stays(store: MemoryStore, _world: World) -> Iterator[str]:
    """Check that a call which its tool refused for good is not made again in its tree."""
    refused: dict[tuple[str, str, str], str] = {}
    for event in store.events:
        call = store.calls.get(event.call)
        if event.what != "call" or call is None or call.kind == "read":
            continue
        same = (call.root, call.key, call.ident)
        if event.to_state == "failed" and json.loads(event.facts).get("why") == FINAL_NO:
            refused[same] = call.id
        elif event.to_state == "started" and same in refused:
            yield f"{call.tool} {call.id} started, although {refused[same]} was refused for good"

"""Seeded bugs: each mutation must be killed by a checker of its own name, not by "something failed"."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import math
import random
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from unittest import mock

from amends.encoding import canonical, payloads
from amends.encoding.chain import GENESIS
from amends.encoding.dataclass import changed
from amends.engine import (
    agents,
    blocked,
    call,
    checkpoints,
    completion,
    costs,
    doubts,
    ending,
    keys,
    outcomes,
    plain,
    recovery,
    retries,
    rollback,
    session,
)
from amends.engine import approvals as engine_approvals
from amends.engine import locks as engine_locks
from amends.engine import recorded_values as engine_values
from amends.engine import rules as engine_rules
from amends.engine import work as engine_work
from amends.host import notices, requests
from amends.ledger import (
    admission,
    approvals,
    audit,
    budgets,
    changes,
    dispatch,
    erasure,
    events,
    forks,
    halts,
    late_reports,
    leases,
    locks,
    opening,
    permits,
    retention,
    settlement,
    trees,
)
from amends.ledger import checkpoints as ledger_checkpoints
from amends.ledger import ending as store_ending
from amends.ledger import notices as ledger_notices
from amends.ledger import tokens as ledger_tokens
from amends.ledger.leases import Lease
from amends.ledger.operations import AdmitCall
from amends.ledger.plain import AdmitPlain, SettlePlain
from amends.ledger.rows import BUDGETS, CALLS, LOCKS, AddEvent, EventRow, LockRequest, Now
from amends.ledger.tables import Add, Change, List
from amends.people import rollback as rollback_plans
from amends.people import tokens as people_tokens
from amends.replay import answers
from amends.states import UNSETTLED
from amends.stores import audited, memory, quick, sql
from amends.stores import calls as stored_calls
from amends.stores.memory import _ROWS, QUICK, MemoryStore
from amends.stores.sqlite import quick as sqlite_quick
from amends.stores.sqlite import store as sqlite_store
from amends.stores.sqlite.store import SqliteStore
from amends.testing import simulation
from amends.testing.simulation import Process, Simulation
from amends.tools.scope import BareUse
from tests.sim.ledgers import played_on
from tests.sim.scenarios import VARIANTS, Variant
from tests.sim.schedule import LEDGER, Schedule, kinds_at
from tests.sim.sweep import Play, Tally, clean_trace, one, random_schedule, scenarios_of

tool_module = sys.modules[BareUse.__module__]  # `amends.tool` is the decorator
MODULES = (
    leases,
    late_reports,
    engine_work,
    ledger_checkpoints,
    engine_rules,
    blocked,
    keys,
    outcomes,
    engine_approvals,
    call,
    costs,
    plain,
    doubts,
    engine_locks,
    retries,
    ending,
    completion,
    rollback,
    approvals,
    recovery,
    answers,
    engine_values,
    session,
    admission,
    agents,
    changes,
    opening,
    retention,
    erasure,
    settlement,
    store_ending,
    locks,
    halts,
    permits,
    rollback_plans,
    people_tokens,
    budgets,
    events,
    forks,
    trees,
    ledger_notices,
    ledger_tokens,
    notices,
    checkpoints,
    audit,
    requests,
    simulation,
    canonical,
    payloads,
    tool_module,
    sql,
    stored_calls,
    audited,
    quick,
    sqlite_quick,
    sqlite_store,
)
SCHEDULES_MAX = 4_000
RECOVERY_OPS = 16


@dataclass(frozen=True, slots=True)
class Bug:
    """One mutation, the checkers that must name it, the flows in which to look first, and the ledger to play on."""

    number: str
    what: str
    seeded: Callable[[], contextlib.AbstractContextManager[Any]]
    checkers: tuple[str, ...]
    flows: tuple[str, ...] = ()
    store: str = "memory"


# ---- ways to plant a bug -----------------------------------------------------------------


@contextmanager
def rewritten(*changes: tuple[ModuleType, str, str, str]) -> Iterator[None]:
    """Replace text inside functions: the mutation is a diff, and fails loudly when the code has moved on."""
    undo: list[tuple[ModuleType, str, Any]] = []
    try:
        sources: dict[tuple[ModuleType, str], str] = {}
        for module, name, old, new in changes:
            original = getattr(module, name)
            source = sources.get((module, name)) or textwrap.dedent(inspect.getsource(original))
            assert old in source, f"{module.__name__}.{name} no longer has: {old}"
            sources[module, name] = source.replace(old, new)
        for (module, name), source in sources.items():
            original, namespace = getattr(module, name), vars(module)
            code = compile("from __future__ import annotations\n" + source, f"<bug in {name}>", "exec")
            before = {key: namespace.get(key) for key in ("annotations",)}
            exec(code, namespace)
            mutant = namespace[name]
            namespace[name] = original
            namespace.update({key: value for key, value in before.items() if value is not None})
            undo += _spread(original, mutant)
        yield
    finally:
        for module, name, original in reversed(undo):
            if isinstance(module, ModuleType):
                setattr(module, name, original)
            else:
                dispatch.INTENTS[module] = original  # type: ignore[index]


def _spread(original: Any, mutant: Any) -> list[Any]:
    """Put the mutant wherever the original is known by its name."""
    undo: list[Any] = []
    for module in MODULES:
        for name, value in list(vars(module).items()):
            if value is original:
                setattr(module, name, mutant)
                undo.append((module, name, original))
    for op, flow in list(dispatch.INTENTS.items()):
        if flow is original:
            dispatch.INTENTS[op] = mutant
            undo.append((op, "", original))
    return undo


class _Late:
    """Work that a buggy store does one operation too late, and never if its process dies before."""

    def __init__(self) -> None:
        self.pending: list[Callable[[MemoryStore], None]] = []

    @contextmanager
    def installed(self) -> Iterator[None]:
        perform, turn = MemoryStore.perform, Simulation.turn

        def late_perform(store: MemoryStore, op: Any) -> Any:
            pending, self.pending = self.pending, []
            for work in pending:
                work(store)
            return perform(store, op)

        def dying_turn(sim: Simulation, process: Process) -> None:
            turn(sim, process)
            if not process.alive:
                self.pending.clear()

        with mock.patch.object(MemoryStore, "perform", late_perform), mock.patch.object(Simulation, "turn", dying_turn):
            yield


@contextmanager
def by_rows(seeded: Callable[[], contextlib.AbstractContextManager[Any]]) -> Iterator[None]:
    """A bug in the rows of the store: the memory store makes the rows of plain calls too, by the flows."""
    with mock.patch.dict(QUICK, clear=True), seeded():
        yield


@contextmanager
def plain_path(kind: type[Any], *changes: tuple[str, str]) -> Iterator[None]:
    """Replace text in what the memory store does for a plain operation."""
    source = textwrap.dedent(inspect.getsource(QUICK[kind]))
    for old, new in changes:
        assert old in source, f"the plain path of {kind.__name__} no longer has: {old}"
        source = source.replace(old, new)
    space = dict(vars(memory))
    exec(compile("from __future__ import annotations\n" + source, "<bug in a plain path>", "exec"), space)
    with mock.patch.dict(QUICK, {kind: space[QUICK[kind].__name__]}):
        yield


@contextmanager
def method(owner: type[Any], name: str, *changes: tuple[str, str]) -> Iterator[None]:
    """Replace text inside a method of a class."""
    source = textwrap.dedent(inspect.getsource(getattr(owner, name)))
    for old, new in changes:
        assert old in source, f"{owner.__name__}.{name} no longer has: {old}"
        source = source.replace(old, new)
    space = dict(vars(sys.modules[owner.__module__]))
    exec(compile("from __future__ import annotations\n" + source, f"<bug in {name}>", "exec"), space)
    with mock.patch.object(owner, name, space[name]):
        yield


# ---- the storage -------------------------------------------------------------------------


@contextmanager
def touch_not_moved() -> Iterator[None]:
    """A transaction that writes event rows leaves ``touch`` as it is, and its store knows that."""
    same = 'tx.statements.touch.replace(", touch = touch + 1", "")'
    with (
        rewritten((sql, "_write_tails", "Execute(tx.statements.touch,", f"Execute({same},")),
        method(SqliteStore, "_remember", ("tail.touch + 1", "tail.touch"), ("+ int(tail.is_longer)", "")),
    ):
        yield


@contextmanager
def touch_ignored() -> Iterator[None]:
    """A plain statement is done whatever ``touch`` is."""
    with contextlib.ExitStack() as planted:
        steps = ("ADMIT", "SETTLE", "SETTLE_SEALED", "FAIL", "BEGIN", "END", "TURN", "CLOSE", "COMMIT")
        for name in (*steps, "TURN_PLAIN", "CLOSE_LAST"):
            text = getattr(sqlite_quick, name)
            assert "touch = ?" in text, f"{name} no longer compares touch"
            mutant = text.replace("touch = ?", "? is not null")
            planted.enter_context(mock.patch.object(sqlite_quick, name, mutant))
        yield


@contextmanager
def condition_left_out(names: tuple[str, ...], condition: str, instead: str = "") -> Iterator[None]:
    """Plain statements on SQLite are done without one of their conditions."""
    with contextlib.ExitStack() as planted:
        for name in names:
            text = getattr(sqlite_quick, name)
            assert condition in text, f"{name} no longer has: {condition}"
            planted.enter_context(mock.patch.object(sqlite_quick, name, text.replace(condition, instead)))
        yield


@contextmanager
def closed_unseen() -> Iterator[None]:
    """Neither the engine nor the plain statement looks whether everything was compensated."""
    with (
        rewritten((rollback, "_close_at_once", "or rollback_obstacles(session, left)", ""),
                  (rollback, "_close_at_once", 'or any(row.state != "compensated" for row in done.values())', "")),
        condition_left_out(("CLOSE",), f" and {quick.NOTHING_LEFT}"),
    ):  # fmt: skip
        yield


@contextmanager
def admission_not_durable() -> Iterator[None]:
    """What was admitted is lost when its process dies before it writes again."""
    perform, turn = MemoryStore.perform, Simulation.turn
    kept: list[Any] = []

    def volatile(store: MemoryStore, op: Any) -> Any:
        kept.clear()
        if isinstance(op, AdmitCall | AdmitPlain):
            tables = (store.runs, store.calls, store.events)
            kept.append((store, [_copied(table) for table in tables], {k: _copied(v) for k, v in store._index.items()}))
        return perform(store, op)

    def dying(sim: Simulation, process: Process) -> None:
        turn(sim, process)
        if not process.alive and kept:
            store, (store.runs, store.calls, store.events), store._index = kept.pop()

    with mock.patch.object(MemoryStore, "perform", volatile), mock.patch.object(Simulation, "turn", dying):
        yield


def _copied(table: Any) -> Any:
    if isinstance(table, list):
        return list(table)
    return {key: list(value) if isinstance(value, list) else value for key, value in table.items()}


@contextmanager
def event_too_late() -> Iterator[None]:
    """The change is written, its event a transaction later."""
    late = _Late()
    add = _ROWS[__import__("amends.ledger.rows", fromlist=["AddEvent"]).AddEvent]
    from amends.ledger.rows import AddEvent

    def put_off(store: MemoryStore, op: AddEvent) -> int:
        if op.what == "call" and op.to_state == "succeeded":
            late.pending.append(lambda kept: add(kept, op))
            return len(store.events) + 1
        return int(add(store, op))

    with late.installed(), mock.patch.dict(_ROWS, {AddEvent: put_off}):
        yield


@contextmanager
def head_of_before() -> Iterator[None]:
    """The end of a chain is read before the tree is locked: as it was when the last operation began."""
    heads: dict[str, EventRow] = {}
    add, perform = _ROWS[AddEvent], MemoryStore.perform

    def unlocked(store: MemoryStore, op: Any) -> Any:
        began = dict(store._tails)
        try:
            return perform(store, op)
        finally:
            heads.clear()
            heads.update(began)

    def onto_it(store: MemoryStore, op: AddEvent) -> int:
        if op.root in heads and store._tails[op.root].n > heads[op.root].n and not store._undo:
            store._tails[op.root] = heads[op.root]
        return int(add(store, op))

    with mock.patch.object(MemoryStore, "perform", unlocked), mock.patch.dict(_ROWS, {AddEvent: onto_it}):
        yield


@contextmanager
def link_to_nothing() -> Iterator[None]:
    """An event's hash says nothing of the event before it."""
    add = _ROWS[AddEvent]

    def alone(store: MemoryStore, op: AddEvent) -> int:
        if op.root in store._tails:
            store._tails[op.root] = changed(store._tails[op.root], {"hash": GENESIS})
        return int(add(store, op))

    with mock.patch.dict(_ROWS, {AddEvent: alone}):
        yield


@contextmanager
def beside_the_chain() -> Iterator[None]:
    """What is no move of a row is written without a link."""
    add = _ROWS[AddEvent]

    def beside(store: MemoryStore, op: AddEvent) -> int:
        if op.what in ("call", "run"):
            return int(add(store, op))
        tail = store._tails.get(op.root)
        n = int(add(store, op))
        store.events[-1] = changed(store.events[-1], {"n": 0, "hash": ""})
        if tail is not None:
            store._tails[op.root] = tail
        return n

    with mock.patch.dict(_ROWS, {AddEvent: beside}):
        yield


@contextmanager
def pivot_too_late() -> Iterator[None]:
    """The pivot is settled, its run moved in a second transaction."""
    late = _Late()
    original = settlement._after_settling

    async def put_off(run: Any, row: Any, now: float, by: str, epoch: int, *, doom: bool = False) -> Any:
        if row.kind == "pivot" and row.state == "succeeded":
            late.pending.append(lambda store: _flow_in(store, original(store.runs[run.uid], row, now, by, epoch)))
            return run
        return await original(run, row, now, by, epoch, doom=doom)

    with late.installed(), mock.patch.object(settlement, "_after_settling", put_off):
        yield


def _flow_in(store: MemoryStore, flow: Any) -> None:
    from amends.ledger.flow import run_flow

    run_flow(flow, store._row)
    store._undo.clear()


@contextmanager
def lease_unchecked() -> Iterator[None]:
    with mock.patch.object(Lease, "check", return_value=None):
        yield


@contextmanager
def lock_too_late() -> Iterator[None]:
    """The call is admitted, its lock taken a transaction later."""
    late = _Late()
    add = _ROWS[Add]

    def put_off(store: MemoryStore, op: Add[Any]) -> bool:
        if op.table is not LOCKS:
            return bool(add(store, op))
        late.pending.append(lambda kept: add(kept, op))
        return True

    with late.installed(), mock.patch.dict(_ROWS, {Add: put_off}):
        yield


@contextmanager
def reserved_too_late() -> Iterator[None]:
    """The call is admitted, what it costs is reserved a transaction later."""
    late = _Late()
    update = _ROWS[Change]

    def put_off(store: MemoryStore, op: Change[Any]) -> Any:
        if op.table is not BUDGETS or set(op.changes) != {"reserved"}:
            return update(store, op)
        late.pending.append(lambda kept: update(kept, Change(BUDGETS, kept.slices[op.row.name], op.changes)))
        return op.row

    with late.installed(), mock.patch.dict(_ROWS, {Change: put_off}):
        yield


@contextmanager
def compensation_locked() -> Iterator[None]:
    """A compensation takes the locks of its call, as its start did."""
    taking = """    now = await Now(call.root)
    if call.locks:
        wanted = LockRequest(lock_names_of([call]), waits=True)
        if await take_locks(root, wanted, call=call.id, tool=call.tool, at=now, by=op.owner) is not None:
            return None
    return await move_call("""
    vars(store_ending).setdefault("LockRequest", LockRequest)
    with rewritten(
        (store_ending, "begin_compensation", "    now = await Now(call.root)\n    return await move_call(", taking)
    ):
        yield


@contextmanager
def yes_too_late() -> Iterator[None]:
    """The yes is looked at with the start, and used up a transaction later."""
    late = _Late()
    original = approvals.use_approval

    async def put_off(run: Any, approval: Any, *, at: float, by: str, epoch: int) -> Any:
        late.pending.append(lambda store: _use_late(store, run.uid, approval.id, at, by, epoch))
        return approval

    def _use_late(store: MemoryStore, uid: str, id: str, at: float, by: str, epoch: int) -> None:
        row = store.approvals[id]
        if row.state == "approved":
            _flow_in(store, original(store.runs[uid], row, at=at, by=by, epoch=epoch))

    with (
        late.installed(),
        mock.patch.object(settlement, "use_approval", put_off),
        mock.patch.object(approvals, "use_approval", put_off),
    ):
        yield


@contextmanager
def time_by_the_clock() -> Iterator[None]:
    """What the clock says is the time, whatever the record has seen."""
    with mock.patch.dict(_ROWS, {Now: lambda store, _: store._clock()}):
        yield


@contextmanager
def key_forgotten() -> Iterator[None]:
    """Retention that removes identities: an old key is as good as new."""
    listed = _ROWS[List]

    def forgetful(store: MemoryStore, op: List[Any]) -> Any:
        found = listed(store, op)
        asked = op.table is CALLS and op.where[0][0] == "key" and op.limit == 1
        if asked and found and found[0].state == "succeeded":
            store._index["call.key"].pop(found[0].key, None)
            return []
        return found

    with mock.patch.dict(_ROWS, {List: forgetful}):
        yield


BUGS: tuple[Bug, ...] = (
    Bug("1", "body invoked before the admission is durable", lambda: by_rows(admission_not_durable), ("effects_are_known",), ("F1", "F6")),
    Bug("2", "settle without the epoch guard",
        lambda: rewritten((settlement, "settle_call", 'not is_owner(root, op.owner, op.epoch) or call.attempt != op.attempt or call.state != "started"', "call.attempt != op.attempt or call.state == 'compensated'")),
        ("settled_by_owner",), ("F1", "F9")),
    Bug("3", "settle without the attempt guard",
        lambda: rewritten((settlement, "settle_call", "or call.attempt != op.attempt ", ""), (settlement, "settle_call", "op.repeated and call.state == op.to and call.attempt == op.attempt", "op.repeated and call.state == op.to")),
        ("attempts_in_order",), ("F2", "F12")),
    Bug("4", "takeover leaves started as it is",
        lambda: rewritten((leases, "_doubt_started", 'elif call.state == "started":', 'elif call.state == "started" and False:')),
        ("nothing_stuck",), ("F1", "F6")),
    Bug("5", "takeover turns started into failed",
        lambda: rewritten((leases, "_doubt_started", '"in_doubt",', '"failed",')),
        ("ledger_against_world", "effects_once"), ("F1", "F6")),
    Bug("6", "no lease check before the body", lease_unchecked, ("no_stale_body",), ("F1", "F6")),
    Bug("7", "Absent believed before the settle delay",
        lambda: rewritten((doubts, "settle_delay_left", "return quiet + spec.settle - clocks.mono", "return 0.0")),
        ("ledger_against_world", "effects_once"), ("F1", "F6", "F17")),
    Bug("8", "settle delay counted from the start",
        lambda: rewritten((doubts, "settle_delay_left", "return quiet + spec.settle - clocks.mono", "return (row.started_at or 0.0) + spec.settle - clocks.wall")),
        ("ledger_against_world", "effects_once"), ("F1", "F6", "F17")),
    Bug("9", "timeout recorded as failed",
        lambda: rewritten((outcomes, "_verdict_by_class", 'if name in MAYBE_SENT:\n            return "doubt"', 'if name in MAYBE_SENT:\n            return "certain"')),
        ("ledger_against_world",), ("F3", "F1")),
    Bug("10", "non-idempotent call restarted from in_doubt",
        lambda: rewritten((doubts, "is_repeatable", "if not spec.idempotent or", "if")), ("effects_once",), ("F1", "F3")),
    Bug("11", "a retry gets a new key per attempt",
        lambda: rewritten((keys, "provider_key", "row.key, row.generation)", "row.key, row.generation, row.attempt)")),
        ("effects_once",), ("F1", "F3", "F12")),
    Bug("12", "generation missing from the key handed on",
        lambda: rewritten((keys, "provider_key", "row.key, row.generation)", "row.key)")),
        ("ledger_against_world", "answers_true"), ("F22", "F16")),
    Bug("13", "rollback allowed while the pivot is in doubt",
        lambda: rewritten((store_ending, "begin_rollback", '    if run.pivot and run.phase == "open":\n', "    if False:\n")),
        ("pivot_law",), ("F9", "F17")),
    Bug("13b", "a pivot that had no effect keeps its run from being taken back",
        lambda: rewritten((store_ending, "begin_rollback", "run = await _give_up_pivot(run, op, root.epoch, now)", "pass")),
        ("blocked_for_a_person", "nothing_stuck"), ("F9",)),
    Bug("13c", "the same, of a child",
        lambda: rewritten((store_ending, "_close_subtree", "one = await _give_up_pivot(one, op, epoch, now)", "pass")),
        ("nothing_stuck",), ("F14",)),
    Bug("13d", "a probe of a compensation is asked with a copy of a call whose result is lost",
        lambda: rewritten((doubts, "ask_probe", "undoing = replace(made,", "undoing = replace(call,")),
        ("nothing_stuck",), ("F7p",)),
    Bug("14", "pivot settles, its run is moved in a second transaction", pivot_too_late, ("pivot_moves_its_run",), ("F9",)),
    Bug("15", "compensatable admitted while the pivot is in flight",
        lambda: rewritten((admission, "order_violation", "if run.pivot and not pivoted:", "if False:")),
        ("pivot_law",), ("F9b",)),
    Bug("16a", "staged call started before the decision",
        lambda: rewritten((admission, "admit_new_call", 'op.kind == "retriable" or op.at_commit', "op.at_commit")),
        ("outbox",), ("F10", "F9")),
    Bug("16b", "staged call not dropped on rollback",
        lambda: rewritten((store_ending, "_close_subtree", '("held", "ready", "backing_off")', '("backing_off",)')),
        ("assertion", "nothing_stuck", "recovery_survives"), ("F14", "F10")),
    Bug("17", "compensation restarted after a crash without idempotence or probe",
        lambda: rewritten((rollback, "_may_compensate", "return again or compensation.probe is not None", "return True"), (rollback, "compensate", 'if row.state == "compensation_in_doubt" and not _may_repeat(session, spec, compensation, row):', "if False:")),
        ("compensated_once",), ("F6", "F7")),
    Bug("18a", "compensations in order of start",
        lambda: rewritten((rollback, "_reversed", "row.settled_seq", "row.seq"), (store_ending, "_comes_first", "return later and", "return False and")),
        ("compensation_order", "world_order"), ("F8b",)),
    Bug("18b", "compensation begun while a sibling is live",
        lambda: rewritten((rollback, "wait_for_live", "if not await LiveCalls(session.uid):\n            return await _settle_orphans(session, seen)", "return None"), (store_ending, "_comes_first", 'if other.state == "started":\n        return True', "if False:\n        return True")),
        ("compensation_order",), ("F8c",)),
    Bug("19a", "a failed compensation stops the others",
        lambda: rewritten((rollback, "_one_pass", "if not todo:", "if not todo or any(row.comp_gave_up for row in tree.calls):")),
        ("work_left",), ("F7",)),
    Bug("19b", "the run still says rolled_back",
        lambda: rewritten((rollback, "_close", "if left:", "if False:"), (store_ending, "_close_rolled_back", 'if call.run in inside and call.kind != "read"', 'if False and call.kind != "read"')),
        ("ledger_against_world",), ("F7", "F6")),
    Bug("20", "approval looked at, but used up in a second transaction", yes_too_late,
        ("approvals_against_starts",), ("F20",)),
    Bug("21", "approval bound to the key instead of to all arguments",
        lambda: rewritten((admission, "_answer_requested", "if op.digest != known.digest:", "if False:"), (call, "as_approved", "row.digest == ask.digest", "True")),
        ("approvals_against_starts",), ("F20",)),
    Bug("22", "expired approval accepted after a clock set back", lambda: by_rows(time_by_the_clock),
        ("approvals_against_starts",), ("F20",)),
    Bug("26", "hold and suspend in two transactions: recovery looks only for the second",
        lambda: rewritten((recovery, "_roll_back_unless_held", "if _waits_for_person(tree):", "if tree.run.suspended:")),
        ("people_are_waited_for",), ("F20",)),
    Bug("27", "what is staged starts without its yes being used up",
        lambda: rewritten((approvals, "use_staged", 'row.state == "approved"', "False"), (approvals, "may_start", 'approval.state == "used"', "True")),
        ("approvals_against_starts",), ("F20",)),
    Bug("23", "event written outside the transaction of its change", lambda: by_rows(event_too_late), ("event_per_transition",), ("F1", "F6")),
    Bug("24", "goal not recorded",
        lambda: rewritten((store_ending, "decide_commit", '{"goal": "commit", "goal_by": "self", "output": output}', '{"output": output}')),
        ("goal_kept",), ("F11", "F1")),
    Bug("25", "a key is forgotten", lambda: by_rows(key_forgotten), ("effects_once",), ("F1", "F17")),
    Bug("L1", "open takes over a live lease",
        lambda: rewritten((opening, "open_run", "if not await _is_free(row, op, now):", "if False:")),
        ("owner_undisturbed",), ("X10",)),
    Bug("L2", "another run is answered with a result that may still be taken back",
        lambda: rewritten((admission, "_answer_other_run", "if kept and known.state", "if known.state")),
        ("answered_for_good",), ("F22",)),
    Bug("L3", "a child's staged mail is sent at the child's commit",
        lambda: rewritten((store_ending, "_decide_settled", 'if run.phase == "open" and staged and run.parent:', "if False:")),
        ("child_outbox",), ("F14",)),
    Bug("L4", "parent commits over an open child",
        lambda: rewritten((store_ending, "decide_commit", "if unsettled or children:", "if unsettled:")),
        ("children_closed",), ("F15",)),
    Bug("L5", "the lost answer of an admission is taken for a twin",
        lambda: rewritten((admission, "admit_call", "if op.repeated:", "if False:")),
        ("busy_with_itself",), ("F1",)),
    Bug("L6", "conflict compared by key only",
        lambda: rewritten((admission, "_answer_known", "if known.ident != op.ident and known.state not in FREES_KEY:", "if False:")),
        ("conflicts_told",), ("F21",)),
    Bug("L7", "what a child took back is still remembered as done",
        lambda: rewritten((rollback, "roll_back", "session.recall.close()", "pass")),
        ("answered_for_good",), ("F16c",)),
    Bug("TO1", "a run is not judged by whoever commits it later",
        lambda: rewritten((store_ending, "_decide_settled", "if run.completion and", "if op.completion and op.output is not None and")),
        ("two_outcomes",), ("D1", "D2")),
    Bug("TO2", "an earlier success makes a failure good",
        lambda: rewritten((completion, "_makes_good", "return other.seq > failed.seq and", "return failed.seq and"), (completion, "_makes_good", "other.created_at >= ended_at and", "")),
        ("two_outcomes",), ("D1",)),
    Bug("TO3", "after the pivot an incomplete run is committed",
        lambda: rewritten((store_ending, "_decide_settled", 'if run.completion and (run.phase == "open" or not staged):', 'if run.completion and run.phase == "open":')),
        ("two_outcomes",), ("D3",)),
    Bug("N1", "a notice is claimed although somebody else has it",
        lambda: rewritten((ledger_notices, "claim_notice", "if row.tell_at is None or row.tell_at > now:", "if row.tell_at is None:")),
        ("told_once",), ("F28",)),
    Bug("N2", "people count as told before they are",
        lambda: rewritten((notices, "tell", "ended = await _fire", "await RecordNotice(approval_id, teller)\n    ended = await _fire")),
        ("people_are_told",), ("F20", "F28")),
    Bug("N3", "a hook that failed counts as one that told",
        lambda: rewritten((notices, "tell", "if failed is None:", "if True:")),
        ("people_are_told",), ("F20", "F28")),
    Bug("N4", "a claim never runs out",
        lambda: rewritten((ledger_notices, "claim_notice", '"tell_at": now + op.claim_s', '"tell_at": None')),
        ("people_are_told",), ("F20", "F28")),
    Bug("N5", "only who asked has the notice: it is not written with the request",
        lambda: rewritten((approvals, "make_request", "tell_at=at,", "tell_at=None,")),
        ("people_are_told",), ("F28",)),
    Bug("AE1", "a reminder stays in the outbox after it was sent: people are told twice",
        lambda: rewritten((ledger_notices, "note_told", '"tell_at": None, "teller"', '"tell_at": now if row.reached and row.tells < 2 else None, "teller"')),
        ("told_once",), ("F75",)),
    Bug("AE2", "an entry is due although its time has not come",
        lambda: rewritten((approvals, "is_due", "approval.due_at <= now and", "")),
        ("timetables_are_followed",), ("F75",)),
    Bug("AE3", "who is asked later may decide at once",
        lambda: rewritten((approvals, "_may_decide", "set(approval.asked_roles)", "set(approval.asked_roles) | {r for e in approval.entries for r in e.roles}")),
        ("timetables_are_followed",), ("F75",)),
    Bug("AE4", "the outcome of an old notice counts for the reminder after it",
        lambda: rewritten((ledger_notices, "note_told", " and row.reached == op.reached", "")),
        ("people_are_told",), ("F75",)),
    Bug("ES1", "a plain call does not look at the halt number",
        lambda: plain_path(AdmitPlain, ("or self.ledgers[THIS].halt", "")), ("halts_hold",), ("F70",)),
    Bug("ES2", "a recorded call is started again over a halt",
        lambda: rewritten((settlement, "start_call", "halt = await halt_on(call.tool, run, root)", "halt = None")),
        ("halts_hold",), ("F70",)),
    Bug("ES3", "a halt is written, and the number that plain calls compare is not",
        lambda: rewritten((halts, "halt", 'await Change(LEDGER, ledger, {"halt": ledger.halt + 1})', "pass")),
        ("halts_hold",), ("F70",)),
    Bug("ES4", "the plain statement does not compare the halt number",
        lambda: condition_left_out(("ADMIT",), "(select halt from amends_ledger) = ?", "? is not null"),
        ("halts_hold",), ("F70",), store="sqlite"),
    Bug("UC1", "a committed run is taken back over what nobody accepted",
        lambda: rewritten((store_ending, "_take_back_committed", "!= set(op.accept):", "is None:")),
        ("committed_runs_are_taken_back_as_accepted",), ("F71",)),
    Bug("UC2", "what was accepted is not recorded with the run",
        lambda: rewritten((store_ending, "_take_back_committed", "plan=op.plan, closed_at=None", "closed_at=None")),
        ("committed_runs_are_taken_back_as_accepted",), ("F71",)),
    Bug("PM1", "a use of a permit is not counted",
        lambda: rewritten((permits, "approve_by", "await use_permit(row, at=at, by=by, call=call.id, approval=approval.id, of=call.run_id)", "pass")),
        ("permits_are_used_as_given",), ("F72",)),
    Bug("PM2", "a permit counts after its end",
        lambda: rewritten((permits, "covers", "and now < (row.until_at or 0.0)", "")),
        ("permits_are_used_as_given",), ("F72",)),
    Bug("PM3", "a permit is used although a lock keeps its call from starting",
        lambda: rewritten((settlement, "_leave_to_start", "_Leave(asked.call, asked.approval, permit)", "_Leave(*await approve_by(permit, asked.call, asked.approval, by=op.owner))")),
        ("permits_are_used_as_given",), ("F72b",)),
    Bug("PM4", "a permitted call starts before what is there was read",
        lambda: rewritten((dispatch, "admit", "if call.is_staged or op.reads:", "if call.is_staged:")),
        ("before_is_true",), ("F60f",)),
    Bug("FN1", "a final no frees its key",
        lambda: rewritten((admission, "_why_no_next", "and same[-1].why == FINAL_NO", "and False")),
        ("a_final_no_stays",), ("F73",)),
    Bug("T171", "a token that has ended is ended again",
        lambda: rewritten((ledger_tokens, "end_token", "if row.closed_at is not None:", "if False:")),
        ("tokens_end_for_good",), ("F90",)),
    Bug("T172", "a token expires before its time",
        lambda: rewritten((ledger_tokens, "end_token", "if op.expired and now < (row.until_at or 0.0):", "if False:")),
        ("tokens_end_for_good",), ("F90b",)),
    Bug("T173", "a link that was used lets a second one in",
        lambda: rewritten((ledger_tokens, "make_token", "return known if op.repeated and known.words == row.words else None", "return known"),
                          (people_tokens, "create_token", 'assert json.loads(row.words)["digest"] == said["digest"]', "assert True")),
        ("tokens_end_for_good",), ("F90",)),
    Bug("ER1", "a tree that has not ended is erased",
        lambda: rewritten((erasure, "_kept_for", "if root.uid != root.root or root.closed_at is None or root.owner:", "if False:")),
        ("erased_stays_erased", "record_is_whole"), ("F95",)),
    Bug("ER2", "an erasure does not say what it left of the events",
        lambda: rewritten((erasure, "_left_of", "made.update(left_line(event))", "continue")),
        ("record_is_whole",), ("F95",)),
    Bug("K1", "locks outlive their run",
        lambda: rewritten((changes, "move_run", "if run.locked and run.uid == run.root:", "if False:")),
        ("locks_end_with_their_run",), ("F24",)),
    Bug("K2", "lock taken outside the transaction of the admission", lock_too_late, ("body_holds_its_locks",), ("F24",)),
    Bug("K3", "lock given although another run has it",
        lambda: rewritten((locks, "take_locks", "if row.root != root.uid]", "if False]")),
        ("one_holder",), ("F24",)),
    Bug("K4", "a call with locks is not fenced",
        lambda: rewritten((admission, "admit_call", "if not is_over_for_callers(root):", "if not is_over_for_callers(root) and not op.locks.names:")),
        ("settled_by_owner",), ("F24k",)),
    Bug("K5", "a run that has pivoted goes back to end a deadlock",
        lambda: rewritten((locks, "_may_roll_back", 'if root.state != "open" or root.pivot:\n        return False', "if True:\n        return True")),
        ("victims_had_not_pivoted",), ("F24c",)),
    Bug("K6", "a compensation waits for a lock", compensation_locked, ("compensations_never_wait",), ("F24g",)),
    Bug("K7", "nobody looks for a deadlock",
        lambda: rewritten((locks, "_wait_for", "circle = await _find_cycle(root, others, at)", "circle: list[_Link] = []")),
        ("deadlocks_end",), ("F24b", "F24h")),
    Bug("K8", "two runs that have pivoted wait for each other for ever",
        lambda: rewritten((locks, "_wait_for", "await _free_one_lock(circle)", "pass")),
        ("nothing_stuck",), ("F24f",)),
    Bug("P1", "a plan is compared before the transaction that decides, and not in it",
        lambda: rewritten((store_ending, "begin_rollback", "if await mark_of(run) != op.mark:", "if False:")),
        ("plans_bind",), ("F26", "F26c")),
    Bug("P2", "a planned rollback whose answer was lost is told as stale",
        lambda: rewritten((store_ending, "begin_rollback", "if op.mark and not (op.repeated and run.plan == op.plan):", "if op.mark:")),
        ("stale_plans_do_nothing",), ("F26", "F26b", "F26c")),
    Bug("P3", "a plan does not see what was settled since",
        lambda: rewritten((trees, "tree_mark", "call.kind, call.state, call.attempt, call.settled_seq, call.tries_from", "call.kind"), (trees, "tree_mark", "call.args, call.result, call.evidence", "call.args")),
        ("plans_bind",), ("F26", "F26b", "F26c")),
    Bug("c21", "a plan is bound to the run as it is after the plan was compared",
        lambda: rewritten((rollback_plans, "_rollback_planned", "text = plan_text(", "tree = await _root_tree(view, run_id)\n    text = plan_text(")),
        ("plans_bind",), ("F26", "F26b", "F26c")),
    Bug("X1", "a run is taken back although a fork stands on it",
        lambda: rewritten((store_ending, "begin_rollback", "if forks and not any(", "if False and not any(")),
        ("not_taken_back_under_a_fork",), ("F29", "F29b", "F29d")),
    Bug("X2", "a fork takes back what it shares",
        lambda: rewritten(
            (rollback, "_may_compensate", " or row.shared", ""), (rollback, "_reversed", " and not row.shared", ""),
            (store_ending, "begin_compensation", " or call.shared", "")),
        ("shared_stays_as_it_is",), ("F29b", "F29d")),
    Bug("X3", "what a fork shares has other keys in it, and is done again",
        lambda: rewritten((session, "ask_for", "session.kin or session.root", "session.root")),
        ("shared_is_not_done_again",), ("F29", "F29b")),
    Bug("X4", "a fork goes on although what it shares was taken back",
        lambda: rewritten((forks, "rolled_back_source", "if not fork.forked_from:", "if True:")),
        ("forks_end_with_what_they_share",), ("F29c",)),
    Bug("X5", "a run is forked while it goes back: looked at before the transaction, and not in it",
        lambda: rewritten((forks, "fork_run", "if back is not None:", "if False:")),
        ("forks_are_of_what_stood", "not_taken_back_under_a_fork"), ("F29e",)),
    Bug("X6", "only forks that are open count: one that has committed loses what it stands on",
        lambda: rewritten((trees, "forks_on", "if fork.state not in ENDED_UNCOMMITTED and", "if fork.closed_at is None and")),
        ("not_taken_back_under_a_fork",), ("F29", "F29d")),
    Bug("X7", "a fork of a fork stands on its own source only",
        lambda: rewritten((trees, "forks_on", "todo.append(fork.uid)", "pass")),
        ("not_taken_back_under_a_fork",), ("F29d",)),
    Bug("X8", "a fork that has gone back wakes nobody",
        lambda: rewritten((changes, "_wake_sources", "if waits and", "if False and")),
        ("waits_for_forks_that_stand",), ("F29b", "F29d")),
    Bug("X9", "a run waits for a fork that ended between its two looks",
        lambda: rewritten((forks, "forks_are_gone", "if run.uid != run.root:", "if True:")),
        ("waits_for_forks_that_stand",), ("F29f",)),
    Bug("25b", "doubt releases its budget reservation",
        lambda: rewritten((budgets, "_next_phase", 'case "failed" | "dropped" | "refused"', 'case "failed" | "dropped" | "refused" | "in_doubt"')),
        ("sum_of_budgets",), ("F24q",)),
    Bug("B1", "what a call costs is reserved outside the transaction of its admission", reserved_too_late, ("sum_of_budgets", "books_balance"), ("F24p",)),
    Bug("B2", "a slice is as good as the whole budget",
        lambda: rewritten((budgets, "_exceeds", "available(home) < counter.need", "amount_in(home.cap) < counter.need")),
        ("sum_of_budgets",), ("F24p", "F24w")),
    Bug("B3", "staged calls start without what they cost",
        lambda: rewritten((store_ending, "_take_staged", "over = await reserve_staged(run, root, staged, terms=op.outbox, now=now, by=op.owner)", "over = None"), (settlement, "start_call", "if not call.attempt and (call.cost or root.charged):", "if False:")),
        ("paid_before_it_starts",), ("F24r", "F24s")),
    Bug("B4", "a failure keeps what it had reserved, and nobody knows",
        lambda: rewritten((budgets, "move_charge", "await _shift(", "phase == FAILED or await _shift(")),
        ("books_balance",), ("F24p", "F24t")),
    Bug("B5", "a compensation gives back before it is settled",
        lambda: rewritten((budgets, "_next_phase", 'case "compensated"', 'case "compensating" | "compensated"')),
        ("paid_before_it_starts",), ("F24t", "F24p")),
    Bug("B6", "a budget takes a run back over its pivot",
        lambda: rewritten((budgets, "refuse_by_budget", 'or run.phase != "open" or run.pivot or', "or")),
        ("no_budget_on_the_way_back",), ("F24u",)),
    Bug("S70", "an agent that returns while a call of it waits has ended",
        lambda: rewritten((agents, "wait_for_person", "if row is not None:", "if False:")),
        ("agent_waits",), ("F74",)),
    Bug("S71", "an agent that is asked again begins another child run",
        lambda: rewritten((requests, "own_child_name", "return ", "made = globals().setdefault('_made', [])\n    made.append(ask)\n    return str(len(made)).join(('k:', '')) or ")),
        ("same_agent",), ("F74",)),
    Bug("R1", "replay falls through to a body on a miss",
        lambda: rewritten((answers, "_unrecorded", "return replay.stop(", "from amends.ledger.world import Invoke, LazyCall\n    row = replay.record.tree.calls[0]\n    if ask.fn is not None:\n        ended = await Invoke(ask.fn, ask.args, ask.is_async, None, LazyCall(row, lambda: call_of(row, ask.spec)), None, 'execute')\n        return Done(row, ended.value)\n    return replay.stop(")),
        ("replays_start_nothing",), ("F27",)),
    Bug("R2", "a resumed run reads the clock anew",
        lambda: rewritten((engine_values, "read_clock", "if place < len(recorded):", "if False:")),
        ("readings_repeat",), ("F27",)),
    Bug("G1", "gc removes what evidence may have to be taken back with",
        lambda: rewritten((retention, "_question_of", 'if call.state == "compensated" and call.comp_blind:', "if False:")),
        ("work_left",), ("F25", "F25b")),
    Bug("C1", "the anchor is told before the ledger has the checkpoint",
        lambda: rewritten((checkpoints, "write_checkpoints", "if not await WriteCheckpoint(row):", "if not await _anchored(anchor, row) or not await WriteCheckpoint(row):")),
        ("checkpoints_anchored",), ("F33",)),
    Bug("C2", "who is second puts its checkpoint behind the other one as it is",
        lambda: rewritten((ledger_checkpoints, "write_checkpoint", "(op.row.n - 1, op.row.prev) != end or not await Add(CHECKPOINTS, op.row, if_absent=True)", "not await Add(CHECKPOINTS, changed(op.row, {'n': end[0] + 1}), if_absent=True)")),
        ("checkpoints_chain",), ("F33",)),
    Bug("C3", "who has nothing to write leaves the anchor as a dead writer left it",
        lambda: rewritten((checkpoints, "write_checkpoints", "newest = newest or await ReadCheckpoints(-1, 1)", "pass")),
        ("checkpoints_anchored",), ("F33",)),
    Bug("C4", "a tree is marked as covered beyond the event that the checkpoint names",
        lambda: rewritten((ledger_checkpoints, "write_checkpoint", "Head(*head) for head", "Head(head[0], head[1] + 1, head[2]) for head")),
        ("checkpoints_cover",), ("F33",)),
    Bug("U1", "a rule that cannot be compared lets the call pass",
        lambda: rewritten((engine_rules, "_first_match", 'if judged.verdict == "no":', 'if judged.verdict != "matches":')),
        ("approvals_against_starts",), ("F35",)),
    Bug("U2", "a repeat that was not offered is honoured",
        lambda: rewritten((requests, "_because", "if not host.may_repeat(spec):", "if False:")),
        ("repeats_are_offered",), ("F35",)),
    Bug("H1", "a handler may call the tool's own function any number of times",
        lambda: rewritten((tool_module, "BareUse", "if self._is_used:", "if False:")),
        ("effects_once", "ledger_against_world"), ("H1", "H2")),
    Bug("H2", "a handler may call the tool's own function with any arguments",
        lambda: rewritten((requests, "_with_bare_use", "== asked", "!= ''")),
        ("effects_once", "ledger_against_world"), ("H1", "H2")),
    Bug("H3", "what a handler leaves behind may still call the tool's own function",
        lambda: rewritten((tool_module, "BareUse", "self._is_over = True", "pass")),
        ("effects_once", "ledger_against_world"), ("H1", "H2")),
    Bug("V1", "the end of a chain is read before the tree is locked", lambda: by_rows(head_of_before), ("record_is_whole",)),
    Bug("V2", "an event is linked to nothing", lambda: by_rows(link_to_nothing), ("record_is_whole",)),
    Bug("V3", "an event is written beside the chain", lambda: by_rows(beside_the_chain), ("record_is_whole",)),
    Bug("N6", "a group of errors is judged without its leaves",
        lambda: rewritten((outcomes, "_links", "if is_a(link, BaseExceptionGroup):", "if False:")),
        ("ledger_against_world", "effects_once"), ("F40",)),
    Bug("N7", "an error is judged without what it was raised from",
        lambda: rewritten((outcomes, "_links", "if cause is not None:", "if False:")),
        ("ledger_against_world", "effects_once"), ("F40",)),
    Bug("N8", "an error is judged without what was handled when it was raised",
        lambda: rewritten((outcomes, "_links", "if context is not None and", "if False and")),
        ("ledger_against_world", "effects_once"), ("F40",)),
    Bug("N9", "Held that passes through a body is a failure of the outer call",
        lambda: rewritten((outcomes, "_verdict_of_amends_error", "is_a(error, Waiting, InDoubt, RunBlocked, LedgerError, Locked)", "is_a(error, InDoubt)")),
        ("ledger_against_world", "effects_once"), ("F41",)),
    Bug("N10", "a child left inside a body lets the lease of its tree go",
        lambda: rewritten((ending, "suspend_for_person", "if session.uid == session.root or not (session.bodies or await LiveCalls(session.root)):", "if True:")),
        ("lease_kept",), ("F41",)),
    Bug("N11", "a refusal after a call inside had its effect is a failure",
        lambda: rewritten((outcomes, "_verdict_of_amends_error", 'return "doubt" if nested and', 'return "doubt" if False and')),
        ("ledger_against_world", "effects_once"), ("F41",)),
    Bug("N12", "a call inside a body does not wait for its person",
        lambda: rewritten((call, "_wait_limits", "if body is None:", "if True:")),
        ("waited_in_place", "ledger_against_world"), ("F41",)),
    Bug("N13", "a doubtful error of a compensation is read without its group",
        lambda: rewritten((rollback, "_settle", 'judge(spec, ended.error, around=ended.around, is_body=False).verdict == "doubt"', "isinstance(ended.error, TimeoutError)")),
        ("compensated_once", "ledger_against_world"), ("F40",)),
    Bug("V4", "a settlement does not prove its result",
        lambda: rewritten((events, "settlement_facts", '"result": proof_of(op, op.result), ', "")),
        ("record_is_whole",)),
    Bug("G2", "a lost result is handed to its compensation as None",
        lambda: rewritten((session, "missing", 'if "result" not in asked.needs or (', "if True or ("), (session, "_result_for", "return None if asked.takes_none and row.comp_blind else LOST, why", "return None, why")),
        ("ledger_against_world",), ("G1", "G3")),
    Bug("G3", "a compensation that tolerates absence is started in doubt without the result that it needs",
        lambda: rewritten((doubts, "may_compensate_in_doubt", " and not compensation.needs_result", ""), (session, "missing", 'if "result" not in asked.needs or (', 'if "result" not in asked.needs or row.comp_blind or ('), (session, "_result_for", "return None if asked.takes_none and row.comp_blind else LOST, why", "return None, why")),
        ("ledger_against_world",), ("G2",)),
    Bug("G4", "asked again, a lost result is None",
        lambda: rewritten((session, "recorded_result", "if row.result is None:", "if False:")),
        ("answers_true",), ("G1",)),
    Bug("G5", "a compensation that was stopped in a living process stays as it is",
        lambda: rewritten((rollback, "clean_up_stopped_flow", "if await LiveCalls(session.uid):", "if True:")),
        ("no_orphans",), ("G4", "F6")),
    Bug("D1", "a doubt of an agent that recovery has started again rolls its run back",
        lambda: rewritten((ending, "leave", "if session.waits_for_doubts and", "if False and")),
        ("resume_is_no_rollback",), ("F17c",)),
    Bug("D2", "a run that was told to commit when its block ends early is blocked",
        lambda: rewritten((ending, "interrupted", "left is None and tree.run.commits_interrupted", "False")),
        ("interrupted_as_told",), ("F13b",)),
    Bug("D3", "a run commits when its block ends early although nobody told it to",
        lambda: rewritten((ending, "interrupted", "tree.run.commits_interrupted and", "")),
        ("interrupted_as_told",), ("F13",)),
    Bug("D4", "a probe that keeps failing is asked for ever, and nobody is told",
        lambda: rewritten((rollback, "_will_retry_doubt", "and not probe_failure(row)", "")),
        ("broken_probes_are_told",), ("F3b",)),
    Bug("D5", "a run that is blocked by a broken probe is not probed any more",
        lambda: rewritten((doubts, "probed_seldom", "return min(found, default=None)", "return None")),
        ("broken_probes_are_told",), ("F3b",)),
    Bug("D6", "a resumed agent reads the world as its own calls have changed it",
        lambda: rewritten((admission, "_resumed_read", "if root.history or", "if True or")),
        ("readings_repeat",), ("F5b",)),
    Bug("D7", "a read of a resumed run that is asked for again after a lost answer gets the next recorded one",
        lambda: rewritten((admission, "_asked_before", "if not op.repeated:", "if True:")),
        ("readings_repeat",), ("F5b",)),
    Bug("D8", "a run whose pivot nobody can know is committed, and what was staged behind it is sent",
        lambda: rewritten((trees, "unknown_pivots", 'if run.phase != "open" or', "if True or")),
        ("nothing_follows_an_unknown_pivot",), ("F26e",)),
    Bug("D9", "a second pivot follows one that nobody can know",
        lambda: rewritten((admission, "pivot_too_early", "if unknown:", "if False:")),
        ("nothing_follows_an_unknown_pivot", "pivot_law"), ("F26e",)),
    Bug("D10", "a parent does not know that its child waits because of a pivot that nobody can know",
        lambda: rewritten((blocked, "commit_obstacles", "for run in tree.runs)", "for run in tree.runs[:1])"),
                          (ending, "_settle_rest", "    if stuck:", "    if False:")),
        ("nothing_stuck",), ("F26e",)),
    Bug("D11", "a commit goes round while an agent of its run is blocked, which only its program or a person can end",
        lambda: rewritten((ending, "_settle_rest", "    if stuck:", "    if False:")),
        ("nothing_stuck",), ("D5",)),
    Bug("S22", "a plain commit does not look for a pivot that nobody can know",
        lambda: condition_left_out(("COMMIT",), quick.NOTHING_UNSETTLED, quick.has_no_call(UNSETTLED)),
        ("nothing_follows_an_unknown_pivot",), ("F26e",), "sqlite"),
    Bug("T1", "the wall clock alone says that a lease has ended",
        lambda: rewritten((leases, "_is_free", "return ended and root.lease_until <= now", "return root.lease_until <= now")),
        ("owner_undisturbed",), ("T1",)),
    Bug("T2", "a heartbeat does not end the silence that somebody noticed",
        lambda: rewritten((leases, "_lease_columns", ", **NOTHING_NOTICED", "")),
        ("owner_undisturbed",), ("T1",)),
    Bug("E1", "whoever edits a request may approve it alone",
        lambda: rewritten((approvals, "is_requester", "*approval.edited_by", "")),
        ("approvals_against_starts",), ("F20",)),
    Bug("V5", "an event does not say who refused a call, and why",
        lambda: rewritten((changes, "move_approval", "said=decision_digest(row, changes), ", "")),
        ("record_is_whole",), ("F20",)),
    # ---- Q: plain calls ----
    Bug("Q1", "a plain call is admitted although its run is closing",
        lambda: plain_path(AdmitPlain, ('or run.state != "open"\n        or run.goal\n', "")),
        ("closing_runs_start_nothing",), ("F23", "F26")),
    Bug("Q2", "a plain call is settled under an old epoch",
        lambda: plain_path(SettlePlain, (" or run.owner != mine.owner or run.epoch != mine.epoch", ""), ("if not is_started:", "if False:")),
        ("settled_by_owner",), ("F1", "F6")),
    Bug("Q3", "a plain call that was sent is not marked as in flight",
        lambda: rewritten((plain, "plain_call", "flight,  # type", "None,  # type")),
        ("ledger_against_world",), ("F1", "F6")),
    Bug("Q4", "a plain call is answered from memory after the lease was lost",
        lambda: rewritten((plain, "plain_call", "session.lease.is_ours((await ReadClocks()).mono)", "True")),
        ("remembered_under_a_lease",), ("F16c",)),
    Bug("Q5", "a plain call is admitted beside a pivot in flight",
        lambda: plain_path(AdmitPlain, ("or run.pivot\n", "")),
        ("pivot_law",), ("F9b",)),
    # ---- L: values ----
    Bug("L11", "the class of a value is missing from the key",
        lambda: rewritten((canonical, "_pack_member", "if shape.names(member) else packed", "if shape.names(member) and walk.packs is not MEANINGS else packed")),
        ("classes_are_told_apart",), ("F50",)),
    Bug("L12", "a union is read back as its first member",
        lambda: rewritten((payloads, "_rebuilt", "member = shape.named(name)", "member = next(iter(shape.classes.values()), None) if exact else shape.named(name)")),
        ("body_got_what_was_recorded",), ("F50", "F51")),
    Bug("L13", "the body gets the caller's live objects",
        lambda: rewritten((payloads, "write_args", "return Written(kept, text, canonical(kept, shape=shape), copy)", "return Written(args, text, canonical(kept, shape=shape), None)")),
        ("body_got_what_was_recorded",), ("F52",)),
    Bug("L14", "a retry gets what the first attempt has changed",
        lambda: rewritten((call, "run_attempts", "kwargs=ask.fresh()", "kwargs=ask.args")),
        ("body_got_what_was_recorded",), ("F52", "F50")),
    Bug("L15", "a call that starts later gets its arguments as plain data",
        lambda: rewritten((session, "args_of", "if spec is None or spec.signature is None:", "if True:")),
        ("body_got_what_was_recorded",), ("F51",)),
    Bug("L16", "a compensation gets its arguments through the validators of a union that takes the first that fits",
        lambda: rewritten((session, "args_of", "found, unlike = rebuild_args(text, spec.signature.shape)", "found, unlike = dict(decode(text.replace('[\"Employee\",', '[\"Customer\",'))), {'to'}")),
        ("body_got_what_was_recorded",), ("F50", "F52")),
    # ---- S: the storage, on SQLite ----
    Bug("S1", "a transaction that writes event rows does not move touch", touch_not_moved,
        ("record_is_whole",), ("F23", "F26"), "sqlite"),
    Bug("S2", "a plain statement ignores touch", touch_ignored, ("record_is_whole",), ("F23", "F26"), "sqlite"),
    Bug("S3", "the end of a chain is not read again after a batch that failed",
        lambda: method(SqliteStore, "_fail", ("self._forget()", "pass")),
        ("record_is_whole",), ("F1", "F6"), "sqlite"),
    Bug("S4", "a folded event is not unfolded when one of its columns changes",
        lambda: rewritten((sql, "_unfold", "or all(getattr(new, column) == getattr(old, column) for column in columns)", "or True")),
        ("record_is_whole",), ("F7", "F6", "F1"), "sqlite"),
    Bug("S5", "the digest of a folded payload is not kept when gc removes the payload",
        lambda: rewritten((sql, "_unfold", "if folded.hash and new.args != old.args and", "if False and"), (sql, "_unfold", "if kept.settled_hash and new.result != old.result and", "if False and")),
        ("record_is_whole",), ("F25", "F25b"), "sqlite"),
    Bug("S23", "the digest of the error of a folded failure is not kept when gc removes its message",
        lambda: rewritten((sql, "_unfold", 'if kept.settled_hash and old.state == "failed" and', "if False and")),
        ("record_is_whole",), ("F25", "F25b"), "sqlite"),
    Bug("S24", "the number of a folded failure is a place in the order of settling",
        lambda: rewritten((stored_calls, "join", "failed_n, settled_n = settled_n or 0, None", "failed_n = settled_n or 0")),
        ("record_is_whole",), ("F1", "F6"), "sqlite"),
    Bug("P16", "an idempotent call whose body came with its request is left to a person",
        lambda: rewritten((call, "_keep_body", "session.handlers[row.id] = (ask.fn, ask.is_async)", "pass")),
        ("answers_true",), ("F70", "F70b")),
    Bug("P17", "an idempotent call is started again with the body of another request",
        lambda: rewritten((call, "_keep_body", "if (row.key, row.ident) == (ask.key, ask.ident) and ask.fn", "if ask.fn")),
        ("body_got_what_was_recorded",), ("F70d",)),
    Bug("P18", "a call that only its next request can settle blocks the run of an agent that recovery could start",
        lambda: rewritten((recovery, "_wait_or_resume", "and not await waits_for_request(session, row)", "")),
        ("answers_true",), ("F70",)),
    Bug("BE1", "what was there before is not recorded with the start",
        lambda: rewritten((settlement, "start_call", "if op.before is not None and not call.attempt:", "if False:")),
        ("before_is_true",), ("F60",)),
    Bug("BE2", "a setter is answered by the oldest value that stands",
        lambda: rewritten((admission, "_next_setting", "last = standing[-1]", "last = standing[0]")),
        ("before_is_true",), ("F60",)),
    Bug("BE3", "a lost setter is repeated at once, and lands late over what came after it",
        lambda: rewritten((doubts, "_by_repeating", 'if spec.put and row.state == "in_doubt":', "if False:")),
        ("before_is_true",), ("F60c",)),
    Bug("BE4", "a guard that says no holds back nothing",
        lambda: rewritten((locks, "is_held_back", "if not (call.locks and", "if True or not (call.locks and")),
        ("before_is_true",), ("F60d",)),
    Bug("BE7", "what is there is read without the lock by a call that was not prepared with its admission",
        lambda: rewritten((engine_locks, "_start_when_unlocked", "started = row if is_prepared else await PrepareCall(row.id, lease.owner, lease.epoch)", "started = row")),
        ("before_is_true",), ("F60h",)),
    Bug("BE8", "a permitted call that is asked for again counts as prepared, and reads without its lock",
        lambda: rewritten((admission, "_first_answer", "is_prepared=mine.is_reading", "is_prepared=True")),
        ("before_is_true",), ("F60h",)),
    Bug("BE5", "a setter in doubt keeps nobody from what its lock names",
        lambda: rewritten((locks, "lost_setting", "lands = other.put &", "lands = 0 &")),
        ("before_is_true",), ("F60e",)),
    Bug("R21", "a setter in doubt keeps no recorded call from what its lock names",
        lambda: rewritten((settlement, "_take_locks", 'lost = None if call.state == "in_doubt"', "lost = None if True")),
        ("before_is_true",), ("F60g",)),
    Bug("R22", "a setter goes before an earlier one of the same thing that is to be started again",
        lambda: rewritten((settlement, "_take_locks", 'if lost is None and call.kind == "retriable":', "if False:")),
        ("before_is_true",), ("F60g",)),
    Bug("BE6", "the compensation of a setter is repeated at once",
        lambda: rewritten((rollback, "_not_before", 'if row.state == "compensation_in_doubt" and compensation.put:', "if False:")),
        ("before_is_true",), ("F60",)),
    Bug("S6", "the remembered order of a rollback lets any call of it be first",
        lambda: rewritten((rollback, "_reversed", "row.settled_seq", "row.seq"), (quick, "is_plain_beginning", "undo.left[-1][1] != seen.id", "seen.id not in undo.rows")),
        ("compensation_order", "world_order"), ("F8b",), "sqlite"),
    Bug("S7", "the remembered order of a rollback ignores a call that started later and still runs",
        lambda: rewritten((rollback, "wait_for_live", "if not await LiveCalls(session.uid):\n            return await _settle_orphans(session, seen)", "return None"), (quick, "undo_of", 'if any(call.state in ("started", "compensating") for call in effects):', "if False:")),
        ("compensation_order",), ("F8c",), "sqlite"),
    Bug("S8", "a plain commit does not look for calls that are not settled",
        lambda: condition_left_out(("COMMIT",), f" and {quick.NOTHING_UNSETTLED}"),
        ("outbox",), ("F10",), "sqlite"),
    Bug("S9", "a plain rollback is closed while a call still stands", closed_unseen,
        ("ledger_against_world",), ("F7",), "sqlite"),
    Bug("L17", "a run is closed with its last compensation although another effect stands",
        lambda: rewritten((rollback, "_what_follows", 'if others and rollback_obstacles(session, changed(tree, {"calls": tuple(others), "locks": ()})):', "if False:"), (store_ending, "_close_rolled_back", 'if call.run in inside and call.kind != "read"', 'if False and call.kind != "read"')),
        ("ledger_against_world",), ("F7",)),
    Bug("L18", "a whole rollback takes back what this process saw succeed, whatever else is in the run",
        lambda: condition_left_out(("TURN_PLAIN",), f" and {sqlite_quick.ONLY_THESE}", " and ? > 0"),
        ("compensation_order", "world_order"), ("F8c", "F7"), "sqlite"),
    Bug("L19", "a whole rollback takes back in the order of doing",
        lambda: rewritten((rollback, "_known_effects", "return effects", "return effects[::-1]")),
        ("compensation_order", "world_order"), ("F6", "F7"), "sqlite"),
    Bug("L20", "a whole rollback goes on although its compensation has failed",
        lambda: rewritten((rollback, "take_back_plainly", "if ended.error is not None or ended.in_flight:", "if False:")),
        ("ledger_against_world",), ("F7",), "sqlite"),
    Bug("O1", "a run that its consumer stopped is taken back after one lease",
        lambda: rewritten((ending, "leave_waiting", "if not is_stopped or goes_on:", "if True:")),
        ("stopped_runs_are_left_alone",), ("O1",)),
    Bug("S10", "a plain end of a run ignores its children",
        lambda: condition_left_out(("TURN", "CLOSE", "COMMIT"), f" and {quick.PLAIN_ROOT}"),
        ("children_closed",), ("F15",), "sqlite"),
    # ---- RM: who performs a call outside the owner's process ----
    Bug("RM1", "a takeover does not wait for whoever performs a call elsewhere",
        lambda: rewritten((leases, "_take_over", " + work_left_s(call)", "")),
        ("ledger_against_world",), ("W1", "W3")),
    Bug("RM2", "a second takeover, from another host, forgets whoever performs a call elsewhere",
        lambda: rewritten((doubts, "settle_delay_left", "session.lease.lease_s + work_left_s(row)", "session.lease.lease_s")),
        ("ledger_against_world",), ("W5",)),
    Bug("RM3", "an owner that lost its run keeps its performer at work",
        lambda: rewritten((engine_work, "renewal", "session.lease.check(mono)", "pass")),
        ("ledger_against_world",), ("W2",)),
    Bug("RM4", "a report under an old epoch settles its attempt as if it came in time",
        lambda: rewritten((settlement, "settle_call", "if not is_owner(root, op.owner, op.epoch) or", "if not call.remote_s and not is_owner(root, op.owner, op.epoch) or"), (settlement, "settle_call", 'call.state != "started":', 'call.state not in ("started", "in_doubt"):')),
        ("settled_by_owner",), ("W1", "W3")),
    Bug("RM5", "a doubt of a living owner does not wait for its performer",
        lambda: rewritten((call, "_wait_for_performer", "settle.mono += work_left_s(row)", "pass")),
        ("ledger_against_world",), ("W3",)),
    Bug("RM6", "the work lease is not recorded with the start",
        lambda: rewritten((admission, "write_call", '"remote_s": op.remote_s', '"remote_s": 0.0')),
        ("ledger_against_world",), ("W1", "W3")),
    Bug("RM7", "the work lease of a compensation is not recorded with its start",
        lambda: rewritten((store_ending, "begin_compensation", "else op.remote_s", "else 0.0")),
        ("ledger_against_world", "compensated_once"), ("W3",)),
    Bug("RM8", "work is handed out by an owner that has lost its run",
        lambda: rewritten((ending, "begin_by_hand", 'if not done.replayed and ask.spec.kind != "read":', "if False:")),
        ("ledger_against_world",), ("W1", "W2")),
    Bug("RM9", "a compensation that was reported as done while it had an owner asks a person",
        lambda: rewritten((late_reports, "reported_undoing", 'return "compensated"', 'return ""')),
        ("reports_are_believed",), ("W6",)),
    Bug("RM10", "a compensation that was reported as not done while it had an owner asks a person",
        lambda: rewritten((late_reports, "reported_undoing", 'return "compensation_failed" if', 'return "" if')),
        ("reports_are_believed",), ("W6",)),
    Bug("RM11", "only the first attempt of a compensation counts as reported",
        lambda: rewritten((late_reports, "reported_undoing", "bool(open_attempts) and all(", "call.comp_attempt == 1 and all(")),
        ("reports_are_believed",), ("W6",)),
    Bug("S21", "an attempt that nobody was there to do counts as a try of a compensation",
        lambda: rewritten((store_ending, "settle_compensation", " + op.untried", "")),
        ("nobody_there_is_no_try",), ("W7",)),
    # ---- CL: runs that belong to a client ----
    Bug("CL1", "recovery takes the run of a dead owner at once, although its client may live",
        lambda: rewritten((leases, "claim_run", "if left > 0:", "if False:")),
        ("clients_keep_their_runs",), ("W4",)),
    Bug("CL2", "a client lease is counted on the wall clock",
        lambda: rewritten((leases, "client_left_s", "silent_s = mono - (root.lease_mono - root.lease_s)", "silent_s = (clock or 0.0) - (root.lease_until - root.lease_s)")),
        ("clients_keep_their_runs",), ("W4",)),
    Bug("CL3", "a run that was let go is its client's by the wall clock only",
        lambda: rewritten((leases, "release_lease", "if op.silent_s is not None:", "if False:")),
        ("clients_keep_their_runs",), ("W4",)),
    Bug("CL4", "silence that was just noticed ends the client lease",
        lambda: rewritten((leases, "client_left_s", "silent_s = max(silent_s, mono - root.silent_mono)", "silent_s = lease_s")),
        ("clients_keep_their_runs",), ("W4",)),
    Bug("S11", "a client that asks another server counts as silent since the last sign of its first server",
        lambda: rewritten((leases, "client_left_s", "if root.owner and root.wanted:", "if False:")),
        ("clients_keep_their_runs",), ("W7",)),
    Bug("S12", "a run that is let go is recovered at once although another server has just asked for it",
        lambda: rewritten((leases, "release_lease", "is_moved = bool(op.boot) and", "is_moved = False and")),
        ("clients_keep_their_runs",), ("W7",)),
    Bug("S13", "a heartbeat forgets that another server has asked for the run",
        lambda: rewritten((leases, "renew_leases", "if root.wanted:", "if False:")),
        ("clients_keep_their_runs",), ("W7",)),
    Bug("S14", "the newest request of a moved client does not count",
        lambda: rewritten((leases, "note_wish", "0 <= op.mono - mono < WANTED_S", "True")),
        ("clients_keep_their_runs",), ("W7",)),
    Bug("S15", "a run that is handed over does not wait for whoever performs its call",
        lambda: rewritten((rollback, "_settle_orphans", "clocks.mono + work_left_s(row)", "clocks.mono")),
        ("ledger_against_world",), ("W7",)),
    Bug("S16", "a lease that was renewed at another server is not waited for",
        lambda: rewritten((engine_work, "late_renewal", "until = clocks.mono + work_left_s(row)", "until = row.quiet_mono or 0.0")),
        ("ledger_against_world",), ("W7",)),
    Bug("S17", "a renewed lease counts only as long as another host thought before",
        lambda: rewritten((settlement, "watch_doubt", "if op.renewed", "if False")),
        ("ledger_against_world",), ("W7",)),
)  # fmt: skip


# ---- the hunt ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kill:
    """The checker that saw a bug, and the schedule in which it did."""

    checker: str
    variant: Variant
    index: int
    schedule: Schedule


def killed_by(bug: Bug, *, seconds: float = 25.0, seed: int = 7) -> tuple[Kill | None, int]:
    """Return what killed the bug by one of its own checkers, and after how many schedules; None if it survived.

    First the flows that the bug names, then any. Traces are those of correct code: they are taken before the bug is
    planted. Those of all flows take half a minute, and few bugs need them.
    """
    tally, end, luck = Tally(), time.monotonic() + seconds, random.Random(seed)
    likely = _likely(bug, luck)
    kill = killed_in(bug, likely, tally, end)
    if kill is None:
        before = time.monotonic()
        clean_traces()
        end += time.monotonic() - before
        kill = killed_in(bug, (random_schedule(luck) for _ in itertools.count()), tally, end)
    return kill, tally.schedules


def killed_in(bug: Bug, schedules: Iterable[Play], tally: Tally, end: float = math.inf) -> Kill | None:
    """Play the schedules with the bug planted, until one of its checkers sees it."""
    with played_on(bug.store), bug.seeded():
        for variant, index, schedule in schedules:
            if tally.schedules >= SCHEDULES_MAX or time.monotonic() > end:
                break
            one(variant, index, schedule, tally)
            for violation in tally.violations:
                if violation.checker in bug.checkers:
                    return Kill(violation.checker, variant, index, schedule)
            tally.violations.clear()
    return None


def clean_traces() -> None:
    """Take the traces of every flow, before a bug is planted."""
    for variant in VARIANTS:
        for index in range(len(scenarios_of(variant))):
            clean_trace(variant, index)


def _likely(bug: Bug, luck: random.Random) -> list[Play]:
    """Return single faults in the flows that the bug names, shuffled."""
    from amends.testing.simulation import Fault

    likely: list[Play] = []
    for variant in VARIANTS:
        for index, scenario in enumerate(scenarios_of(variant)):
            if scenario.name.split()[0] not in bug.flows:
                continue
            likely.append((variant, index, Schedule(raced=scenario.second is not None, seed=luck.randrange(99))))
            for at, kind in itertools.product(range(9), LEDGER if scenario.second is not None else ()):
                likely.append(
                    (variant, index, Schedule(second=(Fault(at, kind),), raced=True, seed=luck.randrange(99)))
                )
            # Recovery starts a resumed agent again, as soon as the lease has ended: what that agent asks for is lost there.
            for at, kind in itertools.product(range(RECOVERY_OPS), LEDGER if scenario.policy == "resume" else ()):
                faults = (Fault(at, kind),)
                resumed = Schedule(recovery=faults, later=faults, same_host=False, seed=luck.randrange(99))
                likely.append((variant, index, resumed))
            for at, name in enumerate(clean_trace(variant, index)):
                for kind in kinds_at(name, variant.probe):
                    raced = scenario.second is not None and luck.random() < 0.5
                    faults = (Fault(at, kind),)
                    likely.append(
                        (variant, index, Schedule(faults, (), (), luck.random() < 0.5, raced, luck.randrange(99)))
                    )
    luck.shuffle(likely)
    return likely


def hunt() -> list[str]:
    """Plant every bug, one after another; the names of those that survived."""
    survivors = []
    for bug in BUGS:
        kill, after = killed_by(bug)
        verdict = f"SURVIVED {after} schedules" if kill is None else f"killed by {kill.checker} after {after}"
        print(f"   bug {bug.number:<4} {bug.what:<62} {verdict}", flush=True)
        survivors += [bug.number] if kill is None else []
    print(f"{len(BUGS)} seeded bugs, {len(BUGS) - len(survivors)} killed, each by its named checker", flush=True)
    return survivors


if __name__ == "__main__":
    sys.exit(1 if hunt() else 0)

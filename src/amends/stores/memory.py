"""A ledger in dicts: the fastest, the simulator's, and gone with the process."""

from __future__ import annotations

import bisect
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from heapq import nsmallest
from typing import Any, Final, Protocol, TypeVar

from amends.encoding.chain import GENESIS, link, moment
from amends.encoding.dataclass import changed
from amends.ledger import operations
from amends.ledger.dispatch import intent
from amends.ledger.flow import run_flow
from amends.ledger.operations import RunsOf, StoreOp
from amends.ledger.rows import (
    TIME,
    AddCheckpoint,
    AddDelegation,
    AddEvent,
    AddMark,
    AddSlice,
    ApprovalRow,
    ApprovalsOf,
    CallRow,
    CheckpointRow,
    DelegationRow,
    DelegationsTo,
    DropLock,
    DropSlices,
    DropWaits,
    EventRow,
    FindApproval,
    FindCall,
    FindKey,
    FindLocks,
    FindMark,
    FindRun,
    FindRunById,
    FindSlice,
    FindUse,
    FreeLocks,
    HashesAt,
    Head,
    InsertApproval,
    InsertCall,
    InsertRun,
    LedgerClock,
    ListCalls,
    ListDue,
    ListForks,
    ListGenerations,
    ListOwned,
    ListTells,
    ListTree,
    LockRow,
    LocksOf,
    MarkRow,
    MoveTime,
    NewestCheckpoint,
    Now,
    PageApprovals,
    PageCalls,
    PageCheckpoints,
    PageClosed,
    PageEvents,
    PageHeads,
    PageLocks,
    PageRuns,
    PageSlices,
    RunRow,
    SeeWait,
    SliceRow,
    TakeLock,
    UpdateApproval,
    UpdateCall,
    UpdateRun,
    UpdateSlice,
    WaitRow,
    WaitsFor,
    WaitsOf,
)

# ---- The row operations on approvals in dicts: see ``memory``


class Shelf:
    """Requests and delegations; whatever is changed is put on the undo list of the memory that it belongs to."""

    def __init__(self, undo: list[Callable[[], object]]) -> None:
        self._undo = undo
        self.approvals: dict[str, ApprovalRow] = {}
        self.delegations: dict[str, DelegationRow] = {}
        self._of: dict[str, list[str]] = {}

    def _find(self, op: FindApproval) -> ApprovalRow | None:
        return self.approvals.get(op.id)

    def _of_root(self, op: ApprovalsOf) -> list[ApprovalRow]:
        return [self.approvals[id] for id in self._of.get(op.root, ())]

    def _page(self, op: PageApprovals) -> list[ApprovalRow]:
        found = [
            row
            for row in self.approvals.values()
            if (op.tenant is None or row.tenant == op.tenant)
            and (not op.states or row.state in op.states)
            and (op.before is None or row.seq < op.before)
        ]
        return sorted(found, key=lambda row: -row.seq)[: op.limit]

    def _tells(self, op: ListTells) -> list[ApprovalRow]:
        found = [
            (row.tell_at, row.seq, row)
            for row in self.approvals.values()
            if row.tell_at is not None and row.tell_at <= op.now and (op.tenant is None or row.tenant == op.tenant)
        ]
        return [row for _, _, row in sorted(found, key=lambda one: one[:2])][: op.limit]

    def _find_use(self, op: FindUse) -> bool:
        return any(row.use_key == op.use and row.state == "used" for row in self.approvals.values())

    def _insert(self, op: InsertApproval) -> None:
        row = op.row
        assert row.id not in self.approvals, "a request's id is new"
        self.approvals[row.id] = row
        mine = self._of.setdefault(row.root, [])
        mine.append(row.id)
        self._undo += [lambda: self.approvals.pop(row.id), mine.pop]

    def _update(self, op: UpdateApproval) -> ApprovalRow:
        old = self.approvals[op.row.id]
        assert old.state == op.row.state, "a request is changed from the state that was read"
        new = self.approvals[old.id] = changed(old, op.changes)
        self._undo.append(lambda: self.approvals.__setitem__(old.id, old))
        return new

    def _delegate(self, op: AddDelegation) -> bool:
        if op.row.id in self.delegations:
            return False
        self.delegations[op.row.id] = op.row
        self._undo.append(lambda: self.delegations.pop(op.row.id))
        return True

    def _delegated(self, op: DelegationsTo) -> list[DelegationRow]:
        return [row for row in self.delegations.values() if (row.tenant, row.to_whom) == (op.tenant, op.to_whom)]


SHELF_ROWS: Final[dict[type[Any], Callable[[Shelf, Any], Any]]] = {
    FindApproval: Shelf._find,
    ApprovalsOf: Shelf._of_root,
    PageApprovals: Shelf._page,
    ListTells: Shelf._tells,
    FindUse: Shelf._find_use,
    InsertApproval: Shelf._insert,
    UpdateApproval: Shelf._update,
    AddDelegation: Shelf._delegate,
    DelegationsTo: Shelf._delegated,
}


# ---- The row operations of an audit on dicts


class _Store(Protocol):
    runs: dict[str, RunRow]
    calls: dict[str, CallRow]
    events: list[EventRow]
    shelf: Shelf


def _chain_of(store: _Store, op: operations.ChainOf) -> list[EventRow]:
    found = (event for event in store.events if event.root == op.root and event.n > op.after)
    return nsmallest(op.limit, found, key=lambda event: event.n)


def _chains_above(store: _Store, op: operations.ChainsAbove) -> list[EventRow]:
    found = (event for event in store.events if event.root > op.root)
    return nsmallest(op.limit, found, key=lambda event: (event.root, event.n))


def _between(
    rows: Iterable[Any], op: operations.RunsBetween | operations.CallsBetween | operations.ApprovalsBetween
) -> Any:
    found = [row for row in rows if row.root > op.above and (op.upto is None or row.root <= op.upto)]
    return sorted(found, key=lambda row: row.root)[: op.limit]


def _approvals(store: _Store, op: operations.ApprovalsBetween) -> list[ApprovalRow]:
    found: list[ApprovalRow] = _between(store.shelf.approvals.values(), op)
    return found


AUDIT_ROWS: Final[dict[type[Any], Callable[[Any, Any], Any]]] = {
    operations.ChainOf: _chain_of,
    operations.ChainsAbove: _chains_above,
    operations.RunsBetween: lambda store, op: _between(store.runs.values(), op),
    operations.CallsBetween: lambda store, op: _between(store.calls.values(), op),
    operations.ApprovalsBetween: _approvals,
    operations.DelegationsBetween: lambda store, op: _between(store.shelf.delegations.values(), op),
    operations.FindDelegation: lambda store, op: store.shelf.delegations.get(op.id),
}


# ---- The row operations on budgets in dicts


class _BudgetRows(Protocol):
    slices: dict[str, SliceRow]
    _undo: list[Callable[[], object]]


def _find_slice(store: _BudgetRows, op: FindSlice) -> SliceRow | None:
    return store.slices.get(op.name)


def _add_slice(store: _BudgetRows, op: AddSlice) -> bool:
    if op.row.name in store.slices:
        return False
    store.slices[op.row.name] = op.row
    store._undo.append(partial(store.slices.pop, op.row.name))
    return True


def _update_slice(store: _BudgetRows, op: UpdateSlice) -> SliceRow:
    old = store.slices[op.row.name]
    assert old == op.row, "a slice is changed from what was read"
    new = store.slices[old.name] = changed(old, op.changes)
    store._undo.append(partial(store.slices.__setitem__, old.name, old))
    return new


def _drop_slices(store: _BudgetRows, op: DropSlices) -> int:
    names = [name for name, row in store.slices.items() if row.root == op.root]
    for name in names:
        store._undo.append(partial(store.slices.__setitem__, name, store.slices.pop(name)))
    return len(names)


def _page_slices(store: _BudgetRows, op: PageSlices) -> list[SliceRow]:
    found = [row for row in store.slices.values() if row.tenant == op.tenant and row.name > op.after]
    return sorted(found, key=lambda row: row.name)[: op.limit]


BUDGET_ROWS: Final[dict[type[Any], Callable[[Any, Any], Any]]] = {
    FindSlice: _find_slice,
    AddSlice: _add_slice,
    UpdateSlice: _update_slice,
    DropSlices: _drop_slices,
    PageSlices: _page_slices,
}


# ---- The row operations on checkpoints in dicts


class _CheckpointRows(Protocol):
    events: list[EventRow]
    checkpoints: list[CheckpointRow]
    _undo: list[Callable[[], object]]


def _newest_checkpoint(store: _CheckpointRows, _op: NewestCheckpoint) -> CheckpointRow | None:
    return store.checkpoints[-1] if store.checkpoints else None


def _page_checkpoints(store: _CheckpointRows, op: PageCheckpoints) -> list[CheckpointRow]:
    return [row for row in store.checkpoints if row.n > op.after][: op.limit]


def _add_checkpoint(store: _CheckpointRows, op: AddCheckpoint) -> bool:
    if any(row.n == op.row.n for row in store.checkpoints):
        return False
    store.checkpoints.append(op.row)
    store._undo.append(store.checkpoints.pop)
    return True


def _heads(store: _CheckpointRows, op: PageHeads) -> list[Head]:
    start = bisect.bisect_right(store.events, op.after, key=lambda event: event.seq)
    found = store.events[start : start + op.limit]
    return [Head(one.seq, one.root, one.n, one.hash) for one in found if op.upto is None or one.seq <= op.upto]


def _hashes(store: _CheckpointRows, op: HashesAt) -> list[tuple[str, int, str]]:
    wanted = frozenset(op.places)
    return [(one.root, one.n, one.hash) for one in store.events if (one.root, one.n) in wanted]


CHECKPOINT_ROWS: Final[dict[type[Any], Callable[[Any, Any], Any]]] = {
    NewestCheckpoint: _newest_checkpoint,
    PageCheckpoints: _page_checkpoints,
    AddCheckpoint: _add_checkpoint,
    PageHeads: _heads,
    HashesAt: _hashes,
}


# ---- A ledger in dicts: the fastest, the simulator's, and gone with the process


T = TypeVar("T")


class MemoryStore:
    """Atomic by a lock and an undo list; nothing is ever evicted."""

    url = "memory:"

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._undo: list[Callable[[], object]] = []
        self.runs: dict[str, RunRow] = {}
        self.calls: dict[str, CallRow] = {}
        self.events: list[EventRow] = []
        self.locks: dict[tuple[str, str], LockRow] = {}
        self.waits: dict[tuple[str, str], WaitRow] = {}
        self.marks: dict[str, MarkRow] = {}
        self.slices: dict[str, SliceRow] = {}
        self.checkpoints: list[CheckpointRow] = []
        self.shelf = Shelf(self._undo)
        self._tails: dict[str, tuple[int, str]] = {}
        self._ids: dict[tuple[str, str], list[str]] = {}
        self._trees: dict[str, list[str]] = {}
        self._keys: dict[str, list[str]] = {}
        self._calls_of: dict[str, list[str]] = {}

    def open(self, *, create: bool) -> bool:
        """Always there; new with every process."""
        return not self.events

    def close(self) -> None:
        """Nothing to give back."""

    def perform(self, op: StoreOp[T]) -> T:
        """Carry out one operation, wholly or not at all."""
        with self._lock:
            try:
                answer: T = run_flow(intent(op), self._row)
            except BaseException:
                for back in reversed(self._undo):
                    back()
                raise
            finally:
                self._undo.clear()
            return answer

    async def perform_async(self, op: StoreOp[T]) -> T:
        """The same: it never blocks for long."""
        return self.perform(op)

    # ---- rows -----------------------------------------------------------------------------

    def _row(self, op: Any) -> Any:
        row = _ROWS.get(type(op))
        return SHELF_ROWS[type(op)](self.shelf, op) if row is None else row(self, op)

    def _now(self, op: Now) -> float:
        newest = self.events[-1].at if self.events else 0.0
        mark = self.marks.get(TIME)
        return moment(max(self._clock(), newest, 0.0 if mark is None else mark.made_at))

    def _ledger_clock(self, op: LedgerClock) -> float:
        return moment(self._clock())

    def _find_run(self, op: FindRun) -> RunRow | None:
        return self.runs.get(op.uid)

    def _find_run_by_id(self, op: FindRunById) -> RunRow | None:
        uids = self._ids.get((op.tenant, op.id))
        return self.runs[uids[-1]] if uids else None

    def _runs_of(self, op: RunsOf) -> list[RunRow]:
        return sorted((self.runs[uid] for uid in self._ids.get((op.tenant, op.id), ())), key=lambda run: run.generation)

    def _list_tree(self, op: ListTree) -> list[RunRow]:
        return [self.runs[uid] for uid in self._trees.get(op.root, ())]

    def _list_due(self, op: ListDue) -> list[RunRow]:
        due = [r for r in self.runs.values() if r.wake_at is not None and r.wake_at <= op.now and _of(r, op.tenant)]
        return sorted(due, key=lambda run: run.wake_at or 0.0)[: op.limit]

    def _list_owned(self, op: ListOwned) -> list[RunRow]:
        return [run for run in self.runs.values() if run.owner and _of(run, op.tenant)][: op.limit]

    def _page_runs(self, op: PageRuns) -> list[RunRow]:
        found = [r for r in self.runs.values() if _of(r, op.tenant) and (not op.states or r.state in op.states)]
        found.sort(key=lambda run: (run.created_at, run.uid), reverse=True)
        if op.before is not None:
            found = [run for run in found if (run.created_at, run.uid) < op.before]
        return found[: op.limit]

    def _page_closed(self, op: PageClosed) -> list[RunRow]:
        ended = [r for r in self.runs.values() if not r.parent and r.gone_at is None and _of(r, op.tenant)]
        found = [(r.closed_at, r.uid) for r in ended if r.closed_at is not None and r.closed_at < op.before]
        return [self.runs[uid] for at, uid in sorted(found) if op.after is None or (at, uid) > op.after][: op.limit]

    def _list_forks(self, op: ListForks) -> list[RunRow]:
        return [run for run in self.runs.values() if run.forked_from and run.forked_from == op.root][: op.limit]

    def _insert_run(self, op: InsertRun) -> None:
        row = op.row
        self.runs[row.uid] = row
        self._undo.append(lambda: self.runs.pop(row.uid))
        self._index(self._ids, (row.tenant, row.id), row.uid)
        self._index(self._trees, row.root, row.uid)

    def _update_run(self, op: UpdateRun) -> RunRow:
        old = self.runs[op.row.uid]
        assert old.state == op.row.state, "a run is changed from the state that was read"
        new = changed(old, op.changes)
        self.runs[new.uid] = new
        self._undo.append(lambda: self.runs.__setitem__(old.uid, old))
        return new

    def _find_call(self, op: FindCall) -> CallRow | None:
        return self.calls.get(op.id)

    def _find_key(self, op: FindKey) -> CallRow | None:
        ids = self._keys.get(op.key)
        return self.calls[ids[-1]] if ids else None

    def _list_generations(self, op: ListGenerations) -> list[CallRow]:
        return [self.calls[id] for id in self._keys.get(op.key, ())]

    def _list_calls(self, op: ListCalls) -> list[CallRow]:
        found = [self.calls[id] for id in self._calls_of.get(op.root, ())]
        return [call for call in found if call.state in op.states] if op.states else found

    def _page_calls(self, op: PageCalls) -> list[CallRow]:
        found = [
            call
            for call in self.calls.values()
            if _of(call, op.tenant)
            and (not op.tool or call.tool == op.tool)
            and (not op.states or call.state in op.states)
            and (op.before is None or call.seq < op.before)
        ]
        return sorted(found, key=lambda call: -call.seq)[: op.limit]

    def _insert_call(self, op: InsertCall) -> None:
        row = op.row
        generations = self._keys.get(row.key, [])
        assert row.is_loaded or len(generations) == row.generation - 1, "a key's generations are counted without a gap"
        assert row.id not in self.calls, "a call's id is new"
        self.calls[row.id] = row
        self._undo.append(lambda: self.calls.pop(row.id))
        self._index(self._keys, row.key, row.id)
        self._index(self._calls_of, row.root, row.id)

    def _update_call(self, op: UpdateCall) -> CallRow:
        old = self.calls[op.row.id]
        assert old.state == op.row.state, "a call is changed from the state that was read"
        new = changed(old, op.changes)
        self.calls[new.id] = new
        self._undo.append(lambda: self.calls.__setitem__(old.id, old))
        return new

    def _add_event(self, op: AddEvent) -> int:
        assert op.at == moment(op.at), "an event's time is whole microseconds"
        seq = len(self.events) + 1
        old = self._tails.get(op.root)
        last, prev = old or (0, GENESIS)
        tail = self._tails[op.root] = (last + 1, link(prev, last + 1, op.at, op.body))
        self._undo.append(lambda: self._tails.pop(op.root) if old is None else self._tails.__setitem__(op.root, old))
        self.events.append(
            EventRow(
                seq,
                op.at,
                op.root,
                op.run,
                op.run_id,
                op.tenant,
                op.call,
                op.what,
                op.frm,
                op.to_state,
                op.by_whom,
                op.epoch,
                op.facts,
                *tail,
            )
        )
        self._undo.append(self.events.pop)
        return seq

    def _page_events(self, op: PageEvents) -> list[EventRow]:
        start = bisect.bisect_right(self.events, op.after, key=lambda event: event.seq)
        found: list[EventRow] = []
        for event in self.events[start:]:
            if (op.root is None or event.root == op.root) and _of(event, op.tenant):
                found.append(event)
                if len(found) == op.limit:
                    break
        return found

    # ---- locks ----------------------------------------------------------------------------

    def _find_locks(self, op: FindLocks) -> list[LockRow]:
        return [self.locks[op.tenant, name] for name in sorted(set(op.names)) if (op.tenant, name) in self.locks]

    def _take_lock(self, op: TakeLock) -> bool:
        key = (op.row.tenant, op.row.name)
        if key in self.locks:
            return False
        self.locks[key] = op.row
        self._undo.append(lambda: self.locks.pop(key))
        return True

    def _drop_lock(self, op: DropLock) -> None:
        self._remove(self.locks, [key for key, row in self.locks.items() if (row.root, row.name) == (op.root, op.name)])

    def _free_locks(self, op: FreeLocks) -> int:
        return self._remove(self.locks, [key for key, row in self.locks.items() if row.root == op.root])

    def _locks_of(self, op: LocksOf) -> list[LockRow]:
        return sorted((row for row in self.locks.values() if row.root == op.root), key=lambda row: row.name)

    def _page_locks(self, op: PageLocks) -> list[LockRow]:
        found = [row for row in self.locks.values() if row.tenant == op.tenant and row.name > op.after]
        return sorted(found, key=lambda row: row.name)[: op.limit]

    def _see_wait(self, op: SeeWait) -> bool:
        key = (op.row.root, op.row.name)
        old = self.waits.get(key)
        self.waits[key] = op.row if old is None else changed(old, {"seen_at": op.row.seen_at})
        self._undo.append(lambda: self.waits.pop(key) if old is None else self.waits.__setitem__(key, old))
        return old is None

    def _waits_of(self, op: WaitsOf) -> list[WaitRow]:
        return sorted((row for row in self.waits.values() if row.root == op.root), key=lambda row: row.name)

    def _waits_for(self, op: WaitsFor) -> list[WaitRow]:
        found = [row for row in self.waits.values() if (row.tenant, row.name) == (op.tenant, op.name)]
        return sorted(found, key=lambda row: (row.since, row.root))

    def _drop_waits(self, op: DropWaits) -> None:
        names = op.names
        gone = [key for key, row in self.waits.items() if row.root == op.root and (not names or row.name in names)]
        self._remove(self.waits, gone)

    def _move_time(self, op: MoveTime) -> None:
        old = self.marks.get(TIME)
        if old is None or old.made_at < op.at:
            self.marks[TIME] = MarkRow(TIME, "", op.at)
            self._undo.append(lambda: self.marks.pop(TIME) if old is None else self.marks.__setitem__(TIME, old))

    def _add_mark(self, op: AddMark) -> bool:
        name = op.row.name
        if name in self.marks:
            return False
        self.marks[name] = op.row
        self._undo.append(lambda: self.marks.pop(name))
        return True

    def _remove(self, rows: dict[tuple[str, str], Any], keys: list[tuple[str, str]]) -> int:
        for key in keys:
            self._undo.append(partial(rows.__setitem__, key, rows.pop(key)))
        return len(keys)

    def _index(self, index: dict[Any, list[str]], key: object, value: str) -> None:
        index.setdefault(key, []).append(value)
        self._undo.append(index[key].pop)


def _of(row: RunRow | CallRow | EventRow, tenant: str | None) -> bool:
    return tenant is None or row.tenant == tenant


_ROWS: Final[dict[type[Any], Callable[[MemoryStore, Any], Any]]] = {
    Now: MemoryStore._now,
    LedgerClock: MemoryStore._ledger_clock,
    FindRun: MemoryStore._find_run,
    FindRunById: MemoryStore._find_run_by_id,
    RunsOf: MemoryStore._runs_of,
    ListTree: MemoryStore._list_tree,
    ListDue: MemoryStore._list_due,
    ListOwned: MemoryStore._list_owned,
    PageRuns: MemoryStore._page_runs,
    PageClosed: MemoryStore._page_closed,
    ListForks: MemoryStore._list_forks,
    InsertRun: MemoryStore._insert_run,
    UpdateRun: MemoryStore._update_run,
    FindCall: MemoryStore._find_call,
    FindKey: MemoryStore._find_key,
    ListGenerations: MemoryStore._list_generations,
    ListCalls: MemoryStore._list_calls,
    PageCalls: MemoryStore._page_calls,
    InsertCall: MemoryStore._insert_call,
    UpdateCall: MemoryStore._update_call,
    AddEvent: MemoryStore._add_event,
    PageEvents: MemoryStore._page_events,
    FindLocks: MemoryStore._find_locks,
    TakeLock: MemoryStore._take_lock,
    DropLock: MemoryStore._drop_lock,
    FreeLocks: MemoryStore._free_locks,
    LocksOf: MemoryStore._locks_of,
    PageLocks: MemoryStore._page_locks,
    SeeWait: MemoryStore._see_wait,
    WaitsOf: MemoryStore._waits_of,
    WaitsFor: MemoryStore._waits_for,
    DropWaits: MemoryStore._drop_waits,
    FindMark: lambda store, op: store.marks.get(op.name),
    AddMark: MemoryStore._add_mark,
    MoveTime: MemoryStore._move_time,
    **BUDGET_ROWS,
    **CHECKPOINT_ROWS,
    **AUDIT_ROWS,
}

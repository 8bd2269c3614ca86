"""A ledger in dicts: the fastest one, used by the simulator, and gone with the process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from heapq import nsmallest
from itertools import dropwhile, islice
from typing import Any, Final, TypeVar

from amends.encoding.chain import GENESIS, MICROS, body_of, link, moment, read_place
from amends.encoding.dataclass import changed
from amends.encoding.ids import call_id
from amends.ledger.dispatch import intent
from amends.ledger.flow import run_flow
from amends.ledger.operations import (
    ApprovalsBetween,
    CallsBetween,
    ChainOf,
    ChainsAbove,
    DelegationsBetween,
    FindDelegation,
    Misfits,
    RunsBetween,
    RunsOf,
    StoreOp,
)
from amends.ledger.plain import (
    AdmitPlain,
    SettledPlain,
    SettlePlain,
    Started,
    admission_facts,
    settlement_facts,
)
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
    IdTaken,
    InsertApproval,
    InsertCall,
    InsertRun,
    LedgerClock,
    ListCalls,
    ListDue,
    ListDueNotices,
    ListForks,
    ListGenerations,
    ListOwned,
    ListTree,
    LockRow,
    LocksOf,
    MarkRow,
    MarkSealed,
    MoveTime,
    NewestCheckpoint,
    NewestEvent,
    Now,
    PageApprovals,
    PageCalls,
    PageCheckpoints,
    PageClosed,
    PageEvents,
    PageLocks,
    PageRuns,
    PageSlices,
    PageUnsealed,
    ReadTrees,
    RecordWait,
    RunRow,
    SliceRow,
    TakeLock,
    UpdateApproval,
    UpdateCall,
    UpdateCalls,
    UpdateRun,
    UpdateSlice,
    WaitRow,
    WaitsFor,
    WaitsOf,
    WholeTree,
)

T = TypeVar("T")
Row = TypeVar("Row", CallRow, ApprovalRow)


class MemoryStore:
    """A ledger in memory: a lock and an undo list make each operation atomic; nothing is ever evicted.

    A plain call is only noted; its events and its row are made as soon as anything else looks at the ledger.
    """

    url = "memory:"

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._undo: list[Callable[[], object]] = []
        self.runs: dict[str, RunRow] = {}
        self._calls: dict[str, CallRow] = {}
        self._events: list[EventRow] = []
        self._noted: list[Started | SettledPlain] = []
        """Plain steps whose events and rows are not made yet, in their order."""
        self._noted_keys: set[bytes] = set()
        self._last: dict[str, tuple[int, float]] = {}
        """By root: number and time of its newest event, if that is one of the noted steps."""
        self._fresh: dict[int, bool] = {}
        """By number: the calls that were started by a noted step, and whether they are still started."""
        self.locks: dict[tuple[str, str], LockRow] = {}
        self.waits: dict[tuple[str, str], WaitRow] = {}
        self.marks: dict[str, MarkRow] = {}
        self.slices: dict[str, SliceRow] = {}
        self.checkpoints: list[CheckpointRow] = []
        self.approvals: dict[str, ApprovalRow] = {}
        self.delegations: dict[str, DelegationRow] = {}
        self.sealed: dict[str, int] = {}
        """Up to which number a checkpoint covers the chain of a root."""
        self._tails: dict[str, EventRow] = {}
        self._ids: dict[tuple[str, str], list[str]] = {}
        self._trees: dict[str, list[str]] = {}
        self._keys: dict[str, list[str]] = {}
        self._calls_of: dict[str, list[str]] = {}
        self._approvals_of: dict[str, list[str]] = {}

    def open(self, *, create: bool) -> bool:
        """Return whether nothing was recorded yet: a ledger in memory begins with its process."""
        return not self.events

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def perform(self, op: StoreOp[T]) -> T:
        """Carry out one operation, completely or not at all."""
        quick = QUICK.get(type(op))
        with self._lock:
            if quick is not None:
                done: T | None = quick(self, op)
                if done is not None:
                    return done
            if self._noted:
                self._write_noted()
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
        """Do the same; it never blocks for long."""
        return self.perform(op)

    def _row(self, op: Any) -> Any:
        return _ROWS[type(op)](self, op)

    # ---- Plain calls

    def _admit_plain(self, op: AdmitPlain) -> Started | None:
        """Note the start of a call if nothing is in its way; None: the flow decides."""
        mine, tool = op.run, op.tool
        root, key = mine.root, op.key
        run = self.runs.get(root)
        if (
            run is None
            or op.repeated
            or run.owner != mine.owner
            or run.epoch != mine.epoch
            or run.state != "open"
            or run.goal
            or run.pivot
            or run.deadline_at is not None
            or run.forked_from
            or run.origin
        ):
            return None
        if op.number in self._fresh or call_id(op.number) in self._calls:
            return None
        if tool.kind != "read":
            if (mine.epoch != 1 and not tool.declared) or key in self._noted_keys or key.hex() in self._keys:
                return None
            self._noted_keys.add(key)
        started = Started(op, *self._next(root))
        self._fresh[op.number] = True
        self._noted.append(started)
        return started

    def _settle_plain(self, op: SettlePlain) -> SettledPlain | None:
        """Note the success of a call that is as it was started; None: the flow decides."""
        started = op.started
        admitted = started.op
        mine = admitted.run
        run = self.runs.get(mine.root)
        if run is None or op.repeated or run.owner != mine.owner or run.epoch != mine.epoch:
            return None
        is_started = self._fresh.get(admitted.number)
        if is_started is None:
            row = self._calls.get(call_id(admitted.number))
            is_started = row is not None and row.state == "started" and row.attempt == 1 and not row.evidence
        if not is_started:
            return None
        self._fresh[admitted.number] = False
        settled = SettledPlain(started, *self._next(mine.root), op.result, proof=op.proof)
        self._noted.append(settled)
        return settled

    def _next(self, root: str) -> tuple[int, float]:
        """Return number and time of the next event of this tree."""
        last = self._last.get(root)
        if last is None:
            tail = self._tails[root]
            last = tail.n, tail.at
        self._last[root] = last = last[0] + 1, self._ledger_time(last[1])
        return last

    def _write_noted(self) -> None:
        """Make the events and rows of what was noted."""
        noted, self._noted = self._noted, []
        self._noted_keys.clear()
        self._last.clear()
        self._fresh.clear()
        ended = {one.started: one for one in noted if isinstance(one, SettledPlain)}
        for one in noted:
            if isinstance(one, Started):
                settled = ended.pop(one, None)
                row = one.row if settled is None else settled.row
                self._add_plain_event(one.n, one.at, one.op, "(new)", "started", admission_facts(one.op, row.key))
                self._keys.setdefault(row.key, []).append(row.id)
                self._calls_of.setdefault(row.root, []).append(row.id)
                self._calls[row.id] = row
            else:
                facts = settlement_facts(one.result, one.proof)
                self._add_plain_event(one.n, one.at, one.started.op, "started", "succeeded", facts)
                if one.started in ended:  # it was started before, and its row may have changed since
                    id = call_id(one.started.op.number)
                    self._calls[id] = one.after(self._calls[id])

    def _add_plain_event(self, n: int, at: float, op: AdmitPlain, frm: str, to: str, facts: str) -> None:
        run, id = op.run, call_id(op.number)
        root = run.root
        last = self._tails[root]
        assert n == last.n + 1, "steps are written in the order in which they were noted"
        body = body_of(root, root, run.run_id, run.tenant, id, "call", frm, to, run.owner, run.epoch, facts)
        event = EventRow(
            at, root, root, run.run_id, run.tenant, id, "call", frm, to, run.owner, run.epoch, facts, n,
            link(last.hash, n, at, body),
        )  # fmt: skip
        self._tails[root] = event
        self._events.append(event)

    @property
    def calls(self) -> dict[str, CallRow]:
        """The calls by their ids."""
        if self._noted:
            with self._lock:
                self._write_noted()
        return self._calls

    @calls.setter
    def calls(self, calls: dict[str, CallRow]) -> None:
        self._calls = calls

    @property
    def events(self) -> list[EventRow]:
        """The events in their order."""
        if self._noted:
            with self._lock:
                self._write_noted()
        return self._events

    @events.setter
    def events(self, events: list[EventRow]) -> None:
        self._events = events

    # ---- Runs and calls

    def _now(self, op: Now) -> float:
        last = self._tails.get(op.root)
        if op.known:
            return max(op.known, 0.0 if last is None else last.at)
        return self._ledger_time(0.0 if last is None else last.at)

    def _ledger_time(self, newest: float) -> float:
        """Return ledger time for a tree whose newest event has this time."""
        at, mark = self._clock(), self.marks.get(TIME)
        at = max(at, newest)
        if mark is not None and mark.made_at > at:
            at = mark.made_at
        return round(at * MICROS) / MICROS

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

    def _read_trees(self, op: ReadTrees) -> list[WholeTree]:
        forked = {run.forked_from for run in self.runs.values()}
        return [
            WholeTree(
                self.runs[root],
                tuple(self._list_tree(ListTree(root))),
                tuple(self._list_calls(ListCalls(root))),
                root in forked,
            )
            for root in op.roots
            if root in self.runs
        ]

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
        return self._calls.get(op.id)

    def _find_key(self, op: FindKey) -> CallRow | None:
        ids = self._keys.get(op.key)
        return self._calls[ids[-1]] if ids else None

    def _list_generations(self, op: ListGenerations) -> list[CallRow]:
        return [self._calls[id] for id in self._keys.get(op.key, ())]

    def _list_calls(self, op: ListCalls) -> list[CallRow]:
        found = [self._calls[id] for id in self._calls_of.get(op.root, ())]
        return [call for call in found if call.state in op.states] if op.states else found

    def _page_calls(self, op: PageCalls) -> list[CallRow]:
        found = [
            call
            for call in _newest_first(self._calls, op.before)
            if _of(call, op.tenant)
            and (not op.tool or call.tool == op.tool)
            and (not op.states or call.state in op.states)
        ]
        return found[: op.limit]

    def _insert_call(self, op: InsertCall) -> None:
        row = op.row
        if row.id in self._calls:
            raise IdTaken(row.id)
        generations = self._keys.get(row.key, [])
        assert row.is_loaded or len(generations) == row.generation - 1, "a key's generations are counted without a gap"
        self._calls[row.id] = row
        self._undo.append(lambda: self._calls.pop(row.id))
        self._index(self._keys, row.key, row.id)
        self._index(self._calls_of, row.root, row.id)

    def _update_calls(self, op: UpdateCalls) -> None:
        for row, changes in op.changes:
            self._update_call(UpdateCall(row, changes))

    def _update_call(self, op: UpdateCall) -> CallRow:
        old = self._calls[op.row.id]
        assert old.state == op.row.state, "a call is changed from the state that was read"
        new = changed(old, op.changes)
        self._calls[new.id] = new
        self._undo.append(lambda: self._calls.__setitem__(old.id, old))
        return new

    def _add_event(self, op: AddEvent) -> int:
        assert op.at == moment(op.at), "an event's time is whole microseconds"
        old = self._tails.get(op.root)
        last, prev = (0, GENESIS) if old is None else (old.n, old.hash)
        row = EventRow(
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
            last + 1,
            link(prev, last + 1, op.at, op.body),
        )
        self._tails[op.root] = row
        self._undo.append(lambda: self._tails.pop(op.root) if old is None else self._tails.__setitem__(op.root, old))
        self._events.append(row)
        self._undo.append(self._events.pop)
        return row.n

    def _page_events(self, op: PageEvents) -> list[EventRow]:
        if op.root is not None:
            root, after = op.root, int(op.after or 0)
            found = [one for one in self._events if one.root == root and one.n > after and _of(one, op.tenant)]
            found.sort(key=_number)
            return found[: op.limit]
        mine = (event for event in self._events if _of(event, op.tenant))
        place = read_place(str(op.after or ""))
        return nsmallest(op.limit, (one for one in mine if _feed_order(one) > place), key=_feed_order)

    def _newest_event(self, op: NewestEvent) -> EventRow | None:
        mine = (one for one in self._events if _of(one, op.tenant) and (op.root is None or one.root == op.root))
        return max(mine, key=_feed_order if op.root is None else _number, default=None)

    # ---- Approvals and delegations

    def _find_approval(self, op: FindApproval) -> ApprovalRow | None:
        return self.approvals.get(op.id)

    def _approvals_in(self, op: ApprovalsOf) -> list[ApprovalRow]:
        return [self.approvals[id] for id in self._approvals_of.get(op.root, ())]

    def _page_approvals(self, op: PageApprovals) -> list[ApprovalRow]:
        found = [
            row
            for row in _newest_first(self.approvals, op.before)
            if _of(row, op.tenant) and (not op.states or row.state in op.states)
        ]
        return found[: op.limit]

    def _list_tells(self, op: ListDueNotices) -> list[ApprovalRow]:
        found = [
            (row.tell_at, place, row)
            for place, row in enumerate(self.approvals.values())
            if row.tell_at is not None and row.tell_at <= op.now and _of(row, op.tenant)
        ]
        return [row for _, _, row in sorted(found, key=lambda one: one[:2])][: op.limit]

    def _find_use(self, op: FindUse) -> bool:
        return any(row.use_key == op.use and row.state == "used" for row in self.approvals.values())

    def _insert_approval(self, op: InsertApproval) -> None:
        row = op.row
        assert row.id not in self.approvals, "a request's id is new"
        self.approvals[row.id] = row
        self._undo.append(lambda: self.approvals.pop(row.id))
        self._index(self._approvals_of, row.root, row.id)

    def _update_approval(self, op: UpdateApproval) -> ApprovalRow:
        old = self.approvals[op.row.id]
        assert old.state == op.row.state, "a request is changed from the state that was read"
        new = self.approvals[old.id] = changed(old, op.changes)
        self._undo.append(lambda: self.approvals.__setitem__(old.id, old))
        return new

    def _add_delegation(self, op: AddDelegation) -> bool:
        if op.row.id in self.delegations:
            return False
        self.delegations[op.row.id] = op.row
        self._undo.append(lambda: self.delegations.pop(op.row.id))
        return True

    def _delegations_to(self, op: DelegationsTo) -> list[DelegationRow]:
        return [row for row in self.delegations.values() if (row.tenant, row.to_whom) == (op.tenant, op.to_whom)]

    # ---- Budgets

    def _find_slice(self, op: FindSlice) -> SliceRow | None:
        return self.slices.get(op.name)

    def _add_slice(self, op: AddSlice) -> bool:
        if op.row.name in self.slices:
            return False
        self.slices[op.row.name] = op.row
        self._undo.append(partial(self.slices.pop, op.row.name))
        return True

    def _update_slice(self, op: UpdateSlice) -> SliceRow:
        old = self.slices[op.row.name]
        assert old == op.row, "a slice is changed from what was read"
        new = self.slices[old.name] = changed(old, op.changes)
        self._undo.append(partial(self.slices.__setitem__, old.name, old))
        return new

    def _drop_slices(self, op: DropSlices) -> int:
        return self._remove(self.slices, [name for name, row in self.slices.items() if row.root == op.root])

    def _page_slices(self, op: PageSlices) -> list[SliceRow]:
        found = [row for row in self.slices.values() if row.tenant == op.tenant and row.name > op.after]
        return sorted(found, key=lambda row: row.name)[: op.limit]

    # ---- Locks and waits

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

    def _see_wait(self, op: RecordWait) -> bool:
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

    # ---- Marks

    def _find_mark(self, op: FindMark) -> MarkRow | None:
        return self.marks.get(op.name)

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

    # ---- Checkpoints

    def _newest_checkpoint(self, op: NewestCheckpoint) -> CheckpointRow | None:
        return self.checkpoints[-1] if self.checkpoints else None

    def _page_checkpoints(self, op: PageCheckpoints) -> list[CheckpointRow]:
        return [row for row in self.checkpoints if row.n > op.after][: op.limit]

    def _add_checkpoint(self, op: AddCheckpoint) -> bool:
        if any(row.n == op.row.n for row in self.checkpoints):
            return False
        self.checkpoints.append(op.row)
        self._undo.append(self.checkpoints.pop)
        return True

    def _page_unsealed(self, op: PageUnsealed) -> list[Head]:
        found = (one for root, one in self._tails.items() if root > op.after and one.n != self.sealed.get(root, 0))
        return [Head(one.root, one.n, one.hash) for one in nsmallest(op.limit, found, key=lambda one: one.root)]

    def _mark_sealed(self, op: MarkSealed) -> None:
        for head in op.heads:
            old = self.sealed.get(head.root, 0)
            self.sealed[head.root] = head.n
            self._undo.append(partial(self.sealed.__setitem__, head.root, old))

    def _hashes_at(self, op: HashesAt) -> list[tuple[str, int, str]]:
        wanted = frozenset(op.places)
        return [(one.root, one.n, one.hash) for one in self._events if (one.root, one.n) in wanted]

    # ---- Audits

    def _chain_of(self, op: ChainOf) -> list[EventRow]:
        found = (event for event in self._events if event.root == op.root and event.n > op.after)
        return nsmallest(op.limit, found, key=lambda event: event.n)

    def _chains_above(self, op: ChainsAbove) -> list[EventRow]:
        found = (event for event in self._events if event.root > op.root)
        return nsmallest(op.limit, found, key=lambda event: (event.root, event.n))

    # ---- Writing with an undo

    def _remove(self, rows: dict[Any, Any], keys: list[Any]) -> int:
        for key in keys:
            self._undo.append(partial(rows.__setitem__, key, rows.pop(key)))
        return len(keys)

    def _index(self, index: dict[Any, list[str]], key: object, value: str) -> None:
        index.setdefault(key, []).append(value)
        self._undo.append(index[key].pop)


def _of(row: RunRow | CallRow | EventRow | ApprovalRow, tenant: str | None) -> bool:
    return tenant is None or row.tenant == tenant


def _number(event: EventRow) -> int:
    return event.n


def _feed_order(event: EventRow) -> tuple[float, str, int]:
    return (event.at, event.root, event.n)


def _newest_first(rows: dict[str, Row], before: str | None) -> Iterator[Row]:
    """Return the rows that were added before the one with this id; a dict keeps the order in which they were added."""
    backwards = iter(reversed(rows.values()))
    if before is None:
        return backwards
    last = rows.get(before)
    return islice(dropwhile(lambda row: row is not last, backwards), 1, None) if last is not None else iter(())


def _between(rows: Iterable[Any], op: RunsBetween | CallsBetween | ApprovalsBetween | DelegationsBetween) -> Any:
    found = [row for row in rows if row.root > op.above and (op.upto is None or row.root <= op.upto)]
    return sorted(found, key=lambda row: row.root)[: op.limit]


_ROWS: Final[dict[type[Any], Callable[[MemoryStore, Any], Any]]] = {
    Now: MemoryStore._now,
    LedgerClock: MemoryStore._ledger_clock,
    FindRun: MemoryStore._find_run,
    FindRunById: MemoryStore._find_run_by_id,
    RunsOf: MemoryStore._runs_of,
    ListTree: MemoryStore._list_tree,
    ReadTrees: MemoryStore._read_trees,
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
    UpdateCalls: MemoryStore._update_calls,
    AddEvent: MemoryStore._add_event,
    PageEvents: MemoryStore._page_events,
    NewestEvent: MemoryStore._newest_event,
    FindApproval: MemoryStore._find_approval,
    ApprovalsOf: MemoryStore._approvals_in,
    PageApprovals: MemoryStore._page_approvals,
    ListDueNotices: MemoryStore._list_tells,
    FindUse: MemoryStore._find_use,
    InsertApproval: MemoryStore._insert_approval,
    UpdateApproval: MemoryStore._update_approval,
    AddDelegation: MemoryStore._add_delegation,
    DelegationsTo: MemoryStore._delegations_to,
    FindSlice: MemoryStore._find_slice,
    AddSlice: MemoryStore._add_slice,
    UpdateSlice: MemoryStore._update_slice,
    DropSlices: MemoryStore._drop_slices,
    PageSlices: MemoryStore._page_slices,
    FindLocks: MemoryStore._find_locks,
    TakeLock: MemoryStore._take_lock,
    DropLock: MemoryStore._drop_lock,
    FreeLocks: MemoryStore._free_locks,
    LocksOf: MemoryStore._locks_of,
    PageLocks: MemoryStore._page_locks,
    RecordWait: MemoryStore._see_wait,
    WaitsOf: MemoryStore._waits_of,
    WaitsFor: MemoryStore._waits_for,
    DropWaits: MemoryStore._drop_waits,
    FindMark: MemoryStore._find_mark,
    AddMark: MemoryStore._add_mark,
    MoveTime: MemoryStore._move_time,
    NewestCheckpoint: MemoryStore._newest_checkpoint,
    PageCheckpoints: MemoryStore._page_checkpoints,
    AddCheckpoint: MemoryStore._add_checkpoint,
    PageUnsealed: MemoryStore._page_unsealed,
    MarkSealed: MemoryStore._mark_sealed,
    HashesAt: MemoryStore._hashes_at,
    ChainOf: MemoryStore._chain_of,
    ChainsAbove: MemoryStore._chains_above,
    RunsBetween: lambda store, op: _between(store.runs.values(), op),
    CallsBetween: lambda store, op: _between(store._calls.values(), op),
    ApprovalsBetween: lambda store, op: _between(store.approvals.values(), op),
    DelegationsBetween: lambda store, op: _between(store.delegations.values(), op),
    FindDelegation: lambda store, op: store.delegations.get(op.id),
    Misfits: lambda _store, _op: [],
}

QUICK: Final[dict[type[Any], Callable[[MemoryStore, Any], Any]]] = {
    AdmitPlain: MemoryStore._admit_plain,
    SettlePlain: MemoryStore._settle_plain,
}
"""Operations with a way of their own; None as its answer means that it changed nothing, and the flow decides."""

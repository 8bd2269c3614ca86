"""A ledger in dicts: the fastest one, used by the simulator, and gone with the process."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from heapq import nlargest, nsmallest
from itertools import takewhile
from operator import attrgetter, ge, gt, le, lt, ne
from typing import Any, Final, TypeVar

from amends.encoding.chain import GENESIS, MICROS, body_of, link, moment
from amends.encoding.dataclass import changed
from amends.encoding.ids import call_id
from amends.ledger.dispatch import intent
from amends.ledger.flow import run_flow
from amends.ledger.operations import Misfits, StoreOp
from amends.ledger.plain import (
    AdmitPlain,
    SettledPlain,
    SettlePlain,
    Started,
    admission_facts,
    settlement_facts,
)
from amends.ledger.rows import (
    APPROVALS,
    CALLS,
    EVENTS,
    RUNS,
    THIS,
    TIME,
    AddEvent,
    AnswerRow,
    ApprovalRow,
    CallRow,
    CheckpointRow,
    CountCalls,
    CountStates,
    DelegationRow,
    DirectiveRow,
    EventRow,
    FindWaiting,
    Head,
    IdTaken,
    LedgerRow,
    LockRow,
    MarkRow,
    MarkSealed,
    Now,
    PageUnsealed,
    RunRow,
    SliceRow,
    UnusualCalls,
    WaitRow,
)
from amends.ledger.tables import ADDED, Add, Change, ChangeMany, Find, List, Remove, Row, Table, Where

T = TypeVar("T")


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
        self.marks: dict[str, MarkRow] = {TIME: MarkRow(TIME, "", 0.0)}
        self.slices: dict[str, SliceRow] = {}
        self._checkpoints: dict[int, CheckpointRow] = {}
        self.approvals: dict[str, ApprovalRow] = {}
        self.delegations: dict[str, DelegationRow] = {}
        self.directives: dict[str, DirectiveRow] = {}
        self.answers: dict[tuple[str, str], AnswerRow] = {}
        self.ledgers: dict[int, LedgerRow] = {THIS: LedgerRow(THIS, 0)}
        self.sealed: dict[str, int] = {}
        """Up to which number a checkpoint covers the chain of a root."""
        self._tails: dict[str, EventRow] = {}
        self._index: dict[str, dict[Any, list[Any]]] = {
            f"{table.name}.{column}": {} for table in (RUNS, CALLS, APPROVALS) for column in table.by
        }
        """By table, column and value: the keys of the rows, in the order in which they were added."""

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
            or self.ledgers[THIS].halt
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
            if (
                (mine.epoch != 1 and not tool.declared)
                or key in self._noted_keys
                or key.hex() in self._index["call.key"]
            ):
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
                self._keep(CALLS, row)
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

    @property
    def checkpoints(self) -> list[CheckpointRow]:
        """The checkpoints in their order."""
        return list(self._checkpoints.values())

    # ---- Tables

    def _keep(self, table: Table[Row], row: Row) -> list[list[Any]]:
        """Have this row in its table and in the indexes; return the lists there that end with its key."""
        key = table.key_of(row)
        getattr(self, _TABLES[table.name])[key] = row
        lists = [self._index[f"{table.name}.{column}"].setdefault(getattr(row, column), []) for column in table.by]
        for keys in lists:
            keys.append(key)
        return lists

    def _find(self, op: Find[Any]) -> Any:
        rows = getattr(self, _TABLES[op.table.name])
        if rows is self._events:
            return next((event for event in rows if (event.root, event.n) == op.key), None)
        return rows.get(op.key)

    def _list(self, op: List[Row]) -> list[Row]:
        found = self._matching(op.table, op.where)
        if op.after is not None:
            found = self._behind(found, op, op.after)
        if len(found) > 1:
            for column in reversed(op.order):
                name = column.lstrip("-")
                if name != ADDED:  # sorting keeps what is equal in its order
                    found.sort(key=attrgetter(name), reverse=name != column)
                elif name != column:
                    found.reverse()
        return found if op.limit is None else found[: op.limit]

    def _matching(self, table: Table[Row], where: Where) -> list[Row]:
        """Return the rows for which all terms hold, in the order in which they were added."""
        rows = getattr(self, _TABLES[table.name])
        found: list[Row] | None = None
        for column, comparison, value in where:
            if found is None and comparison == "=" and column in table.by:
                found = [rows[key] for key in self._index[f"{table.name}.{column}"].get(value, ())]
                continue
            if found is None:
                found = list(rows if table is EVENTS else rows.values())
            if comparison == "=":
                found = [row for row in found if getattr(row, column) == value]
            elif comparison == "in":
                found = [row for row in found if getattr(row, column) in value]
            elif found:
                holds, column_of = _HOLDS[comparison], attrgetter(column)
                found = [row for row in found if (mine := column_of(row)) is not None and holds(mine, value)]
        return list(rows if table is EVENTS else rows.values()) if found is None else found

    def _behind(self, found: list[Row], op: List[Row], after: tuple[Any, ...]) -> list[Row]:
        """Return the rows behind the place at which the page before ended."""
        is_below, names = op.order[0].startswith("-"), [column.lstrip("-") for column in op.order]
        if names == [ADDED]:
            assert is_below, "nothing is paged from the oldest"
            older = set(takewhile(lambda key: key != after[0], getattr(self, _TABLES[op.table.name])))
            return [row for row in found if op.table.key_of(row) in older]
        holds, place_of = lt if is_below else gt, attrgetter(*names)
        end = after if len(names) > 1 else after[0]
        return [row for row in found if holds(place_of(row), end)]

    def _add(self, op: Add[Any]) -> bool:
        table, row = op.table, op.row
        rows, key = getattr(self, _TABLES[table.name]), table.key_of(row)
        if key in rows:
            if table is CALLS:
                raise IdTaken(row.id)
            assert op.if_absent, f"the key of a new {table} is new"
            return False
        if table is CALLS and not row.is_loaded:
            known = len(self._index["call.key"].get(row.key, ()))
            assert known == row.generation - 1, "a key's generations are counted without a gap"
        self._undo += [keys.pop for keys in self._keep(table, row)]
        self._undo.append(partial(rows.pop, key))
        return True

    def _change(self, op: Change[Any]) -> Any:
        if op.table is EVENTS:
            return self._change_event(op)
        rows, key = getattr(self, _TABLES[op.table.name]), op.table.key_of(op.row)
        old = rows[key]
        if op.table.states:
            assert old.state == op.row.state, f"a {op.table} is changed from the state that was read"
        else:
            assert old == op.row, f"a {op.table} is changed from what was read"
        new = rows[key] = changed(old, op.changes)
        self._undo.append(partial(rows.__setitem__, key, old))
        return new

    def _change_event(self, op: Change[EventRow]) -> EventRow:
        """Change an event in its place; also where it is the last one of its chain."""
        place = self._events.index(op.row)
        root, new = op.row.root, changed(op.row, op.changes)
        self._events[place] = new
        self._undo.append(partial(self._events.__setitem__, place, op.row))
        if self._tails[root].n == new.n:
            self._tails[root] = new
            self._undo.append(partial(self._tails.__setitem__, root, op.row))
        return new

    def _change_many(self, op: ChangeMany[Any]) -> None:
        for row, changes in op.changes:
            self._change(Change(op.table, row, changes))

    def _remove(self, op: Remove[Any]) -> int:
        rows, gone = getattr(self, _TABLES[op.table.name]), self._matching(op.table, op.where)
        for row in gone:
            key = op.table.key_of(row)
            self._undo.append(partial(rows.__setitem__, key, rows.pop(key)))
        return len(gone)

    # ---- What no table alone can answer

    def _now(self, op: Now) -> float:
        if op.root is None:
            return moment(self._clock())
        last = self._tails.get(op.root)
        if op.known:
            return max(op.known, 0.0 if last is None else last.at)
        return self._ledger_time(0.0 if last is None else last.at)

    def _ledger_time(self, newest: float) -> float:
        """Return ledger time for a tree whose newest event has this time."""
        at = max(self._clock(), newest, self.marks[TIME].made_at)
        return round(at * MICROS) / MICROS

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

    def _count_states(self, op: CountStates) -> dict[str, int]:
        mine = (run for run in self.runs.values() if op.tenant in (None, run.tenant))
        return dict(Counter(run.state for run in nlargest(op.limit, mine, key=attrgetter("created_at", "uid"))))

    def _find_waiting(self, op: FindWaiting) -> list[str]:
        mine = (run for run in self.runs.values() if run.tenant == op.tenant)
        newest = nlargest(op.limit, mine, key=attrgetter("created_at", "uid"))
        return [run.uid for run in newest if run.state == "blocked" or run.suspended]

    def _count_calls(self, op: CountCalls) -> dict[str, int]:
        counts = {root: len(self._matching(CALLS, (("root", "=", root),))) for root in op.roots}
        return {root: count for root, count in counts.items() if count}

    def _unusual_calls(self, op: UnusualCalls) -> list[CallRow]:
        """Return any calls: here none is cheaper to leave out."""
        return [call for root in op.roots for call in self._matching(CALLS, (("root", "=", root),))][: op.limit]

    def _page_unsealed(self, op: PageUnsealed) -> list[Head]:
        found = (one for root, one in self._tails.items() if root > op.after and one.n != self.sealed.get(root, 0))
        return [Head(one.root, one.n, one.hash) for one in nsmallest(op.limit, found, key=lambda one: one.root)]

    def _mark_sealed(self, op: MarkSealed) -> None:
        for head in op.heads:
            old = self.sealed.get(head.root, 0)
            self.sealed[head.root] = head.n
            self._undo.append(partial(self.sealed.__setitem__, head.root, old))


_HOLDS: Final[dict[str, Callable[[Any, Any], bool]]] = {"<>": ne, "<": lt, "<=": le, ">": gt, ">=": ge}

_TABLES: Final = {
    "run": "runs", "call": "_calls", "event": "_events", "approval": "approvals", "delegation": "delegations",
    "directive": "directives", "ledger": "ledgers", "answer": "answers",
    "budget": "slices", "lock": "locks", "wait": "waits", "mark": "marks", "checkpoint": "_checkpoints",
}  # fmt: skip
"""By the name of a table: the attribute that has its rows."""

_ROWS: Final[dict[type[Any], Callable[[MemoryStore, Any], Any]]] = {
    Find: MemoryStore._find,
    List: MemoryStore._list,
    Add: MemoryStore._add,
    Change: MemoryStore._change,
    ChangeMany: MemoryStore._change_many,
    Remove: MemoryStore._remove,
    Now: MemoryStore._now,
    AddEvent: MemoryStore._add_event,
    CountCalls: MemoryStore._count_calls,
    CountStates: MemoryStore._count_states,
    FindWaiting: MemoryStore._find_waiting,
    UnusualCalls: MemoryStore._unusual_calls,
    PageUnsealed: MemoryStore._page_unsealed,
    MarkSealed: MemoryStore._mark_sealed,
    Misfits: lambda _store, _op: [],
}

QUICK: Final[dict[type[Any], Callable[[MemoryStore, Any], Any]]] = {
    AdmitPlain: MemoryStore._admit_plain,
    SettlePlain: MemoryStore._settle_plain,
}
"""Operations with a way of their own; None as its answer means that it changed nothing, and the flow decides."""

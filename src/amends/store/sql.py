"""The row operations as SQL, for every database and both colours: flows over ``Execute``.

``transaction`` turns an operation of the ledger into one flow whose only requests are ``Execute``; a blocking
or an async connection answers them between its own BEGIN and COMMIT. The texts are built once per dialect and
shape: building them is slower than running them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

from amends import rows
from amends.chain import moment
from amends.errors import TransitionRefused
from amends.flow import Flow
from amends.markrows import TIME
from amends.record import changed
from amends.rows import CALL_COLUMNS, RUN_COLUMNS, CallRow, Changes, RunRow
from amends.states import CALL_STATES, LIVE, NEW, RUN_STATES, STANDING, UNSETTLED, call_sources, run_sources
from amends.store.approvalsql import APPROVAL_ROWS, ApprovalStatements
from amends.store.auditsql import AUDIT_ROWS, AuditStatements
from amends.store.budgetsql import BUDGET_ROWS, BudgetStatements
from amends.store.bundlesql import BUNDLE_ROWS, BundleStatements
from amends.store.checkpointsql import CHECKPOINT_ROWS, CheckpointStatements
from amends.store.dialect import Dialect
from amends.store.eventsql import EVENT_ROWS, EventStatements
from amends.store.forksql import FORK_ROWS
from amends.store.locksql import LOCK_ROWS, LockStatements
from amends.store.marksql import MARK_ROWS, MarkStatements
from amends.store.statement import Execute as Execute
from amends.store.statement import Result as Result

T = TypeVar("T")
Row = TypeVar("Row", RunRow, CallRow)

OPEN: Final = tuple(state for state in CALL_STATES if state in (UNSETTLED | STANDING) - LIVE - {"succeeded"})
"""What somebody has to look at: the states of the index ``calls_open``."""


@dataclass(frozen=True, slots=True)
class Table(Generic[Row]):
    """Where rows of one kind are kept."""

    name: str
    key: str
    columns: tuple[str, ...]
    make: Callable[..., Row]
    values: Callable[[Row], tuple[Any, ...]]
    sources: Callable[[Any], tuple[str, ...]]

    def changed(self, row: Row, changes: Changes) -> Row:
        """``dataclasses.replace``, many times faster."""
        return changed(row, changes)


def _table(
    name: str, key: str, columns: tuple[str, ...], *, kind: type[Row], sources: Callable[[Any], tuple[str, ...]]
) -> Table[Row]:
    return Table(name, key, columns, kind, attrgetter(*columns), sources)


RUNS: Final = _table("runs", "uid", RUN_COLUMNS, kind=RunRow, sources=run_sources)
CALLS: Final = _table("calls", "id", CALL_COLUMNS, kind=CallRow, sources=call_sources)


class Statements:
    """The texts of one dialect."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._shapes: dict[tuple[Any, ...], str] = {}
        self.locks = LockStatements(dialect)
        self.budgets = BudgetStatements(dialect)
        self.approvals = ApprovalStatements(dialect)
        self.marks = MarkStatements(dialect)
        self.bundles = BundleStatements(dialect)
        self.events = EventStatements(dialect)
        self.checkpoints = CheckpointStatements(dialect)
        self.audit = AuditStatements(dialect)
        runs, calls = self._select("runs", RUN_COLUMNS), self._select("calls", CALL_COLUMNS)
        mark, lock = dialect.mark, dialect.lock
        key = dialect.name_of("key")
        self.is_open = dialect.is_open or _among(OPEN)
        # When a root ended that still has its payloads, and what the index of those is said with.
        some = ("parent = ''", "gone_at is null", "closed_at is not null")
        self.ended = (dialect.ended, ()) if dialect.ended else ("closed_at", some)
        newest = "(select at from events order by seq desc limit 1)"
        mark_of_time = f"(select made_at from marks where name = '{TIME}')"
        self.newest = f"select {dialect.clock or 'null'}, {newest}, {mark_of_time}"
        self.find_run = f"{runs} where uid = {mark}"
        self.claim_root = f"{runs} where uid = {mark}{dialect.skip}"
        # Whoever touches a tree has its root locked, and first: nobody can wait for another in a circle.
        self.root_of_run = f"{runs} where uid = (select root from runs where uid = {mark}){lock}" if lock else ""
        self.root_of_call = f"{runs} where uid = (select root from calls where id = {mark}){lock}" if lock else ""
        self.find_run_by_id = f"{runs} where tenant = {mark} and id = {mark} order by generation desc limit 1{lock}"
        self.list_tree = f"{runs} where root = {mark} order by place"
        self.find_call = f"{calls} where id = {mark}"
        self.find_key = f"{calls} where {key} = {mark} order by generation desc limit 1"
        self.list_generations = f"{calls} where {key} = {mark} order by generation"
        self.insert_run = self._insert("runs", RUN_COLUMNS)
        self.insert_call = self._insert("calls", CALL_COLUMNS)

    def update(self, table: Table[Any], changes: Changes) -> str:
        """Change these columns of the row that is still in the state that was read.

        A new state is guarded by the table of moves as well: what was read may be wrong, the table may not.
        """
        to = changes.get("state")
        shape = (table.name, to, *changes)
        text = self._shapes.get(shape)
        if text is None:
            name, mark = self._dialect.name_of, self._dialect.mark
            sets = ", ".join(f"{name(column)} = {mark}" for column in changes)
            guard = "" if to is None else f" and {_among(state for state in table.sources(to) if state != NEW)}"
            text = f"update {table.name} set {sets} where {table.key} = {mark} and state = {mark}{guard}"
            self._shapes[shape] = text
        return text

    def page(self, table: str, terms: tuple[str, ...], order: str, *, index: str = "") -> str:
        """A bounded select: terms have ``?`` where a parameter goes."""
        shape = (table, terms, order)
        text = self._shapes.get(shape)
        if text is None:
            columns = {"runs": RUN_COLUMNS, "calls": CALL_COLUMNS}[table]
            where = f" where {' and '.join(terms)}" if terms else ""
            hint = self._dialect.index.format(index) if index else ""
            rest = f"{hint}{where} order by {order} limit ?".replace("?", self._dialect.mark)
            text = self._shapes[shape] = self._select(table, columns) + rest
        return text

    def list_calls(self, states: int) -> str:
        """The calls of a root, of so many states, or of all."""
        shape = ("list_calls", states)
        text = self._shapes.get(shape)
        if text is None:
            mark = self._dialect.mark
            some = f" and {_is_one_of(states)}".replace("?", mark) if states else ""
            select = self._select("calls", CALL_COLUMNS)
            text = self._shapes[shape] = f"{select} where root = {mark}{some} order by seq"
        return text

    def _select(self, table: str, columns: Sequence[str]) -> str:
        return f"select {', '.join(map(self._dialect.name_of, columns))} from {table}"

    def _insert(self, table: str, columns: Sequence[str]) -> str:
        names = ", ".join(map(self._dialect.name_of, columns))
        return f"insert into {table} ({names}) values ({', '.join([self._dialect.mark] * len(columns))})"


class Desk:
    """One transaction: what it has read so far stays as it is, because nobody else can change it meanwhile."""

    __slots__ = ("calls", "clock", "runs", "statements")

    def __init__(self, statements: Statements, clock: Callable[[], float] | None) -> None:
        self.statements = statements
        self.clock = clock
        self.runs: dict[str, RunRow] = {}
        self.calls: dict[str, CallRow] = {}


async def transaction(intent: Flow[T], desk: Desk) -> T:
    """The flow of an intent with each of its row operations said in SQL. Failures go in at the line that asked."""
    try:
        op = intent.send(None)
        while True:
            try:
                answer = await _ROWS[type(op)](desk, op)
            except Exception as error:
                op = intent.throw(error)
            else:
                op = intent.send(answer)
    except StopIteration as stop:
        value: T = stop.value
        return value
    finally:
        intent.close()


# ---- one row ------------------------------------------------------------------------------


async def _now(desk: Desk, _op: rows.Now) -> float:
    found, _, _ = await Execute(desk.statements.newest, ())
    server, newest, seen = found[0] if found else (None, None, None)
    clock: float = server if desk.clock is None else desk.clock()
    return moment(max(clock, newest or 0.0, seen or 0.0))


async def _ledger_clock(desk: Desk, _op: rows.LedgerClock) -> float:
    if desk.clock is not None:
        return moment(desk.clock())
    found, _, _ = await Execute(desk.statements.newest, ())
    return moment(found[0][0])


async def _find_run(desk: Desk, op: rows.FindRun) -> RunRow | None:
    seen = desk.runs.get(op.uid)
    if seen is not None:
        return seen
    statements = desk.statements
    if not op.skip and not op.peek:
        root = await _lock_tree(desk, statements.root_of_run, op.uid)
        if root is not None and root.uid == op.uid:
            return root
    found, _, _ = await Execute(statements.claim_root if op.skip else statements.find_run, (op.uid,))
    if not found or op.peek:
        return RUNS.make(*found[0]) if found else None
    return _remembered(desk.runs, op.uid, RUNS.make(*found[0]))


async def _lock_tree(desk: Desk, sql: str, key: str) -> RunRow | None:
    """The root of the tree that this row belongs to, nobody else's until we are done, where rows can be locked."""
    found, _, _ = await Execute(sql, (key,)) if sql else ([], 0, 0)
    if not found:
        return None
    root = RUNS.make(*found[0])
    return desk.runs.setdefault(root.uid, root)  # this transaction may have changed it already


async def _find_run_by_id(desk: Desk, op: rows.FindRunById) -> RunRow | None:
    found, _, _ = await Execute(desk.statements.find_run_by_id, (op.tenant, op.id))
    return _remembered(desk.runs, found[0][0], RUNS.make(*found[0])) if found else None


async def _find_call(desk: Desk, op: rows.FindCall) -> CallRow | None:
    seen = desk.calls.get(op.id)
    if seen is not None:
        return seen
    await _lock_tree(desk, desk.statements.root_of_call, op.id)
    found, _, _ = await Execute(desk.statements.find_call, (op.id,))
    return _remembered(desk.calls, op.id, CALLS.make(*found[0])) if found else None


async def _find_key(desk: Desk, op: rows.FindKey) -> CallRow | None:
    found, _, _ = await Execute(desk.statements.find_key, (op.key,))
    return _remembered(desk.calls, found[0][0], CALLS.make(*found[0])) if found else None


async def _insert_run(desk: Desk, op: rows.InsertRun) -> None:
    await Execute(desk.statements.insert_run, RUNS.values(op.row))
    desk.runs[op.row.uid] = op.row


async def _insert_call(desk: Desk, op: rows.InsertCall) -> None:
    await Execute(desk.statements.insert_call, CALLS.values(op.row))
    desk.calls[op.row.id] = op.row


async def _update_run(desk: Desk, op: rows.UpdateRun) -> RunRow:
    return await _update(desk.statements, RUNS, desk.runs, op.row, op.row.uid, op.changes)


async def _update_call(desk: Desk, op: rows.UpdateCall) -> CallRow:
    return await _update(desk.statements, CALLS, desk.calls, op.row, op.row.id, op.changes)


async def _update(
    statements: Statements, table: Table[Row], seen: dict[str, Row], row: Row, key: str, changes: Changes
) -> Row:
    _, met, _ = await Execute(statements.update(table, changes), (*changes.values(), key, row.state))
    if met != 1:
        to = changes.get("state", row.state)
        raise TransitionRefused(
            f"{table.name[:-1]} {key} is no longer {row.state}, or may not become {to}; nothing was changed",
            frm=row.state,
            to=to,
        )
    # The flow may hold an older copy than this transaction has written: change the newest.
    new = seen[key] = table.changed(seen.get(key, row), changes)
    return new


def _remembered(seen: dict[str, Row], key: str, row: Row) -> Row:
    seen[key] = row
    return row


# ---- many rows ----------------------------------------------------------------------------


async def _list_tree(desk: Desk, op: rows.ListTree) -> list[RunRow]:
    found, _, _ = await Execute(desk.statements.list_tree, (op.root,))
    return [RUNS.make(*row) for row in found]


async def _list_due(desk: Desk, op: rows.ListDue) -> list[RunRow]:
    terms, params = _where((("wake_at <= ?", op.now), ("tenant = ?", op.tenant)))
    sql = desk.statements.page("runs", terms, "wake_at, place", index="runs_wake")
    found, _, _ = await Execute(sql, (*params, op.limit))
    return [RUNS.make(*row) for row in found]


async def _list_owned(desk: Desk, op: rows.ListOwned) -> list[RunRow]:
    terms, params = _where((("tenant = ?", op.tenant),))
    sql = desk.statements.page("runs", ("owner <> ''", *terms), "place", index="runs_owned")
    found, _, _ = await Execute(sql, (*params, op.limit))
    return [RUNS.make(*row) for row in found]


async def _page_runs(desk: Desk, op: rows.PageRuns) -> list[RunRow]:
    states = [state for state in RUN_STATES if state in op.states]
    if op.states and not states:
        return []
    terms, params = _where((("tenant = ?", op.tenant),))
    if states:
        terms, params = (*terms, _is_one_of(len(states))), (*params, *states)
    if op.before is not None:
        # Not (created_at, uid) < (?, ?): MariaDB would look at every row.
        created_at, uid = op.before
        terms = (*terms, "created_at <= ? and (created_at < ? or uid < ?)")
        params = (*params, created_at, created_at, uid)
    sql = desk.statements.page("runs", terms, "created_at desc, uid desc", index="runs_created")
    found, _, _ = await Execute(sql, (*params, op.limit))
    return [RUNS.make(*row) for row in found]


async def _page_closed(desk: Desk, op: rows.PageClosed) -> list[RunRow]:
    ended, some = desk.statements.ended
    terms, params = _where(((f"{ended} < ?", op.before), ("tenant = ?", op.tenant)))
    if op.after is not None:
        closed_at, uid = op.after  # not as a pair, as above
        terms = (*terms, f"{ended} >= ? and ({ended} > ? or uid > ?)")
        params = (*params, closed_at, closed_at, uid)
    sql = desk.statements.page("runs", (*some, *terms), f"{ended}, uid", index="runs_closed")
    found, _, _ = await Execute(sql, (*params, op.limit))
    return [RUNS.make(*row) for row in found]


async def _list_generations(desk: Desk, op: rows.ListGenerations) -> list[CallRow]:
    found, _, _ = await Execute(desk.statements.list_generations, (op.key,))
    return [CALLS.make(*row) for row in found]


async def _list_calls(desk: Desk, op: rows.ListCalls) -> list[CallRow]:
    found, _, _ = await Execute(desk.statements.list_calls(len(op.states)), (op.root, *op.states))
    return [CALLS.make(*row) for row in found]


async def _page_calls(desk: Desk, op: rows.PageCalls) -> list[CallRow]:
    states = [state for state in CALL_STATES if state in op.states]
    if op.states and not states:
        return []
    terms, params = _where((("tenant = ?", op.tenant), ("seq < ?", op.before), ("tool = ?", op.tool or None)))
    if states:
        terms, params = (*terms, _is_one_of(len(states))), (*params, *states)
    is_open = bool(states) and set(states) <= set(OPEN)
    if is_open:
        # The index can be used only where this is said.
        terms = (*terms, desk.statements.is_open)
    sql = desk.statements.page("calls", terms, "seq desc", index="calls_open" if is_open else "")
    found, _, _ = await Execute(sql, (*params, op.limit))
    return [CALLS.make(*row) for row in found]


def _where(terms: Iterable[tuple[str, Any]]) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """The terms that were given a value, with their values."""
    given = [(term, value) for term, value in terms if value is not None]
    return tuple(term for term, _ in given), tuple(value for _, value in given)


def _is_one_of(count: int) -> str:
    return _any(["state = ?"] * count)


def _among(states: Iterable[str]) -> str:
    return _any([f"state = '{state}'" for state in states])


def _any(terms: list[str]) -> str:
    # Not IN: SQLite builds a tree of the values for it, which took a third of a settling.
    return f"({' or '.join(terms)})"


_ROWS: Final[dict[type[Any], Callable[[Desk, Any], Flow[Any]]]] = {
    rows.Now: _now,
    rows.LedgerClock: _ledger_clock,
    rows.FindRun: _find_run,
    rows.FindRunById: _find_run_by_id,
    rows.ListTree: _list_tree,
    rows.ListDue: _list_due,
    rows.ListOwned: _list_owned,
    rows.PageRuns: _page_runs,
    rows.PageClosed: _page_closed,
    rows.InsertRun: _insert_run,
    rows.UpdateRun: _update_run,
    rows.FindCall: _find_call,
    rows.FindKey: _find_key,
    rows.ListGenerations: _list_generations,
    rows.ListCalls: _list_calls,
    rows.PageCalls: _page_calls,
    rows.InsertCall: _insert_call,
    rows.UpdateCall: _update_call,
    **EVENT_ROWS,
    **AUDIT_ROWS,
    **LOCK_ROWS,
    **BUDGET_ROWS,
    **APPROVAL_ROWS,
    **MARK_ROWS,
    **BUNDLE_ROWS,
    **CHECKPOINT_ROWS,
    **FORK_ROWS,
}

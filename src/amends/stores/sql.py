"""The row operations as SQL, for every database, blocking or async.

``as_sql`` turns an operation of the ledger into one flow whose only requests are ``Execute``; a blocking or an async
connection answers them between its own BEGIN and COMMIT. The statements of one table and their handlers are
together below. Each statement is built once per dialect and shape: building it is slower than running it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, Generic, TypeAlias, TypeVar

from amends.encoding.chain import GENESIS, link, micros, moment, read_place
from amends.encoding.dataclass import changed
from amends.errors import TransitionRefused
from amends.ledger import operations, rows
from amends.ledger.flow import Flow, Op
from amends.ledger.rows import (
    APPROVAL_COLUMNS,
    APPROVAL_STATES,
    CALL_COLUMNS,
    CHECKPOINT_COLUMNS,
    DELEGATION_COLUMNS,
    EVENT_COLUMNS,
    LOCK_COLUMNS,
    MARK_COLUMNS,
    RUN_COLUMNS,
    SLICE_COLUMNS,
    TIME,
    WAIT_COLUMNS,
    ApprovalRow,
    CallRow,
    Changes,
    CheckpointRow,
    DelegationRow,
    EventRow,
    Head,
    LockRow,
    MarkRow,
    RunRow,
    SliceRow,
    WaitRow,
)
from amends.states import CALL_STATES, LIVE, NEW, RUN_STATES, STANDING, UNSETTLED, call_sources, run_sources

T = TypeVar("T")
Row = TypeVar("Row", RunRow, CallRow)

Result: TypeAlias = tuple[list[tuple[Any, ...]], int, int]
"""The rows, the number of rows that the statement matched (not: really changed), and the id that an insert made."""


@dataclass(slots=True)
class Execute(Op[Result]):
    """One statement, inside the open transaction: all that a flow over SQL asks of a connection."""

    sql: str
    params: Sequence[Any]
    prepare: bool = False
    """Part of nearly every call: worth a prepared statement of its own."""


# ---- Dialects: what differs between the databases

# No row operation needs an upsert, a stored procedure or a database's own type: that is on purpose.


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one database writes what the others write differently."""

    name: str
    """Also the folder of its migrations."""
    mark: str
    """The placeholder of a parameter."""
    quote: str
    """The quote around names: ``key`` and ``call`` are reserved words in some databases."""
    lock: str
    """Ends a select that locks its rows until the transaction ends."""
    skip: str
    """The same, without the rows that another transaction has locked."""
    new_id: str
    """Ends the insert of an event, where the statement itself returns the number that it computed."""
    clock: str
    """The server's clock, in seconds; empty where there is no server and the process's clock is read."""

    index: str
    """After a table's name: the index to use. A planner that guesses picks the wrong one when tenants are few."""

    is_open: str = ""
    """The condition that the index ``calls_open`` serves, where the database has no partial index."""

    if_absent: str = "insert into {} on conflict do nothing"
    """An insert that does nothing, without an error, when the key exists; ``{}``: table and values."""

    ended: str = ""
    """The column of the index ``runs_closed``, where the database has no partial index."""

    linked: str = ""
    """An event's hash, where the server computes it: from the previous hash, number, microseconds and body."""

    as_float: str = "{}"
    as_int: str = "{}"
    as_text: str = "{}"
    """A parameter with its type, where the server cannot infer it."""

    def name_of(self, column: str) -> str:
        """Return a column or table name, quoted against reserved words."""
        return f"{self.quote}{column}{self.quote}"


# One writer at a time (BEGIN IMMEDIATE): there is nobody to lock a row against.
SQLITE: Final = Dialect("sqlite", mark="?", quote='"', lock="", skip="", new_id="", clock="", index=" indexed by {}")

# sysdate and not now: the time of the statement, which may have waited. Our sessions are in UTC, where every hour
# exists once. MySQL has neither RETURNING nor partial indexes.
MYSQL: Final = Dialect(
    "mysql",
    mark="%s",
    quote="`",
    lock=" for update",
    skip=" for update skip locked",
    new_id="",
    clock="unix_timestamp(sysdate(6)) + 0e0",
    index=" force index ({})",
    is_open="attention = 1",
    if_absent="insert ignore into {}",
    ended="ended_at",
    linked="sha2(concat({}, ':', {}, ':', {}, ':', {}), 256)",
)

POSTGRES: Final = Dialect(
    "postgresql",
    mark="%s",
    quote='"',
    lock=" for update",
    skip=" for update skip locked",
    new_id=" returning n",
    clock="extract(epoch from clock_timestamp())::float8",
    index="",
    is_open="attention = 1",
    linked="encode(sha256(convert_to({} || ':' || ({}) || ':' || {} || ':' || {}, 'UTF8')), 'hex')",
    as_float="{}::float8",
    as_int="{}::bigint",
    as_text="{}::text",
)


# ---- One transaction


class Transaction:
    """The statements, the clock and the rows read so far.

    A row stays as it was read: nobody else can change it before the transaction ends.
    """

    __slots__ = ("calls", "clock", "runs", "statements")

    def __init__(self, statements: Statements, clock: Callable[[], float] | None) -> None:
        self.statements = statements
        self.clock = clock
        self.runs: dict[str, RunRow] = {}
        self.calls: dict[str, CallRow] = {}


async def as_sql(intent: Flow[T], tx: Transaction) -> T:
    """Run the flow of an intent with each of its row operations as SQL.

    A failure is thrown into the flow at the operation that met it.
    """
    try:
        op = intent.send(None)
        while True:
            try:
                answer = await _ROWS[type(op)](tx, op)
            except Exception as error:
                op = intent.throw(error)
            else:
                op = intent.send(answer)
    except StopIteration as stop:
        value: T = stop.value
        return value
    finally:
        intent.close()


async def _all(make: Callable[..., T], sql: str, params: Sequence[Any]) -> list[T]:
    found, _, _ = await Execute(sql, params)
    return [make(*row) for row in found]


async def _first(make: Callable[..., T], sql: str, params: Sequence[Any]) -> T | None:
    found, _, _ = await Execute(sql, params)
    return make(*found[0]) if found else None


async def _count(sql: str, params: Sequence[Any]) -> int:
    _, matched, _ = await Execute(sql, params)
    return matched


def _select(dialect: Dialect, table: str, columns: Sequence[str]) -> str:
    return f"select {', '.join(map(dialect.name_of, columns))} from {table}"


def _into(dialect: Dialect, table: str, columns: Sequence[str]) -> str:
    marks = ", ".join([dialect.mark] * len(columns))
    return f"{table} ({', '.join(map(dialect.name_of, columns))}) values ({marks})"


# ---- Runs and calls


OPEN: Final = tuple(state for state in CALL_STATES if state in (UNSETTLED | STANDING) - LIVE - {"succeeded"})
"""The states that need attention: those of the index ``calls_open``."""


@dataclass(frozen=True, slots=True)
class Table(Generic[Row]):
    """The table of runs or of calls."""

    name: str
    key: str
    columns: tuple[str, ...]
    make: Callable[..., Row]
    values: Callable[[Row], tuple[Any, ...]]
    sources: Callable[[Any], tuple[str, ...]]

    def changed(self, row: Row, changes: Changes) -> Row:
        """Do what ``dataclasses.replace`` does, many times faster."""
        return changed(row, changes)


def _table(
    name: str, key: str, columns: tuple[str, ...], *, kind: type[Row], sources: Callable[[Any], tuple[str, ...]]
) -> Table[Row]:
    return Table(name, key, columns, kind, attrgetter(*columns), sources)


RUNS: Final = _table("runs", "uid", RUN_COLUMNS, kind=RunRow, sources=run_sources)
CALLS: Final = _table("calls", "id", CALL_COLUMNS, kind=CallRow, sources=call_sources)


class Statements:
    """Every statement of one dialect: those of runs and calls here, the others by table."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._shapes: dict[tuple[Any, ...], str] = {}
        self.locks = LockStatements(dialect)
        self.budgets = BudgetStatements(dialect)
        self.approvals = ApprovalStatements(dialect)
        self.marks = MarkStatements(dialect)
        self.events = EventStatements(dialect)
        self.checkpoints = CheckpointStatements(dialect)
        self.audit = AuditStatements(dialect)
        runs, calls = _select(dialect, "runs", RUN_COLUMNS), _select(dialect, "calls", CALL_COLUMNS)
        mark, lock = dialect.mark, dialect.lock
        key = dialect.name_of("key")
        self.is_open = dialect.is_open or _among(OPEN)
        # When a root ended whose payloads still exist, and the conditions of the partial index of those.
        some = ("parent = ''", "gone_at is null", "closed_at is not null")
        self.ended = (dialect.ended, ()) if dialect.ended else ("closed_at", some)
        newest = f"(select at from events where root = {dialect.mark} order by n desc limit 1)"
        mark_of_time = f"(select made_at from marks where name = '{TIME}')"
        self.newest = f"select {dialect.clock or 'null'}, {newest}, {mark_of_time}"
        self.clock = f"select {dialect.clock}"
        self.find_run = f"{runs} where uid = {mark}"
        self.claim_root = f"{runs} where uid = {mark}{dialect.skip}"
        # Every transaction locks the root of a tree before it touches the tree: so there is no deadlock.
        self.root_of_run = f"{runs} where uid = (select root from runs where uid = {mark}){lock}" if lock else ""
        self.root_of_call = f"{runs} where uid = (select root from calls where id = {mark}){lock}" if lock else ""
        self.find_run_by_id = f"{runs} where tenant = {mark} and id = {mark} order by generation desc limit 1{lock}"
        self.runs_of = f"{runs} where tenant = {mark} and id = {mark} order by generation"
        self.list_tree = f"{runs} where root = {mark} order by place"
        self.find_call = f"{calls} where id = {mark}"
        self.find_key = f"{calls} where {key} = {mark} order by generation desc limit 1"
        self.list_generations = f"{calls} where {key} = {mark} order by generation"
        self.insert_run = f"insert into {_into(dialect, 'runs', RUN_COLUMNS)}"
        self.insert_call = f"insert into {_into(dialect, 'calls', CALL_COLUMNS)}"

    def update(self, table: Table[Any], changes: Changes) -> str:
        """Return the update of these columns of a row that is still in the state that was read.

        A new state is also guarded by the table of transitions: what was read may be wrong, the table may not.
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
        """Return a select with a limit; ``?`` in a term is a parameter."""
        shape = (table, terms, order)
        text = self._shapes.get(shape)
        if text is None:
            columns = {"runs": RUN_COLUMNS, "calls": CALL_COLUMNS}[table]
            where = f" where {' and '.join(terms)}" if terms else ""
            hint = self._dialect.index.format(index) if index else ""
            rest = f"{hint}{where} order by {order} limit ?".replace("?", self._dialect.mark)
            text = self._shapes[shape] = _select(self._dialect, table, columns) + rest
        return text

    def list_calls(self, states: int) -> str:
        """Return the select of a root's calls, in this number of states; 0: in any."""
        shape = ("list_calls", states)
        text = self._shapes.get(shape)
        if text is None:
            mark = self._dialect.mark
            some = f" and {_is_one_of(states)}".replace("?", mark) if states else ""
            select = _select(self._dialect, "calls", CALL_COLUMNS)
            text = self._shapes[shape] = f"{select} where root = {mark}{some} order by place"
        return text


async def _now(tx: Transaction, op: rows.Now) -> float:
    found, _, _ = await Execute(tx.statements.newest, (op.root,))
    server, newest, seen = found[0] if found else (None, None, None)
    clock: float = server if tx.clock is None else tx.clock()
    return moment(max(clock, newest or 0.0, seen or 0.0))


async def _ledger_clock(tx: Transaction, _op: rows.LedgerClock) -> float:
    if tx.clock is not None:
        return moment(tx.clock())
    found, _, _ = await Execute(tx.statements.clock, ())
    return moment(found[0][0])


async def _find_run(tx: Transaction, op: rows.FindRun) -> RunRow | None:
    seen = tx.runs.get(op.uid)
    if seen is not None:
        return seen
    statements = tx.statements
    if not op.skip and not op.peek:
        root = await _lock_tree(tx, statements.root_of_run, op.uid)
        if root is not None and root.uid == op.uid:
            return root
    found, _, _ = await Execute(statements.claim_root if op.skip else statements.find_run, (op.uid,))
    if not found or op.peek:
        return RUNS.make(*found[0]) if found else None
    return _remembered(tx.runs, op.uid, RUNS.make(*found[0]))


async def _lock_tree(tx: Transaction, sql: str, key: str) -> RunRow | None:
    """Lock and return the root of the tree of this row; None where the database has no row locks."""
    found, _, _ = await Execute(sql, (key,)) if sql else ([], 0, 0)
    if not found:
        return None
    root = RUNS.make(*found[0])
    return tx.runs.setdefault(root.uid, root)  # this transaction may have changed it already


async def _find_run_by_id(tx: Transaction, op: rows.FindRunById) -> RunRow | None:
    found, _, _ = await Execute(tx.statements.find_run_by_id, (op.tenant, op.id))
    return _remembered(tx.runs, found[0][0], RUNS.make(*found[0])) if found else None


async def _find_call(tx: Transaction, op: rows.FindCall) -> CallRow | None:
    seen = tx.calls.get(op.id)
    if seen is not None:
        return seen
    await _lock_tree(tx, tx.statements.root_of_call, op.id)
    found, _, _ = await Execute(tx.statements.find_call, (op.id,))
    return _remembered(tx.calls, op.id, CALLS.make(*found[0])) if found else None


async def _find_key(tx: Transaction, op: rows.FindKey) -> CallRow | None:
    found, _, _ = await Execute(tx.statements.find_key, (op.key,))
    return _remembered(tx.calls, found[0][0], CALLS.make(*found[0])) if found else None


async def _insert_run(tx: Transaction, op: rows.InsertRun) -> None:
    await Execute(tx.statements.insert_run, RUNS.values(op.row))
    tx.runs[op.row.uid] = op.row


async def _insert_call(tx: Transaction, op: rows.InsertCall) -> None:
    await Execute(tx.statements.insert_call, CALLS.values(op.row))
    tx.calls[op.row.id] = op.row


async def _update_run(tx: Transaction, op: rows.UpdateRun) -> RunRow:
    return await _update(tx.statements, RUNS, tx.runs, op.row, op.row.uid, op.changes)


async def _update_call(tx: Transaction, op: rows.UpdateCall) -> CallRow:
    return await _update(tx.statements, CALLS, tx.calls, op.row, op.row.id, op.changes)


async def _update(
    statements: Statements, table: Table[Row], seen: dict[str, Row], row: Row, key: str, changes: Changes
) -> Row:
    _, matched, _ = await Execute(statements.update(table, changes), (*changes.values(), key, row.state))
    if matched != 1:
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


async def _runs_of(tx: Transaction, op: operations.RunsOf) -> list[RunRow]:
    return await _all(RunRow, tx.statements.runs_of, (op.tenant, op.id))


async def _list_tree(tx: Transaction, op: rows.ListTree) -> list[RunRow]:
    return await _all(RunRow, tx.statements.list_tree, (op.root,))


async def _list_due(tx: Transaction, op: rows.ListDue) -> list[RunRow]:
    terms, params = _where((("wake_at <= ?", op.now), ("tenant = ?", op.tenant)))
    sql = tx.statements.page("runs", terms, "wake_at, place", index="runs_wake")
    return await _all(RunRow, sql, (*params, op.limit))


async def _list_owned(tx: Transaction, op: rows.ListOwned) -> list[RunRow]:
    terms, params = _where((("tenant = ?", op.tenant),))
    sql = tx.statements.page("runs", ("owner <> ''", *terms), "place", index="runs_owned")
    return await _all(RunRow, sql, (*params, op.limit))


async def _list_forks(tx: Transaction, op: rows.ListForks) -> list[RunRow]:
    # The second term is the condition of the partial index.
    sql = tx.statements.page("runs", ("forked_from = ?", "forked_from <> ''"), "place", index="runs_forked")
    return await _all(RunRow, sql, (op.root, op.limit))


async def _page_runs(tx: Transaction, op: rows.PageRuns) -> list[RunRow]:
    states = [state for state in RUN_STATES if state in op.states]
    if op.states and not states:
        return []
    terms, params = _where((("tenant = ?", op.tenant),))
    if states:
        terms, params = (*terms, _is_one_of(len(states))), (*params, *states)
    if op.before is not None:
        # Not (created_at, uid) < (?, ?): MariaDB would scan every row.
        created_at, uid = op.before
        terms = (*terms, "created_at <= ? and (created_at < ? or uid < ?)")
        params = (*params, created_at, created_at, uid)
    sql = tx.statements.page("runs", terms, "created_at desc, uid desc", index="runs_created")
    return await _all(RunRow, sql, (*params, op.limit))


async def _page_closed(tx: Transaction, op: rows.PageClosed) -> list[RunRow]:
    ended, some = tx.statements.ended
    terms, params = _where(((f"{ended} < ?", op.before), ("tenant = ?", op.tenant)))
    if op.after is not None:
        closed_at, uid = op.after  # not as a pair, as above
        terms = (*terms, f"{ended} >= ? and ({ended} > ? or uid > ?)")
        params = (*params, closed_at, closed_at, uid)
    sql = tx.statements.page("runs", (*some, *terms), f"{ended}, uid", index="runs_closed")
    return await _all(RunRow, sql, (*params, op.limit))


async def _list_generations(tx: Transaction, op: rows.ListGenerations) -> list[CallRow]:
    return await _all(CallRow, tx.statements.list_generations, (op.key,))


async def _list_calls(tx: Transaction, op: rows.ListCalls) -> list[CallRow]:
    return await _all(CallRow, tx.statements.list_calls(len(op.states)), (op.root, *op.states))


async def _page_calls(tx: Transaction, op: rows.PageCalls) -> list[CallRow]:
    states = [state for state in CALL_STATES if state in op.states]
    if op.states and not states:
        return []
    terms, params = _where((("tenant = ?", op.tenant), (_before("calls"), op.before), ("tool = ?", op.tool or None)))
    if states:
        terms, params = (*terms, _is_one_of(len(states))), (*params, *states)
    is_open = bool(states) and set(states) <= set(OPEN)
    if is_open:
        # The index is used only if its condition is part of the statement.
        terms = (*terms, tx.statements.is_open)
    sql = tx.statements.page("calls", terms, "place desc", index="calls_open" if is_open else "")
    return await _all(CallRow, sql, (*params, op.limit))


def _before(table: str) -> str:
    """Return the term for the rows that were created before the one with this id."""
    return f"place < (select last.place from {table} last where last.id = ?)"


def _where(terms: Iterable[tuple[str, Any]]) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """Return the terms that have a value, and their values."""
    given = [(term, value) for term, value in terms if value is not None]
    return tuple(term for term, _ in given), tuple(value for _, value in given)


def _is_one_of(count: int) -> str:
    return _any(["state = ?"] * count)


def _among(states: Iterable[str]) -> str:
    return _any([f"state = '{state}'" for state in states])


def _any(terms: list[str]) -> str:
    # Not IN: SQLite builds a tree of the values for it, which took a third of the time of a settlement.
    return f"({' or '.join(terms)})"


# ---- Events

# A server computes the hash itself: its statement reads the end of the chain after the tree was locked, and saves a
# round trip. SQLite has no server: the end is read here and the hash is computed here.


EVENT_VALUES: Final = attrgetter(*EVENT_COLUMNS[:-2])


class EventStatements:
    """The statements on events."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._pages: dict[tuple[bool, bool], str] = {}
        mark, columns = dialect.mark, EVENT_COLUMNS
        into = f"insert into events ({', '.join(map(dialect.name_of, columns))})"
        self.tail = f"select n, hash from events where root = {mark} order by n desc limit 1"
        self.links_itself = bool(dialect.linked)
        if self.links_itself:
            types = {"at": dialect.as_float, "epoch": dialect.as_int}
            values = ", ".join(types.get(name, "{}").format(mark) for name in columns[:-2])
            n = "coalesce(t.n, 0) + 1"
            hashed = dialect.linked.format(
                f"coalesce(t.hash, '{GENESIS}')", n, dialect.as_int.format(mark), dialect.as_text.format(mark)
            )
            chained = f" select {values}, {n}, {hashed} from (select 1 as one) o left join ({self.tail}) t on 1 = 1"
            self.insert = f"{into}{chained}{dialect.new_id}"
        else:
            self.insert = f"{into} values ({', '.join([mark] * len(columns))}){dialect.new_id}"

    def page(self, of_root: bool, of_tenant: bool) -> str:
        """Return the select of the events after one: of one tree by number, of all by moment, tree and number."""
        text = self._pages.get((of_root, of_tenant))
        if text is None:
            # Not (at, root, n) > (?, ?, ?): MariaDB would scan every row.
            terms = ["root = ?", "n > ?"] if of_root else ["at >= ?", "(at > ? or root > ? or (root = ? and n > ?))"]
            text = self._selected(of_root, of_tenant, terms, "n" if of_root else "at, root, n", "limit ?")
            self._pages[of_root, of_tenant] = text
        return text

    def last(self, of_root: bool, of_tenant: bool) -> str:
        """Return the select of the last event, of one tree or of all."""
        terms = ["root = ?"] if of_root else []
        return self._selected(
            of_root, of_tenant, terms, "n desc" if of_root else "at desc, root desc, n desc", "limit 1"
        )

    def _selected(self, of_root: bool, of_tenant: bool, terms: list[str], order: str, limit: str) -> str:
        terms = [*terms, "tenant = ?"] if of_tenant else terms
        where = f" where {' and '.join(terms)}" if terms else ""
        hint = self._dialect.index.format("events_root" if of_root else "events_feed")
        text = f"{_select(self._dialect, 'events', EVENT_COLUMNS)}{hint}{where} order by {order} {limit}"
        return text.replace("?", self._dialect.mark)


async def _add_event(tx: Transaction, op: rows.AddEvent) -> int:
    assert op.at == moment(op.at), "an event's time is whole microseconds"
    statements = tx.statements.events
    n: int
    if statements.links_itself:
        made, _, _ = await Execute(statements.insert, (*EVENT_VALUES(op), micros(op.at), op.body, op.root))
        if not made:  # the statement cannot return the number that it computed
            made, _, _ = await Execute(statements.tail, (op.root,))
        n = made[0][0]
        return n
    found, _, _ = await Execute(statements.tail, (op.root,))
    last, prev = found[0] if found else (0, GENESIS)
    n = last + 1
    await Execute(statements.insert, (*EVENT_VALUES(op), n, link(prev, n, op.at, op.body)))
    return n


async def _page_events(tx: Transaction, op: rows.PageEvents) -> list[EventRow]:
    params: tuple[Any, ...]
    if op.root is not None:
        params = (op.root, int(op.after or 0))
    else:
        at, root, n = read_place(str(op.after or ""))
        params = (at, at, root, root, n)
    tenant = () if op.tenant is None else (op.tenant,)
    sql = tx.statements.events.page(op.root is not None, op.tenant is not None)
    return await _all(EventRow, sql, (*params, *tenant, op.limit))


async def _newest_event(tx: Transaction, op: rows.NewestEvent) -> EventRow | None:
    params = tuple(value for value in (op.root, op.tenant) if value is not None)
    return await _first(EventRow, tx.statements.events.last(op.root is not None, op.tenant is not None), params)


# ---- Approvals and delegations


APPROVAL_VALUES: Final = attrgetter(*APPROVAL_COLUMNS)
DELEGATION_VALUES: Final = attrgetter(*DELEGATION_COLUMNS)


class ApprovalStatements:
    """The statements on approvals and delegations."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._shapes: dict[tuple[Any, ...], str] = {}
        mark, lock = dialect.mark, dialect.lock
        self._approvals = _select(dialect, "approvals", APPROVAL_COLUMNS)
        # As for calls: the root of the tree is locked first.
        root = f"(select root from approvals where id = {mark})"
        self.lock_root = f"select uid from runs where uid = {root}{lock}" if lock else ""
        self.find = f"{self._approvals} where id = {mark}"
        self.of_root = f"{self._approvals} where root = {mark} order by place"
        use = dialect.name_of("use_key")
        # The second condition is that of the partial index.
        self.find_use = f"select 1 from approvals where {use} = {mark} and {use} <> '' and state = 'used' limit 1"
        self.insert = f"insert into {_into(dialect, 'approvals', APPROVAL_COLUMNS)}"
        self.delegate = dialect.if_absent.format(_into(dialect, "delegations", DELEGATION_COLUMNS))
        delegations = _select(dialect, "delegations", DELEGATION_COLUMNS)
        self.delegated = f"{delegations} where tenant = {mark} and to_whom = {mark} order by made_at, id"

    def update(self, names: tuple[str, ...]) -> str:
        """Return the update of these columns of a request that is still in the state that was read."""
        text = self._shapes.get(names)
        if text is None:
            mark = self._dialect.mark
            sets = ", ".join(f"{self._dialect.name_of(name)} = {mark}" for name in names)
            text = self._shapes[names] = f"update approvals set {sets} where id = {mark} and state = {mark}"
        return text

    def page(self, terms: tuple[str, ...], *, one_state: bool) -> str:
        """Return a select with a limit, newest first; the index of one state has this order."""
        shape = ("page", one_state, *terms)
        text = self._shapes.get(shape)
        if text is None:
            where = f" where {' and '.join(terms)}" if terms else ""
            hint = self._dialect.index.format("approvals_state") if one_state else ""
            rest = f"{hint}{where} order by place desc limit ?".replace("?", self._dialect.mark)
            text = self._shapes[shape] = self._approvals + rest
        return text

    def tells(self, *, of_tenant: bool) -> str:
        """Return the select of the requests whose notice is due, longest overdue first."""
        some = " and tenant = ?" if of_tenant else ""
        hint = self._dialect.index.format("approvals_tell")
        rest = f"{hint} where tell_at <= ?{some} order by tell_at, place limit ?"
        return self._approvals + rest.replace("?", self._dialect.mark)


async def _find_approval(tx: Transaction, op: rows.FindApproval) -> ApprovalRow | None:
    statements = tx.statements.approvals
    if statements.lock_root:
        await Execute(statements.lock_root, (op.id,))
    return await _first(ApprovalRow, statements.find, (op.id,))


async def _approvals_of(tx: Transaction, op: rows.ApprovalsOf) -> list[ApprovalRow]:
    return await _all(ApprovalRow, tx.statements.approvals.of_root, (op.root,))


async def _page_approvals(tx: Transaction, op: rows.PageApprovals) -> list[ApprovalRow]:
    states = [state for state in APPROVAL_STATES if state in op.states]
    if op.states and not states:
        return []
    terms: list[str] = []
    params: list[Any] = []
    if states:
        terms.append(f"({' or '.join(['state = ?'] * len(states))})")
        params += states
    for term, value in (("tenant = ?", op.tenant), (_before("approvals"), op.before)):
        if value is not None:
            terms.append(term)
            params.append(value)
    sql = tx.statements.approvals.page(tuple(terms), one_state=len(states) == 1)
    return await _all(ApprovalRow, sql, (*params, op.limit))


async def _list_tells(tx: Transaction, op: rows.ListDueNotices) -> list[ApprovalRow]:
    tenant = () if op.tenant is None else (op.tenant,)
    sql = tx.statements.approvals.tells(of_tenant=op.tenant is not None)
    return await _all(ApprovalRow, sql, (op.now, *tenant, op.limit))


async def _find_use(tx: Transaction, op: rows.FindUse) -> bool:
    found, _, _ = await Execute(tx.statements.approvals.find_use, (op.use,))
    return bool(found)


async def _insert_approval(tx: Transaction, op: rows.InsertApproval) -> None:
    await Execute(tx.statements.approvals.insert, APPROVAL_VALUES(op.row))


async def _update_approval(tx: Transaction, op: rows.UpdateApproval) -> ApprovalRow:
    sql = tx.statements.approvals.update(tuple(op.changes))
    if await _count(sql, (*op.changes.values(), op.row.id, op.row.state)) != 1:
        to = op.changes.get("state", op.row.state)
        raise TransitionRefused(
            f"approval {op.row.id} is no longer {op.row.state}; nothing was changed", frm=op.row.state, to=to
        )
    return changed(op.row, op.changes)


async def _add_delegation(tx: Transaction, op: rows.AddDelegation) -> bool:
    return await _count(tx.statements.approvals.delegate, DELEGATION_VALUES(op.row)) == 1


async def _delegations_to(tx: Transaction, op: rows.DelegationsTo) -> list[DelegationRow]:
    return await _all(DelegationRow, tx.statements.approvals.delegated, (op.tenant, op.to_whom))


# ---- Budgets


SLICE_VALUES: Final = attrgetter(*SLICE_COLUMNS)


class BudgetStatements:
    """The statements on budgets, which are kept in slices."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        mark = dialect.mark
        select = _select(dialect, "budgets", SLICE_COLUMNS)
        self.find = f"{select} where name = {mark}{dialect.lock}"
        self.add = dialect.if_absent.format(_into(dialect, "budgets", SLICE_COLUMNS))
        self.drop = f"delete from budgets where root = {mark} and root <> ''"
        self.page = f"{select} where tenant = {mark} and name > {mark} order by name limit {mark}"

    def update(self, columns: tuple[str, ...]) -> str:
        """Return the update of these columns of a slice."""
        sets = ", ".join(f"{self._dialect.name_of(column)} = {self._dialect.mark}" for column in columns)
        return f"update budgets set {sets} where name = {self._dialect.mark}"


async def _find_slice(tx: Transaction, op: rows.FindSlice) -> SliceRow | None:
    return await _first(SliceRow, tx.statements.budgets.find, (op.name,))


async def _add_slice(tx: Transaction, op: rows.AddSlice) -> bool:
    return await _count(tx.statements.budgets.add, SLICE_VALUES(op.row)) == 1


async def _update_slice(tx: Transaction, op: rows.UpdateSlice) -> SliceRow:
    # The count is not checked: a database may not count a row that already had these values.
    await Execute(tx.statements.budgets.update(tuple(op.changes)), (*op.changes.values(), op.row.name))
    return changed(op.row, op.changes)


async def _drop_slices(tx: Transaction, op: rows.DropSlices) -> int:
    return await _count(tx.statements.budgets.drop, (op.root,))


async def _page_slices(tx: Transaction, op: rows.PageSlices) -> list[SliceRow]:
    return await _all(SliceRow, tx.statements.budgets.page, (op.tenant, op.after, op.limit))


# ---- Locks and waits


LOCK_VALUES: Final = attrgetter(*LOCK_COLUMNS)
WAIT_VALUES: Final = attrgetter(*WAIT_COLUMNS)


class LockStatements:
    """The statements on locks, and on the roots that wait for them."""

    def __init__(self, dialect: Dialect) -> None:
        self._mark = mark = dialect.mark
        self._locks = _select(dialect, "locks", LOCK_COLUMNS)
        waits = _select(dialect, "waits", WAIT_COLUMNS)
        self.take_lock = dialect.if_absent.format(_into(dialect, "locks", LOCK_COLUMNS))
        self.drop_lock = f"delete from locks where root = {mark} and name = {mark}"
        self.free_locks = f"delete from locks where root = {mark}"
        self.locks_of = f"{self._locks} where root = {mark} order by name"
        self.page_locks = f"{self._locks} where tenant = {mark} and name > {mark} order by name limit {mark}"
        self.see_wait = f"update waits set seen_at = {mark} where root = {mark} and name = {mark}"
        self.add_wait = f"insert into {_into(dialect, 'waits', WAIT_COLUMNS)}"
        self.waits_of = f"{waits} where root = {mark} order by name"
        self.waits_for = f"{waits} where tenant = {mark} and name = {mark} order by since, root"

    def find_locks(self, names: int) -> str:
        """Return the select of a tenant's locks by this number of names."""
        return f"{self._locks} where tenant = {self._mark} and {self._named(names)} order by name"

    def drop_waits(self, names: int) -> str:
        """Return the delete of a root's waits by this number of names; 0: of all its waits."""
        some = f" and {self._named(names)}" if names else ""
        return f"delete from waits where root = {self._mark}{some}"

    def _named(self, names: int) -> str:
        return f"({' or '.join([f'name = {self._mark}'] * names)})"


async def _find_locks(tx: Transaction, op: rows.FindLocks) -> list[LockRow]:
    return await _all(LockRow, tx.statements.locks.find_locks(len(op.names)), (op.tenant, *op.names))


async def _take_lock(tx: Transaction, op: rows.TakeLock) -> bool:
    return await _count(tx.statements.locks.take_lock, LOCK_VALUES(op.row)) == 1


async def _drop_lock(tx: Transaction, op: rows.DropLock) -> None:
    await Execute(tx.statements.locks.drop_lock, (op.root, op.name))


async def _free_locks(tx: Transaction, op: rows.FreeLocks) -> int:
    return await _count(tx.statements.locks.free_locks, (op.root,))


async def _locks_of(tx: Transaction, op: rows.LocksOf) -> list[LockRow]:
    return await _all(LockRow, tx.statements.locks.locks_of, (op.root,))


async def _page_locks(tx: Transaction, op: rows.PageLocks) -> list[LockRow]:
    return await _all(LockRow, tx.statements.locks.page_locks, (op.tenant, op.after, op.limit))


async def _see_wait(tx: Transaction, op: rows.RecordWait) -> bool:
    # No upsert: this transaction has the root locked, so nobody adds the same wait between the two statements.
    matched = await _count(tx.statements.locks.see_wait, (op.row.seen_at, op.row.root, op.row.name))
    if matched == 0:
        await Execute(tx.statements.locks.add_wait, WAIT_VALUES(op.row))
    return matched == 0


async def _waits_of(tx: Transaction, op: rows.WaitsOf) -> list[WaitRow]:
    return await _all(WaitRow, tx.statements.locks.waits_of, (op.root,))


async def _waits_for(tx: Transaction, op: rows.WaitsFor) -> list[WaitRow]:
    return await _all(WaitRow, tx.statements.locks.waits_for, (op.tenant, op.name))


async def _drop_waits(tx: Transaction, op: rows.DropWaits) -> None:
    await Execute(tx.statements.locks.drop_waits(len(op.names)), (op.root, *op.names))


# ---- Marks


MARK_VALUES: Final = attrgetter(*MARK_COLUMNS)


class MarkStatements:
    """The statements on marks, of which one holds the newest time that a transaction has seen."""

    def __init__(self, dialect: Dialect) -> None:
        self.find = f"{_select(dialect, 'marks', MARK_COLUMNS)} where name = {dialect.mark}"
        self.add = dialect.if_absent.format(_into(dialect, "marks", MARK_COLUMNS))
        # Skipped when locked: its holder moves it to about the same moment.
        self.time = f"select made_at from marks where name = '{TIME}'{dialect.skip}"
        self.move = f"update marks set made_at = {dialect.mark} where name = '{TIME}'"


async def _find_mark(tx: Transaction, op: rows.FindMark) -> MarkRow | None:
    return await _first(MarkRow, tx.statements.marks.find, (op.name,))


async def _add_mark(tx: Transaction, op: rows.AddMark) -> bool:
    return await _count(tx.statements.marks.add, MARK_VALUES(op.row)) == 1


async def _move_time(tx: Transaction, op: rows.MoveTime) -> None:
    found, _, _ = await Execute(tx.statements.marks.time, ())
    if found and found[0][0] < op.at:
        await Execute(tx.statements.marks.move, (op.at,))


# ---- Checkpoints


CHECKPOINT_VALUES: Final = attrgetter(*CHECKPOINT_COLUMNS)

HASHES_AT_ONCE: Final = 50


class CheckpointStatements:
    """The statements on checkpoints, and on the ends of the chains that they cover."""

    def __init__(self, dialect: Dialect) -> None:
        mark = self._mark = dialect.mark
        checkpoints = _select(dialect, "checkpoints", CHECKPOINT_COLUMNS)
        self.newest = f"{checkpoints} order by n desc limit 1"
        self.page = f"{checkpoints} where n > {mark} order by n limit {mark}"
        self.add = dialect.if_absent.format(_into(dialect, "checkpoints", CHECKPOINT_COLUMNS))
        # A root and a delegation have no common table: the page is merged of both.
        head = "(select max(e.n) from events e where e.root = {})"
        self.unsealed = {
            key: f"select o.{key}, h.n, h.hash from {table} o join events h on h.root = o.{key}"
            f" and h.n = {head.format(f'o.{key}')} where o.{key} > {mark}{some} and h.n <> o.sealed"
            f" order by o.{key} limit {mark}"
            for table, key, some in (("runs", "uid", " and o.uid = o.root"), ("delegations", "id", ""))
        }
        # Skipped when locked: whoever holds it writes more events, and the next checkpoint names the chain again.
        self.free = {
            "runs": f"select uid from runs where uid = {mark}{dialect.skip}",
            "delegations": f"select id from delegations where id = {mark}{dialect.skip}",
        }
        self.seal = {
            "runs": f"update runs set sealed = {mark} where uid = {mark}",
            "delegations": f"update delegations set sealed = {mark} where id = {mark}",
        }

    def hashes(self, count: int) -> str:
        """Return the select of this number of events by tree and number: each uses the index of the chain."""
        one = f"select root, n, hash from events where root = {self._mark} and n = {self._mark}"
        return " union all ".join([one] * count)


async def _newest_checkpoint(tx: Transaction, _op: rows.NewestCheckpoint) -> CheckpointRow | None:
    return await _first(CheckpointRow, tx.statements.checkpoints.newest, ())


async def _page_checkpoints(tx: Transaction, op: rows.PageCheckpoints) -> list[CheckpointRow]:
    return await _all(CheckpointRow, tx.statements.checkpoints.page, (op.after, op.limit))


async def _add_checkpoint(tx: Transaction, op: rows.AddCheckpoint) -> bool:
    return await _count(tx.statements.checkpoints.add, CHECKPOINT_VALUES(op.row)) == 1


async def _page_unsealed(tx: Transaction, op: rows.PageUnsealed) -> list[Head]:
    found: list[Head] = []
    for sql in tx.statements.checkpoints.unsealed.values():
        found += await _all(Head, sql, (op.after, op.limit))
    return sorted(found, key=lambda head: head.root)[: op.limit]


async def _mark_sealed(tx: Transaction, op: rows.MarkSealed) -> None:
    statements = tx.statements.checkpoints
    for head in op.heads:
        for table, free in statements.free.items():
            found, _, _ = await Execute(free, (head.root,))
            if found:
                await Execute(statements.seal[table], (head.n, head.root))
                break


async def _hashes_at(tx: Transaction, op: rows.HashesAt) -> list[tuple[str, int, str]]:
    # Always the same count, the last place repeated: each other count would be a new statement to prepare.
    found: dict[tuple[str, int], str] = {}
    sql = tx.statements.checkpoints.hashes(HASHES_AT_ONCE)
    for start in range(0, len(op.places), HASHES_AT_ONCE):
        some = op.places[start : start + HASHES_AT_ONCE]
        some += (some[-1],) * (HASHES_AT_ONCE - len(some))
        hashes, _, _ = await Execute(sql, tuple(part for place in some for part in place))
        found.update({(root, n): hash for root, n, hash in hashes})
    return [(root, n, hash) for (root, n), hash in found.items()]


# ---- Audits: ranges of trees, in the order of an index


AUDITED: Final = {"runs": RUN_COLUMNS, "calls": CALL_COLUMNS, "approvals": APPROVAL_COLUMNS,
    "delegations": DELEGATION_COLUMNS,
}  # fmt: skip


class AuditStatements:
    """The statements of an audit, which reads everything in order."""

    def __init__(self, dialect: Dialect) -> None:
        mark = dialect.mark
        events = _select(dialect, "events", EVENT_COLUMNS)
        events += dialect.index.format("events_root") if dialect.index else ""
        self.chain_of = f"{events} where root = {mark} and n > {mark} order by n limit {mark}"
        self.chains_above = f"{events} where root > {mark} order by root, n limit {mark}"
        self.between: dict[tuple[str, bool], str] = {}
        for table, columns in AUDITED.items():
            root = "id" if table == "delegations" else "root"
            hint = dialect.index.format(f"{table}_root") if dialect.index and root == "root" else ""
            select = f"{_select(dialect, table, columns)}{hint} where {root} > {mark}"
            for ends in (True, False):
                upto = f" and {root} <= {mark}" if ends else ""
                self.between[table, ends] = f"{select}{upto} order by {root} limit {mark}"
        self.delegation = f"{_select(dialect, 'delegations', DELEGATION_COLUMNS)} where id = {mark}"


async def _chain_of(tx: Transaction, op: operations.ChainOf) -> list[EventRow]:
    return await _all(EventRow, tx.statements.audit.chain_of, (op.root, op.after, op.limit))


async def _chains_above(tx: Transaction, op: operations.ChainsAbove) -> list[EventRow]:
    return await _all(EventRow, tx.statements.audit.chains_above, (op.root, op.limit))


def _between(table: str, make: Callable[..., Any]) -> Callable[[Transaction, Any], Flow[Any]]:
    async def between(tx: Transaction, op: operations.RunsBetween) -> list[Any]:
        params = (op.above, op.limit) if op.upto is None else (op.above, op.upto, op.limit)
        return await _all(make, tx.statements.audit.between[table, op.upto is not None], params)

    return between


async def _find_delegation(tx: Transaction, op: operations.FindDelegation) -> DelegationRow | None:
    return await _first(DelegationRow, tx.statements.audit.delegation, (op.id,))


_ROWS: Final[dict[type[Any], Callable[[Transaction, Any], Flow[Any]]]] = {
    rows.Now: _now,
    rows.LedgerClock: _ledger_clock,
    rows.FindRun: _find_run,
    rows.FindRunById: _find_run_by_id,
    operations.RunsOf: _runs_of,
    rows.ListTree: _list_tree,
    rows.ListDue: _list_due,
    rows.ListOwned: _list_owned,
    rows.ListForks: _list_forks,
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
    rows.AddEvent: _add_event,
    rows.PageEvents: _page_events,
    rows.NewestEvent: _newest_event,
    rows.FindApproval: _find_approval,
    rows.ApprovalsOf: _approvals_of,
    rows.PageApprovals: _page_approvals,
    rows.ListDueNotices: _list_tells,
    rows.FindUse: _find_use,
    rows.InsertApproval: _insert_approval,
    rows.UpdateApproval: _update_approval,
    rows.AddDelegation: _add_delegation,
    rows.DelegationsTo: _delegations_to,
    rows.FindSlice: _find_slice,
    rows.AddSlice: _add_slice,
    rows.UpdateSlice: _update_slice,
    rows.DropSlices: _drop_slices,
    rows.PageSlices: _page_slices,
    rows.FindLocks: _find_locks,
    rows.TakeLock: _take_lock,
    rows.DropLock: _drop_lock,
    rows.FreeLocks: _free_locks,
    rows.LocksOf: _locks_of,
    rows.PageLocks: _page_locks,
    rows.RecordWait: _see_wait,
    rows.WaitsOf: _waits_of,
    rows.WaitsFor: _waits_for,
    rows.DropWaits: _drop_waits,
    rows.FindMark: _find_mark,
    rows.AddMark: _add_mark,
    rows.MoveTime: _move_time,
    rows.NewestCheckpoint: _newest_checkpoint,
    rows.PageCheckpoints: _page_checkpoints,
    rows.AddCheckpoint: _add_checkpoint,
    rows.PageUnsealed: _page_unsealed,
    rows.MarkSealed: _mark_sealed,
    rows.HashesAt: _hashes_at,
    operations.ChainOf: _chain_of,
    operations.ChainsAbove: _chains_above,
    operations.RunsBetween: _between("runs", RunRow),
    operations.CallsBetween: _between("calls", CallRow),
    operations.ApprovalsBetween: _between("approvals", ApprovalRow),
    operations.DelegationsBetween: _between("delegations", DelegationRow),
    operations.FindDelegation: _find_delegation,
}

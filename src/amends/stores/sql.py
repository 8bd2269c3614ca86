"""The row operations as SQL, for every database, blocking or async.

``as_sql`` turns an operation of the ledger into one flow whose only requests are ``Execute``; a blocking or an async
connection answers them between its own BEGIN and COMMIT. The statements of one table and their handlers are
together below. Each statement is built once per dialect and shape: building it is slower than running it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

from amends.encoding.chain import GENESIS, link, moment, proof, read_heads
from amends.encoding.dataclass import changed, dataclass, field
from amends.encoding.ids import call_id, made_at, number_at, number_of
from amends.encoding.lazy_import import import_on_use
from amends.errors import TransitionRefused
from amends.ledger import operations, rows
from amends.ledger.flow import Flow, Op
from amends.ledger.rows import CALLS, CHECKPOINTS, MARKS, RUN_COLUMNS, RUNS, TIME, CallRow, EventRow, Head, RunRow
from amends.ledger.tables import ADDED, Add, Change, ChangeMany, Changes, Find, List, Remove, Table, Where
from amends.states import CALL_STATES, LIVE, NEW, STANDING, UNSETTLED, call_sources, run_sources
from amends.stores import calls as stored
from amends.stores.calls import Folded, RootFacts

if TYPE_CHECKING:
    from amends.ledger.folded import FoldedCall, FoldedEvent
    from amends.stores import audited
else:
    import_on_use(globals(), audited="amends.stores.audited")

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
    clock: str
    """The server's clock, in seconds; empty where there is no server and the process's clock is read."""

    index: str
    """After a table's name: the index to use. A planner that guesses picks the wrong one when tenants are few."""

    in_order: str = ""
    """After ``select``: join the tables in the order of the statement. A planner may begin with a table of few rows, and
    then sort everything."""

    join: str = "join"
    """Between tables that are joined in the order of the statement: the same, for databases that say it there."""

    is_open: str = ""
    """The condition that the index ``amends_call_open`` serves, where the database has no partial index."""

    unless_taken: str = " on conflict (no) do nothing"
    """Ends the insert of a call, so that it adds nothing if there is one of this number; empty: this is looked up before."""

    if_absent: str = "insert into {} on conflict do nothing"
    """An insert that does nothing, without an error, when the key exists; ``{}``: table and values."""

    ended: str = ""
    """The column of the index ``amends_run_closed``, where the database has no partial index."""

    unsealed: str = ""
    """The condition that the index ``amends_run_unsealed`` serves, where the predicate of an index must not change
    with every step."""

    unsealed_directive: str = "d.sealed <> d.seq"
    """The condition that the index ``amends_directive_unsealed`` serves."""

    marks: bool = False
    """Whether the statements write ``unsealed`` of runs, which other databases generate."""

    attention: bool = False
    """Whether the statements write ``attention`` of calls, which other databases generate or do without."""

    rooted: bool = False
    """Whether a statement on a call that names its number names the number of its run too: a database that is spread
    over several servers by run then knows where to ask."""

    def name_of(self, column: str) -> str:
        """Return a column or table name, quoted against reserved words."""
        return f"{self.quote}{column}{self.quote}"


# One writer at a time (BEGIN IMMEDIATE): there is nobody to lock a row against.
SQLITE: Final = Dialect(
    "sqlite",
    mark="?",
    quote='"',
    lock="",
    skip="",
    clock="",
    index=" indexed by {}",
    join="cross join",
    unsealed="unsealed = 1",
    marks=True,
)

# sysdate and not now: the time of the statement, which may have waited. Our sessions are in UTC, where every hour
# exists once. MySQL has neither RETURNING nor partial indexes.
MYSQL: Final = Dialect(
    "mysql",
    mark="%s",
    quote="`",
    lock=" for update",
    skip=" for update skip locked",
    clock="unix_timestamp(sysdate(6)) + 0e0",
    index=" force index ({})",
    in_order="straight_join ",
    is_open="c.attention = 1",
    if_absent="insert ignore into {}",
    unless_taken="",
    ended="ended_at",
    unsealed="unsealed = 1",
    unsealed_directive="d.unsealed = 1",
)

POSTGRES: Final = Dialect(
    "postgresql",
    mark="%s",
    quote='"',
    lock=" for update",
    skip=" for update skip locked",
    clock="extract(epoch from clock_timestamp())::float8",
    index="",
    is_open="c.attention = 1",
    unsealed="unsealed = 1",
    marks=True,
    attention=True,
    rooted=True,
)


# ---- One transaction


NOT_KNOWN: Final = -1


@dataclass(slots=True)
class Tail:
    """The end of the chain of a tree, as this transaction found and continued it."""

    no: int = 0
    """The number of its run; 0: the chain belongs to no run; ``NOT_KNOWN``: to a run whose number was not read."""
    n: int = 0
    head: str = GENESIS
    at: float = 0.0
    touch: int = 0
    owner: str = ""
    epoch: int = 0
    owners: dict[int, str] = field(default_factory=dict)
    is_end: bool = True
    """False: plain statements may have continued the chain since the row of the run was written."""
    is_longer: bool = False
    """This transaction has continued it."""


@dataclass(slots=True, eq=False)
class Kept:
    """What the store of an owner remembers of a run whose plain statements do not write its row."""

    no: int
    n: int
    head: str
    at: float
    touch: int
    owner: str
    epoch: int
    undo: Any = None
    """The calls that are left to compensate (``amends.stores.quick.Undo``)."""
    left: tuple[int, list[int]] | None = None
    """In a rollback by ``TurnPlain``: the ``touch`` that it left, and the numbers of the calls that are left, in the order
    of settling; the last one is being compensated."""
    use: Any = field(default_factory=Lock)
    """Held by the statement that goes on from here, where several can be on their way at once."""
    mine: Any = None
    """The values of the guard of a statement, as they are sent."""
    session: int | None = None
    """On MariaDB: how many connections the process had lost when it took this end; None: it was never taken."""
    admits: bool = True
    """Whether the run admits plain calls (``OPEN_ROOT``): that cannot change while its ``touch`` stays the same."""

    def forget(self) -> None:
        """Read the end of the chain again before the next use."""
        self.touch = -1


class KeptRuns(Protocol):
    """What a store remembers of its runs."""

    def get(self, root: str, /) -> Kept | None:
        """Return what is remembered of this run, if that is certainly the end of its chain while the run is locked."""
        ...


class Transaction:
    """The statements, the clock and the rows read so far.

    A row stays as it was read: nobody else can change it before the transaction ends.
    """

    __slots__ = (
        "audited",
        "calls",
        "clock",
        "facts",
        "folded",
        "joined",
        "kept",
        "mark",
        "numbers",
        "runs",
        "statements",
        "tails",
    )

    def __init__(self, statements: Statements, clock: Callable[[], float] | None, kept: KeptRuns | None = None) -> None:
        self.statements = statements
        self.clock = clock
        self.kept: KeptRuns = {} if kept is None else kept
        self.mark = 0.0
        """The mark of the ledger's time, if this transaction has read or moved it."""
        self.runs: dict[str, RunRow] = {}
        self.calls: dict[str, CallRow] = {}
        self.folded: dict[str, Folded] = {}
        self.numbers: dict[str, int] = {}
        """The numbers of calls, by id."""
        self.joined: dict[int, CallRow] = {}
        """Of an audit, which changes nothing: the calls whose events were read, by number."""
        self.audited: tuple[str, str, list[CallRow | FoldedCall]] | None = None
        """Of an audit: all calls of the trees above a root and up to another."""
        self.tails: dict[str, Tail] = {}
        self.facts: dict[str, RootFacts] = {}


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
        await _write_tails(tx)
        return value
    finally:
        intent.close()


async def _write_tails(tx: Transaction) -> None:
    """Write the new end of each chain into the row of its run. This is the one place that moves ``touch``."""
    for root, tail in tx.tails.items():
        if tail.is_longer and tail.no:
            params = (tail.n, bytes.fromhex(tail.head), tail.at, stored.written_owners(tail.owners), root)
            await Execute(tx.statements.touch, params)


async def _count(sql: str, params: Sequence[Any]) -> int:
    _, matched, _ = await Execute(sql, params)
    return matched


def _select(dialect: Dialect, table: str, columns: Sequence[str]) -> str:
    return f"select {', '.join(map(dialect.name_of, columns))} from {table}"


def _into(dialect: Dialect, table: str, columns: Sequence[str]) -> str:
    marks = ", ".join([dialect.mark] * len(columns))
    return f"{table} ({', '.join(map(dialect.name_of, columns))}) values ({marks})"


# ---- Tables

# Runs, calls and events are stored in ways of their own, and have their own handlers below. Each of those is named in
# ``_FINDS``, ``_LISTS``, ``_ADDS`` or ``_CHANGES``.


Shape: TypeAlias = tuple[Any, ...]
"""What the text of a statement depends on: all of the operation but its parameters."""


def _terms(table: Table[Any], where: Where) -> tuple[Shape, list[Any]]:
    """Return the shape of these conditions, and their parameters.

    Part of the text are states, because SQLite plans a statement anew each time if their values could decide the plan,
    and empty texts and nulls, because a partial index is used only if its condition is part of the statement.
    """
    shape: list[tuple[str, str, Any]] = []
    params: list[Any] = []
    for column, comparison, value in where:
        if comparison == "in" and column == "state":
            shape.append((column, comparison, tuple(state for state in table.states if state in value)))
        elif comparison == "in":
            # Not many counts, the last value repeated: each other count would be a new statement to prepare.
            count = 1 << (len(value) - 1).bit_length() if value else 0
            shape.append((column, comparison, count))
            params += value + value[-1:] * (count - len(value))
        elif value is None or (type(value) is str and not value):
            shape.append((column, comparison, value))
        else:
            shape.append((column, comparison, 1))
            params.append(value)
    return tuple(shape), params


_EMPTY: Final = "''"


def _condition(name: str, comparison: str, value: Any) -> str:
    """Return the condition of this shape; ``?`` is a parameter."""
    if comparison != "in":
        if value is None:
            return f"{name} is {'' if comparison == '=' else 'not '}null"
        return f"{name} {comparison} {'?' if value else _EMPTY}"
    if not value:
        return "1 = 0"
    return f"{name} in ({', '.join('?' * value)})" if isinstance(value, int) else among(value, name)


def _behind(order: tuple[str, ...], names: list[str]) -> str:
    """Return the condition of the rows behind a place in this order; ``?`` is a parameter.

    Not ``(a, b) < (?, ?)``: MariaDB would scan every row.
    """
    than = "<" if order[0].startswith("-") else ">"
    if len(names) == 1:
        return f"{names[0]} {than} ?"
    first, second = names
    return f"{first} {than}= ? and ({first} {than} ? or {second} {than} ?)"


def _place(after: tuple[Any, ...] | None) -> tuple[Any, ...]:
    """Return the parameters of ``_behind``."""
    return () if after is None else after if len(after) == 1 else (after[0], *after)


async def _find(tx: Transaction, op: Find[Any]) -> Any:
    find = _FINDS.get(op.table.name)
    if find is not None:
        return await find(tx, op)
    statements, table = tx.statements, op.table
    if table.locks == "tree" and statements.dialect.lock and not op.peek:
        await Execute(statements.lock_tree_of(table), (op.key,))
    lock = "skip" if op.skip else "wait" if table.locks == "row" and not op.peek else ""
    found, _, _ = await Execute(statements.find(table, lock), op.key if len(table.key) > 1 else (op.key,))
    return table.make(*found[0]) if found else None


async def _list(tx: Transaction, op: List[Any]) -> Sequence[Any]:
    listed = _LISTS.get(op.table.name)
    if listed is not None:
        return await listed(tx, op)
    found = await _listed(tx, op, tx.statements.select(op.table))
    return [op.table.make(*values) for values in found]


async def _listed(
    tx: Transaction, op: List[Any], select: str, names: Mapping[str, str] | None = None, also: str = ""
) -> Sequence[Sequence[Any]]:
    """Return the values of the rows.

    ``names``: what columns are called in this select, if not as in the row. ``also``: another condition.
    """
    shape, params = _terms(op.table, op.where)
    sql = tx.statements.list(op, select, shape, names, also)
    limit = () if op.limit is None else (op.limit,)
    found, _, _ = await Execute(sql, (*params, *_place(op.after), *limit))
    return found


async def _add(tx: Transaction, op: Add[Any]) -> bool:
    add = _ADDS.get(op.table.name)
    if add is not None:
        await add(tx, op.row)
        return True
    sql = tx.statements.add(op.table, if_absent=op.if_absent)
    return await _count(sql, op.table.values(op.row)) == 1


async def _change(tx: Transaction, op: Change[Any]) -> Any:
    change = _CHANGES.get(op.table.name)
    if change is not None:
        return await change(tx, op.row, op.changes)
    table, row, changes = op.table, op.row, op.changes
    key = table.key_of(row) if len(table.key) > 1 else (table.key_of(row),)
    state = (row.state,) if table.states else ()
    matched = await _count(tx.statements.change(table, tuple(changes)), (*changes.values(), *key, *state))
    if matched != 1 and table.states:
        raise TransitionRefused(
            f"{table} {row.id} is no longer {row.state}; nothing was changed",
            frm=row.state,
            to=changes.get("state", row.state),
        )
    if table is MARKS and row.name == TIME:
        tx.mark = max(tx.mark, changes["made_at"])
    return changed(row, changes)


async def _remove(tx: Transaction, op: Remove[Any]) -> int:
    shape, params = _terms(op.table, op.where)
    return await _count(tx.statements.remove(op.table, shape), params)


# ---- Runs


TAIL_COLUMNS: Final = ("no", "n", "head", "at", "touch", "owners")
"""The columns of a run that are no field of its row."""
_RUN_WIDTH: Final = len(RUN_COLUMNS)
RUN_VALUES: Final = attrgetter(*RUN_COLUMNS)

OPEN: Final = tuple(state for state in CALL_STATES if state in (UNSETTLED | STANDING) - LIVE - {"succeeded"})
"""The states that need attention: those of the index ``amends_call_open``."""


class Statements:
    """Every statement of one dialect: those of runs here, the others by table."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self._shapes: dict[tuple[Any, ...], str] = {}
        self.calls = CallStatements(dialect)
        self.events = EventStatements(dialect)
        self.checkpoints = CheckpointStatements(dialect)
        self.audit = AuditStatements(dialect)
        self.runs = runs = _select(dialect, "amends_run", (*RUN_COLUMNS, *TAIL_COLUMNS))
        mark, lock = dialect.mark, dialect.lock
        mark_of_time = f"(select made_at from amends_mark where name = '{TIME}')"
        self.newest = f"select {dialect.clock or 'null'}, {mark_of_time}"
        self.find_run = f"{runs} where uid = {mark}"
        self.claim_root = f"{runs} where uid = {mark}{dialect.skip}"
        # Every transaction locks the root of a tree before it touches the tree: so there is no deadlock.
        self.root_of_run = f"{runs} where uid = (select root from amends_run where uid = {mark}){lock}" if lock else ""
        self.root_of_call = f"{runs} where no = (select root from amends_call where no = {mark}){lock}" if lock else ""
        self.list_children = f"{runs} where root = {mark} and uid <> {mark} order by no"
        marks = ("unsealed",) if dialect.marks else ()
        self.insert_run = f"insert into {_into(dialect, 'amends_run', (*RUN_COLUMNS, 'owners', *marks))}"
        self.touch = (
            f"update amends_run set n = {mark}, head = {mark}, at = {mark}, owners = {mark}, touch = touch + 1"
            f"{', unsealed = 1' if dialect.marks else ''} where uid = {mark}"
        )

    def select(self, table: Table[Any]) -> str:
        """Return the select of all columns of a table."""
        return self._shaped(("select", table.name), lambda: _select(self.dialect, _sql_name(table), table.columns))

    def find(self, table: Table[Any], lock: str) -> str:
        """Return the select of a row by its key."""
        return self._shaped(
            ("find", table.name, lock), lambda: f"{self.select(table)} where {_keyed(table)}{self._locking(lock)}"
        )

    def lock_tree_of(self, table: Table[Any]) -> str:
        """Return the select that locks the root of the tree of a row: as for calls, it is locked first."""
        root = f"select root from {_sql_name(table)} where {_keyed(table)}"
        return self._shaped(
            ("lock", root), lambda: f"select uid from amends_run where uid = ({root}){self.dialect.lock}"
        )

    def list(self, op: List[Any], select: str, terms: Shape, names: Mapping[str, str] | None, also: str) -> str:
        """Return a select of rows with conditions, in an order."""
        shape = (select, terms, op.order, op.after is None, op.limit is None, op.index, op.lock, also)
        return self._shaped(shape, lambda: self._list(op, select, terms, names or {}, also))

    def _list(self, op: List[Any], select: str, terms: Shape, names: Mapping[str, str], also: str) -> str:
        def name(column: str) -> str:
            return names.get(column) or self.dialect.name_of(column)

        order = [name(column.lstrip("-")) for column in op.order]
        where = [_condition(name(column), comparison, value) for column, comparison, value in terms]
        where += [also] if also else []
        if op.after is not None and order == [name(ADDED)] and ADDED not in names:
            table = _sql_name(op.table)
            where.append(
                f"{_behind(op.order, order)[:-1]}(select last.no from {table} last where last.{op.table.key[0]} = ?)"
            )
        elif op.after is not None:
            where.append(_behind(op.order, order))
        text = select + (self.dialect.index.format(f"{_sql_name(op.table)}_{op.index}") if op.index else "")
        text += f" where {' and '.join(where)}" if where else ""
        if order:
            both = zip(order, op.order, strict=True)
            text += f" order by {', '.join(f'{one} desc' if said.startswith('-') else one for one, said in both)}"
        return text + ("" if op.limit is None else " limit ?") + self._locking(op.lock)

    def add(self, table: Table[Any], *, if_absent: bool) -> str:
        """Return the insert of a row."""
        form = self.dialect.if_absent if if_absent else "insert into {}"
        return self._shaped(
            ("add", table.name, form), lambda: form.format(_into(self.dialect, _sql_name(table), table.columns))
        )

    def change(self, table: Table[Any], columns: tuple[str, ...], to: str | None = None) -> str:
        """Return the update of these columns of a row; if it has a state, only in the state that was read.

        A new state is also guarded by the table of transitions: what was read may be wrong, the table may not.
        """
        return self._shaped(("change", table.name, to, *columns), lambda: self._change(table, columns, to))

    def _change(self, table: Table[Any], columns: tuple[str, ...], to: str | None) -> str:
        sets = ", ".join(f"{self.dialect.name_of(column)} = ?" for column in columns)
        guard = " and state = ?" if table.states else ""
        if to is not None and table.name in _SOURCES:
            guard += f" and {among(state for state in _SOURCES[table.name](to) if state != NEW)}"
        of_run = " and root = ?" if self.dialect.rooted else ""
        key = f"no = ?{of_run}" if table is CALLS else _keyed(table)
        return f"update {_sql_name(table)} set {sets} where {key}{guard}"

    def remove(self, table: Table[Any], terms: Shape) -> str:
        """Return the delete of rows with conditions."""
        return self._shaped(("remove", table.name, terms), lambda: self._remove(table, terms))

    def _remove(self, table: Table[Any], terms: Shape) -> str:
        some = [_condition(self.dialect.name_of(column), comparison, value) for column, comparison, value in terms]
        return f"delete from {_sql_name(table)} where {' and '.join(some)}"

    def _locking(self, lock: str) -> str:
        return {"": "", "wait": self.dialect.lock, "skip": self.dialect.skip}[lock]

    def count_states(self, *, has_tenant: bool) -> str:
        """Return the count of the newest runs by state."""
        return self._shaped(("count states", has_tenant), lambda: self._count_states(has_tenant))

    def count_calls(self, roots: int) -> str:
        """Return the count of the calls of so many trees, by their roots."""
        marks = ", ".join([self.dialect.mark] * roots)
        joined = f"select {self.dialect.in_order}r.uid, count(*) from amends_run r join amends_call c on c.root = r.no"
        return self._shaped(("count calls", roots), lambda: f"{joined} where r.uid in ({marks}) group by r.uid")

    def _count_states(self, has_tenant: bool) -> str:
        table = _sql_name(RUNS)
        index = self.dialect.index.format(f"{table}_created")
        where = " where tenant = ?" if has_tenant else ""
        newest = f"select state from {table}{index}{where} order by created_at desc, uid desc limit ?"
        return f"select newest.state, count(*) from ({newest}) newest group by newest.state"

    def find_waiting(self) -> str:
        """Return the select of those of the newest runs that are blocked or suspended."""
        return self._shaped(("find waiting",), self._find_waiting)

    def _find_waiting(self) -> str:
        table = _sql_name(RUNS)
        index = self.dialect.index.format(f"{table}_created")
        order = "order by created_at desc, uid desc limit ?"
        newest = f"select uid, state, suspended from {table}{index} where tenant = ? {order}"
        return f"select newest.uid from ({newest}) newest where newest.state = 'blocked' or newest.suspended = 1"

    def _shaped(self, shape: Shape, build: Callable[[], str]) -> str:
        """Return the statement of this shape, which is built once; ``?`` in it is a parameter."""
        text = self._shapes.get(shape)
        if text is None:
            text = self._shapes[shape] = build().replace("?", self.dialect.mark)
        return text


_SOURCES: Final[dict[str, Callable[[Any], Iterable[str]]]] = {"run": run_sources, "call": call_sources}
"""The tables of transitions: from which states a state is reached."""


def _sql_name(table: Table[Any]) -> str:
    return f"amends_{table.name}"


def _keyed(table: Table[Any]) -> str:
    return " and ".join(f"{column} = ?" for column in table.key)


def _run(values: Sequence[Any]) -> RunRow:
    return RunRow(*values[:_RUN_WIDTH])


def _seen_run(tx: Transaction, values: Sequence[Any]) -> RunRow:
    """Remember a run that this transaction has read, and the end of its chain if it is a root."""
    row = tx.runs.setdefault(values[0], _run(values))  # this transaction may have changed it already
    if row.uid == row.root:
        if row.uid not in tx.tails:
            tx.tails[row.uid] = _tail_of(tx, row, values[_RUN_WIDTH:])
        _note_facts(tx, row, values[_RUN_WIDTH])
    return row


def _note_facts(tx: Transaction, row: RunRow, no: int) -> None:
    tx.facts[row.uid] = RootFacts(no, row.uid, row.id, row.tenant, row.agent, row.principal)


def _tail_of(tx: Transaction, row: RunRow, values: Sequence[Any]) -> Tail:
    no, n, head, at, touch, owners = values
    tail = Tail(
        no, n, bytes(head).hex() if head is not None else GENESIS, at, touch, row.owner, row.epoch,
        stored.read_owners(owners), is_end=False,
    )  # fmt: skip
    kept = tx.kept.get(row.uid)
    known = None if kept is None else (kept.no, kept.touch, kept.owner, kept.epoch)
    if not tail.is_end and kept is not None and known == (no, touch, row.owner, row.epoch):
        # Nobody but the owner's plain statements has written since, and those remember what they wrote.
        tail.n, tail.head, tail.at, tail.is_end = kept.n, kept.head, kept.at, True
    return tail


async def tail_of(tx: Transaction, root: str) -> Tail:
    """Return the end of the chain of this tree."""
    tail = tx.tails.get(root)
    if tail is None:
        # Where there are locks, the root is locked: nobody else may continue the chain meanwhile.
        found, _, _ = await Execute(tx.statements.root_of_run or tx.statements.find_run, (root,))
        if found and found[0][RUN_COLUMNS.index("root")] == root:
            _note_facts(tx, _run(found[0]), found[0][_RUN_WIDTH])
            tail = tx.tails[root] = _tail_of(tx, _run(found[0]), found[0][_RUN_WIDTH:])
        else:
            tail = tx.tails[root] = Tail()
            rows_found, _, _ = await Execute(tx.statements.events.tail, (root,))
            if rows_found:
                tail.n, tail.at, tail.head = rows_found[0][0], rows_found[0][1], bytes(rows_found[0][2]).hex()
    if not tail.is_end:
        found, _, _ = await Execute(tx.statements.events.folded_tail, (tail.no, tail.n) * 4)
        if found:
            n, at, hash = found[0]
            tail.n, tail.at, tail.head = n, at, bytes(hash).hex()
        tail.is_end = True
    return tail


async def root_facts(tx: Transaction, root: str) -> RootFacts:
    """Return what the calls of this tree take from its root."""
    known = tx.facts.get(root)
    if known is None:
        found, _, _ = await Execute(tx.statements.find_run, (root,))
        assert found, f"the ledger names a run that it does not have: {root}"
        _note_facts(tx, _run(found[0]), found[0][_RUN_WIDTH])
        known = tx.facts[root]
    return known


async def _now(tx: Transaction, op: rows.Now) -> float:
    if op.root is None and tx.clock is not None:
        return moment(tx.clock())
    if op.known and op.root is not None:
        return max(op.known, (await tail_of(tx, op.root)).at)
    found, _, _ = await Execute(tx.statements.newest, ())
    server, seen = found[0]
    if op.root is None:
        return moment(server)
    tx.mark = max(tx.mark, seen or 0.0)
    clock: float = server if tx.clock is None else tx.clock()
    newest = (await tail_of(tx, op.root)).at if op.root else 0.0
    return moment(max(clock, newest, seen or 0.0))


async def _find_run(tx: Transaction, op: Find[RunRow]) -> RunRow | None:
    uid = op.key
    seen = tx.runs.get(uid)
    if seen is not None:
        return seen
    statements = tx.statements
    if not op.skip and not op.peek:
        root = await _lock_tree(tx, statements.root_of_run, uid)
        if root is not None and root.uid == uid:
            return root
    found, _, _ = await Execute(statements.claim_root if op.skip else statements.find_run, (uid,))
    if not found or op.peek:
        return _run(found[0]) if found else None
    return _seen_run(tx, found[0])


async def _lock_tree(tx: Transaction, sql: str, key: str | int) -> RunRow | None:
    """Lock and return the root of the tree of this row; None where the database has no row locks."""
    found, _, _ = await Execute(sql, (key,)) if sql else ([], 0, 0)
    return _seen_run(tx, found[0]) if found else None


async def _insert_run(tx: Transaction, row: RunRow) -> None:
    owners = {row.epoch: row.owner} if row.owner and row.uid == row.root else {}
    marks = ((None if row.parent else 1),) if tx.statements.dialect.marks else ()
    _, _, no = await Execute(tx.statements.insert_run, (*RUN_VALUES(row), stored.written_owners(owners), *marks))
    tx.runs[row.uid] = row
    if row.uid == row.root:
        known = tx.tails.get(row.uid)
        tx.tails[row.uid] = known or Tail(owner=row.owner, epoch=row.epoch, owners=owners)
        tx.tails[row.uid].no = no or NOT_KNOWN


async def _update_run(tx: Transaction, row: RunRow, changes: Changes) -> RunRow:
    _, matched, _ = await Execute(
        tx.statements.change(RUNS, tuple(changes), changes.get("state")), (*changes.values(), row.uid, row.state)
    )
    if matched != 1:
        to = changes.get("state", row.state)
        raise TransitionRefused(
            f"run {row.uid} is no longer {row.state}, or may not become {to}; nothing was changed",
            frm=row.state,
            to=to,
        )
    # The flow may hold an older copy than this transaction has written: change the newest.
    new = tx.runs[row.uid] = changed(tx.runs.get(row.uid, row), changes)
    if new.uid == new.root and new.owner and ("owner" in changes or "epoch" in changes):
        tail = await tail_of(tx, new.uid)
        tail.owners[new.epoch] = new.owner
        assert tail.is_longer, "a new owner is an event"
    return new


async def _list_runs(tx: Transaction, op: List[RunRow]) -> Sequence[RunRow]:
    dialect, names = tx.statements.dialect, None
    if op.order == (ADDED,) and op.where[0][:2] == ("root", "=") and not dialect.lock:
        root, tail = tx.runs.get(op.where[0][2]), tx.tails.get(op.where[0][2])
        if root is not None and tail is not None:
            # One writer at a time: the root is as this transaction has read it, and most trees have no other run.
            found, _, _ = await Execute(tx.statements.list_children, (root.uid, root.uid))
            tree = [_run(values) for values in found]
            tree.insert(sum(values[_RUN_WIDTH] < tail.no for values in found), root)
            return tree
    if op.index == "closed" and dialect.ended:
        # The column has a value only where the conditions of the partial index hold.
        names = {"closed_at": dialect.ended}
        where = tuple(term for term in op.where if term[0] != "parent" and term[2] is not None)
        op = changed(op, {"where": where})
    also = dialect.unsealed if op.index == "unsealed" else ""
    values_found = await _listed(tx, op, tx.statements.runs, names, also)
    return [_seen_run(tx, values) if op.lock else _run(values) for values in values_found]


def among(states: Iterable[str], column: str = "state") -> str:
    """Return the condition that the state is one of these."""
    return _any([f"{column} = '{state}'" for state in states])


def _any(terms: list[str]) -> str:
    # Not IN: SQLite builds a tree of the values for it, which took a third of the time of a settlement.
    return f"({' or '.join(terms)})"


# ---- Calls

# ``amends.stores.calls`` says how a call is stored.


FROM_CALLS: Final = " from amends_call c join amends_run r on r.no = c.root join amends_tool t on t.no = c.tool"


def _from_calls(dialect: Dialect) -> str:
    """Return the join that begins with the calls: beginning with the runs of a tenant would read all of them."""
    return FROM_CALLS.replace(" join ", f" {dialect.join} ")


class CallStatements:
    """The statements on calls, and on the versions of tools."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect, self._shapes = dialect, dict[tuple[Any, ...], str]()
        mark, name = dialect.mark, dialect.name_of
        columns = ", ".join(f"{one[:2]}{name(one[2:])}" for one in stored.READ)
        self.select = f"select {columns}{FROM_CALLS}"
        self.paged = f"select {dialect.in_order}{columns}{_from_calls(dialect)}"
        hint = dialect.index.format("amends_call_open")
        self.paged_open = self.paged.replace("amends_call c", f"amends_call c{hint}")
        # From the run to its calls: a planner that begins with the calls would read them all.
        rooted = f"select {columns} from amends_run r join amends_call c on c.root = r.no join amends_tool t on t.no = c.tool"
        self.rooted = rooted
        self.of_root = f"{rooted} where r.uid = {mark} order by c.n"
        self.of_trees = rooted.replace("select ", f"select {dialect.in_order}", 1)
        self.is_open = dialect.is_open or among(OPEN, "c.state")
        self.find = f"{self.select} where c.no = {mark}"
        self.find_in = f"{self.find} and c.root = {mark}"
        self.last_number = f"select max(no) from amends_call where no < {mark}"
        self.find_name = f"select {name('call')} from amends_call_name where id = {mark}"
        self.wide = (
            f"select {columns} from amends_ledger_key k join amends_call c on c.no = k.{name('call')}"
            " join amends_run r on r.no = c.root join amends_tool t on t.no = c.tool"
        )
        self.names = {
            "root": "r.uid", "tenant": "r.tenant", "tool": "t.name", "key": f"c.{name('key')}", "generation": "c.gen",
            "state": "c.state", "seq": "c.n", ADDED: "c.no",
        }  # fmt: skip
        self.wide_names = self.names | {"key": f"k.{name('key')}", "generation": "k.gen"}
        self.columns = (*stored.COLUMNS, "attention") if dialect.attention else stored.COLUMNS
        self.insert = f"insert into {_into(dialect, 'amends_call', self.columns)}{dialect.unless_taken}"
        self.is_taken = "" if dialect.unless_taken else f"select 1 from amends_call where no = {mark}"
        self.insert_name = f"insert into {_into(dialect, 'amends_call_name', ('id', 'call'))}"
        self.insert_wide = f"insert into {_into(dialect, 'amends_ledger_key', ('key', 'gen', 'call'))}"
        tools = ("name", *stored.TOOL[1:])
        self.find_tool = f"select no from amends_tool where {' and '.join(f'{one} = {mark}' for one in tools)}"
        self.add_tool = dialect.if_absent.format(_into(dialect, "amends_tool", tools))

    def update_many(self, count: int) -> str:
        """Return the update of the payloads of so many calls that are still in the states that were read.

        Its values: number and value of each call, for each of ``PAYLOADS``; the numbers; then number and state of each.
        """
        shape = ("many", count)
        text = self._shapes.get(shape)
        if text is None:
            mark = self._dialect.mark
            values = " ".join([f"when {mark} then {mark}"] * count)
            sets = ", ".join(f"{name} = case no {values} end" for name in PAYLOADS)
            which = f"no in ({', '.join([mark] * count)}) and state = case no {values} end"
            text = self._shapes[shape] = f"update amends_call set {sets} where {which}"
        return text


async def _number(tx: Transaction, id: str) -> int | None:
    """Return the number of a call; None: there is none of this id."""
    number = number_of(id)
    if number is None:
        number = tx.numbers.get(id)
    if number is None:
        found, _, _ = await Execute(tx.statements.calls.find_name, (id,))
        number = found[0][0] if found else None
    return number


def _seen_call(tx: Transaction, values: Sequence[Any]) -> CallRow:
    row, folded = stored.join(values)
    tx.numbers[row.id] = values[0]
    known = tx.calls.get(row.id)
    if known is not None:
        return known
    tx.calls[row.id], tx.folded[row.id] = row, folded
    return row


async def _find_call(tx: Transaction, op: Find[CallRow]) -> CallRow | None:
    seen = tx.calls.get(op.key)
    if seen is not None:
        return seen
    number = await _number(tx, op.key)
    if number is None:
        return None
    root = await _lock_tree(tx, tx.statements.root_of_call, number)
    if root is not None and tx.statements.dialect.rooted:
        found, _, _ = await Execute(tx.statements.calls.find_in, (number, tx.facts[root.uid].no))
    else:
        found, _, _ = await Execute(tx.statements.calls.find, (number,))
    return _seen_call(tx, found[0]) if found else None


async def _list_calls(tx: Transaction, op: List[CallRow]) -> Sequence[CallRow | FoldedCall]:
    if op.order == ("root",):
        return await _calls_between(tx, op)
    calls, where, also = tx.statements.calls, op.where, ""
    columns = [column for column, _, _ in where]
    select, names = (calls.of_trees if "root" in columns else calls.paged), calls.names
    if "key" in columns:
        where = tuple((c, how, stored.pack(value) if c == "key" else value) for c, how, value in where)
    if "scope" in columns:
        select, names = calls.wide, calls.wide_names
        where = tuple(term for term in where if term[0] != "scope")
    elif select == calls.paged and "state" in columns:
        states = next(value for column, _, value in where if column == "state")
        if set(states) <= set(OPEN):
            # The index is used only if its condition is part of the statement.
            select, also = calls.paged_open, calls.is_open
    after = op.after
    if after is not None:
        number = await _number(tx, after[0])
        if number is None:
            return []
        after = (number,)
    found = await _listed(tx, changed(op, {"where": where, "after": after}), select, names, also)
    is_newest = "key" in columns and op.limit == 1
    # A call stays as it was read if its tree is this transaction's.
    return [
        _seen_call(tx, values) if is_newest or values[1] in tx.tails else stored.join(values)[0] for values in found
    ]


async def tool_number(tx: Transaction, facts: tuple[Any, ...]) -> int:
    """Return the number of this version of a tool, which is added if it is new; ``facts``: the fields of ``TOOL``."""
    statements = tx.statements.calls
    found, _, _ = await Execute(statements.find_tool, facts)
    if not found:
        await Execute(statements.add_tool, facts)
        found, _, _ = await Execute(statements.find_tool, facts)
    number: int = found[0][0]
    return number


TOOL_VALUES: Final = attrgetter(*stored.TOOL)


def _attention(state: str) -> int | None:
    """Return whether a call in this state is in the index ``amends_call_open``."""
    return 1 if state in OPEN else None


async def _insert_call(tx: Transaction, row: CallRow) -> None:
    statements = tx.statements.calls
    root = await root_facts(tx, row.root)
    values = stored.hot(row)
    if values["no"] is None:
        found, _, _ = await Execute(statements.last_number, (number_at(row.created_at + 1.0),))
        values["no"] = max(number_at(row.created_at), (found[0][0] or 0) + 1)  # after the calls that were made before
        await Execute(statements.insert_name, (row.id, values["no"]))
    elif statements.is_taken and (await Execute(statements.is_taken, (values["no"],)))[0]:
        raise rows.IdTaken(row.id)
    values["root"], values["tool"] = root.no, await tool_number(tx, TOOL_VALUES(row))
    values["more"] = stored.more(row, values, root)
    values["attention"] = _attention(row.state)
    if await _count(statements.insert, tuple(values.get(name) for name in statements.columns)) != 1:
        raise rows.IdTaken(row.id)
    if row.scope == "ledger":
        await Execute(statements.insert_wide, (values["key"], row.generation, values["no"]))
    tx.calls[row.id], tx.folded[row.id], tx.numbers[row.id] = row, stored.NOT_FOLDED, values["no"]


PAYLOADS: Final = ("args", "result", "more")
"""The columns that change when payloads are removed."""
CALLS_AT_ONCE: Final = (4, 16, 64)
"""Of how many calls one statement changes the payloads; of fewer, the last is repeated."""


async def _change_many(tx: Transaction, op: ChangeMany[CallRow]) -> None:
    assert op.table is CALLS, "of no other table are many rows changed at once"
    todo: list[tuple[CallRow, int, tuple[Any, ...]]] = []
    for row, changes in op.changes:
        assert "state" not in changes, "many calls get no other states"
        number, new, kept, sets = await _changed_call(tx, row, changes)
        if not sets.keys() <= set(PAYLOADS):
            await _write_call(tx, row, changes, number, new, kept, sets)
        elif sets:
            root = await root_facts(tx, row.root)
            values = {"args": new.args, "result": new.result, "more": stored.more(new, stored.hot(new), root, kept)}
            todo.append((row, number, tuple(values[name] for name in PAYLOADS)))
            tx.calls[row.id], tx.folded[row.id] = new, kept
    for start in range(0, len(todo), CALLS_AT_ONCE[-1]):
        some = todo[start : start + CALLS_AT_ONCE[-1]]
        count = next(size for size in CALLS_AT_ONCE if size >= len(some))
        every = some + some[-1:] * (count - len(some))
        params = [
            one for place in range(len(PAYLOADS)) for _, number, values in every for one in (number, values[place])
        ]
        params += [number for _, number, _ in every]
        params += [one for row, number, _ in every for one in (number, row.state)]
        if await _count(tx.statements.calls.update_many(count), params) != len(some):
            row = some[0][0]
            raise TransitionRefused(
                f"call {row.id} or another one of its tree has changed; nothing was changed",
                frm=row.state,
                to=row.state,
            )


async def _changed_call(tx: Transaction, row: CallRow, changes: Changes) -> tuple[int, CallRow, Folded, dict[str, Any]]:
    """Return number, new row and folded events of a call that is changed, and the new values of its columns."""
    number = await _number(tx, row.id)
    assert number is not None, "a call that is changed was written before"
    if row.id not in tx.folded:
        found, _, _ = await Execute(tx.statements.calls.find, (number,))
        assert found, "a call that is changed was written before"
        _seen_call(tx, found[0])
    # The flow may hold an older copy than this transaction has written: change the newest.
    old, folded = tx.calls[row.id], tx.folded[row.id]
    new = changed(old, changes)
    root = await root_facts(tx, row.root)
    before, after = stored.hot(old), stored.hot(new)
    sets = {name: value for name, value in after.items() if value != before[name] and name != "no"}
    kept = folded
    if folded is not stored.NOT_FOLDED:
        kept = await _unfold(tx, old, new, folded)
        sets |= {name: None for name in ("settled_hash", "comp_hash", "undone_hash")
                 if getattr(folded, name) and not getattr(kept, name)}  # fmt: skip
        sets |= {name: None for name in ("comp_n", "comp_epoch", "undone_n")
                 if getattr(folded, name) and not getattr(kept, name)}  # fmt: skip
        if folded.settled_n and not kept.settled_n:
            sets["settled_n"] = after["settled_n"]
    was, text = stored.more(old, before, root, folded), stored.more(new, after, root, kept)
    if text != was:
        sets["more"] = text
    return number, new, kept, sets


async def _update_call(tx: Transaction, row: CallRow, changes: Changes) -> CallRow:
    number, new, kept, sets = await _changed_call(tx, row, changes)
    await _write_call(tx, row, changes, number, new, kept, sets)
    return new


async def _write_call(
    tx: Transaction, row: CallRow, changes: Changes, number: int, new: CallRow, kept: Folded, sets: dict[str, Any]
) -> None:
    if "state" in changes:
        sets.setdefault("state", new.state)
    if "state" in sets and tx.statements.dialect.attention:
        sets["attention"] = _attention(new.state)
    if sets:
        sql = tx.statements.change(CALLS, tuple(sets), changes.get("state"))
        of_run = ((await root_facts(tx, row.root)).no,) if tx.statements.dialect.rooted else ()
        _, matched, _ = await Execute(sql, (*sets.values(), number, *of_run, row.state))
    else:
        matched = int(tx.calls[row.id].state == row.state)
    if matched != 1:
        to = changes.get("state", row.state)
        raise TransitionRefused(
            f"call {row.id} is no longer {row.state}, or may not become {to}; nothing was changed",
            frm=row.state,
            to=to,
        )
    tx.calls[row.id], tx.folded[row.id] = new, kept


async def _unfold(tx: Transaction, old: CallRow, new: CallRow, folded: Folded) -> Folded:
    """Write the folded events whose columns change as rows, and keep the digests of payloads that change."""
    kept = folded
    if folded.hash and new.args != old.args and not folded.args_proof:
        kept = replace(kept, args_proof=proof(old.args))
    for name, columns in stored.covered(old):
        if not getattr(folded, name) or all(getattr(new, column) == getattr(old, column) for column in columns):
            continue
        tail = await tail_of(tx, old.root)
        alone = stored.only(folded, name)
        for event in stored.events_of(old, alone, tail.owners):
            if not event.hash:
                continue
            await Execute(tx.statements.events.insert, (*EVENT_VALUES(event), bytes.fromhex(event.hash)))
        gone: dict[str, Any] = {name: b"", name.replace("_hash", "_n"): 0}
        kept = changed(kept, gone | ({"error_proof": ""} if name == "settled_hash" else {}))
    if not kept.comp_hash and not kept.undone_hash:
        kept = replace(kept, comp_epoch=0)
    if kept.settled_hash and new.result != old.result and not folded.result_proof:
        kept = replace(kept, result_proof=proof(old.result or ""))
    if kept.settled_hash and old.state == "failed" and new.error != old.error and not folded.error_proof:
        kept = replace(kept, error_proof=proof(old.error))
    return kept


# ---- Events

# An event is a row, or folded into the row of its call; a reader sees no difference.


EVENT_COLUMNS: Final = (
    "root", "n", "at", "run", "run_id", "tenant", "call", "what", "frm", "to_state", "by_whom", "epoch", "facts", "hash",
)  # fmt: skip
EVENT_VALUES: Final = attrgetter(*EVENT_COLUMNS[:-1])
_GROUPS: Final = (
    ("n", "at", "hash"), ("settled_n", "settled_at", "settled_hash"), ("comp_n", "comp_at", "comp_hash"),
    ("undone_n", "undone_at", "undone_hash"),
)  # fmt: skip
FOLD_WINDOW_S: Final = 60.0
"""A step is folded only so long after its call was admitted; a later one is a row. So a reader that goes by time finds
every folded event among the calls of the last minute."""
SKEW_S: Final = 60.0
"""How far the time in the number of a call may be from ledger time: a call outside is written by the general flow."""


class EventStatements:
    """The statements on events."""

    def __init__(self, dialect: Dialect) -> None:
        mark, name = dialect.mark, dialect.name_of
        select = _select(dialect, "amends_event", EVENT_COLUMNS)
        self.insert = f"insert into {_into(dialect, 'amends_event', EVENT_COLUMNS)}"
        self.tail = f"select n, at, hash from amends_event where root = {mark} order by n desc limit 1"
        folded = " union all ".join(
            f"select {n} as n, {at} as at, {hash} as hash from amends_call where root = {mark} and {hash} is not null"
            f" and {n} > {mark}"
            for n, at, hash in _GROUPS
        )
        self.folded_tail = f"select n, at, hash from ({folded}) f order by n desc limit 1"
        self.find = f"{select} where root = {mark} and n = {mark}"
        self.of_root = f"{select} where root = {mark} and n > {mark} order by n limit {mark}"
        self.owners = f"select no, owners from amends_run where uid = {mark}"
        columns = ", ".join(f"{one[:2]}{name(one[2:])}" for one in stored.READ)
        rooted = (
            f"select {columns}, r.owners from amends_run r join amends_call c on c.root = r.no"
            " join amends_tool t on t.no = c.tool"
        )
        some = " or ".join(f"c.{n} > {mark}" for n, _, _ in _GROUPS)
        self.folded_of_root = f"{rooted} where r.uid = {mark} and ({some})"
        some = " or ".join(f"c.{n} > {mark} and c.{n} <= {mark}" for n, _, _ in _GROUPS)
        self.page_of_root = f"{rooted} where r.uid = {mark} and ({some})"
        by_time = dialect.index.format("amends_event_at") if dialect.index else ""
        # With and without a tenant. Not (at, root, n) > (?, ?, ?): MariaDB would scan every row.
        after = f"at >= {mark} and (at > {mark} or root > {mark} or (root = {mark} and n > {mark}))"
        mine = f"tenant = {mark}"
        self.since = {
            some: f"{select}{by_time} where {after}{f' and {mine}' if some else ''} order by at, root, n limit {mark}"
            for some in (False, True)
        }
        self.newest = {
            some: f"{select}{by_time}{f' where {mine}' if some else ''} order by at desc, root desc, n desc limit 1"
            for some in (False, True)
        }
        before = f"at <= {mark} and (at < {mark} or root < {mark} or (root = {mark} and n < {mark}))"
        self.before = {
            some: f"{select}{by_time} where {before}{f' and {mine}' if some else ''}"
            f" order by at desc, root desc, n desc limit {mark}"
            for some in (False, True)
        }
        late = " or ".join(f"c.{at} >= {mark}" for _, at, _ in _GROUPS)
        begun = f"select {dialect.in_order}{columns}, r.owners{_from_calls(dialect)}"
        folded_since = f"{begun} where c.no between {mark} and {mark} and ({late})"
        self.folded_since = {
            (some, order): f"{folded_since}{f' and r.{mine}' if some else ''} order by c.no{order} limit {mark}"
            for some in (False, True)
            for order in ("", " desc")
        }
        # No folded event of a call is earlier than its admission.
        self.folded_before = {
            some: f"{folded_since} and c.at <= {mark}{f' and r.{mine}' if some else ''} order by c.no desc limit {mark}"
            for some in (False, True)
        }


def _event(values: Sequence[Any]) -> EventRow:
    root, n, at, run, run_id, tenant, call, what, frm, to_state, by_whom, epoch, facts, hash = values
    return EventRow(
        at=at, root=root, run=run, run_id=run_id, tenant=tenant, call=call, what=what, frm=frm, to_state=to_state,
        by_whom=by_whom, epoch=epoch, facts=facts, n=n, hash=bytes(hash).hex(),
    )  # fmt: skip


def folded_events(found: Iterable[Sequence[Any]], joined: dict[int, CallRow] | None = None) -> list[EventRow]:
    """Return the folded events of these calls; each has the owners of its tree as its last value.

    ``joined``: remember the calls here, by number.
    """
    owners: dict[str, dict[int, str]] = {}
    events: list[EventRow] = []
    for values in found:
        *of_call, text = values
        row, folded = stored.join(of_call)
        if joined is not None:
            joined[values[0]] = row
        if folded is not stored.NOT_FOLDED:
            if text not in owners:
                owners[text] = stored.read_owners(text)
            events += stored.events_of(row, folded, owners[text])
    return events


async def _add_event(tx: Transaction, op: rows.AddEvent) -> int:
    assert op.at == moment(op.at), "an event's time is whole microseconds"
    tail = await tail_of(tx, op.root)
    tail.n += 1
    tail.head, tail.at, tail.is_longer = link(tail.head, tail.n, op.at, op.body), op.at, True
    await Execute(tx.statements.events.insert, event_values(op, tail.n, bytes.fromhex(tail.head)))
    return tail.n


def event_values(op: rows.AddEvent, n: int, hash: bytes | bytearray) -> tuple[Any, ...]:
    """Return the values of the row of an event."""
    return (
        op.root, n, op.at, op.run, op.run_id, op.tenant, op.call, op.what, op.frm, op.to_state, op.by_whom, op.epoch,
        op.facts, hash,
    )  # fmt: skip


LOWEST: Final = -(2**31)
"""Below every number of an event, also of one that was changed."""


async def chain_of(tx: Transaction, root: str, after: int, limit: int) -> list[EventRow]:
    """Return the events of a tree above this number, in order."""
    statements = tx.statements.events
    low, high = after or LOWEST, after + limit
    found, _, _ = await Execute(statements.of_root, (root, low, limit))
    events = [_event(values) for values in found]
    # The numbers of a chain have no gaps: first only those of one page. What has gaps, and the end, is read whole.
    found, _, _ = await Execute(statements.page_of_root, (root, *(low, high) * len(_GROUPS)))
    folded = [event for event in folded_events(found, tx.joined) if low < event.n <= high]
    if sum(event.n <= high for event in events) + len(folded) < limit:
        found, _, _ = await Execute(statements.folded_of_root, (root, *(low,) * len(_GROUPS)))
        folded = [event for event in folded_events(found, tx.joined) if event.n > low]
    events += folded
    events.sort(key=lambda event: event.n)
    return events[:limit]


async def _find_event(tx: Transaction, op: Find[EventRow]) -> EventRow | None:
    root, n = op.key
    found, _, _ = await Execute(tx.statements.events.find, (root, n))
    if found:
        return _event(found[0])
    found, _, _ = await Execute(tx.statements.events.page_of_root, (root, *(n - 1, n) * len(_GROUPS)))
    return next((event for event in folded_events(found) if event.n == n), None)


async def _list_events(tx: Transaction, op: List[EventRow]) -> Sequence[EventRow | FoldedEvent]:
    where = {column: value for column, _, value in op.where}
    tenant, limit = where.get("tenant"), op.limit
    assert limit is not None, "nobody reads all events at once"
    if op.order == ("root", "n"):
        return await _chains_above(tx, where["root"], limit)
    if op.order[0] == "at":
        assert op.after is not None, "a feed is read from a place"
        return await _feed(tx, op.after, tenant, limit)
    if op.order[0] == "-at" and limit == 1 and op.after is None:
        newest = await _newest_event(tx, tenant)
        return [] if newest is None else [newest]
    if op.order[0] == "-at":
        return await _feed_back(tx, op.after or LAST_PLACE, tenant, limit)
    after = op.after
    if op.order == ("-n",):
        assert limit == 1, "a tree is read from its beginning"
        after = ((await tail_of(tx, where["root"])).n - 1,)
    assert after is not None, "a tree is read from a number"
    events = await chain_of(tx, where["root"], after[0], limit) if after[0] >= 0 else []
    return [event for event in events if tenant is None or event.tenant == tenant]


async def _feed(tx: Transaction, place: tuple[Any, ...], tenant: str | None, limit: int) -> list[EventRow]:
    """Return events of all trees by time, tree and number, above a place.

    Event rows have an index by time. Folded events are found through the numbers of their calls, which sort by time:
    all of them up to a time are known once the calls of the window after that time were read.
    """
    statements = tx.statements.events
    at, root, n = place
    mine = () if tenant is None else (tenant,)
    found, _, _ = await Execute(statements.since[bool(mine)], (at, at, root, root, n, *mine, limit))
    events = [_event(values) for values in found]
    # A full page of rows says nothing about the rows behind its last one, and needs nothing from there.
    end = _place_of(events[-1]) if len(events) == limit else None
    low, size = number_at(at - FOLD_WINDOW_S - SKEW_S), max(limit, FEED_AT_ONCE)
    while True:
        params = (low, NUMBER_MAX, *(at,) * len(_GROUPS), *mine, size)
        found, _, _ = await Execute(statements.folded_since[bool(mine), ""], params)
        for event in folded_events(found):
            where = _place_of(event)
            if where > place and (end is None or where < end):
                events.append(event)
        if len(found) < size:
            break
        low = found[-1][0] + 1
        known = made_at(low) - SKEW_S  # the calls that were not read have no event before
        if end is not None and end[0] < known:
            break
        if sum(event.at < known for event in events) >= limit:
            events = [event for event in events if event.at < known]
            break
    events = [event for event in events if tenant is None or event.tenant == tenant]
    events.sort(key=_place_of)
    return events[:limit]


FEED_AT_ONCE: Final = 256
LAST_PLACE: Final = (1e12, "", 0)
"""After every event."""
NUMBER_MAX: Final = 2**63 - 1


def _place_of(event: EventRow) -> tuple[float, str, int]:
    return event.at, event.root, event.n


async def _feed_back(tx: Transaction, place: tuple[Any, ...], tenant: str | None, limit: int) -> list[EventRow]:
    """Return events of all trees below a place, the newest first.

    Folded events are found from the newest call down. Once there are enough events, only calls that may have a later one
    than the last of them are read: those of the window before it.
    """
    statements = tx.statements.events
    at, root, n = place
    mine = () if tenant is None else (tenant,)
    found, _, _ = await Execute(statements.before[bool(mine)], (at, at, root, root, n, *mine, limit))
    events = [_event(values) for values in found]
    high, size = min(number_at(at + SKEW_S), NUMBER_MAX), max(limit, FEED_AT_ONCE)
    while True:
        floor = events[limit - 1].at if len(events) >= limit else 0.0
        low = number_at(max(floor - FOLD_WINDOW_S - SKEW_S, 0.0))
        params = (low, high, *(floor,) * len(_GROUPS), at, *mine, size)
        found, _, _ = await Execute(statements.folded_before[bool(mine)], params)
        events += [
            event for event in folded_events(found) if _place_of(event) < place and tenant in (None, event.tenant)
        ]
        events.sort(key=_place_of, reverse=True)
        del events[limit:]
        if len(found) < size:
            return events
        high = found[-1][0] - 1


async def _newest_event(tx: Transaction, tenant: str | None) -> EventRow | None:
    statements = tx.statements.events
    mine = () if tenant is None else (tenant,)
    found, _, _ = await Execute(statements.newest[bool(mine)], mine)
    newest = _event(found[0]) if found else None
    high = NUMBER_MAX
    while True:
        # From the newest call down, only those with an event that may be later than the latest so far.
        at = 0.0 if newest is None else newest.at
        params = (number_at(at - FOLD_WINDOW_S - SKEW_S), high, *(at,) * len(_GROUPS), *mine, FEED_AT_ONCE)
        found, _, _ = await Execute(statements.folded_since[bool(mine), " desc"], params)
        for event in folded_events(found):
            if tenant in (None, event.tenant) and (newest is None or _place_of(event) > _place_of(newest)):
                newest = event
        if len(found) < FEED_AT_ONCE:
            return newest
        high = found[-1][0] - 1


# ---- Checkpoints


SEALED_AT_ONCE: Final = 50
_UNSEALED: Final = "case when parent = '' and (closed_at is null or n <> sealed) then 1 end"
"""What ``unsealed`` is, where the statements write it: events set it to 1, and only a checkpoint to null."""


class CheckpointStatements:
    """The statements on checkpoints, and on the ends of the chains that they cover."""

    def __init__(self, dialect: Dialect) -> None:
        mark = dialect.mark
        # An open tree may have folded events that its row does not know yet.
        news = "(closed_at is null or n <> sealed)"
        news = f"{dialect.unsealed} and {news}" if dialect.unsealed else news
        hint = dialect.index.format("amends_run_unsealed") if dialect.index else ""
        self.runs = (
            f"select uid, no, n, head, sealed, closed_at from amends_run{hint} where parent = '' and {news} and uid > {mark}"
            f" order by uid limit {mark}"
        )
        self.delegations = (
            f"select d.id, e.n, e.hash from amends_delegation d join amends_event e on e.root = d.id"
            f" where d.sealed = 0 and d.id > {mark} order by d.id, e.n limit {mark}"
        )
        names = f"({', '.join([mark] * SEALED_AT_ONCE)})"
        self.unlocked = f"select uid from amends_run where uid in {names}{dialect.skip}"
        ends = " ".join([f"when {mark} then {mark}"] * SEALED_AT_ONCE)
        self.seal_runs = f"update amends_run set sealed = case uid {ends} end where uid in {names}"
        self.mark_runs = (
            f"update amends_run set unsealed = {_UNSEALED} where uid in {names}"
            f" and coalesce(unsealed, 0) <> coalesce({_UNSEALED}, 0)"
            if dialect.marks
            else ""
        )
        self.directives = (
            "select d.id, e.n, e.hash from amends_directive d join amends_event e on e.root = d.id and e.n = d.seq"
            f" where {dialect.unsealed_directive} and d.id > {mark} order by d.id limit {mark}"
        )
        self.seal_others = tuple(
            f"update {table} set sealed = case id {ends} end where id in {names}"
            for table in ("amends_delegation", "amends_directive")
        )
        number = f"(select no from amends_run where uid = {mark})"
        self.folded = " union all ".join(
            f"select {n} as n, {hash} as hash from amends_call where root = {number} and {n} = {mark}"
            f" and {hash} is not null"
            for n, _, hash in _GROUPS
        )


async def _count_states(tx: Transaction, op: rows.CountStates) -> dict[str, int]:
    tenant = () if op.tenant is None else (op.tenant,)
    found, _, _ = await Execute(tx.statements.count_states(has_tenant=op.tenant is not None), (*tenant, op.limit))
    return {state: int(count) for state, count in found}


async def _find_waiting(tx: Transaction, op: rows.FindWaiting) -> list[str]:
    found, _, _ = await Execute(tx.statements.find_waiting(), (op.tenant, op.limit))
    return [str(uid) for (uid,) in found]


async def _count_calls(tx: Transaction, op: rows.CountCalls) -> dict[str, int]:
    [(_, _, count)], params = _terms(RUNS, (("root", "in", op.roots),))
    found, _, _ = await Execute(tx.statements.count_calls(count), params)
    return {root: int(calls) for root, calls in found}


async def _unusual_calls(tx: Transaction, op: rows.UnusualCalls) -> list[CallRow]:
    calls = tx.statements.calls
    some = List(CALLS, (("root", "in", op.roots),), (), op.limit)
    found = await _listed(tx, some, calls.of_trees, calls.names, "c.more is not null")
    return [stored.join(values)[0] for values in found]


async def _page_unsealed(tx: Transaction, op: rows.PageUnsealed) -> list[Head]:
    statements = tx.statements
    heads: list[Head] = []
    above = op.after
    while len(heads) < op.limit:
        size = op.limit - len(heads)
        found, _, _ = await Execute(statements.checkpoints.runs, (above, size))
        for uid, no, n, head, sealed, closed_at in found:
            end_n, end_head = n, bytes(head).hex() if head is not None else GENESIS
            if closed_at is None:
                longer, _, _ = await Execute(statements.events.folded_tail, (no, n) * 4)
                if longer:
                    end_n, end_head = longer[0][0], bytes(longer[0][2]).hex()
            if end_n != sealed:
                heads.append(Head(uid, end_n, end_head))
        if len(found) < size:
            break
        above = found[-1][0]
    for sql in (statements.checkpoints.delegations, statements.checkpoints.directives):
        found, _, _ = await Execute(sql, (op.after, op.limit))
        heads += [Head(id, n, bytes(hash).hex()) for id, n, hash in found]
    return sorted(heads, key=lambda head: head.root)[: op.limit]


async def _mark_sealed(tx: Transaction, op: rows.MarkSealed) -> None:
    statements = tx.statements.checkpoints
    for start in range(0, len(op.heads), SEALED_AT_ONCE):
        some = op.heads[start : start + SEALED_AT_ONCE]
        found, _, _ = await Execute(statements.unlocked, _sealed_at_once([head.root for head in some]))
        unlocked = {root for (root,) in found}
        for sql, is_run in ((statements.seal_runs, True), *((sql, False) for sql in statements.seal_others)):
            heads = _sealed_at_once([head for head in some if (head.root in unlocked) is is_run])
            if heads:
                ends = [one for head in heads for one in (head.root, head.n)]
                await Execute(sql, (*ends, *(head.root for head in heads)))
                if is_run and statements.mark_runs:
                    await Execute(statements.mark_runs, [head.root for head in heads])


def _sealed_at_once(values: list[T]) -> list[T]:
    """Return always the same count, the last repeated: each other count would be a new statement to prepare."""
    return values + values[-1:] * (SEALED_AT_ONCE - len(values))


# ---- Audits: ranges of trees, in the order of an index


TREES_AT_ONCE: Final = 200


class AuditStatements:
    """The statements of an audit, which reads everything in order."""

    def __init__(self, dialect: Dialect) -> None:
        mark, name = dialect.mark, dialect.name_of
        events = _select(dialect, "amends_event", EVENT_COLUMNS)
        columns = ", ".join(f"{one[:2]}{name(one[2:])}" for one in stored.READ)
        calls = (
            f"select {columns}, r.owners from amends_run r join amends_call c on c.root = r.no"
            " join amends_tool t on t.no = c.tool"
        )
        # The roots of some trees that have events, in order: runs, delegations and directives.
        self.roots = (
            f"select root from (select distinct root from amends_event where root > {mark} order by root limit {mark}) e"
            f" union select uid from (select uid from amends_run where root = uid and uid > {mark} order by uid"
            f" limit {mark}) r order by 1 limit {mark}"
        )
        self.events_between = f"{events} where root > {mark} and root <= {mark} order by root, n limit {mark}"
        self.folded_between = f"{calls} where r.uid > {mark} and r.uid <= {mark} order by r.uid limit {mark}"
        self.sealed = (
            f"select uid, id, tenant, sealed from amends_run where uid > {mark} and sealed <> 0 order by uid limit {mark}",
            *(
                f"select id, '', tenant, sealed from {table} where id > {mark} and sealed <> 0 order by id limit {mark}"
                for table in ("amends_delegation", "amends_directive")
            ),
        )
        self.halts = (
            "select halt, (select count(*) from amends_directive where kind = 'halt' and closed_at is null)"
            " from amends_ledger"
        )
        self.misfits = {name: text.replace("?", mark) for name, text in _misfits(name).items()}
        self.mismarked = _MISMARKED if dialect.attention else _MISMARKED[1:] if dialect.marks else ()


async def _chains_above(tx: Transaction, above: str, limit: int) -> list[EventRow | FoldedEvent]:
    statements = tx.statements.audit
    events: list[EventRow | FoldedEvent] = []
    tx.audited = (above, above, [])
    while len(events) < limit:
        found, _, _ = await Execute(statements.roots, (above, TREES_AT_ONCE, above, TREES_AT_ONCE, TREES_AT_ONCE))
        if not found:
            break
        roots = [values[0] for values in found]
        need = limit - len(events)
        found, _, _ = await Execute(statements.events_between, (above, roots[-1], need + 1))
        if len(found) > need:
            # Its last tree may have more, and what follows is not needed.
            roots = [root for root in roots if root < found[-1][0]]
        called: Sequence[Sequence[Any]] = ()
        if roots:
            size = need // 2 + 1  # an ordinary call has two events
            called, _, _ = await Execute(statements.folded_between, (above, roots[-1], size))
            if len(called) == size:
                roots = [root for root in roots if root < called[-1][1]]
        if not roots and not called:  # a tree before it may have folded events only
            called, _, _ = await Execute(statements.folded_between, (above, found[0][0], 1))
        if not roots:
            first = min(rows_of[0] for rows_of in (found[0][:1], *(values[1:2] for values in called[:1])))
            events += await chain_of(tx, first, 0, need)
            above = first
            continue
        some: list[EventRow | FoldedEvent]
        some, calls = audited.folded(values for values in called if values[1] <= roots[-1])
        if tx.audited[1] == above:  # else a tree was read alone in between
            tx.audited = (tx.audited[0], roots[-1], tx.audited[2] + calls)
        above = roots[-1]
        some += [_event(values) for values in found if values[0] <= above]
        some.sort(key=_IN_TREES)
        events += some
    return events[:limit]


_IN_TREES: Final = attrgetter("root", "n")


async def _calls_between(tx: Transaction, op: List[CallRow]) -> list[CallRow | FoldedCall]:
    """Return the calls of some trees; those whose events were read in the same snapshot are not read again."""
    above, *rest = (value for _, _, value in op.where)
    upto = rest[0] if rest else None
    known: list[CallRow | FoldedCall] = []
    if tx.audited is not None and tx.audited[0] == above:
        _, end, calls = tx.audited
        known = calls if upto is None else [call for call in calls if call.root <= upto]
        if upto is not None and upto <= end:
            return known
        op = changed(op, {"where": (("root", ">", end), *op.where[1:])})
    found = await _listed(tx, op, tx.statements.calls.of_trees, tx.statements.calls.names)
    return known + [tx.joined.get(values[0]) or stored.join(values)[0] for values in found]


# ---- Audits: what the store keeps beside the rows


def _misfits(name: Callable[[str], str]) -> dict[str, str]:
    """Return the statements that find what does not fit; each with a condition for the calls or runs of one tree."""
    call, key = name("call"), name("key")
    whose = "select c.no, r.uid, r.id, r.tenant"
    calls = (
        " from amends_call c left join amends_run r on r.no = c.root left join amends_tool t on t.no = c.tool"
        f" left join amends_ledger_key k on k.{key} = c.{key} and k.gen = c.gen and t.scope = 'ledger'"
        f" where (r.no is null or t.no is null or r.root <> r.uid"
        f" or (t.scope = 'ledger' and (k.{call} is null or k.{call} <> c.no)))"
    )
    keys = (
        f" from amends_ledger_key k left join amends_call c on c.no = k.{call} left join amends_run r on r.no = c.root"
        " left join amends_tool t on t.no = c.tool"
        f" where (c.no is null or c.{key} <> k.{key} or c.gen <> k.gen or t.no is null or t.scope <> 'ledger')"
    )
    names = (
        f"select n.id, n.{call}, c.more, r.uid, r.id, r.tenant from amends_call_name n"
        f" left join amends_call c on c.no = n.{call} left join amends_run r on r.no = c.root"
    )
    named = (
        "select c.no, c.more, r.uid, r.id, r.tenant from amends_call c left join amends_run r on r.no = c.root"
        " where c.more is not null and c.more <> replace(c.more, '\"id\":', '')"
    )
    ends = (
        "select r.uid, r.id, r.tenant, r.n, r.head, e.hash,"
        " (select max(x.n) from amends_event x where x.root = r.uid)"
        " from amends_run r left join amends_event e on e.root = r.uid and e.n = r.n"
        " where ((r.root = r.uid and (e.hash is null or e.hash <> r.head or e.at <> r.at or r.head is null"
        " or exists (select 1 from amends_event y where y.root = r.uid and y.n > r.n)))"
        " or (r.root <> r.uid and (r.n <> 0 or r.head is not null or r.at <> 0)))"
    )
    return {
        "calls": f"{whose}{calls}", "calls of": f"{whose}{calls} and r.uid = ?",
        "keys": f"{whose}{keys}", "keys of": f"{whose}{keys} and r.uid = ?",
        "names": names, "names of": f"{names} where r.uid = ?",
        "named": named, "named of": f"{named} and r.uid = ?",
        "ends": ends, "ends of": f"{ends} and r.root = ?",
    }  # fmt: skip


_MISMARKED: Final = (
    (
        f"""
        select r.uid, r.id, r.tenant, c.no from amends_call c join amends_run r on r.no = c.root
        where c.attention is distinct from case when {among(OPEN, "c.state")} then 1 end
        """,
        "call {} is missing in the index of those that need attention, or is there without reason",
    ),
    (
        f"select uid, id, tenant, 0 from amends_run r where coalesce(unsealed, 0) <> coalesce({_UNSEALED}, 0)",
        "it is missing in the index of the trees for the next checkpoint, or is there without reason",
    ),
)
"""What finds wrong marks, and what is said of them: nobody else would miss what an index does not have."""


async def _misfits_of(tx: Transaction, op: operations.Misfits) -> list[operations.Misfit]:
    statements, found = tx.statements.audit.misfits, list[operations.Misfit]()

    async def select(name: str) -> list[Any]:
        sql, params = (statements[f"{name} of"], (op.root,)) if op.root else (statements[name], ())
        values, _, _ = await Execute(sql, params)
        return values

    def add(of: Sequence[Any], text: str) -> None:
        uid, id, tenant = of
        found.append(operations.Misfit(uid or "", id or "", tenant, text))

    for no, *of in await select("calls"):
        add(of, f"call {call_id(no)} names a run, a tool or a key of the ledger that is not there")
    for no, *of in await select("keys"):
        add(of, "a key of the ledger names " + (f"call {call_id(no)}, which has another" if no else "no call"))
    names = dict[int, str]()
    for id, no, text, *of in await select("names"):
        names[no] = id
        if text is None or (stored.read_more(text) or {}).get("id") != id:
            add(of, f"call {id} has another number")
    for no, text, *of in await select("named"):
        said = (stored.read_more(text) or {}).get("id")
        if said is not None and names.get(no) != said:
            add(of, f"call {said} cannot be found by its name")
    for uid, id, tenant, n, head, hash, newest in await select("ends"):
        if hash is None and (newest or 0) < n:
            folded, _, _ = await Execute(tx.statements.checkpoints.folded, (uid, n) * len(_GROUPS))
            if folded and head is not None and bytes(folded[0][1]) == bytes(head):
                continue
        add((uid, id, tenant), f"its row says that event {n} is the last one that was written as a row")
    found += await _mismarked_of(tx, op.root)
    if op.root:
        return found
    values, _, _ = await Execute(tx.statements.audit.halts, ())
    if any(halt != standing for halt, standing in values):
        add(("", "", None), f"the ledger says that {values[0][0]} halts stand, and there are {values[0][1]}")
    return [*found, *await _wrongly_sealed(tx)]


async def _mismarked_of(tx: Transaction, root: str) -> list[operations.Misfit]:
    """Return the wrong marks of one tree, or of all."""
    found = list[operations.Misfit]()
    for sql, text in tx.statements.audit.mismarked:
        where, params = (f" and r.uid = {tx.statements.dialect.mark}", (root,)) if root else ("", ())
        values, _, _ = await Execute(f"{sql}{where}", params)
        found += [operations.Misfit(uid, id, tenant, text.format(call_id(no))) for uid, id, tenant, no in values]
    return found


async def _wrongly_sealed(tx: Transaction) -> list[operations.Misfit]:
    """Return the trees whose rows claim that checkpoints cover more events than they do.

    No later checkpoint would name these events, so that nobody could tell whether they were changed.
    """
    covered, found = dict[str, int](), list[operations.Misfit]()
    after = 0
    while page := await _list(tx, List(CHECKPOINTS, (), ("n",), CHECKPOINTS_AT_ONCE, (after,))):
        for row in page:
            try:
                heads = read_heads(row.heads)
            except ValueError:  # whoever checks the checkpoints tells it; what this one covered is not known
                return []
            for root, n, _ in heads:
                covered[root] = max(n, covered.get(root, 0))
        after = max(after + 1, page[-1].n)
    for sql in tx.statements.audit.sealed:
        above = ""
        while values := (await Execute(sql, (above, SEALED_PAGE)))[0]:
            for root, id, tenant, sealed in values:
                upto = covered.get(root, 0)
                if sealed > upto:
                    text = (
                        f"its row says that checkpoints cover its events up to {sealed}; they cover those up to {upto}"
                    )
                    found.append(operations.Misfit(root, id, tenant, text))
            above = values[-1][0]
    return found


CHECKPOINTS_AT_ONCE: Final = 20
SEALED_PAGE: Final = 10_000


_FINDS: Final[dict[str, Callable[[Transaction, Find[Any]], Flow[Any]]]] = {
    "run": _find_run, "call": _find_call, "event": _find_event,
}  # fmt: skip
_LISTS: Final[dict[str, Callable[[Transaction, List[Any]], Flow[Sequence[Any]]]]] = {
    "run": _list_runs, "call": _list_calls, "event": _list_events,
}  # fmt: skip
_ADDS: Final[dict[str, Callable[[Transaction, Any], Flow[None]]]] = {"run": _insert_run, "call": _insert_call}
_CHANGES: Final[dict[str, Callable[[Transaction, Any, Changes], Flow[Any]]]] = {
    "run": _update_run, "call": _update_call,
}  # fmt: skip

_ROWS: Final[dict[type[Any], Callable[[Transaction, Any], Flow[Any]]]] = {
    Find: _find,
    List: _list,
    Add: _add,
    Change: _change,
    ChangeMany: _change_many,
    Remove: _remove,
    rows.Now: _now,
    rows.AddEvent: _add_event,
    rows.PageUnsealed: _page_unsealed,
    rows.CountStates: _count_states,
    rows.FindWaiting: _find_waiting,
    rows.CountCalls: _count_calls,
    rows.UnusualCalls: _unusual_calls,
    rows.MarkSealed: _mark_sealed,
    operations.Misfits: _misfits_of,
}

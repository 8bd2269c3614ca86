"""The row operations as SQL, for every database, blocking or async.

``as_sql`` turns an operation of the ledger into one flow whose only requests are ``Execute``; a blocking or an async
connection answers them between its own BEGIN and COMMIT. The statements of one table and their handlers are
together below. Each statement is built once per dialect and shape: building it is slower than running it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from amends.encoding.chain import GENESIS, link, moment, proof, read_heads, read_place
from amends.encoding.dataclass import changed, dataclass, field
from amends.encoding.ids import call_id, made_at, number_at, number_of
from amends.encoding.lazy_import import import_on_use
from amends.errors import TransitionRefused
from amends.ledger import operations, rows
from amends.ledger.flow import Flow, Op
from amends.ledger.rows import (
    APPROVAL_COLUMNS,
    APPROVAL_STATES,
    CHECKPOINT_COLUMNS,
    DELEGATION_COLUMNS,
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
from amends.states import CALL_STATES, LIVE, NEW, RUN_STATES, STANDING, UNSETTLED, CallState, call_sources, run_sources
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

    remembers: bool = True
    """Whether plain statements write the end of the chain into the row of the run. SQLite does not: its one owner
    remembers it, which saves a page in every commit."""

    def name_of(self, column: str) -> str:
        """Return a column or table name, quoted against reserved words."""
        return f"{self.quote}{column}{self.quote}"


# One writer at a time (BEGIN IMMEDIATE): there is nobody to lock a row against.
SQLITE: Final = Dialect(
    "sqlite", mark="?", quote='"', lock="", skip="", clock="", index=" indexed by {}", remembers=False
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

    def forget(self) -> None:
        """Read the end of the chain again before the next use."""
        self.touch = -1


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

    def __init__(
        self, statements: Statements, clock: Callable[[], float] | None, kept: Mapping[str, Kept] | None = None
    ) -> None:
        self.statements = statements
        self.clock = clock
        self.kept: Mapping[str, Kept] = kept or {}
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
        self.locks = LockStatements(dialect)
        self.budgets = BudgetStatements(dialect)
        self.approvals = ApprovalStatements(dialect)
        self.marks = MarkStatements(dialect)
        self.calls = CallStatements(dialect)
        self.events = EventStatements(dialect)
        self.checkpoints = CheckpointStatements(dialect)
        self.audit = AuditStatements(dialect)
        self.runs = runs = _select(dialect, "amends_run", (*RUN_COLUMNS, *TAIL_COLUMNS))
        mark, lock = dialect.mark, dialect.lock
        # When a root ended whose payloads still exist, and the conditions of the partial index of those.
        some = ("parent = ''", "gone_at is null", "closed_at is not null")
        self.ended = (dialect.ended, ()) if dialect.ended else ("closed_at", some)
        mark_of_time = f"(select made_at from amends_mark where name = '{TIME}')"
        self.newest = f"select {dialect.clock or 'null'}, {mark_of_time}"
        self.find_run = f"{runs} where uid = {mark}"
        self.claim_root = f"{runs} where uid = {mark}{dialect.skip}"
        # Every transaction locks the root of a tree before it touches the tree: so there is no deadlock.
        self.root_of_run = f"{runs} where uid = (select root from amends_run where uid = {mark}){lock}" if lock else ""
        self.root_of_call = f"{runs} where no = (select root from amends_call where no = {mark}){lock}" if lock else ""
        self.find_run_by_id = f"{runs} where tenant = {mark} and id = {mark} order by generation desc limit 1{lock}"
        self.runs_of = f"{runs} where tenant = {mark} and id = {mark} order by generation"
        self.list_tree = f"{runs} where root = {mark} order by no"
        self.list_children = f"{runs} where root = {mark} and uid <> {mark} order by no"
        some_roots = f"({', '.join([mark] * rows.TREES_MAX)})"
        self.claim_trees = f"{runs} where uid in {some_roots}{dialect.skip}"
        self.peek_trees = f"{runs} where uid in {some_roots}"
        self.list_trees = f"{runs} where root in {some_roots} order by no"
        hint = dialect.index.format("amends_run_forked") if dialect.index else ""
        self.forked = (
            f"select distinct forked_from from amends_run{hint} where forked_from in {some_roots} and forked_from <> ''"
        )
        self.insert_run = f"insert into {_into(dialect, 'amends_run', (*RUN_COLUMNS, 'owners'))}"
        self.touch = (
            f"update amends_run set n = {mark}, head = {mark}, at = {mark}, owners = {mark}, touch = touch + 1"
            f" where uid = {mark}"
        )

    def update_run(self, changes: Changes) -> str:
        """Return the update of these columns of a run that is still in the state that was read.

        A new state is also guarded by the table of transitions: what was read may be wrong, the table may not.
        """
        to = changes.get("state")
        shape = ("run", to, *changes)
        text = self._shapes.get(shape)
        if text is None:
            name, mark = self.dialect.name_of, self.dialect.mark
            sets = ", ".join(f"{name(column)} = {mark}" for column in changes)
            guard = "" if to is None else f" and {among(state for state in run_sources(to) if state != NEW)}"
            text = f"update amends_run set {sets} where uid = {mark} and state = {mark}{guard}"
            self._shapes[shape] = text
        return text

    def page(self, terms: tuple[str, ...], order: str, *, index: str = "") -> str:
        """Return a select of runs with a limit; ``?`` in a term is a parameter."""
        shape = ("page", terms, order)
        text = self._shapes.get(shape)
        if text is None:
            where = f" where {' and '.join(terms)}" if terms else ""
            hint = self.dialect.index.format(index) if index else ""
            rest = f"{hint}{where} order by {order} limit ?".replace("?", self.dialect.mark)
            text = self._shapes[shape] = self.runs + rest
        return text


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
        stored.read_owners(owners), is_end=tx.statements.dialect.remembers,
    )  # fmt: skip
    kept = tx.kept.get(row.uid)
    if not tail.is_end and kept is not None and (kept.touch, kept.owner, kept.epoch) == (touch, row.owner, row.epoch):
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
    if op.known:
        return max(op.known, (await tail_of(tx, op.root)).at)
    found, _, _ = await Execute(tx.statements.newest, ())
    server, seen = found[0]
    tx.mark = max(tx.mark, seen or 0.0)
    clock: float = server if tx.clock is None else tx.clock()
    newest = (await tail_of(tx, op.root)).at if op.root else 0.0
    return moment(max(clock, newest, seen or 0.0))


async def _ledger_clock(tx: Transaction, _op: rows.LedgerClock) -> float:
    if tx.clock is not None:
        return moment(tx.clock())
    found, _, _ = await Execute(tx.statements.newest, ())
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
        return _run(found[0]) if found else None
    return _seen_run(tx, found[0])


async def _lock_tree(tx: Transaction, sql: str, key: str | int) -> RunRow | None:
    """Lock and return the root of the tree of this row; None where the database has no row locks."""
    found, _, _ = await Execute(sql, (key,)) if sql else ([], 0, 0)
    return _seen_run(tx, found[0]) if found else None


async def _find_run_by_id(tx: Transaction, op: rows.FindRunById) -> RunRow | None:
    found, _, _ = await Execute(tx.statements.find_run_by_id, (op.tenant, op.id))
    return _seen_run(tx, found[0]) if found else None


async def _insert_run(tx: Transaction, op: rows.InsertRun) -> None:
    row = op.row
    owners = {row.epoch: row.owner} if row.owner and row.uid == row.root else {}
    _, _, no = await Execute(tx.statements.insert_run, (*RUN_VALUES(row), stored.written_owners(owners)))
    tx.runs[row.uid] = row
    if row.uid == row.root:
        known = tx.tails.get(row.uid)
        tx.tails[row.uid] = known or Tail(owner=row.owner, epoch=row.epoch, owners=owners)
        tx.tails[row.uid].no = no or NOT_KNOWN


async def _update_run(tx: Transaction, op: rows.UpdateRun) -> RunRow:
    row, changes = op.row, op.changes
    _, matched, _ = await Execute(tx.statements.update_run(changes), (*changes.values(), row.uid, row.state))
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


async def _runs_of(tx: Transaction, op: operations.RunsOf) -> list[RunRow]:
    return await _runs(tx.statements.runs_of, (op.tenant, op.id))


async def _runs(sql: str, params: Sequence[Any]) -> list[RunRow]:
    found, _, _ = await Execute(sql, params)
    return [_run(values) for values in found]


async def _list_tree(tx: Transaction, op: rows.ListTree) -> list[RunRow]:
    root, tail, statements = tx.runs.get(op.root), tx.tails.get(op.root), tx.statements
    if root is None or tail is None or statements.dialect.lock:
        return await _runs(statements.list_tree, (op.root,))
    # One writer at a time: the root is as this transaction has read it, and most trees have no other run.
    found, _, _ = await Execute(statements.list_children, (op.root, op.root))
    tree = [_run(values) for values in found]
    tree.insert(sum(values[_RUN_WIDTH] < tail.no for values in found), root)
    return tree


async def _read_trees(tx: Transaction, op: rows.ReadTrees) -> list[rows.WholeTree]:
    statements = tx.statements
    assert 0 < len(op.roots) <= rows.TREES_MAX, "so many trees are read by one statement"
    sql = statements.peek_trees if op.peek else statements.claim_trees
    found, _, _ = await Execute(sql, _padded(op.roots))
    if not found:
        return []
    roots = {values[0]: _run(values) if op.peek else _seen_run(tx, values) for values in found}
    # Always the same count, the last repeated: each other count would be a new statement to prepare.
    mine = _padded(tuple(roots))
    runs: dict[str, list[RunRow]] = {uid: [] for uid in roots}
    calls: dict[str, list[CallRow]] = {uid: [] for uid in roots}
    for run in await _runs(statements.list_trees, mine):
        runs[run.root].append(run)
    found, _, _ = await Execute(statements.calls.of_trees, mine)
    for values in found:
        call = stored.join(values)[0] if op.peek else _seen_call(tx, values)
        calls[call.root].append(call)
    found, _, _ = await Execute(statements.forked, mine)
    forked = {uid for (uid,) in found}
    return [
        rows.WholeTree(roots[uid], tuple(runs[uid]), tuple(calls[uid]), uid in forked)
        for uid in op.roots
        if uid in roots
    ]


def _padded(roots: tuple[str, ...]) -> tuple[str, ...]:
    return roots + roots[-1:] * (rows.TREES_MAX - len(roots))


async def _list_due(tx: Transaction, op: rows.ListDue) -> list[RunRow]:
    terms, params = _where((("wake_at <= ?", op.now), ("tenant = ?", op.tenant)))
    sql = tx.statements.page(terms, "wake_at, no", index="amends_run_wake")
    return await _runs(sql, (*params, op.limit))


async def _list_owned(tx: Transaction, op: rows.ListOwned) -> list[RunRow]:
    terms, params = _where((("tenant = ?", op.tenant),))
    sql = tx.statements.page(("owner <> ''", *terms), "no", index="amends_run_owned")
    return await _runs(sql, (*params, op.limit))


async def _list_forks(tx: Transaction, op: rows.ListForks) -> list[RunRow]:
    # The second term is the condition of the partial index.
    sql = tx.statements.page(("forked_from = ?", "forked_from <> ''"), "no", index="amends_run_forked")
    return await _runs(sql, (op.root, op.limit))


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
    sql = tx.statements.page(terms, "created_at desc, uid desc", index="amends_run_created")
    return await _runs(sql, (*params, op.limit))


async def _page_closed(tx: Transaction, op: rows.PageClosed) -> list[RunRow]:
    ended, some = tx.statements.ended
    terms, params = _where(((f"{ended} < ?", op.before), ("tenant = ?", op.tenant)))
    if op.after is not None:
        closed_at, uid = op.after  # not as a pair, as above
        terms = (*terms, f"{ended} >= ? and ({ended} > ? or uid > ?)")
        params = (*params, closed_at, closed_at, uid)
    sql = tx.statements.page((*some, *terms), f"{ended}, uid", index="amends_run_closed")
    return await _runs(sql, (*params, op.limit))


def _where(terms: Iterable[tuple[str, Any]]) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """Return the terms that have a value, and their values."""
    given = [(term, value) for term, value in terms if value is not None]
    return tuple(term for term, _ in given), tuple(value for _, value in given)


def _is_one_of(count: int, column: str = "state") -> str:
    return _any([f"{column} = ?"] * count)


def among(states: Iterable[str], column: str = "state") -> str:
    """Return the condition that the state is one of these."""
    return _any([f"{column} = '{state}'" for state in states])


def _any(terms: list[str]) -> str:
    # Not IN: SQLite builds a tree of the values for it, which took a third of the time of a settlement.
    return f"({' or '.join(terms)})"


# ---- Calls

# ``amends.stores.calls`` says how a call is stored.


FROM_CALLS: Final = " from amends_call c join amends_run r on r.no = c.root join amends_tool t on t.no = c.tool"


class CallStatements:
    """The statements on calls, and on the versions of tools."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect, self._shapes = dialect, dict[tuple[Any, ...], str]()
        mark, name = dialect.mark, dialect.name_of
        key = f"c.{name('key')}"
        columns = ", ".join(f"{one[:2]}{name(one[2:])}" for one in stored.READ)
        self.select = f"select {columns}{FROM_CALLS}"
        self._in_order = f"select {dialect.in_order}{columns}{FROM_CALLS}"
        # From the run to its calls: a planner that begins with the calls would read them all.
        rooted = f"select {columns} from amends_run r join amends_call c on c.root = r.no join amends_tool t on t.no = c.tool"
        self.rooted = rooted
        self.is_open = dialect.is_open or among(OPEN, "c.state")
        self.find = f"{self.select} where c.no = {mark}"
        self.last_number = f"select max(no) from amends_call where no < {mark}"
        self.find_name = f"select {name('call')} from amends_call_name where id = {mark}"
        self.find_key = f"{rooted} where r.uid = {mark} and {key} = {mark} order by c.gen desc limit 1"
        self.generations = f"{rooted} where r.uid = {mark} and {key} = {mark} order by c.gen"
        self.of_trees = f"{rooted} where r.uid in ({', '.join([mark] * rows.TREES_MAX)}) order by c.n"
        wide = (
            f"select {columns} from amends_ledger_key k join amends_call c on c.no = k.{name('call')}"
            f" join amends_run r on r.no = c.root join amends_tool t on t.no = c.tool where k.{name('key')} = {mark}"
        )
        self.find_wide_key = f"{wide} order by k.gen desc limit 1"
        self.wide_generations = f"{wide} order by k.gen"
        self.insert = f"insert into {_into(dialect, 'amends_call', stored.COLUMNS)}{dialect.unless_taken}"
        self.is_taken = "" if dialect.unless_taken else f"select 1 from amends_call where no = {mark}"
        self.insert_name = f"insert into {_into(dialect, 'amends_call_name', ('id', 'call'))}"
        self.insert_wide = f"insert into {_into(dialect, 'amends_ledger_key', ('key', 'gen', 'call'))}"
        tools = ("name", *stored.TOOL[1:])
        self.find_tool = f"select no from amends_tool where {' and '.join(f'{one} = {mark}' for one in tools)}"
        self.add_tool = dialect.if_absent.format(_into(dialect, "amends_tool", tools))

    def update(self, columns: tuple[str, ...], to: CallState | None) -> str:
        """Return the update of these columns of a call that is still in the state that was read; see ``update_run``."""
        shape = ("update", to, *columns)
        text = self._shapes.get(shape)
        if text is None:
            name, mark = self._dialect.name_of, self._dialect.mark
            sets = ", ".join(f"{name(column)} = {mark}" for column in columns)
            guard = "" if to is None else f" and {among(state for state in call_sources(to) if state != NEW)}"
            text = f"update amends_call set {sets} where no = {mark} and state = {mark}{guard}"
            self._shapes[shape] = text
        return text

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

    def of_root(self, states: tuple[str, ...]) -> str:
        """Return the select of a root's calls, in these states; none: in any.

        The states are part of the text: SQLite plans a statement anew each time if their values could decide the plan.
        """
        shape = ("of root", states)
        text = self._shapes.get(shape)
        if text is None:
            assert set(states) <= set(CALL_STATES), f"not all of {states} are states of calls"
            some = f" and {among(states, 'c.state')}" if states else ""
            text = f"{self.rooted} where r.uid = ?{some} order by c.n".replace("?", self._dialect.mark)
            self._shapes[shape] = text
        return text

    def page(self, terms: tuple[str, ...], *, index: str = "") -> str:
        """Return a select with a limit, newest first; ``?`` in a term is a parameter."""
        shape = ("page", terms)
        text = self._shapes.get(shape)
        if text is None:
            where = f" where {' and '.join(terms)}" if terms else ""
            hint = self._dialect.index.format(index) if index else ""
            select = self._in_order.replace("amends_call c", f"amends_call c{hint}")
            text = f"{select}{where} order by c.no desc limit ?".replace("?", self._dialect.mark)
            self._shapes[shape] = text
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


async def _calls(sql: str, params: Sequence[Any]) -> list[CallRow]:
    found, _, _ = await Execute(sql, params)
    return [stored.join(values)[0] for values in found]


async def _find_call(tx: Transaction, op: rows.FindCall) -> CallRow | None:
    seen = tx.calls.get(op.id)
    if seen is not None:
        return seen
    number = await _number(tx, op.id)
    if number is None:
        return None
    await _lock_tree(tx, tx.statements.root_of_call, number)
    found, _, _ = await Execute(tx.statements.calls.find, (number,))
    return _seen_call(tx, found[0]) if found else None


async def _find_key(tx: Transaction, op: rows.FindKey) -> CallRow | None:
    calls, key = tx.statements.calls, stored.pack(op.key)
    sql, params = (calls.find_key, (op.root, key)) if op.root else (calls.find_wide_key, (key,))
    found, _, _ = await Execute(sql, params)
    return _seen_call(tx, found[0]) if found else None


async def _list_generations(tx: Transaction, op: rows.ListGenerations) -> list[CallRow]:
    calls, key = tx.statements.calls, stored.pack(op.key)
    if op.root:
        return await _calls(calls.generations, (op.root, key))
    return await _calls(calls.wide_generations, (key,))


async def _list_calls(tx: Transaction, op: rows.ListCalls) -> list[CallRow]:
    return await _calls(tx.statements.calls.of_root(op.states), (op.root,))


async def _page_calls(tx: Transaction, op: rows.PageCalls) -> list[CallRow]:
    states = [state for state in CALL_STATES if state in op.states]
    if op.states and not states:
        return []
    before = None if op.before is None else await _number(tx, op.before)
    terms, params = _where((("r.tenant = ?", op.tenant), ("c.no < ?", before), ("t.name = ?", op.tool or None)))
    if states:
        terms, params = (*terms, _is_one_of(len(states), "c.state")), (*params, *states)
    is_open = bool(states) and set(states) <= set(OPEN)
    if is_open:
        # The index is used only if its condition is part of the statement.
        terms = (*terms, tx.statements.calls.is_open)
    sql = tx.statements.calls.page(terms, index="amends_call_open" if is_open else "")
    return await _calls(sql, (*params, op.limit))


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


async def _insert_call(tx: Transaction, op: rows.InsertCall) -> None:
    row, statements = op.row, tx.statements.calls
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
    if await _count(statements.insert, tuple(values.get(name) for name in stored.COLUMNS)) != 1:
        raise rows.IdTaken(row.id)
    if row.scope == "ledger":
        await Execute(statements.insert_wide, (values["key"], row.generation, values["no"]))
    tx.calls[row.id], tx.folded[row.id], tx.numbers[row.id] = row, stored.NOT_FOLDED, values["no"]


PAYLOADS: Final = ("args", "result", "more")
"""The columns that change when payloads are removed."""
CALLS_AT_ONCE: Final = (4, 16, 64)
"""Of how many calls one statement changes the payloads; of fewer, the last is repeated."""


async def _update_calls(tx: Transaction, op: rows.UpdateCalls) -> None:
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
    was, text = stored.more(old, before, root, folded), stored.more(new, after, root, kept)
    if text != was:
        sets["more"] = text
    return number, new, kept, sets


async def _update_call(tx: Transaction, op: rows.UpdateCall) -> CallRow:
    number, new, kept, sets = await _changed_call(tx, op.row, op.changes)
    await _write_call(tx, op.row, op.changes, number, new, kept, sets)
    return new


async def _write_call(
    tx: Transaction, row: CallRow, changes: Changes, number: int, new: CallRow, kept: Folded, sets: dict[str, Any]
) -> None:
    if "state" in changes:
        sets.setdefault("state", new.state)
    if sets:
        sql = tx.statements.calls.update(tuple(sets), changes.get("state"))
        _, matched, _ = await Execute(sql, (*sets.values(), number, row.state))
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
    for name, columns in stored.COVERED:
        if not getattr(folded, name) or all(getattr(new, column) == getattr(old, column) for column in columns):
            continue
        tail = await tail_of(tx, old.root)
        alone = stored.only(folded, name)
        for event in stored.events_of(old, alone, tail.owners):
            if not event.hash:
                continue
            await Execute(tx.statements.events.insert, (*EVENT_VALUES(event), bytes.fromhex(event.hash)))
        gone: dict[str, Any] = {name: b""}
        if name != "settled_hash":
            gone["comp_n" if name == "comp_hash" else "undone_n"] = 0
        kept = changed(kept, gone)
    if not kept.comp_hash and not kept.undone_hash:
        kept = replace(kept, comp_epoch=0)
    if kept.settled_hash and new.result != old.result and not folded.result_proof:
        kept = replace(kept, result_proof=proof(old.result or ""))
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
        late = " or ".join(f"c.{at} >= {mark}" for _, at, _ in _GROUPS)
        folded_since = f"select {dialect.in_order}{columns}, r.owners{FROM_CALLS} where c.no between {mark} and {mark} and ({late})"
        self.folded_since = {
            (some, order): f"{folded_since}{f' and r.{mine}' if some else ''} order by c.no{order} limit {mark}"
            for some in (False, True)
            for order in ("", " desc")
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


def event_values(op: rows.AddEvent, n: int, hash: bytes) -> tuple[Any, ...]:
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


async def _page_events(tx: Transaction, op: rows.PageEvents) -> list[EventRow]:
    if op.root is not None:
        events = await chain_of(tx, op.root, int(op.after or 0), op.limit)
        return [event for event in events if op.tenant is None or event.tenant == op.tenant]
    return await _feed(tx, op)


async def _feed(tx: Transaction, op: rows.PageEvents) -> list[EventRow]:
    """Return events of all trees by time, tree and number, above a place.

    Event rows have an index by time. Folded events are found through the numbers of their calls, which sort by time:
    all of them up to a time are known once the calls of the window after that time were read.
    """
    statements, place = tx.statements.events, read_place(str(op.after or ""))
    at, root, n = place
    mine = () if op.tenant is None else (op.tenant,)
    found, _, _ = await Execute(statements.since[bool(mine)], (at, at, root, root, n, *mine, op.limit))
    events = [_event(values) for values in found]
    # A full page of rows says nothing about the rows behind its last one, and needs nothing from there.
    end = _place_of(events[-1]) if len(events) == op.limit else None
    low, size = number_at(at - FOLD_WINDOW_S - SKEW_S), max(op.limit, FEED_AT_ONCE)
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
        if sum(event.at < known for event in events) >= op.limit:
            events = [event for event in events if event.at < known]
            break
    events = [event for event in events if op.tenant is None or event.tenant == op.tenant]
    events.sort(key=_place_of)
    return events[: op.limit]


FEED_AT_ONCE: Final = 256
NUMBER_MAX: Final = 2**63 - 1


def _place_of(event: EventRow) -> tuple[float, str, int]:
    return event.at, event.root, event.n


async def _newest_event(tx: Transaction, op: rows.NewestEvent) -> EventRow | None:
    statements = tx.statements.events
    if op.root is not None:
        tail = await tail_of(tx, op.root)
        found_here = await chain_of(tx, op.root, tail.n - 1, 1) if tail.n else []
        return next((event for event in found_here if op.tenant is None or event.tenant == op.tenant), None)
    mine = () if op.tenant is None else (op.tenant,)
    found, _, _ = await Execute(statements.newest[bool(mine)], mine)
    newest = _event(found[0]) if found else None
    high = NUMBER_MAX
    while True:
        # From the newest call down, only those with an event that may be later than the latest so far.
        at = 0.0 if newest is None else newest.at
        params = (number_at(at - FOLD_WINDOW_S - SKEW_S), high, *(at,) * len(_GROUPS), *mine, FEED_AT_ONCE)
        found, _, _ = await Execute(statements.folded_since[bool(mine), " desc"], params)
        for event in folded_events(found):
            if op.tenant in (None, event.tenant) and (newest is None or _place_of(event) > _place_of(newest)):
                newest = event
        if len(found) < FEED_AT_ONCE:
            return newest
        high = found[-1][0] - 1


# ---- Approvals and delegations


APPROVAL_VALUES: Final = attrgetter(*APPROVAL_COLUMNS)
DELEGATION_VALUES: Final = attrgetter(*DELEGATION_COLUMNS)


class ApprovalStatements:
    """The statements on approvals and delegations."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._shapes: dict[tuple[Any, ...], str] = {}
        mark, lock = dialect.mark, dialect.lock
        self._approvals = _select(dialect, "amends_approval", APPROVAL_COLUMNS)
        # As for calls: the root of the tree is locked first.
        root = f"(select root from amends_approval where id = {mark})"
        self.lock_root = f"select uid from amends_run where uid = {root}{lock}" if lock else ""
        self.find = f"{self._approvals} where id = {mark}"
        self.of_root = f"{self._approvals} where root = {mark} order by no"
        use = dialect.name_of("use_key")
        # The second condition is that of the partial index.
        self.find_use = f"select 1 from amends_approval where {use} = {mark} and {use} <> '' and state = 'used' limit 1"
        self.insert = f"insert into {_into(dialect, 'amends_approval', APPROVAL_COLUMNS)}"
        self.delegate = dialect.if_absent.format(_into(dialect, "amends_delegation", DELEGATION_COLUMNS))
        delegations = _select(dialect, "amends_delegation", DELEGATION_COLUMNS)
        self.delegated = f"{delegations} where tenant = {mark} and to_whom = {mark} order by made_at, id"

    def update(self, names: tuple[str, ...]) -> str:
        """Return the update of these columns of a request that is still in the state that was read."""
        text = self._shapes.get(names)
        if text is None:
            mark = self._dialect.mark
            sets = ", ".join(f"{self._dialect.name_of(name)} = {mark}" for name in names)
            text = self._shapes[names] = f"update amends_approval set {sets} where id = {mark} and state = {mark}"
        return text

    def page(self, terms: tuple[str, ...], *, one_state: bool) -> str:
        """Return a select with a limit, newest first; the index of one state has this order."""
        shape = ("page", one_state, *terms)
        text = self._shapes.get(shape)
        if text is None:
            where = f" where {' and '.join(terms)}" if terms else ""
            hint = self._dialect.index.format("amends_approval_state") if one_state else ""
            rest = f"{hint}{where} order by no desc limit ?".replace("?", self._dialect.mark)
            text = self._shapes[shape] = self._approvals + rest
        return text

    def tells(self, *, of_tenant: bool) -> str:
        """Return the select of the requests whose notice is due, longest overdue first."""
        some = " and tenant = ?" if of_tenant else ""
        hint = self._dialect.index.format("amends_approval_tell")
        rest = f"{hint} where tell_at <= ?{some} order by tell_at, no limit ?"
        return self._approvals + rest.replace("?", self._dialect.mark)


async def _find_approval(tx: Transaction, op: rows.FindApproval) -> ApprovalRow | None:
    statements = tx.statements.approvals
    if statements.lock_root:
        await Execute(statements.lock_root, (op.id,))
    return await _first(ApprovalRow, statements.find, (op.id,))


async def _approvals_of(tx: Transaction, op: rows.ApprovalsOf) -> list[ApprovalRow]:
    return await _all(ApprovalRow, tx.statements.approvals.of_root, (op.root,))


BEFORE: Final = "no < (select last.no from amends_approval last where last.id = ?)"
"""Requests are ordered by their numbers; a page begins below the last one of the page before."""


async def _page_approvals(tx: Transaction, op: rows.PageApprovals) -> list[ApprovalRow]:
    states = [state for state in APPROVAL_STATES if state in op.states]
    if op.states and not states:
        return []
    terms: list[str] = []
    params: list[Any] = []
    if states:
        terms.append(f"({' or '.join(['state = ?'] * len(states))})")
        params += states
    for term, value in (("tenant = ?", op.tenant), (BEFORE, op.before)):
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
        select = _select(dialect, "amends_budget", SLICE_COLUMNS)
        self.find = f"{select} where name = {mark}{dialect.lock}"
        self.add = dialect.if_absent.format(_into(dialect, "amends_budget", SLICE_COLUMNS))
        self.drop = f"delete from amends_budget where root = {mark} and root <> ''"
        self.page = f"{select} where tenant = {mark} and name > {mark} order by name limit {mark}"

    def update(self, columns: tuple[str, ...]) -> str:
        """Return the update of these columns of a slice."""
        sets = ", ".join(f"{self._dialect.name_of(column)} = {self._dialect.mark}" for column in columns)
        return f"update amends_budget set {sets} where name = {self._dialect.mark}"


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
        self._locks = _select(dialect, "amends_lock", LOCK_COLUMNS)
        waits = _select(dialect, "amends_wait", WAIT_COLUMNS)
        self.take_lock = dialect.if_absent.format(_into(dialect, "amends_lock", LOCK_COLUMNS))
        self.drop_lock = f"delete from amends_lock where root = {mark} and name = {mark}"
        self.free_locks = f"delete from amends_lock where root = {mark}"
        self.locks_of = f"{self._locks} where root = {mark} order by name"
        self.page_locks = f"{self._locks} where tenant = {mark} and name > {mark} order by name limit {mark}"
        self.see_wait = f"update amends_wait set seen_at = {mark} where root = {mark} and name = {mark}"
        self.add_wait = f"insert into {_into(dialect, 'amends_wait', WAIT_COLUMNS)}"
        self.waits_of = f"{waits} where root = {mark} order by name"
        self.waits_for = f"{waits} where tenant = {mark} and name = {mark} order by since, root"

    def find_locks(self, names: int) -> str:
        """Return the select of a tenant's locks by this number of names."""
        return f"{self._locks} where tenant = {self._mark} and {self._named(names)} order by name"

    def drop_waits(self, names: int) -> str:
        """Return the delete of a root's waits by this number of names; 0: of all its waits."""
        some = f" and {self._named(names)}" if names else ""
        return f"delete from amends_wait where root = {self._mark}{some}"

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
        self.find = f"{_select(dialect, 'amends_mark', MARK_COLUMNS)} where name = {dialect.mark}"
        self.add = dialect.if_absent.format(_into(dialect, "amends_mark", MARK_COLUMNS))
        # Skipped when locked: its holder moves it to about the same moment.
        self.time = f"select made_at from amends_mark where name = '{TIME}'{dialect.skip}"
        self.move = f"update amends_mark set made_at = {dialect.mark} where name = '{TIME}'"


async def _find_mark(tx: Transaction, op: rows.FindMark) -> MarkRow | None:
    return await _first(MarkRow, tx.statements.marks.find, (op.name,))


async def _add_mark(tx: Transaction, op: rows.AddMark) -> bool:
    return await _count(tx.statements.marks.add, MARK_VALUES(op.row)) == 1


async def _move_time(tx: Transaction, op: rows.MoveTime) -> None:
    found, _, _ = await Execute(tx.statements.marks.time, ())
    if found and found[0][0] < op.at:
        await Execute(tx.statements.marks.move, (op.at,))
        tx.mark = max(tx.mark, op.at)


# ---- Checkpoints


CHECKPOINT_VALUES: Final = attrgetter(*CHECKPOINT_COLUMNS)
SEALED_AT_ONCE: Final = 50


class CheckpointStatements:
    """The statements on checkpoints, and on the ends of the chains that they cover."""

    def __init__(self, dialect: Dialect) -> None:
        mark = dialect.mark
        checkpoints = _select(dialect, "amends_checkpoint", CHECKPOINT_COLUMNS)
        self.newest = f"{checkpoints} order by n desc limit 1"
        self.page = f"{checkpoints} where n > {mark} order by n limit {mark}"
        self.add = dialect.if_absent.format(_into(dialect, "amends_checkpoint", CHECKPOINT_COLUMNS))
        # An open tree may have folded events that its row does not know yet.
        news = f"{dialect.unsealed} and n <> sealed" if dialect.remembers else "(closed_at is null or n <> sealed)"
        hint = dialect.index.format("amends_run_unsealed") if dialect.index else ""
        self.runs = (
            f"select uid, no, n, head, sealed from amends_run{hint} where parent = '' and {news} and uid > {mark}"
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
        self.seal_delegations = f"update amends_delegation set sealed = case id {ends} end where id in {names}"
        self.row = f"select n, hash from amends_event where root = {mark} and n = {mark}"
        number = f"(select no from amends_run where uid = {mark})"
        self.folded = " union all ".join(
            f"select {n} as n, {hash} as hash from amends_call where root = {number} and {n} = {mark}"
            f" and {hash} is not null"
            for n, _, hash in _GROUPS
        )


async def _newest_checkpoint(tx: Transaction, _op: rows.NewestCheckpoint) -> CheckpointRow | None:
    return await _first(CheckpointRow, tx.statements.checkpoints.newest, ())


async def _page_checkpoints(tx: Transaction, op: rows.PageCheckpoints) -> list[CheckpointRow]:
    return await _all(CheckpointRow, tx.statements.checkpoints.page, (op.after, op.limit))


async def _add_checkpoint(tx: Transaction, op: rows.AddCheckpoint) -> bool:
    return await _count(tx.statements.checkpoints.add, CHECKPOINT_VALUES(op.row)) == 1


async def _page_unsealed(tx: Transaction, op: rows.PageUnsealed) -> list[Head]:
    statements = tx.statements
    heads: list[Head] = []
    above = op.after
    while len(heads) < op.limit:
        size = op.limit - len(heads)
        found, _, _ = await Execute(statements.checkpoints.runs, (above, size))
        for uid, no, n, head, sealed in found:
            end_n, end_head = n, bytes(head).hex() if head is not None else GENESIS
            if not statements.dialect.remembers:
                longer, _, _ = await Execute(statements.events.folded_tail, (no, n) * 4)
                if longer:
                    end_n, end_head = longer[0][0], bytes(longer[0][2]).hex()
            if end_n != sealed:
                heads.append(Head(uid, end_n, end_head))
        if len(found) < size:
            break
        above = found[-1][0]
    found, _, _ = await Execute(statements.checkpoints.delegations, (op.after, op.limit))
    heads += [Head(id, n, bytes(hash).hex()) for id, n, hash in found]
    return sorted(heads, key=lambda head: head.root)[: op.limit]


async def _mark_sealed(tx: Transaction, op: rows.MarkSealed) -> None:
    statements = tx.statements.checkpoints
    for start in range(0, len(op.heads), SEALED_AT_ONCE):
        some = op.heads[start : start + SEALED_AT_ONCE]
        found, _, _ = await Execute(statements.unlocked, _sealed_at_once([head.root for head in some]))
        unlocked = {root for (root,) in found}
        for sql, is_run in ((statements.seal_runs, True), (statements.seal_delegations, False)):
            heads = _sealed_at_once([head for head in some if (head.root in unlocked) is is_run])
            if heads:
                ends = [one for head in heads for one in (head.root, head.n)]
                await Execute(sql, (*ends, *(head.root for head in heads)))


def _sealed_at_once(values: list[T]) -> list[T]:
    """Return always the same count, the last repeated: each other count would be a new statement to prepare."""
    return values + values[-1:] * (SEALED_AT_ONCE - len(values))


async def _hashes_at(tx: Transaction, op: rows.HashesAt) -> list[tuple[str, int, str]]:
    statements = tx.statements.checkpoints
    hashes: list[tuple[str, int, str]] = []
    for root, n in dict.fromkeys(op.places):
        found, _, _ = await Execute(statements.row, (root, n))
        if not found:
            found, _, _ = await Execute(statements.folded, (root, n) * len(_GROUPS))
        hashes += [(root, n, bytes(hash).hex()) for n, hash in found]
    return hashes


# ---- Audits: ranges of trees, in the order of an index


AUDITED: Final = {"amends_approval": APPROVAL_COLUMNS, "amends_delegation": DELEGATION_COLUMNS}
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
        # The roots of some trees that have events, in order: runs, and delegations.
        self.roots = (
            f"select root from (select distinct root from amends_event where root > {mark} order by root limit {mark}) e"
            f" union select uid from (select uid from amends_run where root = uid and uid > {mark} order by uid"
            f" limit {mark}) r order by 1 limit {mark}"
        )
        self.events_between = f"{events} where root > {mark} and root <= {mark} order by root, n limit {mark}"
        self.folded_between = f"{calls} where r.uid > {mark} and r.uid <= {mark} order by r.uid limit {mark}"
        self.between: dict[tuple[str, bool], str] = {}
        for ends in (True, False):
            upto = f" and {{0}} <= {mark}" if ends else ""
            runs = _select(dialect, "amends_run", RUN_COLUMNS)
            hint = dialect.index.format("amends_run_root") if dialect.index else ""
            self.between["runs", ends] = (
                f"{runs}{hint} where root > {mark}{upto.format('root')} order by root limit {mark}"
            )
            self.between["calls", ends] = (
                f"{calls} where r.uid > {mark}{upto.format('r.uid')} order by r.uid limit {mark}"
            )
            for table, fields_of in AUDITED.items():
                root = "id" if table == "amends_delegation" else "root"
                hint = dialect.index.format(f"{table}_root") if dialect.index and root == "root" else ""
                select = f"{_select(dialect, table, fields_of)}{hint} where {root} > {mark}"
                self.between[table, ends] = f"{select}{upto.format(root)} order by {root} limit {mark}"
        self.delegation = f"{_select(dialect, 'amends_delegation', DELEGATION_COLUMNS)} where id = {mark}"
        self.sealed = (
            f"select uid, id, tenant, sealed from amends_run where uid > {mark} and sealed <> 0 order by uid limit {mark}",
            f"select id, '', tenant, sealed from amends_delegation where id > {mark} and sealed <> 0 order by id limit {mark}",
        )
        self.misfits = {name: text.replace("?", mark) for name, text in _misfits(name).items()}


async def _chain_of(tx: Transaction, op: operations.ChainOf) -> list[EventRow]:
    return await chain_of(tx, op.root, op.after, op.limit)


async def _chains_above(tx: Transaction, op: operations.ChainsAbove) -> list[EventRow | FoldedEvent]:
    statements = tx.statements.audit
    events: list[EventRow | FoldedEvent] = []
    above = op.root
    tx.audited = (above, above, [])
    while len(events) < op.limit:
        found, _, _ = await Execute(statements.roots, (above, TREES_AT_ONCE, above, TREES_AT_ONCE, TREES_AT_ONCE))
        if not found:
            break
        roots = [values[0] for values in found]
        need = op.limit - len(events)
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
    return events[: op.limit]


_IN_TREES: Final = attrgetter("root", "n")


async def _calls_between(tx: Transaction, op: operations.CallsBetween) -> list[CallRow | FoldedCall]:
    """Return the calls of some trees; those whose events were read in the same snapshot are not read again."""
    above = op.above
    known: list[CallRow | FoldedCall] = []
    if tx.audited is not None and tx.audited[0] == above:
        _, end, calls = tx.audited
        known = calls if op.upto is None else [call for call in calls if call.root <= op.upto]
        if op.upto is not None and op.upto <= end:
            return known
        above = end
    params = (above, op.limit) if op.upto is None else (above, op.upto, op.limit)
    found, _, _ = await Execute(tx.statements.audit.between["calls", op.upto is not None], params)
    return known + [tx.joined.get(values[0]) or stored.join(values[:-1])[0] for values in found]


def _between(table: str, make: Callable[..., Any]) -> Callable[[Transaction, Any], Flow[Any]]:
    async def between(tx: Transaction, op: operations.RunsBetween) -> list[Any]:
        params = (op.above, op.limit) if op.upto is None else (op.above, op.upto, op.limit)
        found, _, _ = await Execute(tx.statements.audit.between[table, op.upto is not None], params)
        return [make(*values) for values in found]

    return between


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
        if hash is None and tx.statements.dialect.remembers and (newest or 0) < n:
            folded, _, _ = await Execute(tx.statements.checkpoints.folded, (uid, n) * len(_GROUPS))
            if folded and head is not None and bytes(folded[0][1]) == bytes(head):
                continue
        add((uid, id, tenant), f"its row says that event {n} is the last one that was written as a row")
    return found if op.root else [*found, *await _wrongly_sealed(tx)]


async def _wrongly_sealed(tx: Transaction) -> list[operations.Misfit]:
    """Return the trees whose rows claim that checkpoints cover more events than they do.

    No later checkpoint would name these events, so that nobody could tell whether they were changed.
    """
    covered, found = dict[str, int](), list[operations.Misfit]()
    after = 0
    while page := await _all(CheckpointRow, tx.statements.checkpoints.page, (after, CHECKPOINTS_AT_ONCE)):
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


async def _find_delegation(tx: Transaction, op: operations.FindDelegation) -> DelegationRow | None:
    return await _first(DelegationRow, tx.statements.audit.delegation, (op.id,))


_ROWS: Final[dict[type[Any], Callable[[Transaction, Any], Flow[Any]]]] = {
    rows.Now: _now,
    rows.LedgerClock: _ledger_clock,
    rows.FindRun: _find_run,
    rows.FindRunById: _find_run_by_id,
    operations.RunsOf: _runs_of,
    rows.ListTree: _list_tree,
    rows.ReadTrees: _read_trees,
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
    rows.UpdateCalls: _update_calls,
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
    operations.CallsBetween: _calls_between,
    operations.ApprovalsBetween: _between("amends_approval", ApprovalRow),
    operations.DelegationsBetween: _between("amends_delegation", DelegationRow),
    operations.FindDelegation: _find_delegation,
    operations.Misfits: _misfits_of,
}

"""The row operations as SQL, for every database and both colours: flows over ``Execute``.

``transaction`` turns an operation of the ledger into one flow whose only requests are ``Execute``; a blocking
or an async connection answers them between its own BEGIN and COMMIT. The texts are built once per dialect and
shape: building them is slower than running them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from amends.encoding.chain import GENESIS, link, micros, moment
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
    ListForks,
    LockRow,
    MarkRow,
    RunRow,
    SliceRow,
    WaitRow,
)
from amends.states import CALL_STATES, LIVE, NEW, RUN_STATES, STANDING, UNSETTLED, call_sources, run_sources

# ---- One statement: all that a flow over SQL asks of a connection


Result: TypeAlias = tuple[list[tuple[Any, ...]], int, int]
"""The rows, how many rows the statement met (not: really changed), and the id that an insert made."""


@dataclass(slots=True)
class Execute(Op[Result]):
    """One statement, inside the transaction that is open."""

    sql: str
    params: Sequence[Any]
    lasting: bool = False
    """Said with nearly every call: worth being prepared by hand."""


# ---- What differs between the databases. Everything else is said once, in ``sql.py``

# No row operation needs an upsert, a stored procedure or a type of its own: that is on purpose.


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one database spells things."""

    name: str
    """Also the folder of its migrations."""
    mark: str
    """Where a parameter goes."""
    quote: str
    """Around names: ``key`` and ``call`` are reserved words in some databases."""
    lock: str
    """Ends a select whose rows nobody else may change before the transaction ends."""
    skip: str
    """The same, but without the rows that somebody else has locked."""
    new_id: str
    """Ends the insert of an event, where only the statement itself tells the id it made."""
    clock: str
    """The server's own clock, in seconds; empty where there is no server and the process's clock is asked."""

    index: str
    """After a table's name: the index to use. A planner that guesses takes the wrong one when tenants are few."""

    is_open: str = ""
    """What the index ``calls_open`` answers to, where it cannot be an index of some states only."""

    if_absent: str = "insert into {} on conflict do nothing"
    """An insert that meets no row where the key is taken, and breaks nothing then; ``{}``: table and values."""

    ended: str = ""
    """The column of the index ``runs_closed``, where that cannot be an index of some rows only."""

    linked: str = ""
    """An event's hash, where the server makes it: of the one before, the number, the microseconds and the body."""

    as_float: str = "{}"
    as_int: str = "{}"
    as_text: str = "{}"
    """A parameter with its type, where nothing else says what it is."""

    def name_of(self, column: str) -> str:
        """A column or table, safe from the reserved words."""
        return f"{self.quote}{column}{self.quote}"


# One writer at a time (BEGIN IMMEDIATE): there is nobody to lock a row against.
SQLITE: Final = Dialect("sqlite", mark="?", quote='"', lock="", skip="", new_id="", clock="", index=" indexed by {}")

# sysdate and not now: the time of the statement, which may have waited. Sessions of ours are in UTC, where every hour
# is there once. MySQL has no RETURNING, neither has an index of some rows only.
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
    new_id=" returning seq",
    clock="extract(epoch from clock_timestamp())::float8",
    index="",
    is_open="attention = 1",
    linked="encode(sha256(convert_to({} || ':' || ({}) || ':' || {} || ':' || {}, 'UTF8')), 'hex')",
    as_float="{}::float8",
    as_int="{}::bigint",
    as_text="{}::text",
)


# ---- The row operations on approvals as SQL, for every database and both colours


APPROVAL_VALUES: Final = attrgetter(*APPROVAL_COLUMNS)
DELEGATION_VALUES: Final = attrgetter(*DELEGATION_COLUMNS)


class ApprovalStatements:
    """The texts of one dialect."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._shapes: dict[tuple[Any, ...], str] = {}
        mark, lock = dialect.mark, dialect.lock
        self._approvals = f"select {', '.join(map(dialect.name_of, APPROVAL_COLUMNS))} from approvals"
        # As for calls: whoever touches a tree has its root locked, and first.
        root = f"(select root from approvals where id = {mark})"
        self.lock_root = f"select uid from runs where uid = {root}{lock}" if lock else ""
        self.find = f"{self._approvals} where id = {mark}"
        self.of_root = f"{self._approvals} where root = {mark} order by seq"
        use = dialect.name_of("use_key")
        # Said twice: the index is one of some rows only.
        self.find_use = f"select 1 from approvals where {use} = {mark} and {use} <> '' and state = 'used' limit 1"
        self.insert = f"insert into {_into(dialect, 'approvals', APPROVAL_COLUMNS)}"
        self.delegate = dialect.if_absent.format(_into(dialect, "delegations", DELEGATION_COLUMNS))
        columns = ", ".join(map(dialect.name_of, DELEGATION_COLUMNS))
        self.delegated = (
            f"select {columns} from delegations where tenant = {mark} and to_whom = {mark} order by made_at, id"
        )

    def update(self, names: tuple[str, ...]) -> str:
        """Change these columns of the request that is still in the state that was read."""
        text = self._shapes.get(names)
        if text is None:
            mark = self._dialect.mark
            sets = ", ".join(f"{self._dialect.name_of(name)} = {mark}" for name in names)
            text = self._shapes[names] = f"update approvals set {sets} where id = {mark} and state = {mark}"
        return text

    def page(self, terms: tuple[str, ...], *, one_state: bool) -> str:
        """A bounded select, newest first; one state has its index in this order."""
        shape = ("page", one_state, *terms)
        text = self._shapes.get(shape)
        if text is None:
            where = f" where {' and '.join(terms)}" if terms else ""
            hint = self._dialect.index.format("approvals_state") if one_state else ""
            rest = f"{hint}{where} order by seq desc limit ?".replace("?", self._dialect.mark)
            text = self._shapes[shape] = self._approvals + rest
        return text

    def tells(self, *, of_tenant: bool) -> str:
        """What is to be told by a time, longest waiting first."""
        some = " and tenant = ?" if of_tenant else ""
        hint = self._dialect.index.format("approvals_tell")
        rest = f"{hint} where tell_at <= ?{some} order by tell_at, seq limit ?"
        return self._approvals + rest.replace("?", self._dialect.mark)


def _into(dialect: Dialect, table: str, columns: Sequence[str]) -> str:
    marks = ", ".join([dialect.mark] * len(columns))
    return f"{table} ({', '.join(map(dialect.name_of, columns))}) values ({marks})"


class _ApprovalHost(Protocol):
    @property
    def approvals(self) -> ApprovalStatements: ...


class _ApprovalDesk(Protocol):
    @property
    def statements(self) -> _ApprovalHost: ...


async def _find_approval(desk: _ApprovalDesk, op: rows.FindApproval) -> ApprovalRow | None:
    texts = desk.statements.approvals
    if texts.lock_root:
        await Execute(texts.lock_root, (op.id,))
    found, _, _ = await Execute(texts.find, (op.id,))
    return ApprovalRow(*found[0]) if found else None


async def _of_root(desk: _ApprovalDesk, op: rows.ApprovalsOf) -> list[ApprovalRow]:
    found, _, _ = await Execute(desk.statements.approvals.of_root, (op.root,))
    return [ApprovalRow(*row) for row in found]


async def _page_approvals(desk: _ApprovalDesk, op: rows.PageApprovals) -> list[ApprovalRow]:
    states = [state for state in APPROVAL_STATES if state in op.states]
    if op.states and not states:
        return []
    terms: list[str] = []
    params: list[Any] = []
    if states:
        terms.append(f"({' or '.join(['state = ?'] * len(states))})")
        params += states
    for term, value in (("tenant = ?", op.tenant), ("seq < ?", op.before)):
        if value is not None:
            terms.append(term)
            params.append(value)
    sql = desk.statements.approvals.page(tuple(terms), one_state=len(states) == 1)
    found, _, _ = await Execute(sql, (*params, op.limit))
    return [ApprovalRow(*row) for row in found]


async def _list_tells(desk: _ApprovalDesk, op: rows.ListTells) -> list[ApprovalRow]:
    whose = () if op.tenant is None else (op.tenant,)
    sql = desk.statements.approvals.tells(of_tenant=op.tenant is not None)
    found, _, _ = await Execute(sql, (op.now, *whose, op.limit))
    return [ApprovalRow(*row) for row in found]


async def _find_use(desk: _ApprovalDesk, op: rows.FindUse) -> bool:
    found, _, _ = await Execute(desk.statements.approvals.find_use, (op.use,))
    return bool(found)


async def _insert(desk: _ApprovalDesk, op: rows.InsertApproval) -> None:
    await Execute(desk.statements.approvals.insert, APPROVAL_VALUES(op.row))


async def _update_approval(desk: _ApprovalDesk, op: rows.UpdateApproval) -> ApprovalRow:
    sql = desk.statements.approvals.update(tuple(op.changes))
    _, met, _ = await Execute(sql, (*op.changes.values(), op.row.id, op.row.state))
    if met != 1:
        to = op.changes.get("state", op.row.state)
        raise TransitionRefused(
            f"approval {op.row.id} is no longer {op.row.state}; nothing was changed", frm=op.row.state, to=to
        )
    return changed(op.row, op.changes)


async def _delegate(desk: _ApprovalDesk, op: rows.AddDelegation) -> bool:
    _, met, _ = await Execute(desk.statements.approvals.delegate, DELEGATION_VALUES(op.row))
    return met == 1


async def _delegated(desk: _ApprovalDesk, op: rows.DelegationsTo) -> list[DelegationRow]:
    found, _, _ = await Execute(desk.statements.approvals.delegated, (op.tenant, op.to_whom))
    return [DelegationRow(*row) for row in found]


APPROVAL_ROWS: Final[dict[type[Any], Callable[[Any, Any], Flow[Any]]]] = {
    rows.FindApproval: _find_approval,
    rows.ApprovalsOf: _of_root,
    rows.PageApprovals: _page_approvals,
    rows.ListTells: _list_tells,
    rows.FindUse: _find_use,
    rows.InsertApproval: _insert,
    rows.UpdateApproval: _update_approval,
    rows.AddDelegation: _delegate,
    rows.DelegationsTo: _delegated,
}


# ---- The row operations of an audit as SQL, for every database and both colours: ranges of trees, along t


COLUMNS: Final = {"runs": RUN_COLUMNS, "calls": CALL_COLUMNS, "approvals": APPROVAL_COLUMNS,
    "delegations": DELEGATION_COLUMNS,
}  # fmt: skip


class AuditStatements:
    """The texts of one dialect."""

    def __init__(self, dialect: Dialect) -> None:
        mark = dialect.mark
        events = f"select {', '.join(map(dialect.name_of, EVENT_COLUMNS))} from events"
        events += dialect.index.format("events_root") if dialect.index else ""
        self.chain_of = f"{events} where root = {mark} and n > {mark} order by n limit {mark}"
        self.chains_above = f"{events} where root > {mark} order by root, n limit {mark}"
        self.between: dict[tuple[str, bool], str] = {}
        for table, columns in COLUMNS.items():
            root = "id" if table == "delegations" else "root"
            hint = dialect.index.format(f"{table}_root") if dialect.index and root == "root" else ""
            select = f"select {', '.join(map(dialect.name_of, columns))} from {table}{hint} where {root} > {mark}"
            for ends in (True, False):
                upto = f" and {root} <= {mark}" if ends else ""
                self.between[table, ends] = f"{select}{upto} order by {root} limit {mark}"
        names = ", ".join(map(dialect.name_of, DELEGATION_COLUMNS))
        self.delegation = f"select {names} from delegations where id = {mark}"


class _AuditHost(Protocol):
    @property
    def audit(self) -> AuditStatements: ...


class _AuditDesk(Protocol):
    @property
    def statements(self) -> _AuditHost: ...


async def _chain_of(desk: _AuditDesk, op: operations.ChainOf) -> list[EventRow]:
    found, _, _ = await Execute(desk.statements.audit.chain_of, (op.root, op.after, op.limit))
    return [EventRow(*row) for row in found]


async def _chains_above(desk: _AuditDesk, op: operations.ChainsAbove) -> list[EventRow]:
    found, _, _ = await Execute(desk.statements.audit.chains_above, (op.root, op.limit))
    return [EventRow(*row) for row in found]


def _between(table: str, make: Callable[..., Any]) -> Callable[[Any, Any], Flow[Any]]:
    async def between(desk: _AuditDesk, op: operations.RunsBetween) -> list[Any]:
        params = (op.above, op.limit) if op.upto is None else (op.above, op.upto, op.limit)
        found, _, _ = await Execute(desk.statements.audit.between[table, op.upto is not None], params)
        return [make(*row) for row in found]

    return between


async def _find_delegation(desk: _AuditDesk, op: operations.FindDelegation) -> DelegationRow | None:
    found, _, _ = await Execute(desk.statements.audit.delegation, (op.id,))
    return DelegationRow(*found[0]) if found else None


AUDIT_ROWS: Final[dict[type[Any], Callable[[Any, Any], Flow[Any]]]] = {
    operations.ChainOf: _chain_of,
    operations.ChainsAbove: _chains_above,
    operations.RunsBetween: _between("runs", RunRow),
    operations.CallsBetween: _between("calls", CallRow),
    operations.ApprovalsBetween: _between("approvals", ApprovalRow),
    operations.DelegationsBetween: _between("delegations", DelegationRow),
    operations.FindDelegation: _find_delegation,
}


# ---- The row operations on budgets as SQL, for every database and both colours


SLICE_VALUES: Final = attrgetter(*SLICE_COLUMNS)


class BudgetStatements:
    """The texts of one dialect."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        mark = dialect.mark
        names = ", ".join(map(dialect.name_of, SLICE_COLUMNS))
        select = f"select {names} from budgets"
        self.find = f"{select} where name = {mark}{dialect.lock}"
        self.add = dialect.if_absent.format(f"budgets ({names}) values ({', '.join([mark] * len(SLICE_COLUMNS))})")
        self.drop = f"delete from budgets where root = {mark} and root <> ''"
        self.page = f"{select} where tenant = {mark} and name > {mark} order by name limit {mark}"

    def update(self, columns: tuple[str, ...]) -> str:
        """Change these columns of a slice."""
        sets = ", ".join(f"{self._dialect.name_of(column)} = {self._dialect.mark}" for column in columns)
        return f"update budgets set {sets} where name = {self._dialect.mark}"


class _BudgetHost(Protocol):
    @property
    def budgets(self) -> BudgetStatements: ...


class _BudgetDesk(Protocol):
    @property
    def statements(self) -> _BudgetHost: ...


async def _find_slice(desk: _BudgetDesk, op: rows.FindSlice) -> SliceRow | None:
    found, _, _ = await Execute(desk.statements.budgets.find, (op.name,))
    return SliceRow(*found[0]) if found else None


async def _add_slice(desk: _BudgetDesk, op: rows.AddSlice) -> bool:
    _, met, _ = await Execute(desk.statements.budgets.add, SLICE_VALUES(op.row))
    return met == 1


async def _update_slice(desk: _BudgetDesk, op: rows.UpdateSlice) -> SliceRow:
    # Whether it was met is not asked: a database may not count a row that already was as it is to be.
    await Execute(desk.statements.budgets.update(tuple(op.changes)), (*op.changes.values(), op.row.name))
    return changed(op.row, op.changes)


async def _drop(desk: _BudgetDesk, op: rows.DropSlices) -> int:
    _, met, _ = await Execute(desk.statements.budgets.drop, (op.root,))
    return met


async def _page_slices(desk: _BudgetDesk, op: rows.PageSlices) -> list[SliceRow]:
    found, _, _ = await Execute(desk.statements.budgets.page, (op.tenant, op.after, op.limit))
    return [SliceRow(*row) for row in found]


BUDGET_ROWS: Final[dict[type[Any], Callable[[Any, Any], Flow[Any]]]] = {
    rows.FindSlice: _find_slice,
    rows.AddSlice: _add_slice,
    rows.UpdateSlice: _update_slice,
    rows.DropSlices: _drop,
    rows.PageSlices: _page_slices,
}


# ---- The row operations of bundles as SQL, for every database and both colours


class BundleStatements:
    """The texts of one dialect."""

    def __init__(self, dialect: Dialect) -> None:
        columns, mark = ", ".join(map(dialect.name_of, RUN_COLUMNS)), dialect.mark
        self.runs_of = f"select {columns} from runs where tenant = {mark} and id = {mark} order by generation"


class _BundleHost(Protocol):
    @property
    def bundles(self) -> BundleStatements: ...


class _BundleDesk(Protocol):
    @property
    def statements(self) -> _BundleHost: ...


async def _runs_of(desk: _BundleDesk, op: operations.RunsOf) -> list[RunRow]:
    found, _, _ = await Execute(desk.statements.bundles.runs_of, (op.tenant, op.id))
    return [RunRow(*row) for row in found]


BUNDLE_ROWS: Final[dict[type[Any], Callable[[Any, Any], Flow[Any]]]] = {operations.RunsOf: _runs_of}


# ---- The row operations on checkpoints as SQL, for every database and both colours


CHECKPOINT_VALUES: Final = attrgetter(*CHECKPOINT_COLUMNS)


class CheckpointStatements:
    """The texts of one dialect."""

    def __init__(self, dialect: Dialect) -> None:
        mark = self._mark = dialect.mark
        columns = ", ".join(map(dialect.name_of, CHECKPOINT_COLUMNS))
        rows = f"select {columns} from checkpoints"
        self.newest = f"{rows} order by n desc limit 1"
        self.page = f"{rows} where n > {mark} order by n limit {mark}"
        values = ", ".join([mark] * len(CHECKPOINT_COLUMNS))
        self.add = dialect.if_absent.format(f"checkpoints ({columns}) values ({values})")
        heads = f"select seq, root, n, hash from events where seq > {mark}"
        self.heads = f"{heads} order by seq limit {mark}"
        self.heads_upto = f"{heads} and seq <= {mark} order by seq limit {mark}"

    def hashes(self, count: int) -> str:
        """So many events by tree and number: each is found by the index that the chain has."""
        one = f"select root, n, hash from events where root = {self._mark} and n = {self._mark}"
        return " union all ".join([one] * count)


class _CheckpointHost(Protocol):
    @property
    def checkpoints(self) -> CheckpointStatements: ...


class _CheckpointDesk(Protocol):
    @property
    def statements(self) -> _CheckpointHost: ...


async def _newest(desk: _CheckpointDesk, _op: rows.NewestCheckpoint) -> CheckpointRow | None:
    found, _, _ = await Execute(desk.statements.checkpoints.newest, ())
    return CheckpointRow(*found[0]) if found else None


async def _page_checkpoints(desk: _CheckpointDesk, op: rows.PageCheckpoints) -> list[CheckpointRow]:
    found, _, _ = await Execute(desk.statements.checkpoints.page, (op.after, op.limit))
    return [CheckpointRow(*row) for row in found]


async def _add_checkpoint(desk: _CheckpointDesk, op: rows.AddCheckpoint) -> bool:
    _, met, _ = await Execute(desk.statements.checkpoints.add, CHECKPOINT_VALUES(op.row))
    return met == 1


async def _heads(desk: _CheckpointDesk, op: rows.PageHeads) -> list[Head]:
    statements = desk.statements.checkpoints
    if op.upto is None:
        found, _, _ = await Execute(statements.heads, (op.after, op.limit))
    else:
        found, _, _ = await Execute(statements.heads_upto, (op.after, op.upto, op.limit))
    return [Head(*row) for row in found]


async def _hashes(desk: _CheckpointDesk, op: rows.HashesAt) -> list[tuple[str, int, str]]:
    # Always so many, the last one repeated: a statement that is new for every number is prepared for every number.
    found: dict[tuple[str, int], str] = {}
    for start in range(0, len(op.places), AT_ONCE):
        some = op.places[start : start + AT_ONCE]
        some += (some[-1],) * (AT_ONCE - len(some))
        sql = desk.statements.checkpoints.hashes(AT_ONCE)
        rows, _, _ = await Execute(sql, tuple(part for place in some for part in place))
        found.update({(root, n): hash for root, n, hash in rows})
    return [(root, n, hash) for (root, n), hash in found.items()]


AT_ONCE: Final = 50

CHECKPOINT_ROWS: Final[dict[type[Any], Callable[[Any, Any], Flow[Any]]]] = {
    rows.NewestCheckpoint: _newest,
    rows.PageCheckpoints: _page_checkpoints,
    rows.AddCheckpoint: _add_checkpoint,
    rows.PageHeads: _heads,
    rows.HashesAt: _hashes,
}


# ---- The row operations on events as SQL, for every database and both colours: each is written at its cha

# A server links the event itself: its statement reads the end of the chain after the tree was locked, and no further
# round trip is needed. Where there is no server, what is read and what is written are both here.


EVENT_VALUES: Final = attrgetter(*EVENT_COLUMNS[1:-2])


class EventStatements:
    """The texts of one dialect."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._pages: dict[tuple[bool, bool], str] = {}
        mark, columns = dialect.mark, EVENT_COLUMNS[1:]
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
            said = f" select {values}, {n}, {hashed} from (select 1 as one) o left join ({self.tail}) t on 1 = 1"
            self.insert = f"{into}{said}{dialect.new_id}"
        else:
            self.insert = f"{into} values ({', '.join([mark] * len(columns))}){dialect.new_id}"

    def page(self, of_root: bool, of_tenant: bool) -> str:
        """Events above a place, of one tree or of all. In a tree the place is looked up: its index has numbers."""
        text = self._pages.get((of_root, of_tenant))
        if text is None:
            terms = ["seq > ?"]
            if of_root:
                terms += ["root = ?", "n > coalesce((select p.n from events p where p.seq = ? and p.root = ?), 0)"]
            if of_tenant:
                terms.append("tenant = ?")
            columns = ", ".join(map(self._dialect.name_of, EVENT_COLUMNS))
            text = (
                f"select {columns} from events where {' and '.join(terms)} order by {'n' if of_root else 'seq'} limit ?"
            )
            text = self._pages[of_root, of_tenant] = text.replace("?", self._dialect.mark)
        return text


class _EventHost(Protocol):
    @property
    def events(self) -> EventStatements: ...


class _EventDesk(Protocol):
    @property
    def statements(self) -> _EventHost: ...


async def _add_event(desk: _EventDesk, op: rows.AddEvent) -> int:
    assert op.at == moment(op.at), "an event's time is whole microseconds"
    statements = desk.statements.events
    if statements.links_itself:
        told, _, seq = await Execute(statements.insert, (*EVENT_VALUES(op), micros(op.at), op.body, op.root))
    else:
        found, _, _ = await Execute(statements.tail, (op.root,))
        last, prev = found[0] if found else (0, GENESIS)
        chained = (last + 1, link(prev, last + 1, op.at, op.body))
        told, _, seq = await Execute(statements.insert, (*EVENT_VALUES(op), *chained))
    return told[0][0] if told else seq


async def _page_events(desk: _EventDesk, op: rows.PageEvents) -> list[EventRow]:
    params: tuple[Any, ...] = (op.after,)
    if op.root is not None:
        params = (op.after, op.root, op.after, op.root)
    if op.tenant is not None:
        params = (*params, op.tenant)
    sql = desk.statements.events.page(op.root is not None, op.tenant is not None)
    found, _, _ = await Execute(sql, (*params, op.limit))
    return [EventRow(*row) for row in found]


EVENT_ROWS: Final[dict[type[Any], Callable[[Any, Any], Flow[Any]]]] = {
    rows.AddEvent: _add_event,
    rows.PageEvents: _page_events,
}


# ---- The row operations on forks as SQL, for every database and both colours


class _ForkHost(Protocol):
    def page(self, table: str, terms: tuple[str, ...], order: str, *, index: str = "") -> str: ...


class _ForkDesk(Protocol):
    @property
    def statements(self) -> _ForkHost: ...


async def _list_forks(desk: _ForkDesk, op: ListForks) -> list[RunRow]:
    # The second term is what the index of some rows only is said with.
    sql = desk.statements.page("runs", ("forked_from = ?", "forked_from <> ''"), "place", index="runs_forked")
    found, _, _ = await Execute(sql, (op.root, op.limit))
    return [RunRow(*row) for row in found]


FORK_ROWS: Final[dict[type[Any], Callable[[Any, Any], Flow[Any]]]] = {ListForks: _list_forks}


# ---- The row operations on locks and waits as SQL, for every database and both colours


LOCK_VALUES: Final = attrgetter(*LOCK_COLUMNS)
WAIT_VALUES: Final = attrgetter(*WAIT_COLUMNS)


class LockStatements:
    """The texts of one dialect."""

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
        """The locks of a tenant, of so many names."""
        return f"{self._locks} where tenant = {self._mark} and {self._named(names)} order by name"

    def drop_waits(self, names: int) -> str:
        """What a root waits for, of so many names, or all of it."""
        some = f" and {self._named(names)}" if names else ""
        return f"delete from waits where root = {self._mark}{some}"

    def _named(self, names: int) -> str:
        return f"({' or '.join([f'name = {self._mark}'] * names)})"


def _select(dialect: Dialect, table: str, columns: Sequence[str]) -> str:
    return f"select {', '.join(map(dialect.name_of, columns))} from {table}"


class _LockHost(Protocol):
    @property
    def locks(self) -> LockStatements: ...


class _LockDesk(Protocol):
    @property
    def statements(self) -> _LockHost: ...


async def _locks(sql: str, params: Sequence[Any]) -> list[LockRow]:
    found, _, _ = await Execute(sql, params)
    return [LockRow(*row) for row in found]


async def _waits(sql: str, params: Sequence[Any]) -> list[WaitRow]:
    found, _, _ = await Execute(sql, params)
    return [WaitRow(*row) for row in found]


async def _find_locks(desk: _LockDesk, op: rows.FindLocks) -> list[LockRow]:
    return await _locks(desk.statements.locks.find_locks(len(op.names)), (op.tenant, *op.names))


async def _take_lock(desk: _LockDesk, op: rows.TakeLock) -> bool:
    _, met, _ = await Execute(desk.statements.locks.take_lock, LOCK_VALUES(op.row))
    return met == 1


async def _drop_lock(desk: _LockDesk, op: rows.DropLock) -> None:
    await Execute(desk.statements.locks.drop_lock, (op.root, op.name))


async def _free_locks(desk: _LockDesk, op: rows.FreeLocks) -> int:
    _, met, _ = await Execute(desk.statements.locks.free_locks, (op.root,))
    return met


async def _locks_of(desk: _LockDesk, op: rows.LocksOf) -> list[LockRow]:
    return await _locks(desk.statements.locks.locks_of, (op.root,))


async def _page_locks(desk: _LockDesk, op: rows.PageLocks) -> list[LockRow]:
    return await _locks(desk.statements.locks.page_locks, (op.tenant, op.after, op.limit))


async def _see_wait(desk: _LockDesk, op: rows.SeeWait) -> bool:
    # No upsert: the root is this transaction's alone, so between the two statements nobody adds the same wait.
    _, met, _ = await Execute(desk.statements.locks.see_wait, (op.row.seen_at, op.row.root, op.row.name))
    if met == 0:
        await Execute(desk.statements.locks.add_wait, WAIT_VALUES(op.row))
    return met == 0


async def _waits_of(desk: _LockDesk, op: rows.WaitsOf) -> list[WaitRow]:
    return await _waits(desk.statements.locks.waits_of, (op.root,))


async def _waits_for(desk: _LockDesk, op: rows.WaitsFor) -> list[WaitRow]:
    return await _waits(desk.statements.locks.waits_for, (op.tenant, op.name))


async def _drop_waits(desk: _LockDesk, op: rows.DropWaits) -> None:
    await Execute(desk.statements.locks.drop_waits(len(op.names)), (op.root, *op.names))


LOCK_ROWS: Final[dict[type[Any], Callable[[Any, Any], Flow[Any]]]] = {
    rows.FindLocks: _find_locks,
    rows.TakeLock: _take_lock,
    rows.DropLock: _drop_lock,
    rows.FreeLocks: _free_locks,
    rows.LocksOf: _locks_of,
    rows.PageLocks: _page_locks,
    rows.SeeWait: _see_wait,
    rows.WaitsOf: _waits_of,
    rows.WaitsFor: _waits_for,
    rows.DropWaits: _drop_waits,
}


# ---- The row operations on marks as SQL, for every database and both colours


MARK_VALUES: Final = attrgetter(*MARK_COLUMNS)


class MarkStatements:
    """The texts of one dialect."""

    def __init__(self, dialect: Dialect) -> None:
        columns = ", ".join(map(dialect.name_of, MARK_COLUMNS))
        self.find = f"select {columns} from marks where name = {dialect.mark}"
        self.add = dialect.if_absent.format(
            f"marks ({columns}) values ({', '.join([dialect.mark] * len(MARK_COLUMNS))})"
        )
        # Whoever has it locked moves it to about the same moment: nobody waits for it.
        self.time = f"select made_at from marks where name = '{TIME}'{dialect.skip}"
        self.move = f"update marks set made_at = {dialect.mark} where name = '{TIME}'"


class _MarkHost(Protocol):
    @property
    def marks(self) -> MarkStatements: ...


class _MarkDesk(Protocol):
    @property
    def statements(self) -> _MarkHost: ...


async def _find_mark(desk: _MarkDesk, op: rows.FindMark) -> MarkRow | None:
    found, _, _ = await Execute(desk.statements.marks.find, (op.name,))
    return MarkRow(*found[0]) if found else None


async def _add_mark(desk: _MarkDesk, op: rows.AddMark) -> bool:
    _, met, _ = await Execute(desk.statements.marks.add, MARK_VALUES(op.row))
    return met == 1


async def _move_time(desk: _MarkDesk, op: rows.MoveTime) -> None:
    found, _, _ = await Execute(desk.statements.marks.time, ())
    if found and found[0][0] < op.at:
        await Execute(desk.statements.marks.move, (op.at,))


MARK_ROWS: Final[dict[type[Any], Callable[[Any, Any], Flow[Any]]]] = {
    rows.FindMark: _find_mark,
    rows.AddMark: _add_mark,
    rows.MoveTime: _move_time,
}


# ---- The row operations as SQL, for every database and both colours: flows over ``Execute``

# ``transaction`` turns an operation of the ledger into one flow whose only requests are ``Execute``; a blocking
# or an async connection answers them between its own BEGIN and COMMIT. The texts are built once per dialect and
# shape: building them is slower than running them.


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

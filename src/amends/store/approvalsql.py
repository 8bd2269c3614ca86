"""The row operations on approvals as SQL, for every database and both colours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final, Protocol

from amends import approvalrows
from amends.approvalrows import (
    APPROVAL_COLUMNS,
    APPROVAL_STATES,
    DELEGATION_COLUMNS,
    ApprovalRow,
    DelegationRow,
)
from amends.errors import TransitionRefused
from amends.flow import Flow
from amends.record import changed
from amends.store.dialect import Dialect
from amends.store.statement import Execute

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


class _Statements(Protocol):
    @property
    def approvals(self) -> ApprovalStatements: ...


class _Desk(Protocol):
    @property
    def statements(self) -> _Statements: ...


async def _find(desk: _Desk, op: approvalrows.FindApproval) -> ApprovalRow | None:
    texts = desk.statements.approvals
    if texts.lock_root:
        await Execute(texts.lock_root, (op.id,))
    found, _, _ = await Execute(texts.find, (op.id,))
    return ApprovalRow(*found[0]) if found else None


async def _of_root(desk: _Desk, op: approvalrows.ApprovalsOf) -> list[ApprovalRow]:
    found, _, _ = await Execute(desk.statements.approvals.of_root, (op.root,))
    return [ApprovalRow(*row) for row in found]


async def _page(desk: _Desk, op: approvalrows.PageApprovals) -> list[ApprovalRow]:
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


async def _list_tells(desk: _Desk, op: approvalrows.ListTells) -> list[ApprovalRow]:
    whose = () if op.tenant is None else (op.tenant,)
    sql = desk.statements.approvals.tells(of_tenant=op.tenant is not None)
    found, _, _ = await Execute(sql, (op.now, *whose, op.limit))
    return [ApprovalRow(*row) for row in found]


async def _find_use(desk: _Desk, op: approvalrows.FindUse) -> bool:
    found, _, _ = await Execute(desk.statements.approvals.find_use, (op.use,))
    return bool(found)


async def _insert(desk: _Desk, op: approvalrows.InsertApproval) -> None:
    await Execute(desk.statements.approvals.insert, APPROVAL_VALUES(op.row))


async def _update(desk: _Desk, op: approvalrows.UpdateApproval) -> ApprovalRow:
    sql = desk.statements.approvals.update(tuple(op.changes))
    _, met, _ = await Execute(sql, (*op.changes.values(), op.row.id, op.row.state))
    if met != 1:
        to = op.changes.get("state", op.row.state)
        raise TransitionRefused(
            f"approval {op.row.id} is no longer {op.row.state}; nothing was changed", frm=op.row.state, to=to
        )
    return changed(op.row, op.changes)


async def _delegate(desk: _Desk, op: approvalrows.AddDelegation) -> bool:
    _, met, _ = await Execute(desk.statements.approvals.delegate, DELEGATION_VALUES(op.row))
    return met == 1


async def _delegated(desk: _Desk, op: approvalrows.DelegationsTo) -> list[DelegationRow]:
    found, _, _ = await Execute(desk.statements.approvals.delegated, (op.tenant, op.to_whom))
    return [DelegationRow(*row) for row in found]


APPROVAL_ROWS: Final[dict[type[Any], Callable[[Any, Any], Flow[Any]]]] = {
    approvalrows.FindApproval: _find,
    approvalrows.ApprovalsOf: _of_root,
    approvalrows.PageApprovals: _page,
    approvalrows.ListTells: _list_tells,
    approvalrows.FindUse: _find_use,
    approvalrows.InsertApproval: _insert,
    approvalrows.UpdateApproval: _update,
    approvalrows.AddDelegation: _delegate,
    approvalrows.DelegationsTo: _delegated,
}

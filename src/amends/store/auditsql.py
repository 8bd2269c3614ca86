"""The row operations of an audit as SQL, for every database and both colours: ranges of trees, along their indices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from amends import auditops
from amends.approvalrows import APPROVAL_COLUMNS, DELEGATION_COLUMNS, ApprovalRow, DelegationRow
from amends.eventrows import EVENT_COLUMNS, EventRow
from amends.flow import Flow
from amends.rows import CALL_COLUMNS, RUN_COLUMNS, CallRow, RunRow
from amends.store.dialect import Dialect
from amends.store.statement import Execute

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


class _Statements(Protocol):
    @property
    def audit(self) -> AuditStatements: ...


class _Desk(Protocol):
    @property
    def statements(self) -> _Statements: ...


async def _chain_of(desk: _Desk, op: auditops.ChainOf) -> list[EventRow]:
    found, _, _ = await Execute(desk.statements.audit.chain_of, (op.root, op.after, op.limit))
    return [EventRow(*row) for row in found]


async def _chains_above(desk: _Desk, op: auditops.ChainsAbove) -> list[EventRow]:
    found, _, _ = await Execute(desk.statements.audit.chains_above, (op.root, op.limit))
    return [EventRow(*row) for row in found]


def _between(table: str, make: Callable[..., Any]) -> Callable[[Any, Any], Flow[Any]]:
    async def between(desk: _Desk, op: auditops.RunsBetween) -> list[Any]:
        params = (op.above, op.limit) if op.upto is None else (op.above, op.upto, op.limit)
        found, _, _ = await Execute(desk.statements.audit.between[table, op.upto is not None], params)
        return [make(*row) for row in found]

    return between


async def _find_delegation(desk: _Desk, op: auditops.FindDelegation) -> DelegationRow | None:
    found, _, _ = await Execute(desk.statements.audit.delegation, (op.id,))
    return DelegationRow(*found[0]) if found else None


AUDIT_ROWS: Final[dict[type[Any], Callable[[Any, Any], Flow[Any]]]] = {
    auditops.ChainOf: _chain_of,
    auditops.ChainsAbove: _chains_above,
    auditops.RunsBetween: _between("runs", RunRow),
    auditops.CallsBetween: _between("calls", CallRow),
    auditops.ApprovalsBetween: _between("approvals", ApprovalRow),
    auditops.DelegationsBetween: _between("delegations", DelegationRow),
    auditops.FindDelegation: _find_delegation,
}

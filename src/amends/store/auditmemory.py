"""The row operations of an audit on dicts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import nsmallest
from typing import Any, Final, Protocol

from amends import auditops
from amends.approvalrows import ApprovalRow
from amends.rows import CallRow, EventRow, RunRow
from amends.store.approvalmemory import Shelf


class _Store(Protocol):
    runs: dict[str, RunRow]
    calls: dict[str, CallRow]
    events: list[EventRow]
    shelf: Shelf


def _chain_of(store: _Store, op: auditops.ChainOf) -> list[EventRow]:
    found = (event for event in store.events if event.root == op.root and event.n > op.after)
    return nsmallest(op.limit, found, key=lambda event: event.n)


def _chains_above(store: _Store, op: auditops.ChainsAbove) -> list[EventRow]:
    found = (event for event in store.events if event.root > op.root)
    return nsmallest(op.limit, found, key=lambda event: (event.root, event.n))


def _between(rows: Iterable[Any], op: auditops.RunsBetween | auditops.CallsBetween | auditops.ApprovalsBetween) -> Any:
    found = [row for row in rows if row.root > op.above and (op.upto is None or row.root <= op.upto)]
    return sorted(found, key=lambda row: row.root)[: op.limit]


def _approvals(store: _Store, op: auditops.ApprovalsBetween) -> list[ApprovalRow]:
    found: list[ApprovalRow] = _between(store.shelf.approvals.values(), op)
    return found


AUDIT_ROWS: Final[dict[type[Any], Callable[[Any, Any], Any]]] = {
    auditops.ChainOf: _chain_of,
    auditops.ChainsAbove: _chains_above,
    auditops.RunsBetween: lambda store, op: _between(store.runs.values(), op),
    auditops.CallsBetween: lambda store, op: _between(store.calls.values(), op),
    auditops.ApprovalsBetween: _approvals,
    auditops.DelegationsBetween: lambda store, op: _between(store.shelf.delegations.values(), op),
    auditops.FindDelegation: lambda store, op: store.shelf.delegations.get(op.id),
}

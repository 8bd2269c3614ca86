"""The row operations on approvals in dicts: see ``memory``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from amends.approvalrows import (
    AddDelegation,
    ApprovalRow,
    ApprovalsOf,
    DelegationRow,
    DelegationsTo,
    FindApproval,
    FindUse,
    InsertApproval,
    ListTells,
    PageApprovals,
    UpdateApproval,
)
from amends.record import changed


class Shelf:
    """Requests and delegations; whatever is changed is put on the undo list of the memory that it belongs to."""

    def __init__(self, undo: list[Callable[[], object]]) -> None:
        self._undo = undo
        self.approvals: dict[str, ApprovalRow] = {}
        self.delegations: dict[str, DelegationRow] = {}
        self._of: dict[str, list[str]] = {}

    def _find(self, op: FindApproval) -> ApprovalRow | None:
        return self.approvals.get(op.id)

    def _of_root(self, op: ApprovalsOf) -> list[ApprovalRow]:
        return [self.approvals[id] for id in self._of.get(op.root, ())]

    def _page(self, op: PageApprovals) -> list[ApprovalRow]:
        found = [
            row
            for row in self.approvals.values()
            if (op.tenant is None or row.tenant == op.tenant)
            and (not op.states or row.state in op.states)
            and (op.before is None or row.seq < op.before)
        ]
        return sorted(found, key=lambda row: -row.seq)[: op.limit]

    def _tells(self, op: ListTells) -> list[ApprovalRow]:
        found = [
            (row.tell_at, row.seq, row)
            for row in self.approvals.values()
            if row.tell_at is not None and row.tell_at <= op.now and (op.tenant is None or row.tenant == op.tenant)
        ]
        return [row for _, _, row in sorted(found, key=lambda one: one[:2])][: op.limit]

    def _find_use(self, op: FindUse) -> bool:
        return any(row.use_key == op.use and row.state == "used" for row in self.approvals.values())

    def _insert(self, op: InsertApproval) -> None:
        row = op.row
        assert row.id not in self.approvals, "a request's id is new"
        self.approvals[row.id] = row
        mine = self._of.setdefault(row.root, [])
        mine.append(row.id)
        self._undo += [lambda: self.approvals.pop(row.id), mine.pop]

    def _update(self, op: UpdateApproval) -> ApprovalRow:
        old = self.approvals[op.row.id]
        assert old.state == op.row.state, "a request is changed from the state that was read"
        new = self.approvals[old.id] = changed(old, op.changes)
        self._undo.append(lambda: self.approvals.__setitem__(old.id, old))
        return new

    def _delegate(self, op: AddDelegation) -> bool:
        if op.row.id in self.delegations:
            return False
        self.delegations[op.row.id] = op.row
        self._undo.append(lambda: self.delegations.pop(op.row.id))
        return True

    def _delegated(self, op: DelegationsTo) -> list[DelegationRow]:
        return [row for row in self.delegations.values() if (row.tenant, row.to_whom) == (op.tenant, op.to_whom)]


SHELF_ROWS: Final[dict[type[Any], Callable[[Shelf, Any], Any]]] = {
    FindApproval: Shelf._find,
    ApprovalsOf: Shelf._of_root,
    PageApprovals: Shelf._page,
    ListTells: Shelf._tells,
    FindUse: Shelf._find_use,
    InsertApproval: Shelf._insert,
    UpdateApproval: Shelf._update,
    AddDelegation: Shelf._delegate,
    DelegationsTo: Shelf._delegated,
}

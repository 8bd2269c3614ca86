"""Let a ledger that was restored from a copy start calls again."""

from __future__ import annotations

from amends.engine import checkpoints
from amends.errors import UsageError
from amends.host.host import Host, View
from amends.host.listing import PAGE
from amends.ledger.operations import ListPermits, RevokePermit, SearchApprovals, VoidApproval
from amends.people.approvals import _check_reason


async def check_anchor(host: Host, _view: View) -> None:
    """Raise ``LedgerBehind`` if the ledger lacks what its anchor, outside the ledger, knows: it then starts nothing."""
    await checkpoints.check_anchor(host.anchor)


async def reconcile_restore(host: Host, view: View, *, by: str, why: str) -> int:
    """Let a ledger that was restored from a backup start calls again; return how many of its approvals were voided.

    Its permits end too, and are counted: since the backup they may have been used up.
    """
    if view.tenant:
        raise UsageError(
            f"a restore concerns the whole ledger, and this runtime sees only tenant {view.tenant}",
            hint="call reconcile_restore on a runtime without a tenant",
        )
    _check_reason(by, why)
    voided = 0
    before: str | None = None
    while page := await SearchApprovals(None, ("pending", "approved"), before, PAGE):
        ours = [found.approval for found in page if not found.call.is_loaded]
        for row in ours:
            await VoidApproval(row.id, by, why)
        voided, before = voided + len(ours), page[-1].approval.id
    while permits := (await ListPermits(None))[0]:
        for permit in permits:
            await RevokePermit(permit.id, permit.tenant, by, why)
        voided += len(permits)
    if host.anchor is not None:
        host.anchor.reset()
    return voided

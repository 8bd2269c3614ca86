"""Approve or reject by a signed link."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from amends.errors import ApprovalVoid, LinkVoid, UsageError
from amends.host.host import Host, View
from amends.ledger.world import ReadClocks
from amends.model import Approval
from amends.people.approvals import _same_case, approval, approve, reject


async def redeem(
    host: Host, view: View, token: str, *, by: str = "", why: str = "", reason: str = "", roles: Sequence[str] = ()
) -> Approval:
    """Use a signed link to approve or reject exactly what was shown with it; a rejection needs a ``reason``."""
    clocks = await ReadClocks()
    link = host.notices.links.read(token, datetime.fromtimestamp(clocks.wall, UTC))
    if link.by and by and _same_case(by) != _same_case(link.by):
        raise LinkVoid(f"the link to {link.verb} {link.approval} was made for somebody else", why="other_person")
    who = by or link.by
    if not who.strip():
        raise UsageError("this link was made for no particular person: say who uses it (by=)")
    if link.verb == "approve":
        return await approve(host, view, link.approval, digest=link.digest, by=who, why=why, roles=roles)
    shown = await approval(host, view, link.approval)
    if shown.digest != link.digest:
        raise ApprovalVoid(
            shown.call.tool, why="changed", approval=shown, call=shown.call, deciding=True, run_id=shown.call.run_id
        )
    return await reject(host, view, link.approval, by=who, reason=reason, roles=roles)

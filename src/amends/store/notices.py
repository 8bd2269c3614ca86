"""The outbox of notices: claimed for a while, told, marked. Who dies in between leaves it to the next one."""

from __future__ import annotations

from typing import Any

from amends.approvalrows import ApprovalRow, FindApproval, ListTells, Requested, UpdateApproval
from amends.noticeops import TELLS_MAX, ClaimNotice, DueNotices, NoteTold
from amends.rows import FindCall, Now
from amends.store.change import find_run, note


async def due_notices(op: DueNotices) -> list[str]:
    """Those that nobody is telling now."""
    return [row.id for row in await ListTells(await Now(), op.tenant, op.limit)]


async def claim_notice(op: ClaimNotice) -> Requested | None:
    """Ours for a while; what need not be told any more leaves the outbox."""
    row = await FindApproval(op.approval)
    if row is None:
        return None
    now = await Now()
    if not (op.repeated and row.teller == op.teller):
        if row.tell_at is None or row.tell_at > now:
            return None
        if row.state_at(now) != "pending" or row.tells >= TELLS_MAX:
            await _leave(row, now)
            return None
        claim = {"tell_at": now + op.claim_s, "teller": op.teller, "tells": row.tells + 1}
        row = await UpdateApproval(row, claim)
    call = await FindCall(row.call)
    assert call is not None, f"the ledger names a call that it does not have: {row.call}"
    return Requested(row, call, now)


async def note_told(op: NoteTold) -> ApprovalRow:
    """What became of it. A failure that comes after somebody else's claim changes nothing."""
    row = await FindApproval(op.approval)
    assert row is not None, f"what was claimed is in the ledger: {op.approval}"
    is_news = row.told_at is None and (not op.error or row.teller == op.teller)
    if not is_news:
        return row
    now = await Now()
    if not op.error:
        await _said(row, "told", now)
        return await UpdateApproval(row, {"told_at": now, "tell_at": None, "teller": ""})
    await _said(row, "not told", now, error=op.error, gave_up=int(op.retry_s is None))
    again_at = None if op.retry_s is None else now + op.retry_s
    return await UpdateApproval(row, {"tell_at": again_at, "teller": ""})


async def _leave(row: ApprovalRow, now: float) -> None:
    if row.state_at(now) == "pending":
        await _said(row, "not told", now, error="whoever told of it did not come back", gave_up=1)
    await UpdateApproval(row, {"tell_at": None, "teller": ""})


async def _said(row: ApprovalRow, what: str, now: float, **facts: Any) -> None:
    run = await find_run(row.run)
    await note(run, what, at=now, by="", epoch=0, call=row.call, approval=row.id, tells=row.tells, **facts)

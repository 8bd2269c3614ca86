"""The outbox of notices about approval requests: claim a notice, send it, mark it.

If the sender dies, another one takes over.
"""

from __future__ import annotations

from typing import Any

from amends.ledger.events import write_event
from amends.ledger.operations import NOTICES_MAX, ClaimNotice, DueNotices, RecordNotice
from amends.ledger.queries import list_due_notices, move_time
from amends.ledger.rows import APPROVALS, CALLS, ApprovalRow, Now, RequestWithCall
from amends.ledger.tables import Change, Find
from amends.ledger.trees import find_run


async def due_notices(op: DueNotices) -> list[str]:
    """List the notices that are due and not claimed (``DueNotices``)."""
    return [row.id for row in await list_due_notices(await Now(""), op.tenant, op.limit)]


async def claim_notice(op: ClaimNotice) -> RequestWithCall | None:
    """Claim a notice for a while (``ClaimNotice``); one that is no longer needed leaves the outbox."""
    row = await Find(APPROVALS, op.approval)
    if row is None:
        return None
    now = await Now(row.root)
    await move_time(now)
    if not (op.repeated and row.teller == op.teller):
        if row.tell_at is None or row.tell_at > now:
            return None
        if row.state_at(now) != "pending" or row.tells >= NOTICES_MAX:
            await _give_up_notice(row, now)
            return None
        claim = {"tell_at": now + op.claim_s, "teller": op.teller, "tells": row.tells + 1}
        row = await Change(APPROVALS, row, claim)
    call = await Find(CALLS, row.call)
    assert call is not None, f"the ledger names a call that it does not have: {row.call}"
    return RequestWithCall(row, call, now)


async def note_told(op: RecordNotice) -> ApprovalRow:
    """Record the outcome of a notice (``RecordNotice``).

    A failure after another process has claimed it changes nothing, and neither does an outcome after the next reminder or
    escalation, which has its own notice.
    """
    row = await Find(APPROVALS, op.approval)
    assert row is not None, f"what was claimed is in the ledger: {op.approval}"
    is_news = row.told_at is None and row.reached == op.reached and (not op.error or row.teller == op.teller)
    if not is_news:
        return row
    now = await Now(row.root)
    await move_time(now)
    if not op.error:
        await _note_notice(row, "told", now)
        return await Change(APPROVALS, row, {"told_at": now, "tell_at": None, "teller": ""})
    await _note_notice(row, "not told", now, error=op.error, gave_up=int(op.retry_s is None))
    again_at = None if op.retry_s is None else now + op.retry_s
    return await Change(APPROVALS, row, {"tell_at": again_at, "teller": ""})


async def _give_up_notice(row: ApprovalRow, now: float) -> None:
    if row.state_at(now) == "pending":
        await _note_notice(row, "not told", now, error="the process that sent it did not report an outcome", gave_up=1)
    await Change(APPROVALS, row, {"tell_at": None, "teller": ""})


async def _note_notice(row: ApprovalRow, what: str, now: float, **facts: Any) -> None:
    run = await find_run(row.run)
    await write_event(run, what, at=now, by="", epoch=0, call=row.call, approval=row.id, tells=row.tells, **facts)

"""Decide about permits: approvals that a person gave before the call was asked for.

A use of a permit writes an approval of the exact call, which its start consumes as it does any other, in the same
transaction: a call that something else keeps from starting uses nothing. Only a call that cannot start yet, because it is
staged or what is there before it must be read, is approved first. Rules are matched by the process that asks, as always;
whether the permit stands, and how often it was used, is decided here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from amends.encoding.chain import storable
from amends.ledger.approvals import is_enough, is_requester
from amends.ledger.changes import move_approval, move_call
from amends.ledger.directives import end_directive, make_directive, use_permit
from amends.ledger.operations import ListPermits, Permit, RevokePermit
from amends.ledger.queries import move_time, standing_permits
from amends.ledger.rows import DIRECTIVES, ApprovalRow, CallRow, DirectiveRow, Now
from amends.ledger.tables import Find
from amends.ledger.trees import find_run


async def permit(op: Permit) -> DirectiveRow:
    """Record a permit (``Permit``)."""
    known = await Find(DIRECTIVES, op.id) if op.repeated else None
    if known is not None:
        return known  # recorded before, and the answer was lost
    now = await Now("")
    await move_time(now)
    row = DirectiveRow(
        id=op.id, kind="permit", tenant=op.tenant, wide=0, agent="", tool=storable(op.tool), words=storable(op.words),
        by_whom=storable(op.by), why=storable(op.why), made_at=now, until_at=op.until_at, uses=op.uses, closed_at=None,
        seq=0,
    )  # fmt: skip
    return await make_directive(row)


async def revoke_permit(op: RevokePermit) -> DirectiveRow | None:
    """End a permit (``RevokePermit``)."""
    row = await Find(DIRECTIVES, op.id)
    if row is None or row.kind != "permit" or row.tenant != op.tenant:
        return None
    if row.closed_at is not None:
        return row
    await move_time(await Now(""))
    return await end_directive(row, at=await Now(row.id), by=op.by, why=storable(op.why))


async def list_permits(op: ListPermits) -> tuple[list[DirectiveRow], float]:
    """Read the permits that may still be used (``ListPermits``)."""
    now = await Now("")
    return await standing_permits(op.tenant, op.tool, now), now


async def permit_for(ids: tuple[str, ...], call: CallRow, approval: ApprovalRow | None) -> DirectiveRow | None:
    """Return the permit that may stand for the decision about this request now; None: none of them may."""
    if not ids or approval is None or approval.state != "pending" or call.state not in ("held", "ready"):
        return None
    now = await Now(call.root)
    for id in ids:
        row = await Find(DIRECTIVES, id)
        if row is not None and approval.lives(now) and covers(row, call, approval, now):
            return row
    return None


def covers(row: DirectiveRow, call: CallRow, approval: ApprovalRow, now: float) -> bool:
    """Return whether this permit may stand for the decision about this request now."""
    stands = row.kind == "permit" and row.closed_at is None and row.uses > 0 and now < (row.until_at or 0.0)
    if not stands or (row.tenant, row.tool) != (call.tenant, call.tool):
        return False
    words: dict[str, Any] = json.loads(row.words)
    if "digest" in words and words["digest"] != call.digest:
        return False
    if approval.is_about_money or is_requester(approval, row.by_whom):
        return False
    return counts(row, approval.needed, json.loads(approval.roles), now)


def counts(row: DirectiveRow, needed: int, roles: Iterable[str], now: float) -> bool:
    """Return whether this permit alone is enough where so many people with these roles must approve."""
    return is_enough([_yes(row, json.loads(row.words), now)], needed, roles)


def _yes(row: DirectiveRow, words: dict[str, Any], now: float) -> dict[str, Any]:
    roles = list(words.get("roles", ()))
    given = {"by": row.by_whom, "for": "", "roles": roles, "why": row.why, "at": now, "bypass": False}
    return given | {"permit": row.id}


async def approve_by(
    row: DirectiveRow, call: CallRow, approval: ApprovalRow, *, by: str
) -> tuple[CallRow, ApprovalRow]:
    """Use the permit once, and approve the call by it."""
    now, run, root = await Now(call.root), await find_run(call.run), await find_run(call.root)
    at = max(now, await Now(row.id))
    await use_permit(row, at=at, by=by, call=call.id, approval=approval.id, of=call.run_id)
    given = json.dumps([_yes(row, json.loads(row.words), now)], ensure_ascii=False)
    approval = await move_approval(
        run, approval, "approved", at=now, by=row.by_whom, epoch=root.epoch, why=row.why, facts={"permit": row.id},
        given=given, by_whom=row.by_whom, decided_at=now,
    )  # fmt: skip
    if call.is_staged or call.state == "ready":
        return call, approval
    said = {"approval": approval.id}
    call = await move_call(run, call, "ready", at=now, by=row.by_whom, epoch=root.epoch, facts=said)
    return call, approval

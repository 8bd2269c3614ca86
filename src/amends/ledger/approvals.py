"""Make approval requests and use approvals up, inside the transactions that hold a call and that start it.

What a person decides on a request is applied in ``decisions``. The outbox of notices about requests is here, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from amends.encoding.canonical import digest
from amends.ledger.changes import find_run, move_approval, move_call, request_columns_digest, write_event
from amends.ledger.operations import NOTICES_MAX, ClaimNotice, DueNotices, RecordNotice
from amends.ledger.rows import (
    BUDGET,
    ApprovalRow,
    ApprovalsOf,
    CallRow,
    FindApproval,
    FindCall,
    FindUse,
    InsertApproval,
    ListCalls,
    ListDueNotices,
    MoveTime,
    Need,
    Now,
    RequestWithCall,
    RunRow,
    Terms,
    TermsByCall,
    Unapproved,
    UpdateApproval,
    UpdateCall,
    person,
)

PENDING: Final = "pending"
"""Why a call may not start although nothing is wrong with its request: nobody has approved it yet."""


REVIVED: Final = "revived"
"""Why an approval is void after the ledger was restored from a backup; also the reason that the ledger stores."""


def binding(approval: ApprovalRow, call: CallRow) -> str:
    """Return the digest of what a person approves: this call, this generation, all its arguments, this one request."""
    return digest(
        "approval", call.tenant, call.principal, approval.run, call.tool, call.version, call.digest, call.key,
        call.generation, approval.nonce,
    )  # fmt: skip


def use_digest(run: RunRow, tool: str) -> str:
    """Return the digest of this tool as used by this agent."""
    return digest("use", run.tenant, run.agent, tool)


async def still_needed(need: Need | None, run: RunRow, tool: str) -> Need | None:
    """Return what is needed; None if only the first use needed approval and this is not the first."""
    if need is not None and need.first_use and await FindUse(use_digest(run, tool)):
        return None
    return need


async def make_request(
    run: RunRow, call: CallRow, need: Need, *, at: float, by: str, epoch: int, follows: str = "", **facts: Any
) -> ApprovalRow:
    """Record that people are asked about this call, which names the request already.

    ``follows``: the request that this one replaces. Further keyword arguments become facts of the event.
    """
    assert call.approval == need.id, "a call names its newest request"
    await MoveTime(at)
    editors = await _editors(call, need)
    row = ApprovalRow(
        id=need.id, seq=0, call=call.id, run=call.run, root=call.root, run_id=call.run_id, tenant=call.tenant,
        tool=call.tool, version=call.version, principal=call.principal, agent=call.agent, digest="", nonce=need.nonce,
        state="pending", needed=need.needed, roles=json.dumps(need.roles, ensure_ascii=False),
        reasons=json.dumps(need.reasons, ensure_ascii=False), rule=need.why, policy=need.policy, given="[]",
        requested_at=at, expires_at=at + need.expires_s, use_key=use_digest(run, call.tool), residue=need.residue,
        follows=follows, tell_at=at, editors=json.dumps(editors, ensure_ascii=False) if editors else "",
    )  # fmt: skip
    bound = binding(row, call)
    seq = await write_event(
        run, "approval", at=at, by=by, epoch=epoch, call=call.id, frm="(new)", to="pending", approval=row.id,
        tool=call.tool, digest=bound, terms=request_columns_digest(row), rule=need.why, needed=need.needed, roles=need.roles,
        follows=follows, editors=editors, **facts,
    )  # fmt: skip
    row = replace(row, seq=seq, digest=bound)
    await InsertApproval(row)
    return row


async def _editors(call: CallRow, need: Need) -> tuple[str, ...]:
    """Return who edited what this call asks for: the editors of every request made under its key in this tree.

    An edited request may be withdrawn, expire, or be replaced when a rule or the price changes. Whoever makes the same
    request again still asks for what the editor wrote.
    """
    found = list(need.editors)
    for row in await ApprovalsOf(call.root):
        asked = await FindCall(row.call) if row.editors else None
        if asked is not None and asked.key == call.key:
            found += row.edited_by
    return tuple(dict.fromkeys(found))


async def make_new_request(
    run: RunRow, call: CallRow, need: Need, *, at: float, by: str, epoch: int, follows: str = "", **facts: Any
) -> tuple[CallRow, ApprovalRow]:
    """Make a new request for a call that is in the ledger; hold the call again if it was ready."""
    changes: dict[str, Any] = {"approval": need.id}
    if not call.is_staged:
        changes["reason"] = "budget" if need.policy.startswith(BUDGET) else "approval"
    if call.state == "ready" and not call.is_staged:
        call = await move_call(run, call, "held", at=at, by=by, epoch=epoch, facts={"approval": need.id}, **changes)
    else:
        call = await UpdateCall(call, changes)
    return call, await make_request(run, call, need, at=at, by=by, epoch=epoch, follows=follows, **facts)


def same_need(approval: ApprovalRow, id: str = "", nonce: str = "") -> Need:
    """Return what this request asked for, to ask for it anew."""
    return Need(
        id,
        nonce,
        needed=approval.needed,
        roles=tuple(json.loads(approval.roles)),
        reasons=tuple(json.loads(approval.reasons)),
        expires_s=approval.expires_at - approval.requested_at,
        why=approval.rule,
        policy=approval.policy,
        residue=approval.residue,
        editors=approval.edited_by,
    )


# ---- Using an approval


def why_not_startable(approval: ApprovalRow, call: CallRow, terms: Terms | None, now: float) -> str:
    """Return why this request does not let this call start; empty: it does."""
    if approval.tenant != call.tenant:
        return "other_tenant"
    if approval.root != call.root or approval.call != call.id:
        return "other_run"
    if approval.state == "used":
        return "used"
    if approval.state_at(now) == "expired":
        return REVIVED if approval.reason == REVIVED else "expired"
    version = call.version if terms is None else terms.version
    if approval.digest != binding(approval, call) or approval.version != version:
        return "changed"
    if approval.state not in ("pending", "approved"):
        return "changed"
    if approval.state == "pending":
        return PENDING if terms is None or not _is_stricter(terms.need, approval) else "changed"
    if any(is_requester(approval, str(said.get(word) or "")) for said in approval.yeses for word in ("by", "for")):
        return "self"
    return "" if terms is None or suffices(approval, terms.need) else "changed"


def is_requester(approval: ApprovalRow, who: str) -> bool:
    """Return whether this person made the request or edited it; names are compared in their normal form."""
    named = person(who)
    return bool(named) and named in map(person, (approval.principal, approval.agent, *approval.edited_by))


def suffices(approval: ApprovalRow, need: Need | None) -> bool:
    """Return whether the approvals given are enough for what the rules require now."""
    if need is None or need.policy == approval.policy or need.decision == "refuse":
        # What a rule refuses now was accepted before; only calls that have not started yet are refused again.
        return True
    return is_enough(approval.yeses, need.needed, need.roles)


def is_enough(yeses: Iterable[Mapping[str, Any]], needed: int, roles: Iterable[str]) -> bool:
    """Return whether enough different people with these roles approved, or one bypassed the rule."""
    wanted = set(roles)
    people: set[str] = set()
    for said in yeses:
        if said.get("bypass"):
            return True
        if not wanted or wanted & set(said.get("roles", ())):
            people.add(person(str(said.get("for") or said["by"])))  # the person whose decision it is, whoever gives it
    return len(people) >= needed


def _is_stricter(need: Need | None, approval: ApprovalRow) -> bool:
    """Return whether the rules require more approvals, or other roles, than the request asked for."""
    if need is None or need.policy == approval.policy:
        return False
    return need.needed > approval.needed or set(need.roles) != set(json.loads(approval.roles))


async def may_start(
    run: RunRow, call: CallRow, terms: Terms | None, *, at: float, by: str, epoch: int
) -> Unapproved | ApprovalRow | None:
    """Return the approval that a first start uses up, None if none is needed, or why the call may not be started.

    If the rules are known, an approval that has expired or no longer suffices is requested anew.
    """
    approval = await FindApproval(call.approval) if call.approval else None
    if approval is not None:
        await MoveTime(at)
    if call.attempt or (call.is_staged and (approval is None or approval.state == "used")):
        return None  # later attempts need no more approval; staged calls were decided with the pivot or the commit
    need = None if terms is None else await still_needed(terms.need, run, call.tool)
    if need is not None and need.decision == "refuse":
        return Unapproved(call, approval, "refused")
    if approval is None:
        if need is None:
            return None
        call, made = await make_new_request(run, call, need, at=at, by=by, epoch=epoch)
        return Unapproved(call, made)
    why = why_not_startable(approval, call, terms, at)
    if not why:
        return approval
    if why == PENDING:
        return Unapproved(call, approval)
    # This process has another version of the tool; a process with the approved version may start the call.
    other_version = terms is not None and terms.version != call.version
    if why in ("expired", "changed", REVIVED) and need is not None and not other_version:
        call, made = await replace_request(run, call, approval, need, why, at=at, by=by, epoch=epoch)
        return Unapproved(call, made, why)
    return Unapproved(call, approval, why)


async def replace_request(
    run: RunRow, call: CallRow, old: ApprovalRow, need: Need, why: str, *, at: float, by: str, epoch: int
) -> tuple[CallRow, ApprovalRow]:
    """End a void request and make a new one.

    ``why``: the reason why the old one is void. A request about a budget stays one: what the rules require is added to it.
    """
    if old.is_about_money and not need.policy.startswith(BUDGET):
        need = replace(need, policy=old.policy, why=f"{need.why}; {old.rule}")
    if old.state in ("pending", "approved"):
        to = "expired" if why == "expired" else "cancelled"
        await move_approval(run, old, to, at=at, by=by, epoch=epoch, why=why)
    return await make_new_request(run, call, need, at=at, by=by, epoch=epoch, follows=old.id, why=why)


async def why_replaced(approval: ApprovalRow) -> str:
    """Return why this request was made; empty: it is the first."""
    old = await FindApproval(approval.follows) if approval.follows else None
    if old is None:
        return ""
    return "changed" if old.state != "expired" else REVIVED if old.reason == REVIVED else "expired"


async def first_start_answer(call: CallRow, terms: Terms | None) -> Unapproved | None:
    """Return the answer to a repeated start if its first try made a new request."""
    if terms is None or terms.need is None or call.approval != terms.need.id:
        return None
    approval = await FindApproval(call.approval)
    assert approval is not None, "a call names a request of this ledger"
    return Unapproved(call, approval, await why_replaced(approval))


async def use_approval(run: RunRow, approval: ApprovalRow, *, at: float, by: str, epoch: int) -> ApprovalRow:
    """Use the approval up for the one start that it was given for."""
    return await move_approval(run, approval, "used", at=at, by=by, epoch=epoch, used_at=at)


# ---- Staged calls


async def undecided_staged(run: RunRow, calls: Iterable[CallRow], outbox: TermsByCall, now: float) -> list[CallRow]:
    """Return the staged calls of this run that are not approved, or not so that they may start now."""
    staged = [call for call in calls if call.run == run.uid and call.is_staged and not call.attempt]
    if not any(call.approval or call.id in outbox for call in staged):
        return []
    requests = {row.id: row for row in await ApprovalsOf(run.root)}
    if requests:
        await MoveTime(now)
    found: list[CallRow] = []
    for call in staged:
        terms, asked = outbox.get(call.id), requests.get(call.approval)
        if asked is None:
            waits = terms is not None and await still_needed(terms.need, run, call.tool) is not None
        else:
            waits = await _is_undecided(run, call, asked, terms, now)
        if waits:
            found.append(call)
    return found


async def _is_undecided(run: RunRow, call: CallRow, asked: ApprovalRow, terms: Terms | None, now: float) -> bool:
    if asked.state != "used":
        return why_not_startable(asked, call, terms, now) != ""
    # It was used up with a pivot that failed: another start decides now, and for that the approval must still count.
    if run.pivot or terms is None or await still_needed(terms.need, run, call.tool) is None:
        return False
    return why_not_startable(replace(asked, state="approved"), call, terms, now) in ("expired", "changed")


async def request_more(
    run: RunRow, calls: Iterable[CallRow], outbox: TermsByCall, *, at: float, by: str, epoch: int
) -> list[CallRow]:
    """Return these calls, after requesting approval anew for those of which the rules require more than was given."""
    found: list[CallRow] = []
    for call in calls:
        terms = outbox.get(call.id)
        approval = await FindApproval(call.approval) if call.approval else None
        need = None if terms is None else terms.need
        if need is not None and approval is None:
            call, _ = await make_new_request(run, call, need, at=at, by=by, epoch=epoch)
        elif (
            need is not None
            and approval is not None
            and (approval.state == "used" or _asks_more(approval, call, terms, at))
        ):
            call, _ = await replace_request(run, call, approval, need, "changed", at=at, by=by, epoch=epoch)
        found.append(call)
    return found


def _asks_more(approval: ApprovalRow, call: CallRow, terms: Terms | None, at: float) -> bool:
    """Return whether the rules changed, not only the tool's version: another process may have the approved version."""
    return (
        terms is not None
        and terms.version == call.version
        and why_not_startable(approval, call, terms, at) == "changed"
    )


async def use_staged(run: RunRow, *, at: float, by: str, epoch: int) -> None:
    """Use up the approvals of the staged calls, in the transaction that decides that they will be started."""
    requests = await ApprovalsOf(run.root)
    if requests:
        await MoveTime(at)
    for row in requests:
        call = await FindCall(row.call) if row.state == "approved" and row.lives(at) else None
        if call is not None and call.approval == row.id and call.run == run.uid and call.is_staged:
            await use_approval(run, row, at=at, by=by, epoch=epoch)


async def waits_until(root: str, now: float) -> tuple[bool, float | None]:
    """Return whether a person is asked in this tree, and when the last of those requests expires; None: never."""
    held = [call for call in await ListCalls(root, ("held", "ready")) if not call.attempt]
    if any(call.state == "held" and not call.is_staged and not call.approval for call in held):
        return True, None
    asked = {call.approval for call in held if call.approval}
    if asked:
        await MoveTime(now)
    living = [row for row in await ApprovalsOf(root) if row.id in asked and row.lives(now)] if asked else []
    return any(row.state == "pending" for row in living), max((row.expires_at for row in living), default=None)


async def released_columns(root: RunRow, now: float, *, at_least: float | None = None) -> dict[str, Any]:
    """Return until when a released run is left alone, and whether it waits for a person.

    ``at_least``: how long its caller may take to come back for the decision.
    """
    waits, until = await waits_until(root.uid, now)
    if root.goal == "rollback":
        return {"suspended": 0, "wake_at": now}
    if waits:
        return {"suspended": 1, "wake_at": until}
    if root.goal == "commit" or root.phase == "pivoted" or (root.policy == "resume" and root.agent):
        return {"suspended": 0, "wake_at": now}
    if root.policy == "wait":
        return {"suspended": 0, "wake_at": None}
    return {"suspended": 0, "wake_at": max(until or now + root.lease_s, at_least or 0.0)}


# ---- The outbox of notices: claim a notice, send it, mark it. If the sender dies, another one takes over


async def due_notices(op: DueNotices) -> list[str]:
    """List the notices that are due and not claimed (``DueNotices``)."""
    return [row.id for row in await ListDueNotices(await Now(""), op.tenant, op.limit)]


async def claim_notice(op: ClaimNotice) -> RequestWithCall | None:
    """Claim a notice for a while (``ClaimNotice``); one that is no longer needed leaves the outbox."""
    row = await FindApproval(op.approval)
    if row is None:
        return None
    now = await Now(row.root)
    await MoveTime(now)
    if not (op.repeated and row.teller == op.teller):
        if row.tell_at is None or row.tell_at > now:
            return None
        if row.state_at(now) != "pending" or row.tells >= NOTICES_MAX:
            await _give_up_notice(row, now)
            return None
        claim = {"tell_at": now + op.claim_s, "teller": op.teller, "tells": row.tells + 1}
        row = await UpdateApproval(row, claim)
    call = await FindCall(row.call)
    assert call is not None, f"the ledger names a call that it does not have: {row.call}"
    return RequestWithCall(row, call, now)


async def note_told(op: RecordNotice) -> ApprovalRow:
    """Record the outcome of a notice (``RecordNotice``). A failure after another process has claimed it changes nothing."""
    row = await FindApproval(op.approval)
    assert row is not None, f"what was claimed is in the ledger: {op.approval}"
    is_news = row.told_at is None and (not op.error or row.teller == op.teller)
    if not is_news:
        return row
    now = await Now(row.root)
    await MoveTime(now)
    if not op.error:
        await _note_notice(row, "told", now)
        return await UpdateApproval(row, {"told_at": now, "tell_at": None, "teller": ""})
    await _note_notice(row, "not told", now, error=op.error, gave_up=int(op.retry_s is None))
    again_at = None if op.retry_s is None else now + op.retry_s
    return await UpdateApproval(row, {"tell_at": again_at, "teller": ""})


async def _give_up_notice(row: ApprovalRow, now: float) -> None:
    if row.state_at(now) == "pending":
        await _note_notice(row, "not told", now, error="the process that sent it did not report an outcome", gave_up=1)
    await UpdateApproval(row, {"tell_at": None, "teller": ""})


async def _note_notice(row: ApprovalRow, what: str, now: float, **facts: Any) -> None:
    run = await find_run(row.run)
    await write_event(run, what, at=now, by="", epoch=0, call=row.call, approval=row.id, tells=row.tells, **facts)

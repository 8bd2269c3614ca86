"""Apply people's decisions on approval requests: approve, bypass, reject, withdraw, ask again, edit, expire, delegate.

How a request is made, and how an approval is used up by a start, is in ``approvals``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from amends.encoding.chain import proof, storable
from amends.errors import TransitionRefused
from amends.ledger.admission import admit_new_call, key_root
from amends.ledger.approvals import (
    REVIVED,
    binding,
    is_enough,
    is_requester,
    make_new_request,
    released_columns,
    same_need,
)
from amends.ledger.changes import (
    delegation_facts,
    find_owned,
    find_run,
    goal_facts,
    is_delegated,
    move_approval,
    move_call,
    move_run,
    refuse_loaded,
    write_event,
)
from amends.ledger.operations import (
    DecideApproval,
    Delegate,
    EditApproval,
    ExpireApprovals,
    ReadApproval,
    RenewRequest,
    SearchApprovals,
    VoidApproval,
)
from amends.ledger.rows import (
    OPEN,
    AddDelegation,
    AddEvent,
    ApprovalRow,
    ApprovalsOf,
    CallRow,
    DecisionOutcome,
    DelegationRow,
    DelegationsTo,
    EventRow,
    FindApproval,
    FindCall,
    FindKey,
    ListCalls,
    MoveTime,
    Now,
    PageApprovals,
    PageEvents,
    RequestWithCall,
    RunRow,
    UpdateApproval,
    UpdateRun,
    person,
)
from amends.states import FREES_KEY

# ---- Deciding on a request


async def decide_approval(op: DecideApproval) -> DecisionOutcome:
    """Apply a person's decision on a request (``DecideApproval``), or say why it does not count."""
    approval, call = await _find(op.approval)
    now = await Now(call.root)
    await MoveTime(now)
    again = approval.state == "approved" and op.verb == "approve" and op.digest == approval.digest
    if (op.repeated or again) and _is_repeated(approval, op, again=again):
        return DecisionOutcome(
            approval, call, now
        )  # decided before, and the answer was lost; or a button pressed twice
    run = await find_run(call.run)
    refuse_loaded(run)
    epoch = (await find_run(call.root)).epoch
    void = await _why_void(approval, call, op, now)
    if void:
        if void == "expired" and approval.state in OPEN:
            approval = await move_approval(run, approval, "expired", at=now, by=op.by, epoch=epoch)
        return DecisionOutcome(approval, call, now, void)
    # An expired request can still be withdrawn, as long as its call waits.
    waits = op.verb == "withdraw" and call.approval == approval.id and call.state in ("held", "ready")
    decided = approval.state not in OPEN or (approval.state == "approved" and op.verb in ("approve", "bypass"))
    if decided and not waits:
        raise TransitionRefused(
            f"approval {approval.id} ({approval.tool}) is {approval.state} already", frm=approval.state, to=op.verb
        )
    match op.verb:
        case "approve" | "bypass":
            approval, call = await _approve(approval, call, run, op, now, epoch)
        case "reject":
            approval, call = await _reject(approval, call, run, op, now, epoch)
        case "withdraw":
            await write_event(
                run, "withdrawn", at=now, by=op.by, epoch=epoch, call=call.id, approval=approval.id, why=op.why
            )
            call = await move_call(run, call, "dropped", at=now, by=op.by, epoch=epoch, why=op.why, settled_at=now)
            if run.staged_pivot == call.id:
                await UpdateRun(run, {"staged_pivot": ""})
            approval = await _reread(approval)
    await wake_after_decision(call, approval, at=now, by=op.by)
    return DecisionOutcome(await _reread(approval), await _reread_call(call), now)


async def _why_void(approval: ApprovalRow, call: CallRow, op: DecideApproval, now: float) -> str:
    if op.verb == "withdraw":
        return ""
    if approval.state == "used":
        return "used"
    if approval.state_at(now) == "expired":
        return REVIVED if approval.reason == REVIVED else "expired"
    if op.verb == "reject":
        return "" if _may_decide(approval, op.roles) else "role"
    if approval.state == "cancelled" or op.digest != approval.digest or binding(approval, call) != approval.digest:
        return "changed"
    if is_requester(approval, op.by) or is_requester(approval, op.behalf):
        return "self"
    if op.behalf and await _delegation(approval, op, now) is None:
        return "role"
    return "" if op.verb == "bypass" or _may_decide(approval, op.roles) else "role"


def _may_decide(approval: ApprovalRow, roles: Iterable[str]) -> bool:
    wanted = set(json.loads(approval.roles))
    return not wanted or bool(wanted & set(roles))


async def _delegation(approval: ApprovalRow, op: DecideApproval, now: float) -> EventRow | None:
    """Return the event of the delegation by which this person may decide for the other one; None: there is none.

    A row alone proves nothing: whoever can write to the database can add one and remove it again.
    """
    for delegation in await DelegationsTo(approval.tenant, person(op.by)):
        if delegation.by_whom == person(op.behalf) and delegation.made_at <= now < delegation.until_at:
            events = await PageEvents(delegation.id, None, 0, 1)
            if events and is_delegated(delegation, events[0]):
                return events[0]
    return None


def _is_repeated(approval: ApprovalRow, op: DecideApproval, *, again: bool = False) -> bool:
    """Return whether this very decision was recorded before; ``again``: ignore the reason."""
    match op.verb:
        case "approve" | "bypass":
            return any(said["by"] == op.by and (again or said["why"] == op.why) for said in approval.yeses)
        case "reject":
            return (approval.state, approval.by_whom, approval.reason) == ("rejected", op.by, op.why)
    return approval.state == "cancelled"


async def _approve(
    approval: ApprovalRow, call: CallRow, run: RunRow, op: DecideApproval, now: float, epoch: int
) -> tuple[ApprovalRow, CallRow]:
    yes: dict[str, Any] = {
        "by": op.by, "for": op.behalf, "roles": list(op.roles), "why": op.why, "at": now,
        "bypass": op.verb == "bypass",
    }  # fmt: skip
    delegation = await _delegation(approval, op, now) if op.behalf else None
    given_by: dict[str, Any] = (
        {} if delegation is None else {"behalf": op.behalf, "delegation": [delegation.root, delegation.hash]}
    )
    yes |= {} if delegation is None else {"delegation": delegation.root}
    yeses = [said for said in approval.yeses if person(said["by"]) != person(op.by)]
    yeses.append(yes)
    enough = is_enough(yeses, approval.needed, json.loads(approval.roles))
    given = json.dumps(yeses, ensure_ascii=False)
    if not enough:
        await write_event(
            run, "approval given", at=now, by=op.by, epoch=epoch, call=call.id, approval=approval.id, why=op.why,
            of=approval.needed, given=proof(given), **given_by,
        )  # fmt: skip
        return await UpdateApproval(approval, {"given": given}), call
    why = f"bypass: {op.why}" if op.verb == "bypass" else op.why
    approval = await move_approval(
        run, approval, "approved", at=now, by=op.by, epoch=epoch, why=why, facts=given_by, given=given, by_whom=op.by,
        decided_at=now,
    )  # fmt: skip
    if call.state == "held" and not call.is_staged:
        call = await move_call(run, call, "ready", at=now, by=op.by, epoch=epoch, facts={"approval": approval.id})
    return approval, call


async def _reject(
    approval: ApprovalRow, call: CallRow, run: RunRow, op: DecideApproval, now: float, epoch: int
) -> tuple[ApprovalRow, CallRow]:
    said: dict[str, Any] = {"by_whom": op.by, "reason": op.why, "decided_at": now}
    approval = await move_approval(run, approval, "rejected", at=now, by=op.by, epoch=epoch, why=op.why, **said)
    error = json.dumps([op.by, op.why], ensure_ascii=False)
    call = await move_call(run, call, "refused", at=now, by=op.by, epoch=epoch, why=op.why, error=error, settled_at=now)
    if run.staged_pivot == call.id and run.phase == "open" and run.goal != "rollback":
        # Without its pivot the run has nothing to commit; and a refusal must not be circumvented by running again.
        why = f"{op.by} rejected {call.tool}: {op.why}"
        aim = {"goal": "rollback", "goal_by": "person", "goal_why": why}
        await write_event(run, "goal", at=now, by=op.by, epoch=epoch, to="rollback", why=op.why, **goal_facts(run, aim))
        await UpdateRun(run, {"staged_pivot": "", **aim})
    return approval, call


async def wake_after_decision(call: CallRow, approval: ApprovalRow, *, at: float, by: str) -> None:
    """Release the run after a decision: a worker may continue an unowned run, or its caller may open it again."""
    run, root = await find_run(call.run), await find_run(call.root)
    if root.closed_at is not None:
        return
    for one in {run.uid: run, root.uid: root}.values():
        if one.state == "blocked":
            await move_run(one, one.came_from, at=at, by=by, epoch=root.epoch, came_from="", causes="[]")
    run, root = await find_run(call.run), await find_run(call.root)
    if root.owner:
        return
    changes = await released_columns(root, at, at_least=approval.expires_at)
    if run.goal == "rollback":
        changes = {"suspended": 0, "wake_at": at}
    await UpdateRun(root, changes)


# ---- Asking again, editing, expiring


async def ask_again(op: RenewRequest) -> DecisionOutcome:
    """Make a new request for a call whose request has expired (``RenewRequest``)."""
    approval, call = await _find(op.approval)
    now = await Now(call.root)
    await MoveTime(now)
    if op.repeated and call.approval == op.id:
        return DecisionOutcome(await _reread(await FindApproval(op.id)), call, now)
    run = await find_run(call.run)
    epoch = (await find_run(call.root)).epoch
    if call.state not in ("held", "ready") or call.approval != approval.id or approval.state_at(now) != "expired":
        raise TransitionRefused(
            f"approval {approval.id} ({approval.tool}) is {approval.state_at(now)}, its call {call.state}: "
            "only an expired request whose call still waits can be asked again",
            frm=approval.state,
            to="pending",
        )
    await _refuse_if_rolling_back(run, to="pending")
    if approval.state in OPEN:
        await move_approval(run, approval, "expired", at=now, by=op.by, epoch=epoch)
    need = same_need(approval, op.id, op.nonce)
    call, made = await make_new_request(run, call, need, at=now, by=op.by, epoch=epoch, follows=approval.id, why=op.why)
    await wake_after_decision(call, made, at=now, by=op.by)
    return DecisionOutcome(made, await _reread_call(call), now)


async def edit_approval(op: EditApproval) -> DecisionOutcome:
    """Replace a request by one with other arguments (``EditApproval``).

    The old call is refused, and its reason says what to ask for instead.
    """
    approval, call = await _find(op.approval)
    now = await Now(call.root)
    await MoveTime(now)
    new = await FindCall(op.instead.call_id)
    if op.repeated and new is not None:
        return DecisionOutcome(await _reread(await FindApproval(new.approval)), new, now)
    if call.state not in ("held", "ready") or call.approval != approval.id:
        raise TransitionRefused(
            f"approval {approval.id} ({approval.tool}) is {approval.state}, its call {call.state}: there is no open request",
            frm=approval.state,
            to="rejected",
        )
    if not _may_decide(approval, op.roles):
        return DecisionOutcome(approval, call, now, "role")
    run, root = await find_run(call.run), await find_run(call.root)
    await _refuse_if_rolling_back(run, to="rejected")
    assert op.instead.need is not None, "other arguments are asked for under conditions at least as strict"
    reason = f"{op.why}; ask for it with {op.instead.args} instead"
    staged = run.staged_pivot == call.id
    if staged:
        run = await UpdateRun(run, {"staged_pivot": ""})
    if approval.state in OPEN:
        said: dict[str, Any] = {"by_whom": op.by, "reason": reason, "decided_at": now}
        await move_approval(run, approval, "rejected", at=now, by=op.by, epoch=root.epoch, why=reason, **said)
    error = json.dumps([op.by, reason], ensure_ascii=False)
    await move_call(run, call, "refused", at=now, by=op.by, epoch=root.epoch, why=reason, error=error, settled_at=now)
    known = await FindKey(op.instead.key, key_root(op.instead))
    if known is not None and known.state not in FREES_KEY:
        raise TransitionRefused(
            f"{known.tool} with these arguments is {known.state} already ({known.id})", frm=known.state, to="held"
        )
    need = replace(op.instead.need, editors=(*approval.edited_by, op.by))
    instead = replace(op.instead, run=run.uid, root=root.uid, repeated=False, need=need)
    answer = await admit_new_call(instead, run, root, now, 1 if known is None else known.generation + 1)
    if answer.call is None or answer.approval is None:
        raise TransitionRefused(
            f"{call.tool} cannot be asked for with these arguments now ({answer.law})", frm=call.state, to="held"
        )
    await wake_after_decision(answer.call, answer.approval, at=now, by=op.by)
    return DecisionOutcome(answer.approval, answer.call, now)


async def _refuse_if_rolling_back(run: RunRow, *, to: str) -> None:
    """Raise ``TransitionRefused`` if the run, or its root, is rolling back: then nobody is asked anything new."""
    for one in (run, await find_run(run.root)):
        if one.phase == "rolling_back" or (one.phase == "open" and one.goal == "rollback"):
            raise TransitionRefused(
                f"run {one.id} is being rolled back: nobody is asked any more", frm=one.state, to=to
            )


async def expire_approvals(op: ExpireApprovals) -> RunRow:
    """Mark the expired requests of a tree as expired (``ExpireApprovals``)."""
    root = await find_owned(op.root, op.owner, op.epoch)
    now = await Now(root.uid)
    await MoveTime(now)
    waiting = {call.approval: call for call in await ListCalls(root.uid, ("held", "ready")) if call.approval}
    for row in await ApprovalsOf(root.uid) if waiting else ():
        call = waiting.get(row.id)
        if call is None or row.state not in OPEN or row.lives(now):
            continue
        run = await find_run(call.run)
        await move_approval(run, row, "expired", at=now, by=op.owner, epoch=op.epoch)
        if call.state == "ready" and not call.is_staged:
            await move_call(run, call, "held", at=now, by=op.owner, epoch=op.epoch, facts={"approval": row.id})
    return await find_run(root.uid)


async def void_approval(op: VoidApproval) -> DecisionOutcome:
    """Void a request after the ledger was restored from a backup (``VoidApproval``)."""
    approval, call = await _find(op.approval)
    now = await Now(call.root)
    await MoveTime(now)
    if approval.state not in OPEN:
        return DecisionOutcome(approval, call, now)
    run, root = await find_run(call.run), await find_run(call.root)
    said: dict[str, Any] = {"reason": REVIVED, "by_whom": op.by, "decided_at": now}
    approval = await move_approval(run, approval, "expired", at=now, by=op.by, epoch=root.epoch, why=op.why, **said)
    if call.state == "ready" and not call.is_staged:
        call = await move_call(run, call, "held", at=now, by=op.by, epoch=root.epoch, facts={"approval": approval.id})
    return DecisionOutcome(approval, call, now)


# ---- Delegating and reading


async def delegate(op: Delegate) -> DelegationRow:
    """Record a delegation (``Delegate``)."""
    now = await Now("")
    await MoveTime(now)
    known = [one for one in await DelegationsTo(op.tenant, person(op.to)) if one.id == op.id]
    if known:
        return known[0]  # recorded before, and the answer was lost
    by, to, why = storable(person(op.by)), storable(person(op.to)), storable(op.why)
    row = DelegationRow(op.id, op.tenant, by, to, op.until_at, why, now, 0)
    # It belongs to no run: its event is a chain of its own, which checkpoints include like any other.
    seq = await AddEvent(
        at=now, root=row.id, run=row.id, run_id=row.id, tenant=row.tenant, call="", what="delegated", frm="", to_state="",
        by_whom=op.by, epoch=0, facts=delegation_facts(row),
    )  # fmt: skip
    row = replace(row, seq=seq)
    assert await AddDelegation(row), "the id of a delegation is new"
    return row


async def read_approval(op: ReadApproval) -> RequestWithCall | None:
    """Read one request with its call (``ReadApproval``)."""
    row = await FindApproval(op.approval)
    call = None if row is None else await FindCall(row.call)
    return None if row is None or call is None else RequestWithCall(row, call, await Now(row.root))


async def search_approvals(op: SearchApprovals) -> list[RequestWithCall]:
    """Read a page of requests with their calls (``SearchApprovals``)."""
    now = await Now("")
    found: list[RequestWithCall] = []
    for row in await PageApprovals(op.tenant, op.states, op.before, op.limit):
        call = await FindCall(row.call)
        assert call is not None, "a request names a call of this ledger"
        found.append(RequestWithCall(row, call, now))
    return found


async def _find(id: str) -> tuple[ApprovalRow, CallRow]:
    row = await FindApproval(id)
    if row is None:
        raise LookupError(f"there is no approval {id!r} in this ledger")
    call = await FindCall(row.call)
    assert call is not None, "a request names a call of this ledger"
    return row, call


async def _reread(approval: ApprovalRow | None) -> ApprovalRow:
    assert approval is not None, "a request is never removed"
    row = await FindApproval(approval.id)
    assert row is not None, "a request is never removed"
    return row


async def _reread_call(call: CallRow) -> CallRow:
    found = await FindCall(call.id)
    assert found is not None, "a call is never removed"
    return found

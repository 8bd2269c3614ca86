"""Make approval requests, apply people's decisions on them, and use approvals up in the transaction that starts a call.

The outbox of notices about requests is in ``notices``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeAlias

from amends.encoding.canonical import digest
from amends.encoding.chain import proof, storable
from amends.errors import TransitionRefused
from amends.ledger.changes import move_approval, move_call, move_run
from amends.ledger.events import (
    delegation_facts,
    goal_facts,
    is_delegated,
    refuse_loaded,
    request_columns_digest,
    write_event,
)
from amends.ledger.flow import Flow
from amends.ledger.leases import find_owned, released_columns
from amends.ledger.operations import (
    Admission,
    AdmitCall,
    DecideApproval,
    Delegate,
    DueRequests,
    EditApproval,
    ExpireApprovals,
    FollowTimetable,
    ReadApproval,
    RenewRequest,
    SearchApprovals,
    VoidApproval,
)
from amends.ledger.queries import (
    approvals_of,
    delegations_to,
    list_calls,
    list_due_requests,
    move_time,
    newest_call,
    page_approvals,
    page_events,
    used_approvals,
)
from amends.ledger.rows import (
    APPROVALS,
    BUDGET,
    CALLS,
    DELEGATIONS,
    OPEN,
    RUNS,
    SYSTEM,
    AddEvent,
    ApprovalRow,
    CallRow,
    DecisionOutcome,
    DelegationRow,
    EventRow,
    Need,
    Now,
    RequestWithCall,
    RunRow,
    Terms,
    TermsByCall,
    Unapproved,
    entry_at,
    person,
    read_timetable,
)
from amends.ledger.tables import Add, Change, Find
from amends.ledger.trees import find_run, key_root
from amends.states import FREES_KEY

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
    if need is not None and need.first_use and await used_approvals(use_digest(run, tool)):
        return None
    return need


async def make_request(
    run: RunRow, call: CallRow, need: Need, *, at: float, by: str, epoch: int, follows: str = "", **facts: Any
) -> ApprovalRow:
    """Record that people are asked about this call, which names the request already.

    ``follows``: the request that this one replaces. Further keyword arguments become facts of the event.
    """
    assert call.approval == need.id, "a call names its newest request"
    await move_time(at)
    editors = await _editors(call, need)
    row = ApprovalRow(
        id=need.id, seq=0, call=call.id, run=call.run, root=call.root, run_id=call.run_id, tenant=call.tenant,
        tool=call.tool, version=call.version, principal=call.principal, agent=call.agent, digest="", nonce=need.nonce,
        state="pending", needed=need.needed, roles=json.dumps(need.roles, ensure_ascii=False),
        reasons=json.dumps(need.reasons, ensure_ascii=False), rule=need.why, policy=need.policy, given="[]",
        requested_at=at, expires_at=at + need.expires_s, use_key=use_digest(run, call.tool), residue=need.residue,
        follows=follows, tell_at=at, editors=json.dumps(editors, ensure_ascii=False) if editors else "",
        timetable=need.timetable, due_at=entry_at(at, read_timetable(need.timetable), 0),
    )  # fmt: skip
    bound = binding(row, call)
    seq = await write_event(
        run, "approval", at=at, by=by, epoch=epoch, call=call.id, frm="(new)", to="pending", approval=row.id,
        tool=call.tool, digest=bound, terms=request_columns_digest(row), rule=need.why, needed=need.needed, roles=need.roles,
        follows=follows, editors=editors, **facts,
    )  # fmt: skip
    row = replace(row, seq=seq, digest=bound)
    await Add(APPROVALS, row)
    return row


async def _editors(call: CallRow, need: Need) -> tuple[str, ...]:
    """Return who edited what this call asks for: the editors of every request made under its key in this tree.

    An edited request may be withdrawn, expire, or be replaced when a rule or the price changes. Whoever makes the same
    request again still asks for what the editor wrote.
    """
    found = list(need.editors)
    for row in await approvals_of(call.root):
        asked = await Find(CALLS, row.call) if row.editors else None
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
        call = await Change(CALLS, call, changes)
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
        timetable=approval.timetable,
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
    approval = await Find(APPROVALS, call.approval) if call.approval else None
    if approval is not None:
        await move_time(at)
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
    old = await Find(APPROVALS, approval.follows) if approval.follows else None
    if old is None:
        return ""
    return "changed" if old.state != "expired" else REVIVED if old.reason == REVIVED else "expired"


async def first_start_answer(call: CallRow, terms: Terms | None) -> Unapproved | None:
    """Return the answer to a repeated start if its first try made a new request."""
    if terms is None or terms.need is None or call.approval != terms.need.id:
        return None
    approval = await Find(APPROVALS, call.approval)
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
    requests = {row.id: row for row in await approvals_of(run.root)}
    if requests:
        await move_time(now)
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
        approval = await Find(APPROVALS, call.approval) if call.approval else None
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
    requests = await approvals_of(run.root)
    if requests:
        await move_time(at)
    for row in requests:
        call = await Find(CALLS, row.call) if row.state == "approved" and row.lives(at) else None
        if call is not None and call.approval == row.id and call.run == run.uid and call.is_staged:
            await use_approval(run, row, at=at, by=by, epoch=epoch)


# ---- People's decisions


async def decide_approval(op: DecideApproval) -> DecisionOutcome:
    """Apply a person's decision on a request (``DecideApproval``), or say why it does not count."""
    approval, call = await _find(op.approval)
    now = await Now(call.root)
    await move_time(now)
    again = approval.state == "approved" and op.verb == "approve" and op.digest == approval.digest
    if (op.repeated or again) and _is_repeated(approval, op, again=again):
        return DecisionOutcome(
            approval, call, now
        )  # decided before, and the answer was lost; or a button pressed twice
    run = await find_run(call.run)
    refuse_loaded(run)
    epoch = (await find_run(call.root)).epoch
    if is_due(approval, now):
        # Nobody may have come by since: who may decide, and whether it is too late, does not depend on that.
        approval, call = await _reach_due(approval, call, now)
        run = await find_run(call.run)
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
            approval, call = await _reject(approval, call, run, by=op.by, why=op.why, now=now, epoch=epoch)
        case "withdraw":
            await write_event(
                run, "withdrawn", at=now, by=op.by, epoch=epoch, call=call.id, approval=approval.id, why=op.why
            )
            call = await move_call(run, call, "dropped", at=now, by=op.by, epoch=epoch, why=op.why, settled_at=now)
            if run.staged_pivot == call.id:
                await Change(RUNS, run, {"staged_pivot": ""})
            approval = await _reread(approval)
    await wake_after_decision(call, approval, at=now, by=op.by)
    return DecisionOutcome(await _reread(approval), await _reread_call(call), now)


async def _why_void(approval: ApprovalRow, call: CallRow, op: DecideApproval, now: float) -> str:
    if approval.state == "rejected" and approval.by_whom == SYSTEM:
        return "unanswered"
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
    wanted = set(approval.asked_roles)
    return not wanted or bool(wanted & set(roles))


async def _delegation(approval: ApprovalRow, op: DecideApproval, now: float) -> EventRow | None:
    """Return the event of the delegation by which this person may decide for the other one; None: there is none.

    A row alone proves nothing: whoever can write to the database can add one and remove it again.
    """
    for delegation in await delegations_to(approval.tenant, person(op.by)):
        if delegation.by_whom == person(op.behalf) and delegation.made_at <= now < delegation.until_at:
            events = await page_events(delegation.id, None, 0, 1)
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
    enough = is_enough(yeses, approval.needed, approval.asked_roles)
    given = json.dumps(yeses, ensure_ascii=False)
    if not enough:
        await write_event(
            run, "approval given", at=now, by=op.by, epoch=epoch, call=call.id, approval=approval.id, why=op.why,
            of=approval.needed, given=proof(given), **given_by,
        )  # fmt: skip
        return await Change(APPROVALS, approval, {"given": given}), call
    why = f"bypass: {op.why}" if op.verb == "bypass" else op.why
    approval = await move_approval(
        run, approval, "approved", at=now, by=op.by, epoch=epoch, why=why, facts=given_by, given=given, by_whom=op.by,
        decided_at=now,
    )  # fmt: skip
    if call.state == "held" and not call.is_staged:
        call = await move_call(run, call, "ready", at=now, by=op.by, epoch=epoch, facts={"approval": approval.id})
    return approval, call


async def _reject(
    approval: ApprovalRow, call: CallRow, run: RunRow, *, by: str, why: str, now: float, epoch: int, **facts: Any
) -> tuple[ApprovalRow, CallRow]:
    said: dict[str, Any] = {"by_whom": by, "reason": why, "decided_at": now}
    approval = await move_approval(run, approval, "rejected", at=now, by=by, epoch=epoch, why=why, facts=facts, **said)
    error = json.dumps([by, why], ensure_ascii=False)
    call = await move_call(run, call, "refused", at=now, by=by, epoch=epoch, why=why, error=error, settled_at=now)
    if run.staged_pivot == call.id and run.phase == "open" and run.goal != "rollback":
        # Without its pivot the run has nothing to commit; and a refusal must not be circumvented by running again.
        goal_why = f"{by} rejected {call.tool}: {why}"
        aim = {"goal": "rollback", "goal_by": "unanswered" if by == SYSTEM else "person", "goal_why": goal_why}
        await write_event(run, "goal", at=now, by=by, epoch=epoch, to="rollback", why=why, **goal_facts(run, aim))
        await Change(RUNS, run, {"staged_pivot": "", **aim})
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
    await Change(RUNS, root, changes)


# ---- Requests that nobody answers


async def due_requests(op: DueRequests) -> list[ApprovalRow]:
    """List the pending requests whose timetable has an entry that is due (``DueRequests``)."""
    return await list_due_requests(await Now(""), op.tenant, op.limit)


async def follow_timetable(op: FollowTimetable) -> DecisionOutcome | None:
    """Carry out what is due in the timetable of a request (``FollowTimetable``)."""
    row = await Find(APPROVALS, op.approval)
    if row is None:
        return None
    call = await _reread_call_of(row)
    now = await Now(row.root)
    await move_time(now)
    if op.repeated and row.reached > op.reached:
        return DecisionOutcome(row, call, now)
    if row.reached != op.reached or not is_due(row, now):
        if row.due_at is not None and row.state_at(now) == "expired":  # nothing follows
            run, root = await find_run(call.run), await find_run(call.root)
            await move_approval(run, row, "expired", at=now, by=SYSTEM, epoch=root.epoch)
        return None
    row, call = await _reach_due(row, call, now)
    return DecisionOutcome(row, call, now)


def is_due(approval: ApprovalRow, now: float) -> bool:
    """Return whether nobody has answered this request by the time of the next entry of its timetable."""
    return approval.due_at is not None and approval.due_at <= now and approval.state_at(now) == "pending"


async def _reach_due(approval: ApprovalRow, call: CallRow, now: float) -> tuple[ApprovalRow, CallRow]:
    """Carry out what is due of the timetable: each entry once, each with its event, in this transaction.

    A reminder is left out if a later entry is due too: people need not be told twice at the same moment.
    """
    run = await find_run(call.run)
    epoch = (await find_run(call.root)).epoch
    entries = approval.entries
    while is_due(approval, now):
        number = approval.reached + 1
        entry, next_at = entries[number - 1], entry_at(approval.requested_at, entries, number)
        if entry.what == "remind" and next_at is not None and next_at <= now:
            approval = await Change(APPROVALS, approval, {"reached": number, "due_at": next_at})
            continue
        if entry.what == "refuse" and not must_succeed(run, call):
            given = len(approval.yeses)
            who = f"only {given} of {approval.needed} approved it" if given else "nobody answered"
            why = f"{who} within {in_words(entry.after_s)}"
            approval, call = await _reject(approval, call, run, by=SYSTEM, why=why, now=now, epoch=epoch, entry=number)
            approval = await Change(APPROVALS, approval, {"reached": number})
            await wake_after_decision(call, approval, at=now, by=SYSTEM)
            return approval, await _reread_call(call)
        what = {"remind": "reminded", "escalate": "escalated", "refuse": "overdue"}[entry.what]
        await write_event(
            run, what, at=now, by=SYSTEM, epoch=epoch, call=call.id, approval=approval.id, entry=number,
            roles=list(entry.roles),
        )  # fmt: skip
        changes: dict[str, Any] = {"reached": number, "due_at": next_at}
        if entry.what == "escalate":
            changes["asked_at"] = now
        # A new notice, whatever became of the one before it.
        changes |= {"tell_at": now, "told_at": None, "tells": 0, "teller": ""}
        approval = await Change(APPROVALS, approval, changes)
    return approval, call


def in_words(seconds: float) -> str:
    """Return a duration in its largest whole unit: 90 s, 15 min, 2 h, 3 d."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:g} s"


def must_succeed(run: RunRow, call: CallRow) -> bool:
    """Return whether no timer may refuse this call: its run has passed the point of no return, so it must be made."""
    return call.kind == "retriable" and (run.phase == "pivoted" or run.goal == "commit")


async def _reread_call_of(approval: ApprovalRow) -> CallRow:
    call = await Find(CALLS, approval.call)
    assert call is not None, "a request names a call of this ledger"
    return call


# ---- Asking again, editing, expiring, voiding


async def ask_again(op: RenewRequest) -> DecisionOutcome:
    """Make a new request for a call whose request has expired (``RenewRequest``)."""
    approval, call = await _find(op.approval)
    now = await Now(call.root)
    await move_time(now)
    if op.repeated and call.approval == op.id:
        return DecisionOutcome(await _reread(await Find(APPROVALS, op.id)), call, now)
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


Admit: TypeAlias = Callable[[AdmitCall, RunRow, RunRow, float, int], Flow[Admission]]
"""How a new call is admitted: ``admission.admit_new_call``, which itself stands on this module."""


async def edit_approval(op: EditApproval, admit: Admit) -> DecisionOutcome:
    """Replace a request by one with other arguments (``EditApproval``); ``admit`` decides about the new call.

    The old call is refused, and its reason says what to ask for instead.
    """
    approval, call = await _find(op.approval)
    now = await Now(call.root)
    await move_time(now)
    new = await Find(CALLS, op.instead.call_id)
    if op.repeated and new is not None:
        return DecisionOutcome(await _reread(await Find(APPROVALS, new.approval)), new, now)
    if call.state not in ("held", "ready") or call.approval != approval.id:
        raise TransitionRefused(
            f"approval {approval.id} ({approval.tool}) is {approval.state}, its call {call.state}: there is no open request",
            frm=approval.state,
            to="rejected",
        )
    if is_due(approval, now):
        approval, call = await _reach_due(approval, call, now)
        if approval.state == "rejected":
            return DecisionOutcome(approval, call, now, "unanswered")
    if not _may_decide(approval, op.roles):
        return DecisionOutcome(approval, call, now, "role")
    run, root = await find_run(call.run), await find_run(call.root)
    await _refuse_if_rolling_back(run, to="rejected")
    assert op.instead.need is not None, "other arguments are asked for under conditions at least as strict"
    reason = f"{op.why}; ask for it with {op.told or op.instead.args} instead"
    staged = run.staged_pivot == call.id
    if staged:
        run = await Change(RUNS, run, {"staged_pivot": ""})
    if approval.state in OPEN:
        said: dict[str, Any] = {"by_whom": op.by, "reason": reason, "decided_at": now}
        await move_approval(run, approval, "rejected", at=now, by=op.by, epoch=root.epoch, why=reason, **said)
    error = json.dumps([op.by, reason], ensure_ascii=False)
    await move_call(run, call, "refused", at=now, by=op.by, epoch=root.epoch, why=reason, error=error, settled_at=now)
    known = await newest_call(op.instead.key, key_root(op.instead))
    if known is not None and known.state not in FREES_KEY:
        raise TransitionRefused(
            f"{known.tool} with these arguments is {known.state} already ({known.id})", frm=known.state, to="held"
        )
    need = replace(op.instead.need, editors=(*approval.edited_by, op.by))
    instead = replace(op.instead, run=run.uid, root=root.uid, repeated=False, need=need)
    answer = await admit(instead, run, root, now, 1 if known is None else known.generation + 1)
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
    await move_time(now)
    waiting = {call.approval: call for call in await list_calls(root.uid, ("held", "ready")) if call.approval}
    for row in await approvals_of(root.uid) if waiting else ():
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
    await move_time(now)
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
    await move_time(now)
    known = [one for one in await delegations_to(op.tenant, person(op.to)) if one.id == op.id]
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
    await Add(DELEGATIONS, row)
    return row


async def read_approval(op: ReadApproval) -> RequestWithCall | None:
    """Read one request with its call (``ReadApproval``)."""
    row = await Find(APPROVALS, op.approval)
    call = None if row is None else await Find(CALLS, row.call)
    return None if row is None or call is None else RequestWithCall(row, call, await Now(row.root))


async def search_approvals(op: SearchApprovals) -> list[RequestWithCall]:
    """Read a page of requests with their calls (``SearchApprovals``)."""
    now = await Now("")
    found: list[RequestWithCall] = []
    for row in await page_approvals(op.tenant, op.states, op.before, op.limit, op.use):
        call = await Find(CALLS, row.call)
        assert call is not None, "a request names a call of this ledger"
        found.append(RequestWithCall(row, call, now))
    return found


async def _find(id: str) -> tuple[ApprovalRow, CallRow]:
    row = await Find(APPROVALS, id)
    if row is None:
        raise LookupError(f"there is no approval {id!r} in this ledger")
    call = await Find(CALLS, row.call)
    assert call is not None, "a request names a call of this ledger"
    return row, call


async def _reread(approval: ApprovalRow | None) -> ApprovalRow:
    assert approval is not None, "a request is never removed"
    row = await Find(APPROVALS, approval.id)
    assert row is not None, "a request is never removed"
    return row


async def _reread_call(call: CallRow) -> CallRow:
    found = await Find(CALLS, call.id)
    assert found is not None, "a call is never removed"
    return found

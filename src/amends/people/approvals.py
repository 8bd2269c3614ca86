"""What people do about requests for approval: list, decide, edit, delegate, and decide through a signed link.

Each public function is a verb of the runtime (see ``amends.host.verbs``), except ``send_overdue_notices``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from amends.engine.approvals import approval_of
from amends.engine.rules import need_of
from amends.engine.session import Session, ask_for, cost_with_request_ids, must_be_readable, put_of, request_of
from amends.errors import ApprovalNotFound, ApprovalVoid, BadArguments, RuleRefused, TransitionRefused, UsageError
from amends.host.filters import APPROVAL_FIELDS, parse_filter
from amends.host.host import Host, View
from amends.host.listing import PAGE, Pages
from amends.host.notices import tell_due
from amends.host.oncall import OnCall, problems_of
from amends.ledger.operations import (
    AdmitCall,
    DecideApproval,
    Delegate,
    DueRequests,
    EditApproval,
    FollowTimetable,
    ReadApproval,
    ReadRun,
    RenewRequest,
    SearchApprovals,
    StoreOp,
)
from amends.ledger.rows import (
    APPROVAL_STATES,
    OPEN,
    SYSTEM,
    ApprovalRow,
    DecisionOutcome,
    LockRequest,
    Need,
    RequestWithCall,
    lost_at,
    person,
)
from amends.ledger.world import ReadClocks
from amends.model import AHEAD_MAX_S, Approval, Shift, ShiftProblem
from amends.tools.rules import Escalation
from amends.tools.spec import Spec
from amends.visible import visible

Verb = Literal["approve", "bypass", "reject", "withdraw"]
ONCALL_DAYS_MAX: Final = 3_650


def approvals(host: Host, view: View, filter: str = "state:pending", *, after: str = "") -> Pages[Approval]:
    """List requests for approval, newest first. ``after``: the id of the last one that was listed."""
    wanted = parse_filter(filter, APPROVAL_FIELDS, APPROVAL_STATES)
    tenant = view.tenant or ""
    # A request that expired unnoticed still has its old state in the ledger: read those states too.
    states = tuple(dict.fromkeys([*wanted.states, *(("pending", "approved") if "expired" in wanted.states else ())]))

    def then(found: RequestWithCall) -> StoreOp[Any]:
        return SearchApprovals(tenant, states, found.approval.id, PAGE)

    def takes(found: RequestWithCall) -> bool:
        is_decided_elsewhere = found.call.is_loaded and found.approval.state in OPEN
        return not is_decided_elsewhere and wanted.takes_approval(found)

    first = SearchApprovals(tenant, states, after or None, PAGE)
    return Pages(first, then, takes, lambda found: _shown(host, found))


async def approval(host: Host, view: View, approval_id: str) -> Approval:
    """Return one request, by its id."""
    return _shown(host, await _found(view, approval_id))


async def approve(
    host: Host,
    view: View,
    approval_id: str,
    *,
    digest: str,
    by: str,
    why: str = "",
    roles: Sequence[str] = (),
    behalf: str | None = None,
) -> Approval:
    """Approve exactly the request whose ``digest`` was shown; ``behalf``: for the person who delegated it to ``by``."""
    return await _decide(host, view, approval_id, "approve", by=by, why=why, digest=digest, behalf=behalf, roles=roles)


async def reject(
    host: Host, view: View, approval_id: str, *, by: str, reason: str, roles: Sequence[str] = ()
) -> Approval:
    """Reject a request; the model is told the reason."""
    return await _decide(host, view, approval_id, "reject", by=by, why=reason, roles=roles)


async def withdraw(host: Host, view: View, approval_id: str, *, by: str, why: str) -> Approval:
    """Withdraw a request that nobody needs to decide any more: its call is dropped and may be requested again."""
    return await _decide(host, view, approval_id, "withdraw", by=by, why=why)


async def bypass(host: Host, view: View, approval_id: str, *, digest: str, by: str, why: str) -> Approval:
    """Approve regardless of roles and of how many approvers are needed, on the record; never one's own request."""
    return await _decide(host, view, approval_id, "bypass", by=by, why=why, digest=digest)


async def ask_again(host: Host, view: View, approval_id: str, *, by: str, why: str) -> Approval:
    """Make a new request for a call whose request expired."""
    _check_reason(by, why)
    await _found(view, approval_id)
    ruled = await _recorded(RenewRequest(approval_id, host.new_id("apr"), host.new_id("nonce"), by, why))
    await _tell(host, ruled)
    return _ruled(host, ruled)


async def edit(
    host: Host, view: View, approval_id: str, args: Mapping[str, Any], *, by: str, why: str, roles: Sequence[str] = ()
) -> Approval:
    """Reject a request and make one for these arguments instead, which is then decided like any other."""
    _check_reason(by, why)
    found = await _found(view, approval_id)
    row, call = found.approval, found.call
    must_be_readable(call)
    spec = host.specs.get(row.tool)
    if spec is None:
        raise UsageError(f"this process does not know {row.tool}: its arguments cannot be checked here")
    tree = await ReadRun(row.tenant, uid=call.root)
    assert tree is not None, "a request names a run of this ledger"
    root = tree.run
    session = host.session(root, host.reader(root).lease, resumed=True)
    try:
        bound = spec.bind((), dict(args))
    except BadArguments as bad:
        raise UsageError(f"{spec.name} cannot be called with these arguments: {'; '.join(bad.problems)}") from bad
    if lost_at(call.args) is not None:
        raise UsageError(f"the arguments of {spec.name} were removed")
    ask = ask_for(session, spec, bound, fn=spec.fn or _no_body, again=call.again or None, parent=call.parent)
    need = await _need_instead(session, spec, ask.fresh(), row)
    instead = AdmitCall(
        call_id=host.new_id("call"), run=call.run, root=call.root, owner=by, epoch=root.epoch, tool=spec.name,
        version=spec.version, kind=spec.kind, key=ask.key, ident=ask.ident, digest=ask.digest, args=ask.text,
        scope=spec.scope, declared=spec.declared_key, again=ask.again, parent=ask.parent,
        at_commit=spec.at == "commit", after=spec.after, undoable=spec.compensate is not None, need=need,
        advise=session.advises(spec), put=put_of(spec), locks=LockRequest(ask.locks),
        costs=cost_with_request_ids(session, ask, wide=False) if session.budgets else ask.costs,
    )  # fmt: skip
    theirs = tuple(dict.fromkeys((*host.roles_of(by), *roles)))
    ruled = await _recorded(EditApproval(approval_id, by, why, instead, theirs, call.id, ask.text))
    await _tell(host, ruled)
    return _ruled(host, ruled)


async def delegate(host: Host, view: View, *, by: str, to: str, until: datetime | timedelta | float, why: str) -> None:
    """Let ``to`` decide for ``by`` until a time, or for a number of seconds (``approve(..., behalf=by)``)."""
    if not by.strip() or not to.strip() or not why.strip():
        raise UsageError("a delegation needs who delegates (by=), to whom (to=) and why (why=)")
    if _same_case(by) == _same_case(to):
        raise UsageError("a person cannot delegate to themselves")
    if isinstance(until, datetime) and until.tzinfo is None:
        raise UsageError("until= must be a datetime with a time zone, a timedelta, or a number of seconds from now")
    now = (await ReadClocks()).wall
    if isinstance(until, datetime):
        ends = until.timestamp()
    else:
        ends = now + (until.total_seconds() if isinstance(until, timedelta) else until)
    if not 0 < ends - now <= AHEAD_MAX_S:
        raise UsageError("a delegation must end in the future, and within a hundred years")
    await Delegate(host.new_id("dlg"), view.tenant or "", by, to, ends, why)


async def oncall(host: Host, _view: View, role: str | None = None, *, at: datetime | None = None) -> list[Shift]:
    """List who is on call now, or at a time; ``role``: for one role."""
    return (host.value("oncall") or OnCall()).on_call(role, await _time(at))


async def check_oncall(host: Host, _view: View, *, days: float = 14.0) -> list[ShiftProblem]:
    """List what is wrong with the on-call table in the coming days: gaps, overlaps, people who may not decide."""
    if not 0 < days <= ONCALL_DAYS_MAX:
        raise UsageError(f"days= is a number of days, at most {ONCALL_DAYS_MAX}, not {days!r}")
    asked = {role for rule in host.rules for role in rule.roles}
    asked |= {role for rule in host.rules for one in rule.escalate if isinstance(one, Escalation) for role in one.roles}
    return problems_of(
        host.value("oncall") or OnCall(),
        asked=asked,
        approvers=host.approvers,
        now=await _time(None),
        ahead=timedelta(days=days),
    )


async def _time(at: datetime | None) -> datetime:
    if at is None:
        return datetime.fromtimestamp((await ReadClocks()).wall, UTC)
    if at.tzinfo is None:
        raise UsageError("at= must be a datetime with a time zone")
    return at


async def send_overdue_notices(host: Host, view: View, limit: int) -> int:
    """Follow the timetables of up to ``limit`` requests that nobody answered, and notify of up to ``limit`` requests.

    Return how many notices were given. Without a hook, escalations and deadlines count all the same.
    """
    for row in await DueRequests(view.tenant or None, limit):
        await FollowTimetable(row.id, row.reached)
    return await tell_due(host.notices, view.tenant or None, limit)


async def _decide(
    host: Host, view: View, id: str, verb: Verb, *, by: str, why: str, digest: str = "", behalf: str | None = None,
    roles: Sequence[str] = (),
) -> Approval:  # fmt: skip
    """Record a person's decision on a request; raise ``ApprovalVoid`` when it does not count."""
    if not by.strip() or (not why.strip() and verb != "approve"):
        raise UsageError("a decision needs who made it (by=) and why")
    _check_name(by)
    found = await _found(view, id)
    if verb in ("approve", "bypass") and not digest:
        raise UsageError("an approval needs the digest of what was shown (digest=)", hint="it is Approval.digest")
    if verb in ("approve", "bypass"):
        must_be_readable(found.call)
    declared = json.loads(found.approval.reasons)
    if verb == "reject" and declared and why not in declared:
        known = ", ".join(visible(one, prose=True) for one in declared)
        raise UsageError(f"{visible(why)} is not a declared reason; the reasons are {known}")
    theirs = (*host.roles_of(behalf or by), *roles)
    decision = DecideApproval(id, verb, by, why, digest, behalf or "", tuple(dict.fromkeys(theirs)))
    return _ruled(host, await _recorded(decision))


async def _need_instead(session: Session, spec: Spec, args: Mapping[str, Any], row: ApprovalRow) -> Need:
    """Return what approval the edited call needs: at least that of the first request, and what the rules here ask."""
    ruled = await need_of(session, spec, request_of(session, spec, args))
    if ruled is not None and ruled.decision == "refuse":
        raise RuleRefused(spec.name, why=ruled.why, run_id=row.run_id)
    need = Need(session.new_id("apr"), session.new_id("nonce"), needed=row.needed, roles=tuple(json.loads(row.roles)),
                reasons=tuple(json.loads(row.reasons)), why=row.rule, policy=row.policy,
                expires_s=row.expires_at - row.requested_at, residue=row.residue,
                timetable=row.timetable)  # fmt: skip
    if ruled is None:
        return need
    if ruled.roles:
        need = replace(need, timetable=ruled.timetable)
    policy, why = (row.policy, row.rule) if row.is_about_money else (ruled.policy, ruled.why)
    return replace(need, needed=max(need.needed, ruled.needed), roles=ruled.roles or need.roles, policy=policy, why=why)


def _no_body(**_: Any) -> None:
    raise AssertionError("an edited request is only recorded: it has no body to run")


async def _found(view: View, id: str) -> RequestWithCall:
    found = await ReadApproval(id)
    # Do not even tell that another tenant has this request.
    if found is None or found.approval.tenant != (view.tenant or ""):
        raise ApprovalNotFound(id)
    return found


async def _recorded(decision: StoreOp[DecisionOutcome]) -> DecisionOutcome:
    try:
        return await decision
    except TransitionRefused as no:
        raise UsageError(str(no), hint="read it again with rt.approval(id): it may have changed") from no


def _ruled(host: Host, ruled: DecisionOutcome) -> Approval:
    """Return the request after a decision; raise ``ApprovalVoid`` if the decision did not count."""
    shown = _shown(host, RequestWithCall(ruled.approval, ruled.call, ruled.now))
    if ruled.void:
        raise ApprovalVoid(
            shown.call.tool, why=ruled.void, approval=shown, call=shown.call, deciding=True, run_id=shown.call.run_id
        )
    return shown


async def _tell(host: Host, ruled: DecisionOutcome) -> None:
    """Notify people of a request that a person made, as of any other."""
    if host.notices.tell is not None:
        await host.notices.tell(ruled.approval)


def _shown(host: Host, found: RequestWithCall) -> Approval:
    shown = approval_of(found.approval, found.call, host.specs.get(found.call.tool), found.now)
    return host.with_asked(shown, found.now)


def _check_reason(by: str, why: str) -> None:
    if not by.strip() or not why.strip():
        raise UsageError("a decision needs who made it (by=) and why (why=)")
    _check_name(by)


def _check_name(by: str) -> None:
    """Raise ``UsageError`` for the name under which the ledger itself refuses what nobody answered."""
    if person(by) == SYSTEM:
        raise UsageError(f"nobody can decide as {SYSTEM}: under this name the ledger records what nobody decided")


def _same_case(person: str) -> str:
    return person.strip().casefold()

"""Apply the approval rules to a request, wait in place for a person's decision, and raise what it means.

What a decision changes in the ledger is in ``ledger/approvals.py``.
"""

from __future__ import annotations

import json
from typing import Any, Final, NoReturn

from amends.encoding.canonical import diff
from amends.encoding.dataclass import dataclass
from amends.engine.permits import covering_permits
from amends.engine.rules import need_of
from amends.engine.session import (
    APPROVAL_POLL_S_MAX,
    Ask,
    Session,
    body_args,
    call_of,
    decode_args,
    error_parts,
    moment,
    request_of,
)
from amends.errors import ApprovalVoid, Held, Rejected, RuleRefused
from amends.ledger.operations import Admission, FollowTimetable, ReadApproval, ReadRun
from amends.ledger.rows import ApprovalRow, CallRow, Terms, Unapproved, lost_at
from amends.ledger.world import Await, LazyCall, ReadClocks, Watch
from amends.model import Approval, ApprovalState, NextEntry, Occasion, Yes
from amends.tools.spec import Spec

APPROVAL_POLL_S_MIN: Final = 0.02
LEFT_S_MIN: Final = 0.001
"""A remaining time shorter than this counts as none: adding it to a clock reading may not change the reading."""
APPROVAL_SIGNAL_S_MAX: Final = 15.0
"""The longest interval if the store signals: only a lost signal costs that much."""


PAUSE_HINT: Final = "what must pause belongs in a child run or an agent of its own, not in the body of a tool"
"""The hint if a call inside a body waited without getting a decision."""


@dataclass(slots=True)
class ApprovalWait:
    """How long one request waits in place for people.

    ``body``: the running body that makes the request. It cannot be suspended and resumed later, so the request waits in
    place, under the lease of its run, whoever has to decide.
    """

    limit_s: float
    since: float | None = None
    body: LazyCall | None = None
    watcher: Any = None
    pause: float = APPROVAL_POLL_S_MIN
    waits: bool = False
    longest_s: float = APPROVAL_POLL_S_MAX
    """The longest interval between polls if the store does not signal what other processes decide."""

    def observe(self, verdict: str) -> None:
        """Record whether the body waits for this request now."""
        waits = verdict in ("held", "void", "wait", "locked")
        if self.body is not None and waits != self.waits:
            self.waits = waits
            self.body.waits += 1 if waits else -1
            self.body.is_stuck = verdict == "over"

    async def wait_decided(self, answer: Admission) -> bool:
        """Wait until the request is decided; return False if there is none, or the limit is reached."""
        if answer.approval is not None and await _follow(answer.approval):
            return True
        if self.body is not None:
            return await self._wait_in_place(answer)
        asked = answer.approval
        if asked is None or self.limit_s <= 0:
            return False
        watcher = await Watch(asked.root)
        longest = max(APPROVAL_SIGNAL_S_MAX, self.longest_s) if getattr(watcher, "is_told", False) else self.longest_s
        pause = min(APPROVAL_POLL_S_MIN, longest)
        while True:
            found = await ReadApproval(asked.id)
            if (
                found is None
                or found.approval.state_at(found.now) != "pending"
                or await _follow(found.approval, found.now)
            ):
                return True
            now = (await ReadClocks()).mono
            self.since = now if self.since is None else self.since
            left = self.limit_s - (now - self.since)
            if left <= 0:
                return False
            await Await(watcher, min(pause, left))
            pause = min(pause * 2, longest)

    async def _wait_in_place(self, answer: Admission) -> bool:
        """Wait for a moment and return True, so that the ledger is asked again; False: do not wait any longer."""
        assert answer.call is not None, "what waits for a person is a call"
        assert self.body is not None, "what waits in place is inside a body"
        if self.body.is_over:
            return False  # the body has ended without it: it is now a call of the run, which can be released
        now = (await ReadClocks()).mono
        self.since = now if self.since is None else self.since
        left = self.limit_s - (now - self.since)
        if left < LEFT_S_MIN:
            return False
        if self.watcher is None:
            self.watcher = await Watch(answer.call.root)
        await Await(self.watcher, min(self.pause, self.longest_s, left))
        self.pause = min(self.pause * 2, self.longest_s)
        return True


async def _follow(asked: ApprovalRow, now: float | None = None) -> bool:
    """Carry out what is due of the timetable of a request; return whether that decided it.

    A process that waits does it itself: there may be no worker.
    """
    if asked.due_at is None:
        return False
    if now is None:
        found = await ReadApproval(asked.id)
        if found is None:
            return False
        asked, now = found.approval, found.now
    if asked.due_at is None or asked.due_at > now:
        return False
    done = await FollowTimetable(asked.id, asked.reached)
    return done is not None and done.approval.state != "pending"


async def notify_of(session: Session, asked: ApprovalRow | None) -> None:
    """Notify people that they are asked, if this process can; otherwise another process does."""
    if asked is not None and session.tell is not None:
        await session.tell(asked)


# ---- Requests as people see them


def approval_of(row: ApprovalRow, call: CallRow, spec: Spec | None, now: float | None = None) -> Approval:
    """Return a request as users see it."""
    expires_at, requested_at = moment(row.expires_at), moment(row.requested_at)
    assert expires_at is not None, "a request expires"
    assert requested_at is not None, "a request was made at some time"
    state: ApprovalState = row.state if now is None else row.state_at(now)  # type: ignore[assignment]
    return Approval(
        id=row.id,
        call=call_of(call, spec),
        digest=row.digest,
        state=state,
        expires_at=expires_at,
        requested_at=requested_at,
        rule=row.rule,
        needed=row.needed,
        roles=row.asked_roles,
        reasons=tuple(json.loads(row.reasons)),
        given=tuple(_yes(said) for said in row.yeses),
        by=row.by_whom or None,
        reason=row.reason or None,
        decided_at=moment(row.decided_at),
        used_at=moment(row.used_at),
        follows=row.follows or None,
        editors=row.edited_by,
        asked_at=moment(row.asked_at) or requested_at,
        reached=row.reached,
        occasion=_occasion(row),
        next=_next(row, state),
    )


def _occasion(row: ApprovalRow) -> Occasion:
    """Return what the newest notice of a request is about."""
    if not row.reached:
        return "request"
    return "escalation" if row.entries[row.reached - 1].what == "escalate" else "reminder"


def _next(row: ApprovalRow, state: str) -> NextEntry | None:
    if state != "pending":
        return None
    entries = row.entries
    entry = entries[row.reached] if row.due_at is not None and row.reached < len(entries) else None
    due_at = row.expires_at if entry is None else min(row.expires_at, row.requested_at + entry.after_s)
    at = moment(due_at)
    assert at is not None, "a request expires"
    if entry is None or due_at == row.expires_at:
        return NextEntry("expire", at)
    return NextEntry(entry.what, at, entry.roles)


def _yes(given: dict[str, object]) -> Yes:
    at = moment(float(str(given["at"])))
    assert at is not None, "an approval was given at some time"
    roles = given.get("roles")
    return Yes(
        by=str(given["by"]),
        at=at,
        why=str(given.get("why", "")),
        behalf=str(given["for"]) if given.get("for") else None,
        roles=tuple(str(role) for role in roles) if isinstance(roles, list) else (),
        bypass=bool(given.get("bypass")),
    )


# ---- Errors for calls that are not approved


def held_for(session: Session, row: CallRow, approval: ApprovalRow | None, twin: CallRow | None = None) -> Held:
    """Return the error for a call that waits for a person."""
    reason = row.reason
    if approval is not None:
        reason = "budget" if approval.is_about_money else "approval"
    return Held(
        f"{row.tool} waits for a person's decision ({reason})",
        call=call_of(row, session.spec(row.tool)),
        reason=reason,
        twin=None if twin is None else call_of(twin, session.spec(twin.tool)),
        approval=None if approval is None else approval_of(approval, row, session.spec(row.tool)),
        may_repeat=session.may_repeat(row.tool),
        run_id=session.id,
    )


def rejected(session: Session, row: CallRow) -> Rejected:
    """Return the error for a call that a person refused."""
    by, reason = error_parts(row.error)
    return Rejected(
        row.tool,
        by=by or "a person",
        reason=reason or "no reason given",
        approval=row.approval or None,
        call=call_of(row, session.spec(row.tool)),
        run_id=session.id,
    )


async def raise_void(session: Session, ask: Ask, answer: Admission) -> NoReturn:
    """Raise the error for a void approval, with what was approved beside what is requested."""
    row, made = answer.call, answer.approval
    assert row is not None, "a void approval is of a call"
    assert made is not None, "a void approval is named"
    old = await ReadApproval(made.follows) if made.follows else None
    changed = {}
    if old is not None and answer.void == "changed" and old.call.id != row.id and lost_at(old.call.args) is None:
        changed = diff(decode_args(old.call, ask.spec), ask.args if ask.shown is None else ask.shown)
    raise ApprovalVoid(
        row.tool,
        why=answer.void,
        approval=approval_of(made, row, ask.spec),
        call=call_of(row, ask.spec),
        diff=changed,
        expired_at=moment((made if old is None else old.approval).expires_at) if answer.void == "expired" else None,
        run_id=session.id,
    )


async def raise_unapproved(session: Session, ask: Ask, no: Unapproved) -> NoReturn:
    """Raise the error that says why a recorded call was not started."""
    await notify_of(session, no.approval)
    if no.why == "refused":
        raise RuleRefused(no.call.tool, why="a rule forbids it by now", run_id=session.id)
    if no.why and no.approval is not None:
        await raise_void(session, ask, Admission("void", no.call, approval=no.approval, void=no.why))
    raise held_for(session, no.call, no.approval)


async def request_of_call(row: CallRow) -> ApprovalRow | None:
    """Return the newest approval request for a call."""
    found = await ReadApproval(row.approval) if row.approval else None
    return None if found is None else found.approval


# ---- Rules: evaluated before every admission, without side effects. A rule that raises holds the call


async def terms_for(session: Session, row: CallRow, ask: Ask | None = None) -> Terms | None:
    """Return the terms under which a recorded call may first be started here; None: there are none."""
    spec = session.spec(row.tool) if ask is None else ask.spec
    if row.attempt or spec is None or (row.is_staged and not _is_ruled(row)):
        return None
    undeclared = ask is not None and ask.undeclared
    if not (row.approval or session.rules or spec.needs_approval or undeclared or spec.kind == "pivot"):
        return None
    args = body_args(session, spec, row) if ask is None else ask.fresh()
    need = await need_of(session, spec, request_of(session, spec, args), undeclared=undeclared)
    # A held call is to be started only by a permit, which is used when it starts.
    waits = ask is not None and row.state == "held" and not row.is_staged and need is not None
    permits = await covering_permits(session, ask) if waits and ask is not None else ()
    return Terms(spec.version, need, spec.after, advise=session.advises(spec), permits=permits)


def _is_ruled(row: CallRow) -> bool:
    """Return whether the rules are applied again to a staged call: not if they let it pass when it was accepted.

    A ``ready`` one was held as a suspected duplicate or a conflict: that was lifted, and no rule was applied to it yet.
    """
    return bool(row.approval) or row.state == "ready"


async def outbox_terms(session: Session) -> dict[str, Terms]:
    """Return the terms for the staged calls of this run that need, or may need, an approval."""
    governed = session.rules or any(spec.needs_approval for spec in session.specs.values())
    if not session.asked_calls and not (session.resumed and governed):
        return {}
    tree = await ReadRun(session.tenant, uid=session.uid)
    assert tree is not None, "an open run is in the ledger"
    found: dict[str, Terms] = {}
    for row in tree.calls:
        if row.run == session.uid and row.is_staged and _is_ruled(row):
            terms = await terms_for(session, row)
            if terms is not None:
                found[row.id] = terms
    return found

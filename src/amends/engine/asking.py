"""Waiting for a person's yes in place, and what is told of a request."""

from __future__ import annotations

import json
from typing import Any, Final, NoReturn

from amends.approvalops import ReadApproval
from amends.approvalrows import ApprovalRow, Unapproved
from amends.canonical import diff
from amends.engine.session import Ask, Session, call_of, decode_args, error_parts, moment
from amends.errors import ApprovalVoid, Held, Rejected, RuleRefused
from amends.ledger import Admission, ReadCall
from amends.model import Approval, ApprovalState, Yes
from amends.ops import Await, Later, ReadClocks, Watch
from amends.record import dataclass
from amends.rows import CallRow, lost_at
from amends.tool import Spec

LOOK_S_MIN: Final = 0.02
LOOK_S_MAX: Final = 1.0
"""How often who waits looks, where nobody tells it of what other processes decide."""
LEFT_S_MIN: Final = 0.001
"""Less than this is no time any more: added to a clock it may not even move it."""
TOLD_S_MAX: Final = 15.0
"""The same where the store rings: only a ring that was lost costs so long."""


PAUSES: Final = "what must pause belongs in a child run or an agent of its own, not in the body of a tool"
"""What is said where a call inside a body waited in vain."""


@dataclass(slots=True)
class Patience:
    """How long one request waits for people in place.

    ``body``: the request comes from this body, which is running. It cannot be left and gone on with later, so the
    request waits where it stands, under the lease of its run, whoever it is that has to decide.
    """

    limit_s: float
    since: float | None = None
    body: Later | None = None
    watcher: Any = None
    pause: float = LOOK_S_MIN
    waits: bool = False

    def seen(self, verdict: str) -> None:
        """Remember whether the body waits for this request now."""
        waits = verdict in ("held", "void", "wait", "locked")
        if self.body is not None and waits != self.waits:
            self.waits = waits
            self.body.waits += 1 if waits else -1
            self.body.is_stuck = verdict == "over"

    async def decided(self, answer: Admission) -> bool:
        """Let time pass until the request is decided; False when there was none, or the limit is reached."""
        if self.body is not None:
            return await self._in_place(answer)
        asked = answer.approval
        if asked is None or self.limit_s <= 0:
            return False
        watcher = await Watch(asked.root)
        longest = TOLD_S_MAX if getattr(watcher, "is_told", False) else LOOK_S_MAX
        pause = LOOK_S_MIN
        while True:
            found = await ReadApproval(asked.id)
            if found is None or found.approval.state_at(found.now) != "pending":
                return True
            now = (await ReadClocks()).mono
            self.since = now if self.since is None else self.since
            left = self.limit_s - (now - self.since)
            if left <= 0:
                return False
            await Await(watcher, min(pause, left))
            pause = min(pause * 2, longest)

    async def _in_place(self, answer: Admission) -> bool:
        """Let some time pass; the ledger then says again what is to become of the request, or that the run ends."""
        assert answer.call is not None, "what waits for a person is a call"
        assert self.body is not None, "what waits in place is inside a body"
        if self.body.is_over:
            return False  # it was left running by its body: it is a call of the run now, which can be let go
        now = (await ReadClocks()).mono
        self.since = now if self.since is None else self.since
        left = self.limit_s - (now - self.since)
        if left < LEFT_S_MIN:
            return False
        if self.watcher is None:
            self.watcher = await Watch(answer.call.root)
        await Await(self.watcher, min(self.pause, left))
        self.pause = min(self.pause * 2, LOOK_S_MAX)
        return True


async def tell_of(session: Session, asked: ApprovalRow | None) -> None:
    """People know that they are asked, if this process can tell them; otherwise somebody else does."""
    if asked is not None and session.tell is not None:
        await session.tell(asked)


# ---- for people ---------------------------------------------------------------------------


def approval_of(row: ApprovalRow, call: CallRow, spec: Spec | None, now: float | None = None) -> Approval:
    """A request as users see it."""
    expires_at, requested_at = moment(row.expires_at), moment(row.requested_at)
    assert expires_at is not None, "a request runs out"
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
        roles=tuple(json.loads(row.roles)),
        reasons=tuple(json.loads(row.reasons)),
        given=tuple(_yes(said) for said in row.yeses),
        by=row.by_whom or None,
        reason=row.reason or None,
        decided_at=moment(row.decided_at),
        used_at=moment(row.used_at),
        follows=row.follows or None,
        editors=row.edited_by,
    )


def _yes(said: dict[str, object]) -> Yes:
    at = moment(float(str(said["at"])))
    assert at is not None, "a yes was said at some time"
    roles = said.get("roles")
    return Yes(
        by=str(said["by"]),
        at=at,
        why=str(said.get("why", "")),
        behalf=str(said["for"]) if said.get("for") else None,
        roles=tuple(str(role) for role in roles) if isinstance(roles, list) else (),
        bypass=bool(said.get("bypass")),
    )


# ---- as errors ----------------------------------------------------------------------------


def held_for(session: Session, row: CallRow, approval: ApprovalRow | None, twin: CallRow | None = None) -> Held:
    """The typed word for a call that waits for a person."""
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
    """The typed error for a person's no."""
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
    """Raise what a void approval means, with what was approved beside what is asked for."""
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
    """Raise why a recorded call was not started."""
    await tell_of(session, no.approval)
    if no.why == "refused":
        raise RuleRefused(no.call.tool, why="a rule forbids it by now", run_id=session.id)
    if no.why and no.approval is not None:
        await raise_void(session, ask, Admission("void", no.call, approval=no.approval, void=no.why))
    raise held_for(session, no.call, no.approval)


async def request_of_call(row: CallRow) -> ApprovalRow | None:
    """The newest request about a call."""
    found = await ReadApproval(row.approval) if row.approval else None
    return None if found is None else found.approval


async def newest(row: CallRow) -> CallRow:
    """The call as it is now."""
    found = await ReadCall(row.id)
    assert found is not None, "a call is never removed"
    return found

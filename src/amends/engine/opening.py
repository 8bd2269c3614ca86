"""Open a run: as a new one, as a resumed one, or as one whose end is already decided."""

from __future__ import annotations

from typing import Any, Literal, assert_never

from amends.encoding.dataclass import dataclass, field
from amends.encoding.payloads import decode
from amends.encoding.redaction import NO_SECRETS, Known
from amends.encoding.secret import SEALED, UNREADABLE
from amends.engine.checkpoints import check_anchor
from amends.engine.doubts import probed_seldom
from amends.engine.ending import commit, raise_blocked
from amends.engine.rollback import roll_back, settle_doubts
from amends.engine.session import POLL_S_MAX, Session, Wait, lacking, read_tree, release_tree
from amends.errors import Busy, RunConflict, RunEnded
from amends.ledger.leases import Lease
from amends.ledger.operations import OpenChild, Opened, OpenRun
from amends.ledger.rows import RunRow, counterparts_of, lost_at
from amends.ledger.world import IsDead, ReadClocks


@dataclass(frozen=True, slots=True)
class Opening:
    """What the caller said about the run that it wants."""

    id: str
    tenant: str
    owner: str
    lease_s: float
    wait_s: float
    wait_approval_s: float = 0.0
    poll_s: float = POLL_S_MAX
    said: tuple[float | None, float | None] = (None, None)
    """``wait`` and ``wait_approval`` if the caller has set them for this run."""
    anchor: Any = None
    input: str = ""
    input_digest: str = ""
    given: Any = None
    """The input as it is recorded, for the error that says that there was another one."""
    known: Known = NO_SECRETS
    policy: str = "rollback"
    order_mode: str = "strict"
    agent: str = ""
    principal: str = ""
    tags: str = "[]"
    deadline_s: float | None = None
    if_rolled_back: Literal["again", "raise"] = "again"
    history: bool = False
    budgets: str = ""
    completion: str = ""
    checks: tuple[Any, ...] = ()
    """Functions of the report that must say yes; they cannot be recorded."""
    new_id: Any = field(default=None)
    wants: bool = False
    """For a client, by a server: whoever else has it is asked to let it go."""


async def take(opening: Opening) -> tuple[Opened, Lease]:
    """Take ownership of the run, waiting for a live owner up to a limit.

    Raise ``Busy``, ``RunConflict`` or ``RunEnded``.
    """
    await check_anchor(opening.anchor)
    wait: Wait | None = None
    dead = ""
    while True:
        clocks = await ReadClocks()
        opened = await OpenRun(
            uid=opening.new_id("run"),
            id=opening.id,
            tenant=opening.tenant,
            owner=opening.owner,
            opener=opening.new_id("opn"),
            lease_s=opening.lease_s,
            input=opening.input,
            input_digest=opening.input_digest,
            boot=clocks.boot,
            mono=clocks.mono,
            policy=opening.policy,
            order_mode=opening.order_mode,
            agent=opening.agent,
            principal=opening.principal,
            tags=opening.tags,
            deadline_s=opening.deadline_s,
            if_rolled_back=opening.if_rolled_back,
            history=opening.history,
            dead_owner=dead,
            budgets=opening.budgets,
            completion=opening.completion,
            wants=opening.wants,
        )
        run = opened.run
        match opened.how:
            case "fresh" | "resumed" | "ended":
                # The lease counts from before the request was sent, on our own clock.
                until = clocks.mono + opening.lease_s
                return opened, Lease(run.root, opening.owner, run.epoch, opening.lease_s, until)
            case "conflict":
                raise _conflict(run, opening.given)
            case "foreign":
                raise _foreign(run, opening.principal)
            case "refused":
                raise _refused(run)
            case "busy":
                if not dead and await IsDead(run.owner):
                    dead = run.owner
                    continue
                if wait is None:
                    wait = Wait(opening.wait_s, longest_s=opening.poll_s)
                if not await wait.again(run.root):
                    raise _busy(opened)
            case _:
                assert_never(opened.how)


async def go_on(session: Session, run: RunRow) -> RunRow:
    """Do what a resumed run needs before its caller may go on: follow its goal, settle what blocks it."""
    if run.goal == "commit":
        run = run if await _needs_caller(session) else await commit(session)
        if run.goal == "commit" or run.phase != "open":
            return run  # else it was not complete when it was left
    if run.phase == "rolling_back" or (run.goal == "rollback" and run.phase == "open"):
        back = await roll_back(session, by=session.lease.owner, why=run.goal_why or "resumed")
        if back.run.state == "blocked":
            raise_blocked(session, back.tree, None)
        if back.run.state == "rolling_back":
            raise Busy(
                f"run {run.id} is being rolled back and must wait for a settle delay",
                owner=session.lease.owner,
                retry_after=back.again_s or session.lease.lease_s,
                run_id=run.id,
            )
        return back.run
    if run.state == "blocked":
        tree = await read_tree(session)
        later = await settle_doubts(session, tree, back=False)
        tree = await read_tree(session)
        if tree.run.state == "blocked":
            # A blocked run is still probed: a probe without an answer does not stop later ones.
            await release_tree(session, probed_seldom(session, tree) if later is None else later)
            raise_blocked(session, tree, None)
        return tree.run
    return run


async def _needs_caller(session: Session) -> bool:
    """Return whether the commit waits for a released call whose hidden arguments only its caller has."""
    if not session.redactor.key:
        return False
    tree = await read_tree(session)
    return any(row.state == "ready" and not row.is_staged and bool(lacking(session, row)) for row in tree.calls)


async def open_child(
    session: Session, *, id: str, input: str, input_digest: str, given: Any, shown: Any
) -> tuple[Opened, Session]:
    """Open a run inside this one: the same request finds the same child.

    ``given``: the input as the caller gave it; ``shown``: the input as it is recorded, without hidden values.
    """
    opened = await OpenChild(
        uid=session.new_id("run"),
        id=id,
        parent=session.uid,
        epoch=session.lease.epoch,
        owner=session.lease.owner,
        input=input,
        input_digest=input_digest,
    )
    run = opened.run
    if opened.how == "conflict":
        raise _conflict(run, shown)
    if opened.how == "refused":
        raise _refused(run)
    resumed = opened.how == "resumed"
    inner = session.child(run.uid, run.id, generation=run.generation, resumed=resumed, state=run.state, given=given)
    inner.counterparts = counterparts_of(run)
    if resumed:
        run = await go_on(inner, run)
        if run.state == "rolled_back":
            return await open_child(session, id=id, input=input, input_digest=input_digest, given=given, shown=shown)
        inner.state = run.state
    return opened, inner


def _conflict(run: RunRow, given: Any) -> RunConflict:
    gone = lost_at(run.input) is not None
    unread = run.input.startswith(SEALED)
    recorded = UNREADABLE if unread else decode(run.input) if run.input and not gone else None
    since = ", which was removed since" if gone else ""
    return RunConflict(
        f"run {run.id} was opened before with another input{since}; nothing was started",
        recorded=recorded,
        given=given,
        run_id=run.id,
    )


def _foreign(run: RunRow, principal: str) -> RunConflict:
    return RunConflict(
        f"run {run.id} is {run.principal}'s and was opened for {principal}; nothing was started",
        recorded=run.principal,
        given=principal,
        run_id=run.id,
        hint="open it for the principal that it is recorded with, or give this work its own run id",
    )


def _refused(run: RunRow) -> RunEnded:
    who = {
        "person": "by a person",
        "self": "by its own failure",
        "deadlock": "to end a deadlock",
        "unanswered": "because nobody answered a request for approval in time",
    }.get(run.goal_by, "")
    ended = {"rolled_back": "was rolled back", "abandoned": "was abandoned"}.get(run.state, f"is {run.state}")
    inside = "; it is a child of another run" if run.parent else ""
    return RunEnded(
        f"run {run.id} {ended} {who}{inside}; it is not opened again".replace("  ", " "),
        state=run.state,
        run_id=run.id,
        hint="fork it anew" if run.forked_from else "give the new attempt a run id of its own",
    )


def _busy(opened: Opened) -> Busy:
    left = max(0.0, opened.run.lease_until - opened.now)
    return Busy(
        f"run {opened.run.id} is open elsewhere ({opened.run.owner})",
        owner=opened.run.owner,
        retry_after=left,
        run_id=opened.run.id,
    )

"""Calls that wait for a person: suspending a run for them, and doing what was decided after its block had ended."""

from __future__ import annotations

from functools import partial
from typing import NoReturn

from amends.approvalrows import Unapproved
from amends.budgetrows import Overrun
from amends.engine.asking import held_for, request_of_call, tell_of
from amends.engine.call import run_attempts
from amends.engine.giving import give_back, read_tree
from amends.engine.locking import locked, start_waiting
from amends.engine.policy import outbox_terms, terms_for
from amends.engine.session import Ask, Session
from amends.engine.spending import exceeded
from amends.engine.veiling import body_args, known_of, lacking
from amends.errors import Held, LedgerError, RunBlocked, Waiting
from amends.ledger import CloseRun, ReadCall, Tree
from amends.lockrows import Contention
from amends.ops import LiveCalls
from amends.rows import CallRow
from amends.visible import visible


def asks_somebody(tree: Tree) -> bool:
    """Whether a person can still say something that this tree waits for, or has said yes to what it has not done."""
    living = {row.id for row in tree.approvals if row.lives(tree.now)}
    for row in tree.calls:
        if row.state not in ("held", "ready") or row.attempt:
            continue
        if row.approval in living or (row.state == "held" and not row.is_staged and not row.approval):
            return True
    return False


def is_pending(tree: Tree) -> bool:
    """Whether somebody has not yet said what this tree waits for."""
    asked = {row.approval for row in tree.calls if row.state in ("held", "ready") and not row.attempt}
    if any(row.state == "held" and not row.approval and not row.is_staged for row in tree.calls):
        return True
    return any(row.id in asked and row.state == "pending" and row.lives(tree.now) for row in tree.approvals)


async def let_go_held(session: Session, row: CallRow, *, again_s: float | None = None) -> Held:
    """Suspend the run for a person, in one transaction; returns what to raise.

    Not while a call of the tree runs in this process, in the body of which a child may be left: its run is still needed.
    """
    twin = await ReadCall(row.twin) if row.twin else None
    if session.uid == session.root or not (session.bodies or await LiveCalls(session.root)):
        await give_back(session, again_s, suspended=True)
    held = held_for(session, row, await request_of_call(row), twin)
    held.args = (f"run {visible(session.id)} waits for a person: {visible(row.tool)} is held ({held.reason})",)
    return held


async def leave_to_caller(session: Session) -> None:
    """Raise ``Held``, and decide nothing, where only the caller's own body can go on with what waits for a person."""
    for known in session.strangers.values():
        if session.uid not in (known.run, known.root):
            continue  # another child's: this one ends without it
        row = await ReadCall(known.id)
        if row is not None and row.state in ("held", "ready") and not row.is_staged:
            raise await let_go_held(session, row)
    if session.resumed and any(spec.fn is None for spec in session.specs.values()):
        # Asked for by an earlier opening, and not yet again: its caller may still come.
        for row in (await read_tree(session)).calls:
            if row.state in ("held", "ready") and not row.is_staged and session.body(row) is None:
                raise await let_go_held(session, row)


async def start_decided(session: Session, row: CallRow) -> None:
    """A person let this call go on after its block had ended: it is done now, and its own error is no failure."""
    if session.body(row) is None:
        raise await let_go_held(session, row, again_s=session.lease.lease_s)
    if lacking(session, row):
        raise await let_go_held(session, row)  # whoever asked for it has what it hides, and comes back for it
    outbox = await outbox_terms(session) if row.kind == "pivot" else {}
    started = await start_waiting(session, row, await terms_for(session, row), outbox)
    if isinstance(started, Contention) and not started.victim:
        raise locked(session, row.tool, started, waited=session.wait_s)
    if isinstance(started, Overrun):
        raise exceeded(row.tool, started, session.id)
    if isinstance(started, Unapproved):
        await tell_of(session, started.approval)
    if isinstance(started, Unapproved) and started.why == "refused" and session.uid == session.root:
        await _block_refused(session, started)
    if isinstance(started, Unapproved) and started.why not in ("", "expired"):
        raise await let_go_held(session, started.call, again_s=session.lease.lease_s)
    if not isinstance(started, CallRow):
        return
    try:
        await run_attempts(session, recorded_ask(session, started), started, told=False)
    except (Waiting, LedgerError):
        raise
    except Exception:  # settled as failed, or in doubt for the next round; a tool's error is not its run's
        return


async def _block_refused(session: Session, no: Unapproved) -> NoReturn:
    """Somebody has said yes, and a rule says no by now: more asking changes nothing, so a person must end it."""
    row, tree = no.call, await read_tree(session)
    withdraw = "" if no.approval is None else f"rt.withdraw({no.approval.id!r}, by=..., why=...), or "
    end = "rollback" if tree.run.phase == "open" else "abandon"
    cause = f"{row.tool} ({row.id}): a rule refuses it by now: {withdraw}rt.{end}({session.id!r}, by=..., why=...)"
    await CloseRun(session.uid, session.lease.owner, session.lease.epoch, "blocked", causes=(cause,))
    raise RunBlocked(f"run {session.id} is blocked: {cause}", run_id=session.id, causes=[cause])


def recorded_ask(session: Session, row: CallRow) -> Ask:
    """The request of a recorded call, to start it again in its own words."""
    spec = session.spec(row.tool)
    body = session.body(row)
    assert spec is not None, f"the tool {row.tool} is known here"
    assert body is not None, f"the tool {row.tool} has its body here"
    return Ask(
        spec=spec,
        args=body_args(session, spec, row),
        copy=partial(body_args, session, spec, row),
        text=row.args,
        key=row.key,
        ident=row.ident,
        whole="",
        fn=body[0],
        is_async=body[1],
        timeout=spec.timeout,
        flight=session.memory.flight(row),
        recorded_digest=row.digest,
        known=known_of(session, row),
    )

"""One call inside the caller's own transaction: admitted, run and settled there, or not at all.

It neither waits nor retries: whatever it waited for might itself wait for the caller. A body that fails is undone
with its savepoint, so there is nothing to probe: an error of the database is a failure. A savepoint does not undo
what a body did elsewhere; an error of that kind is judged as usual.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from amends.engine.approvals import raise_unapproved, raise_void, terms_for
from amends.engine.before import read_before, reads_first
from amends.engine.call import (
    Done,
    admit,
    as_approved,
    busy,
    failure,
    in_doubt,
    recorded_done,
    refuse,
    row_of,
    settle_outcome,
)
from amends.engine.costs import exceeded
from amends.engine.doubts import stays_in_doubt
from amends.engine.ending import stop_call
from amends.engine.halts import halted
from amends.engine.locks import locked
from amends.engine.outcomes import heard
from amends.engine.session import Ask, Session, Wait, cause_of, first_result, later_of
from amends.errors import Busy
from amends.ledger.operations import ReadCall, StartCall
from amends.ledger.rows import CallRow, DirectiveRow, Overrun, Unapproved
from amends.ledger.world import Flight, Invoke, ReadClocks
from amends.model import LOST, Retry
from amends.tools.spec import Spec


def joined_spec(spec: Spec) -> Spec:
    """Return the tool as it runs in a joined transaction: one attempt, and no probe."""
    return replace(spec, probe=None, retry=Retry(attempts=1), retry_declared=True)


async def joined_call(session: Session, ask: Ask, *, is_undone: Callable[[Exception], bool]) -> Done:
    """Carry out the call in this transaction; raises the tool's own error, or why the call was refused.

    ``is_undone`` tells whether an error can have left effects only in the database, where the savepoint undoes them.
    """
    # No notice of a request that may be rolled back: the outbox has it once the caller has committed.
    session = replace(session, tell=None)
    answer = await admit(session, ask, Wait(0.0, waited=math.inf))
    match answer.verdict:
        case "start":
            return await _attempt(session, ask, row_of(answer), is_undone)
        case "replay":
            return recorded_done(session, ask.spec, row_of(answer))
        case "retry":
            approved = await as_approved(session, ask, row_of(answer))
            return await _attempt(session, approved, await _restarted(session, ask, row_of(answer)), is_undone)
        case "doubt":
            raise in_doubt(session, row_of(answer))
        case "wait":
            raise busy(session, answer, 0.0)
        case "locked":
            assert answer.lock is not None, "a request that is locked out names the lock"
            raise locked(session, ask.spec.name, answer.lock, waited=0.0)
        case "void":
            await raise_void(session, ask, answer)
        case _:
            refuse(session, ask, answer)
    raise AssertionError("refusing raises")


async def doubt_after_lost_transaction(session: Session, flight: Flight) -> None:
    """Put the call in doubt after its body ended the caller's transaction.

    If the body committed, its call is in the ledger, and nobody else settles it.
    """
    if flight.call is not None and await ReadCall(flight.call.id) is not None:
        await stop_call(session, flight)


async def _restarted(session: Session, ask: Ask, row: CallRow) -> CallRow:
    clocks = await ReadClocks()
    early = 0.0 if row.retry_at is None else row.retry_at - clocks.wall
    lease = session.lease
    terms = await terms_for(session, row, ask)
    before = await read_before(session, ask.spec, row) if early <= 0 and reads_first(ask.spec, row) else None
    started = (
        None if early > 0 else await StartCall(row.id, lease.owner, lease.epoch, row.attempt + 1, terms, before=before)
    )
    if isinstance(started, Unapproved):
        await raise_unapproved(session, ask, started)
    if isinstance(started, Overrun):
        raise exceeded(row.tool, started, session.id)
    if isinstance(started, DirectiveRow):
        raise halted(session, row.tool, started)
    if not isinstance(started, CallRow):
        raise Busy(
            f"{row.tool} is {row.state} and cannot be started again in this transaction now",
            owner=row.run_id,
            retry_after=max(early, 1.0),
            run_id=session.id,
        )
    return started


async def _attempt(session: Session, ask: Ask, row: CallRow, is_undone: Callable[[Exception], bool]) -> Done:
    ask.flight.call, ask.flight.sent = row, False
    later = later_of(row, ask)
    session.bodies[later.id] = later
    try:
        ended = await Invoke(
            fn=ask.fn,
            kwargs=ask.fresh(),
            is_async=ask.is_async,
            timeout=None,
            call=later,
            lease=None,  # the admission has locked the tree in this transaction: nobody can take it over before that ends
            phase="execute",
            run=session.run,
            flight=ask.flight,
        )
    finally:
        session.end_body(later)
    ended = heard(ended, later)
    value, row = await settle_outcome(session, ask, row, ended, body=later, is_undone=is_undone)
    if row.state == "succeeded":
        return Done(row, first_result(session, ask.spec, row) if value is LOST else value)
    if stays_in_doubt(row):
        raise in_doubt(session, row) from cause_of(session, ended.error, ask.known)
    raise ended.error or failure(ask.spec, row)

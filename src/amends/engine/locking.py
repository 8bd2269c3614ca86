"""Waiting for what another run has locked: how long, and what is said when it was not freed in time."""

from __future__ import annotations

from amends.approvalrows import Terms, TermsOf, Unapproved
from amends.budgetrows import Overrun
from amends.engine.session import Ask, Session, moment
from amends.engine.waiting import Wait
from amends.errors import Deadlocked, Locked
from amends.ledger import StartCall
from amends.lockrows import NOTHING, Contention, Wanted
from amends.rows import CallRow


def lock_wait_s(ask: Ask, wait: Wait) -> float:
    """How long this request may wait for another run."""
    return 0.0 if ask.spec.on_lock == "raise" else wait.limit_s


def wanted_by(ask: Ask, wait: Wait) -> Wanted:
    """The names that the request needs. A pivot may need those of its outbox too, which only the ledger knows."""
    if not ask.locks and ask.spec.kind != "pivot":
        return NOTHING
    return Wanted(ask.locks, waits=wait.waited < lock_wait_s(ask, wait), waited=bool(wait.root))


async def start_waiting(
    session: Session,
    row: CallRow,
    terms: Terms | None = None,
    outbox: TermsOf | None = None,
    *,
    wait: Wait | None = None,
) -> CallRow | Contention | Overrun | Unapproved | None:
    """Start the next attempt of a recorded call, as soon as its locks are free; the last word if they never were."""
    wait = wait or Wait(session.wait_s)
    while True:
        started = await StartCall(
            row.id, session.lease.owner, session.lease.epoch, row.attempt + 1, terms, outbox or {}
        )
        if not isinstance(started, Contention) or started.victim:
            return started
        if not await wait.again(started.root or session.root):
            return started


def locked(session: Session, tool: str, lock: Contention, *, waited: float, hint: str | None = None) -> Locked:
    """The typed error for a lock that was not freed in time."""
    since = moment(lock.since)
    assert since is not None, "a lock was taken at some time"
    error = Locked(
        tool,
        lock=lock.name,
        holder=lock.run_id,
        since=since,
        waited=waited,
        held_s=lock.now - lock.since,
        run_id=session.id,
    )
    error.hint = hint or error.hint
    return error


def deadlocked(session: Session, tool: str, why: str) -> Deadlocked:
    """The typed error for a run that was chosen to go back."""
    return Deadlocked(tool, why=why, run_id=session.id)

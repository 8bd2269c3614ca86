"""Wait for the locks of a call, and raise what a lock that stays taken means."""

from __future__ import annotations

from amends.engine.before import give_up, read_before, reads_first
from amends.engine.session import Ask, Session, Wait, moment
from amends.errors import Deadlocked, Locked
from amends.ledger.operations import Admission, HeldLock, PrepareCall, StartCall
from amends.ledger.rows import (
    NOTHING,
    CallRow,
    Contention,
    DirectiveRow,
    LockRequest,
    LockRow,
    Overrun,
    RunRow,
    Terms,
    TermsByCall,
    Unapproved,
)
from amends.model import Lock


def lock_wait_s(ask: Ask, wait: Wait) -> float:
    """Return how long this request may wait for a lock that another run holds."""
    return 0.0 if ask.spec.on_lock == "raise" else wait.limit_s


def locks_for(ask: Ask, wait: Wait) -> LockRequest:
    """Return the lock names that the request needs.

    A pivot may also need those of its outbox, which only the ledger knows.
    """
    if not ask.locks and ask.spec.kind != "pivot":
        return NOTHING
    return LockRequest(ask.locks, waits=wait.waited < lock_wait_s(ask, wait), waited=bool(wait.root))


async def start_when_unlocked(
    session: Session,
    row: CallRow,
    terms: Terms | None = None,
    outbox: TermsByCall | None = None,
    *,
    wait: Wait | None = None,
    remote_s: float | None = None,
    is_prepared: bool = False,
) -> CallRow | Contention | Overrun | Unapproved | DirectiveRow | None:
    """Start the next attempt of a recorded call as soon as its locks are free.

    Return the last answer if they never were. What is there before its first attempt is read once it has its locks.
    ``remote_s``: the work lease of this request, instead of the tool's. ``is_prepared``: its admission has taken its locks.
    """
    wait = wait or Wait(session.wait_s, longest_s=session.poll_s)
    reading = session.memory.reading
    reading.add(row.id)
    try:
        return await _start_when_unlocked(session, row, terms, outbox, wait, remote_s, is_prepared)
    finally:
        reading.discard(row.id)


async def _start_when_unlocked(
    session: Session,
    row: CallRow,
    terms: Terms | None,
    outbox: TermsByCall | None,
    wait: Wait,
    remote_s: float | None,
    is_prepared: bool,
) -> CallRow | Contention | Overrun | Unapproved | DirectiveRow | None:
    lease, spec = session.lease, session.spec(row.tool)
    prepared, before = False, None
    if remote_s is None:
        remote_s = 0.0 if spec is None else spec.remote
    while True:
        started: CallRow | Contention | Overrun | Unapproved | DirectiveRow | None
        if spec is not None and reads_first(spec, row) and not prepared:
            started = row if is_prepared else await PrepareCall(row.id, lease.owner, lease.epoch)
            if isinstance(started, CallRow):
                prepared, before = True, await read_before(session, spec, started)
                continue
        else:
            started = await StartCall(
                row.id, lease.owner, lease.epoch, row.attempt + 1, terms, outbox or {}, before=before, remote_s=remote_s
            )
            if spec is not None and prepared and not isinstance(started, CallRow):
                await give_up(session, spec, row)
        if not isinstance(started, Contention) or started.victim or started.lost is not None:
            return started
        if not await wait.again(started.root or session.root):
            return started


def locked(session: Session, tool: str, lock: Contention, *, waited: float, hint: str | None = None) -> Locked:
    """Return the error for a lock that was not freed in time."""
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
    """Return the error for a run that was chosen to roll back by a deadlock."""
    return Deadlocked(tool, why=why, run_id=session.id)


async def wait_for_lock(session: Session, ask: Ask, answer: Admission, wait: Wait) -> None:
    """Wait until the run that holds the lock may have ended; raise ``Locked`` when the limit is reached."""
    assert answer.lock is not None, "a locked answer names the lock"
    if wait.waited >= lock_wait_s(ask, wait):
        raise locked(session, ask.spec.name, answer.lock, waited=wait.waited)
    await wait.again(answer.lock.root or session.root)  # False: the next request is the last one


def lock_of(row: LockRow, run: RunRow, now: float, waiting: tuple[str, ...] = ()) -> Lock:
    """Return one lock as users see it."""
    since = moment(row.taken_at)
    assert since is not None, "a lock was taken at some time"
    return Lock(
        name=row.name,
        run_id=row.run_id,
        tool=row.tool,
        call_id=row.call,
        since=since,
        held_s=now - row.taken_at,
        run_state=run.state,  # type: ignore[arg-type]  # the ledger's own words
        waiting=waiting,
    )


def held_lock_of(held: HeldLock) -> Lock:
    """Return one lock as users see it, with the runs that wait for it."""
    return lock_of(held.lock, held.root, held.now, tuple(wait.run_id for wait in held.waits))

"""Attempts that are performed outside the owner's process, under a work lease: grant it, renew it, end it, report late.

See ``docs/explanation/ownership.md``. Only the owner renews a work lease and settles its attempt. What is reported after
the lease, or to a process that does not own the run, is evidence.
"""

from __future__ import annotations

from amends.engine.call import settle_outcome
from amends.engine.doubts import by_evidence, note_late, settle_delay_left
from amends.engine.session import Ask, Session
from amends.errors import CallNotFound, LeaseLost
from amends.ledger.leases import WorkLease, work_left_s
from amends.ledger.operations import ReadCall, WatchDoubt
from amends.ledger.rows import CallRow
from amends.ledger.world import Ended, ReadClocks
from amends.model import WorkLost
from amends.tools.spec import Spec


async def grant(lease_s: float) -> WorkLease:
    """Return the work lease of an attempt whose start is durable: it counts from now."""
    return WorkLease(lease_s, (await ReadClocks()).mono + lease_s)


async def renewal(session: Session, row: CallRow, work: WorkLease) -> float:
    """Return until when a renewed work lease lasts; raise ``LeaseLost`` if the run has another owner, or it is over."""
    mono = (await ReadClocks()).mono
    session.lease.check(mono)
    if mono >= work.until:
        raise over(row, work.lease_s)
    return mono + work.lease_s


async def found(session: Session, call_id: str) -> CallRow:
    """Return a call of this tree; raise ``CallNotFound``."""
    row = await ReadCall(call_id)
    if row is None or row.root != session.root:
        raise CallNotFound(call_id)
    return row


async def late_renewal(session: Session, spec: Spec, call_id: str, attempt: int) -> float:
    """Renew the work lease of an attempt that an earlier owner of this run handed out; return the seconds.

    The attempt stays in doubt: nobody believes that nothing happened before the renewed lease is over. Raise ``LeaseLost``
    if the lease has ended, or the doubt is settled.
    """
    row = await found(session, call_id)
    session.lease.check((await ReadClocks()).mono)
    if row.state != "in_doubt" or row.attempt != attempt or not row.remote_s:
        raise over(row, row.remote_s)
    # As long as it is waited for here: whoever believed that nothing happened has waited for the same.
    left = await settle_delay_left(session, spec, row) - spec.settle
    if not 0 < left < float("inf"):
        raise over(row, row.remote_s)
    clocks = await ReadClocks()
    until = clocks.mono + work_left_s(row)
    kept = await WatchDoubt(row.id, row.in_question, clocks.boot, until, renewed=True)
    if kept.state != "in_doubt" or kept.attempt != attempt:
        raise over(kept, row.remote_s)  # it was settled in the same moment
    session.lease.check((await ReadClocks()).mono)
    return row.remote_s


def over(row: CallRow, lease_s: float) -> LeaseLost:
    """Return the error for a work lease that has ended."""
    return LeaseLost(
        f"the work lease of {row.tool} ({lease_s:g} s) is over: stop, if you can",
        hint="report what happened all the same: it is kept as evidence",
        run_id=row.run_id,
    )


async def lapse(
    session: Session, ask: Ask, row: CallRow, work: WorkLease, *, said: dict[str, int] | None = None
) -> CallRow:
    """Record an attempt as in doubt whose performer was silent past its lease."""
    newest = await ReadCall(row.id)
    assert newest is not None, "calls are never deleted while their run is open"
    if newest.state != "started" or newest.attempt != row.attempt:
        return newest
    silence = WorkLost(f"nobody reported within the work lease of {work.lease_s:g} s")
    _, settled = await settle_outcome(session, ask, row, Ended(error=silence), reported=said)
    return settled


async def end(
    session: Session, ask: Ask, row: CallRow, ended: Ended, *, said: dict[str, int] | None = None, is_late: bool = False
) -> CallRow:
    """Settle an attempt as its performer, which has ended, reported.

    If it is in doubt by now (``is_late``: known to be), the report is evidence, which may settle the doubt.
    """
    if is_late:
        await note_late(session, ask.known, ask.spec, row, ended)
        return await _by_report(session, ask, row)
    try:
        _, settled = await settle_outcome(session, ask, row, ended, reported=said, is_over=True)
    except LeaseLost:
        newest = await ReadCall(row.id)
        if newest is None or newest.state != "in_doubt" or newest.attempt != row.attempt:
            raise
        return await _by_report(session, ask, row)
    return settled


async def _by_report(session: Session, ask: Ask, row: CallRow) -> CallRow:
    newest = await ReadCall(row.id)
    assert newest is not None, "calls are never deleted while their run is open"
    if newest.state != "in_doubt":
        return newest
    return await by_evidence(session, session.spec(row.tool) or ask.spec, newest, back=False)

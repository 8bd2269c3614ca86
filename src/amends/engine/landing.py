"""What other threads and tasks of this process still run lands before a run is ended."""

from __future__ import annotations

from typing import Final

from amends.engine.giving import give_back, read_tree
from amends.engine.session import Session
from amends.engine.waiting import POLL_S_MAX, POLL_S_MIN
from amends.ledger import SettleCall, SettleCompensation
from amends.ops import Flight, LiveCalls, ReadClocks, Sleep
from amends.rows import CallRow
from amends.states import LIVE

STOPPED: Final = '["Cancelled", "its flow was stopped"]'


async def let_land(session: Session, *, patient: bool = False) -> None:
    """What other threads and tasks of this process still run lands first.

    Calls that nobody is behind stay as they are: whoever comes here meets them in what it reads next.
    """
    if await LiveCalls(session.uid):
        await wait_for_live(session, patient=patient)


async def wait_for_live(session: Session, *, patient: bool = False) -> None:
    """Let the calls that other threads and tasks of this process still run land first.

    ``patient``: however long they take, as leaving a block does. A body that must not is given a timeout.
    """
    waited, pause = 0.0, POLL_S_MIN
    while True:
        seen = {row.id for row in (await read_tree(session)).calls if row.state in LIVE}
        if not await LiveCalls(session.uid):
            return await _settle_orphans(session, seen)
        if not patient and waited >= session.wait_s:
            return None
        await Sleep(pause)
        waited, pause = waited + pause, min(pause * 2, POLL_S_MAX)


async def stop_here(session: Session) -> None:
    """A flow that ended or recovered this run was stopped by an interrupt, an exit or a cancellation.

    Turn what it had started into doubt, and give the tree back, so that recovery goes on at once and not after a
    lease. While other threads of this process still run calls of the run, it stays theirs.
    """
    if await LiveCalls(session.uid):
        return
    await _settle_orphans(session, {row.id for row in (await read_tree(session)).calls if row.state in LIVE})
    if session.uid == session.root:
        await give_back(session, 0.0)


async def _settle_orphans(session: Session, seen: set[str]) -> None:
    """Settle calls that nobody is behind: a flow was stopped (an interrupt, a cancellation) and could not do it.

    They were seen before the last flow ended and are still there after it: a call that another thread has begun
    since then is not among them.
    """
    if not seen:
        return
    clocks = await ReadClocks()
    owner, epoch = session.lease.owner, session.lease.epoch
    for row in (await read_tree(session)).calls:
        if row.id not in seen:
            continue
        flight = _flight_of(session, row)
        mono = None if flight is not None and flight.goes_on else clocks.mono
        if row.state == "started":
            to = "failed" if row.kind == "read" else "in_doubt"
            await SettleCall(
                row.id, owner, epoch, row.attempt, to, why="cancelled", error=STOPPED, boot=clocks.boot, mono=mono
            )
        elif row.state == "compensating":
            undo = SettleCompensation(
                row.id, owner, epoch, row.comp_attempt, "compensation_in_doubt", error=STOPPED, boot=clocks.boot,
                mono=mono,
            )  # fmt: skip
            if (
                flight is not None and not flight.sent
            ):  # stopped in its guard, say: it was never started, and may be at once
                undo.to, undo.retry_s = "compensation_failed", 0.0
            await undo


def _flight_of(session: Session, row: CallRow) -> Flight | None:
    """Return what this process knows of the very attempt that a live row stands for."""
    flight = session.memory.flights.pop(row.id, None)
    begun = None if flight is None else flight.call
    if begun is None or (begun.attempt, begun.comp_attempt) != (row.attempt, row.comp_attempt):
        return None
    return flight

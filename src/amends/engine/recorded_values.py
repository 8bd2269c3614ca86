"""Record what a program reads through its run, so that it is the same after a resume and in a replay.

These values are the clock, random numbers and new ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import count
from typing import Final, TypeAlias

from amends.encoding.canonical import digest
from amends.engine.session import Session, moment
from amends.errors import RunEnded
from amends.ledger.operations import VALUE, NoteValue, ReadEvents, ReadRun
from amends.ledger.rows import counterparts_of

EVENTS_PAGE: Final = 1_000
Reader: TypeAlias = tuple[str, int]
"""The call in whose body something is read, and its attempt; for the program itself: no call, 0."""
PAGES_MAX: Final = 100_000
"""The most pages of one tree's events: a hundred million events."""


async def read_clock(session: Session, reader: Reader) -> datetime:
    """Return the time now, and record it; in a resumed run the nth reading returns the recorded nth one.

    ``reader``: the call in whose body it is read; bodies are counted separately, since a replay does not run them.
    """
    call, place, readings = reader[0], nth(session, "now", reader), session.readings
    if readings.recorded is None and (session.resumed or session.lease.epoch > 1):
        readings.recorded = await recorded_values(session)
    recorded = (readings.recorded or {}).get((session.uid, call), ())
    if place < len(recorded):
        return _aware(recorded[place])
    nonce = session.new_id("val")
    lease = session.lease
    now = await NoteValue(session.uid, session.root, lease.owner, lease.epoch, call, nonce)
    if now is None:
        raise clock_stopped(session.id, session.state)
    return _aware(now)


def clock_stopped(run_id: str, state: str) -> RunEnded:
    """Return the error for reading the clock of a run that has ended."""
    return RunEnded(f"run {run_id} has ended: its clock can no longer be read", state=state, run_id=run_id)


async def recorded_values(session: Session) -> dict[tuple[str, str], list[float]]:
    """Return every reading of the tree, by run and by the call in whose body it was."""
    found: dict[tuple[str, str], list[float]] = {}
    tree = await ReadRun(session.tenant, uid=session.root) if session.phases else None
    for place, (root, last, _) in enumerate(session.phases):
        # What the original had read before it requested the last shared call, under the uids that its runs have in the
        # fork.
        left = len(session.phases) - place
        names = {
            counterparts_of(run)[-left]: run.uid
            for run in (tree.runs if tree else ())
            if len(counterparts_of(run)) >= left
        }
        for run, _, at in await _read(root, last):
            if run in names:
                found.setdefault((names[run], ""), []).append(at)
    for run, call, at in await _read(session.root):
        found.setdefault((run, call), []).append(at)
    return found


async def _read(root: str, last: str = "") -> list[tuple[str, str, float]]:
    """Return what was read in this tree, by run and call, in order; ``last``: only before this call was requested."""
    found: list[tuple[str, str, float]] = []
    after = 0
    for _ in range(PAGES_MAX):
        page = await ReadEvents(None, root, after, EVENTS_PAGE)
        for event in page:
            if last and event.call == last:
                return [one for one in found if not one[1]]
            if event.what == VALUE:
                found.append((event.run, event.call, event.at))
        if len(page) < EVENTS_PAGE:
            break
        after = page[-1].n
    return found


def nth(session: Session, what: str, reader: Reader) -> int:
    """Return how often this was read before, in this run and this body; atomic also for threads."""
    counter: Iterator[int] = session.readings.counters.setdefault((what, session.uid, *reader), count())
    return next(counter)


def seed_of(session: Session, what: str, reader: Reader) -> str:
    """Return the seed of the nth random number or id of a run.

    It is made from the run and from how many there were before; nothing is recorded.
    """
    return digest(what, _seeding_run(session), reader[0], nth(session, what, reader))


def _seeding_run(session: Session) -> str:
    """Return the run whose random numbers these are.

    In a fork they are those of the original until all calls shared with it were requested.
    """
    left = sum(mine not in session.replays for _, _, mine in session.phases)
    return session.counterparts[-left] if 0 < left <= len(session.counterparts) else session.uid


def _aware(seconds: float) -> datetime:
    at = moment(seconds)
    assert at is not None, "a clock reading has a time"
    return at

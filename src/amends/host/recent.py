"""What happened lately: the newest events and calls, how tools did, and the runs that have not ended.

Each verb reads from the newest on and stops after a number of rows that the caller names. So its cost does not grow with
the ledger, whatever the filter: where a search stopped is part of the answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from amends.encoding.chain import Checkpoint, feed_place, read_place
from amends.engine.reports import event_of, info_of
from amends.engine.session import call_of, moment
from amends.errors import UsageError
from amends.host.filters import CALL_FIELDS, EVENT_FIELDS, parse_filter
from amends.host.host import Host, View
from amends.host.listing import EVENT_STATES, PAGE, TIME_MAX, EventNarrow, narrowing, now_of
from amends.ledger.operations import ListUnfinished, ReadCheckpoints, ReadEventsBack, ReadOutlines, SearchCalls
from amends.ledger.rows import CallRow, CheckpointRow, EventRow
from amends.ledger.world import ReadClocks
from amends.model import Call, Event, RunInfo
from amends.report import Recent, ToolUse
from amends.states import CALL_STATES, LIVE, STANDING, UNSETTLED

LOOKS_MAX: Final = 100_000
"""The most rows that one search may be asked to read."""
LIMIT_MAX: Final = 10_000
INDEXED: Final = frozenset(CALL_STATES) & ((UNSETTLED | STANDING) - LIVE - {"succeeded"})
"""The states in which few calls are: the store finds those without reading the others."""
FAILED: Final = frozenset({"failed", "compensation_failed"})
DOUBTFUL: Final = frozenset({"in_doubt", "compensation_in_doubt"})
UNDONE: Final = frozenset({"compensating", "compensated", "compensation_failed", "compensation_in_doubt"})


# ---- Events and calls


async def recent_events(
    _host: Host, view: View, filter: str = "", *, after: str = "", limit: int = 50, looks: int = 2_000
) -> Recent[Event]:
    """Return the newest events of the ledger that pass the filter, newest first.

    ``after``: what ``next`` of the answer before said. ``limit``: how many to return. ``looks``: how many to read at most;
    if fewer than ``limit`` were found by then, ``next`` says where to go on.
    """
    _check(limit, looks)
    wanted = parse_filter(filter, EVENT_FIELDS, EVENT_STATES)
    narrow = EventNarrow(wanted, ascends=False)
    first, last = wanted.within((await ReadClocks()).wall)
    place = _event_place(after)
    if last < TIME_MAX:
        latest = feed_place(max(last, 0.0) + 1e-6)
        place = min(place or latest, latest, key=read_place)
    found: list[EventRow] = []
    looked = 0
    while looked < looks:
        size = min(PAGE, looks - looked)
        rows = await ReadEventsBack(view.tenant or "", place, size)
        kept = await narrow.rows(rows)
        room = limit - len(found)
        found += kept[:room]
        if len(kept) > room or (len(kept) == room and len(rows) == size):
            looked += rows.index(found[-1]) + 1 if found else 0
            return Recent(tuple(map(event_of, found)), found[-1].place, looked)
        looked += len(rows)
        if len(rows) < size or rows[-1].at < first:
            return Recent(tuple(map(event_of, found)), None, looked)
        place = rows[-1].place
    return Recent(tuple(map(event_of, found)), place, looked)


def _event_place(after: str) -> str:
    given: Any = after
    try:
        read_place(given if isinstance(given, str) else "?")
    except ValueError as error:
        raise UsageError(
            f"{after!r} is no place in the events of the ledger", hint="give what .next of the answer before said"
        ) from error
    return after


async def recent_calls(
    host: Host, view: View, filter: str = "", *, after: str = "", limit: int = 50, looks: int = 2_000
) -> Recent[Call]:
    """Return the newest calls of the ledger that pass the filter, newest first. Parameters as of ``recent_events``."""
    _check(limit, looks)
    wanted = parse_filter(filter, CALL_FIELDS)
    narrow = narrowing(wanted, "tag")
    states = wanted.states if wanted.states and INDEXED.issuperset(wanted.states) else ()
    place: str | None = after or None
    found: list[CallRow] = []
    looked = 0
    while looked < looks:
        size = min(PAGE, looks - looked)
        rows = await SearchCalls(view.tenant or "", states, place, size)
        kept = [row for row in rows if wanted.takes_call(row)]
        kept = kept if narrow is None else await narrow.rows(kept)
        room = limit - len(found)
        found += kept[:room]
        if len(kept) > room or (len(kept) == room and len(rows) == size):
            looked += rows.index(found[-1]) + 1 if found else 0
            return Recent(_calls(host, found), found[-1].id, looked)
        looked += len(rows)
        if len(rows) < size or (narrow is not None and narrow.is_over(rows[-1])):
            return Recent(_calls(host, found), None, looked)
        place = rows[-1].id
    return Recent(_calls(host, found), place, looked)


def _calls(host: Host, rows: Iterable[CallRow]) -> tuple[Call, ...]:
    return tuple(call_of(row, host.specs.get(row.tool)) for row in rows)


def _check(limit: Any, looks: Any) -> None:
    for name, value, most in (("limit", limit, LIMIT_MAX), ("looks", looks, LOOKS_MAX)):
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise UsageError(f"{name}= is a number from 1 to {most:,}, not {value!r}")


# ---- How tools did


async def newest_rows(view: View, newest: int) -> list[CallRow]:
    """Return the newest calls of this ledger, without those that were loaded from another."""
    _check(1, newest)
    found: list[CallRow] = []
    looked, place = 0, None
    while looked < newest:
        size = min(PAGE, newest - looked)
        rows = await SearchCalls(view.tenant or "", (), place, size)
        found += [row for row in rows if not row.is_loaded]
        looked += len(rows)
        if len(rows) < size:
            break
        place = rows[-1].id
    return found


async def tool_use(host: Host, view: View, tool: str = "", *, newest: int = 1_000) -> list[ToolUse]:
    """Return how each tool did, or this one, among the newest calls of the ledger: failures, doubts and durations.

    ``newest``: how many calls of all tools are read. Tools that were met without being declared are among them.
    """
    by_tool: dict[str, list[CallRow]] = {}
    for row in await newest_rows(view, newest):
        if tool in ("", row.tool):
            by_tool.setdefault(row.tool, []).append(row)
    return sorted((_use(host, name, rows) for name, rows in by_tool.items()), key=lambda use: (-use.calls, use.tool))


def _use(host: Host, name: str, rows: Sequence[CallRow]) -> ToolUse:
    states = Counter(row.state for row in rows)
    took = sorted(
        row.settled_at - row.started_at
        for row in rows
        if row.settled_at is not None and row.started_at is not None and row.state not in DOUBTFUL
    )
    last = moment(max(row.created_at for row in rows))
    assert last is not None, "a call was made at some time"
    return ToolUse(
        tool=name,
        calls=len(rows),
        failed=sum(states[state] for state in FAILED),
        in_doubt=sum(states[state] for state in DOUBTFUL),
        doubted=sum(row.state in DOUBTFUL or bool(row.learned) for row in rows),
        undone=sum(states[state] for state in UNDONE),
        retried=sum(row.attempt > 1 for row in rows),
        answered=sum(row.replays for row in rows),
        seconds_median=_at(took, 0.5),
        seconds_95=_at(took, 0.95),
        seconds_max=took[-1] if took else None,
        last_at=last,
        versions=dict(Counter(row.version for row in rows).most_common()),
        kinds=tuple(dict.fromkeys(row.kind for row in rows)),
        declared=host.find(name) is not None,
    )


def _at(ordered: Sequence[float], share: float) -> float | None:
    """Return the value below which this share of them lies."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


# ---- Runs that have not ended


async def unfinished(_host: Host, view: View, *, after: str = "", limit: int = 100) -> list[RunInfo]:
    """Return the root runs that have not ended, newest first, each with what happens to it at this moment (``now``).

    ``after``: the ``place`` of the last one that was listed; the listing goes on after it.
    """
    _check(limit, 1)
    rows = [row for row in await ListUnfinished(view.tenant or "", after.partition("/")[2], limit) if not row.origin]
    outlines, _ = await ReadOutlines(tuple(row.uid for row in rows))
    trees = {outline.tree.run.uid: outline.tree for outline in outlines}
    return [replace(info_of(row), now=await now_of(row, trees[row.uid])) for row in rows if row.uid in trees]


# ---- Checkpoints


async def checkpoints(_host: Host, _view: View, *, limit: int = 50) -> list[Checkpoint]:
    """Return the newest checkpoints of the ledger, the newest first: each is signed over what changed since the one before."""
    _check(limit, 1)
    newest = await ReadCheckpoints(-1, 1)
    if not newest:
        return []
    rows = await ReadCheckpoints(max(0, newest[0].n - limit), limit)
    return [_told(row) for row in reversed(rows)]


def _told(row: CheckpointRow) -> Checkpoint:
    """Return a checkpoint as people see it. What it covers is counted and not read: a page of them names many trees."""
    at = moment(row.at)
    assert at is not None, "a checkpoint was written at some time"
    trees = max(0, row.heads.count("[") - 1)  # neither a uid nor a hash has a bracket
    return Checkpoint(row.ledger, row.n, at, trees, row.prev, row.hash, row.key, row.signature)

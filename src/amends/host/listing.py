"""Listings. A listing is read page by page, so that a large ledger costs no more than what is read."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, Generic, Protocol, TypeVar

from amends.encoding.chain import feed_place, read_place
from amends.engine.locks import held_lock_of
from amends.engine.reports import event_of, info_of
from amends.engine.session import call_of, moment
from amends.errors import UsageError
from amends.host.filters import CALL_FIELDS, CALL_WORDS, EVENT_FIELDS, RUN_FIELDS, Filter, parse_filter
from amends.host.host import Host, View, run_id_of
from amends.host.runs import found
from amends.ledger.budgets import read_charge
from amends.ledger.flow import Flow
from amends.ledger.operations import (
    CountRuns,
    HeldLock,
    ListLocks,
    ListRuns,
    ListUnfinished,
    Outline,
    ReadCall,
    ReadEvents,
    ReadNewestEvent,
    ReadOutlines,
    ReadRun,
    SearchCalls,
    StoreOp,
    Tree,
)
from amends.ledger.rows import APPROVAL_STATES, CallRow, EventRow, RunRow, is_left_to_program
from amends.ledger.world import IsDead, ReadClocks
from amends.model import Call, Event, Lock, Now, RunInfo
from amends.report import Overview, RunLine
from amends.states import CALL_STATES, LIVE, RUN_FINAL, RUN_STATES, UNSETTLED

EVENT_STATES: Final = tuple(dict.fromkeys((*RUN_STATES, *CALL_STATES, *APPROVAL_STATES)))


# ---- Listings


T = TypeVar("T")
PAGE: Final = 200
LOOKED_UP: Final = ("tool", "kind", "agent", "principal")
"""Fields that are looked up in the call or the run of an event."""
KNOWN_RUNS_MAX: Final = 10_000
"""How many runs are remembered while a ledger is searched."""
TIME_MAX: Final = 1e11
"""The latest moment, in seconds, that a filter may begin with."""
COUNTED_MAX: Final = 1_200
"""How many of the newest runs an overview counts by state."""
LOOKED_MAX: Final = 10_000
"""How many runs one page of an overview looks at."""
LOOKED_DEEP_MAX: Final = 1_000
"""The same, if the calls of each run are looked at too."""
UNFINISHED_MAX: Final = 500
"""Up to how many unfinished trees are read to find those in one state; if there are more, a search finds some soon."""
PERSON: Final = "a person"
OWNER_PARTS_MIN: Final = 2
"""An owner that is named by the process itself has more parts than this: its host, ..., its process id, its start."""


class Narrows(Protocol):
    """The part of a filter that a row alone does not answer."""

    async def rows(self, rows: list[Any]) -> list[Any]:
        """Return the rows that pass, in their order."""
        ...

    def is_over(self, row: Any) -> bool:
        """Return whether nothing after this row can pass."""
        ...


class Pages(Generic[T]):
    """The rest of a listing; each ``read`` is one page of it.

    ``first`` and ``then`` are the operations that read the first page and the page after a row. ``take`` checks a row
    alone. ``narrow`` may read more from the ledger about the rows that passed, and end the listing by ``is_over``.
    ``make`` turns a row into what the user gets, and ``complete`` may read more from the ledger for it.
    """

    def __init__(
        self,
        first: StoreOp[Any],
        then: Callable[[Any], StoreOp[Any]],
        take: Callable[[Any], bool],
        make: Callable[[Any], T],
        *,
        narrow: Narrows | None = None,
        complete: Callable[[Any, T], Flow[T]] | None = None,
    ) -> None:
        self._next: StoreOp[Any] | None = first
        self._then, self._take, self._make = then, take, make
        self._narrow, self._complete = narrow, complete

    def read(self) -> Flow[list[T]] | None:
        """Return the flow that reads the next page; None at the end."""
        return None if self._next is None else self._read(self._next)

    async def _read(self, op: StoreOp[Any]) -> list[T]:
        rows: list[Any] = await op
        kept = [row for row in rows if self._take(row)]
        is_last = len(rows) < PAGE
        if self._narrow is not None:
            kept = await self._narrow.rows(kept)
            is_last = is_last or self._narrow.is_over(rows[-1])
        self._next = None if is_last else self._then(rows[-1])
        if self._complete is None:
            return [self._make(row) for row in kept]
        return [await self._complete(row, self._make(row)) for row in kept]


class Narrow:
    """The part of a filter on runs and calls that a row alone does not answer: age, calls of a run, tags of a call's run."""

    def __init__(self, wanted: Filter) -> None:
        self._wanted = wanted
        self._now: float | None = None
        self._tagged: dict[str, bool] = {}

    async def rows(self, rows: list[Any]) -> list[Any]:
        """Return the rows that pass, in their order."""
        if self._now is None:
            self._now = (await ReadClocks()).wall
        aged = [row for row in rows if self._wanted.takes_age(row.created_at, self._now)]
        return [row for row in aged if await self._passes(row)]

    def is_over(self, row: Any) -> bool:
        """Return whether everything older than this row is too old."""
        return self._now is not None and self._wanted.is_past(row.created_at, self._now)

    async def _passes(self, row: RunRow | CallRow) -> bool:
        if isinstance(row, CallRow):
            return not self._wanted.has("tag") or await self._is_tagged(row)
        if not self._wanted.has(*CALL_WORDS):
            return True
        tree = await ReadRun("", uid=row.uid)
        calls = [] if tree is None else [call for call in tree.calls if call.run == row.uid]
        if self._wanted.has("cost") and not self._wanted.takes_cost(calls):
            return False
        words = [word for word in CALL_WORDS if word != "cost"]
        return not self._wanted.has(*words) or any(self._wanted.takes_words(call, cost=False) for call in calls)

    async def _is_tagged(self, row: CallRow) -> bool:
        if row.run not in self._tagged:
            if len(self._tagged) >= KNOWN_RUNS_MAX:
                self._tagged.clear()
            tree = await ReadRun("", uid=row.run)
            self._tagged[row.run] = tree is not None and self._wanted.takes_tags(tree.run)
        return self._tagged[row.run]


class EventNarrow:
    """The part of a filter on events that a row alone does not answer: age, and the tool, agent and principal."""

    def __init__(self, wanted: Filter, *, ascends: bool) -> None:
        self._wanted, self._ascends = wanted, ascends
        self._now: float | None = None
        self._known: dict[str, dict[str, Any]] = {}

    async def rows(self, rows: list[EventRow]) -> list[EventRow]:
        """Return the rows that pass, in their order."""
        if self._now is None:
            self._now = (await ReadClocks()).wall
        found = [row for row in rows if self._wanted.takes_event(row, self._now)]
        if not self._wanted.has(*LOOKED_UP):
            return found
        return [row for row in found if self._wanted.takes(await self._about(row))]

    def is_over(self, row: EventRow) -> bool:
        """Return whether everything after this event is too new."""
        return self._ascends and self._now is not None and row.at > self._wanted.within(self._now)[1]

    async def _about(self, row: EventRow) -> dict[str, Any]:
        about = row.call or row.run
        if about not in self._known:
            if len(self._known) >= KNOWN_RUNS_MAX:
                self._known.clear()
            tree = await ReadRun("", uid=row.root)
            for run in () if tree is None else tree.runs:
                self._known[run.uid] = {"tool": "", "kind": "", "agent": run.agent, "principal": run.principal}
            for call in () if tree is None else tree.calls:
                self._known[call.id] = {name: getattr(call, name) for name in LOOKED_UP}
        return self._known.setdefault(about, dict.fromkeys(LOOKED_UP, ""))


def narrowing(wanted: Filter, *fields: str) -> Narrow | None:
    """Return what must be read from the ledger for these fields or for an age; None if nothing must."""
    return Narrow(wanted) if wanted.has("age", *fields) else None


def runs(_host: Host, view: View, filter: str = "", *, now: bool = False, after: str = "") -> Pages[RunInfo]:
    """List root runs and children, newest first; the filter has the grammar of the CLI.

    ``now``: also what happens to each unfinished run at this moment, for which its calls are read. ``after``: the
    ``place`` of the last run that was listed; the listing goes on after it.
    """
    wanted = parse_filter(filter, RUN_FIELDS)
    tenant = view.tenant or ""

    def then(row: RunRow) -> StoreOp[Any]:
        return ListRuns(tenant, wanted.states, (row.created_at, row.uid), PAGE)

    first = ListRuns(tenant, wanted.states, _run_place(after) if after else None, PAGE)
    narrow = narrowing(wanted, *CALL_WORDS)
    return Pages(first, then, wanted.takes_run, info_of, narrow=narrow, complete=_with_now if now else None)


async def overview(_host: Host, view: View, filter: str = "", *, after: str = "", limit: int = 50) -> Overview:
    """Return one page of runs, newest first, with what they cost and how many runs are in each state.

    The work is bounded, however large the ledger is: a page looks at no more than some thousand runs, and says where
    to go on. ``filter``, ``after``: as of ``runs``. ``limit``: how many runs, at most 200.
    """
    if not 1 <= limit <= PAGE:
        raise UsageError(f"limit={limit} is not between 1 and {PAGE}")
    wanted, tenant = parse_filter(filter, RUN_FIELDS), view.tenant or ""
    found = await _search(wanted, tenant, _run_place(after) if after else None, limit)
    outlines, is_partial = await ReadOutlines(tuple(dict.fromkeys(row.root for row in found.rows)))
    by_root = {outline.tree.run.uid: outline for outline in outlines}
    lines = [await _line(row, by_root.get(row.root)) for row in found.rows]
    counts = await CountRuns(tenant, COUNTED_MAX)
    counted = sum(counts.values())
    return Overview(
        tuple(lines), found.next, found.looked_at, found.is_cut, dict(sorted(counts.items())), counted,
        counted < COUNTED_MAX, not is_partial,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Searched:
    """What a bounded search has found."""

    rows: list[RunRow]
    next: str | None
    looked_at: int
    is_cut: bool


async def _search(wanted: Filter, tenant: str, before: tuple[float, str] | None, limit: int) -> Searched:
    """Look for runs, newest first, in a bounded part of the ledger.

    The state is compared here: a store that looks for a state which few runs have would read all of them.
    """
    narrow = narrowing(wanted, *CALL_WORDS)
    found = await _search_named(wanted, tenant, before)
    if found is None and wanted.states and not RUN_FINAL & set(wanted.states):
        found = await _search_unfinished(wanted, tenant, before, limit)
    if found is not None:
        return found
    # What needs the calls of each run costs more for each run that is looked at.
    most = LOOKED_DEEP_MAX if wanted.has(*CALL_WORDS) else LOOKED_MAX
    size = PAGE if wanted.words.keys() - {"state"} else min(limit + 1, PAGE)
    rows: list[RunRow] = []
    looked_at = 0
    while looked_at < most:
        page = await ListRuns(tenant, (), before, size)
        kept = [row for row in page if wanted.takes_run(row)]
        rows += kept if narrow is None else await narrow.rows(kept)
        looked_at += len(page)
        if len(rows) > limit:
            return Searched(
                rows[:limit], _shown_place(rows[limit - 1].created_at, rows[limit - 1].uid), looked_at, False
            )
        if len(page) < size or (narrow is not None and narrow.is_over(page[-1])):
            return Searched(rows, None, looked_at, False)
        before = (page[-1].created_at, page[-1].uid)
        size = PAGE
    assert before is not None, "a page was read"
    return Searched(rows, _shown_place(*before), looked_at, True)


async def _search_named(wanted: Filter, tenant: str, before: tuple[float, str] | None) -> Searched | None:
    """Return the run whose id the filter has, however old it is; None: it has none, or several runs had that id."""
    said = wanted.words.get("run", ())
    if len(said) != 1 or len(said[0].values) != 1 or "*" in said[0].values[0]:
        return None
    tree = await ReadRun(tenant, said[0].values[0], states=())
    if tree is None or tree.run.generation > 1 or not said[0].takes(tree.run.id):
        return None
    rows = [tree.run] if wanted.takes_run(tree.run) and _is_before(tree.run, before) else []
    narrow = narrowing(wanted, *CALL_WORDS)
    return Searched(rows if narrow is None else await narrow.rows(rows), None, 1, False)


def _is_before(row: RunRow, before: tuple[float, str] | None) -> bool:
    return before is None or (row.created_at, row.uid) < before


async def _search_unfinished(
    wanted: Filter, tenant: str, before: tuple[float, str] | None, limit: int
) -> Searched | None:
    """Look for runs in states that only unfinished trees have, which an index finds; None: there are too many of them."""
    roots = await ListUnfinished(tenant, limit=UNFINISHED_MAX + 1)
    if len(roots) > UNFINISHED_MAX:
        return None
    outlines, _ = await ReadOutlines(tuple(row.uid for row in roots))
    known = [row for outline in outlines for row in outline.tree.runs]
    kept = [row for row in known if wanted.takes_run(row) and _is_before(row, before)]
    kept.sort(key=lambda row: (row.created_at, row.uid), reverse=True)
    narrow = narrowing(wanted, *CALL_WORDS)
    rows = kept if narrow is None else await narrow.rows(kept)
    next_ = _shown_place(rows[limit - 1].created_at, rows[limit - 1].uid) if len(rows) > limit else None
    return Searched(rows[:limit], next_, len(known), False)


async def _line(row: RunRow, outline: Outline | None) -> RunLine:
    if outline is None:
        return RunLine(info_of(row))
    tree = outline.tree
    info = info_of(row, next((one.id for one in tree.runs if one.uid == row.parent), ""))
    if row.closed_at is None and row.state not in RUN_FINAL and not row.origin:
        info = replace(info, now=await now_of(row, tree))
    below = {row.uid}
    for one in tree.runs:  # parents come first
        if one.parent in below:
            below.add(one.uid)
    calls = [call for call in tree.calls if call.run in below]
    costs: dict[str, Decimal] = {}
    for call in calls:
        for unit, amount in read_charge(call.cost).totals().items() if call.cost and not call.is_loaded else ():
            costs[unit] = costs.get(unit, Decimal(0)) + Decimal(amount)
    doubts = sum(call.state in ("in_doubt", "compensation_in_doubt") for call in calls)
    spent = {unit: amount for unit, amount in sorted(costs.items()) if amount}
    # The calls of a child run are all read, unless there are too many; those of a root are counted.
    count = outline.calls if row.uid == row.root else len(calls)
    return RunLine(info, count, doubts, sum(call.replays for call in calls), spent)


def _shown_place(created_at: float, uid: str) -> str:
    return f"{created_at!r}/{uid}"


def _run_place(after: str) -> tuple[float, str]:
    created, slash, uid = after.partition("/")
    try:
        found = float(created)
    except ValueError:
        found = math.nan
    if not slash or not uid or not math.isfinite(found):
        raise UsageError(f"{after!r} is no place in the listing of runs", hint="give the .place of a run")
    return found, uid


def calls(host: Host, view: View, filter: str = "", *, after: str = "") -> Pages[Call]:
    """List calls of the whole ledger, newest first. ``after``: the id of the last one that was listed."""
    wanted = parse_filter(filter, CALL_FIELDS)
    tenant = view.tenant or ""

    def then(row: CallRow) -> StoreOp[Any]:
        return SearchCalls(tenant, wanted.states, row.id, PAGE)

    def make(row: CallRow) -> Call:
        return call_of(row, host.specs.get(row.tool))

    first = SearchCalls(tenant, wanted.states, after or None, PAGE)
    return Pages(first, then, wanted.takes_call, make, narrow=narrowing(wanted, "tag"))


def locks(_host: Host, view: View, *, after: str = "") -> Pages[Lock]:
    """List the locks that runs hold until they end, by name, with the runs that wait for each.

    ``after``: the name of the last one that was listed.
    """
    tenant = view.tenant or ""

    def then(held: HeldLock) -> StoreOp[Any]:
        return ListLocks(tenant, held.lock.name, PAGE)

    return Pages(ListLocks(tenant, after, PAGE), then, lambda _: True, held_lock_of)


def event_pages(view: View, root: str | None, after: int | str, wanted: Filter | None = None) -> Pages[Event]:
    """List events: of one tree by number, of the ledger by moment, tree and number."""
    tenant = view.tenant or ""

    def then(row: EventRow) -> StoreOp[Any]:
        return ReadEvents(tenant, root, row.place if root is None else row.n, PAGE)

    narrow = EventNarrow(wanted, ascends=root is None) if wanted is not None and wanted.words else None
    return Pages(ReadEvents(tenant, root, after, PAGE), then, lambda _: True, event_of, narrow=narrow)


async def events_of(view: View, run_id: str | None, after: int | str, text: str) -> Pages[Event]:
    """List the events that pass the filter, starting where its time begins, so that older ones are not read."""
    wanted = parse_filter(text, EVENT_FIELDS, EVENT_STATES)
    root = await _root_of(view, run_id)
    if root is not None:
        number = max(_number(after, root), await _before_call(wanted, root))
        return event_pages(view, root, number, wanted)
    place = _place(after)
    if wanted.has("at", "age"):
        begins, _ = wanted.within((await ReadClocks()).wall)
        # Not beyond what a place can hold; a filter on a time in the far future finds nothing either way.
        place = max(place, _place(feed_place(min(max(begins, 0.0), TIME_MAX))), key=read_place)
    return event_pages(view, None, place, wanted)


async def _before_call(wanted: Filter, root: str) -> int:
    """Return the number before the first event of the call that the filter names; 0: it names none, or several."""
    said = wanted.words.get("call", ())
    if len(said) != 1 or len(said[0].values) != 1 or "*" in said[0].values[0]:
        return 0
    row = await ReadCall(said[0].values[0])
    return 0 if row is None or row.root != root else row.seq - 1


async def newest_event(view: View, run_id: str | None) -> Event | None:
    """Return the last event, of one run's tree or of the ledger; None: there is none."""
    row = await ReadNewestEvent(view.tenant or "", await _root_of(view, run_id))
    return None if row is None else event_of(row)


async def _root_of(view: View, run_id: str | None) -> str | None:
    return None if run_id is None else found(await ReadRun(view.tenant or "", id=run_id, states=()), run_id).run.root


def _number(after: int | str, root: str) -> int:
    """Return the number of an event in this tree that a number or a place names."""
    if isinstance(after, int):
        return after
    _, tree, n = read_place(_place(after))
    if tree not in ("", root):
        raise UsageError(
            f"the place {after} is in another run", hint="give a number, or the place of an event of this run"
        )
    return n


def _place(after: int | str) -> str:
    """Return the place that a reader of the whole ledger continues after."""
    if after == 0:
        return ""
    try:
        read_place(str(after))
    except ValueError as error:
        raise UsageError(
            f"{after!r} is no place in the events of the ledger",
            hint="give the .place of an event; a number counts only inside of one run",
        ) from error
    return str(after)


# ---- What happens to a run at this moment


NOT_SETTLED: Final = tuple(sorted({*UNSETTLED, *LIVE, "compensation_in_doubt"}))
"""The states of calls by which a run waits for something."""


async def info(_host: Host, view: View, run_id: str) -> RunInfo:
    """Return one run without its calls, with what happens to it at this moment (``now``)."""
    tree = found(await ReadRun(view.tenant or "", run_id_of(run_id), states=NOT_SETTLED), run_id)
    run, above = tree.run, None
    if run.parent:
        above = await ReadRun(view.tenant or "", uid=run.parent, states=())
    shown = info_of(run, "" if above is None else above.run.id)
    if run.closed_at is not None or run.state in RUN_FINAL or run.origin:
        return shown
    if run.uid != run.root:  # the lease is the root's, and so is what its relatives wait for
        tree = found(await ReadRun("", uid=run.root, states=NOT_SETTLED), run_id)
    return replace(shown, now=await now_of(run, tree))


async def _with_now(row: RunRow, info: RunInfo) -> RunInfo:
    """Return the run with ``now``; unchanged if it has ended, or belongs to another ledger."""
    if row.closed_at is not None or row.state in RUN_FINAL or row.origin:
        return info
    tree = await ReadRun("", uid=row.root)
    return info if tree is None else replace(info, now=await now_of(row, tree))


async def now_of(row: RunRow, tree: Tree) -> Now:
    """Return what happens to an unfinished run at this moment."""
    root = tree.run
    if row.state == "blocked":
        return Now("waiting", waits_for=PERSON)
    waits_for, since = _waits_for(row, tree)
    if not root.owner:
        return Now("waiting", waits_for=waits_for or _continued_by(tree), since=since)
    if await _is_lost(root, tree.now):
        return Now("orphaned", _place_of(root.owner), waits_for, moment(root.lease_until - root.lease_s))
    if waits_for is not None and not any(call.state in LIVE for call in tree.calls):
        return Now("waiting", _place_of(root.owner), waits_for, since)  # its process waits in place
    return Now("running", _place_of(root.owner), waits_for, since)


async def _is_lost(root: RunRow, now: float) -> bool:
    """Return whether its process is gone, or has not renewed its lease in time."""
    if await IsDead(root.owner):
        return True
    clocks = await ReadClocks()
    if root.lease_boot == clocks.boot and root.lease_mono is not None:
        return clocks.mono >= root.lease_mono
    return root.lease_until <= now


def _waits_for(row: RunRow, tree: Tree) -> tuple[str | None, datetime | None]:
    """Return who or what must act before the run goes on, and since when it waits for a request."""
    below = {run.uid for run in tree.runs} if row.uid == tree.run.uid else {row.uid}
    calls = [call for call in tree.calls if call.run in below and not call.is_loaded]
    held = {call.approval for call in calls if call.state in ("held", "ready") and not call.attempt}
    asked = [one for one in tree.approvals if one.id in held and one.state_at(tree.now) == "pending"]
    if asked:
        first = min(asked, key=lambda one: one.expires_at)
        return " or ".join(first.asked_roles) or PERSON, moment(first.requested_at)
    if any(call.state == "held" and not call.is_staged and not call.approval for call in calls):
        return PERSON, None
    doubtful = [call for call in calls if call.state in ("in_doubt", "compensation_in_doubt")]
    if doubtful:
        return ("a probe" if all(call.probe_at is not None for call in doubtful) else PERSON), None
    if any(call.state in ("held", "ready") and call.reason == "lock" for call in calls):
        return "a lock", None
    if any(call.retry_at is not None for call in calls if call.state == "backing_off"):
        return "a retry", None
    return None, None


def _continued_by(tree: Tree) -> str:
    """Return who continues a run that no process has."""
    root = tree.run
    if is_left_to_program(root) and not any(run.state == "rolling_back" for run in tree.runs):
        return "its program"  # a worker that is due only looks whether there is a doubt
    is_workers = root.goal or root.phase != "open" or (root.recover == "resume" and root.agent)
    is_due = root.wake_at is not None and root.wake_at <= tree.now
    return "a worker" if is_workers or is_due else "its program"


def _place_of(owner: str) -> str:
    """Return a process as people know it: its host and its process id."""
    parts = owner.split("|")
    return f"{parts[0]} ({parts[-2]})" if len(parts) > OWNER_PARTS_MIN else owner

"""Listings of a ledger, page after page, so that a large one costs no more than what is looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, Protocol, TypeVar

from amends import people
from amends.bundleops import HasLoaded
from amends.engine.session import call_of
from amends.engine.telling import event_of, held_lock_of, info_of
from amends.filter import CALL_FIELDS, CALL_WORDS, EVENT_FIELDS, EVENT_STATES, RUN_FIELDS, Filter, parse_filter
from amends.flow import Flow
from amends.hub import Hub, View
from amends.ledger import HeldLock, ListLocks, ListRuns, ReadEvents, ReadRun, SearchCalls, StoreOp
from amends.model import Call, Event, Lock, RunInfo
from amends.ops import ReadClocks
from amends.rows import CallRow, EventRow, RunRow

T = TypeVar("T")
PAGE: Final = 200
OF_EVENTS: Final = ("tool", "kind", "agent", "principal")
"""What is asked of the call, or the run, that an event is about."""
KNOWN_RUNS_MAX: Final = 10_000
"""Runs whose tags are remembered while the calls of a ledger are looked through."""


SLACK_S: Final = 60.0
"""Transactions of a server may end in another order than their events are numbered in, never so long apart."""


class Narrows(Protocol):
    """What a filter asks that a row alone does not tell."""

    async def rows(self, rows: list[Any]) -> list[Any]:
        """Those that pass, in their order."""
        ...

    def is_over(self, row: Any) -> bool:
        """Whether what comes after this row cannot pass."""
        ...


class Pages(Generic[T]):
    """What is left of a listing; each ``read`` is one page of it.

    ``take`` looks at a row alone; ``narrow`` may ask the ledger more about the rows that passed, and say by
    ``is_over`` that what comes after the last row of a page cannot pass.
    """

    def __init__(
        self,
        first: StoreOp[Any],
        then: Callable[[Any], StoreOp[Any]],
        take: Callable[[Any], bool],
        make: Callable[[Any], T],
        *,
        narrow: Narrows | None = None,
    ) -> None:
        self._next: StoreOp[Any] | None = first
        self._then, self._take, self._make = then, take, make
        self._narrow = narrow

    def read(self) -> Flow[list[T]] | None:
        """The next page, as a flow; None at the end."""
        return None if self._next is None else self._read(self._next)

    async def _read(self, op: StoreOp[Any]) -> list[T]:
        rows: list[Any] = await op
        kept = [row for row in rows if self._take(row)]
        is_last = len(rows) < PAGE
        if self._narrow is not None:
            kept = await self._narrow.rows(kept)
            is_last = is_last or self._narrow.is_over(rows[-1])
        self._next = None if is_last else self._then(rows[-1])
        return [self._make(row) for row in kept]


class Narrow:
    """What a filter asks that a row alone does not tell: its age, the calls of a run, the tags of a call's run."""

    def __init__(self, wanted: Filter) -> None:
        self._wanted = wanted
        self._now: float | None = None
        self._tagged: dict[str, bool] = {}

    async def rows(self, rows: list[Any]) -> list[Any]:
        """Those that pass, in their order."""
        if self._now is None:
            self._now = (await ReadClocks()).wall
        aged = [row for row in rows if self._wanted.takes_age(row.created_at, self._now)]
        return [row for row in aged if await self._passes(row)]

    def is_over(self, row: Any) -> bool:
        """Whether all that is older than this row is too old."""
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
    """What a filter asks of events: their time, and of which tool, agent and principal their call or run is."""

    def __init__(self, wanted: Filter, *, ascends: bool) -> None:
        self._wanted, self._ascends = wanted, ascends
        self._now: float | None = None
        self._known: dict[str, dict[str, Any]] = {}

    async def rows(self, rows: list[EventRow]) -> list[EventRow]:
        """Those that pass, in their order."""
        if self._now is None:
            self._now = (await ReadClocks()).wall
        found = [row for row in rows if self._wanted.takes_event(row, self._now)]
        if not self._wanted.has(*OF_EVENTS):
            return found
        return [row for row in found if self._wanted.takes(await self._about(row))]

    def is_over(self, row: EventRow) -> bool:
        """Whether all that comes after this event is too new."""
        return self._ascends and self._now is not None and row.at - SLACK_S > self._wanted.within(self._now)[1]

    async def _about(self, row: EventRow) -> dict[str, Any]:
        about = row.call or row.run
        if about not in self._known:
            if len(self._known) >= KNOWN_RUNS_MAX:
                self._known.clear()
            tree = await ReadRun("", uid=row.root)
            for run in () if tree is None else tree.runs:
                self._known[run.uid] = {"tool": "", "kind": "", "agent": run.agent, "principal": run.principal}
            for call in () if tree is None else tree.calls:
                self._known[call.id] = {name: getattr(call, name) for name in OF_EVENTS}
        return self._known.setdefault(about, dict.fromkeys(OF_EVENTS, ""))


def narrowing(wanted: Filter, *fields: str) -> Narrow | None:
    """What must be asked of the ledger for these fields, and for an age; None: nothing."""
    return Narrow(wanted) if wanted.has("age", *fields) else None


def run_pages(view: View, text: str) -> Pages[RunInfo]:
    """Root runs and children, newest first."""
    wanted = parse_filter(text, RUN_FIELDS)
    tenant = view.tenant or ""

    def then(row: RunRow) -> StoreOp[Any]:
        return ListRuns(tenant, wanted.states, (row.created_at, row.uid), PAGE)

    first = ListRuns(tenant, wanted.states, None, PAGE)
    return Pages(first, then, wanted.takes_run, info_of, narrow=narrowing(wanted, *CALL_WORDS))


def call_pages(hub: Hub, view: View, text: str) -> Pages[Call]:
    """Calls, newest first."""
    wanted = parse_filter(text, CALL_FIELDS)
    tenant = view.tenant or ""

    def then(row: CallRow) -> StoreOp[Any]:
        return SearchCalls(tenant, wanted.states, row.seq, PAGE)

    def make(row: CallRow) -> Call:
        return call_of(row, hub.specs.get(row.tool))

    first = SearchCalls(tenant, wanted.states, None, PAGE)
    return Pages(first, then, wanted.takes_call, make, narrow=narrowing(wanted, "tag"))


def lock_pages(view: View) -> Pages[Lock]:
    """Who holds what, by name."""
    tenant = view.tenant or ""

    def then(held: HeldLock) -> StoreOp[Any]:
        return ListLocks(tenant, held.lock.name, PAGE)

    return Pages(ListLocks(tenant, "", PAGE), then, lambda _: True, held_lock_of)


def event_pages(
    view: View, root: str | None, after: int, wanted: Filter | None = None, *, ascends: bool = True
) -> Pages[Event]:
    """Events, in ledger order; ``ascends``: so that times ascend, too."""
    tenant = view.tenant or ""

    def then(row: Any) -> StoreOp[Any]:
        return ReadEvents(tenant, root, row.seq, PAGE)

    narrow = EventNarrow(wanted, ascends=ascends) if wanted is not None and wanted.words else None
    return Pages(ReadEvents(tenant, root, after, PAGE), then, lambda _: True, event_of, narrow=narrow)


async def events_of(view: View, run_id: str | None, after: int, text: str) -> Pages[Event]:
    """The events that pass the filter; begun where its time begins, so that what is older is not looked through."""
    wanted = parse_filter(text, EVENT_FIELDS, EVENT_STATES)
    root = None if run_id is None else people.found(await ReadRun(view.tenant or "", id=run_id), run_id).run.root
    ascends = root is None and not await HasLoaded()
    if ascends and wanted.has("at", "age"):
        first, _ = wanted.within((await ReadClocks()).wall)
        after = max(after, await _before(first - SLACK_S))
    return event_pages(view, root, after, wanted, ascends=ascends)


async def _before(moment: float) -> int:
    """A place in the ledger before which everything is older than this: found by halving."""
    low, high = 0, 1
    while (page := await ReadEvents(None, None, high, 1)) and page[0].at < moment:
        low, high = high, high * 2
    while high - low > PAGE:
        middle = (low + high) // 2
        page = await ReadEvents(None, None, middle, 1)
        low, high = (middle, high) if page and page[0].at < moment else (low, middle)
    return low

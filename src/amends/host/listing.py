"""Filters and listings. A listing is read page by page, so that a large ledger costs no more than what is read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from operator import ge, gt, le, lt
from typing import Any, Final, Generic, Protocol, TypeVar, get_args

from amends.encoding.annotations import Tagged
from amends.encoding.canonical import CLASS
from amends.encoding.dataclass import dataclass
from amends.encoding.payloads import decode
from amends.engine.answers import event_of, held_lock_of, info_of
from amends.engine.session import call_of
from amends.errors import UsageError
from amends.host.host import Host, View
from amends.host.runs import found
from amends.ledger.changes import read_charge
from amends.ledger.flow import Flow
from amends.ledger.operations import HasLoaded, HeldLock, ListLocks, ListRuns, ReadEvents, ReadRun, SearchCalls, StoreOp
from amends.ledger.rows import APPROVAL_STATES, CallRow, EventRow, RequestWithCall, RunRow, lost_at
from amends.ledger.world import ReadClocks
from amends.model import Call, Event, Lock, Per, RunInfo
from amends.states import CALL_STATES, RUN_STATES

# ---- Filters

# The grammar of the CLI, the console and the runtime's listings: ``status:in_doubt tool:pay_*``. Words are and-ed,
# comma-separated values or-ed, ``*`` is a wildcard, ``>`` and ``<`` compare numbers and ages. Text in double quotes is
# taken literally: ``run:"order 7"``.


CALL_WORDS: Final = ("tool", "kind", "call", "key", "violation", "args", "cost")
"""Fields of calls; a run passes if one of its calls passes all of them."""
RUN_FIELDS: Final = ("status", "run", "agent", "principal", "tag", "age", *CALL_WORDS)
CALL_FIELDS: Final = ("status", "run", "agent", "principal", "tag", "age", *CALL_WORDS)
APPROVAL_FIELDS: Final = (
    "status",
    "approval",
    "run",
    "agent",
    "principal",
    "age",
    "tool",
    "call",
    "args",
    "by",
    "role",
)
EVENT_FIELDS: Final = ("status", "run", "call", "tool", "kind", "agent", "principal", "what", "by", "at", "age")
EVENT_STATES: Final = tuple(dict.fromkeys((*RUN_STATES, *CALL_STATES, *APPROVAL_STATES)))
BUDGET_FIELDS: Final = ("unit", "per", "tool", "who", "period")
CHOICES: Final = {"per": get_args(Per)}
"""Fields of budgets that have only these values."""
OTHER_NAMES: Final = {"state": "status", "cost": "cost.usd"}
WITH_PARTS: Final = ("args", "cost")
"""Fields with named parts: an argument, a unit."""
COMPARED: Final = ("age", "at", "args", "cost")
"""Fields that can be compared with ``>`` and ``<``."""
TIMES: Final = {"age": "write age:<1h or age:>30d", "at": "write at:>=2026-03-01 or at:<2026-03-01T12:30Z"}
"""Fields that can only be compared, each with a hint."""
COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {">=": ge, "<=": le, ">": gt, "<": lt}
SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 7 * 86_400}
_WORD: Final = re.compile(r'(?:[^\s"]|"[^"]*")+')
_PIECE: Final = re.compile(r'"([^"]*)"|(\*)|([^"*,]+)|(,)')


@dataclass(frozen=True, slots=True)
class Condition:
    """One word of a filter: the values that the field may have, or the bound it is compared with."""

    patterns: tuple[re.Pattern[str], ...] = ()
    values: tuple[str, ...] = ()
    """The alternatives as they were written."""
    compare: str = ""
    bound: Decimal = Decimal(0)

    def takes(self, value: Any) -> bool:
        """Return whether this value passes; an empty value never does."""
        if isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping):
            return any(self.takes(one) for one in value)
        if self.compare:
            number = _number(value)
            return number is not None and COMPARISONS[self.compare](number, self.bound)
        text = _text(value)
        return text is not None and any(pattern.fullmatch(text) for pattern in self.patterns)


@dataclass(frozen=True, slots=True)
class Filter:
    """Conditions by field; ``states`` is what the store can select by itself."""

    words: Mapping[str, tuple[Condition, ...]]

    @property
    def states(self) -> tuple[str, ...]:
        """The states asked for; empty means all. Two words narrow each other; if no state is left, nothing passes."""
        said = [one.values for one in self.words.get("status", ())]
        both = tuple(state for state in said[0] if all(state in one for one in said)) if said else ()
        return both or (said[0] if said else ())

    def has(self, *fields: str) -> bool:
        """Return whether the filter has one of these fields."""
        return any(field.partition(".")[0] in fields for field in self.words)

    def takes(self, facts: Mapping[str, Any]) -> bool:
        """Return whether every word about one of these facts holds; other words are ignored."""
        return all(
            condition.takes(_fact(facts, field))
            for field, conditions in self.words.items()
            if field.partition(".")[0] in facts
            for condition in conditions
        )

    def takes_run(self, row: RunRow) -> bool:
        """Return whether this run passes, as far as its own row tells."""
        return self.takes(
            {
                "status": row.state,
                "run": row.id,
                "agent": row.agent,
                "principal": row.principal,
                "tag": _tags(row) if self.has("tag") else (),
            }
        )

    def takes_call(self, row: CallRow) -> bool:
        """Return whether this call passes, as far as its own row tells."""
        return self.takes(
            {"status": row.state, "run": row.run_id, "agent": row.agent, "principal": row.principal}
        ) and self.takes_words(row)

    def takes_cost(self, rows: Iterable[CallRow]) -> bool:
        """Return whether the total cost of these calls passes."""
        sums: dict[str, Decimal] = {}
        for row in rows:
            for unit, amount in read_charge(row.cost).totals().items() if row.cost else ():
                sums[unit] = sums.get(unit, Decimal(0)) + Decimal(amount)
        return self.takes({"cost": sums})

    def takes_words(self, row: CallRow, *, cost: bool = True) -> bool:
        """Return whether this call passes the words about calls; ``cost``: including the cost of this call alone."""
        facts: dict[str, Any] = {
            "tool": row.tool,
            "kind": row.kind,
            "call": row.id,
            "key": row.key,
            "violation": row.violation,
        }
        if self.has("args"):
            facts["args"] = _args(row)
        if cost and self.has("cost"):
            facts["cost"] = read_charge(row.cost).totals() if row.cost else {}
        return self.takes(facts)

    def takes_approval(self, found: RequestWithCall) -> bool:
        """Return whether this request for approval passes; one whose time is over is expired, whatever its row says."""
        row = found.approval
        return self.takes(
            {
                "status": row.state_at(found.now),
                "approval": row.id,
                "run": row.run_id,
                "agent": row.agent,
                "principal": row.principal,
                "age": found.now - row.requested_at,
                "tool": row.tool,
                "call": row.call,
                "by": row.by_whom,
                "role": json.loads(row.roles),
                "args": _args(found.call) if self.has("args") else {},
            }
        )

    def takes_event(self, row: EventRow, now: float) -> bool:
        """Return whether this event passes, as far as its own row tells."""
        return self.takes(
            {
                "status": row.to_state,
                "run": row.run_id,
                "call": row.call,
                "what": row.what,
                "by": row.by_whom,
                "at": row.at,
                "age": now - row.at,
            }
        )

    def within(self, now: float) -> tuple[float, float]:
        """Return the first and the last moment that the filter asks for."""
        first, last = float("-inf"), float("inf")
        for field in ("at", "age"):
            for one in self.words.get(field, ()):
                moment = float(one.bound) if field == "at" else now - float(one.bound)
                if (one.compare[0] == ">") == (field == "at"):
                    first = max(first, moment)
                else:
                    last = min(last, moment)
        return first, last

    def takes_tags(self, row: RunRow) -> bool:
        """Return whether the run of a call has the tags."""
        return self.takes({"tag": _tags(row)})

    def takes_age(self, created_at: float, now: float) -> bool:
        """Return whether the age passes."""
        return self.takes({"age": now - created_at})

    def is_past(self, created_at: float, now: float) -> bool:
        """Return whether this and everything older is too old, so that a listing from the newest ends here."""
        return any(one.compare.startswith("<") and not one.takes(now - created_at) for one in self.words.get("age", ()))


def parse_filter(text: str, fields: tuple[str, ...], states: tuple[str, ...] = ()) -> Filter:
    """Parse a filter; raise ``UsageError`` for an unknown field or state, naming the known ones."""
    if text.count('"') % 2:
        raise UsageError(f"the filter {text!r} has an unbalanced double quote", hint='write run:"order 7"')
    words: dict[str, tuple[Condition, ...]] = {}
    known = states or (RUN_STATES if fields is RUN_FIELDS else CALL_STATES)
    for word in _WORD.findall(text):
        name, colon, value = word.partition(":")
        name = OTHER_NAMES.get(name, name)
        field, dot, below = name.partition(".")
        if not colon or not value.strip(",") or field not in fields or (field in WITH_PARTS) != bool(dot and below):
            raise UsageError(
                f"the filter {word!r} is invalid",
                hint=f"write field:value; fields are {', '.join(_shown_field(one) for one in fields)}",
            )
        if field == "unit" or field == "cost":  # units have one spelling
            name, value = (name, value.casefold()) if field == "unit" else (f"cost.{below.casefold()}", value)
        condition = _condition(word, field, value)
        if field == "status":
            unknown = [one for one in condition.values if one not in known]
            if unknown:
                raise UsageError(f"there is no state {unknown[0]!r}", hint=f"states are {', '.join(known)}")
        if field in CHOICES and fields is BUDGET_FIELDS:
            unknown = [one for one in condition.values if "*" not in one and one not in CHOICES[field]]
            if unknown:
                raise UsageError(
                    f"there is no {field} {unknown[0]!r}", hint=f"it is one of {', '.join(CHOICES[field])}"
                )
        words[name] = (*words.get(name, ()), condition)
    return Filter(words)


def seconds_in(age: str) -> float | None:
    """Return the seconds in "90s", "30m", "12h", "7d" or "2w"; None for any other text."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", age.strip())
    return None if found is None else float(found[1]) * SECONDS[found[2]]


def moment_in(text: str) -> float | None:
    """Return the timestamp of "2026-03-01" (its beginning) or "2026-03-01T12:30", by default in UTC; else None."""
    try:
        said = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    return (said if said.tzinfo is not None else said.replace(tzinfo=UTC)).timestamp()


def _shown_field(field: str) -> str:
    return {"args": "args.NAME", "age": "age:<1h", "at": "at:>=2026-03-01", "cost": "cost:>5 or cost.UNIT:>5"}.get(
        field, field
    )


def _condition(word: str, field: str, value: str) -> Condition:
    compare = next((sign for sign in COMPARISONS if value.startswith(sign)), "")
    if field in TIMES and not compare:
        raise UsageError(f"the filter {word!r} compares nothing", hint=TIMES[field])
    if not compare or field not in COMPARED:
        values = _alternatives(value)
        return Condition(
            tuple(re.compile("".join(parts), re.DOTALL) for parts, _ in values), tuple(v for _, v in values)
        )
    said = value.removeprefix(compare)
    bound = {"age": seconds_in, "at": moment_in}.get(field, _number)(said)
    if bound is None:
        like = {"age": "a time like 90s, 30m, 12h, 7d or 2w", "at": "a date or a time like 2026-03-01T12:30Z"}.get(
            field, "a number"
        )
        raise UsageError(f"in the filter {word!r}, {said!r} is not {like}", hint=f"write {_shown_field(field)}")
    return Condition(compare=compare, bound=Decimal(bound))


def _alternatives(value: str) -> list[tuple[list[str], str]]:
    """Return each alternative as the parts of a pattern, and as it was written."""
    found: list[tuple[list[str], str]] = [([], "")]
    for quoted, star, plain, comma in _PIECE.findall(value):
        if comma:
            found.append(([], ""))
            continue
        parts, written = found[-1]
        parts.append(".*" if star else re.escape(quoted or plain))
        found[-1] = (parts, written + (star or quoted or plain))
    return [one for one in found if one[0]]


def _fact(facts: Mapping[str, Any], field: str) -> Any:
    first, *below = field.split(".")
    value = facts[first]
    for name in below:
        if isinstance(value, Tagged):  # the fields of an object that is recorded with its class
            value = value[CLASS][1]
        if isinstance(value, Mapping) and name in value:
            value = value[name]
        elif isinstance(value, list | tuple) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return ""
    value = value[CLASS][1] if isinstance(value, Tagged) else value
    return "null" if value is None and below else value


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None or value == "" else str(value)


def _number(value: Any) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        return None
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def _args(row: CallRow) -> Any:
    return {} if lost_at(row.args) is not None else decode(row.args)


def _tags(row: RunRow) -> tuple[str, ...]:
    return tuple(json.loads(row.tags))


# ---- Listings


T = TypeVar("T")
PAGE: Final = 200
LOOKED_UP: Final = ("tool", "kind", "agent", "principal")
"""Fields that are looked up in the call or the run of an event."""
KNOWN_RUNS_MAX: Final = 10_000
"""How many runs are remembered while a ledger is searched."""
SLACK_S: Final = 60.0
"""How far the order of times may differ from the order of event numbers: transactions of a server may overlap."""


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
    ``make`` turns a row into what the user gets.
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
        return [self._make(row) for row in kept]


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
                self._known[call.id] = {name: getattr(call, name) for name in LOOKED_UP}
        return self._known.setdefault(about, dict.fromkeys(LOOKED_UP, ""))


def narrowing(wanted: Filter, *fields: str) -> Narrow | None:
    """Return what must be read from the ledger for these fields or for an age; None if nothing must."""
    return Narrow(wanted) if wanted.has("age", *fields) else None


def runs(_host: Host, view: View, filter: str = "") -> Pages[RunInfo]:
    """List root runs and children, newest first; the filter has the grammar of the CLI."""
    wanted = parse_filter(filter, RUN_FIELDS)
    tenant = view.tenant or ""

    def then(row: RunRow) -> StoreOp[Any]:
        return ListRuns(tenant, wanted.states, (row.created_at, row.uid), PAGE)

    first = ListRuns(tenant, wanted.states, None, PAGE)
    return Pages(first, then, wanted.takes_run, info_of, narrow=narrowing(wanted, *CALL_WORDS))


def calls(host: Host, view: View, filter: str = "") -> Pages[Call]:
    """List calls of the whole ledger, newest first."""
    wanted = parse_filter(filter, CALL_FIELDS)
    tenant = view.tenant or ""

    def then(row: CallRow) -> StoreOp[Any]:
        return SearchCalls(tenant, wanted.states, row.seq, PAGE)

    def make(row: CallRow) -> Call:
        return call_of(row, host.specs.get(row.tool))

    first = SearchCalls(tenant, wanted.states, None, PAGE)
    return Pages(first, then, wanted.takes_call, make, narrow=narrowing(wanted, "tag"))


def locks(_host: Host, view: View) -> Pages[Lock]:
    """List the locks that runs hold until they end, by name, with the runs that wait for each."""
    tenant = view.tenant or ""

    def then(held: HeldLock) -> StoreOp[Any]:
        return ListLocks(tenant, held.lock.name, PAGE)

    return Pages(ListLocks(tenant, "", PAGE), then, lambda _: True, held_lock_of)


def event_pages(
    view: View, root: str | None, after: int, wanted: Filter | None = None, *, ascends: bool = True
) -> Pages[Event]:
    """List events in the order of the ledger; ``ascends``: whether times ascend in that order too."""
    tenant = view.tenant or ""

    def then(row: Any) -> StoreOp[Any]:
        return ReadEvents(tenant, root, row.seq, PAGE)

    narrow = EventNarrow(wanted, ascends=ascends) if wanted is not None and wanted.words else None
    return Pages(ReadEvents(tenant, root, after, PAGE), then, lambda _: True, event_of, narrow=narrow)


async def events_of(view: View, run_id: str | None, after: int, text: str) -> Pages[Event]:
    """List the events that pass the filter, starting where its time begins, so that older ones are not read."""
    wanted = parse_filter(text, EVENT_FIELDS, EVENT_STATES)
    root = None if run_id is None else found(await ReadRun(view.tenant or "", id=run_id), run_id).run.root
    ascends = root is None and not await HasLoaded()
    if ascends and wanted.has("at", "age"):
        first, _ = wanted.within((await ReadClocks()).wall)
        after = max(after, await _before(first - SLACK_S))
    return event_pages(view, root, after, wanted, ascends=ascends)


async def _before(moment: float) -> int:
    """Return an event number before which everything is older than ``moment``, by binary search."""
    low, high = 0, 1
    while (page := await ReadEvents(None, None, high, 1)) and page[0].at < moment:
        low, high = high, high * 2
    while high - low > PAGE:
        middle = (low + high) // 2
        page = await ReadEvents(None, None, middle, 1)
        low, high = (middle, high) if page and page[0].at < moment else (low, middle)
    return low

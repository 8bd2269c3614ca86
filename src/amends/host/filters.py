"""Parse and apply filters.

The grammar of the CLI, the console and the runtime's listings: ``state:in_doubt tool:pay_*``. Words are and-ed,
comma-separated values or-ed, ``*`` is a wildcard, ``>`` and ``<`` compare numbers and ages. Text in double quotes is
taken literally: ``run:"order 7"``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from operator import ge, gt, le, lt
from typing import Any, Final, get_args
from unicodedata import normalize
from uuid import UUID

from amends.budgets import Per
from amends.encoding.annotations import Tagged
from amends.encoding.canonical import CLASS
from amends.encoding.dataclass import dataclass
from amends.encoding.payloads import decode
from amends.engine.keys import compensation_key, provider_key
from amends.errors import UsageError
from amends.ledger.budgets import read_charge
from amends.ledger.rows import CallRow, EventRow, RequestWithCall, RunRow, lost_at
from amends.states import CALL_STATES, RUN_STATES

CALL_WORDS: Final = ("tool", "kind", "call", "key", "violation", "args", "cost")
"""Fields of calls; a run passes if one of its calls passes all of them."""
RUN_FIELDS: Final = ("state", "run", "agent", "principal", "tag", "age", *CALL_WORDS)
CALL_FIELDS: Final = ("state", "run", "agent", "principal", "tag", "age", *CALL_WORDS)
APPROVAL_FIELDS: Final = (
    "state",
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
EVENT_FIELDS: Final = ("state", "run", "call", "tool", "kind", "agent", "principal", "what", "by", "at", "age")
INBOX_FIELDS: Final = ("what", "run", "agent", "principal", "age", "tool", "call", "role")
BUDGET_FIELDS: Final = ("unit", "per", "tool", "who", "period")
CHOICES: Final = {"per": get_args(Per)}
"""Fields of budgets that have only these values."""
OTHER_NAMES: Final = {"status": "state", "cost": "cost.usd"}
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
        said = [one.values for one in self.words.get("state", ())]
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
                "state": row.state,
                "run": row.id,
                "agent": row.agent,
                "principal": row.principal,
                "tag": _tags(row) if self.has("tag") else (),
            }
        )

    def takes_call(self, row: CallRow) -> bool:
        """Return whether this call passes, as far as its own row tells."""
        return self.takes(
            {"state": row.state, "run": row.run_id, "agent": row.agent, "principal": row.principal}
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
            "key": (row.key, provider_key(row), compensation_key(row)) if self.has("key") else (),
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
                "state": row.state_at(found.now),
                "approval": row.id,
                "run": row.run_id,
                "agent": row.agent,
                "principal": row.principal,
                "age": found.now - row.requested_at,
                "tool": row.tool,
                "call": row.call,
                "by": row.by_whom,
                "role": row.asked_roles,
                "args": _args(found.call) if self.has("args") else {},
            }
        )

    def takes_event(self, row: EventRow, now: float) -> bool:
        """Return whether this event passes, as far as its own row tells."""
        return self.takes(
            {
                "state": row.to_state,
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
        if field == "state":
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


def texts_at(values: Any, path: str) -> Iterator[str]:
    """Yield the value at this path of decoded arguments as a text: ``customer.id``, ``lines.0.sku``; of a list, each member.

    Texts are in their composed form (NFC), so that two spellings of a letter are the same.
    """
    value = _fact({"args": values}, f"args.{path}")
    for one in value if isinstance(value, list | tuple | set | frozenset) else (value,):
        if isinstance(one, date | time):
            yield one.isoformat()
        elif isinstance(one, str | int | float | Decimal | UUID) and (text := _text(one)) is not None:
            yield normalize("NFC", text)


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

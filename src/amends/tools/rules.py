"""Rules: which calls a person must allow, which are refused, and who may say so. Data, in Python or as TOML tables.

A rule fails closed. A condition that cannot be read is refused when the runtime is built; so is an argument that the
named tool does not have, and a value that the argument can never have. What can only be seen at the call and cannot be
compared there is *unclear*: the call is held (by a rule that refuses: refused), it never passes.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import islice
from typing import Any, Final, Literal, TypeAlias, get_args, get_origin
from unicodedata import normalize
from uuid import UUID

from amends.encoding.secret import MASK, Secret
from amends.errors import BadConfig, BadRule, close_to, cut, described, folded, is_slip, shown
from amends.model import AHEAD_MAX_S, Request
from amends.tools.signature import Signature, is_async_function
from amends.tools.spec import Spec

Decides = Literal["allow", "approve", "refuse"]
Verdict: TypeAlias = Literal["matches", "no", "unclear"]
DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
EXPIRES_S: Final = 86_400.0
"""How long a request may be decided and used, where no rule says otherwise: a day."""
APPROVERS_MAX: Final = 100
PARTS_MAX: Final = 10_000
"""So many values are compared for one condition; a longer list is unclear."""
NAMES_MAX: Final = 100
"""A dict with more keys has no names of its own, so none of them is mistyped."""
RAISED_CHARS_MAX: Final = 500
_HOURS: Final = re.compile(r"(\d\d):(\d\d)-(\d\d):(\d\d)")


@dataclasses.dataclass(frozen=True, slots=True)
class Judged:
    """Whether one rule is about one request, and why."""

    verdict: Verdict
    why: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class RuleVerdict:
    """What one rule makes of one call."""

    number: int
    """Its place among the rules, from 1."""
    name: str
    decision: Decides
    verdict: Verdict
    """``matches``, ``no``, or ``unclear``: then it holds the call, or refuses it."""
    why: str
    decides: bool = False

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, slots=True)
class RuleTest:
    """What would become of a call, by the rules, by the tool's own word and by the budgets of a single call."""

    tool: str
    declared: bool
    decision: Literal["run", "approve", "refuse"]
    by: str
    """Who decides: ``rule 2``, ``tool``, ``undeclared``, ``budget``; empty where nothing is asked."""
    why: str
    needed: int
    """How many people must say yes; 0 where it simply runs or is refused."""
    roles: tuple[str, ...]
    first_use: bool
    """It is asked only until this agent has used the tool once with somebody's yes."""
    rules: tuple[RuleVerdict, ...]
    meant: str = ""
    """The declared tool whose name is probably meant, where nobody has declared this one."""

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data."""
        return {**dataclasses.asdict(self), "roles": list(self.roles), "rules": [one.to_dict() for one in self.rules]}


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """What is true of the calls it matches. The first rule that matches decides; one that raises holds the call."""

    tool: str = "*"
    """A pattern over the names of tools."""
    when: Callable[[Request], bool] | None = None
    """Python only: whether it matches this request."""
    decision: Decides = "approve"
    """``allow`` never lifts what a tool says of itself (``needs_approval=``)."""
    approvers: int = 1
    """How many different people must say yes."""
    roles: Sequence[str] = ()
    """Of which roles they must be; none: anybody but who asks."""
    expires: float = EXPIRES_S
    """Seconds in which a request must be decided and used."""
    reasons: Sequence[str] = ()
    """The reasons that a no may have; none: any."""
    why: str = ""
    """In words: shown to who decides, and to a model that is refused."""
    args: Mapping[str, object] = field(default_factory=dict)
    """Conditions on arguments: ``{"cents": ">100000", "payee.iban": "DE*"}``; all must hold."""
    hours: str = ""
    """Only then: ``"18:00-08:00"`` goes over midnight."""
    days: Sequence[str] = ()
    """Only on these: ``("sat", "sun")``."""
    tz: str = "UTC"
    """Whose clock hours and days are read on."""
    agent: str = "*"
    """A pattern over the names of agents."""
    first_use: bool = False
    """Only until this agent has used the tool once with somebody's yes; the rules after it hold for every use."""
    undeclared: bool = False
    """Only tools that nobody declared; ``allow`` lifts their need only where this is said."""
    residue: Literal["", "accept"] = ""
    """``accept``: what an undeclared tool leaves behind is taken by who wrote this."""

    @property
    def name(self) -> str:
        """What it is called in a record: its words, else its pattern."""
        return self.why or f"{self.decision} {self.tool}"

    @property
    def tells_time(self) -> bool:
        """Whether it depends on the clock."""
        return bool(self.hours or self.days)

    def matches(self, request: Request, at: datetime | None, *, undeclared: bool = False) -> bool:
        """Return whether this rule is certainly about this request."""
        return self.judge(request, at, undeclared=undeclared).verdict == "matches"

    def judge(self, request: Request, at: datetime | None, *, undeclared: bool = False) -> Judged:
        """Return whether this rule is about this request; ``unclear`` where that cannot be known. Never raises.

        A part that is certainly not so decides, whatever is unclear beside it.
        """
        unclear: list[str] = []
        for part in (self._names, self._times, self._args, self._asks):
            try:
                found = part(request, at, undeclared)
            except Exception as error:  # whatever it is: it must not let the call pass
                found = Judged("unclear", f"the rule raised {_raised(error)}")
            if found.verdict == "no":
                return found
            if found.verdict == "unclear":
                unclear.append(found.why)
        return Judged("unclear", "; ".join(unclear)) if unclear else Judged("matches")

    def _names(self, request: Request, at: datetime | None, undeclared: bool) -> Judged:
        if self.undeclared and not undeclared:
            return Judged("no", "the tool is declared")
        agent = request.agent or ""
        if not _is_like(agent, self.agent) and not fnmatchcase(folded(agent), folded(self.agent)):
            return Judged("no", f"it is about the agent {self.agent}")
        if _is_like(request.tool, self.tool):
            if _is_like(agent, self.agent):
                return Judged("matches")
            return Judged("unclear", f"{agent} may be another spelling of {self.agent}")
        if undeclared and fnmatchcase(folded(request.tool), folded(self.tool)):
            # Nobody declared the tool, so no spelling of its name was checked before.
            return Judged("unclear", f"{request.tool} may be another spelling of {self.tool}")
        return Judged("no", f"it is about {self.tool}")

    def _times(self, request: Request, at: datetime | None, undeclared: bool) -> Judged:
        if self.tells_time and not self._is_time(at):
            return Judged("no", f"it is about {' '.join([*self.days, self.hours]).strip()} ({self.tz})")
        return Judged("matches")

    def _args(self, request: Request, at: datetime | None, undeclared: bool) -> Judged:
        unclear: list[str] = []
        for path, said in self.args.items():
            verdict = _holds(request.args, _parts(path), said, self._among)
            if verdict is False:
                return Judged("no", f"{path} is not {_said(said)}")
            if verdict is None:
                unclear.append(f"{path} cannot be compared with {_said(said)}")
        return Judged("unclear", "; ".join(unclear)) if unclear else Judged("matches")

    @property
    def _among(self) -> _Among:
        """Of several values at a path: one holds a call, but only all of them let it pass."""
        return _every if self.decision == "allow" else _any

    def _asks(self, request: Request, at: datetime | None, undeclared: bool) -> Judged:
        if self.when is None:
            return Judged("matches")
        # The rules after it judge the same request: what this function takes out of the arguments is there for them.
        found = yes_or_no(self.when(dataclasses.replace(request, args={**request.args})))
        if found is None:
            return Judged("unclear", "its when= returned neither True nor False")
        return Judged("matches" if found else "no", "" if found else "its when= says no")

    def _is_time(self, at: datetime | None) -> bool:
        from zoneinfo import ZoneInfo  # few rules tell the time

        assert at is not None, "a rule that tells the time is told it"
        here = at.astimezone(ZoneInfo(self.tz))
        if self.days and DAYS[here.weekday()] not in self.days:
            return False
        if not self.hours:
            return True
        first, last = _hours(self.hours)
        now = here.time()
        return first <= now < last if first < last else now >= first or now < last


def yes_or_no(answer: object) -> bool | None:
    """Return what a function of a call answered; None where it is no bool.

    A coroutine is true and says nothing; None is what a function without a return gives.
    """
    if inspect.iscoroutine(answer):
        answer.close()  # nobody awaits it: without this Python warns at a place that tells nothing
    if type(answer).__name__ in ("bool", "bool_"):  # numpy's too
        return bool(answer)
    return None


def _raised(error: Exception) -> str:
    return cut(described(error), RAISED_CHARS_MAX)


def _is_like(name: str, pattern: str) -> bool:
    return fnmatchcase(_nfc(name), _nfc(pattern))


def _nfc(text: str) -> str:
    return text if text.isascii() else normalize("NFC", text)


def _parts(path: str) -> tuple[str, ...]:
    return tuple(_nfc(path).split("."))


def _said(said: object) -> str:
    return shown(said) if isinstance(said, str) else shown(said if isinstance(said, list | tuple) else str(said))


def _hours(text: str) -> tuple[time, time]:
    found = _HOURS.fullmatch(text.replace(" ", ""))
    if found is None:
        raise ValueError(f'hours are written "18:00-08:00", not {text!r}')
    a, b, c, d = map(int, found.groups())
    if (a, b) == (c, d) or (c == 24 and d):
        raise ValueError(f"no time is within {text!r}")
    return time(a, b), time(0 if c == 24 else c, d)


# ---- conditions: read ---------------------------------------------------------------------

_SIGN: Final = re.compile(r"(>=|<=|>|<|!=|!)\s*")
_NO_SIGN: Final = re.compile(
    r"""(?ix)^(
        [=≠≤≥≦≧≮≯~≈]                                            # "=>5", "==5": no sign, or not one of ours
      | (gt|gte|ge|lt|lte|le|eq|ne|neq|not|over|under|above|below|exceeds|min|max|from|between
         |(more|greater|less|larger|smaller|higher|lower|bigger)(\s+than)?|at\s+(least|most))[\s:=(]*[-+$€£]?\d
      | [-+]?[\d.,_]+\s*(<|>|=|≤|≥|\.\.|and\b|or\b|to\b|or\s+more)  # "10000<", "1..5"
    )"""
)
_WILD: Final = re.compile(r"[*?\[]")
_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\d|\d\d:\d\d")


@dataclasses.dataclass(frozen=True, slots=True)
class _Condition:
    """A text as it is meant: ``sign`` is empty (equal, or a pattern), ``!`` or one of the four comparisons."""

    sign: str
    text: str

    @property
    def compares(self) -> bool:
        return self.sign not in ("", "!")

    @property
    def is_pattern(self) -> bool:
        return bool(_WILD.search(self.text))


@lru_cache(maxsize=1024)
def _read(said: str) -> _Condition:
    """Take a condition apart; raises ValueError for one that cannot be read."""
    if not said.isprintable():
        raise ValueError(f"{said!a} has characters that cannot be seen; write ? for one of them")
    text = said.strip()
    found = _SIGN.match(text)
    if found is None:
        looks = normalize("NFKC", text)
        if _NO_SIGN.match(looks) or (looks != text and _SIGN.match(looks)):
            raise ValueError(
                f'{said!r} is no condition: write ">5", ">=5", "<5", "<=5", "5" or "!5"; '
                f"a text that begins so is written with its first character in brackets: {_bracketed(text)!r}"
            )
        return _Condition("", _nfc(said))
    sign = "!" if found[1] == "!=" else found[1]
    rest = _nfc(text[found.end() :])
    if rest[:1] in ("<", ">", "=", "!"):
        raise ValueError(f"{said!r} has more than one sign")
    if sign != "!" and _number(rest) is None and _moment(rest) is None:
        raise ValueError(f"{said!r} compares with {rest!r}, which is neither a number nor a date")
    return _Condition(sign, rest)


def _bracketed(text: str) -> str:
    return f"[{text[0]}]{text[1:]}"


def _number(value: object) -> Decimal | None:
    """Return an exact, finite number, or None. A float is the number that it is written as."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str):
        return None
    try:
        number = Decimal(repr(float(value)) if isinstance(value, float) else value)
    except (ArithmeticError, ValueError):
        return None
    return number if number.is_finite() else None


def _moment(text: str) -> datetime | date | time | None:
    if not _MOMENT.match(text.strip()):
        return None  # Python reads "10,000" as a time of day
    for read in (date.fromisoformat, datetime.fromisoformat, time.fromisoformat):
        try:
            found: datetime | date | time = read(text.strip())
        except ValueError:
            continue
        return found
    return None


@lru_cache(maxsize=256)
def _duration(text: str) -> timedelta | None:
    """Return a duration as pydantic reads it ("PT1H", "01:00:00"); None for a number of seconds, and for no duration."""
    if _number(text) is not None:
        return None
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(timedelta).validate_python(text.strip())
    except ValidationError:
        return None


# ---- conditions: compared -----------------------------------------------------------------
# Every answer is True, False, or None where it cannot be known.

_BOOLS: Final = {
    **dict.fromkeys(("true", "yes", "on", "1", "y", "t"), True),
    **dict.fromkeys(("false", "no", "off", "0", "n", "f"), False),
}
_NONES: Final = ("none", "null")
_MISSING: Final = object()
_UNCLEAR: Final = object()
_TEXTUAL: Final = (
    "ipaddress",
    "pathlib",
    "pathlib._local",
    "pydantic.networks",
    "pydantic_core._pydantic_core",
    "yarl",
)
"""Modules whose classes are texts with a meaning: compared by how they are written."""


def _any(answers: Iterable[bool | None]) -> bool | None:
    unclear = False
    for number, answer in enumerate(answers):
        if answer or number == PARTS_MAX:
            return answer or None
        unclear = unclear or answer is None
    return None if unclear else False


def _every(answers: Iterable[bool | None]) -> bool | None:
    """Return whether there are answers, and each is yes."""
    found = [*islice(answers, PARTS_MAX + 1)]
    if not found or False in found:
        return False
    return None if None in found or len(found) > PARTS_MAX else True


_Among: TypeAlias = Callable[[Iterable[bool | None]], bool | None]


def _holds(value: Any, parts: tuple[str, ...], said: object, among: _Among) -> bool | None:
    """Return whether what stands at a path is as a condition says."""
    if isinstance(said, Mapping):
        return _every(_holds(value, (*parts, *_parts(path)), one, among) for path, one in said.items())
    return among(_is_as(one, said, among) for one in _at(value, parts))


def _at(value: Any, parts: tuple[str, ...]) -> Iterator[Any]:
    """Yield every value at a path: of a list, those of its elements; ``_MISSING`` where there is none."""
    if not parts:
        yield value
        return
    if parts[0] == "*" and (_is_list(value) or isinstance(value, Mapping)):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _at(one, parts[1:])
        return
    if isinstance(value, Secret) or value == MASK:
        yield _UNCLEAR
    elif isinstance(value, Mapping):
        yield from _in_mapping(value, parts)
    elif _is_list(value) and not (hasattr(value, "_fields") and parts[0] in value._fields):
        yield from _in_list(value, parts)
    elif value is None:
        yield _MISSING
    elif not isinstance(value, str | bytes | int | float | Decimal) and hasattr(value, parts[0]):
        yield from _at(getattr(value, parts[0]), parts[1:])
    elif isinstance(value, Enum):
        yield from _at(value.value, parts)
    elif (fields := _fields_of(type(value))) is not None:
        # Another member of the union has it.
        yield _UNCLEAR if folded(parts[0]) in map(folded, fields) else _MISSING
    else:
        # A text may be JSON with the very thing in it, an object may have it under another name.
        yield _UNCLEAR


def _in_mapping(value: Mapping[Any, Any], parts: tuple[str, ...]) -> Iterator[Any]:
    found = False
    for count in range(1, len(parts) + 1):
        name = ".".join(parts[:count])  # a key may have a dot in it
        alike = folded(name)
        for key, one in value.items():
            names = _names_of(key)
            if name in names:
                found = True
                yield from _at(one, parts[count:])
            elif alike in map(folded, names):
                # Whoever reads it may take either spelling, also where both are there.
                found = True
                yield _UNCLEAR
    if not found:
        # Where nobody declared what the names are, one was checked by nobody.
        known = value if len(value) <= NAMES_MAX else ()
        slip = any(is_slip(parts[0], name) for key in known for name in _names_of(key))
        yield _UNCLEAR if slip else _MISSING


def _names_of(key: object) -> tuple[str, ...]:
    """Return what a key may be called: an enum by its value or its name."""
    if isinstance(key, Enum):
        return _nfc(str(key.value)), _nfc(str(key.name))
    return (_nfc(str(key)),)


def _in_list(value: Iterable[Any], parts: tuple[str, ...]) -> Iterator[Any]:
    every = [*value]
    if re.fullmatch(r"-?\d+", parts[0]):
        place = int(parts[0])
        if -len(every) <= place < len(every):
            yield from _at(every[place], parts[1:])
        else:
            yield _MISSING
        return
    for one in every:
        yield from _at(one, parts)


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence | AbstractSet) and not isinstance(value, str | bytes | bytearray)


def _is_as(value: Any, said: object, among: _Among) -> bool | None:
    """Return whether one value is as a condition says. An argument that is not there is not."""
    if value is _UNCLEAR or isinstance(value, Secret):
        return None
    condition = _read(said) if isinstance(said, str) else None
    if value is _MISSING:
        # "not DE" cannot be said of what is not there, nor its opposite.
        return None if condition is not None and condition.sign == "!" else False
    if _is_list(value):
        return among(_is_as(one, said, among) for one in value)
    if _is_many(said):
        return _any(_is_as(value, one, among) for one in said)
    if isinstance(value, str) and value == MASK:
        return None
    if condition is None:
        return _equal(value, said)
    if condition.compares:
        return _ordered(value, condition)
    equal = _equal(value, condition.text)
    return equal if not condition.sign or equal is None else not equal


def _is_many(said: object) -> typing.TypeGuard[Iterable[object]]:
    return isinstance(said, list | tuple | set | frozenset)


def _equal(value: Any, said: Any) -> bool | None:
    """Return whether a value means what was said: a text is read as the value's type."""
    if isinstance(said, Enum) and not isinstance(value, type(said)):
        said = said.value
    if hasattr(value, "get_secret_value"):
        value = value.get_secret_value()
    if isinstance(value, Enum):
        name: Any = value.name  # a sum of flags has none
        return said is value or _any((_equal(value.value, said), False if name is None else _equal(name, said)))
    if value is None or said is None:
        return value is said or (isinstance(said, str) and (said == "*" or said.strip().casefold() in _NONES))
    if isinstance(value, bool):
        return _equal_bool(value, said)
    if isinstance(value, int | float | Decimal):
        return _equal_number(value, said)
    if isinstance(value, str):
        return _equal_text(value, said)
    if isinstance(value, date | time):
        return _equal_moment(value, said)
    if isinstance(value, timedelta):
        duration = _duration(said) if isinstance(said, str) else None
        return _equal_number(Decimal(str(value.total_seconds())), said) if duration is None else value == duration
    if isinstance(value, UUID):
        return _equal_uuid(value, said)
    return _equal_other(value, said)


def _like(text: str, said: str) -> bool:
    """Return whether a text is, or matches, another; both in one Unicode form."""
    text, said = _nfc(text), _nfc(said)
    return text == said or fnmatchcase(text, said)


def _equal_bool(value: bool, said: Any) -> bool | None:
    if isinstance(said, bool):
        return value is said
    if not isinstance(said, str):
        return None
    word = _BOOLS.get(said.strip().casefold())
    return fnmatchcase(str(value).lower(), said.lower()) if word is None else word is value


def _equal_number(value: int | float | Decimal, said: Any) -> bool | None:
    mine = _number(value)
    if mine is None or isinstance(said, bool) or not isinstance(said, int | float | Decimal | str):
        return None
    theirs = _number(said)
    if theirs is not None:
        return mine == theirs
    return any(fnmatchcase(text, str(said)) for text in (str(value), f"{mine.normalize():f}"))


def _equal_text(value: str, said: Any) -> bool | None:
    if isinstance(said, str):
        return _like(value, said)
    if isinstance(said, bool):
        return _BOOLS.get(value.strip().casefold()) is said
    if isinstance(said, int | float | Decimal):
        mine = _number(value)
        return mine is not None and mine == _number(said)
    if isinstance(said, UUID):
        return value.strip().casefold() in (str(said), said.hex, f"{{{said}}}", said.urn)
    if isinstance(said, date | time):
        mine_at = _moment(value)
        return False if mine_at is None else _equal_moment(mine_at, said)
    return None


def _equal_moment(value: date | time, said: Any) -> bool | None:
    theirs = _moment(said) if isinstance(said, str) else said
    if theirs is None:  # a pattern: "2026-*"
        return fnmatchcase(value.isoformat(), said) or fnmatchcase(str(value), said)
    pair = _comparable(value, theirs)
    return None if pair is None else bool(pair[0] == pair[1])


def _comparable(value: date | time, other: Any) -> tuple[Any, Any] | None:
    """Return both so that they can be compared: a date is the whole day of a moment; None where they cannot be."""
    if isinstance(value, datetime) and isinstance(other, date) and not isinstance(other, datetime):
        return value.date(), other
    if isinstance(other, datetime) and isinstance(value, date) and not isinstance(value, datetime):
        return (value, other.date()) if other.time() == time() else None
    if (isinstance(value, datetime) and isinstance(other, datetime)) or (
        isinstance(value, time) and isinstance(other, time)
    ):
        return (value, other) if (value.utcoffset() is None) == (other.utcoffset() is None) else None
    if type(value) is date and type(other) is date:
        return value, other
    return None


def _equal_uuid(value: UUID, said: Any) -> bool | None:
    if not isinstance(said, UUID | str):
        return None
    try:
        return value == (said if isinstance(said, UUID) else UUID(said.strip()))
    except ValueError:
        return fnmatchcase(str(value), str(said).casefold())


def _equal_other(value: Any, said: Any) -> bool | None:
    if isinstance(value, bytes | bytearray):
        try:
            return _equal(bytes(value).decode(), said)
        except UnicodeDecodeError:
            return None
    if isinstance(said, str) and type(value).__module__ in _TEXTUAL:
        text = str(value)
        return _like(text, said) or _like(text.rstrip("/"), said)
    if type(value) is type(said):
        return bool(value == said)
    return True if said == "*" else None


def _ordered(value: Any, condition: _Condition) -> bool | None:
    """Return whether a value is larger or smaller; None where it has no such order."""
    if isinstance(value, Enum):
        value = value.value
    if hasattr(value, "get_secret_value"):
        value = value.get_secret_value()
    if isinstance(value, timedelta):
        value = Decimal(str(value.total_seconds()))
    pair: tuple[Any, Any] | None = None
    if isinstance(value, date | time):
        other = _moment(condition.text)
        pair = None if other is None else _comparable(value, other)
    else:
        mine, theirs = _infinite(value), _number(condition.text)
        if mine is not None and theirs is not None:
            pair = mine, theirs
        elif isinstance(value, str) and (mine_at := _moment(value)) and (other := _moment(condition.text)):
            pair = _comparable(mine_at, other)
    if pair is None:
        return None
    a, b = pair
    match condition.sign:
        case ">":
            return bool(a > b)
        case ">=":
            return bool(a >= b)
        case "<":
            return bool(a < b)
        case _:
            return bool(a <= b)


def _infinite(value: object) -> Decimal | float | None:
    """Return a number that may be infinite: that is larger than every limit; None for what has no order."""
    return value if value in (float("inf"), float("-inf")) and isinstance(value, float | Decimal) else _number(value)


# ---- checking: each rule for itself -------------------------------------------------------


def checked_rules(rules: Iterable[object], origin: str = "argument") -> tuple[Rule, ...]:
    """Return rules from Python or from TOML tables; raises ``BadRule`` for one that cannot be kept."""
    if isinstance(rules, Mapping | str | Rule) or not isinstance(rules, Iterable):
        what = type(rules).__name__
        raise BadConfig(f"rules ({origin}) is a list of Rule, not {what}", setting="rules", origin=origin)
    return tuple(_checked(rule, number, origin) for number, rule in enumerate(rules, 1))


def _checked(rule: object, number: int, origin: str) -> Rule:
    if isinstance(rule, Mapping):
        known = {one.name for one in dataclasses.fields(Rule)} - {"when"}
        strange = sorted(set(rule) - known)
        if strange:
            raise _bad(number, origin, f"has {', '.join(strange)}, which means nothing{_guess(strange[0], known)}")
        rule = Rule(**rule)
    if not isinstance(rule, Rule):
        raise _bad(number, origin, f"is {rule!r}, which is no Rule")
    problem = _problem(rule)
    if problem:
        raise _bad(number, origin, problem, tool=rule.tool)
    return rule


def _bad(number: int, origin: str, what: str, *, tool: Any = "", argument: str = "", meant: str = "") -> BadRule:
    return BadRule(
        f"rule {number} ({origin}) {what}", rule=number, tool=str(tool), argument=argument, meant=meant, origin=origin
    )


def _problem(rule: Rule) -> str:
    if rule.decision not in get_args(Decides):
        return f"decides {rule.decision!r}; it is one of {', '.join(get_args(Decides))}"
    if problem := _mistyped(rule):
        return problem
    approvers: Any = rule.approvers  # a table may say anything
    if type(approvers) is not int or not 1 <= approvers <= APPROVERS_MAX:
        return f"needs {rule.approvers!r} approvers; it is a number from 1 to {APPROVERS_MAX}"
    expires: Any = rule.expires
    if not isinstance(expires, int | float) or isinstance(expires, bool) or not 0 < expires <= AHEAD_MAX_S:
        return f"expires after {rule.expires!r}; it is a number of seconds, at most {AHEAD_MAX_S:.0f}"
    for name in ("roles", "reasons", "days"):
        value = getattr(rule, name)
        if isinstance(value, str) or not isinstance(value, Iterable):
            return f"has {name}={value!r}; it is a list of names"
        if not all(isinstance(one, str) and one for one in value):
            return f"has {name}={value!r}; it is a list of names"
    if strange := [day for day in rule.days if day not in DAYS]:
        return f"has the day {strange[0]!r}; days are {', '.join(DAYS)}"
    if rule.first_use and rule.decision != "approve":
        return f"decides {rule.decision!r} of the first use only, so there would never be another; it is approve"
    if rule.residue not in ("", "accept"):
        return f"has residue={rule.residue!r}; it is accept, or left out"
    return _unaskable(rule.when) or _unreadable(rule)


def _mistyped(rule: Rule) -> str:
    for name in ("tool", "agent", "tz"):
        text: Any = getattr(rule, name)
        if not isinstance(text, str) or not text or text != text.strip() or not text.isprintable():
            return f"has {name}={text!r}; it is a text without blanks around it"
    for name in ("why", "hours"):
        if not isinstance(getattr(rule, name), str):
            return f"has {name}={getattr(rule, name)!r}; it is a text"
    for name in ("first_use", "undeclared"):
        if not isinstance(getattr(rule, name), bool):
            return f"has {name}={getattr(rule, name)!r}; it is true or false"
    return ""


def _unaskable(when: Any) -> str:
    if when is None:
        return ""
    if not callable(when):
        return "has a when= that is no function"
    if is_async_function(when):
        return "has a when= that is async; make it a plain def, nothing is awaited there"
    try:
        inspect.signature(when).bind(object())
    except TypeError:
        return "has a when= that does not take one argument, the request"
    except ValueError:  # a builtin without a signature
        return ""
    return ""


def _unreadable(rule: Rule) -> str:
    """Return what would only be found out when the first call comes."""
    from zoneinfo import ZoneInfo

    args: Any = rule.args
    if not isinstance(args, Mapping):
        return f"has args={args!r}; it is a table of arguments and conditions"
    try:
        if rule.hours:
            _hours(rule.hours)
        if rule.tells_time or rule.tz != "UTC":
            ZoneInfo(rule.tz)
        for path, said in args.items():
            _check_condition(path, said)
    except (ValueError, ArithmeticError, LookupError, OSError) as error:
        return f"cannot be read: {error}" if type(error) is ValueError else f"cannot be read: {error!r}"
    return ""


def _check_condition(path: Any, said: object) -> None:
    if not isinstance(path, str) or not all(path.split(".")) or path != path.strip() or not path.isprintable():
        raise ValueError(f"{path!r} names no argument")
    if re.search(r"[\[\]]|^\$\.", path):
        raise ValueError(f"{path!r} is no path: write items.0.cents for one of a list, items.cents for any")
    _check_said(path, said)


def _check_said(path: str, said: object) -> None:
    if isinstance(said, Mapping):
        if not said:
            raise ValueError(f"{path} has an empty table of conditions")
        for below, one in said.items():
            _check_condition(below, one)
    elif _is_many(said):
        if not said:
            raise ValueError(f"{path} is one of nothing")
        for one in said:
            if isinstance(one, Mapping):
                raise ValueError(f"{path} has a table in a list; write one rule for each")  # noqa: TRY004 (of a setting)
            _check_said(path, one)
    elif isinstance(said, str):
        _read(said)
    elif isinstance(said, float | Decimal) and _number(said) is None:
        raise ValueError(f"{path} is {said}, which no number equals")
    elif callable(said) and not isinstance(said, Enum):
        raise ValueError(f"{path} is a function; a function of the request is said with when=")
    elif said is not None and not isinstance(said, bool | int | float | Decimal | date | time | UUID | Enum | bytes):
        raise ValueError(f"{path} is a {type(said).__name__}, which cannot be compared")


def checked_approvers(given: object, origin: str = "argument") -> dict[str, tuple[str, ...]]:
    """Which people have which role; raises ``BadConfig`` for a table that is none."""
    if not isinstance(given, Mapping):
        raise BadConfig(f"approvers ({origin}) is no table of roles", setting="approvers", origin=origin)
    found: dict[str, tuple[str, ...]] = {}
    for role, people in given.items():
        if isinstance(people, str) or not isinstance(people, Iterable):
            raise BadConfig(f"approvers.{role} ({origin}) is no list of people", setting="approvers", origin=origin)
        found[str(role)] = tuple(str(one).strip().casefold() for one in people)
    return found


# ---- checking: rules with the tools that they are about -----------------------------------


def check_rules_for(
    rules: Sequence[Rule], specs: Mapping[str, Spec], *, origin: str, approvers: Mapping[str, Sequence[str]]
) -> list[str]:
    """Raise ``BadRule`` for a rule that can never match a declared tool as it is meant; return what is only odd."""
    warnings: list[str] = []
    for number, rule in enumerate(rules, 1):
        warnings += _check_tool(rule, number, specs, origin)
        if missing := sorted({role for role in rule.roles if approvers and not approvers.get(role)}):
            warnings.append(
                f"rule {number} ({origin}) asks for the role {missing[0]!r}, which nobody has"
                f"{_guess(missing[0], approvers)}: say who has it in approvers"
            )
        people = {one for role in rule.roles for one in approvers.get(role, ())}
        if people and len(people) < rule.approvers:
            warnings.append(
                f"rule {number} ({origin}) asks for {rule.approvers} people of {' or '.join(rule.roles)}, "
                f"and there {'is' if len(people) == 1 else 'are'} {len(people)}"
            )
    return warnings


def check_agents(rules: Sequence[Rule], known: Iterable[str], *, origin: str) -> None:
    """Raise ``BadRule`` for a rule about an agent whose name is a known one, mistyped."""
    names = [*known]
    for number, rule in enumerate(rules, 1):
        if any(_is_like(name, rule.agent) for name in names):
            continue
        if alike := [name for name in names if _may_be(rule.agent, name)]:
            text = f"is about the agent {rule.agent!r}, which is none; did you mean {alike[0]!r}?"
            raise _bad(number, origin, text, tool=rule.tool, meant=alike[0])


def _check_tool(rule: Rule, number: int, specs: Mapping[str, Spec], origin: str) -> list[str]:
    if not specs:
        return []  # a program without tools reads the ledger only
    meant = [spec for name, spec in specs.items() if _is_like(name, rule.tool)]
    if meant:
        if rule.undeclared and not _WILD.search(rule.tool):
            return [f"rule {number} ({origin}) is about {rule.tool} while nobody has declared it, and it is declared"]
        if not rule.undeclared:
            _check_args(rule, number, meant, origin)
        return []
    names = [one for one in re.split(r"[,|;&+()\[\]{}^$'\"\s]+|^re:", rule.tool) if one]
    several = [one for one in names if one in specs]
    if several:
        advice = "write one rule for each" if len(names) > 1 else f"did you mean {several[0]!r}?"
        raise _bad(
            number, origin, f"is about {rule.tool!r}, which is no pattern of one tool; {advice}",
            tool=rule.tool, meant=several[0],
        )  # fmt: skip
    if rule.undeclared:
        alike = next((name for name in specs if fnmatchcase(folded(name), folded(rule.tool))), None)
    else:
        alike = next((name for name in specs if _may_be(rule.tool, name)), None)
    if alike is not None:
        raise _bad(
            number, origin, f"is about {rule.tool!r}, which is no tool; did you mean {alike!r}?",
            tool=rule.tool, meant=alike,
        )  # fmt: skip
    if rule.undeclared:
        return []
    return [f"rule {number} ({origin}) is about {rule.tool!r}, which is no tool here{_guess(rule.tool, specs)}"]


def _may_be(pattern: str, name: str) -> bool:
    """Return whether a pattern that does not match a tool's name was probably meant to."""
    if fnmatchcase(folded(name), folded(pattern)):
        return True
    head = _WILD.split(pattern, maxsplit=1)[0]
    if head == pattern:
        return is_slip(pattern, name)
    return len(head) >= 4 and is_slip(head, name[: len(head)])  # "sned_*"


def _check_args(rule: Rule, number: int, meant: Sequence[Spec], origin: str) -> None:
    for path, said in _flat(rule.args):
        problems = [_argument_problem(spec, path, said) for spec in meant]
        slips = [one for one in problems if one is not None and not one.known and is_slip(path[0], one.meant)]
        closed = [
            one for spec, one in zip(meant, problems, strict=True) if one is not None or not _is_open(spec, path[0])
        ]
        # Of several tools that a pattern names, those that have the argument are meant. A tool that takes any name does
        # not excuse a name that another one of them has almost.
        if all(problem is not None for problem in problems) or (slips and all(one is not None for one in closed)):
            first = next((one for one in problems if one is not None and one.known), problems[0])
            first = first or slips[0]
            raise _bad(number, origin, first.text, tool=rule.tool, argument=".".join(path), meant=first.meant)


def _is_open(spec: Spec, name: str) -> bool:
    """Whether the tool takes this argument only because it takes any."""
    return spec.signature is None or (spec.signature.rest is not None and name not in map(_nfc, spec.signature.names))


def _flat(args: Mapping[str, object], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    for path, said in args.items():
        parts = (*above, *_parts(path))
        if isinstance(said, Mapping):
            yield from _flat(said, parts)
        else:
            yield parts, said


@dataclasses.dataclass(frozen=True, slots=True)
class _Problem:
    text: str
    meant: str = ""
    known: bool = True
    """Whether the tool has the argument, and only the value is wrong."""


class _Strange(Exception):
    """A path, or a value, that a type does not have."""

    def __init__(self, text: str, meant: str = "") -> None:
        super().__init__(text)
        self.meant = meant


def _argument_problem(spec: Spec, path: tuple[str, ...], said: object) -> _Problem | None:
    signature = spec.signature
    if signature is None:
        return None  # it lives elsewhere: what it takes is not known
    place = f"{spec.name}.{'.'.join(path)}"
    try:
        hint = _hint_of(signature, path[0])
    except _Strange as strange:
        return _Problem(f"names {place}, and {spec.name} {strange}", strange.meant, known=False)
    try:
        leaves = _below(hint, path[1:])
    except _Strange as strange:
        return _Problem(f"names {place}, and {strange}", strange.meant)
    for one in said if _is_many(said) else (said,):
        try:
            _check_leaves(leaves, one)
        except _Strange as strange:
            return _Problem(f"says {place} is {_said(one)!r}, and {strange}", strange.meant)
    return None


def _hint_of(signature: Signature, name: str) -> Any:
    by_name = {_nfc(one): one for one in signature.names}
    if name in by_name:
        return signature.hints.get(by_name[name], Any)
    rest = signature.rest
    known = [*signature.names]
    if rest is not None:
        hint = signature.hints.get(rest.name, Any)
        if get_origin(hint) is typing.Unpack:
            names = _fields_of(get_args(hint)[0]) or {}
            if name in names:
                return names[name]
            known += names
        elif name != rest.name and not any(is_slip(name, one) for one in known):
            return hint
    raise _Strange(f'has no argument "{name}"{_guess(name, known)}', meant="".join(close_to(name, known)))


def _below(hint: Any, parts: tuple[str, ...]) -> list[Any]:
    """Return what may stand at a path below a type; raises ``_Strange``. ``Any``: it is not known."""
    whole, hint = hint, _plain_hint(hint)
    if hint is Any:
        return [Any]
    if _is_union(hint):
        return _below_any([one for one in get_args(hint) if one is not type(None)] or [Any], parts, get_args(hint))
    if not parts:
        return [whole]  # with its bounds
    origin = get_origin(hint) or hint
    if parts[0] == "*" and _is_list_type(origin) and _fields_of(hint) is None:
        return _below_any([one for one in get_args(hint) if one is not ...] or [Any], parts[1:], ())
    if isinstance(origin, type) and issubclass(origin, Mapping) and not typing.is_typeddict(origin):
        given = get_args(hint)
        key, value = given if len(given) == 2 else (Any, Any)  # Counter[str] has one
        return _below_keys(key, value, parts)
    fields = _fields_of(hint)
    if fields is not None and parts[0] in fields:
        return _below(fields[parts[0]], parts[1:])
    if _is_list_type(origin) and fields is None:
        return _below_places(hint, parts)
    if fields is not None:
        raise _Strange(
            f'{_type_name(hint)} has no "{parts[0]}"{_guess(parts[0], fields)}', "".join(close_to(parts[0], fields))
        )
    if isinstance(origin, type) and (origin in _SCALARS or issubclass(origin, Enum)):
        if not callable(getattr(origin, parts[0], len)) and origin not in (str, bytes, int, float, bool, Decimal):
            return [Any]
        raise _Strange(f"{_type_name(hint)} has nothing called {parts[0]!r} in it")
    if get_origin(hint) is Literal:
        raise _Strange(f"{_type_name(hint)} has nothing called {parts[0]!r} in it")
    return [Any]


def _below_places(hint: Any, parts: tuple[str, ...]) -> list[Any]:
    """Return what may stand at a path below a list, or below a tuple, whose places may have types of their own."""
    inner = [one for one in get_args(hint) if one is not ...] or [Any]
    if not re.fullmatch(r"-?\d+", parts[0]):
        return _below_any(inner, parts, ())
    if get_origin(hint) is tuple and ... not in get_args(hint):
        place = int(parts[0])
        if not -len(inner) <= place < len(inner):
            raise _Strange(f"{_type_name(hint)} has no place {place}: its places are 0 to {len(inner) - 1}")
        inner = [inner[place]]
    return _below_any(inner, parts[1:], ())


def _below_keys(key: Any, hint: Any, parts: tuple[str, ...]) -> list[Any]:
    """Return what may stand at a path below a dict; raises ``_Strange`` for a key that its keys' type never has."""
    plain = _plain_hint(key)
    if parts[0] == "*":
        return _below(hint, parts[1:])
    if plain is int and not re.fullmatch(r"-?\d+", parts[0]):
        raise _Strange(f"{parts[0]!r} is no key there: keys are whole numbers")
    if not (options := _options_of(plain)):
        return _below(hint, parts[1:])
    names = [name for one in options for name in _names_of(one)]
    for count in range(1, len(parts) + 1):
        if ".".join(parts[:count]) in names:
            return _below(hint, parts[count:])
    guess = _guess(parts[0], names)
    raise _Strange(
        f"{parts[0]!r} is no key there; keys are {', '.join(names[:10])}{guess}", "".join(close_to(parts[0], names))
    )


def _below_any(hints: Iterable[Any], parts: tuple[str, ...], every: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    strange: _Strange | None = None
    for hint in hints:
        try:
            found += _below(hint, parts)
        except _Strange as error:
            strange = strange or error
    if not found and strange is not None:
        raise strange
    return [*found, type(None)] if type(None) in every and not parts else found


_SCALARS: Final = frozenset(
    {str, bytes, bytearray, int, float, bool, complex, Decimal, date, datetime, time, timedelta, UUID}
)


def _plain_hint(hint: Any) -> Any:
    """Return a type without its wrappings: Annotated, NewType, an alias; Any where it is none that we can look at."""
    while True:
        if get_origin(hint) in (typing.Annotated, typing.Required, typing.NotRequired, typing.Final):
            hint = get_args(hint)[0]
        elif isinstance(hint, typing.NewType):
            hint = hint.__supertype__
        elif type(hint).__name__ == "TypeAliasType":
            hint = hint.__value__
        elif isinstance(hint, typing.TypeVar):
            hint = hint.__bound__ or Any
        else:
            return Any if hint is object or isinstance(hint, str) or hint is inspect.Parameter.empty else hint


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (typing.Union, types.UnionType)


def _is_list_type(origin: Any) -> bool:
    return (
        isinstance(origin, type)
        and issubclass(origin, Iterable)
        and not issubclass(origin, str | bytes | Mapping | Enum)
    )


def _fields_of(hint: Any) -> dict[str, Any] | None:
    """Return the named parts of a class with their types; None where it has none, or any name."""
    cls = get_origin(hint) or hint
    if not isinstance(cls, type) or issubclass(cls, Enum) or cls in _SCALARS:
        return None
    models = getattr(cls, "model_fields", None)
    if isinstance(models, dict):
        if getattr(cls, "model_config", {}).get("extra") == "allow":
            return None
        names = {name: one.annotation for name, one in models.items()}
    elif (
        dataclasses.is_dataclass(cls)
        or typing.is_typeddict(cls)
        or hasattr(cls, "_fields")
        or hasattr(cls, "__attrs_attrs__")
    ):
        try:
            hints = typing.get_type_hints(cls, include_extras=True)
        except Exception:  # an annotation may be any expression
            hints = {}
        listed = [one.name for one in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else [
            *getattr(cls, "_fields", ()), *(one.name for one in getattr(cls, "__attrs_attrs__", ()))
        ]  # fmt: skip
        names = {name: hints.get(name, Any) for name in (listed or hints)}
    else:
        return None
    # A property can be read too, although no model has it as a field.
    names |= {name: Any for name, one in inspect.getmembers_static(cls) if isinstance(one, property) and name[0] != "_"}
    return names


def _type_name(hint: Any) -> str:
    return getattr(hint, "__name__", None) if isinstance(hint, type) else str(hint).removeprefix("typing.")  # type: ignore[return-value]


def _check_leaves(leaves: Sequence[Any], said: object) -> None:
    """Raise ``_Strange`` where none of these types can ever have such a value."""
    strange: _Strange | None = None
    for leaf in leaves:
        try:
            _check_leaf(leaf, said)
        except _Strange as error:
            strange = strange or error
        else:
            return
    if strange is not None:
        raise strange


def _check_leaf(hint: Any, said: object) -> None:
    plain = _plain_hint(hint)
    condition = _read(said) if isinstance(said, str) else None
    if plain is Any:
        return
    if _is_union(plain):
        _check_leaves(get_args(plain), said)
        return
    origin = get_origin(plain) or plain
    if plain is type(None) or plain is None:
        if said is not None and (condition is None or _equal(None, condition.text) is not True):
            raise _Strange("it is never that")
        return
    if options := _options_of(plain):
        _check_options(plain, options, said)
    elif _is_list_type(origin) and _fields_of(plain) is None:
        _check_leaves([one for one in get_args(plain) if one is not ...] or [Any], said)
    elif (isinstance(origin, type) and issubclass(origin, Mapping)) or _fields_of(plain) is not None:
        raise _Strange(f"{_type_name(plain)} is more than one value: name what is in it, with a dot")
    elif isinstance(origin, type) and origin in _SCALARS:
        _check_scalar(origin, hint, said, condition)
    elif condition is not None and not condition.compares and not condition.is_pattern:
        _check_valid(hint, condition.text)


def _options_of(plain: Any) -> list[Any]:
    if get_origin(plain) is Literal:
        return list(get_args(plain))
    return list(plain) if isinstance(plain, type) and issubclass(plain, Enum) and plain.__members__ else []


def _check_options(plain: Any, options: Sequence[Any], said: object) -> None:
    from enum import Flag

    if isinstance(plain, type) and issubclass(plain, Flag):
        return  # any sum of its members
    tried: object = said
    if isinstance(said, str) and (condition := _read(said)).sign == "!":
        tried = condition.text  # "not x" is a mistake too where x can never be
    answers = [_is_as(one, tried, _any) for one in options]
    if not any(answers):
        texts = [str(one.value if isinstance(one, Enum) else one) for one in options]
        names = [one.name for one in options if isinstance(one, Enum)]
        guess = _guess(str(tried), [*texts, *names])
        raise _Strange(f"it is one of {', '.join(texts[:10])}{guess}", "".join(close_to(str(tried), [*texts, *names])))


def _check_scalar(cls: type, hint: Any, said: object, condition: _Condition | None) -> None:
    """Raise ``_Strange`` where no value of this built-in type is so."""
    wanted = f"it is {_SCALAR_WORDS.get(cls, cls.__name__)}"
    if condition is not None and condition.compares:
        if not _has_order(cls, condition.text):
            raise _Strange(f"{wanted}, which has no such order")
        return
    value: object = said if condition is None else condition.text
    if isinstance(value, Enum):
        value = value.value
    if condition is not None and condition.is_pattern:
        _check_pattern(cls, hint, condition.text, wanted)
        return
    if cls in (int, float, Decimal):
        number = _number(value)
        if number is None or (cls is int and number != int(number)):
            raise _Strange(wanted)
        value = int(number) if cls is int else number
    elif cls is bool:
        if not isinstance(value, bool) and not (isinstance(value, str) and value.strip().casefold() in _BOOLS):
            raise _Strange(wanted)
        return
    elif cls is str:
        if value is None:
            raise _Strange(wanted)
        value = value if isinstance(value, str) else str(value)
    elif value is None or isinstance(value, bool):
        raise _Strange(wanted)
    elif cls is timedelta and (number := _number(value)) is not None:
        value = timedelta(seconds=float(number))
    _check_valid(hint, value)


def _check_pattern(cls: type, hint: Any, text: str, wanted: str) -> None:
    if cls in (int, float, Decimal) and not re.fullmatch(r"[-+0-9.eE*?\[\]!]+", text):
        raise _Strange(wanted)
    if cls is bool and not (_like("true", text.lower()) or _like("false", text.lower())):
        raise _Strange(wanted)
    if cls is str:
        _check_letters(hint, text)


def _has_order(cls: type, text: str) -> bool:
    """Whether values of this type can be larger or smaller than what is written."""
    moment = _moment(text)
    if cls is date:
        return isinstance(moment, date) and (not isinstance(moment, datetime) or moment.time() == time())
    if cls is datetime:
        return isinstance(moment, date)
    if cls is time:
        return isinstance(moment, time)
    if cls is str:
        return True  # it may be a number, or a date, in words; what is neither is held
    return cls in (int, float, Decimal, timedelta) and _number(text) is not None


_SCALAR_WORDS: Final[dict[type, str]] = {
    int: "a whole number",
    float: "a number",
    Decimal: "a number",
    bool: "true or false",
    str: "a text",
    date: "a date",
    datetime: "a date with a time",
    time: "a time",
    timedelta: "a duration",
    UUID: "a UUID",
}


def _check_valid(hint: Any, value: object) -> None:
    """Raise ``_Strange`` where pydantic refuses the value for this type; nothing where it has no schema for it."""
    if isinstance(value, str) and _plain_hint(hint) is str and get_origin(hint) is not typing.Annotated:
        return
    from pydantic import ConfigDict, TypeAdapter, ValidationError

    try:
        adapter: TypeAdapter[Any] = TypeAdapter(hint, config=None if _has_config(hint) else ConfigDict())
        read = adapter.validate_python(value)
    except ValidationError as error:
        raise _Strange(f"that can never be: {error.errors()[0]['msg']}") from None
    except Exception:  # an annotation may raise anything while pydantic looks at it
        return
    if _equal(read, value) is False:
        # The type takes it, and makes something else of it: lower case, another time zone, a date of a number.
        raise _Strange(f"that becomes {_said(read)!r} there: write it so")


def _check_letters(hint: Any, pattern: str) -> None:
    """Raise ``_Strange`` where the type writes every text in other letters than a pattern has."""
    if get_origin(hint) is not typing.Annotated:
        return
    from pydantic import TypeAdapter

    try:
        read = TypeAdapter(hint).validate_python(pattern)
    except Exception:  # a pattern need not be such a text itself
        return
    if isinstance(read, str) and read != pattern and read.casefold() == pattern.casefold():
        raise _Strange(f"that becomes {read!r} there: write it so")


def _has_config(hint: Any) -> bool:
    return hasattr(_plain_hint(hint), "__pydantic_config__") or hasattr(_plain_hint(hint), "model_config")


def _guess(name: str, known: Iterable[str]) -> str:
    close = close_to(name, known)
    return f'; did you mean "{close[0]}"?' if close else ""

"""Rules: which calls a person must allow, which are refused, and who may say so. Data, in Python or as TOML tables."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from datetime import datetime, time
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, get_args

from amends.errors import BadConfig
from amends.model import Request

Decides = Literal["allow", "approve", "refuse"]
DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
EXPIRES_S: Final = 86_400.0
"""How long a request may be decided and used, where no rule says otherwise: a day."""
APPROVERS_MAX: Final = 100
_HOURS: Final = re.compile(r"(\d\d):(\d\d)-(\d\d):(\d\d)")
_COMPARES: Final[dict[str, Callable[[Decimal, Decimal], bool]]] = {
    ">=": lambda a, b: a >= b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    "<": lambda a, b: a < b,
}


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
        """Whether this rule is about this request; raises what its own parts raise."""
        if not fnmatchcase(request.tool, self.tool) or not fnmatchcase(request.agent or "", self.agent):
            return False
        if self.undeclared and not undeclared:
            return False
        if self.tells_time and not self._is_time(at):
            return False
        if not all(_holds(_at_path(request.args, path), said) for path, said in self.args.items()):
            return False
        return self.when is None or bool(self.when(request))

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
        return first <= now < last if first <= last else now >= first or now < last


_MISSING: Final = object()


def _at_path(args: Mapping[str, Any], path: str) -> Any:
    found: Any = args
    for part in path.split("."):
        if isinstance(found, Mapping):
            found = found.get(part, _MISSING)
        else:
            found = getattr(found, part, _MISSING)
        if found is _MISSING:
            return _MISSING
    return found


def _holds(value: Any, said: object) -> bool:
    """Whether an argument is as a condition says; an argument that is not there is not."""
    if value is _MISSING:
        return False
    if isinstance(said, list | tuple):
        return any(_holds(value, one) for one in said)
    if not isinstance(said, str):
        return bool(value == said)
    for sign, compare in _COMPARES.items():
        if said.startswith(sign):
            return compare(Decimal(str(value)), Decimal(said.removeprefix(sign).strip()))
    if said.startswith("!"):
        return not fnmatchcase(str(value), said.removeprefix("!"))
    return fnmatchcase(str(value), said)


def _hours(text: str) -> tuple[time, time]:
    found = _HOURS.fullmatch(text.replace(" ", ""))
    if found is None:
        raise ValueError(f'hours are written "18:00-08:00", not {text!r}')
    a, b, c, d = map(int, found.groups())
    return time(a, b), time(c % 24, d)


# ---- checking -----------------------------------------------------------------------------


def checked_rules(rules: Iterable[object], origin: str = "argument") -> tuple[Rule, ...]:
    """Rules from Python or from TOML tables; raises ``BadConfig`` for one that cannot be kept."""
    return tuple(_checked(rule, number, origin) for number, rule in enumerate(rules, 1))


def _checked(rule: object, number: int, origin: str) -> Rule:
    if isinstance(rule, Mapping):
        known = {one.name for one in dataclasses.fields(Rule)} - {"when"}
        strange = sorted(set(rule) - known)
        if strange:
            raise _bad(number, origin, f"has {', '.join(strange)}, which means nothing")
        rule = Rule(**rule)
    if not isinstance(rule, Rule):
        raise _bad(number, origin, f"is {rule!r}, which is no Rule")
    problem = _problem(rule)
    if problem:
        raise _bad(number, origin, problem)
    return rule


def _bad(number: int, origin: str, what: str) -> BadConfig:
    return BadConfig(f"rule {number} ({origin}) {what}", setting="rules", origin=origin)


def _problem(rule: Rule) -> str:
    if rule.decision not in get_args(Decides):
        return f"decides {rule.decision!r}; it is one of {', '.join(get_args(Decides))}"
    approvers: Any = rule.approvers  # a table may say anything
    if type(approvers) is not int or not 1 <= approvers <= APPROVERS_MAX:
        return f"needs {rule.approvers!r} approvers; it is a number from 1 to {APPROVERS_MAX}"
    expires: Any = rule.expires
    if not isinstance(expires, int | float) or not expires > 0:
        return f"expires after {rule.expires!r}; it is a number of seconds"
    for name in ("roles", "reasons", "days"):
        value = getattr(rule, name)
        if isinstance(value, str) or not all(isinstance(one, str) and one for one in value):
            return f"has {name}={value!r}; it is a list of names"
    if strange := [day for day in rule.days if day not in DAYS]:
        return f"has the day {strange[0]!r}; days are {', '.join(DAYS)}"
    when: Any = rule.when
    if when is not None and not callable(when):
        return "has a when= that is no function"
    if rule.first_use and rule.decision != "approve":
        return f"decides {rule.decision!r} of the first use only, so there would never be another; it is approve"
    if rule.residue not in ("", "accept"):
        return f"has residue={rule.residue!r}; it is accept, or left out"
    return _unreadable(rule)


def _unreadable(rule: Rule) -> str:
    """What would only be found out when the first call comes."""
    from zoneinfo import ZoneInfo

    try:
        if rule.hours:
            _hours(rule.hours)
        if rule.tells_time:
            ZoneInfo(rule.tz)
        for said in rule.args.values():
            for one in said if isinstance(said, list | tuple) else (said,):
                sign = next((sign for sign in _COMPARES if isinstance(one, str) and one.startswith(sign)), None)
                if sign is not None:
                    Decimal(str(one).removeprefix(sign).strip())
    except (ValueError, ArithmeticError, LookupError, OSError) as error:
        return f"cannot be read: {error!r}"
    return ""


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

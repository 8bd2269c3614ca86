"""Rules: which calls need a person's approval, which are refused, and who may approve. In Python or as TOML tables.

A rule fails closed. A condition that cannot be read is refused when the runtime is built; so is an argument that the
named tool does not have, and a value that the argument can never have (``rule_checks``). A value that cannot be
compared at the call (``conditions``) is *unclear*: the call is held, or refused by a rule that refuses; it never
passes.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, TypeAlias, get_args
from uuid import UUID

from amends.errors import BadConfig, BadRule, close_to, cut, described, folded
from amends.model import AHEAD_MAX_S, Request
from amends.tools.conditions import (
    Among,
    any_of,
    every_of,
    holds,
    is_many,
    nfc,
    number_of,
    path_parts,
    read_condition,
    shown_condition,
)
from amends.tools.signature import is_async_function

Decides = Literal["allow", "approve", "refuse"]
Verdict: TypeAlias = Literal["matches", "no", "unclear"]
DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
EXPIRES_S: Final = 86_400.0
"""How long a request may be decided and used, where no rule says otherwise: a day."""
APPROVERS_MAX: Final = 100
RAISED_CHARS_MAX: Final = 500
_HOURS: Final = re.compile(r"(\d\d):(\d\d)-(\d\d):(\d\d)")


# ---- Rules and their verdicts


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
        if not matches_name(agent, self.agent) and not fnmatchcase(folded(agent), folded(self.agent)):
            return Judged("no", f"it is about the agent {self.agent}")
        if matches_name(request.tool, self.tool):
            if matches_name(agent, self.agent):
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
            verdict = holds(request.args, path_parts(path), said, self._among)
            if verdict is False:
                return Judged("no", f"{path} is not {shown_condition(said)}")
            if verdict is None:
                unclear.append(f"{path} cannot be compared with {shown_condition(said)}")
        return Judged("unclear", "; ".join(unclear)) if unclear else Judged("matches")

    @property
    def _among(self) -> Among:
        """Of several values at a path: one holds a call, but only all of them let it pass."""
        return every_of if self.decision == "allow" else any_of

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


def matches_name(name: str, pattern: str) -> bool:
    return fnmatchcase(nfc(name), nfc(pattern))


def _hours(text: str) -> tuple[time, time]:
    found = _HOURS.fullmatch(text.replace(" ", ""))
    if found is None:
        raise ValueError(f'hours are written "18:00-08:00", not {text!r}')
    a, b, c, d = map(int, found.groups())
    if (a, b) == (c, d) or (c == 24 and d):
        raise ValueError(f"no time is within {text!r}")
    return time(a, b), time(0 if c == 24 else c, d)


# ---- Checks of each rule by itself


def checked_rules(rules: Iterable[object], origin: str = "argument") -> tuple[Rule, ...]:
    """Return rules from Python or from TOML tables; raises ``BadRule`` for one that cannot be kept."""
    if isinstance(rules, Mapping | str | Rule) or not isinstance(rules, Iterable):
        what = type(rules).__name__
        raise BadConfig(f"rules ({origin}) is a list of Rule, not {what}", setting="rules", origin=origin)
    return tuple(_checked(rule, number, origin) for number, rule in enumerate(rules, 1))


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


def _checked(rule: object, number: int, origin: str) -> Rule:
    if isinstance(rule, Mapping):
        known = {one.name for one in dataclasses.fields(Rule)} - {"when"}
        strange = sorted(set(rule) - known)
        if strange:
            raise bad_rule(
                number, origin, f"has {', '.join(strange)}, which means nothing{did_you_mean(strange[0], known)}"
            )
        rule = Rule(**rule)
    if not isinstance(rule, Rule):
        raise bad_rule(number, origin, f"is {rule!r}, which is no Rule")
    problem = _problem(rule)
    if problem:
        raise bad_rule(number, origin, problem, tool=rule.tool)
    return rule


def bad_rule(number: int, origin: str, what: str, *, tool: Any = "", argument: str = "", meant: str = "") -> BadRule:
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
    elif is_many(said):
        if not said:
            raise ValueError(f"{path} is one of nothing")
        for one in said:
            if isinstance(one, Mapping):
                raise ValueError(f"{path} has a table in a list; write one rule for each")  # noqa: TRY004 (of a setting)
            _check_said(path, one)
    elif isinstance(said, str):
        read_condition(said)
    elif isinstance(said, float | Decimal) and number_of(said) is None:
        raise ValueError(f"{path} is {said}, which no number equals")
    elif callable(said) and not isinstance(said, Enum):
        raise ValueError(f"{path} is a function; a function of the request is said with when=")
    elif said is not None and not isinstance(said, bool | int | float | Decimal | date | time | UUID | Enum | bytes):
        raise ValueError(f"{path} is a {type(said).__name__}, which cannot be compared")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    close = close_to(name, known)
    return f'; did you mean "{close[0]}"?' if close else ""

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
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, TypeAlias, get_args
from uuid import UUID

from amends.encoding.dataclass import dataclass, field
from amends.encoding.patterns import pattern
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
from amends.tools.signature import is_async_function, plain_function

Decides = Literal["allow", "approve", "refuse"]
Verdict: TypeAlias = Literal["matches", "no", "unclear"]
DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
EXPIRES_S: Final = 86_400.0
"""How long a request can be decided and used, unless a rule says otherwise: one day."""
APPROVERS_MAX: Final = 100
REMINDERS_MAX: Final = 20
ESCALATIONS_MAX: Final = 10
REMIND_S_MIN: Final = 1.0
"""The shortest time between reminders, and before an escalation or a deadline."""
RAISED_CHARS_MAX: Final = 500
_HOURS: Final = pattern(r"(\d\d):(\d\d)-(\d\d):(\d\d)")


# ---- Rules and their verdicts


@dataclass(frozen=True, slots=True)
class Escalation:
    """Ask further roles if nobody has answered a request for so many seconds."""

    after: float
    """Seconds after the request was made."""
    roles: Sequence[str]
    """The roles that may decide from then on too; those that were asked before may still decide."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A decision about the calls that it matches. The first matching rule decides; one that raises holds the call."""

    tool: str = "*"
    """A pattern for the names of tools."""
    when: Callable[[Request], bool] | None = None
    """Python only: whether it matches this request."""
    decision: Decides = "approve"
    """``allow`` never overrides the tool's own ``needs_approval=``."""
    approvers: int = 1
    """How many different people must approve."""
    roles: Sequence[str] = ()
    """The roles that may approve; empty: anybody except the requester."""
    expires: float = EXPIRES_S
    """Seconds within which a request must be decided and used."""
    reasons: Sequence[str] = ()
    """The reasons that a rejection may give; empty: any."""
    why: str = ""
    """The reason in words, shown to the person who decides, and to a model that is refused."""
    args: Mapping[str, object] = field(default_factory=dict)
    """Conditions on arguments: ``{"cents": ">100000", "payee.iban": "DE*"}``; all must hold."""
    hours: str = ""
    """Match only in these hours: ``"18:00-08:00"`` crosses midnight."""
    days: Sequence[str] = ()
    """Match only on these days: ``("sat", "sun")``."""
    tz: str = "UTC"
    """The time zone of ``hours`` and ``days``."""
    agent: str = "*"
    """A pattern for the names of agents."""
    first_use: bool = False
    """Match only until this agent has used the tool once with approval; the rules after it apply to every use."""
    undeclared: bool = False
    """Match only undeclared tools; ``allow`` removes their need for approval only with this option."""
    residue: Literal["", "accept"] = ""
    """``accept``: the author of the rule accepts the residue that an undeclared tool leaves."""
    remind: float = 0.0
    """Seconds between reminders while nobody answers; 0: nobody is reminded."""
    reminders: int = 3
    """How often the same people are reminded at most; after an escalation the count begins again."""
    escalate: Sequence[Escalation | Mapping[str, Any]] = ()
    """Whom to ask too if nobody answers, in order of time; ``roles`` must be given."""
    deadline: float = 0.0
    """Seconds after which a request that nobody answered is rejected; 0: never, it only expires."""

    @property
    def name(self) -> str:
        """Its name in a record: ``why``, or else its decision and pattern."""
        return self.why or f"{self.decision} {self.tool}"

    @property
    def tells_time(self) -> bool:
        """Whether it depends on the clock."""
        return bool(self.hours or self.days)

    def matches(self, request: Request, at: datetime | None, *, undeclared: bool = False) -> bool:
        """Return whether this rule certainly matches this request."""
        return self.judge(request, at, undeclared=undeclared).verdict == "matches"

    def judge(self, request: Request, at: datetime | None, *, undeclared: bool = False) -> Judged:
        """Return whether this rule matches this request; ``unclear`` if that cannot be known. Never raise.

        A part that certainly does not match decides, even if other parts are unclear.
        """
        unclear: list[str] = []
        for part in (self._names, self._times, self._args, self._asks):
            try:
                found = part(request, at, undeclared)
            except Exception as error:  # no error may let the call pass
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
            return Judged("no", f"the rule is for the agent {self.agent}")
        if matches_name(request.tool, self.tool):
            if matches_name(agent, self.agent):
                return Judged("matches")
            return Judged("unclear", f"{agent} may be another spelling of {self.agent}")
        if undeclared and fnmatchcase(folded(request.tool), folded(self.tool)):
            # The tool is undeclared, so the spelling of its name was never checked.
            return Judged("unclear", f"{request.tool} may be another spelling of {self.tool}")
        return Judged("no", f"the rule is for {self.tool}")

    def _times(self, request: Request, at: datetime | None, undeclared: bool) -> Judged:
        if self.tells_time and not self._is_time(at):
            return Judged("no", f"the rule is for {' '.join([*self.days, self.hours]).strip()} ({self.tz})")
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
        """How to combine several values at a path: one suffices to hold a call, all are needed to allow it."""
        return every_of if self.decision == "allow" else any_of

    def _asks(self, request: Request, at: datetime | None, undeclared: bool) -> Judged:
        if self.when is None:
            return Judged("matches")
        # A copy of the arguments, because the rules after it judge the same request.
        found = yes_or_no(self.when(dataclasses.replace(request, args={**request.args})))
        if found is None:
            return Judged("unclear", "its when= returned neither True nor False")
        return Judged("matches" if found else "no", "" if found else "its when= returned False")

    def _is_time(self, at: datetime | None) -> bool:
        from zoneinfo import ZoneInfo  # imported here: few rules depend on the time

        assert at is not None, "a rule that depends on the clock gets the time"
        here = at.astimezone(ZoneInfo(self.tz))
        if self.days and DAYS[here.weekday()] not in self.days:
            return False
        if not self.hours:
            return True
        first, last = _hours(self.hours)
        now = here.time()
        return first <= now < last if first < last else now >= first or now < last


@dataclass(frozen=True, slots=True)
class Judged:
    """Whether one rule matches one request, and why."""

    verdict: Verdict
    why: str = ""


@dataclass(frozen=True, slots=True)
class RuleVerdict:
    """What one rule decides about one call."""

    number: int
    """Its position among the rules, from 1."""
    name: str
    decision: Decides
    verdict: Verdict
    """``matches``, ``no``, or ``unclear``, which holds the call or refuses it."""
    why: str
    decides: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, slots=True)
class RuleTest:
    """What would happen to a call by the rules, by the tool's own declaration and by budgets per call."""

    tool: str
    declared: bool
    decision: Literal["run", "approve", "refuse"]
    by: str
    """What decides: ``rule 2``, ``tool``, ``undeclared``, ``budget``; empty if nothing does."""
    why: str
    needed: int
    """How many people must approve; 0 if it simply runs or is refused."""
    roles: tuple[str, ...]
    first_use: bool
    """Whether approval is needed only until this agent has used the tool once with approval."""
    rules: tuple[RuleVerdict, ...]
    meant: str = ""
    """The declared tool whose name is probably meant, if this one is undeclared."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {**dataclasses.asdict(self), "roles": list(self.roles), "rules": [one.to_dict() for one in self.rules]}


def yes_or_no(answer: object) -> bool | None:
    """Return the answer of a function of a call; None if it is not a bool.

    A coroutine is truthy but no answer, and None is the result of a function without a return statement.
    """
    if inspect.iscoroutine(answer):
        answer.close()  # it is never awaited; without this Python would warn at an unrelated place
    if type(answer).__name__ in ("bool", "bool_"):  # also that of numpy
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
        raise ValueError(f"{text!r} contains no time")
    return time(a, b), time(0 if c == 24 else c, d)


# ---- Checks of each rule by itself


def checked_rules(rules: Iterable[object], origin: str = "argument") -> tuple[Rule, ...]:
    """Return rules from Python or from TOML tables, checked; raise ``BadRule`` for an invalid one."""
    if isinstance(rules, Mapping | str | Rule) or not isinstance(rules, Iterable):
        what = type(rules).__name__
        raise BadConfig(f"rules ({origin}) is a list of Rule, not {what}", setting="rules", origin=origin)
    return tuple(_checked(rule, number, origin) for number, rule in enumerate(rules, 1))


def checked_approvers(given: object, origin: str = "argument") -> dict[str, tuple[str, ...]]:
    """Return the people of each role, checked; raise ``BadConfig`` for an invalid table."""
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
                number, origin, f"has {', '.join(strange)}, which is unknown{did_you_mean(strange[0], known)}"
            )
        rule = Rule(**rule)
    if not isinstance(rule, Rule):
        raise bad_rule(number, origin, f"is {rule!r}, which is not a Rule")
    problem = _problem(rule) or _problem_unanswered(rule)
    if problem:
        raise bad_rule(number, origin, problem, tool=rule.tool)
    if not rule.escalate:
        return rule
    return dataclasses.replace(rule, escalate=tuple(map(_escalation, rule.escalate)))


def bad_rule(number: int, origin: str, what: str, *, tool: Any = "", argument: str = "", meant: str = "") -> BadRule:
    return BadRule(
        f"rule {number} ({origin}) {what}", rule=number, tool=str(tool), argument=argument, meant=meant, origin=origin
    )


def _problem(rule: Rule) -> str:
    if rule.decision not in get_args(Decides):
        return f"decides {rule.decision!r}; it is one of {', '.join(get_args(Decides))}"
    if problem := _mistyped(rule):
        return problem
    approvers: Any = rule.approvers  # a table may hold anything
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
        return f"decides {rule.decision!r} for the first use only; first_use needs the decision approve"
    if rule.residue not in ("", "accept"):
        return f"has residue={rule.residue!r}; it is accept, or left out"
    return _unaskable(rule.when) or _unreadable(rule)


def _problem_unanswered(rule: Rule) -> str:
    """Return what is wrong with what the rule says about a request that nobody answers; empty: nothing."""
    for name in ("remind", "deadline"):
        seconds: Any = getattr(rule, name)
        if not _is_seconds(seconds) or (seconds and seconds < REMIND_S_MIN):
            return f"has {name}={seconds!r}; it is a number of seconds, at least {REMIND_S_MIN:g}, or 0 for none"
    count: Any = rule.reminders
    if type(count) is not int or not 1 <= count <= REMINDERS_MAX:
        return f"has reminders={count!r}; it is a number from 1 to {REMINDERS_MAX}"
    if problem := _problem_escalate(rule.escalate):
        return problem
    stages = [_escalation(one) for one in rule.escalate]
    if rule.decision != "approve" and (stages or rule.remind or rule.deadline):
        return f"decides {rule.decision!r}, so nobody is asked: remind, escalate and deadline need the decision approve"
    if stages and not rule.roles:
        return "escalates but has no roles: without roles anybody may decide, so there is nobody to escalate to"
    times = [*(one.after for one in stages), *([rule.deadline] if rule.deadline else ())]
    if times != sorted(set(times)):
        return "has an escalation that is not later than the one before it, or not before its deadline"
    if times and times[-1] >= rule.expires:
        return f"expires after {rule.expires:g} s, not later than its deadline or last escalation; set expires higher"
    if rule.remind and rule.remind >= min(rule.deadline or rule.expires, rule.expires):
        return f"reminds after {rule.remind:g} s, when the request has ended already"
    return ""


def _problem_escalate(given: Any) -> str:
    words = 'has escalate={!r}; it is a list of Escalation, in TOML { after = 1800, roles = ["lead"] }'
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence):
        return words.replace("{!r}", repr(given))
    if len(given) > ESCALATIONS_MAX:
        return f"has {len(given)} escalations; there are {ESCALATIONS_MAX} at most"
    for one in given:
        if isinstance(one, Mapping) and set(one) != {"after", "roles"}:
            return words.replace("{!r}", repr(one))
        if not isinstance(one, Mapping | Escalation):
            return words.replace("{!r}", repr(one))
        after, roles = (one["after"], one["roles"]) if isinstance(one, Mapping) else (one.after, one.roles)
        if not _is_seconds(after) or after < REMIND_S_MIN:
            return f"escalates after {after!r}; it is a number of seconds, at least {REMIND_S_MIN:g}"
        if isinstance(roles, str) or not isinstance(roles, Sequence) or not roles:
            return f"escalates to {roles!r}; it is a list of roles"
        if not all(isinstance(role, str) and role for role in roles):
            return f"escalates to {roles!r}; it is a list of roles"
    return ""


def _escalation(one: Escalation | Mapping[str, Any]) -> Escalation:
    found = Escalation(**one) if isinstance(one, Mapping) else one
    return Escalation(float(found.after), tuple(found.roles))


def _is_seconds(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= AHEAD_MAX_S


def _mistyped(rule: Rule) -> str:
    for name in ("tool", "agent", "tz"):
        text: Any = getattr(rule, name)
        if not isinstance(text, str) or not text or text != text.strip() or not text.isprintable():
            return f"has {name}={text!r}; it is a text without spaces around it"
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
        return "has a when= that is not a function"
    if is_async_function(when) or inspect.isasyncgenfunction(plain_function(when)):
        return "has a when= that is async; make it a plain def, nothing is awaited there"
    try:
        inspect.signature(when).bind(object())
    except TypeError:
        return "has a when= that does not take one argument, the request"
    except ValueError:  # a builtin without a signature
        return ""
    return ""


def _unreadable(rule: Rule) -> str:
    """Return a problem that would otherwise appear only at the first call."""
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
        raise ValueError(f"{path!r} does not name an argument")
    if re.search(r"[\[\]]|^\$\.", path):
        raise ValueError(f"{path!r} is not a path: write items.0.cents for one of a list, items.cents for any")
    _check_said(path, said)


def _check_said(path: str, said: object) -> None:
    if isinstance(said, Mapping):
        if not said:
            raise ValueError(f"{path} has an empty table of conditions")
        for below, one in said.items():
            _check_condition(below, one)
    elif is_many(said):
        if not said:
            raise ValueError(f"{path} has an empty list of values")
        for one in said:
            if isinstance(one, Mapping):
                raise ValueError(f"{path} has a table in a list; write one rule for each")  # noqa: TRY004 (of a setting)
            _check_said(path, one)
    elif isinstance(said, str):
        read_condition(said)
    elif isinstance(said, float | Decimal) and number_of(said) is None:
        raise ValueError(f"{path} is {said}, which no number equals")
    elif callable(said) and not isinstance(said, Enum):
        raise ValueError(f"{path} is a function; use when= for a function of the request")
    elif said is not None and not isinstance(said, bool | int | float | Decimal | date | time | UUID | Enum | bytes):
        raise ValueError(f"{path} is a {type(said).__name__}, which cannot be compared")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    close = close_to(name, known)
    return f'; did you mean "{close[0]}"?' if close else ""

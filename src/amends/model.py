"""The values that amends hands out: runs, calls, approvals, answers, budgets.

All are frozen; users receive most of them and build only a few (``Retry``, ``Budget``, ``Cost``, ``Happened``). What
people read (reports, plans, comparisons) is in ``report``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Final, Generic, Literal, TypeAlias, TypeVar, get_args
from unicodedata import normalize

from amends.encoding.chain import feed_place, read_place
from amends.encoding.dataclass import dataclass, field
from amends.errors import (
    ApprovalVoid,
    BadConfig,
    Held,
    ResultGone,
    ResultLost,
    amount_words,
    close_to,
    folded,
    is_a,
    is_slip,
)
from amends.states import CallState, HoldReason, RunState

Kind: TypeAlias = Literal["read", "compensatable", "pivot", "retriable"]
Scope: TypeAlias = Literal["run", "ledger"]
Order: TypeAlias = Literal["strict", "advise"]
Policy: TypeAlias = Literal["rollback", "resume", "wait"]
Phase: TypeAlias = Literal["execute", "compensate", "probe"]
ApprovalState: TypeAlias = Literal["pending", "approved", "rejected", "expired", "used", "cancelled"]
Status: TypeAlias = Literal["done", "replayed", "staged", "held", "refused", "failed", "in_doubt"]
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
AHEAD_MAX_S: Final = 100 * 365 * 86_400.0
"""How far ahead a time may be set: a hundred years. Times after the year 9999 cannot be stored."""


# ---- Runs and calls


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One run as the ledger has it."""

    id: str
    state: RunState
    generation: int = 1
    tenant: str | None = None
    agent: str | None = None
    principal: str | None = None
    parent: str | None = None
    goal: str | None = None
    recover: Policy = "rollback"
    input: Any = None
    output: Any = None
    tags: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    owner: str | None = None
    epoch: int = 0
    opened_at: datetime | None = None
    closed_at: datetime | None = None
    deadline_at: datetime | None = None
    gone_at: datetime | None = None
    """When gc removed the payloads of its tree; ``input`` and ``output`` are then None."""
    origin: str | None = None
    """The ledger that it was loaded from; None: it belongs to this ledger."""
    forked_from: str | None = None
    """The run that this one was forked from; ``forked_at`` is the last call that they share."""
    forked_at: str | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for: everything that a rule sees."""

    run_id: str
    tool: str
    version: str
    args: Mapping[str, Any]
    tenant: str | None = None
    agent: str | None = None
    principal: str | None = None


@dataclass(frozen=True, slots=True)
class Call(Request):
    """One call of a tool in a run, as the ledger has it."""

    id: str = ""
    key: str = ""
    """The idempotency key for the destination: digest(key, generation)."""
    kind: Kind = "compensatable"
    state: CallState = "started"
    generation: int = 1
    attempt: int = 1
    phase: Phase = "execute"
    digest: str = ""
    """Digest of tool, version and all canonical arguments."""
    result: Any = None
    loss: str | None = None
    """What part of the result could not be stored."""
    error: str | None = None
    why: str | None = None
    """Why it is held, in doubt, or left standing."""
    reason: HoldReason | None = None
    again: str | None = None
    tool_call_id: str | None = None
    parent: str | None = None
    """The call whose body asked for this one."""
    violation: str | None = None
    """What ``order="strict"`` would have refused (with ``order="advise"`` only)."""
    compensation: Compensation | None = None
    requested_at: datetime | None = None
    started_at: datetime | None = None
    settled_at: datetime | None = None
    replays: int = 0
    gone_at: datetime | None = None
    """When gc removed its arguments or its result; None: it did not."""
    costs: Mapping[str, Decimal] = field(default_factory=dict)
    """Its current cost by unit: spent, or reserved while it has no result."""
    shared: str | None = None
    """In a fork: the call of the original run that it stands for, which alone had the effect."""
    classes: Mapping[str, str] = field(default_factory=dict)
    """The class of each argument, or part of one ("to", "items[0].owner"), if its annotation allows several."""

    @property
    def staged(self) -> bool:
        """Whether it is accepted and waits for the pivot or the commit, or after that for a lock."""
        return self.state in ("held", "ready") and self.reason in ("order", "lock")

    @property
    def seconds(self) -> float | None:
        """How long the last attempt took; None if it has not ended or was lost."""
        lost = self.state == "in_doubt" and self.why == "lost"
        if self.started_at is None or self.settled_at is None or lost:
            return None
        return (self.settled_at - self.started_at).total_seconds()


@dataclass(frozen=True, slots=True)
class Compensation:
    """The record of a call's compensation, which runs at most once."""

    key: str
    attempts: int
    error: str | None = None
    started_at: datetime | None = None
    settled_at: datetime | None = None
    next_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Residue:
    """An effect left standing, and why."""

    call: Call
    why: str


@dataclass(frozen=True, slots=True)
class Lock:
    """A name that one run holds until it has ended."""

    name: str
    run_id: str
    tool: str
    """The tool that asked for it first, and its call."""
    call_id: str
    since: datetime
    held_s: float
    """How many seconds it had been held when this was read."""
    run_state: RunState
    waiting: tuple[str, ...] = ()
    """The runs that wait for it; the longest waiting is first."""


@dataclass(frozen=True, slots=True)
class Event:
    """One change of state, written in the transaction of the change."""

    seq: int
    """Its number in its run tree."""
    at: datetime
    run_id: str
    call_id: str | None
    what: str
    frm: str
    to: str
    by: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    place: str = ""
    """Its place in the feed of the ledger, for ``rt.events(after=...)``: by moment, run tree and number."""


class Feed:
    """Follow the events of a ledger by their places, without losing one that is committed late.

    Transactions overlap: an event with an earlier moment may be committed after a later one was read. A feed therefore
    reads the last ``margin_s`` seconds again each time, and says which events are new. A feed that begins at a place that
    an earlier feed had reached shows those seconds once more; ``Event.place`` tells which events are known.

        feed = Feed()
        while True:
            for event in rt.events(after=feed.after):
                if feed.is_new(event):
                    ...
    """

    MARGIN_S: ClassVar[float] = 5.0

    def __init__(self, after: str = "", *, margin_s: float = MARGIN_S) -> None:
        self.place = after
        """The latest place that it has shown."""
        self._margin_s = margin_s
        self._at, self._newest = read_place(after)[0], read_place(after)
        self._shown: dict[str, float] = {}

    @property
    def after(self) -> str:
        """The place after which to read next: ``margin_s`` before the latest one."""
        return feed_place(self._at - self._margin_s) if self.place else ""

    def is_new(self, event: Event) -> bool:
        """Return whether this event was not shown yet; from now on it counts as shown."""
        if event.place in self._shown:
            return False
        where = read_place(event.place)
        self._shown[event.place] = where[0]
        if where > self._newest:
            self.place, self._newest, self._at = event.place, where, where[0]
            for place in [one for one, at in self._shown.items() if at < self._at - self._margin_s]:
                del self._shown[place]
        return True


class _WithoutResult(Call):
    """A call whose result is lost: reading it raises, because None could be taken for the result."""

    __slots__ = ("_lost",)
    _lost: Exception

    @property
    def result(self) -> Any:
        """Raise ``ResultLost``."""
        raise self._lost

    def __repr__(self) -> str:
        return f"Call(id={self.id!r}, tool={self.tool!r}, state={self.state!r}, loss={str(self._lost)!r})"


def without_result(call: Call, lost: Exception) -> Call:
    """Return the same call with a ``result`` that raises this error."""
    made = object.__new__(_WithoutResult)
    for one in fields(Call):
        if one.name != "result":
            object.__setattr__(made, one.name, getattr(call, one.name))
    object.__setattr__(made, "_lost", lost)
    return made


# ---- Staged calls, and requests of a model


class Staged(Generic[R_co]):
    """A call accepted for later: it starts after the pivot, or at commit."""

    __slots__ = ("_read", "call")

    def __init__(self, call: Call, read: Callable[[], Call]) -> None:
        self.call = call
        self._read = read

    @property
    def done(self) -> bool:
        """Whether it has run. Reads the ledger until it has."""
        if self.call.state != "succeeded":
            self.call = self._read()
        return self.call.state == "succeeded"

    @property
    def result(self) -> R_co:
        """Its result; raises ``ValueError`` before it is done."""
        if not self.done:
            raise ValueError(f"{self.call.tool} is {self.call.state}: it has no result yet; look at .done first")
        call = self.call
        if call.gone_at is not None and call.loss is not None:
            raise ResultGone(f"{call.tool} ({call.id})", gone_at=call.gone_at, call=call, run_id=call.run_id)
        if call.result is None and call.loss is not None:
            raise ResultLost(f"{call.tool} ({call.id})", why=call.loss, call=call, run_id=call.run_id)
        value: R_co = self.call.result
        return value

    def __repr__(self) -> str:
        return f"<Staged {self.call.tool} {self.call.state}>"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """What a model asks for: a tool by its name, with JSON arguments. Built by the code that reads a model's answer."""

    tool: str
    args: Mapping[str, Any] | str
    """An object, or its JSON text as some providers send it."""
    tool_call_id: str | None = None
    """Recorded, but never the identity of the call: providers make a new one for every retry."""
    handler: Callable[..., object] | None = None
    """The function to call instead of the tool's own body."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of a model's request, and the text for the model."""

    status: Status
    text: str
    value: Any = None
    call: Call | None = None
    error: Exception | None = None

    @property
    def is_error(self) -> bool:
        """Whether the model must be told that it was not done."""
        if self.status in ("done", "replayed", "staged"):
            return False
        return not (self.status == "held" and getattr(self.error, "reason", None) in ("approval", "budget"))

    @property
    def waits(self) -> bool:
        """Whether a person must decide before it can continue: raise ``error`` to release the run until then."""
        if is_a(self.error, Held):
            return self.error.reason != "duplicate"  # a model can settle that one by saying what it meant
        return is_a(self.error, ApprovalVoid) and self.error.asked


# ---- Approvals


@dataclass(frozen=True, slots=True)
class Approval:
    """A request for a person's approval of one call, exactly as it is shown here."""

    id: str
    call: Call
    digest: str
    """What is approved: this call with all its arguments, in this run, for this one request."""
    state: ApprovalState
    expires_at: datetime
    requested_at: datetime
    rule: str = ""
    """Why approval is needed, in words."""
    needed: int = 1
    """How many different people must approve."""
    roles: tuple[str, ...] = ()
    """The roles that may approve; empty: anybody except the requester."""
    reasons: tuple[str, ...] = ()
    """The reasons that a rejection may give; empty: any."""
    given: tuple[Yes, ...] = ()
    by: str | None = None
    """Who decided it."""
    reason: str | None = None
    """Why it was rejected."""
    decided_at: datetime | None = None
    used_at: datetime | None = None
    follows: str | None = None
    """The request that this one replaced."""
    editors: tuple[str, ...] = ()
    """Who edited the request: each counts as a requester and cannot approve it."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Links to approve and reject it, if the runtime makes links."""


@dataclass(frozen=True, slots=True)
class Yes:
    """One person's approval of a request."""

    by: str
    at: datetime
    why: str = ""
    behalf: str | None = None
    """Who delegated it."""
    roles: tuple[str, ...] = ()
    bypass: bool = False


# ---- Answers of a probe


class _Lost:
    """The type of ``LOST``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "(not said)"


LOST: Final = _Lost()
"""Stands for a result that is not available, or was not given."""


@dataclass(frozen=True, slots=True)
class Happened(Generic[R_co]):
    """The call took effect, with this result; without one, the result is unknown."""

    result: R_co = LOST  # type: ignore[assignment]  # has no type: every reader checks for LOST first


@dataclass(frozen=True, slots=True)
class Absent:
    """The call had no effect; it may be started again."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """The outcome is unknown; ask again later, or ask a person."""

    why: str = ""


Probed: TypeAlias = Happened[R] | Absent | Unknown


class NoEffect(Exception):
    """Raise it in a body: this call certainly changed nothing."""


# ---- Retries


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how fast a call is started again after an error that certainly had no effect.

    ``attempts`` counts starts, not repeats: 3 means three starts. ``on`` names the errors that certainly had no
    effect; a timeout is allowed only for an idempotent or probed tool.
    """

    attempts: int = 3
    on: type[Exception] | tuple[type[Exception], ...] = ()
    delay: float = 1.0
    factor: float = 2.0
    max_delay: float = 60.0
    jitter: float = 0.3

    def pause(self, attempt: int, luck: float) -> float:
        """Return the seconds to wait after start number ``attempt``; ``luck`` in [0, 1) is the random jitter."""
        assert attempt >= 1, "attempts are counted from one"
        grown = self.delay * self.factor ** min(attempt - 1, 64)
        capped = min(grown, self.max_delay)
        return capped * (1 + self.jitter * (2 * luck - 1))


# ---- Budgets and costs

# An amount is stored as a whole number of billionths: a sum of floats is inexact, and a cap must not be exceeded by a
# rounding error.

Per: TypeAlias = Literal["call", "run", "agent", "tenant", "tool", "ledger"]
Every: TypeAlias = Literal["hour", "day", "month"]
Then: TypeAlias = Literal["refuse", "hold", "rollback"]
Number: TypeAlias = int | float | Decimal
ONE: Final = 10**9
"""One unit, in billionths."""
AMOUNT_MAX: Final = 10**15
"""The largest amount, in any unit."""
UNIT_CHARS_MAX: Final = 64
BUDGETS_MAX: Final = 32
"""How many budgets one runtime or one run may have: each that applies adds a ledger row to every start."""
CALLS: Final = "calls"
"""The unit of which every call costs one."""
PLACES: Final = 9


@dataclass(frozen=True, slots=True)
class Budget:
    """A cap on spending: per run, agent, tenant or tool, for the whole ledger, or per call.

    ``every``: within each hour, day or month (UTC). ``tool``: only for tools of this name; ``*`` is a wildcard.
    ``then``: a call that would exceed the cap is refused, held for a person, or rolls its run back.
    """

    cap: Number
    unit: str = "usd"
    per: Per = "run"
    every: Every | None = None
    tool: str = "*"
    then: Then = "refuse"

    def __str__(self) -> str:
        """Return the budget as a person says it: ``50.00 usd per agent and day``."""
        of = "" if self.tool == "*" else f" for {self.tool}"
        when = "" if self.every is None else f" and {self.every}"
        return f"{amount_words(decimal_of(billionths(self.cap)), self.unit)} {self.unit} per {self.per}{when}{of}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data, which ``budget_from`` reads."""
        return {
            "cap": text_of(billionths(self.cap)),
            "unit": self.unit,
            "per": self.per,
            "every": self.every,
            "tool": self.tool,
            "then": self.then,
        }


@dataclass(frozen=True, slots=True)
class Cost:
    """What a call costs, and how much is refunded when it is compensated: all, nothing, or a fraction."""

    amount: Number
    unit: str = "usd"
    refundable: bool | float | Decimal = True


Costs: TypeAlias = Number | Cost | Mapping[str, Number | Cost] | Sequence[Cost]
"""What ``cost=`` accepts, and what its function may return."""


@dataclass(frozen=True, slots=True)
class BudgetState:
    """The state of one budget: whose it is, its period, what is spent, and what is reserved for calls in progress."""

    budget: Budget
    who: str | None
    """The run, agent or tool that it belongs to; None: a tenant's, or everybody's."""
    period: str | None
    """``2026-11-15``, ``2026-11-15T09`` or ``2026-11``, in UTC; None: it has no period."""
    spent: Decimal
    reserved: Decimal
    left: Decimal

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        amounts = {name: str(getattr(self, name)) for name in ("spent", "reserved", "left")}
        return {"budget": self.budget.to_dict(), "who": self.who, "period": self.period, **amounts}


@dataclass(frozen=True, slots=True)
class CostLine:
    """What calls have cost in one unit, by run, tool, agent or day."""

    what: str
    """The run, tool, agent or day."""
    unit: str
    calls: int
    """How many calls cost something in this unit."""
    spent: Decimal
    reserved: Decimal
    """Reserved for calls that have no result yet, or are in doubt."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        amounts = {"spent": str(self.spent), "reserved": str(self.reserved)}
        return {"what": self.what, "unit": self.unit, "calls": self.calls, **amounts}


# ---- Amounts and units


def unit_of(name: Any) -> str:
    """Return the normalized name of a unit (``USD`` and ``usd`` are one); raise ``ValueError`` for an invalid name."""
    text = normalize("NFKC", name).strip().casefold() if isinstance(name, str) else ""
    if not 0 < len(text) <= UNIT_CHARS_MAX or not text.isprintable():
        raise ValueError(f"a unit is a text of 1 to {UNIT_CHARS_MAX} characters, not {str(name)[:40]!r}")
    return normalize("NFKC", text)


def billionths(value: Any) -> int:
    """Return an amount in billionths, rounded up; raise ``ValueError`` for an invalid amount."""
    is_number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    # isfinite() would convert an int to float, which fails for a large one.
    is_finite = is_number and (isinstance(value, int) or math.isfinite(value))
    if not is_finite or not 0 <= value <= AMOUNT_MAX:
        raise ValueError(f"an amount is a number from 0 to {AMOUNT_MAX:.0e}, not {str(value)[:40]!r}")
    if isinstance(value, int):
        return int(value) * ONE
    _, digits, exponent = (value if isinstance(value, Decimal) else Decimal(repr(float(value)))).as_tuple()
    if not value or int(exponent) + len(digits) < -PLACES:
        return 1 if value else 0  # a model may write 1E-999999999, which must not be multiplied out
    whole = int("".join(map(str, digits)))
    shift = int(exponent) + PLACES
    return int(whole * 10**shift if shift >= 0 else -(-whole // 10**-shift))  # round up: never count too little


def text_of(amount: int) -> str:
    """Return billionths as a decimal text: ``42.5``."""
    whole, rest = divmod(abs(amount), ONE)
    sign = "-" if amount < 0 else ""
    return f"{sign}{whole}.{rest:0{PLACES}d}".rstrip("0").rstrip(".") if rest else f"{sign}{whole}"


def amount_in(text: str) -> int:
    """Return the billionths of a text that ``text_of`` wrote."""
    whole, _, rest = text.partition(".")
    fraction = int(rest.ljust(PLACES, "0")) if rest else 0
    return int(whole) * ONE + (-fraction if whole.startswith("-") else fraction)


def decimal_of(amount: int) -> Decimal:
    """Return billionths as a Decimal, as users see them."""
    return Decimal(text_of(amount))


def share_of(value: Any) -> int:
    """Return the refundable share in billionths of the whole."""
    if isinstance(value, bool):
        return ONE if value else 0
    share = billionths(value)
    if share > ONE:
        raise ValueError(f"refundable is True, False or a fraction from 0 to 1, not {value!r}")
    return share


def costs_in(said: object) -> tuple[tuple[str, int, int], ...]:
    """Return unit, amount and refundable share for a value of ``cost=``; raise ``ValueError`` for an invalid one.

    A number is in usd. A mapping names units. A ``Cost`` also says how much is refundable; several are added by unit.
    """
    if isinstance(said, Cost):
        said = (said,)
    elif isinstance(said, Mapping):
        said = tuple(one if isinstance(one, Cost) else Cost(one, unit) for unit, one in said.items())
    elif isinstance(said, int | float | Decimal):
        said = (Cost(said),)
    parts: list[Any] = list(said) if isinstance(said, Iterable) else [said]
    if not all(isinstance(one, Cost) for one in parts):
        raise ValueError(f"a cost is a number, a mapping of units to numbers, or a Cost, not {str(said)[:40]!r}")
    found: dict[str, tuple[int, int]] = {}
    for cost in parts:
        unit = unit_of(cost.unit)
        amount, back = billionths(cost.amount), share_of(cost.refundable)
        before, share = found.get(unit, (0, back))
        total = before + amount
        found[unit] = total, (before * share + amount * back) // total if total else back
    return tuple((unit, amount, back) for unit, (amount, back) in found.items())


# ---- Checks of declared budgets


def checked_budgets(given: Iterable[object], origin: str) -> tuple[Budget, ...]:
    """Return these budgets checked; raise ``BadConfig``. A mapping is a table of a TOML file."""
    if isinstance(given, Budget | Mapping | str) or not isinstance(given, Iterable):
        raise _bad(f"budgets is a list of Budget, not {type(given).__name__}", origin)
    budgets = tuple(_checked(one, origin) for one in given)
    if len(budgets) > BUDGETS_MAX:
        raise _bad(f"there are {len(budgets)} budgets; at most {BUDGETS_MAX}", origin)
    return budgets


def budget_from(table: Mapping[str, Any]) -> Budget:
    """Read what ``Budget.to_dict`` wrote."""
    budget = Budget(**{**table, "cap": Decimal(str(table["cap"])), "unit": unit_of(table["unit"])})
    return replace(budget, tool=normalize("NFC", budget.tool))


def _checked(given: object, origin: str) -> Budget:
    if isinstance(given, Mapping):
        unknown = sorted(set(given) - set(Budget.__dataclass_fields__))
        if unknown or "cap" not in given:
            what = f"{unknown[0]!r} is not a field of a budget" if unknown else "a budget has no cap"
            raise _bad(f"{what}; its fields are {', '.join(Budget.__dataclass_fields__)}", origin)
        given = Budget(**given)
    if not isinstance(given, Budget):
        raise _bad(f"a budget is a Budget(...), not {type(given).__name__}", origin)
    try:
        billionths(given.cap)
    except ValueError as error:
        raise _bad(f"cap: {error}", origin) from error
    for name, literal in (("per", Per), ("then", Then)):
        if getattr(given, name) not in get_args(literal):
            raise _bad(f"{name} is {getattr(given, name)!r}; it is one of {', '.join(get_args(literal))}", origin)
    if given.every is not None and given.every not in get_args(Every):
        raise _bad(f"every is {given.every!r}; it is one of {', '.join(get_args(Every))}, or left out", origin)
    if given.every is not None and given.per == "call":
        raise _bad("a budget per call cannot have every=: it counts one call alone", origin)
    tool: Any = given.tool
    if (
        not isinstance(tool, str)
        or not 0 < len(tool) <= UNIT_CHARS_MAX
        or not tool.isprintable()
        or tool != tool.strip()
    ):
        raise _bad(f"tool is {tool!r}; it is a text of 1 to {UNIT_CHARS_MAX} characters", origin)
    try:
        return replace(given, unit=unit_of(given.unit), tool=normalize("NFC", tool))
    except ValueError as error:
        raise _bad(f"unit is {given.unit!r}: {error}", origin) from error


def is_for(budget: Budget, tool: str) -> bool:
    """Return whether a budget counts the calls of a tool, whatever the Unicode form of its name."""
    return fnmatchcase(tool if tool.isascii() else normalize("NFC", tool), budget.tool)


def check_budgets_for(budgets: Iterable[Budget], costs: Mapping[str, object], *, origin: str) -> list[str]:
    """Raise ``BadConfig`` for a budget whose tool or unit is probably mistyped; return warnings about the others.

    ``costs``: the ``cost=`` of each tool by name; None if it has none, though its body may still call ``spent``.
    """
    warnings: list[str] = []
    for budget in budgets if costs else ():
        pattern = budget.tool
        mine = {name: said for name, said in costs.items() if is_for(budget, name)}
        if not mine:
            alike = [one for one in costs if is_slip(pattern, one) or fnmatchcase(folded(one), folded(pattern))]
            if alike:
                raise _bad(f"{budget} is for {budget.tool!r}, which is not a tool; did you mean {alike[0]!r}?", origin)
            close = close_to(budget.tool, costs)
            meant = f"; did you mean {close[0]!r}?" if close else ""
            warnings.append(f"budgets: {budget} is for {budget.tool!r}, which is not a tool here{meant} ({origin})")
            continue
        if budget.unit == CALLS or any(callable(said) for said in mine.values()):
            continue
        known = {unit for said in mine.values() if said is not None for unit, _, _ in costs_in(said)}
        if budget.unit in known:
            continue
        if alike := [CALLS] if budget.unit == "call" else [one for one in sorted(known) if is_slip(budget.unit, one)]:
            raise _bad(f"{budget}: no call costs {budget.unit!r}; did you mean {alike[0]!r}?", origin)
        warnings.append(
            f"budgets: {budget} stops nothing: none of its tools has a cost= in {budget.unit}; "
            f"it counts only what a body reports with spent(..., {budget.unit!r}) ({origin})"
        )
    return warnings


def _bad(problem: str, origin: str) -> BadConfig:
    return BadConfig(f"budgets: {problem} ({origin})", setting="budgets", origin=origin)


# ---- The ledger itself


@dataclass(frozen=True, slots=True)
class Schema:
    """The schema version of a ledger, and the versions that this amends supports."""

    version: int
    """0: there is no ledger yet."""
    newest: int
    """The newest schema version that this amends supports."""
    needs: int
    """The schema version that an amends must support to use the ledger."""
    pending: tuple[str, ...]
    """The migrations that this amends would apply."""
    ledger: str = ""
    """The ledger's own name, chosen when it was created."""


@dataclass(frozen=True, slots=True)
class Collected:
    """What gc removed, or would remove in a dry run."""

    runs: int
    """The number of run trees."""
    calls: int
    bytes: int
    """The bytes of removed text; a database frees the space later."""
    kept: Mapping[str, int] = field(default_factory=dict)
    """How many ended trees were kept, by reason."""
    dry_run: bool = False

"""Budgets and costs: what is declared, checked, and counted in exact amounts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, TypeAlias, get_args
from unicodedata import normalize

from amends.encoding.dataclass import dataclass
from amends.errors import (
    BadConfig,
    amount_words,
    close_to,
    folded,
    is_slip,
)

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
class Charged:
    """What one call took of a budget."""

    call_id: str
    run_id: str
    tool: str
    agent: str | None
    at: datetime
    spent: Decimal
    reserved: Decimal
    """Reserved while the call has no result yet, or is in doubt."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        facts = {"call_id": self.call_id, "run_id": self.run_id, "tool": self.tool, "agent": self.agent}
        return facts | {"at": self.at.isoformat(), "spent": str(self.spent), "reserved": str(self.reserved)}


@dataclass(frozen=True, slots=True)
class Spending:
    """One budget in its present period, and which of the newest calls were charged to it."""

    state: BudgetState
    charged: tuple[Charged, ...]
    """Oldest first. What was spent before the first of them is not here, but is part of ``state.spent``."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return self.state.to_dict() | {"charged": [one.to_dict() for one in self.charged]}


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

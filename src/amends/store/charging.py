"""What a call has taken from budgets: kept with the call, and moved on with its state in the same transaction."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

from amends.budget import ONE, amount_in, text_of
from amends.budgetrows import Bill, FindSlice, SliceRow, UpdateSlice, Want

SLICES: Final = 8
"""Of a budget that runs share: so many of them can start calls without waiting for each other."""
PLANNED: Final = "planned"
"""Nothing is taken yet: it is held, or staged."""
RESERVED: Final = "reserved"
SPENT: Final = "spent"
FAILED: Final = "failed"
"""Given back, but for what the body said that it spent before it failed."""
REFUNDED: Final = "refunded"
LOST: Final = frozenset({"lost", "cancelled"})
"""Why a read failed of which nobody knows whether it was sent: what it cost may be gone."""


@dataclass(slots=True)
class Charge:
    """The cost of one call, in billionths."""

    phase: str = PLANNED
    costs: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By unit: what was asked for, and the share of it that a compensation gives back."""
    taken: list[tuple[str, str, int]] = field(default_factory=list)
    """Slice, unit and amount of every reservation."""
    wants: tuple[Want, ...] = ()
    said: dict[str, int] = field(default_factory=dict)
    """What the body said that it spent, by unit."""

    def actual(self, unit: str) -> int:
        """What it cost in the end: the body's word, else what was asked for."""
        return self.said[unit] if unit in self.said else self.costs.get(unit, (0, 0))[0]

    def standing(self, unit: str, asked: int, phase: str) -> tuple[int, int]:
        """What a reservation of so much holds in this phase: reserved, spent."""
        match phase:
            case "reserved":
                return asked, 0
            case "spent":
                return 0, self.actual(unit)
            case "failed":
                return 0, self.said.get(unit, 0)
            case "refunded":
                actual = self.actual(unit)
                return 0, actual - actual * self.costs.get(unit, (0, ONE))[1] // ONE
        return 0, 0

    def totals(self, phase: str = "") -> dict[str, str]:
        """What it costs by unit as it stands, or would in this phase: for people and for events."""
        by_unit = {
            unit: sum(self.standing(unit, asked, phase or self.phase)) for unit, (asked, _) in self.costs.items()
        }
        return {unit: text_of(amount) for unit, amount in by_unit.items()}


def read_charge(text: str) -> Charge:
    """What ``written`` wrote."""
    found: dict[str, Any] = json.loads(text)
    return Charge(
        phase=found["is"],
        costs={unit: (amount_in(amount), amount_in(back)) for unit, amount, back in found["costs"]},
        taken=[(name, unit, amount_in(amount)) for name, unit, amount in found.get("taken", ())],
        wants=tuple(Want(**one) for one in found.get("wants", ())),
        said={unit: amount_in(amount) for unit, amount in found.get("said", {}).items()},
    )


def written(charge: Charge) -> str:
    """A charge as the call's row keeps it."""
    kept: dict[str, Any] = {
        "is": charge.phase,
        "costs": [[unit, text_of(amount), text_of(back)] for unit, (amount, back) in charge.costs.items()],
    }
    if charge.taken:
        kept["taken"] = [[name, unit, text_of(amount)] for name, unit, amount in charge.taken]
    if charge.wants:
        kept["wants"] = [{name: getattr(want, name) for name in Want.__dataclass_fields__} for want in charge.wants]
    if charge.said:
        kept["said"] = {unit: text_of(amount) for unit, amount in charge.said.items()}
    return json.dumps(kept, ensure_ascii=False)


def planned(bill: Bill) -> Charge:
    """What a call will take when it starts."""
    return Charge(PLANNED, {unit: (amount, back) for unit, amount, back in bill.costs}, wants=bill.wants)


def _next_phase(charge: Charge, to: str) -> str:
    match to:
        case "succeeded":
            return SPENT
        case "failed" | "dropped" | "refused" if charge.phase in (RESERVED, PLANNED):
            return FAILED
        case "compensated":
            return REFUNDED
    return charge.phase  # a doubt keeps what it has reserved, and so does residue


async def moved_on(text: str, to: str, *, kind: str, why: str = "") -> tuple[str, dict[str, str]]:
    """The charge of a call that goes to this state, its slices changed with it; and what it holds by unit then."""
    charge = read_charge(text)
    if kind == "read" and to == "failed" and why in LOST and charge.phase == RESERVED:
        charge.said = {unit: amount for unit, (amount, _) in charge.costs.items()} | charge.said
    phase = _next_phase(charge, to)
    if phase == charge.phase:
        return text, {}
    shifts: dict[str, tuple[int, int]] = {}
    for name, unit, asked in charge.taken:
        before, after = charge.standing(unit, asked, charge.phase), charge.standing(unit, asked, phase)
        reserved, spent = shifts.get(name, (0, 0))
        shifts[name] = reserved + after[0] - before[0], spent + after[1] - before[1]
    await _shift({name: shift for name, shift in shifts.items() if any(shift)})
    charge.phase = phase
    return written(charge), charge.totals()


async def _shift(shifts: dict[str, tuple[int, int]]) -> None:
    """Change these slices. One that has more to bear than it was allotted is given what its siblings have left."""
    grown = [name for name, shift in shifts.items() if sum(shift) > 0]
    names = {*shifts, *(sibling for name in grown for sibling in slice_names(name))}
    rows: dict[str, SliceRow] = {}
    for name in sorted(names):  # in the order in which everybody takes them
        row = await FindSlice(name)
        if row is not None:  # gc takes the slices of a run that ended long ago
            rows[name] = row
    for name, (reserved, spent) in shifts.items():
        if name in rows:
            texts = {
                "reserved": amount_in(rows[name].reserved) + reserved,
                "spent": amount_in(rows[name].spent) + spent,
            }
            rows[name] = await UpdateSlice(rows[name], {column: text_of(amount) for column, amount in texts.items()})
    for name in grown:
        await _cover(name, rows)


async def _cover(name: str, rows: dict[str, SliceRow]) -> None:
    for sibling in slice_names(name):
        lack = -free(rows[name]) if name in rows else 0
        given = min(lack, free(rows[sibling])) if sibling in rows and sibling != name else 0
        if given > 0:
            for one, more in ((sibling, -given), (name, given)):
                rows[one] = await UpdateSlice(rows[one], {"allot": text_of(amount_in(rows[one].allot) + more)})


def slice_names(name: str) -> list[str]:
    """All slices of the budget that this one belongs to."""
    ident, is_one_of_many, _ = name.partition("/")
    return [f"{ident}/{number}" for number in range(SLICES)] if is_one_of_many else [ident]


def free(row: SliceRow) -> int:
    """What this slice still has; less than nothing where something cost more than was said before."""
    return amount_in(row.allot) - amount_in(row.reserved) - amount_in(row.spent)

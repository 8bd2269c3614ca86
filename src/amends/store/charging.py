"""What a call has taken from budgets moves on with its state, in the same transaction."""

from __future__ import annotations

from typing import Final

from amends.budget import amount_in, text_of
from amends.budgetrows import FindSlice, SliceRow, UpdateSlice
from amends.charges import FAILED, PLANNED, REFUNDED, RESERVED, SPENT, Charge, read_charge, written

SLICES: Final = 8
"""Of a budget that runs share: so many of them can start calls without waiting for each other."""
LOST: Final = frozenset({"lost", "cancelled"})
"""Why a read failed of which nobody knows whether it was sent: what it cost may be gone."""


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
    siblings = [sibling for sibling in slice_names(name) if sibling in rows]
    for sibling in siblings:
        lack = -free(rows[name]) if name in rows else 0
        given = min(lack, free(rows[sibling])) if sibling != name else 0
        if given > 0:
            for one, more in ((sibling, -given), (name, given)):
                rows[one] = await UpdateSlice(rows[one], {"allot": text_of(amount_in(rows[one].allot) + more)})
    if name in rows and free(rows[name]) < 0:
        # The cap is passed. What a sibling gives back is not free before that is made up for, so all of them lack it.
        left = amount_in(rows[name].cap) - sum(_used(rows[sibling]) for sibling in siblings)
        for sibling in siblings:
            if free(rows[sibling]) > left:
                rows[sibling] = await UpdateSlice(rows[sibling], {"allot": text_of(_used(rows[sibling]) + left)})


def slice_names(name: str) -> list[str]:
    """All slices of the budget that this one belongs to."""
    ident, is_one_of_many, _ = name.partition("/")
    return [f"{ident}/{number}" for number in range(SLICES)] if is_one_of_many else [ident]


def free(row: SliceRow) -> int:
    """What this slice still has; less than nothing where something cost more than was said before."""
    return amount_in(row.allot) - _used(row)


def _used(row: SliceRow) -> int:
    return amount_in(row.reserved) + amount_in(row.spent)

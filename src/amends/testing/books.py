"""Whether the budgets of a ledger agree with its calls: what is reserved and spent is what calls have, no more, no less."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

from amends.budget import amount_in, text_of
from amends.budgetrows import SliceRow
from amends.charges import read_charge
from amends.rows import CallRow
from amends.states import UNSETTLED
from amends.store.memory import MemoryStore


def imbalances(slices: Iterable[SliceRow], calls: Iterable[CallRow]) -> Iterator[str]:
    """Every slice that does not hold what the calls say, and every budget whose slices would let its cap be passed."""
    held: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for call in calls:
        if not call.cost:
            continue
        charge = read_charge(call.cost)
        for name, unit, asked in charge.taken:
            for place, amount in enumerate(charge.standing(unit, asked, charge.phase)):
                held[name][place] += amount
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    caps: dict[str, set[str]] = defaultdict(set)
    for row in slices:
        expected = tuple(map(text_of, held[row.name]))
        if (row.reserved, row.spent) != expected:
            yield f"slice {row.name} has {row.reserved} reserved and {row.spent} spent; its calls have {expected}"
        ident = row.name.partition("/")[0]
        used = amount_in(row.reserved) + amount_in(row.spent)
        for place, amount in enumerate((amount_in(row.allot), used, max(0, amount_in(row.allot) - used))):
            sums[ident][place] += amount
        caps[ident].add(row.cap)
    for ident, texts in caps.items():
        allotted, used, free = sums[ident]
        cap = amount_in(min(texts))
        # Less than the cap where it was passed once, until they are dealt out anew; never more, and never more free.
        if len(texts) > 1 or allotted > cap or free > max(0, cap - used):
            yield f"the slices of budget {ident} are allotted {text_of(allotted)} of {sorted(texts)}"


def overdrawn(slices: Iterable[SliceRow]) -> Iterator[str]:
    """Every budget of which more is spent and reserved than its cap."""
    used: dict[str, int] = defaultdict(int)
    caps: dict[str, tuple[str, str]] = {}
    for row in slices:
        ident = row.name.partition("/")[0]
        used[ident] += amount_in(row.reserved) + amount_in(row.spent)
        caps[ident] = row.cap, row.unit
    for ident, (cap, unit) in caps.items():
        if used[ident] > amount_in(cap):
            yield f"{text_of(used[ident])} {unit} of {cap} is spent or reserved"


def unpaid(calls: Iterable[CallRow]) -> Iterator[str]:
    """Every call that has, or may have, an effect, and has nothing of its budgets."""
    may = (UNSETTLED - {"held", "ready"}) | {"compensating", "compensation_failed", "compensation_in_doubt", "residue"}
    for call in calls:
        if not call.cost or call.state not in may | {"succeeded"}:
            continue
        charge = read_charge(call.cost)
        wanted = "spent" if call.state == "succeeded" else ("reserved", "spent")
        if charge.phase not in wanted:
            yield f"{call.tool} ({call.id}) is {call.state} and what it costs is {charge.phase}"


def overspent(store: MemoryStore, stands: Callable[[str], bool]) -> Iterator[str]:
    """Every budget of which the effects that stand in the world have cost more than its cap."""
    used: dict[str, int] = defaultdict(int)
    for call in store.calls.values():
        if call.cost and stands(call.id):
            charge = read_charge(call.cost)
            if charge.passed:
                continue  # a person let it
            for name, unit, _ in charge.taken:
                used[name.partition("/")[0]] += charge.actual(unit)
    for row in {row.name.partition("/")[0]: row for row in store.slices.values()}.values():
        if used[row.name.partition("/")[0]] > amount_in(row.cap):
            yield f"what stands has cost {text_of(used[row.name.partition('/')[0]])} {row.unit}; the cap is {row.cap}"

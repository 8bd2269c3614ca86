"""What a call has taken from budgets, as its row keeps it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from amends.budget import ONE, amount_in, text_of
from amends.budgetrows import Bill, Overrun, Want
from amends.record import dataclass, field

PLANNED: Final = "planned"
"""Nothing is taken yet: it is held, or staged."""
RESERVED: Final = "reserved"
SPENT: Final = "spent"
FAILED: Final = "failed"
"""Given back, but for what the body said that it spent before it failed."""
REFUNDED: Final = "refunded"


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
    """What the bodies of all attempts said that they spent, by unit."""
    silent: tuple[str, ...] = ()
    """Units that an earlier attempt said something of and the last one nothing: that one costs what was asked for."""
    ask: tuple[str, str] = ("", "")
    """See ``Bill.ask``."""
    passed: str = ""
    """The request by which a person let it pass a cap."""

    def actual(self, unit: str) -> int:
        """What it cost in the end: the body's word, else what was asked for."""
        asked = 0 if unit in self.said and unit not in self.silent else self.costs.get(unit, (0, 0))[0]
        return self.said.get(unit, 0) + asked

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
        silent=tuple(found.get("silent", ())),
        ask=(found["ask"][0], found["ask"][1]) if "ask" in found else ("", ""),
        passed=found.get("passed", ""),
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
    if any(charge.ask) and charge.wants:
        kept["ask"] = charge.ask
    if charge.passed:
        kept["passed"] = charge.passed
    if charge.said:
        kept["said"] = {unit: text_of(amount) for unit, amount in charge.said.items()}
    if charge.silent:
        kept["silent"] = charge.silent
    return json.dumps(kept, ensure_ascii=False)


def begun_again(text: str) -> str:
    """The charge of a call that is started once more: of this attempt nothing is said yet."""
    charge = read_charge(text)
    charge.silent = tuple(charge.said)
    return written(charge)


def planned(bill: Bill) -> Charge:
    """What a call will take when it starts."""
    return Charge(PLANNED, {unit: (amount, back) for unit, amount, back in bill.costs}, wants=bill.wants, ask=bill.ask)


def overrun_in(facts: Mapping[str, Any]) -> Overrun:
    """What a budget refused, from the event of its refusal."""
    every, who, period = (facts.get(name, "") for name in ("every", "who", "period"))
    cap, amount, spent, reserved, asked = (
        amount_in(facts[name]) for name in ("cap", "amount", "spent", "reserved", "asked")
    )
    want = Want(facts["unit"], cap, facts["per"], every, facts["pattern"], facts["then"], who, amount)
    return Overrun(want, spent, reserved, asked, period, facts["tool"])

"""Budgets and costs: how far each budget is from its cap, what calls have cost, and what a cap refused."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, Literal

from pydantic import Field

from amends import CostLine, Event, Spending
from amends.errors import UsageError
from amends.serve.console.pages import Said
from amends.serve.exchange import Exchange

NEWEST: Final = 1_000
"""How many calls a page reads unless its address says more: so many that a large ledger is no slower than a small one."""
NEWEST_MAX: Final = 10_000
BUDGETS_MAX: Final = 60
"""How many budgets are shown: those that are nearest to their caps."""
RUNS_SHOWN: Final = 8
"""How many budgets of single runs are shown."""
LINES_MAX: Final = 50
"""How many lines of costs are shown in each unit."""
REFUSED_MAX: Final = 25
NEAR: Final = Decimal("0.8")
"""From this share of its cap on, a budget is shown as nearly used up."""
WORDS: Final[tuple[tuple[str, str], ...]] = (
    ("tool:", "the tool; * is a wildcard"),
    ("agent:", "the agent that it was for"),
    ("run:", "the run's id"),
    ("tag:", "a tag of its run"),
    ("age:<1h", "not older than an hour; also 30m, 7d"),
    ("state:in_doubt", "what is reserved for doubts"),
    ("cost:>5", "more than 5 usd; cost.tokens:>1000"),
)
"""What the filter box suggests."""
WIDTH, HEIGHT, TOP = 240, 48, 6
"""Of the drawing of a budget's line, in its own units."""


class CostsQuery(Said):
    """What to sum up."""

    by: Literal["run", "agent", "tool", "day"] = "tool"
    filter: str = Field("", max_length=2_000)
    newest: int = Field(NEWEST, ge=1, le=NEWEST_MAX)


async def costs(x: Exchange) -> dict[str, Any]:
    """Return the budgets, the costs of the newest calls, and what budgets refused lately."""
    query: CostsQuery = x.query
    found = await x.rt.spending(newest=query.newest)
    problem: dict[str, str] | None = None
    lines: list[CostLine] = []
    try:
        lines = await x.rt.costs(query.by, query.filter, newest=query.newest)
    except UsageError as error:
        problem = {"detail": str(error), "hint": error.hint}
    refused = await x.rt.recent_events("what:refused", limit=200, looks=2 * NEWEST)
    now = datetime.now(UTC)
    budgets = sorted(
        (_budget(one, now) for one in found), key=lambda one: (-one["share"], one["title"], one["who"] or "")
    )
    shared = [one for one in budgets if one["per"] != "run"]
    of_runs = [one for one in budgets if one["per"] == "run" and one["who"]]
    return {
        "by": query.by,
        "filter": query.filter,
        "problem": problem,
        "words": [list(one) for one in WORDS],
        "newest": query.newest,
        "more": None if query.newest >= NEWEST_MAX else NEWEST_MAX,
        "budgets": shared[:BUDGETS_MAX],
        "budgets_left_out": max(0, len(shared) - BUDGETS_MAX),
        "of_runs": of_runs[:RUNS_SHOWN],
        "of_runs_left_out": max(0, len(of_runs) - RUNS_SHOWN),
        "units": _units(lines, query.by),
        "refused": [_refusal(event) for event in refused.items if event.facts.get("law") == "budget"][:REFUSED_MAX],
        "refused_looked": refused.looked,
    }


# ---- Budgets


def _budget(one: Spending, now: datetime) -> dict[str, Any]:
    state, budget = one.state, one.state.budget
    cap = Decimal(budget.to_dict()["cap"])
    used = state.spent + state.reserved
    share = used / cap if cap else Decimal(1)
    tone = "fail" if state.left <= 0 else "wait" if share >= NEAR else "ok"
    is_single = budget.per == "call"  # nothing adds up: the cap is that of one call
    return {
        "title": _title(budget.per, budget.every, budget.tool),
        "unit": budget.unit,
        "per": budget.per,
        "who": state.who,
        "link": link_of(budget.per, state.who),
        "period": state.period,
        "then": budget.then,
        "cap": str(cap),
        "spent": str(state.spent),
        "reserved": str(state.reserved),
        "left": str(state.left),
        "share": float(min(share, Decimal(9))),
        "tone": "mute" if is_single else tone,
        "word": "per call"
        if is_single
        else {"fail": "used up", "wait": "nearly used up", "ok": "within its cap"}[tone],
        "bar": _bar(state.spent, state.reserved, cap),
        "line": None if is_single else line(one, cap, now),
        "charged": len(one.charged),
        "last": None if not one.charged else one.charged[-1].to_dict(),
    }


def _title(per: str, every: str | None, tool: str) -> str:
    whose = {
        "ledger": "Whole ledger",
        "tenant": "Tenant",
        "tool": "Each tool",
        "agent": "Each agent",
        "run": "Each run",
    }
    when = "" if every is None else f", per {every}"
    return f"{whose.get(per, 'Each call')}{when}{'' if tool == '*' else f', only {tool}'}"


def link_of(what: str, name: str | None) -> dict[str, str] | None:
    """Return where the page about a run, tool or agent is: below an address, or by a filter; None: there is none."""
    if not name:
        return None
    if what == "agent":
        return None if '"' in name else {"to": "/runs", "name": "", "filter": f'agent:"{name}"'}
    there = {"run": "/runs", "tool": "/tools"}.get(what)
    return None if there is None else {"to": there, "name": name, "filter": ""}


def _bar(spent: Decimal, reserved: Decimal, cap: Decimal) -> dict[str, float]:
    """Return the parts of a bar that is 100 wide: its end is the cap, or what is used if that is more."""
    whole = max(cap, spent + reserved) or Decimal(1)
    first, second = 100 * spent / whole, 100 * reserved / whole
    return {"spent": _round(first), "reserved": _round(second), "cap": _round(100 * cap / whole)}


def line(one: Spending, cap: Decimal, now: datetime) -> dict[str, Any]:
    """Return the line of what was used of a budget, as the path of a drawing: it ends at what is used now.

    What the calls took that are known goes back from there; before the first of them the line is flat.
    """
    used = one.state.spent + one.state.reserved
    steps = [(step.at, step.spent + step.reserved) for step in one.charged if step.spent + step.reserved]
    begin = min((at for at, _ in steps), default=now)
    seconds = max((now - begin).total_seconds(), 1.0)
    whole = max(cap, used) or Decimal(1)

    def across(at: datetime) -> float:
        return _round(WIDTH * max(0.0, (at - begin).total_seconds()) / seconds)

    def down(amount: Decimal) -> float:
        return _round(HEIGHT - (HEIGHT - TOP) * amount / whole)

    level = used - sum((amount for _, amount in steps), Decimal(0))
    parts = [f"M0 {down(level):g}"]
    for at, amount in steps:
        level += amount
        parts.append(f"H{across(at):g}V{down(level):g}")
    parts.append(f"H{WIDTH}")
    drawn = "".join(parts)
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "path": drawn,
        "area": f"{drawn}V{HEIGHT}H0Z",
        "cap": down(cap),
        "since": begin.isoformat() if steps else None,
        "steps": len(steps),
    }


def _round(value: float | Decimal) -> float:
    return round(float(value), 2)


# ---- Costs


def _units(lines: Sequence[CostLine], by: str) -> list[dict[str, Any]]:
    """Return the lines of each unit apart, with what they add up to: amounts of two units are never added."""
    found: list[dict[str, Any]] = []
    for unit in dict.fromkeys(one.unit for one in lines):
        mine = [one for one in lines if one.unit == unit and (one.calls or one.spent or one.reserved)]
        if not mine:
            continue
        mine = sorted(mine, key=lambda one: one.what, reverse=True) if by == "day" else mine
        most = max((one.spent + one.reserved for one in mine), default=Decimal(0)) or Decimal(1)
        found.append(
            {
                "unit": unit,
                "spent": str(sum((one.spent for one in mine), Decimal(0))),
                "reserved": str(sum((one.reserved for one in mine), Decimal(0))),
                "calls": sum(one.calls for one in mine),
                "left_out": max(0, len(mine) - LINES_MAX),
                "lines": [_cost(one, by, most) for one in mine[:LINES_MAX]],
            }
        )
    return found


def _cost(one: CostLine, by: str, most: Decimal) -> dict[str, Any]:
    return one.to_dict() | {
        "link": link_of(by, one.what),
        "bar": {"spent": _round(100 * one.spent / most), "reserved": _round(100 * one.reserved / most)},
    }


# ---- What a cap refused


def _refusal(event: Event) -> dict[str, Any]:
    facts = event.facts
    return {
        "at": event.at.isoformat(),
        "run": event.run_id,
        "after": max(0, event.seq - 10) or "",
        "place": event.place,
        "tool": str(facts.get("tool", "")),
        "unit": str(facts.get("unit", "")),
        "title": _title(str(facts.get("per", "")), facts.get("every") or None, str(facts.get("pattern") or "*")),
        "who": facts.get("who") if facts.get("per") in ("agent", "tool") else None,
        "cap": str(facts.get("cap", "")),
        "asked": str(facts.get("asked", "")),
        "spent": str(facts.get("spent", "")),
        "reserved": str(facts.get("reserved", "")),
        "then": str(facts.get("then", "")),
        "by": event.by,
    }

"""``amends budget`` and ``amends cost``: what may still be spent, and what was."""

from __future__ import annotations

from amends import BudgetState, CostLine
from amends.cli.access import reading, working
from amends.cli.codes import BUDGET_REFUSED, DONE
from amends.cli.reading import nothing
from amends.cli.show import put_json, put_table, say
from amends.errors import UsageError
from amends.visible import visible

BY = ("run", "tool", "agent", "day")


def show_budgets(
    filter: str, *, check: bool, app: str | None, url: str | None, tenant: str | None, as_json: bool
) -> int:
    """See ``amends budget``."""
    with working(app, url=url, tenant=tenant) as rt:
        found = rt.budgets(filter)
        ledger = rt.settings["url"].value
    if as_json:
        for state in found:
            put_json(state.to_dict())
    else:
        head = ("budget", "of", "period", "spent", "reserved", "left", "then")
        put_table(head, [_budget_row(state) for state in found])
    if not found:
        say(nothing("budget", filter, ledger))
    return BUDGET_REFUSED if check and any(state.left <= 0 for state in found) else DONE


def show_costs(filter: str, *, by: str, limit: int, url: str | None, tenant: str | None, as_json: bool) -> int:
    """See ``amends cost``."""
    if by not in BY:
        raise UsageError(f"costs are not told by {visible(by)}", hint=f"say one of {', '.join(BY)}")
    with reading(url, tenant) as rt:
        lines = rt.costs(by, filter)  # type: ignore[arg-type]
        ledger = rt.settings["url"].value
    found = lines[:limit]
    if as_json:
        for line in found:
            put_json(line.to_dict())
    else:
        put_table((by, "calls", "spent", "reserved", "unit"), [_cost_row(line) for line in found])
    if not found:
        say(nothing("call that cost anything", filter, ledger))
    elif len(lines) > limit:
        say(f"the first {limit} of {len(lines)}; --limit shows more")
    return DONE


def _budget_row(state: BudgetState) -> tuple[str, ...]:
    budget = state.budget
    amounts = (f"{amount:f}" for amount in (state.spent, state.reserved, state.left))
    who = visible(state.who) if state.who else ""
    return (visible(str(budget), prose=True), who, state.period or "", *amounts, budget.then)


def _cost_row(line: CostLine) -> tuple[str, ...]:
    return (
        visible(line.what) if line.what else "(none)",
        str(line.calls),
        f"{line.spent:f}",
        f"{line.reserved:f}",
        visible(line.unit),
    )

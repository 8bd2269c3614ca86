"""``amends budgets`` and ``amends costs``: what may still be spent, and what was spent."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from amends import BudgetState, CostLine
from amends.cli.access import open_ledger, open_runtime
from amends.cli.exit_codes import BUDGET_REFUSED, DONE
from amends.cli.options import LIMIT, App, Filter, Json, LedgerOf, Limit, Tenant, Url, filter_of, group
from amends.cli.output import put_json, put_table, say, say_none
from amends.errors import UsageError
from amends.visible import visible

GROUPINGS: Final = ("run", "tool", "agent", "day")

verbs = group()


@verbs.command()
def budgets(
    filter: Annotated[
        list[str] | None, typer.Argument(metavar="[FILTER]...", help="For example: unit:usd per:agent who:clerk")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Exit with code 13 if a budget has nothing left.")] = False,
    app: App = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Show what is spent, reserved and left of each budget."""
    wanted = filter_of(filter, lists="budgets")
    with open_runtime(app, url=url, tenant=tenant) as rt:
        found = rt.budgets(wanted)
        ledger = rt.settings["url"].value
    if as_json:
        for state in found:
            put_json(state.to_dict(), id=str(state.budget))
    else:
        head = ("budget", "of", "period", "spent", "reserved", "left", "then")
        put_table(head, [_budget_row(state) for state in found])
    if not found:
        say_none("budget", ledger, filter=wanted)
    return BUDGET_REFUSED if check and any(state.left <= 0 for state in found) else DONE


@verbs.command()
def costs(
    filter: Filter = None,
    by: Annotated[str, typer.Option("--by", metavar="run|tool|agent|day", help="What to group the costs by.")] = "run",
    limit: Limit = LIMIT,
    app: LedgerOf = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Add up what calls cost, by run, tool, agent or day."""
    if by not in GROUPINGS:
        raise UsageError(f"costs cannot be grouped by {visible(by)}", hint=f"use one of {', '.join(GROUPINGS)}")
    wanted = filter_of(filter, lists="costs")
    with open_ledger(url, tenant, app=app) as rt:
        lines = rt.costs(by, wanted)  # type: ignore[arg-type]
        ledger = rt.settings["url"].value
    found = lines[:limit]
    if as_json:
        for line in found:
            put_json(line.to_dict(), id=line.what)
    else:
        put_table((by, "calls", "spent", "reserved", "unit"), [_cost_row(line) for line in found])
    if not found:
        say_none("call that cost anything", ledger, filter=wanted)
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

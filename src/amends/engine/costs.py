"""Compute what a request costs, and which budgets it counts against."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from amends.budgets import CALLS, ONE, Budget, billionths, costs_in, decimal_of, is_for
from amends.errors import (
    BadCost,
    BudgetExceeded,
    described,
    is_a,
    is_slip,
    words_of,
)
from amends.ledger.rows import FREE, BudgetDemand, CallCost, Overrun
from amends.model import Request
from amends.tools.spec import Spec


def cost_of(
    spec: Spec, request: Request, budgets: Sequence[Budget], root: str, *, scrub: Callable[[str], str] = str
) -> CallCost:
    """Return the cost of this request and the budgets to charge; raise ``BadCost`` before anything runs.

    ``scrub`` removes the hidden values of the request from a text; the function in ``cost=`` sees them.
    """
    costs = () if spec.cost is None else _declared_costs(spec, request, scrub)
    mine = [budget for budget in budgets if is_for(budget, spec.name)]
    if mine and callable(spec.cost):
        _check_units(spec, request, {unit for unit, _, _ in costs}, {budget.unit for budget in mine})
    if any(budget.unit == CALLS for budget in mine) and not any(unit == CALLS for unit, _, _ in costs):
        costs = (*costs, (CALLS, ONE, 0))
    if not costs:
        return FREE
    return CallCost(costs, budget_demands(mine, {unit: amount for unit, amount, _ in costs}, request, root))


def _declared_costs(spec: Spec, request: Request, scrub: Callable[[str], str]) -> tuple[tuple[str, int, int], ...]:
    try:
        return costs_in(spec.cost(request) if callable(spec.cost) else spec.cost)
    except Exception as error:
        text = words_of(error) if is_a(error, ValueError) else described(error)
        why = scrub(text)
        # A traceback shows the cause and its text: no cause where it would tell a hidden value.
        raise BadCost(spec.name, why=why[:500], run_id=request.run_id) from (error if why == text else None)


def _check_units(spec: Spec, request: Request, units: AbstractSet[str], capped: AbstractSet[str]) -> None:
    """Raise ``BadCost`` for a unit that is probably a misspelled unit of a budget.

    It would not count against that budget.
    """
    for unit in units - capped:
        for known in capped - units:
            if is_slip(unit, known):
                raise BadCost(
                    spec.name,
                    why=f"no budget is in {unit!r}; did you mean {known!r}?",
                    run_id=request.run_id,
                )


def budget_demands(
    budgets: Sequence[Budget], amounts: Mapping[str, int], request: Request, root: str
) -> tuple[BudgetDemand, ...]:
    """Return what is needed of these budgets. Of two budgets that differ only in the cap, the lower cap holds."""
    found: dict[tuple[str, ...], BudgetDemand] = {}
    for budget in budgets:
        if budget.unit not in amounts or not is_for(budget, request.tool):
            continue
        who = {"run": root, "agent": request.agent or "", "tool": request.tool}.get(budget.per, "")
        ident = (budget.unit, budget.per, budget.every or "", budget.tool, budget.then)
        cap = billionths(budget.cap)
        if ident in found:
            cap = min(cap, found[ident].cap)
        unit, per, every, tool, then = ident
        found[ident] = BudgetDemand(unit, cap, per, every, tool, then, who, amounts[unit])
    return tuple(found.values())


def undeclared_demands(
    reported: Mapping[str, int], cost: CallCost, budgets: Sequence[Budget], request: Request, root: str
) -> tuple[BudgetDemand, ...]:
    """Return the budgets to charge for reported units that were not declared.

    Nothing can be reserved, because it is already spent.
    """
    declared = {unit for unit, _, _ in cost.costs}
    return budget_demands(budgets, dict.fromkeys(set(reported) - declared, 0), request, root)


def exceeded(tool: str, over: Overrun, run_id: str) -> BudgetExceeded:
    """Return the error for a call that would have exceeded a budget."""
    want = over.want
    budget = Budget(
        decimal_of(want.cap),
        want.unit,
        want.per,  # type: ignore[arg-type]  # the ledger's own words
        want.every or None,  # type: ignore[arg-type]
        want.tool,
        want.then,  # type: ignore[arg-type]
    )
    amounts = {name: decimal_of(getattr(over, name)) for name in ("spent", "reserved", "asked", "left")}
    return BudgetExceeded(over.tool or tool, budget=budget, period=over.period or None, run_id=run_id, **amounts)

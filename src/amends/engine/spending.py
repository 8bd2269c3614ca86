"""What a request costs, and which budgets it comes out of. Asked before anything is recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from amends.budget import CALLS, ONE, Budget, billionths, costs_in, decimal_of, is_for
from amends.budgetrows import FREE, Bill, Overrun, Want
from amends.errors import BadCost, BudgetExceeded
from amends.model import Request
from amends.phrases import described, is_a, is_slip, words_of
from amends.tool import Spec


def bill_for(
    spec: Spec, request: Request, budgets: Sequence[Budget], root: str, *, scrub: Callable[[str], str] = str
) -> Bill:
    """What this request costs and what it must be reserved of; raises ``BadCost`` before anything runs.

    ``scrub``: takes out of a text what is hidden of the request; the function of ``cost=`` sees it.
    """
    costs = () if spec.cost is None else _said(spec, request, scrub)
    mine = [budget for budget in budgets if is_for(budget, spec.name)]
    if mine and callable(spec.cost):
        _check_units(spec, request, {unit for unit, _, _ in costs}, {budget.unit for budget in mine})
    if any(budget.unit == CALLS for budget in mine) and not any(unit == CALLS for unit, _, _ in costs):
        costs = (*costs, (CALLS, ONE, 0))
    if not costs:
        return FREE
    return Bill(costs, wants_of(mine, {unit: amount for unit, amount, _ in costs}, request, root))


def _said(spec: Spec, request: Request, scrub: Callable[[str], str]) -> tuple[tuple[str, int, int], ...]:
    try:
        return costs_in(spec.cost(request) if callable(spec.cost) else spec.cost)
    except Exception as error:
        said = words_of(error) if is_a(error, ValueError) else described(error)
        why = scrub(said)
        # A traceback shows what an error comes from, with what it says: not where that tells what is hidden.
        raise BadCost(spec.name, why=why[:500], run_id=request.run_id) from (error if why == said else None)


def _check_units(spec: Spec, request: Request, said: AbstractSet[str], capped: AbstractSet[str]) -> None:
    """Raise ``BadCost`` for a unit that is probably a budget's, mistyped: it would spend past that cap."""
    for unit in said - capped:
        for meant in capped - said:
            if is_slip(unit, meant):
                raise BadCost(
                    spec.name,
                    why=f"no budget is in {unit!r}; did you mean {meant!r}?",
                    run_id=request.run_id,
                )


def wants_of(budgets: Sequence[Budget], amounts: Mapping[str, int], request: Request, root: str) -> tuple[Want, ...]:
    """What these budgets are asked for. Of two that differ in nothing but the cap the lower one is both."""
    found: dict[tuple[str, ...], Want] = {}
    for budget in budgets:
        if budget.unit not in amounts or not is_for(budget, request.tool):
            continue
        who = {"run": root, "agent": request.agent or "", "tool": request.tool}.get(budget.per, "")
        ident = (budget.unit, budget.per, budget.every or "", budget.tool, budget.then)
        cap = billionths(budget.cap)
        if ident in found:
            cap = min(cap, found[ident].cap)
        unit, per, every, tool, then = ident
        found[ident] = Want(unit, cap, per, every, tool, then, who, amounts[unit])
    return tuple(found.values())


def unreserved(
    said: Mapping[str, int], bill: Bill, budgets: Sequence[Budget], request: Request, root: str
) -> tuple[Want, ...]:
    """The budgets of what a body spent and nobody had foreseen: nothing is asked of them, it is gone already."""
    asked = {unit for unit, _, _ in bill.costs}
    return wants_of(budgets, dict.fromkeys(set(said) - asked, 0), request, root)


def exceeded(tool: str, over: Overrun, run_id: str) -> BudgetExceeded:
    """The typed error for a call that would have passed a cap."""
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

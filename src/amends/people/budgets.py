"""The state of budgets and the costs of calls, read from the ledger. Nothing here reserves or charges."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from decimal import Decimal
from itertools import groupby
from typing import Any, Final, Literal, TypeAlias

from amends.budgets import Budget, BudgetState, Charged, CostLine, Spending, amount_in, billionths, decimal_of
from amends.engine.session import moment
from amends.errors import UsageError
from amends.host.filters import BUDGET_FIELDS, CALL_FIELDS, Filter, parse_filter
from amends.host.host import Host, View
from amends.host.listing import PAGE, Pages, narrowing
from amends.host.recent import newest_rows
from amends.ledger.budgets import RESERVED, names_of, period_of, read_charge, slice_names
from amends.ledger.operations import ListBudgets, ReadSlices, SearchCalls
from amends.ledger.rows import BudgetDemand, CallRow, SliceRow
from amends.ledger.world import ReadClocks

By: TypeAlias = Literal["run", "tool", "agent", "day"]
PAGES_MAX: Final = 100_000
"""Pages that one listing reads at most."""
NAMES_AT_ONCE: Final = 128


async def budgets(host: Host, view: View, filter: str = "") -> list[BudgetState]:
    """Return the state of every budget in its present period: spent, reserved for calls in progress, left.

    These are the budgets that some call was charged to, and the declared ones that none was charged to yet.
    """
    wanted = parse_filter(filter, BUDGET_FIELDS)
    tenant, after, now = view.tenant or "", "", 0.0
    rows: list[SliceRow] = []
    for _ in range(PAGES_MAX):
        page, now = await ListBudgets(tenant, after, PAGE)
        rows += page
        if len(page) < PAGE:
            break
        after = page[-1].name
    slices = groupby(rows, key=lambda row: row.name.partition("/")[0])
    found = [_with_declared_cap(_state(list(mine)), host.budgets) for _, mine in slices]
    found += _untouched(host.budgets, found, now, has_tenant=bool(tenant))
    return sorted((one for one in found if _takes(wanted, one, now)), key=_order)


def _state(slices: list[SliceRow]) -> BudgetState:
    first = slices[0]
    words = json.loads(first.words)
    spent, reserved = (sum(amount_in(getattr(row, name)) for row in slices) for name in ("spent", "reserved"))
    budget = Budget(
        decimal_of(amount_in(first.cap)),
        first.unit,
        words["per"],
        words["every"] or None,
        words["tool"],
        words["then"],
    )
    left = max(0, amount_in(first.cap) - spent - reserved)
    return BudgetState(
        budget, words["who"] or None, first.period or None, decimal_of(spent), decimal_of(reserved), decimal_of(left)
    )


def _with_declared_cap(state: BudgetState, declared: Iterable[Budget]) -> BudgetState:
    """Use the cap that is declared here: the ledger has that of the last call. A run may have a lower cap of its own."""
    budget = state.budget
    caps = [billionths(one.cap) for one in declared if _ident(one) == _ident(budget)]
    if not caps:
        return state
    known = [billionths(budget.cap)] if budget.per == "run" else []
    cap = decimal_of(min([*caps, *known]))
    left = max(Decimal(0), cap - state.spent - state.reserved)
    return replace(state, budget=replace(budget, cap=cap), left=left)


def _untouched(
    declared: Iterable[Budget], found: list[BudgetState], now: float, *, has_tenant: bool
) -> Iterator[BudgetState]:
    known = {(_ident(one.budget), one.period) for one in found}
    for budget in declared:
        period = period_of(budget.every or "", now) or None
        if (_ident(budget), period) not in known and not (has_tenant and budget.per == "ledger"):
            zero, cap = Decimal(0), decimal_of(billionths(budget.cap))
            yield BudgetState(budget, None, period, zero, zero, cap)


def _ident(budget: Budget) -> tuple[Any, ...]:
    return budget.unit, budget.per, budget.every, budget.tool, budget.then


def _takes(wanted: Filter, state: BudgetState, now: float) -> bool:
    if "period" not in wanted.words and (state.period or "") != period_of(state.budget.every or "", now):
        return False
    budget = state.budget
    return wanted.takes(
        {
            "unit": budget.unit,
            "per": budget.per,
            "tool": budget.tool,
            "who": state.who or "",
            "period": state.period or "",
        }
    )


def _order(state: BudgetState) -> tuple[str, ...]:
    budget = state.budget
    return budget.per, budget.unit, budget.tool, state.who or "", state.period or ""


# ---- What the newest calls took of which budget


async def spending(host: Host, view: View, filter: str = "", *, newest: int = 1_000) -> list[Spending]:
    """Return the budgets that the newest calls were charged to, and the declared ones, with what each call took.

    ``newest``: how many calls are read; the filter is that of ``budgets``. A budget that is not declared here, and that
    none of these calls was charged to, is not among them: ``budgets`` reads them all.
    """
    wanted = parse_filter(filter, BUDGET_FIELDS)
    tenant = view.tenant or ""
    rows = await newest_rows(view, newest)
    charged: dict[str, list[Charged]] = {}
    names: dict[str, None] = {}
    for row in reversed(rows):
        for name, one in _charged(row):
            charged.setdefault(name.partition("/")[0], []).append(one)
            names |= dict.fromkeys(slice_names(name))
    agents = {*host.agents, *(row.agent for row in rows)}
    tools = {*host.specs, *(row.tool for row in rows)}
    wall = (await ReadClocks()).wall
    for budget in host.budgets:
        for who in {"agent": agents, "tool": tools, "run": (), "call": ()}.get(budget.per, {""}):
            demand = BudgetDemand(budget.unit, 0, budget.per, budget.every or "", budget.tool, budget.then, who, 0)
            names |= dict.fromkeys(names_of(demand, tenant, period_of(budget.every or "", wall)))
    states, now = await _named_states(host, tenant, tuple(names))
    found = [Spending(state, tuple(charged.get(ident, ()))) for ident, state in states.items()]
    untouched = _untouched(host.budgets, [one.state for one in found], now or wall, has_tenant=bool(tenant))
    found += [Spending(state, ()) for state in untouched]
    return sorted((one for one in found if _takes(wanted, one.state, now or wall)), key=lambda one: _order(one.state))


async def _named_states(host: Host, tenant: str, names: tuple[str, ...]) -> tuple[dict[str, BudgetState], float]:
    """Return the states of these budgets by their identities, and the ledger's time."""
    slices: dict[str, list[SliceRow]] = {}
    now = 0.0
    for start in range(0, len(names), NAMES_AT_ONCE):
        page, now = await ReadSlices(tenant, names[start : start + NAMES_AT_ONCE])
        for row in page:
            slices.setdefault(row.name.partition("/")[0], []).append(row)
    return {ident: _with_declared_cap(_state(mine), host.budgets) for ident, mine in slices.items()}, now


def _charged(row: CallRow) -> Iterator[tuple[str, Charged]]:
    """Yield each slice that this call was charged to, and what it took there."""
    if not row.cost:
        return
    charge, at = read_charge(row.cost), moment(row.first_at or row.created_at)
    assert at is not None, "a call was made at some time"
    for name, unit, asked in charge.taken:
        reserved, spent = charge.standing(unit, asked, charge.phase)
        agent = row.agent or None
        yield name, Charged(row.id, row.run_id, row.tool, agent, at, decimal_of(spent), decimal_of(reserved))


# ---- What calls have cost


async def costs(
    _host: Host, view: View, by: By = "run", filter: str = "", *, newest: int | None = None
) -> list[CostLine]:
    """Sum up what calls have cost, by run, tool, agent or day; the filter is that of ``calls``.

    ``newest``: read so many calls at most, the newest; None: all of the ledger.
    """
    if by not in ("run", "tool", "agent", "day"):
        raise UsageError(f"costs are summed up by run, tool, agent or day, not by {by!r}")
    wanted = parse_filter(filter, CALL_FIELDS)
    sums: dict[tuple[str, str], list[int]] = {}
    if newest is not None:
        rows = [row for row in await newest_rows(view, newest) if row.cost and wanted.takes_call(row)]
        narrow = narrowing(wanted, "tag")
        for row in rows if narrow is None else await narrow.rows(rows):
            _add(sums, row, by)
        return _lines(sums)
    tenant = view.tenant or ""
    pages: Pages[CallRow] = Pages(
        SearchCalls(tenant, wanted.states, None, PAGE),
        lambda row: SearchCalls(tenant, wanted.states, row.id, PAGE),
        lambda row: bool(row.cost) and not row.is_loaded and wanted.takes_call(row),
        lambda row: row,
        narrow=narrowing(wanted, "tag"),
    )
    while (page := pages.read()) is not None:
        for row in await page:
            _add(sums, row, by)
    return _lines(sums)


def _lines(sums: dict[tuple[str, str], list[int]]) -> list[CostLine]:
    lines = [
        CostLine(what, unit, calls, decimal_of(spent), decimal_of(reserved))
        for (unit, what), (calls, spent, reserved) in sums.items()
    ]
    return sorted(lines, key=lambda line: (line.unit, -(line.spent + line.reserved), line.what))


def _add(sums: dict[tuple[str, str], list[int]], row: CallRow, by: By) -> None:
    charge = read_charge(row.cost)
    day = time.strftime("%Y-%m-%d", time.gmtime(row.first_at or row.created_at))
    what = {"run": row.run_id, "tool": row.tool, "agent": row.agent, "day": day}[by]
    for unit, (asked, _) in charge.costs.items():
        reserved, spent = charge.standing(unit, asked, charge.phase)
        line = sums.setdefault((unit, what), [0, 0, 0])
        line[0] += charge.phase == RESERVED or spent > 0
        line[1] += spent
        line[2] += reserved

"""The row operations on budgets as SQL, for every database and both colours."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final, Protocol

from amends import budgetrows
from amends.budgetrows import SLICE_COLUMNS, SliceRow
from amends.flow import Flow
from amends.record import changed
from amends.store.dialect import Dialect
from amends.store.statement import Execute

SLICE_VALUES: Final = attrgetter(*SLICE_COLUMNS)


class BudgetStatements:
    """The texts of one dialect."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        mark = dialect.mark
        names = ", ".join(map(dialect.name_of, SLICE_COLUMNS))
        select = f"select {names} from budgets"
        self.find = f"{select} where name = {mark}{dialect.lock}"
        self.add = dialect.if_absent.format(f"budgets ({names}) values ({', '.join([mark] * len(SLICE_COLUMNS))})")
        self.drop = f"delete from budgets where root = {mark} and root <> ''"
        self.page = f"{select} where tenant = {mark} and name > {mark} order by name limit {mark}"

    def update(self, columns: tuple[str, ...]) -> str:
        """Change these columns of a slice."""
        sets = ", ".join(f"{self._dialect.name_of(column)} = {self._dialect.mark}" for column in columns)
        return f"update budgets set {sets} where name = {self._dialect.mark}"


class _Statements(Protocol):
    @property
    def budgets(self) -> BudgetStatements: ...


class _Desk(Protocol):
    @property
    def statements(self) -> _Statements: ...


async def _find(desk: _Desk, op: budgetrows.FindSlice) -> SliceRow | None:
    found, _, _ = await Execute(desk.statements.budgets.find, (op.name,))
    return SliceRow(*found[0]) if found else None


async def _add(desk: _Desk, op: budgetrows.AddSlice) -> bool:
    _, met, _ = await Execute(desk.statements.budgets.add, SLICE_VALUES(op.row))
    return met == 1


async def _update(desk: _Desk, op: budgetrows.UpdateSlice) -> SliceRow:
    # Whether it was met is not asked: a database may not count a row that already was as it is to be.
    await Execute(desk.statements.budgets.update(tuple(op.changes)), (*op.changes.values(), op.row.name))
    return changed(op.row, op.changes)


async def _drop(desk: _Desk, op: budgetrows.DropSlices) -> int:
    _, met, _ = await Execute(desk.statements.budgets.drop, (op.root,))
    return met


async def _page(desk: _Desk, op: budgetrows.PageSlices) -> list[SliceRow]:
    found, _, _ = await Execute(desk.statements.budgets.page, (op.tenant, op.after, op.limit))
    return [SliceRow(*row) for row in found]


BUDGET_ROWS: Final[dict[type[Any], Callable[[Any, Any], Flow[Any]]]] = {
    budgetrows.FindSlice: _find,
    budgetrows.AddSlice: _add,
    budgetrows.UpdateSlice: _update,
    budgetrows.DropSlices: _drop,
    budgetrows.PageSlices: _page,
}

"""The row operations of bundles as SQL, for every database and both colours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from amends import bundleops
from amends.flow import Flow
from amends.rows import RUN_COLUMNS, RunRow
from amends.store.dialect import Dialect
from amends.store.statement import Execute


class BundleStatements:
    """The texts of one dialect."""

    def __init__(self, dialect: Dialect) -> None:
        columns, mark = ", ".join(map(dialect.name_of, RUN_COLUMNS)), dialect.mark
        self.runs_of = f"select {columns} from runs where tenant = {mark} and id = {mark} order by generation"


class _Statements(Protocol):
    @property
    def bundles(self) -> BundleStatements: ...


class _Desk(Protocol):
    @property
    def statements(self) -> _Statements: ...


async def _runs_of(desk: _Desk, op: bundleops.RunsOf) -> list[RunRow]:
    found, _, _ = await Execute(desk.statements.bundles.runs_of, (op.tenant, op.id))
    return [RunRow(*row) for row in found]


BUNDLE_ROWS: Final[dict[type[Any], Callable[[Any, Any], Flow[Any]]]] = {bundleops.RunsOf: _runs_of}

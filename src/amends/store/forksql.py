"""The row operations on forks as SQL, for every database and both colours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from amends.flow import Flow
from amends.forkrows import ListForks
from amends.rows import RunRow
from amends.store.statement import Execute


class _Statements(Protocol):
    def page(self, table: str, terms: tuple[str, ...], order: str, *, index: str = "") -> str: ...


class _Desk(Protocol):
    @property
    def statements(self) -> _Statements: ...


async def _list_forks(desk: _Desk, op: ListForks) -> list[RunRow]:
    # The second term is what the index of some rows only is said with.
    sql = desk.statements.page("runs", ("forked_from = ?", "forked_from <> ''"), "place", index="runs_forked")
    found, _, _ = await Execute(sql, (op.root, op.limit))
    return [RunRow(*row) for row in found]


FORK_ROWS: Final[dict[type[Any], Callable[[Any, Any], Flow[Any]]]] = {ListForks: _list_forks}

"""The row operations on marks as SQL, for every database and both colours."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final, Protocol

from amends import markrows
from amends.flow import Flow
from amends.markrows import MARK_COLUMNS, TIME, MarkRow
from amends.store.dialect import Dialect
from amends.store.statement import Execute

MARK_VALUES: Final = attrgetter(*MARK_COLUMNS)


class MarkStatements:
    """The texts of one dialect."""

    def __init__(self, dialect: Dialect) -> None:
        columns = ", ".join(map(dialect.name_of, MARK_COLUMNS))
        self.find = f"select {columns} from marks where name = {dialect.mark}"
        self.add = dialect.if_absent.format(
            f"marks ({columns}) values ({', '.join([dialect.mark] * len(MARK_COLUMNS))})"
        )
        # Whoever has it locked moves it to about the same moment: nobody waits for it.
        self.time = f"select made_at from marks where name = '{TIME}'{dialect.skip}"
        self.move = f"update marks set made_at = {dialect.mark} where name = '{TIME}'"


class _Statements(Protocol):
    @property
    def marks(self) -> MarkStatements: ...


class _Desk(Protocol):
    @property
    def statements(self) -> _Statements: ...


async def _find_mark(desk: _Desk, op: markrows.FindMark) -> MarkRow | None:
    found, _, _ = await Execute(desk.statements.marks.find, (op.name,))
    return MarkRow(*found[0]) if found else None


async def _add_mark(desk: _Desk, op: markrows.AddMark) -> bool:
    _, met, _ = await Execute(desk.statements.marks.add, MARK_VALUES(op.row))
    return met == 1


async def _move_time(desk: _Desk, op: markrows.MoveTime) -> None:
    found, _, _ = await Execute(desk.statements.marks.time, ())
    if found and found[0][0] < op.at:
        await Execute(desk.statements.marks.move, (op.at,))


MARK_ROWS: Final[dict[type[Any], Callable[[Any, Any], Flow[Any]]]] = {
    markrows.FindMark: _find_mark,
    markrows.AddMark: _add_mark,
    markrows.MoveTime: _move_time,
}

"""The row operations on locks and waits as SQL, for every database and both colours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final, Protocol

from amends import lockrows
from amends.flow import Flow
from amends.lockrows import LOCK_COLUMNS, WAIT_COLUMNS, LockRow, WaitRow
from amends.store.dialect import Dialect
from amends.store.statement import Execute

LOCK_VALUES: Final = attrgetter(*LOCK_COLUMNS)
WAIT_VALUES: Final = attrgetter(*WAIT_COLUMNS)


class LockStatements:
    """The texts of one dialect."""

    def __init__(self, dialect: Dialect) -> None:
        self._mark = mark = dialect.mark
        self._locks = _select(dialect, "locks", LOCK_COLUMNS)
        waits = _select(dialect, "waits", WAIT_COLUMNS)
        self.take_lock = dialect.if_absent.format(_into(dialect, "locks", LOCK_COLUMNS))
        self.drop_lock = f"delete from locks where root = {mark} and name = {mark}"
        self.free_locks = f"delete from locks where root = {mark}"
        self.locks_of = f"{self._locks} where root = {mark} order by name"
        self.page_locks = f"{self._locks} where tenant = {mark} and name > {mark} order by name limit {mark}"
        self.see_wait = f"update waits set seen_at = {mark} where root = {mark} and name = {mark}"
        self.add_wait = f"insert into {_into(dialect, 'waits', WAIT_COLUMNS)}"
        self.waits_of = f"{waits} where root = {mark} order by name"
        self.waits_for = f"{waits} where tenant = {mark} and name = {mark} order by since, root"

    def find_locks(self, names: int) -> str:
        """The locks of a tenant, of so many names."""
        return f"{self._locks} where tenant = {self._mark} and {self._named(names)} order by name"

    def drop_waits(self, names: int) -> str:
        """What a root waits for, of so many names, or all of it."""
        some = f" and {self._named(names)}" if names else ""
        return f"delete from waits where root = {self._mark}{some}"

    def _named(self, names: int) -> str:
        return f"({' or '.join([f'name = {self._mark}'] * names)})"


def _select(dialect: Dialect, table: str, columns: Sequence[str]) -> str:
    return f"select {', '.join(map(dialect.name_of, columns))} from {table}"


def _into(dialect: Dialect, table: str, columns: Sequence[str]) -> str:
    marks = ", ".join([dialect.mark] * len(columns))
    return f"{table} ({', '.join(map(dialect.name_of, columns))}) values ({marks})"


class _Statements(Protocol):
    @property
    def locks(self) -> LockStatements: ...


class _Desk(Protocol):
    @property
    def statements(self) -> _Statements: ...


async def _locks(sql: str, params: Sequence[Any]) -> list[LockRow]:
    found, _, _ = await Execute(sql, params)
    return [LockRow(*row) for row in found]


async def _waits(sql: str, params: Sequence[Any]) -> list[WaitRow]:
    found, _, _ = await Execute(sql, params)
    return [WaitRow(*row) for row in found]


async def _find_locks(desk: _Desk, op: lockrows.FindLocks) -> list[LockRow]:
    return await _locks(desk.statements.locks.find_locks(len(op.names)), (op.tenant, *op.names))


async def _take_lock(desk: _Desk, op: lockrows.TakeLock) -> bool:
    _, met, _ = await Execute(desk.statements.locks.take_lock, LOCK_VALUES(op.row))
    return met == 1


async def _drop_lock(desk: _Desk, op: lockrows.DropLock) -> None:
    await Execute(desk.statements.locks.drop_lock, (op.root, op.name))


async def _free_locks(desk: _Desk, op: lockrows.FreeLocks) -> int:
    _, met, _ = await Execute(desk.statements.locks.free_locks, (op.root,))
    return met


async def _locks_of(desk: _Desk, op: lockrows.LocksOf) -> list[LockRow]:
    return await _locks(desk.statements.locks.locks_of, (op.root,))


async def _page_locks(desk: _Desk, op: lockrows.PageLocks) -> list[LockRow]:
    return await _locks(desk.statements.locks.page_locks, (op.tenant, op.after, op.limit))


async def _see_wait(desk: _Desk, op: lockrows.SeeWait) -> bool:
    # No upsert: the root is this transaction's alone, so between the two statements nobody adds the same wait.
    _, met, _ = await Execute(desk.statements.locks.see_wait, (op.row.seen_at, op.row.root, op.row.name))
    if met == 0:
        await Execute(desk.statements.locks.add_wait, WAIT_VALUES(op.row))
    return met == 0


async def _waits_of(desk: _Desk, op: lockrows.WaitsOf) -> list[WaitRow]:
    return await _waits(desk.statements.locks.waits_of, (op.root,))


async def _waits_for(desk: _Desk, op: lockrows.WaitsFor) -> list[WaitRow]:
    return await _waits(desk.statements.locks.waits_for, (op.tenant, op.name))


async def _drop_waits(desk: _Desk, op: lockrows.DropWaits) -> None:
    await Execute(desk.statements.locks.drop_waits(len(op.names)), (op.root, *op.names))


LOCK_ROWS: Final[dict[type[Any], Callable[[Any, Any], Flow[Any]]]] = {
    lockrows.FindLocks: _find_locks,
    lockrows.TakeLock: _take_lock,
    lockrows.DropLock: _drop_lock,
    lockrows.FreeLocks: _free_locks,
    lockrows.LocksOf: _locks_of,
    lockrows.PageLocks: _page_locks,
    lockrows.SeeWait: _see_wait,
    lockrows.WaitsOf: _waits_of,
    lockrows.WaitsFor: _waits_for,
    lockrows.DropWaits: _drop_waits,
}

"""The row operations on checkpoints as SQL, for every database and both colours."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final, Protocol

from amends import checkpointrows
from amends.checkpointrows import CHECKPOINT_COLUMNS, CheckpointRow, Head
from amends.flow import Flow
from amends.store.dialect import Dialect
from amends.store.statement import Execute

CHECKPOINT_VALUES: Final = attrgetter(*CHECKPOINT_COLUMNS)


class CheckpointStatements:
    """The texts of one dialect."""

    def __init__(self, dialect: Dialect) -> None:
        mark = self._mark = dialect.mark
        columns = ", ".join(map(dialect.name_of, CHECKPOINT_COLUMNS))
        rows = f"select {columns} from checkpoints"
        self.newest = f"{rows} order by n desc limit 1"
        self.page = f"{rows} where n > {mark} order by n limit {mark}"
        values = ", ".join([mark] * len(CHECKPOINT_COLUMNS))
        self.add = dialect.if_absent.format(f"checkpoints ({columns}) values ({values})")
        heads = f"select seq, root, n, hash from events where seq > {mark}"
        self.heads = f"{heads} order by seq limit {mark}"
        self.heads_upto = f"{heads} and seq <= {mark} order by seq limit {mark}"

    def hashes(self, count: int) -> str:
        """So many events by tree and number: each is found by the index that the chain has."""
        one = f"select root, n, hash from events where root = {self._mark} and n = {self._mark}"
        return " union all ".join([one] * count)


class _Statements(Protocol):
    @property
    def checkpoints(self) -> CheckpointStatements: ...


class _Desk(Protocol):
    @property
    def statements(self) -> _Statements: ...


async def _newest(desk: _Desk, _op: checkpointrows.NewestCheckpoint) -> CheckpointRow | None:
    found, _, _ = await Execute(desk.statements.checkpoints.newest, ())
    return CheckpointRow(*found[0]) if found else None


async def _page(desk: _Desk, op: checkpointrows.PageCheckpoints) -> list[CheckpointRow]:
    found, _, _ = await Execute(desk.statements.checkpoints.page, (op.after, op.limit))
    return [CheckpointRow(*row) for row in found]


async def _add(desk: _Desk, op: checkpointrows.AddCheckpoint) -> bool:
    _, met, _ = await Execute(desk.statements.checkpoints.add, CHECKPOINT_VALUES(op.row))
    return met == 1


async def _heads(desk: _Desk, op: checkpointrows.PageHeads) -> list[Head]:
    statements = desk.statements.checkpoints
    if op.upto is None:
        found, _, _ = await Execute(statements.heads, (op.after, op.limit))
    else:
        found, _, _ = await Execute(statements.heads_upto, (op.after, op.upto, op.limit))
    return [Head(*row) for row in found]


async def _hashes(desk: _Desk, op: checkpointrows.HashesAt) -> list[tuple[str, int, str]]:
    # Always so many, the last one repeated: a statement that is new for every number is prepared for every number.
    found: dict[tuple[str, int], str] = {}
    for start in range(0, len(op.places), AT_ONCE):
        some = op.places[start : start + AT_ONCE]
        some += (some[-1],) * (AT_ONCE - len(some))
        sql = desk.statements.checkpoints.hashes(AT_ONCE)
        rows, _, _ = await Execute(sql, tuple(part for place in some for part in place))
        found.update({(root, n): hash for root, n, hash in rows})
    return [(root, n, hash) for (root, n), hash in found.items()]


AT_ONCE: Final = 50

CHECKPOINT_ROWS: Final[dict[type[Any], Callable[[Any, Any], Flow[Any]]]] = {
    checkpointrows.NewestCheckpoint: _newest,
    checkpointrows.PageCheckpoints: _page,
    checkpointrows.AddCheckpoint: _add,
    checkpointrows.PageHeads: _heads,
    checkpointrows.HashesAt: _hashes,
}

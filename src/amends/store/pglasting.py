"""Statements that nearly every call says: prepared once per connection, and sent and read without a cursor.

A cursor finds out anew how each parameter is written and each column read, which took more of this process's time
than sending and waiting. Here the server knows the types from the statement, and both ends speak text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from psycopg import generators, pq
from psycopg.errors import error_from_result

from amends.store.pgflow import clean
from amends.store.statement import Execute, Result

if TYPE_CHECKING:
    from psycopg.abc import PQGen
    from psycopg.pq.abc import PGconn, PGresult

FIRST_USES: Final = 3
"""So often a connection says a statement as any other before it is prepared: a short program never pays for that."""

_GOOD: Final = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)
_BYTES: Final[dict[type, Callable[[Any], bytes | None]]] = {
    str: str.encode,
    int: lambda value: b"%d" % value,
    float: lambda value: repr(value).encode(),
    bool: lambda value: b"t" if value else b"f",
    type(None): lambda _: None,
}
_READERS: Final[dict[int, Callable[[bytes], Any]]] = {20: int, 21: int, 23: int, 700: float, 701: float}
"""By the number of the type; everything else that is asked for here is text."""


class Lasting:
    """What one connection has prepared."""

    __slots__ = ("_made", "_names", "_uses")

    def __init__(self) -> None:
        self._uses: dict[str, int] = {}
        self._names: dict[str, bytes] = {}
        self._made = 0

    def is_due(self, op: Execute) -> bool:
        """Whether this statement is said often enough here."""
        if op.sql in self._names:
            return True
        self._uses[op.sql] = uses = self._uses.get(op.sql, 0) + 1
        return uses > FIRST_USES

    def forget(self) -> None:
        """Nothing is prepared any more: psycopg deallocates all that its connection has, ours too, after a rollback."""
        self._names.clear()

    def heard(self, status: str) -> str:
        """What the server says it did, again."""
        if status == "ROLLBACK":
            self.forget()
        return status

    def said(self, pgconn: PGconn, op: Execute) -> PQGen[Result]:
        """Send it and read the answer, as a generator for ``Connection.wait`` of either colour."""
        params = written(op.params)
        name = self._names.get(op.sql)
        if name is None:
            self._made += 1  # a name is never used twice: an old statement of that name might still be there
            name = b"amends_%d" % self._made
            pgconn.send_prepare(name, numbered(op.sql))
            yield from _result(pgconn)
            self._names[op.sql] = name
        pgconn.send_query_prepared(name, params)
        result = yield from _result(pgconn)
        return _rows(result), result.command_tuples or 0, 0


def _result(pgconn: PGconn) -> PQGen[PGresult]:
    results: list[PGresult] = yield from generators.execute(pgconn)
    result = results[-1]
    if result.status not in _GOOD:
        raise error_from_result(result, encoding="utf-8")
    return result


def _rows(result: PGresult) -> list[tuple[Any, ...]]:
    readers = [_READERS.get(result.ftype(column), bytes.decode) for column in range(result.nfields)]
    return [
        tuple(
            [
                None if (value := result.get_value(row, column)) is None else read(value)
                for column, read in enumerate(readers)
            ]
        )
        for row in range(result.ntuples)
    ]


def written(params: Sequence[Any]) -> list[bytes | None]:
    """The parameters as text, without what PostgreSQL's text cannot hold."""
    try:
        said = [_BYTES[type(one)](one) for one in params]
    except UnicodeEncodeError:
        return written(clean(params))
    if b"\0" in b"".join([one for one in said if one is not None]):
        return written(clean(params))
    return said


@lru_cache(maxsize=64)
def numbered(sql: str) -> bytes:
    """The statement with its parameters by number, as the server has them."""
    first, *rest = sql.split("%s")
    assert "%" not in first + "".join(rest), "a lasting statement has nothing else that psycopg would read"
    return (first + "".join(f"${place}{part}" for place, part in enumerate(rest, 1))).encode()

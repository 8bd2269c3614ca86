"""One connection to PostgreSQL, blocking or awaited: how it is made, what it answers, how it ends."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, cast

import psycopg
from psycopg import generators, pq
from psycopg.conninfo import conninfo_to_dict
from psycopg.errors import error_from_result
from psycopg.pq.abc import PGresult

from amends.errors import BadConfig, LedgerUnavailable
from amends.stores.postgres.errors import why_not_connected
from amends.stores.postgres.transaction import clean, settings_of
from amends.stores.postgres.url import Place
from amends.stores.postgres.wakeup import CHANNEL
from amends.stores.sql import Execute, Result

if TYPE_CHECKING:
    from psycopg.abc import PQGen
    from psycopg.pq.abc import PGconn


# ---- Statements that nearly every call says: prepared once per connection, and sent and read without a cu

# A cursor finds out anew how each parameter is written and each column read, which took more of this process's time
# than sending and waiting. Here the server knows the types from the statement, and both ends speak text.


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


# ---- One connection to PostgreSQL, blocking or awaited: how it is made, what it answers, how it ends


PG_MIN: Final = 13_00_00
"""The oldest that its makers still mended when this was written."""
POOLER_LOOKS: Final = 3
"""How often two connections are compared: others who use the pooler may take the session in between."""
POOLER_WAIT_S: Final = 3.0
SESSION: Final = b"select pg_backend_pid()"
PREPARED_MAX: Final = 512
"""Statements kept prepared per connection: about 60 shapes, each in a few types of its numbers."""
DEFAULTS: Final = {
    "application_name": "amends",
    "connect_timeout": "10",
    # A host that vanishes without a word is noticed in seconds rather than in the quarter of an hour of TCP.
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
}
"""What the URL does not say."""


def arguments(place: Place) -> dict[str, Any]:
    """What libpq is given; behind a pooler nothing may be prepared, because the next statement has another session."""
    try:
        said = conninfo_to_dict(place.conninfo)
    except psycopg.ProgrammingError:
        # Not chained: libpq shows the whole URL.
        said = None
    if said is None:
        raise BadConfig(
            f"libpq does not understand the URL of {place.shown}",
            setting="url",
            hint="percent-encode what is special in the password; unknown options after ? are refused",
        )
    known = {**DEFAULTS, **said, "client_encoding": "utf8", "autocommit": True}
    return known | ({"prepare_threshold": None} if place.pooler == "transaction" else {})


@dataclass(slots=True, eq=False)
class Link:
    """A blocking connection. Its transactions are said: BEGIN and COMMIT are statements."""

    raw: psycopg.Connection[tuple[Any, ...]]
    cursor: psycopg.Cursor[tuple[Any, ...]] = field(init=False)
    """One for all statements: a link answers one request at a time, and making a cursor costs as much as a small one."""
    lasting: Lasting = field(default_factory=Lasting)

    def __post_init__(self) -> None:
        self.cursor = self.raw.cursor()

    @property
    def closed(self) -> bool:
        """Whether it is of no use any more."""
        return self.raw.closed

    def execute(self, op: Execute) -> Result:
        """Answer one request of a flow."""
        if op.prepare and self.lasting.is_due(op):
            try:
                return self.raw.wait(self.lasting.said(self.raw.pgconn, op))
            except psycopg.errors.InvalidSqlStatementName:
                self.lasting.forget()  # it was never begun
        cursor, query = self.cursor, cast(Any, op.sql)
        try:
            cursor.execute(query, op.params)
        except (psycopg.DataError, UnicodeEncodeError) as error:
            if getattr(error, "sqlstate", None):
                raise
            cursor.execute(query, clean(op.params))  # nothing had been sent
        return (cursor.fetchall() if _has_rows(cursor.pgresult) else []), cursor.rowcount, 0

    def command(self, sql: str) -> str:
        """Run statements without parameters; what the server says it did."""
        cursor = self.cursor.execute(cast(Any, sql), prepare=False)
        while cursor.nextset():  # what it did last counts
            pass
        return self.lasting.heard(cursor.statusmessage or "")

    def listen(self) -> None:
        """From now on the ledger's notices are kept for us."""
        found = self.raw.execute(cast(Any, f"select {CHANNEL}")).fetchone()
        assert found is not None, "a select without a table has one row"
        self.raw.execute(cast(Any, f'listen "{found[0]}"'))

    def notices(self, wait_s: float) -> Iterator[str]:
        """The topics of the notices that come in this time."""
        for notice in self.raw.notifies(timeout=wait_s):
            yield notice.payload

    def close(self) -> None:
        """Disconnect; an open transaction is undone by the server."""
        self.raw.pgconn.finish()


@dataclass(slots=True, eq=False)
class AsyncLink:
    """The same, awaited."""

    raw: psycopg.AsyncConnection[tuple[Any, ...]]
    cursor: psycopg.AsyncCursor[tuple[Any, ...]] = field(init=False)
    lasting: Lasting = field(default_factory=Lasting)

    def __post_init__(self) -> None:
        self.cursor = self.raw.cursor()

    @property
    def closed(self) -> bool:
        """Whether it is of no use any more."""
        return self.raw.closed

    async def execute(self, op: Execute) -> Result:
        """Answer one request of a flow."""
        if op.prepare and self.lasting.is_due(op):
            try:
                return await self.raw.wait(self.lasting.said(self.raw.pgconn, op))
            except psycopg.errors.InvalidSqlStatementName:
                self.lasting.forget()
        cursor, query = self.cursor, cast(Any, op.sql)
        try:
            await cursor.execute(query, op.params)
        except (psycopg.DataError, UnicodeEncodeError) as error:
            if getattr(error, "sqlstate", None):
                raise
            await cursor.execute(query, clean(op.params))
        return (await cursor.fetchall() if _has_rows(cursor.pgresult) else []), cursor.rowcount, 0

    async def command(self, sql: str) -> str:
        """Run statements without parameters; what the server says it did."""
        cursor = await self.cursor.execute(cast(Any, sql), prepare=False)
        while cursor.nextset():
            pass
        return self.lasting.heard(cursor.statusmessage or "")

    def close(self) -> None:
        """Disconnect without a word, from any thread: its loop may be closed."""
        self.raw.pgconn.finish()


def _has_rows(result: PGresult | None) -> bool:
    """Whether the statement has columns to fetch; ``description`` would make an object of each to say so."""
    return result is not None and result.nfields > 0


def connect(place: Place, *, opened: bool) -> Link:
    """A connection with our settings. ``opened``: the ledger was reached before."""
    given = arguments(place)
    raw = None
    try:
        raw = psycopg.Connection.connect(**given)
        raw.prepared_max = PREPARED_MAX
        link = Link(raw)
        if place.pooler == "session":
            if not opened:
                refuse_shared(raw, given, place.shown)
            link.command(settings_of(place, "set"))
        check_server(raw.info.server_version, raw.info.parameter_status("server_encoding"), place.shown)
        return link
    except BaseException as error:
        if raw is not None:
            raw.pgconn.finish()
        if isinstance(error, psycopg.Error):
            raise why_not_connected(error, place.shown, opened=opened) from error
        raise


async def connect_async(place: Place, *, opened: bool) -> AsyncLink:
    """The same, awaited."""
    given = arguments(place)
    raw = None
    try:
        raw = await psycopg.AsyncConnection.connect(**given)
        raw.prepared_max = PREPARED_MAX
        link = AsyncLink(raw)
        if place.pooler == "session":
            await link.command(settings_of(place, "set"))
        check_server(raw.info.server_version, raw.info.parameter_status("server_encoding"), place.shown)
        return link
    except BaseException as error:
        if raw is not None:
            raw.pgconn.finish()
        if isinstance(error, psycopg.Error):
            raise why_not_connected(error, place.shown, opened=opened) from error
        raise


def refuse_shared(raw: psycopg.Connection[tuple[Any, ...]], given: dict[str, Any], shown: str) -> None:
    """Raise when a pooler hands out sessions by the transaction and the URL does not say so; changes nothing there.

    Settings and prepared statements would stay behind in sessions of others, and theirs would be met in ours. A pooler
    tells its clients other process ids than the server's. Then a second connection, beside this one, is asked for its
    session: in session mode it is another one than ours, and ours stays the same.
    """
    ours = _session_of(raw)
    if ours == raw.info.backend_pid:
        return
    try:
        other = psycopg.Connection.connect(**given)
    except psycopg.Error:
        return  # whoever lets us have one connection only cannot be asked
    try:
        for _ in range(POOLER_LOOKS):
            theirs = _session_soon(other)
            if theirs is None:  # all its sessions belong to others, as ours does to us
                return
            if theirs == ours or _session_of(raw) != ours:
                raise BadConfig(
                    f"{shown} is PgBouncer, or another pooler, in transaction mode: statements of one connection go to "
                    "sessions that others use too; nothing was written",
                    setting="url",
                    hint="add ?pooler=transaction to the URL, connect to PostgreSQL itself, or use pool_mode = session",
                )
    finally:
        other.pgconn.finish()


def _session_of(raw: psycopg.Connection[tuple[Any, ...]]) -> int:
    """The process id of the session that answers now."""
    found = raw.execute(SESSION).fetchone()
    assert found is not None, "a select without a table has one row"
    return int(found[0])


def _session_soon(raw: psycopg.Connection[tuple[Any, ...]]) -> int | None:
    """The same; None when none answers in time, after which the connection is of no use."""
    conn = raw.pgconn
    conn.send_query(SESSION)
    conn.flush()
    until = time.monotonic() + POOLER_WAIT_S
    with selectors.DefaultSelector() as waiter:
        waiter.register(conn.socket, selectors.EVENT_READ)
        while conn.is_busy():
            if not waiter.select(max(until - time.monotonic(), 0)):
                return None
            conn.consume_input()
    found = None
    while (result := conn.get_result()) is not None:
        text = result.get_value(0, 0) if result.ntuples else None
        found = int(text) if text is not None else found
    return found


def check_server(version: int, encoding: str | None, shown: str) -> None:
    """Raise when a ledger cannot be kept there."""
    if version < PG_MIN:
        raise LedgerUnavailable(
            f"the server of {shown} is PostgreSQL {version // 10000}; the ledger needs {PG_MIN // 10000} or newer",
            hint="upgrade the server, or use another ledger",
        )
    if encoding not in (None, "UTF8"):
        raise BadConfig(
            f"the database of {shown} has the encoding {encoding}; the ledger needs UTF8",
            setting="url",
            hint="create database ... encoding 'UTF8' template template0",
        )

"""One connection to PostgreSQL, blocking or async: connecting, executing and closing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import selectors
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import psycopg
from psycopg import generators, pq
from psycopg.conninfo import conninfo_to_dict
from psycopg.errors import error_from_result
from psycopg.pq.abc import PGresult

from amends.errors import BadConfig, LedgerUnavailable
from amends.stores.cancellation import to_its_end, uninterrupted
from amends.stores.postgres.errors import why_not_connected
from amends.stores.postgres.quick import Written
from amends.stores.postgres.transaction import clean, settings_of
from amends.stores.postgres.url import Address
from amends.stores.postgres.wakeup import CHANNEL
from amends.stores.sql import Execute, Result
from amends.stores.waiting import AnswerWait

if TYPE_CHECKING:
    from psycopg.abc import PQGen
    from psycopg.pq.abc import PGconn


# ---- Prepared statements, for what is part of nearly every call

# They are sent and read without a cursor. A cursor works out for every statement how each parameter is written and
# each column is read, which took more of this process's time than sending and waiting. Here the server infers the
# types from the statement. Both sides use the text format, except for ``Written``, which is in binary, and for the one
# value that answers the statement of a step.


Rows = list[tuple[Any, ...]]
FIRST_USES: Final = 3
"""How often a connection runs a statement before it is prepared: a short program never pays for that."""

HAS_POLL: Final = hasattr(select, "poll")
"""Whether a socket has a descriptor as any file has: not on Windows."""
_GOOD: Final = (int(pq.ExecStatus.TUPLES_OK), int(pq.ExecStatus.COMMAND_OK))
TEXT: Final = int(pq.Format.TEXT)
BINARY: Final = int(pq.Format.BINARY)
_BYTES: Final[dict[type, Callable[[Any], bytes | None]]] = {
    str: str.encode,
    int: lambda value: b"%d" % value,
    float: lambda value: repr(value).encode(),
    bool: lambda value: b"t" if value else b"f",
    bytes: lambda value: b"\\x" + value.hex().encode(),
    type(None): lambda _: None,
}
_READERS: Final[dict[int, Callable[[bytes], Any]]] = {
    17: lambda value: bytes.fromhex(value[2:].decode()), 20: int, 21: int, 23: int, 700: float, 701: float,
}  # fmt: skip
"""By the type's OID; everything else that is read here is text."""


class PreparedStatements:
    """The statements that one connection has prepared."""

    __slots__ = ("_made", "_readers", "_uses", "names")

    def __init__(self) -> None:
        self._uses: dict[str, int] = {}
        self.names: dict[str, bytes] = {}
        self._made = 0
        self._readers: dict[bytes, list[Callable[[bytes], Any]]] = {}
        """By name, how the columns are read: a prepared statement has always the same."""

    def is_due(self, sql: str, params: Sequence[Any]) -> bool:
        """Return whether this statement has run often enough to be prepared."""
        if sql in self.names or type(params) is Written:
            return True
        self._uses[sql] = uses = self._uses.get(sql, 0) + 1
        return uses > FIRST_USES

    def forget(self) -> None:
        """Forget all of them: after a rollback, psycopg deallocates every statement of the connection, ours too."""
        self.names.clear()
        self._readers.clear()

    def after(self, status: str) -> str:
        """Forget all of them after a rollback; return the status."""
        if status == "ROLLBACK":
            self.forget()
        return status

    def run(self, pgconn: PGconn, sql: str, given: Sequence[Any]) -> PQGen[Rows]:
        """Send the statement and read its rows, as a generator for psycopg's blocking or async ``wait``."""
        formats = binary(len(given)) if type(given) is Written else None
        result = yield from self.result(pgconn, sql, written(given), formats)
        return self.rows(self.names[sql], result)

    def result(
        self,
        pgconn: PGconn,
        sql: str,
        values: list[bytes | None],
        formats: Sequence[int] | None = None,
        answer: int = TEXT,
    ) -> PQGen[PGresult]:
        """Do the same, and leave the reading to the caller. ``answer``: the format of the rows."""
        name = self.names.get(sql)
        if name is None:
            self._made += 1  # a name is never used twice: an old statement of that name might still exist
            name = b"amends_%d" % self._made
            pgconn.send_prepare(name, numbered(sql))
            yield from _result(pgconn)
            self.names[sql] = name
        pgconn.send_query_prepared(name, values, formats, answer)
        return (yield from _result(pgconn))

    def rows(self, name: bytes, result: PGresult) -> Rows:
        """Return the rows that this statement was answered with."""
        readers = self._readers.get(name)
        if readers is None:
            readers = [_READERS.get(result.ftype(column), bytes.decode) for column in range(result.nfields)]
            self._readers[name] = readers
        read = result.get_value
        return [
            tuple(
                [
                    None if (value := read(row, column)) is None else reader(value)
                    for column, reader in enumerate(readers)
                ]
            )
            for row in range(result.ntuples)
        ]


def _result(pgconn: PGconn) -> PQGen[PGresult]:
    results: list[PGresult] = yield from generators.execute(pgconn)
    return _checked(results[-1])


def _checked(result: PGresult) -> PGresult:
    if result.status not in _GOOD:
        raise error_from_result(result, encoding="utf-8")
    return result


def _numbers_and_times(result: PGresult) -> list[tuple[int, float]]:
    read = result.get_value
    return [(_INT8(read(row, 0))[0], _FLOAT8(read(row, 1))[0]) for row in range(result.ntuples)]  # type: ignore[arg-type]


_INT8: Final = Struct("!q").unpack
_FLOAT8: Final = Struct("!d").unpack


class Waiter:
    """Sends prepared statements on one blocking connection and waits for their answers.

    psycopg's own ``wait`` drives a generator and takes a third more of this process's time. Where there is ``epoll``, it
    waits by that: whoever waits by ``poll`` is woken on the core of the server's process, if that is on the same
    host, and first waits there until the core is free. It may also wait awake (``amends.stores.waiting``).
    """

    __slots__ = ("_pgconn", "_poll", "_wait")

    def __init__(self, pgconn: PGconn) -> None:
        self._pgconn = pgconn
        waiting = getattr(select, "epoll", select.poll)()
        waiting.register(pgconn.socket, select.POLLIN)  # the same number for both
        self._poll = waiting.poll
        self._wait = AnswerWait(partial(waiting.poll, 0))

    def answer(
        self,
        name: bytes,
        params: list[bytes | None],
        formats: Sequence[int] | None = None,
        answer: int = TEXT,
        *,
        is_batch: bool = False,
    ) -> PGresult | None:
        """Return the answer of one statement; None: it did not fit into the socket, and the rest is up to psycopg.

        ``is_batch``: of several callers.
        """
        pgconn, poll, wait = self._pgconn, self._poll, self._wait
        pgconn.send_query_prepared(name, params, formats, answer)
        if pgconn.flush():
            return None
        if not is_batch:
            wait.begin()
        last: PGresult | None = None
        while True:
            while pgconn.is_busy():
                poll()
                pgconn.consume_input()
            if last is None and not is_batch:
                wait.end()
            result = pgconn.get_result()
            if result is None:  # all has come: an error of the commit comes after the rows
                return last
            last = result


class Arrivals:
    """Reads what comes on one connection of an event loop, and tells who waits for it.

    It stays registered between statements: to register a socket for each of them, as psycopg's ``wait`` does, took a sixth
    of this process's time for a call. What is registered is a descriptor of its own: libpq closes the connection's
    from any thread, and a loop must never be left with one that is closed, or belongs to something else by now.
    """

    __slots__ = ("_come", "_fd", "_loop", "_pgconn")

    def __init__(self, loop: asyncio.AbstractEventLoop, pgconn: PGconn) -> None:
        self._loop, self._pgconn = loop, pgconn
        self._come: asyncio.Future[None] | None = None
        self._fd = -1  # also if the connection has no socket any more, which the next line raises
        self._fd = os.dup(pgconn.socket)
        loop.add_reader(self._fd, self._arrived)

    @property
    def is_over(self) -> bool:
        """Whether it is no longer registered."""
        return self._fd < 0

    async def wait(self) -> None:
        """Wait until the connection is not busy any more. Raises what reading raises; may be cancelled."""
        self._come = self._loop.create_future()
        try:
            await self._come
        finally:
            self._come = None

    def _arrived(self) -> None:
        come, pgconn = self._come, self._pgconn
        if come is None:  # a notice, the end of the connection, or an answer for which psycopg waits
            self._end()
            return
        try:
            pgconn.consume_input()
        except psycopg.Error as error:
            self._end()
            if not come.done():
                come.set_exception(error)
            return
        if not come.done() and not pgconn.is_busy():
            come.set_result(None)

    def end(self) -> None:
        """Unregister it, from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._end)
        except RuntimeError:  # the loop is closed, and has forgotten it
            self._close()

    def _end(self) -> None:
        if self._fd >= 0 and not self._loop.is_closed():
            self._loop.remove_reader(self._fd)
        self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self._close()  # of a loop that was closed before it came to unregister this


def written(params: Sequence[Any]) -> list[bytes | None]:
    """Return the parameters in text format, without what PostgreSQL's text cannot hold."""
    if type(params) is Written:
        return params
    try:
        values = [_BYTES[type(one)](one) for one in params]
    except UnicodeEncodeError:
        return written(clean(params))
    if b"\0" in b"".join([one for one in values if one is not None]):
        return written(clean(params))
    return values


@lru_cache(maxsize=64)
def binary(count: int) -> tuple[int, ...]:
    """Return the formats of so many values that are sent in binary."""
    return (BINARY,) * count


@lru_cache(maxsize=64)
def numbered(sql: str) -> bytes:
    """Return the statement with numbered placeholders, as the server wants them."""
    first, *rest = sql.split("%s")
    assert "%" not in first + "".join(rest), "a prepared statement has no other percent sign"
    return (first + "".join(f"${address}{part}" for address, part in enumerate(rest, 1))).encode()


# ---- Connections


class Blocking(Protocol):
    """A blocking connection, ours or the program's."""

    @property
    def closed(self) -> bool:
        """Whether it cannot be used any more."""
        ...

    def execute(self, op: Execute) -> Result:
        """Carry out one statement of a flow."""
        ...

    def command(self, sql: str) -> str:
        """Run statements without parameters; return what the server says it did."""
        ...

    def close(self) -> None:
        """Disconnect; the server rolls back an open transaction."""
        ...


PG_MIN: Final = 13_00_00
"""The oldest version that was still maintained when this was written."""
POOLER_LOOKS: Final = 3
"""How often two connections are compared: another client of the pooler may take the session in between."""
POOLER_WAIT_S: Final = 3.0
SESSION: Final = b"select pg_backend_pid()"
PREPARED_MAX: Final = 512
"""Statements kept prepared per connection: about 60 shapes, each in a few types of its numbers."""
DEFAULTS: Final = {
    "application_name": "amends",
    "connect_timeout": "10",
    # A host that vanishes is noticed in seconds, not in the quarter of an hour that TCP takes.
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
}
"""Options that the URL can override."""


def arguments(address: Address) -> dict[str, Any]:
    """Return the options for libpq.

    Behind a pooler nothing may be prepared, because the next statement may run in another session.
    """
    try:
        options = conninfo_to_dict(address.conninfo)
    except psycopg.ProgrammingError:
        # Not chained: libpq's error shows the whole URL, with the password.
        options = None
    if options is None:
        raise BadConfig(
            f"libpq does not understand the URL of {address.shown}",
            setting="url",
            hint="percent-encode special characters in the password; unknown options after ? are refused",
        )
    known = {**DEFAULTS, **options, "client_encoding": "utf8", "autocommit": True}
    return known | ({"prepare_threshold": None} if address.pooler == "transaction" else {})


@dataclass(slots=True, eq=False)
class Connection:
    """A blocking connection in autocommit mode: BEGIN and COMMIT are statements of ours."""

    raw: psycopg.Connection[tuple[Any, ...]]
    cursor: psycopg.Cursor[tuple[Any, ...]] = field(init=False)
    """One for all statements: they come one at a time, and making a cursor costs as much as a small statement."""
    prepared: PreparedStatements = field(default_factory=PreparedStatements)
    waiter: Waiter | None = field(init=False)
    """None on Windows, which has no ``poll``."""

    def __post_init__(self) -> None:
        self.cursor = self.raw.cursor()
        self.waiter = Waiter(self.raw.pgconn) if HAS_POLL else None

    @property
    def closed(self) -> bool:
        """Whether it cannot be used any more."""
        return self.raw.closed

    def first_value(self, sql: str, values: list[bytes | None]) -> bytes | None:
        """Carry out the statement of a step, which is its own transaction; return the first value that it answers.

        The values and the answer are in binary.
        """
        result = self._carried_out(sql, values)
        return result.get_value(0, 0) if result.ntuples else None

    def numbers_and_times(self, sql: str, values: list[bytes | None]) -> list[tuple[int, float]]:
        """Do the same with a statement of several steps; return its rows, which have these two columns."""
        return _numbers_and_times(self._carried_out(sql, values, is_batch=True))

    def _carried_out(self, sql: str, values: list[bytes | None], *, is_batch: bool = False) -> PGresult:
        name, waiter, formats = self.prepared.names.get(sql), self.waiter, binary(len(values))
        if name is not None and waiter is not None:
            try:
                return _checked(self._answer(waiter, name, values, formats, BINARY, is_batch=is_batch))
            except psycopg.errors.InvalidSqlStatementName:
                self.prepared.forget()  # the statement never started
        return self.raw.wait(self.prepared.result(self.raw.pgconn, sql, values, formats, BINARY))

    def _prepared(self, name: bytes | None, sql: str, params: Sequence[Any]) -> Rows:
        """Carry out a statement by its name; None: it is prepared now."""
        prepared, waiter = self.prepared, self.waiter
        if name is None or waiter is None:
            return self.raw.wait(prepared.run(self.raw.pgconn, sql, params))
        formats = binary(len(params)) if type(params) is Written else None
        return prepared.rows(name, _checked(self._answer(waiter, name, written(params), formats)))

    def _answer(
        self,
        waiter: Waiter,
        name: bytes,
        params: list[bytes | None],
        formats: Sequence[int] | None = None,
        answer: int = TEXT,
        *,
        is_batch: bool = False,
    ) -> PGresult:
        try:
            result = waiter.answer(name, params, formats, answer, is_batch=is_batch)
        except Exception:
            raise
        except BaseException:  # an interrupt
            self._stop()
            raise
        return self.raw.wait(_result(self.raw.pgconn)) if result is None else result

    def _stop(self) -> None:
        """Cancel the statement that is running, as psycopg does after an interrupt: who interrupts does not want it."""
        with contextlib.suppress(Exception):
            self.raw.cancel()
            self.raw.wait(_result(self.raw.pgconn))

    def execute(self, op: Execute) -> Result:
        """Carry out one statement of a flow."""
        if op.prepare and self.prepared.is_due(op.sql, op.params):
            try:
                rows = self._prepared(self.prepared.names.get(op.sql), op.sql, op.params)
                return rows, len(rows), 0
            except psycopg.errors.InvalidSqlStatementName:
                self.prepared.forget()  # the statement never started
        cursor, query = self.cursor, cast(Any, op.sql)
        try:
            cursor.execute(query, op.params)
        except (psycopg.DataError, UnicodeEncodeError) as error:
            if getattr(error, "sqlstate", None):
                raise
            cursor.execute(query, clean(op.params))  # nothing was sent
        return (cursor.fetchall() if _has_rows(cursor.pgresult) else []), cursor.rowcount, 0

    def command(self, sql: str) -> str:
        """Run statements without parameters; return what the server says it did."""
        cursor = self.cursor.execute(cast(Any, sql), prepare=False)
        while cursor.nextset():  # the last status counts
            pass
        return self.prepared.after(cursor.statusmessage or "")

    def listen(self) -> None:
        """Listen to the ledger's notifications from now on."""
        found = self.raw.execute(cast(Any, f"select {CHANNEL}")).fetchone()
        assert found is not None, "a select without a table has one row"
        self.raw.execute(cast(Any, f'listen "{found[0]}"'))

    def notices(self, wait_s: float) -> Iterator[str]:
        """Yield the topics of the notifications that arrive within this time."""
        for notification in self.raw.notifies(timeout=wait_s):
            yield notification.payload

    def close(self) -> None:
        """Disconnect; the server rolls back an open transaction."""
        self.raw.pgconn.finish()


@dataclass(slots=True, eq=False)
class AsyncConnection:
    """An async connection in autocommit mode."""

    raw: psycopg.AsyncConnection[tuple[Any, ...]]
    cursor: psycopg.AsyncCursor[tuple[Any, ...]] = field(init=False)
    prepared: PreparedStatements = field(default_factory=PreparedStatements)
    arrivals: Arrivals | None = None

    def __post_init__(self) -> None:
        self.cursor = self.raw.cursor()

    @property
    def closed(self) -> bool:
        """Whether it cannot be used any more."""
        return self.raw.closed

    async def execute(self, op: Execute) -> Result:
        """Carry out one statement of a flow."""
        if op.prepare and self.prepared.is_due(op.sql, op.params):
            try:
                rows = await self.raw.wait(self.prepared.run(self.raw.pgconn, op.sql, op.params))
                return rows, len(rows), 0
            except psycopg.errors.InvalidSqlStatementName:
                self.prepared.forget()
        cursor, query = self.cursor, cast(Any, op.sql)
        try:
            await cursor.execute(query, op.params)
        except (psycopg.DataError, UnicodeEncodeError) as error:
            if getattr(error, "sqlstate", None):
                raise
            await cursor.execute(query, clean(op.params))
        return (await cursor.fetchall() if _has_rows(cursor.pgresult) else []), cursor.rowcount, 0

    async def first_value(
        self, sql: str, values: list[bytes | None], stops: list[asyncio.CancelledError]
    ) -> bytes | None:
        """Carry out the statement of a step, which is its own transaction, to its end; return the first value.

        The values and the answer are in binary.
        ``stops``: the cancellations that came meanwhile are added here, and are up to the caller.
        """
        result = await self._carried_out(sql, values, stops)
        return result.get_value(0, 0) if result.ntuples else None

    async def numbers_and_times(
        self, sql: str, values: list[bytes | None], stops: list[asyncio.CancelledError]
    ) -> list[tuple[int, float]]:
        """Do the same with a statement of several steps; return its rows, which have these two columns."""
        return _numbers_and_times(await self._carried_out(sql, values, stops))

    async def _carried_out(
        self,
        sql: str,
        values: list[bytes | None],
        stops: list[asyncio.CancelledError],
    ) -> PGresult:
        prepared, pgconn, formats = self.prepared, self.raw.pgconn, binary(len(values))
        name, result = prepared.names.get(sql) if HAS_POLL else None, None
        if name is not None:
            pgconn.send_query_prepared(name, values, formats, BINARY)
            if not pgconn.flush():
                try:
                    result = _checked(await self._answer(pgconn, stops))
                except psycopg.errors.InvalidSqlStatementName:
                    prepared.forget()  # the statement never started
                    name = None
        if result is None:
            # It is prepared first, or did not fit into the socket.
            sent = prepared.result(pgconn, sql, values, formats, BINARY) if name is None else _result(pgconn)
            outcome, stop = await to_its_end(uninterrupted(self.raw.wait(sent)))
            stops += [stop] if stop is not None else []
            result = outcome()
        return result

    async def _answer(self, pgconn: PGconn, stops: list[asyncio.CancelledError]) -> PGresult:
        """Return the answer of what was sent; psycopg's own ``wait`` takes twice as many turns of the loop."""
        last: PGresult | None = None
        while True:
            while pgconn.is_busy():
                arrivals = self.arrivals
                if arrivals is None or arrivals.is_over:
                    arrivals = self.arrivals = Arrivals(asyncio.get_running_loop(), pgconn)
                try:
                    await arrivals.wait()
                except asyncio.CancelledError as stop:
                    stops.append(stop)
            result = pgconn.get_result()
            if result is None:  # all has come: an error of the commit comes after the rows
                assert last is not None, "a statement that was sent has an answer"
                return last
            last = result

    async def command(self, sql: str) -> str:
        """Run statements without parameters; return what the server says it did."""
        cursor = await self.cursor.execute(cast(Any, sql), prepare=False)
        while cursor.nextset():
            pass
        return self.prepared.after(cursor.statusmessage or "")

    def close(self) -> None:
        """Disconnect without IO, from any thread: its event loop may be closed."""
        arrivals, self.arrivals = self.arrivals, None
        if arrivals is not None:
            arrivals.end()
        self.raw.pgconn.finish()


def command_result(raw: psycopg.Connection[Any], sql: str) -> str:
    """Run statements without parameters and without psycopg's own bookkeeping; return what the server says it did."""
    raw.pgconn.send_query(sql.encode())
    return (raw.wait(_result(raw.pgconn)).command_status or b"").decode()


def _has_rows(result: PGresult | None) -> bool:
    """Return whether the statement has columns to fetch; ``description`` would make an object for each of them."""
    return result is not None and result.nfields > 0


def connect(address: Address, *, opened: bool) -> Connection:
    """Connect with our settings. ``opened``: the ledger was reached before."""
    given = arguments(address)
    raw = None
    try:
        raw = psycopg.Connection.connect(**given)
        raw.prepared_max = PREPARED_MAX
        connection = Connection(raw)
        if address.pooler == "session":
            if not opened:
                refuse_shared(raw, given, address.shown)
            connection.command(settings_of(address, "set"))
        check_server(raw.info.server_version, raw.info.parameter_status("server_encoding"), address.shown)
        return connection
    except BaseException as error:
        if raw is not None:
            raw.pgconn.finish()
        if isinstance(error, psycopg.Error):
            raise why_not_connected(error, address.shown, opened=opened) from error
        raise


async def connect_async(address: Address, *, opened: bool) -> AsyncConnection:
    """Do the same on an event loop."""
    given = arguments(address)
    raw = None
    try:
        raw = await psycopg.AsyncConnection.connect(**given)
        raw.prepared_max = PREPARED_MAX
        connection = AsyncConnection(raw)
        if address.pooler == "session":
            await connection.command(settings_of(address, "set"))
        check_server(raw.info.server_version, raw.info.parameter_status("server_encoding"), address.shown)
        return connection
    except BaseException as error:
        if raw is not None:
            raw.pgconn.finish()
        if isinstance(error, psycopg.Error):
            raise why_not_connected(error, address.shown, opened=opened) from error
        raise


def refuse_shared(raw: psycopg.Connection[tuple[Any, ...]], given: dict[str, Any], shown: str) -> None:
    """Raise ``BadConfig`` behind a pooler in transaction mode that the URL does not declare; changes nothing.

    Settings and prepared statements of ours would leak into the sessions of others, and theirs into ours. A pooler
    reports other process ids than the server's. If it does, a second connection, opened beside this one, is asked for
    its session: in session mode that is another one than ours, and ours stays the same.
    """
    ours = _session_of(raw)
    if ours == raw.info.backend_pid:
        return
    try:
        other = psycopg.Connection.connect(**given)
    except psycopg.Error:
        return  # only one connection is allowed: it cannot be found out
    try:
        for _ in range(POOLER_LOOKS):
            theirs = _session_soon(other)
            if theirs is None:  # every session belongs to one client, as ours does to us
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
    """Return the process id of the session that answers now."""
    found = raw.execute(SESSION).fetchone()
    assert found is not None, "a select without a table has one row"
    return int(found[0])


def _session_soon(raw: psycopg.Connection[tuple[Any, ...]]) -> int | None:
    """Do the same; return None if none answers in time, after which the connection cannot be used."""
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
    """Raise unless this server and its encoding can hold a ledger."""
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

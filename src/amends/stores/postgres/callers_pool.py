"""The program's own ``psycopg_pool.ConnectionPool``: each operation borrows a connection for one transaction.

The program may have set anything on such a connection: its row factory, adapters, search path, autocommit, prepared
statements. None of it may change what the ledger reads and writes, and none of it is changed: settings of ours are local
to the transaction, and nothing of ours is prepared.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, cast
from urllib.parse import quote

import psycopg
from psycopg.adapt import AdaptersMap
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from amends.errors import BadConfig, LedgerUnavailable
from amends.stores.pool import closed
from amends.stores.postgres.connection import check_server, command_result
from amends.stores.postgres.transaction import clean
from amends.stores.postgres.url import LOCK_WAIT_S, Address
from amends.stores.sql import Execute, Result

ADAPTERS: Final = AdaptersMap(psycopg.adapters)
"""A program may have its own for its connections: floats as decimals, say."""
PLACE: Final = ("user", "host", "port", "dbname")


class LendingPool(Protocol):
    """What amends uses of a ``psycopg_pool.ConnectionPool``."""

    def getconn(self, timeout: float | None = None) -> psycopg.Connection[Any]:
        """Return a connection that belongs to the caller until ``putconn``."""
        ...

    def putconn(self, conn: psycopg.Connection[Any]) -> None:
        """Take it back; a closed one is replaced."""
        ...


def checked_pool(pool: object) -> LendingPool:
    """Return the pool; raise ``BadConfig`` unless it is a ``psycopg_pool.ConnectionPool``."""
    try:
        import psycopg_pool
    except ImportError:
        kinds: tuple[Any, Any] = ((), ())
    else:
        kinds = (psycopg_pool.ConnectionPool, psycopg_pool.AsyncConnectionPool)
    if isinstance(pool, kinds[0]):
        return cast(LendingPool, pool)
    if isinstance(pool, kinds[1]):
        raise BadConfig(
            "pool= is a psycopg_pool.AsyncConnectionPool, which only its event loop can use",
            setting="pool",
            hint="pass a psycopg_pool.ConnectionPool, also to an AsyncRuntime: leases are renewed by a thread, even while "
            "the loop is busy",
        )
    raise BadConfig(
        f"pool= is a {type(pool).__module__}.{type(pool).__qualname__}, not a psycopg_pool.ConnectionPool",
        setting="pool",
        hint="pip install psycopg_pool, and pass a psycopg_pool.ConnectionPool",
    )


def address_of(pool: LendingPool, *, schema: str, lock_wait_s: float | None) -> Address:
    """Return where the ledger is, as far as the pool says it, and our options. Connects to nothing."""
    conninfo, kwargs = getattr(pool, "conninfo", ""), getattr(pool, "kwargs", None)  # newer pools allow functions
    try:
        known = conninfo_to_dict(conninfo if isinstance(conninfo, str) else "")
    except psycopg.ProgrammingError:  # the pool says it when it connects; its error shows the password
        known = {}
    known |= kwargs if isinstance(kwargs, dict) else {}
    user, host, port, dbname = (str(known.get(name) or "") for name in PLACE)
    place = f"{quote(user)}@" * bool(user) + host + f":{port}" * bool(port)
    return Address(
        conninfo="",
        shown=f"postgresql://{place}/{dbname}" + (f"?schema={quote(schema, safe='')}" if schema else ""),
        schema=schema,
        lock_wait_s=LOCK_WAIT_S if lock_wait_s is None else lock_wait_s,
        pooler="transaction",
    )


class CallersPool:
    """The program's pool, used as one of ours. ``met``: called for every connection that it has not lent before."""

    def __init__(self, pool: LendingPool, address: Address, met: Callable[[], object]) -> None:
        self._pool, self._wait_s, self._shown = pool, address.lock_wait_s, address.shown
        self._met, self._lent = met, weakref.WeakSet[psycopg.Connection[Any]]()
        self._mutex = threading.Lock()
        self._pid = os.getpid()
        self._closed = False

    def take(self) -> BorrowedConnection:
        """Borrow a connection for this caller alone."""
        if self._closed:
            raise closed(self._shown)
        if self._pid != os.getpid():
            raise LedgerUnavailable(
                f"this process was forked, and the pool of the ledger at {self._shown} belongs to its parent",
                hint="make the pool and the runtime in the child process",
            )
        try:
            raw = self._pool.getconn(self._wait_s)
        except psycopg.Error as error:
            raise LedgerUnavailable(
                f"the program's pool gave no connection to the ledger at {self._shown} within {self._wait_s:g} s; nothing "
                f"of this was written ({type(error).__name__}: {error})",
                hint="open the pool before the ledger is used, and raise its max_size; see the server's log",
            ) from error
        try:
            _check_usable(raw, self._shown)
        except BaseException:
            self._pool.putconn(raw)
            raise
        with self._mutex:
            is_new = raw not in self._lent
            self._lent.add(raw)
        if is_new:  # the pool replaces its connections by itself, perhaps by some to another server
            self._met()
        return BorrowedConnection(raw)

    def give(self, connection: BorrowedConnection, *, keep: bool) -> None:
        """Give a connection back. One that may not be kept is closed, and the pool replaces it."""
        if not keep:
            connection.close()
        self._pool.putconn(connection.raw)

    def drop_idle(self) -> None:
        """Do nothing: idle connections are the program's."""

    def close(self) -> None:
        """Refuse every caller; the program closes its pool."""
        self._closed = True


@dataclass(slots=True, eq=False)
class BorrowedConnection:
    """A connection of the program. Every statement must be between a ``begin`` and the end of that transaction."""

    raw: psycopg.Connection[Any]
    cursor: _PlainCursor = field(init=False)

    def __post_init__(self) -> None:
        # Not raw.cursor(): the program's own class may name parameters differently, and may not return tuples.
        self.cursor = _PlainCursor(self.raw, row_factory=tuple_row)

    @property
    def closed(self) -> bool:
        """Whether it cannot be used any more."""
        return self.raw.closed

    def execute(self, op: Execute) -> Result:
        """Carry out one statement of a flow."""
        assert self.raw.pgconn.transaction_status != TransactionStatus.IDLE, "psycopg would begin a transaction here"
        cursor, query = self.cursor, cast(Any, op.sql)
        try:
            cursor.execute(query, op.params, prepare=False)
        except (psycopg.DataError, UnicodeEncodeError) as error:
            if getattr(error, "sqlstate", None):
                raise
            cursor.execute(query, clean(op.params), prepare=False)  # nothing was sent
        return (cursor.fetchall() if cursor.description else []), cursor.rowcount, 0

    def command(self, sql: str) -> str:
        """Run statements without parameters; return what the server says it did."""
        # Not by the cursor: it would begin a transaction before ours, and after a rollback deallocate every statement
        # that the program has prepared.
        return command_result(self.raw, sql)

    def close(self) -> None:
        """Disconnect; the server rolls back an open transaction."""
        self.raw.pgconn.finish()


class _PlainCursor(psycopg.Cursor[tuple[Any, ...]]):
    """A cursor that reads and writes values as psycopg does by default."""

    @property
    def adapters(self) -> AdaptersMap:
        return ADAPTERS


def _check_usable(raw: psycopg.Connection[Any], shown: str) -> None:
    """Raise unless this connection can carry a transaction of ours."""
    info = raw.info
    check_server(info.server_version, info.parameter_status("server_encoding"), shown)
    if info.encoding != "utf-8":
        raise BadConfig(
            f"the connections of the pool to {shown} have the client encoding {info.encoding}; the ledger needs UTF8",
            setting="pool",
            hint="remove client_encoding from the pool's conninfo, kwargs and configure",
        )
    if info.transaction_status != TransactionStatus.IDLE:
        raise BadConfig(
            f"the pool to {shown} lent a connection inside a transaction, or one that is busy",
            setting="pool",
            hint="end the transaction in the pool's configure and reset",
        )

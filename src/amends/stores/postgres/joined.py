"""The ledger in PostgreSQL through the caller's own ``psycopg`` connection, blocking or async."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from amends.errors import CannotJoin
from amends.ledger.dispatch import intent
from amends.ledger.operations import StoreOp
from amends.stores.joined import JoinedLedger, other_database
from amends.stores.postgres.connection import Blocking
from amends.stores.postgres.errors import explained, fate_of
from amends.stores.postgres.transaction import WRITING, clean, quoted
from amends.stores.postgres.wakeup import notify_sql, topics_of
from amends.stores.sql import Execute, Result, Transaction, as_sql

T = TypeVar("T")

OPEN: Final = frozenset({TransactionStatus.ACTIVE, TransactionStatus.INTRANS, TransactionStatus.INERROR})
NEEDED: Final = "read committed"
"""The isolation level that the ledger's flows are tested with: what is read under a lock must be the newest."""

HOME: Final = (
    "select n.nspname, (select max(ledger) from amends_schema) from pg_class c join pg_namespace n "
    "on n.oid = c.relnamespace where c.relname = 'amends_schema' and pg_table_is_visible(c.oid)"
)
OURS: Final = (
    "select current_setting('transaction_isolation'), exists (select 1 from pg_class c join pg_namespace n on n.oid = "
    "c.relnamespace where c.relname = 'amends_schema' and n.nspname = %s)"
)
SETTINGS: Final = "select current_setting('search_path'), current_setting('lock_timeout')"
SET: Final = "select set_config('search_path', %s, true), set_config('lock_timeout', %s, true)"
LOOK: Final = "select 1 from amends_run where uid = %s for update skip locked"


def home_of(connection: Blocking, begin: str) -> tuple[str, str]:
    """Return the schema of the ledger's tables, and the ledger's own name."""
    connection.command(begin)
    [(schema, ledger)], _, _ = connection.execute(Execute(HOME, ()))
    connection.command("rollback")
    return schema, ledger


def is_locked(connection: Blocking, begin: str, root: str) -> bool:
    """Return whether another transaction has locked this run."""
    connection.command(begin)
    found, _, _ = connection.execute(Execute(LOOK, (root,)))
    connection.command("rollback")
    return not found


def joined(
    raw: object,
    home: Callable[[], tuple[str, str]],
    holds: Callable[[str], bool],
    *,
    shown: str,
    wait_s: float,
    clock: Callable[[], float] | None,
    tool: str,
) -> JoinedLedger:
    """Return the ledger through this connection; raises ``CannotJoin`` if it cannot be used.

    ``home`` returns what ``home_of`` does, ``holds`` is asked whether a run is locked, ``shown`` is the ledger's URL
    without its password, and ``wait_s`` is how long a statement may wait for a lock.
    """
    if not isinstance(raw, psycopg.Connection | psycopg.AsyncConnection):
        raise CannotJoin(
            f"{tool}: this ledger is in PostgreSQL, and connection= is a "
            f"{type(raw).__module__}.{type(raw).__qualname__}",
            tool=tool,
            hint="pass a psycopg.Connection, or in an async run a psycopg.AsyncConnection; a toolkit's own object "
            "usually has the driver's connection in it",
        )
    status = raw.info.transaction_status
    if raw.closed or status not in OPEN:
        raise CannotJoin(
            f"{tool}: the connection is {'closed' if raw.closed else 'in no transaction'}",
            tool=tool,
            hint=f"begin it first: {'async ' if isinstance(raw, psycopg.AsyncConnection) else ''}"
            "with connection.transaction(): ...",
        )
    if status != TransactionStatus.INTRANS or raw.pgconn.pipeline_status != PipelineStatus.OFF:
        raise CannotJoin(
            f"{tool}: the connection's transaction has failed, or it is busy or in pipeline mode",
            tool=tool,
            hint="roll back to a savepoint before the error; leave the pipeline",
        )
    return JoinedLedger(raw, _CallersConnection(raw, home(), holds, shown=shown, wait_s=wait_s, clock=clock))


class _CallersConnection:
    """See ``amends.stores.joined.CallersConnection``."""

    def __init__(
        self,
        raw: psycopg.Connection[Any] | psycopg.AsyncConnection[Any],
        home: tuple[str, str],
        holds: Callable[[str], bool],
        *,
        shown: str,
        wait_s: float,
        clock: Callable[[], float] | None,
    ) -> None:
        self._raw, self._shown, self._clock = raw, shown, clock
        self._schema, self._ledger = home
        self._wait_ms = str(max(1, round(wait_s * 1000)))
        self.is_async = isinstance(raw, psycopg.AsyncConnection)
        self.holds = holds
        self.is_open_on: Callable[[Any], bool] = _is_open

    def execute(self, op: Execute) -> Any:
        """Carry out one statement; answers an awaitable where the connection is async."""
        return self._awaited(op) if isinstance(self._raw, psycopg.AsyncConnection) else self._blocking(self._raw, op)

    def _blocking(self, raw: psycopg.Connection[Any], op: Execute) -> Result:
        # Not raw.cursor(): the caller's own class may name parameters differently, and may not return tuples.
        cursor = psycopg.Cursor(raw, row_factory=tuple_row)
        query = cast(Any, op.sql)
        try:
            cursor.execute(query, op.params or None, prepare=None if op.params else False)
        except (psycopg.DataError, UnicodeEncodeError) as error:
            if getattr(error, "sqlstate", None):
                raise
            cursor.execute(query, clean(op.params))  # nothing had been sent
        return (cursor.fetchall() if cursor.description else []), cursor.rowcount, 0

    async def _awaited(self, op: Execute) -> Result:
        assert isinstance(self._raw, psycopg.AsyncConnection), "a blocking connection is not awaited"
        cursor = psycopg.AsyncCursor(self._raw, row_factory=tuple_row)
        query = cast(Any, op.sql)
        try:
            await cursor.execute(query, op.params or None, prepare=None if op.params else False)
        except (psycopg.DataError, UnicodeEncodeError) as error:
            if getattr(error, "sqlstate", None):
                raise
            await cursor.execute(query, clean(op.params))
        return (await cursor.fetchall() if cursor.description else []), cursor.rowcount, 0

    async def verify(self, tool: str) -> None:
        """Raise ``CannotJoin`` unless this is the ledger's database, with the isolation that it needs."""
        [(isolation, is_there)], _, _ = await Execute(OURS, (self._schema,))
        ledger = ""
        if is_there:
            [(ledger,)], _, _ = await Execute(f"select max(ledger) from {quoted(self._schema)}.amends_schema", ())
        if ledger != self._ledger:
            raise other_database(tool, self._shown)
        if isolation != NEEDED:
            raise CannotJoin(
                f"{tool}: the transaction is {isolation}; the ledger's rows need {NEEDED}",
                tool=tool,
                hint="connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED, before it begins",
            )

    async def carry_out(self, op: StoreOp[T]) -> T:
        """Carry out one operation with our search_path and lock_timeout, restore the caller's, and notify waiters."""
        [caller], _, _ = await Execute(SETTINGS, ())
        await Execute(SET, (quoted(self._schema), self._wait_ms))
        answer: T = await as_sql(intent(op), Transaction(WRITING, self._clock))
        topics = topics_of(op, answer)
        if topics:
            await Execute(notify_sql(len(topics)), topics)
        await Execute(SET, caller)
        return answer

    def is_own(self, error: BaseException) -> bool:
        """Return whether the database or its driver raised this."""
        return isinstance(error, psycopg.Error)

    def is_duplicate(self, error: BaseException) -> bool:
        """Return whether somebody else has inserted the same key or run id first."""
        return isinstance(error, psycopg.errors.UniqueViolation)

    def explained(self, error: Exception, op: StoreOp[Any] | None) -> Exception:
        """Return the error in the caller's words."""
        fate = fate_of(error, committing=False)
        return explained(error, self._shown, op=op, fate=fate)


def _is_open(raw: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    return not raw.closed and raw.info.transaction_status in OPEN

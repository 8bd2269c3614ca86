"""The ledger's file through the caller's own ``sqlite3.Connection``."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from amends.errors import CannotJoin, LedgerUnavailable
from amends.ledger.dispatch import intent
from amends.ledger.operations import StoreOp
from amends.stores.joined import JoinedLedger, locked_yet
from amends.stores.sql import Execute, Result, Statements, Transaction, as_sql
from amends.stores.sqlite.connection import connect, explained, is_busy
from amends.stores.sqlite.readers import Connection

T = TypeVar("T")

BEGIN: Final = 'begin it first: connection.execute("begin immediate")'


def joined(raw: object, path: Path, statements: Statements, clock: Callable[[], float], *, tool: str) -> JoinedLedger:
    """Return the ledger through this connection; raises ``CannotJoin`` if it cannot be used. No IO."""
    if not isinstance(raw, sqlite3.Connection):
        raise CannotJoin(
            f"{tool}: this ledger is a SQLite file, and connection= is a {type(raw).__module__}.{type(raw).__qualname__}",
            tool=tool,
            hint=f"pass a sqlite3.Connection to {path}, in a blocking run",
        )
    try:
        is_open = raw.in_transaction
        cursor = raw.cursor()
    except sqlite3.ProgrammingError as error:  # closed, or made in another thread
        raise CannotJoin(
            f"{tool}: the connection cannot be used here: {error}", tool=tool, hint="pass one that is open here"
        ) from error
    if not is_open:
        raise CannotJoin(f"{tool}: the connection is in no transaction", tool=tool, hint=BEGIN)
    cursor.row_factory = None  # our rows are plain tuples, whatever the caller's are
    return JoinedLedger(raw, _CallersConnection(Connection(raw, cursor), path, statements, clock))


class _CallersConnection:
    """See ``amends.stores.joined.CallersConnection``."""

    is_async = False

    def __init__(self, connection: Connection, path: Path, statements: Statements, clock: Callable[[], float]) -> None:
        self._connection, self._path = connection, path
        self._statements, self._clock = statements, clock
        self.holds = _holder(path)
        self.is_open_on: Callable[[Any], bool] = _is_open

    def execute(self, op: Execute) -> Result:
        """Carry out one statement on the caller's connection."""
        raw = self._connection.raw
        theirs = raw.text_factory
        if theirs is str:
            return self._connection.execute(op)
        raw.text_factory = str
        try:
            return self._connection.execute(op)
        finally:
            raw.text_factory = theirs

    async def verify(self, tool: str) -> None:
        """Raise ``CannotJoin`` unless the connection is to the ledger's file; take the write lock."""
        listed, _, _ = await Execute("pragma database_list", ())
        file = next((file for _, name, file in listed if name == "main"), "")
        if not file or not _is_same(file, self._path):
            raise CannotJoin(
                f"{tool}: the connection is to {file or 'a database in memory'}, and the ledger is {self._path}",
                tool=tool,
                hint="the record can only be part of a transaction in the ledger's own file",
            )
        # Changes nothing and takes the write lock: a transaction that has only read so far might find later that it
        # cannot write.
        await Execute("update amends_schema set needs = needs where 0", ())

    async def carry_out(self, op: StoreOp[T]) -> T:
        """Carry out one operation."""
        return await as_sql(intent(op), Transaction(self._statements, self._clock))

    def is_own(self, error: BaseException) -> bool:
        """Return whether the database or its driver raised this."""
        return isinstance(error, sqlite3.Error)

    def is_duplicate(self, error: BaseException) -> bool:
        """Return False: nobody else writes meanwhile."""
        return False

    def explained(self, error: Exception, op: StoreOp[Any] | None) -> Exception:
        """Return the error in the caller's words."""
        if isinstance(error, sqlite3.OperationalError) and is_busy(error):
            return LedgerUnavailable(
                f"the ledger at {self._path} is locked by another writer; nothing of this was written",
                hint="roll back and begin again; with BEGIN IMMEDIATE the wait comes before anything is done",
            )
        if isinstance(error, sqlite3.IntegrityError):
            return AssertionError(f"{type(op).__name__} breaks a rule of the schema: {error}")
        assert isinstance(error, sqlite3.Error), "only the driver's errors are explained"
        return explained(error, self._path)


def _is_open(raw: sqlite3.Connection) -> bool:
    try:
        return raw.in_transaction
    except sqlite3.ProgrammingError:
        return False


def _is_same(file: str, path: Path) -> bool:
    try:
        return os.path.samefile(file, path)  # noqa: PTH121
    except OSError:
        return False


def _is_locked(other: sqlite3.Connection) -> bool:
    try:
        other.execute("begin immediate")
    except sqlite3.OperationalError:
        return True
    other.execute("rollback")
    return False


def _holder(path: Path) -> Callable[[str], bool]:
    def holds(_root: str) -> bool:
        """Return whether the file is locked: the write lock is one for the whole file."""
        with contextlib.closing(connect(path, create=False, synchronous="FULL", wait_s=0.0)) as other:
            return all(locked_yet(lambda: _is_locked(other)))

    return holds

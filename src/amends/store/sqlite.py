"""A ledger in one file, shared by any number of threads and processes of one host."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from amends.errors import LedgerError, LedgerUnavailable
from amends.flow import run_flow
from amends.ops import StoreOp
from amends.store.batch import GroupCommit, Ticket
from amends.store.dialect import SQLITE
from amends.store.file import connect, establish, explained, is_busy, is_total, patiently
from amends.store.intents import READS, intent
from amends.store.sql import Desk, Execute, Result, Statements, transaction

T = TypeVar("T")

LOCK_WAIT_S: Final = 30.0
"""How long another process may keep the file before an operation gives up."""
THREADS_MAX: Final = 4
"""Threads for event loops: one writes, the others read."""
READERS_MAX: Final = 4
"""Idle read connections that are kept."""

STATEMENTS: Final = Statements(SQLITE)


@dataclass(slots=True)
class Line:
    """A connection with the one cursor that serves it: its statements follow one another."""

    raw: sqlite3.Connection
    cursor: sqlite3.Cursor

    def execute(self, op: Execute) -> Result:
        """Answer one request of a flow."""
        cursor = self.cursor
        cursor.execute(op.sql, op.params)
        return cursor.fetchall(), cursor.rowcount, cursor.lastrowid or 0


class SqliteStore:
    """Every operation is one transaction; concurrent ones share a flush; reads look at a snapshot.

    ``synchronous="FULL"`` survives the loss of power, ``"NORMAL"`` only the death of the process. No IO before
    ``open`` or the first operation.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        synchronous: Literal["FULL", "NORMAL"] = "FULL",
        clock: Callable[[], float] = time.time,
        *,
        lock_wait_s: float = LOCK_WAIT_S,
    ) -> None:
        assert synchronous in ("FULL", "NORMAL"), f"a ledger is not kept with synchronous={synchronous}"
        self.path = Path(path).absolute()  # a later chdir must not split the ledger in two
        self.url = f"sqlite:///{os.fspath(path)}"
        self._synchronous = synchronous
        self._clock = clock
        self._lock_wait_s = lock_wait_s
        self._create = True
        self._closed = False
        self._writer: Line | None = None
        self._begin_anew()
        _STORES.add(self)

    def _begin_anew(self) -> None:
        self._opening = threading.RLock()
        self._commits = GroupCommit(self._flush, self._threads)
        self._readers = Readers(self._open_reader)
        self._pool: ThreadPoolExecutor | None = None

    # ---- the protocol of a store ----------------------------------------------------------

    def open(self, *, create: bool) -> bool:
        """Connect and bring the schema up to date; True when this call made the ledger."""
        with self._opening:
            self._create = create
            if self._closed:
                raise LedgerUnavailable(f"the ledger at {self.path} is closed", hint="make a new runtime")
            if self._writer is not None:
                return False
            raw, made = establish(
                self.path,
                create=create,
                synchronous=self._synchronous,
                clock=self._clock,
                wait_s=self._lock_wait_s,
            )
            self._writer = Line(raw, raw.cursor())
            # From now on the ledger exists: should its file vanish, it must not be made again, empty.
            self._create = False
            return made

    def perform(self, op: StoreOp[T]) -> T:
        """Carry out one operation; returns when it is durable."""
        answer: T = self._read(op) if type(op) in READS else self._commits.perform(op)
        return answer

    async def perform_async(self, op: StoreOp[T]) -> T:
        """The same from an event loop; a cancellation is raised when the operation is over."""
        if type(op) in READS:
            return await asyncio.get_running_loop().run_in_executor(self._threads(), self._read, op)
        answer: T = await self._commits.perform_async(op)
        return answer

    def close(self) -> None:
        """Finish what is in line, give back connections and threads. May be called twice."""
        self._closed = True
        self._commits.close()
        with self._opening:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True)
        self._readers.close()
        self._drop_writer()  # last: it empties the log into the file

    # ---- writing --------------------------------------------------------------------------

    def _flush(self, batch: list[Ticket]) -> None:
        """One transaction for all of the batch, each operation wholly or not at all; then, and only then, answers."""
        committing = False
        try:
            writer = self._ready_writer()
            self._begin(writer)
            # The first needs no savepoint: if it fails, nothing else is in the transaction yet.
            if not self._carry_out(batch[0], writer):
                writer.cursor.execute("rollback")
                return
            place = 1
            self._commits.join(batch)
            while place < len(batch):
                self._carry_out_apart(batch[place], writer)
                place += 1
                if place == len(batch):
                    self._commits.join(batch)
            committing = True
            writer.cursor.execute("commit")
        except (LedgerError, sqlite3.Error) as error:
            self._fail(batch, error)
        except BaseException:  # an interrupt of this very thread
            in_doubt = self._writer is not None and self._writer.raw.in_transaction
            if in_doubt or not committing:
                self._fail(batch, LedgerUnavailable("the writing thread was interrupted; nothing was written"))
            raise

    def _begin(self, writer: Line) -> None:
        try:
            writer.cursor.execute("begin immediate")
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            patiently(self.path, self._lock_wait_s, lambda: writer.cursor.execute("begin immediate"))

    def _carry_out(self, ticket: Ticket, line: Line) -> bool:
        """Run the operation's flow; its own errors are its own, those of the file are everybody's."""
        try:
            ticket.answer = run_flow(transaction(intent(ticket.op), Desk(STATEMENTS, self._clock)), line.execute)
            return True
        except sqlite3.IntegrityError as error:
            ticket.error = AssertionError(f"{type(ticket.op).__name__} breaks a rule of the schema: {error}")
        except Exception as error:
            if is_total(error):
                raise
            ticket.error = error
        return False

    def _carry_out_apart(self, ticket: Ticket, writer: Line) -> None:
        writer.cursor.execute("savepoint op")
        if not self._carry_out(ticket, writer):
            writer.cursor.execute("rollback to op")
        writer.cursor.execute("release op")

    def _fail(self, batch: list[Ticket], error: Exception) -> None:
        """Nothing of the batch happened, or nobody knows: each is told so, with an error of its own."""
        try:
            if self._writer is not None and self._writer.raw.in_transaction:
                self._writer.cursor.execute("rollback")
        except sqlite3.Error:
            self._drop_writer()
        for ticket in batch:
            ticket.answer = None
            ticket.error = self._explained(error)
            ticket.error.__cause__ = error

    def _explained(self, error: Exception) -> Exception:
        if isinstance(error, sqlite3.Error):
            return explained(error, self.path)
        assert isinstance(error, LedgerError), "only errors of the ledger end a batch"
        return type(error)(str(error), hint=error.hint)

    def _ready_writer(self) -> Line:
        if self._writer is None:
            self.open(create=self._create)
        assert self._writer is not None, "an open ledger has a writer"
        return self._writer

    def _drop_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.raw.close()

    # ---- reading --------------------------------------------------------------------------

    def _read(self, op: StoreOp[T]) -> T:
        """Answer from a snapshot, without waiting for whoever writes."""
        ticket = Ticket(op)
        try:
            line = self._readers.take()
            try:
                line.cursor.execute("begin")
                try:
                    self._carry_out(ticket, line)
                finally:
                    line.cursor.execute("rollback")
            finally:
                self._readers.give(line)
        except sqlite3.Error as error:
            raise explained(error, self.path) from error
        answer: T = ticket.outcome()
        return answer

    def _open_reader(self) -> Line:
        if self._closed:
            raise LedgerUnavailable(f"the ledger at {self.path} is closed", hint="make a new runtime")
        with self._opening:
            self._ready_writer()
        raw = connect(self.path, create=False, synchronous=self._synchronous, wait_s=self._lock_wait_s)
        raw.execute("pragma query_only = 1")
        return Line(raw, raw.cursor())

"""A ledger in one file, shared by any number of threads and processes of one host."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from amends.errors import LedgerError, LedgerUnavailable
from amends.ledger.dispatch import READS, intent
from amends.ledger.flow import run_flow
from amends.ledger.joined import Joined
from amends.ledger.operations import AdmitCall, ReadChains, ReadCheckpoints, StoreOp
from amends.model import Schema
from amends.stores.quick import answer_sql, answered, is_plain_question
from amends.stores.sql import SQLITE, Statements, Transaction, as_sql
from amends.stores.sqlite import joined
from amends.stores.sqlite.connection import GroupCommit, Link, Readers, Ticket
from amends.stores.sqlite.file import (
    UNDECODABLE,
    connect,
    establish,
    explained,
    inode_of,
    is_busy,
    is_total,
    patiently,
    read_schema,
)
from amends.stores.sqlite.quick import QUICK

T = TypeVar("T")

LOCK_WAIT_S: Final = 30.0
"""How long another process may keep the file before an operation gives up."""
FORK_WAIT_S: Final = LOCK_WAIT_S + 5.0
"""How long a fork waits for transactions that other threads have begun."""
THREADS_MAX: Final = 4
"""Threads for event loops: one writes, the others read."""

STATEMENTS: Final = Statements(SQLITE)
ANSWER: Final = answer_sql(SQLITE)
AUDITS: Final = (ReadChains, ReadCheckpoints)
"""What reads whatever is there, also what no amends can have written."""


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
        self.synchronous: Literal["FULL", "NORMAL"] = synchronous
        self._clock = clock
        self._lock_wait_s = lock_wait_s
        self._create = True
        self._closed = False
        self._forking = False
        self._writer: Link | None = None
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
            self._check_open()
            if self._writer is not None:
                return False
            self._create = create
            raw, made = establish(
                self.path,
                create=create,
                synchronous=self.synchronous,
                clock=self._clock,
                wait_s=self._lock_wait_s,
            )
            self._writer = Link(raw, raw.cursor(), inode_of(self.path))
            # From now on the ledger exists: should its file vanish, it must not be made again, empty.
            self._create = False
            return made

    def schema(self) -> Schema:
        """What the file holds and what this amends would have; makes and changes nothing."""
        return read_schema(self.path, wait_s=self._lock_wait_s)

    def migrate(self) -> Schema:
        """Bring the ledger up to date, making it if there is none."""
        self.open(create=True)
        return self.schema()

    def perform(self, op: StoreOp[T]) -> T:
        """Carry out one operation; returns when it is durable."""
        if type(op) in READS:
            return self._read(op)
        answer: T | None = self._recorded(op) if type(op) is AdmitCall and is_plain_question(op) else None
        return self._commits.perform(op) if answer is None else answer

    async def perform_async(self, op: StoreOp[T]) -> T:
        """The same from an event loop; a cancellation is raised when the operation is over."""
        if type(op) in READS:
            self._check_open()
            return await asyncio.get_running_loop().run_in_executor(self._threads(), self._read, op)
        if type(op) is AdmitCall and is_plain_question(op):
            # One look by an index, from memory most likely: a hop to a thread and back takes longer.
            recorded: T | None = self._recorded(op)
            if recorded is not None:
                return recorded
        answer: T = await self._commits.perform_async(op)
        return answer

    def joined(self, connection: object, *, tool: str) -> Joined:
        """The ledger through this ``sqlite3.Connection``, inside the transaction that is open there."""
        self._check_open()
        return joined.joined(connection, self.path, STATEMENTS, self._clock, tool=tool)

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
        began = committing = False
        try:
            writer = self._ready_writer()
            self._begin(writer)
            began = True
            # The first needs no savepoint: if it fails, nothing else is in the transaction yet.
            if not self._carry_out(batch[0], writer):
                writer.cursor.execute("rollback")
                return
            self._carry_out_others(batch, writer)
            committing = True
            writer.cursor.execute("commit")
        except Exception as error:
            if not began:
                self._commits.join(batch)  # what stops the first stops all: they need not wait for it one by one
            self._fail(batch, error)
        except BaseException:  # an interrupt of this very thread; SQLite knows how far we came
            if not committing or (self._writer is not None and self._writer.raw.in_transaction):
                self._fail(batch, LedgerUnavailable("the thread that wrote was interrupted; nothing was written"))
            raise

    def _begin(self, writer: Link) -> None:
        try:
            writer.cursor.execute("begin immediate")
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            patiently(self.path, self._lock_wait_s, lambda: writer.cursor.execute("begin immediate"))

    def _carry_out(self, ticket: Ticket, link: Link) -> bool:
        """Run the operation's flow. Its own errors are its own; those of the file are everybody's."""
        try:
            op = ticket.op
            quick = QUICK.get(type(op))
            ticket.answer = None if quick is None else quick(link.cursor, op, self._clock)
            if ticket.answer is None:
                ticket.answer = run_flow(as_sql(intent(op), Transaction(STATEMENTS, self._clock)), link.execute)
            return True
        except sqlite3.Error as error:
            if is_total(error):
                raise
            ticket.error = AssertionError(f"{type(ticket.op).__name__} breaks a rule of the schema: {error}")
            ticket.error.__cause__ = error
        except Exception as error:
            ticket.error = error
        return False

    def _carry_out_others(self, batch: list[Ticket], writer: Link) -> None:
        """Take along whoever is in line by now, and whoever comes while we do."""
        place = 1
        self._commits.join(batch)
        while place < len(batch):
            writer.cursor.execute("savepoint op")
            if not self._carry_out(batch[place], writer):
                writer.cursor.execute("rollback to op")
            writer.cursor.execute("release op")
            place += 1
            if place == len(batch):
                self._commits.join(batch)

    def _fail(self, batch: list[Ticket], error: Exception) -> None:
        """Nothing of the batch happened, or nobody knows: each is told so, with an error of its own."""
        with contextlib.suppress(sqlite3.Error):
            if self._writer is not None and self._writer.raw.in_transaction:
                self._writer.cursor.execute("rollback")
        if isinstance(error, sqlite3.Error) and not is_busy(error):
            self._drop_writer()  # a connection that has seen such an error is not trusted again
        for ticket in batch:
            ticket.answer = None
            ticket.error = self._said(error)

    def _said(self, error: Exception) -> Exception:
        if isinstance(error, sqlite3.Error):
            own: Exception = explained(error, self.path)
        elif isinstance(error, LedgerError):
            own = type(error)(str(error), hint=error.hint)
        else:
            own = LedgerUnavailable(f"the ledger at {self.path} cannot be written: {error!r}")
        own.__cause__ = error
        return own

    def _ready_writer(self) -> Link:
        writer = self._writer
        if writer is None:
            self.open(create=self._create)
            writer = self._writer
            assert writer is not None, "an open ledger has a writer"
        elif inode_of(self.path) != writer.inode:
            # The operating system would let us go on writing into a file that nobody will ever read.
            self._drop_writer()
            self._readers.drop()
            raise LedgerUnavailable(
                f"the ledger at {self.path} was removed or replaced while it was open; nothing was written",
                hint="stop all workers before a ledger is moved or restored",
            )
        return writer

    def _drop_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.raw.close()

    def _check_open(self) -> None:
        if self._closed:
            raise LedgerUnavailable(f"the ledger at {self.path} is closed", hint="make a new runtime")

    def _threads(self) -> ThreadPoolExecutor:
        with self._opening:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="amends-ledger")
            return self._pool

    # ---- reading --------------------------------------------------------------------------

    def _read(self, op: StoreOp[T]) -> T:
        """Answer from a snapshot, without waiting for whoever writes."""
        self._check_open()
        ticket = Ticket(op)
        try:
            try:
                patiently(self.path, self._lock_wait_s, lambda: self._read_once(ticket))
            except sqlite3.OperationalError as error:
                if type(op) not in AUDITS or UNDECODABLE not in str(error):
                    raise
                # A byte that is no text was put in: an audit is to say where.
                patiently(self.path, self._lock_wait_s, lambda: self._read_once(ticket, text=_shown))
        except sqlite3.Error as error:
            raise explained(error, self.path) from error
        answer: T = ticket.outcome()
        return answer

    def _recorded(self, op: AdmitCall) -> Any:
        """The answer that is in the record already, without the write lock; None: the flow decides."""
        self._check_open()
        writer = self._writer
        if writer is None or inode_of(self.path) != writer.inode:
            return None  # opening may wait, and we may be on an event loop; what was replaced is for the flow to say
        kept: Link | None = None
        try:
            link = self._readers.take()
            try:
                found = link.cursor.execute(ANSWER, (op.key,)).fetchall()
                kept = link
            finally:
                if kept is None:
                    link.raw.close()
                self._readers.give(kept)
        except sqlite3.Error:
            return None  # whatever it is, the operation itself meets it and says so
        return answered(op, found)

    def _read_once(self, ticket: Ticket, text: Callable[[bytes], str] = str) -> None:
        link = self._readers.take()
        kept: Link | None = None
        try:
            link.raw.text_factory = text
            link.cursor.execute("begin")
            self._carry_out(ticket, link)
            link.cursor.execute("rollback")
            link.raw.text_factory = str
            kept = link
        finally:
            if kept is None:
                link.raw.close()  # it has seen an error of the file, or an interrupt
            self._readers.give(kept)

    def _open_reader(self) -> Link:
        with self._opening:
            if self._writer is None:
                self.open(create=self._create)
        raw = connect(self.path, create=False, synchronous=self.synchronous, wait_s=self._lock_wait_s)
        raw.execute("pragma query_only = 1")
        raw.execute("pragma busy_timeout = 0")  # whoever may wait does so patiently; an event loop may not
        return Link(raw, raw.cursor())

    # ---- forking --------------------------------------------------------------------------

    def before_fork(self) -> None:
        """Finish and disconnect. SQLite keeps its locks per process: a child that inherits a connection believes
        in locks that it does not have, even for connections that it opens itself.
        """
        # In this order: who writes or reads may still have to open.
        still = self._commits.hold(FORK_WAIT_S) and self._readers.hold(FORK_WAIT_S)
        self._forking = self._opening.acquire(timeout=FORK_WAIT_S)
        if still and self._forking:
            self._drop_writer()

    def after_fork_in_parent(self) -> None:
        """Go on; connections are opened again when needed."""
        if self._forking:
            self._opening.release()
        self._readers.release()
        self._commits.release()

    def after_fork_in_child(self) -> None:
        """Start with nothing of the parent's: neither its threads nor those who waited in line exist here."""
        if self._writer is not None:  # it could not be closed in time: using it or closing it would do harm
            _LEFT_ALONE.append((self._writer, self._readers))
            self._writer = None
        self._begin_anew()


_STORES: Final[weakref.WeakSet[SqliteStore]] = weakref.WeakSet()
_LEFT_ALONE: Final[list[Any]] = []


def _shown(raw: bytes) -> str:
    """Bytes that are no text, as no text of ours has them."""
    return raw.decode("utf-8", "backslashreplace")


def _each(act: Callable[[SqliteStore], None]) -> Callable[[], None]:
    def all_of_them() -> None:
        for store in list(_STORES):
            act(store)

    return all_of_them


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_each(SqliteStore.before_fork),
        after_in_parent=_each(SqliteStore.after_fork_in_parent),
        after_in_child=_each(SqliteStore.after_fork_in_child),
    )

"""A ledger in one file, shared by any number of threads and processes of one host."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Coroutine
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from amends.encoding.lazy_import import import_on_use
from amends.errors import LedgerError, LedgerUnavailable
from amends.ledger.dispatch import READS, intent
from amends.ledger.flow import run_flow
from amends.ledger.joined import Joined
from amends.ledger.operations import (
    BeginCompensation,
    BeginRollback,
    ClaimRun,
    CloseRun,
    DecideCommit,
    OpenRun,
    ReadChains,
    ReadCheckpoints,
    ReadHashes,
    SettleCall,
    SettleCompensation,
    StoreOp,
)
from amends.ledger.paths import written_path
from amends.ledger.plain import AdmitPlain, FailPlain, SettlePlain, TurnPlain, UndonePlain
from amends.model import Schema
from amends.stores.quick import undo_of
from amends.stores.sql import SQLITE, Kept, Statements, Transaction, as_sql
from amends.stores.sqlite import joined
from amends.stores.sqlite.connection import (
    UNDECODABLE,
    WAL_PAGES,
    WAL_PAGES_MAX,
    connect,
    establish,
    estimate_rows,
    explained,
    fill_log,
    inode_of,
    is_busy,
    is_total,
    patiently,
    read_schema,
    scrub,
)
from amends.stores.sqlite.group_commit import GroupCommit, Pending, WouldWait
from amends.stores.sqlite.quick import Plain
from amends.stores.sqlite.readers import Connection, Readers

if TYPE_CHECKING:
    import asyncio
    from concurrent import futures
else:
    import_on_use(globals(), asyncio="asyncio", futures="concurrent.futures")

T = TypeVar("T")
log = logging.getLogger("amends")

LOCK_WAIT_S: Final = 30.0
"""How long an operation waits for a file that another process has locked."""
FORK_WAIT_S: Final = LOCK_WAIT_S + 5.0
"""How long a fork waits for the transactions of other threads."""
THREADS_MAX: Final = 4
"""Threads for event loops: one writes, the others read."""

STATEMENTS: Final = Statements(SQLITE)
PLAIN: Final[dict[type[Any], Callable[[Plain, sqlite3.Cursor, Any], Any]]] = {
    AdmitPlain: Plain.admit,
    SettlePlain: Plain.settle,
    SettleCall: Plain.fail,
    FailPlain: Plain.fail_plainly,
    BeginCompensation: Plain.begin,
    SettleCompensation: Plain.end_alone,
}
INSIDE: Final[dict[type[Any], Callable[[Plain, sqlite3.Cursor, Any], Any]]] = {
    **PLAIN,
    SettleCompensation: Plain.end,
    OpenRun: Plain.open,
    BeginRollback: Plain.turn,
    CloseRun: Plain.close,
    DecideCommit: Plain.commit,
    TurnPlain: Plain.turn_back,
    UndonePlain: Plain.undone,
}
"""Also those of several statements, which are done inside a transaction only."""
BEFORE_BODIES: Final = frozenset({AdmitPlain, BeginCompensation})
"""The plain operations after which a body runs: nobody may run it by a record that is in a deleted file."""
FILE_CHECK_S: Final = 0.01
"""A file that was removed or replaced is noticed so late at most by lone plain calls and compensations: to look before each
takes a thirtieth of its time. Batches, transactions of several statements and the general flows look each time."""
INLINE_MAX: Final = 64
"""The most operations of one turn of an event loop that are written on the loop."""
INLINE_FLUSH_S: Final = 0.0003
"""If a flush took less than this lately, it is done on the loop."""
APART_MIN: Final = 8
"""From so many operations on an event loop only writes them, and a thread flushes."""
COPY_LOG: Final = "pragma wal_checkpoint(passive)"
NOT_COPIED: Final = "the log of %s was not copied into the file: %s"
"""Not an error: nothing is lost, and a commit copies the log when it has its greatest size."""
COPY_MIN, COPY_FIRST, COPY_MAX = 100, 400, 16_000
"""After how many operations that is: at least, as long as nothing is known of their size, and at most."""
STATEMENTS_INSIDE: Final = 3
"""What a transaction of several statements counts for."""
AUDITS: Final = (ReadChains, ReadCheckpoints, ReadHashes)
"""Reads that must also show what amends cannot have written."""


class SqliteStore:
    """A ledger in a SQLite file: each operation is one transaction; concurrent ones share a flush; reads use a snapshot.

    ``synchronous="FULL"`` survives a power failure, ``"NORMAL"`` only the death of the process. No IO before ``open``
    or the first operation.
    """

    keeps_outcome = True
    dialect = "sqlite"

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
        self._file = os.fspath(self.path)
        self.url = f"sqlite:///{written_path(path)}"
        self.synchronous: Literal["FULL", "NORMAL"] = synchronous
        self._clock = clock
        self._lock_wait_s = lock_wait_s
        self._create = True
        self._closed = False
        self._forking = False
        self._writer: Connection | None = None
        self._start_fresh()
        _STORES.add(self)
        _FORKS.register(1)

    def _start_fresh(self) -> None:
        self._opening = threading.RLock()
        self._commits = GroupCommit(
            self._flush, self._alone, self._threads, self._is_quick, self._share, self._write_apart, self._commit_apart
        )
        self._readers = Readers(self._open_reader)
        self._pool: futures.ThreadPoolExecutor | None = None
        self._pooling = threading.RLock()
        """Not ``_opening``, which is held as long as the file is locked: an event loop takes this one."""
        self._flush_s = 1.0
        """How long a flush took lately."""
        self._checked_until = 0.0
        """Until when the file of the writer counts as that which the path names."""
        self._kept: dict[str, Kept] = {}
        """The ends of the chains of the runs that this store's process owns, by uid."""
        self._plain = Plain(self._clock, self._kept, STATEMENTS)
        self._uncopied = 0
        """Operations since the log was copied into the database."""
        self._copy_after = COPY_FIRST
        """After so many operations the log is copied again."""
        self._is_copying = False
        self._is_copied = False
        """Whether a thread has copied most of the log: the next writer copies the rest, and the log begins anew."""

    # ---- The protocol of a store

    def open(self, *, create: bool) -> bool:
        """Connect and migrate the schema; return whether this call created the ledger."""
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
            self._writer = Connection(raw, raw.cursor(), inode_of(self.path))
            if made:
                fill_log(raw, self.path)
            raw.execute("pragma busy_timeout = 0")  # an event loop may not wait; callers that may wait use patiently()
            raw.execute(
                f"pragma wal_autocheckpoint = {WAL_PAGES_MAX[self.synchronous]}"
            )  # ``_copy_log`` comes before that
            # From now on the ledger exists: if its file vanishes, it must not be created again, empty.
            self._create = False
            return made

    def schema(self) -> Schema:
        """Return the schema version that the file has and the one that this amends has; changes nothing."""
        return read_schema(self.path, wait_s=self._lock_wait_s)

    def migrate(self) -> Schema:
        """Apply every migration, or create the ledger; return the schema version that it has now."""
        self.open(create=True)
        if self.schema().pending:  # what no program applies by itself
            raw, _ = establish(
                self.path,
                create=False,
                synchronous=self.synchronous,
                clock=self._clock,
                wait_s=self._lock_wait_s,
                contract=True,
            )
            raw.close()
        return self.schema()

    def estimate_rows(self, tables: Collection[str]) -> dict[str, int]:
        """Return about how many rows these tables have; one that does not exist is left out."""
        return estimate_rows(self.path, tables, wait_s=self._lock_wait_s)

    def scrub(self) -> None:
        """Rewrite the file and empty its log: pages and bytes that were freed are in neither afterwards.

        Writers wait meanwhile; it needs as much free space as the file has. Raises ``LedgerUnavailable`` if another program
        keeps reading or writing.
        """
        self._check_open()
        scrub(self.path, synchronous=self.synchronous, wait_s=self._lock_wait_s)

    def perform(self, op: StoreOp[T]) -> T:
        """Carry out one operation; return when it is durable."""
        if type(op) in READS:
            return self._read(op)
        answer: T = self._commits.perform(op)
        return answer

    def perform_async(self, op: StoreOp[T]) -> Coroutine[Any, Any, T]:
        """Do the same on an event loop; a cancellation is raised when the operation is over."""
        return self._read_async(op) if type(op) in READS else self._commits.perform_async(op)

    def joined(self, connection: object, *, tool: str) -> Joined:
        """Return the ledger through this ``sqlite3.Connection``, inside the transaction that is open there."""
        self._check_open()
        return joined.joined(connection, self.path, STATEMENTS, self._clock, tool=tool)

    def close(self) -> None:
        """Finish what is queued; close connections and threads. May be called twice."""
        self._closed = True
        self._commits.close()
        with self._pooling:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True)
        self._readers.close()
        self._drop_writer()  # last: this copies the write-ahead log into the file

    # ---- Writing

    def _alone(self, op: StoreOp[Any]) -> Any:
        """Carry out a plain operation in a transaction of its own; None: nothing was done, and the flow must decide."""
        kind = type(op)
        writer = self._writer
        if writer is None:
            return None
        plain = PLAIN.get(kind)
        if plain is None or (kind is SettleCompensation and op.then is not None):  # type: ignore[attr-defined]
            return self._in_transaction(writer, op, INSIDE[kind]) if kind in INSIDE else None
        if kind in BEFORE_BODIES and time.monotonic() > self._checked_until and not self._is_same_file(writer):
            return None  # the flow says that the file was replaced; what is written to the old one is lost
        try:
            answer = plain(self._plain, writer.cursor, op)
            self._uncopied += 1
            if self._uncopied >= self._copy_after:
                self._keep_log_short(writer)
            return answer
        except sqlite3.Error as error:
            if is_busy(error):
                return None  # nothing was done; the flow waits for the lock
            self._forget()
            raise self._copy_of(error) from error
        except BaseException:
            self._forget()
            raise

    def _in_transaction(
        self, writer: Connection, op: StoreOp[Any], inside: Callable[[Plain, sqlite3.Cursor, Any], Any]
    ) -> Any:
        """Do what ``_alone`` does with an operation of several statements."""
        if not self._is_same_file(writer):
            return None
        cursor = writer.cursor
        answer = None
        try:
            cursor.execute("begin immediate")
            answer = inside(self._plain, cursor, op)
            if answer is None:
                cursor.execute("rollback")
                return None
            before = time.monotonic()
            cursor.execute("commit")
            self._flush_s = max(time.monotonic() - before, self._flush_s * 0.8)
            self._uncopied += STATEMENTS_INSIDE
            if self._uncopied >= self._copy_after:
                self._keep_log_short(writer)
            return answer
        except sqlite3.Error as error:
            if is_busy(error) and not writer.raw.in_transaction:
                return None  # another process has the lock; the flow waits for it
            if is_total(error):
                self._fail([], error)
                raise self._copy_of(error) from error
            self._forget()
            cursor.execute("rollback")
            return None
        except BaseException as error:  # an interrupt, or a mistake of ours; SQLite knows whether it has committed
            self._fail([], LedgerUnavailable(f"not written: {error!r}"))
            raise

    def _is_same_file(self, writer: Connection) -> bool:
        """Return whether the path still names the file that is written, and remember for a moment that it does."""
        if inode_of(self._file) != writer.inode:
            return False
        self._checked_until = time.monotonic() + FILE_CHECK_S
        return True

    def _is_quick(self, count: int) -> bool:
        """Return whether so many operations may be written on an event loop: a hop to a thread takes longer."""
        if self._writer is None or count > INLINE_MAX:
            return False
        return self.synchronous == "NORMAL" or self._flush_s < INLINE_FLUSH_S

    def _share(self, queue: deque[Pending]) -> int:
        """Return how many queued operations an event loop writes, for a thread to flush; 0: it is done in one place.

        A thread that also wrote them would ask for the interpreter lock after each statement.
        """
        count = len(queue)
        if self.synchronous == "NORMAL" or self._writer is None or count < APART_MIN:
            return 0
        return 0 if any(type(pending.op) not in PLAIN for pending in queue) else min(INLINE_MAX, count)

    def _write_apart(self, batch: list[Pending]) -> bool:
        """Carry out the batch in a transaction that ``_commit_apart`` ends; return False if it is over: it failed."""
        try:
            writer = self._ready_writer()
            self._begin(writer, may_wait=False)
            self._carry_out_others(batch, writer, 0, joins=False)
            return True
        except WouldWait:
            raise
        except Exception as error:
            self._fail(batch, error)
            return False
        except BaseException:
            self._fail(batch, LedgerUnavailable("the thread that was writing was interrupted; nothing was written"))
            raise

    def _commit_apart(self, batch: list[Pending]) -> None:
        """End the transaction of ``_write_apart``."""
        try:
            writer = self._writer
            assert writer is not None, "a connection that has written is kept"
            before = time.monotonic()
            writer.cursor.execute("commit")
            self._flush_s = max(time.monotonic() - before, self._flush_s * 0.8)
        except Exception as error:
            self._fail(batch, error)
            return
        self._note_written(writer, len(batch))

    def _flush(self, batch: list[Pending], may_wait: bool) -> None:
        """Carry out the batch in one transaction, each operation completely or not at all; answer after the commit."""
        began = committing = False
        try:
            writer = self._ready_writer()
            self._begin(writer, may_wait)
            began = True
            done = 0
            if len(batch) == 1:
                # The first needs no savepoint: if it fails, nothing else is in the transaction yet.
                if not self._carry_out(batch[0], writer):
                    writer.cursor.execute("rollback")
                    return
                done = 1
            self._carry_out_others(batch, writer, done)
            committing = True
            before = time.monotonic()
            writer.cursor.execute("commit")
            self._flush_s = max(time.monotonic() - before, self._flush_s * 0.8)
            self._note_written(writer, len(batch))
        except WouldWait:
            raise
        except Exception as error:
            if not began:
                self._commits.join(batch)  # what stops the first stops all: they need not find out one by one
            self._fail(batch, error)
        except BaseException:  # an interrupt of this thread; SQLite knows whether it has committed
            self._forget()
            if not committing or (self._writer is not None and self._writer.raw.in_transaction):
                self._fail(batch, LedgerUnavailable("the thread that was writing was interrupted; nothing was written"))
            raise

    # ---- Keeping the log short

    # The log is copied into the database, and begins anew, when it has a certain size. SQLite lets the commit that
    # reaches that size do it, and its caller waits for milliseconds. Here a thread copies nearly all of it. Only what was
    # written meanwhile is left to the next writer: nobody else can be sure that nothing follows.

    def _note_written(self, writer: Connection, count: int) -> None:
        """Count operations that were committed; called by the one who writes, outside of transactions."""
        self._uncopied += count
        if self._uncopied >= self._copy_after:
            self._keep_log_short(writer)

    def _keep_log_short(self, writer: Connection) -> None:
        """Let a thread copy the log; when it has, copy the rest. Never raise an error of the file: a commit will meet it."""
        if self._is_copied:
            self._is_copied, self._uncopied = False, 0
            try:
                writer.cursor.execute(COPY_LOG).fetchall()
            except sqlite3.Error as error:
                log.debug(NOT_COPIED, self.path, error)
        elif not self._is_copying:
            self._is_copying = True
            try:
                self._threads().submit(self._copy_log)
            except RuntimeError:  # the interpreter is shutting down and takes no new threads
                self._is_copied = True

    def _copy_log(self) -> None:
        """Copy the log into the database, beside readers and writers; learn how many pages an operation writes."""
        connection: Connection | None = None
        pages = 0
        try:
            taken = self._readers.take()
            try:
                _, pages, _ = taken.cursor.execute(COPY_LOG).fetchone()
                # Once more: what was written meanwhile would be the next writer's to copy and to flush.
                taken.cursor.execute(COPY_LOG).fetchone()
                connection = taken
            finally:
                if connection is None:
                    taken.raw.close()
                self._readers.give(connection)
        except (sqlite3.Error, LedgerError) as error:
            log.debug(NOT_COPIED, self.path, error)
        finally:
            if pages > 0:
                # The thread begins when the log has three quarters of its size: it has all of it when the rest is copied.
                begins_at = WAL_PAGES[self.synchronous] * 3 // 4
                self._copy_after = max(COPY_MIN, min(COPY_MAX, self._uncopied * begins_at // pages))
            self._is_copied, self._is_copying = True, False

    def _begin(self, writer: Connection, may_wait: bool) -> None:
        try:
            writer.cursor.execute("begin immediate")
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            if not may_wait:
                raise WouldWait from error
            patiently(self.path, self._lock_wait_s, lambda: writer.cursor.execute("begin immediate"))

    def _forget(self) -> None:
        """Read the ends of all chains and the numbers of tools again: what was remembered may not have been committed."""
        self._plain.tools.clear()
        for kept in list(self._kept.values()):
            kept.forget()

    def _carry_out(self, pending: Pending, connection: Connection) -> bool:
        """Run one operation; return whether it succeeded. Errors of the file are raised: they concern the whole batch."""
        try:
            op = pending.op
            plain = INSIDE.get(type(op))
            pending.answer = None if plain is None else plain(self._plain, connection.cursor, op)
            if pending.answer is None:
                # A reader sees a snapshot, and what is remembered may be newer than that, or never be committed.
                is_writer = connection is self._writer
                tx = Transaction(STATEMENTS, self._clock, self._kept if is_writer else None)
                pending.answer = run_flow(as_sql(intent(op), tx), connection.execute)
                if is_writer:
                    self._remember(op, pending.answer, tx)
            return True
        except sqlite3.Error as error:
            if is_total(error):
                raise
            pending.error = AssertionError(f"{type(pending.op).__name__} breaks a rule of the schema: {error}")
            pending.error.__cause__ = error
        except Exception as error:
            pending.error = error
        return False

    def _remember(self, op: StoreOp[Any], answer: Any, tx: Transaction) -> None:
        """Remember the new ends of the chains; forget all of them if the transaction fails after all (``_fail``)."""
        self._plain.seen = max(self._plain.seen, tx.mark)
        for root, tail in tx.tails.items():
            kept = self._kept.get(root)
            run = tx.runs.get(root)
            if run is not None and not run.owner:
                self._plain.forget(root)
            elif kept is not None and tail.is_longer:
                kept.n, kept.head, kept.at, kept.touch = tail.n, tail.head, tail.at, tail.touch + 1
                kept.owner, kept.epoch = (run.owner, run.epoch) if run is not None else (kept.owner, kept.epoch)
                kept.undo = undo_of(answer, kept.touch) if isinstance(op, BeginRollback) else None
                kept.left = None
            elif kept is None and run is not None and tail.is_end and _makes_owner(op, run.owner):
                touch = tail.touch + int(tail.is_longer)
                self._kept[root] = Kept(tail.no, tail.n, tail.head, tail.at, touch, run.owner, run.epoch)

    def _carry_out_others(self, batch: list[Pending], writer: Connection, place: int, *, joins: bool = True) -> None:
        """Carry out the batch from this place on.

        ``joins``: also the operations that are queued by now, and those that come meanwhile.
        """
        plain, cursor = self._plain, writer.cursor
        if joins:
            self._commits.join(batch)
        while place < len(batch):
            for pending in batch[place:]:
                op = pending.op
                quick = PLAIN.get(type(op))
                if quick is not None:  # one statement, which does all or nothing
                    pending.answer = quick(plain, cursor, op)
                if pending.answer is None:
                    cursor.execute("savepoint op")
                    if not self._carry_out(pending, writer):
                        cursor.execute("rollback to op")
                    cursor.execute("release op")
                place += 1
            if joins:
                self._commits.join(batch)

    def _fail(self, batch: list[Pending], error: Exception) -> None:
        """Roll back, and give each operation of the batch its own copy of the error."""
        self._forget()
        with contextlib.suppress(sqlite3.Error):
            if self._writer is not None and self._writer.raw.in_transaction:
                self._writer.cursor.execute("rollback")
        if isinstance(error, sqlite3.Error) and not is_busy(error):
            self._drop_writer()  # a connection that has seen such an error is not trusted again
        for pending in batch:
            pending.answer = None
            pending.error = self._copy_of(error)

    def _copy_of(self, error: Exception) -> Exception:
        if isinstance(error, sqlite3.Error):
            own: Exception = explained(error, self.path)
        elif isinstance(error, LedgerError):
            own = type(error)(str(error), hint=error.hint)
        else:
            own = LedgerUnavailable(f"the ledger at {self.path} cannot be written: {error!r}")
        own.__cause__ = error
        return own

    def _ready_writer(self) -> Connection:
        writer = self._writer
        if writer is None:
            self.open(create=self._create)
            writer = self._writer
            assert writer is not None, "an open ledger has a writer"
        elif not self._is_same_file(writer):
            # The operating system would let us write on into a file that nobody will ever read.
            self._drop_writer()
            self._readers.drop()
            raise LedgerUnavailable(
                f"the ledger at {self.path} was removed or replaced while it was open; nothing was written",
                hint="stop all workers before a ledger is moved or restored",
            )
        return writer

    def _drop_writer(self) -> None:
        self._checked_until = 0.0
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.raw.close()

    def _check_open(self) -> None:
        if self._closed:
            raise LedgerUnavailable(f"the ledger at {self.path} is closed", hint="make a new runtime")

    def _threads(self) -> futures.ThreadPoolExecutor:
        with self._pooling:
            if self._pool is None:
                self._pool = futures.ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="amends-ledger")
                _FORKS.register(2)
            return self._pool

    # ---- Reading

    def _read(self, op: StoreOp[T]) -> T:
        """Answer from a snapshot, without waiting for a writer."""
        self._check_open()
        pending = Pending(op)
        try:
            try:
                patiently(self.path, self._lock_wait_s, lambda: self._read_once(pending))
            except sqlite3.OperationalError as error:
                if type(op) not in AUDITS or UNDECODABLE not in str(error):
                    raise
                # Somebody stored bytes that are not text: an audit must say where.
                patiently(self.path, self._lock_wait_s, lambda: self._read_once(pending, text=_shown))
        except sqlite3.Error as error:
            raise explained(error, self.path) from error
        answer: T = pending.outcome()
        return answer

    async def _read_async(self, op: StoreOp[T]) -> T:
        self._check_open()
        return await asyncio.get_running_loop().run_in_executor(self._threads(), self._read, op)

    def _read_once(self, pending: Pending, text: Callable[[bytes], str] = str) -> None:
        connection = self._readers.take()
        kept: Connection | None = None
        try:
            connection.raw.text_factory = text
            connection.cursor.execute("begin")
            self._carry_out(pending, connection)
            connection.cursor.execute("rollback")
            connection.raw.text_factory = str
            kept = connection
        finally:
            if kept is None:
                connection.raw.close()  # it met an error of the file, or an interrupt
            self._readers.give(kept)

    def _open_reader(self) -> Connection:
        with self._opening:
            if self._writer is None:
                self.open(create=self._create)
        raw = connect(self.path, create=False, synchronous=self.synchronous, wait_s=self._lock_wait_s)
        raw.execute("pragma query_only = 1")
        raw.execute("pragma busy_timeout = 0")  # as above
        return Connection(raw, raw.cursor())

    # ---- Forks

    def before_fork(self) -> None:
        """Finish and disconnect.

        SQLite keeps its locks per process: a child that inherits a connection believes that it has locks that it does
        not have, even on connections that it opens itself.
        """
        # In this order: a writer or a reader may still have to open.
        is_idle = self._commits.hold(FORK_WAIT_S) and self._readers.hold(FORK_WAIT_S)
        self._forking = self._opening.acquire(timeout=FORK_WAIT_S)
        if is_idle and self._forking:
            self._drop_writer()

    def after_fork_in_parent(self) -> None:
        """Continue; connections are opened again when needed."""
        if self._forking:
            self._opening.release()
        self._readers.release()
        self._commits.release()

    def after_fork_in_child(self) -> None:
        """Start without the parent's connections: neither its threads nor its queued callers exist here."""
        if self._writer is not None:  # it was not closed in time: to use or close it here would do harm
            _LEFT_ALONE.append((self._writer, self._readers))
            self._writer = None
        self._start_fresh()


def _makes_owner(op: StoreOp[Any], owner: str) -> bool:
    """Return whether this operation has opened the run for its caller, or taken it over."""
    return isinstance(op, OpenRun | ClaimRun) and op.owner == owner


_STORES: Final[weakref.WeakSet[SqliteStore]] = weakref.WeakSet()
_LEFT_ALONE: Final[list[Any]] = []


def _shown(raw: bytes) -> str:
    """Return bytes that are not text in a form that no text of ours has."""
    return raw.decode("utf-8", "backslashreplace")


class _Forks:
    """What happens around a fork, to all stores; one fork at a time: a second one would find them continuing after the first.

    Functions before a fork are called in reverse order of registration, and those after it in order. Those of
    ``concurrent.futures`` hold the lock that ``submit`` needs meanwhile: ours must come before and after them, or whoever leads
    waits for the fork, which waits for it. But a blocking program does not need that module. So ours are registered with the
    first store, and once more when a store has imported it; those that were registered last do the work.
    """

    def __init__(self) -> None:
        self._turn = threading.RLock()  # it knows whether this thread has it
        self._registered = 0
        self._inside: tuple[int, int] | None = None
        """The thread that forks, and which registration has done the work before it."""

    def register(self, number: int) -> None:
        """Be called around forks from now on. ``number``: 1 with the first store, 2 after ``concurrent.futures``."""
        if number > self._registered and hasattr(os, "register_at_fork"):
            self._registered = number
            os.register_at_fork(
                before=partial(self._before, number),
                after_in_parent=partial(self._in_parent, number),
                after_in_child=partial(self._in_child, number),
            )

    def _before(self, number: int) -> None:
        me = threading.get_ident()
        if self._inside is not None and self._inside[0] == me:
            return  # what was registered later has done it
        try:
            self._turn.acquire()
            self._inside = me, number
        except BaseException:  # an interrupt: Python reports it and forks all the same
            if self._inside != (me, number):
                with contextlib.suppress(RuntimeError):  # it was not acquired
                    self._turn.release()
            raise
        for store in list(_STORES):
            store.before_fork()

    def _in_parent(self, number: int) -> None:
        if self._inside != (threading.get_ident(), number):
            return
        try:
            for store in list(_STORES):
                store.after_fork_in_parent()
        finally:
            self._inside = None
            self._turn.release()

    def _in_child(self, number: int) -> None:
        if self._inside != (threading.get_ident(), number):
            return
        for store in list(_STORES):
            store.after_fork_in_child()
        self._inside, self._turn = None, threading.RLock()


_FORKS: Final = _Forks()

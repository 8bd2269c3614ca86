"""A ledger in PostgreSQL, shared by any number of hosts.

Every operation is one transaction (``transaction.py``) on a connection from a pool: one pool for threads, and one for
each event loop, whose connections need no thread. A program may hand in its own pool instead (``callers_pool.py``).
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final, TypeVar

from amends.errors import BadConfig, LedgerUnavailable, NotStorable
from amends.ledger.flow import Flow, run_flow
from amends.ledger.joined import Joined
from amends.ledger.operations import OpenChild, OpenRun, StoreOp
from amends.ledger.store import OUTCOME
from amends.model import Schema
from amends.stores.postgres.url import Address, check_schema, read_url

try:
    import psycopg  # before our own modules that need it, so that its absence has a clear error
except ImportError as missing:
    raise BadConfig(
        "a ledger at postgresql: needs psycopg, which is not installed or does not find libpq",
        setting="url",
        hint="pip install 'amends[postgres]'",
    ) from missing

from amends.ledger.flow import run_flow_async
from amends.stores.batches import STEPS, Batches, Loops, root_of
from amends.stores.cancellation import to_its_end, uninterrupted
from amends.stores.joined import locked_yet
from amends.stores.pool import Lender, LoopPool, Pool
from amends.stores.postgres import joined
from amends.stores.postgres.callers_pool import CallersPool, LendingPool, address_of, checked_pool
from amends.stores.postgres.connection import AsyncConnection, Blocking, Connection, arguments, connect, connect_async
from amends.stores.postgres.errors import explained, fate_of
from amends.stores.postgres.quick import QUICK, UNDONE, Plain, is_certain, let_go
from amends.stores.postgres.schema import establish, estimate_rows, read_schema
from amends.stores.postgres.transaction import Attempts, Preamble
from amends.stores.postgres.wakeup import Ring, Watch
from amends.stores.retry import AsyncCaller, Caller, perform

T = TypeVar("T")

THREADS_MAX: Final = 10
"""Threads for event loops that use the program's pool."""

LOOPS_MAX: Final = 100
"""Open event loops of one process that use one ledger; more than this is a leak of loops."""


class PostgresStore:
    """A ledger in PostgreSQL: each operation is one transaction, as durable as ``synchronous_commit`` says.

    No IO before ``open`` or the first operation. ``clock`` replaces the server's clock, for tests; ``schema``,
    ``pool_max`` and ``lock_wait_s`` replace the options of the URL. ``pool``, instead of a URL: the program's own
    ``psycopg_pool.ConnectionPool``, which is used from threads only, and which the program opens and closes.
    """

    keeps_outcome = True
    dialect = "postgresql"

    def __init__(
        self,
        url: str | None = None,
        clock: Callable[[], float] | None = None,
        *,
        pool: LendingPool | None = None,
        schema: str | None = None,
        pool_max: int | None = None,
        lock_wait_s: float | None = None,
    ) -> None:
        self._lent = None if pool is None else checked_pool(pool)
        self._address = self._addressed(url, schema=schema, pool_max=pool_max, lock_wait_s=lock_wait_s)
        self.url = self._address.shown
        self._clock = clock
        self._plain = Plain(clock, lost=lambda: self._met(None))
        self._preamble = Preamble(self._address)
        self._create = True
        self._opened = False
        self._home: tuple[str, str] | None = None
        self.on_session: list[Callable[[], None]] = []
        self._closed = False
        self._start_fresh()
        _STORES.add(self)

    def __repr__(self) -> str:
        return f"PostgresStore({self.url!r})"

    def _addressed(
        self, url: str | None, *, schema: str | None, pool_max: int | None, lock_wait_s: float | None
    ) -> Address:
        """Return where the ledger is. Raises ``BadConfig`` here, where it is given, if that cannot be used."""
        if (url is None) == (self._lent is None):
            raise BadConfig(
                "a ledger in PostgreSQL has a URL or the program's pool, one of both",
                setting="url" if self._lent is None else "pool",
                hint="PostgresStore('postgresql://user@host/database'), or PostgresStore(pool=pool)",
            )
        if schema is not None:
            check_schema(schema)
        if url is None:
            assert self._lent is not None, "a URL or a pool was given"
            if pool_max is not None:
                raise BadConfig("pool_max= is for amends' own pool", setting="pool", hint="set max_size of your pool")
            return address_of(self._lent, schema=schema or "", lock_wait_s=lock_wait_s)
        address = read_url(url)
        address = replace(
            address,
            schema=address.schema if schema is None else schema,
            pool_max=address.pool_max if pool_max is None else pool_max,
            lock_wait_s=address.lock_wait_s if lock_wait_s is None else lock_wait_s,
        )
        arguments(address)  # raises if libpq does not understand it
        return address

    def _start_fresh(self) -> None:
        address = self._address
        size, wait_s = address.pool_max, address.lock_wait_s
        self._opening = threading.RLock()
        self._pool: Lender[Any] = (
            Pool(self._connect, size=size, wait_s=wait_s, shown=address.shown)
            if self._lent is None
            else CallersPool(self._lent, address, lambda: self._met(None))
        )
        self._threads: ThreadPoolExecutor | None = None
        self._threading = threading.RLock()
        """Not ``_opening``, which is held as long as the server does not answer: an event loop takes this one."""
        self._loops: dict[asyncio.AbstractEventLoop, LoopPool[AsyncConnection]] = {}
        self._batches, self._loops_batches = Batches(self._together), Loops(self._together_async)
        self._watching: Watch | None = None

    # ---- The protocol of a store

    def open(self, *, create: bool) -> bool:
        """Connect and migrate the schema; return whether this call created the ledger."""
        with self._opening:
            self._check_open()
            if self._opened:
                return False
            self._create = create
            made = self._with_connection(
                lambda connection: establish(connection, self._address, create=create, clock=self._clock)
            )
            if self._lent is not None and not self._address.schema:
                # The program may change the search path of its connections: the ledger stays where it was found.
                self._address = replace(self._address, schema=self._at_home()[0])
                self._preamble = Preamble(self._address)
            self._opened = True
            return made

    def schema(self) -> Schema:
        """Return the schema version that the ledger has and the one that this amends has; changes nothing."""
        self._check_open()
        return self._with_connection(lambda connection: read_schema(connection, self._address))

    def migrate(self) -> Schema:
        """Apply every migration, or create the ledger; return the schema version that it has now."""
        self.open(create=True)
        if self.schema().pending:  # what no program applies by itself
            self._with_connection(
                lambda connection: establish(connection, self._address, create=False, clock=self._clock, contract=True)
            )
        return self.schema()

    def estimate_rows(self, tables: Collection[str]) -> dict[str, int]:
        """Return about how many rows these tables have; one that does not exist is left out."""
        self._check_open()
        return self._with_connection(lambda connection: estimate_rows(connection, self._address, tables))

    def perform(self, op: StoreOp[T]) -> T:
        """Carry out one operation; return when it is durable."""
        self._ready(op)
        if type(op) in STEPS and not self._preamble.needed and not op.repeated:
            done: T | None = self._batches.perform(op, root_of(op), self._alone)
            if done is not None:
                return done
            return self._generally(op, quick=False)
        if type(op) in QUICK and not self._preamble.needed and not op.repeated:
            done = self._alone(op)
            return self._generally(op, quick=False) if done is None else done
        return self._generally(op)

    def _generally(self, op: StoreOp[T], *, quick: bool = True) -> T:
        caller = Caller(self._pool)
        try:
            return run_flow(self._flow(op, quick=quick), caller.perform)
        except BaseException:
            caller.leave()
            raise

    def _alone(self, op: StoreOp[Any]) -> Any:
        """Carry out one step by its statement, without the flow around it; None: the flow decides."""
        connection, step = self._pool.take(), None
        keep = is_known = False
        try:
            step = self._plain.advance(op) if type(op) in STEPS else None  # type: ignore[arg-type]
            if step is None:
                answer = run_flow(QUICK[type(op)](self._plain, op), connection.execute)
            else:
                at = connection.first_value(step.sql, self._plain.values(step))
                answer, step = self._plain.answered(step, at), None
            keep = True
            return answer
        except psycopg.Error as error:
            keep, is_known = self._left_by([op], error), is_certain(error)
            return None
        finally:
            if step is not None:
                let_go(step.kept, is_known=is_known)
            self._pool.give(connection, keep=keep)

    def _together(self, ops: Sequence[Any]) -> Sequence[Any]:
        """Carry out steps of several runs by one statement; None for each that was not done."""
        connection, steps = self._pool.take(), None
        keep = is_known = False
        try:
            steps = self._plain.together(ops)
            found = connection.numbers_and_times(steps.sql, steps.params) if steps is not None else []
            keep = True
            return self._plain.all_done(steps, found) if steps is not None else [None] * len(ops)
        except psycopg.Error as error:
            keep, is_known = self._left_by(ops, error), is_certain(error)
            return [None] * len(ops)
        finally:
            if steps is not None:
                steps.let_go(is_known=is_known)
            self._pool.give(connection, keep=keep)

    async def perform_async(self, op: StoreOp[T]) -> T:
        """Do the same on an event loop; a cancellation is raised when the operation is over."""
        if self._closed or not self._opened or type(op) not in STEPS or self._preamble.needed or op.repeated:
            return await self._generally_async(op)
        try:
            batches, root = self._loops_batches.here(), root_of(op)
            answer: T
            if batches.may_go(root):
                answer = await batches.alone(root, self._at_once_async(op))
            else:
                answer = await batches.perform(op, root, self._alone_async)
            return answer
        except asyncio.CancelledError as stop:
            if getattr(stop, OUTCOME, None) is None:
                # All tasks of the loop were cancelled, even the one that had sent the statement.
                op.repeated = True
                outcome, _ = await to_its_end(uninterrupted(self._performed(op)))
                setattr(stop, OUTCOME, outcome)
            raise

    async def _generally_async(self, op: StoreOp[T]) -> T:
        if self._lent is not None:
            return await self._in_thread(op)
        if not self._opened:
            await asyncio.get_running_loop().run_in_executor(None, self._ready, op)
        self._ready(op)
        try:
            return await uninterrupted(self._performed(op))
        except asyncio.CancelledError as stop:
            if getattr(stop, OUTCOME, None) is None:  # as in ``perform_async``
                op.repeated = True
                outcome, _ = await to_its_end(uninterrupted(self._performed(op)))
                setattr(stop, OUTCOME, outcome)
            raise

    async def _in_thread(self, op: StoreOp[T]) -> T:
        try:
            future = asyncio.get_running_loop().run_in_executor(self._executor(), self.perform, op)
        except RuntimeError as error:  # the interpreter is shutting down and takes no new threads
            raise LedgerUnavailable(f"the ledger at {self.url} is closed") from error
        return await uninterrupted(future)

    def _executor(self) -> ThreadPoolExecutor:
        with self._threading:
            self._check_open()
            if self._threads is None:
                self._threads = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="amends-ledger")
            return self._threads

    async def _alone_async(self, op: StoreOp[Any]) -> Any:
        """Carry out one step by its statement, or by its flow if that must decide."""
        return await uninterrupted(self._one_async(op))

    async def _at_once_async(self, op: Any) -> Any:
        """Do the same in this task; a cancellation is raised when the step is over, with its outcome."""
        pool = self._loop_pool()
        connection = await pool.take()
        stops: list[asyncio.CancelledError] = []
        answer, step, is_asked = None, None, False
        keep = is_known = False
        try:
            step = self._plain.advance(op)
            is_asked = step is not None
            if step is not None:
                at = await connection.first_value(step.sql, self._plain.values(step), stops)
                answer, step = self._plain.answered(step, at), None
            keep = True
        except psycopg.Error as error:
            keep, is_known = self._left_by([op], error), is_certain(error)
        finally:
            if step is not None:
                let_go(step.kept, is_known=is_known)
            pool.give(connection, keep=keep)
        if answer is not None and not stops:
            return answer
        outcome: Callable[[], Any] = lambda: answer  # noqa: E731
        if answer is None:
            work = self._performed(op, quick=False) if is_asked else self._one_async(op)
            outcome, stop = await to_its_end(uninterrupted(work))
            stops += [stop] if stop is not None else []
        if not stops:
            return outcome()
        setattr(stops[-1], OUTCOME, outcome)
        raise stops[-1]

    async def _one_async(self, op: StoreOp[Any]) -> Any:
        """Carry out one step by its statement, or by its flow if that must decide."""
        pool = self._loop_pool()
        connection = await pool.take()
        answer, keep = None, False
        try:
            answer = await run_flow_async(QUICK[type(op)](self._plain, op), connection.execute)
            keep = True
        except psycopg.Error as error:
            keep = self._left_by([op], error)
        finally:
            pool.give(connection, keep=keep)
        return await self._performed(op, quick=False) if answer is None else answer

    async def _together_async(self, ops: Sequence[Any]) -> Sequence[Any]:
        """Carry out steps of several runs by one statement; None for each that was not done.

        A cancellation is raised when they are over, with their outcome.
        """
        pool = self._loop_pool()
        connection = await pool.take()
        steps, stops = None, list[asyncio.CancelledError]()
        answers: Sequence[Any] = [None] * len(ops)
        keep = is_known = False
        try:
            steps = self._plain.together(ops)
            if steps is not None:
                answers = self._plain.all_done(
                    steps, await connection.numbers_and_times(steps.sql, steps.params, stops)
                )
            keep = True
        except psycopg.Error as error:
            keep, is_known = self._left_by(ops, error), is_certain(error)
        finally:
            if steps is not None:
                steps.let_go(is_known=is_known)
            pool.give(connection, keep=keep)
        if not stops:
            return answers
        setattr(stops[-1], OUTCOME, lambda: answers)
        raise stops[-1]

    def _left_by(self, ops: Sequence[StoreOp[Any]], error: psycopg.Error) -> bool:
        """Note whether these steps may have been done although their statement failed; return whether to keep its connection."""
        if isinstance(error, UNDONE):
            return True
        fate = fate_of(error, committing=True)
        if fate == "unknown":
            self._plain.forget_all()
            for op in ops:
                op.repeated = True  # the flow gives the first answer
        return fate in Attempts.kept

    def joined(self, connection: object, *, tool: str) -> Joined:
        """Return the ledger through this psycopg connection, inside the transaction that is open there."""
        self._check_open()
        address = self._address
        return joined.joined(
            connection, self._at_home, self._is_locked, shown=self.url, wait_s=address.lock_wait_s,
            clock=self._clock, tool=tool,
        )  # fmt: skip

    def close(self) -> None:
        """Close connections and threads. May be called twice."""
        self._closed = True
        with self._opening:
            watching, self._watching = self._watching, None
            loops, self._loops = self._loops, {}
        with self._threading:
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False)
        if watching is not None:
            watching.close()
        self._pool.close()
        for loop, pool in loops.items():
            pool.close(loop_is_closed=loop.is_closed())

    def watch(self, ring: Ring) -> bool:
        """Call ``ring`` from a thread for what other processes do, until ``close``; return False behind a pooler.

        ``ring`` gets the root's uid, or "" when notifications may have been missed. A waiter still polls, rarely.
        """
        with self._opening:
            self._check_open()
            if self._address.pooler == "transaction":
                return False
            if self._watching is None or not self._watching.is_alive:
                self._watching = Watch(self._connect, ring)
            self._watching.tell(ring)
            return True

    # ---- One operation

    def _flow(self, op: StoreOp[T], *, quick: bool = True) -> Flow[T]:
        return perform(Attempts(op, self._preamble, self._clock, self._plain, shown=self.url, quick=quick))

    def _ready(self, op: StoreOp[Any]) -> None:
        self._check_open()
        if isinstance(op, OpenRun | OpenChild):
            _check_identity(op)
        if not self._opened:
            self.open(create=self._create)

    async def _performed(self, op: StoreOp[T], *, quick: bool = True) -> T:
        caller = AsyncCaller(self._loop_pool())
        try:
            return await run_flow_async(self._flow(op, quick=quick), caller.perform)
        except BaseException:
            caller.leave()
            raise

    def _with_connection(self, use: Callable[[Blocking], T]) -> T:
        """Use a connection of the pool for something other than an operation."""
        connection = self._pool.take()
        succeeded = False
        try:
            answer = use(connection)
            succeeded = True
            return answer
        except psycopg.Error as error:
            fate = fate_of(error, committing=False)
            raise explained(error, self.url, op=None, fate=fate) from error
        finally:
            self._pool.give(connection, keep=succeeded)

    def _at_home(self) -> tuple[str, str]:
        if self._home is None:
            self._home = self._with_connection(lambda connection: joined.home_of(connection, self._preamble.writing))
        return self._home

    def _is_locked(self, root: str) -> bool:
        return all(
            locked_yet(
                lambda: self._with_connection(
                    lambda connection: joined.is_locked(connection, self._preamble.writing, root)
                )
            )
        )

    def _connect(self) -> Connection:
        return self._met(connect(self._address, opened=self._opened))

    async def _connect_async(self) -> AsyncConnection:
        return self._met(await connect_async(self._address, opened=self._opened))

    def _met(self, connection: T) -> T:
        """Tell that a session has begun: with which server, only its ledger shows."""
        for tell in self.on_session:
            tell()
        return connection

    def _loop_pool(self) -> LoopPool[AsyncConnection]:
        loop = asyncio.get_running_loop()
        pool = self._loops.get(loop)
        if pool is not None:
            return pool
        with self._opening:
            self._check_open()
            for old in [known for known in self._loops if known.is_closed()]:
                self._loops.pop(old).close(loop_is_closed=True)
            if len(self._loops) >= LOOPS_MAX:
                raise LedgerUnavailable(
                    f"{LOOPS_MAX} event loops already use the ledger at {self.url}", hint="close event loops after use"
                )
            address = self._address
            pool = LoopPool(self._connect_async, size=address.pool_max, wait_s=address.lock_wait_s, shown=address.shown)
            self._loops[loop] = pool
            return pool

    def _check_open(self) -> None:
        if self._closed:
            raise LedgerUnavailable(f"the ledger at {self.url} is closed", hint="make a new runtime")

    # ---- Forks

    def after_fork_in_child(self) -> None:
        """Start without the parent's connections. They stay open here: closing one would end the parent's session."""
        pool = self._pool
        _LEFT_ALONE.append((pool, self._loops, self._watching))
        self._plain.forget_all()
        self._start_fresh()
        if self._lent is not None:
            self._pool = pool  # it refuses: the program's connections are the parent's too


def _check_identity(op: OpenRun | OpenChild) -> None:
    """Refuse what the database cannot hold; if it were replaced, two identities could become one."""
    for path, text in (("run id", op.id), ("tenant", op.tenant if isinstance(op, OpenRun) else "")):
        if "\x00" in text or not _is_unicode(text):
            raise NotStorable(
                f"the {path} {text!r} has a character that PostgreSQL's text cannot hold", path=path,
                hint="leave out NUL and lone surrogates",
            )  # fmt: skip


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


_STORES: Final[weakref.WeakSet[PostgresStore]] = weakref.WeakSet()
_LEFT_ALONE: Final[list[Any]] = []


def _in_child() -> None:
    for store in list(_STORES):
        store.after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)

"""A ledger in PostgreSQL, shared by any number of hosts.

Every operation is one transaction (``pgflow``), answered by a connection of a pool: one pool for threads, and one
for each event loop, whose connections are awaited without a thread.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TypeVar

from amends.errors import BadConfig, LedgerUnavailable, NotStorable
from amends.ledger.flow import Flow, run_flow
from amends.ledger.joined import Joined
from amends.ledger.operations import OpenChild, OpenRun, StoreOp
from amends.model import Schema
from amends.stores.postgres.url import read_url

try:
    import psycopg  # (before our own modules that need it: here its absence has a name)
except ImportError as missing:
    raise BadConfig(
        "a ledger at postgresql: needs psycopg, which is not installed or finds no libpq",
        setting="url",
        hint="pip install 'amends[postgres]'",
    ) from missing

from amends.ledger.flow import run_flow_async
from amends.stores.cancellation import uninterrupted
from amends.stores.joined import locked_yet
from amends.stores.pool import LoopPool, Pool
from amends.stores.postgres import connection, joined
from amends.stores.postgres.connection import AsyncLink, Link
from amends.stores.postgres.errors import explained, fate_of
from amends.stores.postgres.schema import establish, read_schema
from amends.stores.postgres.transaction import Attempts, Preamble
from amends.stores.postgres.wakeup import Ring, Watch
from amends.stores.retry import AsyncCaller, Caller, perform

T = TypeVar("T")

LOOPS_MAX: Final = 100
"""Event loops of one process that are open at once and use one ledger; more than this is a leak of loops."""


class PostgresStore:
    """Every operation is one transaction, durable as the server's ``synchronous_commit`` says.

    No IO before ``open`` or the first operation. ``clock``: instead of the server's, for tests.
    """

    def __init__(
        self,
        url: str,
        clock: Callable[[], float] | None = None,
        *,
        pool_max: int | None = None,
        lock_wait_s: float | None = None,
    ) -> None:
        place = read_url(url)
        self._place = replace(
            place,
            pool_max=place.pool_max if pool_max is None else pool_max,
            lock_wait_s=place.lock_wait_s if lock_wait_s is None else lock_wait_s,
        )
        connection.arguments(self._place)  # what libpq does not understand is said here, where the URL is
        self.url = self._place.shown
        self._clock = clock
        self._preamble = Preamble(self._place)
        self._create = True
        self._opened = False
        self._home: tuple[str, str] | None = None
        self._closed = False
        self._begin_anew()
        _STORES.add(self)

    def __repr__(self) -> str:
        return f"PostgresStore({self.url!r})"

    def _begin_anew(self) -> None:
        place = self._place
        size, wait_s = place.pool_max, place.lock_wait_s
        self._opening = threading.RLock()
        self._pool = Pool(self._connect, size=size, wait_s=wait_s, shown=place.shown)
        self._loops: dict[asyncio.AbstractEventLoop, LoopPool[AsyncLink]] = {}
        self._watching: Watch | None = None

    # ---- the protocol of a store ----------------------------------------------------------

    def open(self, *, create: bool) -> bool:
        """Connect and bring the schema up to date; True when this call made the ledger."""
        with self._opening:
            self._check_open()
            if self._opened:
                return False
            self._create = create
            link = self._connect()
            try:
                made = establish(link, self._place, create=create, clock=self._clock)
            except BaseException:
                link.close()
                raise
            self._pool.adopt(link)
            self._opened = True
            return made

    def schema(self) -> Schema:
        """What the ledger has and what this amends would have; makes and changes nothing."""
        self._check_open()
        link = self._connect()
        try:
            return read_schema(link, self._place)
        finally:
            link.close()

    def migrate(self) -> Schema:
        """Bring the ledger up to date, making it if there is none."""
        self.open(create=True)
        return self.schema()

    def perform(self, op: StoreOp[T]) -> T:
        """Carry out one operation; returns when it is durable."""
        self._ready(op)
        caller = Caller(self._pool)
        try:
            return run_flow(self._flow(op), caller.perform)
        except BaseException:
            caller.leave()
            raise

    async def perform_async(self, op: StoreOp[T]) -> T:
        """The same from an event loop; a cancellation is raised when the operation is over."""
        if not self._opened:
            await asyncio.get_running_loop().run_in_executor(None, self._ready, op)
        self._ready(op)
        return await uninterrupted(self._performed(op))

    def joined(self, connection: object, *, tool: str) -> Joined:
        """The ledger through this psycopg connection, inside the transaction that is open there."""
        self._check_open()
        place = self._place
        return joined.joined(
            connection, self._at_home, self._is_locked, shown=self.url, wait_s=place.lock_wait_s,
            clock=self._clock, tool=tool,
        )  # fmt: skip

    def close(self) -> None:
        """Give back connections and threads. May be called twice."""
        self._closed = True
        with self._opening:
            watching, self._watching = self._watching, None
            loops, self._loops = self._loops, {}
        if watching is not None:
            watching.close()
        self._pool.close()
        for loop, pool in loops.items():
            pool.close(loop_is_closed=loop.is_closed())

    def watch(self, ring: Ring) -> bool:
        """Ring for what other processes do, from a thread, until ``close``; False where a pooler is in the way.

        ``ring`` gets the root's uid, or "" when notices may have been missed. Who waits still looks for itself, rarely.
        """
        with self._opening:
            self._check_open()
            if self._place.pooler == "transaction":
                return False
            if self._watching is None or not self._watching.is_alive:
                self._watching = Watch(self._connect, ring)
            self._watching.tell(ring)
            return True

    # ---- one operation --------------------------------------------------------------------

    def _flow(self, op: StoreOp[T]) -> Flow[T]:
        return perform(Attempts(op, self._preamble, self._clock, shown=self.url))

    def _ready(self, op: StoreOp[Any]) -> None:
        self._check_open()
        if isinstance(op, OpenRun | OpenChild):
            _check_identity(op)
        if not self._opened:
            self.open(create=self._create)

    async def _performed(self, op: StoreOp[T]) -> T:
        caller = AsyncCaller(self._loop_pool())
        try:
            return await run_flow_async(self._flow(op), caller.perform)
        except BaseException:
            caller.leave()
            raise

    def _aside(self, use: Callable[[Link], T]) -> T:
        """Use a connection of the pool for something else than an operation."""
        link = self._pool.take()
        well = False
        try:
            answer = use(link)
            well = True
            return answer
        except psycopg.Error as error:
            fate = fate_of(error, committing=False)
            raise explained(error, self.url, op=None, fate=fate) from error
        finally:
            self._pool.give(link, keep=well)

    def _at_home(self) -> tuple[str, str]:
        if self._home is None:
            self._home = self._aside(lambda link: joined.home_of(link, self._preamble.writing))
        return self._home

    def _is_locked(self, root: str) -> bool:
        return all(locked_yet(lambda: self._aside(lambda link: joined.is_locked(link, self._preamble.writing, root))))

    def _connect(self) -> Link:
        return connection.connect(self._place, opened=self._opened)

    async def _connect_async(self) -> AsyncLink:
        return await connection.connect_async(self._place, opened=self._opened)

    def _loop_pool(self) -> LoopPool[AsyncLink]:
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
                    f"{LOOPS_MAX} event loops use the ledger at {self.url} already", hint="close loops after use"
                )
            place = self._place
            pool = LoopPool(self._connect_async, size=place.pool_max, wait_s=place.lock_wait_s, shown=place.shown)
            self._loops[loop] = pool
            return pool

    def _check_open(self) -> None:
        if self._closed:
            raise LedgerUnavailable(f"the ledger at {self.url} is closed", hint="make a new runtime")

    # ---- forking --------------------------------------------------------------------------

    def after_fork_in_child(self) -> None:
        """Start with nothing of the parent's. Its sockets are left alone: closing one would end the parent's session."""
        _LEFT_ALONE.append((self._pool, self._loops, self._watching))
        self._begin_anew()


def _check_identity(op: OpenRun | OpenChild) -> None:
    """Two identities must stay two: what the database cannot hold is refused, not replaced."""
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

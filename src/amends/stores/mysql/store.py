"""A ledger on a MariaDB or MySQL server, shared by any number of hosts."""

from __future__ import annotations

import asyncio
import importlib
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final, TypeVar

from amends.errors import BadConfig, TooLarge
from amends.ledger import operations
from amends.ledger.flow import run_flow
from amends.ledger.joined import Joined
from amends.ledger.operations import StoreOp
from amends.model import Schema
from amends.stores.cancellation import uninterrupted
from amends.stores.joined import locked_yet
from amends.stores.mysql import errors, joined
from amends.stores.mysql.connection import Link, connect
from amends.stores.mysql.schema import PACKET_BYTES_MIN, check_ledger, check_server, migrate, read_schema
from amends.stores.mysql.transaction import BEGIN, Attempts
from amends.stores.mysql.url import Address, read_address
from amends.stores.pool import Pool, closed
from amends.stores.retry import Caller, perform
from amends.stores.sql import Execute

T = TypeVar("T")

MIGRATION_S: Final = 3600.0
"""How long one statement of a migration may take: a large table may have to be copied."""
RUN_ID_BYTES_MAX: Final = 2048
TENANT_BYTES_MAX: Final = 1016
"""Together with a number they are one entry of an index, which has 3072 bytes."""


def driver() -> Any:
    """PyMySQL, of which this module alone knows."""
    try:
        return importlib.import_module("pymysql")
    except ImportError as error:
        raise BadConfig(
            "a ledger at mysql: or mariadb: needs PyMySQL, which is not installed",
            setting="url",
            hint="pip install 'amends[mysql]'",
        ) from error


class MysqlStore:
    """Every operation is one transaction; reads look at a snapshot. No IO before ``open`` or the first operation.

    Ledger time is the server's, unless a clock is given.
    """

    def __init__(
        self,
        url: str,
        clock: Callable[[], float] | None = None,
        *,
        pool_max: int | None = None,
        lock_wait_s: float | None = None,
    ) -> None:
        address = read_address(url)
        self._address: Address = replace(
            address,
            pool_max=address.pool_max if pool_max is None else pool_max,
            lock_wait_s=address.lock_wait_s if lock_wait_s is None else lock_wait_s,
        )
        self.url = address.shown
        self._driver = driver()
        self._clock = clock
        self._create = True
        self._name = ""
        self._ready = False
        self._closed = False
        self._packet_max = PACKET_BYTES_MIN
        self._begin_anew()
        _STORES.add(self)

    def __repr__(self) -> str:
        return f"MysqlStore({self.url!r})"

    def _begin_anew(self) -> None:
        address = self._address
        self._opening = threading.RLock()
        self._pool: Pool[Link] = Pool(self._connect, size=address.pool_max, wait_s=address.lock_wait_s, shown=self.url)
        self._threads: ThreadPoolExecutor | None = None

    # ---- the protocol of a store ----------------------------------------------------------

    def open(self, *, create: bool) -> bool:
        """Connect and bring the schema up to date; True when this call made the ledger."""
        with self._opening:
            if self._ready and not self._closed:
                return False
            self._create = create

            def is_behind(link: Link) -> bool:
                self._packet_max = link.packet_max = check_server(link.ask, self.url)
                return check_ledger(link.ask, self.url, create=create)

            made = self._aside(is_behind) and self._migrated()
            # From now on the ledger exists: should its tables vanish, they must not be made again, empty.
            self._ready, self._create = True, False
            return made

    def schema(self) -> Schema:
        """What the database holds and what this amends would have; makes and changes nothing."""
        return self._aside(lambda link: read_schema(link.ask))

    def migrate(self) -> Schema:
        """Bring the ledger up to date, making it if there is none; what it has now."""
        self.open(create=True)
        return self.schema()

    def perform(self, op: StoreOp[T]) -> T:
        """Carry out one operation; returns when it is durable."""
        if not self._ready:
            self.open(create=self._create)
        _check_sizes(op)
        caller = Caller(self._pool)
        try:
            answer: T = run_flow(perform(Attempts(op, self._driver, self._clock, self._address)), caller.perform)
            return answer
        except BaseException:
            caller.leave()
            raise

    async def perform_async(self, op: StoreOp[T]) -> T:
        """The same from an event loop, by one hop to a thread; a cancellation is raised when the operation is over."""
        try:
            future = asyncio.get_running_loop().run_in_executor(self._executor(), self.perform, op)
        except RuntimeError as error:  # the interpreter is shutting down and takes no new threads
            raise closed(self.url) from error
        return await uninterrupted(future)

    def joined(self, connection: object, *, tool: str) -> Joined:
        """The ledger through this connection of PyMySQL, inside the transaction that is open there."""
        return joined.joined(
            connection, self._driver, self._own_name, self._is_locked, shown=self.url, clock=self._clock, tool=tool
        )

    def close(self) -> None:
        """Finish what is under way, give back connections and threads. May be called twice."""
        self._closed = True
        with self._opening:
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=True)
        self._pool.close()

    # ---- connections ----------------------------------------------------------------------

    def _aside(self, use: Callable[[Link], T]) -> T:
        """Use a connection outside of any transaction."""
        link = self._pool.take()
        well = False
        try:
            answer = use(link)
            well = True
            return answer
        except self._driver.MySQLError as error:
            raise errors.explained(error, self.url) from error
        finally:
            self._pool.give(link, keep=well)

    def _migrated(self) -> bool:
        """Bring the tables up to date, over a connection that has the time it takes; whether this made the ledger."""
        try:
            link = connect(self._driver, self._address, packet_max=self._packet_max, silence_s=MIGRATION_S)
            try:
                return migrate(link.ask, self.url, wait_s=self._address.lock_wait_s)
            finally:
                link.close()
        except self._driver.MySQLError as error:
            raise errors.explained(error, self.url) from error

    def _own_name(self) -> str:
        self._name = self._name or self.schema().ledger
        return self._name

    def _is_locked(self, root: str) -> bool:
        def look(link: Link) -> bool:
            link.begin(BEGIN)
            found, _, _ = link.execute(Execute(joined.LOOK, (root,)))
            link.command("rollback")
            return not found

        return all(locked_yet(lambda: self._aside(look)))

    def _connect(self) -> Link:
        try:
            return connect(self._driver, self._address, packet_max=self._packet_max)
        except self._driver.MySQLError as error:
            raise errors.explained(error, self.url) from error

    # ---- threads and forks ----------------------------------------------------------------

    def _executor(self) -> ThreadPoolExecutor:
        with self._opening:
            if self._closed:
                raise closed(self.url)
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self._address.pool_max, thread_name_prefix="amends-ledger")
            return self._threads

    def after_fork_in_child(self) -> None:
        """Start with nothing of the parent's. Its connections are left alone: even saying goodbye would end them."""
        _LEFT_ALONE.append(self._pool)
        self._begin_anew()


def _check_sizes(op: StoreOp[Any]) -> None:
    """Ids must fit into an index; said before anything runs."""
    if not isinstance(op, operations.OpenRun | operations.OpenChild):
        return
    given = {"run id": (op.id, RUN_ID_BYTES_MAX)}
    if isinstance(op, operations.OpenRun):
        given["tenant"] = (op.tenant, TENANT_BYTES_MAX)
    for what, (text, limit) in given.items():
        size = len(text.encode())
        if size > limit:
            raise TooLarge(
                f"a {what} of {size:,} bytes; this ledger takes {limit:,}", path=what, size=size, limit=limit
            )


_STORES: Final[weakref.WeakSet[MysqlStore]] = weakref.WeakSet()
_LEFT_ALONE: Final[list[Any]] = []


def _after_fork_in_child() -> None:
    for store in list(_STORES):
        store.after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)

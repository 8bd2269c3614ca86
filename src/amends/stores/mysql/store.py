"""A ledger on a MariaDB or MySQL server, shared by any number of hosts."""

from __future__ import annotations

import asyncio
import importlib
import os
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final, TypeVar

from amends.errors import BadConfig, TooLarge
from amends.ledger import operations
from amends.ledger.flow import run_flow
from amends.ledger.joined import Joined
from amends.ledger.operations import StoreOp
from amends.ledger.store import OUTCOME
from amends.model import Schema
from amends.stores.batches import STEPS, Batches, Loops, root_of
from amends.stores.cancellation import to_its_end, uninterrupted
from amends.stores.joined import locked_yet
from amends.stores.mysql import errors, joined
from amends.stores.mysql.connection import Connection, connect, packet_of
from amends.stores.mysql.conversation import Conversation
from amends.stores.mysql.quick import QUICK, Move, Plain
from amends.stores.mysql.schema import PACKET_BYTES_MIN, check_ledger, check_server, estimate_rows, migrate, read_schema
from amends.stores.mysql.transaction import BEGIN, Attempts
from amends.stores.mysql.url import Address, read_address
from amends.stores.pool import Pool, closed
from amends.stores.retry import Caller, perform
from amends.stores.sql import Execute

T = TypeVar("T")
A = TypeVar("A")

MIGRATION_S: Final = 3600.0
"""How long one statement of a migration may take: the server may have to copy a large table."""
RUN_ID_BYTES_MAX: Final = 2048
TENANT_BYTES_MAX: Final = 1016
"""A run id, its tenant and a number form one index entry, which has at most 3072 bytes."""


def driver() -> Any:
    """Return PyMySQL. Only this module imports it."""
    try:
        return importlib.import_module("pymysql")
    except ImportError as error:
        raise BadConfig(
            "a ledger at mysql: or mariadb: needs PyMySQL, which is not installed",
            setting="url",
            hint="pip install 'amends[mysql]'",
        ) from error


class MysqlStore:
    """A ledger on MariaDB or MySQL: each operation is one transaction; reads use a snapshot.

    No IO before ``open`` or the first operation. ``clock`` replaces the server's clock, for tests; ``pool_max`` and
    ``lock_wait_s`` replace the options of the URL.
    """

    keeps_outcome = True
    dialect = "mysql"

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
        self.on_session: list[Callable[[], None]] = []
        self._plain = Plain(clock)
        self._create = True
        self._name = ""
        self._ready = False
        self._closed = False
        self._packet_max = PACKET_BYTES_MIN
        self._start_fresh()
        _STORES.add(self)

    def __repr__(self) -> str:
        return f"MysqlStore({self.url!r})"

    def _start_fresh(self) -> None:
        address = self._address
        self._opening = threading.RLock()
        self._pool: Pool[Connection] = Pool(
            self._connect, size=address.pool_max, wait_s=address.lock_wait_s, shown=self.url
        )
        self._threads: ThreadPoolExecutor | None = None
        self._threading = threading.RLock()
        """Not ``_opening``, which is held as long as the server does not answer: an event loop takes this one."""
        self._batches, self._loops = Batches(self._together), Loops(self._together_async)

    # ---- The protocol of a store

    def open(self, *, create: bool) -> bool:
        """Connect and migrate the schema; return whether this call created the ledger."""
        with self._opening:
            if self._ready and not self._closed:
                return False
            self._create = create

            def is_behind(connection: Connection) -> bool:
                self._packet_max = connection.packet_max = check_server(connection.ask, self.url)
                return check_ledger(connection.ask, self.url, create=create)

            made = self._with_connection(is_behind) and self._migrated()
            # From now on the ledger exists: if its tables vanish, they must not be created again, empty.
            self._ready, self._create = True, False
            return made

    def schema(self) -> Schema:
        """Return the schema version that the database has and the one that this amends has; changes nothing."""
        return self._with_connection(lambda connection: read_schema(connection.ask, self.url))

    def migrate(self) -> Schema:
        """Apply every migration, or create the ledger; return the schema version that it has now."""
        self.open(create=True)
        if self.schema().pending:  # what no program applies by itself
            self._migrated(contract=True)
        return self.schema()

    def estimate_rows(self, tables: Collection[str]) -> dict[str, int]:
        """Return about how many rows these tables have; one that does not exist is left out."""
        return self._with_connection(lambda connection: estimate_rows(connection.ask, tables))

    def perform(self, op: StoreOp[T]) -> T:
        """Carry out one operation; return when it is durable."""
        if not self._ready:
            self.open(create=self._create)
        kind = type(op)
        if kind not in STEPS:
            _check_sizes(op)
        if kind not in QUICK or op.repeated:
            return self._generally(op)
        done: T | None = self._batches.perform(op, root_of(op), self._alone) if kind in STEPS else self._alone(op)
        return self._generally(op, quick=False) if done is None else done

    def _alone(self, op: StoreOp[Any]) -> Any:
        """Carry out one plain step, without the flow around it; None: the flow decides."""
        connection = self._pool.take()
        keep = False
        try:
            answer = QUICK[type(op)](self._plain, op, connection)
            keep = True
            return answer
        except self._driver.MySQLError as error:
            self._plain.lost(error)
            op.repeated = op.repeated or connection.committing  # as in ``_together``
            return None
        finally:
            self._pool.give(connection, keep=keep)

    def _together(self, ops: Sequence[Any]) -> Sequence[Any]:
        """Carry out steps of several runs in one transaction; None for each that was not done."""
        connection = self._pool.take()
        keep = False
        try:
            answers = self._plain.together(ops, connection)
            keep = True
            return answers
        except self._driver.MySQLError as error:
            self._plain.lost(error)
            # Whatever went wrong, the flow meets it again and says it; what may have been done is found by repeating it.
            for op in ops:
                op.repeated = op.repeated or connection.committing
            return [None] * len(ops)
        finally:
            self._pool.give(connection, keep=keep)

    def _generally(self, op: StoreOp[T], *, quick: bool = True) -> T:
        caller = Caller(self._pool)
        attempts = Attempts(op, self._driver, self._clock, self._plain, self._address, quick=quick)
        try:
            answer: T = run_flow(perform(attempts), caller.perform)
            return answer
        except BaseException:
            caller.leave()
            raise

    async def perform_async(self, op: StoreOp[T]) -> T:
        """Do the same on an event loop; a cancellation is raised when the operation is over.

        A plain step is sent and answered on the loop. All else happens in a thread, as does a step for which there is no idle
        connection, or whose connection is encrypted.
        """
        if type(op) in STEPS and self._ready and not op.repeated:
            batches, root = self._loops.here(), root_of(op)
            if batches.may_go(root):
                return await batches.alone(root, self._alone_async(op))
            answer: T = await batches.perform(op, root, self._alone_async)
            return answer
        return await self._in_thread(self.perform, op)

    async def _alone_async(self, op: StoreOp[Any]) -> Any:
        """Carry out one plain step, and its flow if that has to decide."""
        connection = None if op.repeated else self._pool.take_idle()
        if connection is None:
            return await self._in_thread(self.perform, op)
        step = self._plain.move(op)  # type: ignore[arg-type]
        steps: Sequence[Move] = [] if step is None else [step]
        conversation = self._begun(connection, lambda: self._packet(connection, steps[0]), 1, steps)
        if conversation is None:
            return await self._in_thread(self.perform, op)
        cancelled = await self._over(conversation, connection)
        keep, answer = True, None
        try:
            answer = self._plain.done(steps[0], conversation.said()[0])
        except self._driver.MySQLError as error:
            keep = connection.goes_on_after(error)
            self._plain.failed(steps, error)
            op.repeated = op.repeated or connection.committing
        finally:
            self._pool.give(connection, keep=keep)
        if answer is not None:
            return _unless(cancelled, lambda: answer)
        outcome, stopped = await to_its_end(self._in_thread(self._decide, op))
        return _unless(cancelled or stopped, outcome)

    async def _together_async(self, ops: Sequence[Any]) -> Sequence[Any]:
        """Carry out steps of several runs in one transaction; None for each that was not done."""
        connection = self._pool.take_idle()
        if connection is None:
            return await self._in_thread(self._together, ops)
        batch = self._plain.batch(ops, connection)
        steps = list(batch.steps.values())
        conversation = self._begun(connection, lambda: packet_of(batch.text), len(batch.texts) + 2, steps)
        if conversation is None:
            return await self._in_thread(self._together, ops)
        cancelled = await self._over(conversation, connection)
        try:
            said = conversation.said()[1:-1]
        except self._driver.MySQLError as error:
            self._plain.failed(steps, error)
            for op in ops:
                op.repeated = op.repeated or connection.committing
            self._pool.give(connection, keep=False)
            return _unless(cancelled, lambda: batch.answers)
        if self._plain.all_done(batch, said) is None:
            looking = self._in_thread(lambda batch: self._plain.some_done(batch, said, connection), batch)
            outcome, stopped = await to_its_end(looking)
            cancelled = cancelled or stopped
            try:
                outcome()
            except self._driver.MySQLError:  # the steps are marked: repeated, they find out whether they were done
                self._pool.give(connection, keep=False)
                return _unless(cancelled, lambda: batch.answers)
        self._pool.give(connection, keep=True)
        return _unless(cancelled, lambda: batch.answers)

    async def _over(self, conversation: Conversation, connection: Connection) -> asyncio.CancelledError | None:
        """Wait until the server has answered; return the last cancellation meanwhile."""
        try:
            return await conversation.over()
        except BaseException:  # an interrupt, or the loop was closed: nobody reads the answer any more
            conversation.leave()
            self._pool.give(connection, keep=False)
            raise

    def _begun(
        self, connection: Connection, packet: Callable[[], bytes | None], count: int, steps: Sequence[Move]
    ) -> Conversation | None:
        """Send these steps on the running loop; None: nothing was sent, and the connection was given back."""
        is_begun = False
        try:
            conversation = Conversation(asyncio.get_running_loop(), connection, count)
            is_begun = bool(steps) and conversation.begin(packet())
            return conversation if is_begun else None
        finally:
            if not is_begun:
                self._plain.untouched(steps)
                self._pool.give(connection, keep=True)

    def _packet(self, connection: Connection, step: Move) -> bytes | None:
        """Return the packet of a step; None: the connection has not prepared it, and a thread does that."""
        statement, values = self._plain.statement(step)
        return connection.packet(statement, values) if statement in connection.prepared else None

    def _decide(self, op: StoreOp[T]) -> T:
        """Carry out one operation by its flow."""
        return self._generally(op, quick=False)

    async def _in_thread(self, work: Callable[[A], T], given: A) -> T:
        return await uninterrupted(self._submitted(work, given))

    def _submitted(self, work: Callable[[A], T], given: A) -> asyncio.Future[T]:
        try:
            return asyncio.get_running_loop().run_in_executor(self._executor(), work, given)
        except RuntimeError as error:  # the interpreter is shutting down and takes no new threads
            raise closed(self.url) from error

    def joined(self, connection: object, *, tool: str) -> Joined:
        """Return the ledger through this PyMySQL connection, inside the transaction that is open there."""
        return joined.joined(
            connection, self._driver, self._own_name, self._is_locked, shown=self.url, clock=self._clock, tool=tool
        )

    def close(self) -> None:
        """Finish what is under way; close connections and threads. May be called twice."""
        self._closed = True
        with self._threading:
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=True)
        self._pool.close()

    # ---- Connections

    def _with_connection(self, use: Callable[[Connection], T]) -> T:
        """Use a connection of the pool for something other than an operation."""
        connection = self._pool.take()
        succeeded = False
        try:
            answer = use(connection)
            succeeded = True
            return answer
        except self._driver.MySQLError as error:
            raise errors.explained(error, self.url) from error
        finally:
            self._pool.give(connection, keep=succeeded)

    def _migrated(self, *, contract: bool = False) -> bool:
        """Migrate the tables on a connection with a long timeout; return whether this created the ledger."""
        try:
            connection = connect(self._driver, self._address, packet_max=self._packet_max, silence_s=MIGRATION_S)
            try:
                return migrate(connection.ask, self.url, wait_s=self._address.lock_wait_s, contract=contract)
            finally:
                connection.close()
        except self._driver.MySQLError as error:
            raise errors.explained(error, self.url) from error

    def _own_name(self) -> str:
        self._name = self._name or self.schema().ledger
        return self._name

    def _is_locked(self, root: str) -> bool:
        def look(connection: Connection) -> bool:
            connection.begin(BEGIN)
            found, _, _ = connection.execute(Execute(joined.LOOK, (root,)))
            connection.command("rollback")
            return not found

        return all(locked_yet(lambda: self._with_connection(look)))

    def _connect(self) -> Connection:
        try:
            connection = connect(self._driver, self._address, packet_max=self._packet_max)
        except self._driver.MySQLError as error:
            raise errors.explained(error, self.url) from error
        for tell in self.on_session:
            tell()
        return connection

    # ---- Threads and forks

    def _executor(self) -> ThreadPoolExecutor:
        with self._threading:
            if self._closed:
                raise closed(self.url)
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self._address.pool_max, thread_name_prefix="amends-ledger")
            return self._threads

    @property
    def payload_bytes_most(self) -> int:
        """The largest payload whose statement certainly fits into a packet of the server, escaped and with its event."""
        return self._packet_max // 4

    def after_fork_in_child(self) -> None:
        """Start without the parent's connections, and without what it remembers: it continues the chains of its runs.

        The connections stay open here: closing one would end the parent's session.
        """
        _LEFT_ALONE.append(self._pool)
        self._plain.forget()
        self._start_fresh()


def _unless(cancelled: asyncio.CancelledError | None, outcome: Callable[[], T]) -> T:
    """Return the outcome; or raise the cancellation, which then has it."""
    if cancelled is None:
        return outcome()
    setattr(cancelled, OUTCOME, outcome)
    raise cancelled


def _check_sizes(op: StoreOp[Any]) -> None:
    """Raise ``TooLarge`` for an id that does not fit into an index, before anything runs."""
    if not isinstance(op, operations.OpenRun | operations.OpenChild):
        return
    given = {"run id": (op.id, RUN_ID_BYTES_MAX)}
    if isinstance(op, operations.OpenRun):
        given["tenant"] = (op.tenant, TENANT_BYTES_MAX)
    for what, (text, limit) in given.items():
        size = len(text.encode())
        if size > limit:
            raise TooLarge(
                f"a {what} of {size:,} bytes; this ledger accepts {limit:,}", path=what, size=size, limit=limit
            )


_STORES: Final[weakref.WeakSet[MysqlStore]] = weakref.WeakSet()
_LEFT_ALONE: Final[list[Any]] = []


def _after_fork_in_child() -> None:
    for store in list(_STORES):
        store.after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)

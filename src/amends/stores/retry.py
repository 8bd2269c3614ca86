"""One operation on a database server: take a connection, attempt it, retry it if it certainly did not happen.

PostgreSQL and MySQL share this flow; ``Attempts`` is what differs between them. What may have been committed is not
retried here, except where a repetition gives the first answer: the driver repeats it with its nonce.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

from amends.ledger.flow import Flow, Op
from amends.ledger.operations import StoreOp
from amends.stores.pool import Closable, Lender, LoopPool
from amends.stores.sql import Execute

T = TypeVar("T")
C = TypeVar("C", bound="ServerConnection")

Fate = Literal["own", "again", "undone", "lost", "unknown"]
"""What became of a transaction that met an error. own: the error is the flow's own, not the database's. again: the
server undid it because of another transaction. undone: the server undid it, for a reason that lasts. lost: the
connection was lost before the commit was sent. unknown: the connection was lost between the commit and its answer."""


@dataclass(frozen=True, slots=True)
class Take(Op[None]):
    """Take a connection from the pool."""


@dataclass(frozen=True, slots=True)
class Command(Op[str]):
    """Run statements without parameters and without rows; answers what the server says it did."""

    sql: str


@dataclass(frozen=True, slots=True)
class Use(Op[Any]):
    """Call a function with the connection."""

    function: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Give(Op[None]):
    """Give the connection back, or close it; ``others``: close the idle ones too."""

    keep: bool
    others: bool = False


@dataclass(frozen=True, slots=True)
class Pause(Op[None]):
    """Wait."""

    seconds: float


class Attempts(Protocol[T]):
    """The attempts at one operation on one kind of server."""

    @property
    def op(self) -> StoreOp[T]:
        """The operation."""
        ...

    @property
    def attempts_max(self) -> int:
        """The number of attempts, whatever their errors are."""
        ...

    @property
    def kept(self) -> frozenset[Fate]:
        """The fates after which the connection can be used again, once it has rolled back."""
        ...

    def attempt(self) -> Flow[T]:
        """Carry out the operation once, in its own transaction, on the connection that was taken."""
        ...

    def fate_of(self, error: Exception) -> Fate:
        """Return what became of the transaction of the last attempt."""
        ...

    def pause_s(self, error: Exception, fate: Fate, attempt: int) -> float | None:
        """Return the pause before the next attempt; None: there is none."""
        ...

    def explained(self, error: Exception, fate: Fate, attempt: int) -> Exception:
        """Return the error in the caller's words."""
        ...


async def perform(attempts: Attempts[T]) -> T:
    """Carry out one operation; it is durable when this returns.

    Raises ``LedgerUnavailable`` when it did not happen, or when that is unknown.
    """
    for attempt in range(1, attempts.attempts_max + 1):
        await Take()
        try:
            answer = await attempts.attempt()
        except Exception as error:
            fate = attempts.fate_of(error)
            await _give_back(fate, keep=fate in attempts.kept)
            if fate == "own":
                raise
            pause_s = attempts.pause_s(error, fate, attempt) if attempt < attempts.attempts_max else None
            if pause_s is None:
                raise attempts.explained(error, fate, attempt) from error
            attempts.op.repeated = attempts.op.repeated or fate == "unknown"
            if pause_s > 0:
                await Pause(pause_s)
        else:
            await Give(keep=True)
            return answer
    raise AssertionError("the last attempt returns or raises")


async def _give_back(fate: Fate, *, keep: bool) -> None:
    """Give the connection back after an error. If it was lost, the idle ones are most likely lost too."""
    if keep:
        try:
            await Command("rollback")
        except Exception:
            keep = False
    await Give(keep=keep, others=fate in ("lost", "unknown"))


# ---- Performing the requests of the flow


class ServerConnection(Closable, Protocol):
    """A connection to a server, blocking or async: then each answer is an awaitable."""

    def execute(self, op: Execute) -> Any:
        """Carry out one statement."""
        ...

    def command(self, sql: str) -> Any:
        """Run statements without parameters; answers what the server says it did."""
        ...


class Caller(Generic[C]):
    """Performs the requests of one operation's flow, blocking."""

    __slots__ = ("_connection", "_pool")

    def __init__(self, pool: Lender[C]) -> None:
        self._pool = pool
        self._connection: C | None = None

    def perform(self, request: Any) -> Any:
        """Carry out one request."""
        connection = self._connection
        match request:
            case Execute() if connection is not None:
                return connection.execute(request)
            case Command(sql) if connection is not None:
                return connection.command(sql)
            case Use(function) if connection is not None:
                return function(connection)
            case Take():
                self._connection = self._pool.take()
                return None
            case Give(keep, others) if connection is not None:
                self._connection = None
                self._pool.give(connection, keep=keep)
                return self._pool.drop_idle() if others else None
            case Pause(seconds):
                return time.sleep(seconds)
        raise AssertionError(f"a flow of the store asked for {request!r}")

    def leave(self) -> None:
        """Close the connection after an interrupt: the server rolls back what it had begun."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._pool.give(connection, keep=False)


class AsyncCaller(Generic[C]):
    """Performs the requests of one operation's flow on an event loop."""

    __slots__ = ("_connection", "_pool")

    def __init__(self, pool: LoopPool[C]) -> None:
        self._pool = pool
        self._connection: C | None = None

    async def perform(self, request: Any) -> Any:
        """Carry out one request."""
        connection = self._connection
        match request:
            case Execute() if connection is not None:
                return await connection.execute(request)
            case Command(sql) if connection is not None:
                return await connection.command(sql)
            case Take():
                self._connection = await self._pool.take()
                return None
            case Give(keep, others) if connection is not None:
                self._connection = None
                self._pool.give(connection, keep=keep)
                return self._pool.drop_idle() if others else None
            case Pause(seconds):
                return await asyncio.sleep(seconds)
        raise AssertionError(f"a flow of the store asked for {request!r}")

    def leave(self) -> None:
        """Close the connection after an interrupt: the server rolls back what it had begun."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._pool.give(connection, keep=False)

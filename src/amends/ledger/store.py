"""The interface of a store: what every ledger database must do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, runtime_checkable

from amends.ledger.operations import StoreOp, T

OUTCOME: Final = "amends_outcome"
"""The attribute of a cancellation that a store raises after an operation: a function that returns its answer, or raises its
error. Whoever was cancelled may need to know what became of it. A store that sets it on every cancellation that it
raises says so with ``keeps_outcome = True``; the driver then need not protect each operation by a task of its own."""


@runtime_checkable
class Served(Protocol):
    """A store whose ledger is in a server, in whose place another one with an older copy may come: by a failover."""

    on_session: list[Callable[[], None]]
    """Called, from any thread, after a session has begun, and after one was lost."""


class Store(Protocol):
    """A durable ledger. Every operation is one transaction; an answer is given only when it is durable.

    A store that cannot tell whether an operation was committed raises ``LedgerUnavailable``.
    """

    url: str

    def open(self, *, create: bool) -> bool:
        """Connect and bring the schema up to date; return True if the ledger is new."""
        ...

    def perform(self, op: StoreOp[T]) -> T:
        """Perform one operation; return when it is durable."""
        ...

    async def perform_async(self, op: StoreOp[T]) -> T:
        """Perform one operation from an event loop, without blocking it."""
        ...

    def close(self) -> None:
        """Release connections and threads. May be called twice."""
        ...


@runtime_checkable
class Scrubbing(Protocol):
    """A store that can rewrite the file that it keeps its rows in, so that nothing removed is left there."""

    def scrub(self) -> None:
        """Rewrite the file and empty its log; raise ``LedgerUnavailable`` if another program does not allow it."""
        ...

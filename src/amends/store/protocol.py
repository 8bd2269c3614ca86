"""What a ledger must do. ``amends.testing.check_store`` proves that one does it."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from amends.ops import StoreOp

T = TypeVar("T")


class Store(Protocol):
    """A durable ledger. Every operation is one transaction; what is answered is durable.

    An operation either happened completely or not at all. Where a store cannot tell whether it happened it
    raises ``LedgerUnavailable``; repeated with ``repeated=True`` it gives the first answer.
    """

    url: str

    def open(self, *, create: bool) -> bool:
        """Connect and bring the schema up to date; True when the ledger is new."""
        ...

    def perform(self, op: StoreOp[T]) -> T:
        """Carry out one operation; returns when it is durable."""
        ...

    async def perform_async(self, op: StoreOp[T]) -> T:
        """The same from an event loop, without blocking it."""
        ...

    def close(self) -> None:
        """Give back connections and threads. May be called twice."""
        ...


AnyStoreOp = StoreOp[Any]

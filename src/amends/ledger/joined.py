"""Calls inside the caller's own transaction: what a store offers for them, and which transactions a run has joined.

The ledger's rows and the tool's effect are written through one connection, and become visible together when the
caller commits. Until then the run tree is locked for everybody else.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

from amends.errors import TransactionOpen, note_on
from amends.ledger.flow import Flow
from amends.ledger.operations import StoreOp
from amends.visible import visible

T = TypeVar("T")


class Joined(Protocol):
    """The ledger through the caller's connection, inside the transaction that is open there.

    Its flows ask for statements only, which ``execute`` carries out. Nothing here begins, commits or rolls back the
    caller's transaction.
    """

    raw: Any
    """The caller's connection."""
    is_async: bool
    is_open_on: Callable[[Any], bool]
    """Whether a connection is in a transaction now, asked from any thread; keeps no connection alive."""
    holds: Callable[[str], bool]
    """Whether any transaction has this run tree locked now; asked through the ledger's own connection, without waiting."""

    def is_own(self, error: BaseException) -> bool:
        """Return whether the database or its driver raised this."""
        ...

    def execute(self, op: Any) -> Any:
        """Carry out one statement of these flows; answers an awaitable where ``is_async``."""
        ...

    def begin(self, name: str, tool: str) -> Flow[None]:
        """Set the savepoint of a call.

        Raises ``CannotJoin`` unless the ledger's rows can be written through this connection.
        """
        ...

    def perform(self, op: StoreOp[T]) -> Flow[T]:
        """Carry out one operation, completely or not at all; it is durable when the caller commits."""
        ...

    def savepoint(self, name: str) -> Flow[None]:
        """Set a savepoint."""
        ...

    def roll_back_to(self, name: str) -> Flow[None]:
        """Undo everything since the savepoint, and remove it. Raises the driver's error when it does not exist."""
        ...

    def release(self, name: str) -> Flow[None]:
        """Keep everything since the savepoint, and remove it. Raises the driver's error when it does not exist."""
        ...


@runtime_checkable
class Joining(Protocol):
    """A store whose ledger is in a database in which the caller may have a transaction."""

    def joined(self, connection: object, *, tool: str) -> Joined:
        """Return the ledger through this connection; raises ``CannotJoin`` if it cannot be used."""
        ...


class JoinedTransactions:
    """The transactions that calls of one run tree have joined, as long as they may be open."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._joined: list[_JoinedTransaction] = []

    def add(self, joined: Joined) -> None:
        """Add the transaction that a call of this thread or task is about to join."""
        new = _JoinedTransaction(joined)
        with self._lock:
            known = [one for one in self._joined if one.is_open() and not one.has_connection_of(new)]
            self._joined = [*known, new]

    def are_open(self) -> bool:
        """Return whether a transaction of this process may have the tree locked."""
        with self._lock:
            self._joined = [one for one in self._joined if one.is_open()]
            return bool(self._joined)

    def hold(self, root: str) -> bool:
        """Return whether a transaction of any thread or task has this tree locked. May ask the database."""
        return self.are_open() and any(one.is_open() and one.holds(root) for one in list(self._joined))

    def mine(self, *, but: object = None) -> Callable[[str], bool] | None:
        """Return a function that tells whether this thread or task would wait for itself; None if it cannot.

        ``but``: the connection through which the work is done, whose own transaction does not count.
        """
        if not self.are_open():
            return None
        current = _current()
        for one in self._joined:
            if one.belongs_to(current) and one.connection() is not but:
                return one.holds
        return None


def still_open(run_id: str) -> TransactionOpen:
    """Return the error for work that would wait for its own caller."""
    return TransactionOpen(
        f"a call of run {run_id} has joined a transaction that is still open, and that locks the run until it ends; "
        "nothing was started",
        run_id=run_id,
    )


def waits_for_itself(joined: JoinedTransactions | None, *, but: object = None) -> Callable[[str], bool] | None:
    """Return a function that tells whether this thread or task would wait for its own open transaction; None: it cannot."""
    return None if joined is None else joined.mine(but=but)


LEAVE_POLL_S: Final = 0.05
"""How often to check whether another thread or task has ended the transaction that locks a run."""


def note_left_open(error: BaseException, run_id: str) -> None:
    """Note on an error of a block that its run could not be rolled back: the caller's transaction was still open."""
    note_on(
        error,
        f"amends: run {visible(run_id)} could not be closed: a call of it has joined a transaction that is still open; "
        "a worker follows the run's policy when that has ended",
    )


class _JoinedTransaction:
    """One connection, not kept alive by us where that can be avoided: when it is collected, it rolls back."""

    def __init__(self, joined: Joined) -> None:
        raw = joined.raw
        try:
            self.connection: Callable[[], Any] = weakref.ref(raw)
        except TypeError:  # sqlite3's
            self.connection = lambda: raw
        self._is_open = joined.is_open_on
        self.holds = joined.holds
        self._owner = _current()

    def has_connection_of(self, other: _JoinedTransaction) -> bool:
        return self.connection() is other.connection()

    def is_open(self) -> bool:
        raw = self.connection()
        return raw is not None and bool(self._is_open(raw))

    def belongs_to(self, current: object) -> bool:
        """Return whether it belongs to this thread or task, or to one that has ended: then it passes to the next."""
        owner = self._owner
        if isinstance(owner, threading.Thread):
            return owner is current or not owner.is_alive()
        return owner is current or bool(owner.done())


def _current() -> Any:
    """Return this task, or this thread where there is none."""
    asyncio = sys.modules.get("asyncio")  # a process that has not imported it has no tasks, and need not pay for it
    if asyncio is not None:
        try:
            return asyncio.current_task() or threading.current_thread()
        except RuntimeError:
            pass
    return threading.current_thread()

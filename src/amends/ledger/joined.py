"""Riding in the caller's own transaction: what a store offers for it, and who rides in which run.

The ledger's rows and the tool's effect are written through one connection, and become true together when the caller
commits. Until then the run tree is locked for everybody else.
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
    """The ledger through a connection of the caller's, inside the transaction that is open there.

    Its flows ask for statements only; ``run`` or ``run_async`` answers them, whichever the connection is made for.
    Nothing here begins, commits or rolls back a transaction.
    """

    raw: Any
    """The caller's connection."""
    is_async: bool
    is_open_on: Callable[[Any], bool]
    """Whether this connection is in a transaction now; from any thread."""
    holds: Callable[[str], bool]
    """Whether somebody keeps this run tree from others now; asked through the ledger's own connection, at once."""

    def is_own(self, error: BaseException) -> bool:
        """Whether the database or its driver raised this."""
        ...

    def board(self, name: str, tool: str) -> Flow[None]:
        """A savepoint for a call; raises ``CannotJoin`` unless the ledger's rows can be kept through this connection."""
        ...

    def answer(self, op: StoreOp[T]) -> Flow[T]:
        """Carry out one operation, wholly or not at all; durable when the caller commits."""
        ...

    def mark(self, name: str) -> Flow[None]:
        """A savepoint."""
        ...

    def back(self, name: str) -> Flow[None]:
        """Undo everything since the savepoint, and forget it. Raises the driver's error when it is gone."""
        ...

    def forget(self, name: str) -> Flow[None]:
        """Keep everything since the savepoint. Raises the driver's error when it is gone."""
        ...

    def run(self, flow: Flow[T]) -> T:
        """Drive one of these flows, blocking."""
        ...

    async def run_async(self, flow: Flow[T]) -> T:
        """Drive one of these flows, awaited."""
        ...


@runtime_checkable
class Joining(Protocol):
    """A store whose ledger lies in a database that the caller may have a transaction in."""

    def joined(self, connection: object, *, tool: str) -> Joined:
        """The ledger through this connection; raises ``CannotJoin`` for one that cannot be used. No IO."""
        ...


class Rides:
    """The transactions that calls of one run tree ride in, as long as they may be open."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rides: list[_Ride] = []

    def add(self, joined: Joined) -> None:
        """A call of this tree is about to be written there, by this thread or task."""
        ride = _Ride(joined)
        with self._lock:
            known = [one for one in self._rides if one.is_open() and not one.same(ride)]
            self._rides = [*known, ride]

    def are_open(self) -> bool:
        """Whether the tree may be locked by a transaction of this process."""
        with self._lock:
            self._rides = [one for one in self._rides if one.is_open()]
            return bool(self._rides)

    def hold(self, root: str) -> bool:
        """Whether a transaction keeps this tree, of whichever thread or task it is. May ask the database."""
        return self.are_open() and any(one.is_open() and one.holds(root) for one in list(self._rides))

    def mine(self, *, but: object = None) -> Callable[[str], bool] | None:
        """How to ask whether this very thread or task would wait for itself; None when it would not.

        ``but``: the connection that is used for what is asked.
        """
        if not self.are_open():
            return None
        whom = _whom()
        for one in self._rides:
            if one.is_of(whom) and one.connection() is not but:
                return one.holds
        return None


def still_open(run_id: str) -> TransactionOpen:
    """What to say to who would wait for himself."""
    return TransactionOpen(
        f"a call of run {run_id} rides in a transaction that is still open, and keeps the run until it ends; "
        "nothing was started",
        run_id=run_id,
    )


def waits_for_itself(rides: Rides | None, *, but: object = None) -> Callable[[str], bool] | None:
    """How to ask whether what this thread or task is about to do would wait for its own open transaction."""
    return None if rides is None else rides.mine(but=but)


def refuse_waiting(rides: Rides | None, root: str, run_id: str, *, but: object = None) -> None:
    """What waits for the caller's own open transaction waits for ever. ``but``: the connection it is done through."""
    holds = waits_for_itself(rides, but=but)
    if holds is not None and holds(root):
        raise still_open(run_id)


LEAVE_POLL_S: Final = 0.05
"""How often is looked whether another thread or task has ended the transaction that a run is kept by."""


def note_left_open(error: BaseException, run_id: str) -> None:
    """The block raised while the caller's transaction was open: its run cannot be taken back here."""
    note_on(
        error,
        f"amends: run {visible(run_id)} could not be left in order: a call of it rides in a transaction that is still open; "
        "a worker follows the run's policy when that has ended",
    )


class _Ride:
    """One connection, not kept alive by us where that can be helped: collected, it rolls back."""

    def __init__(self, joined: Joined) -> None:
        raw = joined.raw
        try:
            self.connection: Callable[[], Any] = weakref.ref(raw)
        except TypeError:  # sqlite3's
            self.connection = lambda: raw
        self._is_open = joined.is_open_on
        self.holds = joined.holds
        self._whom = _whom()

    def same(self, other: _Ride) -> bool:
        return self.connection() is other.connection()

    def is_open(self) -> bool:
        raw = self.connection()
        return raw is not None and bool(self._is_open(raw))

    def is_of(self, whom: object) -> bool:
        """Whether it is his, or of somebody who has ended: then it is his who goes on."""
        mine = self._whom
        if isinstance(mine, threading.Thread):
            return mine is whom or not mine.is_alive()
        return mine is whom or bool(mine.done())


def _whom() -> Any:
    """This task, or this thread where there is none."""
    asyncio = sys.modules.get("asyncio")  # who has not imported it has no tasks, and need not pay for it
    if asyncio is not None:
        try:
            return asyncio.current_task() or threading.current_thread()
        except RuntimeError:
            pass
    return threading.current_thread()

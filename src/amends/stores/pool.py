"""Pools of connections: one for threads, and one for an event loop.

The caller itself connects, so that it learns at once, and exactly, why there is no connection. Waiters are served in
order: a connection that becomes free goes to the first waiter, not to a newcomer.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, Never, Protocol, TypeVar

from amends.errors import LedgerUnavailable


class Closable(Protocol):
    """A connection that can be closed without waiting, from any thread."""

    @property
    def closed(self) -> bool:
        """Whether it cannot be used any more."""
        ...

    def close(self) -> None:
        """Disconnect; the server rolls back an open transaction."""
        ...


C = TypeVar("C", bound=Closable)


class Lender(Protocol[C]):
    """A pool for threads."""

    def take(self) -> C:
        """Return a connection for this caller alone."""
        ...

    def give(self, connection: C, *, keep: bool) -> None:
        """Take a connection back, or close it."""
        ...

    def drop_idle(self) -> None:
        """Close the connections that nobody uses."""
        ...

    def close(self) -> None:
        """Refuse every caller."""
        ...


class Turn(Generic[C]):
    """A waiting thread. ``handed``: None means that it may connect."""

    __slots__ = ("come", "handed")

    def __init__(self) -> None:
        self.come = threading.Event()
        self.handed: C | None = None


class Pool(Generic[C]):
    """Up to ``size`` connections for any number of threads; the one used last is reused first.

    ``wait_s``: how long a thread waits for a connection. ``shown``: the ledger's URL without its password.
    """

    def __init__(self, connect: Callable[[], C], *, size: int, wait_s: float, shown: str) -> None:
        self._connect, self._size, self._wait_s, self._shown = connect, size, wait_s, shown
        self._lock = threading.Lock()
        self._idle: list[C] = []
        self._waiters: deque[Turn[C]] = deque()
        self._count = 0
        self._closed = False

    def take(self) -> C:
        """Return a connection for this caller alone."""
        turn: Turn[C] | None = None
        with self._lock:
            if self._closed:
                raise closed(self._shown)
            if self._idle:
                return self._idle.pop()
            if self._count < self._size:
                self._count += 1
            else:
                turn = Turn()
                self._waiters.append(turn)
        handed = None if turn is None else self._wait(turn)
        if handed is not None:
            return handed
        try:
            return self._connect()
        except BaseException:
            self._pass_on(None)
            raise

    def take_idle(self) -> C | None:
        """Return a connection that nobody uses, if there is one; never waits."""
        with self._lock:
            return self._idle.pop() if self._idle and not self._closed else None

    def _wait(self, turn: Turn[C]) -> C | None:
        try:
            turn.come.wait(self._wait_s)
        except BaseException:
            if not self._leave(turn):
                self._pass_on(turn.handed)
            raise
        if self._leave(turn):
            raise exhausted(self._shown, self._size, self._wait_s)
        if self._closed:
            self._pass_on(turn.handed)
            raise closed(self._shown)
        return turn.handed

    def _leave(self, turn: Turn[C]) -> bool:
        """Remove a waiter; return whether its turn had not come yet."""
        with self._lock:
            waits = turn in self._waiters
            if waits:
                self._waiters.remove(turn)
            return waits

    def give(self, connection: C, *, keep: bool) -> None:
        """Take a connection back, or close it."""
        if keep and not connection.closed and not self._closed:
            self._pass_on(connection)
        else:
            connection.close()
            self._pass_on(None)

    def _pass_on(self, connection: C | None) -> None:
        """Hand a connection, or the right to make one, to the first waiter; keep it if nobody waits."""
        with self._lock:
            if self._waiters:
                turn = self._waiters.popleft()
                turn.handed = connection
                turn.come.set()
            elif connection is not None and not self._closed:
                self._idle.append(connection)
            else:
                self._count -= 1
                if connection is not None:
                    connection.close()

    def drop_idle(self) -> None:
        """Close the connections that nobody uses."""
        with self._lock:
            idle, self._idle = self._idle, []
            self._count -= len(idle)
        for connection in idle:
            connection.close()

    def close(self) -> None:
        """Refuse every caller and close what is idle; what is in use is closed when it is given back."""
        with self._lock:
            self._closed = True
            waiters, self._waiters = self._waiters, deque()
            self._count += len(waiters)  # each gives back what it is not handed
        for turn in waiters:
            turn.come.set()
        self.drop_idle()


class LoopPool(Generic[C]):
    """A pool for the callers of one event loop. Only that loop may use it, except for ``close``."""

    def __init__(self, connect: Callable[[], Awaitable[C]], *, size: int, wait_s: float, shown: str) -> None:
        self._connect, self._size, self._wait_s, self._shown = connect, size, wait_s, shown
        self._idle: list[C] = []
        self._waiters: deque[asyncio.Future[C | None]] = deque()
        self._all: set[C] = set()
        self._count = 0
        self._closed = False

    async def take(self) -> C:
        """Return a connection for this caller alone."""
        if self._closed:
            raise closed(self._shown)
        with contextlib.suppress(IndexError):  # not checked first: another thread may be closing
            return self._idle.pop()
        handed: C | None = None
        if self._count < self._size:
            self._count += 1
        else:
            handed = await self._wait()
            if self._closed:
                self._refuse(handed)
        if handed is not None:
            return handed
        try:
            connection = await self._connect()
        except BaseException:
            self._pass_on(None)
            raise
        self._all.add(connection)
        return connection

    async def _wait(self) -> C | None:
        turn: asyncio.Future[C | None] = asyncio.get_running_loop().create_future()
        self._waiters.append(turn)
        try:
            done, _ = await asyncio.wait({turn}, timeout=self._wait_s)
        except BaseException:
            if not self._leave(turn):
                self._pass_on(turn.result())
            raise
        if not done and self._leave(turn):
            raise exhausted(self._shown, self._size, self._wait_s)
        return turn.result()

    def _refuse(self, handed: C | None) -> Never:
        """Refuse a waiter whose turn came after ``close``, and pass the turn on to the next one."""
        if handed is None:
            self._pass_on(None)
        else:
            self.give(handed, keep=False)
        raise closed(self._shown)

    def _leave(self, turn: asyncio.Future[C | None]) -> bool:
        waits = turn in self._waiters
        if waits:
            self._waiters.remove(turn)
        return waits

    def give(self, connection: C, *, keep: bool) -> None:
        """Take a connection back, or close it."""
        if keep and not connection.closed and not self._closed:
            self._pass_on(connection)
        else:
            connection.close()
            self._all.discard(connection)
            self._pass_on(None)

    def _pass_on(self, connection: C | None) -> None:
        if self._waiters:
            self._waiters.popleft().set_result(connection)
        elif connection is not None:
            self._idle.append(connection)
        else:
            self._count -= 1

    def drop_idle(self) -> None:
        """Close the connections that nobody uses."""
        while self._idle:
            self.give(self._idle.pop(), keep=False)

    def close(self, *, loop_is_closed: bool) -> None:
        """Refuse every caller and close what is idle; also what is in use, if the loop is closed."""
        self._closed = True
        with contextlib.suppress(IndexError):
            while True:
                self._idle.pop().close()
        if loop_is_closed:
            for connection in list(self._all):
                connection.close()
            self._all.clear()


def exhausted(shown: str, size: int, wait_s: float) -> LedgerUnavailable:
    """Return the error for a pool whose connections all stayed in use."""
    return LedgerUnavailable(
        f"all {size} connections of this process to the ledger at {shown} were in use for {wait_s:g} s; "
        "nothing of this was written",
        hint="raise pool_max in the URL, or start fewer operations at once",
    )


def closed(shown: str) -> LedgerUnavailable:
    """Return the error for a caller that comes after ``close``."""
    return LedgerUnavailable(f"the ledger at {shown} is closed", hint="make a new runtime")

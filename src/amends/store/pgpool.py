"""Connections that are kept: for threads, and for one event loop.

Connecting happens in the caller, so that it is told at once, and exactly, why there is no connection.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from amends.errors import LedgerUnavailable


class Closable(Protocol):
    """A connection that can be ended without waiting, by anybody."""

    @property
    def closed(self) -> bool:
        """Whether it is of no use any more."""
        ...

    def end(self) -> None:
        """Disconnect; an open transaction is undone by the server."""
        ...


C = TypeVar("C", bound=Closable)


class Pool(Generic[C]):
    """Up to ``size`` connections for any number of threads; the last one used is used first."""

    def __init__(self, connect: Callable[[], C], *, size: int, wait_s: float, shown: str) -> None:
        self._connect, self._size, self._wait_s, self._shown = connect, size, wait_s, shown
        self._change = threading.Condition()
        self._idle: list[C] = []
        self._count = 0
        self._closed = False

    def take(self) -> C:
        """A connection for this caller alone."""
        with self._change:
            if not self._change.wait_for(lambda: self._idle or self._count < self._size or self._closed, self._wait_s):
                raise exhausted(self._shown, self._size, self._wait_s)
            if self._closed:
                raise closed(self._shown)
            if self._idle:
                return self._idle.pop()
            self._count += 1
        try:
            return self._connect()
        except BaseException:
            self._let_another()
            raise

    def give(self, connection: C, *, keep: bool) -> None:
        """Take it back, or end it."""
        if keep and not connection.closed and not self._closed:
            with self._change:
                self._idle.append(connection)
                self._change.notify()
            return
        connection.end()
        self._let_another()

    def adopt(self, connection: C) -> None:
        """Keep a connection that was made elsewhere."""
        with self._change:
            self._count += 1
        self.give(connection, keep=True)

    def drop_idle(self) -> None:
        """End those that nobody uses."""
        with self._change:
            idle, self._idle = self._idle, []
            self._count -= len(idle)
            self._change.notify_all()
        for connection in idle:
            connection.end()

    def close(self) -> None:
        """Refuse whoever comes now, and end what is idle; what is in use is ended when it is given back."""
        with self._change:
            self._closed = True
            self._change.notify_all()
        self.drop_idle()

    def _let_another(self) -> None:
        with self._change:
            self._count -= 1
            self._change.notify()


class LoopPool(Generic[C]):
    """The same for the callers of one event loop. Only that loop may use it, except for ``abandon``."""

    def __init__(self, connect: Callable[[], Awaitable[C]], *, size: int, wait_s: float, shown: str) -> None:
        self._connect, self._size, self._wait_s, self._shown = connect, size, wait_s, shown
        self._idle: list[C] = []
        self._line: deque[asyncio.Future[None]] = deque()
        self._all: set[C] = set()
        self._count = 0
        self._closed = False

    async def take(self) -> C:
        """A connection for this caller alone."""
        if not self._idle and self._count >= self._size:
            await self._queue()
        if self._closed:
            raise closed(self._shown)
        if self._idle:
            return self._idle.pop()
        self._count += 1
        try:
            connection = await self._connect()
        except BaseException:
            self._count -= 1
            self._let_another()
            raise
        self._all.add(connection)
        return connection

    async def _queue(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + self._wait_s
        while not self._idle and self._count >= self._size and not self._closed:
            turn = loop.create_future()
            self._line.append(turn)
            try:
                await asyncio.wait_for(turn, max(0.0, until - loop.time()))
            except TimeoutError:
                raise exhausted(self._shown, self._size, self._wait_s) from None
            finally:
                if turn in self._line:
                    self._line.remove(turn)

    def give(self, connection: C, *, keep: bool) -> None:
        """Take it back, or end it."""
        if keep and not connection.closed and not self._closed:
            self._idle.append(connection)
        else:
            connection.end()
            self._all.discard(connection)
            self._count -= 1
        self._let_another()

    def drop_idle(self) -> None:
        """End those that nobody uses."""
        while self._idle:
            self.give(self._idle.pop(), keep=False)

    def abandon(self) -> None:
        """Its loop is closed, or the ledger is: end everything, also what a coroutine that never goes on had taken."""
        self._closed = True
        for connection in list(self._all):
            connection.end()
        self._all.clear()
        self._idle.clear()

    def _let_another(self) -> None:
        while self._line:
            turn = self._line.popleft()
            if not turn.done():
                turn.set_result(None)
                return


def exhausted(shown: str, size: int, wait_s: float) -> LedgerUnavailable:
    """What to say when all connections stay in use."""
    return LedgerUnavailable(
        f"all {size} connections of this process to the ledger at {shown} were in use for {wait_s:g} s; "
        "nothing of this was written",
        hint="raise pool_max in the URL, or ask for less at once",
    )


def closed(shown: str) -> LedgerUnavailable:
    """What to say to whoever comes after the end."""
    return LedgerUnavailable(f"the ledger at {shown} is closed", hint="make a new runtime")

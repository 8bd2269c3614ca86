"""Connections that threads share, one at a time: opened when needed, at most so many, kept while they are good."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from amends.errors import LedgerUnavailable


class Closing(Protocol):
    """What a pool can hold."""

    def close(self) -> None:
        """Disconnect; never raises."""
        ...


L = TypeVar("L", bound=Closing)


class Pool(Generic[L]):
    """Whoever takes a connection has it alone until it is given back. Nobody asks it whether it is well: use tells."""

    def __init__(self, connect: Callable[[], L], *, most: int, wait_s: float, where: str) -> None:
        self._connect, self._most, self._wait_s, self._where = connect, most, wait_s, where
        self._change = threading.Condition(threading.Lock())
        self._idle: list[L] = []
        self._out = 0
        self._closed = False

    def take(self) -> L:
        """A connection for this caller alone: the one that rested least, or a new one."""
        with self._change:
            if not self._is_free() and not self._change.wait_for(self._is_free, self._wait_s):
                raise LedgerUnavailable(
                    f"all {self._most} connections to the ledger at {self._where} were in use "
                    f"for more than {self._wait_s:g} s; nothing was asked",
                    hint="raise pool_max in the URL, ask for less at once, or look for what holds the others up",
                )
            if self._closed:
                raise closed(self._where)
            self._out += 1
            link = self._idle.pop() if self._idle else None
        if link is not None:
            return link
        try:
            return self._connect()
        except BaseException:
            self._leave(None)
            raise

    def give(self, link: L, *, well: bool) -> None:
        """Take it back; one that is not well is never used again."""
        keep = well and not self._closed
        if not keep:
            link.close()
        self._leave(link if keep else None)

    def drop(self) -> None:
        """Disconnect those that rest: one of them has told that the server went away."""
        with self._change:
            rested, self._idle = self._idle, []
        for link in rested:
            link.close()

    def close(self) -> None:
        """Disconnect those that rest, and each of the others when it is given back."""
        self._closed = True
        with self._change:
            self._change.notify_all()
        self.drop()

    def _is_free(self) -> bool:
        return self._closed or self._out < self._most

    def _leave(self, link: L | None) -> None:
        with self._change:
            self._out -= 1
            if link is not None:
                self._idle.append(link)
            self._change.notify()


def closed(where: str) -> LedgerUnavailable:
    """What whoever comes after the end is told."""
    return LedgerUnavailable(f"the ledger at {where} is closed", hint="make a new runtime")

"""Connections to a SQLite file: one with its cursor, and those that are kept for reading."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from amends.store.sql import Execute, Result

READERS_MAX: Final = 4
"""Idle read connections that are kept."""
CLOSE_WAIT_S: Final = 30.0
"""How long closing waits for whoever still reads."""


@dataclass(slots=True)
class Link:
    """A connection with the one cursor that serves it: its statements follow one another."""

    raw: sqlite3.Connection
    cursor: sqlite3.Cursor
    inode: int = 0
    """Which file it writes: a path may come to name another one."""

    def execute(self, op: Execute) -> Result:
        """Answer one request of a flow."""
        cursor = self.cursor
        cursor.execute(op.sql, op.params)
        return cursor.fetchall(), cursor.rowcount, cursor.lastrowid or 0


class Readers:
    """Connections for reading: as many as there are readers at once, of which a few are kept."""

    def __init__(self, connect: Callable[[], Link]) -> None:
        self._connect = connect
        self._change = threading.Condition()
        self._idle: list[Link] = []
        self._out = 0
        self._held = False
        self._closed = False

    def take(self) -> Link:
        """A connection for this reader alone."""
        with self._change:
            self._change.wait_for(lambda: not self._held)
            self._out += 1
            link = self._idle.pop() if self._idle else None
        try:
            return link or self._connect()
        except BaseException:
            self.give(None)
            raise

    def give(self, link: Link | None) -> None:
        """Take it back."""
        keep = link is not None and not self._closed and len(self._idle) < READERS_MAX
        if link is not None and not keep:
            link.raw.close()
        with self._change:
            if link is not None and keep:
                self._idle.append(link)
            self._out -= 1
            self._change.notify_all()

    def drop(self) -> None:
        """Disconnect those that are not in use."""
        with self._change:
            while self._idle:
                self._idle.pop().raw.close()

    def hold(self, timeout_s: float) -> bool:
        """Disconnect all and let nobody read until ``release``; False when a reader is not done in time."""
        with self._change:
            self._held = True
            done = self._change.wait_for(lambda: self._out == 0, timeout_s)
        if done:
            self.drop()
        return done

    def release(self) -> None:
        """Go on after ``hold``."""
        with self._change:
            self._held = False
            self._change.notify_all()

    def close(self) -> None:
        """Disconnect all, for good."""
        self._closed = True
        self.hold(CLOSE_WAIT_S)
        self.release()

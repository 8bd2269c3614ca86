"""The connections to a SQLite file that only read."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from typing import Final

from amends.encoding.dataclass import dataclass
from amends.stores.sql import Execute, Result

# ---- Connections


READERS_MAX: Final = 4
"""Idle read connections that are kept."""
CLOSE_WAIT_S: Final = 30.0
"""How long ``close`` waits for readers."""


@dataclass(slots=True)
class Connection:
    """A connection with its one cursor: its statements come one at a time."""

    raw: sqlite3.Connection
    cursor: sqlite3.Cursor
    inode: int = 0
    """The file that it writes: the path may later name another one."""

    def execute(self, op: Execute) -> Result:
        """Carry out one statement of a flow."""
        cursor = self.cursor
        cursor.execute(op.sql, op.params)
        return cursor.fetchall(), cursor.rowcount, cursor.lastrowid or 0


class Readers:
    """Connections for reading: as many as there are concurrent readers, of which a few are kept."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._change = threading.Condition()
        self._idle: list[Connection] = []
        self._out = 0
        self._held = False
        self._closed = False

    def take(self) -> Connection:
        """Return a connection for this reader alone."""
        with self._change:
            self._change.wait_for(lambda: not self._held)
            self._out += 1
            connection = self._idle.pop() if self._idle else None
        try:
            return connection or self._connect()
        except BaseException:
            self.give(None)
            raise

    def give(self, connection: Connection | None) -> None:
        """Take a connection back; None: it was closed, or never made."""
        keep = connection is not None and not self._closed and len(self._idle) < READERS_MAX
        if connection is not None and not keep:
            connection.raw.close()
        with self._change:
            if connection is not None and keep:
                self._idle.append(connection)
            self._out -= 1
            self._change.notify_all()

    def drop(self) -> None:
        """Close the connections that are not in use."""
        with self._change:
            while self._idle:
                self._idle.pop().raw.close()

    def hold(self, timeout_s: float) -> bool:
        """Close all and let nobody read until ``release``; return False if a reader is not done in time."""
        with self._change:
            self._held = True
            done = self._change.wait_for(lambda: self._out == 0, timeout_s)
        if done:
            self.drop()
        return done

    def release(self) -> None:
        """Continue after ``hold``."""
        with self._change:
            self._held = False
            self._change.notify_all()

    def close(self) -> None:
        """Close all, for good."""
        self._closed = True
        self.hold(CLOSE_WAIT_S)
        self.release()

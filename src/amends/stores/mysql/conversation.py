"""A transaction that is sent and answered on an event loop, without a thread.

It is one packet there and a few bytes back, which the loop itself reads when they come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amends.encoding.lazy_import import import_on_use
from amends.stores.mysql.connection import RECEIVED_MAX, SERVER_LOST, Answers, Connection

if TYPE_CHECKING:
    import asyncio
else:
    import_on_use(globals(), asyncio="asyncio")

SENT_MAX: Final = 1 << 18
"""The bytes that a loop sends itself; whatever is larger is sent by a thread."""


class Conversation:
    """Sends a packet, and reads so many answers."""

    def __init__(self, loop: asyncio.AbstractEventLoop, connection: Connection, count: int) -> None:
        self._loop, self._connection = loop, connection
        self._sock = connection.raw._sock
        self._file = -1
        self._answers = Answers(connection.raw, count)
        self._unsent = b""
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False
        self._error: Exception | None = None

    def begin(self, data: bytes | None) -> bool:
        """Send a packet that commits; return False, and send nothing, if this loop or connection cannot do it."""
        if data is None or len(data) > SENT_MAX or self._sock is None or hasattr(self._sock, "pending"):
            return False  # too long, closed, or encrypted
        self._file = self._sock.fileno()
        try:
            self._loop.add_reader(self._file, self._read)
        except NotImplementedError:  # a loop that cannot wait for a socket
            return False
        self._connection.begin_at_once(data)
        self._timer = self._loop.call_later(self._connection.raw._read_timeout, self._give_up)
        try:
            sent = self._sock.send(data)
        except OSError as error:
            self._lose(error)
            return True
        if sent < len(data):
            self._unsent = data[sent:]
            self._loop.add_writer(self._file, self._write)
        return True

    async def over(self) -> asyncio.CancelledError | None:
        """Wait for the end, also if this task is cancelled meanwhile; return the cancellation."""
        cancelled: asyncio.CancelledError | None = None
        while not self._is_over:
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            except asyncio.CancelledError as error:
                cancelled = error
        return cancelled

    def leave(self) -> None:
        """Read no more: nobody waits for the answer."""
        if not self._is_over and not self._loop.is_closed():
            self._end(None)

    def said(self) -> list[tuple[int, int]]:
        """Return what the server has answered. Raises the error that it has answered with, or that the line is lost."""
        self._connection.end_at_once(self._error)
        if self._error is not None:
            raise self._error
        return self._answers.said

    def _write(self) -> None:
        try:
            sent = self._sock.send(self._unsent)
        except OSError as error:
            self._lose(error)
            return
        self._unsent = self._unsent[sent:]
        if not self._unsent:
            self._loop.remove_writer(self._file)

    def _read(self) -> None:
        try:
            if self._answers.add(self._sock.recv(RECEIVED_MAX)):
                self._end(None)
        except OSError as error:
            self._lose(error)
        except Exception as error:  # what the server says, or that the line was closed
            self._end(error)

    def _give_up(self) -> None:
        self._lose(TimeoutError("the server does not answer"))

    def _lose(self, error: OSError) -> None:
        kind = self._connection.raw.OperationalError
        self._end(kind(SERVER_LOST, f"lost connection to the server during a step: {error}"))

    def _end(self, error: Exception | None) -> None:
        self._is_over, self._error = True, error
        self._loop.remove_reader(self._file)
        if self._unsent:
            self._loop.remove_writer(self._file)
        if self._timer is not None:
            self._timer.cancel()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

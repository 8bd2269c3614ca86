"""Group commit without a thread of its own: whoever finds nobody at work writes for all who come meanwhile.

A caller that comes alone leads a batch of one, in its own thread. Those who come while it writes wait in line;
the leader takes them along into its transaction, or leaves the lead to the first of them. Nobody is answered
before the flush.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, Final

from amends.errors import LedgerUnavailable
from amends.ledger.operations import StoreOp
from amends.stores.sql import Execute, Result

BATCH_MAX: Final = 128
"""Operations in one flush: the first of them waits for the last."""
LINE_MAX: Final = 100_000
"""Operations that may wait. More than this is a store that does not keep up, not a burst."""


@dataclass(slots=True, eq=False)
class Ticket:
    """One operation in line, and then its answer."""

    op: StoreOp[Any]
    answer: Any = None
    error: Exception | None = None
    leads: bool = False
    gate: threading.Lock = field(default_factory=threading.Lock)
    loop: asyncio.AbstractEventLoop | None = None
    future: asyncio.Future[None] | None = None

    def outcome(self) -> Any:
        """The answer, or the error, raised."""
        error, self.error = self.error, None
        if error is not None:
            raise error
        return self.answer


class GroupCommit:
    """The line in front of one writer.

    ``flush`` gets the first ticket in a list, adds others with ``join``, and gives each an answer or an error.
    """

    def __init__(self, flush: Callable[[list[Ticket]], None], pool: Callable[[], Executor]) -> None:
        self._flush = flush
        self._pool = pool
        self._mutex = threading.Lock()
        self._still = threading.Condition(self._mutex)
        self.line: deque[Ticket] = deque()
        self._led = False
        self._held = False
        self._closed = False

    def perform(self, op: StoreOp[Any]) -> Any:
        """Carry out ``op``, in this thread or in another caller's."""
        ticket = Ticket(op)
        if self._enter(ticket) or self._waits_until_it_leads(ticket):
            self._lead(ticket)
        return ticket.outcome()

    async def perform_async(self, op: StoreOp[Any]) -> Any:
        """The same from an event loop: one hop to a thread and back, shared with whoever else is in line.

        A cancellation is raised when the operation is over: whoever cancels must be able to rely on the record.
        """
        loop = asyncio.get_running_loop()
        ticket = Ticket(op, loop=loop, future=loop.create_future())
        if self._enter(ticket):
            self._appoint(ticket)
        assert ticket.future is not None, "an async ticket has a future"
        await outlasting(ticket.future)
        return ticket.outcome()

    def join(self, batch: list[Ticket]) -> None:
        """Add those who are in line by now to the leader's batch."""
        if self.line:
            with self._mutex:
                while self.line and len(batch) < BATCH_MAX:
                    batch.append(self.line.popleft())

    def hold(self, timeout_s: float) -> bool:
        """Let nobody lead until ``release``; False when the present leader is not done in time."""
        with self._mutex:
            self._held = True
            return self._still.wait_for(lambda: not self._led, timeout_s)

    def release(self) -> None:
        """Go on after ``hold``."""
        with self._mutex:
            self._held = False
            heir = self._heir() if not self._led else None
            self._led = self._led or heir is not None
        if heir is not None:
            self._appoint(heir)

    def close(self) -> bool:
        """Refuse whoever comes now; those in line are served first. False when it was closed before."""
        with self._mutex:
            was_closed, self._closed = self._closed, True
            self._still.wait_for(lambda: not self._led)
            return not was_closed

    # ---- the lead -------------------------------------------------------------------------

    def _enter(self, ticket: Ticket) -> bool:
        """Whether the caller leads at once; else it is in line."""
        with self._mutex:
            if self._closed:
                raise LedgerUnavailable("the ledger is closed", hint="make a new runtime")
            if not self._led and not self._held:
                self._led = True
                return True
            if len(self.line) >= LINE_MAX:
                raise LedgerUnavailable(
                    f"{LINE_MAX} operations wait for the ledger already",
                    hint="ask for less at once, or use a faster disk",
                )
            ticket.gate.acquire()
            self.line.append(ticket)
            return False

    def _waits_until_it_leads(self, ticket: Ticket) -> bool:
        """Wait for the answer (False) or for the lead (True)."""
        try:
            ticket.gate.acquire()
        except BaseException:
            self._leave(ticket)
            raise
        return ticket.leads

    def _leave(self, ticket: Ticket) -> None:
        """The waiting thread was interrupted. What is still in line never happens; a lead is passed on."""
        with self._mutex:
            if ticket in self.line:
                self.line.remove(ticket)
                return
        if ticket.leads:
            self._pass_on()

    def _lead(self, first: Ticket) -> None:
        batch = [first]
        try:
            self._flush(batch)
        finally:
            try:
                if len(batch) > 1 or first.future is not None:
                    _answer(batch)
            finally:
                self._pass_on()

    def _pass_on(self) -> None:
        with self._mutex:
            heir = self._heir()
            if heir is None:
                self._led = False
                if self._held or self._closed:
                    self._still.notify_all()
        if heir is not None:
            self._appoint(heir)

    def _heir(self) -> Ticket | None:
        if self._held or not self.line:
            return None
        heir = self.line.popleft()
        heir.leads = True
        return heir

    def _appoint(self, heir: Ticket) -> None:
        if heir.future is None:
            heir.gate.release()
            return
        try:
            self._pool().submit(self._lead, heir)
        except RuntimeError:  # the interpreter is shutting down and takes no new threads
            self._lead(heir)


def _answer(batch: list[Ticket]) -> None:
    """Wake everybody but the first, who is the leader itself unless an event loop waits for it."""
    loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for place, ticket in enumerate(batch):
        if ticket.loop is not None and ticket.future is not None:
            loops.setdefault(ticket.loop, []).append(ticket.future)
        elif place > 0:
            ticket.gate.release()
    for loop, futures in loops.items():
        try:
            loop.call_soon_threadsafe(_wake, futures)
        except RuntimeError:  # the loop is closed: nobody waits there any more
            continue


def _wake(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


async def outlasting(future: asyncio.Future[None]) -> None:
    """Wait until it is done, however often the waiting task is cancelled; then raise the cancellation."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


# ---- Connections to a SQLite file: one with its cursor, and those that are kept for reading


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

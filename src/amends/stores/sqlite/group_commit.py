"""Group commit: many callers of one process share one transaction and one flush of the SQLite file.

It needs no thread of its own. A caller that finds no leader leads a batch, in its own thread. Callers that come while
it writes are queued; the leader takes them into its transaction, or leaves the lead to the first of them. Nobody is
answered before the flush.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from amends.encoding.dataclass import dataclass, field
from amends.encoding.lazy_import import import_on_use
from amends.errors import LedgerUnavailable
from amends.ledger.operations import StoreOp

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Executor
else:
    import_on_use(globals(), asyncio="asyncio")

BATCH_MAX: Final = 128
"""Operations in one flush: the first of them waits for the last."""
QUEUE_MAX: Final = 100_000
"""Operations that may wait. More than this is a store that cannot keep up, not a burst."""


@dataclass(slots=True, eq=False)
class Pending:
    """One queued operation, and then its answer."""

    op: StoreOp[Any]
    answer: Any = None
    error: Exception | None = None
    leads: bool = False
    gate: threading.Lock = field(default_factory=threading.Lock)
    loop: asyncio.AbstractEventLoop | None = None
    future: asyncio.Future[None] | None = None

    def outcome(self) -> Any:
        """Return the answer, or raise the error."""
        error, self.error = self.error, None
        if error is not None:
            raise error
        return self.answer


class GroupCommit:
    """The queue of one writer.

    ``flush`` gets a list with the leader's operation, adds others with ``join``, and gives each an answer or an error.
    ``pool`` returns the threads in which the operations of event loops lead.
    """

    def __init__(self, flush: Callable[[list[Pending]], None], pool: Callable[[], Executor]) -> None:
        self._flush = flush
        self._pool = pool
        self._mutex = threading.Lock()
        self._still = threading.Condition(self._mutex)
        self.queue: deque[Pending] = deque()
        self._led = False
        self._held = False
        self._closed = False

    def perform(self, op: StoreOp[Any]) -> Any:
        """Carry out ``op``, in this thread or in another caller's."""
        pending = Pending(op)
        if self._enter(pending) or self._waits_for_lead(pending):
            self._lead(pending)
        return pending.outcome()

    async def perform_async(self, op: StoreOp[Any]) -> Any:
        """Do the same on an event loop: one hop to a thread and back, shared with whatever else is queued.

        A cancellation is raised when the operation is over: whoever cancels must be able to rely on the record.
        """
        loop = asyncio.get_running_loop()
        pending = Pending(op, loop=loop, future=loop.create_future())
        if self._enter(pending):
            self._hand_lead(pending)
        assert pending.future is not None, "an operation of an event loop has a future"
        await _until_done(pending.future)
        return pending.outcome()

    def join(self, batch: list[Pending]) -> None:
        """Add the operations that are queued by now to the leader's batch."""
        if self.queue:
            with self._mutex:
                while self.queue and len(batch) < BATCH_MAX:
                    batch.append(self.queue.popleft())

    def hold(self, timeout_s: float) -> bool:
        """Let nobody lead until ``release``; return False if the present leader is not done in time."""
        with self._mutex:
            self._held = True
            return self._still.wait_for(lambda: not self._led, timeout_s)

    def release(self) -> None:
        """Continue after ``hold``."""
        with self._mutex:
            self._held = False
            successor = self._next_leader() if not self._led else None
            self._led = self._led or successor is not None
        if successor is not None:
            self._hand_lead(successor)

    def close(self) -> bool:
        """Refuse new operations and wait for the queued ones; return False if it was closed before."""
        with self._mutex:
            was_closed, self._closed = self._closed, True
            self._still.wait_for(lambda: not self._led)
            return not was_closed

    # ---- The leader

    def _enter(self, pending: Pending) -> bool:
        """Return whether the caller leads at once; otherwise it is queued."""
        with self._mutex:
            if self._closed:
                raise LedgerUnavailable("the ledger is closed", hint="make a new runtime")
            if not self._led and not self._held:
                self._led = True
                return True
            if len(self.queue) >= QUEUE_MAX:
                raise LedgerUnavailable(
                    f"{QUEUE_MAX} operations are already waiting for the ledger",
                    hint="start fewer operations at once, or use a faster disk",
                )
            pending.gate.acquire()
            self.queue.append(pending)
            return False

    def _waits_for_lead(self, pending: Pending) -> bool:
        """Wait for the answer, and return False; or for the lead, and return True."""
        try:
            pending.gate.acquire()
        except BaseException:
            self._leave(pending)
            raise
        return pending.leads

    def _leave(self, pending: Pending) -> None:
        """Remove an operation whose thread was interrupted, or pass on its lead."""
        with self._mutex:
            if pending in self.queue:
                self.queue.remove(pending)
                return
        if pending.leads:
            self._pass_on()

    def _lead(self, first: Pending) -> None:
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
            successor = self._next_leader()
            if successor is None:
                self._led = False
                if self._held or self._closed:
                    self._still.notify_all()
        if successor is not None:
            self._hand_lead(successor)

    def _next_leader(self) -> Pending | None:
        if self._held or not self.queue:
            return None
        successor = self.queue.popleft()
        successor.leads = True
        return successor

    def _hand_lead(self, successor: Pending) -> None:
        if successor.future is None:
            successor.gate.release()
            return
        try:
            self._pool().submit(self._lead, successor)
        except RuntimeError:  # the interpreter is shutting down and takes no new threads
            self._lead(successor)


def _answer(batch: list[Pending]) -> None:
    """Wake every waiter but the first, which is the leader itself unless an event loop waits for it."""
    loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for place, pending in enumerate(batch):
        if pending.loop is not None and pending.future is not None:
            loops.setdefault(pending.loop, []).append(pending.future)
        elif place > 0:
            pending.gate.release()
    for loop, futures in loops.items():
        try:
            loop.call_soon_threadsafe(_wake, futures)
        except RuntimeError:  # the loop is closed: nobody waits there any more
            continue


def _wake(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


async def _until_done(future: asyncio.Future[None]) -> None:
    """Wait until it is done, even if the waiting task is cancelled meanwhile; then raise the cancellation."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled

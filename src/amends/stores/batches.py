"""Batches: the plain steps of many runs, sent to a server as one statement.

It needs no thread of its own. A caller that finds a free sender sends its own step. Callers that come while all senders
are out are queued; whoever gets the next free sender takes all of them along, at most one step of a run, because a
run's chain goes on one by one. The callers of one event loop that are ready in the same turn of the loop come together.
A step that the statement did not do is done alone by its own caller, and so is every step of a batch that failed.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from amends.ledger.store import OUTCOME

if TYPE_CHECKING:
    import asyncio

SENDERS_MAX: Final = 2
"""One batch is on its way while the next is filled; more connections only wait for each other's flush."""
BATCH_MAX: Final = 64


class Queued:
    """One queued step, and then its answer."""

    __slots__ = ("answer", "future", "gate", "is_over", "op", "root", "sends")

    def __init__(self, op: Any, root: str) -> None:
        self.op, self.root = op, root
        self.answer: Any = None
        self.sends = False
        """Its caller is the next sender."""
        self.gate: threading.Lock | None = None
        self.future: asyncio.Future[None] | None = None
        self.is_over = False


class _Queue:
    """What is waiting, and which runs have a step on its way."""

    def __init__(self) -> None:
        self.steps: deque[Queued] = deque()
        self.roots: set[str] = set()
        self.out = 0

    def may_send(self, root: str) -> bool:
        return self.out < SENDERS_MAX and not self.steps and root not in self.roots

    def taken(self, first: Queued | None = None) -> list[Queued]:
        """Take a batch from the queue: the first step, and others of other runs."""
        batch = [] if first is None else [first]
        left: list[Queued] = []
        while self.steps and len(batch) < BATCH_MAX:
            step = self.steps.popleft()
            if step.root in self.roots:
                left.append(step)
            else:
                self.roots.add(step.root)
                batch.append(step)
        self.steps.extendleft(reversed(left))
        return batch


class Batches:
    """The batches of threads. ``together`` carries out several steps, and answers None for those that it did not do."""

    def __init__(self, together: Callable[[Sequence[Any]], Sequence[Any]]) -> None:
        self._together = together
        self._mutex = threading.Lock()
        self._queue = _Queue()

    def perform(self, op: Any, root: str, alone: Callable[[Any], Any]) -> Any:
        """Carry out the step, alone or with others."""
        queue = self._queue
        with self._mutex:
            step: Queued | None = None
            if queue.may_send(root):
                queue.out += 1
                queue.roots.add(root)
            else:
                step = Queued(op, root)
                step.gate = threading.Lock()
                step.gate.acquire()
                queue.steps.append(step)
        if step is None:
            try:
                return alone(op)
            finally:
                self._sent((root,))
        assert step.gate is not None, "a queued step has a gate"
        try:
            step.gate.acquire()
        except BaseException:
            self._leave(step)
            raise
        if step.sends:
            self._send(step, alone)
        return alone(op) if step.answer is None else step.answer

    def _send(self, first: Queued, alone: Callable[[Any], Any]) -> None:
        """Send a batch that this step begins."""
        with self._mutex:
            batch = self._queue.taken(first)
        try:
            if len(batch) == 1:
                first.answer = alone(first.op)
            else:
                for step, answer in zip(batch, self._together([one.op for one in batch]), strict=True):
                    step.answer = answer
        except Exception:
            if len(batch) == 1:
                raise
            # It may be the fault of another step, such as a text that cannot be encoded: who is at fault learns it alone.
        finally:
            for step in batch[1:]:
                assert step.gate is not None, "a queued step has a gate"
                step.gate.release()
            self._sent([step.root for step in batch])

    def _sent(self, roots: Sequence[str]) -> None:
        """Free a sender, and give it to the first step that may go."""
        with self._mutex:
            queue = self._queue
            queue.roots.difference_update(roots)
            queue.out -= 1
            heir = self._heir()
        if heir is not None:
            assert heir.gate is not None, "a queued step has a gate"
            heir.gate.release()

    def _heir(self) -> Queued | None:
        """Return the step that gets a free sender, out of the queue. The mutex is held."""
        queue = self._queue
        for step in queue.steps:
            if step.root not in queue.roots and queue.out < SENDERS_MAX:
                queue.steps.remove(step)
                queue.roots.add(step.root)
                queue.out += 1
                step.sends = True
                return step
        return None

    def _leave(self, step: Queued) -> None:
        """Remove a step whose thread was interrupted, or pass on its sender."""
        with self._mutex:
            if step in self._queue.steps:
                self._queue.steps.remove(step)
                return
        if step.sends:
            self._sent((step.root,))


class LoopBatches:
    """The batches of one event loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, together: Callable[[Sequence[Any]], Awaitable[Sequence[Any]]]
    ) -> None:
        self._loop, self._together = loop, together
        self._queue = _Queue()
        self._is_due = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def perform(self, op: Any, root: str, alone: Callable[[Any], Awaitable[Any]]) -> Any:
        """Carry out the step with whatever else is ready in this turn of the loop.

        A cancellation is raised when the step is over: whoever cancels must be able to rely on the record.
        """
        from asyncio import CancelledError  # here: a blocking program needs no asyncio

        from amends.stores.cancellation import to_its_end

        step = Queued(op, root)
        self._queue.steps.append(step)
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._end_turn)
        cancelled: CancelledError | None = None
        while not step.is_over:
            step.future = self._loop.create_future()
            try:
                await step.future
            except CancelledError as error:
                cancelled = error
        if step.answer is None:
            step.answer, again = await to_its_end(alone(op))
            cancelled = cancelled or again
        if cancelled is not None:
            setattr(cancelled, OUTCOME, lambda: step.answer)
            raise cancelled
        return step.answer

    def _end_turn(self) -> None:
        self._is_due = False
        queue = self._queue
        while queue.steps and queue.out < SENDERS_MAX:
            batch = queue.taken()
            if not batch:
                return
            if len(batch) == 1:
                self._over(batch)  # alone, by its own caller
                continue
            queue.out += 1
            task = self._loop.create_task(self._send(batch))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send(self, batch: list[Queued]) -> None:
        try:
            for step, answer in zip(batch, await self._together([one.op for one in batch]), strict=True):
                step.answer = answer
        except Exception:
            pass  # as above: each is done alone
        finally:
            self._queue.out -= 1
            self._over(batch)
            if self._queue.steps and not self._is_due:
                self._is_due = True
                self._loop.call_soon(self._end_turn)

    def _over(self, batch: Sequence[Queued]) -> None:
        for step in batch:
            self._queue.roots.discard(step.root)
            step.is_over = True
            if step.future is not None and not step.future.done():
                step.future.set_result(None)

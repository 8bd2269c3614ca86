"""Batches: the plain steps of many runs, sent to a server as one statement.

It needs no thread of its own. A caller that finds a free sender sends its own step. Callers that come while all senders
are out are queued; whoever gets the next free sender takes all of them along, at most one step of a run, because a
run's chain goes on one by one. The callers of one event loop that are ready in the same turn of the loop come together.
A step that the statement did not do is done alone by its own caller, and so is every step of a batch that failed. A batch
never waits for a run that somebody else has locked; a caller alone does, and then no longer counts as a sender.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final, TypeVar

from amends.encoding.lazy_import import import_on_use
from amends.ledger.plain import AdmitPlain, PlainRun, SettlePlain
from amends.ledger.store import OUTCOME
from amends.stores.waiter import Waiter, wake_all

if TYPE_CHECKING:
    import asyncio
else:
    import_on_use(globals(), asyncio="asyncio")

T = TypeVar("T")

STEPS: Final = frozenset({AdmitPlain, SettlePlain})
"""The operations that can be part of a batch."""
SENDERS_MAX: Final = 2
"""More connections only wait for each other's flush."""
CROWD_MIN: Final = 5
"""After a batch of so many steps there is one sender: while it is out the next batch is filled. With a second one, the
first caller that comes back would find it free, and send its step alone."""
LINGER_S: Final = 0.0003
"""How long a sender waits after such a batch, if nobody is queued: most of those who were in it come back at once."""
BATCH_MAX: Final = 64
SPLIT_MIN: Final = 16
"""So many steps that are ready on an event loop at once are two batches: while the server does one, the loop goes on with
the callers of the other."""
LATE_S: Final = 0.05
"""A sender that has been out alone for this long waits for a locked run, or for a server that is slow: another may go."""
SLOW: Final = 20
"""A batch waits for no run, and a slow server is not helped by one more: it may be out for so many times as long."""


def root_of(op: Any) -> str:
    """Return the run whose chain this step continues."""
    run: PlainRun = op.run if isinstance(op, AdmitPlain) else op.started.op.run
    return run.root


class Queued(Waiter):
    """One step, and then its answer. ``op``: an operation, with ``repeated``."""

    answer: Any = None
    sends = False
    """Its caller is a sender."""
    gate: threading.Lock | None = None
    after: Queued | None = None
    """Whose caller this one wakes when it was woken."""

    def __init__(self, op: Any, root: str) -> None:
        self.op, self.root = op, root
        self.others: list[Queued] = []
        """The steps that its caller has taken along."""


class _Queue:
    """What is waiting, and which runs have a step on its way."""

    def __init__(self) -> None:
        self.steps: deque[Queued] = deque()
        self.roots: set[str] = set()

    def move(self, batch: list[Queued], limit: int) -> None:
        """Move steps of different runs from the queue to the batch; after an interrupt, one may be in both."""
        steps, roots = self.steps, self.roots
        while steps and (root := steps[0].root) not in roots:  # nearly always all of them
            batch.append(steps[0])
            roots.add(root)
            del steps[0]
            if len(batch) == limit:
                return
        for step in list(steps):
            if step.root not in roots:
                batch.append(step)
                roots.add(step.root)
                steps.remove(step)
                if len(batch) == limit:
                    return

    def remove(self, step: Queued) -> None:
        """Remove a step, if it is still queued."""
        if step in self.steps:
            self.steps.remove(step)


class Batches:
    """The batches of threads. ``together`` carries out several steps, and answers None for those that it did not do."""

    def __init__(self, together: Callable[[Sequence[Any]], Sequence[Any]], *, late_s: float = LATE_S) -> None:
        self._together, self._late_s = together, late_s
        self._mutex = threading.Lock()
        self._queue = _Queue()
        self._senders: dict[Queued, float] = {}
        """Those that count, and since when they are out."""
        self._size = 1
        """How many steps were sent last."""

    def perform(self, op: Any, root: str, alone: Callable[[Any], Any]) -> Any:
        """Carry out the step, alone or with others."""
        step = Queued(op, root)
        try:
            self._begin(step)
            if step.sends and self._size < CROWD_MIN:  # nobody else is here: the usual case, without further looks
                self._size = 1
                return alone(op)
            if not step.sends:
                self._wait(step)
            if step.sends:
                if not step.others and self._size >= CROWD_MIN:
                    sleep(LINGER_S)
                    self._take_others(step)
                self._size = 1 + len(step.others)
                if not step.others:
                    return alone(op)
                self._send([step, *step.others])
        finally:
            try:
                self._end(step)
            except BaseException:  # an interrupt in the middle of it
                self._end(step)
                raise
        return alone(op) if step.answer is None else step.answer

    def _begin(self, step: Queued) -> None:
        """Send this step, or queue it."""
        queue = self._queue
        with self._mutex:
            # Whoever is queued while a sender is free waits for its own run.
            if (not self._senders or self._may_send()) and step.root not in queue.roots:
                self._let_go(step)
            else:
                step.gate = threading.Lock()
                step.gate.acquire()
                queue.steps.append(step)

    def _may_send(self) -> bool:
        """Return whether one more caller may become a sender. The mutex is held."""
        return len(self._senders) < (1 if self._size >= CROWD_MIN else SENDERS_MAX)

    def _let_go(self, step: Queued) -> None:
        """Make its caller a sender. The mutex is held."""
        step.sends = True  # first: from now on an interrupt frees the sender
        self._queue.roots.add(step.root)
        self._senders[step] = monotonic()

    def _wait(self, step: Queued) -> None:
        """Wait until the step is over, or its caller is a sender; the gate only says when to look."""
        assert step.gate is not None, "a queued step has a gate"
        while not (step.gate.acquire(timeout=self._late_s) or step.is_over or step.sends):
            self._pass_by_the_late()
        _wake_next(step)
        if step.sends:
            self._take_others(step)

    def _take_others(self, step: Queued) -> None:
        """Take along who is queued, but not more than half of all: while these are out, the others fill the next batch."""
        with self._mutex:
            crowd = self._size + 1 + len(self._queue.steps)
            self._queue.move(step.others, min(BATCH_MAX, max(CROWD_MIN, (crowd + 1) // 2)) - 1)

    def _pass_by_the_late(self) -> None:
        """Count no longer who has been out for long."""
        with self._mutex:
            now = monotonic()
            for step, since in list(self._senders.items()):
                if now - since > (self._late_s * SLOW if step.others else self._late_s):
                    del self._senders[step]
            self._open_next()

    def _open_next(self) -> None:
        """Give a free sender to the first step that may go. The mutex is held."""
        queue = self._queue
        if self._may_send():
            for step in queue.steps:
                if step.root not in queue.roots:
                    self._let_go(step)
                    queue.steps.remove(step)
                    assert step.gate is not None, "a queued step has a gate"
                    step.gate.release()
                    return

    def _send(self, batch: Sequence[Queued]) -> None:
        """Send a batch."""
        try:
            for step, answer in zip(batch, self._together([one.op for one in batch]), strict=True):
                step.answer = answer
        except BaseException as error:
            _repeat(batch)
            if not isinstance(error, Exception):
                raise
            # It may be the fault of another step, such as a text that cannot be encoded: who is at fault learns it alone.

    def _end(self, step: Queued) -> None:
        """Free the sender of this step, and wake those whom it has taken along; or leave the queue, after an interrupt."""
        if step.gate is None and not step.others:  # it was never queued, and has taken nobody along
            with self._mutex:
                self._senders.pop(step, None)
                if step.sends:
                    self._queue.roots.discard(step.root)
                    step.sends = False
                if self._queue.steps:
                    self._open_next()
            return
        _wake_next(step)
        if step.is_over:
            return
        with self._mutex:
            queue = self._queue
            queue.remove(step)
            if step.sends:
                self._senders.pop(step, None)
                queue.roots.discard(step.root)
                last = step
                for other in step.others:
                    queue.roots.discard(other.root)  # also if its caller was interrupted
                    if not other.is_over:  # else its caller was interrupted, and nobody waits there
                        self._is_done(other)
                        last.after = last = other
                self._open_next()
        # After the next sender, and without the mutex: it must not wait until all of these have had their turn.
        _wake_next(step)
        step.is_over = True

    def _is_done(self, step: Queued) -> None:
        """Note that a step that was taken along is over. The mutex is held."""
        self._queue.remove(step)
        step.is_over = True


class LoopBatches:
    """The batches of one event loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, together: Callable[[Sequence[Any]], Awaitable[Sequence[Any]]]
    ) -> None:
        self._loop, self._together = loop, together
        self._queue = _Queue()
        self._out: dict[asyncio.Task[None], list[Queued]] = {}
        """The batches that are on their way."""
        self._is_due = False
        self._is_one_out = False
        """Whether a step is on its way that did not wait for the end of its turn. It is no sender: it may wait for its run."""
        self._ready = 1
        """How many steps were ready in the last turn."""

    async def perform(self, op: Any, root: str, alone: Callable[[Any], Awaitable[Any]]) -> Any:
        """Carry out the step with whatever else is ready in this turn of the loop.

        A cancellation is raised when the step is over: whoever cancels must be able to rely on the record.
        """
        step = Queued(op, root)
        step.loop = self._loop
        self._queue.steps.append(step)
        self._end_turn_soon()
        cancelled: asyncio.CancelledError | None = None
        while not step.is_over:
            try:
                await step
            except asyncio.CancelledError as error:
                cancelled = error
                self._loop.call_soon(self._look)
        if cancelled is None:
            return await alone(op) if step.answer is None else step.answer
        from amends.stores.cancellation import to_its_end  # here: a blocking program needs no asyncio

        outcome: Callable[[], Any] = lambda: step.answer  # noqa: E731
        if step.answer is None:
            outcome, _ = await to_its_end(alone(op))
        setattr(cancelled, OUTCOME, outcome)
        raise cancelled

    def may_go(self, root: str) -> bool:
        """Return whether a step of this run need not wait for others of this turn: last time, there were none."""
        is_calm = self._ready == 1 and not self._out and not self._is_one_out
        return is_calm and not self._queue.steps and root not in self._queue.roots

    async def alone(self, root: str, step: Awaitable[T]) -> T:
        """Await a step that may go; those who come meanwhile are queued, and gather."""
        try:
            self._is_one_out = True
            self._queue.roots.add(root)
            return await step
        finally:
            try:
                self._one_is_over(root)
            except BaseException:  # an interrupt in the middle of it
                self._one_is_over(root)
                raise

    def _one_is_over(self, root: str) -> None:
        self._is_one_out = False
        self._queue.roots.discard(root)
        if self._queue.steps:
            self._end_turn_soon()

    def _end_turn_soon(self) -> None:
        if not self._is_due:
            self._loop.call_soon(self._end_turn)
            self._is_due = True  # last: an interrupt must not keep the turn from being ended

    def _end_turn(self) -> None:
        """Send what is queued. May come twice."""
        batch: list[Queued] = []
        try:
            self._is_due = False
            queue = self._queue
            self._ready = len(queue.steps)
            while queue.steps and len(self._out) < SENDERS_MAX:
                batch = []
                ready = len(queue.steps)
                is_split = not self._out and SPLIT_MIN <= ready <= BATCH_MAX
                queue.move(batch, (ready + 1) // 2 if is_split else BATCH_MAX)
                if not batch:
                    return
                if len(batch) == 1:
                    self._over(batch)  # alone, by its own caller
                    continue
                task = self._loop.create_task(self._send(batch))
                # Here, and not in the task: one that is cancelled before its first step never runs.
                task.add_done_callback(self._sent)
                self._out[task] = batch
        except BaseException:  # an interrupt: a task that was made has not begun, and finds nothing to send
            left = batch[:]
            batch.clear()
            for step in left:
                self._queue.remove(step)
            self._over(left)  # each alone, by its own caller
            self._is_due = False
            self._end_turn_soon()
            raise

    def _look(self) -> None:
        """Do what a callback would have done that an interrupt has lost, before its first line or in the loop itself."""
        for task in list(self._out):
            if task.done():
                self._sent(task)
        self._end_turn()

    async def _send(self, batch: Sequence[Queued]) -> None:
        from amends.stores.cancellation import to_its_end

        if not batch:  # an interrupt has left its steps to their callers
            return
        try:
            # Whoever cancels this task cancels all tasks of the loop, and those who wait for an answer learn it themselves.
            outcome, _ = await to_its_end(self._together([one.op for one in batch]))
            for step, answer in zip(batch, outcome(), strict=True):
                step.answer = answer
        except BaseException as error:
            _repeat(batch)
            if not isinstance(error, Exception):
                raise

    def _sent(self, task: asyncio.Task[None]) -> None:
        """End a batch that was sent. May come twice."""
        batch = self._out.get(task)
        if batch is None:
            return
        try:
            self._over(batch)
            del self._out[task]
            if self._queue.steps:
                self._end_turn_soon()
        except BaseException:  # an interrupt
            self._loop.call_soon(self._sent, task)
            self._is_due = False
            self._end_turn_soon()
            raise

    def _over(self, batch: Sequence[Queued]) -> None:
        for step in batch:
            self._queue.roots.discard(step.root)
            step.is_over = True
        self._loop.call_soon(wake_all, batch)  # later: what they do next must find this queue in order


class Loops:
    """The batches of each event loop."""

    def __init__(self, together: Callable[[Sequence[Any]], Awaitable[Sequence[Any]]]) -> None:
        self._together = together
        self._known: dict[asyncio.AbstractEventLoop, LoopBatches] = {}

    def here(self) -> LoopBatches:
        """Return those of the running loop."""
        loop = asyncio.get_running_loop()
        batches = self._known.get(loop)
        if batches is None:
            for old in list(self._known):  # a copy: another thread may do the same
                if old.is_closed():
                    self._known.pop(old, None)
            batches = self._known[loop] = LoopBatches(loop, self._together)
        return batches


def _wake_next(step: Queued) -> None:
    """Wake the next of those who were in the same batch; each wakes the one after it first.

    If all were woken at once, each would wait for the interpreter lock and ask for it again and again, which costs more
    than the work itself, and the answer of the next batch would wait behind all of them.
    """
    after, step.after = step.after, None
    if after is not None and after.gate is not None and after.gate.locked():
        after.gate.release()


def _repeat(batch: Iterable[Queued]) -> None:
    """Note that these may have been done already: the flow then gives the first answer."""
    for step in batch:
        if step.answer is None:
            step.op.repeated = True

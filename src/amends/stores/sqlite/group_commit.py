"""Group commit: many callers of one process share one transaction and one flush of the SQLite file.

It needs no thread of its own. A caller that finds no leader leads a batch, in its own thread. Callers that come while
it writes are queued; the leader takes them into its transaction, or leaves the lead to the first of them. The callers
of one event loop that are ready in the same turn of the loop come together. Nobody is answered before the flush.

Crowds are woken one by one: each thread that is woken wakes the next one first. If all are woken at once, each waits
for the interpreter lock and asks for it every few milliseconds, which costs more than the work itself. The last one
passes on the lead, so that the next batch has all of them. A crowd of tasks is written on their event loop and flushed by
a thread.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from amends.encoding.lazy_import import import_on_use
from amends.errors import LedgerUnavailable
from amends.ledger.operations import StoreOp
from amends.ledger.store import OUTCOME
from amends.stores.waiter import Waiter, wake_all

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Executor
else:
    import_on_use(globals(), asyncio="asyncio")

BATCH_MAX: Final = 128
"""Operations in one flush: the first of them waits for the last."""
LONELY_TURNS: Final = 4
"""After so many turns of an event loop in which one task wrote, that task does not wait for others."""
AT_ONCE_MAX: Final = 8
"""So many operations may a task make without a pause: the other tasks of its loop must come to their turn."""
CROWD_MIN: Final = 8
"""From so many callers on the lead waits until all that were answered have had their turn."""
QUEUE_MAX: Final = 100_000
"""Operations that may wait. More than this is a store that cannot keep up, not a burst."""


class WouldWait(Exception):
    """Another process has the lock: the batch must be written by a thread that may wait."""


class Pending(Waiter):
    """One queued operation, and then its answer."""

    answer: Any = None
    error: Exception | None = None
    leads = False
    gate: threading.Lock | None = None
    """Of a caller that waits in its thread: released when the answer is there, or the lead."""
    after: Pending | None = None
    """Of a caller that waits in its thread: whom it wakes when it was woken."""
    is_written = False
    """The batch that it leads may be in an open transaction, which a thread commits."""
    is_begun = False
    """Somebody leads with it: a thread, or the event loop that was interrupted as it left the lead to a thread. Whoever
    comes second does nothing. Changed with the mutex."""
    is_gone = False
    """Its thread was interrupted: nobody waits for the answer."""

    def __init__(self, op: StoreOp[Any], loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.op, self.loop = op, loop

    def outcome(self) -> Any:
        """Return the answer, or raise the error."""
        error, self.error = self.error, None
        if error is not None:
            raise error
        return self.answer


class _Turn:
    """What was asked for in one turn of an event loop."""

    __slots__ = ("at_once", "is_crowded", "pending", "task")

    def __init__(self, task: asyncio.Task[Any] | None) -> None:
        self.pending: list[Pending] = []
        self.task = task
        """Who asked first."""
        self.at_once = 0
        """How many operations it made without waiting for the end of the turn."""
        self.is_crowded = False
        """Whether another task asked, too."""


class GroupCommit:
    """The queue of one writer.

    ``flush`` gets a list that begins with the leader's operation, adds others with ``join``, and gives each an answer or
    an error; if it must not wait, it raises ``WouldWait``, and nothing was done. ``alone`` carries out an operation that is one
    statement; None: it is not, or it changed nothing. ``pool`` returns the threads in which operations of event loops
    lead, ``is_quick`` whether so many of them may be written on the loop itself. ``share`` returns how many of the
    operations that are queued are written on the loop and then flushed by a thread: ``write`` does the first, and returns
    whether there is something to flush, ``commit`` the second; 0: none.
    """

    def __init__(
        self,
        flush: Callable[[list[Pending], bool], None],
        alone: Callable[[StoreOp[Any]], Any],
        pool: Callable[[], Executor],
        is_quick: Callable[[int], bool],
        share: Callable[[deque[Pending]], int] = lambda _: 0,
        write: Callable[[list[Pending]], bool] = lambda _: False,
        commit: Callable[[list[Pending]], None] = lambda _: None,
    ) -> None:
        self._flush, self._alone, self._pool, self._is_quick = flush, alone, pool, is_quick
        self._share, self._write_apart, self._commit_apart = share, write, commit
        self._mutex = threading.Lock()
        self._still = threading.Condition(self._mutex)
        self.queue: deque[Pending] = deque()
        self._turns: dict[asyncio.AbstractEventLoop, _Turn] = {}
        self._lonely = 0
        """How many turns in a row had one task that wrote."""
        self._leader: object | None = None
        """Who leads: the token of a caller that leads at once, or the operation to which the lead was handed. An
        interrupted thread finds out by it whether it must pass on the lead."""
        self._held = False
        self._closed = False
        self._is_stopped = False
        """Held or closed."""

    def perform(self, op: StoreOp[Any]) -> Any:
        """Carry out ``op``, in this thread or in another caller's."""
        me = object()
        try:
            with self._mutex:
                if self._leader is None and not self._is_stopped:  # as ``_may_lead``, for nearly every call
                    self._leader = me
            if self._leader is not me:
                return self._follow(op, me)
            answer = None if self.queue else self._alone(op)
            if answer is not None:
                return answer
            leading = Pending(op)
            self._write(leading, me)
            return leading.outcome()
        finally:
            # By the token, not by how far this came: an interrupt may strike between any two lines, also below.
            try:
                if self._leader is me:
                    with self._mutex:
                        if not (self.queue or self._is_stopped):  # as ``_pass_on``: nobody waits for anything
                            self._leader = None
                    if self._leader is me:
                        self._pass_on(me)
            finally:
                if self._leader is me:
                    self._pass_on(me)

    def _follow(self, op: StoreOp[Any], me: object) -> Any:
        """Carry out ``op`` in the batch of whoever leads; ``me``: the token of this caller, who leads if nobody does now."""
        pending = None
        try:
            with self._mutex:
                if not self._may_lead(me):
                    pending = Pending(op)
                    self._enqueue(pending)
            if pending is None:
                leading = Pending(op)
                self._write(leading, me)
                return leading.outcome()
            if self._waits_for_lead(pending):
                self._lead(pending)
            return pending.outcome()
        except BaseException:
            if pending is not None:
                self._leave(pending)
            raise

    async def perform_async(self, op: StoreOp[Any]) -> Any:
        """Do the same on an event loop, with whatever else is ready in this turn of the loop, or queued.

        A cancellation is raised when the operation is over: whoever cancels must be able to rely on the record. A task
        that is alone does not wait for the end of the turn.
        """
        loop = asyncio.get_running_loop()
        turn = self._turns.get(loop)
        if turn is None:
            loop.call_soon(self._end_turn, loop)  # first: after an interrupt, it finds no turn
            turn = self._turns[loop] = _Turn(asyncio.current_task(loop))
        elif not turn.is_crowded:
            turn.is_crowded = turn.task is not asyncio.current_task(loop)
        if not turn.is_crowded and self._lonely >= LONELY_TURNS and turn.at_once < AT_ONCE_MAX and not turn.pending:
            turn.at_once += 1
            answer = self._at_once(op)
            if answer is not None:
                return answer
        pending = Pending(op, loop)
        turn.pending.append(pending)
        cancelled: asyncio.CancelledError | None = None
        while not pending.is_over:
            try:
                await pending
            except asyncio.CancelledError as error:
                cancelled = error
                loop.call_soon(self._end_turn, loop)  # once more: an interrupt may have lost the callback that does it
        if cancelled is not None:
            setattr(cancelled, OUTCOME, pending.outcome)
            raise cancelled
        return pending.answer if pending.error is None else pending.outcome()

    def _at_once(self, op: StoreOp[Any]) -> Any:
        """Carry out an operation that is one quick statement, if nobody else writes; None: it must be queued."""
        if self.queue or not self._is_quick(1):
            return None
        me = object()
        try:
            with self._mutex:
                if not self._may_lead(me):
                    return None
            return self._alone(op)
        finally:  # as in ``perform``
            try:
                if self._leader is me:
                    with self._mutex:
                        if not (self.queue or self._is_stopped):
                            self._leader = None
                    if self._leader is me:
                        self._pass_on(me)
            finally:
                if self._leader is me:
                    self._pass_on(me)

    def join(self, batch: list[Pending]) -> None:
        """Add the operations that are queued by now to the leader's batch."""
        if self.queue:
            with self._mutex:
                try:
                    while self.queue and len(batch) < BATCH_MAX:
                        batch.append(self.queue[0])
                        del self.queue[0]
                except BaseException:  # an interrupt
                    if self.queue and batch[-1] is self.queue[0]:
                        del self.queue[0]
                    raise

    def hold(self, timeout_s: float) -> bool:
        """Let nobody lead until ``release``; return False if the present leader is not done in time."""
        with self._mutex:
            self._held = self._is_stopped = True
            return self._still.wait_for(lambda: self._leader is None, timeout_s)

    def release(self) -> None:
        """Continue after ``hold``."""
        with self._mutex:
            self._held, self._is_stopped = False, self._closed
        self._pass_on(None)

    def close(self) -> bool:
        """Refuse new operations and wait for the queued ones; return False if it was closed before."""
        with self._mutex:
            was_closed, self._closed = self._closed, True
            self._is_stopped = True
        self._pass_on(None)  # those that are queued may wait for their event loop to lead, which may wait here
        with self._mutex:
            self._still.wait_for(lambda: self._leader is None)
            return not was_closed

    # ---- Coming in

    def _may_lead(self, caller: object) -> bool:
        """Return whether the caller leads at once. The mutex is held."""
        if self._closed:
            raise LedgerUnavailable("the ledger is closed", hint="make a new runtime")
        if self._leader is not None or self._held:
            return False
        self._leader = caller
        return True

    def _enqueue(self, pending: Pending) -> None:
        """Queue an operation. The mutex is held."""
        if len(self.queue) >= QUEUE_MAX:
            raise LedgerUnavailable(
                f"{QUEUE_MAX} operations are already waiting for the ledger",
                hint="start fewer operations at once, or use a faster disk",
            )
        if pending.loop is None:
            pending.gate = threading.Lock()
            pending.gate.acquire()
        self.queue.append(pending)

    # Python raises an interrupt between two lines of whatever the event loop runs: the batch that is on its way is ended
    # there, the lead is passed on, and what was not queued yet is queued by a new callback. Nobody can catch one that
    # is raised before the first line of a callback, or in the loop itself: then whoever is cancelled ends the turn. One
    # at the entry of a method that asyncio calls as a task begins to wait (``Waiter``) loses that task, as it would with
    # a future that is written in Python.

    def _end_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Write what was asked for in one turn of the loop: here if that is quick, else in a thread. May come twice."""
        try:
            turn = self._turns.get(loop)
            if turn is not None:
                self._lonely = 0 if turn.is_crowded else self._lonely + 1
                if turn.pending:
                    self._enqueue_turn(turn, loop)
                else:
                    del self._turns[loop]
            if self.queue:
                self._lead_queued(loop)
        except BaseException:
            loop.call_soon(self._end_turn, loop)
            raise

    def _enqueue_turn(self, turn: _Turn, loop: asyncio.AbstractEventLoop) -> None:
        """Queue all of a turn, and end it; tell those for whom there is no room."""
        pending, error = turn.pending, None
        with self._mutex:
            try:
                if self._closed:
                    self._may_lead(turn)  # raises
                if len(self.queue) + len(pending) < QUEUE_MAX:  # as ``_enqueue``, for all of them
                    self.queue.extend(pending)
                    del self._turns[loop]
                    return
                while turn.pending:
                    self._enqueue(turn.pending[0])
                    del turn.pending[0]
            except LedgerUnavailable as refused:
                error = refused
            except BaseException:  # an interrupt: nothing is queued twice
                last = self.queue[-1] if self.queue else None
                if last is not None and last in turn.pending:
                    del turn.pending[: turn.pending.index(last) + 1]
                raise
        if error is not None:
            for one in turn.pending:
                one.error = type(error)(str(error), hint=error.hint)
            _answer(turn.pending, loop)
        del self._turns[loop]

    def _lead_queued(self, loop: asyncio.AbstractEventLoop) -> None:
        """Write what is queued, if nobody leads; called on this event loop."""
        first: Pending | None = None
        batch: list[Pending] = []
        try:
            with self._mutex:
                if self._leader is not None or self._held or not self.queue:
                    return
                first = self._leader = self.queue[0]
                is_here, share = first.loop is loop, 0
                is_quick = is_here and not self._closed and self._is_quick(len(self.queue))
                if is_here and not self._closed:
                    share = self._share(self.queue)
                count = share or (BATCH_MAX if is_quick else 1)
                if count >= len(self.queue):
                    batch = list(self.queue)
                    self.queue.clear()
                else:
                    batch = list(itertools.islice(self.queue, count))
                    for _ in batch:
                        del self.queue[0]
            if share:
                self._lead_apart(batch, loop)
            elif is_quick:
                self._lead_on_loop(batch)
            else:
                self._hand_lead(first)
        except BaseException:
            if first is not None:
                self._end_interrupted(first, batch, loop)
            raise

    def _end_interrupted(self, first: Pending, batch: list[Pending], loop: asyncio.AbstractEventLoop) -> None:
        """Tell those of a batch who have no answer, and pass on the lead, unless a thread does it."""
        with self._mutex:
            if first.is_begun:
                return
            left = [pending for pending in batch if pending not in self.queue]
            first.is_begun = first in left
        if first.is_written:
            self._commit_apart(left)
        _tell_interrupted(left)
        _answer(left, loop)
        self._pass_on(first, loop)

    def _lead_apart(self, batch: list[Pending], loop: asyncio.AbstractEventLoop) -> None:
        """Write a batch on the event loop, and let a thread flush it."""
        first = batch[0]
        first.is_written = True  # first: an interrupt must not answer what is in a transaction that nobody ends
        try:
            first.is_written = self._write_apart(batch)
        except WouldWait:
            first.is_written = False
            self._leave_to_thread(batch)
            return
        if not first.is_written:
            _answer(batch, loop)
            self._pass_on(first)
            return
        try:
            self._pool().submit(self._end_apart, batch, loop)
        except RuntimeError:  # the interpreter is shutting down and takes no new threads
            self._end_apart(batch, loop)

    def _end_apart(self, batch: list[Pending], loop: asyncio.AbstractEventLoop) -> None:
        """Flush what the event loop has written, and leave the lead to it, or to who is first in the queue."""
        first = batch[0]
        if not self._begins(first):
            return
        try:
            self._commit_apart(batch)
        finally:
            try:
                _answer(batch)
            finally:
                self._pass_on(first, loop)

    def _begins(self, first: Pending) -> bool:
        """Return whether this caller leads with the operation, and nobody did before."""
        with self._mutex:
            was_begun, first.is_begun = first.is_begun, True
        return not was_begun

    def _lead_on_loop(self, batch: list[Pending]) -> None:
        """Write a batch on the event loop; if that would wait for another process, leave it to a thread."""
        first = batch[0]
        try:
            if len(batch) == 1 and not self.queue:
                first.answer = self._alone(first.op)
            if first.answer is None:
                self._flush(batch, False)
        except WouldWait:
            self._leave_to_thread(batch)
            return
        except Exception as error:
            first.error = first.error or error
        _answer(batch, first.loop)
        self._pass_on(first)

    def _leave_to_thread(self, batch: list[Pending]) -> None:
        """Queue a batch of which nothing is done again, but for the first: a thread leads with it."""
        with self._mutex:
            self.queue.extendleft(reversed(batch[1:]))
            del batch[1:]
        self._hand_lead(batch[0])

    def _waits_for_lead(self, pending: Pending) -> bool:
        """Wait for the answer, and return False; or for the lead, and return True."""
        assert pending.gate is not None, "a queued caller has a gate"
        pending.gate.acquire()
        if not pending.leads:
            self._wake_next(pending)
        return pending.leads

    def _wake_next(self, pending: Pending) -> None:
        """Wake who comes after this caller; the last one of a crowd passes on the lead."""
        after = pending.after
        if after is not None:
            assert after.gate is not None, "only threads are woken one by one"
            after.gate.release()
            pending.after = None
        elif self._leader is pending:
            self._pass_on(pending)

    def _leave(self, pending: Pending) -> None:
        """Remove an operation whose thread was interrupted, or pass on its lead."""
        with self._mutex:
            if pending in self.queue:
                self.queue.remove(pending)
                return
            pending.is_gone = True
            after, pending.after = pending.after, None
        if after is not None and after.gate is not None:
            with contextlib.suppress(RuntimeError):  # it was woken before the interrupt
                after.gate.release()
        self._pass_on(pending)

    # ---- The leader

    def _write(self, first: Pending, leader: object) -> None:
        batch = [first]
        try:
            self._flush(batch, True)
        finally:
            self._answer_crowd(batch[1:], leader)

    def _lead(self, first: Pending) -> None:
        batch = [first]
        try:
            self._flush(batch, True)
        finally:
            try:
                self._answer_crowd(batch if first.loop is not None else batch[1:], first)
            finally:
                self._pass_on(first)

    def _answer_crowd(self, batch: list[Pending], leader: object) -> None:
        """Wake the callers of these operations: threads one by one, of which the last of many passes on the lead."""
        threads = [pending for pending in batch if pending.loop is None]
        if len(threads) < len(batch):
            _answer([pending for pending in batch if pending.loop is not None])
        if not threads:
            return
        first: Pending | None = None
        try:
            with self._mutex:
                threads = [pending for pending in threads if not pending.is_gone]
                for pending, after in itertools.pairwise(threads):
                    pending.after = after
                first = threads[0] if threads else None
                if len(threads) >= CROWD_MIN and self._leader is leader:
                    self._leader = threads[-1]
        finally:
            if first is not None and first.gate is not None:
                first.gate.release()

    def _pass_on(self, leader: object | None, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Leave the lead to the first in the queue; do nothing if ``leader`` does not have it, or no more.

        ``loop``: whose operations it leads itself, if the first in the queue is one of them.
        """
        successor: Pending | None = None
        try:
            with self._mutex:
                if self._leader is not leader:
                    return
                successor = None if self._held or not self.queue else self.queue[0]
                if loop is not None and successor is not None and not self._closed and self._all_of(loop):
                    try:
                        loop.call_soon_threadsafe(self._lead_queued, loop)
                        self._leader = None  # whoever comes before the loop does may lead as well
                        return
                    except RuntimeError:  # the loop is closed: a thread writes for those who waited there
                        pass
                self._leader = successor
                if successor is not None:
                    del self.queue[0]
                elif self._held or self._closed:
                    self._still.notify_all()
            if successor is not None:
                self._hand_lead(successor)
        except BaseException:  # an interrupt: whoever was chosen waits for the lead
            with self._mutex:
                if successor is not None and self.queue and self.queue[0] is successor:
                    del self.queue[0]
                if self._leader is None:
                    self._still.notify_all()
            if successor is not None and self._leader is successor:
                self._hand_lead(successor)  # once more, if it was done
            raise

    def _all_of(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Return whether nobody else waits: a body may block the loop, and no thread or other loop may wait for that."""
        return all(pending.loop is loop for pending in self.queue)

    def _hand_lead(self, successor: Pending) -> None:
        """Leave the lead to the thread that waits with this operation, or to one of the pool. May come twice."""
        successor.leads = True
        if successor.loop is None:
            _open_gate(successor)
            return
        try:
            self._pool().submit(self._lead_in_thread, successor)
        except RuntimeError:  # the interpreter is shutting down and takes no new threads
            self._lead_in_thread(successor)

    def _lead_in_thread(self, first: Pending) -> None:
        if self._begins(first):
            self._lead(first)


def _open_gate(pending: Pending) -> None:
    if pending.gate is not None:
        with contextlib.suppress(RuntimeError):  # it was opened before an interrupt
            pending.gate.release()


def _tell_interrupted(batch: list[Pending]) -> None:
    for pending in batch:
        if pending.answer is None and pending.error is None and not pending.is_over:
            pending.error = LedgerUnavailable("the thread that was writing was interrupted")


def _answer(batch: list[Pending], loop: asyncio.AbstractEventLoop | None = None) -> None:
    """Wake the callers of these operations, which are over; after an interrupt, it may come twice.

    ``loop``: the event loop on which this is called, if it is one.
    """
    loops: dict[asyncio.AbstractEventLoop, list[Pending]] = {}
    here: list[Pending] = []
    for pending in batch:
        pending.is_over = True  # here: who is cancelled from now on does not wait
        if pending.loop is None:
            _open_gate(pending)
        elif pending.loop is loop:
            here.append(pending)
        else:
            loops.setdefault(pending.loop, []).append(pending)
    if here and loop is not None:
        loop.call_soon(wake_all, here)  # later: they may ask for the lead, which this caller still has
    for other, some in loops.items():
        try:
            other.call_soon_threadsafe(wake_all, some)
        except RuntimeError:  # the loop is closed: nobody waits there any more
            continue

"""What a task waits for while its operation is queued, woken without a detour through the event loop.

A future schedules its task for the next turn of the loop, one by one. Here whoever has the answers of a batch wakes all of
its tasks in one callback of the loop, each by the function that a future would have scheduled. A task only needs the
protocol of futures for that: ``_asyncio_future_blocking``, ``get_loop``, ``add_done_callback``, ``cancel`` and ``result``.
Libraries look at what a task waits for, and ask it whether it is ``done``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any

from amends.encoding.lazy_import import import_on_use

if TYPE_CHECKING:
    import asyncio
    from contextvars import Context
else:
    import_on_use(globals(), asyncio="asyncio")


class Waiter:
    """What one task awaits until ``is_over``; a cancellation is raised where it is awaited, and it may be awaited again."""

    loop: asyncio.AbstractEventLoop | None = None
    is_over = False
    _asyncio_future_blocking = False
    _is_cancelled = False
    _message: object = None
    """What the cancellation was told: by it whoever cancels knows its own cancellation again."""
    _callback: Callable[[Any], object] | None = None
    _context: Context

    def __await__(self) -> Generator[Any, None, None]:
        self._is_cancelled = False
        self._asyncio_future_blocking = True
        yield self

    def wake(self) -> None:
        """Continue the task, if one waits, until it waits again. Only for callbacks of its loop, in which no task runs."""
        callback, self._callback = self._callback, None
        if callback is not None:
            self._context.run(callback, self)

    # ---- The protocol of futures, of which tasks and libraries use this much

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop of the task."""
        assert self.loop is not None, "a task has an event loop"
        return self.loop

    def add_done_callback(self, callback: Callable[[Any], object], *, context: Context) -> None:
        """Remember how the task is continued."""
        self._callback, self._context = callback, context

    def cancel(self, msg: object = None) -> bool:
        """Raise ``CancelledError`` in the task, in the next turn of the loop."""
        if self._callback is None or self._is_cancelled:
            return False
        self._is_cancelled, self._message = True, msg
        self.get_loop().call_soon(self.wake)
        return True

    def result(self) -> None:
        """Raise the cancellation, if there was one: the task asks when it is continued."""
        if self._is_cancelled:
            self._is_cancelled = False
            message, self._message = self._message, None
            raise asyncio.CancelledError() if message is None else asyncio.CancelledError(message)

    def done(self) -> bool:
        """Return whether the task is about to continue: the operation is over, or a cancellation is on its way."""
        return self.is_over or self._is_cancelled

    def cancelled(self) -> bool:
        """Return whether a cancellation is on its way."""
        return self._is_cancelled


def wake_all(waiters: Iterable[Waiter]) -> None:
    """Continue these tasks of one event loop, which are over; a callback of that loop."""
    left: deque[Waiter] = deque(waiters)
    try:
        if len(left) > 1:  # one of them may run the loop again, and wait there for another of them
            left[0].get_loop().call_soon(_wake_left, left)
    except BaseException:  # an interrupt
        left[0].get_loop().call_soon(wake_all, left)
        raise
    _wake_left(left)


def _wake_left(left: deque[Waiter]) -> None:
    """Continue those who are left, each by whoever takes it."""
    waiter: Waiter | None = None
    try:
        while left:
            waiter = left[0]
            del left[0]
            waiter.wake()
    except BaseException:  # an interrupt: this one may not have been continued yet; to continue it twice does nothing
        if waiter is not None:
            left.appendleft(waiter)
            waiter.get_loop().call_soon(_wake_left, left)
        raise

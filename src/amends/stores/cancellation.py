"""Finish a write on an event loop before a cancellation is raised."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, NoReturn, TypeVar

from amends.encoding.lazy_import import import_on_use

if TYPE_CHECKING:
    import asyncio
else:
    import_on_use(globals(), asyncio="asyncio")

from amends.ledger.store import OUTCOME

T = TypeVar("T")


async def uninterrupted(work: Awaitable[T]) -> T:
    """Await ``work`` to its end even if this task is cancelled meanwhile; then raise the cancellation.

    Whoever cancels must be able to rely on the record.
    """
    running = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.wait({running})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return running.result()
    if not running.cancelled():
        running.exception()  # retrieved: nobody else will, and asyncio would complain
        setattr(cancelled, OUTCOME, running.result)
    raise cancelled


async def to_its_end(work: Awaitable[T]) -> tuple[Callable[[], T], asyncio.CancelledError | None]:
    """Await ``work``, which keeps its outcome when it is cancelled; return the outcome, and the cancellation.

    The outcome returns the answer or raises the error: neither may hide the cancellation.
    """
    try:
        answer = await work
    except asyncio.CancelledError as stop:
        outcome: Callable[[], T] | None = getattr(stop, OUTCOME, None)
        if outcome is None:
            raise
        return outcome, stop
    except Exception as error:
        return partial(_raise, error), None
    return (lambda: answer), None


def _raise(error: Exception) -> NoReturn:
    raise error

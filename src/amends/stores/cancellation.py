"""Finish a write on an event loop before a cancellation is raised."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, TypeVar

from amends.encoding.lazy_import import import_on_use

if TYPE_CHECKING:
    import asyncio
else:
    import_on_use(globals(), asyncio="asyncio")

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
    raise cancelled

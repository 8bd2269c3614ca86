"""Finish a write on an event loop before a cancellation is raised."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

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


async def to_its_end(work: Awaitable[T]) -> tuple[T, asyncio.CancelledError | None]:
    """Await ``work``, which keeps its outcome when it is cancelled; return its answer, and the cancellation."""
    try:
        return await work, None
    except asyncio.CancelledError as stop:
        outcome = getattr(stop, OUTCOME, None)
        if outcome is None:
            raise
        return outcome(), stop

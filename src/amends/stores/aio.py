"""What the stores share on an event loop: driving a flow, and finishing a write before a cancellation is raised."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from amends.ledger.flow import Flow

T = TypeVar("T")


async def run_flow_async(flow: Flow[T], perform: Callable[[Any], Awaitable[Any]]) -> T:
    """Do what ``amends.ledger.flow.run_flow`` does, awaiting each operation."""
    try:
        op = flow.send(None)
        while True:
            try:
                answer = await perform(op)
            except Exception as error:
                op = flow.throw(error)
            else:
                op = flow.send(answer)
    except StopIteration as stop:
        value: T = stop.value
        return value
    finally:
        flow.close()


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

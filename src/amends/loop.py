"""Awaiting coroutines for a driver: on the running loop, or on a private one for a blocking program."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from contextvars import copy_context
from typing import Any, Final, TypeVar

from amends.context import inside
from amends.flow import Flow
from amends.ops import Ended, Flight, Invoke
from amends.phrases import type_name

T = TypeVar("T")

GRACE_S: Final = 1.0
"""How long a cancelled coroutine may take to end before it counts as still in flight."""


async def awaited(op: Invoke, start: Callable[[], Any], *, late: Callable[[Flow[None]], None]) -> Ended:
    """Await a coroutine in its context, up to its timeout; a cancelled one that ends is over, not in flight."""
    if op.timeout is None:
        around = sys.exception()
        try:
            with inside(op.run, op.call, op.phase, is_async=True):
                return Ended(await start())
        except Exception as error:
            return Ended(error=error, around=around)
        except BaseException:
            if op.flight is not None:
                op.flight.goes_on = False  # whoever stopped it, it has ended
            raise

    async def body() -> Any:
        with inside(op.run, op.call, op.phase, is_async=True):
            return await start()

    running = asyncio.ensure_future(body())
    try:
        done, _ = await asyncio.wait({running}, timeout=op.timeout)
    except asyncio.CancelledError:
        await _stopped(running, op, late)
        raise
    if not done and not await _stopped(running, op, late):
        return Ended(in_flight=True)
    return _ended(running, timeout=op.timeout)


async def _stopped(running: asyncio.Future[Any], op: Invoke, late: Callable[[Flow[None]], None]) -> bool:
    """Cancel it; False when it goes on all the same: then its return is evidence."""
    running.cancel()
    flight = op.flight or Flight()
    flight.goes_on = True  # should we be cancelled once more while we wait
    done, _ = await asyncio.wait({running}, timeout=GRACE_S)
    flight.goes_on = not done
    if not done and op.late is not None:
        make_late = op.late
        running.add_done_callback(lambda ended: late(make_late(_ended(ended))))
    return bool(done)


def _ended(running: asyncio.Future[Any], *, timeout: float | None = None) -> Ended:
    if running.cancelled():
        return Ended(error=TimeoutError(f"no answer within {timeout} s"))
    error = running.exception()
    if error is None:
        return Ended(running.result())
    if not isinstance(error, Exception):
        return Ended(error=TimeoutError(f"stopped: {type_name(error)}"))
    return Ended(error=error)


class LoopThread:
    """A private event loop for async tools in a blocking runtime."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._forever, name="amends-loop", daemon=True)
        self._thread.start()

    def _forever(self) -> None:
        """Run the loop until it is closed.

        ``sys.exit()`` in a coroutine, or an interrupt that it raises, comes out of the loop too: without going on,
        everybody who waits for another coroutine here would wait for ever.
        """
        while True:
            try:
                return self.loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                continue

    def run(self, coroutine: Any) -> Any:
        """Run it there, with the caller's context, and wait for it here."""
        context = copy_context()
        done: Future[Any] = Future()

        tasks: list[asyncio.Task[Any]] = []

        def begin() -> None:
            tasks.append(context.run(self.loop.create_task, coroutine))
            tasks[0].add_done_callback(lambda ended: _copy_end(ended, done))

        def stop() -> None:
            tasks[0].cancel()  # begin() ran before: the loop keeps its order

        self.loop.call_soon_threadsafe(begin)
        try:
            return done.result()
        except BaseException:
            if not done.done():  # interrupted here while it runs there: it is stopped, not left running unseen
                self.loop.call_soon_threadsafe(stop)
                wait([done], timeout=GRACE_S)
            raise

    def close(self) -> None:
        """Stop the loop and its thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout=5.0)
        if not self.loop.is_running():
            self.loop.close()


def _copy_end(ended: asyncio.Future[Any], done: Future[Any]) -> None:
    if ended.cancelled():
        done.set_exception(TimeoutError("the coroutine was cancelled"))
        return
    error = ended.exception()
    if error is None:
        done.set_result(ended.result())
    else:
        done.set_exception(error)


_kept: Final[set[asyncio.Future[Any]]] = set()


def is_on_loop() -> bool:
    """Return whether an event loop runs in this thread, and so something can be awaited."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def on_own_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` to its end in a loop of its own, where none runs in this thread."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


async def shielded(work: Coroutine[Any, Any, T]) -> T:
    """Finish ``work`` although this task is cancelled meanwhile; the cancellation comes out afterwards."""
    running = asyncio.ensure_future(work)
    _kept.add(running)  # a loop holds its tasks weakly, and whoever waits here may be dropped
    running.add_done_callback(_kept.discard)
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.wait({running})
        except asyncio.CancelledError as stop:
            cancelled = stop
    if cancelled is not None and (running.cancelled() or running.exception() is None):
        raise cancelled
    return running.result()

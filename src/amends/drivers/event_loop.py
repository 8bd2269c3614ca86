"""The asyncio driver, and what it and the blocking driver need to await coroutines."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from typing import Any, Final, TypeVar

from amends.drivers import process
from amends.drivers.blocking import WORLD, Driver, Live, Patience, warn_about_probe
from amends.drivers.context import enter_body, inside
from amends.drivers.log import TOLD, tell, tell_refused
from amends.encoding.dataclass import dataclass
from amends.errors import LeaseLost, LedgerUnavailable, type_name
from amends.ledger.flow import Flow, Op
from amends.ledger.operations import StoreOp
from amends.ledger.plain import AdmitPlain, FailPlain, SettlePlain, TurnPlain, UndonePlain
from amends.ledger.store import OUTCOME, Store
from amends.ledger.world import Await, Ended, Flight, Invoke, RunTogether, Scrub, Sleep
from amends.model import NoEffect
from amends.tools.scope import leave_scope

T = TypeVar("T")
PLAIN: Final = frozenset({AdmitPlain, SettlePlain, FailPlain, TurnPlain, UndonePlain})
"""Operations of nearly every call: each is awaited without a task of its own, where the store allows it."""
GRACE_S: Final = 1.0
"""How long a cancelled coroutine may take to end before it counts as still in flight."""
_kept: Final[set[asyncio.Future[Any]]] = set()


# ---- The driver


class AsyncDriver:
    """Performs operations on the running event loop."""

    mono: Callable[[], float] = staticmethod(process.mono)

    def __init__(self, store: Store, live: Live, lease_s: float) -> None:
        self.store, self.live, self.lease_s = store, live, lease_s
        self._keeps_outcome = getattr(store, "keeps_outcome", False)
        self._instant = store.url == "memory:"  # never blocks, so it needs neither a thread nor a shield
        self._threads: ThreadPoolExecutor | None = None
        self.blocking = Driver(store, live, lease_s)
        """For threads that have no event loop."""
        self._bodies: dict[_Body, None] = {}

    async def run(self, flow: Flow[T]) -> T:
        """Drive a flow to its end.

        A cancellation that arrives during a store operation is raised at the next operation on the world: the flow
        then knows what it has started, and nothing is started for a caller that is gone.
        """
        pending: asyncio.CancelledError | None = None
        answer: Any = None
        try:
            op = flow.send(None)
            while True:
                try:
                    kind = type(op)
                    if kind not in WORLD:
                        assert isinstance(op, StoreOp), f"a driver cannot perform {kind.__name__}"
                        if kind in PLAIN and self._keeps_outcome:
                            stopped: LedgerUnavailable | asyncio.CancelledError | None = None
                            try:  # without a task: this store finishes an operation before it is cancelled
                                answer = await self.store.perform_async(op)
                            except (LedgerUnavailable, asyncio.CancelledError) as error:
                                stopped = error
                            if stopped is not None:
                                outcome, cancelled = await self._after(op, stopped)
                                pending = pending or cancelled
                                answer = outcome()
                        elif self._instant:
                            answer = self.store.perform(op)
                        else:
                            asked, cancelled = await self._ask_ledger(op)
                            pending = pending or cancelled
                            answer = asked.result()
                        if kind in TOLD or self.live.wakeup.watched:
                            self._tell(op, answer)
                    elif pending is not None:
                        raise pending
                    else:
                        answer = await (self._invoke(op) if isinstance(op, Invoke) else self._world(op))
                except Exception as error:
                    tell_refused(op, error)
                    op = flow.throw(error)
                else:
                    op = flow.send(answer)
        except StopIteration as stop:
            if pending is not None:
                raise pending from None
            value: T = stop.value
            return value
        except Exception as error:
            if pending is not None:  # the canceller expects the cancellation, not the error of the ledger
                raise pending from error
            raise
        finally:
            flow.close()

    def _tell(self, op: StoreOp[Any], answer: Any) -> None:
        """Wake those who wait for this answer, and write its record, if there is one."""
        self.live.wakeup.heard(op, answer)
        tell(op, answer)

    async def _after(
        self, op: StoreOp[Any], stop: LedgerUnavailable | asyncio.CancelledError
    ) -> tuple[Callable[[], Any], asyncio.CancelledError | None]:
        """Return the answer or error of an operation that was stopped, and the cancellation that stopped it."""
        cancelled: asyncio.CancelledError | None = None
        first: LedgerUnavailable | None
        if isinstance(stop, asyncio.CancelledError):
            outcome: Callable[[], Any] | None = getattr(stop, OUTCOME, None)
            if outcome is None:  # nothing was begun
                raise stop
            first, cancelled = _unavailable(outcome), stop
            if first is None:
                return outcome, cancelled
        else:
            first = stop
        asked, again = await self._ask_ledger(op, first=first)
        return asked.result, cancelled or again

    async def _ask_ledger(
        self, op: StoreOp[Any], *, first: LedgerUnavailable | None = None
    ) -> tuple[asyncio.Future[Any], asyncio.CancelledError | None]:
        """Return the answer or error of the ledger and a cancellation that came meanwhile: neither hides the other."""
        writing = asyncio.ensure_future(self._insist(op, first))
        cancelled: asyncio.CancelledError | None = None
        while not writing.done():
            try:
                await asyncio.shield(writing)
            except asyncio.CancelledError as stop:
                cancelled = stop
            except Exception:
                break
        return writing, cancelled

    async def _insist(self, op: StoreOp[Any], error: LedgerUnavailable | None) -> Any:
        """Perform an operation, and repeat it while there is patience; ``error``: its first try has failed."""
        patience: Patience | None = None
        while True:
            if error is not None:
                patience = patience or Patience(op, self.lease_s)
                pause = patience.another(op)
                if pause is None:
                    raise error
                await asyncio.sleep(pause)
            try:
                return await self.store.perform_async(op)
            except LedgerUnavailable as failed:
                error = failed

    async def _world(self, op: Op[Any]) -> Any:
        if isinstance(op, Sleep):
            return await asyncio.sleep(max(0.0, op.seconds))
        if isinstance(op, Await):
            return await op.watcher.wait_async(op.seconds)
        if isinstance(op, RunTogether):
            ends = await asyncio.gather(*(self.run(flow) for flow in op.flows), return_exceptions=True)
            for end in ends:
                if isinstance(end, BaseException) and not isinstance(end, Exception):
                    raise end
            return ends
        if isinstance(op, Scrub):
            return await asyncio.to_thread(op.store.scrub)  # a large file takes long
        return WORLD[type(op)](self.blocking, op)

    def through(self, wrap: Callable[[Store], Store]) -> None:
        """Use the store that ``wrap`` returns from now on."""
        self.store = wrap(self.store)
        self._keeps_outcome = getattr(self.store, "keeps_outcome", False)
        self.blocking.through(wrap)

    def _invoke(self, op: Invoke) -> Coroutine[Any, Any, Ended]:
        if self.live.around is not None:
            op = self.live.around(op)
        if op.lease is not None:
            op.lease.check(self.mono())
        if op.flight is not None:
            op.flight.sent = True
        body = self._owned(op) if op.is_async else self._in_thread(op)
        return _probed(op, body) if op.probes else body

    async def _owned(self, op: Invoke) -> Ended:
        """Await a coroutine that ``lose`` cancels if this process loses the lease of its run."""
        task, lease = asyncio.current_task(), op.lease
        if lease is None or task is None:
            return await awaited(op, lambda: op.fn(**op.kwargs), late=self._late)
        body = _Body(lease.root, task, task.cancelling())
        self._bodies[body] = None
        try:
            if op.timeout is not None:
                return await awaited(op, lambda: op.fn(**op.kwargs), late=self._late)
            return await _await_here(op, op.fn, op.kwargs)
        except asyncio.CancelledError as error:
            if body.stopped and body.task.cancelling() <= body.cancelling + 1:
                raise LeaseLost(f"{op.call.tool} was stopped: its run has another owner now") from error
            raise
        finally:
            body.over()
            del self._bodies[body]

    def lose(self, root: str) -> None:
        """Cancel the running coroutines of a run tree whose lease was lost; from any thread."""
        for body in list(self._bodies):
            if body.root == root:
                with contextlib.suppress(RuntimeError):  # its loop is closed, so it no longer runs
                    body.task.get_loop().call_soon_threadsafe(body.stop)

    async def _in_thread(self, op: Invoke) -> Ended:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(max_workers=64, thread_name_prefix="amends-tool")
        if op.flight is not None:
            op.flight.goes_on = True
        queued = self._threads.submit(copy_context().run, self._body, op)
        running = asyncio.wrap_future(queued)
        try:
            done, _ = await asyncio.wait({running}, timeout=op.timeout)
        except asyncio.CancelledError:
            if not queued.cancel():
                self._watch(running, op)
            elif op.flight is not None:
                op.flight.sent = False
            raise
        if not done and queued.cancel():
            return Ended(error=NoEffect(f"no thread was free for {op.call.tool} within {op.timeout} s"))
        if not done:
            self._watch(running, op)
            return Ended(in_flight=True)
        ended: Ended = running.result()
        if inspect.isawaitable(ended.value):
            awaitable = ended.value
            return await awaited(op, lambda: awaitable, late=self._late)
        return ended

    def _body(self, op: Invoke) -> Ended:
        if op.lease is not None:  # again: it may have waited long for a thread
            op.lease.check(self.mono())
        try:
            with inside(op.run, op.call, op.phase, is_async=True):
                return Ended(op.fn(**op.kwargs))
        except Exception as error:
            return Ended(error=error)

    def _watch(self, running: asyncio.Future[Any], op: Invoke) -> None:
        if op.late is not None:
            make_late = op.late
            running.add_done_callback(lambda ended: self._late(make_late(_returned(ended))))

    def _late(self, flow: Flow[None]) -> None:
        threading.Thread(target=self.blocking.run, args=(flow,), name="amends-late", daemon=True).start()

    def close(self) -> None:
        """Release the threads without waiting for bodies that are still in flight."""
        if self._threads is not None:
            self._threads.shutdown(wait=False)
            self._threads = None
        self.blocking.close()


async def _probed(op: Invoke, body: Coroutine[Any, Any, Ended]) -> Ended:
    ended = await body
    warn_about_probe(op, ended)
    return ended


@dataclass(slots=True, eq=False)
class _Body:
    """A coroutine that runs in this task; stopped as ``asyncio.timeout`` does it, so that the task goes on."""

    root: str
    task: asyncio.Task[Any]
    cancelling: int
    running: bool = True
    stopped: bool = False

    def stop(self) -> None:
        """Cancel the coroutine, once, if it still runs."""
        if self.running and not self.stopped:
            self.stopped = self.task.cancel()

    def over(self) -> None:
        """Note that the coroutine has ended, and with it our own cancellation of the task."""
        self.running = False
        if self.stopped:
            self.task.uncancel()


def _unavailable(outcome: Callable[[], Any]) -> LedgerUnavailable | None:
    """Return the error of an operation that may be repeated."""
    try:
        outcome()
    except LedgerUnavailable as error:
        return error
    except Exception:
        return None  # whoever asks for the outcome meets it
    return None


def _returned(running: asyncio.Future[Ended]) -> Ended:
    """Return how a body ended in its thread that nothing waited for any more."""
    error = running.exception()
    if isinstance(error, LeaseLost):
        return Ended(error=NoEffect(str(error)))  # it was waiting for a thread and never began
    return running.result() if error is None else Ended(error=TimeoutError(f"stopped: {type_name(error)}"))


# ---- Awaiting coroutines, on the running loop or on a private one for a blocking program


async def awaited(op: Invoke, start: Callable[[], Any], *, late: Callable[[Flow[None]], None]) -> Ended:
    """Await a coroutine in its context, up to its timeout; one that ends when cancelled is not in flight."""
    if op.timeout is None:
        return await _await_here(op, start, {})

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


async def _await_here(op: Invoke, start: Callable[..., Any], kwargs: Mapping[str, Any]) -> Ended:
    """Await a coroutine without a timeout in its context."""
    around = sys.exception()
    scope = enter_body(op.run, op.call, op.phase, is_async=True)
    try:
        return Ended(await start(**kwargs))
    except Exception as error:
        return Ended(error=error, around=around)
    except BaseException:
        if op.flight is not None:
            op.flight.goes_on = False  # it has ended, whatever stopped it
        raise
    finally:
        leave_scope(scope)


async def _stopped(running: asyncio.Future[Any], op: Invoke, late: Callable[[Flow[None]], None]) -> bool:
    """Cancel a coroutine and return whether it ended; one that goes on is in flight, and its end is evidence."""
    running.cancel()
    flight = op.flight or Flight()
    flight.goes_on = True  # this task may be cancelled once more while it waits
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

        ``sys.exit()`` or an interrupt in a coroutine leaves the loop too. The loop must continue, or whatever waits for
        another coroutine here would wait for ever.
        """
        while True:
            try:
                return self.loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                continue

    def run(self, coroutine: Any) -> Any:
        """Run a coroutine on the loop, in the caller's context, and wait for it."""
        context = copy_context()
        done: Future[Any] = Future()

        tasks: list[asyncio.Task[Any]] = []

        def begin() -> None:
            tasks.append(context.run(self.loop.create_task, coroutine))
            tasks[0].add_done_callback(lambda ended: _copy_end(ended, done))

        def stop() -> None:
            tasks[0].cancel()  # begin() ran before: the loop calls in order

        self.loop.call_soon_threadsafe(begin)
        try:
            return done.result()
        except BaseException:
            if not done.done():  # interrupted while the coroutine runs: stop it instead of leaving it to run unseen
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


def is_on_loop() -> bool:
    """Return whether an event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def on_own_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` to its end on a new event loop; none may run in this thread."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


async def shielded(work: Coroutine[Any, Any, T]) -> T:
    """Finish ``work`` even if this task is cancelled meanwhile; raise the cancellation afterwards."""
    running = asyncio.ensure_future(work)
    _kept.add(running)  # an event loop holds its tasks weakly, and the task that waits here may be dropped
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

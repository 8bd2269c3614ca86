"""The blocking driver: it performs the operations that a flow awaits, in the calling thread.

``event_loop.py`` has the driver for asyncio, ``amends.testing`` that of the simulator. A flow never sees a crash, an
interrupt or a cancellation: it ends where it is, and the run puts the calls that it had started in doubt.
"""

from __future__ import annotations

import inspect
import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final, TypeVar

from amends.drivers import process
from amends.drivers.context import enter_body
from amends.drivers.log import TOLD, tell, tell_refused
from amends.drivers.wakeup import Wakeup
from amends.encoding.lazy_import import import_on_use
from amends.errors import LeaseLost, LedgerUnavailable, type_name
from amends.ledger.flow import Flow, Op, run_flow
from amends.ledger.operations import NoteEvidence, NoteReport, SettleCall, SettleCompensation, StoreOp
from amends.ledger.plain import FailPlain, SettlePlain, UndonePlain
from amends.ledger.store import Store
from amends.ledger.world import (
    Await,
    DrawRandom,
    Ended,
    Flight,
    Invoke,
    IsDead,
    KeepAnchor,
    KeepCheckpoint,
    LiveCalls,
    ReadAnchor,
    ReadClocks,
    RunTogether,
    Scrub,
    Sleep,
    Watch,
)
from amends.model import Absent, Happened, Unknown
from amends.tools.scope import leave_scope

if TYPE_CHECKING:
    from concurrent import futures

    from amends.drivers.event_loop import LoopThread
else:
    import_on_use(globals(), futures="concurrent.futures")

log = logging.getLogger("amends")

T = TypeVar("T")

INSIST: Final = (SettleCall, SettlePlain, FailPlain, SettleCompensation, UndonePlain, NoteEvidence, NoteReport)
TRIES_MAX: Final = 3
PLAIN: Final = frozenset({dict, list, tuple, str, int, float, bool, type(None)})
"""Types of results that are certainly not awaitable."""


class Live:
    """How many flows of each run are running in this process; those of a child count for its parents too."""

    def __init__(self, store: Store | None = None) -> None:
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()
        self.plain: dict[int, str] = {}
        """The runs of the plain calls that are running, all of them roots, by the identity of the call: nearly every flow is
        one, and whoever adds or removes one needs no lock."""
        self.wakeup = Wakeup(store)
        self.around: Callable[[Invoke], Invoke] | None = None
        """Wraps every body; None if nothing does."""
        self.entered: Callable[[str], AbstractContextManager[None]] | None = None
        """Makes the context manager around the block of a run, by its uid; see ``block``."""

    def count(self, run: str) -> int:
        """Return how many flows of this run are running."""
        return self._counts.get(run, 0) + list(self.plain.values()).count(run)

    def block(self, uid: str) -> AbstractContextManager[None]:
        """Return the context manager around the block of this run."""
        return nullcontext() if self.entered is None else self.entered(uid)

    def enter(self, lineage: Sequence[str]) -> None:
        """Count a flow that begins; ``lineage``: its run and the parents of that."""
        with self._lock:
            for run in lineage:
                self._counts[run] = self._counts.get(run, 0) + 1

    def leave(self, lineage: Sequence[str]) -> None:
        """Count a flow that has ended."""
        with self._lock:
            for run in lineage:
                left = self._counts[run] - 1
                if left:
                    self._counts[run] = left
                else:
                    del self._counts[run]


class Patience:
    """How long to repeat an operation whose answer was lost: a settlement as long as the lease lasts."""

    def __init__(self, op: StoreOp[Any], lease_s: float) -> None:
        insists = isinstance(op, INSIST)
        self._until = time.monotonic() + (lease_s if insists else lease_s / 10)
        self._tries = 10_000 if insists else TRIES_MAX
        self._pause = 0.02

    def another(self, op: StoreOp[Any]) -> float | None:
        """Return how many seconds to wait before repeating it, with the same nonce; None to give up."""
        self._tries -= 1
        self._pause = min(self._pause * 2, 1.0)
        if self._tries <= 0 or time.monotonic() + self._pause > self._until:
            return None
        op.repeated = True
        return self._pause


def warn_about_probe(op: Invoke, ended: Ended) -> None:
    """Log that a probe returned none of the three answers: the call stays in doubt."""
    value = ended.value
    says = isinstance(value, Happened | Absent | Unknown) or value is Absent or value is Unknown
    if ended.error is None and not ended.in_flight and not says:
        log.warning(
            "the probe of %s returned %s, which is no answer: it must return Happened(result), Absent() or Unknown()",
            op.call.tool,
            type(value).__name__,  # not the value: it may be a secret
        )


class Driver:
    """Performs operations and blocks the calling thread meanwhile."""

    mono: Callable[[], float] = staticmethod(process.mono)

    def __init__(self, store: Store, live: Live, lease_s: float) -> None:
        self.store, self.live, self.lease_s = store, live, lease_s
        self._loop: LoopThread | None = None
        self._lock = threading.Lock()

    def run(self, flow: Flow[T]) -> T:
        """Drive a flow to its end."""
        return run_flow(flow, self.perform)

    def perform(self, op: Op[Any]) -> Any:
        """Perform one operation."""
        kind = type(op)
        if kind in WORLD:
            return WORLD[kind](self, op)
        assert isinstance(op, StoreOp), f"a driver cannot perform {kind.__name__}"
        try:
            answer = self.store.perform(op)
        except LedgerUnavailable:
            answer = self._ask_again(op)
        except LeaseLost as error:
            tell_refused(op, error)
            raise
        if kind in TOLD or self.live.wakeup.watched:
            self.live.wakeup.heard(op, answer)
            tell(op, answer)
        return answer

    def _ask_again(self, op: StoreOp[T]) -> T:
        """Repeat an operation; raise the first error, whose handler calls this, when patience ends."""
        patience = Patience(op, self.lease_s)
        while True:
            pause = patience.another(op)
            if pause is None:
                raise  # noqa: PLE0704 (the error that the caller handles)
            time.sleep(pause)
            try:
                return self.store.perform(op)
            except LedgerUnavailable:
                continue

    def through(self, wrap: Callable[[Store], Store]) -> None:
        """Use the store that ``wrap`` returns from now on."""
        self.store = wrap(self.store)

    def _invoke(self, op: Invoke) -> Ended:
        if self.live.around is not None:
            op = self.live.around(op)
        if op.lease is not None:
            op.lease.check(self.mono())
        if op.flight is not None:
            op.flight.sent = True
        if op.is_async:
            ended = self._on_loop(op, lambda: op.fn(**op.kwargs))
        elif op.timeout is not None:
            ended = self._in_thread(op)
        else:
            ended = self._directly(op)
        if op.probes:
            warn_about_probe(op, ended)
        return ended

    def _directly(self, op: Invoke) -> Ended:
        around = sys.exception()
        scope = enter_body(op.run, op.call, op.phase, is_async=False)
        try:
            value = op.fn(**op.kwargs)
        except Exception as error:
            return Ended(error=error, around=around)
        finally:
            leave_scope(scope)
        if type(value) not in PLAIN and inspect.isawaitable(value):
            return self._on_loop(op, lambda: value)  # a plain function returned a coroutine: nothing has run yet
        return Ended(value)

    def _in_thread(self, op: Invoke) -> Ended:
        """Run a body with a timeout in a thread, since nothing can stop a blocking call: after it, it is in flight."""
        box = _Box()
        context = copy_context()

        def body() -> None:
            try:
                ended = context.run(self._directly, op)
            except BaseException as error:
                # sys.exit() and the like end this thread, not the program; the request may have been sent.
                ended = Ended(error=TimeoutError(f"stopped: {type_name(error)}"))
            late = box.put(ended)
            if late is not None and op.late is not None:
                self.run(op.late(late))

        if op.flight is not None:
            op.flight.goes_on = True
        threading.Thread(target=body, name=f"amends-{op.call.tool}", daemon=True).start()
        return box.wait(op.timeout)

    def _on_loop(self, op: Invoke, start: Callable[[], Any]) -> Ended:
        from amends.drivers.event_loop import (  # here: asyncio takes longer to import than half of amends
            LoopThread,
            awaited,
        )

        with self._lock:
            if self._loop is None:
                self._loop = LoopThread()
        flight = op.flight or Flight()
        flight.goes_on = True  # an interrupt stops this thread, not the coroutine on the loop
        try:
            ended: Ended = self._loop.run(awaited(op, start, late=self._late))
        except Exception as error:  # the coroutine cancelled itself
            ended = Ended(error=error)
        flight.goes_on = ended.in_flight
        return ended

    def _late(self, flow: Flow[None]) -> None:
        threading.Thread(target=self.run, args=(flow,), name="amends-late", daemon=True).start()

    def _together(self, op: RunTogether) -> list[Any]:
        with futures.ThreadPoolExecutor(max_workers=max(1, len(op.flows)), thread_name_prefix="amends-group") as pool:
            started = [pool.submit(copy_context().run, self.run, flow) for flow in op.flows]
            return [_end_of(future) for future in started]

    def close(self) -> None:
        """Stop the private loop, if there is one."""
        if self._loop is not None:
            self._loop.close()
            self._loop = None


WORLD: Final[dict[type[Any], Callable[[Driver, Any], Any]]] = {
    Invoke: Driver._invoke,
    RunTogether: Driver._together,
    ReadClocks: lambda _, _op: process.clocks(),
    DrawRandom: lambda _, _op: process.luck(),
    Sleep: lambda _, op: time.sleep(max(0.0, op.seconds)),
    Watch: lambda driver, op: driver.live.wakeup.watch(op.root),
    Await: lambda _, op: op.watcher.wait(op.seconds),
    IsDead: lambda _, op: process.is_dead(op.owner),
    ReadAnchor: lambda _, op: op.anchor.read(),
    KeepAnchor: lambda _, op: op.anchor.keep(op.at, op.approval),
    KeepCheckpoint: lambda _, op: op.anchor.keep_checkpoint(op.newest),
    Scrub: lambda _, op: op.store.scrub(),
    LiveCalls: lambda driver, op: driver.live.count(op.run),
}


def _end_of(future: futures.Future[Any]) -> Any:
    error = future.exception()
    if error is not None and not isinstance(error, Exception):
        raise error
    return future.result() if error is None else error


class _Box:
    """One answer, or the note that nothing waits for it any more; whichever comes first."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._ended: Ended | None = None
        self._left = False

    def put(self, ended: Ended) -> Ended | None:
        """Hand over the answer; return it if it came too late."""
        with self._lock:
            if self._left:
                return ended
            self._ended = ended
        self._done.set()
        return None

    def wait(self, timeout: float | None) -> Ended:
        """Return the answer, or that the body is still in flight."""
        try:
            self._done.wait(timeout)
        finally:
            with self._lock:
                self._left = self._ended is None
        return self._ended or Ended(in_flight=True)

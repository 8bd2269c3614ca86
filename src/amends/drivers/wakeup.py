"""Wake a flow that waits for a run of another owner, as soon as this process or another one changes that run.

A wakeup only shortens a wait. A waiting flow reads the ledger before and after, and reads it again after a bounded time
without a wakeup: a lost one costs a pause, never an answer.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from amends.ledger import operations
from amends.ledger.flow import Op
from amends.ledger.plain import FailPlain, SettlePlain, TurnPlain, UndonePlain

if TYPE_CHECKING:
    import asyncio


@runtime_checkable
class Telling(Protocol):
    """A store that learns when another process changed a run."""

    def watch(self, ring: Callable[[str], None]) -> bool:
        """Call ``ring`` with the root of each run tree that changes elsewhere; return whether that works.

        An empty root means that a change may have been missed. May be called twice.
        """
        ...


class Watcher:
    """Waits for changes of one run tree; a change between two waits is not lost."""

    __slots__ = ("__weakref__", "_loop", "_rung", "_waits", "is_told", "root")

    def __init__(self, root: str, *, is_told: bool = False) -> None:
        self.root = root
        self.is_told = is_told
        """Whether it also wakes up for changes by other processes."""
        self._rung = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waits: asyncio.Event | None = None

    def ring(self) -> None:
        """Wake the flow that waits; from any thread."""
        self._rung.set()
        if self._loop is not None and self._waits is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits there any more
                self._loop.call_soon_threadsafe(self._waits.set)

    def wait(self, seconds: float) -> None:
        """Wait for a change, at most this long."""
        self._rung.wait(max(0.0, seconds))
        self._rung.clear()

    async def wait_async(self, seconds: float) -> None:
        """Wait for a change on an event loop, at most this long."""
        import asyncio  # here: a blocking program does not need it

        if self._waits is None:
            self._waits = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        if not self._rung.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._waits.wait(), max(0.0, seconds))
        self._waits.clear()
        self._rung.clear()


class Wakeup:
    """The watchers of this process by run tree; a watcher is dropped when its owner drops it."""

    def __init__(self, store: object = None) -> None:
        self._store = store
        self._watchers: dict[str, list[weakref.ref[Watcher]]] = {}
        self.watched: Mapping[str, object] = self._watchers
        """The trees that are watched: with none of them there is nothing to do for ``heard``."""
        self._lock = threading.RLock()  # a watcher may be collected while this thread holds the lock

    def watch(self, root: str) -> Watcher:
        """Return a watcher for this tree. The store begins to listen on first use, and again in a forked process."""
        told = isinstance(self._store, Telling) and self._store.watch(self.ring)
        watcher = Watcher(root, is_told=told)
        known = weakref.ref(
            watcher, lambda ref: self._forget(root, ref)
        )  # before taking the lock: this may collect another watcher
        with self._lock:
            self._watchers.setdefault(root, []).append(known)
        return watcher

    def _forget(self, root: str, gone: weakref.ref[Watcher]) -> None:
        with self._lock:
            left = [ref for ref in self._watchers.get(root, ()) if ref is not gone]
            if left:
                self._watchers[root] = left
            else:
                self._watchers.pop(root, None)

    def ring(self, root: str) -> None:
        """Wake all watchers of this tree; of every tree if ``root`` is empty."""
        if not root:
            for one in list(self._watchers):
                self.ring(one)
            return
        for ref in self._watchers.get(root, ()):
            watcher = ref()
            if watcher is not None:
                watcher.ring()

    def heard(self, op: Op[Any], answer: Any) -> None:
        """Wake the watchers of what an operation changed, if there are any."""
        if self._watchers and type(op) in WAKES:
            root = changed_root(answer)
            if root:
                self.ring(root)


WAKES: Final = frozenset(
    {
        operations.SettleCall, SettlePlain, operations.NoteEvidence, operations.NoteReport, operations.ResolveCall,
        operations.DecideCall, operations.RetryCall, operations.SettleCompensation, operations.DecideCommit, operations.CloseRun,
        operations.AbandonRun, operations.FinishRun, operations.BeginRollback, operations.ReleaseLease,
        operations.DecideApproval, operations.EditApproval, FailPlain, TurnPlain, UndonePlain,
    }
)  # fmt: skip
"""Operations after which a waiting flow may continue: something was settled, decided, ended or released."""


def changed_root(answer: Any) -> str:
    """Return the root of the run tree that an answer is about; empty if it is about none."""
    row = getattr(answer, "call", None) or getattr(answer, "run", None) or answer
    if isinstance(row, str):  # a call's own row: its field ``run`` is a uid
        row = answer
    root: str = getattr(row, "root", "")
    return root

"""Waking whoever waits for a run of somebody else: rung by this process when it changed one, or by a store that is told.

A bell only shortens a wait. Whoever waits looks at the ledger first and last, and looks again after a bounded while
although nothing rang: a lost ring costs a pause, never an answer.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from amends.ledger import operations
from amends.ledger.flow import Op

if TYPE_CHECKING:
    import asyncio


@runtime_checkable
class Telling(Protocol):
    """A store that is told when another process changed a run."""

    def watch(self, ring: Callable[[str], None]) -> bool:
        """Whether from now on ``ring`` is called with the root of each run tree that changed elsewhere; an empty
        root says that something may have been missed. May be called twice.
        """
        ...


class Watcher:
    """One who waits for a run tree; what rings between two waits is not lost."""

    __slots__ = ("__weakref__", "_loop", "_rung", "_waits", "is_told", "root")

    def __init__(self, root: str, *, is_told: bool = False) -> None:
        self.root = root
        self.is_told = is_told
        """Whether it rings for what other processes do, too."""
        self._rung = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waits: asyncio.Event | None = None

    def ring(self) -> None:
        """Wake it, from any thread."""
        self._rung.set()
        if self._loop is not None and self._waits is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits there any more
                self._loop.call_soon_threadsafe(self._waits.set)

    def wait(self, seconds: float) -> None:
        """Return when it rang, at the latest after so long."""
        self._rung.wait(max(0.0, seconds))
        self._rung.clear()

    async def wait_async(self, seconds: float) -> None:
        """The same on an event loop."""
        import asyncio  # here: a blocking program need not pay for it

        if self._waits is None:
            self._waits = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        if not self._rung.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._waits.wait(), max(0.0, seconds))
        self._waits.clear()
        self._rung.clear()


class Wakeup:
    """Who in this process waits for which run tree. A watcher that nobody has any more is forgotten."""

    def __init__(self, store: object = None) -> None:
        self._store = store
        self._watchers: dict[str, list[weakref.ref[Watcher]]] = {}
        self._lock = threading.RLock()  # a watcher may be collected while this very thread holds it

    def watch(self, root: str) -> Watcher:
        """A watcher for this tree; the store is asked to tell only once somebody waits, and in a fork once more."""
        told = isinstance(self._store, Telling) and self._store.watch(self.ring)
        watcher = Watcher(root, is_told=told)
        known = weakref.ref(watcher, lambda ref: self._forget(root, ref))  # before the list: this may collect another
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
        """Something of this tree has changed; of any, when none is named."""
        if not root:
            for one in list(self._watchers):
                self.ring(one)
            return
        for ref in self._watchers.get(root, ()):
            watcher = ref()
            if watcher is not None:
                watcher.ring()

    def heard(self, op: Op[Any], answer: Any) -> None:
        """Ring for what an operation has changed, if somebody waits at all."""
        if self._watchers and type(op) in WAKES:
            root = changed_root(answer)
            if root:
                self.ring(root)


WAKES: Final = frozenset(
    {
        operations.SettleCall, operations.NoteEvidence, operations.ResolveCall, operations.DecideCall, operations.RetryCall,
        operations.SettleCompensation, operations.DecideCommit, operations.CloseRun, operations.AbandonRun, operations.FinishRun,
        operations.BeginRollback, operations.LetGo, operations.DecideApproval, operations.EditApproval,
    }
)  # fmt: skip
"""Operations after which a waiter may go on: something was settled, decided, ended or let go."""


def changed_root(answer: Any) -> str:
    """The root of the run tree that an answer is about; empty when it is about none."""
    row = getattr(answer, "call", None) or getattr(answer, "run", None) or answer
    if isinstance(row, str):  # a call's own row: its field ``run`` is a uid
        row = answer
    root: str = getattr(row, "root", "")
    return root

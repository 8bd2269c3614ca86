"""When a process writes checkpoints.

One thread per runtime writes a checkpoint when there is news. No call and no run waits for it, unless ``checkpoint=0``.
If a process dies before it has written, the next process does: a checkpoint covers everything in the ledger, whoever
wrote it. ``encoding/chain.py`` defines a checkpoint, and ``engine/checkpoints.py`` writes and signs it.
"""

from __future__ import annotations

import atexit
import inspect
import os
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from amends.drivers import process
from amends.encoding.chain import Checkpoint
from amends.engine.checkpoints import Written, write_checkpoints
from amends.errors import LedgerError, LedgerUnavailable, UsageError
from amends.host.anchor import Anchor
from amends.host.settings import Setting
from amends.ledger.flow import Op, run_flow
from amends.ledger.operations import StoreOp
from amends.ledger.store import Store
from amends.ledger.world import KeepCheckpoint, ReadAnchor
from amends.stores.migrations import Migrating
from amends.visible import visible_log

if TYPE_CHECKING:
    from amends.signing import AuditKey


# ---- The thread that writes checkpoints


log = visible_log("amends")

CLOSE_S_MAX: Final = 5.0
"""How long closing waits for the last checkpoint: a ledger that does not answer must not keep a program from ending."""
OFF: Final = "off"

Told = Callable[[Checkpoint], object]

_unwritten: weakref.WeakSet[Checkpointer] = weakref.WeakSet()
"""Checkpointers that may still have something to write when the program ends."""


class Checkpointer:
    """Writes the checkpoints of one runtime and of all its views."""

    def __init__(
        self, store: Store, settings: dict[str, Setting], *, anchor: Anchor | None, hook: Told | None = None
    ) -> None:  # fmt: skip
        if inspect.iscoroutinefunction(hook):
            raise UsageError("on_checkpoint= must be a plain function of one checkpoint: a thread calls it")
        self._store, self._anchor, self._hook = store, anchor, hook
        self._key_text: str = settings["audit_key"].value or ""
        self._key: AuditKey | None = None
        if self._key_text:
            from amends.signing import check_key  # here: few programs sign

            check_key(self._key_text)
            settings["audit_key"] = Setting("(set)", settings["audit_key"].origin)  # settings are printed
        said = settings["checkpoint"]
        # A ledger in memory ends with its process, so it has checkpoints only if they are configured.
        idle = store.url == "memory:" and said.origin == "default" and hook is None and not self._key_text
        self.every_s: float | None = None if said.value == OFF or idle else said.value
        self.beats = True
        """Whether a thread may write; False in virtual time."""
        self._changed = threading.Condition()
        self._writing = threading.Lock()
        self._thread: threading.Thread | None = None
        self._pending = self._closed = self._complained = False
        self._name = ""
        self._last: float | None = None
        self._pid = os.getpid()

    def ready(self) -> None:
        """Read the signing key, if there is one. Raise ``BadConfig`` if that fails."""
        if self._key_text and self._key is None:
            from amends.signing import load_key

            self._key = load_key(self._key_text)

    @property
    def key(self) -> AuditKey | None:
        """The key that signs checkpoints; None if there is none, or if the ledger is not open yet."""
        return self._key

    def write(self) -> Checkpoint | None:
        """Write a checkpoint over everything in the ledger and return the newest one; None for an empty ledger."""
        self.ready()
        self._reset_after_fork()
        with self._writing:
            self._pending = False
            self._name = self._name or _name_of(self._store)
            flow = write_checkpoints(ledger=self._name, key=self._key, anchor=self._anchor)
            done: Written = run_flow(flow, self._perform)
            self._last = process.mono()
        if done.behind:
            assert done.newest is not None, "only an existing checkpoint is compared with the anchor"
            self._complain(
                f"checkpoint {done.newest.n} is not anchored: the anchor has a checkpoint that is not in this ledger;"
                " run amends audit verify"
            )
        else:
            self._complained = False
        for one in done.told:
            self._tell(one)
        return None if done.newest is None else done.newest.told()

    def _reset_after_fork(self) -> None:
        """Start afresh in a forked child: it has no thread of its parent, and locks that they held stay locked."""
        if self._pid != os.getpid():
            self._pid, self._pending, self._thread, self._last = os.getpid(), False, None, None
            self._changed, self._writing = threading.Condition(), threading.Lock()

    def _perform(self, op: Op[Any]) -> Any:
        if isinstance(op, StoreOp):
            return self._store.perform(op)
        if isinstance(op, ReadAnchor):
            return op.anchor.read()
        assert isinstance(op, KeepCheckpoint), f"no checkpoint needs {type(op).__name__}"
        return op.anchor.keep_checkpoint(op.newest)

    def _tell(self, checkpoint: Checkpoint) -> None:
        if self._hook is not None:
            try:
                self._hook(checkpoint)
            except Exception:  # the next checkpoint covers all that this one does
                log.exception("on_checkpoint failed for checkpoint %d", checkpoint.n)

    def left(self, run_id: str, *, quiet: bool) -> None:
        """Note that a run has been left: write its checkpoint now with ``checkpoint=0``, else soon.

        ``quiet``: log a failure instead of raising it, so that it does not hide another error.
        """
        if self.every_s != 0:
            self.wake()
            return
        try:
            self.write()
        except LedgerError as error:
            words = f"run {run_id} has ended, but its checkpoint could not be written: {error}"
            if quiet:
                log.error("%s", words)  # noqa: TRY400 (our traceback helps nobody)
                return
            raise LedgerUnavailable(
                words, hint="amends audit checkpoint writes it, and so does the next run that ends"
            ) from error

    def wake(self) -> None:
        """Have a checkpoint written within the configured time."""
        if self.every_s is None or not self.beats:
            return
        self._reset_after_fork()
        if self._pending:
            return
        with self._changed:
            self._pending, self._closed = True, False
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._loop, name="amends-checkpoints", daemon=True)
                self._thread.start()
        _unwritten.add(self)

    def beat(self) -> None:
        """Write a checkpoint if one is due, for what other processes left; a worker calls this. Raise nothing."""
        due = self.every_s is not None and (self._last is None or process.mono() >= self._last + self.every_s)
        if due:
            self._try()

    def close(self, *, wait_s: float = CLOSE_S_MAX) -> None:
        """Write what is new if the ledger answers in time, and end the thread."""
        self.stop()
        thread = self._thread
        if thread is not None and self._pid == os.getpid() and thread is not threading.current_thread():
            thread.join(timeout=wait_s)

    def stop(self) -> None:
        """Have the thread write what is new and end, without waiting for it."""
        if self._pid == os.getpid():
            with self._changed:
                self._closed = True
                self._changed.notify_all()

    def _loop(self) -> None:
        assert self.every_s is not None, "a checkpointer that is off is never woken"
        while True:
            with self._changed:
                since = self._last
                pause = self.every_s if since is None else max(0.0, since + self.every_s - process.mono())
                self._changed.wait_for(lambda: self._closed, pause)
                is_last = self._closed
                if not self._pending:
                    self._thread = None
                    return
            if not self._try():
                self._pending, self._last = True, process.mono()
            if is_last:
                with self._changed:
                    self._thread = None
                return

    def _try(self) -> bool:
        try:
            self.write()
        except Exception as error:  # no run is affected by it
            is_known = isinstance(error, LedgerError)
            self._complain(f"no checkpoint could be written: {error}", None if is_known else error)
            return False
        return True

    def _complain(self, words: str, error: Exception | None = None) -> None:
        """Log once until it works again: nobody reads a message that comes every few seconds."""
        if not self._complained:
            self._complained = True
            log.warning("%s", words, exc_info=error)


def _name_of(store: Store) -> str:
    """Return the ledger's own name, or a new one if it has none."""
    return (store.schema().ledger if isinstance(store, Migrating) else "") or process.new_id("ldg")


@atexit.register
def _at_exit() -> None:
    """Write the last checkpoints: many programs never close their runtime."""
    until = process.mono() + CLOSE_S_MAX
    waiting = [one for one in _unwritten if one._pending]
    for one in waiting:
        one.stop()
    for one in waiting:
        one.close(wait_s=max(0.0, until - process.mono()))

"""Work leases: one thread per runtime ends the attempts whose performer, outside this process, is silent too long."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import Final

from amends.drivers import process
from amends.errors import LeaseLost, log_error
from amends.ledger.leases import WorkLease
from amends.visible import visible_log

log = visible_log("amends")

AGAIN_S: Final = 1.0
"""How soon an attempt is ended again whose doubt the ledger did not take."""


class WorkLeases:
    """Watches attempts until they have ended: a started attempt must not stay so because nobody waits for it."""

    def __init__(self, *, mono: Callable[[], float] = process.mono, watches: bool = True) -> None:
        self._mono, self._watches = mono, watches
        self._lapses: dict[WorkLease, Callable[[], object]] = {}
        """What records each attempt as in doubt, unless it has ended or was renewed."""
        self._later: dict[WorkLease, float] = {}
        """Those whose doubt the ledger did not take, and when that is tried again."""
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._wakes_at = 0.0
        """When the thread looks next; others need not wake it before."""
        self._closed = False
        self._pid = os.getpid()

    def watch(self, lease: WorkLease, lapse: Callable[[], object]) -> None:
        """Call ``lapse`` when this lease and its margin have ended, until ``forget``."""
        self._reset_after_fork()
        with self._changed:
            self._lapses[lease] = lapse
            self._closed = False
            if lease.over_at < self._wakes_at:
                self._changed.notify_all()
            if self._watches and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(target=self._run, name="amends-work-leases", daemon=True)
                self._thread.start()

    def forget(self, lease: WorkLease) -> None:
        """Watch it no longer: its attempt has ended."""
        self._reset_after_fork()
        with self._changed:
            self._lapses.pop(lease, None)
            self._later.pop(lease, None)

    def clear(self) -> None:
        """Forget every attempt, as another process would not know them; for tests."""
        with self._changed:
            self._lapses.clear()

    def close(self) -> None:
        """Stop the thread; whoever takes the runs over makes the attempts doubt."""
        self._reset_after_fork()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=5.0)

    def _reset_after_fork(self) -> None:
        """Forget the attempts, the thread and the lock of the parent process, which owns the runs."""
        if self._pid != os.getpid():
            self._pid, self._lapses, self._thread = os.getpid(), {}, None
            self._changed = threading.Condition()

    def look(self) -> None:
        """End the attempts whose lease and margin are over."""
        self._reset_after_fork()
        now = self._mono()
        with self._changed:
            over = [lease for lease, at in self._due().items() if at <= now]
        for lease in over:
            self._end(lease)

    def _due(self) -> dict[WorkLease, float]:
        return {lease: max(lease.over_at, self._later.get(lease, 0.0)) for lease in self._lapses}

    def _run(self) -> None:
        while True:
            self.look()
            with self._changed:
                if self._closed or not self._lapses:
                    self._thread = None
                    return
                self._wakes_at = min(self._due().values())
                left = self._wakes_at - self._mono()
                if left > 0:
                    self._changed.wait(min(left, threading.TIMEOUT_MAX))

    def _end(self, lease: WorkLease) -> None:
        lapse = self._lapses.get(lease)
        if lapse is None:
            return
        try:
            lapse()
        except LeaseLost:
            self.forget(lease)  # the next owner has made it doubt
        except Exception as error:  # whatever it is: the other attempts must not stay started
            log_error(log, logging.WARNING, "an attempt past its work lease is not recorded as in doubt yet", error)
            with self._changed:
                self._later[lease] = self._mono() + AGAIN_S

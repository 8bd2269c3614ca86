"""Work leases: one thread per runtime ends the attempts whose performer, outside this process, is silent too long."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import Final, Protocol

from amends.drivers import process
from amends.errors import LeaseLost, log_error
from amends.visible import visible_log

log = visible_log("amends")

AGAIN_S: Final = 1.0
"""How soon an attempt is ended again whose doubt the ledger did not take."""


class Work(Protocol):
    """An attempt with a work lease."""

    def over_at(self) -> float:
        """Return when its lease and the margin have ended, on this process's monotonic clock."""
        ...

    def lapse(self) -> None:
        """Record the attempt as in doubt, unless it has ended or was renewed meanwhile."""
        ...


class WorkLeases:
    """Watches attempts until they have ended: a started attempt must not stay so because nobody waits for it."""

    def __init__(self, *, mono: Callable[[], float] = process.mono, watches: bool = True) -> None:
        self._mono, self._watches = mono, watches
        self._work: dict[Work, float] = {}
        """What is watched, and before when it need not be looked at."""
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._pid = os.getpid()

    def watch(self, work: Work) -> None:
        """End this attempt when its lease has ended, until ``forget``."""
        self._reset_after_fork()
        with self._changed:
            self._work[work] = 0.0
            self._closed = False
            self._changed.notify_all()
            if self._watches and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(target=self._run, name="amends-work-leases", daemon=True)
                self._thread.start()

    def forget(self, work: Work) -> None:
        """Watch it no longer: it has ended."""
        self._reset_after_fork()
        with self._changed:
            self._work.pop(work, None)

    def clear(self) -> None:
        """Forget every attempt, as another process would not know them; for tests."""
        with self._changed:
            self._work.clear()

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
            self._pid, self._work, self._thread = os.getpid(), {}, None
            self._changed = threading.Condition()

    def look(self) -> None:
        """End the attempts whose lease and margin are over."""
        self._reset_after_fork()
        now = self._mono()
        with self._changed:
            over = [work for work, at in self._due().items() if at <= now]
        for work in over:
            self._end(work)

    def _due(self) -> dict[Work, float]:
        return {work: max(work.over_at(), later) for work, later in self._work.items()}

    def _run(self) -> None:
        while True:
            self.look()
            with self._changed:
                if self._closed or not self._work:
                    self._thread = None
                    return
                left = min(self._due().values()) - self._mono()
                if left > 0:
                    self._changed.wait(min(left, threading.TIMEOUT_MAX))

    def _end(self, work: Work) -> None:
        try:
            work.lapse()
        except LeaseLost:
            self.forget(work)  # the next owner has made it doubt
        except Exception as error:  # whatever it is: the other attempts must not stay started
            log_error(log, logging.WARNING, "an attempt past its work lease is not recorded as in doubt yet", error)
            with self._changed:
                if work in self._work:
                    self._work[work] = self._mono() + AGAIN_S

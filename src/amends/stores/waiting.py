"""Wait for the answer of a database server: asleep, or awake for a moment, whichever is faster here.

A process that sleeps until its answer comes is woken late: on a virtual machine by a tenth or more of the time that a
statement of a server nearby takes. So it may ask the socket again and again for at most ``AWAKE_S_MAX`` instead. That is
slower where the server, or somebody else, needs the core. Nobody can know that beforehand: both ways are timed all the
time, and the faster one is taken. A batch is waited for asleep: the callers of the next one need the core and the interpreter
lock.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, Final

AWAKE_S_MAX: Final = 0.001
"""How long a statement is waited for awake. Where sleeping takes longer than this, nobody tries: the server is far away,
its disk is slow, or it is busy."""
FIRST_ASLEEP: Final = 64
"""So many statements of a connection are waited for asleep: a short program never waits awake."""
TRY_EVERY: Final = 17
"""Every so many statements the slower way is timed again. A prime number, so that it is not always the same statement."""
WEIGHT: Final = 16
"""A mean changes by this part of a difference."""
OUTLIER: Final = 2
"""A statement counts as at most so many times the mean: now and then one waits for a disk or a lock."""


class AnswerWait:
    """How one connection waits. Call ``begin`` when a statement was sent and ``end`` when its answer has come.

    ``is_readable`` returns at once, and says whether something has come. ``clock`` returns seconds.
    """

    __slots__ = (
        "_asleep_s",
        "_awake_s",
        "_clock",
        "_is_awake",
        "_is_readable",
        "_sent_at",
        "_statements",
        "may_be_awake",
    )

    def __init__(self, is_readable: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> None:
        self._is_readable, self._clock = is_readable, clock
        self._statements = 0
        self._asleep_s = self._awake_s = 0.0
        """The mean times from sending to the answer, for both ways; 0: not known."""
        self._sent_at = 0.0
        self._is_awake = False
        self.may_be_awake = cores() > 1
        """On a single core whoever waits awake keeps the server from answering."""

    def begin(self) -> None:
        """Wait awake for a moment, if that is the faster way. The caller then waits asleep for what has not come."""
        clock = self._clock
        now = self._sent_at = clock()
        number = self._statements = self._statements + 1
        if number <= FIRST_ASLEEP or self._asleep_s > AWAKE_S_MAX or not self.may_be_awake:
            self._is_awake = False
            return
        self._is_awake = (self._awake_s < self._asleep_s) is (number % TRY_EVERY != 0)
        if self._is_awake:
            is_readable, end = self._is_readable, now + AWAKE_S_MAX
            while not is_readable() and clock() < end:
                _yield()

    def end(self) -> None:
        """Note how long the answer took."""
        took = self._clock() - self._sent_at
        if self._is_awake:
            self._awake_s = _mean(self._awake_s, took)
        else:
            self._asleep_s = _mean(self._asleep_s, took)


def _mean(mean: float, took: float) -> float:
    return mean + (min(took, mean * OUTLIER) - mean) / WEIGHT if mean else took


def cores() -> int:
    """Return how many cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def _sleep_not() -> None:
    time.sleep(0)


_yield: Final[Callable[[], None]] = getattr(os, "sched_yield", _sleep_not)
"""Lets others have the core, if somebody waits for it."""

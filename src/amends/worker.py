"""The worker: finishes or takes back what others left, until it is told to stop.

The loop behind ``amends worker app:rt``. It takes runtimes of both colours and starts no agent of its own.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import FrameType
from typing import Final, Protocol

from amends.errors import LedgerUnavailable, UsageError
from amends.host import runs
from amends.host.settings import Setting
from amends.report import Report
from amends.runtime import AsyncRuntime, Runtime
from amends.visible import visible, visible_log

log = visible_log("amends.worker")

IDLE_S_MAX: Final = 5.0
"""How long an idle worker sleeps at most: an owner that died is found within this."""
UNAVAILABLE_S_MAX: Final = 30.0
TOLD_MAX: Final = 10_000
"""Runs about which something was told once; when it is full, all are told once more."""
NAP_S: Final = 0.1
"""A sleeping worker looks this often whether it was told to stop."""


class Stops(Protocol):
    """What can tell a worker to stop: a ``threading.Event``, for one."""

    def is_set(self) -> bool:
        """Whether it is time to go."""
        ...


@dataclass(slots=True)
class Flag:
    """Set by a signal handler. Not an Event: its lock may be held by the very thread that the signal interrupts."""

    is_up: bool = False

    def is_set(self) -> bool:
        """Whether it is time to go."""
        return self.is_up


@dataclass(slots=True)
class Pace:
    """How long to sleep: ``every`` after a pass that did something, longer while nothing happens."""

    every: float
    _pause: float = 0.0

    def after(self, *, busy: bool) -> float:
        """Seconds until the next look after a pass that worked."""
        self._pause = self.every if busy else min(max(self._pause * 2, self.every), max(IDLE_S_MAX, self.every))
        return self._pause

    def unavailable(self) -> float:
        """Seconds until the next try after the ledger did not answer."""
        self._pause = min(max(self._pause * 2, self.every), UNAVAILABLE_S_MAX)
        return self._pause


def _is_late(report: Report) -> bool:
    """Whether a run that only goes forward was not done in time; also when it has been done since."""
    deadline = report.run.deadline_at
    forward = report.state in ("pivoted", "committed") or (report.state == "blocked" and report.run.goal == "commit")
    return forward and deadline is not None and deadline < (report.run.closed_at or datetime.now(UTC))


@dataclass(slots=True)
class Worker:
    """One loop over one runtime. ``stop`` ends it after the run it is at."""

    rt: Runtime | AsyncRuntime
    every: float = 1.0
    limit: int = 100
    stop: Stops = field(default_factory=Flag)
    _told: set[tuple[str, str, int, str]] = field(default_factory=set)
    _has_greeted: bool = False

    def __post_init__(self) -> None:
        if not self.every > 0 or self.limit < 1:
            raise UsageError(
                f"a worker looks every {self.every} s for {self.limit} runs; both must be more than nothing"
            )
        host = self.rt._host
        if host.store.url == "memory:":
            raise UsageError(
                "the ledger is memory:, which no other process has ever written to",
                hint="give the runtime a ledger in a file: Runtime('sqlite:///app.db', ...)",
            )
        # A wrong directory or an empty volume: a new, empty ledger would be reported as "nothing to do".
        host.settings["create"] = Setting(False, "worker")

    def run(self, *, once: bool = False) -> list[Report]:
        """Recover until stopped; with ``once``, one pass. Returns the reports of the last pass."""
        if isinstance(self.rt, AsyncRuntime):
            return asyncio.run(self._loop_async(self.rt, once))
        return self._loop(self.rt, once)

    # ---- blocking -------------------------------------------------------------------------

    def _loop(self, rt: Runtime, once: bool) -> list[Report]:
        pace, reports = Pace(self.every), list[Report]()
        try:
            while not self.stop.is_set():
                try:
                    rt._host.ready()
                    self._greet(once)
                    reports = [self._told_of(report) for report in self._pass(rt)]
                except LedgerUnavailable as error:
                    if once:
                        raise
                    self._sleep(self._unavailable(pace, error))
                    continue
                if once:
                    break
                self._sleep(pace.after(busy=_did_something(reports)))
        finally:
            rt.close()
        return reports

    def _pass(self, rt: Runtime) -> Iterator[Report]:
        rt._tell_due(self.limit)
        for found in rt._abandoned(self.limit):
            if self.stop.is_set():
                return
            try:
                report = rt._recover_one(found)
            except LedgerUnavailable:
                raise
            except Exception as error:  # one run that cannot be recovered must not keep the others waiting
                runs.log_lost(rt._host, found, error)
            else:
                yield report
        rt._host.checkpointer.beat()

    def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self.stop.is_set() and (left := until - time.monotonic()) > 0:
            time.sleep(min(NAP_S, left))

    # ---- on an event loop -----------------------------------------------------------------

    async def _loop_async(self, rt: AsyncRuntime, once: bool) -> list[Report]:
        pace, reports = Pace(self.every), list[Report]()
        try:
            while not self.stop.is_set():
                try:
                    await rt._ready()
                    self._greet(once)
                    reports = [self._told_of(report) async for report in self._pass_async(rt)]
                except LedgerUnavailable as error:
                    if once:
                        raise
                    await self._sleep_async(self._unavailable(pace, error))
                    continue
                if once:
                    break
                await self._sleep_async(pace.after(busy=_did_something(reports)))
        finally:
            await rt.close()
        return reports

    async def _pass_async(self, rt: AsyncRuntime) -> AsyncIterator[Report]:
        await rt._tell_due(self.limit)
        for found in await rt._abandoned(self.limit):
            if self.stop.is_set():
                return
            try:
                report = await rt._recover_one(found)
            except LedgerUnavailable:
                raise
            except Exception as error:  # one run that cannot be recovered must not keep the others waiting
                runs.log_lost(rt._host, found, error)
            else:
                yield report
        await asyncio.to_thread(rt._host.checkpointer.beat)

    async def _sleep_async(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        # Whoever says stop may be a signal handler or another thread: no asyncio.Event hears those.
        while not self.stop.is_set() and (left := until - time.monotonic()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(min(NAP_S, left))

    # ---- telling --------------------------------------------------------------------------

    def _greet(self, once: bool) -> None:
        if not self._has_greeted and not once:
            self._has_greeted = True
            log.info("watching %s", self.rt._host.store.url)

    def _told_of(self, report: Report) -> Report:
        if report.skipped:
            self._tell_skipped(report)
            return report
        log.info("run %s is %s", visible(report.run_id), report.state)
        if _is_late(report) and self._is_news(report):
            log.warning(
                "run %s is past its deadline; it has pivoted, so it goes on until it is done", visible(report.run_id)
            )
        for left in report.residue:
            log.warning(
                "run %s: left standing: %s (%s): %s",
                *map(visible, (report.run_id, left.call.tool, left.call.id)),
                visible(left.why, prose=True),
            )
        for cause in report.run.causes:
            log.warning("run %s: %s", visible(report.run_id), visible(cause, prose=True))
        return report

    def _tell_skipped(self, report: Report) -> None:
        if self._is_news(report):
            missing = ", ".join(report.skipped)
            log.warning("run %s is left to another worker: this one does not have %s", visible(report.run_id), missing)

    def _is_news(self, report: Report) -> bool:
        """Whether this worker says it for the first time of this run: what does not change is not told every second."""
        name = (report.run.tenant or "", report.run_id, report.run.generation, report.state)
        if name in self._told:
            return False
        if len(self._told) >= TOLD_MAX:
            self._told.clear()
        self._told.add(name)
        return True

    def _unavailable(self, pace: Pace, error: LedgerUnavailable) -> float:
        pause = pace.unavailable()
        log.warning("the ledger does not answer, trying again in %.0f s: %s", pause, error)
        return pause


def work(
    rt: Runtime | AsyncRuntime,
    *,
    once: bool = False,
    every: float = 1.0,
    limit: int = 100,
    stop: Stops | None = None,
) -> list[Report]:
    """Finish or take back what others left, until told to stop; with ``once``, one pass.

    Without ``stop``, and in the main thread, SIGTERM and SIGINT stop it after the run it is at, and a second signal
    ends the process at once. Never creates a ledger: ``LedgerMissing`` instead.
    """
    flag = Flag()
    worker = Worker(rt, every=every, limit=limit, stop=flag if stop is None else stop)
    if stop is not None or threading.current_thread() is not threading.main_thread():
        return worker.run(once=once)
    with _signals(flag):
        return worker.run(once=once)


def _did_something(reports: list[Report]) -> bool:
    return any(not report.skipped for report in reports)


@contextmanager
def _signals(flag: Flag) -> Iterator[None]:
    def leave(number: int, _frame: FrameType | None) -> None:
        if flag.is_up:
            # Twice: whoever asks does not want to wait. What is under way becomes doubt, and the next worker's.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        flag.is_up = True

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

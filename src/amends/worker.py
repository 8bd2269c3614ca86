"""The worker: take over abandoned runs and finish or roll back each, until it is stopped.

This is the loop behind ``amends worker app:rt`` and ``with rt.worker():``. It takes runtimes of both colours. It resumes
registered agents of both colours, and starts no new ones. It recovers up to ``concurrency`` runs at once. A first signal
drains it: it claims nothing more and finishes what it has; what is left after the grace period is handed over.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent import futures
from contextlib import contextmanager, nullcontext, suppress
from contextvars import Context
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import FrameType
from typing import Final, Protocol

from amends.drivers.event_loop import shielded
from amends.engine import recovery
from amends.errors import LedgerMissing, LedgerUnavailable, UsageError, described, listed_in, some, some_in_words
from amends.host import runs
from amends.host.settings import Setting
from amends.ledger.operations import ListRuns
from amends.report import Report
from amends.runtime import AsyncRuntime, Runtime
from amends.stores.migrations import Migrating, check_usable
from amends.visible import visible, visible_log

log = visible_log("amends.worker")

IDLE_S_MAX: Final = 5.0
"""How long an idle worker sleeps at most, by default: a dead owner is found within this time."""
UNAVAILABLE_S_MAX: Final = 30.0
TOLD_MAX: Final = 10_000
"""How many messages are remembered so that each is logged once; when it is full, all are logged once more."""
NAP_S: Final = 0.1
"""How often a sleeping worker checks whether it was stopped."""
CONCURRENCY_MAX: Final = 256
DRAIN_S: Final = 25.0
"""How long a worker that was told to stop may take for the runs that it has; supervisors kill after 30 s."""
HANDOVER_S: Final = 2.0
"""The lease that a worker leaves on runs which it could not finish: others take them over when it has ended."""
SCHEMA_S: Final = 5.0
"""How often a worker checks that no migration has made the ledger unusable for this version of amends."""
STALLED_S: Final = 90.0
"""A worker that neither has a run, nor looks for one, nor sleeps between two passes for this time hangs."""


class Stops(Protocol):
    """What can stop a worker, for example a ``threading.Event``."""

    def is_set(self) -> bool:
        """Return whether to stop."""
        ...


@dataclass(slots=True)
class Flag:
    """A flag for a signal handler. Not an Event: the interrupted thread may hold the lock of an Event."""

    is_up: bool = False

    def is_set(self) -> bool:
        """Return whether to stop."""
        return self.is_up


@dataclass(slots=True)
class Pace:
    """How long to sleep: ``every`` after a pass that recovered something, longer while nothing happens."""

    every: float
    idle: float = IDLE_S_MAX
    _pause: float = 0.0

    def after(self, *, busy: bool) -> float:
        """Return the seconds until the next pass; ``busy``: the last one recovered something."""
        self._pause = self.every if busy else min(max(self._pause * 2, self.every), max(self.idle, self.every))
        return self._pause

    def unavailable(self) -> float:
        """Return the seconds until the next try after the ledger did not answer."""
        self._pause = min(max(self._pause * 2, self.every), UNAVAILABLE_S_MAX)
        return self._pause


def _is_late(report: Report) -> bool:
    """Return whether a run past its pivot missed its deadline, even if it has ended since."""
    deadline = report.run.deadline_at
    forward = report.state in ("pivoted", "committed") or (report.state == "blocked" and report.run.goal == "commit")
    return forward and deadline is not None and deadline < (report.run.closed_at or datetime.now(UTC))


@dataclass(slots=True)
class Worker:
    """One loop over one runtime: a pass ``every`` so many seconds, over at most ``limit`` runs.

    ``concurrency``: how many runs it recovers at once. ``stop`` ends it after the current runs. ``is_guest``: it works
    beside the program that uses the runtime; it follows that program's settings, does not close the runtime, and goes on
    whatever happens to the ledger.
    """

    rt: Runtime | AsyncRuntime
    every: float = 1.0
    limit: int = 100
    stop: Stops = field(default_factory=Flag)
    is_guest: bool = False
    concurrency: int = 1
    blocked: list[str] = field(default_factory=list)
    """After one pass (``once``): the ids of all runs that are blocked, of every tenant that the runtime works for."""
    passes: Counter[str] = field(default_factory=Counter)
    """How many passes there were: ``ok``, ``unavailable`` (the ledger did not answer) and ``failed``."""
    skipped: int = 0
    """How many runs the last pass left to workers with other tools."""
    latest: str = ""
    """How the last pass ended, a key of ``passes``; empty before the first."""
    running: dict[str, str] = field(default_factory=dict)
    """The runs that it recovers now: their ids, by the uid of their tree."""
    _looked_at: float = field(default_factory=time.monotonic)
    _checked_at: float = field(default_factory=time.monotonic)
    _futures: dict[str, futures.Future[Report | None]] = field(default_factory=dict)
    _tasks: dict[str, asyncio.Task[Report | None]] = field(default_factory=dict)
    _told: set[tuple[str, str, int, str]] = field(default_factory=set)
    _has_greeted: bool = False
    _missing: bool = False

    def __post_init__(self) -> None:
        if not self.every > 0 or self.limit < 1:
            raise UsageError(
                f"every is {self.every} and limit is {self.limit}; a worker needs every > 0 and limit >= 1"
            )
        if type(self.concurrency) is not int or not 1 <= self.concurrency <= CONCURRENCY_MAX:
            raise UsageError(
                f"concurrency is {self.concurrency!r}; a worker recovers 1 to {CONCURRENCY_MAX} runs at once",
                hint="for more, start more workers: each run is taken by only one of them",
            )
        if self.is_guest:
            return
        host = self.rt._host
        if host.store.url == "memory:":
            raise UsageError(
                "the ledger is memory:, which no other process can write to, so there is nothing to recover",
                hint="give the runtime a ledger in a file: Runtime('sqlite:///app.db', ...)",
            )
        # In a wrong directory or on an empty volume, a new and empty ledger would look like "nothing to do".
        host.settings["create"] = Setting(False, "worker")

    def run(self, *, once: bool = False) -> list[Report]:
        """Recover runs until stopped; with ``once``, in one pass. Return the reports of the last pass."""
        if isinstance(self.rt, AsyncRuntime):
            return asyncio.run(self._loop_async(self.rt, once))
        return self._loop(self.rt, once)

    @property
    def is_alive(self) -> bool:
        """Return whether it has a run, or has looked for one lately."""
        return bool(self.running) or time.monotonic() - self._looked_at < STALLED_S

    @property
    def is_draining(self) -> bool:
        """Return whether it was told to stop, and claims nothing more."""
        return self.stop.is_set()

    # ---- Blocking

    def _loop(self, rt: Runtime, once: bool) -> list[Report]:
        pace, reports = Pace(self.every, self.rt._host.value("poll_worker")), list[Report]()
        pool = futures.ThreadPoolExecutor(self.concurrency, "amends-worker") if self.concurrency > 1 else nullcontext()
        try:
            with pool as threads:
                while not self.stop.is_set():
                    try:
                        rt._host.ready()
                        self._check_schema()
                        rt.check_anchor()
                        self._greet(once)
                        reports = [self._told_of(report) for report in self._pass(rt, threads, once=once)]
                    except Exception as error:
                        if once or not self._outlives(error):
                            raise
                        self._sleep(self._told_of_error(pace, error))
                        continue
                    self._passed(reports)
                    if once:
                        self.blocked = _blocked(rt)
                        break
                    self._sleep(pace.after(busy=_did_something(reports) or bool(self._futures)))
                self._finish()
        finally:
            if not self.is_guest:
                rt.close()
        return reports

    def _pass(self, rt: Runtime, pool: futures.ThreadPoolExecutor | None, *, once: bool) -> Iterator[Report]:
        rt._send_overdue_notices(self.limit)
        yield from self._ended()
        for found in rt._abandoned(self.limit):
            if found.root.uid in self.running or found.root.uid in self._futures:
                continue
            while len(self._futures) >= self.concurrency and not self.stop.is_set():
                yield from self._ended(wait_s=NAP_S)
            if self.stop.is_set():
                return
            if pool is None:
                report = self._recover(rt, found)
                if report is not None:
                    yield report
            else:
                self._futures[found.root.uid] = pool.submit(self._recover, rt, found)
        while once and self._futures:
            yield from self._ended(wait_s=NAP_S)
        rt._host.checkpointer.beat()

    def _recover(self, rt: Runtime, found: recovery.Found) -> Report | None:
        """Recover one run; None: that failed, was logged, and must not keep the others waiting."""
        self.running[found.root.uid] = found.root.id
        try:
            return rt._recover_one(found)
        except LedgerUnavailable:
            raise
        except Exception as error:
            runs.log_lost(rt._host, found, error)
            return None
        finally:
            self.running.pop(found.root.uid, None)

    def _ended(self, *, wait_s: float = 0.0) -> Iterator[Report]:
        """Return the reports of the runs that have been recovered meanwhile; wait so long for the first one."""
        self._looked_at = time.monotonic()
        if self._futures:
            futures.wait(self._futures.values(), wait_s, futures.FIRST_COMPLETED)
        for uid in [uid for uid, future in self._futures.items() if future.done()]:
            report = self._futures.pop(uid).result()
            if report is not None:
                yield report

    def _finish(self) -> None:
        """Wait for the runs that it still has, and claim no others."""
        while self._futures:
            try:
                for report in self._ended(wait_s=NAP_S):
                    self._told_of(report)
            except LedgerUnavailable as error:
                log.warning("the ledger does not answer; the next worker continues a run: %s", error)

    def _sleep(self, seconds: float) -> None:
        until, released = time.monotonic() + seconds, self.rt._host.released
        while not self._is_woken(released) and (left := until - time.monotonic()) > 0:
            time.sleep(min(NAP_S, left))

    def _is_woken(self, released: int) -> bool:
        """Return whether to look at once: it is stopped, or a block of this process has ended since."""
        self._looked_at = time.monotonic()  # it sleeps, for as long as ``every`` says: it does not hang
        return self.stop.is_set() or self.rt._host.released != released

    def _check_schema(self) -> None:
        """Raise ``LedgerTooNew`` if a migration has made the ledger unusable for this amends since it was opened."""
        store = self.rt._host.store
        if isinstance(store, Migrating) and time.monotonic() - self._checked_at >= SCHEMA_S:
            self._checked_at = time.monotonic()
            check_usable(store.schema(), store.url)

    def _passed(self, reports: list[Report]) -> None:
        self.latest, self._looked_at = "ok", time.monotonic()
        self.passes["ok"] += 1
        self.skipped = sum(bool(report.skipped) for report in reports)

    # ---- On an event loop

    async def _loop_async(self, rt: AsyncRuntime, once: bool) -> list[Report]:
        pace, reports = Pace(self.every, self.rt._host.value("poll_worker")), list[Report]()
        try:
            while not self.stop.is_set():
                try:
                    await rt._ready()
                    await asyncio.to_thread(self._check_schema)
                    await rt.check_anchor()
                    self._greet(once)
                    reports = [self._told_of(report) async for report in self._pass_async(rt, once=once)]
                except Exception as error:
                    if once or not self._outlives(error):
                        raise
                    await self._sleep_async(self._told_of_error(pace, error))
                    continue
                self._passed(reports)
                if once:
                    self.blocked = await asyncio.to_thread(_blocked, rt)
                    break
                await self._sleep_async(pace.after(busy=_did_something(reports) or bool(self._tasks)))
        finally:
            await self._finish_async()
            if not self.is_guest:
                await rt.close()
        return reports

    async def _pass_async(self, rt: AsyncRuntime, *, once: bool) -> AsyncIterator[Report]:
        await rt._send_overdue_notices(self.limit)
        for report in await self._ended_async():
            yield report
        for found in await rt._abandoned(self.limit):
            if found.root.uid in self.running or found.root.uid in self._tasks:
                continue
            while len(self._tasks) >= self.concurrency and not self.stop.is_set():
                for report in await self._ended_async(wait_s=NAP_S):
                    yield report
            if self.stop.is_set():
                return
            if self.concurrency == 1:
                one = await self._recover_async(rt, found)
                if one is not None:
                    yield one
            else:
                self.running[found.root.uid] = found.root.id  # now: its task has not begun
                self._tasks[found.root.uid] = asyncio.create_task(self._recover_async(rt, found), context=Context())
        while once and self._tasks:
            for report in await self._ended_async(wait_s=NAP_S):
                yield report
        await asyncio.to_thread(rt._host.checkpointer.beat)

    async def _recover_async(self, rt: AsyncRuntime, found: recovery.Found) -> Report | None:
        self.running[found.root.uid] = found.root.id
        try:
            return await rt._recover_one(found)
        except LedgerUnavailable:
            raise
        except Exception as error:
            runs.log_lost(rt._host, found, error)
            return None
        finally:
            self.running.pop(found.root.uid, None)

    async def _ended_async(self, *, wait_s: float = 0.0) -> list[Report]:
        self._looked_at = time.monotonic()
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        ended = [self._tasks.pop(uid) for uid in list(self._tasks) if self._tasks[uid].done()]
        return [report for report in [task.result() for task in ended] if report is not None]

    async def _finish_async(self) -> None:
        while self._tasks:
            try:
                for report in await self._ended_async(wait_s=NAP_S):
                    self._told_of(report)
            except LedgerUnavailable as error:
                log.warning("the ledger does not answer; the next worker continues a run: %s", error)

    async def _sleep_async(self, seconds: float) -> None:
        until, released = time.monotonic() + seconds, self.rt._host.released
        # A signal handler or another thread may set ``stop``; an asyncio.Event cannot be set from there.
        while not self._is_woken(released) and (left := until - time.monotonic()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(min(NAP_S, left))

    # ---- Log messages

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
                "run %s is past its deadline; it has pivoted, so it continues until it is done", visible(report.run_id)
            )
        id, where = visible(report.run_id), visible(listed_in(report.run_id), prose=True)
        left = [
            f"{visible(one.call.tool)} ({visible(one.call.id)}): {visible(one.why, prose=True)}"
            for one in report.residue
        ]
        for words in some(left, where=where):
            log.warning("run %s: left standing: %s", id, words)
        for cause in some(report.run.causes, where=where):
            log.warning("run %s: %s", id, visible(cause, prose=True))
        return report

    def _tell_skipped(self, report: Report) -> None:
        if self._is_news(report):
            missing = some_in_words(report.skipped)
            log.warning("run %s is left to another worker: this one does not have %s", visible(report.run_id), missing)

    def _is_news(self, report: Report) -> bool:
        """Return whether this was not logged before: a state that does not change is not logged every second."""
        name = (report.run.tenant or "", report.run_id, report.run.generation, report.state)
        if name in self._told:
            return False
        if len(self._told) >= TOLD_MAX:
            self._told.clear()
        self._told.add(name)
        return True

    def _outlives(self, error: Exception) -> bool:
        """Return whether the worker goes on after this error of a whole pass: beside a program it always does."""
        return self.is_guest or isinstance(error, LedgerUnavailable | LedgerMissing)

    def _told_of_error(self, pace: Pace, error: Exception) -> float:
        """Log why there was no pass, and return the seconds until the next try."""
        self.latest = "unavailable" if isinstance(error, LedgerUnavailable | LedgerMissing) else "failed"
        self.passes[self.latest] += 1
        self._looked_at = time.monotonic()
        if isinstance(error, LedgerMissing):
            if not self._missing:
                log.warning("%s; waiting until it is there", error)
            self._missing = True
            return pace.after(busy=False)
        pause = pace.unavailable()
        if isinstance(error, LedgerUnavailable):
            log.warning("the ledger does not answer, trying again in %.0f s: %s", pause, error)
        else:
            log.error("nothing can be recovered, trying again in %.0f s: %s", pause, described(error))
        return pause


def work(
    rt: Runtime | AsyncRuntime,
    *,
    once: bool = False,
    every: float = 1.0,
    limit: int = 100,
    stop: Stops | None = None,
    concurrency: int = 1,
    drain: float = DRAIN_S,
    listen: str = "",
) -> list[Report]:
    """Take over abandoned runs and finish or roll back each, until stopped; with ``once``, in one pass.

    ``every``: seconds between passes; ``limit``: runs per pass; ``concurrency``: runs at once. ``listen``: answer
    ``/health``, ``/ready`` and ``/metrics`` at this ``PORT`` or ``HOST:PORT``. Without ``stop``, and in the main thread,
    SIGTERM and SIGINT drain it: it claims nothing more and finishes the runs that it has, for up to ``drain`` seconds. Then
    it hands over the others and ends with exit code 143; a second signal ends the process at once. It never creates a
    ledger: it waits until there is one, and with ``once`` raises ``LedgerMissing``.
    """
    if not 0 <= drain < float("inf"):
        raise UsageError(f"drain is {drain!r}; it is a number of seconds, 0 or more")
    flag = Flag()
    worker = Worker(rt, every=every, limit=limit, stop=flag if stop is None else stop, concurrency=concurrency)
    with _listening(worker, listen):
        if stop is not None or threading.current_thread() is not threading.main_thread():
            return worker.run(once=once)
        with _signals(flag), _Drain(worker, drain):
            return worker.run(once=once)


@contextmanager
def _listening(worker: Worker, listen: str) -> Iterator[None]:
    if not listen:
        yield
        return
    from amends.health import Endpoint  # here: few workers have one

    with Endpoint(worker, listen):
        yield


class _Drain:
    """A thread that hands over the runs of a worker which was told to stop and did not finish them in time.

    A thread of its own, since a body may occupy the main thread and the event loop.
    """

    def __init__(self, worker: Worker, grace_s: float) -> None:
        self._worker, self._grace_s = worker, grace_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="amends-drain", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._worker.stop.is_set():
            if self._over.wait(NAP_S):
                return
        if self._worker.running:
            log.info("draining: %d runs have %g s to end", len(self._worker.running), self._grace_s)
        if self._over.wait(self._grace_s):
            return
        ids = sorted(self._worker.running.values())
        shown = ", ".join(map(visible, ids[:TOLD_IDS_MAX])) + (", …" if len(ids) > TOLD_IDS_MAX else "")
        try:
            handed = self._worker.rt._host.heartbeat.hand_over(HANDOVER_S)
            log.warning("the grace period is over; other workers take over %d runs now: %s", handed, shown)
        except Exception as error:  # whatever it is, the process ends now, and the leases end by themselves
            log.warning(
                "the grace period is over; other workers take over %s when the leases end: %s", shown, described(error)
            )
        # Not sys.exit: the body in the main thread would go on. What it had sent is in doubt, which the next worker settles.
        try:
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:  # also if what it says cannot be written: nobody reads the pipe any more
            os._exit(SIGNALLED + signal.SIGTERM)


TOLD_IDS_MAX: Final = 10


def work_once(rt: Runtime | AsyncRuntime, *, limit: int = 100, concurrency: int = 1) -> tuple[list[Report], list[str]]:
    """Do one pass of a worker. Return its reports, and the ids of all runs that are blocked then, newest first."""
    flag = Flag()
    worker = Worker(rt, limit=limit, stop=flag, concurrency=concurrency)
    if threading.current_thread() is not threading.main_thread():
        return worker.run(once=True), worker.blocked
    with _signals(flag):
        return worker.run(once=True), worker.blocked


BLOCKED_MAX: Final = 1_000


def _blocked(rt: Runtime | AsyncRuntime) -> list[str]:
    found = rt._host.store.perform(ListRuns(rt._view.tenant or None, ("blocked",), None, BLOCKED_MAX))
    return [row.id for row in found if not row.parent and not row.origin]


def _did_something(reports: list[Report]) -> bool:
    return any(not report.skipped for report in reports)


@contextmanager
def _signals(flag: Flag) -> Iterator[None]:
    def leave(number: int, _frame: FrameType | None) -> None:
        if flag.is_up:
            # The second signal: do not wait. What is under way becomes doubt, which the next worker handles.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        flag.is_up = True

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# ---- In the process of an application


@dataclass(slots=True)
class WorkerBlock:
    """``with rt.worker():``: a worker in a thread beside the program, until the block ends."""

    worker: Worker
    _stop: Flag = field(default_factory=Flag)
    _thread: threading.Thread | None = None
    _term: _Terminated | None = None

    def __enter__(self) -> Worker:
        _refuse_second(self._thread is not None)
        self.worker.stop = self._stop
        self._thread = threading.Thread(target=self.worker.run, name="amends-worker", daemon=True)
        self._thread.start()
        self.worker.rt._host.workers += 1
        self._term = _Terminated.watched(self._terminate)
        return self.worker

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        assert self._thread is not None, "a block is left after it was entered"
        self._stop.is_up = True
        self.worker.rt._host.workers -= 1
        try:
            self._thread.join()  # a second Ctrl-C ends this wait; what the worker had sent is then in doubt
        finally:
            if self._term is not None:
                self._term.forget()

    def _terminate(self, number: int) -> None:
        self._stop.is_up = True
        raise SystemExit(SIGNALLED + number)


@dataclass(slots=True)
class AsyncWorkerBlock:
    """``async with rt.worker():``: a worker in a task beside the program, until the block ends."""

    worker: Worker
    _stop: Flag = field(default_factory=Flag)
    _task: asyncio.Task[object] | None = None
    _around: asyncio.Task[object] | None = None
    _term: _Terminated | None = None
    _number: int = 0

    async def __aenter__(self) -> Worker:
        _refuse_second(self._task is not None)
        rt = self.worker.rt
        assert isinstance(rt, AsyncRuntime), "an async block is of an AsyncRuntime"
        self.worker.stop = self._stop
        loop, self._around = asyncio.get_running_loop(), asyncio.current_task()
        self._task = loop.create_task(self.worker._loop_async(rt, False), name="amends-worker", context=Context())
        rt._host.workers += 1
        self._term = _Terminated.watched(lambda number: loop.call_soon_threadsafe(self._terminate, number))
        return self.worker

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        assert self._task is not None, "a block is left after it was entered"
        self._stop.is_up = True
        self.worker.rt._host.workers -= 1
        try:
            await shielded(_ended(self._task))
        finally:
            if self._term is not None:
                self._term.forget()
            if self._number:
                raise SystemExit(SIGNALLED + self._number)

    def _terminate(self, number: int) -> None:
        self._stop.is_up, self._number = True, number
        if self._around is not None:
            self._around.cancel()


SIGNALLED: Final = 128
"""What a shell adds to the number of the signal that ended a process."""


async def _ended(task: asyncio.Task[object]) -> None:
    with suppress(asyncio.CancelledError):  # the loop was being closed, and the task is over
        await task


def _refuse_second(is_entered: bool) -> None:
    if is_entered:
        raise UsageError("the block of rt.worker() was entered twice", hint="call rt.worker() for each block")


@dataclass(slots=True)
class _Terminated:
    """A handler for SIGTERM in a program that has none: without it the process would end in the middle of a run."""

    handler: Callable[[int, FrameType | None], None]

    @classmethod
    def watched(cls, terminate: Callable[[int], object]) -> _Terminated | None:
        """Handle the first SIGTERM by ``terminate``; None if the program handles it, or this is not the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return None
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return None

        def leave(number: int, _frame: FrameType | None) -> None:
            signal.signal(number, signal.SIG_DFL)  # the second one ends the process at once
            terminate(number)

        signal.signal(signal.SIGTERM, leave)
        return cls(leave)

    def forget(self) -> None:
        """Handle SIGTERM no longer, unless the program has replaced the handler."""
        if signal.getsignal(signal.SIGTERM) is self.handler:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

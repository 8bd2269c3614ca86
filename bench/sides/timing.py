"""The clock that every side uses, and the pipe over which a side is asked. Standard library only.

A side is a separate process that answers one line of JSON for one line of JSON. So the threads, imports and garbage of
one side do not affect the figures of another, and all sides can take turns within one repeat.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import inspect
import itertools
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
from typing import Any, Final

CALLERS: Final = 64
KNOWN: Final = 50
"""Calls that are made first, and then repeated."""
MARK: Final = "@@"
"""Marks every answer: a peer may print other lines."""
JOIN_S_MAX: Final = 120.0
"""How long callers may take to end after the time is over: one call each."""

Figures = dict[str, Any]
Work = Callable[[int, float], Any]
"""At most n calls, in at most so many seconds; returns figures, or an awaitable of them."""

_numbers = itertools.count()


def args_of(key: str) -> dict[str, Any]:
    """Return the arguments of every side: small, flat, realistic."""
    return {"order_id": key, "to": "a@example.com", "amount": 12.5, "currency": "usd"}


def fresh(tag: str = "k") -> str:
    """Return a key that is unused in this database."""
    return f"{tag}-{os.getpid()}-{time.time_ns():x}-{next(_numbers)}"


def timed(
    fn: Callable[[int], object], n: int, limit_s: float, *, clock: Callable[[], float] = time.perf_counter
) -> Figures:
    """Time up to n calls, one after another."""
    start = now = clock()
    end, ends = start + limit_s, [start]
    while len(ends) <= n and now < end:
        fn(len(ends) - 1)
        now = clock()
        ends.append(now)
    return _laps(ends)


async def timed_async(
    fn: Callable[[int], Awaitable[object]], n: int, limit_s: float, *, clock: Callable[[], float] = time.perf_counter
) -> Figures:
    """Time up to n calls, awaited."""
    start = now = clock()
    end, ends = start + limit_s, [start]
    while len(ends) <= n and now < end:
        await fn(len(ends) - 1)
        now = clock()
        ends.append(now)
    return _laps(ends)


def _laps(ends: list[float]) -> Figures:
    """Return the mean over the whole time, and the median call: the cost of a call that nothing interrupted."""
    laps = [after - before for before, after in itertools.pairwise(ends)]
    return {"seconds": ends[-1] - ends[0], "count": len(laps), "p50": statistics.median(laps) if laps else 0.0}


Caller = Callable[[], AbstractContextManager[Callable[[], object]]]
AsyncCaller = Callable[[], AbstractAsyncContextManager[Callable[[], Awaitable[object]]]]


class Tally:
    """Counts what was done until the time was over. A call that ends later does not count, for all sides alike.

    Only if not even one call per caller was done in time, everything counts, with the time that it took.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.start = self.end = float("inf")
        self.count = self.count_late = 0
        self.last = 0.0
        self.errors: dict[str, int] = {}
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Start the clock."""
        self.start = self.last = time.perf_counter()
        self.end = self.start + self.limit_s

    def is_over(self) -> bool:
        """Return whether no further call may begin."""
        return time.perf_counter() >= self.end

    def done(self) -> None:
        """Count one call that succeeded."""
        now = time.perf_counter()
        with self._lock:
            self.count += now <= self.end
            self.count_late += now > self.end
            self.last = max(self.last, now)

    def failed(self, error: Exception) -> None:
        """Count one call that failed."""
        with self._lock:
            self.errors[type(error).__name__] = self.errors.get(type(error).__name__, 0) + 1

    def figures(self, callers: int, each: int) -> Figures:
        """Return calls and time. The time is the limit, unless all were done before it."""
        count, seconds = self.count, self.limit_s
        if count < callers:
            count, seconds = count + self.count_late, self.last - self.start
        elif count >= callers * each:
            seconds = self.last - self.start
        return {"seconds": seconds, "count": count} | ({"errors": self.errors} if self.errors else {})


def many(caller: Caller, n: int, limit_s: float, *, callers: int = CALLERS) -> Figures:
    """Make calls in this many threads at once. Each prepares before the clock starts, and cleans up after it stops."""
    tally, each = Tally(limit_s), max(1, n // callers)
    ready, go = threading.Barrier(callers + 1), threading.Event()

    def loop() -> None:
        with contextlib.ExitStack() as stack:
            call = _entered(stack, caller, tally)
            ready.wait(JOIN_S_MAX)
            go.wait(JOIN_S_MAX)
            for _ in range(each):
                if call is None or tally.is_over():
                    break
                try:
                    call()
                    tally.done()
                except Exception as error:
                    tally.failed(error)

    threads = [threading.Thread(target=loop, daemon=True) for _ in range(callers)]
    for thread in threads:
        thread.start()
    ready.wait(JOIN_S_MAX)
    tally.begin()
    go.set()
    for thread in threads:
        thread.join(JOIN_S_MAX)
    return tally.figures(callers, each)


def _entered(stack: contextlib.ExitStack, caller: Caller, tally: Tally) -> Callable[[], object] | None:
    try:
        return stack.enter_context(caller())
    except Exception as error:
        tally.failed(error)
        return None


async def many_async(caller: AsyncCaller, n: int, limit_s: float, *, callers: int = CALLERS) -> Figures:
    """Make calls in this many coroutines of one loop at once."""
    tally, each = Tally(limit_s), max(1, n // callers)

    async def loop(call: Callable[[], Awaitable[object]]) -> None:
        for _ in range(each):
            if tally.is_over():
                break
            try:
                await call()
                tally.done()
            except Exception as error:
                tally.failed(error)

    async with contextlib.AsyncExitStack() as stack:
        calls = [await stack.enter_async_context(caller()) for _ in range(callers)]
        tally.begin()
        # A separate context for each: a side that uses context variables sees 64 callers, not one.
        await asyncio.gather(*(asyncio.create_task(loop(call)) for call in calls))
    return tally.figures(callers, each)


@contextlib.contextmanager
def plain(call: Callable[[], object]) -> Iterator[Callable[[], object]]:
    """Wrap a caller that needs nothing opened."""
    yield call


@contextlib.asynccontextmanager
async def plain_async(call: Callable[[], Awaitable[object]]) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    """Wrap a caller that needs nothing opened, awaited."""
    yield call


def p99(values: list[float]) -> float:
    """Return the value that 99 of 100 do not exceed."""
    return statistics.quantiles(values, n=100, method="inclusive")[98]


# ---- being asked --------------------------------------------------------------------------


def asked() -> argparse.Namespace:
    """Parse the arguments of a side: the store, and where its database is."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--store", required=True, choices=("memory", "sqlite-normal", "sqlite-full", "postgres", "mariadb")
    )
    parser.add_argument("--place", required=True, help="a file for SQLite, a URL for a server")
    return parser.parse_args()


def erased(path: str) -> str:
    """Return the same path after deleting the database there."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        Path(path + suffix).unlink(missing_ok=True)
    return path


def serve(works: Mapping[str, Work], *, version: str = "") -> None:
    """Answer until the other end of the pipe is closed."""
    _tell({"works": sorted(works), "version": version})
    with asyncio.Runner() as runner:
        for line in sys.stdin:
            ask = json.loads(line)
            try:
                got = works[ask["work"]](ask["n"], ask["limit_s"])
                _tell(runner.run(_awaited(got)) if inspect.isawaitable(got) else got)
            except Exception as error:
                _tell({"error": f"{type(error).__name__}: {error}"[:400]})


async def _awaited(got: Awaitable[Any]) -> Any:
    return await got


def _tell(answer: Mapping[str, Any]) -> None:
    sys.stdout.write(f"{MARK}{json.dumps(answer)}\n")
    sys.stdout.flush()

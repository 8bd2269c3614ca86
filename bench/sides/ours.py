"""amends, through its public surface only, with the defaults that a user gets.

A fresh call is a call in a run that is open, as it is for every peer that has something like a run: opening and
closing are counted in the saga row. With 64 callers every caller has its own run, opened before the clock starts, as
64 agents would; the floor's loops have their connections by then, too.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import itertools
import logging
import sqlite3
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final

import amends
from amends import AsyncRuntime, Runtime, tool
from bench.sides.timing import KNOWN, Figures, Work, args_of, asked, fresh, many, many_async, serve, timed, timed_async
from bench.sides.waits import wait_across, wait_inside

RUN_CALLS: Final = 100
"""Calls in one run, where calls are timed one after another."""
PAGE: Final = 50
"""Runs that are read from the head of the list."""
WARM_RUNS: Final = 10_000
"""Runs before memory is first measured: caches fill, pools start."""

Clock = Callable[[], float]


@tool(key="order_id")
def pay(order_id: str, to: str, amount: float, currency: str) -> dict[str, bool]:
    """Do nothing."""
    return {"ok": True}


@pay.compensate
def refund(result: dict[str, bool]) -> None:
    """Undo nothing."""


@tool(key="order_id")
def ship(order_id: str, to: str, amount: float, currency: str) -> dict[str, bool]:
    """Fail."""
    raise ValueError("the last of four fails")


@ship.compensate
def unship(result: dict[str, bool]) -> None:
    """Never called."""


@tool(key="order_id")
async def apay(order_id: str, to: str, amount: float, currency: str) -> dict[str, bool]:
    """Do nothing, awaited."""
    return {"ok": True}


@apay.compensate
async def arefund(result: dict[str, bool]) -> None:
    """Undo nothing, awaited."""


class Ours:
    """The works, on one ledger."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.rt = Runtime(url, tools=[pay, ship])
        self.art: AsyncRuntime | None = None
        self.recorded = 0

    def works(self) -> dict[str, Work]:
        """Return the works by name."""
        return {
            "fresh": self.fresh,
            "fresh_async": self.fresh_async,
            "many": self.many,
            "many_async": self.many_async,
            "replay": self.replay,
            "saga": self.saga,
            "page": self.page,
            "cpu": self.cpu,
            "cpu_async": self.cpu_async,
            "replayed": self.replayed,
            "verified": self.verified,
            "size": self.size,
            "wal": self.wal,
            "memory": self.memory,
            "wait": lambda n, _: wait_inside(self.url, n),
            "wait_across": lambda n, _: wait_across(self.url, n),
        }

    # ---- against the floor ----------------------------------------------------------------

    def fresh(self, n: int, limit_s: float, clock: Clock = time.perf_counter) -> Figures:
        """Make calls one after another, in runs of a hundred."""

        def one_run(most: int, left_s: float) -> Figures:
            with self.rt.run(fresh("fresh")):
                return timed(lambda _: pay(**args_of(fresh())), most, left_s, clock=clock)

        return _summed(one_run, n, limit_s)

    async def fresh_async(self, n: int, limit_s: float, clock: Clock = time.perf_counter) -> Figures:
        """Make calls one after another, awaited."""
        parts = []
        end = time.perf_counter() + limit_s
        while n > 0 and (left_s := end - time.perf_counter()) > 0:
            async with (await self._async()).run(fresh("fresh")):
                most = min(n, RUN_CALLS)
                parts.append(await timed_async(lambda _: apay(**args_of(fresh())), most, left_s, clock=clock))
            n -= RUN_CALLS
        return _sum(parts)

    def many(self, n: int, limit_s: float) -> Figures:
        """Run 64 threads, each in its own run."""

        @contextlib.contextmanager
        def caller() -> Iterator[Callable[[], object]]:
            with self.rt.run(fresh("many")):
                yield lambda: pay(**args_of(fresh()))

        return many(caller, n, limit_s)

    async def many_async(self, n: int, limit_s: float) -> Figures:
        """Run 64 coroutines, each in its own run."""
        rt = await self._async()

        @contextlib.asynccontextmanager
        async def caller() -> AsyncIterator[Callable[[], Awaitable[object]]]:
            run = await rt.open(fresh("many"))
            try:
                yield lambda: run.call(apay, **args_of(fresh()))
            finally:
                await run.commit()

        return await many_async(caller, n, limit_s)

    def replay(self, n: int, limit_s: float) -> Figures:
        """Repeat the same calls, answered from the record."""
        known = [args_of(f"o-{i}") for i in range(KNOWN)]
        with self.rt.run(fresh("replay")):
            for args in known:
                pay(**args)
            return timed(lambda i: pay(**known[i % KNOWN]), n, limit_s)

    def saga(self, n: int, limit_s: float) -> Figures:
        """Make four calls of which the last fails, and compensate three; the run's beginning and end are included."""

        def one(_: int) -> None:
            with contextlib.suppress(ValueError), self.rt.run(fresh("saga")):
                for i in range(3):
                    pay(**args_of(f"o-{i}"))
                ship(**args_of("o-3"))

        return timed(one, n, limit_s)

    def page(self, n: int, limit_s: float) -> Figures:
        """List the newest runs."""

        def one(_: int) -> None:
            got = len(list(itertools.islice(self.rt.runs(), PAGE)))
            assert got == PAGE, f"a page has {PAGE} runs, not {got}"

        return timed(one, n, limit_s)

    # ---- alone ----------------------------------------------------------------------------

    def cpu(self, n: int, limit_s: float) -> Figures:
        """Measure the CPU time of this process, not wall time."""
        return self.fresh(n, limit_s, time.process_time)

    async def cpu_async(self, n: int, limit_s: float) -> Figures:
        """Measure the same, awaited."""
        return await self.fresh_async(n, limit_s, time.process_time)

    def replayed(self, n: int, _: float) -> Figures:
        """Measure the CPU of replaying a run of this many calls, reading its record included. The run is made once."""
        if self.recorded != n:
            with self.rt.run(f"recorded-{n}"):
                self._ask_for(n)
            self.recorded = n
        begun = time.process_time()
        self.rt.replay(f"recorded-{n}", self._ask_for, n)
        return {"seconds": time.process_time() - begun, "count": n}

    def _ask_for(self, n: int) -> None:
        for number in range(n):
            pay(**args_of(str(number)))

    def verified(self, _: int, limit_s: float) -> Figures:
        """Measure the CPU of auditing the whole ledger, again and again until the time is over."""
        end, seconds, events = time.perf_counter() + limit_s, 0.0, 0
        while not events or time.perf_counter() < end:
            begun = time.process_time()
            found = self.rt.verify()
            seconds += time.process_time() - begun
            assert found.ok, str(found)
            events += found.events
        return {"seconds": seconds, "count": events}

    def size(self, n: int, limit_s: float) -> Figures:
        """Measure by how much the file of SQLite grows, in bytes, when everything is copied into it from the log."""
        path = self.url.removeprefix("sqlite:///").partition("?")[0]
        before = _file_bytes(path)
        count = self.fresh(n, limit_s)["count"]
        return {"bytes": _file_bytes(path) - before, "count": count, "seconds": 0.0}

    def wal(self, n: int, limit_s: float) -> Figures:
        """Measure by how much the log of PostgreSQL grows, in bytes. Nobody else may use the server meanwhile."""
        with importlib.import_module("psycopg").connect(self.url, autocommit=True) as con:
            self.fresh(n // 10, limit_s)  # the first change of an old page logs all of it
            before = con.execute("select pg_current_wal_insert_lsn()").fetchone()[0]
            count = self.fresh(n, limit_s)["count"]
            bytes_ = con.execute("select pg_current_wal_insert_lsn() - %s::pg_lsn", (before,)).fetchone()[0]
        return {"bytes": int(bytes_), "count": count, "seconds": 0.0}

    def memory(self, n: int, limit_s: float) -> Figures:
        """Measure resident memory before and after this many runs of one call."""
        warm = min(WARM_RUNS, max(1, n // 10))
        end = time.perf_counter() + limit_s
        for _ in range(warm):
            self._small_run()
        before, done = resident_kb(), 0
        while done < n and time.perf_counter() < end:
            self._small_run()
            done += 1
        return {"before_kb": before, "after_kb": resident_kb(), "count": done, "seconds": limit_s}

    def _small_run(self) -> None:
        with self.rt.run(fresh("small")):
            pay(**args_of("one"))

    async def _async(self) -> AsyncRuntime:
        if self.art is None:
            self.art = AsyncRuntime(self.url, tools=[apay])
            await self.art.__aenter__()
        return self.art


def _summed(part: Callable[[int, float], Figures], n: int, limit_s: float) -> Figures:
    """Make runs of a hundred calls until n calls are made; only the calls are timed."""
    parts: list[Figures] = []
    end = time.perf_counter() + limit_s
    while n > 0 and (left_s := end - time.perf_counter()) > 0:
        parts.append(part(min(n, RUN_CALLS), left_s))
        n -= RUN_CALLS
    return _sum(parts)


def _sum(parts: list[Figures]) -> Figures:
    return {
        "seconds": sum(part["seconds"] for part in parts),
        "count": sum(part["count"] for part in parts),
        "p50": statistics.median(part["p50"] for part in parts),
    }


def _file_bytes(path: str) -> int:
    """Return the size of a SQLite database whose log is copied into it."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=60)) as con:
        con.execute("pragma wal_checkpoint(full)")
        pages, size = (int(con.execute(f"pragma {name}").fetchone()[0]) for name in ("page_count", "page_size"))
    return pages * size


def resident_kb() -> int:
    """Return the memory of this process after a garbage collection."""
    gc.collect()
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


def url_of(store: str, place: str) -> str:
    """Return the ledger's URL for a store of the table."""
    if store == "memory":
        return "memory:"
    if store.startswith("sqlite-"):
        return f"sqlite:///{place}?synchronous={store.removeprefix('sqlite-')}"
    return place


def main() -> None:
    """Serve amends on one store."""
    said = asked()
    logging.getLogger("amends").setLevel(logging.ERROR)  # do not log that a ledger was created
    ours = Ours(url_of(said.store, said.place))
    with ours.rt:
        serve(ours.works(), version=amends.__version__)


if __name__ == "__main__":
    main()

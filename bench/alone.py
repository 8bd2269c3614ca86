"""Rows that need no floor: how soon a waiter is told, CPU of the engine, import, audit and replay, bytes, memory.

A figure of CPU depends on the machine: each is reported with the time of a calibration loop of the same run.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from hashlib import sha256
from typing import Any, Final

from bench.bars import CPU, CPU_ASYNC, IMPORT, MEMORY, REPLAYED, VERIFIED, WAIT, Row, Work
from bench.contest import ROOT, Side
from bench.fill import fill
from bench.growth import OURS, said
from bench.measure import Effort
from bench.places import Places

WAITERS: Final = 200
"""Enough for a 99th percentile."""
CPU_CALLS: Final = 2_000
REPLAYED_CALLS: Final = 10_000
VERIFIED_EVENTS: Final = 200_000
VERIFIED_CALLS_PER_RUN: Final = 48
"""So that a run has about a hundred events."""
BYTES_CALLS: Final = 5_000
IMPORTS: Final = 11
CALIBRATIONS: Final = 7
CALIBRATION_LOOPS: Final = 2_000
MEMORY_S_MAX: Final = 150.0


def waiting(store: str, places: Places, waiters: int = WAITERS) -> Iterator[Row]:
    """Measure waiters: threads of one process on SQLite, two processes on a server."""
    work = "wait" if store.startswith("sqlite") else "wait_across"
    place = ""

    def measured() -> Row:
        nonlocal place
        place = places.make("wait")
        with Side("amends", OURS, store, place) as side:
            got = side.ask(work, waiters, 60.0)
        more = {"median_ms": round(got["median_ms"], 2), "count": got["count"]}
        return Row(WAIT.title, store, got["p99_ms"], WAIT.bars[store], unit=WAIT.unit, more=more)

    yield _or_error(WAIT, store, measured)
    if place:
        places.drop(place)


def engine(effort: Effort) -> Iterator[Row]:
    """Measure the CPU per call on the ledger in memory: everything but a database."""
    for work in (CPU, CPU_ASYNC):
        yield _or_error(work, "memory", lambda work=work: _cpu(work, effort))  # type: ignore[misc]  # a default binds


def _cpu(work: Work, effort: Effort) -> Row:
    values = []
    with Side("amends", OURS, "memory", "") as side:
        side.ask(work.name, CPU_CALLS // 4, 10.0)
        for _ in range(effort.repeats):
            got = side.ask(work.name, CPU_CALLS, 10.0)
            values.append(got["seconds"] / got["count"] * 1e6)
    value = statistics.median(values)
    return Row(work.title, "memory", value, work.bars["memory"], unit=work.unit, more=calibrated())


def replaying(effort: Effort, calls: int = REPLAYED_CALLS) -> Iterator[Row]:
    """Measure the CPU of a replay, which waits for nothing."""
    title = REPLAYED.title.format(calls=f"{calls:,}")

    def measured() -> Row:
        with Side("amends", OURS, "memory", "") as side:
            got = [side.ask(REPLAYED.name, calls, 60.0) for _ in range(effort.repeats)]
        rate = statistics.median(one["count"] / one["seconds"] for one in got)
        bar = REPLAYED.bars["memory"]
        return Row(title, "memory", rate, bar, REPLAYED.sense, REPLAYED.unit, more=calibrated())

    yield _or_error(REPLAYED, "memory", measured, title=title)


def verifying(places: Places, effort: Effort, events: int = VERIFIED_EVENTS) -> Iterator[Row]:
    """Measure the CPU of an audit, on SQLite NORMAL."""
    store, title = "sqlite-normal", VERIFIED.title.format(events=f"{events:,}")

    def measured() -> Row:
        place = places.make("verified")
        fill(store, place, events // 2, calls_per_run=min(VERIFIED_CALLS_PER_RUN, events // 2))
        with Side("amends", OURS, store, place) as side:
            got = [side.ask(VERIFIED.name, 1, 0.0) for _ in range(min(effort.repeats, 3))]
        places.drop(place)
        rate = statistics.median(one["count"] / one["seconds"] for one in got)
        more = {"count": got[0]["count"], **calibrated()}
        return Row(title, store, rate, VERIFIED.bars[store], VERIFIED.sense, VERIFIED.unit, more=more)

    yield _or_error(VERIFIED, store, measured, title=title)


def written_bytes(work: Work, store: str, places: Places, calls: int = BYTES_CALLS) -> Iterator[Row]:
    """Measure the bytes that a call leaves behind: in the file, or in the log of the server."""

    def measured() -> Row:
        place = places.make(work.name)
        with Side("amends", OURS, store, place) as side:
            side.ask("fresh", calls // 10, 60.0)
            got = side.ask(work.name, calls, 60.0)
        places.drop(place)
        return Row(
            work.title,
            store,
            got["bytes"] / got["count"],
            work.bars[store],
            unit=work.unit,
            more={"count": got["count"]},
        )

    yield _or_error(work, store, measured)


@cache
def calibrated() -> dict[str, Any]:
    """Return the CPU of a fixed loop of what a call consists of (texts, digests, dicts), in microseconds per turn."""
    taken = []
    for _ in range(CALIBRATIONS):
        begun = time.process_time()
        kept: dict[str, str] = {}
        for number in range(CALIBRATION_LOOPS):
            text = f"{number}:{len(kept)}:order-{number}"
            kept[str(number % 64)] = sha256(text.encode("ascii")).hexdigest()
        taken.append((time.process_time() - begun) / CALIBRATION_LOOPS * 1e6)
    return {"calibration_us": round(statistics.median(taken), 3)}


def importing(times: int = IMPORTS) -> Iterator[Row]:
    """Measure the CPU time of an interpreter that imports amends, minus that of one that does not."""

    def measured() -> Row:
        _cpu_ms("from amends import Runtime")  # compile it first
        extra = [_cpu_ms("from amends import Runtime") - _cpu_ms("pass") for _ in range(times)]
        value = statistics.median(extra)
        return Row(IMPORT.title, "any", value, IMPORT.bars["any"], unit=IMPORT.unit, more=calibrated())

    yield _or_error(IMPORT, "any", measured)


def _cpu_ms(code: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, env=kept)  # installed code is compiled
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime) * 1e3


def memory(places: Places, runs: int, *, limit_s: float = MEMORY_S_MAX) -> Iterator[Row]:
    """Measure memory on SQLite NORMAL: a ledger in memory grows by its nature."""
    store, title = "sqlite-normal", MEMORY.title.format(runs=f"{runs:,}")

    def measured() -> Row:
        place = places.make("memory")
        with Side("amends", OURS, store, place) as side:
            got = side.ask("memory", runs, limit_s)
        places.drop(place)
        grown = got["after_kb"] - got["before_kb"]
        more = {
            "before_mb": round(got["before_kb"] / 1024, 1),
            "after_mb": round(got["after_kb"] / 1024, 1),
            "bytes_per_run": round(grown * 1024 / max(1, got["count"]), 1),
            "count": got["count"],
        }
        ratio = got["after_kb"] / got["before_kb"]
        if got["count"] < runs:  # the figure says nothing about all runs
            error = f"there was time for {got['count']:,} runs only; by then it was {ratio:.3f}"
            return Row(title, store, None, MEMORY.bars[store], error=error, more=more)
        return Row(title, store, ratio, MEMORY.bars[store], more=more)

    yield _or_error(MEMORY, store, measured, title=title)


def _or_error(work: Work, store: str, measured: Callable[[], Row], title: str = "") -> Row:
    try:
        return measured()
    except Exception as error:
        return Row(title or work.title, store, None, work.bars[store], unit=work.unit, error=said(error))

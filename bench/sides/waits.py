"""Measure how long after a call has settled a waiter for the same call is told.

Inside one process two threads of one run request the same call. Across processes two runs request the same call of a
pivot that happens once in the ledger: the other run waits for its settlement.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import threading
import time
from typing import Any, Final

from amends import Run, Runtime, tool
from bench.sides.timing import Figures, fresh, p99

HOLD_S: Final = (0.05, 0.15)
"""How long the body takes, at random, so that polling is not lucky every time."""
PAIRS: Final = 2
"""Pairs at work at once, in one process."""
ANSWER_S_MAX: Final = 30.0


class Twins:
    """One body that waits until the second caller asks as well."""

    def __init__(self) -> None:
        self.began: dict[str, threading.Event] = {}


TWINS: Final = Twins()


def _hold(order_id: str) -> None:
    TWINS.began[order_id].set()
    time.sleep(random.uniform(*HOLD_S))


@tool(key="order_id")
def book(order_id: str) -> str:
    """Take a while."""
    _hold(order_id)
    return order_id


@book.compensate
def unbook(result: str) -> None:
    """Undo nothing."""


@tool(key="order_id", kind="pivot", scope="ledger")
def wire(order_id: str) -> str:
    """Take a while; happen once in the ledger."""
    _hold(order_id)
    return order_id


def wait_inside(url: str, n: int) -> Figures:
    """Return the p99, in milliseconds, of waiters in the same process."""
    with Runtime(url, tools=[book]) as rt:
        lags: list[float] = []
        lanes = [threading.Thread(target=_lane, args=(rt, max(1, n // PAIRS), lags)) for _ in range(PAIRS)]
        for lane in lanes:
            lane.start()
        for lane in lanes:
            lane.join()
    return _figures(lags)


def _lane(rt: Runtime, n: int, lags: list[float]) -> None:
    for _ in range(n):
        with rt.run(fresh("wait")) as run:
            lags.append(_pair(run))


def _pair(run: Run) -> float:
    key = fresh()
    began = TWINS.began[key] = threading.Event()
    told: list[float] = []

    def asks() -> None:
        run.call(book, order_id=key)
        told.append(time.monotonic())

    first = threading.Thread(target=asks)
    first.start()
    assert began.wait(ANSWER_S_MAX), "the first of the two callers starts its body"
    second = threading.Thread(target=asks)
    second.start()
    first.join(ANSWER_S_MAX)
    second.join(ANSWER_S_MAX)
    del TWINS.began[key]
    return told[1] - told[0]  # the caller that settled is told first


def wait_across(url: str, n: int) -> Figures:
    """Return the p99, in milliseconds, of waiters in another process."""
    command = [sys.executable, "-m", "bench.sides.waits", "--url", url]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other,
        Runtime(url, tools=[wire]) as rt,
    ):
        assert other.stdin is not None, "the pipe was asked for"
        assert other.stdout is not None, "the pipe was asked for"
        other.stdout.readline()
        lags = [_pair_across(rt, other) for _ in range(n)]
        other.stdin.close()
    return _figures(lags)


def _pair_across(rt: Runtime, other: subprocess.Popen[str]) -> float:
    assert other.stdin is not None, "the pipe was asked for"
    assert other.stdout is not None, "the pipe was asked for"
    key = fresh()
    began = TWINS.began[key] = threading.Event()
    settled: list[float] = []

    def first() -> None:
        with rt.run(fresh("wait")) as run:
            run.call(wire, order_id=key)
            settled.append(time.monotonic())

    thread = threading.Thread(target=first)
    thread.start()
    assert began.wait(ANSWER_S_MAX), "the first of the two callers starts its body"
    other.stdin.write(f"{key}\n")
    other.stdin.flush()
    said: dict[str, Any] = json.loads(other.stdout.readline())
    thread.join(ANSWER_S_MAX)
    del TWINS.began[key]
    if "error" in said:
        raise RuntimeError(said["error"])
    return float(said["told"]) - settled[0]


def _figures(lags: list[float]) -> Figures:
    in_ms = sorted(max(0.0, lag) * 1e3 for lag in lags)
    return {"p99_ms": p99(in_ms), "median_ms": in_ms[len(in_ms) // 2], "count": len(in_ms), "seconds": 0.0}


def main() -> None:
    """Request the call that the other process is making; report when it was answered, on the clock that both share."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    url = parser.parse_args().url
    with Runtime(url, tools=[wire]) as rt:
        print(json.dumps({"ready": True}), flush=True)
        for line in sys.stdin:
            try:
                with rt.run(fresh("wait")) as run:
                    run.call(wire, order_id=line.strip())
                    answer: dict[str, Any] = {"told": time.monotonic()}
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()

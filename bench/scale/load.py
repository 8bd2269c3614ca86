"""One process of a load: threads that make runs of four calls over one ledger for a while. It prints one line of JSON."""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from amends import Budget, Runtime, tool
from amends.errors import Error

CALLS: Final = 4
"""Calls of a run."""
NOTE: Final = "x" * 60


def _made(name: str, **options: Any) -> Any:
    def body(order: str, note: str) -> str:
        return f"done with {order}"

    def undo(order: str) -> None: ...

    made: Any = tool(body, name=name, key="order", **options)
    made.compensate(undo)
    return made


TOOLS: Final = {
    "plain": _made("plain"),
    "general": _made("general", needs_approval=lambda call: False),
    "ledger": _made("ledger", scope="ledger"),
    "budget": _made("budget", cost=1),
    "lock": _made("lock", locks=lambda call: [call.args["order"]]),
    "one lock": _made("one_lock", locks=lambda call: ["the only one"]),
}
"""By the work: a call whose statements are about its run alone, and those that are about the whole ledger, too."""


def main() -> None:
    read = argparse.ArgumentParser()
    read.add_argument("url")
    read.add_argument("--work", choices=list(TOOLS), default="plain")
    read.add_argument("--threads", type=int, default=1)
    read.add_argument("--seconds", type=float, default=3.0)
    read.add_argument("--calls", type=int, default=0, help="stop after so many calls instead")
    said = read.parse_args()
    budgets = [Budget(10**9, per="tenant")] if said.work == "budget" else []
    rt = Runtime(said.url, tools=list(TOOLS.values()), budgets=budgets, checkpoint="off", wait=60)
    _one_run(rt, said.work, f"warm-{os.getpid()}")
    print("ready", flush=True)
    sys.stdin.readline()  # all processes begin together
    used, begun = _cpu_s(), time.monotonic()
    counts, waits = _all(rt, said.work, threads=said.threads, until=begun + said.seconds, calls=said.calls)
    took_s, used = time.monotonic() - begun, _cpu_s() - used
    rt.close()
    waits.sort()
    told = {
        "calls": sum(counts), "seconds": took_s, "cpu_s": used, "p50_ms": _ms(waits, 0.5), "p99_ms": _ms(waits, 0.99),
    }  # fmt: skip
    print(json.dumps(told), flush=True)


def _all(rt: Runtime, work: str, *, threads: int, until: float, calls: int) -> tuple[list[int], list[float]]:
    counts, waits = [0] * threads, [list[float]() for _ in range(threads)]
    enough = -(-calls // (threads * CALLS)) * CALLS

    def make(number: int) -> None:
        done = 0
        while (done < enough) if calls else (time.monotonic() < until):
            waits[number] += _one_run(rt, work, f"{os.getpid()}-{number}-{done}")
            done += CALLS
            counts[number] = done

    working = [threading.Thread(target=_or_end(make), args=(number,)) for number in range(threads)]
    for one in working:
        one.start()
    for one in working:
        one.join()
    return counts, [wait for each in waits for wait in each]


def _or_end(make: Callable[[int], None]) -> Callable[[int], None]:
    def guarded(number: int) -> None:
        try:
            make(number)
        except Error as error:  # a figure of a part of the load would be wrong
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)

    return guarded


def _one_run(rt: Runtime, work: str, name: str) -> list[float]:
    used, waits = TOOLS[work], list[float]()
    with rt.run(name):
        for number in range(CALLS):
            begun = time.monotonic()
            used(order=f"{name}-{number}", note=NOTE)
            waits.append(time.monotonic() - begun)
    return waits


def _ms(waits: list[float], share: float) -> float:
    return round(waits[min(len(waits) - 1, int(len(waits) * share))] * 1000, 2)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()

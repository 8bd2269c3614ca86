"""``make crowd``: many threads, then many tasks, in one process over one ledger; the world and the chain are checked after.

Each caller opens run after run: calls, repeats, a child, runs that fail and are rolled back. What the bodies did is
counted outside the ledger. At the end no effect may have happened twice, none may be left of a run that was rolled back,
every success in the ledger has its effect, and ``verify`` finds the ledger whole. The last line of each ledger says so.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from amends import AsyncRuntime, Runtime, Tool, tool
from tests.chaos.places import STORES, Place
from tests.servers import Unavailable


class Broken(Exception):
    """Why a run is rolled back."""


class World:
    """What really happened, by order: how often it was done, and how often it was taken back."""

    def __init__(self) -> None:
        self.done, self.undone, self.lock = Counter[str](), Counter[str](), threading.Lock()

    def do(self, order: str) -> str:
        """Note an effect."""
        with self.lock:
            self.done[order] += 1
        return f"did {order}"

    def undo(self, order: str) -> None:
        """Note that it was taken back."""
        with self.lock:
            self.undone[order] += 1


def blocking_tool(world: World) -> Tool:
    """Return the tool of the threads."""

    @tool(name="book")
    def book(order: str) -> str:
        return world.do(order)

    @book.compensate
    def cancel(order: str) -> None:
        world.undo(order)

    return book


def async_tool(world: World) -> Tool:
    """Return the tool of the tasks."""

    @tool(name="book")
    async def book(order: str) -> str:
        return world.do(order)

    @book.compensate
    async def cancel(order: str) -> None:
        world.undo(order)

    return book


class Caller:
    """One thread or task: which runs it has committed and rolled back."""

    def __init__(self, name: str, until: float) -> None:
        self.name, self.until, self.dice = name, until, random.Random(name)
        self.committed: list[str] = []
        self.rolled_back: list[str] = []

    def plan(self) -> tuple[str, int, bool, bool]:
        """Return the id of its next run, how many calls it has, whether it has a child, and whether it fails."""
        made = len(self.committed) + len(self.rolled_back)
        return f"{self.name}-{made}", self.dice.randint(1, 6), self.dice.random() < 0.1, self.dice.random() < 0.2

    def live(self, rt: Runtime, book: Tool) -> None:
        """Open runs until the time is over."""
        while time.monotonic() < self.until:
            id, calls, has_child, fails = self.plan()
            try:
                with rt.run(id) as run:
                    for n in range(calls):
                        book(f"{id} {n}")
                    assert book(f"{id} 0") == f"did {id} 0", "a repeat is answered from the ledger"
                    if has_child:
                        with run.child("part"):
                            book(f"{id} part")
                    if fails:
                        raise Broken(id)
            except Broken:
                self.rolled_back.append(id)
            else:
                self.committed.append(id)

    async def live_async(self, rt: AsyncRuntime, book: Tool) -> None:
        """Open runs until the time is over."""
        while time.monotonic() < self.until:
            id, calls, has_child, fails = self.plan()
            try:
                async with rt.run(id) as run:
                    for n in range(calls):
                        await book(f"{id} {n}")
                    assert await book(f"{id} 0") == f"did {id} 0", "a repeat is answered from the ledger"
                    if has_child:
                        async with run.child("part"):
                            await book(f"{id} part")
                    if fails:
                        raise Broken(id)
            except Broken:
                self.rolled_back.append(id)
            else:
                self.committed.append(id)


def by_threads(url: str, count: int, seconds: float, world: World) -> list[Caller]:
    """Let so many threads live over one runtime."""
    book = blocking_tool(world)
    with Runtime(url, tools=[book]) as rt, ThreadPoolExecutor(count) as pool:
        callers = [Caller(f"thread-{n}", time.monotonic() + seconds) for n in range(count)]
        for done in [pool.submit(caller.live, rt, book) for caller in callers]:
            done.result()
    return callers


def by_tasks(url: str, count: int, seconds: float, world: World) -> list[Caller]:
    """Let so many tasks live over one runtime."""
    book = async_tool(world)

    async def play() -> list[Caller]:
        async with AsyncRuntime(url, tools=[book]) as rt:
            callers = [Caller(f"task-{n}", time.monotonic() + seconds) for n in range(count)]
            await asyncio.gather(*(caller.live_async(rt, book) for caller in callers))
        return callers

    return asyncio.run(play())


def problems(url: str, callers: list[Caller], world: World) -> list[str]:
    """Return what is wrong when all have ended."""
    found = [f"{order} happened {times} times" for order, times in world.done.items() if times > 1]
    found += [f"{order} was taken back {times} times" for order, times in world.undone.items() if times > 1]
    found += [f"{order} was taken back and never done" for order in world.undone.keys() - world.done.keys()]
    back = {id for caller in callers for id in caller.rolled_back}
    for order in world.done:
        if (order.partition(" ")[0] in back) != (order in world.undone):
            found.append(f"{order}: its run and the world disagree on whether it was taken back")
    with Runtime(url) as rt:
        states = {"committed": {id for caller in callers for id in caller.committed}, "rolled_back": back}
        for state, ids in states.items():
            listed = {run.id for run in rt.runs(f"state:{state}")} & {id for ids in states.values() for id in ids}
            found += [f"run {id} is not {state} in the ledger, or only there" for id in sorted(listed ^ ids)]
        known = {
            str(call.args["order"]) for call in rt.calls("tool:book") if call.state in ("succeeded", "compensated")
        }
        found += [f"{order}: only in the world, or only in the ledger" for order in sorted(known ^ world.done.keys())]
        audit = rt.verify()
        found += [str(one) for one in audit.problems]
    return found


def play(place: Place, threads: int, tasks: int, seconds: float) -> int:
    """Play both colours, one after the other, over one ledger; return 1 if anything is wrong."""
    world, callers = World(), list[Caller]()
    sides: list[tuple[str, int, Callable[[str, int, float, World], list[Caller]]]] = [
        ("threads", threads, by_threads),
        ("tasks", tasks, by_tasks),
    ]
    for word, count, live in sides:
        began = time.monotonic()
        mine = live(place.url, count, seconds, world)
        callers += mine
        runs = sum(len(one.committed) + len(one.rolled_back) for one in mine)
        took = time.monotonic() - began
        print(f"{place.name}: {count} {word} opened {runs} runs in {took:.0f} s", file=sys.stderr, flush=True)
    found = problems(place.url, callers, world)
    for one in found[:10]:
        print(f"{place.name}: {one}")
    runs = sum(len(one.committed) + len(one.rolled_back) for one in callers)
    print(f"{place.name}: {runs} runs, {world.done.total()} effects, {len(found)} problems", flush=True)
    return 1 if found or not runs else 0


def main() -> int:
    """Return 0 when nothing is wrong on any ledger."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.crowd", description=__doc__)
    parser.add_argument("--store", default="all", choices=("all", *STORES))
    parser.add_argument("--threads", type=int, default=64)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0, help="for the threads, and for the tasks")
    options = parser.parse_args()
    worst = 0
    for name in STORES if options.store == "all" else [options.store]:
        folder = Path(tempfile.mkdtemp(prefix="amends-crowd-"))
        try:
            place = STORES[name](folder)
        except Unavailable as why:
            print(f"{name}: skipped, {why}")
            shutil.rmtree(folder)
            worst = max(worst, 1 if os.environ.get("CI") else 0)
            continue
        try:
            worst = max(worst, play(place, options.threads, options.tasks, options.seconds))
        finally:
            place.close()
            shutil.rmtree(folder, ignore_errors=True)
    return worst


if __name__ == "__main__":
    sys.exit(main())

"""``make bench ARGS=--parts``: what a call or a saga is made of, next to its floor.

For each work it measures, in turn: the floor; the statements of amends with the same values, carried out by a loop that
does nothing else; 64 callers that only queue and are woken; calls, one after another, on the ledger in memory, which is the
engine alone; the same with a flush before each operation, whose time is not counted, which shows how much slower the same
code is after a flush; and amends. What is left between the parts and the whole is Python in the store.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from bench.bars import STORE_NAMES
from bench.contest import Side, SideFailed
from bench.growth import OURS, said
from bench.measure import FLOOR, Effort, grow_log, told
from bench.places import places
from bench.report import machine

BARE: Final = "bench.sides.bare"


@dataclass(frozen=True, slots=True)
class Part:
    """One column: which side does which work."""

    title: str
    side: str
    work: str = ""
    """Empty: the work of the row."""


FLOOR_PART: Final = Part("floor", FLOOR)
STATEMENTS: Final = Part("its statements, bare", "bare")
QUEUE: Final = Part("queue alone", "bare", "queue")
QUEUE_ASYNC: Final = Part("queue alone", "bare", "queue_async")
ENGINE: Final = Part("engine alone", "engine")
ENGINE_ASYNC: Final = Part("engine alone", "engine", "fresh_async")
FLUSHED: Final = Part("engine, after flushes", "bare", "engine_flushed")
WHOLE: Final = Part("amends", "amends")
ALONE: Final = (FLOOR_PART, STATEMENTS, ENGINE, WHOLE)
ROWS: Final[dict[str, dict[str, tuple[Part, ...]]]] = {
    "sqlite-normal": {
        "fresh": ALONE,
        "saga": (FLOOR_PART, STATEMENTS, WHOLE),  # the ledger in memory takes a run back by the general flows
        "many_async": (FLOOR_PART, STATEMENTS, QUEUE_ASYNC, ENGINE_ASYNC, WHOLE),
        "many": (FLOOR_PART, QUEUE, Part("engine alone", "engine", "fresh"), WHOLE),
    },
    "postgres": {
        "many": (FLOOR_PART, QUEUE, Part("engine alone", "engine", "fresh"), WHOLE),
    },
}
ROWS["sqlite-full"] = ROWS["sqlite-normal"] | {"fresh": (FLOOR_PART, STATEMENTS, ENGINE, FLUSHED, WHOLE)}
TITLES: Final = {
    "fresh": "fresh call, sync",
    "saga": "4 calls, the last fails, 3 compensated",
    "many_async": "a call of 64 tasks",
    "many": "a call of 64 threads",
}
COLUMNS: Final = ("floor", "its statements, bare", "queue alone", "engine alone", "engine, after flushes", "amends")
MODULES: Final = {FLOOR: "bench.sides.floor", "bare": BARE, "amends": OURS}


def show(stores: Iterable[str], repeats: int) -> int:
    """Measure the rows of these stores, and print a table in Markdown: microseconds, and ratios to the floor."""
    print(f"{machine()}. Microseconds, and in brackets the ratio to the floor.\n")
    print(f"| work | store | {' | '.join(COLUMNS)} |\n|{' --- |' * (len(COLUMNS) + 2)}", flush=True)
    failed = 0
    for store in stores:
        try:
            for line in measured(store, Effort(repeats=repeats)):
                print(line, flush=True)
        except Exception as error:  # no server
            told(f"{store}: not measured: {said(error)}")
            failed = 1
    return failed


def measured(store: str, effort: Effort) -> Iterator[str]:
    """Yield the lines of the table for one store."""
    with places(store.partition("-")[0]) as made, Side("engine", OURS, "memory", "") as engine:
        sides: dict[str, Side] = {"engine": engine}
        try:
            for name, module in MODULES.items():
                sides[name] = Side(name, module, store, made.make(name))
                if store.startswith("sqlite"):
                    grow_log(sides[name])
            for work, parts in ROWS[store].items():
                told(f"{STORE_NAMES[store]}: {TITLES[work]}")
                yield line_of(store, work, _taken(sides, work, parts, effort))
        finally:
            for side in sides.values():
                side.close()


def _taken(sides: dict[str, Side], work: str, parts: tuple[Part, ...], effort: Effort) -> dict[str, list[float]]:
    """Return the seconds of each part, by its title and repeat; all take turns."""
    taken: dict[str, list[float]] = {part.title: [] for part in parts}
    for repeat in range(effort.repeats + 1):
        for part in parts:
            doing = part.work or work
            limited = effort.for_crowd() if doing.startswith(("many", "queue")) else effort
            got = sides[part.side].ask(doing, limited.calls, limited.limit_s if repeat else limited.warm_s)
            if not got["count"]:
                raise SideFailed(f"{part.side} did not do {doing} once: {got.get('errors', '')}")
            if repeat:  # the first turn warms up
                taken[part.title].append(got["seconds"] / got["count"])
    return taken


def line_of(store: str, work: str, taken: dict[str, list[float]]) -> str:
    """Return one line of the table."""
    cells = [_cell(taken, title) for title in COLUMNS]
    return f"| {TITLES[work]} | {STORE_NAMES[store]} | {' | '.join(cells)} |"


def _cell(taken: dict[str, list[float]], title: str) -> str:
    if title not in taken:
        return ""
    us = statistics.median(taken[title]) * 1e6
    if title == COLUMNS[0]:
        return f"{us:,.0f}"
    ratio = statistics.median(mine / floor for mine, floor in zip(taken[title], taken[COLUMNS[0]], strict=True))
    return f"{us:,.0f} ({ratio:.2f})"

"""``python -m bench``: measure, print a table, write ``bench.json`` and ``bench.svg``. Always exits with 0."""

from __future__ import annotations

import argparse
import contextlib
import logging
import re
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench import parts
from bench.alone import (
    MEMORY_S_MAX,
    VERIFIED_EVENTS,
    engine,
    importing,
    memory,
    replaying,
    verifying,
    waiting,
    written_bytes,
)
from bench.bars import (
    AGAINST_FLOOR,
    CONSOLE,
    CPU,
    CPU_ASYNC,
    ENGINES,
    GATEWAY,
    GROWN,
    IMPORT,
    MEMORY,
    PAGE,
    REPLAYED,
    SERVE,
    SIZE,
    STORES,
    VERIFIED,
    WAIT,
    WAL,
    Row,
    Work,
)
from bench.chart import write_svg
from bench.contest import ROOT, Side, SideFailed
from bench.engines import MODULES as ENGINE_MODULES
from bench.engines import on_engine
from bench.environments import PEERS, installed, is_interpreter
from bench.gateway import through_gateway
from bench.growth import OURS, Ledgers, grown, said
from bench.measure import FLOOR as FLOOR_NAME
from bench.measure import OURS as OUR_NAME
from bench.measure import Effort, against_floor, grow_log, interleaved, shown, told
from bench.places import Places, places
from bench.report import print_table, write_json, write_markdown
from bench.serving import serving

GROWN_CALLS: Final = 1_000_000
MEMORY_RUNS: Final = 100_000
QUICK: Final = Effort(repeats=3, calls=500, limit_s=0.15, warm_s=0.1)
QUICK_WAITERS: Final = 20
QUICK_IMPORTS: Final = 3
QUICK_REPLAYED: Final = 500
QUICK_EVENTS: Final = 10_000
QUICK_BYTES_CALLS: Final = 1_000
FILL_S: Final = 100.0
"""Seconds to create a large ledger, and to measure it."""
MINUTES: Final = 18.0
ABANDONED: Final = "it was interrupted"


class OutOfTimeError(SideFailed):
    """The time limit of the whole run is over: a busy machine must not make it endless."""


@dataclass(slots=True)
class Bench:
    """One run of the whole benchmark."""

    said: argparse.Namespace
    effort: Effort
    rows: list[Row] = field(default_factory=list)
    peers: dict[str, str] = field(default_factory=dict)
    started_at: float = field(default_factory=time.monotonic)

    def left_s(self, needed_s: float = 0.0) -> float:
        """Return the seconds that are left. Raise if they are not enough: the row is then reported as not measured."""
        left_s: float = self.said.minutes * 60 - (time.monotonic() - self.started_at)
        if left_s <= needed_s:
            raise OutOfTimeError(f"not measured: {self.said.minutes:g} minutes were over (--minutes)")
        return left_s

    def wants(self, work: Work, store: str) -> bool:
        """Return whether this row was requested, by its name, its title or its store."""
        named = f"{work.name} {work.title} {store}"
        return store in work.bars and re.search(self.said.only, named) is not None

    def take(self, rows: Iterable[Row]) -> None:
        """Keep the rows, and print each as it arrives."""
        for row in rows:
            self.rows.append(row)
            told(shown(row))

    def run(self) -> None:
        """Measure everything that was requested."""
        stores: list[str] = [store for store in STORES if store in self.said.stores]
        if not self.said.no_peers and any(self._floor_works(store) for store in stores):
            self.peers = installed()
            self.started_at = time.monotonic()  # a first run installs for minutes, which is not measuring time
        if self.wants(CPU, "memory") or self.wants(CPU_ASYNC, "memory"):
            self.take(engine(self.effort))
        if self.wants(REPLAYED, "memory"):
            self.take(replaying(self.effort, *([QUICK_REPLAYED] if self.said.quick else [])))
        if self.wants(IMPORT, "any"):
            self.take(importing(*([QUICK_IMPORTS] if self.said.quick else [])))
        for one in ENGINE_MODULES:
            if self.wants(ENGINES, one):
                self.take(on_engine(one, self.effort.repeats))
        for tool in GATEWAY.bars:
            if self.wants(GATEWAY, tool):
                self.take(through_gateway(tool, self.effort.repeats))
        for family in dict.fromkeys(store.partition("-")[0] for store in stores):
            self._family([store for store in stores if store.startswith(family)], family)
        if "sqlite-normal" in stores and self.wants(MEMORY, "sqlite-normal") and not self.said.quick:
            self._memory()

    def _memory(self) -> None:
        try:
            with places("sqlite") as made:
                self.take(memory(made, MEMORY_RUNS, limit_s=min(MEMORY_S_MAX, self.left_s())))
        except OutOfTimeError as error:
            title = MEMORY.title.format(runs=f"{MEMORY_RUNS:,}")
            self.take([Row(title, "sqlite-normal", None, MEMORY.bars["sqlite-normal"], error=said(error))])

    def _family(self, stores: list[str], family: str) -> None:
        try:
            with places(family) as made:
                for store in stores:
                    self._floor(store, made)
                    if self.wants(WAIT, store):
                        self.left_s()
                        self.take(waiting(store, made, *([QUICK_WAITERS] if self.said.quick else [])))
                    self._alone(store, made)
                self._grown(stores, made)
        except Exception as error:  # no server, or no time: every missing row says so
            self.take(self._missing(stores, said(error)))

    def _alone(self, store: str, made: Places) -> None:
        for work in (SIZE, WAL):
            if self.wants(work, store):
                self.left_s()
                self.take(written_bytes(work, store, made, *([QUICK_BYTES_CALLS] if self.said.quick else [])))
        if self.wants(VERIFIED, store):
            self.left_s()
            self.take(verifying(made, self.effort, self._events))
        if self.wants(SERVE, store):
            self.left_s()
            self.take(serving(store, made, self.effort))

    @property
    def _events(self) -> int:
        return QUICK_EVENTS if self.said.quick else VERIFIED_EVENTS

    def _missing(self, stores: list[str], why: str) -> Iterator[Row]:
        have = {(row.work, row.store) for row in self.rows}
        works = (*AGAINST_FLOOR, *((GROWN, PAGE, CONSOLE) if self.said.large else ()), WAIT, SIZE, WAL, VERIFIED, SERVE)
        for store in stores:
            for work in works:
                title = work.title.format(calls=f"{self.said.large:,}", events=f"{self._events:,}")
                if self.wants(work, store) and (title, store) not in have:
                    yield Row(title, store, None, work.bars[store], work.sense, work.unit, error=why)

    def _floor_works(self, store: str) -> list[Work]:
        return [work for work in AGAINST_FLOOR if self.wants(work, store)]

    def _floor(self, store: str, made: Places) -> None:
        works = self._floor_works(store)
        if not works:
            return
        with contextlib.ExitStack() as stack:
            sides, failed = self._sides(store, made, stack)
            for work in works:
                self.left_s()
                told(f"{store}: {work.title}: {', '.join(name for name in sides if work.name in sides[name].works)}")
                effort = self.effort.for_crowd() if work.name.startswith("many") else self.effort
                figures = interleaved(sides, work.name, effort)
                figures.errors |= failed
                self.take(against_floor(work, store, figures))

    def _sides(self, store: str, made: Places, stack: contextlib.ExitStack) -> tuple[dict[str, Side], dict[str, str]]:
        """Start the sides for this store, and return also the errors of those that did not start."""
        wanted = [(FLOOR_NAME, "bench.sides.floor", sys.executable), (OUR_NAME, OURS, sys.executable)]
        wanted += [
            (peer.name, f"bench.peers.{peer.module}", found)
            for peer in PEERS
            if store in peer.stores and is_interpreter(found := self.peers.get(peer.name, "could not be installed"))
        ]
        sides: dict[str, Side] = {}
        failed: dict[str, str] = {}
        for name, module, python in wanted:
            try:
                side = stack.enter_context(Side(name, module, store, made.make(name), python=python))
                if store.startswith("sqlite"):
                    grow_log(side)
                sides[name] = side
            except Exception as error:
                failed[name] = said(error)
                told(f"{store}: {name} did not start: {failed[name]}")
        return sides, failed

    def _grown(self, stores: list[str], made: Places) -> None:
        wanted = [store for store in stores if any(self.wants(work, store) for work in (GROWN, PAGE, CONSOLE))]
        if not wanted or not self.said.large:
            return
        ledgers = Ledgers(made, self.said.large)
        for store in wanted:
            self.left_s(FILL_S)
            self.take(grown(store, ledgers, self.effort))
        ledgers.drop()


def main(argv: list[str] | None = None) -> int:
    """Measure what was requested. A row that cannot be measured is reported with the reason."""
    said_ = asked(argv)
    if said_.parts:
        return parts.show([store for store in said_.stores if store in parts.ROWS], said_.repeats or Effort().repeats)
    logging.getLogger("amends").setLevel(logging.ERROR)  # do not log that a ledger was created
    effort = QUICK if said_.quick else Effort()
    effort = Effort(said_.repeats or effort.repeats, said_.calls or effort.calls, effort.limit_s, effort.warm_s)
    bench = Bench(said_, effort)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clean up servers, sides and files in both cases
    try:
        bench.run()
    except KeyboardInterrupt:
        told(ABANDONED)
    missing = {name: why for name, why in bench.peers.items() if not is_interpreter(why)}
    print_table(bench.rows, missing)
    write_json(bench.rows, said_.out / "bench.json")
    write_svg(bench.rows, said_.out / "bench.svg")
    write_markdown(bench.rows, said_.out / "bench.md")
    return 0


def asked(argv: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small counts, no large ledger, no peers: under a minute")
    parser.add_argument("--only", default="", metavar="REGEX", help="rows whose work or store matches")
    parser.add_argument("--stores", default=",".join(STORES), help="some of %(default)s; sqlite means both settings")
    parser.add_argument("--repeats", type=int, default=0, metavar="N", help="turns that everybody takes")
    parser.add_argument("--calls", type=int, default=0, metavar="N", help="calls in one turn, at most")
    parser.add_argument("--large", type=int, default=-1, metavar="N", help="calls in the large ledger; 0: none")
    parser.add_argument("--minutes", type=float, default=MINUTES, metavar="M", help="for everything (%(default)g)")
    parser.add_argument("--parts", action="store_true", help="instead: what a call is made of, next to its floor")
    parser.add_argument("--no-peers", action="store_true", help="install and measure no peers")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "build", metavar="FOLDER", help="for bench.json, bench.svg and bench.md"
    )
    said_ = parser.parse_args(argv)
    names = said_.stores.split(",")
    said_.stores = [store for store in STORES if store in names or store.partition("-")[0] in names]
    if unknown := [name for name in names if not any(store.startswith(name) for store in STORES)]:
        parser.error(f"no such store: {', '.join(unknown)}; there are {', '.join(STORES)}")
    if said_.parts and not set(said_.stores) & set(parts.ROWS):
        parser.error(f"there are no parts for {', '.join(said_.stores)}; there are for {', '.join(parts.ROWS)}")
    said_.no_peers = said_.no_peers or said_.quick
    if said_.large < 0:
        said_.large = 0 if said_.quick else GROWN_CALLS
    return said_


if __name__ == "__main__":
    sys.exit(main())

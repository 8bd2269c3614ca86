"""The cost of a large ledger: the same call, a page of the list, and the pages of the console."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from bench.bars import CONSOLE, GROWN, PAGE, Row, Work
from bench.contest import Side, SideFailed
from bench.fill import fill
from bench.measure import Effort, Figures, grow_log, interleaved, told
from bench.places import Places

SMALL_CALLS: Final = 1_000
OURS: Final = "bench.sides.ours"
PAGES: Final = "bench.sides.console"


@dataclass(slots=True)
class Ledgers:
    """Three ledgers of one database: empty, with a thousand calls, with very many."""

    places: Places
    calls: int
    empty: str = ""
    small: str = ""
    large: str = ""
    filled: str = ""
    """A copy of the large one before anything is measured."""

    def make(self, store: str) -> None:
        """Create the ledgers; the large one takes a while."""
        if self.large:
            # SQLite: durability belongs to a connection, so both settings measure the same ledger, each as it was filled.
            self.large, self.filled = self.filled, self.large
            return
        self.empty, self.small, large = (self.places.make(name) for name in ("empty", "small", "large"))
        told(f"filling a ledger with {self.calls:,} calls")
        fill(store, self.small, SMALL_CALLS)
        fill(store, large, self.calls)
        if store.startswith("sqlite"):
            self.filled = self.places.make("filled")
            with contextlib.closing(sqlite3.connect(large)) as con:
                con.execute("pragma wal_checkpoint(truncate)")
            shutil.copyfile(large, self.filled)
        self.large = large

    def drop(self) -> None:
        """Delete the ledgers."""
        for place in (self.empty, self.small, self.large, self.filled):
            if place:
                self.places.drop(place)


def grown(store: str, ledgers: Ledgers, effort: Effort) -> Iterator[Row]:
    """Measure the three rows of a store.

    The pages come first: they also show what was done in the last minute, which must be the same in both ledgers.
    """
    begun = [CONSOLE, GROWN, PAGE]
    try:
        ledgers.make(store)
        with Side("small", PAGES, store, ledgers.small) as small, Side("large", PAGES, store, ledgers.large) as large:
            sides = {"small": small, "large": large}
            found = {name: interleaved(sides, name, effort) for name in small.works}
        begun.pop(0)
        yield _slowest(store, ledgers.calls, found)
        with (
            Side("empty", OURS, store, ledgers.empty) as empty,
            Side("small", OURS, store, ledgers.small) as small,
            Side("large", OURS, store, ledgers.large) as large,
        ):
            if store.startswith("sqlite"):
                grow_log(empty)
                grow_log(large)
            # The difference is a few per cent, so this needs more repeats than rows that differ by a factor.
            often = replace(effort, repeats=effort.repeats * 2)
            calls = interleaved({"empty": empty, "large": large}, "fresh", often)
            yield _row(begun.pop(0), store, ledgers.calls, calls, "empty")
            pages = interleaved({"small": small, "large": large}, "page", effort)
            yield _row(begun.pop(0), store, ledgers.calls, pages, "small")
    except Exception as error:
        for work in begun:
            yield _row(work, store, ledgers.calls, Figures(errors={"large": said(error)}), "small")


def _slowest(store: str, calls: int, found: dict[str, Figures]) -> Row:
    """Return the row of the page whose ratio is the highest, with the figures of all."""
    ratios = {name: figures.ratio("large", "small") for name, figures in found.items()}
    slowest = max(found, key=lambda name: ratios[name] or float("inf"))
    row = _row(CONSOLE, store, calls, found[slowest], "small")
    row.more["page"] = slowest
    row.more["pages"] = {
        name: {"ratio": None if ratios[name] is None else round(ratios[name] or 0, 3), "us": found[name].us("large")}
        for name in found
    }
    return row


def _row(work: Work, store: str, calls: int, figures: Figures, other: str) -> Row:
    more = {"us": figures.us("large"), "floor_us": figures.us(other), "p50_ratio": figures.p50_ratio("large", other)}
    return Row(
        work.title.format(calls=f"{calls:,}"), store, figures.ratio("large", other), work.bars[store],
        error="; ".join(figures.errors.values()), more=more,
    )  # fmt: skip


def said(error: Exception) -> str:
    """Format an error as one line."""
    text = " ".join(str(error).split())
    return (text if isinstance(error, SideFailed) else f"{type(error).__name__}: {text}")[:300]

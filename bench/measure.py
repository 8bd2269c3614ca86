"""All sides take turns within every repeat, so that noise affects all; a ratio is the median of the repeats' ratios."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.bars import BEHIND, STORE_NAMES, Row, Work, behind_bar
from bench.contest import Side, SideFailed

FLOOR: Final = "floor"
OURS: Final = "amends"
WARM_N: Final = 20
"""Warm-up calls: connections, prepared statements, first imports."""
CROWD_CALLS_MAX: Final = 64_000
WORK_S_MAX: Final = 45.0
"""The limit for one work on one store. On a busy machine, and with slow peers, there are fewer repeats."""
REPEATS_MIN: Final = 3
LOG_BYTES: Final = 4_000_000
LOG_S_MAX: Final = 6.0
TURN_S_MAX: Final = 5.0
"""A peer whose turn takes longer than this, with preparation, is not asked again: its figure is clear by then."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured."""

    repeats: int = 7
    calls: int = 2_000
    limit_s: float = 0.25
    """A side that needs longer than this for all its calls makes fewer of them."""
    warm_s: float = 0.2

    def for_crowd(self) -> Effort:
        """With 64 callers: limited by time only, longer, and with fewer repeats."""
        return Effort((self.repeats + 1) // 2, CROWD_CALLS_MAX, self.limit_s * 2, self.warm_s)


@dataclass(slots=True)
class Figures:
    """The result of one work: seconds per call, by side and repeat, and the errors of sides that failed."""

    per_call: dict[str, list[float]] = field(default_factory=dict)
    medians: dict[str, list[float]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    def ratio(self, one: str, other: str) -> float | None:
        """Return the median, over the repeats, of one side's time per call divided by the other's."""
        pairs = zip(self.per_call.get(one, ()), self.per_call.get(other, ()), strict=False)
        ratios = [mine / its for mine, its in pairs if its > 0]
        return statistics.median(ratios) if ratios else None

    def p50_ratio(self, one: str, other: str) -> float | None:
        """Return the same by each turn's median call, which a busy machine disturbs less. No bar is judged by it."""
        pairs = zip(self.medians.get(one, ()), self.medians.get(other, ()), strict=False)
        ratios = [mine / its for mine, its in pairs if its > 0]
        return round(statistics.median(ratios), 3) if ratios else None

    def us(self, side: str) -> float | None:
        """Return the median of the microseconds per call."""
        values = self.per_call.get(side)
        return round(statistics.median(values) * 1e6, 1) if values else None


def grow_log(side: Side) -> None:
    """Grow SQLite's log to the size at which it is reused, as in the long run.

    While the log still grows, each flush also waits for the file system's own journal, and a side that writes more at a
    time is through with that sooner.
    """
    log = Path(f"{side.place}-wal")
    work = next((work for work in ("fresh", "fresh_async") if work in side.works), None)
    end = time.monotonic() + LOG_S_MAX
    while work is not None and time.monotonic() < end:
        side.ask(work, WARM_N * 5, LOG_S_MAX)
        if not log.exists() or log.stat().st_size >= LOG_BYTES:
            break


def interleaved(sides: Mapping[str, Side], work: str, effort: Effort) -> Figures:
    """Ask every side that can do the work, in turn, once per repeat. A side that fails is not asked again."""
    figures = Figures()
    able = {name: side for name, side in sides.items() if work in side.works}
    start = time.monotonic()
    for repeat in range(effort.repeats + 1):
        if repeat > REPEATS_MIN and time.monotonic() - start > WORK_S_MAX:
            break
        for name in list(able):
            began = time.monotonic()
            try:
                if repeat == 0:
                    able[name].ask(work, WARM_N, effort.warm_s)
                else:
                    _take(figures, name, able[name].ask(work, effort.calls, effort.limit_s))
            except SideFailed as error:
                figures.errors[name] = str(error)
                del able[name]
            took_s = time.monotonic() - began
            if name in able and repeat > 0 and took_s > TURN_S_MAX and name not in (FLOOR, OURS):
                figures.notes[name] = f"asked {repeat} times only: a turn took {took_s:.0f} s"
                del able[name]
    return figures


def _take(figures: Figures, name: str, got: Mapping[str, Any]) -> None:
    if got.get("errors"):
        figures.notes[name] = f"lost calls: {got['errors']}"
    if not got["count"]:
        raise SideFailed(f"not one call was made: {got.get('errors', '')}")
    figures.per_call.setdefault(name, []).append(got["seconds"] / got["count"])
    if got.get("p50"):
        figures.medians.setdefault(name, []).append(got["p50"])


def against_floor(work: Work, store: str, figures: Figures) -> Iterable[Row]:
    """Return the row of amends and, if a peer did the work too, the row that compares with the best peer."""
    per_call = figures.ratio(OURS, FLOOR)
    at_least = work.sense == "at least"
    ratio = (1 / per_call if at_least else per_call) if per_call else None
    peers = {
        name: round(1 / found if at_least else found, 2)
        for name in figures.per_call
        if name not in (FLOOR, OURS) and (found := figures.ratio(name, FLOOR))
    }
    more: dict[str, Any] = {"us": figures.us(OURS), "floor_us": figures.us(FLOOR)}
    if p50 := figures.p50_ratio(OURS, FLOOR):
        more["p50_ratio"] = p50
    ranked = sorted(peers, key=lambda name: peers[name], reverse=at_least)
    if ranked:
        more |= {"peer": ranked[0], "peer_ratio": peers[ranked[0]], "peers": {name: peers[name] for name in ranked}}
    notes = figures.notes | {name: said for name, said in figures.errors.items() if name not in (FLOOR, OURS)}
    if notes:
        more["notes"] = notes
    error = figures.errors.get(OURS) or figures.errors.get(FLOOR) or ""
    bar = work.bar(store, figures.us(FLOOR))
    yield Row(work.title, store, ratio, bar, work.sense, error=error, more=more)
    if ranked:
        # By time per call, whichever way the row counts: at most 1 means not slower. The peer that is hardest to meet.
        ratios = {name: figures.ratio(OURS, name) or 0.0 for name in ranked}
        hardest = max(ranked, key=lambda name: ratios[name] / behind_bar(work.name, store, name))
        yield Row(
            BEHIND.format(title=work.title), store, ratios[hardest] or None, behind_bar(work.name, store, hardest),
            error=error, more={"peer": hardest, "us": figures.us(OURS), "peer_us": figures.us(hardest)},
        )  # fmt: skip


def told(what: str) -> None:
    """Print one line of progress on stderr."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {what}\n")
    sys.stderr.flush()


def shown(row: Row) -> str:
    """Format a row as one line, as it arrives."""
    value = (
        row.error or "could not be measured" if row.ratio is None else f"{row.ratio:.2f}{row.unit and ' ' + row.unit}"
    )
    sign = "≤" if row.sense == "at most" else "≥"
    return f"{STORE_NAMES.get(row.store, row.store)}: {row.work}: {value} ({sign} {row.bar:g}){'' if row.holds else '  MISSED'}"

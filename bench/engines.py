"""A call on a durable engine, bare against the same call with amends: in turn, on one real server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from bench.bars import ENGINES, Row
from bench.contest import Side
from bench.growth import said

MODULES: Final = {"temporal": "bench.sides.temporal", "restate": "bench.sides.restate"}
"""The side of each engine. It has two works: ``bare`` and ``guarded``."""
FLUSHING: Final = frozenset({"restate"})
"""The sides that also have ``flushing``: the bare call whose body flushes twice, as a record before and after it does."""
ROUNDS_MIN: Final = 5
CALLS: Final = 20
"""Of one turn; beginning and end of the run are part of it."""
LIMIT_S: Final = 60.0


def on_engine(engine: str, repeats: int) -> Iterator[Row]:
    """Measure both in turn; the ratio is the median of the turns' ratios."""
    try:
        with Side(engine, MODULES[engine], "memory", engine) as side:
            for work in ("bare", "guarded"):
                side.ask(work, CALLS, LIMIT_S)  # the first one is slower
            turns, flushed = [], []
            for number in range(max(ROUNDS_MIN, repeats)):
                turns.append(_turn(side, number))
                if engine in FLUSHING:
                    flushed.append(_ms(side.ask("flushing", CALLS, LIMIT_S)))
        yield _row(engine, turns, flushed)
    except Exception as error:
        yield Row(ENGINES.title, engine, None, ENGINES.bars[engine], ENGINES.sense, error=said(error))


def _turn(side: Side, number: int) -> tuple[float, float]:
    """Return the milliseconds of a bare call and of a guarded one; each is the first one in every other turn."""
    order = ("bare", "guarded") if number % 2 == 0 else ("guarded", "bare")
    figures: dict[str, dict[str, Any]] = {work: side.ask(work, CALLS, LIMIT_S) for work in order}
    return _ms(figures["bare"]), _ms(figures["guarded"])


def _ms(figures: dict[str, Any]) -> float:
    return float(1e3 * figures["seconds"] / figures["count"])


def _row(engine: str, turns: list[tuple[float, float]], flushed: list[float]) -> Row:
    ratios = sorted(guarded / bare for bare, guarded in turns)
    middle = len(turns) // 2
    bare_ms, guarded_ms = (sorted(one)[middle] for one in zip(*turns, strict=True))
    note = f"a bare call {bare_ms:.1f} ms, with amends {guarded_ms:.1f} ms, on a server of one process"
    if flushed:
        note += f"; a bare call whose body flushes two pages {sorted(flushed)[middle]:.1f} ms"
    more = {
        "us": round(1e3 * guarded_ms, 1),
        "floor_us": round(1e3 * bare_ms, 1),
        "ratios": [round(one, 3) for one in ratios],
        "notes": {engine: note},
    }
    return Row(ENGINES.title, engine, ratios[middle], ENGINES.bars[engine], ENGINES.sense, more=more)

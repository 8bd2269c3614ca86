"""What is measured, and the bar for each row. The bars are the project's own; a run that misses one reports it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal

Sense = Literal["at most", "at least"]

STORES: Final = ("sqlite-normal", "sqlite-full", "postgres", "mariadb")
STORE_NAMES: Final = {
    "sqlite-normal": "SQLite NORMAL",
    "sqlite-full": "SQLite FULL",
    "postgres": "PostgreSQL",
    "mariadb": "MariaDB",
    "memory": "memory",
    "any": "any store",
}


@dataclass(frozen=True, slots=True)
class Work:
    """One row of the table: what a side is asked to do, and the bar on each store."""

    name: str
    title: str
    bars: dict[str, float]
    sense: Sense = "at most"
    unit: str = ""
    """Empty for a ratio, else the unit of the figure itself."""


def _bars(*values: float) -> dict[str, float]:
    return dict(zip(STORES, values, strict=True))


AGAINST_FLOOR: Final = (
    Work("fresh", "fresh call, one after another, sync", _bars(2.5, 1.3, 1.5, 2.0)),
    Work("fresh_async", "fresh call, one after another, async", _bars(5.0, 1.6, 1.7, 2.5)),
    Work("many", "calls per second, 64 callers, threads", _bars(1.5, 8.0, 1.5, 0.8), "at least"),
    Work("many_async", "calls per second, 64 callers, async", _bars(1.5, 8.0, 1.5, 0.8), "at least"),
    Work("replay", "answer from the record, against one indexed read", _bars(4.0, 4.0, 1.5, 1.5)),
    Work("saga", "4 calls, the last fails, 3 compensated, against the same commits", _bars(2.5, 1.3, 1.5, 2.0)),
)
GROWN: Final = Work(
    "grown", "the same call in a ledger of {calls} calls, against an empty one", _bars(1.15, 1.15, 1.15, 1.3)
)
PAGE: Final = Work("page", "a page of the run list at {calls} calls, against one of 1,000", _bars(1.5, 1.5, 1.5, 1.5))
WAIT: Final = Work("wait", "delay until a waiter is told, p99", dict.fromkeys(STORES[:3], 20.0), unit="ms")
CPU: Final = Work("cpu", "CPU of the engine, a call, sync", {"memory": 80.0}, unit="µs")
CPU_ASYNC: Final = Work("cpu_async", "CPU of the engine, a call, async", {"memory": 80.0}, unit="µs")
REPLAYED: Final = Work(
    "replayed",
    "a run of {calls} calls, replayed, reading its record included",
    {"memory": 20_000.0},
    "at least",
    "calls/s",
)
IMPORT: Final = Work(
    "import", "CPU of `from amends import Runtime`, above a bare interpreter", {"any": 120.0}, unit="ms"
)
MEMORY: Final = Work(
    "memory", "resident memory after {runs} runs, against after the first tenth", {"sqlite-normal": 1.05}
)
BEHIND: Final = "never behind a peer: {title}"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the result. ``more`` has further facts, for the JSON and the chart."""

    work: str
    store: str
    ratio: float | None
    bar: float
    sense: Sense = "at most"
    unit: str = ""
    error: str = ""
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether the bar is met. A row that could not be measured does not meet it."""
        if self.ratio is None:
            return False
        return self.ratio <= self.bar if self.sense == "at most" else self.ratio >= self.bar

    def as_json(self) -> dict[str, Any]:
        """Return the five keys first, then the rest."""
        said: dict[str, Any] = {
            "work": self.work,
            "store": self.store,
            "ratio": None if self.ratio is None else round(self.ratio, 3),
            "bar": self.bar,
            "holds": self.holds,
            "sense": self.sense,
        }
        if self.unit:
            said["unit"] = self.unit
        if self.error:
            said["error"] = self.error
        return said | self.more

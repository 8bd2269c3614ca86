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
    "temporal": "Temporal",
    "restate": "Restate",
    "echo": "echo",
    "works": "a tool of 50 ms",
    "create_entities": "memory: create_entities",
    "write_file": "filesystem: write_file",
}


@dataclass(frozen=True, slots=True)
class Stricter:
    """Another bar, for machines on which the floor takes from ``from_us`` to below ``to_us`` per call."""

    bar: float
    from_us: float = 0.0
    to_us: float = float("inf")

    def holds_at(self, floor_us: float) -> bool:
        """Return whether this bar is the one to meet."""
        return self.from_us <= floor_us < self.to_us


@dataclass(frozen=True, slots=True)
class Work:
    """One row of the table: what a side is asked to do, and the bar on each store."""

    name: str
    title: str
    bars: dict[str, float]
    sense: Sense = "at most"
    unit: str = ""
    """Empty for a ratio, else the unit of the figure itself."""
    stricter: dict[str, Stricter] = field(default_factory=dict)

    def bar(self, store: str, floor_us: float | None) -> float:
        """Return the bar on a store where the floor takes so many microseconds per call."""
        other = self.stricter.get(store)
        return self.bars[store] if other is None or floor_us is None or not other.holds_at(floor_us) else other.bar


def _bars(*values: float) -> dict[str, float]:
    return dict(zip(STORES, values, strict=True))


FAST_FLUSH_US: Final = 300.0
"""A disk that flushes in less: a call of the floor, which flushes twice, then takes less than two of them."""
SLOW_LOOPS_US: Final = 1_000.0
"""64 loops that together do fewer than 1,000 calls per second."""

AGAINST_FLOOR: Final = (
    Work("fresh", "fresh call, sync", _bars(2.0, 1.3, 1.3, 1.6)),
    Work(
        "fresh_async", "fresh call, async", _bars(2.5, 2.3, 1.4, 2.0),
        stricter={"sqlite-full": Stricter(1.6, to_us=2 * FAST_FLUSH_US)},
    ),
    Work("many_async", "calls per second, 64 tasks against 64 naive loops", _bars(1.8, 6.0, 3.0, 1.2), "at least"),
    Work(
        "many", "calls per second, 64 threads against 64 naive loops", _bars(0.9, 2.5, 2.0, 1.2), "at least",
        stricter={"sqlite-full": Stricter(8.0, from_us=SLOW_LOOPS_US)},
    ),
    Work("replay", "answer from the record, against one indexed read", _bars(4.0, 4.0, 1.2, 1.2)),
    Work("saga", "4 calls, the last fails, 3 compensated, against the same commits", _bars(2.0, 1.3, 1.4, 1.7)),
)  # fmt: skip
GROWN: Final = Work(
    "grown", "the same call in a ledger of {calls} calls, against an empty one", _bars(1.15, 1.15, 1.15, 1.3)
)
PAGE: Final = Work("page", "a page of the run list at {calls} calls, against one of 1,000", _bars(1.5, 1.5, 1.5, 1.5))
CONSOLE: Final = Work(
    "console", "the slowest page of the console at {calls} calls, against one of 1,000", _bars(1.5, 1.5, 1.5, 1.5)
)
WAIT: Final = Work("wait", "delay until a waiter is told, p99", dict.fromkeys(STORES[:3], 20.0), unit="ms")
CPU: Final = Work("cpu", "CPU of the engine, a call, sync", {"memory": 30.0}, unit="µs")
CPU_ASYNC: Final = Work("cpu_async", "CPU of the engine, a call, async", {"memory": 30.0}, unit="µs")
REPLAYED: Final = Work(
    "replayed",
    "a run of {calls} calls, replayed, reading its record included",
    {"memory": 40_000.0},
    "at least",
    "calls/s",
)
VERIFIED: Final = Work(
    "verified", "an audit of {events} events", {"sqlite-normal": 60_000.0}, "at least", "events/s"
)  # fmt: skip
IMPORT: Final = Work(
    "import", "CPU of `from amends import Runtime`, above a bare interpreter", {"any": 90.0}, unit="ms"
)  # fmt: skip
SIZE: Final = Work("size", "the ledger grows by, a plain call", {"sqlite-normal": 500.0}, unit="bytes")
WAL: Final = Work("wal", "write-ahead log, a plain call", {"postgres": 1_300.0}, unit="bytes")
MEMORY: Final = Work(
    "memory", "resident memory after {runs} runs, against after the first tenth", {"sqlite-normal": 1.05}
)
SERVE: Final = Work(
    "serve", "claims over HTTP, 256 connections: pairs per second against the library in process",
    dict.fromkeys(STORES[:3], 0.4), "at least",
)  # fmt: skip
ENGINES: Final = Work(
    "engines", "a call on a durable engine, against the bare call", {"temporal": 1.3, "restate": 1.3}
)  # fmt: skip
"""Its stores are the engines; the ledger is a file beside the data of the server."""
GATEWAY: Final = Work(
    "gateway", "MCP gateway, a call through it against the bare server, stdio",
    dict.fromkeys(("echo", "works", "create_entities", "write_file"), 1.5),
)  # fmt: skip
"""Its stores are the tools that are called."""
BEHIND: Final = "never behind a peer: {title}"
BEHIND_BAR: Final = 1.0
ALLOWED_BAR: Final = 1.3
"""Against exactly-once on SQLite NORMAL, which validates nothing and keeps no run, event or chain, and against sagas
that are written by hand over a package that has none."""
HAVE_SAGAS: Final = frozenset({"agent-saga", "agentrelay", "DBOS"})


def behind_bar(work: str, store: str, peer: str) -> float:
    """Return how many times the time of a peer amends may take."""
    is_bare = peer == "exactly-once" and store == "sqlite-normal"
    return ALLOWED_BAR if is_bare or (work == "saga" and peer not in HAVE_SAGAS) else BEHIND_BAR


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

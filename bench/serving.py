"""The service against the library: claims and reports of 256 clients, over HTTP and in the process of the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from bench.bars import SERVE, Row
from bench.contest import Side
from bench.growth import said
from bench.measure import Effort
from bench.places import Places

MODULE: Final = "bench.sides.service"
PAIRS_MAX: Final = 64_000
WARM_PAIRS: Final = 512
TURN_S: Final = 4.0
"""Of one turn, in units of the effort's own: 256 clients need a while to be at work all."""


def serving(store: str, places: Places, effort: Effort) -> Iterator[Row]:
    """Measure both in turn; the ratio is the median of the turns' ratios of rates."""
    made: list[str] = []
    try:
        made += [places.make("library"), places.make("service")]
        with Side("library", MODULE, store, made[0]) as library, Side("service", MODULE, store, made[1]) as service:
            library.ask("pairs", WARM_PAIRS, effort.warm_s)
            service.ask("pairs_http", WARM_PAIRS, effort.warm_s)
            turns = [
                (
                    library.ask("pairs", PAIRS_MAX, effort.limit_s * TURN_S),
                    service.ask("pairs_http", PAIRS_MAX, effort.limit_s * TURN_S),
                )
                for _ in range(effort.repeats)
            ]
        yield _row(store, turns)
    except Exception as error:
        yield Row(SERVE.title, store, None, SERVE.bars[store], SERVE.sense, error=said(error))
    finally:
        for place in made:
            places.drop(place)


def _row(store: str, turns: list[tuple[dict[str, Any], dict[str, Any]]]) -> Row:
    rates = [tuple(one["count"] / one["seconds"] for one in turn) for turn in turns]
    ratios = sorted(http / inside for inside, http in rates)
    middle = len(turns) // 2
    errors = {name: count for _, http in turns for name, count in (http.get("errors") or {}).items()}
    more = {
        "us": round(sorted(1e6 / http for _, http in rates)[middle], 1),
        "floor_us": round(sorted(1e6 / inside for inside, _ in rates)[middle], 1),
        "p99_ms": round(sorted(http["p99_ms"] for _, http in turns)[middle], 1),
        "library_p99_ms": round(sorted(inside["p99_ms"] for inside, _ in turns)[middle], 1),
        "pairs": sum(http["count"] for _, http in turns),
        "ratios": [round(one, 3) for one in ratios],
        "notes": {"service": f"p99 of a pair {sorted(http['p99_ms'] for _, http in turns)[middle]:.0f} ms, in process"
                  f" {sorted(inside['p99_ms'] for inside, _ in turns)[middle]:.0f} ms; every answered pair is in the ledger"},
    }  # fmt: skip
    error = f"the service failed: {errors}" if errors else ""
    return Row(SERVE.title, store, ratios[middle], SERVE.bars[store], SERVE.sense, error=error, more=more)

"""A simulation: tenants of very different size, and 1, 10 or 100 ledgers. Deterministic by its seed."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate
from typing import Final

SEED: Final = 21
TENANTS: Final = 10_000
CALLS: Final = 500_000
EXPONENTS: Final = (0.8, 1.1)
"""Of Zipf's law: the nth largest tenant makes calls in proportion to 1 / n ** exponent."""
SHARDS: Final = (1, 10, 100)


@dataclass(frozen=True, slots=True)
class Spread:
    """How the calls of a skewed load spread over so many ledgers."""

    exponent: float
    shards: int
    placed: str
    """By ``hash`` of the tenant's name, or by a ``table`` that somebody keeps: the largest tenants are placed first, each on
    the emptiest ledger."""
    largest_tenant: float
    """Its share of all calls."""
    busiest: float
    """The share of the busiest ledger in all calls."""
    capacity: float
    """How many calls all ledgers carry together before the busiest one is full, as a multiple of one ledger."""
    tenants_hit: float
    """The share of tenants that wait if the busiest ledger is lost."""


def spreads(seed: int = SEED, *, tenants: int = TENANTS, calls: int = CALLS) -> list[Spread]:
    """Return the result for every exponent, number of ledgers and way of placing."""
    loads = {exponent: drawn(seed, exponent, tenants=tenants, calls=calls) for exponent in EXPONENTS}
    return [
        spread(load, exponent, shards, placed, tenants=tenants)
        for exponent, load in loads.items()
        for shards in SHARDS
        for placed in (("hash", "table") if shards > 1 else ("table",))
    ]


def drawn(seed: int, exponent: float, *, tenants: int, calls: int) -> Counter[int]:
    """Return how many calls each tenant makes."""
    chance = random.Random(f"{seed} {exponent}")
    weights = list(accumulate(1 / rank**exponent for rank in range(1, tenants + 1)))
    return Counter(chance.choices(range(tenants), cum_weights=weights, k=calls))


def spread(load: Counter[int], exponent: float, shards: int, placed: str, *, tenants: int) -> Spread:
    """Place every tenant on one ledger, and count."""
    calls, members = [0] * shards, [0] * shards
    for tenant in sorted(range(tenants), key=lambda one: (-load[one], one)):
        if placed == "hash":
            place = int.from_bytes(sha256(f"tenant-{tenant}".encode()).digest()[:8]) % shards
        else:
            place = min(range(shards), key=lambda one: (calls[one], members[one], one))
        calls[place] += load[tenant]
        members[place] += 1
    total, most = sum(calls), max(calls)
    return Spread(
        exponent, shards, placed, max(load.values()) / total, most / total, total / most,
        members[calls.index(most)] / tenants,
    )  # fmt: skip


def table() -> list[str]:
    """Return the result as a table in Markdown."""
    return [
        "| load | ledgers | placed by | largest tenant | busiest ledger | all carry | tenants that wait if the busiest is lost |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *(
            f"| Zipf {one.exponent:g} | {one.shards} | {one.placed} | {one.largest_tenant:.1%} | {one.busiest:.1%} |"
            f" {one.capacity:.1f} × one | {one.tenants_hit:.2%} |"
            for one in spreads()
        ),
    ]

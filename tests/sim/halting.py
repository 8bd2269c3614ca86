"""Flows beside which a person halts the ledger, or a part of it, and lifts that again."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from amends.errors import UsageError
from amends.ledger.world import Sleep
from amends.people import halts
from amends.testing.simulation import NOBODY, Inside
from tests.sim.scenarios import Fails, Scenario, Variant, do, make, traits

VARIANTS = (Variant(), Variant(probe=True), Variant(twin="absent_ok"), Variant(probe=True, twin="wins"))
"""Without idempotent tools: one in doubt is not started again while a halt stands, and a dead person lifts none."""


def _stopper(pause: float, stays: float, **extent: str) -> Callable[[Inside], Coroutine[Any, Any, None]]:
    async def person(inside: Inside) -> None:
        for _ in range(3):
            await Sleep(pause)
            await halts.halt(inside.host, NOBODY, by="anna", why="it runs wild", **extent)
            await Sleep(stays)
            with suppress(UsageError):  # another one has lifted it
                await halts.unhalt(inside.host, NOBODY, by="anna", why="it is tame", **extent)

    return person


def halt_scenarios(v: Variant) -> list[Scenario]:
    """A run that goes on, one with retries and one that fails, each with a person beside it."""
    if v not in VARIANTS:
        return []
    a, b = make("a", variant=v), make("b", variant=v)
    rest = {name: traits(v) for name in "ab"}

    async def goes_on(inside: Inside) -> None:
        async with inside.run("r") as run:
            for n in range(1, 5):
                await do(run, a, n=n)
                await Sleep(0.5)
                await do(run, b, n=n)

    async def fails(inside: Inside) -> None:
        async with inside.run("r") as run:
            await do(run, a, n=1)
            await do(run, b, n=1)
            raise Fails("on purpose")

    tired = {"b": ["no effect", "no effect", "no effect"]}
    return [
        Scenario("F70 halted", goes_on, [a, b], rest, second=_stopper(0.7, 0.7)),
        Scenario("F70 halted for good", goes_on, [a, b], rest, second=_stopper(1.2, 900.0)),
        Scenario("F70 halted tool", goes_on, [a, b], rest, second=_stopper(0.7, 0.7, tool="b")),
        Scenario("F70 halted between attempts", goes_on, [a, b], rest, script=tired, second=_stopper(0.7, 3.0)),
        Scenario("F70 halted rollback", fails, [a, b], rest, second=_stopper(0.0, 900.0)),
    ]

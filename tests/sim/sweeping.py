"""Flows beside which gc sweeps: as early as it may, and again and again."""

from __future__ import annotations

from contextlib import suppress

from amends.errors import ResultGone
from amends.ledger.operations import CollectGarbage
from amends.ledger.world import Sleep
from amends.testing.simulation import Inside
from tests.sim.scenarios import Fails, Scenario, Variant, do, make, traits

SWEEPS = 6


async def sweeper(inside: Inside) -> None:
    """Whatever has ended goes at once: the shortest age that there is."""
    for _ in range(SWEEPS):
        await CollectGarbage(0.0)
        await Sleep(7.0)


def sweeping_scenarios(v: Variant) -> list[Scenario]:
    """A run that fails, and one that commits and is opened again, both with gc beside them."""
    a, b = make("a", variant=v), make("b", variant=v)
    both = {"a": traits(v), "b": traits(v)}

    async def fails(inside: Inside) -> None:
        async with inside.run("r") as run:
            await do(run, a, n=1)
            await do(run, b, n=1)
            raise Fails("on purpose")

    async def again(inside: Inside) -> None:
        for _ in range(2):
            async with inside.run("r") as run:
                with suppress(ResultGone):
                    await do(run, a, n=1)
            await Sleep(9.0)

    late = {"b": ["answer lost"]}
    return [
        Scenario("F25 gc beside a rollback", fails, [a, b], both, script=late, second=sweeper, sweeper=sweeper),
        Scenario("F25b gc beside a repeat", again, [a], {"a": traits(v)}, second=sweeper, sweeper=sweeper),
    ]

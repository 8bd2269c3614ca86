"""F33: checkpoints, written by two processes at once and by a worker after them, any of whom may die in between."""

from __future__ import annotations

from amends.engine import checkpoints
from amends.ledger.world import Sleep
from amends.testing.simulation import Inside
from tests.sim.approving import VARIANTS
from tests.sim.scenarios import Scenario, Variant, do, make, traits

LOOKS = 4


async def write(inside: Inside) -> None:
    """As a runtime does in its own time."""
    await checkpoints.write_checkpoints(ledger=inside.host.new_id("ldg"), key=None, anchor=inside.sim.anchor)


async def writer(inside: Inside) -> None:
    """Comes by now and then."""
    for _ in range(LOOKS):
        await Sleep(2.0)
        await write(inside)


def checkpoint_scenarios(v: Variant) -> list[Scenario]:
    """Two runs with a checkpoint after each, and others who write at the same time."""
    a = make("a", variant=v)

    async def program(inside: Inside) -> None:
        for id in ("r", "s"):
            async with inside.run(id) as run:
                await do(run, a, n=1)
            await write(inside)

    scenario = Scenario("F33 checkpoints", program, [a], {"a": traits(v)}, second=writer, sweeper=write)
    return [scenario] if v in VARIANTS else []

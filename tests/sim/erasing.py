"""Flows in which a person's data is erased: killed at every operation and repeated, and beside runs that are not over."""

from __future__ import annotations

from contextlib import suppress

from amends.errors import CannotErase, ResultGone, SubjectNotFound
from amends.ledger.world import Sleep
from amends.people.erasure import erase
from amends.testing.simulation import NOBODY, Inside
from tests.sim.scenarios import Fails, Scenario, Variant, do, make, traits

ALICE = "alice@example.org"
TIMES = 4


async def forget(inside: Inside) -> None:
    """Erase whatever is about the person and has ended."""
    with suppress(SubjectNotFound, CannotErase):
        await erase(inside.host, NOBODY, principal=ALICE, by="dpo", why="request 1", partial=True)


async def eraser(inside: Inside) -> None:
    for _ in range(TIMES):
        await forget(inside)
        await Sleep(7.0)


def erasing_scenarios(v: Variant) -> list[Scenario]:
    """A run that is opened again, its erasure, and a run that fails, with another erasure beside all of it."""
    a, b = make("a", variant=v), make("b", variant=v)
    both = {"a": traits(v), "b": traits(v)}

    async def program(inside: Inside) -> None:
        for _ in range(2):
            async with inside.run("r", principal=ALICE, tags=[ALICE]) as run:
                with suppress(ResultGone):
                    await do(run, a, n=1)
        await forget(inside)
        async with inside.run("s", principal=ALICE) as run:
            await do(run, a, n=1)
            await do(run, b, n=1)
            raise Fails(f"{ALICE} is unhappy")

    late = {"b": ["answer lost"]}
    return [Scenario("F95 erasures", program, [a, b], both, script=late, second=eraser, sweeper=forget)]

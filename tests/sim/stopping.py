"""Flows whose consumer stops the agent: the run waits for it, and nobody takes it back before its time."""

from __future__ import annotations

from contextlib import suppress

from amends.engine.ending import StoppedInDoubt
from amends.errors import InDoubt, RunBlocked, Suspended
from amends.testing.simulation import Inside
from tests.sim.scenarios import MAIL, PLAIN, Here, Scenario, Variant, _rest, do, make, traits

VARIANTS = (PLAIN, Variant(probe=True))
"""Who stops does not care how destinations behave."""


def stopped(v: Variant, when: str) -> Scenario:
    """The agent is stopped after a call, with another one staged; or after the pivot, with one that has failed once."""
    a, p, m = make("a", variant=v), make("p", "pivot", variant=v), make("m", "retriable", variant=MAIL)

    async def program(inside: Inside) -> None:
        async with inside.run("r") as run:
            await do(run, a, n=1)
            await run.call(m, n=1)
            if when == "after the pivot":
                await do(run, p, n=1)
            Here.world.stopped.add(run.session.uid)
            raise Suspended("the user pressed Stop")

    rest = {**_rest("a", "p", variant=v), "m": traits(MAIL)}
    return Scenario(f"O1 stopped, {when}", program, [a, p, m], rest)


def stopped_in_doubt(v: Variant) -> Scenario:
    """An agent that can be resumed stops because the answer of a call was lost: its run gets no goal and is not committed."""
    a, b = make("a", variant=v), make("b", variant=v)

    async def program(inside: Inside) -> None:
        with suppress(RunBlocked, StoppedInDoubt):
            async with inside.run("r") as run:
                await do(run, a, n=1)
                with suppress(InDoubt):
                    await do(run, b, n=1)
                raise StoppedInDoubt("the agent stopped while a call was in doubt")

    return Scenario("O2 stopped in doubt", program, [a, b], _rest("a", "b", variant=v), script={"b": ["answer lost"]})


def stopping_scenarios(v: Variant) -> list[Scenario]:
    if v not in VARIANTS:
        return []
    return [*(stopped(v, when) for when in ("before the pivot", "after the pivot")), stopped_in_doubt(v)]

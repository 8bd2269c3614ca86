"""Flows beside which a person gives permits ahead, and one in which a tool says no for good."""

from __future__ import annotations

from contextlib import suppress

from amends import NoEffect
from amends.errors import Held, Locked, ToolFailed
from amends.ledger.world import Sleep
from amends.people import permits
from amends.testing.simulation import NOBODY, Inside
from amends.tools.rules import Rule
from tests.sim.scenarios import Fails, Scenario, Variant, do, make, traits


def permit_scenarios(v: Variant) -> list[Scenario]:
    """Two agents that want more than was permitted; a permit that ends; a tool that says no for good."""
    a, b = make("a", variant=v, needs_approval=True), make("b", variant=v)
    rest = {name: traits(v) for name in "ab"}

    async def asks(inside: Inside) -> None:
        async with inside.run("r", wait_approval=0.0) as run:
            await do(run, b, n=1)
            for n in range(1, 4):
                with suppress(Held):
                    await do(run, a, n=n)
                await Sleep(1.0)
            raise Fails("on purpose")

    async def giver(inside: Inside) -> None:
        for n in (1, 2):
            await permits.permit(inside.host, NOBODY, "a", {"n": n}, by="anna", expires=1.5)
        await Sleep(0.5)
        await permits.permit(inside.host, NOBODY, "a", Rule(args={"n": ">=1"}), by="anna", uses=1, expires=30.0)

    async def insists(inside: Inside) -> None:
        async with inside.run("r") as run:
            for _ in range(3):
                with suppress(NoEffect, ToolFailed):
                    await do(run, b, n=1)

    def desk(_call: object) -> list[str]:
        return ["desk"]

    locked_a = make("a", variant=v, needs_approval=True, locks=desk)
    locked_b = make("b", variant=v, locks=desk)

    async def wants(inside: Inside) -> None:
        await permits.permit(inside.host, NOBODY, "a", Rule(), by="anna", uses=2, expires=600.0)
        async with inside.run("r", wait_approval=0.0, wait=0.5) as run:
            for n in range(1, 4):
                with suppress(Held, Locked):
                    await do(run, locked_a, n=n)
                await Sleep(1.0)
            raise Fails("on purpose")

    async def holds(inside: Inside) -> None:
        for n in (1, 2):
            async with inside.run(f"s{n}", wait=0.5) as run:
                await do(run, locked_b, n=n)
                await Sleep(1.5)

    never = {"b": ["final no"] * 3}
    return [
        Scenario("F72 permitted", asks, [a, b], rest, second=giver),
        Scenario("F72b permitted, locked", wants, [locked_a, locked_b], rest, second=holds),
        Scenario("F73 a final no", insists, [b], rest, script=never),
    ]

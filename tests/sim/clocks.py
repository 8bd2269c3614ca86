"""Clocks that are set while a run is under way: nobody takes it from its living owner, whoever looks and from where."""

from __future__ import annotations

from contextlib import suppress

from amends.errors import Error
from amends.ledger.world import Sleep
from amends.testing.simulation import Inside
from tests.sim.scenarios import Scenario, Variant, do, make, traits

JUMP_S = 3_600.0
LOOKS = 9
"""Of the one who wants the run: they last longer than a lease."""


FEW = (Variant(), Variant(probe=True), Variant(repeat="idempotent", twin="absent_ok", comp_idempotent=True))
"""Clocks do not care how a destination behaves."""


def clock_scenarios(v: Variant) -> list[Scenario]:
    """The wall clock is set forward, back, or again and again, beside a run that goes on for two leases."""
    if v not in FEW:
        return []
    hosts = ("host", "another host")
    return [_beside(v, how, host) for host in hosts for how in ("forward", "back", "again and again")]


def _beside(v: Variant, how: str, host: str) -> Scenario:
    a, b = make("a", variant=v, key="n"), make("b", variant=v, key="n")

    async def program(inside: Inside) -> None:
        async with inside.run("r") as run:
            await do(run, a, n=1)
            for n in range(8):
                await Sleep(8.0)
                await do(run, b, n=n)

    async def second(inside: Inside) -> None:
        inside.process.host = host  # of the same boot as the owner, or of another one
        for look in range(LOOKS):
            await Sleep(7.0)
            if look == 1 or (how == "again and again" and look % 3 == 1):
                inside.sim.jumped = True
                inside.sim.clock.jump(-JUMP_S if how == "back" else JUMP_S)
            with suppress(Error):
                async with inside.run("r", wait=0.5) as run:
                    await do(run, a, n=1)
                return
            await inside.recover()

    rest = {name: traits(v) for name in "ab"}
    return Scenario(f"T1 clock set {how}, {host}", program, [a, b], rest, second=second)

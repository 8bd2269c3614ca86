"""F35: a rule that cannot be compared with what is asked for, and a model that asks for a repeat nobody offered."""

from __future__ import annotations

from contextlib import suppress

from amends.errors import Error, Refused
from amends.host.host import Host
from amends.ledger.operations import ReadRun, SearchApprovals
from amends.ledger.world import Sleep
from amends.states import RUN_FINAL
from amends.testing.simulation import Inside
from amends.tools.rules import Rule
from tests.sim.approving import EXPIRES_S, LOOKS_MAX, VARIANTS, decide, told
from tests.sim.scenarios import Scenario, Variant, do, make, traits

UNCLEAR = (Rule("w", args={"word": ">5"}, expires=EXPIRES_S, why="large"),)
"""A text is compared with a number: what is none is held."""


def f35_unclear(v: Variant, kind: str) -> Scenario:
    """The call is held although no rule certainly matches it; somebody says yes, or it never starts."""
    w, b = make("w", kind, variant=v), make("b", variant=v)

    async def program(inside: Inside) -> None:
        async with inside.run("r") as run:
            if kind != "pivot":
                await do(run, b, n=1)
            await told(do(run, w, n=1, word="many"))

    async def second(inside: Inside) -> None:
        for _ in range(LOOKS_MAX):
            await Sleep(7.0)
            for found in await SearchApprovals(None, ("pending",), None, 10):
                await decide(inside.host, found, "approves")
            tree = await ReadRun("", "r")
            if tree is not None and not tree.run.owner and tree.run.state not in RUN_FINAL:
                with suppress(Error):
                    await program(inside)

    rest = {name: traits(v) for name in ("b", "w")}
    scenario = Scenario(f"F35 unclear {kind}", program, [w, b], rest, second=second, asks=("w",))
    scenario.host = Host({"url": "memory:", "wait": 30.0, "lease": 30.0, "rules": UNCLEAR}, [w, b], alone=True)
    return scenario


def f35_repeats(v: Variant) -> Scenario:
    """A model that was not offered ``again_because`` sends it all the same, twice."""
    a = make("a", variant=v)

    async def program(inside: Inside) -> None:
        async with inside.run("r") as run:
            await run.ask("a", {"n": 1})
            for why in ("a second box", "a third box"):
                with suppress(Refused):
                    await run.ask("a", {"n": 1, "again_because": why})

    return Scenario("F35 repeats", program, [a], {"a": traits(v)}, unrepeated=("a",))


def rule_scenarios(v: Variant) -> list[Scenario]:
    """Rules that fail closed, and repeats that were not offered."""
    if v not in VARIANTS:
        return []
    return [*(f35_unclear(v, kind) for kind in ("compensatable", "pivot")), f35_repeats(v)]

"""Flows that must be complete when they are left: an open failure, a doubt that turns into one, a tool that is required."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from amends import NoEffect
from amends.errors import Refused, ToolError
from amends.ledger.operations import ReadRun
from amends.ledger.world import Sleep
from amends.testing.simulation import Inside, SimulatedRun
from amends.testing.world import Broke
from tests.sim.scenarios import MAIL, Scenario, Variant, _rest, _say, do, make, traits

VARIANTS = (Variant(), Variant(probe=True), Variant(repeat="idempotent", twin="absent_ok", comp_idempotent=True))
"""How a run is judged does not depend on how its destinations behave: a few are enough."""


async def try_(run: SimulatedRun, a_tool: Any, **args: int) -> None:
    """Call, as an agent does that goes on after an error."""
    with suppress(Broke, NoEffect, TimeoutError, ToolError, Refused):
        await do(run, a_tool, **args)


def open_failure(v: Variant, ends: str) -> Scenario:
    """b fails, and the agent stops, makes it good, or had done it well before; c is another tool."""
    a, b = make("a", variant=v), make("b", variant=v)

    async def program(inside: Inside) -> None:
        async with inside.run("r", on_open_failure="rollback") as run:
            await try_(run, a, n=1)
            if ends == "had it":
                await try_(run, b, n=7)
            await try_(run, b, n=1)
            if ends == "made good":
                await try_(run, b, n=2)

    script = {"b": ["ok", "raise"] if ends == "had it" else ["raise"]}
    return Scenario(f"D1 open failure, {ends}", program, [a, b], _rest("a", "b", variant=v), script=script)


def lost_failure(v: Variant) -> Scenario:
    """b is in doubt when the run is left; that it never happened is learned only then, from a probe or a person."""
    a, b = make("a", variant=v), make("b", variant=v)

    async def program(inside: Inside) -> None:
        async with inside.run("r", on_open_failure="rollback") as run:
            await try_(run, a, n=1)
            await try_(run, b, n=1)

    async def second(inside: Inside) -> None:
        for _ in range(6):
            await Sleep(9.0)
            tree = await ReadRun("", "r")
            if tree is not None:
                await _say(inside.host, tree, "resolves")

    lost = {"b": ["request lost"]}
    return Scenario(
        "D2 lost failure", program, [a, b], _rest("a", "b", variant=v), script=lost, second=second, unknown_probes=1
    )


def required(v: Variant, when: str) -> Scenario:
    """m is required and missing: before the pivot, or after it; or it is staged."""
    a, p, m = make("a", variant=v), make("p", "pivot", variant=v), make("m", "retriable", variant=MAIL)

    async def program(inside: Inside) -> None:
        async with inside.run("r", requires=["m"]) as run:
            await try_(run, a, n=1)
            if when == "staged":
                await run.call(m, n=1)
            if when != "before":
                await try_(run, p, n=1)

    rest = {**_rest("a", "p", variant=v), "m": traits(MAIL)}
    return Scenario(f"D3 required, {when}", program, [a, p, m], rest)


def completing_scenarios(v: Variant) -> list[Scenario]:
    if v not in VARIANTS:
        return []
    return [
        *(open_failure(v, ends) for ends in ("stops", "made good", "had it")),
        lost_failure(v),
        *(required(v, when) for when in ("before", "after", "staged")),
    ]

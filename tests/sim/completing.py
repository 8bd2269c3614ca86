"""Flows that must be complete when they are left: an open failure, a doubt that turns into one, a tool that is required."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from amends import NoEffect, RolledBack, RunBlocked
from amends.errors import Refused, ToolError, TransitionRefused
from amends.ledger.operations import FinishRun, ReadRun
from amends.ledger.world import Sleep
from amends.testing.simulation import Inside, SimulatedRun
from amends.testing.world import Broke
from amends.tools.tool import tool
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


def required_above(v: Variant, ends: str) -> Scenario:
    """m is required of the root, and a child ends before it was done."""
    a, p, m = make("a", variant=v), make("p", "pivot", variant=v), make("m", variant=v)

    async def program(inside: Inside) -> None:
        async with inside.run("r", requires=["m"]) as run:
            child = await run.child("inner")
            if not child.over:
                await try_(child, a, n=1)
                if ends == "pivot inside":
                    await try_(child, p, n=1)
                await child.leave()
            if ends != "missing":
                await try_(run, m, n=1)

    return Scenario(f"D4 required above, {ends}", program, [a, p, m], _rest("a", "p", "m", variant=v))


def incomplete_agent(v: Variant, person: str) -> Scenario:
    """An agent ends over an open failure after its pivot, and the one above goes on; a person finishes it, or nobody does."""
    a, b, p = make("a", variant=v), make("b", variant=v), make("p", "pivot", variant=v)
    k = tool(name="k", kind="agent")(_agent)

    async def work(child: SimulatedRun) -> None:
        await try_(child, b, n=1)
        await try_(child, p, n=1)

    async def program(inside: Inside) -> None:
        async with inside.run("r") as run:
            await try_(run, a, n=1)
            with suppress(RunBlocked, RolledBack):
                await run.delegate(k, work, n=1)

    async def finishes(inside: Inside) -> None:
        for _ in range(6):
            await Sleep(9.0)
            tree = await ReadRun("", "r")
            for run in () if tree is None else tree.runs:
                if run.uid != run.root and run.state == "blocked":
                    with suppress(TransitionRefused):
                        await FinishRun(run.uid, "ann", "nobody misses it")

    return Scenario(
        f"D5 incomplete agent, {person}", program, [a, b, p, k], _rest("a", "b", "p", variant=v), script={"b": ["raise"]},
        second=finishes if person == "finished" else None,
    )  # fmt: skip


def _agent(n: int = 0) -> None:
    raise AssertionError("a simulated agent is the flow that it is given")


def completing_scenarios(v: Variant) -> list[Scenario]:
    if v not in VARIANTS:
        return []
    return [
        *(open_failure(v, ends) for ends in ("stops", "made good", "had it")),
        lost_failure(v),
        *(required(v, when) for when in ("before", "after", "staged")),
        *(required_above(v, ends) for ends in ("missing", "done", "pivot inside")),
        *(incomplete_agent(v, person) for person in ("nobody", "finished")),
    ]

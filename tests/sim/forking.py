"""Flows beside which somebody forks the run, and goes on in the fork, while the original fails, goes on or is taken back."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from amends.errors import CannotFork, Error, RunConflict, UsageError
from amends.ledger.operations import ReadRun
from amends.ledger.world import Sleep
from amends.people import rollback as rollback_plans
from amends.replay import forks
from amends.testing.simulation import NOBODY, Inside, SimulatedRun
from tests.sim.scenarios import Fails, Scenario, Variant, do, make, traits

LOOKS = 40
Program = Callable[[Inside], Coroutine[Any, Any, None]]


async def _forked(inside: Inside, run: str, tool: str, *, id: str, pause: float = 0.5) -> bool:
    """Fork it as soon as this tool has succeeded in it; False: it could not be."""
    for _ in range(LOOKS):
        await Sleep(pause)
        tree = await ReadRun("", run)
        done = [row for row in (() if tree is None else tree.calls) if row.tool == tool and row.state == "succeeded"]
        if not done:
            continue
        try:
            await forks.fork(inside.host, NOBODY, run, at=done[0].id, id=id)
        except CannotFork as no:
            if no.why == "taken_back":
                return False
        except (UsageError, RunConflict):
            return False
        else:
            return True
    return False


def _forker(goes_on: Callable[[SimulatedRun], Coroutine[Any, Any, None]], pause: float = 0.5) -> Program:
    async def second(inside: Inside) -> None:
        if await _forked(inside, "r", "a", id="f", pause=pause):
            with suppress(Error, Fails):
                async with inside.run("f") as run:
                    await goes_on(run)

    return second


async def _person(inside: Inside) -> None:
    """Takes the original back, whoever stands on it."""
    for _ in range(LOOKS):
        await Sleep(1.5)
        if await ReadRun("", "f") is not None:
            with suppress(Error):
                await rollback_plans.rollback(inside.host, NOBODY, "r", by="anna", why="all the same")
            return


def fork_scenarios(v: Variant) -> list[Scenario]:
    """A fork beside a run that fails, beside one that a person takes back, and a fork of a fork."""
    a, b, c = (make(name, variant=v, key="n") for name in "abc")
    p, look = make("p", "pivot", variant=v), make("look", "read")
    tools = [a, b, c, p, look]
    rest = {name: traits(v) for name in "abcp"}

    async def fails(inside: Inside) -> None:
        async with inside.run("r") as run:
            await run.call(look, n=1)
            await do(run, a, n=1)
            await Sleep(1.0)
            await do(run, b, n=1)
            raise Fails("on purpose")

    async def at_once(inside: Inside) -> None:
        async with inside.run("r") as run:
            await do(run, a, n=1)
            raise Fails("at once")

    async def after_a_while(inside: Inside) -> None:
        async with inside.run("r") as run:
            await do(run, a, n=1)
            await Sleep(1.0)
            raise Fails("with its fork")

    async def too(run: SimulatedRun) -> None:
        await do(run, a, n=1)
        await Sleep(0.5)
        raise Fails("with its original")

    async def waits(inside: Inside) -> None:
        async with inside.run("r", recover="wait") as run:
            await do(run, a, n=1)
            for n in range(6):
                await Sleep(1.0)
                await do(run, b, n=n)

    async def other_way(run: SimulatedRun) -> None:
        await run.call(look, n=1)
        await do(run, a, n=1)
        await do(run, c, n=1)
        await do(run, p, n=1)

    async def other_way_fails(run: SimulatedRun) -> None:
        await do(run, a, n=1)
        await do(run, c, n=1)
        raise Fails("this way neither")

    async def slowly(run: SimulatedRun) -> None:
        await do(run, a, n=1)
        for n in range(5):
            await do(run, c, n=n)
            await Sleep(1.0)

    async def fork_of_fork(inside: Inside) -> None:
        if not await _forked(inside, "r", "a", id="f") or not await _forked(inside, "f", "a", id="g"):
            return
        for id, way in (("f", other_way_fails), ("g", other_way)):
            with suppress(Error, Fails):
                async with inside.run(id) as run:
                    await way(run)

    return [
        Scenario("F29 fork of a run that fails", fails, tools, rest, second=_forker(other_way)),
        Scenario("F29b fork that fails too", fails, tools, rest, second=_forker(other_way_fails)),
        Scenario("F29e fork at the moment of failure", at_once, tools, rest, second=_forker(other_way_fails, 0.0)),
        Scenario("F29f both fail at once", after_a_while, tools, rest, second=_forker(too)),
        Scenario("F29c fork of what a person takes back", waits, tools, rest, second=_forker(slowly), third=_person),
        Scenario("F29d fork of a fork", fails, tools, rest, second=fork_of_fork),
    ]

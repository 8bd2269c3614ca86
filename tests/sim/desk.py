"""Flows beside which a person plans a rollback, looks away, and then says go; or accepts what is left."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from amends.errors import RunEnded, StalePlan, UsageError
from amends.ledger.operations import ReadRun
from amends.ledger.world import Sleep
from amends.people import doubts
from amends.people import rollback as rollback_plans
from amends.testing.simulation import NOBODY, Inside
from tests.sim.scenarios import MAIL, Fails, Here, Scenario, Variant, do, make, traits

LOOKS = 8


def _planner(pause: float, look_away: float) -> Callable[[Inside], Coroutine[Any, Any, None]]:
    async def person(inside: Inside) -> None:
        for _ in range(LOOKS):
            await Sleep(pause)
            try:
                plan = await rollback_plans.plan_rollback(inside.host, NOBODY, "r")
            except UsageError:
                continue  # not there yet
            Here.world.plans[plan.hash] = plan
            await Sleep(look_away)
            try:
                await rollback_plans.rollback(inside.host, NOBODY, "r", plan=plan.hash, by="anna", why="as planned")
            except StalePlan:
                Here.world.told_stale.append(plan.hash)
            except RunEnded:
                return
            else:
                return

    return person


async def _accepter(inside: Inside) -> None:
    """A person who is content with whatever stands, or may."""
    for _ in range(12):
        await Sleep(7.0)
        tree = await ReadRun("", "r")
        for row in () if tree is None else tree.calls:
            if row.state in ("in_doubt", "compensation_failed", "compensation_in_doubt"):
                with suppress(UsageError):
                    await doubts.accept(inside.host, NOBODY, row.id, by="anna", why="it stays")


def desk_scenarios(v: Variant) -> list[Scenario]:
    """A run that goes on, one that fails and one with a child, each with a person beside it."""
    a, b, p, m = (
        make("a", variant=v),
        make("b", variant=v),
        make("p", "pivot", variant=v),
        make("m", "retriable", variant=MAIL),
    )
    rest = {name: traits(v) for name in "abp"} | {"m": traits(MAIL)}

    async def goes_on(inside: Inside) -> None:
        async with inside.run("r") as run:
            for n in range(1, 5):
                await do(run, a, n=n)
                await Sleep(1.0)
                await do(run, b, n=n)
            await do(run, p, n=1)

    async def fails(inside: Inside) -> None:
        async with inside.run("r") as run:
            await do(run, a, n=1)
            await do(run, b, n=1)
            raise Fails("on purpose")

    async def child(inside: Inside) -> None:
        async with inside.run("r") as run:
            await do(run, a, n=1)
            inner = await run.child("c")
            await do(inner, b, n=1)
            await inner.leave()
            for n in range(2, 5):
                await Sleep(1.0)
                await do(run, a, n=n)

    lost = {"b": ["answer lost"], "undo_a": ["answer lost"]}
    tools = [a, b, p, m]
    return [
        Scenario("F26 planned rollback", goes_on, tools, rest, second=_planner(1.0, 0.0)),
        Scenario("F26 planned rollback, slowly", goes_on, tools, rest, second=_planner(1.0, 1.0)),
        Scenario("F26b planned over a doubt", fails, tools, rest, script=lost, second=_planner(5.0, 9.0)),
        Scenario("F26c planned over a child", child, tools, rest, second=_planner(1.0, 1.0)),
        Scenario("F26d what stands is accepted", fails, tools, rest, script=lost, second=_accepter),
    ]

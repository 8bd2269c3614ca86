"""Flows beside which a person plans a rollback, looks away, and then says go; or accepts what is left, or cannot know."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from amends.errors import InDoubt, OutOfOrder, RunBlocked, RunEnded, StalePlan, UsageError
from amends.ledger.operations import ReadRun
from amends.ledger.world import Sleep
from amends.model import Unknown
from amends.people import doubts
from amends.people import rollback as rollback_plans
from amends.testing.simulation import NOBODY, Inside, SimulatedRun
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


async def _shrugger(inside: Inside) -> None:
    """A person who says of every lost pivot that nobody can know."""
    for _ in range(12):
        await Sleep(7.0)
        tree = await ReadRun("", "r")
        for row in () if tree is None else tree.calls:
            if row.state == "in_doubt" and row.kind == "pivot":
                with suppress(UsageError):
                    await doubts.resolve(inside.host, NOBODY, row.id, Unknown(), by="anna", why="nobody can know")


def unknown_scenarios(v: Variant) -> list[Scenario]:
    """A pivot that nobody can know, with and without a mail behind it, and in a child."""
    a, p, q = make("a", variant=v), make("p", "pivot", variant=v), make("q", "pivot", variant=v)
    m = make("m", "retriable", variant=MAIL)
    rest = {name: traits(v) for name in "apq"} | {"m": traits(MAIL)}

    async def _pivots(run: SimulatedRun, *, staged: bool) -> None:
        await do(run, a, n=1)
        if staged:
            await run.call(m, n=1)
        with suppress(InDoubt):
            await do(run, p, n=1)

    async def mails(inside: Inside) -> None:
        async with inside.run("r") as run:
            await _pivots(run, staged=True)

    async def goes_on(inside: Inside) -> None:
        """An agent that is told to wait, and then takes another way that cannot be undone either."""
        async with inside.run("r") as run:
            await _pivots(run, staged=False)
            for _ in range(3):
                await Sleep(10.0)
            with suppress(OutOfOrder, InDoubt):
                await do(run, q, n=1)

    async def child(inside: Inside) -> None:
        async with inside.run("r") as run:
            inner = await run.child("c")
            if not inner.over:
                await _pivots(inner, staged=True)
                with suppress(RunBlocked):
                    await inner.leave()

    tools, lost = [a, p, q, m], {"p": ["answer lost"]}
    programs = {"a mail behind it": mails, "another pivot": goes_on, "in a child": child}
    return [
        Scenario(f"F26e nobody can know, {name}", program, tools, rest, script=lost, unknown_probes=9, second=_shrugger)
        for name, program in programs.items()
    ]


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
        *unknown_scenarios(v),
    ]

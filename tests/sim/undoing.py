"""Flows whose run commits, and is taken back by a person's plan afterwards."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from amends.errors import RunEnded, StalePlan, UsageError
from amends.ledger.operations import BeginRollback, ReadRun
from amends.ledger.trees import plan_text, tree_mark
from amends.ledger.world import Sleep
from amends.people import rollback as rollback_plans
from amends.testing.simulation import NOBODY, Inside
from tests.sim.scenarios import MAIL, Here, Scenario, Variant, do, make, traits

LOOKS = 12


def _undoer(pause: float) -> Callable[[Inside], Coroutine[Any, Any, None]]:
    """A person who takes the run back as soon as it has committed, and accepts what stays."""

    async def person(inside: Inside) -> None:
        for _ in range(LOOKS):
            await Sleep(pause)
            try:
                plan = await rollback_plans.plan_rollback(inside.host, NOBODY, "r")
            except UsageError:
                continue  # not there yet
            if plan.state != "committed":
                continue
            Here.world.plans[plan.hash] = plan
            try:
                ids = [call.id for call in plan.must_accept]
                begun = rollback_plans.rollback(
                    inside.host, NOBODY, "r", plan=plan, by="anna", why="the customer cancels", accept=ids
                )
                await begun
            except StalePlan:
                Here.world.told_stale.append(plan.hash)
            except (RunEnded, UsageError):
                return
            else:
                await inside.recover()
                return

    return person


async def _forgetful(inside: Inside) -> None:
    """A process that begins with the plan, and leaves out what its person accepted."""
    for _ in range(LOOKS):
        await Sleep(2.0)
        tree = await ReadRun("", "r")
        if tree is None or tree.run.state != "committed":
            continue
        plan = await rollback_plans.plan_rollback(inside.host, NOBODY, "r")
        Here.world.plans[plan.hash] = plan
        text, mark = plan_text(plan.hash, ()), tree_mark(tree.runs, tree.calls)
        await BeginRollback(tree.run.uid, "anna", "the customer cancels", person=True, plan=text, mark=mark)
        return


def undo_scenarios(v: Variant) -> list[Scenario]:
    """A run without and with a pivot and mail, and one with a child."""
    a, b = make("a", variant=v), make("b", variant=v)
    p, m = make("p", "pivot", variant=v), make("m", "retriable", variant=MAIL)
    rest = {name: traits(v) for name in "abp"} | {"m": traits(MAIL)}

    async def commits(inside: Inside) -> None:
        async with inside.run("r") as run:
            await do(run, a, n=1)
            await do(run, b, n=1)

    async def pivots(inside: Inside) -> None:
        async with inside.run("r") as run:
            await do(run, a, n=1)
            await run.call(m, n=1)
            await do(run, p, n=1)

    async def child(inside: Inside) -> None:
        async with inside.run("r") as run:
            await do(run, a, n=1)
            inner = await run.child("c")
            await do(inner, b, n=1)
            await inner.leave()

    tools = [a, b, p, m]
    return [
        Scenario("F71 undone after the commit", commits, tools, rest, second=_undoer(2.0)),
        Scenario("F71 undone after the pivot", pivots, tools, rest, second=_undoer(2.0)),
        Scenario("F71 undone without accepting", pivots, tools, rest, second=_forgetful),
        Scenario("F71 undone with its child", child, tools, rest, second=_undoer(2.0)),
    ]

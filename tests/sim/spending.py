"""Flows in which runs spend what they share: racing, in doubt, staged, taken back, refused."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from amends import spent
from amends.budgets import Budget, Cost
from amends.errors import BudgetExceeded, Error, InDoubt, Refused
from amends.ledger.operations import ReadRun, SearchApprovals
from amends.ledger.world import Sleep
from amends.states import RUN_FINAL
from amends.testing.simulation import Inside
from tests.sim.approving import LOOKS_MAX, decide
from tests.sim.locking import VARIANTS, worker
from tests.sim.scenarios import MAIL, Fails, Scenario, Variant, do, make, traits

Program = Callable[[Inside], Coroutine[Any, Any, Any]]
SHARED = (Budget(100, per="tenant"), Budget(9, unit="calls", per="agent", every="month"))


def _tool(name: str, cost: Any, kind: str = "compensatable", v: Variant = MAIL, **options: Any) -> Any:
    return make(name, kind, v, cost=cost, **options)


def _scenario(
    name: str, v: Variant, tools: list[Any], first: Program, second: Program, *,
    budgets: tuple[Budget, ...] = SHARED, **more: Any
) -> Scenario:  # fmt: skip
    rest = {one.name: traits(MAIL if one.name in ("m", "o") else v) for one in tools}
    return Scenario(f"F24{name}", first, tools, rest, second=second, third=worker, budgets=budgets, **more)


def _program(
    id: str, *calls: tuple[Any, int], fails: bool = False, after: float = 0.0, catches: bool = False
) -> Program:
    async def program(inside: Inside) -> None:
        await Sleep(after)
        async with inside.run(id) as run:
            for a_tool, n in calls:
                with suppress(*((BudgetExceeded,) if catches else ())):
                    await run.call(a_tool, n=n) if a_tool.name == "look" else await do(run, a_tool, n=n)
            if fails:
                raise Fails(id)

    return program


def race(v: Variant, ends: str) -> Scenario:
    """Both want most of it; a read, which is never taken back, costs as well."""
    a, b, look = _tool("a", 60, v=v), _tool("b", 30, v=v), _tool("look", 5, "read")
    first = _program("r1", (a, 1), (look, 1), (b, 1), fails=ends == "fails")
    return _scenario(f"p budget race, {ends}", v, [a, b, look], first, _program("r2", (a, 2), (look, 2)))


def in_doubt(v: Variant) -> Scenario:
    """The first one's answer is lost: what it may have cost is nobody else's, however long it takes to find out."""
    a = _tool("a", 60, v=v)

    async def first(inside: Inside) -> None:
        async with inside.run("r1", recover="wait") as run:
            with suppress(InDoubt):
                await do(run, a, n=1)

    return _scenario(
        "q budget and a doubt", v, [a], first, _program("r2", (a, 2), after=1.0), script={"a": ["answer lost"]}
    )


def outbox(v: Variant) -> Scenario:
    a, m, o = _tool("a", 40, v=v), _tool("m", 50, "retriable"), _tool("o", 20, "retriable")
    first, second = _program("r1", (a, 1), (m, 1)), _program("r2", (o, 2), (a, 2))
    return _scenario("r budget of an outbox", v, [a, m, o], first, second)


def with_a_pivot(v: Variant, at: str) -> Scenario:
    a, p = _tool("a", 40, v=v), _tool("p", 30, "pivot", v, at=at)
    m = _tool("m", 30, "retriable")
    first, second = _program("r1", (m, 1), (p, 1)), _program("r2", (a, 2), (a, 3), catches=True)
    return _scenario(f"s budget of a pivot at {at}", v, [a, p, m], first, second)


def given_back(v: Variant, back: Any) -> Scenario:
    a = _tool("a", Cost(60, refundable=back), v=v)
    first, second = _program("r1", (a, 1), fails=True), _program("r2", (a, 2), after=2.0)
    return _scenario(f"t budget given back, {back}", v, [a], first, second)


def goes_back(v: Variant) -> Scenario:
    """The budget takes the run back, whatever its program catches; after a pivot it only refuses."""
    a, p, m = _tool("a", 60, v=v), _tool("p", 0, "pivot", v), _tool("m", 60, "retriable")
    budgets = (Budget(100, then="rollback"), Budget(200, per="ledger"))
    first = _program("r1", (a, 1), (a, 2), catches=True)
    second = _program("r2", (a, 3), (p, 1), (m, 1), catches=True)
    return _scenario("u budget that takes back", v, [a, p, m], first, second, budgets=budgets)


def says_what_it_cost(v: Variant) -> Scenario:
    """It is reserved at its highest price, and costs less."""
    a = _tool("a", 60, v=v)
    body = a.fn

    def cheaper(**args: Any) -> Any:
        spent(10)
        return body(**args)

    cheaper.__name__ = "a"
    a.__amends__.fn = cheaper
    first, second = _program("r1", (a, 1), (a, 2)), _program("r2", (a, 3), catches=True)
    return _scenario("v actual cost", v, [a], first, second)


def children(v: Variant) -> Scenario:
    a, m = _tool("a", 40, v=v), _tool("m", 30, "retriable")

    async def first(inside: Inside) -> None:
        async with inside.run("r1") as run:
            await do(run, a, n=1)
            child = await run.child("inner")
            if not child.over:
                try:
                    await do(child, m, n=1)
                    await do(child, a, n=2)
                    await child.leave()
                except Exception as error:
                    await child.leave(error)
                    raise

    return _scenario("w budget of children", v, [a, m], first, _program("r2", (a, 3), catches=True))


def asks(v: Variant, how: str, where: str) -> Scenario:
    """A person decides whether the second call, or the outbox, may pass the cap: between any two operations."""
    a, m = _tool("a", 60, v=v), _tool("m", 60, "retriable")
    last = (m, 1) if where == "outbox" else (a, 2)

    async def first(inside: Inside) -> None:
        async with inside.run("r") as run:
            for a_tool, n in ((a, 1), last):
                with suppress(Refused):
                    await do(run, a_tool, n=n)

    async def second(inside: Inside) -> None:
        for _ in range(LOOKS_MAX):
            await Sleep(7.0)
            for found in await SearchApprovals(None, ("pending",), None, 10):
                await decide(inside.host, found, how)
            tree = await ReadRun("", "r")
            if tree is not None and tree.run.state in RUN_FINAL:
                return
            if tree is not None and not tree.run.owner:
                with suppress(Error):
                    await first(inside)

    budgets = (Budget(100, then="hold"),)
    return _scenario(f"x budget that asks, {how}, {where}", v, [a, m], first, second, budgets=budgets)


def spending_scenarios(v: Variant) -> list[Scenario]:
    """Every flow with budgets, for the variants that are worth it."""
    if v not in VARIANTS:
        return []
    return [
        *(race(v, ends) for ends in ("commits", "fails")),
        in_doubt(v),
        outbox(v),
        *(with_a_pivot(v, at) for at in ("call", "commit")),
        *(given_back(v, back) for back in (True, 0.5)),
        goes_back(v),
        says_what_it_cost(v),
        children(v),
        *(asks(v, how, where) for how in ("approves", "rejects") for where in ("call", "outbox")),
    ]

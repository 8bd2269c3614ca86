"""F40: a lost answer under another error. F41: a body that asks for calls of its own.

A body of F41 is a flow: the world may stop before and after every operation inside it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from amends.drivers.context import current_run
from amends.errors import Error, Held, Refused
from amends.host.host import Host
from amends.ledger.operations import SearchApprovals
from amends.ledger.world import ReadClocks, Sleep
from amends.testing.simulation import Inside, SimulatedRun
from tests.sim.approving import ONE, decide
from tests.sim.scenarios import Fails, Here, Scenario, Variant, do, make, traits

VARIANTS = (
    Variant(),
    Variant(probe=True),
    Variant(repeat="idempotent", twin="absent_ok", comp_idempotent=True),
)
"""What is nested does not care how a destination behaves: a few are enough."""
LOSSES = ("lost in a group", "lost in a chain", "lost in a handler")
PATIENCE_S = 50.0
"""How long the outer body has: longer than the person takes, shorter than a request lasts."""


def losses(v: Variant, how: str, where: str) -> Scenario:
    """An answer is lost, and the error says so only to who looks into it."""
    a, b = make("a", variant=v), make("b", variant=v)

    async def program(inside: Inside) -> None:
        async with inside.run("r") as run:
            await do(run, a, n=1)
            with suppress(Error, Exception):
                await do(run, b, n=1)
            await do(run, b, n=1)
            raise Fails("on purpose")

    script = {"b" if where == "call" else "undo_b": [how]}
    return Scenario(f"F40 {how}, {where}", program, [a, b], {n: traits(v) for n in "ab"}, script=script)


def outer(v: Variant, then: Callable[[SimulatedRun], Coroutine[Any, Any, Any]], **options: Any) -> Any:
    """A tool whose body acts and then goes on as said."""

    async def flow() -> str:
        run = current_run()
        value = Here.world.act()
        try:
            await then(run)
        except Error:
            raise
        except Exception as error:  # an ordinary error would be this tool's word that nothing happened
            raise TimeoutError("it stopped half way") from error
        return value

    return make("o", variant=v, flow=flow, **options)


def nested(v: Variant, how: str) -> Scenario:
    """The body of ``o`` acts, asks for ``w``, and ends with what comes of that."""
    locks: dict[str, Any] = {"locks": lambda call: ["x"]} if how == "locked" else {}
    w, a, p = make("w", variant=v, **locks), make("a", variant=v), make("p", "pivot", variant=v)
    asks = how in ("approves", "rejects", "nobody", "in a child")

    async def patiently(run: SimulatedRun, limit: float) -> None:
        began = (await ReadClocks()).mono
        try:
            await run.call(w, n=1)
        except Held:
            if (await ReadClocks()).mono - began < limit * 0.9:
                Here.world.impatient.append("w was given up while somebody could still have said yes")
            raise

    async def then(run: SimulatedRun) -> None:
        match how:
            case "refused":
                await run.call(a, n=1)
                await run.call(p, n=1)  # while its own body runs nothing is settled
            case "in a child":
                child = await run.child("c")
                if not child.over:
                    with suppress(Held, Refused):
                        await child.call(w, n=1)
                    await child.leave()
            case "rejects":
                with suppress(Refused):
                    await patiently(run, PATIENCE_S)
            case _:
                limit = 5.0 if run.session.user_wait_approval_s is not None else PATIENCE_S
                await patiently(run, limit)

    timeout: dict[str, Any] = {"timeout": 5.0 if how == "in a child" else PATIENCE_S}
    o = outer(v, then, **timeout)

    async def program(inside: Inside) -> None:
        inside.host.rules = ONE if asks else ()
        async with inside.run("r") as run:
            await do(run, o, n=1)
            await do(run, a, n=2)
            if how == "plain":
                raise Fails("on purpose")

    async def person(inside: Inside) -> None:
        inside.host.rules = ONE if asks else ()
        for _ in range(6):
            await Sleep(7.0)
            for found in await SearchApprovals(None, ("pending",), None, 10):
                await decide(inside.host, found, "rejects" if how == "rejects" else "approves")

    async def rival(inside: Inside) -> None:
        async with inside.run("other") as run:
            await do(run, w, n=2)
            await Sleep(9.0)

    second = {"approves": person, "rejects": person, "locked": rival}.get(how)
    tools = [o, w, a, p]
    rest = {name: traits(v) for name in ("o", "w", "a", "p")}
    scenario = Scenario(
        f"F41 {how}", program, tools, rest, second=second, third=_nobody if second is not None else None,
        asks=("w",) if asks else (),
    )  # fmt: skip
    scenario.host = Host({"url": "memory:", "lease": 30.0, "rules": ONE if asks else ()}, tools, alone=True)
    return scenario


async def _nobody(inside: Inside) -> None:
    """A third process, so that the second is always raced with the first."""


HOWS = ("plain", "approves", "rejects", "nobody", "in a child", "locked", "refused")


def nested_scenarios(v: Variant) -> list[Scenario]:
    """Lost answers under other errors, and bodies with calls inside."""
    if v not in VARIANTS:
        return []
    return [
        *(losses(v, how, where) for how in LOSSES for where in ("call", "compensation")),
        *(nested(v, how) for how in HOWS),
    ]

"""Flows with results that the ledger cannot keep, and compensations that cannot do without them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from amends import Retry, tool
from amends.errors import ResultLost
from amends.testing.simulation import Inside, SimulatedRun
from tests.sim.scenarios import Fails, Here, Scenario, Variant, _rest, do, make

VARIANTS = (
    Variant(),
    Variant(probe=True),
    Variant(twin="absent_ok"),
    Variant(twin="wins", comp_idempotent=True),
    Variant(repeat="idempotent", twin="absent_ok", comp_idempotent=True),
    Variant(probe=True, repeat="idempotent", twin="absent_ok"),
)
"""A lost result does not care how the rest of a destination behaves: a few are enough."""


class Receipt:
    """A result that cannot be written down."""

    def __init__(self, text: str) -> None:
        self.text, self.unwritable = text, object()


def needing(name: str, variant: Variant, *, kept: bool) -> Any:
    """A tool whose destination takes back only what it is named: given anything else, it does nothing and is content."""

    def body(n: int = 0) -> Any:
        return Here.world.act() if kept else Receipt(Here.world.act())

    def undo(result: Any) -> None:
        if isinstance(result, str | Receipt):
            Here.world.undo()

    def ask() -> Any:
        return Here.world.probe()

    body.__name__, undo.__name__, ask.__name__ = name, f"undo_{name}", f"probe_{name}"
    repeats: dict[str, bool | str] = {"": False, "idempotent": True, "window": "24h"}
    made = tool(name=name, idempotent=repeats[variant.repeat])(body)
    made.compensate(
        idempotent=variant.comp_idempotent,
        absent_ok=variant.twin == "absent_ok",
        wins=variant.twin == "wins",
        retry=Retry(attempts=3, delay=0.1, jitter=0.0),
    )(undo)
    if variant.probe:
        made.probe(settle=20.0)(ask)
    return made


async def use(run: SimulatedRun, a_tool: Any, **args: Any) -> None:
    """Call it, and hold what was answered against the world: a result that is lost is said to be, and is not None."""
    with suppress(ResultLost):
        value = await run.call(a_tool, **args)
        text = value.text if isinstance(value, Receipt) else value
        Here.world.told(run.session.uid, a_tool.name, str(text))


def g1_unkept(v: Variant, ends: str) -> Scenario:
    a, b = make("a", variant=v), needing("b", v, kept=False)

    async def program(inside: Inside) -> None:
        async with inside.run("r") as run:
            await do(run, a, n=1)
            await use(run, b, n=1)
            await use(run, b, n=1)
            if ends == "raises":
                raise Fails("on purpose")

    return Scenario(f"G1 not kept, {ends}", program, [a, b], _rest("a", "b", variant=v))


def g2_in_doubt(v: Variant) -> Scenario:
    a, b = make("a", variant=v), needing("b", v, kept=True)

    async def program(inside: Inside) -> None:
        async with inside.run("r") as run:
            await do(run, a, n=1)
            await use(run, b, n=1)
            raise Fails("on purpose")

    lost = {"b": ["answer lost"]}
    return Scenario("G2 needed in doubt", program, [a, b], _rest("a", "b", variant=v), script=lost)


def g3_child(v: Variant) -> Scenario:
    a, b = make("a", variant=v), needing("b", v, kept=False)

    async def program(inside: Inside) -> None:
        async with inside.run("r") as run:
            inner = await run.child("c")
            await use(inner, b, n=1)
            await inner.leave()
            await do(run, a, n=1)
            raise Fails("on purpose")

    return Scenario("G3 not kept in a child", program, [a, b], _rest("a", "b", variant=v))


def g4_stopped(v: Variant) -> Scenario:
    """Every compensation of it is also a place to be cancelled at."""
    tools = [needing(name, v, kept=True) for name in "bc"]

    async def program(inside: Inside) -> None:
        async with inside.run("r") as run:
            for one in tools:
                await use(run, one, n=1)
            raise Fails("on purpose")

    return Scenario("G4 stopped on the way back", program, tools, _rest("b", "c", variant=v))


def loss_scenarios(v: Variant) -> list[Scenario]:
    """Flows in which a result is lost, or a flow is stopped."""
    if v not in VARIANTS:
        return []
    return [*(g1_unkept(v, ends) for ends in ("raises", "commits")), g2_in_doubt(v), g3_child(v), g4_stopped(v)]

"""Flows whose arguments have classes that the annotation leaves open, and parts that bodies and callers change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from amends import Retry, tool
from amends.testing.simulation import Inside, SimulatedRun
from tests.sim.scenarios import SETTLE_S, Fails, Here, Scenario, Variant, do, traits

VARIANTS = (
    Variant(),
    Variant(probe=True),
    Variant(repeat="idempotent", twin="absent_ok", comp_idempotent=True),
)
"""Values do not care how a destination behaves: a few are enough."""


@dataclass(frozen=True)
class Customer:
    id: int


@dataclass(frozen=True)
class Employee:
    id: int


@dataclass
class Basket:
    owner: Customer | Employee
    lines: list[int]


class Live:
    """What the program of the schedule that runs now still has in its hands."""

    lines: list[int]


def _spoil(call: Any) -> list[str]:
    """Stands for another thread: it changes the caller's object after the request was written down."""
    Live.lines.append(99_999)
    return []


def _values_tool(name: str, kind: str, v: Variant, **options: Any) -> Any:
    def body(to: Customer | Employee, basket: Basket, lines: list[int], says: str) -> str:
        Here.world.given(name, says, (to, basket, lines))
        basket.lines.clear()
        lines.append(0)
        return Here.world.act()

    def undo(to: Any, basket: Any, lines: Any, says: str) -> None:
        Here.world.given(f"undo_{name}", says, (to, basket, lines))
        lines.append(0)
        Here.world.undo()

    body.__name__, undo.__name__ = name, f"undo_{name}"
    idempotent: Any = {"": False, "idempotent": True, "window": "24h"}[v.repeat]
    made: Any = tool(name=name, kind=kind, ignore=["says"], idempotent=idempotent, **options)(body)  # type: ignore[call-overload]
    if kind == "compensatable":
        made.compensate(
            idempotent=v.comp_idempotent,
            absent_ok=v.twin == "absent_ok",
            wins=v.twin == "wins",
            retry=Retry(attempts=3, delay=0.1, jitter=0.0),
        )(undo)
    if v.probe:
        made.probe(settle=SETTLE_S)(lambda: Here.world.probe())
    return made


async def _use(run: SimulatedRun, a_tool: Any, to: Customer | Employee) -> Any:
    Live.lines = [to.id, 2]
    basket = Basket(to, [3])
    return await do(run, a_tool, to=to, basket=basket, lines=Live.lines, says=repr((to, basket, Live.lines)))


def classes(v: Variant, ends: str) -> Scenario:
    """Two values that differ in class only are two calls, in the bodies and in the compensations."""
    a = _values_tool("a", "compensatable", v, retry=Retry(attempts=3, delay=0.1, jitter=0.0))

    async def program(inside: Inside) -> None:
        async with inside.run("r") as run:
            first, second = await _use(run, a, Customer(1)), await _use(run, a, Employee(1))
            if first is not None and first == second:
                Here.world.mixed.append("a call with an Employee was answered with that of a Customer")
            if await _use(run, a, Customer(1)) != first:
                Here.world.mixed.append("a call with a Customer was not answered with its own result")
            if ends == "fails":
                raise Fails

    return Scenario(f"F50 classes, {ends}", program, [a], {"a": traits(v)})


def staged(v: Variant) -> Scenario:
    """What starts later, perhaps in another process, has its classes too."""
    m = _values_tool("m", "retriable", Variant(repeat="idempotent"))
    p = _values_tool("p", "pivot", v, at="commit")

    async def program(inside: Inside) -> None:
        async with inside.run("r") as run:
            await _use(run, m, Employee(1))
            await _use(run, m, Customer(1))
            await _use(run, p, Employee(2))

    return Scenario("F51 staged", program, [m, p], {"m": traits(Variant(repeat="idempotent")), "p": traits(v)})


def changed(v: Variant) -> Scenario:
    """The caller's object changes after the request was written down, and the body changes its own copy."""
    a = _values_tool("a", "compensatable", v, locks=_spoil, retry=Retry(attempts=3, delay=0.1, jitter=0.0))

    async def program(inside: Inside) -> None:
        async with inside.run("r") as run:
            await _use(run, a, Employee(1))
            raise Fails

    return Scenario("F52 changed", program, [a], {"a": traits(v)}, script={"a": ["no effect"]})


def value_scenarios(v: Variant) -> list[Scenario]:
    """The flows of this file, for a few variants."""
    if v not in VARIANTS:
        return []
    return [*(classes(v, ends) for ends in ("commits", "fails")), staged(v), changed(v)]

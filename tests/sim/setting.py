"""Flows that set a value: what was there before is read first, and the newest value stands."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from amends.errors import Held, InDoubt
from amends.ledger.world import Sleep
from amends.model import Retry
from amends.people import permits
from amends.testing.simulation import NOBODY, Inside, SimulatedRun
from amends.testing.world import Traits
from amends.tools.rules import Rule
from amends.tools.tool import tool
from tests.sim.scenarios import SETTLE_S, Fails, Here, Scenario, Variant

VARIANTS = (Variant(), Variant(probe=True), Variant(repeat="idempotent", twin="absent_ok", comp_idempotent=True))
"""A setter has its own word for how it is repeated."""
WAIT_S = 150.0


def _setter(name: str = "put", *, guarded: bool = False, asks: bool = False) -> Any:
    @tool(
        name=name, key="name", on_conflict="next", idempotent="put", settle=SETTLE_S, locks=lambda call: ["value"],
        needs_approval=asks, retry=Retry(attempts=5, delay=0.1, jitter=0.0),
    )  # fmt: skip
    def put(n: int, name: str = "it") -> int:
        Here.world.put(n)
        return n

    @put.before
    def look() -> int:
        return Here.world.read_value()

    @put.compensate(idempotent="put", retry=Retry(attempts=5, delay=0.1, jitter=0.0))
    def put_back(before: int) -> None:
        Here.world.put(before)

    if guarded:

        @put.guard
        def unchanged(n: int) -> bool:
            return Here.world.value == n

    return put


async def _set(run: SimulatedRun, a_tool: Any, *, n: int) -> None:
    await run.call(a_tool, n=n)
    Here.world.asked[run.session.uid] = n


async def worker(inside: Inside) -> None:
    for _ in range(30):
        await inside.recover()
        await Sleep(10.0)


def _scenario(name: str, program: Any, *tools: Any, **more: Any) -> Scenario:
    rest = {one.name: Traits(settle=SETTLE_S) for one in tools}
    return Scenario(f"F60{name}", program, list(tools), rest, sets=tuple(one.name for one in tools), **more)


def there_and_back(ends: str, policy: str = "rollback") -> Scenario:
    """One value, another, and the first again: three settings, not two."""
    put = _setter()

    async def program(inside: Inside) -> None:
        async with inside.run("r", recover=policy, agent="agent") as run:
            for n in (1, 2, 1):
                await _set(run, put, n=n)
            if ends == "fails":
                raise Fails

    return _scenario(f" there and back, {ends}, {policy}", program, put, policy=policy)


def in_turns() -> Scenario:
    """Two runs set the same value: each reads what the other has left."""
    put = _setter()

    async def first(inside: Inside) -> None:
        async with inside.run("r1", wait=WAIT_S) as run:
            await _set(run, put, n=1)
            raise Fails

    async def second(inside: Inside) -> None:
        async with inside.run("r2", wait=WAIT_S) as run:
            await _set(run, put, n=2)
            await _set(run, put, n=3)

    return _scenario("b in turns", first, put, second=second, third=worker)


def two_setters() -> Scenario:
    """Another tool sets the same value: it waits until a lost setting has landed."""
    put, other = _setter(), _setter("other put")

    async def program(inside: Inside) -> None:
        async with inside.run("r") as run:
            await _set(run, put, n=1)
            await _set(run, other, n=2)

    return _scenario("c two setters", program, put, other)


def beside_a_lost_one() -> Scenario:
    """An agent that does not mind a doubt sets the same value by another tool: not before that has landed."""
    put, other = _setter(), _setter("other put")

    async def program(inside: Inside) -> None:
        async with inside.run("r", wait=5.0) as run:
            with suppress(InDoubt):
                await _set(run, put, n=1)
            await _set(run, other, n=2)

    return _scenario("e beside a lost one", program, put, other)


def stranger() -> Scenario:
    """Somebody else sets the value before the run fails: nothing of the run may be set back over that."""
    put, other = _setter(), _setter("other put", guarded=True)

    async def program(inside: Inside) -> None:
        async with inside.run("r") as run:
            await _set(run, put, n=1)
            await _set(run, other, n=2)
            if not Here.world.puts:
                Here.world.value = Here.world.stranger = 99
            raise Fails

    return _scenario("d stranger", program, put, other)


def permitted() -> Scenario:
    """A person has permitted it ahead: what is there is still read first."""
    put = _setter(asks=True)

    async def program(inside: Inside) -> None:
        await permits.permit(inside.host, NOBODY, put.name, Rule(), by="anna", uses=9, expires=600.0)
        async with inside.run("r", wait_approval=0.0) as run:
            with suppress(Held):
                await _set(run, put, n=1)
                await _set(run, put, n=2)
            raise Fails

    return _scenario("f permitted", program, put)


def permitted_in_turns() -> Scenario:
    """Two runs set the same value, each permitted ahead: what is there is read when the other has let go of it."""
    put = _setter(asks=True)

    async def _put(inside: Inside, id: str, n: int) -> None:
        await permits.permit(inside.host, NOBODY, put.name, Rule(), by="anna", uses=9, expires=600.0)
        async with inside.run(id, wait=WAIT_S, wait_approval=0.0) as run:
            await _set(run, put, n=n)
            await Sleep(5.0)
            if id == "r1":
                raise Fails

    async def first(inside: Inside) -> None:
        await _put(inside, "r1", 1)

    async def second(inside: Inside) -> None:
        await _put(inside, "r2", 2)

    return _scenario("h permitted in turns", first, put, second=second, third=worker)


def forward() -> Scenario:
    """Two settings are staged: the second waits until a lost first one has landed, whoever goes on."""
    first, second = _forward("put"), _forward("other put")

    async def program(inside: Inside) -> None:
        async with inside.run("r", wait=5.0) as run:
            await _set(run, first, n=1)
            await _set(run, second, n=2)

    return _scenario("g forward", program, first, second, third=worker)


def _forward(name: str) -> Any:
    @tool(name=name, kind="retriable", idempotent="put", settle=SETTLE_S, locks=lambda call: ["value"])
    def put(n: int) -> int:
        Here.world.put(n)
        return n

    @put.before
    def look() -> int:
        return Here.world.read_value()

    return put


def setting_scenarios(v: Variant) -> list[Scenario]:
    """Every flow that sets a value, for few variants."""
    if v not in VARIANTS:
        return []
    return [
        *(there_and_back(ends) for ends in ("commits", "fails")),
        there_and_back("commits", "resume"),
        in_turns(),
        two_setters(),
        stranger(),
        beside_a_lost_one(),
        permitted(),
        permitted_in_turns(),
        forward(),
    ]

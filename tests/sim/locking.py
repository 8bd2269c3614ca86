"""Flows in which runs want each other's locks: the same one, crossing, in a circle, over a pivot, after the end."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from amends.errors import Locked
from amends.ledger.operations import ReadRun
from amends.ledger.world import Sleep
from amends.testing.simulation import Inside, SimulatedRun
from amends.testing.world import World
from tests.sim.scenarios import MAIL, Fails, Here, Scenario, Variant, do, make, traits

Program = Callable[[Inside], Coroutine[Any, Any, Any]]
VARIANTS = (
    Variant(),
    Variant(probe=True),
    Variant(twin="absent_ok"),
    Variant(repeat="idempotent", twin="absent_ok", comp_idempotent=True),
    Variant(probe=True, twin="wins", comp_idempotent=True),
)
"""Locks do not care how a destination behaves: a few are enough."""
FRESH_S = 2.0
LOOKS_MAX = 60
LONG_S = 150.0
"""Longer than a dead owner's lease, its recovery and every settle delay: whoever waits so long sees it freed."""


async def worker(inside: Inside) -> None:
    """A worker beside the agents: what one of them held when it died is freed while others still wait."""
    for _ in range(30):
        await inside.recover()
        await Sleep(10.0)


async def use(run: SimulatedRun, a_tool: Any, **args: Any) -> Any:
    """Call it; a wait that ended only because somebody lost patience must not have been part of a deadlock."""
    try:
        return await run.call(a_tool, **args) if a_tool.name == "look" else await do(run, a_tool, **args)
    except Locked as no:
        _suspect(run.session.root, no)
        raise


def _suspect(root: str, no: Locked) -> None:
    world = Here.world
    if world.sim.jumped:
        return
    circle = _circle(world, root, no.lock)
    if circle and any(_could_go_back(world, uid) for uid in circle):
        world.deadlocks.append(f"{no.run_id} waited {no.waited:.0f} s for {no.lock} in a deadlock nobody ended")


def _circle(world: World, root: str, name: str) -> list[str]:
    """The runs on a way from the holder of this lock back to this run, by the waits that are being repeated."""
    store, now = world.sim.store, world.sim.clock.wall
    ways = [[lock.root] for lock in store.locks.values() if lock.name == name]
    while ways:
        way = ways.pop()
        if way[-1] == root:
            return way
        for wait in store.waits.values():
            held = store.locks.get((wait.tenant, wait.name))
            waits = wait.seen_at > now - FRESH_S and store.runs[wait.root].goal != "rollback"
            if wait.root == way[-1] and waits and held is not None and held.root not in way:
                ways.append([*way, held.root])
    return []


def _could_go_back(world: World, uid: str) -> bool:
    root = world.sim.store.runs[uid]
    inside = [run for run in world.sim.store.runs.values() if run.root == uid]
    return root.phase == "open" and not any(run.pivot or run.phase == "pivoted" for run in inside)


def _tool(name: str, kind: str = "compensatable", v: Variant = MAIL, *, lock: str = "", **options: Any) -> Any:
    rule: dict[str, Any] = {"locks": lambda call: [lock]} if lock else {}
    return make(name, kind, v, **rule, **options)


def _scenario(name: str, v: Variant, tools: list[Any], first: Program, second: Program, third: Program) -> Scenario:
    rest = {one.name: traits(MAIL if one.name in ("m", "o") else v) for one in tools}
    return Scenario(f"F24{name}", first, tools, rest, second=second, third=third)


def _program(id: str, *calls: tuple[Any, int], wait: float = LONG_S, fails: bool = False) -> Program:
    async def program(inside: Inside) -> None:
        try:
            async with inside.run(id, wait=wait) as run:
                for a_tool, n in calls:
                    await use(run, a_tool, n=n)
                if fails:
                    raise Fails(id)
        except Locked as no:  # at commit
            root = [run.uid for run in inside.sim.store.runs.values() if (run.tenant, run.id) == ("", id)][-1]
            _suspect(root, no)
            raise

    return program


def same(v: Variant, ends: str) -> Scenario:
    a, b, look = _tool("a", v=v, lock="x"), _tool("b", v=v), _tool("look", "read", lock="x")
    first = _program("r1", (a, 1), (b, 1), fails=ends == "fails")
    return _scenario(f" same lock, {ends}", v, [a, b, look], first, _program("r2", (look, 2), (a, 2)), worker)


def crossing(v: Variant, wait: float) -> Scenario:
    a, b = _tool("a", v=v, lock="x"), _tool("b", v=v, lock="y")
    first, second = _program("r1", (a, 1), (b, 1), wait=wait), _program("r2", (b, 2), (a, 2), wait=wait)
    return _scenario(f"b crossing, {wait:.0f} s", v, [a, b], first, second, worker)


def over_a_pivot(v: Variant) -> Scenario:
    a, b = _tool("a", v=v, lock="x"), _tool("b", v=v, lock="y")
    p, m = _tool("p", "pivot", v), _tool("m", "retriable", lock="y")
    first, second = _program("r1", (a, 1), (p, 1), (m, 1)), _program("r2", (b, 2), (a, 2))
    return _scenario("c over a pivot", v, [a, b, p, m], first, second, worker)


def outboxes(v: Variant) -> Scenario:
    a, b = _tool("a", v=v, lock="x"), _tool("b", v=v, lock="y")
    m, o = _tool("m", "retriable", lock="y"), _tool("o", "retriable", lock="x")
    first, second = _program("r1", (a, 1), (m, 1), wait=30.0), _program("r2", (b, 2), (o, 2), wait=30.0)
    return _scenario("d outboxes", v, [a, b, m, o], first, second, worker)


def at_commit(v: Variant) -> Scenario:
    a, b = _tool("a", v=v, lock="x"), _tool("b", v=v, lock="y")
    p = _tool("p", "pivot", v, lock="y", at="commit")
    first, second = _program("r1", (a, 1), (p, 1)), _program("r2", (b, 2), (a, 2))
    return _scenario("e pivot at commit", v, [a, b, p], first, second, worker)


def both_pivoted(v: Variant) -> Scenario:
    p, q = _tool("p", "pivot", v, lock="x"), _tool("q", "pivot", v, lock="y")
    m, o = _tool("m", "retriable", lock="y"), _tool("o", "retriable", lock="x")
    first, second = _program("r1", (p, 1), (m, 1), wait=30.0), _program("r2", (q, 2), (o, 2), wait=30.0)
    return _scenario("f both pivoted", v, [p, q, m, o], first, second, worker)


def after_the_end(v: Variant) -> Scenario:
    """What comes back to life after its end has no lock any more, and needs none to be taken back."""
    a, b = _tool("a", v=v, lock="x"), _tool("b", v=v, lock="x")

    async def second(inside: Inside) -> None:
        for _ in range(LOOKS_MAX):  # not for ever: whoever shall open it may be stopped until everybody else has ended
            if await ReadRun("", "r1") is not None:
                break
            await Sleep(1.0)
        await Sleep(1.0)
        async with inside.run("r2", wait=LONG_S, recover="wait") as run:
            await use(run, b, n=2)
            await run.let_go()
            run.over = True

    return _scenario("g after the end", v, [a, b], _program("r1", (a, 1), fails=True), second, worker)


def three(v: Variant) -> Scenario:
    a, b, c = _tool("a", v=v, lock="x"), _tool("b", v=v, lock="y"), _tool("c", v=v, lock="z")
    first, second, third = ((a, 1), (b, 1)), ((b, 2), (c, 2)), ((c, 3), (a, 3))
    return _scenario(
        "h three in a circle", v, [a, b, c], _program("r1", *first), _program("r2", *second), _program("r3", *third)
    )


def children(v: Variant) -> Scenario:
    a, b = _tool("a", v=v, lock="x"), _tool("b", v=v, lock="y")

    async def first(inside: Inside) -> None:
        async with inside.run("r1", wait=LONG_S) as run:
            await use(run, a, n=1)
            child = await run.child("inner")
            if not child.over:
                try:
                    await use(child, a, n=2)
                    await use(child, b, n=1)
                    await child.leave()
                except Exception as error:
                    await child.leave(error)
                    raise

    return _scenario("i children", v, [a, b], first, _program("r2", (b, 3), (a, 3)), worker)


def outbox_of_a_pivot(v: Variant) -> Scenario:
    a, b = _tool("a", v=v, lock="x"), _tool("b", v=v, lock="y")
    p, m = _tool("p", "pivot", v), _tool("m", "retriable", lock="y")
    first, second = _program("r1", (a, 1), (m, 1), (p, 1)), _program("r2", (b, 2), (a, 2))
    return _scenario("j outbox of a pivot", v, [a, b, p, m], first, second, worker)


def zombie(v: Variant) -> Scenario:
    """A run that was let go by its recovery: its old owner comes back and wants another lock in its name."""
    a, b = _tool("a", v=v, lock="x"), _tool("b", v=v, lock="y")

    async def first(inside: Inside) -> None:
        async with inside.run("r1", wait=LONG_S, recover="wait") as run:
            await use(run, a, n=1)
            await use(run, b, n=1)

    return _scenario("k zombie", v, [a, b], first, _program("r2", (b, 2), wait=20.0), worker)


def lock_scenarios(v: Variant) -> list[Scenario]:
    """Every flow with locks, for the variants that are worth it."""
    if v not in VARIANTS:
        return []
    return [
        *(same(v, ends) for ends in ("commits", "fails")),
        *(crossing(v, wait) for wait in (LONG_S, 20.0)),
        over_a_pivot(v),
        outboxes(v),
        at_commit(v),
        both_pivoted(v),
        after_the_end(v),
        three(v),
        children(v),
        outbox_of_a_pivot(v),
        zombie(v),
    ]

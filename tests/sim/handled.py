"""Flows whose bodies come with the request, as an adapter has them: the tool itself is declared by its name only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amends.errors import InDoubt
from amends.model import Probed, Retry
from amends.testing.simulation import Inside, SimulatedRun
from amends.testing.world import Traits
from amends.tools.declarations import declare
from tests.sim.scenarios import SETTLE_S, Fails, Here, Scenario, Variant, traits

VARIANTS = (
    Variant(),
    Variant(probe=True),
    Variant(repeat="idempotent", twin="absent_ok", comp_idempotent=True),
    Variant(repeat="window"),
)
WAIT_S = 150.0


def _declared(name: str, v: Variant) -> Any:
    def undo() -> None:
        Here.world.undo()

    def ask() -> Probed[str]:
        return Here.world.probe()

    repeats: dict[str, Any] = {"": False, "idempotent": True, "window": "24h"}
    more: dict[str, Any] = {"probe": ask, "settle": SETTLE_S} if v.probe else {}
    twin = {
        "tool": undo, "idempotent": v.comp_idempotent, "absent_ok": v.twin == "absent_ok", "wins": v.twin == "wins",
        "retry": Retry(attempts=3, delay=0.1, jitter=0.0),
    }  # fmt: skip
    return declare(name, key="n", idempotent=repeats[v.repeat], compensate=twin, **more)


async def _ask(run: SimulatedRun, tool: str, v: Variant, n: int, body: Callable[[], Any] | None = None) -> None:
    """Request a call with its body; an idempotent one is never left to a person before it was started again."""
    begun = 0

    def handler(**args: Any) -> Any:
        nonlocal begun
        begun += 1
        assert args["n"] == n, f"the body of the request for {n} was given {args}"
        return Here.world.act() if body is None else body()

    try:
        value = await run.ask(tool, {"n": n}, handler=handler)
    except InDoubt as doubt:
        if v.repeat and not v.probe and doubt.call.attempt == 1 and not begun:
            Here.world.lies.append(f"{tool} is a person's to settle, although its body was at hand")
        raise
    if body is None:
        Here.world.told(run.session.uid, tool, value)


def killed_and_asked_again(v: Variant, ends: str, policy: str) -> Scenario:
    """An agent is killed and started again: its requests come again, each with its body."""
    a, b = _declared("a", v), _declared("b", v)

    async def program(inside: Inside) -> None:
        async with inside.run("r", recover=policy, agent="agent", wait=WAIT_S) as run:
            await _ask(run, "a", v, 1)
            await _ask(run, "b", v, 2)
            await _ask(run, "a", v, 1)
            if ends == "fails":
                raise Fails

    return Scenario(
        f"F70 handled, {ends}, {policy}", program, [a, b], {"a": traits(v), "b": traits(v)},
        script={"b": ["answer lost"]}, policy=policy, sweeper=_looks if policy == "resume" and v.repeat else None,
    )  # fmt: skip


async def _looks(inside: Inside) -> None:
    """Whenever the ledger is at rest: no run waits for a person about a call that its agent would have settled."""
    doubtful = {c.root for c in inside.sim.store.calls.values() if c.state == "in_doubt" and c.attempt == 1}
    blocked = [run.id for run in inside.sim.store.runs.values() if run.state == "blocked" and run.uid in doubtful]
    Here.world.lies += [f"run {id} is blocked, although its agent can be started again" for id in blocked]


def opened_again(v: Variant) -> Scenario:
    """Nobody starts the agent again but its own program, under the same id."""
    a = _declared("a", v)

    async def program(inside: Inside) -> None:
        async with inside.run("r", recover="wait", wait=WAIT_S) as run:
            await _ask(run, "a", v, 1)

    return Scenario("F70b handled, opened again", program, [a], {"a": traits(v)}, second=program, policy="wait")


def _setter() -> Any:
    return declare(
        "put", key="name", on_conflict="next", idempotent="put", settle=SETTLE_S, locks=lambda call: ["value"],
        retry=Retry(attempts=5, delay=0.1, jitter=0.0), before=lambda: Here.world.read_value(),
        compensate={
            "tool": lambda before: Here.world.put(before), "idempotent": "put",
            "retry": Retry(attempts=5, delay=0.1, jitter=0.0),
        },
    )  # fmt: skip


async def _set(run: SimulatedRun, wanted: int) -> None:
    def handler(n: int, name: str) -> int:
        if n != wanted:
            Here.world.mistaken.append(f"the body of the request for {wanted} was given {n}")
        Here.world.put(n)
        return n

    await run.ask("put", {"n": wanted, "name": "it"}, handler=handler)
    if run.session.lease.is_ours(run.inside.sim.clock.mono):  # else another agent has gone on meanwhile
        Here.world.asked[run.session.uid] = wanted


def setter() -> Scenario:
    """A setter whose body comes with the request: not started again before a lost setting has landed."""

    async def program(inside: Inside) -> None:
        async with inside.run("r", recover="resume", agent="agent", wait=WAIT_S) as run:
            for n in (1, 2, 1):
                await _set(run, n)

    return Scenario(
        "F70c handled setter", program, [_setter()], {"put": Traits(settle=SETTLE_S)}, sets=("put",), policy="resume"
    )


def another_value() -> Scenario:
    """Started again, the agent sets another value: the lost request has no body there, and stays a person's to settle."""

    async def program(inside: Inside) -> None:
        async with inside.run("r", recover="resume", agent="agent", wait=WAIT_S) as run:
            await _set(run, 2 if run.session.resumed else 1)

    return Scenario(
        "F70d another value", program, [_setter()], {"put": Traits(settle=SETTLE_S)}, sets=("put",), policy="resume"
    )


def handled_scenarios(v: Variant) -> list[Scenario]:
    """Every flow with such bodies, for few variants."""
    if v not in VARIANTS:
        return []
    return [
        *(killed_and_asked_again(v, ends, "resume") for ends in ("commits", "fails")),
        killed_and_asked_again(v, "commits", "rollback"),
        opened_again(v),
        setter(),
        another_value(),
    ]

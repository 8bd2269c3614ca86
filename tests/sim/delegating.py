"""F74: an agent that is called as a tool. It is a child run: it waits for a person with its parent, and has its own pivot.

The person is a process of its own, raced with the agent's: what they say falls between any two operations of the other.
"""

from __future__ import annotations

from contextlib import suppress

from amends.errors import Error, Held
from amends.host.host import Host
from amends.ledger.operations import ReadRun, SearchApprovals
from amends.ledger.world import Sleep
from amends.states import RUN_FINAL
from amends.testing.simulation import Inside, SimulatedRun
from amends.tools.rules import Rule
from amends.tools.tool import tool
from tests.sim.approving import EXPIRES_S, LOOKS_MAX, VARIANTS, decide, told
from tests.sim.scenarios import Fails, Scenario, Variant, do, make, traits

WIRE = (Rule("w", expires=EXPIRES_S, why="a person must approve"),)
AGENT = (*WIRE, Rule("k", expires=EXPIRES_S, why="a person must allow the agent"))
HOWS = ("approves", "rejects", "nobody", "swallows", "swallows unheard", "allowed", "fails", "fails above", "plain")


def delegating(v: Variant, how: str, policy: str) -> Scenario:
    """A supervisor acts, asks an agent, which acts and reaches a pivot that needs approval, and reaches its own."""
    a, b = make("a", variant=v), make("b", variant=v)
    w, p = make("w", "pivot", variant=v), make("p", "pivot", variant=v)
    k = tool(name="k", kind="agent")(_agent)
    rules = AGENT if how == "allowed" else () if how in ("plain", "fails", "fails above") else WIRE

    async def work(child: SimulatedRun) -> None:
        await do(child, b, n=1)
        if how == "fails":
            raise Fails("the agent inside")
        if how == "fails above":
            return  # so that nothing stands when the one above takes it back
        if how.startswith("swallows"):
            with suppress(Held):
                await do(child, w, n=1)
        else:
            await told(do(child, w, n=1))

    async def supervise(inside: Inside) -> None:
        async with inside.run("r", recover=policy, agent="agent") as run:
            await do(run, a, n=1)
            with suppress(Fails):
                await run.delegate(k, work, n=1)
            if how == "fails above":
                raise Fails("on purpose")
            await told(do(run, p, n=1))

    async def start(inside: Inside) -> None:
        inside.host.rules = rules
        await supervise(inside)

    async def person(inside: Inside) -> None:
        inside.host.rules = rules
        for _ in range(LOOKS_MAX):
            await Sleep(7.0)
            for found in await SearchApprovals(None, ("pending",), None, 10):
                await decide(inside.host, found, "rejects" if how == "rejects" else "approves")
            tree = await ReadRun("", "r")
            if tree is not None and tree.run.state in RUN_FINAL:
                return
            if tree is not None and not tree.run.owner and policy == "rollback":
                with suppress(Error):
                    await supervise(inside)

    tools = [a, b, w, p, k]
    rest = {name: traits(v) for name in ("a", "b", "w", "p")}
    is_asked = how in ("approves", "rejects", "swallows", "allowed")
    scenario = Scenario(
        f"F74 {how}, {policy}", start, tools, rest, policy=policy, second=person if is_asked else None,
        asks=("w",) if rules else (),
    )  # fmt: skip
    scenario.host = Host({"url": "memory:", "lease": 30.0, "rules": rules}, tools, alone=True)
    return scenario


def _agent(n: int = 0) -> None:
    raise AssertionError("a simulated agent is the flow that it is given")


def delegating_scenarios(v: Variant) -> list[Scenario]:
    """Agents that are called as tools."""
    if v not in VARIANTS:
        return []
    return [*(delegating(v, how, "rollback") for how in HOWS), delegating(v, "plain", "resume")]

"""Flows that read through their run, are resumed, and are replayed by somebody who asks for more than there is."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from amends.engine import recorded_values
from amends.engine.call import guarded_call
from amends.errors import Diverged, Error, UsageError
from amends.host import runs
from amends.host.requests import direct_ask
from amends.ledger.world import Sleep
from amends.replay import driver
from amends.testing.simulation import NOBODY, Inside, SimulatedRun
from amends.tools.scope import Options
from tests.sim.scenarios import Here, Scenario, Variant, do, make, traits

HERE = ("", 0)


async def _read(run: SimulatedRun, number: int) -> None:
    at = await recorded_values.read_clock(run.session, HERE)
    Here.world.read.append((run.session.uid, number, (at, recorded_values.seed_of(run.session, "uuid", HERE))))


async def _replay(inside: Inside, asks: list[tuple[Any, int]]) -> None:
    """Replay what there is of the run, and go on where the record ends."""
    try:
        record, others = await driver.read(inside.host, NOBODY, "r")
    except UsageError:
        return  # not there yet
    Here.world.replaying.add(inside.process.name)
    replay = driver.begun(record, others, until=None, strict=True)
    session = driver.session_of(inside.host, replay)
    for a_tool, number in asks:
        declared, _ = runs.declared_as(a_tool)
        ask = direct_ask(inside.host, session, declared, Options(), (), {"n": number})
        with suppress(Diverged):
            try:
                await guarded_call(session, ask)
            except Diverged:
                raise
            except Error:
                continue  # what it was told then


def replay_scenarios(v: Variant) -> list[Scenario]:
    """A run that is resumed and reads the clock between its calls, and somebody who replays it meanwhile."""
    a, b, look = make("a", variant=v), make("b", variant=v), make("look", "read")
    rest = {name: traits(v) for name in "ab"}

    async def program(inside: Inside) -> None:
        async with inside.run("r", recover="resume", agent="agent") as run:
            await _read(run, 1)
            await do(run, a, n=1)
            await _read(run, 2)
            await run.call(look, n=1)
            await do(run, b, n=1)

    async def replayer(inside: Inside) -> None:
        for _ in range(4):
            await Sleep(2.0)
            await _replay(inside, [(a, 1), (look, 1), (b, 1), (b, 2), (look, 2), (a, 1)])

    return [Scenario("F27 replayed", program, [a, b, look], rest, policy="resume", second=replayer)]

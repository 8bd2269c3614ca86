"""The activities that the plugin adds to a worker: each is one request to ``DurableRuns``, which may be repeated."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from temporalio import activity

from amends.adapters.durable_runs import Decided, Decision, DurableRuns, Ending, EngineCall, EngineRun, Outcome
from amends.adapters.temporal.runs import CALL, COMMIT, DECIDE, ROLL_BACK, SETTLE

HEARTBEATS: Final = 3
"""How often in each heartbeat timeout the worker says that it lives."""


def activities_of(runs: Callable[[], DurableRuns]) -> Sequence[Callable[..., Any]]:
    """Return the activities over the runs of this worker process."""

    @activity.defn(name=CALL)
    async def call(run: EngineRun, asked: EngineCall) -> Outcome:
        async with alive():
            return await runs().perform(run, asked)

    @activity.defn(name=SETTLE)
    async def settle(run: EngineRun, asked: EngineCall) -> Outcome:
        async with alive():
            return await runs().perform(run, asked)

    @activity.defn(name=COMMIT)
    async def commit(run: EngineRun, output: Any) -> Ending:
        async with alive():
            return await runs().commit(run, output)

    @activity.defn(name=ROLL_BACK)
    async def roll_back(run: EngineRun, why: str) -> Ending:
        async with alive():
            return await runs().roll_back(run, why)

    @activity.defn(name=DECIDE)
    async def decide(run: EngineRun, decision: Decision) -> Decided:
        return await runs().decide(decision, tenant=run.tenant)

    return [call, settle, commit, roll_back, decide]


@asynccontextmanager
async def alive(heartbeat: Callable[[], None] = activity.heartbeat) -> AsyncIterator[None]:
    """Send heartbeats while the activity works: without them the engine gives up on a worker that has died.

    ``heartbeat``: how to send one from the event loop. While a blocking activity runs in its thread, ``activity.heartbeat``
    is for that thread, and on the loop would wait for the loop itself.
    """
    limit = activity.info().heartbeat_timeout
    if limit is None:
        yield
        return
    beating = asyncio.create_task(_beat(heartbeat, limit.total_seconds() / HEARTBEATS))
    try:
        yield
    finally:
        beating.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await beating


async def _beat(heartbeat: Callable[[], None], every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)  # first: most calls are over by then, and the start says that the worker lives
        heartbeat()

"""A shared flow as an ordinary program: killed, it is started again."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from amends import AsyncRun, AsyncRuntime, InDoubt, RolledBack, RunBlocked, Waiting
from amends.errors import RunEnded
from tests.engines.flows import play
from tests.engines.world import UNKNOWABLE, runtime, world

POLL_S = 0.05


async def main(flow: str) -> None:
    """Play the flow to its end, however often the program is started."""
    rt, here = runtime(), world()
    run = opened = await _opened(rt)
    if opened is None:
        return

    async def ask(tool: str, args: dict[str, Any]) -> str:
        while True:
            here.reach(f"{tool}: asked")
            answer = await opened.answer(tool, args)
            here.reach(f"{tool}: answered")
            if isinstance(answer.error, InDoubt) and tool in UNKNOWABLE:
                return await _settled(rt, answer.error.call.id)
            if not isinstance(answer.error, InDoubt | Waiting):
                return "done" if answer.status == "replayed" else answer.status
            await asyncio.sleep(POLL_S)

    may_commit = await play(flow, ask)
    verb = "commit" if may_commit else "rollback"
    while run is not None and not run.is_over:
        here.reach(f"{verb}: asked")
        try:
            await (run.commit() if may_commit else run.rollback("the flow failed"))
        except (RolledBack, RunBlocked, Waiting):
            run = await _opened(rt)
    here.reach(f"{verb}: answered")


async def _settled(rt: AsyncRuntime, call_id: str) -> str:
    """Wait until a person has said what happened. Asking for the call again would be another request."""
    while (await rt.call(call_id)).state == "in_doubt":
        await asyncio.sleep(POLL_S)
    told = await rt.told(call_id)
    assert told is not None
    return told.status


async def _opened(rt: AsyncRuntime) -> AsyncRun | None:
    """Open the run, waiting for people; None: it has ended."""
    while True:
        try:
            return await rt.open(world().run_id, recover="wait", if_rolled_back="raise", wait=2, wait_approval=0)
        except (RunBlocked, Waiting):
            await asyncio.sleep(POLL_S)
        except RunEnded:
            return None


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))

"""Replay recorded runs against an agent of the server: no tool runs, nothing is written, and the first difference is told."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final

from pydantic import Field

from amends import Replayed
from amends.errors import AgentNotFound, WrongColour
from amends.serve.exchange import Body, Exchange, Reply
from amends.serve.long_work import LongWork, Work
from amends.serve.problems import TooSlow
from amends.serve.started import in_thread

REPLAY_S_MAX: Final = 60.0
"""How long the replay of one run may take: its program may wait for something that never comes."""


class ReplayEach(Body):
    """What to replay."""

    runs: list[Annotated[str, Field(min_length=1, max_length=512)]] = Field(
        min_length=1, max_length=100, description="The ids of the runs"
    )
    until: str | None = Field(None, min_length=1, max_length=512, description="The id of a call: stop after it")
    strict: bool = Field(
        True, description="Whether another version of a tool, and arguments that carry no intent, count"
    )


async def replay_each(x: Exchange) -> Reply:
    """Begin to replay runs against an agent of the server, and tell of each whether the agent does the same today."""
    said: ReplayEach = x.body
    about = said.runs[0] if len(said.runs) == 1 else ""  # the console shows the replay of one run
    return x.service.long_works.begin(x, "replay_each", replaying(x, x.path["id"], said), about=about)


def replaying(x: Exchange, agent: str, said: ReplayEach) -> Work:
    """Return the work of replaying these runs; raise ``AgentNotFound``."""
    if agent not in x.rt.agents:
        raise AgentNotFound(agent, known=x.rt.agents)

    async def work(going: LongWork) -> dict[str, Any]:
        found: list[Replayed] = []
        for run in said.runs:
            try:
                async with asyncio.timeout(REPLAY_S_MAX):
                    found += await _replayed(x, agent, run, until=said.until, strict=said.strict)
            except TimeoutError:
                raise TooSlow(
                    f"the replay of run {run} did not end within {REPLAY_S_MAX:g} s",
                    hint="replay it on the command line: amends replay RUN --against APP:FN",
                ) from None
            going.runs = len(found)
        return {"agent": agent, "replayed": [one.to_dict() for one in found]}

    return work


async def _replayed(x: Exchange, agent: str, run: str, **options: Any) -> list[Replayed]:
    """Replay one run: in a thread if the agent blocks."""
    blocking = x.service.blocking(x)
    if blocking is not None:
        try:
            return await in_thread(lambda: blocking.replay_each([run], agent, **options))
        except WrongColour:  # it is async, and nothing was replayed
            pass
    return await x.rt.replay_each([run], agent, **options)

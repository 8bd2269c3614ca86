"""An existing agent on Temporal's OpenAI Agents SDK integration, to whose worker only the plugin of amends was added.

usage: python -m tests.engines.openai_agent work|start ADDRESS FLOW
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

from agents import Agent, Model, ModelResponse, Runner
from temporalio import workflow
from temporalio.client import Client
from temporalio.openai_agents import ModelActivityParameters, OpenAIAgentsPlugin
from temporalio.openai_agents.testing import ResponseBuilders, TestModelProvider
from temporalio.openai_agents.workflow import activity_as_tool
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from amends.adapters.temporal import AmendsPlugin
    from tests.engines import plain_agent, points, world
    from tests.engines.temporal_programs import declared_elsewhere

GIVEN_UP = timedelta(seconds=3)
ASKED = (("reserve", {"room": "12"}), ("charge", {"order": "7"}))


class Scripted(Model):
    """A model that asks for the next tool until it has the results of all."""

    async def get_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any) -> ModelResponse:
        """Answer by how many results it was shown: it keeps nothing, so a restarted worker has the same model."""
        shown = [] if isinstance(input, str) else [one for one in input if one.get("type") == "function_call_output"]
        if len(shown) == len(ASKED):
            return ResponseBuilders.output_message(" and ".join(str(one["output"]) for one in shown))
        name, args = ASKED[len(shown)]
        return ResponseBuilders.tool_call(json.dumps(args), name, call_id=f"call-{len(shown)}")

    def stream_response(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        """Not used."""
        raise NotImplementedError


@workflow.defn
class Concierge:
    """What a program of the integration looks like."""

    @workflow.run
    async def run(self, prompt: str) -> str:
        tools = [
            activity_as_tool(one, start_to_close_timeout=GIVEN_UP) for one in (plain_agent.reserve, plain_agent.charge)
        ]
        agent = Agent(name="concierge", instructions="Book the trip.", tools=tools)
        return str((await Runner.run(agent, prompt)).final_output)


async def main(verb: str, address: str) -> None:
    """Work until killed, or start the agent and wait for its end."""
    plugin = OpenAIAgentsPlugin(
        model_params=ModelActivityParameters(start_to_close_timeout=GIVEN_UP),
        model_provider=TestModelProvider(Scripted()),
    )
    client = await Client.connect(address, plugins=[plugin])
    here = world.world()
    if verb == "start":
        said = await client.execute_workflow(Concierge.run, "a trip", id=here.run_id, task_queue=str(here.folder))
        assert said == "reserved-12 and charged-7", said
        return
    points.install()
    async with Worker(
        client, task_queue=str(here.folder), workflows=[Concierge],
        activities=[plain_agent.reserve, plain_agent.charge],
        plugins=[AmendsPlugin(declared_elsewhere(), idle_s=1.0)],  # all that was added
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=1),
    ):  # fmt: skip
        await asyncio.Event().wait()


if __name__ == "__main__":
    code = 0
    try:
        asyncio.run(main(sys.argv[1], sys.argv[2]))
    except BaseException as error:
        print(repr(error), file=sys.stderr)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

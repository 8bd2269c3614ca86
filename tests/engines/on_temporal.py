"""A shared flow on Temporal: the worker, and the program that starts the flow and waits for its end.

usage: python -m tests.engines.on_temporal worker|start ADDRESS FLOW. It ends by ``os._exit``: clients of temporalio 1.35
sometimes abort while the interpreter ends, after everything was done.
"""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.client import Client, WorkflowFailureError
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from amends.adapters.temporal import AmendsPlugin, durable_run
    from tests.engines import flows, points, world

HEARTBEAT_S = 1.0
STICKY_S = 1.0


@workflow.defn
class Trip:
    """One flow, as the code of a workflow."""

    @workflow.run
    async def run(self, flow: str) -> str:
        run = durable_run()

        async def ask(tool: str, args: dict[str, Any]) -> str:
            return (await run.answer(tool, args)).status

        if await flows.play(flow, ask):
            return "may be committed"
        return (await run.rollback("the flow failed")).state


async def work(address: str, queue: str) -> None:
    """Work until killed."""
    points.install()
    async with Worker(
        await _connected(address), task_queue=queue, workflows=[Trip],
        plugins=[AmendsPlugin(world.runtime(), heartbeat_s=HEARTBEAT_S, idle_s=1.0)],
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=STICKY_S),
    ):  # fmt: skip
        await asyncio.Event().wait()


async def start(address: str, queue: str, flow: str) -> None:
    """Start the flow, once however often this is done, and wait until it has ended."""
    client = await _connected(address)
    while True:
        try:
            handle = await client.start_workflow(
                Trip.run, flow, id=world.world().run_id, task_queue=queue,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            )  # fmt: skip
            await handle.result()
        except WorkflowAlreadyStartedError:  # it has ended, and the answer was lost
            await client.get_workflow_handle(world.world().run_id).result()
            return
        except RPCError as error:  # the server is down
            print(f"asking again: {error}", file=sys.stderr)
            await asyncio.sleep(0.1)
        except WorkflowFailureError as error:
            print(f"failed: {error.cause!r}", file=sys.stderr)
            return
        else:
            return


async def _connected(address: str) -> Client:
    while True:
        try:
            return await Client.connect(address)
        except (RPCError, RuntimeError) as error:
            print(f"connecting again: {error}", file=sys.stderr)
            await asyncio.sleep(0.1)


if __name__ == "__main__":
    verb, where, flow_name = sys.argv[1:]
    task_queue = os.environ[world.FOLDER]
    asyncio.run(work(where, task_queue) if verb == "work" else start(where, task_queue, flow_name))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)

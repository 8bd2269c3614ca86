"""Workers for the tests of the Temporal adapter.

usage: python -m tests.engines.temporal_programs ADDRESS KIND; KIND: amends, plain (without the plugin), or a build id.
"""

from __future__ import annotations

import asyncio
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.service import RPCError
from temporalio.worker import Worker, WorkerDeploymentConfig

with workflow.unsafe.imports_passed_through():
    from amends import AsyncRuntime, declare
    from amends.adapters.temporal import AmendsPlugin, durable_run
    from tests.engines import plain_agent, points, world
    from tests.engines.on_temporal import Trip

DEPLOYMENT = "trips"
FAILURES: dict[str, Any] = {"strict": "rollback"}
"""What an open failure means for the runs of a worker."""


@workflow.defn
class LongTrip:
    """A run that goes on over several executions, and fails in the last one."""

    @workflow.run
    async def run(self, part: int) -> str:
        run = durable_run()
        if part == 1:
            await run.call("reserve", {"room": "12"})
            workflow.continue_as_new(2)
        await run.call("charge", {"order": "7"})
        await run.call("break_down", {"order": "7"})
        raise AssertionError("break_down fails")


@workflow.defn
class ApprovedTrip:
    """A run that waits for a person, and says which version of its code has gone on."""

    @workflow.run
    async def run(self) -> str:
        run = durable_run()
        await run.call("charge", {"order": "7"})
        await run.call("wire", {"order": "7"})
        return f"wired by {workflow.info().get_current_build_id()}"


@workflow.defn
class CarelessTrip:
    """Code that ends well although a call of it has failed."""

    @workflow.run
    async def run(self) -> str:
        run = durable_run()
        await run.call("reserve", {"room": "12"})
        return (await run.answer("break_down", {"order": "7"})).status


def declared_elsewhere() -> AsyncRuntime:
    """Return a runtime for the activities of an agent that knows nothing of amends."""
    here = world.world()

    def undo(what: str) -> Any:
        def compensate(call: Any) -> None:
            here.reach(f"{what}: body")
            here.note(what, next(iter(call.args.values())))

        return compensate

    reserve = declare("reserve", like=_room, key="room", compensate=undo("unreserved"))
    charge = declare("charge", like=_order, key="order", compensate=undo("refunded"))
    break_down = declare("break_down", like=_order, compensate=undo("mended"))
    drive = declare("drive", like=_car, key="car", compensate=undo("parked"))
    return AsyncRuntime(here.ledger, tools=[reserve, charge, break_down, drive])


def _room(room: str) -> str:
    raise AssertionError("its activity is its body")


def _order(order: str) -> str:
    raise AssertionError("its activity is its body")


def _car(car: str) -> str:
    raise AssertionError("its activity is its body")


async def main(address: str, kind: str) -> None:
    """Work until killed."""
    points.install()
    client, options = await connected(address), dict[str, Any]()
    queue = os.environ[world.FOLDER]
    if kind in ("plain", "guarded"):
        options = {"workflows": [plain_agent.PlainTrip, plain_agent.PlainDrive], "activities": plain_agent.ACTIVITIES}
        options["activity_executor"] = ThreadPoolExecutor()
    if kind == "guarded":
        options["plugins"] = [AmendsPlugin(declared_elsewhere(), heartbeat_s=1.0, idle_s=1.0)]
    elif kind != "plain":
        options = {"workflows": [Trip, LongTrip, ApprovedTrip, CarelessTrip]}
        options["plugins"] = [
            AmendsPlugin(world.runtime(), heartbeat_s=1.0, idle_s=1.0, on_open_failure=FAILURES.get(kind))
        ]
    if kind.startswith("v"):
        options["deployment_config"] = WorkerDeploymentConfig(
            version=WorkerDeploymentVersion(DEPLOYMENT, kind), use_worker_versioning=True,
            default_versioning_behavior=VersioningBehavior.PINNED,
        )  # fmt: skip
    sticky = timedelta(seconds=1)
    async with Worker(client, task_queue=queue, sticky_queue_schedule_to_start_timeout=sticky, **options):
        await asyncio.Event().wait()


async def connected(address: str) -> Client:
    """Return a client, as soon as the server answers."""
    while True:
        try:
            return await Client.connect(address)
        except (RPCError, RuntimeError) as error:
            print(f"connecting again: {error}", file=sys.stderr)
            await asyncio.sleep(0.1)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

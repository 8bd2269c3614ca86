"""Tests of the Temporal adapter that need a client of Temporal: each runs in a process of its own (``test_temporal.py``).

usage: python -m tests.engines.temporal_cases CASE FOLDER
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.workflowservice.v1 import SetWorkerDeploymentCurrentVersionRequest
from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowUpdateFailedError,
)
from temporalio.service import RPCError
from temporalio.worker import Replayer

from amends import Happened, Report, Runtime
from amends.adapters.temporal import APPROVALS_QUERY, DECISION_UPDATE, AmendsPlugin, Decided, Decision, PendingApproval
from tests.engines import plain_agent, world
from tests.engines.on_temporal import Trip
from tests.engines.person import decide
from tests.engines.scenario import ROOT
from tests.engines.temporal_programs import DEPLOYMENT, ApprovedTrip, CarelessTrip, LongTrip, connected
from tests.servers.temporal import TemporalServer

POLL_S = 0.05
CASE_S_MAX = 120


@dataclass
class Stage:
    """A world, a server, and the workers that are running."""

    here: world.World
    server: TemporalServer
    client: Client
    workers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def work(self, kind: str) -> None:
        """Start a worker, or start it again."""
        command = [sys.executable, "-m", "tests.engines.temporal_programs", self.server.address, kind]
        self.workers[kind] = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL)

    def start(self, code: Any, *args: Any) -> Awaitable[WorkflowHandle[Any, Any]]:
        """Start the run of this world."""
        return self.client.start_workflow(code, args=args, id=self.here.run_id, task_queue=str(self.here.folder))

    def report(self) -> Report:
        """Return the run as the ledger has it."""
        with Runtime(self.here.ledger, tools=[]) as rt:
            return rt.report(self.here.run_id)

    async def until(self, is_so: Callable[[], Any]) -> None:
        """Wait until something is so; start workers again that have died, and decide as a person does."""
        with Runtime(self.here.ledger, tools=[]) as rt:
            while not is_so():
                for kind, one in list(self.workers.items()):
                    if one.poll() is not None:
                        self.work(kind)
                decide(self.here, rt)
                await asyncio.sleep(POLL_S)


@contextlib.asynccontextmanager
async def staged(folder: Path) -> AsyncIterator[Stage]:
    """Start a server, and end everything afterwards."""
    with TemporalServer() as server:
        stage = Stage(world.World(folder), server, await connected(server.address))
        try:
            yield stage
        finally:
            for one in stage.workers.values():
                one.kill()
                one.wait()


async def ended(stage: Stage, handle: WorkflowHandle[Any, Any]) -> Any:
    """Return the result, or the error with which it failed, while whatever dies is started again."""
    waiting = asyncio.ensure_future(handle.result())
    await stage.until(waiting.done)
    try:
        return waiting.result()
    except WorkflowFailureError as error:
        return error.cause


async def replayed(stage: Stage, handle: WorkflowHandle[Any, Any], *code: type) -> None:
    """Raise unless the code makes the same decisions again from its history."""
    rt = Runtime("memory:", tools=world.TOOLS)
    await Replayer(workflows=code, plugins=[AmendsPlugin(rt)]).replay_workflow(await handle.fetch_history())


async def pending(handle: WorkflowHandle[Any, Any]) -> PendingApproval:
    """Return what waits for a person."""
    while True:
        with contextlib.suppress(RPCError):  # the server is starting, or no worker answers yet
            found = await handle.query(APPROVALS_QUERY, result_type=list[PendingApproval])
            if found:
                return found[0]
        await asyncio.sleep(POLL_S)


async def updated(handle: WorkflowHandle[Any, Any], decision: Decision) -> Decided:
    """Send a decision to the run, as a person's program does."""
    made: Decided = await handle.execute_update(DECISION_UPDATE, decision, result_type=Decided)
    return made


# ---- Cases


async def approval_over_a_server_restart(stage: Stage) -> None:
    stage.work("amends")
    handle = await stage.start(ApprovedTrip.run)
    asked = await pending(handle)
    assert (asked.tool, asked.args) == ("wire", {"order": "7"})
    stage.server.kill()
    stage.workers["amends"].kill()
    stage.workers["amends"].wait()
    stage.server.start()
    stage.work("amends")
    asked = await pending(handle)
    for wrong in (
        Decision(asked.id, "0" * 64, "ann"),
        Decision("apr_0", asked.digest, "ann"),
        Decision(asked.id, asked.digest, ""),
    ):
        try:
            await updated(handle, wrong)
        except WorkflowUpdateFailedError:
            continue
        raise AssertionError(f"{wrong} was accepted")
    assert stage.here.log == ["charged 7"]
    history = await handle.fetch_history()
    assert not any(event.HasField("workflow_execution_update_accepted_event_attributes") for event in history.events)
    assert (await updated(handle, Decision(asked.id, asked.digest, "ann"))).state == "approved"
    assert (await handle.result()).startswith("wired by ")
    assert stage.here.log == ["charged 7", "wired 7"]
    report = stage.report()
    assert report.state == "committed"
    await replayed(stage, handle, ApprovedTrip)
    await ended(stage, await stage.start(ApprovedTrip.run))  # Temporal itself would do everything again under this id
    assert stage.here.log == ["charged 7", "wired 7"]


async def continue_as_new_in_the_middle(stage: Stage) -> None:
    stage.here.arm("charge: effect", "worker")
    stage.work("amends")
    handle = await stage.start(LongTrip.run, 1)
    error = await ended(stage, handle)
    assert getattr(error, "type", "").endswith("NoEffect"), repr(error)
    assert stage.here.is_fired
    assert stage.here.log == ["reserved 12", "charged 7", "refunded 7", "unreserved 12"]
    report = stage.report()
    assert report.state == "rolled_back"
    assert [call.state for call in report.calls] == ["compensated", "compensated", "failed"]
    await replayed(stage, stage.client.get_workflow_handle(stage.here.run_id), LongTrip)


async def two_versions_side_by_side(stage: Stage) -> None:
    stage.here.arm("charge: effect", "worker")
    stage.work("v1")
    await _make_current(stage, "v1")
    handle = await stage.start(ApprovedTrip.run)
    await stage.until(lambda: stage.here.is_fired)  # the old version dies in the middle of its call
    stage.work("v2")
    await _make_current(stage, "v2")
    assert await ended(stage, handle) == "wired by v1"
    assert stage.here.log == ["charged 7", "wired 7"]
    assert stage.report().state == "committed"
    other = await stage.client.start_workflow(Trip.run, "repeats", id="other", task_queue=str(stage.here.folder))
    assert await ended(stage, other) == "may be committed"
    described = await other.describe()
    assert described.raw_description.workflow_execution_info.versioning_info.deployment_version.build_id == "v2"


async def _make_current(stage: Stage, build: str) -> None:
    """Send new executions to this version, as soon as its worker is known to the server."""
    request = SetWorkerDeploymentCurrentVersionRequest(
        namespace="default", deployment_name=DEPLOYMENT, build_id=build, ignore_missing_task_queues=True
    )
    while True:
        try:
            await stage.client.workflow_service.set_worker_deployment_current_version(request)
        except RPCError:
            await asyncio.sleep(POLL_S)
        else:
            return


async def cancellation_during_compensation(stage: Stage) -> None:
    stage.here.arm("refund: body", "server")  # it waits there
    stage.work("amends")
    handle = await stage.start(Trip.run, "rolls back")
    await stage.until(lambda: stage.here.is_fired)
    await handle.cancel()
    await asyncio.sleep(2 * POLL_S)
    await handle.cancel()
    stage.here.server_was_killed()  # it goes on
    _ = await ended(stage, handle)
    assert stage.here.log == ["reserved 12", "charged 7", "refunded 7", "unreserved 12"]
    assert stage.report().state == "rolled_back"


async def cancellation_rolls_back(stage: Stage) -> None:
    stage.here.arm("charge: body", "server")
    stage.work("amends")
    handle = await stage.start(Trip.run, "pivots")
    await stage.until(lambda: stage.here.is_fired)
    await handle.cancel()
    await asyncio.sleep(2 * POLL_S)
    stage.here.server_was_killed()  # the body goes on, and is compensated
    _ = await ended(stage, handle)
    assert (await handle.describe()).status is WorkflowExecutionStatus.CANCELED
    assert stage.here.log == ["charged 7", "refunded 7"]
    assert stage.report().state == "rolled_back"


async def two_workers_and_one_is_killed(stage: Stage) -> None:
    stage.here.arm("charge: effect", "worker")
    stage.work("amends")
    stage.work("amends too")
    handle = await stage.start(Trip.run, "pivots")
    assert await ended(stage, handle) == "may be committed"
    assert stage.here.is_fired
    assert stage.here.log == ["charged 7", "wired 7", "mailed ann"]
    report = stage.report()
    assert report.state == "committed"
    assert [call.state for call in report.calls] == ["succeeded"] * 3


async def a_person_takes_the_run_back_while_it_waits(stage: Stage) -> None:
    stage.work("amends")
    handle = await stage.start(ApprovedTrip.run)
    _ = await pending(handle)
    with Runtime(stage.here.ledger, tools=[]) as rt:
        rt.rollback(stage.here.run_id, by="ann", why="not wanted any more")
    with pytest.raises(WorkflowFailureError) as error:
        await handle.result()
    assert getattr(error.value.cause, "type", "") == "RunEnded", repr(error.value.cause)
    assert stage.here.log == ["charged 7", "refunded 7"]
    assert stage.report().state == "rolled_back"


async def open_failure_takes_back_what_a_careless_agent_leaves(stage: Stage) -> None:
    stage.work("strict")
    error = await ended(stage, await stage.start(CarelessTrip.run))
    assert getattr(error, "type", "") == "RolledBack", repr(error)
    assert stage.here.log == ["reserved 12", "unreserved 12"]
    assert stage.report().state == "rolled_back"


async def existing_agent_with_only_the_plugin(stage: Stage) -> None:
    stage.here.arm("charge: effect", "worker")
    stage.work("guarded")
    handle = await stage.start(plain_agent.PlainTrip.run, False)
    assert await ended(stage, handle) == ["seen 7", "reserved-12", "charged-7"]
    assert stage.here.is_fired
    assert stage.here.log == ["reserved 12", "charged 7"]
    assert stage.report().state == "committed"
    rt = Runtime("memory:", tools=world.TOOLS)
    await Replayer(workflows=[plain_agent.PlainTrip], plugins=[AmendsPlugin(rt)]).replay_workflow(
        await handle.fetch_history()
    )


async def existing_agent_that_fails_is_taken_back(stage: Stage) -> None:
    stage.here.arm("refunded: body", "worker")
    stage.work("guarded")
    handle = await stage.start(plain_agent.PlainTrip.run, True)
    error = await ended(stage, handle)
    assert getattr(error.cause, "type", "") == "ValueError", repr(error.cause)
    assert stage.here.is_fired
    assert sorted(stage.here.log) == ["charged 7", "refunded 7", "reserved 12", "unreserved 12"]
    assert stage.report().state == "rolled_back"


async def existing_activity_cancelled_in_its_thread_is_in_doubt(stage: Stage) -> None:
    """Temporal raises an exception in the thread of a blocking activity: its effect may be there."""
    stage.work("guarded")
    handle = await stage.start(plain_agent.PlainDrive.run)
    await stage.until(lambda: stage.here.log)
    await handle.cancel()
    await stage.until(lambda: stage.report().state == "blocked")
    [call] = stage.report().calls
    assert (call.state, call.why) == ("in_doubt", "connection")
    with Runtime(stage.here.ledger, tools=[]) as rt:
        rt.resolve(call.id, Happened("driven-3"), by="ann", why="looked")
    _ = await ended(stage, handle)
    assert (await handle.describe()).status is WorkflowExecutionStatus.CANCELED
    assert stage.here.log == ["driven 3", "parked 3"]
    assert stage.report().state == "rolled_back"


async def existing_agent_without_the_plugin_repeats_its_effect(stage: Stage) -> None:
    """Why the plugin is needed; and what it may not change about histories from before it was added."""
    stage.here.arm("charge: effect", "worker")
    stage.work("plain")
    handle = await stage.start(plain_agent.PlainTrip.run, False)
    waiting = asyncio.ensure_future(handle.result())
    while not waiting.done():
        if stage.workers["plain"].poll() is not None:
            stage.work("plain")
        await asyncio.sleep(POLL_S)
    assert stage.here.log == ["reserved 12", "charged 7", "charged 7"]
    rt = Runtime("memory:", tools=world.TOOLS)
    await Replayer(workflows=[plain_agent.PlainTrip], plugins=[AmendsPlugin(rt)]).replay_workflow(
        await handle.fetch_history()
    )


CASES: dict[str, Callable[[Stage], Awaitable[None]]] = {
    case.__name__: case
    for case in (
        approval_over_a_server_restart,
        continue_as_new_in_the_middle,
        two_versions_side_by_side,
        cancellation_during_compensation,
        cancellation_rolls_back,
        two_workers_and_one_is_killed,
        a_person_takes_the_run_back_while_it_waits,
        open_failure_takes_back_what_a_careless_agent_leaves,
        existing_agent_with_only_the_plugin,
        existing_agent_that_fails_is_taken_back,
        existing_activity_cancelled_in_its_thread_is_in_doubt,
        existing_agent_without_the_plugin_repeats_its_effect,
    )
}


async def main(case: str, folder: str) -> None:
    os.environ[world.FOLDER] = folder
    async with staged(Path(folder)) as stage, asyncio.timeout(CASE_S_MAX):
        await CASES[case](stage)


if __name__ == "__main__":
    code = 0
    try:
        asyncio.run(main(*sys.argv[1:]))
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # clients of temporalio 1.35 sometimes abort while the interpreter ends

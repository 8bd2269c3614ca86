"""Services for tests of the adapter: a request is a list of calls, and how the handler ends."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from typing import Any

import restate

from amends.adapters.restate import DurableRun, RestateRuns
from tests.engines.world import runtime, world

RETENTION = timedelta(milliseconds=200)
ingress = os.environ.get("INGRESS")
rt = runtime()

trip = restate.Workflow("trip")
trips = RestateRuns(rt, trip, ingress=ingress)
desk = restate.VirtualObject("desk")
desks = RestateRuns(rt, desk, ingress=ingress, decisions="ingress")
bare = restate.Service("bare")


@trip.main(workflow_retention=RETENTION if os.environ.get("FORGETS") else None)
async def order(ctx: restate.WorkflowContext, asked: dict[str, Any]) -> Any:
    (world().folder / "node").write_text(ctx.request().attempt_headers["x-node"])
    async with trips.open(ctx, input=asked) as run:
        return await _followed(run, asked)


@trip.handler()
async def approve(ctx: restate.WorkflowSharedContext, by: str) -> Any:
    """Decide in the name of somebody, as a service of the user's own does that has checked who asks."""
    listed = await ctx.generic_call("trip", "amends_approvals", b"", key=ctx.key())
    [approval] = json.loads(listed)
    decision = {"approval": approval["id"], "digest": approval["digest"], "by": by}
    told = await ctx.generic_call("trip", "amends_decide", json.dumps(decision).encode(), key=ctx.key())
    return json.loads(told)


@desk.handler()
async def serve(ctx: restate.ObjectContext, asked: dict[str, Any]) -> Any:
    async with desks.open(ctx, id=asked.get("id")) as run:
        return await _followed(run, asked)


@bare.handler()
async def charge(ctx: restate.Context, order: str) -> None:
    """Have an effect without amends, and ask Restate to try once only."""

    def effect() -> None:
        with (world().folder / "bare").open("a") as file:
            print("charged", order, file=file, flush=True)
        world().reach("bare: effect")

    await ctx.run_typed("charge", effect, restate.RunOptions(max_attempts=1))


async def _followed(run: DurableRun, asked: dict[str, Any]) -> Any:
    results = []
    for tool, args in asked["calls"]:
        results.append(await run.call(tool, args))
    if asked.get("fail"):
        raise restate.TerminalError(asked["fail"], 422)
    run.output = results
    return results


app = trips.app([trip, desk, bare], also=[desks])

"""A shared flow on Restate: the service, and the program that starts the flow and waits for its end.

usage: python -m tests.engines.on_restate work|start ADDRESS FLOW. ADDRESS is ``RestateServer.address``: each node's addresses.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import urllib.error
import urllib.request
from typing import Any

import hypercorn.asyncio
import restate
from hypercorn.config import Config

from amends.adapters.restate import RestateRuns
from tests.engines import flows, points, world
from tests.servers.process import free_port
from tests.servers.restate import nodes_of

REQUEST_S = 60
PAUSE_S = 0.1


def service_of(here: world.World) -> str:
    """Return the name of the service: each world has its own, on a server that all share."""
    return f"trip-{here.folder.name}".replace("_", "-")


async def work(address: str) -> None:
    """Serve until killed."""
    points.install()
    here = world.world()
    trip = restate.Workflow(service_of(here))
    runs = RestateRuns(world.runtime(), trip, ingress=nodes_of(address)[-1][0])

    @trip.main()
    async def run(ctx: restate.WorkflowContext, flow: str) -> str:
        (here.folder / "node").write_text(ctx.request().attempt_headers["x-node"])
        async with runs.open(ctx) as opened:

            async def ask(tool: str, args: dict[str, Any]) -> str:
                return (await opened.answer(tool, args)).status

            if await flows.play(flow, ask):
                return "may be committed"
            return (await opened.rollback("the flow failed")).state

    kept = here.folder / "port"
    port = int(kept.read_text()) if kept.exists() else free_port()
    kept.write_text(str(port))
    config = Config.from_mapping(bind=[f"127.0.0.1:{port}"], accesslog=None)
    serving = asyncio.create_task(hypercorn.asyncio.serve(runs.app([trip]), config))  # type: ignore[arg-type]
    registered = here.folder / "registered"
    if not registered.exists():
        await asyncio.to_thread(_asked, address, "admin", "/deployments", {"uri": f"http://127.0.0.1:{port}"})
        registered.touch()
    await serving


def start(address: str, flow: str) -> None:
    """Start the flow, once however often this is done, and wait until it has ended."""
    here = world.world()
    while not (here.folder / "registered").exists():
        time.sleep(PAUSE_S)
    name, key = service_of(here), here.run_id
    _asked(address, "ingress", f"/{name}/{key}/run/send", flow)
    print(_asked(address, "ingress", f"/restate/workflow/{name}/{key}/attach", None))


def _asked(address: str, what: str, path: str, body: Any) -> Any:
    """Ask one node after another until one answers: a server, or a node, may be dead."""
    while True:
        for ingress, admin in nodes_of(address):
            url = f"{ingress if what == 'ingress' else admin}{path}"
            data = None if body is None else json.dumps(body).encode()
            request = urllib.request.Request(url, data=data, headers={"content-type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=REQUEST_S) as answer:
                    return json.loads(answer.read() or b"null")
            except urllib.error.HTTPError as error:
                if error.code != 404 and error.headers.get("x-restate-id"):
                    raise  # the end of the flow; a node that has not heard of the service yet answers 404
                print(f"asking again: {url}: {error.code} {error.read()!r}", file=sys.stderr)
            except OSError as error:
                print(f"asking again: {url}: {error!r}", file=sys.stderr)
            time.sleep(PAUSE_S)


if __name__ == "__main__":
    verb, where, flow_name = sys.argv[1:]
    if verb == "work":
        asyncio.run(work(where))
    else:
        start(where, flow_name)

"""``amends serve``: a runtime behind HTTP."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from typing import Annotated, Any, Final

import typer

from amends import AsyncRuntime
from amends.cli.access import load_runtime, required_app
from amends.cli.exit_codes import DONE
from amends.cli.options import App, Json, Place, Url, group
from amends.cli.output import put, put_json, say
from amends.errors import LedgerMissing, UsageError
from amends.visible import visible, visible_log

verbs = group()
PORT: Final = 8642


@verbs.command("serve")
def serve(
    place: Place = None,
    host: Annotated[
        str, typer.Option("--host", help="The address to listen on. Default: this machine only.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65_535, help="0: any that is free.")] = PORT,
    read_only: Annotated[bool, typer.Option("--read-only", help="Refuse whatever changes something.")] = False,
    no_worker: Annotated[bool, typer.Option("--no-worker", help="Do not recover runs in this process too.")] = False,
    app: App = None,
    url: Url = None,
    as_json: Json = False,
) -> int:
    """Serve a runtime over HTTP for agents and people in any language, until SIGTERM or Ctrl-C."""
    try:
        from amends.serve import app as application
        from amends.serve import server
    except ModuleNotFoundError as missing:
        if missing.name not in ("starlette", "uvicorn", "anyio", "h11"):
            raise
        raise UsageError(
            f"amends serve needs the package {missing.name}, which is not installed", hint="pip install 'amends[serve]'"
        ) from missing
    named, folder = required_app(place, app)
    rt = load_runtime(named, folder=folder, url=url)
    _log(as_json)

    async def main() -> None:
        served: AsyncRuntime = rt.as_async()
        try:
            await _check(served, named, host=host, is_loopback=server.is_loopback(host))
            with server.bind(host, port) as listening:
                _tell(served, server.address(listening), as_json=as_json)
                await server.serve(application(served, worker=not no_worker, read_only=read_only), listening)
        finally:
            await served.close()

    asyncio.run(main())
    if not as_json:
        say("stopped; the runs of clients that are alive go on through another server")
    return DONE


async def _check(rt: AsyncRuntime, named: str, *, host: str, is_loopback: bool) -> None:
    """Refuse a ledger that does not exist, and a public address that nobody has a token for."""
    ledger = visible(str(rt.settings["url"].value), prose=True)
    if (await rt.schema()).version == 0 and not ledger.startswith("memory:"):
        hint = f"make it: amends db migrate --app {named}"
        raise LedgerMissing(f"no ledger at {ledger}, which {named} uses", hint=hint)
    if await rt.tokens():
        return
    create = f"amends tokens create NAME --scope operator --why ... --app {named}"
    if not is_loopback:
        raise UsageError(
            f"nobody has a token yet, and {host} can be reached from other machines: nothing is served", hint=create
        )
    say(f"nobody has a token yet, so nobody can ask: {create}")


def _tell(rt: AsyncRuntime, address: str, *, as_json: bool) -> None:
    ledger = str(rt.settings["url"].value)
    if as_json:
        put_json({"url": address, "ledger": ledger, "pid": os.getpid()}, id=address)
        return
    put(f"serving {visible(ledger, prose=True)} on {address}")


def _log(as_json: bool) -> None:
    handler: Any = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(handlers=[handler])
    log = visible_log("amends.worker")
    if log.level == logging.NOTSET and not as_json:
        log.setLevel(logging.INFO)

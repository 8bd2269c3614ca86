"""``amends serve``: a runtime behind HTTP."""

from __future__ import annotations

import logging
import os
import sys
import webbrowser
from typing import Annotated, Any, Final, cast

import typer

from amends import AsyncRuntime, Runtime
from amends.cli.access import load_runtime, required_app, who
from amends.cli.exit_codes import DONE
from amends.cli.options import App, Json, Place, Url, group
from amends.cli.output import put, put_json, say
from amends.errors import LedgerMissing, UsageError
from amends.secrets import check_bind, secrets_of
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
    opens: Annotated[
        bool, typer.Option("--open", help="Print a link that lets your browser in once, and open it.")
    ] = False,
    no_worker: Annotated[bool, typer.Option("--no-worker", help="Do not recover runs in this process too.")] = False,
    metrics: Annotated[
        bool, typer.Option("--metrics", help="Let /metrics tell what the runtime does, too; calls are slower then.")
    ] = False,
    app: App = None,
    url: Url = None,
    as_json: Json = False,
) -> int:
    """Serve a runtime over HTTP for agents and people in any language, until SIGTERM or Ctrl-C."""
    try:
        from amends.serve import app as application
        from amends.serve import server
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        if package not in ("starlette", "uvicorn", "anyio", "h11", "jinja2", "markupsafe"):
            raise
        raise UsageError(
            f"amends serve needs the package {package}, which is not installed", hint="pip install 'amends[serve]'"
        ) from missing
    named, folder = required_app(place, app)
    rt = load_runtime(named, folder=folder, url=url)
    _log(as_json)

    async def main() -> None:
        served: AsyncRuntime = rt.as_async()
        try:
            await _check(served, named)
            await check_bind(served, host)
            known = secrets_of(served, host=host)
            # The runtime as the program made it: agents that block get a thread each.
            service = application(rt, worker=not no_worker, read_only=read_only, secrets=known, metrics=metrics)
            served = service.rt
            with server.bind(host, port) as listening:
                address = server.address(listening)
                link = (
                    ""
                    if not opens or service.logins is None
                    else service.logins.new_link(address, name=who(None, cast("Runtime", rt)))
                )
                _tell(served, address, link, as_json=as_json)
                await server.serve(service, listening)
        finally:
            await served.close()

    server.run(main())
    if not as_json:
        say("stopped; the runs of clients that are alive go on through another server")
    return DONE


async def _check(rt: AsyncRuntime, named: str) -> None:
    """Refuse a ledger that does not exist; say so if nobody can ask."""
    ledger = visible(str(rt.settings["url"].value), prose=True)
    if (await rt.schema()).version == 0 and not ledger.startswith("memory:"):
        hint = f"make it: amends db migrate --app {named}"
        raise LedgerMissing(f"no ledger at {ledger}, which {named} uses", hint=hint)
    if not await rt.tokens() and not rt.settings["login"].value:
        say(f"nobody has a token yet: amends tokens create NAME --scope operator --why ... --app {named}")


def _tell(rt: AsyncRuntime, address: str, link: str, *, as_json: bool) -> None:
    ledger = str(rt.settings["url"].value)
    if as_json:
        put_json({"url": address, "ledger": ledger, "pid": os.getpid(), "link": link or None}, id=address)
    else:
        put(f"serving {visible(ledger, prose=True)} on {address}")
        if link:
            put(f"open within five minutes: {link}", fold=False)
    sys.stdout.flush()  # whoever started it through a pipe waits for this line
    if link:
        webbrowser.open(link)


def _log(as_json: bool) -> None:
    handler: Any = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(handlers=[handler])
    log = visible_log("amends.worker")
    if log.level == logging.NOTSET and not as_json:
        log.setLevel(logging.INFO)

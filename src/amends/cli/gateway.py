"""``amends gateway``: an MCP server in front of others, which makes their calls once-only and undoable."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Final

import typer

from amends import AsyncRuntime
from amends.cli.exit_codes import DONE
from amends.cli.options import Json, Url, group
from amends.cli.output import put, put_json, put_table, say
from amends.errors import UsageError

verbs = group()
gateway = group("Serve MCP servers so that their calls are recorded, happen once, and can be taken back.")
verbs.add_typer(gateway, name="gateway")
PORT: Final = 8643
DEFAULT: Final = "amends.toml"
Command = Annotated[
    list[str] | None, typer.Argument(metavar="-- COMMAND...", help="How the server is started, after two dashes.")
]
Entry = Annotated[
    str | None,
    typer.Option(
        "--catalogue",
        help="The entry with the declarations. Default: that of the command's package, else of NAME, if any.",
    ),
]
StartS = Annotated[float, typer.Option("--start", min=1, max=3_600, help="Seconds that the server may take to start.")]


@gateway.callback(invoke_without_command=True)
def serve_gateway(
    ctx: typer.Context,
    http: Annotated[bool, typer.Option("--http", help="Serve over HTTP; else over standard input and output.")] = False,
    host: Annotated[
        str, typer.Option("--host", help="The address to listen on. Default: this machine only.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65_535, help="0: any that is free.")] = PORT,
    url: Url = None,
    as_json: Json = False,
) -> int:
    """Serve the MCP servers of [gateway] in amends.toml as one MCP server, until the client or SIGTERM ends it."""
    if ctx.invoked_subcommand is not None:
        return DONE
    parts, path = _parts(), settings_path()
    config = parts.load(path)
    rt = _runtime(path, url)
    parts.run(config, rt, http=http, host=host, port=port, tell=lambda address: _tell(address, as_json=as_json))
    return DONE


@gateway.command("add")
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the server is called in the ledger.")],
    command: Command = None,
    url: Annotated[str, typer.Option("--url", help="The address of a server that is not started here.")] = "",
    env: Annotated[
        list[str] | None, typer.Option("--env", help="NAME=VALUE for the server; ${VARIABLE} is read when it starts.")
    ] = None,
    entry: Entry = None,
    start: StartS = 60.0,
    as_json: Json = False,
) -> int:
    """Add a server to amends.toml, with declarations from the catalogue, or with guesses about its tools."""
    parts, path = _parts(), settings_path()
    table = parts.setup.server_table(list(command or []), url, _variables(env or []))
    told = parts.setup.add(path, name, table, entry=_entry(parts, name, table, entry), start_s=start)
    return _added(path, told, as_json=as_json)


@gateway.command("init")
def init(
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="The file in which your client names its MCP servers. Default: those that amends.toml has already.",
        ),
    ] = None,
    start: StartS = 60.0,
    as_json: Json = False,
) -> int:
    """Start servers, list their tools, and write what the catalogue says of them, or a guess, to amends.toml."""
    parts, path = _parts(), settings_path()
    if source is None:
        return _added(path, parts.setup.guess(path, start_s=start), as_json=as_json)
    told = []
    for name, table in parts.setup.read_client_file(source).items():
        told += parts.setup.add(path, name, table, entry=_entry(parts, name, table, None), start_s=start)
    return _added(path, told, as_json=as_json)


@gateway.command("catalogue")
def show_catalogue(
    entry: Annotated[str | None, typer.Argument(metavar="[ENTRY]", help="Show its tools.")] = None,
    as_json: Json = False,
) -> int:
    """List the servers that come with declarations, or the tools of one."""
    parts = _parts()
    names = [entry] if entry else list(parts.catalogue.names())
    found = {name: parts.catalogue.entry(name) for name in names}
    if as_json:
        for name, said in found.items():
            put_json({"name": name, **said}, id=name)
        return DONE
    if entry:
        rows = [[tool, said["kind"], said.get("why", "")] for tool, said in found[entry]["tools"].items()]
        put_table(["TOOL", "KIND", "WHY"], rows)
        return DONE
    put_table(
        ["ENTRY", "TESTED AGAINST", "ABOUT"],
        [[name, parts.catalogue.tested_against(said), said["about"]] for name, said in found.items()],
    )
    return DONE


@gateway.command("install")
def install(
    client: Annotated[str, typer.Option("--client", help="Which program gets the gateway; see the error for a list.")],
    prints: Annotated[bool, typer.Option("--print", help="Print the block: amends changes no file of others.")] = False,
    as_json: Json = False,
) -> int:
    """Print what to put into the configuration of a client, so that it starts this gateway."""
    parts, path = _parts(), settings_path()
    if not prints:
        raise UsageError("amends changes no file of another program", hint="add --print, and paste what it prints")
    block = parts.setup.client_block(client, _program(), path)
    called, where = parts.setup.CLIENTS[client]
    if as_json:
        put_json({"client": client, "file": where, "block": block}, id=client)
        return DONE
    say(f"for {called}: {where}")
    for line in block.splitlines():
        put(line, fold=False)  # it is pasted into a file
    return DONE


def _program() -> str:
    """Return the program that runs now: a client is started elsewhere, and has another path."""
    beside = shutil.which("amends", path=str(Path(sys.executable).parent))
    return beside or shutil.which("amends") or "amends"


def _entry(parts: Any, name: str, table: Mapping[str, Any], said: str | None) -> str:
    """Return the entry of the catalogue that is meant; empty: none."""
    if said is not None:
        return said
    return parts.catalogue.of_command(table) or (name if name in parts.catalogue.names() else "")


def _added(path: Path, told: list[str], *, as_json: bool) -> int:
    if as_json:
        put_json({"file": str(path), "added": told}, id=str(path))
        return DONE
    for line in told:
        put(line)
    say(f"written: {path}; now: amends gateway install --client NAME --print")
    return DONE


def _variables(said: list[str]) -> dict[str, str]:
    made = {}
    for one in said:
        name, equals, value = one.partition("=")
        if not equals or not name:
            raise UsageError(f"--env {one!r} is not NAME=VALUE")
        made[name] = value
    return made


def _tell(address: str, *, as_json: bool) -> None:
    if as_json:
        put_json({"url": address, "pid": os.getpid()}, id=address)
    else:
        put(f"serving MCP on {address}")
    sys.stdout.flush()


def settings_path() -> Path:
    """Return the file with the gateway's table."""
    return Path(os.environ.get("AMENDS_CONFIG") or DEFAULT)


def _runtime(path: Path, url: str | None) -> AsyncRuntime:
    """Return a runtime with the settings of this file."""
    known = os.environ.get("AMENDS_CONFIG")
    os.environ["AMENDS_CONFIG"] = str(path)
    try:
        return AsyncRuntime(url)
    finally:
        if known is None:
            os.environ.pop("AMENDS_CONFIG", None)
        else:
            os.environ["AMENDS_CONFIG"] = known


TAG: Final = "gateway:"


def gateway_names(tags: Iterable[str]) -> list[str]:
    """Return the names of the gateways that have made a run with these tags; there is one at most."""
    return [tag.removeprefix(TAG) for tag in tags if tag.startswith(TAG)]


def undoing(tags: Iterable[str], *, url: str | None, tenant: str | None) -> Any:
    """Return what plans and does rollbacks of a run with these tags; None: the settings here have no such gateway."""
    names, path = gateway_names(tags), settings_path()
    if not names or not path.exists():
        return None
    try:
        parts = _parts()
        config = parts.load(path)
    except UsageError:
        return None

    def opens() -> AsyncRuntime:
        rt = _runtime(path, url)
        return rt.scoped(tenant=tenant) if tenant else rt

    return parts.Undoing(config, opens) if config.gateway.name in names else None


def _parts() -> Any:
    """Import the gateway; raise ``UsageError`` if its extra is missing."""
    try:
        from amends.gateway import catalogue, load, serving, setup, undoing
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        if package == "amends":
            raise
        raise UsageError(
            f"amends gateway needs the package {package}, which is not installed", hint="pip install 'amends[gateway]'"
        ) from missing
    return SimpleNamespace(catalogue=catalogue, load=load, run=serving.run, setup=setup, Undoing=undoing.Undoing)

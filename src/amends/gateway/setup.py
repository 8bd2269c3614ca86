"""Write the gateway's configuration: add servers from the catalogue, or with guesses about the tools that they list."""

from __future__ import annotations

import asyncio
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from mcp_types import Tool

from amends.errors import UsageError, docs_page
from amends.gateway import catalogue
from amends.gateway.config import NAME, Config, is_plain_credential, load
from amends.gateway.upstreams import Upstream
from amends.visible import printable

START: Final = f"""\
# The ledger and the servers of `amends gateway`: {docs_page("reference/gateway.md")} explains every word.
url = "sqlite:///amends.db"

[gateway]
name = "gateway"
"""
UNDONE_BY: Final = (
    ("create", "delete"), ("add", "remove"), ("add", "delete"), ("insert", "delete"), ("upload", "delete"),
    ("open", "close"), ("start", "stop"), ("enable", "disable"), ("subscribe", "unsubscribe"), ("lock", "unlock"),
)  # fmt: skip
"""How the name of a tool becomes that of the tool which may undo it."""
WORD: Final = re.compile(r"[A-Za-z0-9_-]+\Z")


def server_table(command: list[str], url: str, env: Mapping[str, str]) -> dict[str, Any]:
    """Return the table of a server; raise ``UsageError`` if it is not clear how it is reached."""
    if bool(command) == bool(url):
        raise UsageError("say how the server is started, after --, or --url", hint="amends gateway add NAME -- COMMAND")
    said: dict[str, Any] = {"url": url} if url else {"command": command[0], "args": command[1:]}
    return said | ({"env": dict(env)} if env else {})


def read_client_file(path: Path) -> dict[str, dict[str, Any]]:
    """Return the servers of a client's configuration: the table ``mcpServers`` or ``servers`` of a JSON file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    servers = next(
        (found[word] for word in ("mcpServers", "servers") if isinstance(found, dict) and word in found), None
    )
    if not isinstance(servers, dict) or not servers:
        raise UsageError(f"{path} has no mcpServers", hint="it is the file in which your client names its MCP servers")
    made = {}
    for name, said in servers.items():
        if not isinstance(said, dict):
            raise UsageError(f"{path}: {name} is not a server")
        command = [str(said["command"]), *map(str, said.get("args", []))] if said.get("command") else []
        safe = re.sub(r"[^A-Za-z0-9-]+", "-", name).strip("-") or "server"
        made[safe] = server_table(command, str(said.get("url", "")), said.get("env", {}))
        made[safe] |= {word: said[word] for word in ("cwd", "headers") if said.get(word)}
    return made


def add(path: Path, name: str, table: dict[str, Any], *, entry: str = "", start_s: float = 60.0) -> list[str]:
    """Add a server to a file; return lines that tell what was written.

    ``entry``: of the catalogue. Without one, the server is started, and its tools are written down with guesses.
    """
    if not NAME.match(name) or "__" in name:
        raise UsageError(f"{name!r} is no name for a server: letters, digits, - and single _")
    text = path.read_text(encoding="utf-8") if path.exists() else START
    known = tomllib.loads(text).get("gateway", {}).get("servers", {})
    if name in known:
        raise UsageError(f"{path} already has a server {name}", hint="choose another name, or edit the file")
    if entry:
        catalogue.entry(entry)
        block = _block(name, {**table, "catalogue": entry}, [])
        told = [f"{name}: declared by the catalogue ({entry})", *_other_package(name, table, entry)]
    else:
        config = Config({"servers": {name: table}, "start": start_s}, folder=path.resolve().parent, origin=str(path))
        tools = asyncio.run(_listed(name, config, start_s))
        block = _block(name, table, tools)
        told = [f"{name}: {len(tools)} tools; look at the guesses before you rely on them"]
    made = (
        text.rstrip("\n")
        + "\n"
        + ("" if "[gateway]" in text or "gateway." in text else '\n[gateway]\nname = "gateway"\n')
    )
    made += "\n" + block
    Config(tomllib.loads(made)["gateway"], folder=path.resolve().parent, origin=str(path))
    path.write_text(made, encoding="utf-8")
    return [*told, *_plain_credentials(name, table, path)]


def _other_package(name: str, table: Mapping[str, Any], entry: str) -> list[str]:
    """Return a warning if a server gets the declarations of an entry, and nothing says that it is that server."""
    if catalogue.of_command(table) == entry:
        return []
    package = catalogue.package_of(catalogue.entry(entry))
    return [f"{name}: the catalogue means the package {package}; if this is another server, add it with --catalogue ''"]


def _plain_credentials(name: str, table: Mapping[str, Any], path: Path) -> list[str]:
    """Return a warning if values that look like credentials are now in the file itself."""
    said = {**table.get("env", {}), **table.get("headers", {})}
    found = [word for word, value in said.items() if is_plain_credential(word, value)]
    if not found:
        return []
    better = 'better: "${VARIABLE}" of the environment, or "file:PATH"'
    return [f"{name}: {', '.join(found)} is in {path} as plain text; {better}"]


def guess(path: Path, *, start_s: float = 60.0) -> list[str]:
    """Start the servers of a file, and add a guess for each tool that nobody has declared; return what was written."""
    config = load(path)
    text = path.read_text(encoding="utf-8").rstrip("\n") + "\n"
    told = []
    for name, server in config.gateway.servers.items():
        tools = asyncio.run(_listed(name, config, start_s))
        named = {one.name: one for one in tools}
        new = [one for one in tools if one.name not in server.tools]
        text += "".join("\n" + "\n".join(_guess(name, one, named)) + "\n" for one in new)
        told.append(
            f"{name}: {len(new)} of {len(tools)} tools; look at the guesses before you rely on them"
            if new
            else f"{name}: all {len(tools)} tools are declared already"
        )
    try:
        Config(tomllib.loads(text)["gateway"], folder=config.folder, origin=str(path))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(
            f"{path} cannot be added to: {error}",
            hint="write each server as a table of its own: [gateway.servers.NAME]",
        ) from error
    path.write_text(text, encoding="utf-8")
    return told


async def _listed(name: str, config: Config, start_s: float) -> list[Tool]:
    """Start a server and return its tools."""

    async def ignore(_server: str, _what: str) -> None:
        return

    upstream = Upstream(name, config.gateway.servers[name], config, changed=ignore)
    upstream.start()
    try:
        if not await upstream.started(start_s):
            raise UsageError(
                f"the server {name} does not start: {upstream.problem or f'it did not answer within {start_s:g} s'}",
                hint="type its command yourself to see what is wrong; nothing was written",
            )
        return list(upstream.tools.values())
    finally:
        await upstream.close()


def _block(name: str, table: Mapping[str, Any], tools: Iterable[Tool]) -> str:
    lines = [f"[gateway.servers.{name}]", *(f"{word} = {toml(value)}" for word, value in table.items())]
    listed = list(tools)
    named = {one.name: one for one in listed}
    for tool in listed:
        lines += ["", *_guess(name, tool, named)]
    return "\n".join(lines) + "\n"


def _guess(server: str, tool: Tool, tools: Mapping[str, Tool]) -> list[str]:
    """Return the lines about one tool: what its server hints at is a guess, and is marked as one."""
    hints = tool.annotations
    summary = printable(" ".join((tool.description or "").split())[:100])  # a comment of TOML has no control characters
    head = [f"[gateway.servers.{server}.tools.{_key(tool.name)}]", *([f"# {summary}"] if summary else [])]
    if hints is not None and hints.read_only_hint:
        return [*head, 'kind = "read" # guess: its server says that it only reads']
    lines = [*head, 'kind = "pivot" # guess: nothing says how to take it back', "needs_approval = true"]
    if hints is not None and hints.idempotent_hint:
        lines.append("# its server says that repeating it changes nothing more: idempotent = true, if you believe it")
    for word, undo in UNDONE_BY:
        other = tool.name.replace(word, undo, 1)
        if word in tool.name and other in tools:
            args, unknown = _undo_args(tool, tools[other])
            fill = f" # write instead of ?: what of the call or its result is {', '.join(unknown)}" if unknown else ""
            lines += [
                f"# {other} may undo it; if so, instead of the two lines above:",
                '# kind = "compensatable"',
                f'# compensate = {{ tool = "{other}", args = {toml(args)} }}{fill}',
            ]
            break
    return lines


def _undo_args(tool: Tool, undo: Tool) -> tuple[dict[str, str], list[str]]:
    """Return arguments that the compensating tool has, each from the call's own of that name, and those that are not known."""
    own = tool.input_schema.get("properties", {})
    needed = undo.input_schema.get("required", [])
    args = {}
    for name in undo.input_schema.get("properties", {}):
        if name in own:
            args[name] = f"$args.{name}"
        elif name in needed:
            args[name] = "$result.id" if name == "id" else "?"
    return args, [name for name, said in args.items() if said == "?"]


def _key(name: str) -> str:
    return name if WORD.match(name) else json.dumps(name)


def toml(value: Any) -> str:
    """Return a value as TOML on one line."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(name)} = {toml(one)}" for name, one in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml(one) for one in value) + "]"
    return json.dumps(value)


# ---- What clients are told

CLIENTS: Final[Mapping[str, tuple[str, str]]] = {
    "claude-desktop": ("Claude Desktop", "claude_desktop_config.json"),
    "claude-code": ("Claude Code", ".mcp.json in the project"),
    "cursor": ("Cursor", ".cursor/mcp.json in the project, or ~/.cursor/mcp.json"),
    "vscode": ("VS Code", ".vscode/mcp.json in the workspace"),
    "codex": ("Codex", "~/.codex/config.toml"),
    "agents-sdk": ("the OpenAI Agents SDK", "your program"),
}
"""Clients by name: what they are called, and where their configuration is."""


def client_block(client: str, program: str, config: Path) -> str:
    """Return what to put into a client's configuration so that it starts the gateway."""
    if client not in CLIENTS:
        raise UsageError(f"there is no client {client!r}", hint=f"one of {', '.join(CLIENTS)}")
    args = ["gateway", "--config", str(config.resolve())]
    started: dict[str, Any] = {"command": program, "args": args}
    match client:
        case "vscode":
            return json.dumps({"servers": {"amends": {"type": "stdio", **started}}}, indent=2)
        case "codex":
            return f"[mcp_servers.amends]\ncommand = {toml(program)}\nargs = {toml(args)}"
        case "agents-sdk":
            return (
                "from agents.mcp import MCPServerStdio\n\n"
                f'amends = MCPServerStdio({{"command": {program!r}, "args": {args!r}}}, name="amends")'
            )
        case _:
            return json.dumps({"mcpServers": {"amends": started}}, indent=2)

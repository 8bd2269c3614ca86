"""Real MCP servers and a real gateway, each in a process of its own."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Never

import pytest
from mcp import Client, StdioServerParameters
from mcp_types import CallToolResult, TextContent

from tests.servers.found import Unavailable
from tests.servers.packages import npm_folder

ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).with_name("npm")
FOLDER = ROOT / "build" / "mcp-servers"
INSTALL_S = 300
Plan = tuple[str, str, str]
"""Which tool, who dies (gateway, server), and when (before, after)."""


def unavailable(why: str) -> Never:
    """Skip where something cannot be had; in CI that is a failure."""
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)


def npm_server(name: str) -> list[str]:
    """Return the command of a server from npm, installed once below build/."""
    try:
        folder = npm_folder(SOURCE, name=FOLDER.name)
    except Unavailable as refusal:
        unavailable(str(refusal))
    return ["node", str(folder / "node_modules" / ".bin" / name)]


PYPI: dict[str, list[str]] = {
    "mcp2": ["mcp-server-fetch==2026.10.24", "mcp-server-git==2026.10.19", "mcp-server-time==2026.10.19"],
    "office": ["excel-mcp-server==2.2.2"],
    "mcp1": ["mcp<2", "mcp-server-sqlite==2025.4.25", "redis-mcp-server==0.5.1"],
}
"""Servers from PyPI, by the environment that they are installed into: some need an older SDK."""


def pypi_server(name: str) -> list[str]:
    """Return the command of a server from PyPI, installed once below build/."""
    [environment] = [one for one, packages in PYPI.items() if any(name in package for package in packages)]
    folder = FOLDER / environment
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / f"{environment}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = "\n".join(PYPI[environment])
        done = folder / "installed.txt"
        if not done.exists() or done.read_text(encoding="utf-8") != wanted:
            shutil.rmtree(folder, ignore_errors=True)
            for command in (
                [sys.executable, "-m", "venv", str(folder)],
                [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *PYPI[environment]],
            ):
                said = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
                if said.returncode != 0:
                    unavailable(f"no MCP server from PyPI: {said.stderr[-300:]}")
            done.write_text(wanted, encoding="utf-8")
    return [str(folder / "bin" / name)]


class Desk:
    """A folder with a configuration, a ledger, and the data of servers."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.data = folder, folder / "data"
        self.data.mkdir()
        self._servers: dict[str, dict[str, Any]] = {}
        self.gateway: dict[str, Any] = {"name": "desk"}
        self.settings: dict[str, Any] = {}
        self.env: dict[str, str] = {}

    @property
    def config(self) -> Path:
        return self.folder / "amends.toml"

    @property
    def url(self) -> str:
        return f"sqlite:///{self.folder / 'ledger.db'}"

    def add(self, name: str, command: list[str], *, plan: Plan | None = None, **table: Any) -> None:
        """Add a server; with a plan, something is killed once."""
        if plan is not None:
            tool, who, when = plan
            path = self.folder / f"{name}.plan.json"
            mark = self.folder / f"{name}.killed"
            path.write_text(json.dumps({"tool": tool, "who": who, "when": when, "mark": str(mark)}))
            command = [sys.executable, "-m", "tests.gateway.tap", str(path), *command]
        self._servers[name] = {"command": command[0], "args": command[1:], "cwd": str(ROOT), **table}

    def memory(self, *, plan: Plan | None = None, **table: Any) -> None:
        """Add the memory server."""
        env = {"MEMORY_FILE_PATH": str(self.folder / "memory.jsonl"), **table.pop("env", {})}
        self.add("memory", npm_server("mcp-server-memory"), plan=plan, env=env, **{"catalogue": "memory", **table})

    def files(self, *, plan: Plan | None = None, **table: Any) -> None:
        """Add the filesystem server."""
        command = [*npm_server("mcp-server-filesystem"), str(self.data)]
        self.add("files", command, plan=plan, **{"catalogue": "filesystem", **table})

    def entities(self) -> list[str]:
        """Return the names of the entities that the memory server has, in order."""
        path = self.folder / "memory.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [one["name"] for one in map(json.loads, lines) if one["type"] == "entity"]

    def tree(self) -> dict[str, str]:
        """Return the files of the filesystem server with their text, without the trash."""
        found = (path for path in self.data.rglob("*") if path.is_file() and ".amends-trash" not in path.parts)
        return {str(path.relative_to(self.data)): path.read_text() for path in found}

    def write(self) -> None:
        """Write the configuration."""
        lines = [f'url = "{self.url}"', *(f"{name} = {_toml(value)}" for name, value in self.settings.items())]
        gateway = {**self.gateway, "servers": self._servers}
        self.config.write_text("\n".join([*lines, f"gateway = {_toml(gateway)}", ""]))

    def parameters(self) -> StdioServerParameters:
        """Return how a client starts the gateway."""
        self.write()
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        env = {**os.environ, "PYTHONPATH": path, "AMENDS_LEASE": "2", **self.env}
        args = ["-m", "amends", "gateway", "--config", str(self.config)]
        return StdioServerParameters(command=sys.executable, args=args, env=env)

    @asynccontextmanager
    async def client(self, **options: Any) -> AsyncIterator[Client]:
        """Connect a real client to a real gateway."""
        async with Client(self.parameters(), **{"read_timeout_seconds": 60, **options}) as client:
            yield client

    @asynccontextmanager
    async def http(self) -> AsyncIterator[str]:
        """Serve the gateway over HTTP in a process of its own; return its address."""
        started = self.parameters()
        command = [started.command, *started.args, "--http", "--port", "0", "--json"]
        process = await asyncio.create_subprocess_exec(
            *command, env=started.env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
        try:
            assert process.stdout is not None
            line = await asyncio.wait_for(process.stdout.readline(), 60)
            yield str(json.loads(line)["url"])
        finally:
            with suppress(ProcessLookupError):  # a test may have killed it
                process.terminate()
            await asyncio.wait_for(process.wait(), 30)


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(name)} = {_toml(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(one) for one in value) + "]"
    return json.dumps(value)


def text(result: CallToolResult) -> str:
    """Return the text of a result."""
    return "\n".join(one.text for one in result.content if isinstance(one, TextContent))


def entity(name: str) -> dict[str, Any]:
    """Return the arguments with which an entity is created."""
    return {"entities": [{"name": name, "entityType": "thing", "observations": ["seen"]}]}

"""``amends gateway add``, ``init``, ``catalogue`` and ``install``, as a user types them."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp_types import Tool

from amends.gateway import catalogue, load
from amends.gateway.setup import CLIENTS, _block
from tests.adapters.loops import on_a_loop
from tests.gateway.desk import ROOT, npm_server, unavailable

pytestmark = [pytest.mark.rest, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]


def amends(folder: Path, *words: str, fails: bool = False) -> str:
    """Type a command, and return what it printed."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("AMENDS_")}
    env |= {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), "NO_COLOR": "1", "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-m", "amends", *words], cwd=folder, env=env, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert (done.returncode != 0) == fails, done.stderr
    return done.stderr if fails else done.stdout


def table(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((folder / "amends.toml").read_text())["gateway"]["servers"]
    return found


def test_a_server_of_the_catalogue_needs_no_start(tmp_path: Path) -> None:
    amends(tmp_path, "gateway", "add", "filesystem", "--", "npx", "-y", "no-such-package", str(tmp_path))
    assert table(tmp_path)["filesystem"]["catalogue"] == "filesystem"
    assert "already has" in amends(tmp_path, "gateway", "add", "filesystem", "--", "x", fails=True)


def test_hints_of_a_server_only_fill_guesses(tmp_path: Path) -> None:
    server = npm_server("mcp-server-memory")
    amends(tmp_path, "gateway", "add", "graph", "--", *server)
    tools = table(tmp_path)["graph"]["tools"]
    assert {name: said["kind"] for name, said in tools.items()} == {
        name: "read" if said["kind"] == "read" else "pivot" for name, said in catalogue.entry("memory")["tools"].items()
    }
    assert all(said.get("needs_approval") for said in tools.values() if said["kind"] == "pivot")
    text = (tmp_path / "amends.toml").read_text()
    assert '# compensate = { tool = "delete_entities"' in text
    assert text.count("# guess:") == len(tools)


def test_init_fills_in_what_the_file_does_not_declare(tmp_path: Path) -> None:
    command, *args = npm_server("mcp-server-memory")
    (tmp_path / "amends.toml").write_text(
        f'url = "sqlite:///amends.db"\n\n[gateway.servers.graph]\ncommand = "{command}"\nargs = {json.dumps(args)}\n\n'
        '[gateway.servers.graph.tools.read_graph]\nkind = "read"\nwhy = "mine"\n'
    )
    assert "8 of 9 tools" in amends(tmp_path, "gateway", "init")
    tools = table(tmp_path)["graph"]["tools"]
    assert len(tools) == 9
    assert tools["read_graph"]["why"] == "mine"
    assert "declared already" in amends(tmp_path, "gateway", "init")


def test_init_takes_the_servers_of_a_client(tmp_path: Path) -> None:
    command, *args = npm_server("mcp-server-memory")
    servers = {
        "memory": {"command": command, "args": args, "env": {"MEMORY_FILE_PATH": str(tmp_path / "m.jsonl")}},
        "my server": {"command": command, "args": args},
    }
    (tmp_path / "client.json").write_text(json.dumps({"mcpServers": servers}))
    amends(tmp_path, "gateway", "init", "--from", "client.json")
    found = table(tmp_path)
    assert found["memory"]["catalogue"] == "memory"
    assert found["memory"]["env"] == {"MEMORY_FILE_PATH": str(tmp_path / "m.jsonl")}
    assert len(found["my-server"]["tools"]) == 9


def test_a_server_of_the_catalogue_is_known_by_its_package_whatever_it_is_called(tmp_path: Path) -> None:
    for number, word in enumerate(("server-memory", "server-memory@2026.8.31")):
        amends(tmp_path, "gateway", "add", f"graph{number}", "--", "npx", "-y", f"@modelcontextprotocol/{word}")
    amends(tmp_path, "gateway", "add", "repo", "--", "uvx", "mcp-server-git@latest", "--repository", ".")
    amends(tmp_path, "gateway", "add", "clock", "--", "/opt/tools/bin/mcp-server-time")
    found = {name: said["catalogue"] for name, said in table(tmp_path).items()}
    assert found == {"graph0": "memory", "graph1": "memory", "repo": "git", "clock": "time"}


def test_a_server_that_only_has_the_name_of_an_entry_is_told_which_package_is_meant(tmp_path: Path) -> None:
    said = amends(tmp_path, "gateway", "add", "github", "--", "docker", "run", "-i", "ghcr.io/github/github-mcp-server")
    assert "@modelcontextprotocol/server-github" in said
    assert "--catalogue" in said
    same = amends(tmp_path, "gateway", "add", "memory", "--", "npx", "-y", "@modelcontextprotocol/server-memory")
    assert "means the package" not in same


def test_init_takes_headers_and_folder_and_names_credentials_that_are_plain_text(tmp_path: Path) -> None:
    servers = {
        "github": {
            "command": "npx", "args": ["-y", "@modelcontextprotocol/server-github"], "cwd": "/srv",
            "env": {"GITHUB_PERSONAL_ACCESS_TOKEN": "ghp_0123456789", "GITHUB_HOST": "github.example"},
        },
        "slack": {"url": "https://slack.example/mcp", "headers": {"Authorization": "Bearer xoxb-0123456789"}},
        "stripe": {"command": "npx", "args": ["-y", "@stripe/mcp"], "env": {"STRIPE_SECRET_KEY": "${STRIPE_KEY}"}},
    }  # fmt: skip
    (tmp_path / "client.json").write_text(json.dumps({"mcpServers": servers}))
    said = amends(tmp_path, "gateway", "init", "--from", "client.json").replace("\n     ┊ ", "")
    assert "github: GITHUB_PERSONAL_ACCESS_TOKEN is in amends.toml as plain text" in said
    assert "slack: Authorization is in amends.toml as plain text" in said
    assert "GITHUB_HOST is" not in said
    assert "STRIPE_SECRET_KEY is" not in said
    assert "ghp_" not in said
    assert table(tmp_path)["github"]["cwd"] == "/srv"
    assert table(tmp_path)["slack"]["headers"] == {"Authorization": "Bearer xoxb-0123456789"}
    config = load(tmp_path / "amends.toml")
    assert config.env_of(config.gateway.servers["github"])[1] == {"ghp_0123456789"}
    assert "xoxb-0123456789" in config.headers_of(config.gateway.servers["slack"])[1]


def test_a_description_with_control_characters_is_written_down_safely(tmp_path: Path) -> None:
    tool = Tool(name="ring", description="Ring the\x07bell", input_schema={"type": "object"})
    found = tomllib.loads(_block("bells", {"command": "bells"}, [tool]))
    assert found["gateway"]["servers"]["bells"]["tools"]["ring"]["kind"] == "pivot"


def test_a_server_that_does_not_start_is_not_written_down(tmp_path: Path) -> None:
    said = amends(tmp_path, "gateway", "add", "odd", "--start", "2", "--", sys.executable, "-c", "exit(3)", fails=True)
    assert "does not start" in said
    assert not (tmp_path / "amends.toml").exists()


def test_a_server_that_ends_at_once_is_named_with_its_exit_code_and_last_words(tmp_path: Path) -> None:
    code = "import sys; print('no licence', file=sys.stderr); exit(3)"
    begun = time.monotonic()
    said = " ".join(amends(tmp_path, "gateway", "add", "odd", "--", sys.executable, "-c", code, fails=True).split())
    assert time.monotonic() - begun < 20
    assert "exit code 3" in said
    assert "it said: no licence" in said
    assert "nothing was started" not in said


def test_a_command_that_does_not_exist_fails_at_once(tmp_path: Path) -> None:
    begun = time.monotonic()
    said = " ".join(amends(tmp_path, "gateway", "add", "odd", "--", "nosuchcommand", fails=True).split())
    assert time.monotonic() - begun < 20
    assert "nosuchcommand cannot be started" in said
    assert "nothing was started" not in said


def test_a_guess_names_only_arguments_that_the_compensating_tool_has(tmp_path: Path) -> None:
    write_stock(tmp_path)
    amends(tmp_path, "gateway", "add", "stock", "--", sys.executable, "stock.py")
    text = (tmp_path / "amends.toml").read_text()
    assert '# compensate = { tool = "remove_item", args = { name = "$args.name" } }\n' in text
    assert '# compensate = { tool = "delete_note", args = { number = "?" } } # write instead of ?' in text


def test_arguments_that_a_compensating_tool_lacks_are_named_at_the_start(tmp_path: Path) -> None:
    write_stock(tmp_path)
    (tmp_path / "amends.toml").write_text(
        f'url = "sqlite:///{tmp_path}/amends.db"\n\n[gateway.servers.stock]\ncommand = "{sys.executable}"\n'
        f'args = ["{tmp_path}/stock.py"]\n\n[gateway.servers.stock.tools.add_item]\nkind = "compensatable"\n'
        'compensate = { tool = "remove_item", args = { id = "$result.id" } }\n'
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-m", "amends", "gateway"], cwd=tmp_path, env=env, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "stock.add_item: compensate gives remove_item the argument id, which it does not have" in done.stderr
    assert "stock.add_item: compensate does not give remove_item its argument name" in done.stderr


def write_stock(folder: Path) -> None:
    """Write a server whose tools are undone by others that have other arguments."""
    (folder / "stock.py").write_text(
        "from mcp.server import MCPServer\nserver = MCPServer('stock')\n"
        "@server.tool()\ndef add_item(name: str, count: int) -> str: return 'added'\n"
        "@server.tool()\ndef remove_item(name: str) -> str: return 'removed'\n"
        "@server.tool()\ndef create_note(words: str) -> str: return '7'\n"
        "@server.tool()\ndef delete_note(number: int) -> str: return 'deleted'\n"
        "server.run('stdio')\n"
    )


def test_without_a_file_the_hint_names_a_command_that_exists(tmp_path: Path) -> None:
    said = amends(tmp_path, "gateway", fails=True)
    assert "amends gateway add NAME -- COMMAND" in " ".join(said.split())


def test_every_entry_and_tool_of_the_catalogue_can_be_shown(tmp_path: Path) -> None:
    listed = amends(tmp_path, "gateway", "catalogue")
    shown = {
        one["name"]: one["tools"]
        for one in map(json.loads, amends(tmp_path, "gateway", "catalogue", "--json").splitlines())
    }
    assert set(shown) == set(catalogue.names())
    for name, tools in shown.items():
        assert re.search(rf"^{re.escape(name)}\s", listed, re.MULTILINE), name
        assert tools
        assert all(one["kind"] and one["why"] for one in tools.values()), name


def write(folder: Path) -> None:
    command, *args = npm_server("mcp-server-memory")
    (folder / "amends.toml").write_text(
        f'url = "sqlite:///{folder}/amends.db"\n\n[gateway.servers.memory]\ncommand = "{command}"\n'
        f'args = {json.dumps(args)}\ncatalogue = "memory"\n'
    )


def started_by(client: str, block: str) -> tuple[str, list[str]]:
    """Return the command and its arguments, read as the client reads its configuration."""
    if client == "codex":
        [(name, said)] = tomllib.loads(block)["mcp_servers"].items()
    elif client == "vscode":
        [(name, said)] = json.loads(block)["servers"].items()
        assert said["type"] == "stdio"
    else:
        [(name, said)] = json.loads(block)["mcpServers"].items()
    assert name == "amends"
    return said["command"], said["args"]


@pytest.mark.parametrize("client", [name for name in CLIENTS if name != "agents-sdk"])
@on_a_loop
async def test_what_install_prints_starts_the_gateway(tmp_path: Path, client: str) -> None:
    write(tmp_path)
    command, args = started_by(client, amends(tmp_path, "gateway", "install", "--client", client, "--print"))
    if command == "amends":  # it is not on the path of this test
        command, args = sys.executable, ["-m", "amends", *args]
    env = {"PYTHONPATH": str(ROOT / "src"), "PATH": os.environ["PATH"]}
    started = StdioServerParameters(command=command, args=args, env=env, cwd="/")
    async with Client(started, read_timeout_seconds=60) as gateway:
        names = {one.name for one in (await gateway.list_tools()).tools}
    assert {"create_entities", "amends_rollback"} <= names
    assert (tmp_path / "amends.db").exists()


@on_a_loop
async def test_the_block_for_the_agents_sdk_starts_the_gateway(tmp_path: Path) -> None:
    if importlib.util.find_spec("agents") is None:
        unavailable("no OpenAI Agents SDK: openai-agents is not installed")
    write(tmp_path)
    block = amends(tmp_path, "gateway", "install", "--client", "agents-sdk", "--print")
    found: dict[str, Any] = {}
    exec(block, found)
    server = found["amends"]
    server.params.env = {"PYTHONPATH": str(ROOT / "src"), "PATH": os.environ["PATH"]}
    if server.params.command == "amends":
        server.params.command, server.params.args = sys.executable, ["-m", "amends", *server.params.args]
    async with server:
        names = {one.name for one in await server.list_tools()}
    assert {"create_entities", "amends_rollback"} <= names


def test_install_names_the_program_that_is_running_also_if_it_is_not_on_the_path(tmp_path: Path) -> None:
    beside = Path(sys.executable).with_name("amends")
    if not beside.exists():
        pytest.skip("amends is not installed beside this Python")
    write(tmp_path)
    elsewhere = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "amends", "gateway", "install", "--client", "claude-desktop", "--print"]
    said = subprocess.run(command, cwd=tmp_path, env=elsewhere, capture_output=True, text=True, timeout=60, check=True)
    assert started_by("claude-desktop", said.stdout)[0] == str(beside)


def test_what_add_says_to_type_next_can_be_typed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "amends", "gateway", "add", "memory", "--", "npx", "-y", "memory"]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    said = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=True)
    following = said.stderr.rpartition("now: amends ")[2].split()
    assert following[:3] == ["gateway", "install", "--client"]
    assert started_by("cursor", amends(tmp_path, *["cursor" if one == "NAME" else one for one in following]))


@pytest.mark.parametrize("client", CLIENTS)
def test_a_block_is_not_folded_in_a_narrow_terminal(tmp_path: Path, client: str) -> None:
    write(tmp_path)
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "40"}
    command = [sys.executable, "-m", "amends", "gateway", "install", "--client", client, "--print"]
    said = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=True)
    assert "┊" not in said.stdout
    assert str(tmp_path / "amends.toml") in said.stdout


def test_install_changes_no_file_and_knows_its_clients(tmp_path: Path) -> None:
    assert "--print" in amends(tmp_path, "gateway", "install", "--client", "cursor", fails=True)
    said = amends(tmp_path, "gateway", "install", "--client", "emacs", "--print", fails=True)
    assert "claude-desktop" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("client", CLIENTS)
def test_there_is_a_page_for_each_client_with_its_block(client: str) -> None:
    page = (ROOT / "docs" / "how-to" / f"gateway-{client}.md").read_text()
    assert f"amends gateway install --client {client} --print" in page
    [(_, block)] = re.findall(r"```(json|toml|python)\n(.*?)\n```", page, re.DOTALL)
    assert "/home/ada/amends.toml" in block
    if client != "agents-sdk":
        assert started_by(client, block)[0] == "amends"

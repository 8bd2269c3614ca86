"""Every entry of the catalogue against the real server: what was done is taken back, and a kill repeats nothing.

A scenario has the calls of one run and a function that tells what the world is like. The world after the rollback is the
world before the run, or what the scenario says stays.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from mcp import MCPError

import amends
from amends.gateway import catalogue
from tests.adapters.loops import on_a_loop
from tests.console.browser.chromium import browser_program
from tests.gateway.desk import Desk, Plan, entity, npm_server, pypi_server, text, unavailable
from tests.gateway.test_gateway import until_done
from tests.servers.databases import execute
from tests.servers.found import Unavailable
from tests.servers.postgres import PostgresServer

pytestmark = [pytest.mark.rest, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]
Calls = list[tuple[str, dict[str, Any]]]
WHO = pytest.mark.parametrize("who", ["gateway", "server"])


@dataclass
class Scenario:
    """One server with something to do."""

    command: list[str]
    calls: Calls
    world: Callable[[], Any]
    env: dict[str, str] = field(default_factory=dict)
    reads: Calls = field(default_factory=list)
    stays: str = ""
    """Why the world is not as before."""


@contextmanager
def memory(folder: Path) -> Iterator[Scenario]:
    path = folder / "memory.jsonl"
    observed = {"observations": [{"entityName": "a", "contents": ["new"]}]}
    relation = {"relations": [{"from": "a", "to": "b", "relationType": "knows"}]}
    calls: Calls = [
        ("create_entities", entity("a")), ("create_entities", entity("b")), ("create_relations", relation),
        ("add_observations", observed), ("delete_relations", relation), ("delete_entities", {"entityNames": ["b"]}),
    ]  # fmt: skip
    yield Scenario(
        npm_server("mcp-server-memory"), calls, lambda: path.read_text().strip() if path.exists() else "",
        env={"MEMORY_FILE_PATH": str(path)}, reads=[("read_graph", {}), ("search_nodes", {"query": "a"})],
    )  # fmt: skip


@contextmanager
def filesystem(folder: Path) -> Iterator[Scenario]:
    data = folder / "files"
    data.mkdir()
    (data / "old.txt").write_text("old\n")
    calls: Calls = [
        ("write_file", {"path": str(data / "old.txt"), "content": "new\n"}),
        ("write_file", {"path": str(data / "made.txt"), "content": "made\n"}),
        ("edit_file", {"path": str(data / "made.txt"), "edits": [{"oldText": "made", "newText": "edited"}]}),
        ("move_file", {"source": str(data / "made.txt"), "destination": str(data / "moved.txt")}),
        ("write_file", {"path": str(data / "old.txt"), "content": "newer\n"}),
    ]

    def world() -> Any:
        found = (path for path in data.rglob("*") if path.is_file() and ".amends-trash" not in path.parts)
        return {path.name: path.read_text() for path in found}

    reads: Calls = [("read_text_file", {"path": str(data / "old.txt")}), ("list_directory", {"path": str(data)})]
    yield Scenario([*npm_server("mcp-server-filesystem"), str(data)], calls, world, reads=reads)


@contextmanager
def git(folder: Path) -> Iterator[Scenario]:
    repo = folder / "repo"
    repo.mkdir()

    def said(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(repo), *words], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    said("init", "-q", "-b", "main")
    for name, value in (("user.name", "t"), ("user.email", "t@example.com")):
        said("config", name, value)
    said("commit", "-q", "--allow-empty", "-m", "first")
    said("branch", "dev")
    (repo / "a.txt").write_text("a\n")
    at = {"repo_path": str(repo)}
    calls: Calls = [("git_checkout", {**at, "branch_name": "dev"}), ("git_add", {**at, "files": ["a.txt"]})]
    yield Scenario(
        [*pypi_server("mcp-server-git"), "--repository", str(repo)], calls,
        lambda: (said("status", "--porcelain"), said("branch", "--show-current"), said("log", "--oneline")),
        reads=[("git_status", at), ("git_log", at), ("git_branch", {**at, "branch_type": "local"})],
    )  # fmt: skip


@contextmanager
def sqlite(folder: Path) -> Iterator[Scenario]:
    path = folder / "data.db"

    def world() -> Any:
        if not path.exists():
            return []
        with sqlite3.connect(path) as db:
            return db.execute("select name from sqlite_master order by name").fetchall()

    made = "CREATE TABLE things (id INTEGER PRIMARY KEY, name TEXT)"
    yield Scenario(
        [*pypi_server("mcp-server-sqlite"), "--db-path", str(path)], [("create_table", {"query": made})], world,
        reads=[("list_tables", {}), ("read_query", {"query": "SELECT 1"})],
    )  # fmt: skip


@contextmanager
def redis(folder: Path) -> Iterator[Scenario]:
    program = shutil.which("redis-server")
    if program is None:
        unavailable("no Redis: redis-server is not installed")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [str(program), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def asked(*words: str) -> str:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall((" ".join(words) + "\r\nQUIT\r\n").encode())
            return b"".join(iter(lambda: connection.recv(4096), b"")).decode().removesuffix("+OK\r\n")

    try:
        for _ in range(100):
            with suppress(OSError):
                asked("PING")
                break
            time.sleep(0.05)
        for words in (("SET", "old", "1"), ("HSET", "h", "f", "v"), ("SADD", "s", "x"), ("SET", "from", "me")):
            asked(*words)
        calls: Calls = [
            ("set", {"key": "old", "value": "2"}), ("set", {"key": "new", "value": "1"}),
            ("set", {"key": "old", "value": "3"}), ("hset", {"name": "h", "key": "f", "value": "w"}),
            ("hset", {"name": "h", "key": "g", "value": "1"}), ("hdel", {"name": "h", "key": "f"}),
            ("sadd", {"name": "s", "value": "y"}), ("sadd", {"name": "s", "value": "x"}),
            ("srem", {"name": "s", "value": "x"}), ("rename", {"old_key": "from", "new_key": "to"}),
        ]  # fmt: skip
        yield Scenario(
            [*pypi_server("redis-mcp-server"), "--url", f"redis://127.0.0.1:{port}/0"], calls,
            lambda: [asked(*one) for one in (
                ("GET", "old"), ("GET", "new"), ("HGETALL", "h"), ("SMEMBERS", "s"), ("GET", "from"), ("GET", "to"),
            )],
            reads=[("get", {"key": "old"}), ("dbsize", {})],
        )  # fmt: skip
    finally:
        process.terminate()
        process.wait(timeout=10)


@contextmanager
def memory_bank(folder: Path) -> Iterator[Scenario]:
    path = folder / "bank" / "p" / "a.md"
    path.parent.mkdir(parents=True)
    path.write_text("old")
    note = {"projectName": "p", "fileName": "a.md"}
    calls: Calls = [("memory_bank_update", {**note, "content": text}) for text in ("new", "newer")]
    yield Scenario(
        npm_server("mcp-server-memory-bank"), calls, path.read_text, env={"MEMORY_BANK_ROOT": str(folder / "bank")},
        reads=[("memory_bank_read", note), ("list_project_files", {"projectName": "p"})],
    )  # fmt: skip


@contextmanager
def taskmanager(folder: Path) -> Iterator[Scenario]:
    path = folder / "tasks.json"
    task = {"id": "task-1", "title": "t", "description": "d", "done": False, "approved": False, "completedDetails": ""}
    request = {"requestId": "req-1", "originalRequest": "r", "splitDetails": "r", "tasks": [task], "completed": False}
    path.write_text(json.dumps({"requests": [request]}))
    at = {"requestId": "req-1", "taskId": "task-1"}
    calls: Calls = [
        ("update_task", {**at, "title": "new"}),
        ("add_tasks_to_request", {"requestId": "req-1", "tasks": [{"title": one, "description": "e"} for one in "uv"]}),
        ("update_task", {**at, "title": "newer", "description": "other"}),
    ]
    yield Scenario(
        npm_server("mcp-taskmanager"), calls, lambda: json.loads(path.read_text()),
        env={"TASK_MANAGER_FILE_PATH": str(path)}, reads=[("list_requests", {}), ("open_task_details", {"taskId": "task-1"})],
    )  # fmt: skip


@contextmanager
def excel(folder: Path) -> Iterator[Scenario]:
    path = folder / "book.xlsx"
    with zipfile.ZipFile(path, "w") as book:
        for name, text in BOOK.items():
            book.writestr(name, f'<?xml version="1.0" encoding="UTF-8" standalone="yes"?>{text}')
    at = {"path": str(path)}
    calls: Calls = [
        ("create_sheet", {**at, "new_name": "Plan"}),
        ("copy_sheet", {**at, "sheet": "Data", "new_name": "Copy"}),
        ("rename_sheet", {**at, "sheet": "Data", "new_name": "Old data"}),
    ]

    def world() -> Any:
        with zipfile.ZipFile(path) as book:
            return re.findall(r'<(?:\w+:)?sheet [^>]*?name="([^"]+)"', book.read("xl/workbook.xml").decode())

    command = [*pypi_server("excel-mcp-server"), "stdio", "--allow-dir", str(folder)]
    yield Scenario(command, calls, world, reads=[("describe_workbook", at), ("read_range", {**at, "sheet": "Data"})])


SHEETS = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
RELATIONS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"
OFFICE = "application/vnd.openxmlformats-officedocument.spreadsheetml"
BOOK = {
    "[Content_Types].xml": f'<Types xmlns="{PACKAGE}/content-types"><Default Extension="rels" '
    'ContentType="application/vnd.openxmlformats-package.relationships+xml"/><Default Extension="xml" '
    f'ContentType="application/xml"/><Override PartName="/xl/workbook.xml" ContentType="{OFFICE}.sheet.main+xml"/>'
    f'<Override PartName="/xl/worksheets/sheet1.xml" ContentType="{OFFICE}.worksheet+xml"/></Types>',
    "_rels/.rels": f'<Relationships xmlns="{PACKAGE}/relationships"><Relationship Id="rId1" '
    f'Type="{RELATIONS}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
    "xl/workbook.xml": f'<workbook xmlns="{SHEETS}" xmlns:r="{RELATIONS}"><sheets><sheet name="Data" sheetId="1" '
    'r:id="rId1"/></sheets></workbook>',
    "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{PACKAGE}/relationships"><Relationship Id="rId1" '
    f'Type="{RELATIONS}/worksheet" Target="worksheets/sheet1.xml"/></Relationships>',
    "xl/worksheets/sheet1.xml": f'<worksheet xmlns="{SHEETS}"><sheetData><row r="1"><c r="A1"><v>1</v></c></row>'
    "</sheetData></worksheet>",
}
"""A workbook with one sheet that has one number."""


@contextmanager
def everything(_folder: Path) -> Iterator[Scenario]:
    calls: Calls = [("toggle-simulated-logging", {}), ("toggle-simulated-logging", {})]
    reads: Calls = [("echo", {"message": "hello"}), ("get-sum", {"a": 1, "b": 2}), ("get-tiny-image", {})]
    yield Scenario(npm_server("mcp-server-everything"), calls, lambda: None, reads=reads)


def reading(command: Callable[[], list[str]], reads: Calls) -> Callable[[Path], Any]:
    @contextmanager
    def made(_folder: Path) -> Iterator[Scenario]:
        yield Scenario(command(), [], lambda: None, reads=reads)

    return made


SCENARIOS: dict[str, Callable[[Path], Any]] = {
    "everything": everything,
    "excel": excel,
    "filesystem": filesystem,
    "git": git,
    "memory": memory,
    "memory-bank": memory_bank,
    "redis": redis,
    "sequential-thinking": reading(
        lambda: npm_server("mcp-server-sequential-thinking"),
        [("sequentialthinking", {"thought": "x", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1})],
    ),
    "sqlite": sqlite,
    "taskmanager": taskmanager,
    "time": reading(lambda: pypi_server("mcp-server-time"), [("get_current_time", {"timezone": "UTC"})]),
}
UNDONE = ("excel", "filesystem", "git", "memory", "memory-bank", "redis", "sqlite", "taskmanager")
"""Entries with something that can be taken back."""
READ = ("everything", "sequential-thinking", "time")
"""Entries whose state, if they have any, ends with the server."""


def desk_of(folder: Path, name: str, scenario: Scenario, plan: Plan | None = None) -> Desk:
    desk = Desk(folder / "desk")
    desk.add(name, scenario.command, plan=plan, env={"PATH": os.environ["PATH"], **scenario.env}, catalogue=name)
    return desk


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "desk").mkdir()
    return tmp_path


def test_every_entry_has_a_scenario_or_a_reason() -> None:
    left = {"fetch": "test_fetch", "playwright": "test_playwright", "postgres": "test_postgres"}
    real = {name for name in catalogue.names() if catalogue.entry(name)["tested"] == "server"}
    assert real == {*SCENARIOS, *left}


@pytest.mark.parametrize("name", SCENARIOS)
@on_a_loop
async def test_what_was_done_is_taken_back(place: Path, name: str) -> None:
    with SCENARIOS[name](place) as scenario:
        desk = desk_of(place, name, scenario)
        before = scenario.world()
        async with desk.client() as client:
            listed = {one.name for one in (await client.list_tools()).tools}
            assert set(catalogue.entry(name)["tools"]) <= listed, "the server has every tool of the entry"
            undeclared = listed - set(catalogue.entry(name)["tools"])
            assert all(one.startswith("amends_") or name == "everything" for one in undeclared), undeclared
            for tool, args in scenario.reads:
                said = await client.call_tool(tool, args)
                assert not said.is_error, text(said)
            await client.call_tool("amends_begin", {"run": "undone"})
            for tool, args in scenario.calls:
                said = await client.call_tool(tool, args)
                assert not said.is_error, (tool, text(said))
            if scenario.calls:
                assert name == "everything" or scenario.world() != before
                assert f"{len(scenario.calls)} of {len(scenario.calls)} calls undone" in text(
                    await client.call_tool("amends_rollback", {})
                )
        assert scenario.world() == before


@pytest.mark.parametrize("when", ["before", "after"])
@WHO
@pytest.mark.parametrize("name", UNDONE)
@on_a_loop
async def test_a_kill_repeats_nothing(place: Path, name: str, who: str, when: str) -> None:
    with SCENARIOS[name](place) as scenario:
        tool, args = scenario.calls[0]
        desk = desk_of(place, name, scenario, plan=(tool, who, when))
        before = scenario.world()
        await killed_once(desk, name, tool, args)
        async with desk.client() as client:
            said = await until_done(client, tool, args)
            assert not said.is_error, text(said)
            with amends.Runtime(desk.url) as rt:
                states = [call.state for call in rt.report("killed").calls]
            assert states == ["succeeded"]
            assert "1 of 1 calls undone" in text(await client.call_tool("amends_rollback", {}))
        assert scenario.world() == before


async def killed_once(desk: Desk, name: str, tool: str, args: dict[str, Any]) -> None:
    """Make a call during which the gateway or the server is killed, in the run ``killed``."""
    with suppress(MCPError, BaseExceptionGroup):
        async with desk.client() as client:
            await client.call_tool("amends_begin", {"run": "killed"})
            await client.call_tool(tool, args)
    assert (desk.folder / f"{name}.killed").exists()


async def check_made_again(desk: Desk, name: str, tool: str, args: dict[str, Any]) -> None:
    """Kill somebody during a read: it is made again, nothing is in doubt, and there is nothing that stands."""
    await killed_once(desk, name, tool, args)
    async with desk.client() as client:
        said = await client.call_tool(tool, args)
        assert not said.is_error, text(said)
        told = text(await client.call_tool("amends_rollback", {}))
        assert "stand" not in told, told
    with amends.Runtime(desk.url) as rt:
        assert rt.report("killed").state == "rolled_back"
        assert not [call for run in rt.runs() for call in rt.report(run.id).calls if call.state == "in_doubt"]


@WHO
@pytest.mark.parametrize("name", READ)
@on_a_loop
async def test_a_read_during_which_somebody_is_killed_is_made_again(place: Path, name: str, who: str) -> None:
    with SCENARIOS[name](place) as scenario:
        tool, args = scenario.reads[0]
        await check_made_again(desk_of(place, name, scenario, plan=(tool, who, "after")), name, tool, args)


class Site(BaseHTTPRequestHandler):
    """A page that counts its clicks, and a robots.txt."""

    PAGES: ClassVar[dict[str, tuple[str, str]]] = {
        "/robots.txt": ("text/plain", "User-agent: *\nDisallow: /secret\n"),
        "/open": ("text/html", "<html><body><h1>Open house</h1><p>Come in.</p></body></html>"),
        "/secret": ("text/html", "<html><body><p>hidden</p></body></html>"),
        "/shop": (
            "text/html",
            "<html><title>Shop</title><body><button onclick=\"fetch('/bought')\">Buy</button></body></html>",
        ),
        "/bought": ("text/plain", "ok"),
    }
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        type(self).asked.append(self.path)
        kind, body = self.PAGES.get(self.path, ("text/plain", ""))
        self.send_response(200 if body else 404)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def site() -> Iterator[tuple[str, list[str]]]:
    """Serve the pages on this machine; return the address and what was asked for."""
    Site.asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", Site.asked
        finally:
            server.shutdown()
            thread.join(timeout=10)


async def check_listed(client: Any, name: str) -> None:
    listed = {one.name for one in (await client.list_tools()).tools if not one.name.startswith("amends_")}
    assert listed == set(catalogue.entry(name)["tools"])


@on_a_loop
async def test_fetch(place: Path) -> None:
    desk = Desk(place / "desk")
    desk.add("fetch", [*pypi_server("mcp-server-fetch"), "--allow-private-ips"], catalogue="fetch")
    with site() as (url, asked):
        async with desk.client() as client:
            await check_listed(client, "fetch")
            said = await client.call_tool("fetch", {"url": f"{url}/open"})
            assert not said.is_error, text(said)
            assert "Come in." in text(said)
            try:
                refused = text(await client.call_tool("fetch", {"url": f"{url}/secret"}))
            except MCPError as error:
                refused = str(error)
            assert "robots" in refused
            assert "/secret" not in asked
            again = await client.call_tool("fetch", {"url": f"{url}/open"})
            assert "Come in." in text(again)
        assert asked.count("/open") == 2  # a read is made each time
    with amends.Runtime(desk.url) as rt:
        assert not [call for run in rt.runs() for call in rt.report(run.id).calls if call.kind != "read"]


@WHO
@on_a_loop
async def test_fetch_during_which_somebody_is_killed_is_made_again(place: Path, who: str) -> None:
    desk = Desk(place / "desk")
    command = [*pypi_server("mcp-server-fetch"), "--allow-private-ips"]
    desk.add("fetch", command, plan=("fetch", who, "after"), catalogue="fetch")
    with site() as (url, _):
        await check_made_again(desk, "fetch", "fetch", {"url": f"{url}/open"})


@WHO
@on_a_loop
async def test_a_query_during_which_somebody_is_killed_is_made_again(
    place: Path, postgres_server: PostgresServer, who: str
) -> None:
    url = postgres_server.url()
    desk = Desk(place / "desk")
    desk.add("postgres", [*npm_server("mcp-server-postgres"), url], plan=("query", who, "after"), catalogue="postgres")
    await check_made_again(desk, "postgres", "query", {"sql": "SELECT 1"})


@on_a_loop
async def test_postgres(place: Path, postgres_server: PostgresServer) -> None:
    url = postgres_server.url()  # with a port: this server knows no sockets in files
    execute(url, ["CREATE TABLE things (name text)", "INSERT INTO things VALUES ('lamp')"])
    desk = Desk(place / "desk")
    desk.add("postgres", [*npm_server("mcp-server-postgres"), url], catalogue="postgres")
    async with desk.client() as client:
        await check_listed(client, "postgres")
        said = await client.call_tool("query", {"sql": "SELECT name FROM things"})
        assert not said.is_error, text(said)
        assert "lamp" in text(said)
        try:
            refused = text(await client.call_tool("query", {"sql": "INSERT INTO things VALUES ('chair')"}))
        except MCPError as error:
            refused = str(error)
        assert "read-only" in refused
        tables = (await client.list_resources()).resources
        assert "things" in str(tables[0].uri)
        [schema] = (await client.read_resource(str(tables[0].uri))).contents
        assert "name" in schema.text  # type: ignore[union-attr]
    assert execute(url, ["SELECT name FROM things"]) == [("lamp",)]


def browser_desk(place: Path, plan: Plan | None = None) -> Desk:
    try:
        browser = browser_program()
    except Unavailable as refusal:
        unavailable(str(refusal))
    command = [*npm_server("playwright-mcp"), "--headless", "--no-sandbox", "--isolated"]
    command += ["--executable-path", browser, "--output-dir", str(place / "out")]
    desk = Desk(place / "desk")
    env = {"PATH": os.environ["PATH"], "HOME": str(place)}
    desk.add("playwright", command, plan=plan, env=env, catalogue="playwright")
    return desk


async def shop(client: Any, url: str) -> dict[str, Any]:
    """Open the page, and return the arguments of a click on its button."""
    said = await client.call_tool("browser_navigate", {"url": f"{url}/shop"})
    assert not said.is_error, text(said)
    seen = text(await client.call_tool("browser_snapshot", {}))
    [ref] = re.findall(r'button "Buy" \[ref=(\w+)\]', seen)
    return {"element": "Buy", "target": ref}


@WHO
@on_a_loop
async def test_a_click_during_which_somebody_is_killed_is_not_made_again(place: Path, who: str) -> None:
    desk = browser_desk(place, ("browser_click", who, "after"))
    with site() as (url, asked):
        with suppress(MCPError, BaseExceptionGroup):
            async with desk.client() as client:
                await client.call_tool("browser_click", await shop(client, url))
        assert (desk.folder / "playwright.killed").exists()
        async with desk.client() as client:
            told = text(await client.call_tool("amends_rollback", {}))
            assert "It waits for a person" in told, told
        assert asked.count("/bought") == 1
    with amends.Runtime(desk.url) as rt:
        clicks = [call.state for run in rt.runs() for call in rt.report(run.id).calls if "click" in call.tool]
        assert clicks == ["in_doubt"]


@on_a_loop
async def test_playwright(place: Path) -> None:
    desk = browser_desk(place)
    with site() as (url, asked):
        async with desk.client() as client:
            await check_listed(client, "playwright")
            button = await shop(client, url)
            for count in (1, 2):  # a second click is a second click
                clicked = await client.call_tool("browser_click", button)
                assert not clicked.is_error, text(clicked)
                for _ in range(50):
                    if asked.count("/bought") == count:
                        break
                    await asyncio.sleep(0.1)
                assert asked.count("/bought") == count
            held = await client.call_tool("browser_evaluate", {"function": "() => document.title"})
            assert "approval" in text(held)
            told = text(await client.call_tool("amends_rollback", {}))
            assert "browser_click" in told, "what cannot be taken back is named"
            await client.call_tool("browser_close", {})

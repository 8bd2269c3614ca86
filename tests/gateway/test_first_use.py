"""What a newcomer meets first: the gateway's own tools, its refusals, what it says about people, and its terminal."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp_types import CallToolResult, ListRootsResult, Root

import amends
from tests.adapters.loops import on_a_loop
from tests.gateway.desk import ROOT, Desk, text

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
CLASS_NAMES = ("Error", "amends.", "Refused", "NoEffect", "ToolFailed", "RunBlocked")


def shelf(tmp_path: Path, **put: Any) -> Desk:
    """Return a desk with a shelf, whose tool ``put`` is undone by ``take``."""
    desk = Desk(tmp_path)
    tools = {
        "put": {"kind": "compensatable", "compensate": {"tool": "take", "args": {"item": "$args.item"}}, **put},
        "sell": {"kind": "pivot", "needs_approval": True},
    }
    command = [sys.executable, "-m", "tests.gateway.shelf_server", str(desk.data / "shelf.txt")]
    desk.add("shelf", command, env={"PYTHONPATH": "src:."}, tools=tools)
    return desk


def plain(said: CallToolResult) -> str:
    """Return the text of an answer, which has no name of a Python class in it."""
    found = text(said)
    assert not any(name in found for name in CLASS_NAMES), found
    return found


@on_a_loop
async def test_the_reason_of_a_rollback_reaches_the_answer_the_ledger_and_the_report(tmp_path: Path) -> None:
    desk = shelf(tmp_path)
    async with desk.client() as client:
        await client.call_tool("amends_begin", {"run": "r"})
        await client.call_tool("put", {"item": "lamp"})
        said = plain(await client.call_tool("amends_rollback", {"why": "changed my mind"}))
    assert "1 of 1 calls undone" in said
    assert "changed my mind" in said
    with amends.Runtime(desk.url) as rt:
        report = rt.report("r")
        assert report.run.goal_why == report.to_dict()["run"]["goal_why"] == "changed my mind"
        assert "changed my mind" in str(report)
        assert [one.facts["why"] for one in rt.events("r") if one.what == "goal"] == ["changed my mind"]


@on_a_loop
async def test_a_failed_call_does_not_replace_the_reason_of_a_rollback(tmp_path: Path) -> None:
    desk = shelf(tmp_path)
    async with desk.client() as client:
        await client.call_tool("amends_begin", {"run": "r"})
        await client.call_tool("put", {"item": "lamp"})
        failed = await client.call_tool("put", {"item": "lamp", "count": -1_000_000_000_000_000_000_000})
        assert failed.is_error
        said = plain(await client.call_tool("amends_rollback", {"why": "changed my mind"}))
    assert "not finished" not in said
    assert "changed my mind" in said


@on_a_loop
async def test_the_gateways_own_tools_refuse_in_plain_sentences(tmp_path: Path) -> None:
    desk = shelf(tmp_path)
    async with desk.client() as client:
        await client.call_tool("amends_begin", {"run": "one"})
        twice = await client.call_tool("amends_begin", {"run": "two"})
        assert twice.is_error
        assert plain(twice) == "Not run: run one is open. Call amends_commit or amends_rollback first."
        unknown = await client.call_tool("amends_begin", {"name": "two"})
        assert unknown.is_error
        assert "amends_begin has no argument name" in plain(unknown)
        await client.call_tool("put", {"item": "lamp"})
        assert plain(await client.call_tool("amends_commit", {})) == "Committed: run one."
        again = plain(await client.call_tool("amends_begin", {"run": "one"}))
        assert "has ended (committed)" in again
        assert plain(await client.call_tool("amends_begin", {"run": "other"})) == "Begun: run other."
        await client.call_tool("amends_commit", {})
        await client.call_tool("amends_begin", {"run": "one"})
        late = await client.call_tool("amends_rollback", {"why": "too late"})
        assert late.is_error
        assert "run one has ended (committed)" in plain(late)
        assert "amends rollback one --plan" in plain(late)


@on_a_loop
async def test_a_call_that_lacks_an_argument_is_refused_and_leaves_no_record(tmp_path: Path) -> None:
    desk = shelf(tmp_path)
    async with desk.client() as client:
        await client.call_tool("amends_begin", {"run": "r"})
        lacks = await client.call_tool("put", {"count": 2})
        assert lacks.is_error
        assert plain(lacks) == "Not run: put.item is missing. Call it again with corrected arguments."
        assert (lacks.meta or {})["amends/outcome"]["executed"] is False
        wrong = await client.call_tool("put", {"item": 7})
        assert plain(wrong) == "Not run: put.item must be a string, not 7. Call it again with corrected arguments."
        assert not (await client.call_tool("put", {"item": "lamp"})).is_error
        assert "1 call." in text(await client.call_tool("amends_status", {}))
        await client.call_tool("amends_commit", {})
    with amends.Runtime(desk.url) as rt:
        assert [call.state for call in rt.report("r").calls] == ["succeeded"]


@on_a_loop
async def test_nobody_is_said_to_be_told_where_nobody_is(tmp_path: Path) -> None:
    desk = shelf(tmp_path, compensate={"tool": "take", "args": {"item": "$result.nothing"}, "attempts": 1})
    async with desk.client() as client:
        held = plain(await client.call_tool("sell", {"item": "lamp"}))
        assert "approval" in held
        assert "This gateway notifies nobody" in held
        assert "amends approvals" in held
        await client.call_tool("amends_begin", {"run": "r"})
        await client.call_tool("put", {"item": "lamp"})
        stuck = plain(await client.call_tool("amends_rollback", {"why": "changed my mind"}))
    assert "told" not in stuck
    assert "amends inbox" in stuck


@on_a_loop
async def test_what_a_server_writes_to_its_terminal_has_its_name(tmp_path: Path) -> None:
    desk = shelf(tmp_path)
    started = desk.parameters()
    done = subprocess.run(
        [started.command, *started.args], env=started.env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=60, check=False, cwd=ROOT,
    )  # fmt: skip
    assert "[shelf] shelf is ready" in done.stderr.splitlines()


@on_a_loop
async def test_a_server_that_asks_for_roots_before_there_is_a_client_has_none_and_is_told_later(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.files()
    (tmp_path / "rooted").mkdir()

    async def roots(_context: Any) -> ListRootsResult:
        return ListRootsResult(roots=[Root(uri=f"file://{tmp_path}/rooted")])  # type: ignore[arg-type]

    started = desk.parameters()
    done = subprocess.run(
        [started.command, *started.args], env=started.env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert "Failed" not in done.stderr
    async with desk.client(mode="legacy", list_roots_callback=roots) as client:
        await client.list_tools()
        for _ in range(100):
            if "rooted" in text(await client.call_tool("list_allowed_directories", {})):
                return
            await asyncio.sleep(0.05)
        pytest.fail("the server has not heard of the roots")


@on_a_loop
async def test_a_committed_run_is_taken_back_at_the_command_line(tmp_path: Path) -> None:
    desk = shelf(tmp_path)
    async with desk.client() as client:
        await client.call_tool("amends_begin", {"run": "r"})
        await client.call_tool("put", {"item": "lamp"})
        await client.call_tool("amends_commit", {})
    assert (desk.data / "shelf.txt").read_text() == "lamp\n"
    env = {**(desk.parameters().env or {}), "NO_COLOR": "1"}

    def amends_says(*args: str, config: Path = desk.config) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "amends", "--config", str(config), *args]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)

    elsewhere = tmp_path / "other.toml"
    elsewhere.write_text(f'url = "{desk.url}"\n')
    stranger = amends_says("rollback", "r", "--plan", config=elsewhere)
    assert stranger.returncode != 0
    assert "the gateway desk made this run" in stranger.stderr

    planned = amends_says("rollback", "r", "--plan")
    assert planned.returncode == 0, planned.stderr
    assert "compensate shelf.put" in planned.stdout
    assert "shelf.take(" in planned.stdout
    assert 'undoes shelf.put(item="lamp", count=1)' in planned.stdout
    assert "nothing would be left standing" in planned.stdout
    assert "has committed" in planned.stderr
    [hash] = [line.rpartition(" ")[2] for line in planned.stdout.splitlines() if line.startswith("rollback of run")]
    assert (desk.data / "shelf.txt").read_text() == "lamp\n"

    done = amends_says("rollback", "r", "--apply", hash, "--why", "the customer cancelled", "--yes")
    assert done.returncode == 0, done.stderr
    assert "rolled back, nothing left standing" in done.stdout
    assert (desk.data / "shelf.txt").read_text() == ""


@on_a_loop
async def test_a_run_whose_tool_the_settings_no_longer_declare_is_not_taken_back(tmp_path: Path) -> None:
    desk = shelf(tmp_path)
    async with desk.client() as client:
        await client.call_tool("amends_begin", {"run": "r"})
        await client.call_tool("put", {"item": "lamp"})
    other = desk.config.with_name("other.toml")
    other.write_text(desk.config.read_text().replace('"shelf" = ', '"shop" = '))
    command = [sys.executable, "-m", "amends", "--config", str(other), "rollback", "r", "--yes", "--why", "x"]
    env = {**(desk.parameters().env or {}), "NO_COLOR": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "without the code of shelf.put" in done.stderr
    assert (desk.data / "shelf.txt").read_text() == "lamp\n"

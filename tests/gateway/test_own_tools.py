"""What the gateway's own tools tell a model: what waits, what cannot be taken back, and which run a client is in."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, ElicitResult

import amends
from amends.errors import NAMED_MAX
from tests.adapters.loops import on_a_loop
from tests.gateway.desk import Desk
from tests.gateway.test_first_use import plain, shelf

pytestmark = [pytest.mark.rest, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]


def sells(tmp_path: Path) -> Desk:
    """Return a desk whose tool ``sell`` cannot be undone, and needs no approval."""
    desk = shelf(tmp_path)
    desk._servers["shelf"]["tools"]["sell"] = {"kind": "pivot"}
    return desk


def stuck(tmp_path: Path) -> Desk:
    """Return a desk whose tool ``put`` cannot be undone although it says so."""
    return shelf(tmp_path, compensate={"tool": "take", "args": {"item": "$result.nothing"}, "attempts": 1})


async def tell(client: Client, name: str, **args: Any) -> str:
    return plain(await client.call_tool(name, args))


def typed(desk: Desk, *words: str) -> str:
    """Type a command of ``amends`` in the folder of a desk, and return what it printed."""
    env = {**(desk.parameters().env or {}), "NO_COLOR": "1", "COLUMNS": "200"}
    command = [sys.executable, "-m", "amends", "--config", str(desk.config), *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False, cwd=desk.folder)
    return done.stdout + done.stderr


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(200):
        if holds():
            return
        await asyncio.sleep(0.05)
    pytest.fail("it does not become true")


async def approved(desk: Desk) -> None:
    async with amends.AsyncRuntime(desk.url) as rt:
        async for one in rt.approvals():
            await rt.approve(one.id, digest=one.digest, by="ann")


@on_a_loop
async def test_the_status_names_what_waits_for_a_person_in_child_runs_too(tmp_path: Path) -> None:
    desk = shelf(tmp_path)
    async with desk.client() as client:
        await tell(client, "put", item="lamp")
        asked = [await tell(client, "sell", item=item) for item in ("lamp", "chair")]
        assert all("Call it again with the same arguments after it was approved" in one for one in asked)
        status = await client.call_tool("amends_status", {})
        said = plain(status)
        assert "3 calls, 2 of which wait for a person" in said
        assert 'shelf.put(item="lamp", count=1): succeeded' in said
        with amends.Runtime(desk.url) as rt:
            for one in rt.approvals():
                item = one.call.args["item"]
                assert f'shelf.sell(item="{item}"): waits for a person\'s approval ({one.id})' in said
        assert len((status.structured_content or {})["calls"]) == 3
        await approved(desk)
        assert 'shelf.sell(item="chair"): approved' in await tell(client, "amends_status")
        assert not (await client.call_tool("sell", {"item": "lamp"})).is_error


@on_a_loop
async def test_a_rollback_names_the_requests_that_it_withdraws(tmp_path: Path) -> None:
    desk = shelf(tmp_path)
    async with desk.client() as client:
        for item in ("lamp", "chair"):
            await tell(client, "sell", item=item)
        with amends.Runtime(desk.url) as rt:
            ids = [one.id for one in rt.approvals()]
        said = await tell(client, "amends_rollback", why="not needed")
        assert "2 requests for approval were withdrawn" in said
        assert 'shelf.sell(item="lamp")' in said
        assert all(one in said for one in ids)
        with amends.Runtime(desk.url) as rt:
            assert list(rt.approvals()) == []


@on_a_loop
async def test_a_rollback_names_a_few_of_many_requests_that_it_withdraws(tmp_path: Path) -> None:
    desk = shelf(tmp_path)
    async with desk.client() as client:
        for n in range(8):
            await tell(client, "sell", item=f"lamp {n}")
        said = await tell(client, "amends_rollback", why="not needed")
        assert "8 requests for approval were withdrawn" in said
        assert said.count("shelf.sell(item=") == NAMED_MAX
        assert said.endswith(" and 3 more.")
        with amends.Runtime(desk.url) as rt:
            assert list(rt.approvals()) == []


@on_a_loop
async def test_a_rollback_after_a_pivot_is_refused_and_blocks_nothing(tmp_path: Path) -> None:
    desk = sells(tmp_path)
    async with desk.client() as client:
        await tell(client, "amends_begin", run="r")
        await tell(client, "put", item="lamp")
        await tell(client, "sell", item="lamp")
        refused = await client.call_tool("amends_rollback", {"why": "changed my mind"})
        assert refused.is_error
        said = plain(refused)
        assert 'shelf.sell(item="lamp") cannot be undone' in said
        assert "nothing was taken back" in said.lower()
        assert "amends_commit" in said
        with amends.Runtime(desk.url) as rt:
            assert rt.info("r").state == "pivoted"
        assert await tell(client, "amends_commit") == "Committed: run r."


@on_a_loop
async def test_a_run_that_was_left_after_its_pivot_names_what_to_do_and_why_it_was_left(tmp_path: Path) -> None:
    desk = sells(tmp_path)
    desk.gateway |= {"idle": "0.5s"}
    async with desk.client() as client:
        await tell(client, "amends_begin", run="r")
        await tell(client, "sell", item="lamp")
        with amends.Runtime(desk.url) as rt:
            await until(lambda: rt.info("r").state == "blocked")
            [cause] = rt.info("r").causes
    assert "no call for 0.5 s" in cause
    shown = typed(desk, "runs", "show", "r")
    assert "amends_begin" in shown
    assert "amends_commit" in shown
    async with desk.client() as client:
        await tell(client, "amends_begin", run="r")
        assert await tell(client, "amends_commit") == "Committed: run r."


@on_a_loop
async def test_a_run_that_could_not_be_taken_back_stops_no_later_call(tmp_path: Path) -> None:
    desk = stuck(tmp_path)
    async with desk.client() as client:
        await tell(client, "put", item="lamp")
        assert "could not be taken back completely" in await tell(client, "amends_rollback")
        assert not (await client.call_tool("put", {"item": "chair"})).is_error
        await tell(client, "amends_commit")
        assert not (await client.call_tool("put", {"item": "table"})).is_error
    async with desk.client() as client:
        assert not (await client.call_tool("put", {"item": "bed"})).is_error
        assert "1 call." in await tell(client, "amends_status")


@on_a_loop
async def test_a_begun_run_that_a_client_left_goes_on_and_the_status_says_so(tmp_path: Path) -> None:
    """Nobody knows whether that client had ended or was killed: what it asks for again must not happen twice."""
    desk = shelf(tmp_path)
    async with desk.client() as client:
        await tell(client, "amends_begin", run="order-7")
        await tell(client, "put", item="lamp")
    async with desk.client() as client:
        await tell(client, "put", item="lamp")
        assert (desk.data / "shelf.txt").read_text() == "lamp\n", "it is answered from the record"
        seen = await tell(client, "amends_status")
        assert "Run order-7" in seen
        assert "It was begun before this connection, and goes on until amends_commit or amends_rollback." in seen
        await tell(client, "amends_commit")
        await tell(client, "amends_begin", run="order-8")
        await tell(client, "put", item="chair")
        assert "begun before" not in await tell(client, "amends_status")


@on_a_loop
async def test_a_begun_run_of_a_gateway_that_was_killed_goes_on(tmp_path: Path) -> None:
    desk = shelf(tmp_path)
    with suppress(MCPError, BaseExceptionGroup):
        async with desk.client() as client:
            await tell(client, "amends_begin", run="order-7")
            await tell(client, "put", item="lamp")
            with amends.Runtime(desk.url) as rt:
                os.kill(int(str(rt.info("order-7").owner).split("|")[3]), signal.SIGKILL)
            await tell(client, "put", item="chair")
    async with desk.client() as client:
        await tell(client, "put", item="lamp")
        assert (desk.data / "shelf.txt").read_text() == "lamp\n", "it is answered from the record"
        assert "Run order-7" in await tell(client, "amends_status")
        assert "1 of 1 calls undone" in await tell(client, "amends_rollback")


@on_a_loop
async def test_a_run_of_a_gateway_that_was_killed_is_not_called_begun_if_nobody_began_it(tmp_path: Path) -> None:
    desk = shelf(tmp_path)
    with suppress(MCPError, BaseExceptionGroup):
        async with desk.client() as client:
            await tell(client, "put", item="lamp")
            with amends.Runtime(desk.url) as rt:
                [run] = rt.runs()
                os.kill(int(str(run.owner).split("|")[3]), signal.SIGKILL)
            await tell(client, "put", item="chair")
    async with desk.client() as client:
        seen = await tell(client, "amends_status")
        assert f"Run {run.id}" in seen
        assert "made before this connection" in seen
        assert "begun" not in seen
    with amends.Runtime(desk.url) as rt:
        assert rt.info(run.id).state == "committed", "a run that nobody began ends with its connection"


@on_a_loop
async def test_a_client_of_a_tenant_finds_its_run_after_a_restart_and_its_user_may_approve(tmp_path: Path) -> None:
    import httpx2

    desk = shelf(tmp_path)
    desk._servers["shelf"]["tools"]["sell"] = {"kind": "pivot", "needs_approval": True}
    desk.gateway |= {"approvals": "client", "approver": "ann"}
    with amends.Runtime(desk.url) as rt:
        token = rt.create_token("bot", scopes=["agent"], agent="bot", tenant="acme", by="ann", why="test").text

    async def approve(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"decision": "approve"})

    async def asked(url: str, tool: str, args: dict[str, Any], run: str) -> CallToolResult:
        meta: Any = {"amends/run": run}
        async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=60) as http:
            transport = streamable_http_client(url, http_client=http)
            async with Client(transport, elicitation_callback=approve) as client:
                return await client.call_tool(tool, args, meta=meta)

    async with desk.http() as url:
        assert not (await asked(url, "put", {"item": "lamp"}, "order-7")).is_error
        sold = await asked(url, "sell", {"item": "chair"}, "order-8")
        assert not sold.is_error, plain(sold)
    async with desk.http() as url:
        assert "Run order-7: open, 1 call" in plain(await asked(url, "amends_status", {}, "order-7"))
        assert "1 of 1 calls undone" in plain(await asked(url, "amends_rollback", {}, "order-7"))


@pytest.mark.parametrize("mode", ["legacy", "auto"])
@on_a_loop
async def test_a_run_of_a_killed_gateway_over_http_is_ended_or_goes_on(tmp_path: Path, mode: Any) -> None:
    """A session is gone with its gateway; a stateless client comes back, and must not do twice what was done."""
    desk = shelf(tmp_path, locks=["item:${args.item}"])
    async with desk.http() as url, Client(streamable_http_client(url), mode=mode) as client:
        await tell(client, "put", item="lamp")
        with amends.Runtime(desk.url) as rt:
            [run] = rt.runs()
            os.kill(int(str(run.owner).split("|")[3]), signal.SIGKILL)
    async with desk.http() as url, Client(streamable_http_client(url), mode=mode) as client:
        with amends.Runtime(desk.url) as rt:
            if mode == "legacy":
                await until(lambda: rt.info(run.id).state == "committed")
        assert not (await client.call_tool("put", {"item": "lamp"})).is_error, "nobody holds the lock for ever"
    assert (desk.data / "shelf.txt").read_text() == "lamp\n" * (2 if mode == "legacy" else 1)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
@on_a_loop
async def test_a_gateway_over_http_that_is_stopped_ends_the_runs_of_its_clients(tmp_path: Path, name: str) -> None:
    desk = shelf(tmp_path)
    started = desk.parameters()
    with (tmp_path / "said.txt").open("wb") as said:
        process = await asyncio.create_subprocess_exec(
            started.command, *started.args, "--http", "--port", "0", "--json",
            env=started.env, stdout=asyncio.subprocess.PIPE, stderr=said,
        )  # fmt: skip
    assert process.stdout is not None
    url = str(json.loads(await asyncio.wait_for(process.stdout.readline(), 60))["url"])
    with suppress(MCPError, BaseExceptionGroup):  # its connection is cut
        async with Client(streamable_http_client(url), mode="legacy") as client:
            await tell(client, "put", item="lamp")
            process.send_signal(getattr(signal, name))
            assert await asyncio.wait_for(process.wait(), 30) == 0
    assert process.returncode == 0
    assert "Traceback" not in (tmp_path / "said.txt").read_text()
    with amends.Runtime(desk.url) as rt:
        [run] = rt.runs()
        assert run.state == "committed"


@on_a_loop
async def test_a_lock_that_a_blocked_run_holds_is_named_with_the_run(tmp_path: Path) -> None:
    said = {"tool": "take", "args": {"item": "$result.nothing"}, "attempts": 1}
    desk = shelf(tmp_path, compensate=said, locks=["item:${args.item}"])
    async with desk.client() as client:
        await tell(client, "amends_begin", run="stuck")
        await tell(client, "put", item="lamp")
        await tell(client, "amends_rollback")
        refused = await tell(client, "put", item="lamp")
        assert "Run stuck holds it, and waits for a person" in refused
        with amends.Runtime(desk.url) as rt:
            [call] = rt.report("stuck").calls
    retried = typed(desk, "calls", "retry", call.id, "--why", "again", "--yes")
    assert "the gateway desk has the tools" in retried
    assert "amends worker" not in retried

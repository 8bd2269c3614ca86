"""The gateway end to end: a real client, a real gateway process, real servers from npm."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp_types import CallToolResult

import amends
from tests.adapters.loops import on_a_loop
from tests.gateway.desk import Desk, entity, text

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


async def until_done(client: Client, tool: str, args: dict[str, Any]) -> CallToolResult:
    """Ask again while the outcome is being checked, as a patient user would."""
    for _ in range(100):
        said = await client.call_tool(tool, args)
        if not (said.is_error and "it is being checked" in text(said)):
            return said
        await asyncio.sleep(0.1)
    return said


@on_a_loop
async def test_entities_are_deleted_newest_first_when_the_fourth_call_fails(desk: Desk) -> None:
    desk.memory()
    async with desk.client() as client:
        await client.call_tool("amends_begin", {"run": "three"})
        for name in "abc":
            assert not (await client.call_tool("create_entities", entity(name))).is_error
        assert desk.entities() == ["a", "b", "c"]
        failed = await client.call_tool(
            "add_observations", {"observations": [{"entityName": "zzz", "contents": ["x"]}]}
        )
        assert failed.is_error
        said = await client.call_tool("amends_rollback", {"why": "the fourth failed"})
        assert "3 of 3 calls undone" in text(said)
    assert desk.entities() == []
    with amends.Runtime(desk.url) as rt:
        report = rt.report("three")
        assert report.state == "rolled_back"
        undone = [one.call_id for one in rt.events("three") if one.to == "compensated" and one.call_id]
        assert undone == [call.id for call in reversed(report.calls) if call.state == "compensated"]
        assert len(undone) == 3


@on_a_loop
async def test_ten_files_are_put_back_as_they_were(desk: Desk) -> None:
    for number in range(5):
        (desk.data / f"old{number}.txt").write_text(f"old {number}\n")
    (desk.data / "empty.txt").write_text("")
    before = desk.tree()
    desk.files()
    async with desk.client() as client:
        await client.call_tool("amends_begin", {})
        for number in range(10):
            path = str(desk.data / f"{'old' if number < 5 else 'new'}{number}.txt")
            assert not (await client.call_tool("write_file", {"path": path, "content": f"changed {number}"})).is_error
        await client.call_tool("write_file", {"path": str(desk.data / "empty.txt"), "content": "full"})
        edits = [{"oldText": "changed", "newText": "edited"}]
        await client.call_tool("edit_file", {"path": str(desk.data / "old0.txt"), "edits": edits})
        await client.call_tool(
            "move_file", {"source": str(desk.data / "old1.txt"), "destination": str(desk.data / "moved.txt")}
        )
        await client.call_tool("create_directory", {"path": str(desk.data / "sub")})
        await client.call_tool("write_file", {"path": str(desk.data / "sub" / "deep.txt"), "content": "deep"})
        assert desk.tree() != before
        assert "15 of 15 calls undone" in text(await client.call_tool("amends_rollback", {}))
    assert desk.tree() == before


@pytest.mark.rest
@on_a_loop
async def test_a_file_that_is_no_text_is_not_overwritten(desk: Desk) -> None:
    (desk.data / "picture.png").write_bytes(bytes(range(256)))
    desk.files()
    async with desk.client() as client:
        said = await client.call_tool("write_file", {"path": str(desk.data / "picture.png"), "content": "text"})
    assert said.is_error
    assert "could not be put back" in text(said)
    assert (desk.data / "picture.png").read_bytes() == bytes(range(256))


@pytest.mark.rest
@pytest.mark.parametrize("when", ["before", "after"])
@on_a_loop
async def test_a_gateway_that_is_killed_during_a_call_repeats_nothing(desk: Desk, when: str) -> None:
    desk.memory(plan=("create_entities", "gateway", when))
    with suppress(MCPError, BaseExceptionGroup):
        async with desk.client() as client:
            await client.call_tool("create_entities", entity("a"))
            pytest.fail("the gateway lives")
    assert desk.entities() == (["a"] if when == "after" else [])
    async with desk.client() as client:  # the client starts it again, and its model asks again
        said = await until_done(client, "create_entities", entity("a"))
        assert not said.is_error, text(said)
        assert desk.entities() == ["a"]
        await client.call_tool("create_entities", entity("b"))
        assert "2 of 2 calls undone" in text(await client.call_tool("amends_rollback", {}))
    assert desk.entities() == []


@pytest.mark.rest
@on_a_loop
async def test_what_a_killed_gateway_has_left_can_be_looked_at_and_taken_back_at_once(desk: Desk) -> None:
    desk.files(plan=("edit_file", "gateway", "before"))
    path = str(desk.data / "a.txt")
    with suppress(MCPError, BaseExceptionGroup):
        async with desk.client() as client:
            await client.call_tool("write_file", {"path": path, "content": "made"})
            await client.call_tool("edit_file", {"path": path, "edits": [{"oldText": "made", "newText": "edited"}]})
    assert desk.tree() == {"a.txt": "made"}
    async with desk.client() as client:
        assert "2 calls" in text(await client.call_tool("amends_status", {}))
        assert "1 of 1 calls undone" in text(await client.call_tool("amends_rollback", {}))
    assert desk.tree() == {}


@pytest.mark.rest
@pytest.mark.parametrize("when", ["before", "after"])
@on_a_loop
async def test_a_server_that_dies_during_a_call_is_asked_whether_it_did_it(desk: Desk, when: str) -> None:
    desk.memory(plan=("create_entities", "server", when))
    async with desk.client() as client:
        said = await client.call_tool("create_entities", entity("a"))
        again = await until_done(client, "create_entities", entity("a"))
        assert not again.is_error, (text(said), text(again))
        assert desk.entities() == ["a"]
        status = await client.call_tool("amends_status", {})
        assert text(status).count("succeeded") == 1


@pytest.mark.rest
@on_a_loop
async def test_a_tool_that_nobody_declared_waits_for_a_person(desk: Desk) -> None:
    desk.memory(catalogue="")
    async with desk.client() as client:
        listed = {one.name: one for one in (await client.list_tools()).tools}
        assert "must approve each call" in (listed["create_entities"].description or "")
        said = await client.call_tool("create_entities", entity("a"))
        assert "approval" in text(said)
        assert desk.entities() == []
        async with amends.AsyncRuntime(desk.url) as rt:
            async for asked in rt.approvals():
                await rt.approve(asked.id, digest=asked.digest, by="ann")
        assert not (await client.call_tool("create_entities", entity("a"))).is_error
    assert desk.entities() == ["a"]


@pytest.mark.rest
@on_a_loop
async def test_what_a_client_begins_and_never_ends_is_taken_back_after_the_idle_time(desk: Desk) -> None:
    desk.memory()
    desk.gateway |= {"idle": "0.5s"}
    async with desk.client() as client:
        await client.call_tool("amends_begin", {"run": "left"})
        await client.call_tool("create_entities", entity("a"))
        assert desk.entities() == ["a"]
        with amends.Runtime(desk.url) as rt:
            for _ in range(100):
                if rt.report("left").state == "rolled_back":
                    break
                await asyncio.sleep(0.1)
            assert rt.report("left").state == "rolled_back"
    assert desk.entities() == []

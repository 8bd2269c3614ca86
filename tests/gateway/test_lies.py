"""A server that writes garbage, lists without end, tells its credential or takes another one's name harms nobody else."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

import amends
from tests.adapters.loops import on_a_loop
from tests.gateway.desk import Desk, entity, text

pytestmark = [pytest.mark.rest, pytest.mark.filterwarnings("ignore")]
SECRET = "hunter2-hunter2-hunter2"
NOTE = {"note": {"kind": "pivot"}}


def lying(tmp_path: Path, how: str, **table: Any) -> Desk:
    desk = Desk(tmp_path)
    env = {"PYTHONPATH": "src:.", "TOKEN": "${A_TOKEN}"}
    desk.add("lying", [sys.executable, "-m", "tests.gateway.lying_server", how], **{"env": env, "tools": NOTE, **table})
    desk.env["A_TOKEN"] = SECRET
    return desk


@on_a_loop
async def test_lines_that_are_no_messages_are_passed_over(tmp_path: Path) -> None:
    desk = lying(tmp_path, "garbage")
    async with desk.client() as client:
        said = await client.call_tool("note", {})
        assert not said.is_error, text(said)
        assert text(said) == "note: [hidden]"


@on_a_loop
async def test_tools_that_are_none_are_left_out_and_no_server_takes_the_name_of_another(tmp_path: Path) -> None:
    desk = lying(tmp_path, "names")
    desk.add(
        "honest", [sys.executable, "-m", "tests.gateway.lying_server", "honest"],
        env={"PYTHONPATH": "src:.", "WORDS": "honestly"}, tools=NOTE,
    )  # fmt: skip
    async with desk.client() as client:
        names = [one.name for one in (await client.list_tools()).tools]
        assert sorted(one for one in names if not one.startswith("amends_")) == [
            "honest__note", "lying__honest__note", "lying__note",
        ]  # fmt: skip
        assert names.count("amends_commit") == 1
        assert text(await client.call_tool("honest__note", {})) == "note: honestly"


@on_a_loop
async def test_lists_without_end_and_answers_that_are_too_long_are_bounded(tmp_path: Path) -> None:
    desk = lying(tmp_path, "endless", answer_bytes_max=20_000)
    desk.gateway["start"] = 30
    async with desk.client() as client:
        assert len((await client.list_tools()).tools) <= 5_010
        assert len((await client.list_resources()).resources) <= 5_000
        with pytest.raises(MCPError, match="at most"):
            await client.read_resource("x://one")


@on_a_loop
async def test_a_server_that_does_not_answer_is_not_waited_for_and_hides_no_other(tmp_path: Path) -> None:
    desk = lying(tmp_path, "silent", timeout=1)
    env = {"PYTHONPATH": "src:.", "WORDS": "honestly"}
    desk.add("honest", [sys.executable, "-m", "tests.gateway.lying_server", "honest"], env=env, tools=NOTE)
    async with desk.client() as client:
        [found] = (await client.list_resources()).resources
        assert found.name == "of honestly"


@pytest.mark.parametrize("mode", ["legacy", "auto"])
@on_a_loop
async def test_a_credential_is_hidden_wherever_it_is_told(tmp_path: Path, mode: Any) -> None:
    desk = lying(tmp_path, "secret")
    heard: list[str] = []

    async def logged(params: Any) -> None:
        heard.append(params.model_dump_json())

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        heard.append(str(message))

    async with desk.client(mode=mode, logging_callback=logged) as client:
        heard.append(str(client.instructions))
        heard += [one.model_dump_json() for one in (await client.list_tools()).tools]
        meta: Any = {"io.modelcontextprotocol/logLevel": "debug"} if mode == "auto" else None
        heard.append(text(await client.call_tool("note", {}, progress_callback=on_progress, meta=meta)))
        heard.append((await client.list_resources()).model_dump_json())
        heard.append((await client.read_resource("x://one")).model_dump_json())
        heard.append((await client.list_prompts()).model_dump_json())
        heard.append((await client.get_prompt("p")).model_dump_json())
        await asyncio.sleep(0.5)
    assert not [one for one in heard if SECRET in one]
    assert sum("[hidden]" in one for one in heard) >= 8, heard
    assert SECRET.encode() not in b"".join(path.read_bytes() for path in tmp_path.glob("*") if path.is_file())


@pytest.mark.parametrize("era", ["legacy", "stateless"])
@on_a_loop
async def test_a_description_that_changes_while_the_server_runs_holds_the_tool(tmp_path: Path, era: str) -> None:
    env = {"PYTHONPATH": "src:.", "TOKEN": "x", **({"LEGACY": "1"} if era == "legacy" else {})}
    desk = lying(tmp_path, "changing", env=env)
    async with desk.client(mode="legacy") as client:
        assert not (await client.call_tool("note", {"n": 1})).is_error
        for _ in range(100):
            listed = {one.name: one.description or "" for one in (await client.list_tools()).tools}
            if "Halted" in listed["note"]:
                break
            await asyncio.sleep(0.1)
        assert "Halted" in listed["note"]
        assert "ssh" not in listed["note"]
        assert (await client.call_tool("note", {"n": 2})).is_error
        async with amends.AsyncRuntime(desk.url) as rt:
            await rt.unhalt(tool="lying.note", by="ann", why="looked at it")
        listed = {one.name: one.description or "" for one in (await client.list_tools()).tools}
        assert "ssh" in listed["note"], "a person has looked at it"
        assert not (await client.call_tool("note", {"n": 2})).is_error


def peak_mb(desk: Desk) -> float:
    """Return how much memory the gateway with this configuration has used at most."""
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            words = (status.parent / "cmdline").read_bytes().split(b"\0")
            if str(desk.config).encode() in words:
                [peak] = [line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM")]
                return int(peak) / 1_000
        except OSError:
            continue  # it has ended
    raise AssertionError("the gateway does not run")


@on_a_loop
async def test_a_line_without_end_does_not_fill_the_memory(tmp_path: Path) -> None:
    desk = lying(tmp_path, "flood", answer_bytes_max=20_000, timeout=20)
    async with desk.client() as client:
        said = await client.call_tool("note", {})
        assert said.is_error
        assert "may have happened" in text(said), text(said)
        assert peak_mb(desk) < 400
        assert "note" in {one.name for one in (await client.list_tools()).tools}


@on_a_loop
async def test_a_client_cannot_go_on_with_a_run_that_is_not_its_own(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.memory()
    with amends.Runtime(desk.url) as rt:
        tokens = {
            name: rt.create_token(name, scopes=["agent"], agent=name, principal=who, by="ann", why="test").text
            for name, who in (("one", "ann"), ("two", "ann"), ("three", "ben"))
        }
        with rt.run("of-a-program"):
            pass
        left = rt.open("left-by-a-program", recover="wait")
        left.release()
    import httpx2

    async with desk.http() as url:

        async def asked(name: str, run: str, tool: str, args: dict[str, Any]) -> str:
            headers = {"Authorization": f"Bearer {tokens[name]}"}
            meta: Any = {"amends/run": run}
            async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
                async with Client(streamable_http_client(url, http_client=http)) as client:
                    return text(await client.call_tool(tool, args, meta=meta))

        await asked("one", "mine", "create_entities", entity("a"))
        assert desk.entities() == ["a"]
        for name in ("two", "three"):
            told = await asked(name, "mine", "amends_rollback", {})
            assert "undone" not in told, told
            told = await asked(name, "mine", "create_entities", entity("b"))
            assert "Not run" in told, told
        told = await asked("one", "left-by-a-program", "amends_rollback", {})
        assert "undone" not in told, told
        assert desk.entities() == ["a"]
        assert "1 of 1 calls undone" in await asked("one", "mine", "amends_rollback", {})
    with amends.Runtime(desk.url) as rt:
        run = rt.info("mine")
        assert (run.principal, run.agent) == ("ann", "one")
        assert rt.info("left-by-a-program").state == "open"


@on_a_loop
async def test_a_token_is_needed_from_the_moment_that_there_is_one(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.memory()
    import httpx2

    async with desk.http() as url:
        async with Client(streamable_http_client(url)) as client:
            assert (await client.list_tools()).tools
        with amends.Runtime(desk.url) as rt:
            rt.create_token("bot", scopes=["agent"], agent="bot", by="ann", why="test")
        async with httpx2.AsyncClient() as http:
            refused = await http.post(url, json={})
    assert refused.status_code == 401
    assert "token" in json.loads(refused.text)["error"]

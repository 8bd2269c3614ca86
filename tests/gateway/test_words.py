"""The words of the configuration about tools and runs do what the reference says, end to end."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

import amends
from amends.gateway.config import Config, load
from amends.gateway.upstreams import Upstream
from tests.adapters.loops import on_a_loop
from tests.gateway.desk import Desk, entity, text

pytestmark = [pytest.mark.rest, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]
ENV = {"PYTHONPATH": "src:.", "TOKEN": "x"}
OUTCOME = "amends/outcome"


def echoing(tmp_path: Path, *, how: str = "meta", **said: Any) -> Desk:
    """Return a desk with one tool, ``note``, that answers with its arguments and its ``_meta``."""
    desk = Desk(tmp_path)
    tools = {"note": {"kind": "pivot", **said}}
    desk.add("notes", [sys.executable, "-m", "tests.gateway.lying_server", how], env=ENV, tools=tools)
    return desk


async def heard(client: Client, args: dict[str, Any], **options: Any) -> dict[str, Any]:
    said = await client.call_tool("note", args, **options)
    assert not said.is_error, text(said)
    found: dict[str, Any] = json.loads(text(said))
    return found


@on_a_loop
async def test_the_key_travels_upstream_and_a_replay_is_marked(tmp_path: Path) -> None:
    desk = echoing(tmp_path)
    async with desk.client() as client:
        first = await client.call_tool("note", {"n": 1})
        again = await client.call_tool("note", {"n": 1})
        other = await client.call_tool("note", {"n": 2})
    keys = [json.loads(text(one))["meta"]["amends/key"] for one in (first, again, other)]
    assert keys[0] == keys[1] != keys[2]
    assert [json.loads(text(one))["number"] for one in (first, again, other)] == [1, 1, 2]
    assert (again.meta or {})[OUTCOME]["status"] == "replayed"
    assert OUTCOME not in (first.meta or {})


@on_a_loop
async def test_key_fields_and_what_carries_no_intent(tmp_path: Path) -> None:
    desk = echoing(tmp_path, key="order", ignore=["color"])
    async with desk.client() as client:
        one = await heard(client, {"order": 7, "amount": 1, "color": "red"})
        same = await heard(client, {"order": 7, "amount": 1, "color": "blue"})
        assert one["number"] == same["number"]
        conflict = await client.call_tool("note", {"order": 7, "amount": 2})
        assert conflict.is_error
        assert (await heard(client, {"order": 8, "amount": 2}))["number"] == 2


@on_a_loop
async def test_a_call_is_repeated_only_with_a_reason(tmp_path: Path) -> None:
    desk = echoing(tmp_path)
    desk.settings["repeats"] = True
    async with desk.client() as client:
        [schema] = [one.input_schema for one in (await client.list_tools()).tools if one.name == "note"]
        assert "again_because" in schema["properties"]
        await heard(client, {"n": 1})
        assert (await heard(client, {"n": 1, "again_because": "a second reminder"}))["number"] == 2


@on_a_loop
async def test_an_approval_rule_on_arguments(tmp_path: Path) -> None:
    desk = echoing(tmp_path, needs_approval={"above": ["$args.amount", 10]})
    async with desk.client() as client:
        await heard(client, {"amount": 10})
        said = await client.call_tool("note", {"amount": 11})
        assert "needs a person's approval" in text(said)


@on_a_loop
async def test_cost_counts_against_a_budget(tmp_path: Path) -> None:
    desk = echoing(tmp_path, cost=3)
    desk.settings["budgets"] = [{"cap": 7}]
    async with desk.client() as client:
        for number in range(2):
            await heard(client, {"n": number})
        said = await client.call_tool("note", {"n": 3})
        assert said.is_error or "approval" in text(said) or "budget" in text(said).lower(), text(said)
        assert (await heard(client, {"n": 1}))["number"] == 2


@on_a_loop
async def test_what_is_redacted_reaches_the_server_and_not_the_ledger(tmp_path: Path) -> None:
    desk = echoing(tmp_path, how="quiet", redact=["password"])
    async with desk.client() as client:
        said = await client.call_tool("note", {"password": "correct-horse-battery", "user": "ann"})
        assert text(said) == "password,user"
    assert b"correct-horse" not in b"".join(path.read_bytes() for path in tmp_path.glob("ledger.db*"))


@on_a_loop
async def test_each_request_can_be_a_run_of_its_own(tmp_path: Path) -> None:
    desk = echoing(tmp_path)
    desk.gateway["runs"] = "request"
    async with desk.client() as client:
        for number in (1, 1, 2):
            await heard(client, {"n": number})
    with amends.Runtime(desk.url) as rt:
        assert [run.state for run in rt.runs() if "/" not in run.id] == ["committed"] * 3


@on_a_loop
async def test_a_configured_name_is_one_run_across_clients(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.memory()
    desk.gateway |= {"runs": "nightly", "on_idle": "wait"}
    for name in "ab":
        async with desk.client() as client:
            assert not (await client.call_tool("create_entities", entity(name))).is_error
    async with desk.client() as client:
        assert "2 of 2 calls undone" in text(await client.call_tool("amends_rollback", {}))
    assert desk.entities() == []
    with amends.Runtime(desk.url) as rt:
        assert rt.info("nightly").state == "rolled_back"


@on_a_loop
async def test_a_client_names_its_run_in_meta(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.memory()
    async with desk.client() as client:
        for run in ("order-7", "order-8"):
            meta: Any = {"amends/run": run}
            await client.call_tool("create_entities", entity(run), meta=meta)
        seven: Any = {"amends/run": "order-7"}
        eight: Any = {"amends/run": "order-8"}
        assert "1 of 1 calls undone" in text(await client.call_tool("amends_rollback", {}, meta=seven))
        assert "Committed" in text(await client.call_tool("amends_commit", {}, meta=eight))
    assert desk.entities() == ["order-8"]


@pytest.mark.parametrize("on_idle, state", [("commit", "committed"), ("rollback", "rolled_back")])
@on_a_loop
async def test_a_silent_connection_ends_as_the_policy_says(tmp_path: Path, on_idle: str, state: str) -> None:
    desk = Desk(tmp_path)
    desk.memory()
    desk.gateway |= {"idle": "0.5s", "on_idle": on_idle}
    async with desk.client() as client:
        await client.call_tool("create_entities", entity("a"))
        async with amends.AsyncRuntime(desk.url) as rt:
            for _ in range(100):
                [run] = [one async for one in rt.runs()]
                if run.state == state:
                    break
                await asyncio.sleep(0.1)
            assert run.state == state
    assert desk.entities() == (["a"] if on_idle == "commit" else [])


@on_a_loop
async def test_hints_lift_nothing_at_run_time(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.memory(catalogue="")
    async with desk.client() as client:
        [tool] = [one for one in (await client.list_tools()).tools if one.name == "read_graph"]
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint
        assert "approval" in text(await client.call_tool("read_graph", {})), "nobody has declared it"


@on_a_loop
async def test_credentials_come_from_the_environment_or_a_file(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    (tmp_path / "token.txt").write_text("from-a-file-123\n")
    env = {"PYTHONPATH": "src:.", "TOKEN": "file:token.txt"}
    desk.add(
        "one", [sys.executable, "-m", "tests.gateway.lying_server", "honest"], env=env, tools={"note": {"kind": "read"}}
    )
    async with desk.client() as client:
        assert text(await client.call_tool("note", {})) == "note: [hidden]"
    config = load(desk.config)
    assert config.env_of(config.gateway.servers["one"])[0]["TOKEN"] == "from-a-file-123"


@on_a_loop
async def test_a_credential_in_an_argument_is_hidden_and_a_missing_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(tmp_path)
    command = [sys.executable, "-m", "tests.gateway.lying_server", "--key=${MY_KEY}"]
    desk.add("one", command, env={"PYTHONPATH": "src:.", "TOKEN": "secret-key-9"}, tools={"note": {"kind": "read"}})
    desk.env["MY_KEY"] = "secret-key-9"
    async with desk.client() as client:
        assert text(await client.call_tool("note", {})) == "note: [hidden]"
    config = load(desk.config)
    with pytest.raises(amends.errors.BadConfig, match="MY_KEY is not set"):
        config.args_of(config.gateway.servers["one"])
    monkeypatch.setenv("MY_KEY", "secret-key-9")
    assert config.args_of(config.gateway.servers["one"])[1] == {"secret-key-9"}


@on_a_loop
async def test_a_credential_that_stands_in_the_file_is_hidden_by_its_name(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    command = [sys.executable, "-m", "tests.gateway.lying_server", "honest"]
    desk.add("one", command, env={"PYTHONPATH": "src:.", "TOKEN": "in-the-file-1"}, tools={"note": {"kind": "read"}})
    async with desk.client() as client:
        assert text(await client.call_tool("note", {})) == "note: [hidden]"
    assert b"in-the-file-1" not in b"".join(path.read_bytes() for path in tmp_path.glob("ledger.db*"))


@on_a_loop
async def test_a_server_that_ends_at_once_is_started_again_more_and_more_slowly(tmp_path: Path) -> None:
    started = tmp_path / "started"
    code = f"open({str(started)!r}, 'a').write('x')"
    table = {"servers": {"short": {"command": sys.executable, "args": ["-S", "-c", code]}}}
    config = Config(table, folder=tmp_path, origin="amends.toml")

    async def ignore(_server: str, _what: str) -> None:
        return

    upstream = Upstream("short", config.gateway.servers["short"], config, changed=ignore)
    upstream.start()
    await asyncio.sleep(5)
    await upstream.close()
    assert 2 <= len(started.read_text()) <= 4  # after 0, 0.5, 1.5 and 3.5 seconds
    assert upstream.problem


@on_a_loop
async def test_an_upstream_over_http_with_a_header_from_the_environment(tmp_path: Path) -> None:
    (tmp_path / "behind").mkdir()
    behind = Desk(tmp_path / "behind")
    behind.memory()
    with amends.Runtime(behind.url) as rt:
        token = rt.create_token("front", scopes=["agent"], agent="front", by="ann", why="test").text
    async with behind.http() as url:
        (tmp_path / "front").mkdir()
        desk = Desk(tmp_path / "front")
        desk.env["UPSTREAM_TOKEN"] = str(token)
        tool = {"kind": "compensatable", "compensate": {"tool": "delete_entities", "args": {"entityNames": ["a"]}}}
        headers = {"Authorization": "Bearer ${UPSTREAM_TOKEN}"}
        desk._servers["far"] = {"url": url, "headers": headers, "tools": {"create_entities": tool}}
        async with desk.client() as client:
            await client.call_tool("amends_begin", {})
            said = await client.call_tool("create_entities", entity("a"))
            assert not said.is_error, text(said)
            assert behind.entities() == ["a"]
            assert "1 of 1 calls undone" in text(await client.call_tool("amends_rollback", {}))
        assert behind.entities() == []
        ledger = b"".join(path.read_bytes() for path in desk.folder.glob("ledger.db*"))
        assert str(token).encode() not in ledger


@on_a_loop
async def test_stateless_clients_over_http_name_their_runs(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.memory()
    async with desk.http() as url:
        async with Client(streamable_http_client(url)) as one, Client(streamable_http_client(url)) as two:
            assert one.protocol_version >= "2026-07-28"
            first: Any = {"amends/run": "first"}
            second: Any = {"amends/run": "second"}
            await one.call_tool("create_entities", entity("a"), meta=first)
            await two.call_tool("create_entities", entity("b"), meta=second)
            assert "1 of 1 calls undone" in text(await one.call_tool("amends_rollback", {}, meta=first))
    assert desk.entities() == ["b"]

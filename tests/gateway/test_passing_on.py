"""What is no call of a tool passes through the gateway: with the server that has everything, and clients of both eras."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp_types import (
    LOG_LEVEL_META_KEY,
    CreateMessageResult,
    ElicitResult,
    ListRootsResult,
    PromptReference,
    ResourceTemplateReference,
    Root,
    TextContent,
)

from tests.adapters.loops import on_a_loop
from tests.gateway.desk import Desk, npm_server, text

pytestmark = [pytest.mark.rest, pytest.mark.filterwarnings("ignore")]
ERAS = pytest.mark.parametrize("mode", ["legacy", "auto"])
PLACE = "demo://resource/dynamic/text/7"
LONG = "trigger-long-running-operation"


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    made = Desk(tmp_path)
    seen = {"tool": "", "who": "", "when": "", "mark": str(tmp_path / "mark"), "seen": str(tmp_path / "seen")}
    (tmp_path / "plan.json").write_text(json.dumps(seen))
    command = [sys.executable, "-m", "tests.gateway.tap", str(tmp_path / "plan.json")]
    made.add("all", [*command, *npm_server("mcp-server-everything")], catalogue="everything")
    return made


async def until(holds: Callable[[], Any]) -> None:
    for _ in range(80):
        if holds():
            return
        await asyncio.sleep(0.1)
    pytest.fail("it does not happen")


def heard() -> tuple[list[str], Callable[..., Any]]:
    methods: list[str] = []

    async def handler(message: Any) -> None:
        if hasattr(message, "method"):
            methods.append(message.method)

    return methods, handler


def zipped(name: str) -> dict[str, Any]:
    said = base64.b64encode(b"hello").decode()
    return {"name": name, "data": f"data:text/plain;base64,{said}", "outputType": "resourceLink"}


@ERAS
@on_a_loop
async def test_resources_prompts_and_completions(desk: Desk, mode: Any) -> None:
    async with desk.client(mode=mode) as client:
        assert (client.protocol_version >= "2026-07-28") == (mode == "auto")
        resources = (await client.list_resources()).resources
        assert resources
        [content] = (await client.read_resource(str(resources[0].uri))).contents
        assert content.uri == resources[0].uri
        templates = (await client.list_resource_templates()).resource_templates
        assert "demo://resource/dynamic/text/{resourceId}" in {one.uri_template for one in templates}
        [dynamic] = (await client.read_resource(PLACE)).contents
        assert "Resource 7" in dynamic.text  # type: ignore[union-attr]
        with pytest.raises(MCPError):
            await client.read_resource("demo://nothing")
        prompts = {one.name for one in (await client.list_prompts()).prompts}
        assert {"simple-prompt", "args-prompt", "completable-prompt"} <= prompts
        got = await client.get_prompt("args-prompt", {"city": "Oslo"})
        assert "Oslo" in got.messages[0].content.text  # type: ignore[union-attr]
        with pytest.raises(MCPError):
            await client.get_prompt("nothing")
        who = PromptReference(name="completable-prompt")
        said = await client.complete(who, {"name": "department", "value": "S"})
        assert said.completion.values == ["Sales", "Support"]
        said = await client.complete(who, {"name": "name", "value": ""}, {"department": "Engineering"})
        assert said.completion.values
        which = ResourceTemplateReference(uri="demo://resource/dynamic/text/{resourceId}")
        assert (await client.complete(which, {"name": "resourceId", "value": "7"})).completion.values == ["7"]


@ERAS
@on_a_loop
async def test_progress(desk: Desk, mode: Any) -> None:
    steps: list[tuple[float, float | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        steps.append((progress, total))

    async with desk.client(mode=mode) as client:
        said = await client.call_tool(LONG, {"duration": 0.4, "steps": 4}, progress_callback=on_progress)
        assert not said.is_error, text(said)
        await until(lambda: len(steps) == 4)
    assert steps == [(float(one), 4.0) for one in range(1, 5)]


@ERAS
@on_a_loop
async def test_cancellation(desk: Desk, mode: Any) -> None:
    async with desk.client(mode=mode) as client:
        with anyio.move_on_after(1.0):
            await client.call_tool(LONG, {"duration": 60, "steps": 2})
            pytest.fail("it was not cancelled")
        await until(lambda: "notifications/cancelled" in (desk.folder / "seen").read_text())
        assert not (await client.call_tool("echo", {"message": "still there"})).is_error


@on_a_loop
async def test_changes_reach_a_client_with_a_connection(desk: Desk) -> None:
    methods, handler = heard()
    async with desk.client(mode="legacy", message_handler=handler) as client:
        assert client.server_capabilities.resources is not None
        assert client.server_capabilities.resources.subscribe
        await client.list_resources()
        before = methods.count("notifications/resources/list_changed")
        assert not (await client.call_tool("gzip-file-as-resource", zipped("made.gz"))).is_error
        await until(lambda: methods.count("notifications/resources/list_changed") > before)
        assert "made.gz" in {one.name for one in (await client.list_resources()).resources}
        assert "notifications/resources/updated" not in methods
        await client.subscribe_resource(PLACE)
        await client.call_tool("toggle-subscriber-updates", {})
        await until(lambda: "notifications/resources/updated" in methods)
        await client.unsubscribe_resource(PLACE)
    assert "resources/unsubscribe" in (desk.folder / "seen").read_text()


@on_a_loop
async def test_changes_reach_a_stateless_client_that_listens(desk: Desk) -> None:
    async with desk.client() as client:
        async with client.listen(resources_list_changed=True, resource_subscriptions=[PLACE]) as stream:
            await client.call_tool("gzip-file-as-resource", zipped("made.gz"))
            async with asyncio.timeout(10):
                changed = await anext(aiter(stream))
            assert type(changed).__name__ == "ResourcesListChanged"
            await client.call_tool("toggle-subscriber-updates", {})
            async with asyncio.timeout(10):
                async for one in stream:
                    if type(one).__name__ == "ResourceUpdated":
                        assert str(one.uri) == PLACE  # type: ignore[union-attr]
                        break
        await until(lambda: "resources/unsubscribe" in (desk.folder / "seen").read_text())


@on_a_loop
async def test_a_client_hears_only_of_resources_that_it_has_subscribed_to(desk: Desk) -> None:
    mine, my_handler = heard()
    others, other_handler = heard()
    async with desk.http() as url:
        async with (
            Client(streamable_http_client(url), mode="legacy", message_handler=my_handler) as one,
            Client(streamable_http_client(url), mode="legacy", message_handler=other_handler) as two,
        ):
            await two.list_resources()
            await one.subscribe_resource(PLACE)
            await one.call_tool("toggle-subscriber-updates", {})
            await until(lambda: "notifications/resources/updated" in mine)
            await two.list_resources()
    assert "notifications/resources/updated" not in others


def asked(desk: Desk) -> tuple[list[str], dict[str, Any]]:
    """Return what a user was asked, and a client that can answer."""
    said: list[str] = []

    async def sampled(_context: Any, params: Any) -> CreateMessageResult:
        said.append(params.messages[0].content.text)
        return CreateMessageResult(role="assistant", content=TextContent(text="four"), model="m", stop_reason="endTurn")

    async def elicited(_context: Any, params: Any) -> ElicitResult:
        said.append(params.message)
        return ElicitResult(action="accept", content={"name": "Ann"})

    async def roots(_context: Any) -> ListRootsResult:
        return ListRootsResult(roots=[Root(uri="file:///home/ann", name="home")])  # type: ignore[arg-type]

    return said, {"sampling_callback": sampled, "elicitation_callback": elicited, "list_roots_callback": roots}


@ERAS
@on_a_loop
async def test_a_servers_questions_reach_the_client(desk: Desk, mode: Any) -> None:
    said, can = asked(desk)
    async with desk.client(mode=mode, **can) as client:
        sampled = await client.call_tool("trigger-sampling-request", {"prompt": "2 + 2", "maxTokens": 10})
        assert "four" in text(sampled), text(sampled)
        elicited = await client.call_tool("trigger-elicitation-request", {})
        assert "Ann" in text(elicited), text(elicited)
        rooted = await client.call_tool("get-roots-list", {})
        assert "file:///home/ann" in text(rooted), text(rooted)
    assert "2 + 2" in said[0]
    assert said[1].startswith("[all] ")
    assert len(said) == 2


@ERAS
@on_a_loop
async def test_a_client_that_cannot_answer_refuses(desk: Desk, mode: Any) -> None:
    async with desk.client(mode=mode) as client:
        said = await client.call_tool("trigger-elicitation-request", {})
        assert said.is_error
        assert "cannot answer elicitation/create" in text(said)


@on_a_loop
async def test_a_question_that_may_be_for_several_clients_is_refused(desk: Desk) -> None:
    said, can = asked(desk)
    async with desk.http() as url:
        async with (
            Client(streamable_http_client(url), mode="legacy", **can) as one,
            Client(streamable_http_client(url), mode="legacy", **can) as two,
        ):
            working = asyncio.ensure_future(one.call_tool(LONG, {"duration": 2, "steps": 1}))
            await until(lambda: (desk.folder / "seen").read_text().count("tools/call") == 1)
            refused = await two.call_tool("trigger-elicitation-request", {})
            assert refused.is_error
            assert "several clients ask" in text(refused)
            assert not (await working).is_error
            assert "Ann" in text(await two.call_tool("trigger-elicitation-request", {}))
    assert len(said) == 1


@on_a_loop
async def test_two_requests_of_one_client_are_one_client(desk: Desk) -> None:
    _, can = asked(desk)
    async with desk.client(mode="legacy", **can) as client:
        working = asyncio.ensure_future(client.call_tool(LONG, {"duration": 2, "steps": 1}))
        await until(lambda: "tools/call" in (desk.folder / "seen").read_text())
        assert "Ann" in text(await client.call_tool("trigger-elicitation-request", {}))
        await working


@on_a_loop
async def test_the_answer_to_a_question_cannot_be_given_to_another_call(desk: Desk) -> None:
    _, can = asked(desk)
    del can["list_roots_callback"]  # this server asks for roots at a moment of its own, which would be another question
    async with desk.client(**can) as client:
        first = await client.session.call_tool("trigger-elicitation-request", {}, allow_input_required=True)
        state = str(first.request_state)  # type: ignore[union-attr]
        answer: dict[str, Any] = {"server": ElicitResult(action="accept", content={"name": "Ben"})}
        with pytest.raises(MCPError, match="another call"):
            await client.session.call_tool("echo", {"message": "x"}, input_responses=answer, request_state=state)
        with pytest.raises(MCPError, match="requestState"):
            await client.session.call_tool(
                "trigger-elicitation-request", {}, input_responses=answer, request_state=state[:-2] + "xx"
            )
        said = await client.session.call_tool(
            "trigger-elicitation-request", {}, input_responses=answer, request_state=state
        )
        assert "Ben" in text(said)


@ERAS
@on_a_loop
async def test_log_lines(desk: Desk, mode: Any) -> None:
    lines: list[Any] = []

    async def logged(params: Any) -> None:
        lines.append(params)

    async with desk.client(mode=mode, logging_callback=logged) as client:
        if mode == "legacy":
            await client.set_logging_level("debug")
        meta: Any = {LOG_LEVEL_META_KEY: "debug"} if mode == "auto" else None
        await client.call_tool("toggle-simulated-logging", {}, meta=meta)
        await until(lambda: lines)
    assert lines[0].logger.startswith("all.")

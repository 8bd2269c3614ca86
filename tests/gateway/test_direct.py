"""Calls of a client over pipes that the session of the SDK does not see: which ones, and that nobody can tell."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mcp import MCPError
from mcp.server import Server
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CONNECTION_CLOSED,
    INVALID_PARAMS,
    PROTOCOL_VERSION_META_KEY,
    CallToolResult,
    TextContent,
)

from amends.gateway.direct import DirectCalls
from amends.gateway.stdio import Writing
from tests.adapters.loops import on_a_loop
from tests.gateway.desk import Desk

MODERN: dict[str, Any] = {PROTOCOL_VERSION_META_KEY: "2026-07-28", CLIENT_CAPABILITIES_META_KEY: {}}
LEGACY = SimpleNamespace(protocol_version="2025-11-25", client_capabilities=None)
"""What a session of the SDK says of its connection."""
TRACED = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
"""With this in ``_meta`` a call goes through the session."""


def message(method: str, number: Any = None, **params: Any) -> bytes:
    said = {"jsonrpc": "2.0", "method": method, "params": params}
    return json.dumps(said if number is None else {**said, "id": number}).encode()


def call(number: Any, *, meta: dict[str, Any] | None = None, **params: Any) -> bytes:
    return message("tools/call", number, **{"name": "say", "arguments": {}, "_meta": meta or {}, **params})


class Heard(asyncio.BaseProtocol):
    """The other end of the pipe of the answers."""


@asynccontextmanager
async def calls(*, modern: bool, session: Any = LEGACY) -> AsyncIterator[tuple[DirectCalls, asyncio.StreamReader]]:
    """Return what takes the calls of a client that has said hello, and where its answers are read."""

    async def say(ctx: Any, params: Any) -> CallToolResult:
        match params.arguments.get("how"):
            case "refuse":
                raise MCPError(INVALID_PARAMS, "no")
            case "break":
                raise ValueError("broken")
            case "wait":
                await asyncio.get_running_loop().create_future()
            case "report":
                await ctx.session.report_progress(1.0, None, "half")
        return CallToolResult(content=[TextContent(text="said")])

    source, target = os.pipe()
    loop = asyncio.get_running_loop()
    answers = asyncio.StreamReader()
    reading, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(answers), os.fdopen(source, "rb", buffering=0)
    )
    writing = Writing()
    writing.pipe, _ = await loop.connect_write_pipe(Heard, os.fdopen(target, "wb", buffering=0))
    direct = DirectCalls(Server("s", version="1"), say, session=lambda: session)
    direct.write_to(writing)
    first = message("server/discover", 0, _meta=MODERN) if modern else message("initialize", 0)
    assert not direct.take(first)
    try:
        yield direct, answers
    finally:
        await direct.close()
        writing.pipe.close()
        reading.close()


async def answer(answers: asyncio.StreamReader) -> Any:
    return json.loads(await asyncio.wait_for(answers.readline(), 20))


@on_a_loop
async def test_a_call_of_a_stateless_client_is_answered_as_its_protocol_says() -> None:
    async with calls(modern=True, session=None) as (direct, answers):
        assert direct.take(call(7, meta=MODERN))
        said = await answer(answers)
        info = said["result"].pop("_meta")["io.modelcontextprotocol/serverInfo"]
        assert (info["name"], info["version"]) == ("s", "1")
        result = {"content": [{"type": "text", "text": "said"}], "isError": False, "resultType": "complete"}
        assert said == {"jsonrpc": "2.0", "id": 7, "result": result}


@on_a_loop
async def test_a_call_of_a_client_with_a_connection_is_answered_once_its_session_is_known() -> None:
    async with calls(modern=False) as (direct, answers):
        assert direct.take(call("a"))
        result = {"content": [{"type": "text", "text": "said"}], "isError": False}
        assert await answer(answers) == {"jsonrpc": "2.0", "id": "a", "result": result}
    async with calls(modern=False, session=None) as (direct, _):
        assert not direct.take(call(1))


@pytest.mark.parametrize("modern", [False, True])
@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[]",
        message("tools/list", 1),
        message("notifications/cancelled", requestId=5),
        call(None),
        call(True),
        call(1.5),
        call([1]),
        call(1, name=7),
        call(1, name=None),
        call(1, arguments=[]),
        call(1, requestState="s"),
        call(1, inputResponses={}),
        call(1, task={"ttl": 1}),
        call(1, meta=TRACED),
        call(1, meta={"progressToken": [1]}),
        b'{"jsonrpc":"1.0","id":1,"method":"tools/call","params":{"name":"say"}}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call"}',
        b'{"jsonrpc":"2.0","id":1,"result":{"tools/call":1}}',
    ],
)
@on_a_loop
async def test_whatever_is_unusual_is_left_to_the_session(line: bytes, *, modern: bool) -> None:
    async with calls(modern=modern) as (direct, _):
        if modern and b'"_meta": {' in line:
            line = line.replace(b'"_meta": {', b'"_meta": ' + json.dumps(MODERN).encode()[:-1] + b", ").replace(
                b", }", b"}"
            )
        assert not direct.take(line)


@on_a_loop
async def test_a_call_of_the_other_era_is_left_to_the_session() -> None:
    async with calls(modern=True) as (direct, _):
        assert not direct.take(call(1))
        assert not direct.take(call(1, meta={**MODERN, PROTOCOL_VERSION_META_KEY: "2099-01-01"}))
        assert not direct.take(call(1, meta={PROTOCOL_VERSION_META_KEY: "2026-07-28"}))
    async with calls(modern=False) as (direct, _):
        assert not direct.take(call(1, meta=MODERN))


@pytest.mark.parametrize("modern", [False, True])
@on_a_loop
async def test_errors_progress_and_equal_ids(*, modern: bool) -> None:
    meta = MODERN if modern else {}
    async with calls(modern=modern) as (direct, answers):
        assert direct.take(call(1, meta=meta, arguments={"how": "refuse"}))
        assert (await answer(answers))["error"] == {"code": INVALID_PARAMS, "message": "no"}
        assert direct.take(call(2, meta=meta, arguments={"how": "break"}))
        told = (await answer(answers))["error"]
        assert ("broken" in told["message"]) is not modern  # as the session answers
        assert direct.take(call(3, meta={**meta, "progressToken": "p"}, arguments={"how": "report"}))
        first, last = await answer(answers), await answer(answers)
        assert first["params"] == {"progressToken": "p", "progress": 1.0, "message": "half"}
        assert last["id"] == 3
        assert direct.take(call(4, meta=meta, arguments={"how": "wait"}))
        assert not direct.take(call("4", meta=meta))


@pytest.mark.parametrize("modern", [False, True])
@on_a_loop
async def test_a_cancelled_call_gets_no_answer_and_the_end_of_the_connection_is_told(*, modern: bool) -> None:
    meta = MODERN if modern else {}
    async with calls(modern=modern) as (direct, answers):
        for number in (1, 2):
            assert direct.take(call(number, meta=meta, arguments={"how": "wait"}))
        await asyncio.sleep(0)
        assert direct.take(message("notifications/cancelled", requestId="1"))
        direct.stop()
        assert not direct.take(call(3, meta=meta))
        await direct.close()
        told = await answer(answers)
        assert (told["id"], told["error"]["code"]) == (2, CONNECTION_CLOSED)
        assert not direct.take(message("notifications/cancelled", requestId=1))


@pytest.mark.parametrize("modern", [False, True])
@on_a_loop
async def test_a_client_cannot_tell_a_direct_call_from_one_through_the_session(tmp_path: Path, *, modern: bool) -> None:
    """The session answers a call with a trace; the others are direct. Each is asked for both ways."""
    desk = Desk(tmp_path)
    undone = {"kind": "compensatable", "compensate": {"tool": "note", "args": {}}}
    desk.add("one", [sys.executable, "-m", "tests.gateway.lying_server", "quiet"], tools={"note": undone})
    desk.env["PYTHONPATH"] = "src:."
    started = desk.parameters()
    process = await asyncio.create_subprocess_exec(
        started.command, *started.args, env=started.env, stderr=asyncio.subprocess.DEVNULL,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    meta = MODERN if modern else {}
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}

    async def ask(line: bytes) -> Any:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(line + b"\n")
        said = json.loads(await asyncio.wait_for(process.stdout.readline(), 60))
        said.pop("id")
        return said

    if not modern:
        await ask(message("initialize", 0, **hello))
        process.stdin.write(message("notifications/initialized") + b"\n")
    assert "result" in await ask(message("tools/list", 1, _meta=meta))
    requests: list[dict[str, Any]] = [
        {"name": "note", "arguments": {"a": 1, "b": "x"}},
        {"name": "note", "arguments": {"a": 1, "b": "x"}},  # from the record
        {"name": "note"},
        {"name": "nobody"},
        {"name": "amends_status", "arguments": {}},
        {"name": "amends_commit", "arguments": {}},
    ]
    both = [
        [await ask(message("tools/call", number, **one, _meta={**meta, **more})) for number, one in enumerate(requests)]
        for more in (TRACED, {})
    ]
    assert [_without_names(one) for one in both[0]] == [_without_names(one) for one in both[1]]
    process.stdin.close()
    assert await asyncio.wait_for(process.wait(), 60) == 0


def _without_names(said: Any) -> str:
    """Return an answer without the ids of runs and calls, which are new each time."""
    return re.sub(r"desk-[0-9a-f]+|call_[0-9a-f]+", "ID", json.dumps(said, sort_keys=True))

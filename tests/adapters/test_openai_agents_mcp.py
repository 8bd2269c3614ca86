"""MCP servers behind the Agents SDK: what its own classes drop, repeat and rename on the way."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from agents import Agent, FunctionTool, RunState, function_tool, set_tracing_disabled
from agents.mcp import MCPServer, MCPServerStdio, MCPServerStreamableHttp
from agents.mcp.util import MCPUtil
from mcp import MCPError
from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool

import amends
from amends.adapters.openai_agents import AmendsRunner, amends_tools
from amends.errors import OUTCOME
from amends.idempotency import KEY_META, call_meta
from tests.adapters.conformance import Turn
from tests.adapters.loops import on_a_loop
from tests.adapters.test_openai_agents import model_saying

PAY = Tool(name="pay", input_schema={"type": "object", "properties": {"order": {"type": "string"}}})
PAID = CallToolResult(content=[TextContent(text="paid")], structured_content={"id": "p1", "cents": 5})
REFUSED = CallToolResult(content=[TextContent(text="no such order")], is_error=True)
ASKED: list[Turn] = [[("pay", {"order": "A1"})], "done"]


@pytest.fixture(autouse=True)
def untraced() -> None:
    set_tracing_disabled(True)


class Session:
    """The connection of a real server object of the SDK: answers what it is told to, in this order."""

    def __init__(self, *answers: CallToolResult | Exception) -> None:
        self.answers, self.asked, self.metas = list(answers), list[str](), list[Any]()

    async def list_tools(self, **_: Any) -> ListToolsResult:
        return ListToolsResult(tools=[PAY])

    async def call_tool(self, name: str, arguments: Any, *, meta: Any = None, **_: Any) -> CallToolResult:
        self.asked.append(name)
        self.metas.append(meta)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def stdio(session: Session, **options: Any) -> MCPServer:
    made: Any = MCPServerStdio({"command": "true"}, retry_backoff_seconds_base=0.0, **options)
    made.session = session
    return made  # type: ignore[no-any-return]


def over_http(session: Session, **options: Any) -> MCPServer:
    made: Any = MCPServerStreamableHttp({"url": "http://localhost"}, retry_backoff_seconds_base=0.0, **options)
    made.session = session
    return made  # type: ignore[no-any-return]


def agent_of(server: MCPServer, turns: Sequence[Turn], how: str, *more: Any) -> Agent[Any]:
    """An agent with the tool of a server, in one of the ways that the SDK has for it."""
    model: Any = model_saying(turns)
    if how == "mcp_servers":
        return Agent(name="clerk", model=model, tools=list(more), mcp_servers=[server])
    made: Any = MCPUtil.to_function_tool(PAY, server, convert_schemas_to_strict=False)
    tools = [made] if how == "beside" else amends_tools([made])
    return Agent(name="clerk", model=model, tools=[*(amends_tools(tools) if how == "twice" else tools), *more])


each_way = pytest.mark.parametrize(
    "how", ["mcp_servers", "amends_tools", *(pytest.param(how, marks=pytest.mark.rest) for how in ("beside", "twice"))]
)


async def driven(tmp_path: Path, agent: Agent[Any], **declared: Any) -> list[Any]:
    tools = [amends.declare("pay", **({"kind": "pivot"} | declared))]
    async with amends.AsyncRuntime(f"sqlite:///{tmp_path / 'ledger.db'}", tools=tools) as rt:
        with suppress(amends.Error):
            await AmendsRunner(rt).run(agent, "please", run_id="r")
        return [one async for one in rt.calls()]


@each_way
@on_a_loop
async def test_a_result_with_is_error_is_no_success(tmp_path: Path, how: str) -> None:
    session = Session(REFUSED)
    [call] = await driven(tmp_path, agent_of(stdio(session), ASKED, how))
    assert (call.state, "no such order" in (call.error or "")) == ("failed", True)


@each_way
@pytest.mark.parametrize("said, state", [("held", "in_doubt"), ("in_doubt", "in_doubt"), ("refused", "failed")])
@on_a_loop
async def test_what_a_guarded_server_has_not_executed_is_no_success(
    tmp_path: Path, how: str, said: str, state: str
) -> None:
    executed = None if said == "in_doubt" else False
    outcome = {OUTCOME: {"status": said, "executed": executed, "tool": "pay", "text": "not now"}}
    answer = CallToolResult(content=[TextContent(text="not now")], _meta=outcome)
    [call] = await driven(tmp_path, agent_of(stdio(Session(answer)), ASKED, how))
    assert call.state == state


@each_way
@on_a_loop
async def test_a_compensation_gets_the_structured_content(tmp_path: Path, how: str) -> None:
    taken: list[Any] = []
    turns: list[Turn] = [[("pay", {"order": "A1"})], [("pay", {"order": "A2"})], "sorry"]
    session = Session(PAID, REFUSED)
    await driven(tmp_path, agent_of(stdio(session), turns, how), kind="compensatable",
                 compensate=lambda result: taken.append(result))  # fmt: skip
    assert taken == [{"id": "p1", "cents": 5}]


@pytest.mark.parametrize("made", [stdio, over_http])
@pytest.mark.parametrize("attempts", [3, pytest.param(-1, marks=pytest.mark.rest)])
@each_way
@on_a_loop
async def test_the_sdk_does_not_send_a_lost_request_again(tmp_path: Path, made: Any, attempts: int, how: str) -> None:
    session = Session(MCPError(-32000, "Connection closed"), PAID, PAID)
    server = made(session, max_retry_attempts=attempts)
    [call] = await driven(tmp_path, agent_of(server, ASKED, how))
    assert (session.asked, call.state) == (["pay"], "in_doubt")
    assert server.max_retry_attempts == attempts, "the server itself is as it was"


@on_a_loop
async def test_a_read_is_sent_again_and_so_is_a_request_outside_of_a_run(tmp_path: Path) -> None:
    lost = MCPError(-32000, "Connection closed")
    session = Session(lost, PAID, lost, PAID)
    server = stdio(session, max_retry_attempts=1)
    [call] = await driven(tmp_path, agent_of(server, ASKED, "amends_tools"), kind="read")
    assert (len(session.asked), call.state) == (2, "succeeded")
    await server.call_tool("pay", {"order": "A1"})
    assert len(session.asked) == 4


@pytest.mark.parametrize("made", [stdio, over_http])
@each_way
@on_a_loop
async def test_a_lost_request_is_a_doubt_though_the_sdk_hides_the_cause(tmp_path: Path, made: Any, how: str) -> None:
    """It drops the error of the transport if its address has a password, and raises a ``UserError`` alone."""
    request = httpx2.Request("POST", "https://anna:secret@example.com/mcp")
    session = Session(httpx2.ReadTimeout("no answer", request=request))
    [call] = await driven(tmp_path, agent_of(made(session), ASKED, how))
    assert call.state == "in_doubt"


@each_way
@on_a_loop
async def test_the_server_is_given_the_key_of_the_call(tmp_path: Path, how: str) -> None:
    session = Session(PAID)
    server = stdio(session, tool_meta_resolver=lambda context: {"tenant": "t1"})
    [call] = await driven(tmp_path, agent_of(server, ASKED, how))
    assert session.metas == [{KEY_META: call.key, "tenant": "t1"}], "the id of the run is the program's to tell"


@on_a_loop
async def test_a_server_of_the_programs_own_that_takes_no_meta_is_asked_without(tmp_path: Path) -> None:
    asked: list[Any] = []

    class Own(MCPServerStdio):
        async def call_tool(self, tool_name: str, arguments: Any) -> CallToolResult:  # type: ignore[override]
            asked.append((tool_name, arguments))
            return REFUSED

    server: Any = Own({"command": "true"})
    [call] = await driven(tmp_path, agent_of(server, ASKED, "amends_tools"))
    assert (call.state, asked) == ("failed", [("pay", {"order": "A1"})])


@on_a_loop
async def test_a_program_may_tell_the_server_its_run(tmp_path: Path) -> None:
    session = Session(PAID)
    server = stdio(session, tool_meta_resolver=lambda context: call_meta())
    await driven(tmp_path, agent_of(server, ASKED, "mcp_servers"))
    assert session.metas[0]["amends/caller"] == "r"


@on_a_loop
async def test_a_function_that_asks_a_server_itself_keeps_its_own_result(tmp_path: Path) -> None:
    session = Session(PAID, REFUSED)
    server = stdio(session)

    async def look_and_book(order: str) -> str:
        first = await server.call_tool("pay", {"order": order})
        second = await server.call_tool("pay", {"order": "other"})
        return f"booked {order} {first.is_error} {second.is_error}"

    tool: FunctionTool = function_tool(look_and_book)
    turns: list[Turn] = [[("look_and_book", {"order": "A1"})], "done"]
    agent = agent_of(server, turns, "mcp_servers", *amends_tools([tool]))
    tools = [amends.declare("look_and_book", kind="pivot")]
    async with amends.AsyncRuntime(f"sqlite:///{tmp_path / 'ledger.db'}", tools=tools) as rt:
        await AmendsRunner(rt).run(agent, "please", run_id="r")
        [call] = [one async for one in rt.calls()]
    assert (call.state, call.result) == ("succeeded", "booked A1 False True")
    assert session.metas == [None, None], "one key for two requests would be a conflict"


@pytest.mark.parametrize("made", ["mcp_servers", "beside"])
@on_a_loop
async def test_a_state_that_is_read_before_the_runner_sees_the_agent_is_guarded(tmp_path: Path, made: str) -> None:
    """Another process: the SDK lists the tools of the agent when it reads the state, before anything could be guarded."""
    session = Session(PAID, PAID, PAID)
    tools = [amends.declare("pay", kind="pivot", needs_approval=True)]
    kept: Any = None
    for turn in range(3):  # the last one: the state is delivered twice
        agent = agent_of(stdio(session), ASKED, made)
        async with amends.AsyncRuntime(f"sqlite:///{tmp_path / 'ledger.db'}", tools=tools) as rt:
            back: Any = "please" if kept is None else await RunState.from_json(agent, json.loads(kept))
            result = await AmendsRunner(rt).run(agent, back, run_id="r")
            if turn == 0:
                kept = json.dumps(result.to_state().to_json())
            async for asked in rt.approvals("state:pending"):
                await rt.approve(asked.id, digest=asked.digest, by="anna")
            calls = [one async for one in rt.calls()]
    assert [call.state for call in calls] == ["succeeded"]
    assert session.asked == ["pay"]

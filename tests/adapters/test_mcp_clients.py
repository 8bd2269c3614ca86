"""The clients of MCP servers that frameworks bring, guarded: a server that is lost, refuses, or only promises.

The server is a process of its own, and its effects are lines of a file. ``langchain-mcp-adapters`` cannot be installed beside
mcp 2: its tools are made here as it makes them, and ``test_langchain_mcp.py`` has the real ones.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from agents import Agent as OpenAIAgent
from agents import set_tracing_disabled
from agents.mcp import MCPServerStdio
from agents.mcp.util import MCPUtil
from anthropic import AsyncAnthropic
from anthropic.lib.tools.mcp import async_mcp_tool
from fastmcp import Client as FastClient
from fastmcp.client.transports import StdioTransport
from langchain.agents import create_agent
from langchain_core.tools import StructuredTool, ToolException
from mcp import ClientSession, MCPError
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_types import TextContent
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset

import amends
from amends.adapters import langchain as lc
from amends.adapters.anthropic import runner_tools_async, until_done_async
from amends.adapters.mcp import call_tool
from amends.adapters.openai_agents import AmendsRunner, amends_tools
from amends.adapters.pydantic_ai import AmendsCapability
from amends.llm import ModelServer, ScriptedModel
from tests.adapters import test_langchain, test_openai_agents, test_pydantic_ai
from tests.adapters.loops import on_a_loop

# A framework's client leaves the pipes of its dead server to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

ROOT = Path(__file__).resolve().parents[2]
TURNS: list[Any] = [[("pay", {"order": "A1"})], "paid"]
TIMEOUT_S = 20.0
Drive = Callable[[Any, Path, str, float], Awaitable[None]]


def started(folder: Path, how: str) -> tuple[list[str], dict[str, str]]:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    return ["-m", "tests.adapters.mcp_server", str(folder), how], environ


@asynccontextmanager
async def session(folder: Path, how: str, timeout: float | None = None) -> AsyncIterator[ClientSession]:
    args, env = started(folder, how)
    async with stdio_client(StdioServerParameters(command=sys.executable, args=args, env=env)) as (read, write):
        async with ClientSession(read, write, read_timeout_seconds=timeout) as made:
            await made.initialize()
            yield made


async def in_a_run(rt: Any, body: Callable[..., Any]) -> None:
    async with rt.run("order-7", history=True) as run:
        await run.answer("pay", {"order": "A1"}, handler=body)


async def by_session(rt: Any, folder: Path, how: str, timeout: float) -> None:
    async with session(folder, how) as client:

        async def body(order: str) -> Any:
            return await client.call_tool("pay", {"order": order}, read_timeout_seconds=timeout)

        await in_a_run(rt, body)


async def by_helper(rt: Any, folder: Path, how: str, timeout: float) -> None:
    async with session(folder, how) as client:

        async def body(order: str) -> Any:
            return await call_tool(client, "pay", {"order": order}, read_timeout_seconds=timeout)

        await in_a_run(rt, body)


async def by_fastmcp(rt: Any, folder: Path, how: str, timeout: float) -> None:
    args, env = started(folder, how)
    async with FastClient(StdioTransport(sys.executable, args, env=env)) as client:

        async def body(order: str) -> Any:
            return await client.call_tool("pay", {"order": order}, timeout=timeout)

        await in_a_run(rt, body)


async def by_pydantic_ai(rt: Any, folder: Path, how: str, timeout: float) -> None:
    args, env = started(folder, how)
    tools: Any = MCPToolset(
        StdioTransport(sys.executable, args, env=env), read_timeout=timeout, init_timeout=TIMEOUT_S * 3
    )
    model, guard = test_pydantic_ai.model_saying(TURNS), AmendsCapability(rt, run_id="order-7")
    await Agent(model, toolsets=[tools], capabilities=[guard]).run("please")


async def by_openai_agents(rt: Any, folder: Path, how: str, timeout: float) -> None:
    set_tracing_disabled(True)
    args, env = started(folder, how)
    params: Any = {"command": sys.executable, "args": args, "env": env}
    async with MCPServerStdio(params, client_session_timeout_seconds=timeout) as server:
        [listed] = await server.list_tools()
        tools = amends_tools([MCPUtil.to_function_tool(listed, server, convert_schemas_to_strict=False)])
        agent = OpenAIAgent(name="clerk", model=test_openai_agents.model_saying(TURNS), tools=tools)
        await AmendsRunner(rt).run(agent, "please", run_id="order-7")


async def by_langchain(rt: Any, folder: Path, how: str, timeout: float) -> None:
    async with session(folder, how) as client:

        async def pay(order: str) -> Any:
            """Pay an order."""
            done = await client.call_tool("pay", {"order": order}, read_timeout_seconds=timeout)
            texts = [block.text for block in done.content if isinstance(block, TextContent)]
            if done.is_error:
                raise ToolException("\n".join(texts))
            return [{"type": "text", "text": text} for text in texts], {"structured_content": done.structured_content}

        tool = StructuredTool.from_function(coroutine=pay, name="pay", response_format="content_and_artifact")
        guard, config = lc.AmendsMiddleware(rt), test_langchain.config_of("order-7")
        agent = create_agent(test_langchain.Scripted(turns=TURNS), tools=[tool], middleware=[guard])
        async with guard.turn(config):
            given: Any = {"messages": [("user", "please")]}
            await agent.ainvoke(given, config)


async def by_anthropic(rt: Any, folder: Path, how: str, timeout: float) -> None:
    with ModelServer(ScriptedModel(*TURNS)) as server:
        async with (
            session(folder, how, timeout) as tools,
            AsyncAnthropic(**server.anthropic, http_client=httpx2.AsyncClient(verify=False)) as client,
            rt.run("order-7", history=True) as run,
        ):
            listed: Any = [async_mcp_tool(one, tools) for one in (await tools.list_tools()).tools]
            said: Any = [{"role": "user", "content": "please"}]
            made = runner_tools_async(run, listed)
            runner = client.beta.messages.tool_runner(
                model="claude-sonnet-5", max_tokens=500, messages=said, tools=made
            )
            await until_done_async(runner)


DRIVES: dict[str, Drive] = {
    "mcp": by_session,
    "call_tool": by_helper,
    "fastmcp": by_fastmcp,
    "pydantic-ai": by_pydantic_ai,
    "openai-agents": by_openai_agents,
    "langchain": by_langchain,
    "anthropic": by_anthropic,
}


async def driven(client: str, folder: Path, how: str, timeout: float = TIMEOUT_S) -> list[str]:
    """Ask a fresh server in a fresh process of it; return the states of the client's calls."""
    tools = [amends.declare("pay", kind="pivot")]
    async with amends.AsyncRuntime(f"sqlite:///{folder / 'client.db'}", tools=tools) as rt:
        with suppress(Exception, BaseExceptionGroup):  # each framework ends such a turn in its own way
            await DRIVES[client](rt, folder, how, timeout)
        return [str(call.state) async for call in rt.calls()]


def effects(folder: Path) -> list[str]:
    kept = folder / "effects"
    return kept.read_text(encoding="utf-8").splitlines() if kept.exists() else []


AGENTS = pytest.param("openai-agents", marks=pytest.mark.rest)
OTHERS = [pytest.param(name, marks=pytest.mark.rest) for name in DRIVES if name not in ("mcp", "openai-agents")]
CLIENTS = ["mcp", *OTHERS, AGENTS]
"""Every client; all but the first are played by ``make test-rest``: each case starts processes."""


@pytest.mark.parametrize("client", CLIENTS)
@on_a_loop
async def test_a_server_that_is_killed_after_the_effect_is_a_doubt_and_is_not_asked_again(
    tmp_path: Path, client: str
) -> None:
    # LangChain finds the run of a turn by its checkpoint, and this agent has none.
    for _ in range(1 if client == "langchain" else 2):
        assert await driven(client, tmp_path, "killed") == ["in_doubt"]
    assert effects(tmp_path) == ["pay A1 5"]


@pytest.mark.parametrize("client", CLIENTS)
@on_a_loop
async def test_a_server_that_does_not_answer_in_time_is_a_doubt(tmp_path: Path, client: str) -> None:
    assert await driven(client, tmp_path, "slow", timeout=3.0) == ["in_doubt"]
    assert effects(tmp_path) == ["pay A1 5"]


@pytest.mark.parametrize("client", [*(one for one in CLIENTS if one != AGENTS), "openai-agents"])
@on_a_loop
async def test_an_error_of_the_tool_is_a_failure(tmp_path: Path, client: str) -> None:
    states = await driven(client, tmp_path, "refused")
    assert set(states) == {"failed"}


@pytest.mark.parametrize("how", ["held", "lost"])
@pytest.mark.parametrize("client", CLIENTS)
@on_a_loop
async def test_what_a_guarded_server_has_not_done_or_does_not_know_is_a_doubt(
    tmp_path: Path, client: str, how: str
) -> None:
    assert await driven(client, tmp_path, how) == ["in_doubt"]
    assert effects(tmp_path) == (["pay A1 5"] if how == "lost" else [])


# ---- a guarded server that is killed


@pytest.mark.parametrize("how", ["once", pytest.param("once-fastmcp", marks=pytest.mark.rest)])
@on_a_loop
async def test_a_guarded_server_that_was_killed_tells_the_doubt_each_time(tmp_path: Path, how: str) -> None:
    (tmp_path / "die").touch()
    told: list[str] = []
    for _ in range(3):  # it is started again each time
        with suppress(MCPError, BaseExceptionGroup):
            async with session(tmp_path, how) as client:
                told.append(str((await client.call_tool("pay", {"order": "A1"})).content))
    assert effects(tmp_path) == ["pay A1 5"]
    assert ["it may have happened" in one for one in told] == [True, True], "the first request got no answer"


@pytest.mark.parametrize("how", ["once", pytest.param("once-fastmcp", marks=pytest.mark.rest)])
@on_a_loop
async def test_one_effect_across_a_guarded_client_and_a_guarded_server_that_was_killed(
    tmp_path: Path, how: str
) -> None:
    """The server does not know, so the client does not either, though its call may be started again."""
    (tmp_path / "die").touch()

    @amends.tool(kind="pivot", idempotent=True, retry=amends.Retry(attempts=3, delay=0.0))
    async def pay(order: str) -> Any:
        async with session(tmp_path, how) as client:
            return await call_tool(client, "pay", {"order": order})

    async with amends.AsyncRuntime(f"sqlite:///{tmp_path / 'client.db'}", tools=[pay]) as rt:
        with pytest.raises(amends.Error):
            async with rt.run("order-7", wait=0.5) as run:
                told = await run.answer("pay", {"order": "A1"})
                assert told.status == "in_doubt"
        assert [str(call.state) async for call in rt.calls()] == ["in_doubt"]
    assert effects(tmp_path) == ["pay A1 5"]

"""``langchain-mcp-adapters``, as LangChain's documentation has MCP tools: lost servers, errors, what a compensation gets.

It needs ``mcp<2`` (0.3.2; 0.3.1 says less and cannot be imported with mcp 2), which the adapters for MCP servers do not
support: `make test-adapters` runs this in an environment of its own. The server is a process of its own, and its effects
are lines of a file.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_mcp_adapters.client import MultiServerMCPClient

import amends
from amends.adapters.langchain import AmendsMiddleware

SERVER = '''
import os, signal, sys, time
from pathlib import Path
from mcp.server.fastmcp import FastMCP

folder, server = Path(sys.argv[1]), FastMCP("payments")

@server.tool()
def pay(order: str, cents: int = 5) -> dict[str, object]:
    """Pay an order."""
    if order == "unknown":
        raise ValueError("there is no order unknown")
    with (folder / "effects").open("a") as file:
        file.write(f"pay {order} {cents}\\n")
        file.flush()
        os.fsync(file.fileno())
    if order == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if order == "slow":
        time.sleep(60)
    return {"id": f"p_{order}", "cents": cents}

server.run()
'''


class Scripted(BaseChatModel):
    """Asks for what it is told to, one message after the other."""

    turns: list[Any]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self

    def _generate(self, messages: Any, *_: Any, **__: Any) -> ChatResult:
        spoken = sum(isinstance(one, AIMessage) for one in messages)
        turn = self.turns[min(spoken, len(self.turns) - 1)]
        calls = [] if isinstance(turn, str) else [{"name": "pay", "args": turn, "id": f"call_{spoken}"}]
        said = AIMessage(content=turn if isinstance(turn, str) else "", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=said)])


class World:
    def __init__(self, folder: Path) -> None:
        self.folder, self.taken = folder, list[Any]()
        (folder / "server.py").write_text(SERVER, encoding="utf-8")
        self.url = f"sqlite:///{folder / 'ledger.db'}"

    def effects(self) -> list[str]:
        kept = self.folder / "effects"
        return kept.read_text().splitlines() if kept.exists() else []

    def drive(self, *turns: Any, seconds: float = 30.0, **options: Any) -> list[str]:
        """One turn of an agent; the states of its calls."""
        return asyncio.run(self._drive(list(turns), seconds, options))

    async def _drive(self, turns: list[Any], seconds: float, options: dict[str, Any]) -> list[str]:
        connection: Any = {
            "command": sys.executable, "args": [str(self.folder / "server.py"), str(self.folder)], "transport": "stdio",
            "env": dict(os.environ), "session_kwargs": {"read_timeout_seconds": timedelta(seconds=seconds)},
        }  # fmt: skip
        client = MultiServerMCPClient({"payments": connection}, **options)
        tools = await client.get_tools()
        declared = amends.declare("pay", key="order", compensate=lambda result: self.taken.append(result))
        async with amends.AsyncRuntime(self.url, tools=[declared]) as rt:
            guard: Any = AmendsMiddleware(rt)
            agent = create_agent(Scripted(turns=turns), tools=tools, middleware=[guard])
            config: Any = {"configurable": {"thread_id": "order-7"}}
            with suppress(amends.Error):
                async with guard.turn(config):
                    given: Any = {"messages": [("user", "please")]}
                    await agent.ainvoke(given, config)
            return [str(call.state) async for call in rt.calls()]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_the_versions_are_those_that_the_page_names() -> None:
    assert version("langchain-mcp-adapters").startswith("0.3.")
    assert version("mcp").startswith("1.")


@pytest.mark.parametrize("order", ["killed", "slow"])
def test_a_lost_server_is_a_doubt_and_is_not_asked_again(world: World, order: str) -> None:
    asked = {"order": order}
    assert world.drive(asked, asked, "done", seconds=3.0 if order == "slow" else 30.0) == ["in_doubt"]
    assert world.effects() == [f"pay {order} 5"]


@pytest.mark.parametrize("handled", [True, False])
def test_a_result_with_is_error_is_no_success(world: World, handled: bool) -> None:
    assert set(world.drive({"order": "unknown"}, "sorry", handle_tool_errors=handled)) == {"failed"}
    assert world.effects() == []


def test_a_compensation_gets_the_structured_content(world: World) -> None:
    world.drive({"order": "A1"}, {"order": "unknown"}, "sorry")
    assert world.effects() == ["pay A1 5"]
    [(content, artifact)] = world.taken  # what such a tool returns to LangChain
    assert artifact == {"structured_content": {"id": "p_A1", "cents": 5}}
    assert [block["type"] for block in content] == ["text"]


def test_the_same_request_in_other_words_is_the_same_call(world: World) -> None:
    assert world.drive({"order": "A1"}, {"order": "A1", "cents": "5"}, "done") == ["succeeded"]
    assert world.effects() == ["pay A1 5"]

"""MCP servers through the conformance suite, a scripted client in the model's place, and what is their own."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
from mcp import Client
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, ElicitResult, TextContent
from pydantic import BaseModel

import amends
from amends.adapters.mcp import RUN_META, THREAD_META, guarded
from tests.adapters.conformance import Conformance, Fails, Outcome, Turn
from tests.adapters.shop import Shop


class McpHarness:
    """Client and server in one process: the client asks for what the script says, in a run that it names."""

    def server(self, shop: Shop) -> tuple[MCPServer, Any]:
        rt = amends.AsyncRuntime(shop.url, tools=shop.declared())
        return serving(guarded(rt), shop), rt

    def drive(self, shop: Shop, turns: Sequence[Turn], *, thread: str = "t1", resume: bool = False) -> Outcome:
        return asyncio.run(self._drive(shop, turns, thread, resume))

    async def _drive(self, shop: Shop, turns: Sequence[Turn], thread: str, resume: bool) -> Outcome:
        server, rt = self.server(shop)
        meta: Any = {RUN_META: _turn_of(shop.folder, thread, resume), THREAD_META: thread}
        told: list[str] = []
        try:
            async with Client(server) as client:
                for turn in turns:
                    if isinstance(turn, str | Fails):
                        how = "commit" if isinstance(turn, str) else "rollback"
                        ended = await client.call_tool("end_run", {"how": how}, meta=meta)
                        if isinstance(turn, Fails):
                            return Outcome("failed", told, turn.message)
                        waits = any("needs a person's approval" in one for one in told)
                        assert waits or not ended.is_error, text_of(ended)
                        break
                    asked = (client.call_tool(name, args, meta=meta) for name, args in turn)
                    told += [text_of(one) for one in await asyncio.gather(*asked)]
        finally:
            closed = rt.close()
            if closed is not None:
                await closed
        return Outcome("finished", told)


class BlockingMcpHarness(McpHarness):
    """The same with a blocking runtime: the server gives each call a thread."""

    def server(self, shop: Shop) -> tuple[MCPServer, Any]:
        rt = amends.Runtime(shop.url, tools=shop.declared())
        return serving(guarded(rt), shop), rt


class TestMcp(Conformance):
    harness = McpHarness()
    pauses = False


class TestBlockingMcp(Conformance):
    harness = BlockingMcpHarness()
    pauses = False


def serving(guard: Any, shop: Shop) -> MCPServer:
    server = MCPServer("shop")
    for fn in shop.functions():
        server.tool()(guard(_anticipated(fn)))
    server.tool()(guard.end_run)
    return server


def _anticipated(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A tool in this framework's manner: what a client may read is ``ToolError``, anything else is hidden from it."""

    @functools.wraps(fn)
    def tool(*args: Any, **kwargs: Any) -> Any:
        try:
            return fn(*args, **kwargs)
        except ValueError as error:
            raise ToolError(str(error)) from error

    return tool


def text_of(result: CallToolResult) -> str:
    return "\n".join(block.text for block in result.content if isinstance(block, TextContent))


def _turn_of(folder: Path, thread: str, resume: bool) -> str:
    counted = folder / f"{thread}.turns"
    number = int(counted.read_text()) if counted.exists() else 0
    if not resume:
        number += 1
        counted.write_text(str(number))
    return f"{thread}:{number}"

"""FastMCP servers through the conformance suite, a scripted client in the model's place, and what is their own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client, FastMCP
from fastmcp.exceptions import ToolError
from mcp_types import ElicitResult

import amends
from amends.adapters.fastmcp import RUN_META, THREAD_META, AmendsMiddleware
from tests.adapters.conformance import Conformance, Fails, Outcome, Turn
from tests.adapters.shop import Shop


class FastMcpHarness:
    """Client and server in one process: the client asks for what the script says, in a run that it names."""

    def drive(self, shop: Shop, turns: Sequence[Turn], *, thread: str = "t1", resume: bool = False) -> Outcome:
        return asyncio.run(self._drive(shop, turns, thread, resume))

    async def _drive(self, shop: Shop, turns: Sequence[Turn], thread: str, resume: bool) -> Outcome:
        meta: Any = {RUN_META: _turn_of(shop.folder, thread, resume), THREAD_META: thread}
        told: list[str] = []
        async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt, Client(serving(rt, shop)) as client:
            for turn in turns:
                if isinstance(turn, str | Fails):
                    how = "commit" if isinstance(turn, str) else "rollback"
                    ended = await client.call_tool("end_run", {"how": how}, meta=meta, raise_on_error=False)
                    if isinstance(turn, Fails):
                        return Outcome("failed", told, turn.message)
                    waits = any("needs a person's approval" in one for one in told)
                    assert waits or not ended.is_error, text_of(ended)
                    break
                asked = (client.call_tool(name, args, meta=meta, raise_on_error=False) for name, args in turn)
                told += [text_of(one) for one in await asyncio.gather(*asked)]
        return Outcome("finished", told)


class TestFastMcp(Conformance):
    harness = FastMcpHarness()
    pauses = False


def serving(rt: amends.AsyncRuntime, shop: Shop, **options: Any) -> FastMCP:
    server: FastMCP = FastMCP("shop")
    guard = AmendsMiddleware(rt, **options)
    server.add_middleware(guard)
    for fn in shop.functions():
        server.tool(fn)
    server.tool(guard.end_run)
    return server


def text_of(result: Any) -> str:
    return "\n".join(block.text for block in result.content)


def _turn_of(folder: Path, thread: str, resume: bool) -> str:
    counted = folder / f"{thread}.turns"
    number = int(counted.read_text()) if counted.exists() else 0
    if not resume:
        number += 1
        counted.write_text(str(number))
    return f"{thread}:{number}"

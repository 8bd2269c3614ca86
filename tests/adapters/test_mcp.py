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
from mcp.server.auth.middleware.auth_context import auth_context_var
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, ElicitResult, TextContent
from pydantic import BaseModel

import amends
from amends.adapters.mcp import RUN_META, THREAD_META, guarded
from tests.adapters.cells import Absent, Cells, Tested
from tests.adapters.conformance import Conformance, Fails, Outcome, Retried, RichResults, SameRequest, Turn, TwoRuntimes
from tests.adapters.loops import on_a_loop
from tests.adapters.shop import Shop

CELLS: Cells = {
    "stop": Tested(
        "test_a_client_that_cancels_a_request_of_its_run_stops_nothing_else_and_starts_nothing",
        "test_a_request_that_the_client_gave_up_is_not_done_again",
    ),
    "sub-agent": Absent("a server has tools, and no agents"),
    "several agents": Tested("test_clients_that_name_one_run_share_it"),
    "lost server": Tested(
        "test_mcp_clients.py::test_a_guarded_server_that_was_killed_tells_the_doubt_each_time[once]",
        "test_a_doubt_is_told_each_time_and_nothing_is_done_again",
    ),
    "server's error": Tested("test_an_error_of_the_server_is_a_failure_of_the_guarded_client"),
    "not yet": Tested(
        "test_not_yet_says_on_the_wire_that_it_was_not_executed",
        "test_a_guarded_client_does_not_record_not_yet_as_done",
    ),
    "unguarded": Tested(
        "test_a_tool_without_the_decorator_is_named_once",
        "test_a_strict_guard_refuses_a_server_with_tools_without_the_decorator",
        "test_a_watched_server_warns_of_the_call_itself",
    ),
    "no name": Tested("test_each_request_a_new_run_without_a_name_is_warned_of"),
}


class McpHarness:
    """Client and server in one process: the client asks for what the script says, in a run that it names."""

    def server(self, shop: Shop) -> tuple[MCPServer, Any]:
        rt = amends.AsyncRuntime(shop.url, tools=shop.declared())
        return serving(guarded(rt, **shop.options), shop), rt

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
                        if ended.is_error and not waits:
                            return Outcome("failed", told, text_of(ended))
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
        return serving(guarded(rt, **shop.options), shop), rt


class McpRetriedHarness(McpHarness):
    """The client loses its connection when it has the first result, and sends all its requests again over a new one."""

    async def _drive(self, shop: Shop, turns: Sequence[Turn], thread: str, resume: bool) -> Outcome:
        if not (failed := shop.folder / "failed").exists():
            failed.touch()
            await super()._drive(shop, turns[:1], thread, resume)
            resume = True
        return await super()._drive(shop, turns, thread, resume)


class BlockingMcpRetriedHarness(McpRetriedHarness, BlockingMcpHarness):
    """The other colour."""


class TestMcp(Conformance, SameRequest, TwoRuntimes):
    harness = McpHarness()
    pauses = False
    is_told = "with the failure"


@pytest.mark.rest  # ``test_mcp_wire`` has the same for values of the protocol
class TestMcpResults(RichResults):
    harness = McpHarness()


@pytest.mark.rest  # its cases start processes
class TestMcpRetried(Retried):
    harness = McpRetriedHarness()


@pytest.mark.rest  # the other colour
class TestBlockingMcpRetried(Retried):
    harness = BlockingMcpRetriedHarness()


@pytest.mark.rest  # the other colour
class TestBlockingMcp(Conformance, SameRequest, RichResults, TwoRuntimes):
    harness = BlockingMcpHarness()
    pauses = False
    is_told = "with the failure"


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


# ---- its own ------------------------------------------------------------------------------


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


@on_a_loop
async def test_a_retry_of_a_client_is_answered_from_the_record_across_reconnects(shop: Shop) -> None:
    args = {"order": "A1", "cents": 500}
    for _ in range(2):  # the server is started again, too
        async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
            for _ in range(2):
                async with Client(serving(guarded(rt), shop)) as client:
                    done = await client.call_tool("charge", args)
                    assert "ch_A1" in text_of(done)
                    await client.call_tool("balance", {"account": "a"})
    assert shop.effects() == ["charge A1 500"]
    assert [tool for tool, _, _ in shop.contexts()].count("balance") == 4, "a read is always new"


@on_a_loop
async def test_two_identical_requests_at_once_are_one(shop: Shop) -> None:
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        async with Client(serving(guarded(rt), shop)) as client:
            asked = (client.call_tool("charge", {"order": "A1", "cents": 500}) for _ in range(3))
            assert all("ch_A1" in text_of(one) for one in await asyncio.gather(*asked))
    assert shop.effects() == ["charge A1 500"]


@on_a_loop
async def test_without_a_window_and_for_another_name_it_is_a_new_run(shop: Shop) -> None:
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        for options in ({"repeat_window": 0}, {"repeat_window": 0}, {"name": "a"}, {"name": "b"}, {"name": "b"}):
            async with Client(serving(guarded(rt, **options), shop)) as client:
                await client.call_tool("charge", {"order": "A1", "cents": 500})
    assert shop.effects() == ["charge A1 500"] * 4
    for wrong in (-1, "1h", True, None):
        with pytest.raises(amends.UsageError, match="repeat_window"):
            guarded(rt, repeat_window=wrong)  # type: ignore[arg-type]


@on_a_loop
async def test_after_the_window_it_is_a_new_run(shop: Shop) -> None:
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        async with Client(serving(guarded(rt, repeat_window=1), shop)) as client:
            await client.call_tool("charge", {"order": "A1", "cents": 500})
            await asyncio.sleep(1.5)
            for _ in range(2):
                await client.call_tool("charge", {"order": "A1", "cents": 500})
    assert shop.effects() == ["charge A1 500"] * 2


@on_a_loop
async def test_the_window_begins_when_the_request_ends(shop: Shop) -> None:
    done: list[str] = []

    async def slow(order: str) -> str:
        done.append(order)
        await asyncio.sleep(1.2)
        return f"ok_{order}"

    async with amends.AsyncRuntime(shop.url, tools=[amends.declare("slow", kind="pivot")]) as rt:
        server = MCPServer("shop")
        server.tool()(guarded(rt, repeat_window=1)(slow))
        for _ in range(2):
            async with Client(server) as client:
                assert "ok_A1" in text_of(await client.call_tool("slow", {"order": "A1"}))
    assert done == ["A1"]


@on_a_loop
async def test_a_request_that_failed_is_tried_again(shop: Shop) -> None:
    failing = [True]

    def flaky(order: str) -> str:
        if failing:
            failing.pop()
            raise ToolError("not now")
        return f"ok_{order}"

    async with amends.AsyncRuntime(shop.url, tools=[amends.declare("flaky", kind="pivot")]) as rt:
        server = MCPServer("shop")
        server.tool()(guarded(rt)(flaky))
        async with Client(server) as client:
            first = await client.call_tool("flaky", {"order": "A1"})
            assert (first.is_error, "not now" in text_of(first)) == (True, True)
            assert text_of(await client.call_tool("flaky", {"order": "A1"})) == "ok_A1"


@pytest.mark.parametrize("colour", ["blocking", "async"])
def test_what_must_happen_once_in_the_ledger_does(shop: Shop, colour: str) -> None:
    sent: list[str] = []

    @amends.tool(kind="pivot", key=("recipient", "amount"), scope="ledger")
    def send_payment(amount: float, recipient: str) -> str:
        """Send a payment."""
        sent.append(recipient)
        return f"sent {amount} to {recipient}"

    rt: Any = (amends.Runtime if colour == "blocking" else amends.AsyncRuntime)(shop.url, tools=[send_payment])
    server = MCPServer("payments")
    server.tool()(guarded(rt)(send_payment))

    async def pay() -> list[CallToolResult]:
        async with Client(server) as client:
            paid = [await client.call_tool("send_payment", {"amount": 5.0, "recipient": "ann"}) for _ in range(2)]
        if colour == "async":
            await rt.close()
        return paid

    first, second = asyncio.run(pay())
    if colour == "blocking":
        rt.close()
    assert sent == ["ann"]
    assert text_of(first) == "sent 5.0 to ann"
    assert text_of(second) == 'Already done in this task; the same result: "sent 5.0 to ann"'
    assert second.structured_content == first.structured_content == {"result": "sent 5.0 to ann"}


@on_a_loop
async def test_the_same_request_finds_the_run_that_waits(shop: Shop) -> None:
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        async with Client(serving(guarded(rt), shop)) as client:
            wired: dict[str, Any] = {"iban": "DE02", "cents": 4200_00}
            held = await client.call_tool("wire", wired)
            assert "needs a person's approval" in text_of(held)
            assert not held.is_error
            await client.call_tool("wire", wired)
            assert shop.states() == ["open"]
            [asked] = [one async for one in rt.approvals()]
            await rt.approve(asked.id, digest=asked.digest, by="anna")
            done = await client.call_tool("wire", wired)
    assert text_of(done) == "wire_DE02"
    assert shop.effects() == ["wire DE02 420000"]
    assert shop.states() == ["committed"]


@pytest.mark.parametrize("mode", ["legacy", "auto"])
@on_a_loop
async def test_a_notice_decides_nothing(shop: Shop, mode: Literal["legacy", "auto"]) -> None:
    wired: dict[str, Any] = {"iban": "DE02", "cents": 4200_00}
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        noticed: list[str] = []
        decides = False

        async def asked(context: Any, params: Any) -> ElicitResult:
            noticed.append(params.message)
            if decides:
                [one] = [one async for one in rt.approvals()]
                await rt.approve(one.id, digest=one.digest, by="anna")
            return ElicitResult(action="accept", content={})

        server = serving(guarded(rt, notice=True), shop)
        async with Client(server, mode=mode, elicitation_callback=asked) as client:
            held = await client.call_tool("wire", wired)
            assert "needs a person's approval" in text_of(held)
            assert shop.effects() == []
            decides = True
            done = await client.call_tool("wire", wired)
        async with Client(server, mode=mode) as client:
            other = await client.call_tool("wire", {"iban": "DE03", "cents": 4200_00})
    assert text_of(done) == "wire_DE02"
    assert len(noticed) == 2
    assert 'wire(iban="DE02", cents=420000) waits for a person' in noticed[0]
    assert "approval (apr" in noticed[0]
    assert "needs a person's approval" in text_of(other), "a client that cannot ask is told in words"
    assert shop.states() == ["committed", "open"]


class Receipt(BaseModel):
    id: str
    cents: int


@on_a_loop
async def test_the_schema_and_the_shape_of_a_tool_stay(shop: Shop) -> None:
    async def charge(order: str, cents: int, ctx: Context) -> Receipt:
        """Charge an order."""
        return Receipt(id=f"{order}:{bool(ctx.request_id)}", cents=cents)

    bare, server = MCPServer("bare"), MCPServer("guarded")
    bare.tool()(charge)
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        server.tool()(guarded(rt, run_id=lambda args: f"order-{args['order']}")(charge))
        async with Client(bare) as plain, Client(server) as client:
            [was], [now] = (await plain.list_tools()).tools, (await client.list_tools()).tools
            assert now == was
            first = await client.call_tool("charge", {"order": "A1", "cents": 500})
            again = await client.call_tool("charge", {"order": "A1", "cents": 500})
            other = await client.call_tool("charge", {"order": "A1", "cents": 900})
    assert first.structured_content == again.structured_content == {"id": "A1:True", "cents": 500}
    assert text_of(again).startswith("Already done")
    assert other.is_error
    assert "you asked for cents=900" in text_of(other)


def test_a_blocking_runtime_refuses_what_it_cannot_do(shop: Shop) -> None:
    async def charge(order: str) -> str:
        return order

    with amends.Runtime(shop.url, tools=shop.declared()) as rt:
        with pytest.raises(amends.UsageError, match="guard it with an AsyncRuntime"):
            guarded(rt)(charge)
        with pytest.raises(amends.UsageError, match="notice=True needs an AsyncRuntime"):
            guarded(rt, notice=True)


@on_a_loop
async def test_there_is_nothing_to_end_without_a_name(shop: Shop) -> None:
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        async with Client(serving(guarded(rt), shop)) as client:
            ended = await client.call_tool("end_run", {"how": "commit"})
    assert ended.is_error
    assert "names no run" in text_of(ended)


@on_a_loop
async def test_a_model_may_say_that_it_means_a_call_once_more(shop: Shop) -> None:
    args: dict[str, Any] = {"order": "A1", "cents": 500}
    meta: Any = {RUN_META: "r"}
    async with amends.AsyncRuntime(shop.url, tools=shop.declared(), repeats=True) as rt:
        async with Client(serving(guarded(rt, repeats=True), shop)) as client:
            shown = {tool.name: tool.input_schema for tool in (await client.list_tools()).tools}
            assert "again_because" in shown["charge"]["properties"]
            assert "again_because" not in shown["charge"]["required"]
            await client.call_tool("charge", args, meta=meta)
            again = await client.call_tool("charge", {**args, "again_because": "a second box"}, meta=meta)
            assert not again.is_error
        assert [call.again for call in (await rt.report("r")).calls] == [None, "a second box"]
    assert shop.effects() == ["charge A1 500", "charge A1 500"]


@on_a_loop
async def test_a_run_that_one_client_has_named_or_waits_in_is_not_anothers(shop: Shop) -> None:
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        server = serving(guarded(rt), shop)

        async def ask(client_id: str, name: str, args: dict[str, Any], meta: Any = None) -> str:
            token = AccessToken(token="t", client_id=client_id, scopes=[])
            before = auth_context_var.set(AuthenticatedUser(token))
            try:
                async with Client(server) as client:
                    return text_of(await client.call_tool(name, args, meta=meta))
            finally:
                auth_context_var.reset(before)

        named = {RUN_META: "order-7"}
        await ask("anna", "charge", {"order": "A1", "cents": 500}, named)
        await ask("bert", "end_run", {"how": "rollback"}, named)
        assert shop.effects() == ["charge A1 500"]
        assert "Committed" in await ask("anna", "end_run", {"how": "commit"}, named)
        for client_id in ("anna", "anna", "bert"):
            await ask(client_id, "wire", {"iban": "DE02", "cents": 4200_00})
        assert len([one async for one in rt.approvals()]) == 2

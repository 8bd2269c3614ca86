"""FastMCP servers through the conformance suite, a scripted client in the model's place, and what is their own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.server.extensions import ServerExtension
from fastmcp.server.middleware.error_handling import RetryMiddleware
from mcp.server.auth.middleware.auth_context import auth_context_var
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp_types import ElicitResult
from pydantic import BaseModel

import amends
from amends.adapters.fastmcp import RUN_META, THREAD_META, AmendsMiddleware
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
        "test_mcp_clients.py::test_a_guarded_server_that_was_killed_tells_the_doubt_each_time[once-fastmcp]",
        "test_a_doubt_is_told_each_time_and_nothing_is_done_again",
        "test_a_lost_answer_in_a_tool_is_doubt_although_the_server_wraps_it",
    ),
    "server's error": Tested("test_an_error_of_the_server_is_a_failure_of_the_guarded_client"),
    "not yet": Tested(
        "test_not_yet_says_on_the_wire_that_it_was_not_executed",
        "test_a_guarded_client_does_not_record_not_yet_as_done",
    ),
    "unguarded": Tested("test_a_retry_behind_the_guard_is_refused_before_anything_runs"),
    "no name": Tested("test_each_request_a_new_run_without_a_name_is_warned_of"),
}


class FastMcpHarness:
    """Client and server in one process: the client asks for what the script says, in a run that it names."""

    def drive(self, shop: Shop, turns: Sequence[Turn], *, thread: str = "t1", resume: bool = False) -> Outcome:
        return asyncio.run(self._drive(shop, turns, thread, resume))

    async def _drive(self, shop: Shop, turns: Sequence[Turn], thread: str, resume: bool) -> Outcome:
        meta: Any = {RUN_META: _turn_of(shop.folder, thread, resume), THREAD_META: thread}
        told: list[str] = []
        async with (
            amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt,
            Client(serving(rt, shop, **shop.options)) as client,
        ):
            for turn in turns:
                if isinstance(turn, str | Fails):
                    how = "commit" if isinstance(turn, str) else "rollback"
                    ended = await client.call_tool("end_run", {"how": how}, meta=meta, raise_on_error=False)
                    if isinstance(turn, Fails):
                        return Outcome("failed", told, turn.message)
                    waits = any("needs a person's approval" in one for one in told)
                    if ended.is_error and not waits:
                        return Outcome("failed", told, text_of(ended))
                    break
                asked = (client.call_tool(name, args, meta=meta, raise_on_error=False) for name, args in turn)
                told += [text_of(one) for one in await asyncio.gather(*asked)]
        return Outcome("finished", told)


class FastMcpRetriedHarness(FastMcpHarness):
    """The client loses its connection when it has the first result, and sends all its requests again over a new one."""

    async def _drive(self, shop: Shop, turns: Sequence[Turn], thread: str, resume: bool) -> Outcome:
        if not (failed := shop.folder / "failed").exists():
            failed.touch()
            await super()._drive(shop, turns[:1], thread, resume)
            resume = True
        return await super()._drive(shop, turns, thread, resume)


@pytest.mark.rest  # ``test_mcp_wire`` has the same for values of the protocol
class TestFastMcpResults(RichResults):
    harness = FastMcpHarness()


@pytest.mark.rest  # its cases start processes
class TestFastMcpRetried(Retried):
    harness = FastMcpRetriedHarness()


class TestFastMcp(Conformance, SameRequest, TwoRuntimes):
    harness = FastMcpHarness()
    pauses = False
    is_told = "with the failure"


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


# ---- its own ------------------------------------------------------------------------------


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


WIRED: dict[str, Any] = {"iban": "DE02", "cents": 4200_00}


@on_a_loop
async def test_a_retry_is_answered_from_the_record_and_finds_the_run_that_waits(shop: Shop) -> None:
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt, Client(serving(rt, shop)) as client:
        for _ in range(2):
            await client.call_tool("charge", {"order": "A1", "cents": 500})
        for _ in range(2):
            held = await client.call_tool("wire", WIRED)
            assert "needs a person's approval" in text_of(held)
        assert shop.states() == ["committed", "open"]
        [asked] = [one async for one in rt.approvals()]
        await rt.approve(asked.id, digest=asked.digest, by="anna")
        assert (await client.call_tool("wire", WIRED)).data == "wire_DE02"
        assert (await client.call_tool("wire", WIRED)).data == "wire_DE02"
    assert shop.effects() == ["charge A1 500", "wire DE02 420000"]
    assert shop.states() == ["committed"] * 2


@on_a_loop
async def test_a_repeat_after_a_long_wait_for_a_person_is_answered(shop: Shop) -> None:
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        async with Client(serving(rt, shop, repeat_window=1)) as client:
            await client.call_tool("wire", WIRED)
            await asyncio.sleep(1.2)
            [asked] = [one async for one in rt.approvals()]
            await rt.approve(asked.id, digest=asked.digest, by="anna")
            for _ in range(2):
                assert (await client.call_tool("wire", WIRED)).data == "wire_DE02"
    assert shop.effects() == ["wire DE02 420000"]


@on_a_loop
async def test_without_a_window_and_for_another_name_it_is_a_new_run(shop: Shop) -> None:
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        for options in ({"repeat_window": 0}, {"repeat_window": 0}, {"name": "a"}, {}, {}):
            async with Client(serving(rt, shop, **options)) as client:
                await client.call_tool("charge", {"order": "A1", "cents": 500})
    assert shop.effects() == ["charge A1 500"] * 4


@on_a_loop
async def test_a_run_id_of_the_servers_own_answers_a_repeat_in_the_tools_shape(shop: Shop) -> None:
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        server = serving(rt, shop, run_id=lambda tool, args: f"{tool}-{args['order']}")
        async with Client(server) as client:
            first = await client.call_tool("charge", {"order": "A1", "cents": 500})
            again = await client.call_tool("charge", {"order": "A1", "cents": 500})
            with pytest.raises(ToolError, match="you asked for cents=900"):
                await client.call_tool("charge", {"order": "A1", "cents": 900})
    assert first.data == again.data == {"id": "ch_A1", "cents": 500}
    assert text_of(again).startswith("Already done")
    assert shop.effects() == ["charge A1 500"]


@pytest.mark.parametrize("mode", ["legacy", "auto"])
@on_a_loop
async def test_a_notice_decides_nothing(shop: Shop, mode: str) -> None:
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        noticed: list[str] = []
        decides = False

        async def asked(message: str, kind: Any, params: Any, context: Any) -> ElicitResult:
            noticed.append(message)
            if decides:
                [one] = [one async for one in rt.approvals()]
                await rt.approve(one.id, digest=one.digest, by="anna")
            return ElicitResult(action="accept", content={})

        server = serving(rt, shop, notice=True)
        async with Client(server, mode=mode, elicitation_handler=asked) as client:
            held = await client.call_tool("wire", WIRED)
            assert "needs a person's approval" in text_of(held)
            assert shop.effects() == []
            decides = True
            done = await client.call_tool("wire", WIRED)
        async with Client(server, mode=mode) as client:
            other = await client.call_tool("wire", {**WIRED, "iban": "DE03"})
    assert done.data == "wire_DE02"
    assert len(noticed) == 2
    assert "needs a person's approval" in text_of(other), "a client that cannot ask is told in words"
    assert shop.states() == ["committed", "open"]


@on_a_loop
async def test_a_tool_that_says_it_only_reads_is_a_read_unless_it_is_declared(shop: Shop) -> None:
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        server: FastMCP = FastMCP("shop")
        server.add_middleware(AmendsMiddleware(rt))

        @server.tool(annotations={"readOnlyHint": True})
        def look(what: str) -> str:
            return f"saw {what}"

        charge = next(fn for fn in shop.functions() if fn.__name__ == "charge")
        server.tool(charge, annotations={"readOnlyHint": True})
        async with Client(server) as client:
            for _ in range(2):
                assert (await client.call_tool("look", {"what": "x"})).data == "saw x"
            await client.call_tool("charge", {"order": "A1", "cents": 500})
        assert [call.kind async for call in rt.calls()] == ["compensatable", "read", "read"]


@on_a_loop
async def test_a_lost_answer_in_a_tool_is_doubt_although_the_server_wraps_it(shop: Shop) -> None:
    async with amends.AsyncRuntime(shop.url, tools=[amends.declare("pay", kind="pivot")]) as rt:
        server: FastMCP = FastMCP("shop")
        server.add_middleware(AmendsMiddleware(rt))

        @server.tool
        def pay(order: str) -> str:
            raise ConnectionResetError(f"no answer for {order}")

        @server.tool(timeout=0.05, name="slow")
        async def slow(order: str) -> str:
            await asyncio.Event().wait()
            return order

        rt.add(amends.declare("slow", kind="pivot"))
        async with Client(server) as client:
            for tool in ("pay", "slow"):
                told = await client.call_tool(tool, {"order": "A1"}, raise_on_error=False)
                assert told.is_error
                assert "it may have happened" in text_of(told)
        assert {call.state async for call in rt.calls()} == {"in_doubt"}


@on_a_loop
async def test_a_model_may_say_that_it_means_a_call_once_more(shop: Shop) -> None:
    args: dict[str, Any] = {"order": "A1", "cents": 500}
    meta: Any = {RUN_META: "r"}
    async with amends.AsyncRuntime(shop.url, tools=shop.declared(), repeats=True) as rt:
        async with Client(serving(rt, shop, repeats=True)) as client:
            shown = {tool.name: tool.input_schema["properties"] for tool in await client.list_tools()}
            assert "again_because" in shown["charge"]
            assert "again_because" not in shown["end_run"]
            await client.call_tool("charge", args, meta=meta)
            await client.call_tool("charge", {**args, "again_because": "a second box"}, meta=meta)
        assert [call.again for call in (await rt.report("r")).calls] == [None, "a second box"]
    assert shop.effects() == ["charge A1 500", "charge A1 500"]


@on_a_loop
async def test_the_end_of_a_run_does_the_tool_that_was_approved_whatever_its_arguments_are_called(shop: Shop) -> None:
    install = amends.declare("install", kind="pivot", needs_approval=True)
    async with amends.AsyncRuntime(shop.url, tools=[*shop.declared(), install]) as rt:
        server, did, meta = serving(rt, shop), list[str](), {RUN_META: "r1"}

        @server.tool(name="install")
        def install_it(tool: str) -> str:
            did.append(f"install {tool}")
            return tool

        @server.tool
        def wipe() -> str:
            did.append("wipe")
            return "wiped"

        async with Client(server) as client:
            await client.call_tool("install", {"tool": "wipe"}, meta=meta)
            [asked] = [one async for one in rt.approvals()]
            await rt.approve(asked.id, digest=asked.digest, by="anna")
            await client.call_tool("end_run", {"how": "commit"}, meta=meta)
    assert did == ["install wipe"]
    assert shop.states() == ["committed"]


@on_a_loop
async def test_a_tool_that_the_model_made_up_is_told_and_nobody_is_asked(shop: Shop) -> None:
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt, Client(serving(rt, shop)) as client:
        told = await client.call_tool("charge_card", {"order": "A1"}, raise_on_error=False)
        assert [one async for one in rt.approvals()] == []
    assert told.is_error
    assert "Unknown tool: 'charge_card'" in text_of(told)


@on_a_loop
async def test_a_run_that_one_client_has_named_or_waits_in_is_not_anothers(shop: Shop) -> None:
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        server = serving(rt, shop)

        async def ask(client_id: str, name: str, args: dict[str, Any], meta: Any = None) -> str:
            token = AccessToken(token="t", client_id=client_id, scopes=[])
            before = auth_context_var.set(AuthenticatedUser(token))
            try:
                async with Client(server) as client:
                    return text_of(await client.call_tool(name, args, meta=meta, raise_on_error=False))
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


class Ticket(BaseModel):
    id: str


class Again(RetryMiddleware):
    """A retry of the program's own, derived from the framework's."""


@pytest.mark.parametrize("where", ["behind", "derived", "mounted", "mounted twice"])
@on_a_loop
async def test_a_retry_behind_the_guard_is_refused_before_anything_runs(shop: Shop, where: str) -> None:
    """FastMCP 4.1: ``RetryMiddleware`` calls the tool again inside one recorded call, and each call has its effect."""
    did: list[str] = []
    retry = (Again if where == "derived" else RetryMiddleware)(max_retries=2, base_delay=0.0)
    tools = [amends.declare("pay", kind="pivot"), amends.declare("look", kind="read")]
    async with amends.AsyncRuntime(shop.url, tools=tools) as rt:
        server: FastMCP = FastMCP("shop")
        inner: FastMCP = FastMCP("inner") if where.startswith("mounted") else server

        @inner.tool
        def pay(order: str) -> str:
            did.append(order)
            raise ConnectionResetError("no answer")

        @inner.tool
        def look(order: str) -> str:
            did.append(f"look {order}")
            if len(did) == 1:
                raise ConnectionResetError("no answer")
            return order

        server.add_middleware(AmendsMiddleware(rt))
        inner.add_middleware(retry)
        if where == "mounted":
            server.mount(inner)
        elif where == "mounted twice":
            between: FastMCP = FastMCP("between")
            between.mount(inner)
            server.mount(between)
        async with Client(server) as client:
            for _ in range(2):
                with pytest.raises(ToolError, match=r"(RetryMiddleware|Again) .* add it before AmendsMiddleware"):
                    await client.call_tool("pay", {"order": "A1"})
            assert did == []
            assert (await client.call_tool("look", {"order": "A1"})).data == "A1", "a read may be repeated"
        assert [call.tool async for call in rt.calls()] == ["look"]


@on_a_loop
async def test_a_retry_before_the_guard_repeats_no_effect(shop: Shop) -> None:
    did: list[str] = []
    async with amends.AsyncRuntime(shop.url, tools=[amends.declare("pay", kind="pivot")]) as rt:
        server: FastMCP = FastMCP("shop")
        server.add_middleware(RetryMiddleware(max_retries=2, base_delay=0.0))
        server.add_middleware(AmendsMiddleware(rt))

        @server.tool
        def pay(order: str) -> str:
            did.append(order)
            raise ConnectionResetError("no answer")

        async with Client(server) as client:
            told = await client.call_tool("pay", {"order": "A1"}, raise_on_error=False)
            assert "it may have happened" in text_of(told)
    assert did == ["A1"]


@on_a_loop
async def test_a_call_that_an_extension_runs_later_is_a_doubt_and_is_not_made_again(shop: Shop) -> None:
    """FastMCP 4.1: an extension, as that for tasks, may answer instead of the tool, which then runs outside of the call."""
    started: list[str] = []

    class Later(ServerExtension):
        identifier = "example.com/later"

        async def intercept_tool_call(self, params: Any, *_: Any, **__: Any) -> Any:
            started.append("pay")
            return Ticket(id="t1")

    async with amends.AsyncRuntime(shop.url, tools=[amends.declare("pay", kind="pivot")]) as rt:
        server: FastMCP = FastMCP("shop")
        server.add_middleware(AmendsMiddleware(rt))
        server.add_extension(Later())

        @server.tool
        def pay(order: str) -> str:
            return order

        async with Client(server) as client:
            for _ in range(2):
                told = await client.call_tool("pay", {"order": "A1"}, raise_on_error=False)
                assert "it may have happened" in text_of(told)
        assert [call.state async for call in rt.calls()] == ["in_doubt"]
    assert started == ["pay"]

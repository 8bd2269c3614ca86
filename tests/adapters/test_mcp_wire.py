"""What guarded MCP servers and guarded clients say to each other: outcomes, keys, doubts; the same for both frameworks."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import fastmcp
import pytest
from fastmcp import FastMCP
from mcp import Client
from mcp.server import MCPServer
from mcp.server.mcpserver import Image
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, ImageContent, TextContent
from pydantic import BaseModel, SecretStr

import amends
from amends.adapters import fastmcp as fast
from amends.adapters import mcp as plain
from amends.adapters.mcp import call_tool, guarded
from amends.errors import OUTCOME
from amends.idempotency import CALLER_META, KEY_META
from tests.adapters.loops import on_a_loop

Flavour = Literal["mcp", "blocking", "fastmcp"]
FLAVOURS: list[Flavour] = ["mcp", "blocking", "fastmcp"]
ASYNC: list[Flavour] = ["mcp", "fastmcp"]
each = pytest.mark.parametrize("flavour", FLAVOURS)
each_async = pytest.mark.parametrize("flavour", ASYNC)


class World:
    """One ledger and its tools, served by either framework."""

    def __init__(self, folder: Path, flavour: Flavour, tools: list[Any], **options: Any) -> None:
        self.url, self.flavour, self.tools = f"sqlite:///{folder / 'server.db'}", flavour, tools
        self.options = options
        self.rt: Any = None

    @asynccontextmanager
    async def client(self, *fns: Callable[..., Any]) -> AsyncIterator[Any]:
        """A client of a fresh server; ``ask`` returns the protocol's own result."""
        blocking = self.flavour == "blocking"
        self.rt = (amends.Runtime if blocking else amends.AsyncRuntime)(self.url, tools=self.tools)
        try:
            if self.flavour == "fastmcp":
                server: Any = FastMCP("shop")
                guard: Any = fast.AmendsMiddleware(self.rt, **self.options)
                server.add_middleware(guard)
                for fn in fns:
                    server.tool(fn)
                server.tool(guard.end_run)
                async with fastmcp.Client(server) as client:
                    yield client
            else:
                server, guard = MCPServer("shop"), guarded(self.rt, **self.options)
                for fn in (*map(guard, fns), guard.end_run):
                    server.tool()(fn)
                async with Client(server) as client:
                    yield client
        finally:
            closed = self.rt.close()
            if closed is not None:
                await closed

    def calls(self) -> list[Any]:
        with amends.Runtime(self.url) as rt:
            return list(rt.calls())

    def approve(self) -> None:
        with amends.Runtime(self.url, tools=self.tools) as rt:
            [asked] = rt.approvals()
            rt.approve(asked.id, digest=asked.digest, by="anna")


async def ask(client: Any, name: str, args: dict[str, Any], meta: Any = None) -> CallToolResult:
    done: CallToolResult = await getattr(client, "call_tool_mcp", client.call_tool)(name, args, meta=meta)
    return done


def text_of(result: CallToolResult) -> str:
    return "\n".join(block.text for block in result.content if isinstance(block, TextContent))


def said(result: CallToolResult) -> Any:
    return (result.meta or {}).get(OUTCOME)


PAY = amends.declare("pay", kind="pivot")
WIRE = amends.declare("wire", kind="pivot", needs_approval=True)


# ---- doubts


@each
@on_a_loop
async def test_a_doubt_is_told_each_time_and_nothing_is_done_again(tmp_path: Path, flavour: Flavour) -> None:
    did: list[str] = []

    def pay(order: str) -> str:
        did.append(order)
        raise ConnectionResetError("no answer")

    for options in ({}, {"repeat_window": 0}):
        did.clear()
        world = World(tmp_path, flavour, [PAY], name=str(options), **options)
        for _ in range(2):  # the server is started again, too
            async with world.client(pay) as client:
                for _ in range(3):
                    told = await ask(client, "pay", {"order": "A1"})
                    assert told.is_error
                    assert "it may have happened" in text_of(told)
                    assert (said(told)["status"], said(told)["executed"]) == ("in_doubt", None)
                    assert told.structured_content is not None
                    assert told.structured_content[OUTCOME]["executed"] is None
        assert did == ["A1"]


@each
@on_a_loop
async def test_a_doubt_about_a_tool_that_nobody_declared_is_told_each_time(tmp_path: Path, flavour: Flavour) -> None:
    did: list[str] = []

    def stamp(order: str) -> str:
        did.append(order)
        raise ConnectionResetError("no answer")

    world = World(tmp_path, flavour, [])
    async with world.client(stamp) as client:
        assert said(await ask(client, "stamp", {"order": "A1"}))["status"] == "held"
        world.approve()
        for _ in range(4):
            told = await ask(client, "stamp", {"order": "A1"})
            assert "it may have happened" in text_of(told)
            assert (said(told)["status"], said(told)["executed"]) == ("in_doubt", None)
    assert did == ["A1"]


@each_async
@on_a_loop
async def test_a_request_that_the_client_gave_up_is_not_done_again(tmp_path: Path, flavour: Flavour) -> None:
    did: list[str] = []

    async def pay(order: str) -> str:
        did.append(order)
        await asyncio.sleep(30)
        return order

    world = World(tmp_path, flavour, [PAY])
    async with world.client(pay) as client:
        for _ in range(4):
            try:
                async with asyncio.timeout(1.0):
                    told = await ask(client, "pay", {"order": "A1"})
            except TimeoutError:
                continue
            assert "it may have happened" in text_of(told)
            assert said(told)["executed"] is None
    assert did == ["A1"]


@each
@on_a_loop
async def test_a_client_that_cancels_a_request_of_its_run_stops_nothing_else_and_starts_nothing(
    tmp_path: Path, flavour: Flavour
) -> None:
    """``notifications/cancelled``: the run stays open, nothing staged starts, nothing is taken back or done again."""
    did: list[str] = []
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def pay(order: str) -> str:
        did.append(f"pay {order}")
        begun.set()
        await asyncio.sleep(30)
        return order

    def pay_in_thread(order: str) -> str:
        did.append(f"pay {order}")
        loop.call_soon_threadsafe(begun.set)
        time.sleep(0.3)  # a thread cannot be stopped
        return order

    def mail(to: str) -> str:
        did.append(f"mail {to}")
        return to

    def book(order: str) -> str:
        did.append(f"book {order}")
        return order

    pay_in_thread.__name__ = "pay"
    tools = [PAY, amends.declare("mail", kind="retriable", idempotent=True), amends.declare("book", compensate=print)]
    world, meta = World(tmp_path, flavour, tools), {plain.RUN_META: "r"}
    async with world.client(pay_in_thread if flavour == "blocking" else pay, mail, book) as client:
        await ask(client, "mail", {"to": "ann"}, meta)
        await ask(client, "book", {"order": "A1"}, meta)
        asking = asyncio.ensure_future(ask(client, "pay", {"order": "A1"}, meta))
        await begun.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert did == ["book A1", "pay A1"]
        for _ in range(2):
            told = await ask(client, "pay", {"order": "A1"}, meta)
            if flavour == "blocking":
                assert said(told)["status"] == "replayed", "its thread has recorded the result"
            else:
                assert said(told)["executed"] is None
        assert did == ["book A1", "pay A1"]
        ended = await ask(client, "end_run", {"how": "commit"}, meta)
        assert ended.is_error is (flavour != "blocking")
    assert did == ["book A1", "pay A1", *(["mail ann"] if flavour == "blocking" else [])]
    with amends.Runtime(world.url) as rt:
        assert [run.state for run in rt.runs()] == ["committed" if flavour == "blocking" else "blocked"]


# ---- what was not executed


@each
@on_a_loop
async def test_not_yet_says_on_the_wire_that_it_was_not_executed(tmp_path: Path, flavour: Flavour) -> None:
    def wire(iban: str) -> str:
        return f"wire_{iban}"

    world = World(tmp_path, flavour, [WIRE])
    async with world.client(wire) as client:
        told = await ask(client, "wire", {"iban": "DE02"})
        assert not told.is_error
        assert "needs a person's approval" in text_of(told)
        assert said(told)["status"] == "held"
        assert said(told)["executed"] is False
        assert said(told)["tool"] == "wire"
        assert said(told)["approval"].startswith("apr_")
        assert said(told)["run"]
        assert told.structured_content is not None
        assert told.structured_content[OUTCOME] == said(told)
        assert isinstance(told.content[1], TextContent)
        assert json.loads(told.content[1].text) == {OUTCOME: said(told)}
        world.approve()
        done = await ask(client, "wire", {"iban": "DE02"})
        again = await ask(client, "wire", {"iban": "DE02"})
    assert done.structured_content == again.structured_content == {"result": "wire_DE02"}
    assert len(done.content) == len(again.content) == 1
    assert said(again)["executed"] is True


class Receipt(BaseModel):
    id: str
    cents: int = 5


@each
@on_a_loop
async def test_not_yet_of_a_tool_with_another_shape_is_an_error_with_the_outcome(
    tmp_path: Path, flavour: Flavour
) -> None:
    def wire(iban: str) -> Receipt:
        return Receipt(id=iban)

    async with World(tmp_path, flavour, [WIRE]).client(wire) as client:
        told = await ask(client, "wire", {"iban": "DE02"})
    assert told.is_error
    assert said(told)["executed"] is False
    assert told.structured_content == {OUTCOME: said(told)}


@each
@on_a_loop
async def test_a_refusal_and_a_staged_call_say_what_they_are(tmp_path: Path, flavour: Flavour) -> None:
    def ship(order: str) -> str:
        return order

    def mail(to: str) -> str:
        return to

    tools = [amends.declare("ship", kind="pivot", after=["charge"]), amends.declare("charge", compensate=print),
             amends.declare("mail", kind="retriable", idempotent=True)]  # fmt: skip
    async with World(tmp_path, flavour, tools).client(ship, mail) as client:
        refused = await ask(client, "ship", {"order": "A1"})
        assert (said(refused)["status"], said(refused)["executed"]) == ("refused", False)
        named = await ask(client, "mail", {"to": "ann"}, {plain.RUN_META: "r"})
        assert (said(named)["status"], said(named)["executed"]) == ("staged", False)
        alone = await ask(client, "mail", {"to": "bob"})
        assert said(alone)["executed"] is True


# ---- several clients of one run


@each
@on_a_loop
async def test_clients_that_name_one_run_share_it(tmp_path: Path, flavour: Flavour) -> None:
    did: list[str] = []

    def book(order: str) -> str:
        did.append(f"book {order}")
        return order

    def wire(iban: str) -> str:
        did.append(f"wire {iban}")
        return iban

    declared = amends.declare("book", key="order", compensate=lambda result: did.append(f"cancel {result}"))
    for how, effects in (("rollback", ["cancel A1"]), ("commit", ["wire DE02"])):
        world, meta = World(tmp_path, flavour, [declared, WIRE]), {plain.RUN_META: how}
        did.clear()
        async with world.client(book, wire) as client:
            await ask(client, "book", {"order": "A1"}, meta)
        async with world.client(book, wire) as client:  # another client, of another process of the server
            assert said(await ask(client, "book", {"order": "A1"}, meta))["status"] == "replayed"
            assert said(await ask(client, "wire", {"iban": "DE02"}, meta))["status"] == "held"
        if how == "commit":
            world.approve()
        async with world.client(book, wire) as client:
            await ask(client, "end_run", {"how": how}, meta)
        assert did == ["book A1", *effects]


# ---- one effect across a guarded client and a guarded server


def guarded_client(url: str, server: Any, **options: Any) -> Any:
    @amends.tool(**({"kind": "pivot"} | options))
    async def pay(order: str, note: str = "") -> Any:
        return await call_tool(server(), "pay", {"order": order})

    return pay, amends.AsyncRuntime(url, tools=[pay])


@each_async
@on_a_loop
async def test_one_effect_is_one_effect_across_both(tmp_path: Path, flavour: Flavour) -> None:
    did: list[str] = []
    lost = [True, False]
    seen: list[Any] = []

    def pay(order: str) -> str:
        did.append(order)
        return f"paid_{order}"

    world = World(tmp_path, flavour, [PAY], repeat_window=0)
    async with world.client(pay) as client:

        class Lossy:
            """A connection that breaks after the server has done it."""

            async def call_tool(self, name: str, args: Any, *, meta: Any) -> Any:
                seen.append(meta)
                done = await ask(client, name, args, meta)
                if lost.pop(0):
                    raise ConnectionResetError("the answer is lost")
                return done

        tool, rt = guarded_client(f"sqlite:///{tmp_path / 'client.db'}", Lossy, idempotent=True)
        async with rt, rt.run("order-7"):
            assert await tool(order="A1") == "paid_A1"
    assert did == ["A1"]
    assert seen[0] == seen[1]
    assert seen[0][CALLER_META] == "order-7"
    with amends.Runtime(world.url) as desk:
        [run] = desk.runs("tag:caller:order-7")
        assert run.state == "committed"


@each_async
@on_a_loop
async def test_another_key_is_another_effect_and_a_key_outlives_the_window(tmp_path: Path, flavour: Flavour) -> None:
    did: list[str] = []

    def pay(order: str) -> str:
        did.append(order)
        return f"paid_{order}"

    world = World(tmp_path, flavour, [PAY], repeat_window=1)
    async with world.client(pay) as client:
        for key in ("k1", "k2", "k1"):
            await ask(client, "pay", {"order": "A1"}, {KEY_META: key})
        await asyncio.sleep(1.2)
        await ask(client, "pay", {"order": "A1"}, {KEY_META: "k2"})
        assert did == ["A1", "A1"], "a client that says again="
        other = await ask(client, "pay", {"order": "B2"}, {KEY_META: "k1"})
        assert other.is_error, "one key is one request"
        assert said(other)["executed"] is False
    assert did == ["A1", "A1"]


@each_async
@on_a_loop
async def test_a_guarded_client_does_not_record_not_yet_as_done(tmp_path: Path, flavour: Flavour) -> None:
    did: list[str] = []

    def pay(order: str) -> str:
        did.append(order)
        return f"paid_{order}"

    url = f"sqlite:///{tmp_path / 'client.db'}"
    world = World(tmp_path, flavour, [amends.declare("pay", kind="pivot", needs_approval=True)])
    async with world.client(pay) as client:
        _, rt = guarded_client(url, lambda: client)
        async with rt:
            with pytest.raises(amends.RunBlocked):
                async with rt.run("order-7") as run:
                    told = await run.answer("pay", {"order": "A1"})
                    assert told.status == "in_doubt"
                    assert "needs a person's approval" in told.text
            assert [call.state async for call in rt.calls()] == ["in_doubt"]
    assert did == []


@each_async
@on_a_loop
async def test_an_idempotent_client_asks_again_until_the_server_may(tmp_path: Path, flavour: Flavour) -> None:
    did: list[str] = []
    asked: list[str] = []

    def pay(order: str) -> str:
        did.append(order)
        return f"paid_{order}"

    url = f"sqlite:///{tmp_path / 'client.db'}"
    world = World(tmp_path, flavour, [amends.declare("pay", kind="pivot", needs_approval=True)])
    async with world.client(pay) as client:

        class Counting:
            async def call_tool(self, name: str, args: Any, *, meta: Any) -> Any:
                asked.append(meta[KEY_META])
                if len(asked) == 5:
                    world.approve()
                return await ask(client, name, args, meta)

        _, rt = guarded_client(url, Counting, idempotent=True, retry=amends.Retry(attempts=2, delay=0.0))
        async with rt, rt.run("order-7", wait=60) as run:
            told = await run.answer("pay", {"order": "A1"})
            assert (told.status, told.value) == ("done", "paid_A1")
        with amends.Runtime(world.url) as desk:
            assert [one.state for one in desk.runs()] == ["committed"]
    assert did == ["A1"]
    assert len(asked) == 5
    assert len(set(asked)) == 1, "one call is one key, however often it is asked for"


@each_async
@on_a_loop
async def test_an_error_of_the_server_is_a_failure_of_the_guarded_client(tmp_path: Path, flavour: Flavour) -> None:
    def pay(order: str) -> str:
        raise (fastmcp.exceptions.ToolError if flavour == "fastmcp" else ToolError)("no such order")

    world = World(tmp_path, flavour, [PAY])
    async with world.client(pay) as client:
        _tool, rt = guarded_client(f"sqlite:///{tmp_path / 'client.db'}", lambda: client)
        async with rt:
            async with rt.run("r") as run:
                told = await run.answer("pay", {"order": "A1"})
                assert told.status == "failed"
                assert "no such order" in told.text
            assert [call.state async for call in rt.calls()] == ["failed"]


@on_a_loop
async def test_the_values_of_a_server_come_back_as_its_tools_returned_them(tmp_path: Path) -> None:
    server = MCPServer("s")

    @server.tool()
    def number() -> int:
        return 5

    @server.tool()
    def receipt() -> Receipt:
        return Receipt(id="r")

    @server.tool(structured_output=False)
    def words() -> str:
        return "some words"

    @server.tool(structured_output=False)
    def picture() -> Any:
        return ["look", Image(data=b"png", format="png")]

    async with Client(server) as client:
        assert await call_tool(client, "number") == 5
        assert await call_tool(client, "receipt") == {"id": "r", "cents": 5}
        assert await call_tool(client, "words") == "some words"
        assert [one["type"] for one in await call_tool(client, "picture")] == ["text", "image"]


# ---- the same request in other words


class Line(BaseModel):
    sku: str
    amount: int = 1


class Address(BaseModel):
    city: str
    country: str = "DE"


SAME: list[dict[str, Any]] = [
    {"order": "A1", "cents": 5, "lines": [{"sku": "x"}]},
    {"order": "A1", "cents": "5", "lines": [{"sku": "x", "amount": 1}]},
    {"order": "A1", "cents": 5, "lines": [{"sku": "x", "amount": "1"}], "note": ""},
    {"order": "A1", "cents": 5, "lines": [{"sku": "x"}], "to": None, "when": "once", "fast": False},
    {"order": "A1", "cents": 5.0, "lines": [{"sku": "x"}], "fast": "false"},
]


@each
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("key", [None, "order"])
@on_a_loop
async def test_the_same_request_in_other_words_is_the_same_call(
    tmp_path: Path, flavour: Flavour, named: bool, key: str | None
) -> None:
    did: list[str] = []

    def buy(
        order: str,
        cents: int,
        lines: list[Line],
        note: str = "",
        to: Address | None = None,
        when: Literal["once", "later"] = "once",
        fast: bool = False,
    ) -> str:
        did.append(f"{order} {cents} {lines[0].amount}")
        return "bought"

    options: Any = {"compensate": print} if key is None else {"compensate": print, "key": key}
    world = World(tmp_path, flavour, [amends.declare("buy", **options)])
    meta = {plain.RUN_META: "r"} if named else None
    async with world.client(buy) as client:
        for args in SAME:
            done = await ask(client, "buy", args, meta)
            assert not done.is_error, text_of(done)
        other = await ask(client, "buy", {**SAME[0], "lines": [{"sku": "x", "amount": 2}]}, meta)
    assert did == ["A1 5 1"] + ([] if named and key else ["A1 5 2"])
    assert other.is_error is (named and key is not None)


class Party(BaseModel):
    seats: frozenset[int] = frozenset()


@each
@pytest.mark.parametrize("named", [False, True])
@on_a_loop
async def test_a_set_in_another_order_is_the_same_request(tmp_path: Path, flavour: Flavour, named: bool) -> None:
    """As after a restart of the server: a set of texts has another order in each process, and 0 and 8 have it here."""
    did: list[int] = []

    def book(seats: set[int], parties: list[Party]) -> str:
        did.append(len(seats))
        return "booked"

    assert list({0, 8}) != list({8, 0}), "these show the order in which they came"
    meta = {plain.RUN_META: "r"} if named else None
    async with World(tmp_path, flavour, [amends.declare("book", compensate=print)]).client(book) as client:
        for order in ([0, 8], [8, 0]):
            done = await ask(client, "book", {"seats": order, "parties": [{"seats": order}]}, meta)
            assert not done.is_error, text_of(done)
        await ask(client, "book", {"seats": [0, 8], "parties": [{"seats": [0]}]}, meta)
    assert did == [2, 2]


@each
@on_a_loop
async def test_an_unknown_argument_is_not_another_request(tmp_path: Path, flavour: Flavour) -> None:
    did: list[str] = []

    def buy(order: str) -> str:
        did.append(order)
        return "bought"

    async with World(tmp_path, flavour, [amends.declare("buy", kind="pivot")]).client(buy) as client:
        for args in ({"order": "A1"}, {"order": "A1", "because": "the user said so"}, {"order": "A1"}):
            await ask(client, "buy", args)
    assert did == ["A1"]


@each
@on_a_loop
async def test_a_value_that_json_cannot_carry_back_is_never_changed(tmp_path: Path, flavour: Flavour) -> None:
    got: list[Any] = []

    def log_in(token: SecretStr, limit: Decimal = Decimal("1.50")) -> str:
        got.append((token.get_secret_value(), limit))
        return "in"

    async with World(tmp_path, flavour, [amends.declare("log_in", kind="pivot")]).client(log_in) as client:
        told = await ask(client, "log_in", {"token": "t0ken"})
    if flavour == "fastmcp":
        assert not told.is_error, text_of(told)
        assert got == [("t0ken", Decimal("1.50"))]
    else:  # this framework gives the decorator the object itself, which cannot be written down
        assert (said(told)["executed"], got) == (False, [])


@on_a_loop
async def test_a_tool_that_only_has_a_schema_is_bound_by_it(tmp_path: Path) -> None:
    did: list[Any] = []
    upstream: FastMCP = FastMCP("up")

    @upstream.tool
    def buy(order: str, cents: int, to: Address = Address(city="Rome"), lines: list[Line] | None = None) -> str:  # noqa: B008
        did.append((order, cents, to.country))
        return "bought"

    async with amends.AsyncRuntime(f"sqlite:///{tmp_path / 's.db'}", tools=[amends.declare("buy", kind="pivot")]) as rt:
        front = fastmcp.server.create_proxy(upstream)
        front.add_middleware(fast.AmendsMiddleware(rt))
        async with fastmcp.Client(front) as client:
            for args in (
                {"order": "A1", "cents": 5},
                {"order": "A1", "cents": "5", "lines": None},
                {"order": "A1", "cents": 5, "to": {"city": "Rome"}},
                {"order": "A1", "cents": 5, "to": {"city": "Rome", "country": "DE"}},
            ):
                await ask(client, "buy", args)
    assert did == [("A1", 5, "DE")]


@on_a_loop
async def test_a_strict_server_stays_strict(tmp_path: Path) -> None:
    did: list[int] = []
    async with amends.AsyncRuntime(f"sqlite:///{tmp_path / 's.db'}", tools=[amends.declare("buy", kind="pivot")]) as rt:
        server: FastMCP = FastMCP("shop", strict_input_validation=True)
        server.add_middleware(fast.AmendsMiddleware(rt))

        @server.tool
        def buy(cents: int, note: str = "") -> str:
            did.append(cents)
            return "bought"

        async with fastmcp.Client(server) as client:
            assert (await ask(client, "buy", {"cents": "5"})).is_error
            for args in ({"cents": 5}, {"cents": 5, "note": ""}):
                await ask(client, "buy", args)
    assert did == [5]


# ---- results


@dataclass
class Slip:
    id: str


@each
@pytest.mark.parametrize("case", ["model", "dataclass", "dict", "text", "number", "blocks", "picture", "result"])
@on_a_loop
async def test_a_compensation_gets_what_the_tool_returned(tmp_path: Path, flavour: Flavour, case: str) -> None:
    blocks = [TextContent(text="a"), TextContent(text="b")]
    made: dict[str, tuple[Any, Any, Any]] = {
        "model": (Receipt, Receipt(id="r"), {"id": "r", "cents": 5}),
        "dataclass": (Slip, Slip("s"), {"id": "s"}),
        "dict": (dict[str, Any], {"id": "d"}, {"id": "d"}),
        "text": (str, "t", "t"),
        "number": (int, 7, 7),
        "blocks": (list[TextContent], blocks, [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]),
        "picture": (ImageContent, ImageContent(data="cG5n", mime_type="image/png"), None),
        "result": (CallToolResult, CallToolResult(content=[], structured_content={"id": "x"}), {"id": "x"}),
    }
    kind, value, plain_value = made[case]
    got: list[Any] = []

    def book(order: str) -> Any:
        return value

    book.__annotations__["return"] = kind
    tools = [amends.declare("book", compensate=lambda result: got.append(result))]
    world, meta = World(tmp_path, flavour, tools), {plain.RUN_META: "r"}
    async with world.client(book) as client:
        first = await ask(client, "book", {"order": "A1"}, meta)
        assert not first.is_error, text_of(first)
    async with world.client(book) as client:  # another process would find the same
        again = await ask(client, "book", {"order": "A1"}, meta)
        assert not again.is_error, text_of(again)
        assert again.structured_content == first.structured_content
        if case in ("blocks", "picture"):
            assert [one.type for one in again.content][1:] == [one.type for one in first.content]
        await ask(client, "end_run", {"how": "rollback"}, meta)
    [found] = got
    if case == "picture":
        found = found[0] if isinstance(found, list) else found
        assert (found["type"], found["data"]) == ("image", "cG5n")
    elif not isinstance(found, dict | list | str | int):
        assert found == value
    else:
        assert found == plain_value


@dataclass
class Bill:
    id: str
    price: Decimal


@each
@on_a_loop
async def test_a_compensation_in_another_process_gets_what_the_tool_returned(tmp_path: Path, flavour: Flavour) -> None:
    got: list[Any] = []

    def book(order: str) -> Bill:
        return Bill(order, Decimal("1.50"))

    world = World(tmp_path, flavour, [amends.declare("book", compensate=lambda result: got.append(result))])
    meta = {plain.RUN_META: "r"}
    async with world.client(book) as client:
        first = await ask(client, "book", {"order": "A1"}, meta)
        again = await ask(client, "book", {"order": "A1"}, meta)
        assert first.structured_content == again.structured_content == {"id": "A1", "price": "1.50"}
    async with world.client(book) as client:
        await ask(client, "end_run", {"how": "rollback"}, meta)
    assert got == [Bill("A1", Decimal("1.50"))]


# ---- what is not guarded


def charge(order: str) -> str:
    return order


def wipe(order: str) -> str:
    return order


@pytest.mark.parametrize("colour", ["async", "blocking"])
@on_a_loop
async def test_a_tool_without_the_decorator_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, colour: str
) -> None:
    rt: Any = (amends.AsyncRuntime if colour == "async" else amends.Runtime)(
        f"sqlite:///{tmp_path / 's.db'}", tools=[amends.declare("charge", kind="pivot")]
    )
    guard, server = guarded(rt), MCPServer("shop")
    server.tool()(guard(charge))
    server.tool()(wipe)
    server.tool(name="look", annotations={"readOnlyHint": True})(charge)  # type: ignore[arg-type]
    server.tool()(guard.end_run)
    async with Client(server) as client:
        for order in ("A1", "A2"):
            assert not (await client.call_tool("charge", {"order": order})).is_error
    closed = rt.close()
    if closed is not None:
        await closed
    [warned] = [one.getMessage() for one in caplog.records if "without the decorator" in one.getMessage()]
    assert "wipe" in warned
    assert "look" not in warned
    assert "end_run" not in warned


@on_a_loop
async def test_a_strict_guard_refuses_a_server_with_tools_without_the_decorator(tmp_path: Path) -> None:
    async with amends.AsyncRuntime(f"sqlite:///{tmp_path / 's.db'}", tools=[PAY]) as rt:
        did: list[str] = []

        def pay(order: str) -> str:
            did.append(order)
            return order

        def stray(order: str) -> str:
            did.append(f"stray {order}")
            return order

        guard = guarded(rt, strict=True)
        server = MCPServer("shop", middleware=[guard.watch])
        server.tool()(guard(pay))
        server.tool()(stray)
        with pytest.raises(amends.UsageError, match="stray"):
            guard.check(server)
        async with Client(server) as client:
            told = await client.call_tool("pay", {"order": "A1"})
            assert told.is_error
            assert "stray" in text_of(told)
            with pytest.raises(Exception, match="stray"):
                await client.call_tool("stray", {"order": "A1"})
        assert did == []
        server.remove_tool("stray")
        async with Client(server) as client:
            assert not (await client.call_tool("pay", {"order": "A1"})).is_error
    assert did == ["A1"]


@on_a_loop
async def test_a_watched_server_warns_of_the_call_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with amends.AsyncRuntime(f"sqlite:///{tmp_path / 's.db'}", tools=[PAY]) as rt:
        guard = guarded(rt)
        server = MCPServer("shop", middleware=[guard.watch])
        server.tool()(wipe)
        async with Client(server) as client:
            for _ in range(2):
                assert not (await client.call_tool("wipe", {"order": "A1"})).is_error
    assert [one.getMessage().count("wipe") for one in caplog.records if "decorator" in one.getMessage()] == [1]


@on_a_loop
async def test_each_request_a_new_run_without_a_name_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with amends.AsyncRuntime(f"sqlite:///{tmp_path / 's.db'}", tools=[PAY]) as rt:
        guarded(rt)
        guarded(rt, repeat_window=0, run_id=lambda args: "r")
        fast.AmendsMiddleware(rt)
        assert caplog.records == []
        guarded(rt, repeat_window=0)
        fast.AmendsMiddleware(rt, repeat_window=0)
    assert sum("repeat_window=0 without run_id" in one.getMessage() for one in caplog.records) == 2

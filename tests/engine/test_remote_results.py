"""Results of MCP servers that are none: an error, "not yet", "nobody knows"; told apart by class and by key."""

from __future__ import annotations

import json
from typing import Any

import pytest

import amends
from amends import AsyncRuntime, Runtime
from amends.engine.outcomes import judge
from amends.errors import OUTCOME, REMOTE, ToolFailed
from amends.tools.declarations import specs_of
from tests.adapters.loops import on_a_loop
from tests.engine.test_error_judgement import chained, named, verdict

NOT_YET = {"status": "held", "executed": False, "text": "Not run yet: wire needs a person's approval (apr_1)."}
NO = {"status": "refused", "executed": False, "text": "Call charge first."}
UNKNOWN = {
    "status": "in_doubt",
    "executed": None,
    "text": "wire was sent but the answer was lost: it may have happened.",
}
DONE = {"status": "replayed", "executed": True}


def result(name: str, **facts: Any) -> Any:
    """A result of a class with this module and name."""
    module, _, qualname = name.rpartition(".")
    made = type(qualname, (), {"__module__": module, "__qualname__": qualname})()
    for fact, value in facts.items():
        setattr(made, fact, value)
    return made


def text(said: dict[str, Any]) -> str:
    return json.dumps({OUTCOME: said})


def block(words: str) -> Any:
    return result("mcp_types._types.TextContent", type="text", text=words)


CLIENTS = "mcp.types.CallToolResult mcp_types._types.CallToolResult fastmcp.client.client.CallToolResult".split()  # noqa: SIM905


def state_after(value: Any, **options: Any) -> tuple[str, str]:
    with Runtime("memory://", tools=[amends.declare("wire", **({"kind": "pivot"} | options))]) as rt:
        try:
            with rt.run("r") as run:
                run.answer("wire", {"n": 1}, handler=lambda n: value)
        except amends.Error:
            pass
        [call] = rt.calls()
        return call.state, call.why or ""


@pytest.mark.parametrize("name", CLIENTS)
def test_an_error_of_an_mcp_tool_is_no_success(name: str) -> None:
    spelled = {"isError": True} if name.startswith("mcp.types") else {"is_error": True}
    assert state_after(result(name, content=[block("no such order")], **spelled)) == ("failed", "")
    assert state_after(result(name, content=[block("ok")], is_error=False))[0] == "succeeded"


def test_another_class_with_such_a_field_is_a_result() -> None:
    assert state_after(result("shop.Receipt", is_error=True))[0] == "succeeded"
    assert state_after({"is_error": True})[0] == "succeeded"


@pytest.mark.parametrize(
    "said, state",
    [(NOT_YET, "in_doubt"), ({**NOT_YET, "status": "staged"}, "in_doubt"), (UNKNOWN, "in_doubt"), (NO, "failed"),
     (DONE, "succeeded")],
)  # fmt: skip
@pytest.mark.parametrize("client", ["structured", "meta", "artifact", "dict", "list", "wrapped"])
def test_what_a_guarded_server_did_not_execute_is_not_recorded_as_done(said: Any, state: str, client: str) -> None:
    mcp = "mcp_types._types.CallToolResult"
    value = {
        "structured": lambda: result(
            mcp, structured_content={"result": "x", OUTCOME: said}, content=[], is_error=False
        ),
        "meta": lambda: result(mcp, meta={OUTCOME: said}, structured_content=None, content=[], is_error=False),
        "artifact": lambda: ([{"type": "text", "text": "x"}], {"structured_content": {OUTCOME: said}}),
        "dict": lambda: {OUTCOME: said, "result": "x"},
        "list": lambda: ["x", {OUTCOME: said}],
        "wrapped": lambda: result("pydantic_ai.messages.ToolReturn", return_value={OUTCOME: said}),
    }[client]()
    assert state_after(value)[0] == state
    if state == "in_doubt":
        assert state_after(value)[1] == REMOTE


@pytest.mark.parametrize("said", [NOT_YET, UNKNOWN, NO])
def test_what_only_a_text_says_is_never_certain(said: Any) -> None:
    assert state_after(text(said))[0] == "in_doubt"
    assert state_after([{"type": "text", "text": "x"}, {"type": "text", "text": text(said)}])[0] == "in_doubt"
    assert state_after(result(CLIENTS[1], content=[block("x"), block(text(said))], is_error=True))[0] == "in_doubt"
    assert state_after(f"a log line: {text(said)}")[0] == "succeeded"
    assert state_after(text(DONE))[0] == "succeeded"


def test_the_model_is_told_the_words_of_the_server() -> None:
    with Runtime("memory://", tools=[amends.declare("wire", kind="pivot")]) as rt, pytest.raises(amends.RunBlocked):
        with rt.run("r") as run:
            told = run.answer("wire", {}, handler=lambda: {OUTCOME: NOT_YET})
            assert told.status == "in_doubt"
            assert told.text == NOT_YET["text"]
            again = run.answer("wire", {}, handler=lambda: pytest.fail("it may not be asked again"))
            assert again.text == NOT_YET["text"]


def test_an_idempotent_call_asks_the_server_again_until_it_has_done_it() -> None:
    answers = [{OUTCOME: NOT_YET}, {OUTCOME: NOT_YET}, "wire_1"]
    keys = set()

    @amends.tool(kind="pivot", idempotent=True, retry=amends.Retry(attempts=3, delay=0.0))
    def wire(n: int) -> Any:
        keys.add(amends.current_call().key)
        return answers.pop(0)

    with Runtime("memory://", tools=[wire]) as rt, rt.run("r"):
        assert wire(n=1) == "wire_1"
    assert len(keys) == 1


@on_a_loop
async def test_a_tool_that_is_called_as_a_function_raises_it(tmp_path: Any) -> None:
    @amends.tool(kind="pivot")
    async def wire(n: int) -> Any:
        return result(CLIENTS[0], content=[block("no such order")], isError=True)

    @amends.tool(kind="pivot")
    async def pay(n: int) -> dict[str, Any]:
        return {OUTCOME: NO}

    async with AsyncRuntime("memory://", tools=[wire, pay]) as rt:
        with pytest.raises(ToolFailed, match="no such order"):
            async with rt.run("r"):
                await wire(n=1)
        with pytest.raises(amends.NoEffect, match="Call charge first"):
            async with rt.run("s"):
                await pay(n=1)
        assert {call.state async for call in rt.calls()} == {"failed"}


def test_a_compensation_that_an_mcp_server_refused_has_not_happened() -> None:
    @amends.tool()
    def charge(n: int) -> int:
        return n

    @charge.compensate(retry=amends.Retry(attempts=1))
    def refund(n: int) -> Any:
        return result(CLIENTS[1], content=[block("too late")], is_error=True)

    with Runtime("memory://", tools=[charge]) as rt:
        with pytest.raises(amends.RunBlocked, match="charge"), rt.run("r"):
            charge(n=1)
            raise ValueError
        [call] = rt.calls()
        assert call.state == "compensation_failed"


# ---- errors of clients


@pytest.mark.parametrize("name", ["mcp.shared.exceptions.MCPError", "mcp.shared.exceptions.McpError"])
@pytest.mark.parametrize(
    "code, message, found",
    [(-32000, "Connection closed", "doubt"), (-32001, "Request 'tools/call' timed out", "doubt"), (408, "", "doubt"),
     (-32603, "Server returned an error response", "doubt"), (-32700, "Failed to parse JSON response", "doubt"),
     (-32600, "Unexpected content type: text/html", "doubt"), (-32600, "Session terminated", "ordinary"),
     (-32601, "Not Found", "ordinary"), (-32602, "Invalid params", "ordinary")],
)  # fmt: skip
def test_a_lost_mcp_server_is_doubt(name: str, code: int, message: str, found: str) -> None:
    error = named(name, error=type("ErrorData", (), {"code": code, "message": message})())
    assert verdict(error) == found
    assert verdict(ExceptionGroup("task group", [ExceptionGroup("inner", [error])])) == found
    assert verdict(chained(named("langchain_core.tools.base.ToolException"), error)) == found
    assert verdict(chained(named("agents.exceptions.AgentsException"), error)) == found


@pytest.mark.parametrize("name", ["ClosedResourceError", "BrokenResourceError", "EndOfStream"])
def test_a_broken_stream_behind_a_wrapper_of_a_framework_is_doubt(name: str) -> None:
    assert verdict(chained(named("langchain_core.tools.base.ToolException"), named(f"anyio.{name}"))) == "doubt"


def test_a_timeout_behind_a_wrapper_of_a_framework_is_doubt() -> None:
    for wrapper in (
        "langchain_core.tools.base.ToolException",
        "pydantic_ai.exceptions.ModelRetry",
        "builtins.ValueError",
    ):
        assert verdict(chained(named(wrapper), TimeoutError())) == "doubt"
    late = named("mcp.shared.exceptions.MCPError", error=type("ErrorData", (), {"code": -32001, "message": ""})())
    assert judge(specs_of([amends.declare("t", kind="pivot")], order="advise")["t"], late).why == "timeout"


def test_an_error_that_repeats_the_words_of_a_guarded_server_is_doubt() -> None:
    """Clients keep only the text of an error result, and some put the structured content into it."""
    for words in (UNKNOWN["text"], NOT_YET["text"], text(UNKNOWN), text(NOT_YET), f"Error: {text(UNKNOWN)}"):
        assert verdict(ValueError(words)) == "doubt", words
    for words in (NO["text"], text(NO), "Not run yet: try later"):
        assert verdict(ValueError(words)) == "ordinary", words

"""autogen #5891: a tool cannot ask for a yes, and what was not executed looks like any other result.

Seen on autogen-agentchat 0.7.5: nothing between a model that asks for a tool and the tool. A function that asks for itself
can only return text, and its refusal goes to the model as a result that is no error. With amends the call waits in the
ledger, the model is told so, the run is let go, and it is done once, after the yes.
"""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_core import FunctionCall
from autogen_core.models import CreateResult, FunctionExecutionResult, ModelFamily, RequestUsage
from autogen_core.tools import BaseTool, FunctionTool, StaticWorkbench, ToolResult
from autogen_ext.models.replay import ReplayChatCompletionClient

import amends
from tests.adapters.loops import on_a_loop

WIRE = FunctionCall(id="call_1", name="wire", arguments='{"iban": "DE1", "cents": 50000}')
ANSWER_S_MAX = 20


async def told_to_the_model(tools: Any) -> list[FunctionExecutionResult]:
    """What the model was told of the wire that it asked for."""
    asks = CreateResult(
        finish_reason="function_calls", content=[WIRE], cached=False,
        usage=RequestUsage(prompt_tokens=0, completion_tokens=0),
    )  # fmt: skip
    model = ReplayChatCompletionClient(
        [asks, "done"],
        model_info={
            "function_calling": True, "family": ModelFamily.UNKNOWN,
            "vision": False, "json_output": False, "structured_output": False,
        },
    )  # fmt: skip
    given = {"workbench": tools} if isinstance(tools, StaticWorkbench) else {"tools": tools}
    agent = AssistantAgent("clerk", model, **given)
    done = await asyncio.wait_for(agent.run(task="wire it"), ANSWER_S_MAX)
    return [one for message in done.messages if message.type == "ToolCallExecutionEvent" for one in message.content]


@pytest.fixture
def sent() -> list[str]:
    return []


@pytest.fixture
def wire(sent: list[str]) -> Any:
    def wire(iban: str, cents: int) -> str:
        """Send a wire."""
        sent.append(iban)
        return f"wire_{iban}"

    return wire


@on_a_loop
async def test_bare_the_wire_is_sent_and_nobody_was_asked(wire: Any, sent: list[str]) -> None:
    assert not [name for name in dir(BaseTool) if "approv" in name], "the report is answered: say so in the docs"
    (told,) = await told_to_the_model([wire])
    assert (sent, told.content, told.is_error) == (["DE1"], "wire_DE1", False)


@on_a_loop
async def test_bare_a_refusal_is_a_result_like_any_other(wire: Any) -> None:
    @functools.wraps(wire)
    def asking(**_: Any) -> str:
        return "denied by the operator"

    (told,) = await told_to_the_model([asking])
    assert (told.content, told.is_error) == ("denied by the operator", False)


class Guarded(StaticWorkbench):
    """The agent's tools, each call of which goes through the open run; never raises: that would hang the agent."""

    async def call_tool(
        self, name: str, arguments: Any = None, cancellation_token: Any = None, call_id: str | None = None
    ) -> ToolResult:
        async def handler(**given: Any) -> str:
            done = await super(Guarded, self).call_tool(name, given, cancellation_token, call_id)
            if done.is_error:
                raise RuntimeError(done.to_text())
            return done.to_text()

        answer = await amends.current_run().answer(name, arguments or {}, handler=handler, tool_call_id=call_id)
        content = [{"type": "TextResultContent", "content": answer.text}]
        return ToolResult(name=name, result=content, is_error=answer.is_error)


@on_a_loop
async def test_with_amends_it_waits_for_a_yes_and_is_sent_once(wire: Any, sent: list[str], tmp_path: Any) -> None:
    declared = amends.declare("wire", kind="pivot", key=("iban", "cents"), needs_approval=True)
    tools = Guarded([FunctionTool(wire, "Send a wire.")])
    async with amends.AsyncRuntime(f"sqlite:///{tmp_path / 'ledger.db'}", tools=[declared]) as rt:
        with pytest.raises(amends.Held):
            async with rt.run("wire-1"):
                (told,) = await told_to_the_model(tools)
        assert sent == []
        assert "approv" in told.content

        (asked,) = [one async for one in rt.approvals()]
        await rt.approve(asked.id, digest=asked.digest, by="ann")
        async with rt.run("wire-1"):
            (told,) = await told_to_the_model(tools)
            await told_to_the_model(tools)
        assert sent == ["DE1"]
        assert (told.is_error, "wire_DE1" in told.content) == (False, True)


@on_a_loop
async def test_with_amends_a_no_is_an_error_with_its_reason(wire: Any, sent: list[str]) -> None:
    declared = amends.declare("wire", kind="pivot", needs_approval=True)
    tools = Guarded([FunctionTool(wire, "Send a wire.")])
    async with amends.AsyncRuntime("memory:", tools=[declared]) as rt:
        with pytest.raises(amends.Held):
            async with rt.run("wire-1"):
                await told_to_the_model(tools)
        (asked,) = [one async for one in rt.approvals()]
        await rt.reject(asked.id, by="ann", reason="wrong account")
        async with rt.run("wire-1"):
            (told,) = await told_to_the_model(tools)
    assert (sent, told.is_error) == ([], True)
    assert "wrong account" in told.content

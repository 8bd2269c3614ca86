"""Reports about Pydantic AI: each fails on the bare framework, and passes with amends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, Tool, ToolApproved

import amends
from amends.adapters.pydantic_ai import AmendsCapability
from tests.adapters.loops import on_a_loop

# ---- #5536: "HITL approval signal is a plain bool" --------------------------------------------
# `DeferredToolResults(approvals={id: True})` is a bool beside a message history. Nothing uses it up, nothing binds it
# to arguments: an ordinary retry of the resume, as a durable engine makes it after a crash, does the call once more.

CALL = "call_1"
YES = DeferredToolResults(approvals={CALL: True})
OTHER = DeferredToolResults(approvals={CALL: ToolApproved(override_args={"iban": "DE99", "cents": 9_000_00})})


def once(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    if any(isinstance(message, ModelResponse) for message in messages):
        return ModelResponse(parts=[TextPart("paid")])
    return ModelResponse(parts=[ToolCallPart("wire", {"iban": "DE02", "cents": 4_200_00}, CALL)])


class Bank:
    def __init__(self) -> None:
        self.sent: list[str] = []

    def wire(self, iban: str, cents: int) -> str:
        """Send a wire."""
        self.sent.append(f"{iban} {cents}")
        return "sent"


async def paused(agent: Agent[None, Any]) -> list[ModelMessage]:
    """The conversation as a durable engine keeps it: bytes."""
    result = await agent.run("pay invoice 7")
    assert isinstance(result.output, DeferredToolRequests)
    return ModelMessagesTypeAdapter.validate_json(result.all_messages_json())


def bare(bank: Bank) -> Agent[None, Any]:
    return Agent(
        FunctionModel(once), tools=[Tool(bank.wire, requires_approval=True)], output_type=[str, DeferredToolRequests]
    )


def guarded(bank: Bank, rt: amends.AsyncRuntime) -> Agent[None, Any]:
    return Agent(
        FunctionModel(once),
        tools=[bank.wire],
        output_type=[str, DeferredToolRequests],
        capabilities=[AmendsCapability(rt)],
    )


def runtime(folder: Path) -> amends.AsyncRuntime:
    declared = amends.declare("wire", kind="pivot", key=("iban", "cents"), needs_approval=True)
    return amends.AsyncRuntime(f"sqlite:///{folder}/ledger.db", tools=[declared])


@on_a_loop
async def test_5536_bare_one_yes_sends_as_often_as_the_resume_is_retried() -> None:
    bank = Bank()
    agent = bare(bank)
    kept = await paused(agent)
    for _ in range(2):
        await agent.run(message_history=kept, deferred_tool_results=YES)
    assert bank.sent == ["DE02 420000", "DE02 420000"]


@on_a_loop
async def test_5536_bare_the_yes_is_good_for_other_arguments() -> None:
    bank = Bank()
    agent = bare(bank)
    await agent.run(message_history=await paused(agent), deferred_tool_results=OTHER)
    assert bank.sent == ["DE99 900000"]


@on_a_loop
async def test_5536_with_amends_a_yes_is_used_up_and_bound_to_its_arguments(tmp_path: Path) -> None:
    bank = Bank()
    async with runtime(tmp_path) as rt:
        agent = guarded(bank, rt)
        kept = await paused(agent)
        early = await agent.run(message_history=kept, deferred_tool_results=YES)
        assert isinstance(early.output, DeferredToolRequests), "the bool alone approves nothing"
        [asked] = [one async for one in rt.approvals()]
        await rt.approve(asked.id, digest=asked.digest, by="ben")
        with pytest.raises(amends.Held):  # the run waits for what was approved; the other payee is refused
            await agent.run(message_history=kept, deferred_tool_results=OTHER)
        assert bank.sent == []
        for _ in range(2):
            await agent.run(message_history=kept, deferred_tool_results=YES)
    assert bank.sent == ["DE02 420000"]

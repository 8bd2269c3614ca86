"""Reports about the OpenAI Agents SDK: each fails on the bare framework, and passes with amends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, FunctionTool, Runner, RunState, function_tool, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call

import amends
from amends.adapters.openai_agents import AmendsRunner, amends_tools
from tests.adapters.loops import on_a_loop

REFUND = {"order_id": "A1", "amount": 500}


@pytest.fixture(autouse=True)
def untraced() -> None:
    set_tracing_disabled(True)


@pytest.fixture
def refunds() -> list[str]:
    return []


@pytest.fixture
def refund(refunds: list[str]) -> FunctionTool:
    @function_tool
    def refund(order_id: str, amount: int) -> str:
        """Give money back."""
        refunds.append(f"{order_id} {amount}")
        return "refunded"

    return refund


def agent(script: Sequence[Any], *tools: Any) -> Agent[Any]:
    return Agent(name="support", model=ScriptedModel(script), tools=list(tools))


def asks(call_id: str) -> list[Any]:
    return [function_call("refund", REFUND, call_id=call_id)]


# ---- #4254: "Should the SDK have a story for tools that must not run twice?" ------------------
# The model asks again for the same, under a new tool_call_id: the natural key for a repeat is new each time.

REPLANNED = [asks("call_1"), asks("call_2"), [assistant_message("done")]]


@on_a_loop
async def test_4254_bare_a_repeat_under_a_new_id_gives_the_money_back_twice(
    refund: FunctionTool, refunds: list[str]
) -> None:
    await Runner.run(agent(REPLANNED, refund), "refund A1")
    assert refunds == ["A1 500", "A1 500"]


@on_a_loop
async def test_4254_with_amends_it_is_answered_from_the_record(
    refund: FunctionTool, refunds: list[str], tmp_path: Path
) -> None:
    declared = amends.declare("refund", kind="pivot", key=("order_id", "amount"))
    async with amends.AsyncRuntime(f"sqlite:///{tmp_path}/ledger.db", tools=[declared]) as rt:
        await AmendsRunner(rt).run(agent(REPLANNED, *amends_tools([refund])), "refund A1")
    assert refunds == ["A1 500"]


class Down(Exception):
    """The model cannot be reached."""


@on_a_loop
async def test_4254_bare_a_retry_of_the_whole_run_gives_the_money_back_twice(
    refund: FunctionTool, refunds: list[str]
) -> None:
    with pytest.raises(Down):
        await Runner.run(agent([asks("call_1"), Down()], refund), "refund A1")
    await Runner.run(agent([asks("call_9"), [assistant_message("done")]], refund), "refund A1")
    assert refunds == ["A1 500", "A1 500"]


@on_a_loop
async def test_4254_with_amends_a_retry_under_the_same_run_id_does_not(
    refund: FunctionTool, refunds: list[str], tmp_path: Path
) -> None:
    declared = amends.declare("refund", kind="pivot", key=("order_id", "amount"))
    async with amends.AsyncRuntime(f"sqlite:///{tmp_path}/ledger.db", tools=[declared]) as rt:
        runner, tools = AmendsRunner(rt), amends_tools([refund])
        with pytest.raises(Down):
            await runner.run(agent([asks("call_1"), Down()], *tools), "refund A1", run_id="ticket-7")
        await runner.run(agent([asks("call_9"), [assistant_message("done")]], *tools), "refund A1", run_id="ticket-7")
        assert (await rt.report("ticket-7")).run.state == "committed"
    assert refunds == ["A1 500"]


# ---- #4244: "Tool approval is not honored on resume when `Runner.run` is given a context" -----
# Fixed since (openai-agents-python pull request 4245): with the version tested here it no longer reproduces.


@on_a_loop
async def test_4244_bare_no_longer_reproduces(refund: FunctionTool, refunds: list[str]) -> None:
    refund.needs_approval = True
    support = agent([asks("call_1"), [assistant_message("done")]], refund)
    state = await RunState.from_json(support, (await Runner.run(support, "refund A1")).to_state().to_json())
    state.approve(state.get_interruptions()[0])
    resumed = await Runner.run(support, state, context={"user": "ann"})
    assert resumed.interruptions == []
    assert refunds == ["A1 500"]


@on_a_loop
async def test_4244_bare_what_the_state_says_is_approved_whoever_said_it(
    refund: FunctionTool, refunds: list[str]
) -> None:
    """The other side of it: the approval is a mark in a file that the agent's own process writes, good for any number."""
    refund.needs_approval = True
    script = [asks("call_1"), [assistant_message("done")], [assistant_message("done")]]
    support = agent(script, refund)
    kept = (await Runner.run(support, "refund A1")).to_state()
    kept.approve(kept.get_interruptions()[0])
    approved = kept.to_json()
    for _ in range(2):  # a worker that was killed after the effect, and its successor
        await Runner.run(support, await RunState.from_json(support, approved))
    assert refunds == ["A1 500", "A1 500"]


@on_a_loop
async def test_4244_with_amends_the_ledger_approves_once_whatever_context_is_given(
    refund: FunctionTool, refunds: list[str], tmp_path: Path
) -> None:
    declared = amends.declare("refund", kind="pivot", key=("order_id", "amount"), needs_approval=True)
    script = [asks("call_1"), [assistant_message("done")], [assistant_message("done")]]
    async with amends.AsyncRuntime(f"sqlite:///{tmp_path}/ledger.db", tools=[declared]) as rt:
        support, runner = agent(script, *amends_tools([refund])), AmendsRunner(rt)
        kept = (await runner.run(support, "refund A1")).to_state()
        kept.approve(kept.get_interruptions()[0])
        approved = kept.to_json()
        early = await runner.run(support, await RunState.from_json(support, approved), context={"user": "ann"})
        assert len(early.interruptions) == 1, "nobody in the ledger has said yes"
        [asked] = [one async for one in rt.approvals()]
        await rt.approve(asked.id, digest=asked.digest, by="ben")
        for _ in range(2):
            again = await runner.run(support, await RunState.from_json(support, approved), context={"user": "ann"})
            assert again.interruptions == []
    assert refunds == ["A1 500"]

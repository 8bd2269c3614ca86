"""The OpenAI Agents SDK through the conformance suite, and what is its own: sessions, streams, hooks, its states."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from agents import (
    Agent,
    FunctionTool,
    Handoff,
    LocalShellTool,
    ModelRetrySettings,
    ModelSettings,
    RunContextWrapper,
    Runner,
    RunState,
    SQLiteSession,
    StopAtTools,
    ToolOutputText,
    UserError,
    WebSearchTool,
    function_tool,
    handoff,
    set_tracing_disabled,
)
from agents.mcp import MCPServerStdio
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call
from pydantic import BaseModel, Field

import amends
from amends.adapters.openai_agents import AmendsHooks, AmendsRunner, amends_tools
from amends.errors import NOT_FINISHED, NoRun, Suspended
from amends.stores.waiter import Waiter
from tests.adapters.cells import Cells, Tested
from tests.adapters.conformance import (
    Conformance,
    Fails,
    Outcome,
    Retried,
    RichResults,
    SameRequest,
    SeveralAgents,
    Stopped,
    SupervisorConformance,
    Turn,
    TwoRuntimes,
    asks_clerk,
)
from tests.adapters.loops import on_a_loop
from tests.adapters.shop import Shop

SPOKEN_MAX = 20
CELLS: Cells = {
    "lost server": Tested(
        "test_mcp_clients.py::test_a_server_that_is_killed_after_the_effect_is_a_doubt_and_is_not_asked_again[openai-agents]",
        "test_mcp_clients.py::test_a_server_that_does_not_answer_in_time_is_a_doubt[openai-agents]",
        "test_openai_agents_mcp.py::test_the_sdk_does_not_send_a_lost_request_again",
    ),
    "server's error": Tested(
        "test_mcp_clients.py::test_an_error_of_the_tool_is_a_failure[openai-agents]",
        "test_openai_agents_mcp.py::test_a_result_with_is_error_is_no_success",
    ),
    "not yet": Tested(
        "test_mcp_clients.py::test_what_a_guarded_server_has_not_done_or_does_not_know_is_a_doubt[openai-agents]"
    ),
    "unguarded": Tested(
        "test_a_function_tool_beside_the_guarded_ones_is_guarded",
        "test_the_code_of_a_handoff_is_named_and_refused_with_strict",
        "test_a_tool_that_others_execute_is_named_and_refused_with_strict",
    ),
    "no name": Tested("test_a_turn_without_a_name_is_warned_of_once"),
}


@pytest.fixture(autouse=True)
def untraced() -> None:
    set_tracing_disabled(True)


class OpenAIAgentsHarness:
    """A run id of the program's own for each turn; the state of a pause is a file."""

    def drive(self, shop: Shop, turns: Sequence[Turn], *, thread: str = "t1", resume: bool = False) -> Outcome:
        return asyncio.run(self._drive(shop, turns, thread, resume))

    async def _drive(self, shop: Shop, turns: Sequence[Turn], thread: str, resume: bool) -> Outcome:
        set_tracing_disabled(True)
        rt = amends.AsyncRuntime(shop.url, tools=shop.declared())
        agent = self.agent(shop, turns)
        kept, runner = shop.folder / "state.json", AmendsRunner(rt, tags=(f"thread:{thread}",), **shop.options)
        run_id, back = _turn_of(shop.folder, thread, resume), None
        if resume and kept.exists():
            back = await RunState.from_json(agent, json.loads(kept.read_text(encoding="utf-8")))
            for item in back.get_interruptions():
                back.approve(item)  # a yes that nobody in the ledger has said
        try:
            async with rt:
                # A state finds its own run; a turn that was killed is begun again under its id.
                result = await (runner.run(agent, back) if back else runner.run(agent, "please", run_id=run_id))
        except Exception as error:
            return Outcome("failed", error=str(error))
        items: list[Any] = result.to_input_list()
        told = [str(one["output"]) for one in items if one.get("type") == "function_call_output"]
        if result.interruptions:
            kept.write_text(json.dumps(result.to_state().to_json()), encoding="utf-8")
            return Outcome("paused", told)
        return Outcome("finished", told)

    def agent(self, shop: Shop, turns: Sequence[Turn]) -> Agent[Any]:
        tools = amends_tools([function_tool(fn) for fn in shop.functions()])
        return Agent(name="clerk", model=model_saying(turns), tools=tools)

    def stop(self, shop: Shop, turns: Sequence[Turn], *, after: int) -> None:
        asyncio.run(self._stop(shop, turns, after))

    async def _stop(self, shop: Shop, turns: Sequence[Turn], after: int) -> None:
        set_tracing_disabled(True)
        agent, heard = self.agent(shop, turns), 0
        async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
            runner = AmendsRunner(rt, tags=("thread:t1",), **shop.options)
            async with runner.run_streamed(agent, "please", run_id=_turn_of(shop.folder, "t1", False)) as result:
                async for event in result.stream_events():
                    heard += event.type == "run_item_stream_event" and event.name == "tool_output"
                    if heard == after:
                        result.cancel(mode="after_turn")
        kept = json.dumps(result.to_state().to_json())
        (shop.folder / "state.json").write_text(kept, encoding="utf-8")


class OpenAIAgentsSupervisor(OpenAIAgentsHarness):
    """The clerk is a tool of another agent."""

    def agent(self, shop: Shop, turns: Sequence[Turn]) -> Agent[Any]:
        clerk = super().agent(shop, turns)
        tools = [*clerk.tools, clerk.as_tool("ask_clerk", "Ask the clerk.")]
        return Agent(name="boss", model=model_saying(asks_clerk("input")), tools=tools)


class OpenAIAgentsHandoff(OpenAIAgentsHarness):
    """The first agent hands over to the second, which has its own tools."""

    def agent(self, shop: Shop, turns: Sequence[Turn]) -> Agent[Any]:
        # The second has what the first said before it, too.
        second = super().agent(shop, ["", "", *turns[1:]])
        second.name = "second"
        first = super().agent(shop, [turns[0], [("transfer_to_second", {})]])
        first.handoffs = [second]
        return first


class OpenAIAgentsRetried(OpenAIAgentsHarness):
    """The SDK asks the model again, by ``ModelSettings(retry=...)``."""

    def agent(self, shop: Shop, turns: Sequence[Turn]) -> Agent[Any]:
        made, failed = super().agent(shop, turns), shop.folder / "failed"
        model: Any = made.model
        ask = model.get_response

        async def get_response(*args: Any, **kwargs: Any) -> Any:
            given = kwargs.get("input", args[1] if len(args) > 1 else None)
            if "function_call_output" in str(given) and not failed.exists():
                failed.touch()
                raise ConnectionError("the model is down")
            return await ask(*args, **kwargs)

        model.get_response = get_response
        retry = ModelRetrySettings(max_retries=2, policy=lambda context: True, backoff={"initial_delay": 0.0})
        made.model_settings = ModelSettings(retry=retry)
        return made


class TestOpenAIAgents(Conformance, SameRequest, Stopped, RichResults, TwoRuntimes):
    harness = OpenAIAgentsHarness()


class TestOpenAIAgentsHandoff(SeveralAgents):
    harness = OpenAIAgentsHandoff()


@pytest.mark.rest  # its cases start processes
class TestOpenAIAgentsRetried(Retried):
    harness = OpenAIAgentsRetried()


class TestOpenAIAgentsSupervisor(SupervisorConformance):
    harness = OpenAIAgentsSupervisor()


def _turn_of(folder: Path, thread: str, resume: bool) -> str:
    counted = folder / f"{thread}.turns"
    number = int(counted.read_text()) if counted.exists() else 0
    if not resume:
        number += 1
        counted.write_text(str(number))
    return f"{thread}:{number}"


def model_saying(turns: Sequence[Turn]) -> ScriptedModel:
    """The framework's own fake: says ``turns[n]`` when it has spoken n times since the user did."""

    def say(call: Any) -> Any:
        items = call.input if isinstance(call.input, list) else []
        spoken, was = 0, False
        for item in items:
            kind = item.get("type") or item.get("role")
            if item.get("role") == "user" and not str(item.get("content")).startswith(NOT_FINISHED):
                spoken = 0
            is_models = kind == "function_call" or item.get("role") == "assistant"
            spoken += is_models and not was
            was = is_models
        turn = turns[min(spoken, len(turns) - 1)]
        if isinstance(turn, Fails):
            raise RuntimeError(turn.message)
        if isinstance(turn, str):
            return [assistant_message(turn)]
        return [function_call(name, args, call_id=f"call_{uuid4().hex}") for name, args in turn]

    return ScriptedModel([ModelStep.respond(say)] * SPOKEN_MAX)


# ---- its own ------------------------------------------------------------------------------


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def clerk(shop: Shop, turns: Sequence[Turn], **options: Any) -> Agent[Any]:
    tools = amends_tools([function_tool(fn, **options) for fn in shop.functions()])
    return Agent(name="clerk", model=model_saying(turns), tools=tools)


CHARGED: list[Turn] = [[("charge", {"order": "A1", "cents": 500})], "charged"]


@on_a_loop
async def test_a_session_is_a_tag_of_its_runs(shop: Shop) -> None:
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        await AmendsRunner(rt).run(clerk(shop, CHARGED), "please", session=SQLiteSession("s1"))
    assert shop.runs()[0].tags == ("thread:s1",)
    assert shop.runs()[0].output == "charged"


@on_a_loop
async def test_a_streamed_turn_has_ended_with_its_block(shop: Shop) -> None:
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        async with AmendsRunner(rt).run_streamed(clerk(shop, CHARGED), "please") as result:
            seen = [event.type async for event in result.stream_events()]
        assert "run_item_stream_event" in seen
        async with AmendsRunner(rt).run_streamed(clerk(shop, CHARGED), "nobody reads this"):
            pass
        failing: list[Turn] = [*CHARGED[:1], Fails("down")]
        with pytest.raises(RuntimeError, match="down"):
            async with AmendsRunner(rt).run_streamed(clerk(shop, failing), "please") as result:
                async for _ in result.stream_events():
                    pass
        with pytest.raises(ZeroDivisionError):
            async with AmendsRunner(rt).run_streamed(clerk(shop, CHARGED), "please") as result:
                async for event in result.stream_events():
                    if event.type == "run_item_stream_event" and event.name == "tool_output":
                        raise ZeroDivisionError
    assert shop.states() == ["committed", "committed", "rolled_back", "rolled_back"]


@on_a_loop
async def test_a_streamed_turn_pauses(shop: Shop) -> None:
    turns: list[Turn] = [[("wire", {"iban": "DE02", "cents": 4200_00})], "paid"]
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        async with AmendsRunner(rt).run_streamed(clerk(shop, turns), "please") as result:
            async for _ in result.stream_events():
                pass
        assert [item.tool_name for item in result.interruptions] == ["wire"]
    assert shop.states() == ["open"]


@on_a_loop
async def test_a_run_that_is_open_is_joined_and_hooks_tell_it_the_output(shop: Shop) -> None:
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        async with rt.run("order-1"):
            await Runner.run(clerk(shop, CHARGED), "please", hooks=AmendsHooks())
            await AmendsRunner(rt).run(clerk(shop, [[("ship", {"order": "A1"})], "sent"]), "please")
    assert shop.effects() == ["charge A1 500", "ship A1"]
    assert [(run.id, run.state, run.output) for run in shop.runs()] == [("order-1", "committed", "charged")]


@on_a_loop
async def test_a_turn_of_another_runtime_inside_a_tool_has_its_own_run_and_the_outer_one_goes_on(shop: Shop) -> None:
    inner_url = f"sqlite:///{shop.folder / 'inner.db'}"

    @amends.tool(kind="pivot")
    async def ask_the_bank(order: str) -> str:
        agent = clerk(shop, [[("charge", {"order": order, "cents": 5})], "charged"])
        result = await AmendsRunner(inner).run(agent, "please", run_id=f"bank-{order}")
        return str(result.final_output)

    turns: list[Turn] = [
        [("charge", {"order": "A1", "cents": 500})], [("ask_the_bank", {"order": "A1"})], [("mail", {"to": "ann"})], "done",
    ]  # fmt: skip
    async with (
        amends.AsyncRuntime(inner_url, tools=shop.declared()) as inner,
        amends.AsyncRuntime(shop.url, tools=[*shop.declared(), ask_the_bank]) as outer,
    ):
        agent = clerk(shop, turns)
        agent.tools += amends_tools([ask_the_bank])
        await AmendsRunner(outer).run(agent, "please", run_id="r")
        async with outer.run("own"):
            await AmendsRunner(inner).run(
                clerk(shop, [[("charge", {"order": "B1", "cents": 6})], "ok"]), "p", run_id="i"
            )
        assert [call.tool for call in (await outer.report("r")).calls] == ["charge", "ask_the_bank", "mail"]
        assert [call.tool for call in (await outer.report("own")).calls] == []
        assert sorted([run.id async for run in inner.runs()]) == ["bank-A1", "i"]
    assert shop.effects() == ["charge A1 500", "charge A1 5", "mail ann", "charge B1 6"]


@on_a_loop
async def test_outside_a_run_nothing_is_done(shop: Shop) -> None:
    with pytest.raises(Exception, match="there is no current run here") as failed:
        await Runner.run(clerk(shop, CHARGED), "please")
    assert isinstance(failed.value.__cause__, NoRun)
    assert shop.effects() == []


@on_a_loop
async def test_an_agent_as_a_tool_works_in_a_child_of_the_run(shop: Shop) -> None:
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        inner = clerk(shop, CHARGED).as_tool("ask_clerk", "Let the clerk do it.")
        outer = Agent(name="boss", model=model_saying([[("ask_clerk", {"input": "do"})], "done"]), tools=[inner])
        await AmendsRunner(rt).run(outer, "please", run_id="order-1")
    assert shop.effects() == ["charge A1 500"]
    assert shop.states() == ["committed"]


@on_a_loop
async def test_an_agent_as_a_tool_pauses_the_one_that_asked_it(shop: Shop) -> None:
    wires: list[Turn] = [[("wire", {"iban": "DE02", "cents": 4200_00})], "paid"]
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        runner = AmendsRunner(rt)
        inner = clerk(shop, wires).as_tool("ask_clerk", "Let the clerk do it.")
        outer = Agent(name="boss", model=model_saying([[("ask_clerk", {"input": "do"})], "done"]), tools=[inner])
        paused = await runner.run(outer, "please")
        assert [item.tool_name for item in paused.interruptions] == ["wire"]
        kept = paused.to_state().to_json()
        [asked] = [one async for one in rt.approvals()]
        await rt.approve(asked.id, digest=asked.digest, by="anna")
        done = await runner.run(outer, await RunState.from_json(outer, kept))
        assert done.final_output == "done"
    assert shop.effects() == ["wire DE02 420000"]
    assert shop.states() == ["committed"]


@on_a_loop
async def test_a_guarded_agent_as_a_tool_has_not_ended_when_it_pauses(shop: Shop) -> None:
    def undo(result: Any) -> None: ...

    more = [amends.declare("ask_clerk", compensate=undo), amends.declare("stamp", compensate=undo, needs_approval=True)]
    async with amends.AsyncRuntime(shop.url, tools=[*shop.declared(), *more]) as rt:
        runner = AmendsRunner(rt)
        inner = clerk(shop, [[("stamp", {"text": "x"})], "stamped"]).as_tool("ask_clerk", "Let the clerk do it.")
        asks = model_saying([[("ask_clerk", {"input": "do"})], "done"])
        outer = Agent(name="boss", model=asks, tools=amends_tools([inner]))
        paused = await runner.run(outer, "please")
        assert [item.tool_name for item in paused.interruptions] == ["stamp"]
        kept = paused.to_state().to_json()
        [asked] = [one async for one in rt.approvals()]
        await rt.approve(asked.id, digest=asked.digest, by="anna")
        done = await runner.run(outer, await RunState.from_json(outer, kept))
        assert done.final_output == "done"
    assert shop.effects() == ["stamp x"]
    assert shop.states() == ["committed"]


@on_a_loop
async def test_a_state_goes_on_in_a_block_of_the_programs_own(shop: Shop) -> None:
    agent = clerk(shop, [[("wire", {"iban": "DE02", "cents": 4200_00})], "paid"])
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        with pytest.raises(amends.Held):
            async with rt.run("r"):
                paused = await AmendsRunner(rt).run(agent, "please")
        [asked] = [one async for one in rt.approvals()]
        await rt.approve(asked.id, digest=asked.digest, by="anna")
        async with rt.run("r", history=True):
            done = await AmendsRunner(rt).run(agent, paused.to_state())
        assert done.final_output == "paid"
    assert shop.effects() == ["wire DE02 420000"]


@on_a_loop
async def test_guarded_twice_is_guarded_once(shop: Shop) -> None:
    tools = amends_tools(amends_tools([function_tool(fn) for fn in shop.functions()]))
    agent = Agent(name="clerk", model=model_saying([*CHARGED[:1], *CHARGED]), tools=tools)
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        result = await AmendsRunner(rt).run(agent, "please")
        assert "Already done" in str(result.to_input_list())
    assert shop.effects() == ["charge A1 500"]


@on_a_loop
async def test_what_the_program_says_of_errors_is_kept(shop: Shop) -> None:
    turns: list[Turn] = [[("charge", {"order": "nowhere", "cents": 5})], [("ship", {"order": "nowhere"})], "no"]
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        told = clerk(shop, turns, failure_error_function=lambda ctx, error: f"sorry: {error}")
        result = await AmendsRunner(rt, on_open_failure="commit").run(told, "please")
        assert "sorry: address unknown" in str(result.to_input_list())
        with pytest.raises(Exception, match="address unknown"):
            await AmendsRunner(rt).run(clerk(shop, turns, failure_error_function=None), "please")
    assert shop.states() == ["committed", "rolled_back"]


@on_a_loop
async def test_a_timeout_of_the_sdk_is_doubt(shop: Shop) -> None:
    async def slow(order: str) -> str:
        await asyncio.Event().wait()
        return order

    # Long enough for the body to begin on a busy machine: a call that was not sent is in no doubt.
    guarded = amends_tools([function_tool(slow, timeout=0.5)])
    async with amends.AsyncRuntime(shop.url, tools=[amends.declare("slow", kind="pivot")]) as rt:
        agent = Agent(name="clerk", model=model_saying([[("slow", {"order": "A1"})], "hm"]), tools=guarded)
        with pytest.raises(amends.RunBlocked):
            await AmendsRunner(rt).run(agent, "please", run_id="r")
        assert [call.state for call in (await rt.report("r")).calls] == ["in_doubt"]


@on_a_loop
async def test_a_pause_of_the_sdk_alone_does_not_commit(shop: Shop) -> None:
    async def always(ctx: RunContextWrapper[Any], args: dict[str, Any], call_id: str) -> bool:
        return True

    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        agent, runner = clerk(shop, CHARGED, needs_approval=always), AmendsRunner(rt)
        paused = await runner.run(agent, "please", run_id="r")
        assert [item.tool_name for item in paused.interruptions] == ["charge"]
        assert (await rt.report("r")).run.state == "open"
        state = paused.to_state()
        state.approve(state.get_interruptions()[0])
        await runner.run(agent, state, run_id="r")
    assert shop.effects() == ["charge A1 500"]
    assert shop.states() == ["committed"]


@on_a_loop
async def test_a_state_that_no_run_waits_for_must_be_told_its_run(shop: Shop) -> None:
    turns: list[Turn] = [[("wire", {"iban": "DE02", "cents": 4200_00})], "paid"]
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        paused = await AmendsRunner(rt).run(clerk(shop, turns), "please")
        async with amends.AsyncRuntime("memory:", tools=shop.declared()) as other:
            with pytest.raises(amends.UsageError, match=r"none of its calls \(wire\) is in this ledger"):
                await AmendsRunner(other).run(clerk(shop, turns), paused.to_state())


@on_a_loop
async def test_a_call_that_a_person_approved_and_the_program_rejected_is_not_done(shop: Shop) -> None:
    turns: list[Turn] = [[("wire", {"iban": "DE02", "cents": 4200_00})], "then not"]
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        agent = clerk(shop, turns)
        state = (await AmendsRunner(rt).run(agent, "please", run_id="r")).to_state()
        await approve_all(rt)
        state.reject(state.get_interruptions()[0])
        await AmendsRunner(rt).run(agent, state)
        assert [call.state for call in (await rt.report("r")).calls] == ["dropped"]
    assert (shop.effects(), shop.states()) == ([], ["committed"])


@on_a_loop
async def test_tools_of_amends_are_given_as_they_are(shop: Shop) -> None:
    @amends.tool(kind="pivot", key="order")
    def pay(order: str, cents: int = 5) -> str:
        """Pay an order."""
        return f"paid {order} {cents}"

    [guarded] = amends_tools([pay])
    assert (guarded.name, getattr(guarded, "description", "")) == ("pay", "Pay an order.")
    async with amends.AsyncRuntime(shop.url, tools=[pay]) as rt:
        agent = Agent(name="clerk", model=model_saying([[("pay", {"order": "A1"})], "done"]), tools=[guarded])
        result = await AmendsRunner(rt).run(agent, "please")
    assert "paid A1 5" in str(result.to_input_list())


def test_a_tool_that_others_execute_is_refused() -> None:
    with pytest.raises(amends.UsageError, match="its calls cannot be recorded"):
        amends_tools([WebSearchTool()])


@pytest.mark.parametrize("strict", [True, False])
@on_a_loop
async def test_a_model_may_say_that_it_means_a_call_once_more(shop: Shop, strict: bool) -> None:
    bare = [function_tool(fn, strict_mode=strict) for fn in shop.functions() if fn.__name__ == "charge"]
    tools = amends_tools(bare, repeats=True)
    args: dict[str, Any] = {"order": "A1", "cents": 500, "note": ""}
    turns: list[Turn] = [[("charge", args)], [("charge", {**args, "again_because": "a second box"})], "charged"]
    if strict:
        turns[0] = [("charge", {**args, "again_because": None})]
    async with amends.AsyncRuntime(shop.url, tools=shop.declared(), repeats=True) as rt:
        model = model_saying(turns)
        await AmendsRunner(rt).run(Agent(name="clerk", model=model, tools=tools), "please", run_id="r")
        assert [call.again for call in (await rt.report("r")).calls] == [None, "a second box"]
    shown: Any = tools[0]
    assert ("again_because" in shown.params_json_schema["required"]) is strict
    assert "again_because" not in str(bare[0].params_json_schema)
    assert shop.effects() == ["charge A1 500", "charge A1 500"]


# ---- a stop -----------------------------------------------------------------------------------

STOPPED: list[Turn] = [
    [("mail", {"to": "ann"}), ("charge", {"order": "A1", "cents": 500})],
    [("charge", {"order": "A2", "cents": 7})],
    "done",
]


def _is_output(event: Any) -> bool:
    return event.type == "run_item_stream_event" and event.name == "tool_output"


async def _stop_here(runner: AmendsRunner, agent: Agent[Any], how: str) -> Any:
    """Run one turn in the run "r" and stop it when the first tool has answered; return its result."""
    kept: list[Any] = []

    async def events() -> Any:
        async with runner.run_streamed(agent, "please", run_id="r") as result:
            kept.append(result)
            async for event in result.stream_events():
                if _is_output(event) and how in ("immediate", "after_turn"):
                    result.cancel(how)  # type: ignore[arg-type]
                if _is_output(event) and how == "break":
                    break
                yield event

    if how == "break":
        async for _ in events():
            pass
    elif how == "closed":
        stream = events()
        async for event in stream:
            if _is_output(event):
                break
        await stream.aclose()
    elif how == "not streamed":
        asking, model = asyncio.Event(), agent.model
        answers: Any = model.get_response  # type: ignore[union-attr]

        async def get_response(*args: Any, **kwargs: Any) -> Any:
            if "function_call_output" not in str((args, kwargs)):
                return await answers(*args, **kwargs)
            asking.set()
            return await asyncio.Event().wait()

        model.get_response = get_response  # type: ignore[union-attr, method-assign, assignment]
        running = asyncio.ensure_future(runner.run(agent, "please", run_id="r"))
        await asking.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        model.get_response = answers  # type: ignore[union-attr, method-assign]
        return None
    elif how == "cancelled":
        reached = asyncio.Event()

        async def consume() -> None:
            async with runner.run_streamed(agent, "please", run_id="r") as result:
                kept.append(result)
                async for event in result.stream_events():
                    if _is_output(event):
                        reached.set()
                        await asyncio.Event().wait()

        consuming = asyncio.ensure_future(consume())
        await reached.wait()
        consuming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await consuming
    else:
        async for _ in events():
            pass
    return kept[0]


@pytest.mark.parametrize("how", ["immediate", "after_turn", "break", "closed", "cancelled", "not streamed"])
@pytest.mark.parametrize("by_state", [True, False], ids=["by its state", "by its id"])
@on_a_loop
async def test_every_way_to_stop_suspends_and_the_turn_goes_on(shop: Shop, how: str, by_state: bool) -> None:
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        agent, runner = clerk(shop, STOPPED), AmendsRunner(rt)
        result = await _stop_here(runner, agent, how)
        assert (await rt.report("r")).state == "open"
        assert shop.effects() == ["charge A1 500"], "nothing staged has started, and nothing was taken back"
        assert await rt.recover() == []
        assert [item.what for item in await rt.inbox()] == ["suspended"]
        if by_state and how == "after_turn":
            state = await RunState.from_json(agent, json.loads(json.dumps(result.to_state().to_json())))
            done = await runner.run(agent, state)
        else:
            done = await runner.run(agent, "please", run_id="r")
        assert done.final_output == "done"
    assert shop.effects() == ["charge A1 500", "charge A2 7", "mail ann"]
    assert shop.states() == ["committed"]


@on_a_loop
async def test_a_state_that_was_stopped_may_be_delivered_twice(shop: Shop) -> None:
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        agent, runner = clerk(shop, STOPPED), AmendsRunner(rt)
        kept = (await _stop_here(runner, agent, "after_turn")).to_state().to_json()
        for _ in range(2):
            await runner.run(agent, await RunState.from_json(agent, kept))
    assert shop.effects() == ["charge A1 500", "charge A2 7", "mail ann"]
    assert shop.states() == ["committed"]


@on_a_loop
async def test_a_stop_in_a_run_of_the_programs_own_suspends_that_run(shop: Shop) -> None:
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        with pytest.raises(Suspended):
            async with rt.run("own"):
                await _stop_here(AmendsRunner(rt), clerk(shop, STOPPED), "after_turn")
    assert shop.effects() == ["charge A1 500"]
    assert shop.states() == ["open"]


@on_a_loop
async def test_a_cancel_after_the_last_event_is_no_stop(shop: Shop) -> None:
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        async with AmendsRunner(rt).run_streamed(clerk(shop, CHARGED), "please", run_id="r") as result:
            async for _ in result.stream_events():
                pass
            result.cancel()
        async with AmendsRunner(rt).run_streamed(clerk(shop, CHARGED), "please", run_id="s") as result:
            async for event in result.stream_events():
                if event.type == "run_item_stream_event" and event.name == "message_output_created":
                    break  # the model has said its last word
    assert shop.states() == ["committed", "committed"]


@on_a_loop
async def test_a_loop_left_early_is_a_stop_also_after_the_model_was_told_what_is_missing(shop: Shop) -> None:
    turns: list[Turn] = [
        [("charge", {"order": "A1", "cents": 500})], [("ship", {"order": "nowhere"})], "sorry",
        [("charge", {"order": "A2", "cents": 7})], [("ship", {"order": "A1"})], "sent",
    ]  # fmt: skip
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        async with AmendsRunner(rt).run_streamed(clerk(shop, turns), "please", run_id="r") as result:
            outputs = 0
            async for event in result.stream_events():
                outputs += _is_output(event)
                if outputs == 3:
                    break
        assert shop.effects() == ["charge A1 500", "charge A2 7"]
        assert shop.states() == ["open"]
        done = await AmendsRunner(rt).run(clerk(shop, turns), "please", run_id="r")
        assert done.final_output == "sent"
    assert shop.effects() == ["charge A1 500", "charge A2 7", "ship A1"]


@on_a_loop
async def test_what_was_staged_before_a_pause_is_done_when_the_state_goes_on(shop: Shop) -> None:
    turns: list[Turn] = [[("mail", {"to": "ann"})], [("stamp", {"text": "x"})], "done"]
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        paused = await AmendsRunner(rt).run(clerk(shop, turns), "please", run_id="r")
        kept = paused.to_state().to_json()
        [asked] = [one async for one in rt.approvals()]
        await rt.approve(asked.id, digest=asked.digest, by="anna")
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        agent = clerk(shop, turns)
        await AmendsRunner(rt).run(agent, await RunState.from_json(agent, kept))
    assert shop.effects() == ["stamp x", "mail ann"]
    assert shop.states() == ["committed"]


# ---- the same request in other words ------------------------------------------------------------


class Address(BaseModel):
    street: str
    country: str = "DE"


class Speed(Enum):
    SLOW = "slow"


@pytest.mark.parametrize(
    "first, second",
    [
        ({"to": {"street": "a"}}, {"to": {"street": "a", "country": "DE"}}),
        ({"to": {"street": "a"}}, {"to": {"street": "a"}, "grams": "100"}),
        ({"to": {"street": "a"}}, {"to": {"street": "a"}, "worth": "5.00"}),
        ({"to": {"street": "a"}, "speed": "slow"}, {"to": {"street": "a"}, "gift": True}),
        ({"to": {"street": "a"}, "at": "2026-01-01T00:00:00Z"}, {"to": {"street": "a"}, "at": "2026-01-01T00:00:00+00:00"}),
    ],
    ids=["nested default", "number as text", "decimal", "enum and unknown", "time"],
)  # fmt: skip
@pytest.mark.parametrize("by_hand", [False, True], ids=["function_tool", "in place"])
@on_a_loop
async def test_defaults_and_spellings_make_no_other_call(
    shop: Shop, first: dict[str, Any], second: dict[str, Any], by_hand: bool
) -> None:
    sent: list[Any] = []
    ids = iter(range(100))

    def parcel(
        to: Address,
        grams: int = 100,
        worth: Decimal = Decimal(5),
        speed: Speed = Speed.SLOW,
        at: datetime = datetime(2026, 1, 1, tzinfo=UTC),
        ref: int = Field(default_factory=lambda: next(ids)),
    ) -> str:
        sent.append((to, grams, worth, speed))
        return "sent"

    own = function_tool(parcel, strict_mode=False)
    agent = Agent(
        name="clerk", model=model_saying([[("parcel", first)], [("parcel", second)], "sent"]),
        tools=[own] if by_hand else amends_tools([own]),
    )  # fmt: skip
    async with amends.AsyncRuntime(shop.url, tools=[amends.declare("parcel", kind="pivot")]) as rt:
        result = await AmendsRunner(rt).run(agent, "please", run_id="r")
        assert "Already done" in str(result.to_input_list())
        [call] = (await rt.report("r")).calls
        assert call.args["worth"] == Decimal(5)
    assert sent == [(Address(street="a"), 100, Decimal(5), Speed.SLOW)]


@on_a_loop
async def test_a_tool_made_by_hand_is_bound_by_its_json_schema(shop: Shop) -> None:
    sent: list[str] = []

    async def invoke(ctx: Any, arguments: str) -> str:
        sent.append(arguments)
        return "ok"

    schema = {
        "type": "object", "required": ["n"], "additionalProperties": False,
        "properties": {
            "n": {"type": "integer"}, "mode": {"type": "string", "default": "fast"}, "note": {"type": ["string", "null"]},
            "at": {"$ref": "#/$defs/at"},
        },
        "$defs": {"at": {"type": "object", "properties": {"x": {"type": "number", "default": 1}}}},
    }  # fmt: skip
    own = FunctionTool("ping", "Ping.", schema, invoke, strict_json_schema=False)
    asked: list[dict[str, Any]] = [
        {"n": 1, "at": {}}, {"n": "1", "mode": "fast", "at": {"x": 1}}, {"n": 1, "note": None, "at": {"x": "1.0"}},
        {"n": 1, "at": {}, "colour": "red"},
    ]  # fmt: skip
    turns: list[Turn] = [*([("ping", one)] for one in asked), "done"]
    async with amends.AsyncRuntime(shop.url, tools=[amends.declare("ping", kind="pivot")]) as rt:
        agent = Agent(name="clerk", model=model_saying(turns), tools=amends_tools([own]))
        await AmendsRunner(rt).run(agent, "please", run_id="r")
        assert len((await rt.report("r")).calls) == 1
    assert [json.loads(one) for one in sent] == [{"n": 1, "mode": "fast", "at": {"x": 1}}], "it gets what is recorded"


# ---- what the agent has besides ---------------------------------------------------------------------


@on_a_loop
async def test_a_function_tool_beside_the_guarded_ones_is_guarded(shop: Shop) -> None:
    agent = Agent(
        name="clerk", model=model_saying([*CHARGED[:1], *CHARGED]), tools=[function_tool(fn) for fn in shop.functions()[:3]]
    )  # fmt: skip
    before = list(agent.tools)
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        result = await AmendsRunner(rt).run(agent, "please", run_id="r")
        assert "Already done" in str(result.to_input_list())
        assert [call.tool for call in (await rt.report("r")).calls] == ["charge"]
    assert result.last_agent is agent
    assert all(one is other for one, other in zip(agent.tools, before, strict=True))
    assert shop.effects() == ["charge A1 500"]


@on_a_loop
async def test_outside_of_a_run_such_a_tool_does_what_it_did(shop: Shop) -> None:
    done: list[str] = []

    def ping(to: str) -> str:
        done.append(to)
        return "pong"

    agent = Agent(name="clerk", model=model_saying([[("ping", {"to": "a"})], "ok"]), tools=[function_tool(ping)])
    async with amends.AsyncRuntime(shop.url, tools=[amends.declare("ping", kind="pivot")]) as rt:
        await AmendsRunner(rt).run(agent, "please", run_id="r")
    await Runner.run(clerk_like(agent, [[("ping", {"to": "b"})], "ok"]), "please")
    assert done == ["a", "b"]


def clerk_like(agent: Agent[Any], turns: Sequence[Turn]) -> Agent[Any]:
    return agent.clone(model=model_saying(turns))


@pytest.mark.parametrize("made", ["agent", "handoff", "by hand"])
@on_a_loop
async def test_tools_behind_a_handoff_are_guarded(shop: Shop, made: str) -> None:
    cashier = Agent(
        name="cashier", model=model_saying([*CHARGED[:1], *CHARGED]), tools=[function_tool(shop.functions()[0])]
    )

    async def choose(ctx: Any, arguments: str) -> Agent[Any]:
        return cashier

    to: Any = {
        "agent": cashier, "handoff": handoff(cashier),
        "by hand": Handoff("transfer_to_cashier", "To the cashier.", {}, choose, "cashier", strict_json_schema=False),
    }[made]  # fmt: skip
    clerk = Agent(
        name="clerk", model=ScriptedModel([[function_call("transfer_to_cashier", {}, call_id="t1")]]), handoffs=[to]
    )
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        result = await AmendsRunner(rt).run(clerk, "please", run_id="r")
        assert [call.tool for call in (await rt.report("r")).calls] == ["charge"]
    assert result.last_agent is cashier
    assert shop.effects() == ["charge A1 500"]


@on_a_loop
async def test_the_code_of_a_handoff_is_named_and_refused_with_strict(shop: Shop, caplog: Any) -> None:
    called: list[str] = []
    cashier = Agent(name="cashier", model=model_saying(["hello"]))
    model = ScriptedModel([[function_call("transfer_to_cashier", {}, call_id="t1")]] * 3)
    to = handoff(cashier, on_handoff=lambda ctx: called.append("told the cashier"))
    clerk = Agent(name="clerk", model=model, handoffs=[to])
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        with pytest.raises(amends.UsageError, match="on_handoff of transfer_to_cashier"):
            await AmendsRunner(rt, strict=True).run(clerk, "please", run_id="r")
        assert (called, [one.id async for one in rt.runs()]) == ([], [])
        runner = AmendsRunner(rt)
        for run_id in ("a", "b"):
            await runner.run(clerk, "please", run_id=run_id)
    assert called == ["told the cashier"] * 2
    assert [one.getMessage().count("on_handoff of transfer_to_cashier") for one in caplog.records].count(1) == 1


@on_a_loop
async def test_a_handoff_that_is_declared_is_a_call_of_the_run(shop: Shop) -> None:
    called: list[str] = []
    cashier = Agent(name="cashier", model=model_saying(["hello"]))
    to = handoff(cashier, on_handoff=lambda ctx: called.append("told the cashier"))
    declared = amends.declare("transfer_to_cashier", kind="pivot")
    async with amends.AsyncRuntime(shop.url, tools=[declared]) as rt:
        for _ in range(2):  # the second time as a process that was killed begins again
            model = ScriptedModel([[function_call("transfer_to_cashier", {}, call_id="t1")]])
            clerk = Agent(name="clerk", model=model, handoffs=[to])
            result = await AmendsRunner(rt, strict=True).run(clerk, "please", run_id="r")
            assert result.last_agent is cashier
    assert called == ["told the cashier"]


@on_a_loop
async def test_a_tool_that_others_execute_is_named_and_refused_with_strict(shop: Shop, caplog: Any) -> None:
    shell: Any = LocalShellTool(executor=lambda request: "")
    behind = Agent(name="behind", model=model_saying(["x"]), tools=[shell, WebSearchTool()])
    clerk = Agent(name="clerk", model=model_saying(["hello"]), handoffs=[behind])
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        with pytest.raises(amends.UsageError, match=r"agent behind has .*local_shell"):
            await AmendsRunner(rt, strict=True).run(clerk, "please", run_id="r")
        await AmendsRunner(rt).run(clerk, "please", run_id="r")
    assert "agent behind has what amends cannot record: local_shell" in caplog.text
    assert "web_search" not in caplog.text


@on_a_loop
async def test_tools_of_mcp_servers_are_guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    effects, taken = tmp_path / "effects", []
    root = str(Path(__file__).resolve().parents[2])
    params: Any = {
        "command": sys.executable, "args": ["-m", "tests.adapters.mcp_desk", str(effects)], "cwd": root,
    }  # fmt: skip

    def cancel(result: Any) -> None:
        taken.append(result)

    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    async with (
        MCPServerStdio(params=params, client_session_timeout_seconds=60) as server,
        amends.AsyncRuntime(url, tools=[amends.declare("book", key="room", compensate=cancel)]) as rt,
    ):
        runner = AmendsRunner(rt, strict=True)

        def agent(*turns: Turn) -> Agent[Any]:
            return Agent(name="clerk", model=model_saying(turns), mcp_servers=[server])

        book: Any = [("book", {"room": "7"})]
        result = await runner.run(agent(book, [("book", {"room": "7", "nights": "1"})], "booked"), "please", run_id="r")
        assert "Already done" in str(result.to_input_list())
        assert effects.read_text().splitlines() == ["book 7 1"]
        assert [call.state for call in (await rt.report("r")).calls] == ["succeeded"]
        # A failure that the server reports is a failure, and what was done before is taken back with what it returned.
        fails = agent([("book", {"room": "8"})], [("book", {"room": "none"})], "sorry")
        with pytest.raises(amends.RolledBack):
            await runner.run(fails, "please", run_id="s")
        assert taken == [{"id": "b_8", "nights": 1}]
        # One that nobody declared waits for a person, with the SDK's own pause.
        waits = agent([("erase", {"room": "9"})], "erased")
        paused = await runner.run(waits, "please", run_id="t")
        assert [item.tool_name for item in paused.interruptions] == ["erase"]
        [asked] = [one async for one in rt.approvals()]
        await rt.approve(asked.id, digest=asked.digest, by="anna")
        done = await runner.run(waits, paused.to_state())
        assert done.final_output == "erased"
    assert effects.read_text().splitlines() == ["book 7 1", "book 8 1", "erase 9"]


@on_a_loop
async def test_a_tool_of_an_mcp_server_that_was_staged_before_a_pause_is_done_after_it(tmp_path: Path) -> None:
    effects, root = tmp_path / "effects", str(Path(__file__).resolve().parents[2])
    params: Any = {"command": sys.executable, "args": ["-m", "tests.adapters.mcp_desk", str(effects)], "cwd": root}
    declared = [amends.declare("book", kind="retriable", idempotent=True)]
    turns: list[Turn] = [[("book", {"room": "7"})], [("erase", {"room": "9"})], "done"]
    async with MCPServerStdio(params=params, client_session_timeout_seconds=60) as server:
        kept: Any = None
        for _ in range(2):  # each time as a process of its own
            agent = Agent(name="clerk", model=model_saying(turns), mcp_servers=[server])
            async with amends.AsyncRuntime(f"sqlite:///{tmp_path / 'ledger.db'}", tools=declared) as rt:
                back: Any = "please" if kept is None else await RunState.from_json(agent, kept)
                result = await AmendsRunner(rt).run(agent, back, run_id="r")
                kept = json.loads(json.dumps(result.to_state().to_json())) if result.interruptions else None
                async for asked in rt.approvals("state:pending"):
                    await rt.approve(asked.id, digest=asked.digest, by="anna")
    assert effects.read_text().splitlines() == ["erase 9", "book 7 1"]


# ---- a name, stop_on_first_tool, what the model is told ----------------------------------------------


@on_a_loop
async def test_a_turn_without_a_name_is_warned_of_once(shop: Shop, caplog: Any) -> None:
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        runner = AmendsRunner(rt)
        await runner.run(clerk(shop, CHARGED), "please", run_id="r")
        assert "no name" not in caplog.text
        for _ in range(2):
            await runner.run(clerk(shop, CHARGED), "please")
        async with rt.run("own"):
            await AmendsRunner(rt).run(clerk(shop, CHARGED), "please")
    assert caplog.text.count("has no name of yours") == 1


@pytest.mark.parametrize("stop", ["stop_on_first_tool", StopAtTools(stop_at_tool_names=["ship"])])
@on_a_loop
async def test_only_a_result_is_the_output_of_an_agent_that_stops_at_a_tool(shop: Shop, stop: Any) -> None:
    ship: Any = [("ship", {"order": "A1"})]
    agent = clerk(shop, [ship, CHARGED[0], ship, "never said"])
    agent.tool_use_behavior = stop
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        result = await AmendsRunner(rt).run(agent, "please", run_id="r")
        again = await AmendsRunner(rt).run(agent, "please", run_id="r")
    expected = str({"id": "ch_A1", "cents": 500}) if stop == "stop_on_first_tool" else "parcel_A1"
    assert result.final_output == again.final_output == expected
    assert shop.effects()[-1] == ("charge A1 500" if stop == "stop_on_first_tool" else "ship A1")


@pytest.mark.parametrize("offered", [True, False])
@on_a_loop
async def test_a_model_is_told_of_a_repeat_only_if_its_schema_has_it(shop: Shop, offered: bool) -> None:
    own = [function_tool(shop.functions()[0])]
    turns: list[Turn] = [[("charge", {"order": "A1", "cents": 5})], [("charge", {"order": "A1", "cents": 6})], "hm"]
    async with amends.AsyncRuntime(shop.url, tools=shop.declared(), repeats=True) as rt:
        agent = Agent(name="clerk", model=model_saying(turns), tools=amends_tools(own, repeats=offered))
        result = await AmendsRunner(rt).run(agent, "please", run_id="r")
        assert ("again_because" in str(result.to_input_list())) is offered
    async with amends.AsyncRuntime("memory:", tools=shop.declared()) as strict:
        agent = Agent(name="clerk", model=model_saying(turns), tools=amends_tools(own, repeats=True))
        with pytest.raises(amends.UsageError, match="does not honour"):
            await AmendsRunner(strict).run(agent, "please", run_id="r")


@dataclass
class Receipt:
    id: str
    total: Decimal


@pytest.mark.parametrize(
    "value",
    [Receipt("r1", Decimal("1.50")), Address(street="a"), Decimal("1.50"), ("a", 1), ToolOutputText(text="t")],
    ids=["dataclass", "model", "decimal", "tuple", "tool output"],
)
@on_a_loop
async def test_a_compensation_gets_what_the_tool_returned(shop: Shop, value: Any) -> None:
    taken: list[Any] = []

    def make(order: str) -> Any:
        return value

    make.__annotations__["return"] = type(value)
    turns: list[Turn] = [[("make", {"order": "A1"})], Fails("down")]
    async with amends.AsyncRuntime(
        shop.url, tools=[amends.declare("make", key="order", compensate=lambda result: taken.append(result))]
    ) as rt:
        agent = Agent(name="clerk", model=model_saying(turns), tools=amends_tools([function_tool(make)]))
        with pytest.raises(RuntimeError, match="down"):
            await AmendsRunner(rt).run(agent, "please", run_id="r")
    assert taken == [value]
    assert type(taken[0]) is type(value)


def test_a_turn_without_an_event_loop(shop: Shop) -> None:
    rt = amends.AsyncRuntime(shop.url, tools=shop.declared())
    result = AmendsRunner(rt).run_sync(clerk(shop, CHARGED), "please", run_id="r")
    asyncio.run(rt.close())
    assert result.final_output == "charged"
    assert shop.states() == ["committed"]


# ---- an agent as a tool --------------------------------------------------------------------


def boss_of(
    *asked: tuple[str, Agent[Any]], turns: Sequence[Turn], guarded: bool, more: Sequence[Any] = ()
) -> Agent[Any]:
    tools: list[Any] = [agent.as_tool(name, f"Let {name} do it.") for name, agent in asked]
    return Agent(name="boss", model=model_saying(turns), tools=[*(amends_tools(tools) if guarded else tools), *more])


async def approve_all(rt: amends.AsyncRuntime) -> int:
    asked = [one async for one in rt.approvals()]
    for one in asked:
        await rt.approve(one.id, digest=one.digest, by="anna")
    return len(asked)


WIRES: list[Turn] = [[("charge", {"order": "A1", "cents": 5})], [("wire", {"iban": "DE02", "cents": 4200_00})], "paid"]


@pytest.mark.parametrize("guarded", [True, False])
@on_a_loop
async def test_a_sub_agent_waits_with_the_one_who_asked_and_reaches_its_pivot(shop: Shop, guarded: bool) -> None:
    asks: list[Turn] = [[("ask_payments", {"input": "pay"})], [("ship", {"order": "A1"})], "done"]
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:

        def boss() -> Agent[Any]:
            more = amends_tools([function_tool(fn) for fn in shop.functions() if fn.__name__ == "ship"])
            return boss_of(("ask_payments", clerk(shop, WIRES)), turns=asks, guarded=guarded, more=more)

        runner = AmendsRunner(rt)
        paused = await runner.run(boss(), "please", run_id="r")
        assert [item.tool_name for item in paused.interruptions] == ["wire"]
        report = await rt.report("r")
        assert [report.state, *(child.state for child in report.children)] == ["open", "open"]
        assert await approve_all(rt) == 1
        fresh = boss()
        back = await RunState.from_json(fresh, json.loads(json.dumps(paused.to_state().to_json())))
        done = await runner.run(fresh, back)
        assert (done.final_output, done.interruptions) == ("done", [])
        assert not [one async for one in rt.approvals()]
        report = await rt.report("r")
        assert [report.state, *(child.state for child in report.children)] == ["committed", "committed"]
        assert report.children[0].run.output == "paid"
    assert shop.effects() == ["charge A1 5", "wire DE02 420000", "ship A1"]


@on_a_loop
async def test_two_sub_agents_in_one_message_have_a_pivot_each(shop: Shop) -> None:
    def pays(iban: str) -> Agent[Any]:
        return clerk(shop, [[("wire", {"iban": iban, "cents": 4200_00})], f"paid {iban}"])

    asks: list[Turn] = [[("ask_a", {"input": "pay"}), ("ask_b", {"input": "pay"})], "done"]
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        boss = boss_of(("ask_a", pays("AA")), ("ask_b", pays("BB")), turns=asks, guarded=True)
        runner = AmendsRunner(rt)
        paused = await runner.run(boss, "please", run_id="r")
        assert len(paused.interruptions) == 2
        [first, _] = [one async for one in rt.approvals()]
        await rt.approve(first.id, digest=first.digest, by="anna")
        paused = await runner.run(boss, paused.to_state())
        assert len(paused.interruptions) == 1
        assert len(shop.effects()) == 1
        assert await approve_all(rt) == 1
        done = await runner.run(boss, paused.to_state())
        assert done.final_output == "done"
    assert sorted(shop.effects()) == ["wire AA 420000", "wire BB 420000"]
    assert shop.states() == ["committed"]


@on_a_loop
async def test_a_no_is_told_to_the_sub_agent(shop: Shop) -> None:
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        turns: list[Turn] = [[("wire", {"iban": "DE02", "cents": 4200_00})], "then not"]
        boss = boss_of(("ask", clerk(shop, turns)), turns=[[("ask", {"input": "pay"})], "done"], guarded=True)
        paused = await AmendsRunner(rt).run(boss, "please", run_id="r")
        [asked] = [one async for one in rt.approvals()]
        await rt.reject(asked.id, by="anna", reason="wrong payee")
        done = await AmendsRunner(rt).run(boss, paused.to_state())
        assert "then not" in str(done.to_input_list())
    assert (shop.effects(), shop.states()) == ([], ["committed"])


@on_a_loop
async def test_a_sub_agent_of_a_sub_agent_waits_too(shop: Shop) -> None:
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        middle = boss_of(
            ("ask_clerk", clerk(shop, WIRES)), turns=[[("ask_clerk", {"input": "x"})], "ok"], guarded=False
        )
        boss = boss_of(("ask_middle", middle), turns=[[("ask_middle", {"input": "y"})], "done"], guarded=False)
        paused = await AmendsRunner(rt).run(boss, "please")
        assert [item.tool_name for item in paused.interruptions] == ["wire"]
        assert await approve_all(rt) == 1
        done = await AmendsRunner(rt).run(boss, paused.to_state())
        assert done.final_output == "done"
    assert shop.effects() == ["charge A1 5", "wire DE02 420000"]
    assert shop.states() == ["committed"]


@on_a_loop
async def test_a_sub_agent_that_fails_is_taken_back_and_the_supervisor_is_told(shop: Shop) -> None:
    turns: list[Turn] = [[("charge", {"order": "A1", "cents": 5})], Fails("the model is down")]
    asks: list[Turn] = [[("ask", {"input": "pay"})], "sorry"]
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        boss = boss_of(("ask", clerk(shop, turns)), turns=asks, guarded=True)
        done = await AmendsRunner(rt).run(boss, "please", run_id="r")
        assert "An error occurred while running the tool" in str(done.to_input_list())  # the words of the SDK
        report = await rt.report("r")
        assert [report.state, *(child.state for child in report.children)] == ["committed", "rolled_back"]
    assert shop.effects() == ["charge A1 5", "refund ch_A1"]


def _bare(shop: Shop, *more: Any, **options: Any) -> Agent[Any]:
    tools = [function_tool(fn) for fn in shop.functions() if fn.__name__ == "stamp"]
    turns: list[Turn] = [[("stamp", {"text": "x"})], "ok"]
    return Agent(name="clerk", model=model_saying(turns), tools=[*tools, *more], **options)


@pytest.mark.parametrize("passed", [True, False], ids=["passed to amends_tools", "beside"])
@on_a_loop
async def test_an_agent_with_plain_tools_is_a_child_run_whose_calls_are_guarded(shop: Shop, passed: bool) -> None:
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        boss = boss_of(("ask", _bare(shop)), turns=[[("ask", {"input": "x"})], "done"], guarded=passed)
        before = list(boss.tools)
        paused = await AmendsRunner(rt).run(boss, "please", run_id="r")
        assert [item.tool_name for item in paused.interruptions] == ["stamp"]
        assert len((await rt.report("r")).children) == 1
        assert all(one is other for one, other in zip(boss.tools, before, strict=True))
        assert shop.effects() == []
        assert await approve_all(rt) == 1
        done = await AmendsRunner(rt).run(boss, paused.to_state())
        assert done.final_output == "done"
    assert (shop.effects(), shop.states()) == (["stamp x"], ["committed"])


@pytest.mark.parametrize("has", ["shell", "on_handoff", "unknown target", "nested", "no runner"])
@on_a_loop
async def test_an_agent_with_something_unguarded_still_needs_a_person(shop: Shop, has: str) -> None:
    other = Agent(name="other", model=model_saying(["ok"]))
    shell = LocalShellTool(executor=lambda request: "")

    async def choose(ctx: Any, arguments: str) -> Agent[Any]:
        return other

    def noted(ctx: Any) -> None:
        raise AssertionError("the agent must not begin")

    if has == "shell":
        inner = _bare(shop, shell)
    elif has == "nested":
        inner = _bare(shop, _bare(shop, shell).as_tool("ask_more", "More."))
    elif has == "on_handoff":
        inner = _bare(shop, handoffs=[handoff(other, on_handoff=noted)])
    elif has == "unknown target":
        inner = _bare(shop, handoffs=[Handoff("transfer", "Hand over.", {}, choose, "other")])
    else:
        inner = _bare(shop)
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        boss = boss_of(("ask", inner), turns=[[("ask", {"input": "x"})], "done"], guarded=True)
        if has == "no runner":
            with suppress(amends.Waiting):
                async with rt.run("r"):
                    paused: Any = await Runner.run(boss, "please")
                    raise amends.Waiting("the agent pauses")
        else:
            paused = await AmendsRunner(rt).run(boss, "please", run_id="r")
        assert [item.tool_name for item in paused.interruptions] == ["ask"]
    assert shop.effects() == []


@pytest.mark.parametrize("kind", ["agent", "pivot"])
@on_a_loop
async def test_a_declaration_of_an_agent_that_is_a_tool_decides(shop: Shop, kind: Any) -> None:
    turns: list[Turn] = [[("charge", {"order": "A1", "cents": 5})], "charged"]
    declared = [*shop.declared(), amends.declare("ask", kind=kind)]
    async with amends.AsyncRuntime(shop.url, tools=declared) as rt:
        boss = boss_of(("ask", clerk(shop, turns)), turns=[[("ask", {"input": "x"})], "done"], guarded=False)
        await AmendsRunner(rt).run(boss, "please", run_id="r")
        report = await rt.report("r")
        assert [one.tool for one in report.calls if one.tool == "ask"] == ([] if kind == "agent" else ["ask"])
        assert len(report.children) == (1 if kind == "agent" else 0)
    # Inside a pivot nothing starts that would have to be taken back.
    assert shop.effects() == (["charge A1 5"] if kind == "agent" else [])


@on_a_loop
async def test_a_rule_about_the_sub_agent_pauses_before_it(shop: Shop) -> None:
    rules = [amends.Rule("ask")]
    turns: list[Turn] = [[("charge", {"order": "A1", "cents": 5})], "charged"]
    async with amends.AsyncRuntime(shop.url, tools=shop.declared(), rules=rules) as rt:
        boss = boss_of(("ask", clerk(shop, turns)), turns=[[("ask", {"input": "x"})], "done"], guarded=True)
        paused = await AmendsRunner(rt).run(boss, "please", run_id="r")
        assert [item.tool_name for item in paused.interruptions] == ["ask"]
        assert shop.effects() == []
        assert await approve_all(rt) == 1
        done = await AmendsRunner(rt).run(boss, paused.to_state())
        assert done.final_output == "done"
        assert not [one async for one in rt.approvals()]
    assert (shop.effects(), shop.states()) == (["charge A1 5"], ["committed"])


@on_a_loop
async def test_a_streamed_supervisor_waits_with_its_sub_agent(shop: Shop) -> None:
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        boss = boss_of(("ask", clerk(shop, WIRES)), turns=[[("ask", {"input": "x"})], "done"], guarded=True)
        runner = AmendsRunner(rt)
        async with runner.run_streamed(boss, "please", run_id="r") as paused:
            pass
        assert await approve_all(rt) == 1
        async with runner.run_streamed(boss, paused.to_state()) as done:
            pass
        assert done.final_output == "done"
    assert shop.effects() == ["charge A1 5", "wire DE02 420000"]
    assert shop.states() == ["committed"]


@on_a_loop
async def test_a_state_that_was_stopped_and_has_only_asked_agents_must_be_told_its_run(shop: Shop) -> None:
    turns: list[Turn] = [[("charge", {"order": "A1", "cents": 5}), ("mail", {"to": "ann"})], "charged"]
    asks: list[Turn] = [[("ask", {"input": "x"})], [("ask", {"input": "y"})], "done"]
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        boss, runner = boss_of(("ask", clerk(shop, turns)), turns=asks, guarded=True), AmendsRunner(rt)
        async with runner.run_streamed(boss, "please", run_id="order-1") as result:
            async for event in result.stream_events():
                if _is_output(event):
                    result.cancel(mode="after_turn")
        kept = json.loads(json.dumps(result.to_state().to_json()))
        before = [run.id async for run in rt.runs()]
        with pytest.raises(amends.UsageError, match=r"none of its calls \(ask\)") as refused:
            await runner.run(boss, await RunState.from_json(boss, kept))
        assert "run(agent, state, run_id=...)" in str(refused.value.hint)
        assert "stopped here: order-1" in str(refused.value.hint)
        with pytest.raises(amends.UsageError, match="Nothing was done"):
            async with runner.run_streamed(boss, await RunState.from_json(boss, kept)):
                raise AssertionError("it must not begin")
        assert [run.id async for run in rt.runs()] == before
        assert (shop.effects(), shop.states()) == (["charge A1 5"], ["open"])
        for _ in range(2):  # delivered twice
            done = await runner.run(boss, await RunState.from_json(boss, kept), run_id="order-1")
            assert done.final_output == "done"
    assert shop.effects() == ["charge A1 5", "mail ann"]
    assert shop.states() == ["committed"]


@pytest.mark.parametrize("how", ["immediate", "cancelled"])
@on_a_loop
async def test_a_stop_while_a_sub_agent_works_suspends_both_and_they_go_on(shop: Shop, how: str) -> None:
    reached, asked = asyncio.Event(), [0]

    async def look() -> str:
        asked[0] += 1
        if asked[0] == 1:
            reached.set()
            await asyncio.Event().wait()
        return "seen"

    turns: list[Turn] = [[("charge", {"order": "A1", "cents": 5}), ("mail", {"to": "ann"})], [("look", {})], "charged"]
    declared = [*shop.declared(), amends.declare("look", kind="read")]
    async with amends.AsyncRuntime(shop.url, tools=declared) as rt:
        inner = clerk(shop, turns)
        inner.tools += amends_tools([function_tool(look)])
        boss = boss_of(("ask", inner), turns=[[("ask", {"input": "x"})], "done"], guarded=True)
        runner = AmendsRunner(rt)

        async def consume() -> None:
            async with runner.run_streamed(boss, "please", run_id="r") as result:
                stopping = asyncio.ensure_future(reached.wait())
                stopping.add_done_callback(lambda _: result.cancel() if how == "immediate" else None)
                async for _ in result.stream_events():
                    pass

        consuming = asyncio.ensure_future(consume())
        await reached.wait()
        if how == "cancelled":
            consuming.cancel()
        with suppress(asyncio.CancelledError):
            await consuming
        report = await rt.report("r")
        assert [report.state, *(child.state for child in report.children)] == ["open", "open"]
        assert shop.effects() == ["charge A1 5"], "nothing staged has started, nothing was taken back"
        done = await runner.run(boss, "please", run_id="r")
        assert done.final_output == "done"
        report = await rt.report("r")
        assert [report.state, *(child.state for child in report.children)] == ["committed", "committed"]
    assert shop.effects() == ["charge A1 5", "mail ann"]


@on_a_loop
async def test_a_tool_that_fails_beside_one_that_waits_for_the_ledger_is_what_the_program_learns() -> None:
    """The SDK asks what the other tool waits for."""
    waits = Waiter()
    waits.loop = asyncio.get_running_loop()

    def over() -> None:
        waits.is_over = True
        waits.wake()

    @function_tool
    async def slow() -> None:
        while not waits.is_over:
            with suppress(asyncio.CancelledError):  # as the stores do: it is raised when the operation is over
                await waits

    @function_tool(failure_error_function=None)
    async def failing() -> None:
        await asyncio.sleep(0)
        waits.get_loop().call_later(0.1, over)
        raise ValueError("the failure of the tool")

    both = [function_call("slow", {}, call_id="1"), function_call("failing", {}, call_id="2")]
    with pytest.raises(UserError, match="the failure of the tool"):
        await Runner.run(Agent(name="clerk", model=ScriptedModel([both]), tools=[slow, failing]), "please")

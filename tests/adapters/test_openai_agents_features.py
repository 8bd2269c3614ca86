"""What the Agents SDK's documentation teaches besides: filters, sessions, guardrails, limits, streams of sub-agents.

Each has one effect, and none is left behind without its compensation.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrail,
    InputGuardrailTripwireTriggered,
    MaxTurnsExceeded,
    ModelRetrySettings,
    ModelSettings,
    OutputGuardrail,
    OutputGuardrailTripwireTriggered,
    RunConfig,
    RunContextWrapper,
    RunHooks,
    RunState,
    SQLiteSession,
    ToolExecutionConfig,
    ToolGuardrailFunctionOutput,
    ToolInputGuardrail,
    ToolOutputGuardrail,
    ToolOutputGuardrailTripwireTriggered,
    ToolsToFinalOutputResult,
    UserError,
    function_tool,
    handoff,
    set_tracing_disabled,
    tool_namespace,
)
from agents.extensions import handoff_filters
from agents.sandbox import SandboxAgent
from agents.testing import ScriptedModel, assistant_message, function_call

import amends
from amends.adapters.openai_agents import AmendsRunner, amends_tools
from tests.adapters.conformance import Fails, Turn
from tests.adapters.loops import on_a_loop
from tests.adapters.shop import Shop
from tests.adapters.test_openai_agents import approve_all, boss_of, clerk, model_saying

pytestmark = pytest.mark.rest


@pytest.fixture(autouse=True)
def untraced() -> None:
    set_tracing_disabled(True)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def charge(order: str, cents: int = 5) -> tuple[str, dict[str, Any]]:
    return "charge", {"order": order, "cents": cents}


CHARGED: list[Turn] = [[charge("A1")], "charged"]
WIRE: Any = ("wire", {"iban": "DE02", "cents": 4200_00})


# ---- handoffs


@pytest.mark.parametrize("how", ["handoff", "run config", "nested history"])
@on_a_loop
async def test_an_agent_that_was_not_shown_what_was_done_does_not_do_it_again(shop: Shop, how: str) -> None:
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        second = clerk(shop, [[charge("A1")], [charge("A2")], "charged"])
        second.name = "second"
        hides = handoff_filters.remove_all_tools
        first = clerk(shop, [[charge("A1")], [("transfer_to_second", {})]])
        first.handoffs = [handoff(second, input_filter=hides) if how == "handoff" else second]
        config = RunConfig(
            handoff_input_filter=hides if how == "run config" else None, nest_handoff_history=how == "nested history"
        )
        result = await AmendsRunner(rt).run(first, "please", run_id="r", run_config=config)
        assert result.last_agent is second
        assert (await rt.report("r")).state == "committed"
    assert shop.effects() == ["charge A1 5", "charge A2 5"]


@on_a_loop
async def test_a_pause_behind_a_handoff_goes_on_there(shop: Shop) -> None:
    def agents() -> Agent[Any]:
        second = clerk(shop, ["", "", [WIRE], "paid"])
        second.name = "second"
        first = clerk(shop, [[charge("A1"), ("mail", {"to": "ann"})], [("transfer_to_second", {})]])
        first.handoffs = [second]
        return first

    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        paused = await AmendsRunner(rt).run(agents(), "please", run_id="r")
        assert [item.tool_name for item in paused.interruptions] == ["wire"]
        kept = json.dumps(paused.to_state().to_json())
        await approve_all(rt)
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        fresh = agents()
        done = await AmendsRunner(rt).run(fresh, await RunState.from_json(fresh, json.loads(kept)))
        assert done.final_output == "paid"
    assert shop.effects() == ["charge A1 5", "wire DE02 420000", "mail ann"]
    assert shop.states() == ["committed"]


@on_a_loop
async def test_a_stop_behind_a_handoff_goes_on_there(shop: Shop) -> None:
    def agents() -> Agent[Any]:
        second = clerk(shop, ["", "", [charge("A2")], [charge("A3")], "charged"])
        second.name = "second"
        first = clerk(shop, [[charge("A1"), ("mail", {"to": "ann"})], [("transfer_to_second", {})]])
        first.handoffs = [second]
        return first

    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        heard = 0
        async with AmendsRunner(rt).run_streamed(agents(), "please", run_id="r") as result:
            async for event in result.stream_events():
                heard += event.type == "run_item_stream_event" and event.name == "tool_output"
                if heard == 3:
                    result.cancel(mode="after_turn")
        kept = json.dumps(result.to_state().to_json())
        assert shop.states() == ["open"]
        for _ in range(2):  # delivered twice
            fresh = agents()
            done = await AmendsRunner(rt).run(fresh, await RunState.from_json(fresh, json.loads(kept)))
            assert (done.final_output, done.last_agent.name) == ("charged", "second")
    assert shop.effects() == ["charge A1 5", "charge A2 5", "charge A3 5", "mail ann"]
    assert shop.states() == ["committed"]


@on_a_loop
async def test_a_model_that_is_asked_again_within_a_stream_repeats_no_effect(shop: Shop) -> None:
    agent = clerk(shop, [[charge("A1")], [charge("A2")], "charged"])
    model: Any = agent.model
    stream, failed = model.stream_response, list[str]()

    async def once_down(*args: Any, **kwargs: Any) -> Any:
        if "function_call_output" in str((args, kwargs)) and not failed:
            failed.append("down")
            raise ConnectionError("the model is down")
        async for event in stream(*args, **kwargs):
            yield event

    model.stream_response = once_down
    retry = ModelRetrySettings(max_retries=2, policy=lambda context: True, backoff={"initial_delay": 0.0})
    agent.model_settings = ModelSettings(retry=retry)
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        done = await _run(AmendsRunner(rt), agent, True)
        assert done.final_output == "charged"
    assert failed == ["down"]
    assert shop.effects() == ["charge A1 5", "charge A2 5"]
    assert shop.states() == ["committed"]


# ---- sessions


@on_a_loop
async def test_a_session_over_a_pause_a_resume_and_the_next_turn(shop: Shop) -> None:
    session = SQLiteSession("s1", shop.folder / "session.db")
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        agent, runner = clerk(shop, [[charge("A1")], [WIRE], "paid"]), AmendsRunner(rt)
        paused = await runner.run(agent, "please", session=session, run_id="one")
        assert paused.interruptions
        await approve_all(rt)
        for _ in range(2):  # delivered twice
            state = await RunState.from_json(agent, json.loads(json.dumps(paused.to_state().to_json())))
            await runner.run(agent, state, session=session)
        await runner.run(clerk(shop, [[charge("A2")], "charged"]), "and now", session=session, run_id="two")
        assert sorted([run.id async for run in rt.runs()]) == ["one", "two"]
    assert shop.effects() == ["charge A1 5", "wire DE02 420000", "charge A2 5"]
    assert shop.states() == ["committed", "committed"]


@on_a_loop
async def test_a_turn_that_is_begun_again_with_its_session_is_answered_from_the_record(shop: Shop) -> None:
    session = SQLiteSession("s1", shop.folder / "session.db")
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        for _ in range(2):
            agent = clerk(shop, [[charge("A1")], [charge("A2")], "charged"])
            await AmendsRunner(rt).run(agent, "please", session=session, run_id="one")
    assert shop.effects() == ["charge A1 5", "charge A2 5"]
    assert shop.states() == ["committed"]


@on_a_loop
async def test_a_model_that_is_told_what_is_missing_is_told_in_its_session(shop: Shop) -> None:
    turns: list[Turn] = [[charge("A1")], [("ship", {"order": "nowhere"})], "sorry", [("ship", {"order": "A1"})], "sent"]
    session = SQLiteSession("s1", shop.folder / "session.db")
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        result = await AmendsRunner(rt).run(clerk(shop, turns), "please", session=session, run_id="one")
        assert result.final_output == "sent"
    assert shop.effects() == ["charge A1 5", "ship A1"]
    assert shop.states() == ["committed"]


@pytest.mark.parametrize("streamed", [False, True])
@on_a_loop
async def test_a_model_that_is_told_after_a_pause_has_the_context_of_its_state(shop: Shop, streamed: bool) -> None:
    def sign(order: str) -> str:
        """Sign for an order."""
        shop._effect("sign", order)
        return order

    def pack(context: RunContextWrapper[Any], order: str) -> str:
        """Pack an order."""
        shop._effect("pack", order, context.context["desk"])
        return order

    shop.more = [
        (sign, amends.declare("sign", needs_approval=True, compensate=lambda: None)),
        (pack, amends.declare("pack", compensate=lambda: None)),
    ]
    turns: list[Turn] = [[("sign", {"order": "A1"})], "signed", [("pack", {"order": "A1"})], "packed"]
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        agent, runner = clerk(shop, turns), AmendsRunner(rt, requires="pack")
        paused = await runner.run(agent, "please", context={"desk": 7}, run_id="one")
        await approve_all(rt)
        state = await RunState.from_json(agent, json.loads(json.dumps(paused.to_state().to_json())))
        if streamed:
            async with runner.run_streamed(agent, state) as result:
                pass
            assert result.final_output == "packed"
        else:
            assert (await runner.run(agent, state)).final_output == "packed"
    assert shop.effects() == ["sign A1", "pack A1 7"]
    assert shop.states() == ["committed"]


@on_a_loop
async def test_what_the_program_always_rejects_stays_rejected_when_the_model_is_told(shop: Shop) -> None:
    turns: list[Turn] = [[charge("A1")], [WIRE], "no", [("wire", {"iban": "DE02", "cents": 5})], "sorry"]
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        agent, runner = clerk(shop, turns), AmendsRunner(rt, requires="wire")
        state = (await runner.run(agent, "please", run_id="one")).to_state()
        state.reject(state.get_interruptions()[0], always_reject=True)
        with pytest.raises(amends.RolledBack):
            await runner.run(agent, state)
    assert shop.effects() == ["charge A1 5", "refund ch_A1"]


# ---- guardrails


async def _trips(*_: Any) -> GuardrailFunctionOutput:
    return GuardrailFunctionOutput(output_info=None, tripwire_triggered=True)


@pytest.mark.parametrize("streamed", [False, True])
@on_a_loop
async def test_a_guardrail_of_the_output_takes_back_what_was_done(shop: Shop, streamed: bool) -> None:
    agent = clerk(shop, [[charge("A1"), ("mail", {"to": "ann"})], "charged"])
    agent.output_guardrails = [OutputGuardrail(_trips)]
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        with pytest.raises(OutputGuardrailTripwireTriggered):
            await _run(AmendsRunner(rt), agent, streamed)
    assert shop.effects() == ["charge A1 5", "refund ch_A1"]
    assert shop.states() == ["rolled_back"]


@pytest.mark.parametrize("streamed", [False, True])
@on_a_loop
async def test_a_guardrail_of_the_input_that_is_slower_than_a_call_takes_it_back(shop: Shop, streamed: bool) -> None:
    async def slow(*_: Any) -> GuardrailFunctionOutput:
        for _waited in range(100):
            if shop.effects():
                break
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=True)

    agent = clerk(shop, CHARGED)
    agent.input_guardrails = [InputGuardrail(slow)]
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        with pytest.raises((InputGuardrailTripwireTriggered, amends.Error)):
            await _run(AmendsRunner(rt), agent, streamed)
    assert shop.effects() == ["charge A1 5", "refund ch_A1"]
    assert shop.states() == ["rolled_back"]


@pytest.mark.parametrize("behaviour", ["reject", "raise"])
@on_a_loop
async def test_a_guardrail_of_a_tools_output_does_not_undo_the_record(shop: Shop, behaviour: str) -> None:
    async def guard(_: Any) -> ToolGuardrailFunctionOutput:
        if behaviour == "raise":
            return ToolGuardrailFunctionOutput.raise_exception()
        return ToolGuardrailFunctionOutput.reject_content("not for your eyes")

    agent = clerk(shop, [[charge("A1")], [charge("A1")], "charged"])
    for tool in agent.tools:
        tool.tool_output_guardrails = [ToolOutputGuardrail(guard)]  # type: ignore[union-attr]
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        with suppress(ToolOutputGuardrailTripwireTriggered):
            await AmendsRunner(rt).run(agent, "please", run_id="r")
        assert [call.tool for call in (await rt.report("r")).calls] == ["charge"]
    raises = behaviour == "raise"
    assert shop.effects() == ["charge A1 5", *(["refund ch_A1"] if raises else [])]
    assert shop.states() == ["rolled_back" if raises else "committed"]


@pytest.mark.parametrize("early", [False, True])
@on_a_loop
async def test_a_guardrail_of_a_tools_input_stops_a_call_that_nobody_was_asked_about(shop: Shop, early: bool) -> None:
    async def guard(_: Any) -> ToolGuardrailFunctionOutput:
        return ToolGuardrailFunctionOutput.reject_content("no")

    agent = clerk(shop, [[WIRE], "hm"])
    for tool in agent.tools:
        tool.tool_input_guardrails = [ToolInputGuardrail(guard)]  # type: ignore[union-attr]
    config = RunConfig(tool_execution=ToolExecutionConfig(pre_approval_tool_input_guardrails=early))
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        paused = await AmendsRunner(rt).run(agent, "please", run_id="r", run_config=config)
        if paused.interruptions:
            assert await approve_all(rt) == 1
            done = await AmendsRunner(rt).run(agent, paused.to_state(), run_config=config)
            assert not done.interruptions
    assert shop.effects() == []

    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        assert [call.state async for call in rt.calls()] == ["dropped"]
        assert not [one async for one in rt.approvals()]
    assert shop.states() == ["committed"]


@pytest.mark.parametrize("beside", [False, True])
@on_a_loop
async def test_a_call_that_nobody_asks_for_again_passes_its_guardrails_too(shop: Shop, beside: bool) -> None:
    """Approved, and the turn is begun again by its id: the call is done when the run commits, without the SDK."""

    async def guard(data: Any) -> ToolGuardrailFunctionOutput:
        assert (data.agent.name, json.loads(data.context.tool_arguments)["iban"]) == ("clerk", "DE02")
        return ToolGuardrailFunctionOutput.reject_content("no")

    def agent(turns: list[Turn]) -> Agent[Any]:
        own = [function_tool(fn) for fn in shop.functions() if fn.__name__ == "wire"]
        made = Agent(name="clerk", model=model_saying(turns), tools=[*(own if beside else amends_tools(own))])
        made.tools[0].tool_input_guardrails = [ToolInputGuardrail(guard)]  # type: ignore[union-attr]
        return made

    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        paused = await AmendsRunner(rt).run(agent([[WIRE], "paid"]), "please", run_id="r")
        assert paused.interruptions
        await approve_all(rt)
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        with suppress(amends.Error):
            await AmendsRunner(rt).run(agent(["nothing to do"]), "please", run_id="r")
        assert [call.state for call in (await rt.report("r")).calls] == ["failed"]
    assert shop.effects() == []


@pytest.mark.parametrize("approved", [False, True], ids=["nobody has decided", "a person said yes"])
@pytest.mark.parametrize("always", [False, True])
@pytest.mark.parametrize("nested", [False, True])
@on_a_loop
async def test_what_the_program_itself_rejects_is_not_done(
    shop: Shop, approved: bool, always: bool, nested: bool
) -> None:
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        agent = clerk(shop, [[charge("A1")], [WIRE], "then not"])
        if nested:
            agent = boss_of(("ask", agent), turns=[[("ask", {"input": "x"})], "then not"], guarded=True)
        paused = await AmendsRunner(rt).run(agent, "please", run_id="r")
        if approved:
            assert await approve_all(rt) == 1
        state = await RunState.from_json(agent, json.loads(json.dumps(paused.to_state().to_json())))
        [item] = state.get_interruptions()
        state.reject(item, always_reject=always)
        done = await AmendsRunner(rt).run(agent, state)
        assert (done.final_output, done.interruptions) == ("then not", [])
        assert not [one async for one in rt.approvals()]
    assert shop.effects() == ["charge A1 5"]
    assert shop.states() == ["committed"]


@pytest.mark.parametrize("how", ["approve", "reject"])
@on_a_loop
async def test_a_tool_in_a_namespace_waits_and_goes_on_or_not(shop: Shop, how: str) -> None:
    own = [function_tool(fn) for fn in shop.functions() if fn.__name__ == "wire"]

    def agent(*said: Any) -> Agent[Any]:
        tools = amends_tools(tool_namespace(name="bank", description="The bank.", tools=own))
        return Agent(name="clerk", model=ScriptedModel([*said, [assistant_message("done")]]), tools=tools)

    asked = function_call("wire", WIRE[1], call_id="call_1", namespace="bank")
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        paused = await AmendsRunner(rt).run(agent([asked]), "please", run_id="r")
        assert len(paused.interruptions) == 1
        fresh = agent()
        state = await RunState.from_json(fresh, json.loads(json.dumps(paused.to_state().to_json())))
        await approve_all(rt)
        if how == "reject":
            state.reject(state.get_interruptions()[0])
        done = await AmendsRunner(rt).run(fresh, state)
        assert done.final_output == "done"
    assert shop.effects() == (["wire DE02 420000"] if how == "approve" else [])
    assert shop.states() == ["committed"]


# ---- limits


@pytest.mark.parametrize("streamed", [False, True])
@on_a_loop
async def test_too_many_turns_take_everything_back(shop: Shop, streamed: bool) -> None:
    turns: list[Turn] = [[charge("A1"), ("mail", {"to": "ann"})], [charge("A2")], [charge("A3")], "charged"]
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        with pytest.raises(MaxTurnsExceeded):
            await _run(AmendsRunner(rt), clerk(shop, turns), streamed, max_turns=2)
    assert shop.effects() == ["charge A1 5", "charge A2 5", "refund ch_A2", "refund ch_A1"]
    assert shop.states() == ["rolled_back"]


@pytest.mark.parametrize("streamed", [False, True])
@on_a_loop
async def test_too_many_turns_with_a_handler_end_as_the_handler_says(shop: Shop, streamed: bool) -> None:
    turns: list[Turn] = [[charge("A1")], [("ship", {"order": "nowhere"})], [charge("A2")], "charged"]
    handlers: Any = {"max_turns": lambda data: "enough"}
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        with pytest.raises(amends.RolledBack):
            await _run(AmendsRunner(rt), clerk(shop, turns), streamed, max_turns=2, error_handlers=handlers)
    assert shop.effects()[0] == "charge A1 5"
    assert shop.effects()[-1] == "refund ch_A1"
    assert len([one for one in shop.effects() if one.startswith("charge")]) == len(
        [one for one in shop.effects() if one.startswith("refund")]
    )
    assert shop.states() == ["rolled_back"]


@pytest.mark.parametrize("many", [1, None])
@on_a_loop
async def test_parallel_calls_of_which_one_waits_with_any_concurrency(shop: Shop, many: int | None) -> None:
    turns: list[Turn] = [[charge("A1"), ("stamp", {"text": "x"}), charge("A2"), charge("A1")], "done"]
    config = RunConfig(tool_execution=ToolExecutionConfig(max_function_tool_concurrency=many))
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        agent = clerk(shop, turns)
        paused = await AmendsRunner(rt).run(agent, "please", run_id="r", run_config=config)
        assert [item.tool_name for item in paused.interruptions] == ["stamp"]
        assert sorted(shop.effects()) == ["charge A1 5", "charge A2 5"]
        await approve_all(rt)
        for _ in range(2):
            state = await RunState.from_json(agent, json.loads(json.dumps(paused.to_state().to_json())))
            await AmendsRunner(rt).run(agent, state, run_config=config)
    assert sorted(shop.effects()) == ["charge A1 5", "charge A2 5", "stamp x"]
    assert shop.states() == ["committed"]


# ---- who ends the agent


@on_a_loop
async def test_a_behaviour_of_the_programs_own_ends_the_agent_and_a_staged_call_goes_out(shop: Shop) -> None:
    def stops(_: Any, results: Any) -> ToolsToFinalOutputResult:
        return ToolsToFinalOutputResult(is_final_output=True, final_output=str(results[0].output))

    agent = clerk(shop, [[("mail", {"to": "ann"}), charge("A1")], "never said"])
    agent.tool_use_behavior = stops
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        for _ in range(2):
            await AmendsRunner(rt).run(agent, "please", run_id="r")
    assert shop.effects() == ["charge A1 5", "mail ann"]
    assert shop.states() == ["committed"]


@on_a_loop
async def test_stop_on_first_tool_over_a_pause(shop: Shop) -> None:
    agent = clerk(shop, [[WIRE], "never said"])
    agent.tool_use_behavior = "stop_on_first_tool"
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        paused = await AmendsRunner(rt).run(agent, "please", run_id="r")
        await approve_all(rt)
        for _ in range(2):
            state = await RunState.from_json(agent, json.loads(json.dumps(paused.to_state().to_json())))
            done = await AmendsRunner(rt).run(agent, state)
            assert done.final_output == "wire_DE02"
    assert shop.effects() == ["wire DE02 420000"]


# ---- sub-agents whose events are read


@pytest.mark.parametrize("streamed", [False, True])
@on_a_loop
async def test_a_sub_agent_whose_events_are_read_waits_and_goes_on(shop: Shop, streamed: bool) -> None:
    seen: list[str] = []

    def boss() -> Agent[Any]:
        inner = clerk(shop, [[charge("A1")], [WIRE], "paid"])
        tool = inner.as_tool("ask", "Ask.", on_stream=lambda event: seen.append(event["event"].type))
        return Agent(name="boss", model=model_saying([[("ask", {"input": "x"})], "done"]), tools=[tool])

    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        paused = await _run(AmendsRunner(rt), boss(), streamed)
        assert [item.tool_name for item in paused.interruptions] == ["wire"]
        assert await approve_all(rt) == 1
        fresh = boss()
        state = await RunState.from_json(fresh, json.loads(json.dumps(paused.to_state().to_json())))
        done = await _run(AmendsRunner(rt), fresh, streamed, input=state, run_id=None)
        assert done.final_output == "done"
    assert seen
    assert shop.effects() == ["charge A1 5", "wire DE02 420000"]
    assert shop.states() == ["committed"]


@on_a_loop
async def test_who_stops_while_a_sub_agent_streams_stops_both(shop: Shop) -> None:
    turns: list[Turn] = [[charge("A1"), ("mail", {"to": "ann"})], [charge("A2")], "paid"]
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        results: list[Any] = []

        def heard(event: Any) -> None:
            one = event["event"]
            if one.type == "run_item_stream_event" and one.name == "tool_output":
                results[0].cancel()

        def boss() -> Agent[Any]:
            tool = clerk(shop, turns).as_tool("ask", "Ask.", on_stream=heard if not results else None)
            return Agent(name="boss", model=model_saying([[("ask", {"input": "x"})], "done"]), tools=[tool])

        async with AmendsRunner(rt).run_streamed(boss(), "please", run_id="r") as result:
            results.append(result)
            async for _ in result.stream_events():
                pass
        assert (await rt.report("r")).state == "open"
        assert "mail ann" not in shop.effects()
        done = await AmendsRunner(rt).run(boss(), "please", run_id="r")
        assert done.final_output == "done"
    assert shop.effects() == ["charge A1 5", "charge A2 5", "mail ann"]


@on_a_loop
async def test_a_sub_agent_with_too_many_turns_is_taken_back_and_the_boss_goes_on(shop: Shop) -> None:
    inner = clerk(shop, [[charge("A1")], [charge("A2")], [charge("A3")], "paid"])
    tool = inner.as_tool("ask", "Ask.", max_turns=2)
    asks: list[Turn] = [[("ask", {"input": "x"})], "sorry"]
    boss = Agent(name="boss", model=model_saying(asks), tools=[tool])
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        await AmendsRunner(rt).run(boss, "please", run_id="r")
    assert shop.effects() == ["charge A1 5", "charge A2 5", "refund ch_A2", "refund ch_A1"]
    assert shop.states() == ["committed"]


@on_a_loop
async def test_a_boss_that_fails_takes_back_what_its_sub_agent_did(shop: Shop) -> None:
    asks: list[Turn] = [[("ask", {"input": "x"})], Fails("down")]
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        boss = boss_of(("ask", clerk(shop, CHARGED)), turns=asks, guarded=False)
        with pytest.raises(RuntimeError, match="down"):
            await AmendsRunner(rt).run(boss, "please", run_id="r")
    assert shop.effects() == ["charge A1 5", "refund ch_A1"]
    assert shop.states() == ["rolled_back"]


# ---- several turns, hooks, siblings


@on_a_loop
async def test_turns_of_one_agent_at_once_have_a_run_each(shop: Shop) -> None:
    agent = clerk(shop, [[charge("A1"), ("mail", {"to": "ann"})], [("stamp", {"text": "x"})], "done"])
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        runner = AmendsRunner(rt)
        paused = await asyncio.gather(*(runner.run(agent, "please", run_id=f"r{n}") for n in range(3)))
        assert await approve_all(rt) == 3
        assert shop.effects() == ["charge A1 5"] * 3
        states = [await RunState.from_json(agent, json.loads(json.dumps(one.to_state().to_json()))) for one in paused]
        await asyncio.gather(*(runner.run(agent, state) for state in states))
        for run_id in ("r0", "r1", "r2"):
            assert sorted(call.tool for call in _calls(await rt.report(run_id))) == ["charge", "mail", "stamp"]
    assert sorted(shop.effects()) == sorted(["charge A1 5", "stamp x", "mail ann"] * 3)
    assert shop.states() == ["committed"] * 3


def _calls(report: amends.Report) -> list[amends.Call]:
    return [*report.calls, *(call for child in report.children for call in _calls(child))]


@pytest.mark.parametrize("streamed", [False, True])
@on_a_loop
async def test_a_hook_that_fails_after_the_effect_takes_it_back(shop: Shop, streamed: bool) -> None:
    class Hooks(RunHooks[Any]):
        async def on_tool_end(self, *_: Any, **__: Any) -> None:
            raise ZeroDivisionError

    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        with pytest.raises(UserError) as failed:
            await _run(AmendsRunner(rt), clerk(shop, CHARGED), streamed, hooks=Hooks())
        assert isinstance(failed.value.__cause__, ZeroDivisionError)
    assert shop.effects() == ["charge A1 5", "refund ch_A1"]
    assert shop.states() == ["rolled_back"]


@pytest.mark.parametrize("streamed", [False, True])
@on_a_loop
async def test_a_tool_that_ends_the_turn_leaves_no_sibling_without_a_record(shop: Shop, streamed: bool) -> None:
    begun, sent = asyncio.Event(), list[str]()

    async def slow(to: str) -> str:
        sent.append(to)
        begun.set()
        await asyncio.sleep(0.3)
        return to

    async def fails() -> str:
        await begun.wait()
        raise RuntimeError("broken")

    declared = [amends.declare("slow", compensate=lambda result: sent.append(f"undo {result}")),
                amends.declare("fails", kind="read")]  # fmt: skip
    own = [function_tool(slow), function_tool(fails, failure_error_function=None)]
    agent = Agent(
        name="clerk", model=model_saying([[("slow", {"to": "a"}), ("fails", {})], "ok"]), tools=amends_tools(own)
    )
    async with amends.AsyncRuntime(shop.url, tools=declared) as rt:
        with pytest.raises(Exception, match=r"broken|doubt|slow"):
            await _run(AmendsRunner(rt), agent, streamed)
        [call] = [call for call in (await rt.report("r")).calls if call.tool == "slow"]
        # The SDK cancels it, or lets it end: it is taken back if its result is known, and waits for a person if not.
        assert (call.state, sent) in [("compensated", ["a", "undo a"]), ("in_doubt", ["a"])]


@on_a_loop
async def test_a_state_goes_on_in_a_stream_that_is_left_early_and_goes_on_again(shop: Shop) -> None:
    turns: list[Turn] = [[WIRE], [charge("A1")], [charge("A2")], "done"]
    declared = [one for one in shop.declared() if one.name != "wire"]
    wire = amends.declare("wire", key=("iban", "cents"), needs_approval=True, compensate=print)
    async with amends.AsyncRuntime(shop.url, tools=[*declared, wire]) as rt:
        agent, runner = clerk(shop, turns), AmendsRunner(rt)
        paused = await runner.run(agent, "please", run_id="r")
        await approve_all(rt)
        async with runner.run_streamed(agent, paused.to_state()) as result:
            async for event in result.stream_events():
                if event.type == "run_item_stream_event" and event.name == "tool_output":
                    result.cancel(mode="after_turn")
        assert (await rt.report("r")).state == "open"
        done = await runner.run(agent, result.to_state())
        assert done.final_output == "done"
    assert shop.effects() == ["wire DE02 420000", "charge A1 5", "charge A2 5"]
    assert shop.states() == ["committed"]


# ---- two tools of one name


def _fax() -> Any:
    def send(to: str) -> str:
        """Send a fax."""
        return f"fax_{to}"

    return send


def _parcel() -> Any:
    def send(to: str) -> str:
        """Send a parcel."""
        return f"parcel_{to}"

    return send


@pytest.mark.parametrize("where", ["one agent", "behind a handoff", "sub-agent", "the same function"])
@on_a_loop
async def test_two_tools_of_one_name_are_named_and_refused_with_strict(shop: Shop, caplog: Any, where: str) -> None:
    """A record is found by the tool's name: what one has done would be the answer to the other."""
    first, second = function_tool(_fax()), function_tool(_fax() if where == "the same function" else _parcel())
    other = Agent(name="other", model=model_saying(["ok"]), tools=[second])
    agent = Agent(name="clerk", model=model_saying(["ok"]), tools=[first])
    if where == "one agent":
        agent.tools += tool_namespace(name="parcels", description="Parcels.", tools=[second])
    elif where == "sub-agent":
        agent.tools.append(other.as_tool("ask", "Ask."))
    else:
        agent.handoffs = [other]
    async with amends.AsyncRuntime(shop.url, tools=[amends.declare("send", kind="pivot")]) as rt:
        await AmendsRunner(rt).run(agent, "please", run_id="r")
        if where == "the same function":
            assert "tools are called" not in caplog.text
            return
        assert caplog.text.count("two tools are called send") == 1
        with pytest.raises(amends.UsageError, match="two tools are called send"):
            await AmendsRunner(rt, strict=True).run(agent, "please", run_id="s")


# ---- sandboxes


@on_a_loop
async def test_what_an_agent_has_in_its_sandbox_is_named_and_refused_with_strict(shop: Shop, caplog: Any) -> None:
    behind = SandboxAgent(name="coder", model=model_saying(["ok"]))
    agent = Agent(name="clerk", model=model_saying(["ok"]), handoffs=[behind])
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        with pytest.raises(amends.UsageError, match=r"agent coder has .*Shell \(sandbox\)"):
            await AmendsRunner(rt, strict=True).run(agent, "please", run_id="r")
        await AmendsRunner(rt).run(agent, "please", run_id="r")
    assert "agent coder has what amends cannot record: Shell (sandbox)" in caplog.text
    assert "Compaction" not in caplog.text


# ---- a pause that only the SDK knows


@on_a_loop
async def test_a_state_that_waits_for_the_sdk_alone_finds_its_run_by_what_it_has_done(shop: Shop) -> None:
    def ask_user(text: str) -> str:
        return text

    agent = clerk(shop, [[charge("A1")], [("ask_user", {"text": "ok?"})], "done"])
    agent.tools += amends_tools([function_tool(ask_user, needs_approval=True)])
    tools = [*shop.declared(), amends.declare("ask_user", kind="read")]
    async with amends.AsyncRuntime(shop.url, tools=tools) as rt:
        paused = await AmendsRunner(rt, recover="wait").run(agent, "please", run_id="r")
        assert [item.tool_name for item in paused.interruptions] == ["ask_user"]
        state = await RunState.from_json(agent, json.loads(json.dumps(paused.to_state().to_json())))
        state.approve(state.get_interruptions()[0])
        done = await AmendsRunner(rt, recover="wait").run(agent, state)
        assert done.final_output == "done"
        assert [run.id async for run in rt.runs()] == ["r"]
    assert (shop.effects(), shop.states()) == (["charge A1 5"], ["committed"])


# ---- a tool that changes during the turn


@on_a_loop
async def test_a_tool_that_is_added_during_the_turn_is_guarded(shop: Shop) -> None:
    done: list[str] = []

    def late(to: str) -> str:
        done.append(to)
        return to

    agent = clerk(shop, [[("grow", {})], [("late", {"to": "a"})], [("late", {"to": "a"})], "ok"])

    def grow() -> str:
        agent.tools.append(function_tool(late))
        return "grown"

    agent.tools += amends_tools([function_tool(grow)])
    declared = [amends.declare("grow", kind="read"), amends.declare("late", kind="pivot")]
    async with amends.AsyncRuntime(shop.url, tools=[*shop.declared(), *declared]) as rt:
        await AmendsRunner(rt).run(agent, "please", run_id="r")
        assert [call.tool for call in (await rt.report("r")).calls] == ["grow", "late"]
    assert done == ["a"]


async def _run(
    runner: AmendsRunner, agent: Agent[Any], streamed: bool, *, input: Any = "please", **options: Any
) -> Any:
    options = {"run_id": "r", **options}
    if not streamed:
        return await runner.run(agent, input, **options)
    async with runner.run_streamed(agent, input, **options) as result:
        async for _ in result.stream_events():
            pass
    return result

"""The OpenAI Agents SDK through the conformance suite, and what is its own: sessions, streams, hooks, its states."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from agents import (
    Agent,
    RunContextWrapper,
    Runner,
    RunState,
    SQLiteSession,
    WebSearchTool,
    function_tool,
    set_tracing_disabled,
)
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call

import amends
from amends.adapters.openai_agents import AmendsHooks, AmendsRunner, amends_tools
from amends.errors import NOT_FINISHED, NoRun
from tests.adapters.conformance import Conformance, Fails, Outcome, SupervisorConformance, Turn, asks_clerk
from tests.adapters.loops import on_a_loop
from tests.adapters.shop import Shop

SPOKEN_MAX = 20


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


class OpenAIAgentsSupervisor(OpenAIAgentsHarness):
    """The clerk is a tool of another agent."""

    def agent(self, shop: Shop, turns: Sequence[Turn]) -> Agent[Any]:
        clerk = super().agent(shop, turns)
        tools = [*clerk.tools, clerk.as_tool("ask_clerk", "Ask the clerk.")]
        return Agent(name="boss", model=model_saying(asks_clerk("input")), tools=tools)


class TestOpenAIAgents(Conformance):
    harness = OpenAIAgentsHarness()


class TestOpenAIAgentsSupervisor(SupervisorConformance):
    __test__ = True
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
            with pytest.raises(amends.UsageError, match="0 runs wait"):
                await AmendsRunner(other).run(clerk(shop, turns), paused.to_state())


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


@on_a_loop
async def test_an_agent_with_an_unguarded_tool_still_needs_a_person(shop: Shop) -> None:
    bare = Agent(
        name="clerk", model=model_saying([[("stamp", {"text": "x"})], "ok"]),
        tools=[function_tool(fn) for fn in shop.functions() if fn.__name__ == "stamp"],
    )  # fmt: skip
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        boss = boss_of(("ask", bare), turns=[[("ask", {"input": "x"})], "done"], guarded=True)
        paused = await AmendsRunner(rt).run(boss, "please", run_id="r")
        assert [item.tool_name for item in paused.interruptions] == ["ask"]
    assert shop.effects() == []


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

"""What LangChain's and LangGraph's own features do to effects: retries, handovers, several runtimes, unguarded paths."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import pydantic.v1
import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware, ToolRetryMiddleware, wrap_tool_call
from langchain.agents.structured_output import ToolStrategy
from langchain.tools import InjectedState, ToolRuntime
from langchain.tools import tool as lc_tool
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import BaseTool, InjectedToolCallId, StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, RetryPolicy, interrupt
from pydantic import BaseModel, Field, RootModel, SecretStr

import amends
from amends import Runtime, UsageError
from amends.adapters.langchain import AmendsMiddleware, bound_args
from amends.errors import BadDeclaration
from tests.adapters.conformance import Fails, Turn, charge, wire
from tests.adapters.shop import Shop
from tests.adapters.test_langchain import Scripted, config_of, told_in
from tests.adapters.test_langchain_graphs import CONFIG, HELLO, agent_of, runtime

QUICK = RetryPolicy(max_attempts=3, initial_interval=0.001, backoff_factor=1, jitter=False, retry_on=ConnectionError)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.chdir(tmp_path)
    return Shop(tmp_path)


class Shaky(Scripted):
    """A model that is down the first time that it has seen a result."""

    failed: list[int]
    times: int = 2

    def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(messages[-1], ToolMessage) and len(self.failed) < self.times:
            self.failed.append(1)
            raise ConnectionAbortedError("the model is down")
        return super()._generate(messages, *args, **kwargs)


def shaky_agent(guard: AmendsMiddleware, shop: Shop, turns: Sequence[Any], **more: Any) -> Any:
    tools = [lc_tool(fn) for fn in shop.functions()]
    return create_agent(Shaky(turns=turns, failed=[]), tools=tools, middleware=[guard], **more)


# ---- retries ------------------------------------------------------------------------------


@pytest.mark.parametrize("saver", [True, False])
@pytest.mark.parametrize("nested", ["node", "call"])
@pytest.mark.parametrize("block", [True, False])
def test_a_retry_policy_repeats_no_effect(shop: Shop, saver: bool, nested: str, block: bool) -> None:
    with runtime(shop) as rt:
        guard = AmendsMiddleware(rt)
        agent = shaky_agent(guard, shop, [[charge("A1", 500)], "charged"])
        node = agent if nested == "node" else lambda state: {"messages": agent.invoke(state)["messages"]}
        graph = StateGraph(MessagesState)
        graph.add_node("pay", node, retry_policy=QUICK)
        graph.add_edge(START, "pay")
        team: Any = graph.compile(checkpointer=InMemorySaver() if saver else None)
        config: Any = CONFIG if saver else None
        if block:
            with guard.turn(config):
                team.invoke(HELLO, config)
        else:
            team.invoke(HELLO, config)
    assert shop.effects() == ["charge A1 500"]
    assert shop.states() == ["committed"]


def test_two_agents_of_one_retried_node_keep_their_runs(shop: Shop) -> None:
    with runtime(shop) as rt:
        guard = AmendsMiddleware(rt)
        first = agent_of(guard, shop, [[charge("A1", 500)], "charged"])
        second = shaky_agent(guard, shop, [[charge("A1", 500)], "charged"])

        def both(state: Any) -> dict[str, Any]:
            first.invoke(HELLO)
            return {"messages": second.invoke(HELLO)["messages"]}

        graph = StateGraph(MessagesState)
        graph.add_node("pay", both, retry_policy=QUICK)
        graph.add_edge(START, "pay")
        graph.compile(checkpointer=InMemorySaver()).invoke(HELLO, CONFIG)
    assert shop.effects() == ["charge A1 500"] * 2, "two agents, two runs, each once"
    assert shop.states() == ["committed", "committed"]


def test_a_node_that_is_visited_again_begins_again(shop: Shop) -> None:
    with runtime(shop) as rt:
        graph = StateGraph(MessagesState)
        graph.add_node(
            "pay", agent_of(AmendsMiddleware(rt), shop, [[charge("A1", 500)], "ok", [charge("A1", 500)], "ok"])
        )
        graph.add_edge(START, "pay")
        graph.add_conditional_edges("pay", lambda state: END if len(told_in(state)) == 2 else "pay", [END, "pay"])
        graph.compile(checkpointer=InMemorySaver()).invoke(HELLO, CONFIG)
    assert shop.effects() == ["charge A1 500"] * 2
    assert shop.states() == ["committed", "committed"]


@pytest.mark.parametrize("saver", [True, False])
@pytest.mark.parametrize("block", [True, False])
@pytest.mark.parametrize("how", ["with_retry", "with_fallbacks"])
def test_a_retried_agent_repeats_no_effect(shop: Shop, saver: bool, block: bool, how: str) -> None:
    with runtime(shop) as rt:
        guard = AmendsMiddleware(rt)
        agent = shaky_agent(guard, shop, [[charge("A1", 500)], "ok"], checkpointer=InMemorySaver() if saver else None)
        if how == "with_retry":
            again = agent.with_retry(stop_after_attempt=3, wait_exponential_jitter=False)
        else:
            again = agent.with_fallbacks([agent, agent])
        if block:
            with guard.turn(CONFIG if saver else None):
                again.invoke(HELLO, CONFIG)
        else:
            again.invoke(HELLO, CONFIG)
    assert shop.effects() == ["charge A1 500"]
    assert shop.states() == ["committed"]


def test_a_retried_async_agent_repeats_no_effect(shop: Shop) -> None:
    async def go() -> None:
        async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
            agent = shaky_agent(AmendsMiddleware(rt), shop, [[charge("A1", 500)], "ok"])
            await agent.with_retry(stop_after_attempt=3, wait_exponential_jitter=False).ainvoke(HELLO)

    asyncio.run(go())
    assert shop.effects() == ["charge A1 500"]
    assert shop.states() == ["committed"]


def test_a_retried_attempt_that_says_it_in_other_words_is_held_as_a_suspected_duplicate(shop: Shop) -> None:
    done: list[str] = []

    def note(text: str) -> str:
        """Note something."""
        done.append(text)
        return text

    shop.more = [(note, amends.declare("note", compensate=lambda: None))]
    said = iter(["paid", "it is paid"])

    class Rewording(Shaky):
        def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(messages[-1], HumanMessage) and messages[-1].name is None:
                self.turns[0][0] = ("note", {"text": next(said)})
            return super()._generate(messages, *args, **kwargs)

    with runtime(shop, wait=0) as rt:
        tools = [lc_tool(fn) for fn in shop.functions()]
        model = Rewording(turns=[[("note", {"text": ""})], "ok"], failed=[], times=1)
        agent: Any = create_agent(model, tools=tools, middleware=[AmendsMiddleware(rt)])
        with pytest.raises(amends.Held):
            agent.with_retry(stop_after_attempt=2, wait_exponential_jitter=False).invoke(HELLO)
    assert done == ["paid"]


@pytest.mark.parametrize("colour", ["blocking", "async"])
def test_a_retry_behind_the_middleware_is_refused_before_anything_runs(shop: Shop, colour: str) -> None:
    behind = [ToolRetryMiddleware(max_retries=2, initial_delay=0.0, jitter=False)]
    turns = [[charge("A1", 500)], "ok"]
    if colour == "blocking":
        with runtime(shop) as rt, pytest.raises(UsageError, match="ToolRetryMiddleware"):
            agent_of(AmendsMiddleware(rt), shop, turns, middleware=behind).invoke(HELLO)
    else:
        rt_async = amends.AsyncRuntime(shop.url, tools=shop.declared())
        with pytest.raises(UsageError, match="ToolRetryMiddleware"):
            asyncio.run(agent_of(AmendsMiddleware(rt_async), shop, turns, middleware=behind).ainvoke(HELLO))
    assert shop.effects() == []


def test_a_retry_before_the_middleware_is_recorded(shop: Shop) -> None:
    tried: list[str] = []

    @lc_tool
    def book(room: str) -> str:
        """Book a room."""
        tried.append(room)
        if len(tried) == 1:
            raise ValueError("busy")
        return room

    before = ToolRetryMiddleware(max_retries=2, initial_delay=0.0, jitter=False)
    with runtime(shop, amends.declare("book", compensate=lambda: None)) as rt:
        guard = AmendsMiddleware(rt, on_error="raise")
        model = Scripted(turns=[[("book", {"room": "7"})], "ok"])
        around: list[Any] = [before, guard]
        agent: Any = create_agent(model, tools=[book], middleware=around, checkpointer=InMemorySaver())
        agent.invoke(HELLO, CONFIG)
        assert [call.state for call in rt.report("t1/1").calls] == ["failed", "succeeded"]
    assert tried == ["7", "7"]


@pytest.mark.parametrize("first", ["fails", "succeeds"])
def test_a_middleware_of_ones_own_cannot_start_a_tool_twice_in_one_call(shop: Shop, first: str) -> None:
    tried: list[str] = []

    @lc_tool
    def book(room: str) -> str:
        """Book a room."""
        tried.append(room)
        if first == "fails":
            raise ValueError("busy")
        return room

    @wrap_tool_call
    def twice(request: Any, handler: Any) -> Any:
        with suppress(ValueError):
            handler(request)
        return handler(request)

    with runtime(shop, amends.declare("book", compensate=lambda: None)) as rt:
        guard = AmendsMiddleware(rt)
        model = Scripted(turns=[[("book", {"room": "7"})], "ok"])
        around: list[Any] = [guard, twice]
        agent: Any = create_agent(model, tools=[book], middleware=around, checkpointer=InMemorySaver())
        with pytest.raises(UsageError, match="second time"):
            agent.invoke(HELLO, CONFIG)
        assert [call.state for call in rt.report("t1/1").calls] == ["failed" if first == "fails" else "succeeded"]
    assert tried == ["7"]


# ---- handovers and tool nodes ---------------------------------------------------------------


def handover(**options: Any) -> BaseTool:
    @lc_tool
    def transfer_to_second(runtime: ToolRuntime) -> Command[Any]:
        """Hand over to the second agent."""
        done = ToolMessage("handed over", tool_call_id=runtime.tool_call_id)
        return Command(goto="second", graph=Command.PARENT, update={"messages": [*runtime.state["messages"], done]})

    return transfer_to_second.model_copy(update=options)


def swarm(shop: Shop, guard: AmendsMiddleware, turns: Sequence[Any], saver: Any = None, *, second: Any = None) -> Any:
    graph = StateGraph(MessagesState)
    graph.add_node("first", agent_of(guard, shop, turns, tools=[handover()]), destinations=("second",))
    graph.add_node("second", second or (lambda state: {}))
    graph.add_edge(START, "first")
    return graph.compile(checkpointer=saver)


HANDS_OVER: Any = ("transfer_to_second", {})


@pytest.mark.parametrize("block", [True, False])
@pytest.mark.parametrize("saver", [True, False])
@pytest.mark.parametrize("declared", [True, False])
def test_an_agent_that_hands_over_leaves_no_run_open(shop: Shop, block: bool, saver: bool, declared: bool) -> None:
    turns: list[Any] = [[charge("A1", 500)], [HANDS_OVER], "never"]
    with runtime(shop, *([amends.declare("transfer_to_second", kind="read")] if declared else [])) as rt:
        guard = AmendsMiddleware(rt)
        second = agent_of(guard, shop, ["", "", [charge("B1", 700)], "charged"])
        marked = {} if declared else {"metadata": {"__handoff_destination": "second"}}
        graph = StateGraph(MessagesState)
        graph.add_node("first", agent_of(guard, shop, turns, tools=[handover(**marked)]), destinations=("second",))
        graph.add_node("second", second)
        graph.add_edge(START, "first")
        team: Any = graph.compile(checkpointer=InMemorySaver() if saver else None)
        if block:
            with guard.turn(CONFIG):
                team.invoke(HELLO, CONFIG)
        else:
            team.invoke(HELLO, CONFIG)
    assert shop.effects() == ["charge A1 500", "charge B1 700"]
    assert shop.states() == (["committed"] if block else ["committed", "committed"])


def test_an_async_agent_that_hands_over_leaves_no_run_open(shop: Shop) -> None:
    async def go() -> None:
        declared = [*shop.declared(), amends.declare("transfer_to_second", kind="read")]
        async with amends.AsyncRuntime(shop.url, tools=declared) as rt:
            team = swarm(shop, AmendsMiddleware(rt), [[charge("A1", 500)], [HANDS_OVER], "never"], InMemorySaver())
            await team.ainvoke(HELLO, CONFIG)

    asyncio.run(go())
    assert shop.effects() == ["charge A1 500"]
    assert shop.states() == ["committed"]


@pytest.mark.parametrize("order", ["first", "last"])
def test_calls_beside_a_handover_belong_to_its_run_and_a_lost_handover_is_made_again(shop: Shop, order: str) -> None:
    """The second time is what a graph does whose process died between the end of the run and its own checkpoint."""
    visits: list[int] = []

    class State(MessagesState):
        amends_run: str
        amends_turn: int

    calls = [{"name": "transfer_to_second", "args": {}, "id": "c1"}]
    for number in (2, 3):
        more = {"name": "charge", "args": charge(f"A{number}", 500)[1], "id": f"c{number}"}
        calls.insert(0 if order == "last" else len(calls), more)
    given: Any = {
        "messages": [HumanMessage("go on"), AIMessage("", tool_calls=calls)], "amends_run": "t1/1", "amends_turn": 1
    }  # fmt: skip
    with runtime(shop, amends.declare("transfer_to_second", kind="read")) as rt:
        guard = AmendsMiddleware(rt)
        inner = StateGraph(State)
        tools = [handover(), lc_tool(shop.functions()[0])]
        inner.add_node("tools", ToolNode(tools, wrap_tool_call=guard.wrap_tool_call))
        inner.add_edge(START, "tools")
        outer = StateGraph(State)
        outer.add_node("first", inner.compile(), destinations=("second",))
        outer.add_node("second", lambda state: visits.append(len(state["messages"])))
        outer.add_edge(START, "first")
        for _ in range(2):
            outer.compile().invoke(given)
    assert len(visits) == 2
    assert sorted(shop.effects()) == ["charge A2 500", "charge A3 500"]
    assert shop.states() == ["committed"]


def test_an_agent_that_hands_over_with_something_missing_is_told_first(shop: Shop) -> None:
    turns: list[Any] = [[charge("A1", 500)], [("ship", {"order": "nowhere"})], [HANDS_OVER], [HANDS_OVER], "never"]
    with runtime(shop, amends.declare("transfer_to_second", kind="read")) as rt:
        team = swarm(shop, AmendsMiddleware(rt), turns, InMemorySaver())
        with pytest.raises(amends.RolledBack):
            team.invoke(HELLO, CONFIG)
    assert shop.effects() == ["charge A1 500", "refund ch_A1"]
    assert shop.states() == ["rolled_back"]


def test_a_handover_back_and_forth_in_one_block_is_made_each_time(shop: Shop) -> None:
    visits: list[str] = []

    def second(state: Any) -> Any:
        visits.append("second")
        return Command(goto="first" if len(visits) == 1 else END)

    turns: list[Any] = [[HANDS_OVER], [HANDS_OVER], "never"]
    with runtime(shop, amends.declare("transfer_to_second", compensate=lambda: None)) as rt:
        guard = AmendsMiddleware(rt)
        team = swarm(shop, guard, turns, InMemorySaver(), second=second)
        with guard.turn(CONFIG):
            team.invoke(HELLO, CONFIG)
    assert visits == ["second", "second"]
    assert shop.states() == ["committed"]


def tool_graph(guard: AmendsMiddleware, shop: Shop, turns: Sequence[Turn], saver: Any, *, end: Any = None) -> Any:
    model = Scripted(turns=turns)
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    tools = [lc_tool(fn) for fn in shop.functions()]
    node = ToolNode(tools, wrap_tool_call=guard.wrap_tool_call, awrap_tool_call=guard.awrap_tool_call)
    graph.add_node("tools", node)
    graph.add_node("end", end or (lambda state: {}))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].tool_calls else "end")
    graph.add_edge("tools", "model")
    return graph.compile(checkpointer=saver)


@pytest.mark.parametrize("colour", ["blocking", "async"])
def test_the_run_of_a_bare_tool_node_ends_with_its_graph(shop: Shop, colour: str) -> None:
    turns: list[Turn] = [[("mail", {"to": "ann"}), charge("A1", 500)], [charge("A2", 700)], "charged"]
    if colour == "blocking":
        with runtime(shop) as rt:
            graph = tool_graph(AmendsMiddleware(rt), shop, turns, InMemorySaver())
            graph.invoke(HELLO, CONFIG)
            assert shop.states() == ["committed"]
            graph.invoke(HELLO, CONFIG)
    else:

        async def go() -> None:
            async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
                graph = tool_graph(AmendsMiddleware(rt), shop, turns, InMemorySaver())
                await graph.ainvoke(HELLO, CONFIG)
                await graph.ainvoke(HELLO, CONFIG)

        asyncio.run(go())
    assert shop.effects() == ["charge A1 500", "charge A2 700", "mail ann"] * 2
    assert [(run.id, run.state) for run in shop.runs()] == [("t1/2", "committed"), ("t1/1", "committed")]


def test_the_run_of_a_bare_tool_node_does_not_end_with_a_pause(shop: Shop) -> None:
    turns: list[Turn] = [[("mail", {"to": "ann"}), charge("A1", 500)], "charged"]
    saver = InMemorySaver()

    def end(state: Any) -> dict[str, Any]:
        return {"messages": [AIMessage(str(interrupt("really?")))]}

    with runtime(shop) as rt:
        tool_graph(AmendsMiddleware(rt), shop, turns, saver, end=end).invoke(HELLO, CONFIG)
        assert shop.effects() == ["charge A1 500"]
        assert [(run.state, run.owner) for run in shop.runs()] == [("open", None)]
        guard = AmendsMiddleware(rt)
        with guard.turn(CONFIG):
            tool_graph(guard, shop, turns, saver, end=end).invoke(Command(resume="yes"), CONFIG)
    assert shop.effects() == ["charge A1 500", "mail ann"]
    assert shop.states() == ["committed"]


@pytest.mark.parametrize("colour", ["blocking", "async"])
def test_a_graph_that_fails_after_its_bare_tool_node_commits_nothing_and_can_be_resumed(
    shop: Shop, colour: str
) -> None:
    saver, down = InMemorySaver(), [ConnectionAbortedError("down")]

    def report(state: Any) -> dict[str, Any]:
        if down:
            raise down.pop()
        return {}

    def graph_of(guard: AmendsMiddleware) -> Any:
        tools = ToolNode(
            [lc_tool(fn) for fn in shop.functions()],
            wrap_tool_call=guard.wrap_tool_call,
            awrap_tool_call=guard.awrap_tool_call,
        )
        graph = StateGraph(MessagesState)
        graph.add_node("tools", tools)
        graph.add_node("report", report)
        graph.add_edge(START, "tools")
        graph.add_edge("tools", "report")
        return graph.compile(checkpointer=saver)

    calls: Any = [
        {"name": "charge", "args": {"order": "A1", "cents": 5}, "id": "c1"},
        {"name": "mail", "args": {"to": "a@b"}, "id": "c2"},
    ]
    asked = {"messages": [HumanMessage("go"), AIMessage("", tool_calls=calls)]}

    tools = [lc_tool(fn) for fn in shop.functions()]

    async def ago() -> None:
        async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
            await graph_of(AmendsMiddleware(rt)).ainvoke(asked, CONFIG)

    async def again() -> None:
        async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
            async with (guard := AmendsMiddleware(rt, tools=tools)).turn(CONFIG):
                await graph_of(guard).ainvoke(None, CONFIG)

    with pytest.raises(ConnectionAbortedError):
        if colour == "async":
            asyncio.run(ago())
        else:
            with runtime(shop) as rt:
                graph_of(AmendsMiddleware(rt)).invoke(asked, CONFIG)
    assert (shop.effects(), shop.states()) == (["charge A1 5"], ["open"])
    with shop.desk() as rt:
        assert [item.what for item in rt.inbox()] == ["suspended"]
    if colour == "async":
        asyncio.run(again())
    else:
        with runtime(shop) as rt, (guard := AmendsMiddleware(rt, tools=tools)).turn(CONFIG):
            graph_of(guard).invoke(None, CONFIG)
    assert (shop.effects(), shop.states()) == (["charge A1 5", "mail a@b"], ["committed"])


def test_an_open_failure_of_a_bare_tool_node_comes_out_of_invoke(shop: Shop) -> None:
    turns: list[Turn] = [[charge("A1", 500)], [("ship", {"order": "nowhere"})], "sorry"]
    with runtime(shop) as rt, pytest.raises(amends.RolledBack):
        tool_graph(AmendsMiddleware(rt), shop, turns, InMemorySaver()).invoke(HELLO, CONFIG)
    assert shop.effects() == ["charge A1 500", "refund ch_A1"]


# ---- stopping -------------------------------------------------------------------------------


def test_a_stop_between_two_agents_commits_nothing(shop: Shop) -> None:
    saver = InMemorySaver()
    with runtime(shop) as rt:
        guard = AmendsMiddleware(rt)
        graph = StateGraph(MessagesState)
        graph.add_node("first", agent_of(guard, shop, [[("mail", {"to": "ann"})], "handed on"]))
        graph.add_node("second", agent_of(guard, shop, ["", "", [charge("A1", 500)], "charged"]))
        graph.add_edge(START, "first")
        graph.add_edge("first", "second")
        team: Any = graph.compile(checkpointer=saver)
        with guard.turn(CONFIG):
            for _ in team.stream(HELLO, CONFIG):
                break
        assert shop.effects() == []
        assert shop.states() == ["open"]
        with guard.turn(CONFIG):
            team.invoke(None, CONFIG)
    assert shop.effects() == ["charge A1 500", "mail ann"]
    assert shop.states() == ["committed"]


def test_a_pause_of_a_plain_node_after_an_agent_commits_nothing(shop: Shop) -> None:
    with runtime(shop) as rt:
        guard = AmendsMiddleware(rt)
        graph = StateGraph(MessagesState)
        graph.add_node("first", agent_of(guard, shop, [[("mail", {"to": "ann"})], "handed on"]))
        graph.add_node("ask", lambda state: {"messages": [AIMessage(str(interrupt("really?")))]})
        graph.add_edge(START, "first")
        graph.add_edge("first", "ask")
        team: Any = graph.compile(checkpointer=InMemorySaver())
        with guard.turn(CONFIG):
            team.invoke(HELLO, CONFIG)
        assert shop.effects() == []
        assert shop.states() == ["open"]
        with guard.turn(CONFIG):
            team.invoke(Command(resume="yes"), CONFIG)
    assert shop.effects() == ["mail ann"]
    assert shop.states() == ["committed"]


@pytest.mark.parametrize("how", ["failed", "asked a person", "breakpoint"])
@pytest.mark.parametrize("colour", ["blocking", "async"])
def test_an_agent_without_a_block_that_has_not_ended_goes_on_in_another_process(
    shop: Shop, how: str, colour: str
) -> None:
    """Two runtimes are two owners: while the first lives, a run that it holds is busy for every other."""
    saver, more = InMemorySaver(), dict[str, Any]()
    script: list[Any] = [[charge("A1", 5)], [charge("A2", 6)], "ok"]
    first: list[Any] = [script[0], Fails("down")] if how == "failed" else script
    if how == "asked a person":
        more["middleware"] = [HumanInTheLoopMiddleware(interrupt_on={"take_seat": True})]
        first = script = [script[0], [("take_seat", {"seat": "1"})], "ok"]
    if how == "breakpoint":
        more["interrupt_after"] = ["tools"]
    given: Any = Command(resume={"decisions": [{"type": "approve"}]}) if how == "asked a person" else None

    def blocking() -> None:
        with runtime(shop) as one, runtime(shop, wait=0) as other:
            with suppress(ConnectionAbortedError):
                agent_of(AmendsMiddleware(one), shop, first, saver, **dict(more)).invoke(HELLO, CONFIG)
            more.pop("interrupt_after", None)
            agent_of(AmendsMiddleware(other), shop, script, saver, **more).invoke(given, CONFIG)

    async def on_a_loop() -> None:
        async with (
            amends.AsyncRuntime(shop.url, tools=shop.declared()) as one,
            amends.AsyncRuntime(shop.url, tools=shop.declared(), wait=0) as other,
        ):
            with suppress(ConnectionAbortedError):
                await agent_of(AmendsMiddleware(one), shop, first, saver, **dict(more)).ainvoke(HELLO, CONFIG)
            more.pop("interrupt_after", None)
            await agent_of(AmendsMiddleware(other), shop, script, saver, **more).ainvoke(given, CONFIG)

    blocking() if colour == "blocking" else asyncio.run(on_a_loop())
    second = "take_seat 1" if how == "asked a person" else "charge A2 6"
    assert (shop.effects(), shop.states()) == (["charge A1 5", second], ["committed"])


@pytest.mark.parametrize("colour", ["blocking", "async"])
def test_an_agent_that_fails_and_that_nobody_can_resume_is_taken_back(shop: Shop, colour: str) -> None:
    turns: list[Turn] = [[charge("A1", 5), ("mail", {"to": "a@b"})], Fails("down")]

    async def on_a_loop() -> None:
        async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
            await agent_of(AmendsMiddleware(rt), shop, turns).ainvoke(HELLO)

    with pytest.raises(ConnectionAbortedError):
        if colour == "async":
            asyncio.run(on_a_loop())
        else:
            with runtime(shop) as rt:
                agent_of(AmendsMiddleware(rt), shop, turns).invoke(HELLO)
    assert (shop.effects(), shop.states()) == (["charge A1 5", "refund ch_A1"], ["rolled_back"])


@pytest.mark.parametrize("how", ["a node catches it", "a fallback answers"])
@pytest.mark.parametrize("colour", ["blocking", "async"])
def test_an_agent_without_a_block_that_failed_while_the_whole_went_on_is_taken_back(
    shop: Shop, how: str, colour: str
) -> None:
    def team_of(rt: Any) -> Any:
        agent = agent_of(AmendsMiddleware(rt), shop, [[charge("A1", 5)], Fails("down")])

        def careful(state: Any) -> dict[str, Any]:
            with suppress(ConnectionAbortedError):
                agent.invoke(state)
            return {"messages": [AIMessage("sorry")]}

        async def careful_too(state: Any) -> dict[str, Any]:
            with suppress(ConnectionAbortedError):
                await agent.ainvoke(state)
            return {"messages": [AIMessage("sorry")]}

        node = RunnableLambda(careful, careful_too)
        if how == "a fallback answers":
            node = agent.with_fallbacks([RunnableLambda(lambda state: {"messages": [AIMessage("sorry")]})])
        graph = StateGraph(MessagesState)
        graph.add_node("pay", node)
        graph.add_edge(START, "pay")
        return graph.compile(checkpointer=InMemorySaver())

    async def on_a_loop() -> None:
        async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
            await team_of(rt).ainvoke(HELLO, CONFIG)

    if colour == "async":
        asyncio.run(on_a_loop())
    else:
        with runtime(shop) as rt:
            team_of(rt).invoke(HELLO, CONFIG)
    assert (shop.effects(), shop.states()) == (["charge A1 5", "refund ch_A1"], ["rolled_back"])


def test_a_breakpoint_of_an_agent_commits_nothing(shop: Shop) -> None:
    with runtime(shop) as rt:
        guard, saver = AmendsMiddleware(rt), InMemorySaver()
        turns = [[("mail", {"to": "ann"})], [charge("A1", 500)], "ok"]
        agent = agent_of(guard, shop, turns, saver, interrupt_before=["tools"])
        for given in (HELLO, None):
            with guard.turn(CONFIG):
                agent.invoke(given, CONFIG)
            assert shop.effects() == []
        with guard.turn(CONFIG):
            agent.invoke(None, CONFIG)
    assert shop.effects() == ["charge A1 500", "mail ann"]
    assert shop.states() == ["committed"]


def test_an_agent_whose_failure_a_node_has_caught_keeps_nothing_open(shop: Shop) -> None:
    with runtime(shop) as rt:
        guard = AmendsMiddleware(rt)
        agent = agent_of(guard, shop, [[charge("A1", 500)], Fails("down")])

        def careful(state: Any) -> dict[str, Any]:
            with suppress(ConnectionAbortedError):
                agent.invoke(state)
            return {"messages": [AIMessage("sorry")]}

        graph = StateGraph(MessagesState)
        graph.add_node("careful", careful)
        graph.add_edge(START, "careful")
        with guard.turn(CONFIG):
            graph.compile(checkpointer=InMemorySaver()).invoke(HELLO, CONFIG)
    assert shop.states() == ["committed"]


def test_ctrl_c_in_a_block_suspends(shop: Shop) -> None:
    with runtime(shop) as rt:
        guard, saver = AmendsMiddleware(rt), InMemorySaver()
        agent = agent_of(guard, shop, [[charge("A1", 500)], "ok"], saver)
        with pytest.raises(KeyboardInterrupt), guard.turn(CONFIG):
            for state in agent.stream(HELLO, CONFIG, stream_mode="values"):
                if told_in(state):
                    raise KeyboardInterrupt
        assert shop.states() == ["open"]
        with guard.turn(CONFIG):
            agent.invoke(None, CONFIG)
    assert shop.effects() == ["charge A1 500"]
    assert shop.states() == ["committed"]


# ---- names ----------------------------------------------------------------------------------


def test_a_run_without_a_name_is_warned_about_once(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    with runtime(shop) as rt:
        agent = agent_of(AmendsMiddleware(rt), shop, [[charge("A1", 500)], "ok"])
        agent.invoke(HELLO)
        agent.invoke(HELLO, CONFIG)
        said = [one.message for one in caplog.records if "random ids" in one.message]
        assert len(said) == 1
        assert "run_id=" in said[0]
        caplog.clear()
        agent_of(AmendsMiddleware(rt, run_id="job-7"), shop, ["ok"]).invoke(HELLO)
        agent_of(AmendsMiddleware(rt), shop, ["ok"], InMemorySaver()).invoke(HELLO, CONFIG)
        guard = AmendsMiddleware(rt)
        with guard.turn(run_id="job-8"):
            agent_of(guard, shop, ["ok"]).invoke(HELLO)
    assert not [one for one in caplog.records if "random ids" in one.message]


def test_a_named_block_that_is_repeated_repeats_no_effect(shop: Shop) -> None:
    for _ in range(2):
        with runtime(shop) as rt:
            guard = AmendsMiddleware(rt)
            with guard.turn(run_id="job-7"):
                agent_of(guard, shop, [[charge("A1", 500)], "ok"]).invoke(HELLO)
    assert shop.effects() == ["charge A1 500"]
    assert [run.id for run in shop.runs()] == ["job-7"]


def test_a_new_message_gives_up_the_turn_of_several_agents_that_had_not_ended(shop: Shop) -> None:
    with runtime(shop) as rt:
        guard = AmendsMiddleware(rt)
        graph = StateGraph(MessagesState)
        graph.add_node("first", agent_of(guard, shop, [[charge("A1", 500)], "ok"]))
        graph.add_node("second", agent_of(guard, shop, ["", "", [wire("DE02", 4200_00)], "paid"]))
        graph.add_edge(START, "first")
        graph.add_edge("first", "second")
        team: Any = graph.compile(checkpointer=InMemorySaver())
        for _ in range(2):
            with guard.turn(CONFIG):
                assert "__interrupt__" in team.invoke(HELLO, CONFIG)
    assert shop.effects() == ["charge A1 500", "refund ch_A1", "charge A1 500"]
    assert [(run.id, run.state) for run in shop.runs() if run.parent is None] == [
        ("t1/2", "open"), ("t1/1", "rolled_back")
    ]  # fmt: skip


# ---- two runtimes ---------------------------------------------------------------------------


def other_runtime(tmp_path: Path, *tools: Any) -> Runtime:
    return Runtime(f"sqlite:///{tmp_path / 'other.db'}", tools=tools)


@pytest.mark.parametrize("inside", ["block", "tool"])
def test_an_agent_in_a_run_of_another_runtime_opens_its_own(shop: Shop, tmp_path: Path, inside: str) -> None:
    with runtime(shop) as rt, other_runtime(tmp_path, amends.declare("ask", compensate=lambda: None)) as other:
        agent = agent_of(AmendsMiddleware(rt), shop, [[charge("A1", 500)], "ok"], InMemorySaver())
        with other.run("theirs") as run:
            if inside == "block":
                agent.invoke(HELLO, CONFIG)
            else:
                run.answer("ask", {}, handler=lambda: str(agent.invoke(HELLO, CONFIG)["messages"][-1].content))
        assert [call.tool for call in other.report("theirs").calls] == ["ask"] * (inside == "tool")
    assert shop.effects() == ["charge A1 500"]
    assert [(run.id, run.state) for run in shop.runs()] == [("t1/1", "committed")]


def test_a_block_of_another_runtime_is_not_its_block(shop: Shop, tmp_path: Path) -> None:
    with runtime(shop) as rt, other_runtime(tmp_path, *shop.declared()) as other:
        mine, theirs = AmendsMiddleware(rt), AmendsMiddleware(other)
        with theirs.turn(config_of("theirs")):
            agent_of(mine, shop, [[charge("A1", 500)], "ok"], InMemorySaver()).invoke(HELLO, CONFIG)
            agent_of(theirs, shop, [[charge("B1", 700)], "ok"], InMemorySaver()).invoke(HELLO, config_of("theirs"))
        assert [run.id for run in other.runs()] == ["theirs/1"]
    assert [run.id for run in shop.runs()] == ["t1/1"]
    assert shop.effects() == ["charge A1 500", "charge B1 700"]


# ---- unguarded paths ------------------------------------------------------------------------


def unguarded(shop: Shop, guard: AmendsMiddleware, path: str) -> Callable[[], Any]:
    """A graph with a guarded agent, and a path past it."""
    tools = [lc_tool(fn) for fn in shop.functions()]
    charges: Any = tools[0]
    graph = StateGraph(MessagesState)
    graph.add_node("first", agent_of(guard, shop, [[("balance", {"account": "a"})], "ok"]))
    if path == "sub-agent":
        graph.add_node("past", create_agent(Scripted(turns=["", "", [charge("B1", 700)], "ok"]), tools=tools))
    else:
        graph.add_node("past", lambda state: {"messages": [AIMessage(str(charges.invoke(charge("B1", 700)[1])))]})
    graph.add_edge(START, "first")
    graph.add_edge("first", "past")
    team: Any = graph.compile(checkpointer=InMemorySaver())
    return lambda: team.invoke(HELLO, CONFIG)


@pytest.mark.parametrize("path", ["sub-agent", "tool.invoke"])
@pytest.mark.parametrize("block", [True, False])
def test_a_tool_past_the_middleware_is_named(
    shop: Shop, path: str, block: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shop, "_note", lambda tool: None)
    with runtime(shop) as rt:
        guard = AmendsMiddleware(rt)
        go = unguarded(shop, guard, path)
        for _ in range(2):
            if block:
                with guard.turn(CONFIG):
                    go()
            else:
                go()
    said = [one.message for one in caplog.records if "past AmendsMiddleware" in one.message]
    assert len(said) == 1
    assert said[0].startswith("charge was started in node ")
    assert shop.effects() == ["charge B1 700"] * 2


@pytest.mark.parametrize("path", ["sub-agent", "tool.invoke"])
@pytest.mark.parametrize("block", [True, False])
def test_a_tool_past_a_strict_middleware_is_refused(shop: Shop, path: str, block: bool) -> None:
    with runtime(shop) as rt:
        guard = AmendsMiddleware(rt, strict=True)
        go = unguarded(shop, guard, path)
        with pytest.raises(UsageError, match="charge was started in node"):
            if block:
                with guard.turn(CONFIG):
                    go()
            else:
                go()
    assert shop.effects() == []


def test_an_unguarded_agent_inside_a_tool_is_named_and_a_tool_inside_a_tool_is_not(
    shop: Shop, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shop, "_note", lambda tool: None)

    @lc_tool
    def helper(text: str) -> str:
        """A part of another tool."""
        return text

    inner: Any = create_agent(
        Scripted(turns=[[("stamp", {"text": "x"})], "ok"]),
        tools=[lc_tool(next(fn for fn in shop.functions() if fn.__name__ == "stamp"))],
    )

    @lc_tool
    def delegate(what: str) -> str:
        """Let somebody else do it."""
        helper.invoke({"text": what})
        return str(inner.invoke(HELLO)["messages"][-1].content)

    with runtime(shop, amends.declare("delegate", compensate=lambda: None)) as rt:
        turns = [[("delegate", {"what": "x"})], "ok"]
        agent_of(AmendsMiddleware(rt), shop, turns, InMemorySaver(), tools=[delegate]).invoke(HELLO, CONFIG)
    said = [one.message.partition(" ")[0] for one in caplog.records if "past AmendsMiddleware" in one.message]
    assert said == ["stamp"]


def test_what_goes_through_amends_is_not_warned_about(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)

    @lc_tool
    def delete(id: str) -> None:
        """Delete."""

    back = {"tool": "delete", "args": {"id": "$result.id"}}
    shop.more = [(lambda: None, amends.declare("delete", kind="pivot"))]

    @lc_tool
    def add(name: str) -> dict[str, str]:
        """Add."""
        return {"id": name}

    turns = [
        [("mail", {"to": "a"}), ("reserve", {"sku": "S"}), ("add", {"name": "n"})],
        [("add", {"wrong": 1})],
        Fails("x"),
    ]
    shop.more = []
    with Runtime(
        shop.url,
        tools=[*shop.declared(), amends.declare("add", compensate=back), amends.declare("delete", kind="pivot")],
    ) as rt:
        guard = AmendsMiddleware(rt, strict=True)
        agent = agent_of(guard, shop, turns, InMemorySaver(), tools=[add, delete])
        with pytest.raises(ConnectionAbortedError), guard.turn(CONFIG):
            agent.invoke(HELLO, CONFIG)
    assert not [one for one in caplog.records if "past" in one.message]
    assert shop.states() == ["rolled_back"]


# ---- arguments ------------------------------------------------------------------------------


class Address(BaseModel):
    city: str
    country: str = "PT"


class Order(BaseModel, populate_by_name=True):
    to: Address
    cents: int = Field(alias="amount")
    when: str = "now"
    price: Decimal = Decimal("1.50")
    lines: list[Address] = Field(default_factory=list)


def schema_tool() -> BaseTool:
    return StructuredTool.from_function(func=lambda **args: "ok", name="order", description="d", args_schema=Order)


@pytest.mark.parametrize(
    "said",
    [
        {"to": {"city": "Lisbon"}, "amount": "5"},
        {"to": {"city": "Lisbon", "country": "PT"}, "cents": 5.0, "when": "now"},
        {"to": {"city": "Lisbon", "planet": "earth"}, "amount": 5, "lines": [], "price": "1.50"},
    ],
)
def test_requests_are_bound_by_the_schema(said: dict[str, Any]) -> None:
    whole = {"to": {"city": "Lisbon", "country": "PT"}, "cents": 5, "when": "now", "price": "1.50", "lines": []}
    assert bound_args(schema_tool(), said) == whole


class Party(BaseModel):
    seats: frozenset[int] = Field(default=frozenset(), alias="places")


def test_a_set_in_another_order_is_the_same_call(shop: Shop) -> None:
    """As after a kill: a set of texts has another order in each process, and 0 and 8 have it here."""
    assert list({0, 8}) != list({8, 0}), "these show the order in which they came"

    def book(seats: set[int], by_row: dict[str, set[int]], parties: list[Party]) -> str:
        """Book seats."""
        shop._effect("book", len(seats))
        return "booked"

    def asked(order: list[int]) -> tuple[str, dict[str, Any]]:
        return "book", {"seats": order, "by_row": {"1": order}, "parties": [{"places": order}]}

    shop.more = [(book, amends.declare("book", compensate=lambda: None))]
    with runtime(shop) as rt:
        agent_of(AmendsMiddleware(rt), shop, [[asked([0, 8])], [asked([8, 0])], "booked"]).invoke(HELLO)
    assert shop.effects() == ["book 2"]


def test_sets_are_sorted_wherever_they_are() -> None:
    class Old(pydantic.v1.BaseModel):
        seats: set[int]

    class Row(RootModel[set[int]]): ...

    class Hall(BaseModel):
        rows: list[Row]
        ends: set[tuple[int, int]]

    hall = StructuredTool.from_function(func=lambda **args: "ok", name="hall", description="d", args_schema=Hall)
    old = StructuredTool.from_function(func=lambda **args: "ok", name="old", description="d", args_schema=Old)
    for order in ([0, 8], [8, 0]):
        assert bound_args(old, {"seats": order}) == {"seats": [0, 8]}
        said = {"rows": [order], "ends": [[8, 0], [0, 8]]}
        assert bound_args(hall, said) == {"rows": [[0, 8]], "ends": [[0, 8], [8, 0]]}


def test_a_model_that_knows_only_aliases_is_bound_under_these() -> None:
    class Pay(BaseModel):
        cents: int = Field(alias="amount")
        note: str = ""

    made = StructuredTool.from_function(func=lambda **args: "ok", name="pay", description="d", args_schema=Pay)
    assert bound_args(made, {"amount": "5"}) == {"amount": 5, "note": ""}


def test_a_model_of_the_old_pydantic_is_bound_too() -> None:
    class Pay(pydantic.v1.BaseModel):
        cents: int
        note: str = ""

    made = StructuredTool.from_function(func=lambda **args: "ok", name="pay", description="d", args_schema=Pay)
    assert bound_args(made, {"cents": "5", "x": 1}) == {"cents": 5, "note": ""}
    assert bound_args(made, {}) is None


def test_secrets_random_defaults_and_injected_arguments_stay_as_they_are() -> None:
    class Pay(BaseModel):
        pin: SecretStr
        nonce: str = Field(default_factory=lambda: os.urandom(4).hex())
        state: Annotated[dict[str, Any], InjectedState]
        call: Annotated[str, InjectedToolCallId]

    made = StructuredTool.from_function(func=lambda **args: "ok", name="pay", description="d", args_schema=Pay)
    assert bound_args(made, {"pin": "1234", "state": {"forged": 1}}) == {"pin": "1234"}
    assert bound_args(made, {"pin": "1234", "nonce": "n"}) == {"pin": "1234", "nonce": "n"}


def test_a_json_schema_binds_too() -> None:
    schema = {
        "type": "object",
        "properties": {
            "n": {"type": "integer"},
            "to": {"type": "object", "properties": {"country": {"type": "string", "default": "PT"}}},
            "lines": {"type": "array", "items": {"type": "number"}},
            "when": {"type": "string", "default": "now"},
        },
        "additionalProperties": False,
    }
    made = StructuredTool(name="order", description="d", args_schema=schema, func=lambda **args: "ok")
    said = {"n": "5", "to": {}, "lines": ["1.5", 2], "planet": "earth"}
    assert bound_args(made, said) == {"n": 5, "to": {"country": "PT"}, "lines": [1.5, 2], "when": "now"}


@pytest.mark.parametrize(
    "again",
    [
        {"to": {"city": "Lisbon", "country": "PT"}, "nights": 2},
        {"to": {"city": "Lisbon"}, "nights": "2"},
        {"to": {"city": "Lisbon"}, "nights": 2, "quiet": "false", "guests": [{"name": "Ana", "age": None}]},
        {"to": {"city": "Lisbon"}, "nights": 2, "note": None},
    ],
    ids=["a default inside", "a number or null", "a truth and what is in a list", "a null that may be left out"],
)
def test_the_schema_of_an_mcp_server_binds_whatever_it_refers_to(shop: Shop, again: dict[str, Any]) -> None:
    """As those of ``langchain-mcp-adapters``: a JSON schema, in which pydantic refers to its models."""

    class Guest(BaseModel):
        name: str
        age: int | None = None

    class Stay(BaseModel):
        to: Address
        nights: int | None = None
        quiet: bool = False
        guests: list[Guest] = [Guest(name="Ana")]

    schema = Stay.model_json_schema()
    schema["properties"]["note"] = {"type": "string"}
    book = StructuredTool(name="book", description="d", args_schema=schema, func=lambda **_: shop._effect("book"))
    first = {"to": {"city": "Lisbon"}, "nights": 2}
    with runtime(shop, amends.declare("book", compensate=lambda: None)) as rt:
        turns: list[Turn] = [[("book", first)], [("book", again)], "booked"]
        agent_of(AmendsMiddleware(rt), shop, turns, tools=[book]).invoke(HELLO)
    assert shop.effects() == ["book"]


@pytest.mark.parametrize("again", [{"postCode": "1000", "country": "PT"}, {"postCode": "1000", "planet": "earth"}])
def test_a_model_inside_that_knows_only_aliases_is_bound_too(again: dict[str, Any]) -> None:
    class Place(BaseModel):
        code: str = Field(alias="postCode")
        country: str = "PT"

    class Send(BaseModel, populate_by_name=True):
        to: Place
        cents: int = Field(default=5, alias="amount")

    made = StructuredTool.from_function(func=lambda **args: "ok", name="send", description="d", args_schema=Send)
    whole = {"to": {"postCode": "1000", "country": "PT"}, "cents": 5}
    assert bound_args(made, {"to": {"postCode": "1000"}}) == bound_args(made, {"to": again}) == whole


def test_a_tool_without_a_schema_has_the_defaults_of_its_body() -> None:
    class Plain(BaseTool):
        name: str = "plain"
        description: str = "d"

        def _run(self, text: str, times: int = 2, run_manager: Any = None) -> str:
            return text

    assert bound_args(Plain(), {"text": "x"}) == {"text": "x", "times": 2}


def test_arguments_that_the_schema_refuses_are_told_in_the_frameworks_words_and_not_recorded(shop: Shop) -> None:
    with runtime(shop) as rt:
        turns: list[Turn] = [[("charge", {"order": "A1"})], [charge("A1", 500)], "ok"]
        state = agent_of(AmendsMiddleware(rt), shop, turns, InMemorySaver()).invoke(HELLO, CONFIG)
        assert [call.state for call in rt.report("t1/1").calls] == ["succeeded"]
    assert "cents" in told_in(state)[0]
    assert state["messages"][2].status == "error"
    assert shop.effects() == ["charge A1 500"]


def test_state_and_runtime_are_still_injected(shop: Shop) -> None:
    seen: list[Any] = []

    @lc_tool
    def look(
        what: str, runtime: ToolRuntime, state: Annotated[dict[str, Any], InjectedState], deep: bool = False
    ) -> str:
        """Look."""
        seen.append((what, deep, len(state["messages"]), runtime.tool_call_id is not None))
        return what

    with runtime(shop, amends.declare("look", compensate=lambda: None)) as rt:
        turns = [[("look", {"what": "x"})], [("look", {"what": "x", "deep": "false"})], "ok"]
        agent_of(AmendsMiddleware(rt), shop, turns, InMemorySaver(), tools=[look]).invoke(HELLO, CONFIG)
        [call] = rt.report("t1/1").calls
        assert call.args == {"what": "x", "deep": False}
    assert seen == [("x", False, 2, True)]


def test_a_model_sees_the_argument_of_which_amends_speaks_and_it_counts(shop: Shop) -> None:
    shown: list[Any] = []

    class Looks(Scripted):
        def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
            shown.append({one["function"]["name"]: one["function"] for one in tools if isinstance(one, dict)})
            return self

    for repeats in (True, False):
        with Runtime(shop.url, tools=shop.declared(), repeats=repeats) as rt:
            turns = [[charge("A1", 500)], [charge("A1", 500, again_because="second box")], "ok"]
            agent: Any = create_agent(
                Looks(turns=turns),
                tools=[lc_tool(fn) for fn in shop.functions()],
                middleware=[AmendsMiddleware(rt, run_id=f"repeats-{repeats}")],
            )
            agent.invoke(HELLO)
    assert shown[0]["charge"]["parameters"]["properties"]["again_because"]["type"] == "string"
    assert shown[-1] == {}, "where it is not honoured, the tools are as they are"
    assert shop.effects() == ["charge A1 500"] * 3, "twice, then once"


# ---- results --------------------------------------------------------------------------------


@dataclass
class Ticket:
    id: str
    price: Decimal


def test_a_compensation_in_another_process_gets_the_class_that_it_names(shop: Shop) -> None:
    handed: list[Any] = []

    @lc_tool
    def book(room: str) -> Ticket:
        """Book a room."""
        return Ticket(room, Decimal("1.50"))

    def cancel(result: Ticket) -> None:
        handed.append(result)

    declared = amends.declare("book", compensate=cancel)
    saver = InMemorySaver()
    with runtime(shop, declared) as rt:
        turns = [[("book", {"room": "7"})], [("stamp", {"text": "x"})], "ok"]
        agent_of(AmendsMiddleware(rt), shop, turns, saver, tools=[book]).invoke(HELLO, CONFIG)
    with runtime(shop, declared) as rt:
        rt.open("t1/1").leave(LookupError())
    assert handed == [Ticket("7", Decimal("1.50"))]


@pytest.mark.parametrize("returned", ["command", "message", "pair", "blocks"])
def test_a_compensation_gets_the_frameworks_own_results_and_a_crash_loses_none(shop: Shop, returned: str) -> None:
    handed: list[Any] = []
    picture = [{"type": "image", "base64": "AAAA", "mime_type": "image/png"}, {"type": "text", "text": "a map"}]

    def book(room: str, runtime: ToolRuntime) -> Any:
        """Book a room."""
        call_id = runtime.tool_call_id
        said = ToolMessage("booked", tool_call_id=call_id, artifact={"id": room})
        return {
            "command": Command(update={"messages": [said]}),
            "message": said,
            "pair": ("booked", {"id": room, "price": Decimal("1.50")}),
            "blocks": picture,
        }[returned]

    pair: Any = "content_and_artifact" if returned == "pair" else "content"
    made: Any = StructuredTool.from_function(book, response_format=pair)
    declared = amends.declare("book", compensate=lambda result: handed.append(result))
    asked = AIMessage("", tool_calls=[{"name": "book", "args": {"room": "7"}, "id": "c1"}])
    with runtime(shop, declared) as rt, pytest.raises(LookupError), rt.run("r"):
        guard = AmendsMiddleware(rt)
        graph = StateGraph(MessagesState)
        graph.add_node("tools", ToolNode([made], wrap_tool_call=guard.wrap_tool_call))
        graph.add_edge(START, "tools")
        states = [graph.compile().invoke({"messages": [HumanMessage("go"), asked]}) for _ in range(2)]
        raise LookupError
    first, again = (state["messages"][-1] for state in states)
    assert (again.content, again.artifact, again.tool_call_id) == (first.content, first.artifact, first.tool_call_id)
    [result] = handed
    match returned:
        case "command":
            assert type(result) is Command
            assert result.update is not None
            assert result.update["messages"][0].artifact == {"id": "7"}
        case "message":
            assert (result.content, result.artifact) == ("booked", {"id": "7"})
        case "pair":
            assert result == ("booked", {"id": "7", "price": Decimal("1.50")})
        case _:
            assert result == picture


def test_a_command_that_cannot_be_recorded_is_no_failure(shop: Shop) -> None:
    class State(MessagesState):
        thing: Any

    @lc_tool
    def choose(runtime: ToolRuntime) -> Command[Any]:
        """Choose."""
        done = ToolMessage("chosen", tool_call_id=runtime.tool_call_id)
        return Command(update={"thing": lambda: 1, "messages": [done]})

    asked = AIMessage("", tool_calls=[{"name": "choose", "args": {}, "id": "c1"}])
    with runtime(shop, amends.declare("choose", compensate=lambda: None)) as rt:
        guard = AmendsMiddleware(rt)
        graph = StateGraph(State)
        graph.add_node("tools", ToolNode([choose], wrap_tool_call=guard.wrap_tool_call))
        graph.add_edge(START, "tools")
        with rt.run("r"):
            graph.compile().invoke({"messages": [asked], "thing": None})
        assert [call.state for call in rt.report("r").calls] == ["succeeded"]


# ---- kills ----------------------------------------------------------------------------------


def test_a_job_that_was_killed_and_is_begun_again_with_its_thread_is_done_once(shop: Shop) -> None:
    """The first turn died with its process: a new message gives it up, and its effects are taken back first."""
    turns: list[Turn] = [[charge("A1", 500)], [charge("A2", 700)], "ok"]
    child = os.fork()
    if child == 0:
        shop.die_after("charge")
        _job(shop, turns)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 9
    assert shop.effects() == ["charge A1 500"]
    _job(shop, turns)
    assert shop.effects() == ["charge A1 500", "refund ch_A1", "charge A1 500", "charge A2 700"]
    assert shop.states() == ["rolled_back", "committed"]


def _job(shop: Shop, turns: list[Turn], *, resume: bool = False) -> None:
    with runtime(shop) as rt, SqliteSaver.from_conn_string(str(shop.folder / "graph.db")) as saver:
        guard = AmendsMiddleware(rt)
        with guard.turn(CONFIG):
            # "sync": otherwise a thread may still have to write the message when the process is killed.
            agent_of(guard, shop, turns, saver).invoke(None if resume else HELLO, CONFIG, durability="sync")


def test_an_idempotent_call_that_was_killed_is_started_again_by_the_resumed_agent(shop: Shop) -> None:
    def book(room: str) -> str:
        """Book a room."""
        shop._effect("book", room)
        return room

    shop.more = [(book, amends.declare("book", idempotent=True, compensate=lambda: None))]
    turns: list[Turn] = [[("book", {"room": "7"})], "ok"]
    child = os.fork()
    if child == 0:
        shop.die_after("book")
        _job(shop, turns)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 9
    _job(shop, turns, resume=True)
    assert shop.effects() == ["book 7", "book 7"], "the destination does not do it twice"
    assert shop.states() == ["committed"]


# ---- structured answers -------------------------------------------------------------------


class Told(BaseModel):
    """What the agent says at its end."""

    words: str


SAYS = ("Told", {"words": "done"})


@pytest.mark.parametrize("saver", [True, False])
@pytest.mark.parametrize("how", [ToolStrategy(Told), Told], ids=["tool", "auto"])
@pytest.mark.parametrize("colour", ["blocking", "async"])
def test_a_model_that_stops_with_a_structured_answer_is_told_what_is_missing(
    shop: Shop, saver: bool, how: Any, colour: str
) -> None:
    turns: list[Any] = [[charge("A1", 500)], [SAYS], [("ship", {"order": "A1"})], [SAYS]]
    kept = InMemorySaver() if saver else None
    if colour == "blocking":
        with runtime(shop) as rt:
            made = agent_of(AmendsMiddleware(rt, requires="ship"), shop, turns, kept, response_format=how)
            state = made.invoke(HELLO, CONFIG)
    else:

        async def flow() -> Any:
            async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
                made = agent_of(AmendsMiddleware(rt, requires="ship"), shop, turns, kept, response_format=how)
                return await made.ainvoke(HELLO, CONFIG)

        state = asyncio.run(flow())
    assert state["structured_response"] == Told(words="done")
    assert sum(isinstance(one, HumanMessage) and one.name == "amends" for one in state["messages"]) == 1
    assert shop.effects() == ["charge A1 500", "ship A1"]
    assert shop.states() == ["committed"]


def test_a_model_that_stops_all_the_same_is_told_once_and_taken_back(shop: Shop) -> None:
    turns: list[Any] = [[charge("A1", 500)], [SAYS], [SAYS]]
    with runtime(shop) as rt:
        made = agent_of(AmendsMiddleware(rt, requires="ship"), shop, turns, response_format=ToolStrategy(Told))
        with pytest.raises(amends.RolledBack):
            made.invoke(HELLO, CONFIG)
    assert shop.effects() == ["charge A1 500", "refund ch_A1"]


@pytest.mark.parametrize("turns", [[[SAYS]], [[("Told", {"wrong": 1})], [SAYS]]], ids=["at once", "after an error"])
def test_a_structured_answer_alone_makes_no_run(shop: Shop, turns: list[Any]) -> None:
    with runtime(shop) as rt:
        made = agent_of(AmendsMiddleware(rt), shop, turns, InMemorySaver(), response_format=ToolStrategy(Told))
        assert made.invoke(HELLO, CONFIG)["structured_response"] == Told(words="done")
    assert shop.runs() == []


def test_a_structured_answer_beside_a_call_waits_for_its_result(shop: Shop) -> None:
    turns: list[Any] = [[charge("A1", 500), SAYS]]
    with runtime(shop) as rt:
        made = agent_of(AmendsMiddleware(rt), shop, turns, InMemorySaver(), response_format=ToolStrategy(Told))
        assert made.invoke(HELLO, CONFIG)["structured_response"] == Told(words="done")
    assert shop.effects() == ["charge A1 500"]
    assert shop.states() == ["committed"]


# ---- declarations that do not fit the tools ----------------------------------------------------


@lc_tool
def pay_bill(invoice: str, cents: int) -> dict[str, str]:
    """Pay a bill."""
    raise AssertionError("a declaration that is wrong starts nothing")


class NeverAsked(Scripted):
    """A model that nobody may ask."""

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a declaration that is wrong asks no model")


def unbill(invoice: str) -> None: ...


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "key": (
        {"key": "invoce", "compensate": unbill},
        'key names "invoce", which is not an argument; did you mean "invoice"?',
    ),
    "ignore": ({"ignore": "memo", "compensate": unbill}, 'ignore names "memo", which is not an argument'),
    "redact": ({"redact": "iban", "compensate": unbill}, 'redact names "iban", which is not an argument'),
    "compensate": ({"compensate": lambda bill: None}, "bill"),
    "compensate's args": (
        {"compensate": {"tool": "balance", "args": {"account": "$args.invoce"}}},
        'did you mean "invoice"? pay_bill has: invoice, cents',
    ),
    "what the compensation takes": (
        {"compensate": {"tool": unbill, "args": {"invoce": "$args.invoice"}}},
        'unbill is given "invoce", which it does not take; did you mean "invoice"?',
    ),
    "probe": ({"compensate": unbill, "probe": lambda reference: None}, "reference"),
}


@pytest.mark.parametrize("where", ["middleware", "agent", "tool node"])
@pytest.mark.parametrize("what", WRONG)
def test_a_declaration_that_names_an_argument_that_the_tool_does_not_have_is_refused_before_anything_runs(
    tmp_path: Path, what: str, where: str
) -> None:
    options, words = WRONG[what]
    declared = [amends.declare("balance", kind="read"), amends.declare("pay_bill", **options)]
    with pytest.raises(BadDeclaration) as found, Runtime(f"sqlite:///{tmp_path / 'l.db'}", tools=declared) as rt:
        if where == "middleware":
            AmendsMiddleware(rt, tools=[pay_bill])
        guard = AmendsMiddleware(rt)
        if where == "agent":
            create_agent(NeverAsked(turns=[]), tools=[pay_bill], middleware=[guard]).invoke(HELLO)
        graph = StateGraph(MessagesState)
        graph.add_node("tools", ToolNode([pay_bill], wrap_tool_call=guard.wrap_tool_call))
        graph.add_edge(START, "tools")
        asked = AIMessage("", tool_calls=[{"name": "pay_bill", "args": {"invoice": "1", "cents": 2}, "id": "c"}])
        graph.compile().invoke({"messages": [asked]}, CONFIG)
    assert found.value.tool == "pay_bill"
    assert words in str(found.value)
    if what in ("key", "ignore", "redact"):
        assert "pay_bill has: invoice, cents" in str(found.value)


@pytest.mark.parametrize("name", ["pay_bil", "payBill", "pay-bill", "pay_blil", "apy_bill"])
def test_a_declaration_under_a_name_that_is_almost_that_of_a_tool_is_refused(tmp_path: Path, name: str) -> None:
    declared = [amends.declare(name, key="invoice", compensate=unbill)]
    with Runtime(f"sqlite:///{tmp_path / 'l.db'}", tools=declared) as rt:
        agent = create_agent(NeverAsked(turns=[]), tools=[pay_bill], middleware=[AmendsMiddleware(rt)])
        with pytest.raises(BadDeclaration, match='did you mean "pay_bill"') as found:
            agent.invoke(HELLO)
    assert found.value.tool == name


@lc_tool("charge")
def charge_card(order: str) -> str:
    """Charge a card."""
    return order


@pytest.mark.parametrize("name", ["chagre", "chrage", "hcarge"])
def test_a_declaration_with_two_letters_swapped_is_refused(tmp_path: Path, name: str) -> None:
    with Runtime(f"sqlite:///{tmp_path / 'l.db'}", tools=[amends.declare(name, kind="read")]) as rt:
        with pytest.raises(BadDeclaration, match='did you mean "charge"'):
            AmendsMiddleware(rt, tools=[charge_card])


@pytest.mark.parametrize("name", ["change", "barge", "grache"])
def test_a_declaration_that_only_resembles_a_tool_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    declared = [amends.declare(name, kind="read"), amends.declare("pay_bill", key="invoice", compensate=unbill)]
    with Runtime(f"sqlite:///{tmp_path / 'l.db'}", tools=declared) as rt:
        for _ in range(2):
            agent = create_agent(
                Scripted(turns=["ok"]), tools=[charge_card, pay_bill], middleware=[AmendsMiddleware(rt)]
            )
            agent.invoke(HELLO)
            agent.invoke(HELLO)
    (told,) = [one.getMessage() for one in caplog.records if "no tool" in one.getMessage()]
    assert f"{name} is declared" in told
    assert "charge, pay_bill" in told


def test_a_declaration_that_another_agent_has_used_is_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Runtime(f"sqlite:///{tmp_path / 'l.db'}", tools=[amends.declare("charge", kind="read")]) as rt:
        for used in (charge_card, pay_bill):
            create_agent(Scripted(turns=["ok"]), tools=[used], middleware=[AmendsMiddleware(rt)]).invoke(HELLO)
    assert not [one for one in caplog.records if "no tool" in one.getMessage()]


@pytest.mark.parametrize("colour", ["blocking", "async"])
def test_a_new_ledger_is_a_warning_if_the_turn_has_a_name(
    shop: Shop, caplog: pytest.LogCaptureFixture, colour: str
) -> None:
    turns: list[Any] = [[charge("A1", 5)], "ok"]

    async def on_a_loop() -> None:
        rt = amends.AsyncRuntime(shop.url, tools=shop.declared())
        await agent_of(AmendsMiddleware(rt), shop, turns, InMemorySaver()).ainvoke(HELLO, CONFIG)
        await rt.close()

    if colour == "async":
        asyncio.run(on_a_loop())
    else:
        rt = runtime(shop)
        agent_of(AmendsMiddleware(rt), shop, turns, InMemorySaver()).invoke(HELLO, CONFIG)
        rt.close()
    (told,) = [one for one in caplog.records if "created a new ledger" in one.getMessage()]
    assert told.levelname == "WARNING"


def test_declarations_of_other_agents_and_schemas_that_take_anything_are_not_refused(tmp_path: Path) -> None:
    anything = StructuredTool.from_function(
        func=lambda **given: str(given),
        name="anything",
        description="Takes anything.",
        args_schema={"type": "object", "properties": {"x": {"type": "string"}}, "additionalProperties": True},
    )
    declared = [
        amends.declare("anything", key="reference", compensate=unbill),
        amends.declare("of_another_agent", key="whatever", compensate=unbill),
    ]
    with Runtime(f"sqlite:///{tmp_path / 'l.db'}", tools=declared) as rt:
        turns: list[Any] = [[("anything", {"x": "1", "reference": "r", "invoice": "i"})], "ok"]
        agent = create_agent(Scripted(turns=turns), tools=[anything], middleware=[AmendsMiddleware(rt)])
        agent.invoke(HELLO)
        assert [run.state for run in rt.runs()] == ["committed"]

"""A turn of LangChain's agent that was rolled back: it stays so, and whoever resumes its graph is told again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.tools import tool as lc_tool
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

import amends
from amends import RolledBack
from amends.adapters.langchain import AmendsMiddleware
from tests.adapters.conformance import Fails, Turn, charge
from tests.adapters.shop import Shop
from tests.adapters.test_langchain import Scripted, config_of

HELLO: Any = {"messages": [("user", "charge, then ship")]}
CONFIG = config_of("t1")
OPEN_FAILURE: list[Any] = [[charge("A1", 5)], [("ship", {"order": "nowhere"})], "Done.", "Done."]
TAKEN_BACK = ["charge A1 5", "refund ch_A1"]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.chdir(tmp_path)
    return Shop(tmp_path)


class Driver:
    """Invokes an agent in one colour, each time with another runtime, as another process would."""

    def __init__(self, shop: Shop, colour: str, saver: Any) -> None:
        self.options: dict[str, Any] = {}
        self.shop, self.is_async, self.saver = shop, colour == "async", saver

    def invoke(self, turns: Sequence[Turn], given: Any, *, block: bool, graph_of: Any = None) -> Any:
        make = graph_of or self.agent_of
        return (
            asyncio.run(self._on_a_loop(make, turns, given, block))
            if self.is_async
            else self._here(make, turns, given, block)
        )

    def agent_of(self, guard: AmendsMiddleware, turns: Sequence[Turn]) -> Any:
        tools = [lc_tool(fn) for fn in self.shop.functions()]
        return create_agent(Scripted(turns=turns), tools=tools, middleware=[guard], checkpointer=self.saver)

    def _here(self, make: Any, turns: Sequence[Turn], given: Any, block: bool) -> Any:
        with amends.Runtime(self.shop.url, tools=self.shop.declared()) as rt:
            guard = AmendsMiddleware(rt, **self.options)
            with guard.turn(CONFIG) if block else nullcontext():
                return make(guard, turns).invoke(given, CONFIG)

    async def _on_a_loop(self, make: Any, turns: Sequence[Turn], given: Any, block: bool) -> Any:
        async with amends.AsyncRuntime(self.shop.url, tools=self.shop.declared()) as rt:
            guard = AmendsMiddleware(rt, **self.options)
            async with guard.turn(CONFIG) if block else nullcontext():
                return await make(guard, turns).ainvoke(given, CONFIG)


@pytest.fixture(params=["blocking", "async"])
def driver(request: pytest.FixtureRequest, shop: Shop) -> Driver:
    return Driver(shop, request.param, InMemorySaver())


@pytest.mark.parametrize("resumed_in_block", [False, True])
@pytest.mark.parametrize("block", [False, True])
def test_a_turn_that_was_rolled_back_raises_it_each_time_it_is_resumed(
    shop: Shop, driver: Driver, block: bool, resumed_in_block: bool
) -> None:
    with pytest.raises(RolledBack) as first:
        driver.invoke(OPEN_FAILURE, HELLO, block=block)
    for _ in range(2):
        with pytest.raises(RolledBack) as again:
            driver.invoke(OPEN_FAILURE, None, block=resumed_in_block)
        assert str(again.value) == str(first.value)
        assert again.value.run_id == "t1/1"
        assert again.value.report.calls == first.value.report.calls
    assert (shop.effects(), shop.states()) == (TAKEN_BACK, ["rolled_back"])


@pytest.mark.parametrize("block", [False, True])
def test_a_turn_that_failed_in_its_block_asks_no_model_when_it_is_resumed(
    shop: Shop, driver: Driver, block: bool
) -> None:
    with pytest.raises(ConnectionAbortedError):
        driver.invoke([[charge("A1", 5)], Fails("down")], HELLO, block=True)
    for _ in range(2):
        with pytest.raises(RolledBack):
            driver.invoke([[charge("A1", 5)], Fails("nobody may ask me")], None, block=block)
    assert (shop.effects(), shop.states()) == (TAKEN_BACK, ["rolled_back"])


@pytest.mark.parametrize("block", [False, True])
def test_the_next_message_of_the_user_begins_a_new_turn_which_goes_on_as_any(
    shop: Shop, driver: Driver, block: bool
) -> None:
    with pytest.raises(RolledBack):
        driver.invoke(OPEN_FAILURE, HELLO, block=block)
    state = driver.invoke(["Hello."], {"messages": [("user", "and now?")]}, block=block)
    assert state["messages"][-1].content == "Hello."
    state = driver.invoke(["never"], None, block=block)  # it has ended, and called nothing
    assert state["messages"][-1].content == "Hello."
    state = driver.invoke([[charge("A2", 7)], "Charged."], {"messages": [("user", "charge the other")]}, block=block)
    assert state["messages"][-1].content == "Charged."
    driver.invoke(["never"], None, block=block)
    assert sorted(shop.states()) == ["committed", "rolled_back"]


@pytest.mark.parametrize("before", [[], [[charge("A1", 5)]]])
def test_a_turn_that_a_person_took_back_while_it_waited_says_so_and_answers_the_call(
    shop: Shop, driver: Driver, before: list[Any]
) -> None:
    turns: list[Any] = [*before, [("stamp", {"text": "x"})], Fails("nobody may ask me")]
    assert "__interrupt__" in driver.invoke(turns, HELLO, block=False)
    with shop.desk() as rt:
        rt.rollback("t1/1", by="anna", why="fraud")
    with pytest.raises(RolledBack, match="fraud"):
        driver.invoke(turns, None, block=False)
    told = [one for one in driver.saver.get(CONFIG)["channel_values"]["messages"] if isinstance(one, ToolMessage)]
    assert str(told[-1].content).startswith("This task is closed (rolled back)")  # a later turn can be sent to a model


def test_a_bare_tool_node_raises_it_again_too(shop: Shop, driver: Driver) -> None:
    driver.options = {"requires": ["wire"]}
    asked = AIMessage("", tool_calls=[{"name": "charge", "args": {"order": "A1", "cents": 5}, "id": "c1"}])

    def graph_of(guard: AmendsMiddleware, turns: Sequence[Turn]) -> Any:
        tools = [lc_tool(fn) for fn in shop.functions()]
        node = ToolNode(tools, wrap_tool_call=guard.wrap_tool_call, awrap_tool_call=guard.awrap_tool_call)
        graph = StateGraph(MessagesState)
        graph.add_node("tools", node)
        graph.add_edge(START, "tools")
        return graph.compile(checkpointer=driver.saver)

    for given in ({"messages": [HumanMessage("charge"), asked]}, None, None):
        with pytest.raises(RolledBack):
            driver.invoke((), given, block=False, graph_of=graph_of)
    assert shop.states() == ["rolled_back"]

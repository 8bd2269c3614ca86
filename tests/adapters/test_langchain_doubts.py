"""A doubt in a turn of LangChain's agent: the run waits for a person, then for its agent, which is told the outcome."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.tools import tool as lc_tool
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

import amends
import amends.testing
from amends import Absent, Answer, Call, Happened, RunBlocked, Unknown
from amends.adapters.langchain import DOUBT, AmendsMiddleware, Settled, told_of_doubts
from tests.adapters.test_langchain import config_of

CONFIG = config_of("t1")
HELLO: Any = {"messages": [("user", "charge, then ship")]}
LOST = "charge was sent but the answer was lost: it may have happened. Do not call it again; a person has to check it."


class Careful(BaseChatModel):
    """Charges, ships when it knows that the charge happened, and stops when it does not."""

    seen: list[str]

    @property
    def _llm_type(self) -> str:
        return "careful"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        self.seen.append(str(messages[-1].content))
        results = {one.name: str(one.content) for one in messages if isinstance(one, ToolMessage)}
        if "charge" not in results:
            said = AIMessage("", tool_calls=[{"name": "charge", "args": {"order": "7"}, "id": "c1"}])
        elif "ch_7" in results["charge"] and "ship" not in results:
            said = AIMessage("", tool_calls=[{"name": "ship", "args": {"order": "7"}, "id": "c2"}])
        else:
            said = AIMessage("shipped" if "ship" in results else "stopped")
        return ChatResult(generations=[ChatGeneration(message=said)])


class Desk:
    """A shop whose bank loses the answer of a charge, over a ledger on disk."""

    def __init__(self, where: Path) -> None:
        self.where = where

    def note(self, what: str) -> None:
        with (self.where / "world").open("a", encoding="utf-8") as file:
            file.write(f"{what}\n")

    def effects(self) -> list[str]:
        kept = self.where / "world"
        return kept.read_text(encoding="utf-8").splitlines() if kept.exists() else []

    def tools(self, *, dies: bool = False) -> list[Any]:
        @lc_tool
        def charge(order: str) -> dict[str, str]:
            """Charge an order."""
            self.note(f"charge {order}")
            if dies:
                os._exit(9)
            raise TimeoutError("the answer was lost")

        @lc_tool
        def ship(order: str) -> str:
            """Ship an order."""
            self.note(f"ship {order}")
            return "tracking"

        return [charge, ship]

    def declared(self, **charge: Any) -> list[Any]:
        return [
            amends.declare("charge", key="order", compensate=lambda order: self.note(f"refund {order}"), **charge),
            amends.declare("ship", key="order", compensate=lambda order: self.note(f"unship {order}")),
        ]

    def runtime(self, **charge: Any) -> amends.Runtime:
        return amends.Runtime(f"sqlite:///{self.where / 'ledger.db'}", tools=self.declared(**charge))

    def async_runtime(self) -> amends.AsyncRuntime:
        return amends.AsyncRuntime(f"sqlite:///{self.where / 'ledger.db'}", tools=self.declared())


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.chdir(tmp_path)
    return Desk(tmp_path)


@pytest.fixture
def rt(desk: Desk) -> Iterator[amends.Runtime]:
    with desk.runtime() as made:
        yield made


def agent_of(guard: AmendsMiddleware, desk: Desk, model: Careful, saver: Any, **tools: Any) -> Any:
    return create_agent(model, tools=desk.tools(**tools), middleware=[guard], checkpointer=saver)


def settle(rt: amends.Runtime, answer: Any, run: str = "t1/1") -> None:
    (doubt,) = rt.doubts()
    assert doubt.run_id == run
    rt.resolve(doubt.id, answer, by="anna", why="looked at the bank")


def turn_of(guard: AmendsMiddleware, block: bool) -> Any:
    return guard.turn(CONFIG) if block else nullcontext()


@pytest.mark.parametrize("block", [False, True])
def test_a_turn_whose_doubt_a_person_settled_goes_on_and_is_told(desk: Desk, rt: amends.Runtime, block: bool) -> None:
    guard, model = AmendsMiddleware(rt), Careful(seen=[])
    agent = agent_of(guard, desk, model, InMemorySaver())
    with pytest.raises(RunBlocked) as first, turn_of(guard, block):
        agent.invoke(HELLO, CONFIG)
    assert [doubt.tool for doubt in first.value.doubts] == ["charge"]
    assert model.seen[-1] == LOST
    with pytest.raises(RunBlocked) as second, turn_of(guard, block):
        agent.invoke(None, CONFIG)
    assert second.value.causes == first.value.causes
    assert rt.report("t1/1").state == "blocked"

    settle(rt, Happened({"id": "ch_7"}))
    assert rt.report("t1/1").state == "open", "the agent has not ended: nothing is committed for it"
    with turn_of(guard, block):
        state = agent.invoke(None, CONFIG)
    assert state["messages"][-1].content == "shipped"
    assert desk.effects() == ["charge 7", "ship 7"]
    assert rt.report("t1/1").state == "committed"
    charged = next(one for one in state["messages"] if isinstance(one, ToolMessage))
    assert (charged.content, charged.status) == ('{"id":"ch_7"}', "success")
    notices = [one.content for one in state["messages"] if isinstance(one, HumanMessage) and one.name == "amends"]
    assert notices == [
        'It is now known that charge was done; its result is {"id":"ch_7"}. Do not call it again; go on with the task.'
    ]


def test_on_an_event_loop_a_settled_turn_goes_on_too(desk: Desk) -> None:
    async def go() -> None:
        async with desk.async_runtime() as rt:
            agent = agent_of(AmendsMiddleware(rt), desk, Careful(seen=[]), InMemorySaver())
            for _ in range(2):
                with pytest.raises(RunBlocked):
                    await agent.ainvoke(HELLO if not desk.effects() else None, CONFIG)
            (doubt,) = [one async for one in rt.doubts()]
            await rt.resolve(doubt.id, Happened({"id": "ch_7"}), by="anna", why="looked")
            assert (await rt.report("t1/1")).state == "open"
            await agent.ainvoke(None, CONFIG)
            assert (await rt.report("t1/1")).state == "committed"

    asyncio.run(go())
    assert desk.effects() == ["charge 7", "ship 7"]


@pytest.mark.parametrize(
    "answer, told, state",
    [
        (Absent(), "charge was not done and changed nothing. You may call it again", "rolled_back"),
        (Unknown(), "Nobody could find out whether charge was done. Do not call it again", "committed"),
    ],
)
def test_a_model_is_told_every_answer_of_a_person(
    desk: Desk, rt: amends.Runtime, answer: Any, told: str, state: str
) -> None:
    model = Careful(seen=[])
    agent = agent_of(AmendsMiddleware(rt), desk, model, InMemorySaver())
    with pytest.raises(RunBlocked):
        agent.invoke(HELLO, CONFIG)
    settle(rt, answer)
    if state == "rolled_back":
        with pytest.raises(amends.RolledBack):  # the model stopped, and the charge is missing
            agent.invoke(None, CONFIG)
    else:
        agent.invoke(None, CONFIG)
    assert any(told in text for text in model.seen), model.seen
    assert desk.effects() == ["charge 7"]
    assert rt.report("t1/1").state == state


def test_a_probe_that_answers_late_tells_the_model_without_a_person(desk: Desk) -> None:
    known: list[Any] = [Unknown()]
    with amends.testing.runtime(tools=desk.declared(probe=lambda: known[0], settle=0)) as rt:
        model = Careful(seen=[])
        agent = agent_of(AmendsMiddleware(rt), desk, model, InMemorySaver())
        with pytest.raises(RunBlocked):
            agent.invoke(HELLO, CONFIG)
        known[0] = Happened({"id": "ch_7"})
        agent.invoke(None, CONFIG)
        assert rt.report("t1/1").state == "committed"
    assert desk.effects() == ["charge 7", "ship 7"]


@pytest.mark.parametrize("settled", ["before", "after"])
def test_a_turn_that_was_killed_in_doubt_goes_on_when_a_person_has_settled_it(desk: Desk, settled: str) -> None:
    child = os.fork()
    if child == 0:
        with SqliteSaver.from_conn_string("graph.db") as saver, desk.runtime() as rt:
            agent_of(AmendsMiddleware(rt), desk, Careful(seen=[]), saver, dies=True).invoke(HELLO, CONFIG)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    with SqliteSaver.from_conn_string("graph.db") as saver, desk.runtime() as rt:
        agent = agent_of(AmendsMiddleware(rt), desk, Careful(seen=[]), saver)
        if settled == "before":
            rt.recover()
        else:
            with pytest.raises(RunBlocked):
                agent.invoke(None, CONFIG)
        settle(rt, Happened({"id": "ch_7"}))
        assert rt.report("t1/1").state == "open"
        assert agent.invoke(None, CONFIG)["messages"][-1].content == "shipped"
        assert rt.report("t1/1").state == "committed"
    assert desk.effects() == ["charge 7", "ship 7"]


@pytest.mark.parametrize("settled", ["before", "after"])
def test_a_new_message_instead_takes_the_turn_back(desk: Desk, rt: amends.Runtime, settled: str) -> None:
    model = Careful(seen=[])
    agent = agent_of(AmendsMiddleware(rt), desk, model, InMemorySaver())
    with pytest.raises(RunBlocked):
        agent.invoke(HELLO, CONFIG)
    if settled == "before":
        settle(rt, Happened({"id": "ch_7"}))
    agent.invoke({"messages": [("user", "and now?")]}, CONFIG)
    if settled == "before":
        assert model.seen[-1].startswith("Of the turn before: Everything was taken back")
    else:
        settle(rt, Happened({"id": "ch_7"}))
    assert rt.report("t1/1").state == "rolled_back"
    assert desk.effects() == ["charge 7", "refund 7"]


def test_a_graph_that_nobody_can_resume_commits_what_a_person_settled(desk: Desk, rt: amends.Runtime) -> None:
    agent = agent_of(AmendsMiddleware(rt), desk, Careful(seen=[]), None)
    with pytest.raises(RunBlocked) as blocked:
        agent.invoke(HELLO)
    settle(rt, Happened({"id": "ch_7"}), run=str(blocked.value.run_id))
    assert rt.report(str(blocked.value.run_id)).state == "committed"


@pytest.mark.parametrize("colour", ["blocking", "async"])
def test_a_bare_tool_node_in_doubt_raises_again_until_a_person_has_settled_it(desk: Desk, colour: str) -> None:
    asked = AIMessage("", tool_calls=[{"name": "charge", "args": {"order": "7"}, "id": "c1"}])
    first: Any = {"messages": [HumanMessage("charge"), asked]}

    def graph_of(guard: AmendsMiddleware) -> Any:
        node = ToolNode(desk.tools(), wrap_tool_call=guard.wrap_tool_call, awrap_tool_call=guard.awrap_tool_call)
        graph = StateGraph(MessagesState)
        graph.add_node("tools", node)
        graph.add_edge(START, "tools")
        return graph.compile(checkpointer=InMemorySaver())

    async def go() -> None:
        async with desk.async_runtime() as rt:
            graph = graph_of(AmendsMiddleware(rt))
            for given in (first, None, None):
                with pytest.raises(RunBlocked, match="t1/1 is blocked: charge"):
                    await graph.ainvoke(given, CONFIG)
            (doubt,) = [one async for one in rt.doubts()]
            await rt.resolve(doubt.id, Happened({"id": "ch_7"}), by="anna", why="looked")
            await graph.ainvoke(None, CONFIG)
            assert (await rt.report("t1/1")).state == "committed"

    if colour == "async":
        asyncio.run(go())
    else:
        with desk.runtime() as rt:
            graph = graph_of(AmendsMiddleware(rt))
            for given in (first, None, None):
                with pytest.raises(RunBlocked, match="t1/1 is blocked: charge"):
                    graph.invoke(given, CONFIG)
            settle(rt, Happened({"id": "ch_7"}))
            graph.invoke(None, CONFIG)
            assert rt.report("t1/1").state == "committed"
    assert desk.effects() == ["charge 7"]


def test_a_model_is_told_of_many_settled_doubts_in_few_words_and_each_result_is_corrected() -> None:
    answers = [Answer("done", f"receipt {n}") for n in range(30)]
    call = Call("t1/1", "charge", "1", {}, id="call_1", state="succeeded")
    settled = {f"d{n}": Settled(call, one) for n, one in enumerate(answers)}
    state = {
        "messages": [ToolMessage(LOST, tool_call_id=id, name="charge", response_metadata={DOUBT: id}) for id in settled]
    }
    told = told_of_doubts(state, settled)
    assert told is not None
    *corrected, notice = told["messages"]
    assert [one.content for one in corrected] == [one.text for one in answers]
    assert "receipt 4" in notice.content
    assert "receipt 5" not in notice.content
    assert notice.content.endswith(" The results of 25 more calls were corrected above.")
    few = told_of_doubts(state, dict(list(settled.items())[:5]))
    assert few is not None
    assert few["messages"][-1].content == " ".join(one.text for one in list(settled.values())[:5])

"""What only LangGraph has: graphs without a thread, its own pauses, agents inside graphs, tools that steer the graph."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, HumanInTheLoopMiddleware
from langchain.tools import tool as lc_tool
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt

import amends
from amends import Held, Runtime, UsageError
from amends.adapters.langchain import AmendsMiddleware
from tests.adapters.conformance import Fails, Turn, charge, wire
from tests.adapters.shop import Shop
from tests.adapters.test_langchain import Scripted, config_of, told_in

HELLO: Any = {"messages": [("user", "go on")]}
CONFIG = config_of("t1")


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.chdir(tmp_path)
    return Shop(tmp_path)


def agent_of(guard: AmendsMiddleware, shop: Shop, turns: Sequence[Any], saver: Any = None, **more: Any) -> Any:
    middleware = [guard, *more.pop("middleware", ())]
    tools = [lc_tool(fn) for fn in shop.functions()] + more.pop("tools", [])
    return create_agent(Scripted(turns=turns), tools=tools, middleware=middleware, checkpointer=saver, **more)


def runtime(shop: Shop, *tools: object, **options: Any) -> Runtime:
    return Runtime(shop.url, tools=[*shop.declared(), *tools], **options)


# ---- which run ----------------------------------------------------------------------------


def test_without_a_thread_each_invocation_is_a_run_of_its_own(shop: Shop) -> None:
    with runtime(shop) as rt:
        agent = agent_of(AmendsMiddleware(rt), shop, [[charge("A1", 500)], "charged"])
        agent.invoke(HELLO)
        agent.invoke(HELLO)
    assert shop.effects() == ["charge A1 500", "charge A1 500"]
    assert shop.states() == ["committed", "committed"]
    assert shop.runs()[0].tags == ()
    assert shop.runs()[0].recover == "rollback"


def test_with_a_thread_the_run_is_named_after_it_and_waits_for_whoever_resumes_it(shop: Shop) -> None:
    with runtime(shop) as rt:
        agent = agent_of(AmendsMiddleware(rt), shop, [[charge("A1", 500)], "charged"], InMemorySaver())
        agent.invoke(HELLO, CONFIG)
        agent.invoke(HELLO, CONFIG)
    assert [run.id for run in shop.runs()] == ["t1/2", "t1/1"]
    assert [run.recover for run in shop.runs()] == ["wait", "wait"]


def test_a_turn_has_the_deadline_of_its_middleware(shop: Shop) -> None:
    with runtime(shop) as rt:
        agent_of(AmendsMiddleware(rt, deadline=60), shop, [[charge("A1", 500)], "ok"]).invoke(HELLO)
    [run] = shop.runs()
    assert run.deadline_at is not None
    assert run.opened_at is not None
    assert 59 < (run.deadline_at - run.opened_at).total_seconds() < 61


def test_a_turn_that_calls_no_tool_opens_no_run(shop: Shop) -> None:
    with runtime(shop) as rt:
        guard = AmendsMiddleware(rt)
        with guard.turn(CONFIG):
            agent_of(guard, shop, ["hello"], InMemorySaver()).invoke(HELLO, CONFIG)
    assert shop.runs() == []


def test_the_run_can_be_named(shop: Shop) -> None:
    with runtime(shop) as rt:
        guard = AmendsMiddleware(rt, run_id=lambda config: f"order-{config['configurable']['order']}")
        agent = agent_of(guard, shop, [[charge("A1", 500)], "charged"])
        agent.invoke(HELLO, {"configurable": {"order": 7}})
    assert [run.id for run in shop.runs()] == ["order-7"]


def test_a_run_that_the_program_has_opened_is_the_run(shop: Shop) -> None:
    with runtime(shop) as rt:
        agent = agent_of(AmendsMiddleware(rt), shop, [[charge("A1", 500)], "charged"])
        with pytest.raises(LookupError), rt.run("mine"):
            agent.invoke(HELLO)
            agent.invoke(HELLO)
            raise LookupError
    assert shop.effects() == ["charge A1 500", "refund ch_A1"]
    assert [run.id for run in shop.runs()] == ["mine"]


def test_agents_of_one_graph_share_the_run_of_the_block_around_it(shop: Shop) -> None:
    with runtime(shop) as rt:
        guard = AmendsMiddleware(rt)
        graph = StateGraph(MessagesState)
        graph.add_node("first", agent_of(guard, shop, [[charge("A1", 500)], "charged"]))
        graph.add_node("second", agent_of(guard, shop, ["", [charge("A2", 700)], Fails("the model is down")]))
        graph.add_edge(START, "first")
        graph.add_edge("first", "second")
        team = graph.compile(checkpointer=InMemorySaver())
        with pytest.raises(ConnectionAbortedError), guard.turn(CONFIG):
            team.invoke({"messages": [HumanMessage("go on")]}, CONFIG)
    assert sorted(shop.effects()) == ["charge A1 500", "refund ch_A1"]
    assert shop.states() == ["rolled_back"]


def test_agents_of_one_graph_have_a_run_each_without_it(shop: Shop) -> None:
    with runtime(shop) as rt:
        guard = AmendsMiddleware(rt)
        graph = StateGraph(MessagesState)
        graph.add_node("first", agent_of(guard, shop, [[charge("A1", 500)], "charged"]))
        graph.add_edge(START, "first")
        graph.add_edge("first", END)
        team = graph.compile(checkpointer=InMemorySaver())
        team.invoke({"messages": [HumanMessage("go on")]}, CONFIG)
        team.invoke({"messages": [HumanMessage("go on")]}, CONFIG)
    assert shop.states() == ["committed", "committed"]
    assert shop.effects() == ["charge A1 500", "charge A1 500"]


def test_an_agent_that_is_a_tool_works_in_the_run_of_its_caller(shop: Shop) -> None:
    with runtime(shop, amends.declare("delegate", kind="compensatable", compensate=lambda: None)) as rt:
        guard = AmendsMiddleware(rt)
        inner = agent_of(guard, shop, [[charge("A1", 500)], "charged"])

        @lc_tool
        def delegate(what: str) -> str:
            """Let somebody else do it."""
            return str(inner.invoke(HELLO)["messages"][-1].content)

        outer = agent_of(guard, shop, [[("delegate", {"what": "x"})], "ok"], InMemorySaver(), tools=[delegate])
        outer.invoke(HELLO, CONFIG)
        report = rt.report("t1/1")
    assert [call.tool for call in report.calls] == ["delegate", "charge"]
    assert report.calls[1].parent == report.calls[0].id


def test_a_tool_node_without_a_thread_says_what_it_needs(shop: Shop) -> None:
    with runtime(shop) as rt:
        guard = AmendsMiddleware(rt)
        graph = StateGraph(MessagesState)
        graph.add_node("tools", ToolNode([lc_tool(shop.functions()[0])], wrap_tool_call=guard.wrap_tool_call))
        graph.add_edge(START, "tools")
        node = graph.compile()
        asked: Any = {"messages": [Scripted(turns=[[charge("A1", 500)]]).invoke([HumanMessage("go")])]}
        with pytest.raises(UsageError, match="which run"):
            node.invoke(asked)
        with guard.turn():
            node.invoke(asked)
    assert shop.states() == ["committed"]


# ---- failing ------------------------------------------------------------------------------


def test_what_a_failed_turn_did_is_taken_back_when_the_next_begins_and_the_model_is_told(shop: Shop) -> None:
    saver = InMemorySaver()
    with runtime(shop) as rt:
        guard = AmendsMiddleware(rt)
        with pytest.raises(ConnectionAbortedError):
            agent_of(guard, shop, [[charge("A1", 500)], Fails("down")], saver).invoke(HELLO, CONFIG)
        assert shop.effects() == ["charge A1 500"], "nobody said that it will not be resumed"
        state = agent_of(guard, shop, [[charge("A2", 700)], "ok"], saver).invoke(HELLO, CONFIG)
    assert shop.effects() == ["charge A1 500", "refund ch_A1", "charge A2 700"]
    assert shop.states() == ["rolled_back", "committed"]
    notes = [one.content for one in state["messages"] if isinstance(one, HumanMessage) and one.name == "amends"]
    assert notes == [
        "Of the turn before: Everything was taken back: 1 of 1 calls undone. Tell the user; start again only if asked."
    ]


def test_a_failed_turn_that_is_resumed_goes_on_with_its_run(shop: Shop) -> None:
    saver = InMemorySaver()
    with runtime(shop) as rt:
        guard = AmendsMiddleware(rt)
        with pytest.raises(ConnectionAbortedError):
            agent_of(guard, shop, [[charge("A1", 500)], Fails("down")], saver).invoke(HELLO, CONFIG)
        agent_of(guard, shop, [[charge("A1", 500)], "ok"], saver).invoke(None, CONFIG)
    assert shop.effects() == ["charge A1 500"]
    assert shop.states() == ["committed"]


def test_a_turn_that_fails_in_another_process_before_its_next_call_is_taken_back_too(shop: Shop) -> None:
    saver, turns = InMemorySaver(), [[charge("A1", 500)], [("stamp", {"text": "x"})], Fails("down")]
    with runtime(shop) as rt:
        agent_of(AmendsMiddleware(rt), shop, turns, saver).invoke(HELLO, CONFIG)
    with runtime(shop) as rt:
        (asked,) = rt.approvals()
        rt.reject(asked.id, by="anna", reason="no")
    with runtime(shop) as rt:
        guard = AmendsMiddleware(rt)
        with pytest.raises(ConnectionAbortedError), guard.turn(CONFIG):
            agent_of(guard, shop, turns, saver).invoke(None, CONFIG)
    assert shop.effects() == ["charge A1 500", "refund ch_A1"]


def test_a_run_that_a_person_took_back_is_not_begun_anew_under_a_model_that_has_its_results(shop: Shop) -> None:
    saver = InMemorySaver()
    turns: list[Turn] = [[charge("A1", 500)], [("stamp", {"text": "x"})], [charge("A2", 700)], "ok"]
    with runtime(shop) as rt:
        agent_of(AmendsMiddleware(rt), shop, turns, saver).invoke(HELLO, CONFIG)
        rt.rollback("t1/1", plan=rt.plan_rollback("t1/1").hash, by="anna", why="fraud")
        agent = agent_of(AmendsMiddleware(rt), shop, turns, saver)
        with pytest.raises(amends.RolledBack, match="fraud"):
            agent.invoke(None, CONFIG)
    assert shop.effects() == ["charge A1 500", "refund ch_A1"]
    told = told_in(agent.get_state(CONFIG).values)
    assert [one.partition(":")[0] for one in told[1:]] == ["This task is closed (rolled back)"]


@pytest.mark.parametrize("handles", [True, False])
def test_a_timeout_is_doubt_although_the_tool_node_makes_a_message_of_it(shop: Shop, handles: bool) -> None:
    @lc_tool
    def pay(order: str) -> str:
        """Pay."""
        raise TimeoutError("no answer")

    with runtime(shop, amends.declare("pay", kind="pivot"), wait=0) as rt:
        guard = AmendsMiddleware(rt)
        graph = StateGraph(MessagesState)
        node = ToolNode([pay], wrap_tool_call=guard.wrap_tool_call, handle_tool_errors=handles)
        graph.add_node("tools", node)
        graph.add_edge(START, "tools")
        asked: Any = {"messages": [Scripted(turns=[[("pay", {"order": "7"})]]).invoke([HumanMessage("go")])]}
        with pytest.raises(amends.RunBlocked), guard.turn():
            state = graph.compile().invoke(asked)
            assert told_in(state)[0].startswith("pay was sent but the answer was lost")
            assert state["messages"][-1].status == "error"


def test_arguments_that_the_tool_refuses_had_no_effect(shop: Shop) -> None:
    turns: list[Turn] = [[("charge", {"order": "A1", "cents": "many"})], [charge("A1", 500)], "ok"]
    with runtime(shop) as rt:
        state = agent_of(AmendsMiddleware(rt), shop, turns).invoke(HELLO)
    assert shop.effects() == ["charge A1 500"]
    assert state["messages"][2].status == "error"


def test_an_error_can_come_out_of_invoke_as_ever(shop: Shop) -> None:
    turns: list[Turn] = [[charge("nowhere", 500)], [("ship", {"order": "nowhere"})], "no"]
    with runtime(shop) as rt:
        guard = AmendsMiddleware(rt, on_error="raise")
        with pytest.raises(ValueError, match="address unknown"), guard.turn():
            agent_of(guard, shop, turns).invoke(HELLO)
    assert shop.effects() == ["charge nowhere 500", "refund ch_nowhere"]


def test_a_tool_that_the_model_made_up_is_told_and_nobody_is_asked(shop: Shop) -> None:
    turns: list[Turn] = [[("charge_card", {"order": "A1"})], [charge("A1", 500)], "ok"]
    with runtime(shop) as rt:
        state = agent_of(AmendsMiddleware(rt), shop, turns, InMemorySaver()).invoke(HELLO, CONFIG)
        assert list(rt.approvals()) == []
    assert told_in(state)[0].startswith('There is no tool "charge_card". Did you mean "charge"?')
    assert shop.states() == ["committed"]


# ---- pausing ------------------------------------------------------------------------------


def test_where_nothing_could_be_resumed_the_model_is_told_and_the_run_does_not_commit(shop: Shop) -> None:
    with runtime(shop) as rt:
        agent = agent_of(AmendsMiddleware(rt), shop, [[wire("DE02", 4200_00)], "waiting"])
        with pytest.raises(Held):
            agent.invoke(HELLO)
    assert shop.effects() == []
    assert shop.states() == ["open"]


def test_what_the_pause_shows_is_what_is_to_be_decided(shop: Shop) -> None:
    with runtime(shop) as rt:
        saver = InMemorySaver()
        state = agent_of(AmendsMiddleware(rt), shop, [[wire("DE02", 4200_00)], "paid"], saver).invoke(HELLO, CONFIG)
        (asked,) = rt.approvals()
        shown = state["__interrupt__"][0].value
        assert (shown["approval"], shown["digest"]) == (asked.id, asked.digest)
        assert (shown["tool"], shown["args"]) == ("wire", {"iban": "DE02", "cents": 4200_00})


@pytest.mark.parametrize("at_once", [1, None])
def test_two_calls_that_wait_are_decided_one_by_one(shop: Shop, at_once: int | None) -> None:
    saver = InMemorySaver()
    turns: list[Turn] = [[("stamp", {"text": "x"}), charge("A1", 500), ("stamp", {"text": "y"}), charge("A2", 5)], "ok"]
    config: Any = {**CONFIG, "max_concurrency": at_once} if at_once else CONFIG
    with runtime(shop) as rt:
        guard = AmendsMiddleware(rt)
        agent = agent_of(guard, shop, turns, saver)
        agent.invoke(HELLO, config)
        assert sorted(shop.effects()) == ["charge A1 500", "charge A2 5"]
        assert next(run for run in rt.runs() if run.id == "t1/1").owner is None, "whoever resumes it may be another"
        for left in (1, 0):
            asked = next(rt.approvals())
            rt.approve(asked.id, digest=asked.digest, by="anna")
            state = agent.invoke(None, config)
            assert len(state.get("__interrupt__", ())) == left
    assert sorted(shop.effects()) == ["charge A1 500", "charge A2 5", "stamp x", "stamp y"]
    assert shop.states() == ["committed"]


def test_a_pause_of_the_tools_own_is_no_failure_and_its_body_runs_from_its_beginning(shop: Shop) -> None:
    done: list[str] = []

    @lc_tool
    def book(room: str) -> str:
        """Book a room."""
        done.append(f"asked {room}")
        answer = interrupt("which floor?")
        done.append(f"booked {room} {answer}")
        return f"{room}/{answer}"

    saver = InMemorySaver()
    with runtime(shop, amends.declare("book", compensate=lambda: None)) as rt:
        guard = AmendsMiddleware(rt)
        agent = agent_of(guard, shop, [[charge("A1", 500), ("book", {"room": "7"})], "ok"], saver, tools=[book])
        with guard.turn(CONFIG):
            agent.invoke(HELLO, CONFIG)
        assert shop.effects() == ["charge A1 500"]
        with guard.turn(CONFIG):
            state = agent.invoke(Command(resume="3rd"), CONFIG)
    assert done == ["asked 7", "asked 7", "booked 7 3rd"]
    assert told_in(state)[-1] == "7/3rd"
    assert shop.effects() == ["charge A1 500"]
    assert shop.states() == ["committed"]


def test_a_pause_before_the_tools_leaves_the_run_to_whoever_resumes_it(shop: Shop) -> None:
    saver, turns = InMemorySaver(), [[charge("A1", 500)], [("balance", {"account": "a"})], "ok"]
    asks = HumanInTheLoopMiddleware(interrupt_on={"balance": True})
    with runtime(shop) as rt:
        guard = AmendsMiddleware(rt)
        with guard.turn(CONFIG):
            state = agent_of(guard, shop, turns, saver, middleware=[asks]).invoke(HELLO, CONFIG)
        assert "__interrupt__" in state
        assert shop.states() == ["open"]
    with runtime(shop) as rt:
        guard = AmendsMiddleware(rt)
        yes: Any = Command(resume={"decisions": [{"type": "approve"}]})
        with guard.turn(CONFIG):
            agent_of(guard, shop, turns, saver, middleware=[asks]).invoke(yes, CONFIG)
    assert shop.effects() == ["charge A1 500"]
    assert shop.states() == ["committed"]


def test_streaming_pauses_and_goes_on_alike(shop: Shop) -> None:
    saver, turns = InMemorySaver(), [[wire("DE02", 4200_00)], "paid"]
    with runtime(shop) as rt:
        guard = AmendsMiddleware(rt)
        agent = agent_of(guard, shop, turns, saver)
        with guard.turn(CONFIG):
            seen = list(agent.stream(HELLO, CONFIG))
        assert "__interrupt__" in seen[-1]
        (asked,) = rt.approvals()
        rt.approve(asked.id, digest=asked.digest, by="anna")
        with guard.turn(CONFIG):
            list(agent.stream(None, CONFIG))
    assert shop.effects() == ["wire DE02 420000"]


# ---- results ------------------------------------------------------------------------------


def test_a_tool_that_steers_the_graph_does_so_again_when_its_result_was_lost(shop: Shop) -> None:
    class State(MessagesState):
        seat: str

    @lc_tool
    def choose(seat: str) -> Command[Any]:
        """Choose a seat."""
        done.append(seat)
        return Command(update={"seat": seat, "messages": [ToolMessage("chosen", tool_call_id="c1")]})

    done: list[str] = []
    asked = Scripted(turns=[[("choose", {"seat": "7a"})]]).invoke([HumanMessage("go")])
    asked.tool_calls[0]["id"] = "c1"
    with runtime(shop, amends.declare("choose", compensate=lambda: None)) as rt:
        guard = AmendsMiddleware(rt)
        graph = StateGraph(State)
        graph.add_node("tools", ToolNode([choose], wrap_tool_call=guard.wrap_tool_call))
        graph.add_edge(START, "tools")
        with rt.run("r"):
            states = [graph.compile().invoke({"messages": [asked], "seat": ""}) for _ in range(2)]
    assert [state["seat"] for state in states] == ["7a", "7a"]
    assert done == ["7a"]


def test_what_a_compensation_is_handed_is_what_the_tool_returned(shop: Shop) -> None:
    handed: list[Any] = []

    @lc_tool(response_format="content_and_artifact")
    def book(room: str) -> tuple[dict[str, Any], object]:
        """Book a room."""
        return {"ids": [1, 2]}, object()

    with runtime(shop, amends.declare("book", compensate=lambda result: handed.append(result))) as rt:
        guard = AmendsMiddleware(rt)
        agent = agent_of(guard, shop, [[("book", {"room": "7"})], Fails("down")], tools=[book])
        with pytest.raises(ConnectionAbortedError), guard.turn():
            agent.invoke(HELLO)
    assert handed == [{"ids": [1, 2]}]


def test_a_staged_call_is_done_by_the_process_that_commits_where_that_has_the_tools(shop: Shop) -> None:
    saver, turns = InMemorySaver(), [[("mail", {"to": "ann"}), ("stamp", {"text": "x"})], "ok"]
    with runtime(shop) as rt:
        agent_of(AmendsMiddleware(rt), shop, turns, saver).invoke(HELLO, CONFIG)
        (asked,) = rt.approvals()
        rt.approve(asked.id, digest=asked.digest, by="anna")
    with runtime(shop) as rt:
        guard = AmendsMiddleware(rt, tools=[lc_tool(fn) for fn in shop.functions()])
        agent_of(guard, shop, turns, saver).invoke(None, CONFIG)
    assert shop.effects() == ["stamp x", "mail ann"]
    assert shop.states() == ["committed"]


def test_one_tool_of_the_agent_takes_another_one_back(shop: Shop) -> None:
    @lc_tool
    def add_contact(name: str) -> dict[str, str]:
        """Add a contact."""
        return {"id": f"c_{name}"}

    @lc_tool
    def delete_contact(id: str) -> None:
        """Delete a contact."""
        deleted.append(id)

    deleted: list[str] = []
    back = {"tool": "delete_contact", "args": {"id": "$result.id"}}
    tools = [amends.declare("add_contact", compensate=back), amends.declare("delete_contact", kind="pivot")]
    with runtime(shop, *tools) as rt:
        guard = AmendsMiddleware(rt, tools=[add_contact, delete_contact])
        agent = agent_of(guard, shop, [[("add_contact", {"name": "ada"})], Fails("down")], tools=[add_contact])
        with pytest.raises(ConnectionAbortedError), guard.turn():
            agent.invoke(HELLO)
    assert deleted == ["c_ada"]


# ---- colours ------------------------------------------------------------------------------


def test_the_wrong_colour_is_said_before_anything_is_done(shop: Shop) -> None:
    turns: list[Turn] = [[charge("A1", 500)], "ok"]
    with pytest.raises(UsageError, match="AsyncRuntime"):
        agent_of(AmendsMiddleware(amends.AsyncRuntime(shop.url, tools=shop.declared())), shop, turns).invoke(HELLO)
    with runtime(shop) as rt, pytest.raises(UsageError, match="blocking Runtime"):
        asyncio.run(agent_of(AmendsMiddleware(rt), shop, turns).ainvoke(HELLO))
    assert shop.effects() == []


@pytest.mark.parametrize("asked", ["book book", "stamp book", "book stamp"])
def test_two_calls_of_one_node_do_not_get_each_others_answers(shop: Shop, asked: str) -> None:
    done: list[str] = []

    @lc_tool
    def book(room: str) -> str:
        """Book a room."""
        done.append(f"{room} {interrupt(f'{room}?')}")
        return room

    calls = [("book", {"room": str(n)}) if name == "book" else ("stamp", {"text": "x"})
             for n, name in enumerate(asked.split())]  # fmt: skip
    stamp = next(fn for fn in shop.functions() if fn.__name__ == "stamp")
    with runtime(shop, amends.declare("book", compensate=lambda: None)) as rt:
        guard = AmendsMiddleware(rt)
        made = StateGraph(MessagesState)
        made.add_node("tools", ToolNode([book, lc_tool(stamp)], wrap_tool_call=guard.wrap_tool_call))
        made.add_edge(START, "tools")
        graph = made.compile(checkpointer=InMemorySaver())
        message = Scripted(turns=[calls]).invoke([HumanMessage("go")])
        with pytest.raises(UsageError, match="one would get the other's answer"):
            graph.invoke({"messages": [message]}, CONFIG)
            for asked_for in rt.approvals():  # the first pause may have hidden the second
                rt.approve(asked_for.id, digest=asked_for.digest, by="anna")
            graph.invoke(Command(resume="yes"), CONFIG)
    assert done == []


def test_one_that_pauses_by_itself_beside_others_is_no_danger(shop: Shop) -> None:
    @lc_tool
    def book(room: str) -> str:
        """Book a room."""
        return f"{room} {interrupt(f'{room}?')}"

    with runtime(shop, amends.declare("book", compensate=lambda: None)) as rt:
        guard = AmendsMiddleware(rt)
        made = StateGraph(MessagesState)
        made.add_node("tools", ToolNode([book, lc_tool(shop.functions()[0])], wrap_tool_call=guard.wrap_tool_call))
        made.add_edge(START, "tools")
        graph = made.compile(checkpointer=InMemorySaver())
        message = Scripted(turns=[[charge("A1", 500), ("book", {"room": "7"})]]).invoke([HumanMessage("go")])
        graph.invoke({"messages": [message]}, CONFIG)
        state = graph.invoke(Command(resume="yes"), CONFIG)
    assert told_in(state) == ['{"id": "ch_A1", "cents": 500}', "7 yes"]
    assert shop.effects() == ["charge A1 500"]


# ---- turns that end otherwise ------------------------------------------------------------


class Pictures(AgentMiddleware[Any, Any, Any]):
    """Shows the model what a tool has made as a message of the user's, as providers want it."""

    def before_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        shown = [HumanMessage("the picture that the tool made")]
        return {"messages": shown} if isinstance(state["messages"][-1], ToolMessage) else None


class Plain(Scripted):
    """Says ``turns[n]`` when it has spoken n times in all, whoever spoke between."""

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        spoken = [HumanMessage("go on"), *(one for one in messages if isinstance(one, AIMessage))]
        return super()._generate(spoken, *args, **kwargs)


def test_a_users_message_put_after_the_tools_answers_does_not_keep_the_turn_from_committing(shop: Shop) -> None:
    with runtime(shop) as rt:
        model, tools = Plain(turns=[[charge("A1", 500)], "done", "hello"]), [lc_tool(fn) for fn in shop.functions()]
        middleware = [AmendsMiddleware(rt), Pictures()]
        agent: Any = create_agent(model, tools=tools, middleware=middleware, checkpointer=InMemorySaver())
        agent.invoke(HELLO, CONFIG)
        assert shop.states() == ["committed"]
        agent.invoke(HELLO, CONFIG)
    assert shop.effects() == ["charge A1 500"]


def test_a_tool_that_only_the_runtime_has_is_not_the_agents(shop: Shop) -> None:
    with runtime(shop) as rt:
        model = Scripted(turns=[[("reserve", {"sku": "S1"})], "ok"])
        [charges, *_] = shop.functions()
        agent: Any = create_agent(model, tools=[lc_tool(charges)], middleware=[AmendsMiddleware(rt)])
        state = agent.invoke(HELLO)
    assert shop.effects() == []
    assert told_in(state) == ['There is no tool "reserve". There are: charge.']


def test_an_agent_made_anew_for_each_request_ends_the_turn_that_the_one_before_left(shop: Shop) -> None:
    saver = InMemorySaver()
    with runtime(shop) as rt:
        with pytest.raises(ConnectionAbortedError):
            agent_of(AmendsMiddleware(rt), shop, [[charge("A1", 500)], Fails("no model")], saver).invoke(HELLO, CONFIG)
        agent_of(AmendsMiddleware(rt), shop, ["hello"], saver).invoke(HELLO, CONFIG)
    assert shop.effects() == ["charge A1 500", "refund ch_A1"]
    assert shop.states() == ["rolled_back"]


def test_an_agent_made_anew_goes_on_with_the_turn_that_the_one_before_left(shop: Shop) -> None:
    saver = InMemorySaver()
    turns: list[Turn] = [[charge("A1", 500)], Fails("no model")]
    with runtime(shop) as rt:
        with pytest.raises(ConnectionAbortedError):
            agent_of(AmendsMiddleware(rt), shop, turns, saver).invoke(HELLO, CONFIG)
        goes_on = [turns[0], [("balance", {"account": "a"})], "ok"]
        agent_of(AmendsMiddleware(rt), shop, goes_on, saver).invoke(None, CONFIG)
    assert shop.effects() == ["charge A1 500"]
    assert shop.states() == ["committed"]


def test_a_thread_that_nothing_keeps_does_not_make_one_run_of_two_turns(shop: Shop) -> None:
    with runtime(shop) as rt:
        agent = agent_of(AmendsMiddleware(rt), shop, [[charge("A1", 500)], "charged"])
        first = agent.invoke(HELLO, CONFIG)
        agent.invoke({"messages": [*first["messages"], ("user", "once more")]}, CONFIG)
    assert shop.effects() == ["charge A1 500", "charge A1 500"]
    assert [run.tags for run in shop.runs()] == [("thread:t1",)] * 2


# ---- an agent as a tool --------------------------------------------------------------------


WIRES: list[Turn] = [[charge("A1", 5)], [wire("DE02", 4200_00)], "paid"]
ASKS: list[Turn] = [[("ask_payments", {"request": "pay"})], [("ship", {"order": "A1"})], "done"]


def approve_all(rt: Runtime) -> int:
    asked = list(rt.approvals())
    for one in asked:
        rt.approve(one.id, digest=one.digest, by="anna")
    return len(asked)


def asking(payments: Any, name: str = "ask_payments") -> Any:
    @lc_tool(name)
    def ask(request: str) -> str:
        """Ask the agent for payments."""
        result = payments.invoke({"messages": [{"role": "user", "content": request}]})
        return result["messages"][-1].content

    return ask


@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("block", [False, True])
def test_a_sub_agent_waits_with_the_one_who_asked_and_reaches_its_pivot(
    shop: Shop, declared: bool, block: bool
) -> None:
    saver = InMemorySaver()
    with runtime(shop, *([amends.declare("ask_payments", kind="agent")] if declared else [])) as rt:
        guard = AmendsMiddleware(rt)

        def go(what: Any) -> Any:
            boss = agent_of(guard, shop, ASKS, saver, tools=[asking(agent_of(guard, shop, WIRES))])
            if not block:
                return boss.invoke(what, CONFIG)
            with guard.turn(CONFIG):
                return boss.invoke(what, CONFIG)

        paused = go(HELLO)
        [asked] = paused["__interrupt__"]
        assert asked.value["tool"] == "wire"
        report = rt.report("t1/1")
        assert [report.state, *(child.state for child in report.children)] == ["open", "open"]
        again = go(Command(resume=True))
        assert "__interrupt__" in again, "nobody has decided"
        assert approve_all(rt) == 1
        done = go(Command(resume=True))
        assert done["messages"][-1].content == "done"
        assert not list(rt.approvals())
        report = rt.report("t1/1")
        assert [report.state, *(child.state for child in report.children)] == ["committed", "committed"]
    assert shop.effects() == ["charge A1 5", "wire DE02 420000", "ship A1"]


def test_two_sub_agents_in_one_message_have_a_pivot_each(shop: Shop) -> None:
    with runtime(shop) as rt:
        guard = AmendsMiddleware(rt)
        tools = [asking(agent_of(guard, shop, [[wire(one, 4200_00)], "paid"]), f"ask_{one}") for one in ("AA", "BB")]
        asks: list[Turn] = [[("ask_AA", {"request": "x"}), ("ask_BB", {"request": "x"})], "done"]
        boss = agent_of(guard, shop, asks, InMemorySaver(), tools=tools)
        paused = boss.invoke(HELLO, CONFIG)
        assert len(paused["__interrupt__"]) == 2
        first, _ = list(rt.approvals())
        rt.approve(first.id, digest=first.digest, by="anna")
        paused = boss.invoke(Command(resume={one.id: True for one in paused["__interrupt__"]}), CONFIG)
        assert len(shop.effects()) == 1
        assert approve_all(rt) == 1
        done = boss.invoke(Command(resume={one.id: True for one in paused["__interrupt__"]}), CONFIG)
        assert done["messages"][-1].content == "done"
    assert sorted(shop.effects()) == ["wire AA 420000", "wire BB 420000"]
    assert shop.states() == ["committed"]


def test_a_no_is_told_to_the_sub_agent(shop: Shop) -> None:
    with runtime(shop) as rt:
        guard = AmendsMiddleware(rt)
        payments = agent_of(guard, shop, [[wire("DE02", 4200_00)], "then not"])
        boss = agent_of(guard, shop, [ASKS[0], "done"], InMemorySaver(), tools=[asking(payments)])
        boss.invoke(HELLO, CONFIG)
        [asked] = rt.approvals()
        rt.reject(asked.id, by="anna", reason="wrong payee")
        done = boss.invoke(Command(resume=True), CONFIG)
        assert "then not" in told_in(done)
    assert (shop.effects(), shop.states()) == ([], ["committed"])


def test_a_sub_agent_of_a_sub_agent_waits_too(shop: Shop) -> None:
    with runtime(shop) as rt:
        guard = AmendsMiddleware(rt)
        clerk = agent_of(guard, shop, WIRES)
        middle = agent_of(guard, shop, [[("ask_clerk", {"request": "x"})], "ok"], tools=[asking(clerk, "ask_clerk")])
        boss = agent_of(guard, shop, [ASKS[0], "done"], InMemorySaver(), tools=[asking(middle)])
        assert "__interrupt__" in boss.invoke(HELLO, CONFIG)
        assert approve_all(rt) == 1
        done = boss.invoke(Command(resume=True), CONFIG)
        assert done["messages"][-1].content == "done"
        assert not list(rt.approvals())
    assert shop.effects() == ["charge A1 5", "wire DE02 420000"]
    assert shop.states() == ["committed"]


def test_a_sub_agent_that_fails_is_taken_back(shop: Shop) -> None:
    with runtime(shop) as rt:
        guard = AmendsMiddleware(rt)
        payments = agent_of(guard, shop, [WIRES[0], Fails("the model is down")])
        boss = agent_of(guard, shop, [ASKS[0], "sorry"], InMemorySaver(), tools=[asking(payments)])
        done = boss.invoke(HELLO, CONFIG)
        assert "the model is down" in str(told_in(done))
        report = rt.report("t1/1")
        assert [report.state, *(child.state for child in report.children)] == ["committed", "rolled_back"]
    assert shop.effects() == ["charge A1 5", "refund ch_A1"]


def test_a_supervisor_may_wait_itself_after_its_sub_agent_has_ended(shop: Shop) -> None:
    with runtime(shop) as rt:
        guard = AmendsMiddleware(rt)
        asks: list[Turn] = [ASKS[0], [wire("XX", 4200_00)], "done"]
        payments = agent_of(guard, shop, [[charge("A1", 5)], "ok"])
        boss = agent_of(guard, shop, asks, InMemorySaver(), tools=[asking(payments)])
        with guard.turn(CONFIG):
            assert "__interrupt__" in boss.invoke(HELLO, CONFIG)
        assert approve_all(rt) == 1
        with guard.turn(CONFIG):
            assert boss.invoke(Command(resume=True), CONFIG)["messages"][-1].content == "done"
    assert (shop.effects(), shop.states()) == (["charge A1 5", "wire XX 420000"], ["committed"])


def test_a_tool_that_might_do_more_than_run_an_agent_still_needs_a_person(shop: Shop) -> None:
    done: list[str] = []
    with runtime(shop) as rt:
        guard = AmendsMiddleware(rt)
        payments = agent_of(guard, shop, ["ok"])
        bare: Any = create_agent(Scripted(turns=["ok"]), tools=[])

        @lc_tool
        def more(request: str) -> str:
            """Do more."""
            done.append(request)
            return payments.invoke({"messages": [("user", request)]})["messages"][-1].content

        @lc_tool
        def unguarded(request: str) -> str:
            """Ask an agent without the middleware."""
            return bare.invoke({"messages": [("user", request)]})["messages"][-1].content

        for number, one in enumerate((more, unguarded)):
            boss = agent_of(guard, shop, [[(one.name, {"request": "x"})], "done"], InMemorySaver(), tools=[one])
            paused = boss.invoke(HELLO, config_of(f"u{number}"))
            assert paused["__interrupt__"][0].value["tool"] == one.name
    assert done == []


def test_on_an_event_loop_a_sub_agent_waits_with_the_one_who_asked(shop: Shop) -> None:
    async def main() -> None:
        async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
            guard = AmendsMiddleware(rt)
            payments = agent_of(guard, shop, WIRES)

            @lc_tool
            async def ask_payments(request: str) -> str:
                """Ask the agent for payments."""
                result = await payments.ainvoke({"messages": [HumanMessage(request)]})
                return result["messages"][-1].content

            boss = agent_of(guard, shop, ASKS, InMemorySaver(), tools=[ask_payments])
            assert "__interrupt__" in await boss.ainvoke(HELLO, CONFIG)
            [asked] = [one async for one in rt.approvals()]
            await rt.approve(asked.id, digest=asked.digest, by="anna")
            done = await boss.ainvoke(Command(resume=True), CONFIG)
            assert done["messages"][-1].content == "done"

    asyncio.run(main())
    assert shop.effects() == ["charge A1 5", "wire DE02 420000", "ship A1"]
    assert shop.states() == ["committed"]

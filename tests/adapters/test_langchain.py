"""LangChain and LangGraph: the middleware, in both colours, and a bare tool node."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from contextlib import aclosing, nullcontext
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.tools import tool as lc_tool
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, RetryPolicy

import amends
from amends.adapters.langchain import AmendsMiddleware, is_users
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
from tests.adapters.shop import Shop

CELLS: Cells = {
    "lost server": Tested(
        "test_mcp_clients.py::test_a_server_that_is_killed_after_the_effect_is_a_doubt_and_is_not_asked_again[langchain]",
        "test_mcp_clients.py::test_a_server_that_does_not_answer_in_time_is_a_doubt[langchain]",
    ),
    "server's error": Tested("test_mcp_clients.py::test_an_error_of_the_tool_is_a_failure[langchain]"),
    "not yet": Tested(
        "test_mcp_clients.py::test_what_a_guarded_server_has_not_done_or_does_not_know_is_a_doubt[langchain]"
    ),
    "unguarded": Tested(
        "test_a_tool_past_the_middleware_is_named",
        "test_a_tool_past_a_strict_middleware_is_refused",
        "test_a_retry_behind_the_middleware_is_refused_before_anything_runs",
    ),
    "no name": Tested("test_a_run_without_a_name_is_warned_about_once"),
}


class Scripted(BaseChatModel):
    """Says ``turns[n]`` when it has spoken n times since the user did."""

    turns: Sequence[Any]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        last = max(place for place, message in enumerate(messages) if is_users(message))
        spoken = sum(isinstance(message, AIMessage) for message in messages[last:])
        turn = self.turns[min(spoken, len(self.turns) - 1)]
        if isinstance(turn, Fails):
            raise ConnectionAbortedError(turn.message)
        if isinstance(turn, str):
            said = AIMessage(turn)
        else:
            calls = [{"name": name, "args": args, "id": f"call_{uuid.uuid4().hex[:8]}"} for name, args in turn]
            said = AIMessage("", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=said)])


def told_in(state: dict[str, Any]) -> list[str]:
    return [str(one.content) for one in state["messages"] if isinstance(one, ToolMessage)]


def config_of(thread: str) -> Any:
    return {"configurable": {"thread_id": thread}}


class LangChain:
    """``create_agent`` with the middleware, blocking."""

    def drive(self, shop: Shop, turns: Sequence[Turn], *, thread: str = "t1", resume: bool = False) -> Outcome:
        with amends.Runtime(shop.url, tools=shop.declared()) as rt:
            guard = AmendsMiddleware(rt, **shop.options)
            with SqliteSaver.from_conn_string(str(shop.folder / "graph.db")) as saver:
                agent = self.agent(guard, shop, turns, saver)
                config = config_of(thread)
                given: Any = {"messages": [("user", "go on")]}
                if resume:
                    paused = agent.get_state(config).interrupts
                    given = Command(resume={one.id: "approved" for one in paused}) if paused else None
                try:
                    with self.block(guard, config):
                        state = agent.invoke(given, config)
                except (ConnectionAbortedError, amends.RolledBack, amends.RunBlocked) as error:
                    return Outcome("failed", error=str(error))
                return Outcome("paused" if "__interrupt__" in state else "finished", told_in(state))

    def stop(self, shop: Shop, turns: Sequence[Turn], *, after: int) -> None:
        with amends.Runtime(shop.url, tools=shop.declared()) as rt:
            guard = AmendsMiddleware(rt, **shop.options)
            with (
                SqliteSaver.from_conn_string(str(shop.folder / "graph.db")) as saver,
                self.block(guard, config_of("t1")),
            ):
                agent, given = self.agent(guard, shop, turns, saver), {"messages": [("user", "go on")]}
                for state in agent.stream(given, config_of("t1"), stream_mode="values"):
                    if len(told_in(state)) == after:
                        break

    def block(self, guard: AmendsMiddleware, config: Any) -> Any:
        return guard.turn(config)

    def agent(self, guard: AmendsMiddleware, shop: Shop, turns: Sequence[Turn], saver: Any) -> Any:
        tools = [lc_tool(fn) for fn in shop.functions()]
        return create_agent(Scripted(turns=turns), tools=tools, middleware=[guard], checkpointer=saver)


class AsyncLangChain(LangChain):
    """The same, awaited."""

    def drive(self, shop: Shop, turns: Sequence[Turn], *, thread: str = "t1", resume: bool = False) -> Outcome:
        return asyncio.run(self._drive(shop, turns, thread, resume))

    async def _drive(self, shop: Shop, turns: Sequence[Turn], thread: str, resume: bool) -> Outcome:
        async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
            guard = AmendsMiddleware(rt, **shop.options)
            async with AsyncSqliteSaver.from_conn_string(str(shop.folder / "graph.db")) as saver:
                agent, config = self.agent(guard, shop, turns, saver), config_of(thread)
                given: Any = None if resume else {"messages": [("user", "go on")]}
                try:
                    async with self.block(guard, config):
                        state = await agent.ainvoke(given, config)
                except (ConnectionAbortedError, amends.RolledBack, amends.RunBlocked) as error:
                    return Outcome("failed", error=str(error))
                return Outcome("paused" if "__interrupt__" in state else "finished", told_in(state))

    def stop(self, shop: Shop, turns: Sequence[Turn], *, after: int) -> None:
        """Cancel the task that awaits the agent, as a server does when its client goes away."""

        async def stop() -> None:
            reading = asyncio.create_task(self._read(shop, turns, after, enough := asyncio.Event()))
            await enough.wait()
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

        asyncio.run(stop())

    async def _read(self, shop: Shop, turns: Sequence[Turn], after: int, enough: asyncio.Event) -> None:
        async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
            guard = AmendsMiddleware(rt, **shop.options)
            async with AsyncSqliteSaver.from_conn_string(str(shop.folder / "graph.db")) as saver:
                agent = self.agent(guard, shop, turns, saver)
                given: Any = {"messages": [("user", "go on")]}
                states = agent.astream(given, config_of("t1"), stream_mode="values")
                async with self.block(guard, config_of("t1")), aclosing(states):
                    async for state in states:
                        if len(told_in(state)) == after:
                            enough.set()
                            await asyncio.Event().wait()


class BareToolNode(LangChain):
    """A graph of one's own: a model node and a ``ToolNode``."""

    def agent(self, guard: AmendsMiddleware, shop: Shop, turns: Sequence[Turn], saver: Any) -> Any:
        model = Scripted(turns=turns)
        graph = StateGraph(MessagesState)
        graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
        tools = [lc_tool(fn) for fn in shop.functions()]
        graph.add_node("tools", ToolNode(tools, wrap_tool_call=guard.wrap_tool_call))
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", tools_condition, {"tools": "tools", END: END})
        graph.add_edge("tools", "model")
        return graph.compile(checkpointer=saver)


class WithoutBlock(LangChain):
    """The middleware alone, without a block around the agent."""

    def block(self, guard: AmendsMiddleware, config: Any) -> Any:
        return nullcontext()


class AsyncWithoutBlock(AsyncLangChain):
    """The same, awaited."""

    block = WithoutBlock.block


class BareToolNodeWithoutBlock(BareToolNode):
    """A graph of one's own, without a block around it."""

    block = WithoutBlock.block


class LangChainSupervisor(LangChain):
    """The clerk is a tool of another agent; only that one has a checkpointer."""

    def agent(self, guard: AmendsMiddleware, shop: Shop, turns: Sequence[Turn], saver: Any) -> Any:
        clerk = super().agent(guard, shop, turns, None)

        @lc_tool
        def ask_clerk(request: str) -> str:
            """Ask the clerk."""
            result = clerk.invoke({"messages": [{"role": "user", "content": request}]})
            return str(result["messages"][-1].content)

        tools = [*(lc_tool(fn) for fn in shop.functions()), ask_clerk]
        model = Scripted(turns=asks_clerk("request"))
        return create_agent(model, tools=tools, middleware=[guard], checkpointer=saver)


class AsyncLangChainSupervisor(AsyncLangChain):
    """The same, awaited."""

    def agent(self, guard: AmendsMiddleware, shop: Shop, turns: Sequence[Turn], saver: Any) -> Any:
        clerk = super().agent(guard, shop, turns, None)

        @lc_tool
        async def ask_clerk(request: str) -> str:
            """Ask the clerk."""
            result = await clerk.ainvoke({"messages": [{"role": "user", "content": request}]})
            return str(result["messages"][-1].content)

        tools = [*(lc_tool(fn) for fn in shop.functions()), ask_clerk]
        model = Scripted(turns=asks_clerk("request"))
        return create_agent(model, tools=tools, middleware=[guard], checkpointer=saver)


class Team(LangChain):
    """A graph of two agents in one block; the first says ``turns[0]``, the second the others."""

    def agent(self, guard: AmendsMiddleware, shop: Shop, turns: Sequence[Turn], saver: Any) -> Any:
        tools = [lc_tool(fn) for fn in shop.functions()]
        graph = StateGraph(MessagesState)
        for name, said in (("first", [turns[0], "handed on"]), ("second", ["", "", *turns[1:]])):
            graph.add_node(name, create_agent(Scripted(turns=said), tools=tools, middleware=[guard], name=name))
        graph.add_edge(START, "first")
        graph.add_edge("first", "second")
        return graph.compile(checkpointer=saver)


class AsyncTeam(AsyncLangChain):
    """The same, awaited."""

    agent = Team.agent


class OneAfterAnother(LangChain):
    """Two agents with threads of their own in one block, whose thread names the job; to resume is to repeat the job."""

    def drive(self, shop: Shop, turns: Sequence[Turn], *, thread: str = "t1", resume: bool = False) -> Outcome:
        with (
            amends.Runtime(shop.url, tools=shop.declared()) as rt,
            SqliteSaver.from_conn_string(str(shop.folder / "graph.db")) as saver,
        ):
            guard = AmendsMiddleware(rt, **shop.options)
            first = self.agent(guard, shop, [turns[0], "handed on"], saver)
            second = self.agent(guard, shop, turns[1:], saver)
            given: Any = {"messages": [("user", "go on")]}
            try:
                with guard.turn(config_of(thread)):
                    first.invoke(given, config_of(f"{thread}-first"))
                    config = config_of(f"{thread}-second")
                    is_paused = resume and second.get_state(config).interrupts
                    state = second.invoke(None if is_paused else given, config)
            except ConnectionAbortedError as error:
                return Outcome("failed", error=str(error))
            return Outcome("paused" if "__interrupt__" in state else "finished", told_in(state))


class DownOnce(Scripted):
    """Is down when a result is first seen, in whatever process that is."""

    folder: Path

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        if isinstance(messages[-1], ToolMessage) and not (self.folder / "was-down").exists():
            (self.folder / "was-down").touch()
            raise ConnectionError("the model is down")
        return super()._generate(messages, *args, **kwargs)


class RetryPolicyOfNode(LangChain):
    """An agent that is a node with a retry policy, without a block around it."""

    def agent(self, guard: AmendsMiddleware, shop: Shop, turns: Sequence[Turn], saver: Any) -> Any:
        tools = [lc_tool(fn) for fn in shop.functions()]
        made = create_agent(DownOnce(turns=turns, folder=shop.folder), tools=tools, middleware=[guard])
        graph = StateGraph(MessagesState)
        graph.add_node("pay", made, retry_policy=RetryPolicy(initial_interval=0.001, jitter=False))
        graph.add_edge(START, "pay")
        return graph.compile(checkpointer=saver)

    def drive(self, shop: Shop, turns: Sequence[Turn], *, thread: str = "t1", resume: bool = False) -> Outcome:
        with (
            amends.Runtime(shop.url, tools=shop.declared()) as rt,
            SqliteSaver.from_conn_string(str(shop.folder / "graph.db")) as saver,
        ):
            agent = self.agent(AmendsMiddleware(rt, **shop.options), shop, turns, saver)
            state = agent.invoke(None if resume else {"messages": [("user", "go on")]}, config_of(thread))
            return Outcome("finished", told_in(state))


class RetryPolicyInBlock(RetryPolicyOfNode):
    """The same in a block."""

    drive = LangChain.drive


class TestRetryPolicyOfNode(Retried):
    harness = RetryPolicyOfNode()


class TestRetryPolicyInBlock(Retried):
    harness = RetryPolicyInBlock()


class TestLangChain(Conformance, SameRequest, RichResults, Stopped, TwoRuntimes):
    harness = LangChain()


class TestWithoutBlock(Stopped):
    harness = WithoutBlock()


@pytest.mark.rest  # the other colour
class TestAsyncWithoutBlock(Stopped):
    harness = AsyncWithoutBlock()


@pytest.mark.rest  # the same for a graph of one's own
class TestBareToolNodeWithoutBlock(Stopped):
    harness = BareToolNodeWithoutBlock()


class TestLangChainSupervisor(SupervisorConformance):
    harness = LangChainSupervisor()


@pytest.mark.rest  # the other colour
class TestAsyncLangChainSupervisor(SupervisorConformance):
    harness = AsyncLangChainSupervisor()


@pytest.mark.rest  # the other colour
class TestAsyncLangChain(Conformance, SameRequest, RichResults, Stopped, TwoRuntimes):
    harness = AsyncLangChain()


class TestBareToolNode(Conformance, SameRequest, RichResults):
    harness = BareToolNode()
    is_told = ""


@pytest.mark.rest  # the same as for an agent
class TestBareToolNodeToo(Stopped, TwoRuntimes):
    harness = BareToolNode()


class TestTeam(SeveralAgents):
    harness = Team()


@pytest.mark.rest  # the other colour
class TestAsyncTeam(SeveralAgents):
    harness = AsyncTeam()


class TestOneAfterAnother(SeveralAgents):
    harness = OneAfterAnother()

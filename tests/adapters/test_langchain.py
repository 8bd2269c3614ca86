"""LangChain and LangGraph: the middleware, in both colours, and a bare tool node."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any

from langchain.agents import create_agent
from langchain.tools import tool as lc_tool
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command

import amends
from amends.adapters.langchain import AmendsMiddleware, is_users
from tests.adapters.conformance import Conformance, Fails, Outcome, SupervisorConformance, Turn, asks_clerk
from tests.adapters.shop import Shop


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
                    with guard.turn(config):
                        state = agent.invoke(given, config)
                except (ConnectionAbortedError, amends.RolledBack, amends.RunBlocked) as error:
                    return Outcome("failed", error=str(error))
                return Outcome("paused" if "__interrupt__" in state else "finished", told_in(state))

    def agent(self, guard: AmendsMiddleware, shop: Shop, turns: Sequence[Turn], saver: Any) -> Any:
        tools = [lc_tool(fn) for fn in shop.functions()]
        return create_agent(Scripted(turns=turns), tools=tools, middleware=[guard], checkpointer=saver)


class AsyncLangChain:
    """The same, awaited."""

    def drive(self, shop: Shop, turns: Sequence[Turn], *, thread: str = "t1", resume: bool = False) -> Outcome:
        return asyncio.run(self._drive(shop, turns, thread, resume))

    async def _drive(self, shop: Shop, turns: Sequence[Turn], thread: str, resume: bool) -> Outcome:
        async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
            guard = AmendsMiddleware(rt, **shop.options)
            async with AsyncSqliteSaver.from_conn_string(str(shop.folder / "graph.db")) as saver:
                tools = [lc_tool(fn) for fn in shop.functions()]
                agent = create_agent(Scripted(turns=turns), tools=tools, middleware=[guard], checkpointer=saver)
                config = config_of(thread)
                given: Any = None if resume else {"messages": [("user", "go on")]}
                try:
                    async with guard.turn(config):
                        state = await agent.ainvoke(given, config)
                except (ConnectionAbortedError, amends.RolledBack, amends.RunBlocked) as error:
                    return Outcome("failed", error=str(error))
                return Outcome("paused" if "__interrupt__" in state else "finished", told_in(state))


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


class TestLangChain(Conformance):
    harness = LangChain()


class TestLangChainSupervisor(SupervisorConformance):
    __test__ = True
    harness = LangChainSupervisor()


class TestAsyncLangChain(Conformance):
    harness = AsyncLangChain()


class TestBareToolNode(Conformance):
    harness = BareToolNode()
    is_told = ""

"""langgraph #6626: parallel tools that each ask for a yes; resuming one runs all of them again.

Seen on langgraph 1.2.20 with langgraph-prebuilt 1.1.1: the ids of the three interrupts, which were the same then, differ
now. What stands is that one ``ToolNode`` runs all its calls again for each answer: the first shape is made three times,
the second twice. With amends each is made once, and each needs its own yes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langchain.tools import tool as lc_tool
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt

import amends
from amends.adapters.langchain import AmendsMiddleware
from tests.adapters.test_langchain import config_of

SHAPES = ("circle", "square", "triangle")
CONFIG = config_of("t1")


def canvas(made: list[str], ask: Callable[[str], object], **options: Any) -> Any:
    """A graph whose model asks for three shapes at once."""

    def shape(name: str) -> Any:
        @lc_tool(f"create_{name}")
        def create(color: str) -> str:
            """Put a shape on the canvas."""
            ask(name)
            made.append(name)
            return f"{color} {name}"

        return create

    calls = [{"name": f"create_{name}", "args": {"color": "red"}, "id": name} for name in SHAPES]
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [AIMessage("", tool_calls=calls)]})
    graph.add_node("tools", ToolNode([shape(name) for name in SHAPES], **options))
    graph.add_edge(START, "model")
    graph.add_edge("model", "tools")
    graph.add_edge("tools", END)
    return graph.compile(checkpointer=InMemorySaver())


def test_bare_each_yes_makes_again_what_was_made() -> None:
    made: list[str] = []
    graph = canvas(made, lambda name: interrupt(f"{name}?"))
    state = graph.invoke({"messages": [HumanMessage("draw")]}, CONFIG)
    while "__interrupt__" in state:
        state = graph.invoke(Command(resume="yes"), CONFIG)
    assert sorted(made) == ["circle", "circle", "circle", "square", "square", "triangle"]


def test_with_amends_each_shape_is_made_once_and_only_with_its_own_yes() -> None:
    made: list[str] = []
    tools = [amends.declare(f"create_{name}", compensate=lambda result: None, needs_approval=True) for name in SHAPES]
    with amends.Runtime("memory:", tools=tools) as rt:
        guard = AmendsMiddleware(rt)
        graph = canvas(made, lambda name: None, wrap_tool_call=guard.wrap_tool_call)
        with guard.turn(CONFIG):
            state = graph.invoke({"messages": [HumanMessage("draw")]}, CONFIG)
        for name in SHAPES:
            (asked,) = [one for one in rt.approvals() if one.call.tool == f"create_{name}"]
            rt.approve(asked.id, digest=asked.digest, by="anna")
            with guard.turn(CONFIG):
                state = graph.invoke(Command(resume="yes"), CONFIG)
        assert rt.report("t1/1").state == "committed"
    assert made == ["circle", "square", "triangle"]
    assert "__interrupt__" not in state

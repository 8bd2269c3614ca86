"""A tool object of a framework, given where amends wants its own: the error says how to declare it, and which page helps."""

from __future__ import annotations

from typing import Any

import pytest

import amends
from amends import Runtime, declare
from amends.errors import BadDeclaration


def charge(order: str) -> str:
    """Charge an order."""
    return order


def of_langchain() -> Any:
    return pytest.importorskip("langchain_core.tools").tool(charge)


def of_openai_agents() -> Any:
    return pytest.importorskip("agents").function_tool(charge)


def of_pydantic_ai() -> Any:
    return pytest.importorskip("pydantic_ai").Tool(charge)


def of_fastmcp() -> Any:
    return pytest.importorskip("fastmcp.tools").Tool.from_function(charge)


MAKERS = {
    "LangChain": (of_langchain, "langchain"),
    "the OpenAI Agents SDK": (of_openai_agents, "openai-agents"),
    "Pydantic AI": (of_pydantic_ai, "pydantic-ai"),
    "FastMCP": (of_fastmcp, "fastmcp"),
}


@pytest.mark.parametrize("given_to", ["Runtime", "tool", "declare"])
@pytest.mark.parametrize("framework", MAKERS)
def test_a_tool_of_a_framework_is_declared_by_its_name(framework: str, given_to: str) -> None:
    make, page = MAKERS[framework]
    foreign = make()
    with pytest.raises(BadDeclaration) as found:
        if given_to == "Runtime":
            Runtime("memory:", tools=[foreign])
        elif given_to == "tool":
            amends.tool(foreign)
        else:
            declare(foreign)
    assert found.value.tool == "charge"
    assert str(found.value).startswith(f"charge is a tool of {framework}")
    assert 'declare("charge", ...)' in found.value.hint
    assert f"how-to/{page}/" in found.value.hint


def test_what_is_no_tool_at_all_is_still_said_to_be_none() -> None:
    with pytest.raises(BadDeclaration, match="charge is not a tool: decorate it with @tool"):
        Runtime("memory:", tools=[charge])

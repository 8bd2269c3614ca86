"""Frameworks that are too heavy for every environment, or conflict with others: what needs one is collected where it is."""

from __future__ import annotations

from importlib.util import find_spec

HEAVY = {
    "crewai": ("test_crewai.py", "test_crewai_example.py"),
    "langchain_mcp_adapters": ("test_langchain_mcp.py",),  # 0.3.2 needs mcp<2, the adapters for MCP servers mcp>=2.3
}
"""`make test-adapters` makes an environment for each, and runs these."""


def is_here(name: str) -> bool:
    return find_spec(name.partition(".")[0]) is not None and find_spec(name) is not None


collect_ignore = [name for framework, names in HEAVY.items() if not is_here(framework) for name in names]

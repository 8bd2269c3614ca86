"""LangChain and LangGraph: every tool call of an agent goes through a run, and a pause is the graph's own interrupt.

``AmendsMiddleware(rt)`` goes into ``create_agent(middleware=[...])``; its two wrappers also fit a bare ``ToolNode``.
"""

from __future__ import annotations

from amends.adapters.langchain.middleware import AmendsMiddleware, TurnState
from amends.adapters.langchain.turn import Turn

__all__ = ["AmendsMiddleware", "Turn", "TurnState"]

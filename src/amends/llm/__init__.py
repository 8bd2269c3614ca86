"""Models: an agent loop, recorded clients of the SDKs, and scripted models for tests."""

from __future__ import annotations

from amends.llm.agent import Finished, run_agent, run_agent_async
from amends.llm.prices import Price
from amends.llm.recording import record
from amends.llm.scripted import Heard, ModelServer, Reply, ScriptedModel

__all__ = [
    "Finished",
    "Heard",
    "ModelServer",
    "Price",
    "Reply",
    "ScriptedModel",
    "record",
    "run_agent",
    "run_agent_async",
]

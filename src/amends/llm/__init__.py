"""Models: ``record(client)`` writes down what a program asks of them, and scripts stand for them in tests."""

from __future__ import annotations

from amends.llm.prices import Price
from amends.llm.recording import record
from amends.llm.scripted import Heard, Reply, ScriptedModel
from amends.llm.serving import ModelServer

__all__ = ["Heard", "ModelServer", "Price", "Reply", "ScriptedModel", "record"]

"""Recording what a program asks of models: ``record(client)`` for the OpenAI and the Anthropic SDK."""

from __future__ import annotations

from amends.llm.prices import Price
from amends.llm.recording import record

__all__ = ["Price", "record"]

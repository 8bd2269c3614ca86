"""Pydantic AI through the conformance suite, and what is its own: the toolset, delegation, its control flow."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pydantic_ai import Agent, ModelRetry
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.tools import DeferredToolRequests
from pydantic_ai.toolsets import FunctionToolset

import amends
from amends.adapters.pydantic_ai import AmendsCapability, AmendsToolset, wake
from amends.errors import NoRun
from tests.adapters.conformance import Conformance, Fails, Outcome, Turn
from tests.adapters.shop import Shop


class PydanticAIHarness:
    """The conversation is a file of messages; a turn that was killed is begun again under its run id."""

    def drive(self, shop: Shop, turns: Sequence[Turn], *, thread: str = "t1", resume: bool = False) -> Outcome:
        return asyncio.run(self._drive(shop, turns, thread, resume))

    async def _drive(self, shop: Shop, turns: Sequence[Turn], thread: str, resume: bool) -> Outcome:
        rt = amends.AsyncRuntime(shop.url, tools=shop.declared())
        agent = Agent(
            model_saying(turns),
            tools=[_correctable(fn) for fn in shop.functions()],
            output_type=[str, DeferredToolRequests],
            capabilities=[AmendsCapability(rt)],
        )
        kept, run_id = shop.folder / "messages.json", _turn_of(shop.folder, thread, resume)
        try:
            async with rt:
                if resume and kept.exists():
                    messages = ModelMessagesTypeAdapter.validate_json(kept.read_bytes())
                    result = await agent.run(message_history=messages, deferred_tool_results=wake(messages))
                else:
                    result = await agent.run("please", run_id=run_id, conversation_id=thread)
        except Exception as error:
            return Outcome("failed", error=str(error))
        told = [
            str(part.content)
            for message in result.all_messages()
            if isinstance(message, ModelRequest)
            for part in message.parts
            if isinstance(part, ToolReturnPart)
        ]
        if isinstance(result.output, DeferredToolRequests):
            kept.write_bytes(result.all_messages_json())
            return Outcome("paused", told)
        return Outcome("finished", told)


class TestPydanticAI(Conformance):
    harness = PydanticAIHarness()


def _correctable(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A tool in this framework's manner: what the model can correct is ``ModelRetry``, anything else ends the run."""

    @functools.wraps(fn)
    def tool(*args: Any, **kwargs: Any) -> Any:
        try:
            return fn(*args, **kwargs)
        except ValueError as error:
            raise ModelRetry(str(error)) from error

    return tool


def _turn_of(folder: Path, thread: str, resume: bool) -> str:
    counted = folder / f"{thread}.turns"
    number = int(counted.read_text()) if counted.exists() else 0
    if not resume:
        number += 1
        counted.write_text(str(number))
    return f"{thread}:{number}"


def model_saying(turns: Sequence[Turn]) -> FunctionModel:
    """The framework's own fake: says ``turns[n]`` when it has spoken n times since the user did."""

    def say(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        spoken = 0
        for message in messages:
            if isinstance(message, ModelResponse):
                spoken += 1
            elif any(isinstance(part, UserPromptPart) for part in message.parts):
                spoken = 0
        turn = turns[spoken]
        if isinstance(turn, Fails):
            raise RuntimeError(turn.message)
        if isinstance(turn, str):
            return ModelResponse(parts=[TextPart(turn)])
        return ModelResponse(parts=[ToolCallPart(name, args, f"call_{uuid4().hex}") for name, args in turn])

    return FunctionModel(say)

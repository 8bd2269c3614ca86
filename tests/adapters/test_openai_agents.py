"""The OpenAI Agents SDK through the conformance suite, and what is its own: sessions, streams, hooks, its states."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from agents import (
    Agent,
    RunContextWrapper,
    Runner,
    RunState,
    SQLiteSession,
    WebSearchTool,
    function_tool,
    set_tracing_disabled,
)
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call

import amends
from amends.adapters.openai_agents import AmendsHooks, AmendsRunner, amends_tools
from amends.errors import NoRun
from tests.adapters.conformance import Conformance, Fails, Outcome, Turn
from tests.adapters.shop import Shop

SPOKEN_MAX = 20


@pytest.fixture(autouse=True)
def untraced() -> None:
    set_tracing_disabled(True)


class OpenAIAgentsHarness:
    """A run id of the program's own for each turn; the state of a pause is a file."""

    def drive(self, shop: Shop, turns: Sequence[Turn], *, thread: str = "t1", resume: bool = False) -> Outcome:
        return asyncio.run(self._drive(shop, turns, thread, resume))

    async def _drive(self, shop: Shop, turns: Sequence[Turn], thread: str, resume: bool) -> Outcome:
        set_tracing_disabled(True)
        rt = amends.AsyncRuntime(shop.url, tools=shop.declared())
        agent = Agent(
            name="clerk", model=model_saying(turns), tools=amends_tools([function_tool(fn) for fn in shop.functions()])
        )
        kept, runner = shop.folder / "state.json", AmendsRunner(rt, tags=(f"thread:{thread}",))
        run_id, back = _turn_of(shop.folder, thread, resume), None
        if resume and kept.exists():
            back = await RunState.from_json(agent, json.loads(kept.read_text(encoding="utf-8")))
            for item in back.get_interruptions():
                back.approve(item)  # a yes that nobody in the ledger has said
        try:
            async with rt:
                # A state finds its own run; a turn that was killed is begun again under its id.
                result = await (runner.run(agent, back) if back else runner.run(agent, "please", run_id=run_id))
        except Exception as error:
            return Outcome("failed", error=str(error))
        told = [str(one["output"]) for one in result.to_input_list() if one.get("type") == "function_call_output"]
        if result.interruptions:
            kept.write_text(json.dumps(result.to_state().to_json()), encoding="utf-8")
            return Outcome("paused", told)
        return Outcome("finished", told)


class TestOpenAIAgents(Conformance):
    harness = OpenAIAgentsHarness()


def _turn_of(folder: Path, thread: str, resume: bool) -> str:
    counted = folder / f"{thread}.turns"
    number = int(counted.read_text()) if counted.exists() else 0
    if not resume:
        number += 1
        counted.write_text(str(number))
    return f"{thread}:{number}"


def model_saying(turns: Sequence[Turn]) -> ScriptedModel:
    """The framework's own fake: says ``turns[n]`` when it has spoken n times since the user did."""

    def say(call: Any) -> Any:
        items = call.input if isinstance(call.input, list) else []
        spoken, was = 0, ""
        for item in items:
            kind = item.get("type") or item.get("role")
            spoken = 0 if item.get("role") == "user" else spoken + (kind == "function_call" != was)
            was = kind
        turn = turns[spoken]
        if isinstance(turn, Fails):
            raise RuntimeError(turn.message)
        if isinstance(turn, str):
            return [assistant_message(turn)]
        return [function_call(name, args, call_id=f"call_{uuid4().hex}") for name, args in turn]

    return ScriptedModel([ModelStep.respond(say)] * SPOKEN_MAX)

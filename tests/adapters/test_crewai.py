"""CrewAI: a crew whose tools go through the run around ``kickoff``. Runs under ``make test-adapters``."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import Any

from crewai import Agent, BaseLLM, Crew, Task
from crewai.tools import tool as crew_tool

import amends
from amends.adapters.crewai import amends_tools
from tests.adapters.conformance import Conformance, Fails, Outcome, Turn
from tests.adapters.shop import Shop


class Scripted(BaseLLM):
    """Says ``turns[n]`` when it has spoken n times in this attempt of the crew."""

    turns: Any = ()
    seen: Any = None

    def call(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        spoken = sum(message["role"] == "assistant" for message in messages)
        turn = self.turns[min(spoken, len(self.turns) - 1)]
        self.seen[:] = [str(message["content"]) for message in messages if message["role"] == "tool"]
        if isinstance(turn, Fails):
            raise ConnectionAbortedError(turn.message)
        if isinstance(turn, str):
            return turn
        return [
            {"id": f"call_{uuid.uuid4().hex[:8]}", "function": {"name": name, "arguments": json.dumps(args)}}
            for name, args in turn
        ]

    def supports_function_calling(self) -> bool:
        return True


def kickoff(tools: list[Any], turns: Sequence[Any], seen: list[str], **options: Any) -> Any:
    llm = Scripted(model="scripted", turns=turns, seen=seen)
    agent = Agent(role="clerk", goal="do as you are told", backstory="none", llm=llm, tools=tools)
    given = Task(description="go on", expected_output="done", agent=agent, **options)
    return Crew(agents=[agent], tasks=[given]).kickoff()


class CrewAI:
    """CrewAI keeps nothing between model calls: a resumed conversation starts again, in the same run."""

    def drive(self, shop: Shop, turns: Sequence[Turn], *, thread: str = "t1", resume: bool = False) -> Outcome:
        number = shop.folder / "turns"
        done = len(number.read_text()) if number.exists() else 0
        if not resume:
            done += 1
            number.write_text("x" * done)
        seen: list[str] = []
        with amends.Runtime(shop.url, tools=shop.declared()) as rt:
            tools = amends_tools([crew_tool(fn.__name__)(fn) for fn in shop.functions()])
            try:
                with rt.run(f"{thread}/{done}", tags=[f"thread:{thread}"], recover="wait", **shop.options):
                    kickoff(tools, turns, seen)
            except amends.Held:
                return Outcome("paused", seen)
            except (ConnectionAbortedError, amends.RolledBack, amends.RunBlocked) as error:
                return Outcome("failed", seen, str(error))
        return Outcome("finished", seen)


class TestCrewAI(Conformance):
    harness = CrewAI()
    pauses = False
    is_told = "with the failure"

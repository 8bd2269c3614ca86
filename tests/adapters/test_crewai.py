"""CrewAI: a crew whose tools go through the run around ``kickoff``. Runs under ``make test-adapters``."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import Any

from crewai import Agent, BaseLLM, Crew, Task
from crewai.hooks import HookAborted, InterceptionPoint
from crewai.hooks.dispatch import scoped_hooks
from crewai.tools import tool as crew_tool

import amends
from amends.adapters.crewai import amends_tools
from amends.errors import RunEnded, Suspended
from tests.adapters.conformance import (
    Conformance,
    Fails,
    Outcome,
    Retried,
    RichResults,
    SameRequest,
    SeveralAgents,
    Stopped,
    SupervisorConformance,
    Turn,
    TwoRuntimes,
    asks_clerk,
)
from tests.adapters.shop import Shop


class Scripted(BaseLLM):
    """Says ``turns[n]`` when it has spoken n times in this attempt of the crew."""

    turns: Any = ()
    seen: Any = None
    is_down: bool = False

    def call(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        spoken = sum(message["role"] == "assistant" for message in messages)
        turn = self.turns[min(spoken, len(self.turns) - 1)]
        self.seen[:] = [str(message["content"]) for message in messages if message["role"] == "tool"]
        if self.is_down and self.seen:
            self.is_down = False
            raise RuntimeError("the model is down")
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


def agent_saying(turns: Sequence[Any], seen: list[str], tools: list[Any], **options: Any) -> Agent:
    llm = Scripted(model="scripted", turns=turns, seen=seen, is_down=options.pop("is_down_once", False))
    return Agent(
        **{"role": "clerk", "goal": "do as you are told", "backstory": "none", **options}, llm=llm, tools=tools
    )


def kickoff(
    tools: list[Any], turns: Sequence[Any], seen: list[str], *, is_down_once: bool = False, **options: Any
) -> Any:
    agent = agent_saying(turns, seen, tools, is_down_once=is_down_once)
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
                    self.work(tools, turns, seen)
            except amends.Waiting:
                return Outcome("paused", seen)
            except (ConnectionAbortedError, amends.RolledBack, amends.RunBlocked, RunEnded) as error:
                return Outcome("failed", seen, str(error))
        return Outcome("finished", seen)

    def work(self, tools: list[Any], turns: Sequence[Turn], seen: list[str]) -> None:
        kickoff(tools, turns, seen)

    def stop(self, shop: Shop, turns: Sequence[Turn], *, after: int) -> None:
        harness = _Stopped(after)
        assert harness.drive(shop, turns).how == "paused"


class _Stopped(CrewAI):
    """A hook of the framework aborts the crew before the next words of its model; the program leaves its run waiting."""

    def __init__(self, after: int) -> None:
        self._after = after

    def work(self, tools: list[Any], turns: Sequence[Turn], seen: list[str]) -> None:
        def aborts(context: Any) -> None:
            if sum(message["role"] == "tool" for message in context.messages) >= self._after:
                raise HookAborted("the user pressed Stop")

        with scoped_hooks({InterceptionPoint.PRE_MODEL_CALL: [aborts]}):
            try:
                kickoff(tools, turns, seen)
            except HookAborted as stop:
                raise Suspended("the user pressed Stop") from stop


class CrewAISupervisor(CrewAI):
    """A tool of the crew starts another agent."""

    def work(self, tools: list[Any], turns: Sequence[Turn], seen: list[str]) -> None:
        clerk = agent_saying(turns, [], tools, role="clerk")

        @crew_tool("ask_clerk")
        def ask_clerk(request: str) -> str:
            """Ask the clerk."""
            result = clerk.kickoff(request)
            return str(result.raw)

        kickoff([*tools, *amends_tools([ask_clerk])], asks_clerk("request"), seen)


class CrewAITwoTasks(CrewAI):
    """Two agents of one crew, one task after the other."""

    def work(self, tools: list[Any], turns: Sequence[Turn], seen: list[str]) -> None:
        told: list[list[str]] = [[], []]
        first = agent_saying([turns[0], "over to you"], told[0], tools, role="first")
        second = agent_saying(turns[1:], told[1], tools, role="second")
        tasks = [Task(description="go on", expected_output="done", agent=one) for one in (first, second)]
        try:
            Crew(agents=[first, second], tasks=tasks).kickoff()
        finally:
            seen[:] = [*told[0], *told[1]]


class CrewAIRetries(CrewAI):
    """The model is down once, when it has first seen a result; the agent tries its task again by itself."""

    def work(self, tools: list[Any], turns: Sequence[Turn], seen: list[str]) -> None:
        kickoff(tools, turns, seen, is_down_once=True)


class TestCrewAI(Conformance, SameRequest, Stopped, RichResults, TwoRuntimes):
    harness = CrewAI()
    pauses = False
    is_told = "with the failure"


class TestCrewAISupervisor(SupervisorConformance):
    harness = CrewAISupervisor()
    pauses = False


class TestCrewAITwoTasks(SeveralAgents):
    harness = CrewAITwoTasks()
    pauses = False


class TestCrewAIRetries(Retried):
    harness = CrewAIRetries()
    pauses = False

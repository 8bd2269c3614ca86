"""CrewAI: a crew whose tools go through the run around ``kickoff``. Runs under ``make test-adapters``."""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from crewai import Agent, BaseLLM, Crew, Task
from crewai.hooks import HookAborted, InterceptionPoint
from crewai.hooks.dispatch import scoped_hooks
from crewai.mcp import MCPServerStdio
from crewai.tools import tool as crew_tool
from crewai.tools.mcp_tool_wrapper import MCPToolWrapper
from crewai.tools.tool_failure import ToolFailure

import amends
from amends.adapters import crewai as adapter
from amends.adapters.crewai import amends_tools
from amends.errors import RunEnded, Suspended
from tests.adapters.cells import Cells, Tested
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

CELLS: Cells = {
    "lost server": Tested("test_what_an_mcp_server_does_is_recorded_as_it_is"),
    "server's error": Tested("test_what_an_mcp_server_does_is_recorded_as_it_is[refused]"),
    "not yet": Tested("test_what_an_mcp_server_does_is_recorded_as_it_is[held]"),
    "unguarded": Tested(
        "test_tools_that_are_not_guarded_are_named_or_refused",
        "test_a_call_that_is_not_guarded_is_seen_in_an_agent_without_a_crew",
        "test_mcp_servers_of_the_agent_itself_are_named_or_refused",
    ),
    "no name": Tested("test_a_run_without_a_name_is_warned_of_once"),
}


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
    held: list[Any], turns: Sequence[Any], seen: list[str], *, is_down_once: bool = False, **options: Any
) -> Any:
    agent = agent_saying(turns, seen, held, is_down_once=is_down_once)
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


# ---- its own ------------------------------------------------------------------------------


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def named(shop: Shop, *names: str) -> list[Any]:
    return [crew_tool(fn.__name__)(fn) for fn in shop.functions() if fn.__name__ in names]


CHARGE = ("charge", {"order": "A1", "cents": 500})


@pytest.mark.parametrize("where", ["the agent", "the task"])
def test_tools_that_are_not_guarded_are_named_or_refused(
    shop: Shop, caplog: pytest.LogCaptureFixture, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "_warned", set())

    def start(**options: Any) -> None:
        guarded, [beside] = amends_tools(named(shop, "charge"), **options), named(shop, "stamp")
        turns = [[CHARGE], "charged"]
        if where == "the agent":
            kickoff([*guarded, beside], turns, [])
        else:
            kickoff(guarded, turns, [], tools=[*guarded, beside])

    with shop.desk() as rt:
        for number in (1, 2):
            with rt.run(f"r{number}"):
                start()
        assert sum("amends cannot record stamp" in one.getMessage() for one in caplog.records) == 1
        with pytest.raises(amends.UsageError, match="amends cannot record stamp"), rt.run("r3"):
            start(strict=True)
        assert rt.report("r3").calls == ()
    assert shop.effects() == ["charge A1 500"] * 2


@pytest.mark.parametrize("strict", [False, True])
def test_a_call_that_is_not_guarded_is_seen_in_an_agent_without_a_crew(
    shop: Shop, caplog: pytest.LogCaptureFixture, strict: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "_warned", set())
    done: list[str] = []

    @crew_tool("post")
    def post(text: str) -> str:
        """Post it."""
        done.append(text)
        return "posted"

    tools = [*amends_tools(named(shop, "charge"), strict=strict), post]
    with shop.desk() as rt, rt.run("r"):
        agent_saying([[("post", {"text": "x"})], "done"], [], tools).kickoff("go on")
    assert done == ([] if strict else ["x"])
    words = "post was not called" if strict else "amends cannot record post"
    assert sum(words in one.getMessage() for one in caplog.records) == 1


def test_what_crewai_itself_brings_is_no_tool_beside(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    tools = amends_tools(named(shop, "charge", "wire", "ship"), strict=True)
    asks: list[Any] = [
        [("delegate_work_to_coworker", {"task": "pay", "context": "none", "coworker": "clerk"})],
        [("ship", {"order": "A1"})],
        "done",
    ]
    told: list[str] = []
    boss = agent_saying(asks, told, tools, role="boss", allow_delegation=True)
    clerk = agent_saying([[CHARGE], [("wire", {"iban": "DE02", "cents": 5})], "paid"], [], tools, role="clerk")
    with shop.desk() as rt:
        with rt.run("r"):
            Crew(agents=[boss, clerk], tasks=[Task(description="x", expected_output="y", agent=boss)]).kickoff()
        report = rt.report("r")
        assert [call.tool for call in report.calls if call.state == "succeeded"] == ["charge", "wire"]
        assert report.children == (), "who is delegated to works in the run of the crew, and has no pivot of its own"
    assert "paid" in told[0]
    assert "wire" in told[1], "the second pivot is refused in words"
    assert shop.effects() == ["charge A1 500", "wire DE02 5"]


def test_a_tool_that_returns_a_failure_has_failed(shop: Shop) -> None:
    @crew_tool("post")
    def post(text: str) -> Any:
        """Post it."""
        return ToolFailure(message="no such channel", code="not_found")

    told: list[str] = []
    with amends.Runtime(shop.url, tools=[amends.declare("post", compensate=print)]) as rt:
        with pytest.raises(amends.RolledBack), rt.run("r"):
            kickoff(amends_tools([post]), [[("post", {"text": "x"})], "done"], told)
        [call] = rt.report("r").calls
        assert (call.state, "no such channel" in str(call.error)) == ("failed", True)
    assert "no such channel" in told[0]


def test_a_run_without_a_name_is_warned_of_once(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    with shop.desk() as rt:
        for _ in range(2):
            with rt.run():
                kickoff(amends_tools(named(shop, "charge")), [[CHARGE], "charged"], [])
    assert sum("has no name of yours" in one.getMessage() for one in caplog.records) == 1


def test_the_frameworks_own_threads_know_the_run(shop: Shop) -> None:
    with shop.desk() as rt:
        with rt.run("async_execution"):
            kickoff(amends_tools(named(shop, "charge")), [[CHARGE], "charged"], [], async_execution=True)
        with rt.run("max_execution_time"):
            tools = amends_tools(named(shop, "charge"))
            agent = agent_saying([[CHARGE], "charged"], [], tools, max_execution_time=60)
            Crew(agents=[agent], tasks=[Task(description="x", expected_output="y", agent=agent)]).kickoff()
        assert [rt.report(one.id).calls[0].tool for one in rt.runs()] == ["charge", "charge"]
    assert shop.effects() == ["charge A1 500"] * 2


@pytest.mark.parametrize("how", ["akickoff", "kickoff_async"])
def test_an_async_crew_works_in_an_async_run(shop: Shop, how: str) -> None:
    other = ("charge", {"order": "A2", "cents": 700})

    async def main() -> None:
        async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt, rt.run("r"):
            tools = amends_tools(named(shop, "charge"))
            agent = agent_saying([[CHARGE, other], [CHARGE], "charged"], [], tools)
            crew = Crew(agents=[agent], tasks=[Task(description="x", expected_output="y", agent=agent)])
            await getattr(crew, how)()

    asyncio.run(main())
    assert sorted(shop.effects()) == ["charge A1 500", "charge A2 700"]
    assert shop.states() == ["committed"]


# ---- tools of MCP servers


def mcp_tools(shop: Shop, how: str) -> list[Any]:
    """The tools of a server, as an agent's ``mcps=`` makes them, with a time-out that a test can wait for."""
    script = Path(__file__).with_name("crewai_server.py")
    config = MCPServerStdio(command=sys.executable, args=[str(script), str(shop.folder), how])
    [tool] = agent_saying(["x"], [], []).get_mcp_tools([config])
    made = tool._client_factory

    def client() -> Any:
        found = made()
        found.execution_timeout = 2
        return found

    tool._client_factory = client
    return [tool]


@pytest.mark.parametrize("how", ["killed", "slow", "refused", "held", "done"])
def test_what_an_mcp_server_does_is_recorded_as_it_is(shop: Shop, how: str) -> None:
    tools = amends_tools(mcp_tools(shop, how))
    name = tools[0].name
    told: list[str] = []
    with amends.Runtime(shop.url, tools=[amends.declare(name, kind="pivot", settle=0)]) as rt:
        try:
            with rt.run("r"):
                kickoff(tools, [[(name, {"order": "A1"})], [(name, {"order": "A1", "cents": "5"})], "done"], told)
        except (amends.RunBlocked, amends.RolledBack):
            assert how != "done"
        states = [call.state for call in rt.report("r").calls]
    match how:
        case "killed" | "slow":
            assert (shop.effects(), states) == (["pay A1 5"], ["in_doubt"]), "the client repeats nothing by itself"
        case "refused":
            assert (shop.effects(), set(states)) == ([], {"failed"})
            assert "there is no order A1" in told[0]
        case "held":
            assert (shop.effects(), states) == ([], ["in_doubt"])
        case _:
            assert (shop.effects(), states) == (["pay A1 5"], ["succeeded"])


def test_mcp_servers_of_the_agent_itself_are_named_or_refused(
    shop: Shop, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "_warned", set())
    script = Path(__file__).with_name("crewai_server.py")
    config = MCPServerStdio(command=sys.executable, args=[str(script), str(shop.folder), "done"])

    def start(**options: Any) -> None:
        tools = amends_tools(named(shop, "charge"), **options)
        agent = agent_saying([[CHARGE], "charged"], [], tools, mcps=[config])
        Crew(agents=[agent], tasks=[Task(description="x", expected_output="y", agent=agent)]).kickoff()

    with shop.desk() as rt:
        with rt.run("r1"):
            start()
        assert sum("amends cannot record the MCP server" in one.getMessage() for one in caplog.records) == 1
        with pytest.raises(amends.UsageError, match="amends cannot record the MCP server"), rt.run("r2"):
            start(strict=True)


def test_a_tool_that_repeats_its_calls_by_itself_is_refused(shop: Shop) -> None:
    tool = MCPToolWrapper({"url": "http://127.0.0.1:9/mcp"}, "pay", {"description": "Pay."}, "payments")
    with pytest.raises(amends.UsageError, match="repeats its calls by itself"):
        amends_tools([tool])

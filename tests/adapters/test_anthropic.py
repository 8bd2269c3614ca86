"""The Anthropic SDK: the shared cases on messages and on its tool runner, and what is its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest
from anthropic import Anthropic, AsyncAnthropic, beta_async_tool, beta_tool
from anthropic.types import Message

from amends import AsyncRun, AsyncRuntime, Held, Run, Runtime, UsageError, current_run, declare, tool
from amends.adapters.anthropic import (
    answer_tool_calls,
    answer_tool_calls_async,
    runner_tools,
    runner_tools_async,
    until_done,
    until_done_async,
)
from amends.errors import Suspended
from amends.llm import ModelServer, Reply, ScriptedModel
from tests.adapters.cells import Cells, Tested
from tests.adapters.conformance import (
    Conformance,
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
from tests.adapters.sdks import SAID, Played, down_once, handed_on, run_id, schema_of, script_of
from tests.adapters.shop import Shop
from tests.llm.shop import World, tools_of

MODEL = "claude-sonnet-5"

CELLS: Cells = {
    "lost server": Tested(
        "test_mcp_clients.py::test_a_server_that_is_killed_after_the_effect_is_a_doubt_and_is_not_asked_again[anthropic]",
        "test_mcp_clients.py::test_a_server_that_does_not_answer_in_time_is_a_doubt[anthropic]",
    ),
    "server's error": Tested("test_mcp_clients.py::test_an_error_of_the_tool_is_a_failure[anthropic]"),
    "not yet": Tested(
        "test_mcp_clients.py::test_what_a_guarded_server_has_not_done_or_does_not_know_is_a_doubt[anthropic]"
    ),
    "unguarded": Tested("test_a_tool_that_the_runner_calls_by_itself_is_named"),
    "no name": Tested("test_an_agents_run_without_a_name_is_warned_of_once"),
}


class MessagesHarness:
    """A loop over messages, on an event loop."""

    retries = 0
    declared: Sequence[Any] = ()
    """What else the runtime is told of."""

    def drive(self, shop: Shop, turns: Sequence[Turn], *, thread: str = "t1", resume: bool = False) -> Outcome:
        return asyncio.run(self._drive(shop, turns, run_id(shop, thread, resume=resume), thread))

    def stop(self, shop: Shop, turns: Sequence[Turn], *, after: int) -> None:
        done = asyncio.run(self._drive(shop, turns, run_id(shop, "t1", resume=False), "t1", stop_after=after))
        assert done.how == "paused"

    async def _drive(
        self, shop: Shop, turns: Sequence[Turn], id: str, thread: str, *, stop_after: int | None = None
    ) -> Outcome:
        model = self.model(shop, turns)
        played = Played("messages", model)
        with played.watched():
            async with (
                AsyncRuntime(shop.url, tools=[*shop.declared(), *self.declared]) as rt,
                rt.run(id, tags=[f"thread:{thread}"], **shop.options) as run,
            ):
                await self.work(run, shop, turns, model, stop_after)
        return played.outcome

    def model(self, shop: Shop, turns: Sequence[Turn]) -> ScriptedModel:
        return script_of(turns)

    async def work(
        self, run: AsyncRun, shop: Shop, turns: Sequence[Turn], model: ScriptedModel, stop_after: int | None = None
    ) -> None:
        await self.converse(run, model, shop.functions(), stop_after)

    async def converse(
        self, run: AsyncRun, model: ScriptedModel, functions: Sequence[Any], stop_after: int | None = None
    ) -> str:
        """One conversation in the run; the model's last words."""
        known = {one.__name__: one for one in functions}
        schemas = [schema_of(one) for one in functions]
        tools: Any = [{"input_schema": one.pop("parameters"), **one} for one in schemas]
        given: Any = {"model": MODEL, "max_tokens": 500, "tools": tools}
        http = httpx2.AsyncClient(verify=False)
        with ModelServer(model) as server:
            async with AsyncAnthropic(**{**server.anthropic, "max_retries": self.retries}, http_client=http) as client:
                client._calculate_retry_timeout = lambda *_, **__: 0.001  # type: ignore[method-assign]
                messages: list[Any] = list(SAID)
                message = await client.messages.create(messages=messages, **given)
                while more := await answer_tool_calls_async(run, message, handlers=known):
                    messages += more
                    if stop_after is not None and results_in(messages) >= stop_after:
                        raise Suspended("the user pressed Stop")
                    message = await client.messages.create(messages=messages, **given)
                return "".join(block.text for block in message.content if block.type == "text")


class MessagesRetried(MessagesHarness):
    """The client of the SDK asks again by itself when the model is down."""

    retries = 2

    def model(self, shop: Shop, turns: Sequence[Turn]) -> ScriptedModel:
        return down_once(shop, turns)


class MessagesTeam(MessagesHarness):
    """Two conversations in one run."""

    def model(self, shop: Shop, turns: Sequence[Turn]) -> ScriptedModel:
        return script_of(handed_on(turns)[1])

    async def work(
        self, run: AsyncRun, shop: Shop, turns: Sequence[Turn], model: ScriptedModel, stop_after: int | None = None
    ) -> None:
        await self.converse(run, script_of(handed_on(turns)[0]), shop.functions())
        await self.converse(run, model, shop.functions())


class MessagesSupervisor(MessagesHarness):
    """The clerk is a conversation of its own, behind a tool that is declared as an agent."""

    declared = (declare("ask_clerk", kind="agent"),)

    def model(self, shop: Shop, turns: Sequence[Turn]) -> ScriptedModel:
        return script_of(asks_clerk("request"))

    async def work(
        self, run: AsyncRun, shop: Shop, turns: Sequence[Turn], model: ScriptedModel, stop_after: int | None = None
    ) -> None:
        async def ask_clerk(request: str) -> str:
            """Ask the clerk."""
            return await self.converse(current_run(), script_of(turns), shop.functions())

        await self.converse(run, model, [*shop.functions(), ask_clerk])


class RunnerHarness:
    """The SDK's own tool runner with tools made by its own decorator, blocking."""

    declared: Sequence[Any] = ()

    def stop(self, shop: Shop, turns: Sequence[Turn], *, after: int) -> None:
        assert self.drive(shop, turns, stop_after=after).how == "paused"

    def drive(
        self,
        shop: Shop,
        turns: Sequence[Turn],
        *,
        thread: str = "t1",
        resume: bool = False,
        stop_after: int | None = None,
    ) -> Outcome:
        model = self.model(turns)
        played = Played("messages", model)
        id = run_id(shop, thread, resume=resume)
        with (
            Runtime(shop.url, tools=[*shop.declared(), *self.declared]) as rt,
            played.watched(),
            rt.run(id, tags=[f"thread:{thread}"], **shop.options) as run,
        ):
            self.converse(run, model, self.tools(shop, turns), stop_after)
        return played.outcome

    def model(self, turns: Sequence[Turn]) -> ScriptedModel:
        return script_of(turns)

    def tools(self, shop: Shop, turns: Sequence[Turn]) -> list[Any]:
        return shop.functions()

    def converse(self, run: Run, model: ScriptedModel, functions: Sequence[Any], stop_after: int | None = None) -> str:
        tools = runner_tools(run, [beta_tool(one) for one in functions])
        with (
            ModelServer(model) as server,
            Anthropic(**server.anthropic, http_client=httpx2.Client(verify=False)) as client,
        ):
            runner = client.beta.messages.tool_runner(
                model=MODEL, max_tokens=500, messages=SAID, tools=tools, thread=False
            )
            if stop_after is not None:
                heard = 0
                for _ in runner:
                    heard += results_in([runner.generate_tool_call_response()])
                    if heard >= stop_after:
                        raise Suspended("the user pressed Stop")
            return "".join(block.text for block in until_done(runner).content if block.type == "text")


class RunnerSupervisor(RunnerHarness):
    """The clerk is a runner of its own, behind a tool that is declared as an agent."""

    declared = (declare("ask_clerk", kind="agent"),)

    def model(self, turns: Sequence[Turn]) -> ScriptedModel:
        return script_of(asks_clerk("request"))

    def tools(self, shop: Shop, turns: Sequence[Turn]) -> list[Any]:
        def ask_clerk(request: str) -> str:
            """Ask the clerk."""
            return self.converse(current_run(), script_of(turns), shop.functions())

        return [*shop.functions(), ask_clerk]


def results_in(messages: list[Any]) -> int:
    contents = (one["content"] for one in messages if one and not isinstance(one["content"], str))
    return sum(block.get("type") == "tool_result" for content in contents for block in content)


class TestMessages(Conformance, SameRequest, Stopped, RichResults, TwoRuntimes):
    harness = MessagesHarness()


class TestRunner(Conformance, SameRequest):
    harness = RunnerHarness()
    is_told = "with the failure"


@pytest.mark.rest  # the same as without the runner
class TestRunnerToo(Stopped, RichResults, TwoRuntimes):
    harness = RunnerHarness()


class TestMessagesRetried(Retried):
    harness = MessagesRetried()


class TestMessagesTeam(SeveralAgents):
    harness = MessagesTeam()


class TestMessagesSupervisor(SupervisorConformance):
    harness = MessagesSupervisor()


@pytest.mark.rest  # the other colour
class TestRunnerSupervisor(SupervisorConformance):
    harness = RunnerSupervisor()


# ---- its own ------------------------------------------------------------------------------

CHARGE = ("charge", {"order": "7", "cents": 4200})
TURNS = ([CHARGE, ("balance", {"account": "a"})], CHARGE, ("ship", {"order": "7"}), "Done.")
BIG = (("charge", {"order": "big", "cents": 1}), ("ship", {"order": "big"}), "Done.")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def effects(world: World) -> list[str]:
    return [" ".join(line.split()[:2]) for line in world.done]


def test_a_loop_over_messages_marks_what_was_not_done(world: World) -> None:
    ship = ("ship", {"order": "7"})
    with (
        Runtime("memory:", tools=tools_of(world)) as rt,
        ModelServer(ScriptedModel([ship, CHARGE, ("charge_card", {})], ship, "Done.")) as server,
        Anthropic(**server.anthropic) as client,
        rt.run() as run,
    ):
        messages: list[Any] = list(SAID)
        given: Any = {"model": MODEL, "max_tokens": 500, "tools": rt.schemas("anthropic")}
        message = client.messages.create(messages=messages, **given)
        while more := answer_tool_calls(run, message):
            messages += more
            message = client.messages.create(messages=messages, **given)
    marks = [block.get("is_error", False) for block in messages[2]["content"]]
    assert marks == [True, False, True]
    assert effects(world) == ["charge 7", "ship 7"]


def test_the_calls_of_a_message_that_was_cut_are_not_done(world: World) -> None:
    with (
        Runtime("memory:", tools=tools_of(world)) as rt,
        ModelServer(ScriptedModel(Reply("", [CHARGE], stop="length"))) as server,
        Anthropic(**server.anthropic) as client,
        pytest.raises(UsageError, match="cut"),
        rt.run() as run,
    ):
        answer_tool_calls(run, client.messages.create(model=MODEL, max_tokens=9, messages=SAID))
    assert effects(world) == []


@pytest.mark.parametrize("reason", ["model_context_window_exceeded", "refusal", None])
def test_nor_those_of_a_message_that_ended_otherwise(world: World, reason: Any) -> None:
    block = {"type": "tool_use", "id": "t1", "name": CHARGE[0], "input": CHARGE[1]}
    message = Message.construct(content=[block], stop_reason=reason)
    with Runtime("memory:", tools=tools_of(world)) as rt, pytest.raises(UsageError, match="cut"), rt.run() as run:
        answer_tool_calls(run, message)
    assert effects(world) == []


@pytest.mark.parametrize("input", ["{", [1], 5])
def test_an_input_that_is_no_object_is_no_call_without_arguments(input: Any) -> None:
    done: list[str] = []
    wipe = tool(lambda folder="/": done.append(folder), name="wipe", kind="pivot")
    block = {"type": "tool_use", "id": "t1", "name": "wipe", "input": input}
    message = Message.construct(content=[block], stop_reason="tool_use")
    with Runtime("memory:", tools=[wipe]) as rt, rt.run() as run:
        told = answer_tool_calls(run, message)
    assert (done, told[1]["content"][0]["is_error"]) == ([], True)


@pytest.mark.parametrize("thread", [{}, {"thread": False}], ids=["held by the server", "sent whole"])
def test_the_runner_by_itself_goes_through_the_run_too(world: World, thread: Any) -> None:
    with (
        Runtime("memory:", tools=tools_of(world)) as rt,
        ModelServer(ScriptedModel(*TURNS)) as server,
        Anthropic(**server.anthropic) as client,
        rt.run() as run,
    ):
        runner = client.beta.messages.tool_runner(
            model=MODEL, max_tokens=500, messages=SAID, tools=runner_tools(run, rt), **thread
        )
        [block] = runner.until_done().content
        assert block.type == "text"
        assert block.text == "Done."
    assert effects(world) == ["charge 7", "ship 7"]


def test_the_runner_by_itself_cannot_commit_over_a_held_call(world: World) -> None:
    model = ScriptedModel(*BIG)
    with (
        Runtime("memory:", tools=tools_of(world)) as rt,
        ModelServer(model) as server,
        Anthropic(**server.anthropic) as client,
    ):
        with pytest.raises(Held), rt.run("o") as run:
            runner = client.beta.messages.tool_runner(
                model=MODEL, max_tokens=500, messages=SAID, tools=runner_tools(run, rt), thread=False
            )
            runner.until_done()
        assert len(model.asked) == 3, "the model was told, and went on"
        assert rt.report("o").state == "open"


def test_the_runner_awaited_stops_at_a_held_call_and_goes_on_after_the_yes(world: World) -> None:
    ran: list[str] = []

    async def look(account: str) -> str:
        """Look at an account."""
        ran.append(account)
        return "9000"

    model = ScriptedModel(BIG[0], [("look", {"account": "a"}), BIG[1]], "Done.")

    async def main() -> None:
        with ModelServer(model) as server:
            tools = [*tools_of(world), declare("look", kind="read")]
            async with AsyncRuntime("memory:", tools=tools) as rt, AsyncAnthropic(**server.anthropic) as client:

                async def play() -> Any:
                    async with rt.run("o") as run:
                        own = [one for one in runner_tools_async(run, rt) if one.name != "look"]
                        runner = client.beta.messages.tool_runner(
                            model=MODEL, max_tokens=500, messages=SAID, thread=False,
                            tools=[*own, *runner_tools_async(run, [beta_async_tool(look)])],
                        )  # fmt: skip
                        return await until_done_async(runner)

                with pytest.raises(Held) as held:
                    await play()
                assert len(model.asked) == 2, "the model was not asked again"
                await rt.approve(held.value.approval.id, digest=held.value.approval.digest, by="ada")
                assert (await play()).content[0].text == "Done."

    asyncio.run(main())
    assert effects(world) == ["charge big", "ship big"]
    assert ran == ["a"], "what the agent read before the pause is answered from the record"


def test_a_raw_stream_is_refused_with_what_to_pass_instead(world: World) -> None:
    with (
        Runtime("memory:", tools=tools_of(world)) as rt,
        ModelServer(ScriptedModel(CHARGE, "Done.")) as server,
        Anthropic(**server.anthropic) as client,
        rt.run("o") as run,
    ):
        stream: Any = client.messages.create(model=MODEL, max_tokens=500, messages=SAID, stream=True)
        with pytest.raises(UsageError, match="Stream is no message") as refused:
            answer_tool_calls(run, stream)
        assert "get_final_message" in str(refused.value.hint)
    assert effects(world) == []


@pytest.mark.parametrize("strict", [True, False])
def test_a_tool_that_the_runner_calls_by_itself_is_named(world: World, strict: bool, caplog: Any) -> None:
    called: list[str] = []

    @beta_tool
    def ping(to: str) -> str:
        """Ping."""
        called.append(to)
        return "pong"

    with (
        Runtime("memory:", tools=tools_of(world)) as rt,
        ModelServer(ScriptedModel(("ping", {"to": "a"}), CHARGE, "Done.")) as server,
        Anthropic(**server.anthropic) as client,
    ):

        def play() -> None:
            with rt.run("o") as run:
                given: Any = {"model": MODEL, "max_tokens": 500, "messages": SAID, "thread": False}
                runner = client.beta.messages.tool_runner(tools=[*runner_tools(run, rt), ping], **given)
                until_done(runner, strict=strict)

        if strict:
            with pytest.raises(UsageError, match="tool ping is called by the runner"):
                play()
        else:
            play()
    assert (called, effects(world)) == (([], []) if strict else (["a"], ["charge 7"]))
    assert ("tool ping is called by the runner" in caplog.text) is not strict


def test_an_agents_run_without_a_name_is_warned_of_once(world: World, caplog: Any) -> None:
    with Runtime("memory:", tools=tools_of(world)) as rt:
        for name in ("named", None, None):
            with (
                ModelServer(ScriptedModel("Done.")) as server,
                Anthropic(**server.anthropic) as client,
                rt.run(name) as run,
            ):
                answer_tool_calls(run, client.messages.create(model=MODEL, max_tokens=500, messages=SAID))
            assert ("no name of yours" in caplog.text) is (name is None)
    assert caplog.text.count("no name of yours") == 1

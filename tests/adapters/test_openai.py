"""The OpenAI SDK: the shared cases on chat completions and on its Responses tool runner, and what is its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.lib.responses_tool_runner import (
    AsyncRegisteredFunction,
    AsyncResponsesToolRunner,
    RegisteredFunction,
    ResponsesToolRunner,
)
from openai.types.chat import ChatCompletion

from amends import AsyncRuntime, Held, Run, Runtime, UsageError, current_run, declare, tool
from amends.adapters.openai import (
    answer_tool_calls,
    answer_tool_calls_async,
    answer_turns,
    answer_turns_async,
    registered_functions,
    registered_functions_async,
)
from amends.errors import Suspended
from amends.llm import ModelServer, Reply, ScriptedModel
from amends.llm.wire import Api
from amends.tools.signature import hints_of
from tests.adapters.cells import Absent, Cells, Tested
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
from tests.adapters.sdks import MODEL, SAID, Played, down_once, handed_on, run_id, schema_of, script_of
from tests.adapters.shop import Shop
from tests.llm.shop import World, tools_of

CELLS: Cells = {
    "lost server": Absent("A tool's body calls a server with `call_tool`; see the MCP server."),
    "server's error": Absent("A tool's body calls a server with `call_tool`; see the MCP server."),
    "not yet": Absent("A tool's body calls a server with `call_tool`; see the MCP server."),
    "unguarded": Tested("test_a_function_that_the_runner_calls_by_itself_is_named"),
    "no name": Tested("test_an_agents_run_without_a_name_is_warned_of_once"),
}


class ChatHarness:
    """A loop over chat completions, blocking."""

    api: Api = "chat.completions"
    retries = 0
    declared: Sequence[Any] = ()
    """What else the runtime is told of."""

    def drive(
        self,
        shop: Shop,
        turns: Sequence[Turn],
        *,
        thread: str = "t1",
        resume: bool = False,
        stop_after: int | None = None,
    ) -> Outcome:
        model = self.model(shop, turns)
        played = Played(self.api, model)
        id = run_id(shop, thread, resume=resume)
        with (
            Runtime(shop.url, tools=[*shop.declared(), *self.declared]) as rt,
            played.watched(),
            rt.run(id, tags=[f"thread:{thread}"], **shop.options) as run,
        ):
            self.work(run, shop, turns, model, stop_after)
        return played.outcome

    def stop(self, shop: Shop, turns: Sequence[Turn], *, after: int) -> None:
        assert self.drive(shop, turns, stop_after=after).how == "paused"

    def model(self, shop: Shop, turns: Sequence[Turn]) -> ScriptedModel:
        return script_of(turns)

    def work(
        self, run: Run, shop: Shop, turns: Sequence[Turn], model: ScriptedModel, stop_after: int | None = None
    ) -> None:
        self.converse(run, model, shop.functions(), stop_after)

    def converse(
        self, run: Run, model: ScriptedModel, functions: Sequence[Any], stop_after: int | None = None
    ) -> str | None:
        """One conversation in the run; the model's last words."""
        known = {one.__name__: one for one in functions}
        with ModelServer(model) as server, self.client(server) as client:
            return self.loop(run, client, known, stop_after)

    def client(self, server: ModelServer) -> OpenAI:
        made = OpenAI(**{**server.openai, "max_retries": self.retries}, http_client=httpx2.Client(verify=False))
        made._calculate_retry_timeout = lambda *_, **__: 0.001  # type: ignore[method-assign]
        return made

    def loop(self, run: Run, client: OpenAI, known: dict[str, Any], stop_after: int | None) -> str | None:
        messages = list(SAID)
        tools: list[Any] = [{"type": "function", "function": schema_of(one)} for one in known.values()]
        response = client.chat.completions.create(model=MODEL, messages=messages, tools=tools)
        while more := answer_tool_calls(run, response, handlers=known):
            messages += more
            if stop_after is not None and sum(one["role"] == "tool" for one in messages) >= stop_after:
                raise Suspended("the user pressed Stop")
            response = client.chat.completions.create(model=MODEL, messages=messages, tools=tools)
        return response.choices[0].message.content


class ResponsesHarness(ChatHarness):
    """The same over responses."""

    api: Api = "responses"

    def loop(self, run: Run, client: OpenAI, known: dict[str, Any], stop_after: int | None) -> str | None:
        items: list[Any] = list(SAID)
        tools: list[Any] = [{"type": "function", "strict": False, **schema_of(one)} for one in known.values()]
        response = client.responses.create(model=MODEL, input=items, tools=tools)
        while more := answer_tool_calls(run, response, handlers=known):
            items += more
            if stop_after is not None and sum(one.get("type") == "function_call_output" for one in items) >= stop_after:
                raise Suspended("the user pressed Stop")
            response = client.responses.create(model=MODEL, input=items, tools=tools)
        return response.output_text


class ChatRetried(ChatHarness):
    """The client of the SDK asks again by itself when the model is down."""

    retries = 2

    def model(self, shop: Shop, turns: Sequence[Turn]) -> ScriptedModel:
        return down_once(shop, turns)


class ChatTeam(ChatHarness):
    """Two conversations in one run."""

    def model(self, shop: Shop, turns: Sequence[Turn]) -> ScriptedModel:
        return script_of(handed_on(turns)[1])

    def work(
        self, run: Run, shop: Shop, turns: Sequence[Turn], model: ScriptedModel, stop_after: int | None = None
    ) -> None:
        self.converse(run, script_of(handed_on(turns)[0]), shop.functions())
        self.converse(run, model, shop.functions())


class ChatSupervisor(ChatHarness):
    """The clerk is a conversation of its own, behind a tool that is declared as an agent."""

    declared = (declare("ask_clerk", kind="agent"),)

    def model(self, shop: Shop, turns: Sequence[Turn]) -> ScriptedModel:
        return script_of(asks_clerk("request"))

    def work(
        self, run: Run, shop: Shop, turns: Sequence[Turn], model: ScriptedModel, stop_after: int | None = None
    ) -> None:
        def ask_clerk(request: str) -> str | None:
            """Ask the clerk."""
            return self.converse(current_run(), script_of(turns), shop.functions())

        self.converse(run, model, [*shop.functions(), ask_clerk])


class RunnerHarness:
    """The SDK's own Responses tool runner, on an event loop."""

    def drive(self, shop: Shop, turns: Sequence[Turn], *, thread: str = "t1", resume: bool = False) -> Outcome:
        return asyncio.run(self._drive(shop, turns, run_id(shop, thread, resume=resume), thread))

    def stop(self, shop: Shop, turns: Sequence[Turn], *, after: int) -> None:
        done = asyncio.run(self._drive(shop, turns, run_id(shop, "t1", resume=False), "t1", stop_after=after))
        assert done.how == "paused"

    async def _drive(
        self, shop: Shop, turns: Sequence[Turn], id: str, thread: str, *, stop_after: int | None = None
    ) -> Outcome:
        model = script_of(turns)
        played = Played("responses", model)

        def registered(function: Any) -> AsyncRegisteredFunction:
            async def execute(arguments: dict[str, Any]) -> Any:
                return await asyncio.to_thread(function, **arguments)

            execute.__annotations__["return"] = hints_of(function, {}).get("return", Any)
            return AsyncRegisteredFunction({"type": "function", "strict": False, **schema_of(function)}, execute)  # type: ignore[typeddict-item]

        with ModelServer(model) as server, played.watched():
            async with (
                AsyncRuntime(shop.url, tools=shop.declared()) as rt,
                AsyncOpenAI(**server.openai, http_client=httpx2.AsyncClient(verify=False)) as client,
                rt.run(id, tags=[f"thread:{thread}"], **shop.options) as run,
            ):
                functions = registered_functions_async(run, [registered(one) for one in shop.functions()])
                steps = AsyncResponsesToolRunner(functions=functions).iterate(
                    client, {"model": MODEL, "input": "Do it."}
                )
                await answer_turns_async(run, until(steps, stop_after), functions)
        return played.outcome


async def until(steps: Any, stop_after: int | None) -> Any:
    """The turns of a runner, until whoever reads them has seen so many results."""
    heard = 0
    async for step in steps:
        if stop_after is not None and heard >= stop_after:
            await steps.aclose()
            raise Suspended("the user pressed Stop")
        yield step
        heard += sum(item.type == "function_call" for item in step.response.output)


class TestChat(Conformance, SameRequest, Stopped, RichResults, TwoRuntimes):
    harness = ChatHarness()


@pytest.mark.rest  # the other format
class TestResponses(Conformance, SameRequest, Stopped, RichResults, TwoRuntimes):
    harness = ResponsesHarness()


class TestRunner(Conformance, SameRequest):
    harness = RunnerHarness()
    is_told = "with the failure"


@pytest.mark.rest  # the same as without the runner
class TestRunnerToo(Stopped, RichResults, TwoRuntimes):
    harness = RunnerHarness()


class TestChatRetried(Retried):
    harness = ChatRetried()


class TestChatTeam(SeveralAgents):
    harness = ChatTeam()


class TestChatSupervisor(SupervisorConformance):
    harness = ChatSupervisor()


# ---- its own ------------------------------------------------------------------------------

CHARGE = ("charge", {"order": "7", "cents": 4200})
TURNS = ([CHARGE, ("balance", {"account": "a"})], CHARGE, ("ship", {"order": "7"}), "Done.")
BIG = (("charge", {"order": "big", "cents": 1}), ("ship", {"order": "big"}), "Done.")
PARAMS: Any = {"model": MODEL, "input": "Do it."}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def effects(world: World) -> list[str]:
    return [" ".join(line.split()[:2]) for line in world.done]


def test_the_items_of_a_response_are_given_back_with_their_outputs(world: World) -> None:
    model = ScriptedModel(*TURNS)
    with (
        Runtime("memory:", tools=tools_of(world)) as rt,
        ModelServer(model) as server,
        OpenAI(**server.openai) as client,
        rt.run() as run,
    ):
        items: list[Any] = list(SAID)
        tools: Any = rt.schemas("responses")
        response = client.responses.create(model=MODEL, input=items, tools=tools)
        while more := answer_tool_calls(run, response):
            items += more
            response = client.responses.create(model=MODEL, input=items, tools=tools)
        assert response.output_text == "Done."
        ids = [call.tool_call_id for call in run.report().calls]
    assert sorted(filter(None, ids)) == ["call_1_1", "call_1_2", "call_3_1"]
    assert effects(world) == ["charge 7", "ship 7"]
    kinds = [item.get("type", "message") for item in items]
    assert kinds[:5] == ["message", "function_call", "function_call", "function_call_output", "function_call_output"]


def test_the_same_awaited(world: World) -> None:
    async def main() -> None:
        with ModelServer(ScriptedModel(*TURNS)) as server:
            async with (
                AsyncRuntime("memory:", tools=tools_of(world)) as rt,
                AsyncOpenAI(**server.openai) as client,
                rt.run() as run,
            ):
                messages = list(SAID)
                tools: Any = rt.schemas("openai")
                response = await client.chat.completions.create(model=MODEL, messages=messages, tools=tools)
                while more := await answer_tool_calls_async(run, response):
                    messages += more
                    response = await client.chat.completions.create(model=MODEL, messages=messages, tools=tools)
                assert response.choices[0].message.content == "Done."

    asyncio.run(main())
    assert effects(world) == ["charge 7", "ship 7"]


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_the_calls_of_an_answer_that_was_cut_are_not_done(world: World, api: str) -> None:
    with (
        Runtime("memory:", tools=tools_of(world)) as rt,
        ModelServer(ScriptedModel(Reply("", [CHARGE], stop="length"))) as server,
        OpenAI(**server.openai) as client,
        pytest.raises(UsageError, match="cut"),
        rt.run() as run,
    ):
        if api == "chat":
            answer_tool_calls(run, client.chat.completions.create(model=MODEL, messages=SAID))
        else:
            answer_tool_calls(run, client.responses.create(model=MODEL, input="Do it."))
    assert effects(world) == []


@pytest.mark.parametrize("reason", ["content_filter", "error", None])
def test_nor_those_of_an_answer_that_ended_otherwise(world: World, reason: Any) -> None:
    function = {"name": CHARGE[0], "arguments": json.dumps(CHARGE[1])}
    message = {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": function}]}
    answer = ChatCompletion.construct(choices=[{"index": 0, "message": message, "finish_reason": reason}])
    with Runtime("memory:", tools=tools_of(world)) as rt, pytest.raises(UsageError, match="cut"), rt.run() as run:
        answer_tool_calls(run, answer)
    assert effects(world) == []


def test_the_runner_by_itself_goes_through_the_run_too(world: World) -> None:
    with (
        Runtime("memory:", tools=tools_of(world)) as rt,
        ModelServer(ScriptedModel(*TURNS)) as server,
        OpenAI(**server.openai) as client,
        rt.run() as run,
    ):
        runner = ResponsesToolRunner(functions=registered_functions(run, rt))
        assert runner.run(client, PARAMS).output_text == "Done."
    assert effects(world) == ["charge 7", "ship 7"]


def test_the_runner_by_itself_cannot_commit_over_a_held_call(world: World) -> None:
    with (
        Runtime("memory:", tools=tools_of(world)) as rt,
        ModelServer(ScriptedModel(*BIG)) as server,
        OpenAI(**server.openai) as client,
    ):
        with pytest.raises(Held), rt.run("o") as run:
            runner = ResponsesToolRunner(functions=registered_functions(run, rt))
            assert runner.run(client, PARAMS).output_text == "Done.", "the model was told, and went on"
        assert rt.report("o").state == "open"


def test_turns_that_are_answered_stop_at_a_held_call_and_go_on_after_the_yes(world: World) -> None:
    model = ScriptedModel(*BIG)
    with (
        Runtime("memory:", tools=tools_of(world)) as rt,
        ModelServer(model) as server,
        OpenAI(**server.openai) as client,
    ):

        def play() -> Any:
            with rt.run("o") as run:
                functions = registered_functions(run, rt)
                runner = ResponsesToolRunner(functions=functions)
                return answer_turns(run, runner.iterate(client, PARAMS), functions)

        with pytest.raises(Held) as held:
            play()
        assert len(model.asked) == 2, "the model was not asked again"
        rt.approve(held.value.approval.id, digest=held.value.approval.digest, by="ada")
        assert play().output_text == "Done."
    assert effects(world) == ["charge big", "ship big"]


def test_a_function_that_takes_a_model_is_refused(world: World) -> None:
    plain: Any = {"type": "function", "name": "order", "parameters": {"type": "object"}, "strict": False}
    typed = RegisteredFunction(plain, lambda _: "x", _parsed_tool=plain)  # as from_tool makes it
    with Runtime("memory:") as rt, rt.run() as run, pytest.raises(UsageError, match="from_tool"):
        registered_functions(run, [typed])


# ---- streams, parsed answers, names ---------------------------------------------------------------


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_raw_stream_is_refused_with_what_to_pass_instead(world: World, api: str) -> None:
    with (
        Runtime("memory:", tools=tools_of(world)) as rt,
        ModelServer(ScriptedModel(CHARGE, "Done.")) as server,
        OpenAI(**server.openai) as client,
        rt.run("o", on_open_failure="commit") as run,
    ):
        if api == "chat":
            stream: Any = client.chat.completions.create(model=MODEL, messages=SAID, stream=True)
        else:
            stream = client.responses.create(model=MODEL, input="Do it.", stream=True)
        with pytest.raises(UsageError, match="Stream is no answer") as refused:
            answer_tool_calls(run, stream)
        assert "get_final_completion" in str(refused.value.hint)
    assert effects(world) == []


def test_strict_schemas_are_for_parse_and_its_answers_go_back_as_they_must(world: World) -> None:
    @tool(key="order")
    def charge(order: str, cents: int = 5, note: str | None = None) -> str:
        """Charge an order."""
        return f"ch_{order}_{cents}"

    charge.compensate(lambda result: None)
    sent: dict[str, Any] = {"order": "7", "cents": 42, "note": None}
    with (
        Runtime("memory:", tools=[charge]) as rt,
        ModelServer(ScriptedModel(("charge", sent), "Done.")) as server,
        OpenAI(**server.openai) as client,
        rt.run("o") as run,
    ):
        tools: Any = rt.schemas("openai", strict=True)
        messages = list(SAID)
        response: Any = client.chat.completions.parse(model=MODEL, messages=messages, tools=tools)
        more = answer_tool_calls(run, response)
        assert more[0]["tool_calls"][0]["function"].keys() == {"name", "arguments"}
        messages += more
        done = client.chat.completions.parse(model=MODEL, messages=messages, tools=tools)
        assert (answer_tool_calls(run, done), done.choices[0].message.content) == ([], "Done.")
    assert "ch_7_42" in more[1]["content"]


def test_an_agents_run_without_a_name_is_warned_of_once(world: World, caplog: Any) -> None:
    with Runtime("memory:", tools=tools_of(world)) as rt:
        for name in ("named", None, None):
            with ModelServer(ScriptedModel("Done.")) as server, OpenAI(**server.openai) as client, rt.run(name) as run:
                answer_tool_calls(run, client.chat.completions.create(model=MODEL, messages=SAID))
            assert ("no name of yours" in caplog.text) is (name is None)
    assert caplog.text.count("no name of yours") == 1


def test_a_model_whose_schema_has_no_repeat_is_not_told_of_it() -> None:
    done: list[int] = []

    def pay(order: str, cents: int) -> str:
        done.append(cents)
        return "paid"

    turns = (("pay", {"order": "7", "cents": 1}), ("pay", {"order": "7", "cents": 2}), "Done.")
    model = ScriptedModel(*turns)
    with (
        Runtime("memory:", tools=[declare("pay", kind="pivot", key="order")], repeats=True) as rt,
        ModelServer(model) as server,
        OpenAI(**server.openai) as client,
        rt.run("o") as run,
    ):
        messages = list(SAID)
        tools: Any = [{"type": "function", "function": schema_of(pay)}]
        response = client.chat.completions.create(model=MODEL, messages=messages, tools=tools)
        while more := answer_tool_calls(run, response, handlers={"pay": pay}):
            messages += more
            response = client.chat.completions.create(model=MODEL, messages=messages, tools=tools)
    assert done == [1]
    assert "was already done with cents=1" in str(messages)
    assert "again_because" not in str(messages)


@pytest.mark.parametrize("strict", [True, False])
def test_a_function_that_the_runner_calls_by_itself_is_named(world: World, strict: bool, caplog: Any) -> None:
    called: list[Any] = []

    def ping(given: dict[str, Any]) -> str:
        called.append(given)
        return "pong"

    plain: Any = {"type": "function", "name": "ping", "parameters": {"type": "object"}, "strict": False}
    with (
        Runtime("memory:", tools=tools_of(world)) as rt,
        ModelServer(ScriptedModel(("ping", {}), CHARGE, "Done.")) as server,
        OpenAI(**server.openai) as client,
    ):

        def play() -> None:
            with rt.run("o") as run:
                functions = [
                    *registered_functions(run, rt),
                    RegisteredFunction(plain, ping),
                ]
                runner = ResponsesToolRunner(functions=functions)
                answer_turns(run, runner.iterate(client, PARAMS), functions, strict=strict)

        if strict:
            with pytest.raises(UsageError, match="function ping is called by the runner"):
                play()
        else:
            play()
    assert (called, effects(world)) == (([], []) if strict else ([{}], ["charge 7"]))
    assert ("function ping is called by the runner" in caplog.text) is not strict

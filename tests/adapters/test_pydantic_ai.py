"""Pydantic AI through the conformance suite, and what is its own: the toolset, delegation, its control flow."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import AsyncIterator, Callable, Sequence
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, BinaryContent, ModelRetry, RunContext, Tool, ToolReturn
from pydantic_ai._uuid import uuid7
from pydantic_ai.exceptions import ApprovalRequired, ModelAPIError, RunCancelled, UsageLimitExceeded, UserError
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
    repair_messages,
)
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel
from pydantic_ai.output import ToolOutput
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, ToolDefinition, ToolDenied
from pydantic_ai.toolsets import CombinedToolset, ExternalToolset, FunctionToolset
from pydantic_ai.usage import UsageLimits

import amends
from amends.adapters.pydantic_ai import AmendsCapability, AmendsToolset, wake
from amends.errors import NOT_FINISHED, NoRun, RunEnded, Suspended
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
    wire,
)
from tests.adapters.loops import on_a_loop
from tests.adapters.shop import Shop

CELLS: Cells = {
    "lost server": Tested(
        "test_mcp_clients.py::test_a_server_that_is_killed_after_the_effect_is_a_doubt_and_is_not_asked_again[pydantic-ai]",
        "test_mcp_clients.py::test_a_server_that_does_not_answer_in_time_is_a_doubt[pydantic-ai]",
    ),
    "server's error": Tested("test_mcp_clients.py::test_an_error_of_the_tool_is_a_failure[pydantic-ai]"),
    "not yet": Tested(
        "test_mcp_clients.py::test_what_a_guarded_server_has_not_done_or_does_not_know_is_a_doubt[pydantic-ai]"
    ),
    "unguarded": Tested(
        "test_an_undeclared_output_function_is_named_or_refused",
        "test_what_the_provider_or_the_program_executes_is_named",
    ),
    "no name": Tested("test_a_turn_without_a_name_is_warned_of_once"),
}


class PydanticAIHarness:
    """The conversation is a file of messages; a turn that was killed is begun again under its run id."""

    conversation: str | None = None
    """None: the thread's; empty: a new one for each start."""

    def keeps(self, messages: list[ModelMessage]) -> list[ModelMessage]:
        return messages

    def drive(self, shop: Shop, turns: Sequence[Turn], *, thread: str = "t1", resume: bool = False) -> Outcome:
        return asyncio.run(self._drive(shop, turns, thread, resume))

    async def _drive(self, shop: Shop, turns: Sequence[Turn], thread: str, resume: bool) -> Outcome:
        rt = amends.AsyncRuntime(shop.url, tools=shop.declared())
        agent = self.agent(rt, shop, turns)
        kept, run_id = shop.folder / "messages.json", _turn_of(shop.folder, thread, resume)
        try:
            async with rt:
                if resume and kept.exists():
                    messages = ModelMessagesTypeAdapter.validate_json(kept.read_bytes())
                    result = await agent.run(message_history=messages, deferred_tool_results=wake(messages))
                else:
                    conversation = thread if self.conversation is None else self.conversation or None
                    result = await agent.run("please", run_id=run_id, conversation_id=conversation)
        except Exception as error:
            return Outcome("failed", error=str(error))
        told = _told_in(result.all_messages())
        if isinstance(result.output, DeferredToolRequests):
            kept.write_bytes(ModelMessagesTypeAdapter.dump_json(self.keeps(result.all_messages())))
            return Outcome("paused", told)
        return Outcome("finished", told)

    def stop(self, shop: Shop, turns: Sequence[Turn], *, after: int) -> None:
        asyncio.run(self._stop(shop, turns, after))

    async def _stop(self, shop: Shop, turns: Sequence[Turn], after: int) -> None:
        async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
            agent = self.agent(rt, shop, turns)
            async with agent.iter("please", run_id=_turn_of(shop.folder, "t1", False)) as walked:
                async for _ in walked:
                    if len(_told_in(walked.all_messages())) >= after:
                        break

    def agent(self, rt: amends.AsyncRuntime, shop: Shop, turns: Sequence[Turn], *more: Any) -> Any:
        return Agent(
            self.model(turns),
            tools=[*(_correctable(fn) for fn in shop.functions()), *more],
            output_type=[str, DeferredToolRequests],
            capabilities=[AmendsCapability(rt, options=shop.options)],
        )

    def model(self, turns: Sequence[Turn]) -> Any:
        return model_saying(turns)


class PydanticAISupervisor(PydanticAIHarness):
    """The clerk is a tool of another agent."""

    def agent(self, rt: amends.AsyncRuntime, shop: Shop, turns: Sequence[Turn], *more: Any) -> Any:
        clerk = super().agent(rt, shop, turns)

        async def ask_clerk(request: str) -> str:
            """Ask the clerk."""
            result = await clerk.run(request)
            return str(result.output)

        return super().agent(rt, shop, asks_clerk("request"), ask_clerk)


class PydanticAIHandOff(PydanticAIHarness):
    """Two agents, one after the other, in a run that the program opens around them: its programmatic hand-off."""

    async def _drive(self, shop: Shop, turns: Sequence[Turn], thread: str, resume: bool) -> Outcome:
        kept = shop.folder / "messages.json"
        told: list[str] = []
        try:
            async with (
                amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt,
                rt.run(_turn_of(shop.folder, thread, resume), recover="wait", **shop.options),
            ):
                first = await self.agent(rt, shop, [turns[0], "over to you"]).run("please")
                told += _told_in(first.all_messages())
                second = self.agent(rt, shop, turns[1:])
                if resume and kept.exists():
                    messages = ModelMessagesTypeAdapter.validate_json(kept.read_bytes())
                    result = await second.run(message_history=messages, deferred_tool_results=wake(messages))
                else:
                    result = await second.run("go on")
                told += _told_in(result.all_messages())
                if isinstance(result.output, DeferredToolRequests):
                    kept.write_bytes(result.all_messages_json())
                    raise Suspended("the second agent waits")
        except amends.Waiting:
            return Outcome("paused", told)
        except Exception as error:
            return Outcome("failed", told, str(error))
        return Outcome("finished", told)


class PydanticAIFallback(PydanticAIHarness):
    """The model of the provider is down once, when it has first seen a result; another one is asked instead."""

    def model(self, turns: Sequence[Turn]) -> Any:
        plain, failed = model_saying(turns), [False]

        def say(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            if _told_in(messages) and not failed[0]:
                failed[0] = True
                raise ModelAPIError("first", "it is down")
            assert plain.function is not None
            response: Any = plain.function(messages, info)
            return response  # type: ignore[no-any-return]

        return FallbackModel(FunctionModel(say), model_saying(turns))


class PydanticAIAgain(PydanticAIHarness):
    """The program starts the agent again when its model was down, with the messages so far: nothing was taken back."""

    async def _drive(self, shop: Shop, turns: Sequence[Turn], thread: str, resume: bool) -> Outcome:
        failed = [False]
        plain = model_saying(turns)

        def say(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            if _told_in(messages) and not failed[0]:
                failed[0] = True
                raise ModelAPIError("first", "it is down")
            assert plain.function is not None
            response: Any = plain.function(messages, info)
            return response  # type: ignore[no-any-return]

        async with (
            amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt,
            rt.run(_turn_of(shop.folder, thread, resume), **shop.options),
        ):
            agent = self.agent(rt, shop, turns)
            for _ in range(2):
                try:
                    result = await agent.run("please", model=FunctionModel(say))
                except ModelAPIError:
                    continue
                return Outcome("finished", _told_in(result.all_messages()))
        return Outcome("failed")


class TestPydanticAI(Conformance, SameRequest, Stopped, RichResults, TwoRuntimes):
    harness = PydanticAIHarness()


class TestPydanticAISupervisor(SupervisorConformance):
    harness = PydanticAISupervisor()


@pytest.mark.rest
class TestPydanticAIHandOff(SeveralAgents):
    harness = PydanticAIHandOff()


class TestPydanticAIFallback(Retried):
    harness = PydanticAIFallback()


@pytest.mark.rest
class TestPydanticAIAgain(Retried):
    harness = PydanticAIAgain()


def _told_in(messages: Sequence[ModelMessage]) -> list[str]:
    return [
        str(part.content)
        for message in messages
        if isinstance(message, ModelRequest)
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    ]


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
            elif any(
                isinstance(part, UserPromptPart) and NOT_FINISHED not in str(part.content) for part in message.parts
            ):
                spoken = 0
        turn = turns[min(spoken, len(turns) - 1)]
        if isinstance(turn, Fails):
            raise RuntimeError(turn.message)
        if isinstance(turn, str):
            return ModelResponse(parts=[TextPart(turn)])
        return ModelResponse(parts=[ToolCallPart(name, args, f"call_{uuid4().hex}") for name, args in turn])

    return FunctionModel(say)


# ---- its own ------------------------------------------------------------------------------


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def without_ids(messages: list[ModelMessage]) -> list[ModelMessage]:
    """The messages as a user interface gives them back: it has its own form of them."""
    return [dataclasses.replace(one, run_id=None, conversation_id=None) for one in messages]


CHARGED: list[Turn] = [[("charge", {"order": "A1", "cents": 500})], "charged"]


@on_a_loop
async def test_a_toolset_is_guarded_in_the_run_around_it(shop: Shop) -> None:
    toolset = AmendsToolset(FunctionToolset(shop.functions()))
    agent = Agent(model_saying([CHARGED[0], CHARGED[0], "charged"]), toolsets=[toolset])
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        async with rt.run("order-1"):
            await agent.run("please")
        assert shop.effects() == ["charge A1 500"]
        with pytest.raises(NoRun):
            await agent.run("please")
    assert shop.effects() == ["charge A1 500"]


@on_a_loop
async def test_an_agent_that_a_tool_asks_works_in_the_same_run(shop: Shop) -> None:
    async with amends.AsyncRuntime(shop.url, tools=[*shop.declared(), amends.declare("ask_clerk", kind="read")]) as rt:
        clerk = Agent(model_saying(CHARGED), tools=shop.functions(), capabilities=[AmendsCapability(rt)])

        async def ask_clerk(what: str) -> str:
            return (await clerk.run(what)).output

        boss = Agent(
            model_saying([[("ask_clerk", {"what": "charge"})], "done"]),
            tools=[ask_clerk],
            capabilities=[AmendsCapability(rt, run_id="order-1")],
        )
        await boss.run("please")
        assert amends_is_outside(), "the run is not left behind in the caller's context"
    assert shop.effects() == ["charge A1 500"]
    assert [run.id for run in shop.runs()] == ["order-1"]
    assert shop.runs()[0].output == "done"


@on_a_loop
async def test_a_stream_commits_and_a_toolset_guarded_twice_is_guarded_once(shop: Shop) -> None:
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:

        async def say(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
            if any(isinstance(message, ModelResponse) for message in messages):
                yield "char"
                yield "ged"
            else:
                yield {0: DeltaToolCall("charge", '{"order": "A1", "cents": 500}', tool_call_id="call_1")}

        agent = Agent(
            FunctionModel(stream_function=say),
            toolsets=[AmendsToolset(FunctionToolset(shop.functions()))],
            capabilities=[AmendsCapability(rt)],
        )
        async with agent.run_stream("please", run_id="streamed") as result:
            assert [text async for text in result.stream_text()][-1] == "charged"
        async with agent.iter("please", run_id="iterated", model=model_saying(CHARGED)) as walked:
            async for _ in walked:
                pass
        assert [(await rt.report(name)).state for name in ("streamed", "iterated")] == ["committed", "committed"]
        with pytest.raises(ZeroDivisionError):
            async with agent.run_stream("please", run_id="left") as result:
                raise ZeroDivisionError
        assert (await rt.report("left")).state == "rolled_back"
    assert shop.effects() == ["charge A1 500", "charge A1 500", "charge A1 500", "refund ch_A1"]


def test_it_works_from_blocking_code(shop: Shop) -> None:
    rt = amends.AsyncRuntime(shop.url, tools=shop.declared())
    agent = Agent(model_saying(CHARGED), tools=shop.functions(), capabilities=[AmendsCapability(rt)])
    with asyncio.Runner() as loop:
        asyncio.set_event_loop(
            loop.get_loop()
        )  # the framework takes the one that is set, and would leave one of its own
        for number in (1, 2):
            assert agent.run_sync("please", run_id=f"r{number}").output == "charged"
        loop.run(rt.close())
    assert shop.states() == ["committed", "committed"]


@on_a_loop
async def test_an_error_that_the_framework_lets_out_takes_the_run_back(shop: Shop) -> None:
    turns: list[Turn] = [[("charge", {"order": "nowhere", "cents": 5})], [("ship", {"order": "nowhere"})], "no"]
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        agent = Agent(model_saying(turns), tools=shop.functions(), capabilities=[AmendsCapability(rt)])
        with pytest.raises(ValueError, match="address unknown"):
            await agent.run("please")
    assert shop.effects() == ["charge nowhere 5", "refund ch_nowhere"]
    assert shop.states() == ["rolled_back"]


@on_a_loop
async def test_a_timeout_of_the_framework_is_doubt_and_not_tried_again(shop: Shop) -> None:
    began: list[str] = []

    async def slow(order: str) -> str:
        began.append(order)
        await asyncio.Event().wait()
        return order

    async with amends.AsyncRuntime(shop.url, tools=[amends.declare("slow", kind="pivot")]) as rt:
        agent = Agent(
            model_saying([[("slow", {"order": "A1"})], [("slow", {"order": "A1"})], "hm"]),
            toolsets=[FunctionToolset([slow], timeout=0.05)],
            capabilities=[AmendsCapability(rt, run_id="r")],
        )
        with pytest.raises(amends.RunBlocked):
            await agent.run("please")
        assert [call.state for call in (await rt.report("r")).calls] == ["in_doubt"]
    assert began == ["A1"]


@on_a_loop
async def test_a_tool_that_asks_for_approval_itself_is_let(shop: Shop) -> None:
    def delete(ctx: RunContext[None], name: str) -> str:
        if not ctx.tool_call_approved:
            raise ApprovalRequired
        return f"deleted {name}"

    async with amends.AsyncRuntime(shop.url, tools=[amends.declare("delete", kind="pivot")]) as rt:
        agent = Agent(
            model_saying([[("delete", {"name": "x"})], "done"]),
            tools=[delete],
            output_type=[str, DeferredToolRequests],
            capabilities=[AmendsCapability(rt)],
        )
        paused = await agent.run("please")
        assert isinstance(paused.output, DeferredToolRequests)
        assert shop.states() == ["open"], "a pause is no end, whoever asked for it"
        messages = paused.all_messages()
        again = await agent.run(message_history=messages, deferred_tool_results=wake(messages))
        assert isinstance(again.output, DeferredToolRequests), "to wake it approves nothing"
        yes = DeferredToolResults(approvals={again.output.approvals[0].tool_call_id: True})
        done = await agent.run(message_history=messages, deferred_tool_results=yes)
        assert done.output == "done"
    assert shop.states() == ["committed"]


@pytest.mark.parametrize("kept", [list, without_ids])
@pytest.mark.parametrize(
    "how",
    [
        "the tool",
        "the toolset",
        pytest.param("a guarded toolset", marks=pytest.mark.rest),
        pytest.param("a tool of a guarded toolset", marks=pytest.mark.rest),
    ],
)
@on_a_loop
async def test_what_the_framework_asks_for_is_not_approved_by_waking_it(
    shop: Shop, how: str, kept: Callable[[list[ModelMessage]], list[ModelMessage]]
) -> None:
    [fn] = [one for one in shop.functions() if one.__name__ == "charge"]
    toolset: Any = FunctionToolset([Tool(fn, requires_approval="tool" in how.split())])
    if "tool" not in how.split():
        toolset = toolset.approval_required()
    if "guarded" in how:
        toolset = AmendsToolset(toolset)
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        agent: Any = Agent(
            model_saying(CHARGED),
            toolsets=[toolset],
            output_type=[str, DeferredToolRequests],
            capabilities=[AmendsCapability(rt)],
        )
        paused = await agent.run("please", run_id="r")
        messages = kept(paused.all_messages())
        again = await agent.run(message_history=messages, deferred_tool_results=wake(messages))
        assert isinstance(again.output, DeferredToolRequests)
        assert shop.effects() == []
        yes = DeferredToolResults(approvals={paused.output.approvals[0].tool_call_id: True})
        done = await agent.run(message_history=messages, deferred_tool_results=yes)
        assert done.output == "charged"
    assert shop.effects() == ["charge A1 500"]
    assert [(run.id, run.state) for run in shop.runs()] == [("r", "committed")]


@pytest.mark.rest
@on_a_loop
async def test_waking_approves_nothing_in_a_guarded_toolset_of_its_own(shop: Shop) -> None:
    [fn] = [one for one in shop.functions() if one.__name__ == "charge"]
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        for toolset in (FunctionToolset([fn]).approval_required(), FunctionToolset([Tool(fn, requires_approval=True)])):
            agent: Any = Agent(
                model_saying(CHARGED), toolsets=[AmendsToolset(toolset)], output_type=[str, DeferredToolRequests]
            )
            with pytest.raises(Suspended):
                async with rt.run():
                    messages = (await agent.run("please")).all_messages()
                    again = await agent.run(message_history=messages, deferred_tool_results=wake(messages))
                    assert isinstance(again.output, DeferredToolRequests)
                    raise Suspended("it waits")
    assert shop.effects() == []


@on_a_loop
async def test_who_decides_sees_what_is_asked(shop: Shop) -> None:
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        agent = Agent(
            model_saying([[("wire", {"iban": "DE02", "cents": 4200_00})], "paid"]),
            tools=shop.functions(),
            output_type=[str, DeferredToolRequests],
            capabilities=[AmendsCapability(rt)],
        )
        paused = await agent.run("please", run_id="r")
        assert isinstance(paused.output, DeferredToolRequests)
        [call] = paused.output.approvals
        [asked] = [one async for one in rt.approvals()]
        told = paused.output.metadata[call.tool_call_id]
        assert (told["approval"], told["digest"], told["run"]) == (asked.id, asked.digest, "r")


def amends_is_outside() -> bool:
    try:
        amends.current_run()
    except NoRun:
        return True
    return False


@on_a_loop
async def test_a_model_may_say_that_it_means_a_call_once_more(shop: Shop) -> None:
    again = ("charge", {"order": "A1", "cents": 500, "again_because": "a second box"})
    async with amends.AsyncRuntime(shop.url, tools=shop.declared(), repeats=True) as rt:
        agent = Agent(
            model_saying([CHARGED[0], [again], "charged"]),
            tools=shop.functions(),
            capabilities=[AmendsCapability(rt, run_id="r", repeats=True)],
        )
        await agent.run("please")
        assert [call.again for call in (await rt.report("r")).calls] == [None, "a second box"]
    assert shop.effects() == ["charge A1 500", "charge A1 500"]


@on_a_loop
async def test_a_turn_that_was_taken_back_is_not_answered_from_the_turn_before(shop: Shop) -> None:
    wired: list[Turn] = [[wire("DE02", 4200_00)], "sent"]
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        agent: Any = Agent(
            model_saying(wired),
            tools=shop.functions(),
            output_type=[str, DeferredToolRequests],
            capabilities=[AmendsCapability(rt)],
        )
        messages = (await agent.run("send it", conversation_id="c1")).all_messages()
        [asked] = [one async for one in rt.approvals()]
        await rt.approve(asked.id, digest=asked.digest, by="anna")
        first = await agent.run(message_history=messages, deferred_tool_results=wake(messages))
        assert first.output == "sent"
        messages = (await agent.run("and again", message_history=first.all_messages())).all_messages()
        [second] = [one async for one in rt.runs("status:open")]
        await rt.rollback(second.id, by="anna", why="not today")
        with pytest.raises(RunEnded, match="rolled back by a person"):
            await agent.run(message_history=messages, deferred_tool_results=wake(messages))
    assert shop.effects() == ["wire DE02 420000"]
    assert shop.states() == ["committed", "rolled_back"]


# ---- which run it is


WIRED: list[Turn] = [[wire("DE02", 4200_00)], "sent"]


def clerk(rt: amends.AsyncRuntime, shop: Shop, turns: Sequence[Turn], **options: Any) -> Any:
    return Agent(
        model_saying(turns),
        tools=shop.functions(),
        output_type=[str, DeferredToolRequests],
        capabilities=[AmendsCapability(rt, **options)],
    )


async def approve(rt: amends.AsyncRuntime) -> None:
    async for asked in rt.approvals("state:pending"):
        await rt.approve(asked.id, digest=asked.digest, by="anna")


class AnyConversation(PydanticAIHarness):
    """Each start has a conversation of its own, as it has where the program names none."""

    conversation = ""


class LostIds(AnyConversation):
    """The messages are kept as a user interface keeps them: in its own form, without the framework's ids."""

    def keeps(self, messages: list[ModelMessage]) -> list[ModelMessage]:
        return without_ids(messages)


@pytest.mark.parametrize("harness", [AnyConversation, LostIds])
def test_killed_begun_again_paused_approved_and_woken_a_wire_is_sent_once(
    shop: Shop, harness: type[PydanticAIHarness]
) -> None:
    turns: list[Turn] = [[("mail", {"to": "ann"})], [("charge", {"order": "A1", "cents": 500})], *WIRED]
    suite = TestPydanticAI()
    suite.harness = harness()  # type: ignore[misc]
    shop.die_after("charge")
    assert suite.in_a_new_process(shop, turns) is None, "it was to be killed"
    assert suite.harness.drive(shop, turns, resume=True).how == "paused"
    suite._decide(shop, approve=True)
    for _ in range(2):  # a queue delivers twice
        done = suite.in_a_new_process(shop, turns, resume=True)
        assert done is not None
        assert done.how == "finished", done
    assert shop.effects() == ["charge A1 500", "wire DE02 420000", "mail ann"]
    assert [(run.id, run.state) for run in shop.runs()] == [("t1:1", "committed")]


class LostIdsSupervisor(PydanticAISupervisor):
    """The same for a turn in which only another agent was asked."""

    conversation = ""
    keeps = LostIds.keeps


@pytest.mark.rest
def test_a_turn_that_only_asked_an_agent_is_found_without_the_ids(shop: Shop) -> None:
    turns: list[Turn] = [[("charge", {"order": "A1", "cents": 500})], *WIRED]
    suite = TestPydanticAI()
    suite.harness = LostIdsSupervisor()  # type: ignore[misc]
    shop.die_after("charge")
    assert suite.in_a_new_process(shop, turns) is None, "it was to be killed"
    assert suite.harness.drive(shop, turns, resume=True).how == "paused"
    suite._decide(shop, approve=True)
    for _ in range(2):  # a queue delivers twice
        done = suite.in_a_new_process(shop, turns, resume=True)
        assert done is not None
        assert done.how == "finished", done
    assert shop.effects() == ["charge A1 500", "wire DE02 420000", "ship A1"]
    assert [(run.id, run.state) for run in shop.runs()] == [("t1:1", "committed")]


@on_a_loop
async def test_a_turn_that_waits_for_the_program_is_found_without_the_ids(shop: Shop) -> None:
    """A user interface executes a tool itself, and gives the messages back in its own form."""
    outside = ExternalToolset([ToolDefinition(name="pick_colour")])
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        agent: Any = Agent(
            model_saying([[("pick_colour", {})], [("charge", {"order": "A1", "cents": 5})], "done"]),
            tools=shop.functions(),
            toolsets=[outside],
            output_type=[str, DeferredToolRequests],
            capabilities=[AmendsCapability(rt)],
        )
        paused = await agent.run("please", run_id="job")
        [call] = paused.output.calls
        results = DeferredToolResults(calls={call.tool_call_id: "red"})
        done = await agent.run(message_history=without_ids(paused.all_messages()), deferred_tool_results=results)
        assert done.output == "done"
    assert shop.effects() == ["charge A1 5"]
    assert [(run.id, run.state) for run in shop.runs()] == [("job", "committed")]


@on_a_loop
async def test_a_history_without_ids_whose_calls_nobody_knows_is_refused_before_anything_runs(shop: Shop) -> None:
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        messages = without_ids((await clerk(rt, shop, WIRED).run("pay", run_id="job")).all_messages())
    other = f"sqlite:///{shop.folder / 'other.db'}"
    async with amends.AsyncRuntime(other, tools=shop.declared()) as rt:
        agent = clerk(rt, shop, WIRED)
        with pytest.raises(amends.UsageError, match="no run has the calls of this history"):
            await agent.run(message_history=messages, deferred_tool_results=wake(messages))
        assert [one async for one in rt.runs()] == []
        paused = await agent.run(message_history=messages, deferred_tool_results=wake(messages), run_id="job")
        assert isinstance(paused.output, DeferredToolRequests), "who names the run says which one it is"
        assert [one.id async for one in rt.runs()] == ["job"]


@pytest.mark.parametrize("kept", [list, without_ids])
@on_a_loop
async def test_two_paused_turns_of_one_conversation_are_not_confused(
    shop: Shop, kept: Callable[[list[ModelMessage]], list[ModelMessage]]
) -> None:
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        first = clerk(rt, shop, [[wire("DE01", 4100_00)], "sent 1"])
        second = clerk(rt, shop, [[wire("DE02", 4200_00)], "sent 2"])
        one = kept((await first.run("one", run_id="one", conversation_id="c")).all_messages())
        two = kept((await second.run("two", run_id="two", conversation_id="c")).all_messages())
        await approve(rt)
        assert (await first.run(message_history=one, deferred_tool_results=wake(one))).output == "sent 1"
        assert [(run.id, run.state) for run in shop.runs()] == [("two", "open"), ("one", "committed")]
        assert (await second.run(message_history=two, deferred_tool_results=wake(two))).output == "sent 2"
    assert shop.effects() == ["wire DE01 410000", "wire DE02 420000"]


@on_a_loop
async def test_calls_that_two_runs_have_are_not_guessed(shop: Shop) -> None:
    def say(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[ToolCallPart("wire", {"iban": "DE02", "cents": 4200_00}, "call_1")])

    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        agent = clerk(rt, shop, WIRED)
        for name in ("one", "two"):
            paused = await agent.run("pay", run_id=name, conversation_id="c", model=FunctionModel(say))
        messages = without_ids(paused.all_messages())
        with pytest.raises(amends.UsageError, match="2 runs have the calls of this history: one, two"):
            await agent.run(message_history=messages, conversation_id="c", deferred_tool_results=wake(messages))
        assert shop.states() == ["open", "open"]


@on_a_loop
async def test_a_run_with_calls_of_the_same_ids_but_other_arguments_is_another_one(shop: Shop) -> None:
    """The model numbers its calls, the messages come without ids, and a queue delivers the first of two turns again."""
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:

        def pays(iban: str) -> Any:
            agent = clerk(rt, shop, WIRED)
            agent.model = calls_once(wire(iban, 4200_00), "call_1")
            return agent

        first, second = pays("DE01"), pays("DE02")
        one = without_ids((await first.run("pay", run_id="one")).all_messages())
        await approve(rt)
        assert (await first.run(message_history=one, deferred_tool_results=wake(one))).output == "done"
        two = without_ids((await second.run("pay", run_id="two")).all_messages())
        assert (await first.run(message_history=one, deferred_tool_results=wake(one))).output == "done"
        assert [(run.id, run.state) for run in shop.runs()] == [("two", "open"), ("one", "committed")]
        assert len([one async for one in rt.approvals()]) == 1, "nothing was asked for in the other one's run"
        await approve(rt)
        assert (await second.run(message_history=two, deferred_tool_results=wake(two))).output == "done"
    assert shop.effects() == ["wire DE01 420000", "wire DE02 420000"]


@on_a_loop
async def test_a_run_that_pauses_twice_is_found_again(shop: Shop) -> None:
    turns: list[Turn] = [[wire("DE01", 4100_00)], [("stamp", {"text": "x"})], "done"]
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        agent = clerk(rt, shop, turns)
        messages = (await agent.run("pay", run_id="job")).all_messages()
        for _ in range(2):
            await approve(rt)
            result = await agent.run(message_history=messages, deferred_tool_results=wake(messages))
            messages = result.all_messages()
        assert result.output == "done"
    assert shop.effects() == ["wire DE01 410000", "stamp x"]
    assert [run.id for run in shop.runs()] == ["job"]


# ---- what is denied is over


@pytest.mark.parametrize("around", [False, True], ids=["alone", "inside a run"])
@on_a_loop
async def test_a_call_that_the_program_denies_waits_for_nobody_any_more(shop: Shop, around: bool) -> None:
    turns: list[Turn] = [[("charge", {"order": "A1", "cents": 500})], [wire("DE02", 4200_00)], "not sent"]
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        agent = clerk(rt, shop, turns)
        paused = await agent.run("pay", run_id="r")
        [call] = paused.output.approvals
        denied = DeferredToolResults(approvals={call.tool_call_id: ToolDenied("not today")})
        again = functools.partial(agent.run, message_history=paused.all_messages(), deferred_tool_results=denied)
        if around:
            async with rt.run("r"):
                done = await again()
        else:
            done = await again()
        assert done.output == "not sent"
        [asked] = [one async for one in rt.approvals("")]
        assert asked.state == "cancelled"
        report = await rt.report("r")
        assert [report.state, *(one.state for one in report.calls)] == ["committed", "succeeded", "dropped"]
    assert shop.effects() == ["charge A1 500"]


# ---- what waits stays


@pytest.mark.parametrize("mistake", ["a message", "a wrong id", "an id too many"])
@on_a_loop
async def test_a_mistake_while_a_wire_waits_takes_nothing_back(shop: Shop, mistake: str) -> None:
    turns: list[Turn] = [[("charge", {"order": "A1", "cents": 500})], *WIRED]
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        agent = clerk(rt, shop, turns)
        messages = (await agent.run("pay", run_id="job")).all_messages()
        results = wake(messages)
        match mistake:
            case "a message":
                asked: dict[str, Any] = {"user_prompt": "are you there?"}
            case "a wrong id":
                asked = {"deferred_tool_results": DeferredToolResults(approvals={"call_nobody": True})}
            case _:
                results.approvals["call_nobody"] = True
                asked = {"deferred_tool_results": results}
        with pytest.raises(UserError):
            await agent.run(message_history=messages, **asked)
        assert shop.effects() == ["charge A1 500"]
        assert shop.states() == ["open"]
        await approve(rt)
        done = await agent.run(message_history=messages, deferred_tool_results=wake(messages))
        assert done.output == "sent"
    assert shop.effects() == ["charge A1 500", "wire DE02 420000"]


# ---- stop


STAGED: list[Turn] = [
    [("charge", {"order": "A1", "cents": 500})],
    [("mail", {"to": "ann"})],
    [("charge", {"order": "A2", "cents": 700})],
    "done",
]


async def stopped(agent: Any, how: str, **asked: Any) -> list[ModelMessage]:
    """Let the agent work until the mail is staged, then stop it; return the messages so far."""
    reached = asyncio.Event()

    async def work() -> list[ModelMessage]:
        async with agent.iter("please", **asked) as walked:
            spoken = 0
            async for node in walked:
                spoken += Agent.is_model_request_node(node)
                if spoken == 3:
                    reached.set()
                    if how == "break":
                        break
                    await asyncio.Event().wait()
        return list(walked.all_messages())

    if how == "break":
        return await work()
    task = asyncio.create_task(work())
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return []


@pytest.mark.parametrize("how", ["break", "cancel"])
@on_a_loop
async def test_stop_suspends_and_the_same_id_goes_on(shop: Shop, how: str) -> None:
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        agent = clerk(rt, shop, STAGED)
        await stopped(agent, how, run_id="job")
        assert shop.effects() == ["charge A1 500"], "nothing staged has started, nothing was taken back"
        assert [item.what for item in await rt.inbox()] == ["suspended"]
        await rt.recover()
        assert shop.states() == ["open"], "a worker leaves it alone"
        assert (await agent.run("please", run_id="job")).output == "done"
    assert shop.effects() == ["charge A1 500", "charge A2 700", "mail ann"]
    assert shop.states() == ["committed"]


@on_a_loop
async def test_after_a_stop_the_next_word_of_the_user_goes_on_with_the_run(shop: Shop) -> None:
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        agent = clerk(rt, shop, STAGED)
        messages = repair_messages(await stopped(agent, "break", run_id="job"))
        again = clerk(rt, shop, [[("charge", {"order": "A3", "cents": 900})], "done"])
        assert (await again.run("go on with A3", message_history=messages)).output == "done"
        assert [(run.id, run.state) for run in shop.runs()] == [("job", "committed")]
        assert (await again.run("and now?", message_history=messages, run_id="next")).output == "done"
    assert shop.effects() == ["charge A1 500", "charge A3 900", "mail ann", "charge A3 900"]
    assert [run.id for run in shop.runs()] == ["next", "job"]


@pytest.mark.parametrize("how", ["the tool", "a timeout"])
@on_a_loop
async def test_the_frameworks_own_cancellation_suspends_and_its_messages_go_on(shop: Shop, how: str) -> None:
    async def look(ctx: RunContext[None]) -> str:
        if how == "the tool":
            ctx.cancel()
        else:
            await asyncio.Event().wait()
        return "seen"

    turns: list[Turn] = [*STAGED[:2], [("look", {})], "done"]
    async with amends.AsyncRuntime(shop.url, tools=[*shop.declared(), amends.declare("look", kind="read")]) as rt:
        agent: Any = Agent(model_saying(turns), tools=[*shop.functions(), look], capabilities=[AmendsCapability(rt)])
        with pytest.raises(RunCancelled) as cancelled:
            await agent.run("please", run_id="job", timeout=None if how == "the tool" else 1.0)
        assert shop.effects() == ["charge A1 500"]
        assert shop.states() == ["open"]
        again = clerk(rt, shop, [[("charge", {"order": "A3", "cents": 900})], "done"])
        messages = repair_messages(cancelled.value.all_messages())
        assert (await again.run("go on", message_history=messages)).output == "done"
    assert shop.effects() == ["charge A1 500", "charge A3 900", "mail ann"]
    assert [(run.id, run.state) for run in shop.runs()] == [("job", "committed")]


@pytest.mark.parametrize("how", ["left", "cancelled"])
@on_a_loop
async def test_a_result_that_is_not_read_to_its_end_suspends(shop: Shop, how: str) -> None:
    """A stream whose consumer stops reading has no result: nothing commits, and what is staged does not start."""

    async def say(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        if any(isinstance(message, ModelResponse) for message in messages):
            for word in ("a ", "long ", "text"):
                yield word
        else:
            yield {0: DeltaToolCall("mail", '{"to": "ann"}', tool_call_id="call_1")}

    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        agent: Any = Agent(
            FunctionModel(stream_function=say), tools=shop.functions(), capabilities=[AmendsCapability(rt)]
        )
        async with agent.run_stream("please", run_id="job") as result:
            async for _ in result.stream_text(debounce_by=None):
                if how == "cancelled":
                    await result.cancel()
                break
    assert shop.effects() == []
    assert shop.states() == ["open"]


@on_a_loop
async def test_a_stream_that_is_left_early_suspends(shop: Shop) -> None:
    async def say(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        if any(isinstance(message, ModelResponse) for message in messages):
            yield "char"
            yield "ged"
        else:
            yield {0: DeltaToolCall("charge", '{"order": "A1", "cents": 500}', tool_call_id="call_1")}

    async def reader(agent: Any) -> AsyncIterator[str]:
        async with agent.run_stream("please", run_id="job") as result:
            async for text in result.stream_text():
                yield text

    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        agent: Any = Agent(
            FunctionModel(stream_function=say), tools=shop.functions(), capabilities=[AmendsCapability(rt)]
        )
        reading = reader(agent)
        assert await anext(reading)  # type: ignore[arg-type]
        await reading.aclose()  # type: ignore[attr-defined]
        assert shop.states() == ["open"]
        assert shop.effects() == ["charge A1 500"]


# ---- one request, whatever its words


class Item(BaseModel):
    sku: str
    count: int = 1


@dataclasses.dataclass
class Address:
    town: str
    country: str = "DE"


class Speed(Enum):
    SLOW = "slow"
    FAST = "fast"


SAME: list[dict[str, Any]] = [
    {"item": {"sku": "a"}},
    {"item": {"sku": "a", "count": 1}, "cents": 5},
    {"item": {"sku": "a", "count": "1"}, "cents": "5", "price": "1.50"},
    {"item": {"sku": "a"}, "speed": "slow", "to": None, "price": 1.5},
]


@on_a_loop
async def test_the_same_request_in_other_words_is_one_call(shop: Shop) -> None:
    seen: list[Any] = []

    def order(
        item: Item,
        cents: int = 5,
        price: Decimal = Decimal("1.5"),
        speed: Speed = Speed.SLOW,
        to: Address | None = None,
    ) -> str:
        seen.append((item, cents, price, speed, to))
        return "ordered"

    async with amends.AsyncRuntime(shop.url, tools=[amends.declare("order", kind="pivot")]) as rt:
        turns: list[Turn] = [*([("order", args)] for args in SAME), "done"]
        await Agent(model_saying(turns), tools=[order], capabilities=[AmendsCapability(rt)]).run("x", run_id="r")
        assert len((await rt.report("r")).calls) == 1
    assert seen == [(Item(sku="a"), 5, Decimal("1.5"), Speed.SLOW, None)], "the tool gets its own classes"


@on_a_loop
async def test_a_tool_that_has_only_a_schema_is_bound_by_it(shop: Shop) -> None:
    seen: list[dict[str, Any]] = []

    def order(**args: Any) -> str:
        seen.append(args)
        return "ordered"

    schema = {
        "type": "object",
        "properties": {
            "sku": {"type": "string"},
            "count": {"type": "integer", "default": 1},
            "to": {"$ref": "#/$defs/to"},
        },
        "required": ["sku"],
        "additionalProperties": False,
        "$defs": {"to": {"type": "object", "properties": {"country": {"type": "string", "default": "DE"}}}},
    }
    same: list[Turn] = [
        [("order", {"sku": "a", "to": {}})],
        [("order", {"sku": "a", "count": "1", "to": {"country": "DE"}})],
        [("order", {"sku": "a", "count": 1, "to": {}, "why": "because"})],
        "done",
    ]
    async with amends.AsyncRuntime(shop.url, tools=[amends.declare("order", kind="pivot", key="sku")]) as rt:
        tool = Tool.from_schema(order, "order", "Order it.", schema)
        await Agent(model_saying(same), tools=[tool], capabilities=[AmendsCapability(rt)]).run("x", run_id="r")
    assert seen == [{"sku": "a", "count": 1, "to": {"country": "DE"}}]


@on_a_loop
async def test_a_call_with_a_model_is_started_again_with_the_model(shop: Shop) -> None:
    seen: list[Any] = []

    def order(item: Item, to: Address) -> str:
        seen.append((item, to))
        if len(seen) == 1:
            raise ConnectionResetError("nobody knows")
        return "ordered"

    async with amends.AsyncRuntime(shop.url, tools=[amends.declare("order", kind="pivot", idempotent=True)]) as rt:
        turns: list[Turn] = [[("order", {"item": {"sku": "a"}, "to": {"town": "Ulm"}})], "done"]
        await Agent(model_saying(turns), tools=[order], capabilities=[AmendsCapability(rt)]).run("x", run_id="r")
    assert seen == [(Item(sku="a"), Address("Ulm"))] * 2


# ---- results


@on_a_loop
async def test_a_compensation_gets_what_the_tool_returned(shop: Shop) -> None:
    undone: list[Any] = []
    picture = BinaryContent(b"png", media_type="image/png")

    def wrapped() -> ToolReturn[Item]:
        return ToolReturn(return_value=Item(sku="a"), content=["see", picture], metadata={"k": 1})

    def plain() -> Address:
        return Address("Ulm")

    def exact() -> Decimal:
        return Decimal("1.50")

    def undo_wrapped(result: Item) -> None:
        undone.append(result)

    def undo_plain(result: Address) -> None:
        undone.append(result)

    def undo_exact(result: Decimal) -> None:
        undone.append(result)

    tools = [
        amends.declare("wrapped", compensate=undo_wrapped),
        amends.declare("plain", compensate=undo_plain),
        amends.declare("exact", compensate=undo_exact),
    ]
    told: list[Any] = []

    def say(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        spoken = sum(isinstance(one, ModelResponse) for one in messages)
        told[:] = [part for one in messages for part in one.parts]
        if spoken == 3:
            raise RuntimeError("the model is down")
        return ModelResponse(parts=[ToolCallPart(("wrapped", "plain", "exact")[spoken], {}, f"c{spoken}")])

    async with amends.AsyncRuntime(shop.url, tools=tools) as rt:
        agent = Agent(FunctionModel(say), tools=[wrapped, plain, exact], capabilities=[AmendsCapability(rt)])
        with pytest.raises(RuntimeError):
            await agent.run("x", run_id="r")
    assert undone == [Decimal("1.50"), Address("Ulm"), Item(sku="a")]
    assert next(part.metadata for part in told if isinstance(part, ToolReturnPart)) == {"k": 1}
    assert ["see", picture] in [part.content for part in told if isinstance(part, UserPromptPart)]


def rich(shop: Shop, kind: str) -> Callable[..., Any]:
    """A tool that draws, and returns more than its result."""
    image = BinaryContent(b"\x00\xffpng", media_type="image/png")

    def draw(what: str) -> Any:
        """Draw something."""
        shop._effect("draw", what)
        if kind == "files":
            return ["as you asked", image]
        return ToolReturn(
            return_value={"id": what}, content=["see", image], metadata={"cost": Decimal("1.50"), "seen": (1, b"\xff")}
        )

    return draw


DRAW = ("draw", {"what": "cat"})


def calls_once(asked: tuple[str, dict[str, Any]], call_id: str, *, stops: bool = False) -> FunctionModel:
    """A model that makes one call, and then ends; ``stops``: the one who asked it leaves instead."""

    def say(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if not any(isinstance(one, ModelResponse) for one in messages):
            return ModelResponse(parts=[ToolCallPart(*asked, call_id)])
        if stops:
            raise asyncio.CancelledError
        return ModelResponse(parts=[TextPart("done")])

    return FunctionModel(say)


def told_of(tool: str, messages: Sequence[ModelMessage]) -> tuple[Any, Any, Any]:
    """What the model and the program have of the last call of a tool: result, metadata, content."""
    parts = [part for one in messages for part in one.parts]
    place = max(n for n, part in enumerate(parts) if isinstance(part, ToolReturnPart) and part.tool_name == tool)
    after = [part.content for part in parts[place:] if isinstance(part, UserPromptPart) and part.content != "go on"]
    found: Any = parts[place]
    return found.content, found.metadata, after[0] if after else None


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("again", ["the same id", "a new id"])
@pytest.mark.parametrize("kind", ["wrapped", "files"])
@on_a_loop
async def test_what_a_tool_returned_besides_its_result_is_recorded(
    shop: Shop, kind: str, again: str, declared: bool
) -> None:
    """Its process is lost, and with it the messages: the record has the images and the metadata."""
    tools = [amends.declare("draw", kind="pivot")] if declared else []
    async with amends.AsyncRuntime(shop.url, tools=tools) as rt:

        def agent() -> Any:
            return Agent(
                tools=[rich(shop, kind)], output_type=[str, DeferredToolRequests], capabilities=[AmendsCapability(rt)]
            )

        if not declared:
            await agent().run("go on", run_id="r", model=calls_once(DRAW, "c1", stops=True))
            assert await approve_all(rt) == 1
        with pytest.raises(asyncio.CancelledError):
            await agent().run("go on", run_id="r", model=calls_once(DRAW, "c1", stops=True))
        second = "c1" if again == "the same id" else "c2"
        done = await agent().run("go on", run_id="r", model=calls_once(DRAW, second))
        result, metadata, content = told_of("draw", done.all_messages())
        if kind == "wrapped":
            is_same = result == {"id": "cat"}
            assert is_same or result == 'Already done in this task; the same result: {"id":"cat"}'
            assert metadata == {"cost": Decimal("1.50"), "seen": [1, b"\xff"]}
            assert [content[0], content[1].data] == ["see", b"\x00\xffpng"]
        else:
            is_same = result[0] == "as you asked"
            assert is_same or result[0] == "Already done in this task; the same result:"
            assert result[-1].data == b"\x00\xffpng"
            assert result[-1].media_type == "image/png"
        assert is_same == (again == "the same id")
    assert shop.effects() == ["draw cat"]


@on_a_loop
async def test_a_compensation_elsewhere_gets_the_result_without_what_is_besides(shop: Shop) -> None:
    handed: list[Any] = []

    def undo(result: dict[str, str]) -> None:
        handed.append(result)

    tools = [amends.declare("draw", compensate=undo)]
    async with amends.AsyncRuntime(shop.url, tools=tools) as rt:
        agent: Any = Agent(tools=[rich(shop, "wrapped")], capabilities=[AmendsCapability(rt)])
        async with agent.iter(
            "go on", run_id="r", model=model_saying([[("draw", {"what": "cat"})], "drawn"])
        ) as walked:
            async for _ in walked:
                if shop.effects():
                    break
    async with amends.AsyncRuntime(shop.url, tools=tools) as rt:
        await rt.rollback("r", by="anna", why="ugly")
    assert handed == [{"id": "cat"}]


@on_a_loop
async def test_what_is_recorded_besides_a_result_hides_what_the_tool_hides(shop: Shop) -> None:
    def pay(card: str) -> Any:
        return ToolReturn(return_value="paid", content=f"with {card}", metadata={"card": card})

    async with amends.AsyncRuntime(shop.url, tools=[amends.declare("pay", kind="pivot", redact=["card"])]) as rt:
        agent: Any = Agent(
            calls_once(("pay", {"card": "4111-1111-1111"}), "c1"), tools=[pay], capabilities=[AmendsCapability(rt)]
        )
        await agent.run("go on", run_id="r")
        again = await agent.run("go on", run_id="r")
    assert "paid" in str(told_of("pay", again.all_messages()))
    assert b"4111-1111" not in b"".join(one.read_bytes() for one in shop.folder.glob("ledger.db*"))


@on_a_loop
async def test_what_is_besides_the_result_of_another_run_is_given_too(shop: Shop) -> None:
    once = amends.declare("draw", kind="pivot", key="what", scope="ledger")
    async with amends.AsyncRuntime(shop.url, tools=[once]) as rt:
        agent: Any = Agent(calls_once(DRAW, "c1"), tools=[rich(shop, "wrapped")], capabilities=[AmendsCapability(rt)])
        await agent.run("go on", run_id="first")
        second = await agent.run("go on", run_id="second")
        result, metadata, content = told_of("draw", second.all_messages())
        assert ("cat" in str(result), metadata["cost"], content[1].data) == (True, Decimal("1.50"), b"\x00\xffpng")
    assert shop.effects() == ["draw cat"]


@on_a_loop
async def test_who_stops_while_it_is_recorded_makes_no_doubt(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    reached, begin = asyncio.Event(), amends.AsyncRun.begin

    async def slowly(*args: Any, **kwargs: Any) -> Any:
        reached.set()
        await asyncio.sleep(0.05)
        return await begin(*args, **kwargs)

    async with amends.AsyncRuntime(shop.url, tools=[amends.declare("draw", kind="pivot")]) as rt:
        agent: Any = Agent(calls_once(DRAW, "c1"), tools=[rich(shop, "wrapped")], capabilities=[AmendsCapability(rt)])
        with monkeypatch.context() as patched:
            patched.setattr(amends.AsyncRun, "begin", slowly)
            task = asyncio.create_task(agent.run("go on", run_id="r"))
            await reached.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert [call.state for call in (await rt.report("r")).calls if call.tool == "draw"] == ["succeeded"]
        assert (await agent.run("go on", run_id="r")).output == "done"
    assert shop.effects() == ["draw cat"]


@on_a_loop
async def test_what_is_besides_a_result_is_replayed(shop: Shop) -> None:
    async with amends.AsyncRuntime(shop.url, tools=[amends.declare("draw", kind="pivot")]) as rt:
        agent: Any = Agent(calls_once(DRAW, "c1"), tools=[rich(shop, "wrapped")], capabilities=[AmendsCapability(rt)])
        first = await agent.run("go on", run_id="r")
        replayed = await rt.replay("r", agent.run, "go on", run_id="r")
        for done in (first, replayed):
            result, metadata, content = told_of("draw", done.all_messages())
            assert (result, metadata["cost"], content[1].data) == ({"id": "cat"}, Decimal("1.50"), b"\x00\xffpng")
    assert shop.effects() == ["draw cat"]


@on_a_loop
async def test_an_agent_that_returns_more_than_a_result_is_answered_with_all_of_it(shop: Shop) -> None:
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        artist: Any = Agent(model_saying(["a cat"]), capabilities=[AmendsCapability(rt)])

        async def draw(what: str) -> ToolReturn[str]:
            result = await artist.run(what)
            return ToolReturn(return_value=result.output, content="as agreed", metadata={"cost": 1})

        def boss(call_id: str, *, stops: bool = False) -> Any:
            model = calls_once(DRAW, call_id, stops=stops)
            return Agent(model, tools=[draw], capabilities=[AmendsCapability(rt)]).run("go on", run_id="r")

        with pytest.raises(asyncio.CancelledError):
            await boss("c1", stops=True)
        again: Any = await boss("c2")
        result, metadata, content = told_of("draw", again.all_messages())
        assert ("a cat" in result, metadata, content) == (True, {"cost": 1}, "as agreed")


@on_a_loop
async def test_content_that_the_ledger_cannot_keep_is_said_to_be_lost(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    def draw(what: str) -> Any:
        return ToolReturn(return_value="drawn", content="x" * 5000, metadata=object())

    tools = [amends.declare("draw", kind="pivot")]
    async with amends.AsyncRuntime(shop.url, tools=tools, payload_bytes_max=3000) as rt:
        agent: Any = Agent(calls_once(DRAW, "c1"), tools=[draw], capabilities=[AmendsCapability(rt)])
        await agent.run("go on", run_id="r")
        again = await agent.run("go on", run_id="r")
        assert told_of("draw", again.all_messages())[0] == '"drawn" What it returned besides is not in the record.'


@on_a_loop
async def test_a_staged_tool_that_returns_more_than_a_result_is_done(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    tools = [amends.declare("draw", kind="retriable", idempotent=True)]
    async with amends.AsyncRuntime(shop.url, tools=tools) as rt:
        agent: Any = Agent(
            calls_once(DRAW, "c1"), tools=[rich(shop, "wrapped")], capabilities=[AmendsCapability(rt, run_id="r")]
        )
        await agent.run("go on")
        assert (await rt.report("r")).calls[0].result == {"id": "cat"}
    assert shop.effects() == ["draw cat"]
    assert not caplog.records


# ---- two runtimes


@on_a_loop
async def test_an_agent_of_another_runtime_works_in_its_own_run(shop: Shop) -> None:
    other = Shop(shop.folder / "other")
    other.folder.mkdir()
    async with (
        amends.AsyncRuntime(shop.url, tools=shop.declared()) as first,
        amends.AsyncRuntime(other.url, tools=other.declared()) as second,
    ):
        agent = Agent(model_saying(CHARGED), tools=other.functions(), capabilities=[AmendsCapability(second)])
        with pytest.raises(ZeroDivisionError):
            async with first.run("outer"):
                await agent.run("please", run_id="inner")
                raise ZeroDivisionError
    assert other.effects() == ["charge A1 500"], "it was not taken back with a run that it is no part of"
    assert [(run.id, run.state) for run in other.runs()] == [("inner", "committed")]
    assert [(run.id, run.state) for run in shop.runs()] == [("outer", "rolled_back")]
    with shop.desk() as rt:
        assert rt.report("outer").calls == ()


# ---- what it says


@on_a_loop
async def test_a_turn_without_a_name_is_warned_of_once(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    def warned() -> int:
        return sum("has no run_id" in one.message for one in caplog.records)

    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        agent = Agent(model_saying(CHARGED), tools=shop.functions(), capabilities=[AmendsCapability(rt)])
        await agent.run("please", run_id="named")
        async with rt.run("around"):
            await agent.run("please")
        assert warned() == 0
        await agent.run("please")
        await agent.run("please")
        assert warned() == 1
        await Agent(
            model_saying(CHARGED), tools=shop.functions(), capabilities=[AmendsCapability(rt, run_id="fixed")]
        ).run("please")
        assert warned() == 1


@on_a_loop
async def test_a_turn_that_is_named_like_the_framework_would_is_named(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        agent = Agent(model_saying(CHARGED), tools=shop.functions(), capabilities=[AmendsCapability(rt)])
        await agent.run("please")
        for number in range(2):
            named = Agent(model_saying(CHARGED), tools=shop.functions(), capabilities=[AmendsCapability(rt)])
            caplog.clear()
            run_id = str(uuid7())
            await named.run("please", run_id=run_id)
            assert (await rt.report(run_id)).state == "committed"
            assert not [one for one in caplog.records if "has no run_id" in one.message], number


def test_a_blocking_runtime_is_refused_at_once(shop: Shop) -> None:
    with shop.desk() as rt, pytest.raises(amends.UsageError, match="needs an AsyncRuntime, not Runtime"):
        AmendsCapability(rt)  # type: ignore[arg-type]


def test_run_sync_inside_a_blocking_run_has_its_own_run(shop: Shop) -> None:
    rt = amends.AsyncRuntime(shop.url, tools=shop.declared())
    agent = Agent(model_saying(CHARGED), tools=shop.functions(), capabilities=[AmendsCapability(rt)])
    with asyncio.Runner() as loop, shop.desk() as desk:
        asyncio.set_event_loop(loop.get_loop())
        with desk.run("outer"):
            assert agent.run_sync("please", run_id="inner").output == "charged"
        loop.run(rt.close())
    assert [(run.id, run.state) for run in shop.runs()] == [("inner", "committed"), ("outer", "committed")]


# ---- output functions, and what else the agent holds


class Receipt(BaseModel):
    number: str


def selling(shop: Shop, **declared: Any) -> Callable[..., Any]:
    def sell(order: str, cents: int = 500) -> Receipt:
        """Sell it: the agent's last act."""
        shop._line("effects", f"sell {order} {cents}")
        return Receipt(number=f"re_{order}")

    return sell


@on_a_loop
async def test_a_declared_output_function_is_called_once(shop: Shop) -> None:
    said: list[Turn] = [[("final_result", {"order": "A1"})]]
    async with amends.AsyncRuntime(shop.url, tools=[amends.declare("sell", kind="pivot", key="order")]) as rt:
        agent: Any = Agent(model_saying(said), output_type=selling(shop), capabilities=[AmendsCapability(rt)])
        for _ in range(2):  # begun again under the same id
            assert (await agent.run("please", run_id="r")).output == Receipt(number="re_A1")
        assert [(call.tool, dict(call.args)) for call in (await rt.report("r")).calls] == [
            ("sell", {"order": "A1", "cents": 500})
        ]
    assert shop.effects() == ["sell A1 500"]


@on_a_loop
async def test_output_functions_of_one_agent_run_are_known_too(shop: Shop) -> None:
    said: list[Turn] = [[("charge", {"order": "A1", "cents": 500})], [("final_result", {"order": "A1"})]]
    async with amends.AsyncRuntime(shop.url, tools=[*shop.declared(), amends.declare("sell", kind="pivot")]) as rt:
        agent: Any = Agent(model_saying(said), tools=shop.functions(), capabilities=[AmendsCapability(rt)])
        for _ in range(2):  # begun again under the same id
            done = await agent.run("please", run_id="r", output_type=selling(shop))
            assert done.output == Receipt(number="re_A1")
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        strict: Any = Agent(
            model_saying(said), tools=shop.functions(), capabilities=[AmendsCapability(rt, strict=True)]
        )
        with pytest.raises(amends.UsageError, match="cannot record sell"):
            await strict.run("please", run_id="s", output_type=selling(shop))
    assert shop.effects() == ["charge A1 500", "sell A1 500"]


@on_a_loop
async def test_an_output_function_that_fails_takes_the_run_back(shop: Shop) -> None:
    def sell(order: str) -> str:
        raise LookupError("no such order")

    said: list[Turn] = [[("charge", {"order": "A1", "cents": 500})], [("final_result", {"order": "A1"})]]
    tools = [*shop.declared(), amends.declare("sell", kind="pivot")]
    async with amends.AsyncRuntime(shop.url, tools=tools) as rt:
        agent: Any = Agent(
            model_saying(said), tools=shop.functions(), output_type=sell, capabilities=[AmendsCapability(rt)]
        )
        with pytest.raises(LookupError):
            await agent.run("please", run_id="r")
    assert shop.effects() == ["charge A1 500", "refund ch_A1"]


@on_a_loop
async def test_an_output_function_waits_for_a_person_outside_of_the_framework(shop: Shop) -> None:
    said: list[Turn] = [[("final_result", {"order": "A1"})]]
    tools = [amends.declare("sell", kind="pivot", needs_approval=True)]
    async with amends.AsyncRuntime(shop.url, tools=tools) as rt:
        agent: Any = Agent(model_saying(said), output_type=selling(shop), capabilities=[AmendsCapability(rt)])
        with pytest.raises(amends.Held):
            await agent.run("please", run_id="r")
        assert shop.effects() == []
        await approve(rt)
        assert (await agent.run("please", run_id="r")).output == Receipt(number="re_A1")
    assert shop.effects() == ["sell A1 500"]


@on_a_loop
async def test_an_undeclared_output_function_is_named_or_refused(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    said: list[Turn] = [[("charge", {"order": "A1", "cents": 500})], [("final_result", {"order": "A1"})]]
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        agent: Any = Agent(
            model_saying(said), tools=shop.functions(), output_type=selling(shop), capabilities=[AmendsCapability(rt)]
        )
        await agent.run("please", run_id="r1")
        await agent.run("please", run_id="r2")
        assert sum("amends cannot record sell" in one.message for one in caplog.records) == 1
        strict: Any = Agent(
            model_saying(said),
            tools=shop.functions(),
            output_type=ToolOutput(selling(shop)),
            capabilities=[AmendsCapability(rt, strict=True)],
        )
        with pytest.raises(amends.UsageError, match="cannot record sell"):
            await strict.run("please", run_id="r3")
        assert [run.id for run in shop.runs()] == ["r2", "r1"], "nothing was opened"


@on_a_loop
async def test_what_the_provider_or_the_program_executes_is_named(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    outside = ExternalToolset([ToolDefinition(name="pay_by_card")])
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        agent: Any = Agent(
            model_saying(["done"]),
            toolsets=[outside],
            output_type=[str, DeferredToolRequests],
            capabilities=[AmendsCapability(rt)],
        )
        await agent.run("please", run_id="r")
        assert sum("amends cannot record pay_by_card" in one.message for one in caplog.records) == 1
        strict: Any = Agent(
            model_saying(["done"]),
            toolsets=[outside],
            output_type=[str, DeferredToolRequests],
            capabilities=[AmendsCapability(rt, strict=True)],
        )
        with pytest.raises(amends.UsageError, match="cannot record pay_by_card"):
            await strict.run("please", run_id="s")


# ---- an agent as a tool --------------------------------------------------------------------


WIRES: list[Turn] = [[("charge", {"order": "A1", "cents": 5})], [wire("DE02", 4200_00)], "paid"]


def rewording(turns: Sequence[Turn]) -> FunctionModel:
    """A model that says everything in other words each time: another note, another iban."""
    plain, said = model_saying(turns), [0]

    def say(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        said[0] += 1
        assert plain.function is not None
        response: Any = plain.function(messages, info)
        for part in response.parts:
            if isinstance(part, ToolCallPart) and isinstance(part.args, dict) and "iban" in part.args:
                part.args = {**part.args, "iban": f"{part.args['iban']}-{said[0]}"}
        return response

    return FunctionModel(say)


async def approve_all(rt: amends.AsyncRuntime) -> int:
    asked = [one async for one in rt.approvals()]
    for one in asked:
        await rt.approve(one.id, digest=one.digest, by="anna")
    return len(asked)


def boss_of(rt: amends.AsyncRuntime, tools: Sequence[Any], turns: Sequence[Turn], shop: Shop) -> Any:
    more = [fn for fn in shop.functions() if fn.__name__ == "ship"]
    return Agent(
        model_saying(turns),
        tools=[*tools, *more],
        output_type=[str, DeferredToolRequests],
        capabilities=[AmendsCapability(rt)],
    )


ASKS: list[Turn] = [[("ask_payments", {"request": "pay"})], [("ship", {"order": "A1"})], "done"]


@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("pauses", [False, True])
@on_a_loop
async def test_a_sub_agent_waits_with_the_one_who_asked_and_reaches_its_pivot(
    shop: Shop, declared: bool, pauses: bool
) -> None:
    more = [amends.declare("ask_payments", kind="agent")] if declared else []
    async with amends.AsyncRuntime(shop.url, tools=[*shop.declared(), *more]) as rt:

        def boss() -> Any:
            output: Any = [str, DeferredToolRequests] if pauses else str
            payments: Any = Agent(
                rewording(WIRES), tools=shop.functions(), output_type=output, capabilities=[AmendsCapability(rt)]
            )

            async def ask_payments(request: str) -> str:
                """Ask the payments agent."""
                result = await payments.run(request)
                return str(result.output)

            return boss_of(rt, [ask_payments], ASKS, shop)

        paused = await boss().run("please", run_id="r")
        assert isinstance(paused.output, DeferredToolRequests)
        [call] = paused.output.approvals
        assert call.tool_name == "ask_payments"
        assert paused.output.metadata[call.tool_call_id]["run"] == "r"
        report = await rt.report("r")
        assert [report.state, *(child.state for child in report.children)] == ["open", "open"]
        messages = ModelMessagesTypeAdapter.validate_json(paused.all_messages_json())
        again = await boss().run(message_history=messages, deferred_tool_results=wake(messages))
        assert isinstance(again.output, DeferredToolRequests), "nobody has decided"
        assert await approve_all(rt) == 1
        done = await boss().run(message_history=messages, deferred_tool_results=wake(messages))
        assert done.output == "done"
        assert not [one async for one in rt.approvals()]
        report = await rt.report("r")
        assert [report.state, *(child.state for child in report.children)] == ["committed", "committed"]
        assert report.children[0].run.output == "paid"
    assert [one.partition(" ")[0] for one in shop.effects()] == ["charge", "wire", "ship"]


@pytest.mark.parametrize("pauses", [False, True])
@on_a_loop
async def test_a_sub_agent_that_the_program_denies_is_taken_back(shop: Shop, pauses: bool) -> None:
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:

        def boss() -> Any:
            output: Any = [str, DeferredToolRequests] if pauses else str
            payments: Any = Agent(
                rewording(WIRES), tools=shop.functions(), output_type=output, capabilities=[AmendsCapability(rt)]
            )

            async def ask_payments(request: str) -> str:
                """Ask the payments agent."""
                return str((await payments.run(request)).output)

            return boss_of(rt, [ask_payments], [ASKS[0], "never mind"], shop)

        paused = await boss().run("please", run_id="r")
        [call] = paused.output.approvals
        denied = DeferredToolResults(approvals={call.tool_call_id: ToolDenied("no")})
        done = await boss().run(message_history=paused.all_messages(), deferred_tool_results=denied)
        assert done.output == "never mind"
        assert not [one async for one in rt.approvals()]
        report = await rt.report("r")
        assert [report.state, *(child.state for child in report.children)] == ["committed", "rolled_back"]
    assert [one.partition(" ")[0] for one in shop.effects()] == ["charge", "refund"]


@on_a_loop
async def test_two_sub_agents_in_one_message_have_a_pivot_each(shop: Shop) -> None:
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:

        def pays(iban: str) -> Any:
            return Agent(
                model_saying([[wire(iban, 4200_00)], f"paid {iban}"]),
                tools=shop.functions(),
                capabilities=[AmendsCapability(rt)],
            )

        first, second = pays("AA"), pays("BB")

        async def ask_a(request: str) -> str:
            return str((await first.run(request)).output)

        async def ask_b(request: str) -> str:
            return str((await second.run(request)).output)

        asks: list[Turn] = [[("ask_a", {"request": "x"}), ("ask_b", {"request": "x"})], "done"]
        boss = boss_of(rt, [ask_a, ask_b], asks, shop)
        paused = await boss.run("please", run_id="r")
        assert len(paused.output.approvals) == 2
        assert await approve_all(rt) == 2
        messages = paused.all_messages()
        done = await boss.run(message_history=messages, deferred_tool_results=wake(messages))
        assert done.output == "done"
    assert sorted(shop.effects()) == ["wire AA 420000", "wire BB 420000"]
    assert shop.states() == ["committed"]


@on_a_loop
async def test_a_no_is_told_to_the_sub_agent(shop: Shop) -> None:
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        payments: Any = Agent(
            model_saying([[wire("DE02", 4200_00)], "then not"]),
            tools=shop.functions(),
            capabilities=[AmendsCapability(rt)],
        )

        async def ask_payments(ctx: RunContext[None], request: str) -> str:
            result = await payments.run(request, usage=ctx.usage, deps=ctx.deps)
            return result.output.strip()

        boss = boss_of(rt, [ask_payments], [ASKS[0], "done"], shop)
        paused = await boss.run("please", run_id="r")
        [asked] = [one async for one in rt.approvals()]
        await rt.reject(asked.id, by="anna", reason="wrong payee")
        messages = paused.all_messages()
        done = await boss.run(message_history=messages, deferred_tool_results=wake(messages))
        assert "then not" in str(done.all_messages())
        assert (await rt.report("r")).children[0].run.output == "then not"
    assert (shop.effects(), shop.states()) == ([], ["committed"])


@on_a_loop
async def test_a_sub_agent_of_a_sub_agent_waits_too(shop: Shop) -> None:
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        clerk: Any = Agent(rewording(WIRES), tools=shop.functions(), capabilities=[AmendsCapability(rt)])

        async def ask_clerk(request: str) -> str:
            return str((await clerk.run(request)).output)

        middle: Any = Agent(
            model_saying([[("ask_clerk", {"request": "x"})], "ok"]),
            tools=[ask_clerk],
            capabilities=[AmendsCapability(rt)],
        )

        async def ask_payments(request: str) -> str:
            return str((await middle.run(request)).output)

        boss = boss_of(rt, [ask_payments], [ASKS[0], "done"], shop)
        paused = await boss.run("please", run_id="r")
        assert isinstance(paused.output, DeferredToolRequests)
        assert await approve_all(rt) == 1
        messages = paused.all_messages()
        done = await boss.run(message_history=messages, deferred_tool_results=wake(messages))
        assert done.output == "done"
        assert not [one async for one in rt.approvals()]
    assert [one.partition(" ")[0] for one in shop.effects()] == ["charge", "wire"]
    assert shop.states() == ["committed"]


@on_a_loop
async def test_a_sub_agent_that_fails_is_taken_back(shop: Shop) -> None:
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        payments: Any = Agent(
            model_saying([WIRES[0], Fails("the model is down")]),
            tools=shop.functions(),
            capabilities=[AmendsCapability(rt)],
        )

        async def ask_payments(request: str) -> str:
            try:
                return str((await payments.run(request)).output)
            except RuntimeError as error:
                raise ModelRetry("it is down") from error

        boss = boss_of(rt, [ask_payments], [ASKS[0], "sorry"], shop)
        done = await boss.run("please", run_id="r")
        assert done.output == "sorry"
        report = await rt.report("r")
        assert [report.state, *(child.state for child in report.children)] == ["committed", "rolled_back"]
    assert shop.effects() == ["charge A1 5", "refund ch_A1"]


@on_a_loop
async def test_a_tool_that_might_do_more_than_run_an_agent_still_needs_a_person(shop: Shop) -> None:
    done: list[str] = []
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        payments: Any = Agent(model_saying(["ok"]), tools=shop.functions(), capabilities=[AmendsCapability(rt)])
        bare: Any = Agent(model_saying(["ok"]), tools=shop.functions())

        def post(text: str) -> None:
            done.append(text)

        async def calls_more(request: str) -> str:
            post(request)
            return str((await payments.run(request)).output)

        async def changes_more(request: str) -> str:
            done.append(request)
            return str((await payments.run(request)).output)

        async def renames(request: str) -> str:
            send = post
            send(request)
            return str((await payments.run(request)).output)

        async def uses_context(ctx: RunContext[Any], request: str) -> str:
            ctx.deps.append(request)
            return str((await payments.run(request)).output)

        async def imports(request: str) -> str:
            import builtins

            builtins.print(request)
            return str((await payments.run(request)).output)

        async def unguarded(request: str) -> str:
            return str((await bare.run(request)).output)

        for fn in (calls_more, changes_more, renames, uses_context, imports, unguarded):
            boss = boss_of(rt, [fn], [[(fn.__name__, {"request": "x"})], "done"], shop)
            paused = await boss.run("please", deps=done)
            assert isinstance(paused.output, DeferredToolRequests), fn.__name__
            assert "nobody has declared this tool" in str(paused.output.metadata), fn.__name__
    assert done == []


@on_a_loop
async def test_what_a_sub_agents_model_said_is_not_recorded_if_a_tool_redacts_it(shop: Shop) -> None:
    paid: list[str] = []

    def pay(card: str) -> str:
        paid.append(card)
        return "paid"

    async with amends.AsyncRuntime(
        shop.url, tools=[amends.declare("pay", kind="pivot", redact=["card"], needs_approval=True)]
    ) as rt:
        payments: Any = Agent(
            model_saying([[("pay", {"card": "4111-1111-1111"})], "paid"]),
            tools=[pay],
            capabilities=[AmendsCapability(rt)],
        )

        async def ask_payments(request: str) -> str:
            return str((await payments.run(request)).output)

        boss = boss_of(rt, [ask_payments], [ASKS[0], "done"], shop)
        paused = await boss.run("please", run_id="r")
        assert await approve_all(rt) == 1
        messages = paused.all_messages()
        done = await boss.run(message_history=messages, deferred_tool_results=wake(messages))
        assert done.output == "done"
    assert paid == ["4111-1111-1111"]
    assert b"4111-1111" not in b"".join(one.read_bytes() for one in shop.folder.glob("ledger.db*"))


@on_a_loop
async def test_a_sub_agent_is_replayed_with_what_its_model_said(shop: Shop) -> None:
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        payments: Any = Agent(
            rewording([[wire("DE02", 5)], "paid"]), tools=shop.functions(), capabilities=[AmendsCapability(rt)]
        )

        async def ask_payments(request: str) -> str:
            return str((await payments.run(request)).output)

        boss = boss_of(rt, [ask_payments], [ASKS[0], "done"], shop)
        await boss.run("please", run_id="r")
        effects = shop.effects()
        replayed = await rt.replay("r", boss.run, "please", run_id="r")
        assert replayed.output == "done"
    assert shop.effects() == effects


@pytest.mark.rest
@on_a_loop
async def test_a_sub_agent_that_paused_is_replayed(shop: Shop) -> None:
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        payments: Any = Agent(rewording(WIRES), tools=shop.functions(), capabilities=[AmendsCapability(rt)])

        async def ask_payments(request: str) -> str:
            return str((await payments.run(request)).output)

        boss = boss_of(rt, [ask_payments], [ASKS[0], "done"], shop)
        messages = (await boss.run("please", run_id="r")).all_messages()
        assert await approve_all(rt) == 1
        woken = {"message_history": messages, "deferred_tool_results": wake(messages)}
        assert (await boss.run(**woken)).output == "done"
        effects = shop.effects()
        replayed = await rt.replay("r", boss.run, **woken)
        assert replayed.output == "done"
    assert shop.effects() == effects


@on_a_loop
async def test_a_stop_while_a_sub_agent_works_suspends_both_and_they_go_on(shop: Shop) -> None:
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        reached = asyncio.Event()
        said: list[Turn] = [[("charge", {"order": "A1", "cents": 5})], [("mail", {"to": "ann"})], "charged"]
        plain = model_saying(said)

        async def say(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            if not reached.is_set() and sum(isinstance(one, ModelResponse) for one in messages) == 2:
                reached.set()
                await asyncio.Event().wait()
            assert plain.function is not None
            response: Any = plain.function(messages, info)
            return response  # type: ignore[no-any-return]

        payments: Any = Agent(FunctionModel(say), tools=shop.functions(), capabilities=[AmendsCapability(rt)])

        async def ask_payments(request: str) -> str:
            return str((await payments.run(request)).output)

        boss = boss_of(rt, [ask_payments], [ASKS[0], "done"], shop)
        task = asyncio.create_task(boss.run("please", run_id="r"))
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        report = await rt.report("r")
        assert [report.state, *(child.state for child in report.children)] == ["open", "open"]
        assert shop.effects() == ["charge A1 5"], "nothing staged has started, nothing was taken back"
        assert [item.what for item in await rt.inbox()] == ["suspended"]
        assert await rt.recover() == []
        assert (await boss.run("please", run_id="r")).output == "done"
        report = await rt.report("r")
        assert [report.state, *(child.state for child in report.children)] == ["committed", "committed"]
    assert shop.effects() == ["charge A1 5", "mail ann"]


# ---- what else the framework has


@pytest.mark.rest
@on_a_loop
async def test_tools_are_recorded_by_the_name_that_their_toolset_gives_them(shop: Shop) -> None:
    base: Any = FunctionToolset([one for one in shop.functions() if one.__name__ in ("charge", "wire")])
    tools = [
        amends.declare("shop_charge", kind="pivot", key="order"),
        amends.declare("take", kind="pivot", key="order"),
    ]
    async with amends.AsyncRuntime(shop.url, tools=tools) as rt:
        for name, toolset in {
            "shop_charge": CombinedToolset([base.prefixed("shop")]),
            "take": base.renamed({"take": "charge"}).filtered(lambda ctx, one: one.name == "take"),
        }.items():
            asked: list[Turn] = [[(name, {"order": "A1", "cents": said})] for said in (5, "5")]
            agent: Any = Agent(model_saying([*asked, "ok"]), toolsets=[toolset], capabilities=[AmendsCapability(rt)])
            await agent.run("please", run_id=name)
            assert [call.tool for call in (await rt.report(name)).calls] == [name]
    assert shop.effects() == ["charge A1 5"] * 2


@on_a_loop
async def test_a_tool_that_has_the_name_of_an_agent_is_none(shop: Shop) -> None:
    """Two tools swap their names: which function it is decides, not what it is called."""
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        payments: Any = Agent(model_saying(["ok"]), capabilities=[AmendsCapability(rt)])

        async def ask_payments(request: str) -> str:
            return str((await payments.run(request)).output)

        def erase(request: str) -> str:
            shop._line("effects", f"erase {request}")
            return "erased"

        toolset: Any = FunctionToolset([ask_payments, erase]).renamed({"ask_payments": "erase", "ask": "ask_payments"})
        agent: Any = Agent(
            model_saying([[("ask_payments", {"request": "all"})], [("ask", {"request": "x"})], "done"]),
            toolsets=[toolset],
            output_type=[str, DeferredToolRequests],
            capabilities=[AmendsCapability(rt)],
        )
        paused = await agent.run("please", run_id="r")
        assert isinstance(paused.output, DeferredToolRequests), "nobody has declared it"
    assert shop.effects() == []


@pytest.mark.rest
@on_a_loop
async def test_who_replaces_the_tools_for_a_while_replaces_guarded_ones(shop: Shop) -> None:
    twice: list[Turn] = [CHARGED[0], CHARGED[0], "charged"]
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        agent: Any = Agent(model_saying(["x"]), capabilities=[AmendsCapability(rt)])
        with agent.override(model=model_saying(twice), tools=shop.functions()):
            await agent.run("please", run_id="overridden")
        await agent.run(
            "please", run_id="added", model=model_saying(twice), toolsets=[FunctionToolset(shop.functions())]
        )
    assert shop.effects() == ["charge A1 500"] * 2


@pytest.mark.rest
@pytest.mark.parametrize("limit", [{"request_limit": 2}, {"tool_calls_limit": 2}])
@on_a_loop
async def test_a_limit_in_the_middle_of_a_turn_takes_it_back_and_the_id_can_be_used_again(
    shop: Shop, limit: dict[str, int]
) -> None:
    turns: list[Turn] = [
        [("charge", {"order": "A1", "cents": 500})],
        [("charge", {"order": "A2", "cents": 700})],
        [("charge", {"order": "A3", "cents": 900})],
        "done",
    ]
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        agent = clerk(rt, shop, turns)
        with pytest.raises(UsageLimitExceeded):
            await agent.run("please", run_id="r", usage_limits=UsageLimits(**limit))  # type: ignore[arg-type]
        assert shop.effects() == ["charge A1 500", "charge A2 700", "refund ch_A2", "refund ch_A1"]
        assert (await agent.run("please", run_id="r")).output == "done"
    assert shop.effects()[4:] == ["charge A1 500", "charge A2 700", "charge A3 900"]
    assert shop.states() == ["rolled_back", "committed"]


@pytest.mark.rest
@pytest.mark.parametrize("kept", [list, without_ids])
@on_a_loop
async def test_a_history_that_was_cut_finds_its_run(
    shop: Shop, kept: Callable[[list[ModelMessage]], list[ModelMessage]]
) -> None:
    turns: list[Turn] = [[("charge", {"order": "A1", "cents": 500})], *WIRED]
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        paused = await clerk(rt, shop, turns).run("pay", run_id="job")
        messages = kept(paused.all_messages()[-2:])
        assert not any(isinstance(part, UserPromptPart) for one in messages for part in one.parts)
        await approve(rt)
        done = await clerk(rt, shop, WIRED).run(message_history=messages, deferred_tool_results=wake(messages))
        assert done.output == "sent"
    assert shop.effects() == ["charge A1 500", "wire DE02 420000"]
    assert [(run.id, run.state) for run in shop.runs()] == [("job", "committed")]


@pytest.mark.rest
@on_a_loop
async def test_events_are_streamed_and_who_stops_reading_suspends(shop: Shop) -> None:
    async def say(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        if any(isinstance(message, ModelResponse) for message in messages):
            yield "charged"
        else:
            yield {0: DeltaToolCall("charge", '{"order": "A1", "cents": 500}', tool_call_id="call_1")}

    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        agent: Any = Agent(
            FunctionModel(stream_function=say), tools=shop.functions(), capabilities=[AmendsCapability(rt)]
        )
        async with agent.run_stream_events("please", run_id="r") as events:
            async for _ in events:
                if shop.effects():
                    break
        assert (await rt.report("r")).state == "open"
        async with agent.run_stream_events("please", run_id="r") as events:
            async for _ in events:
                pass
        assert (await rt.report("r")).state == "committed"
    assert shop.effects() == ["charge A1 500"]


@pytest.mark.rest
@on_a_loop
async def test_the_same_turn_twice_at_once_has_its_effects_once(shop: Shop) -> None:
    async with amends.AsyncRuntime(shop.url, tools=shop.declared()) as rt:
        agent = clerk(rt, shop, CHARGED)
        await asyncio.gather(agent.run("x", run_id="r"), agent.run("x", run_id="r"), return_exceptions=True)
        async with rt.run("together"):
            await asyncio.gather(agent.run("x"), agent.run("y"))
    assert shop.effects() == ["charge A1 500"] * 2

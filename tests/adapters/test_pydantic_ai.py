"""Pydantic AI through the conformance suite, and what is its own: the toolset, delegation, its control flow."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pydantic_ai import Agent, ModelRetry, RunContext
from pydantic_ai.exceptions import ApprovalRequired
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
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel
from pydantic_ai.tools import DeferredToolRequests
from pydantic_ai.toolsets import FunctionToolset

import amends
from amends.adapters.pydantic_ai import AmendsCapability, AmendsToolset, wake
from amends.errors import NOT_FINISHED, NoRun, RunEnded
from tests.adapters.conformance import Conformance, Fails, Outcome, SupervisorConformance, Turn, asks_clerk, wire
from tests.adapters.loops import on_a_loop
from tests.adapters.shop import Shop


class PydanticAIHarness:
    """The conversation is a file of messages; a turn that was killed is begun again under its run id."""

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

    def agent(self, rt: amends.AsyncRuntime, shop: Shop, turns: Sequence[Turn], *more: Any) -> Any:
        return Agent(
            model_saying(turns),
            tools=[*(_correctable(fn) for fn in shop.functions()), *more],
            output_type=[str, DeferredToolRequests],
            capabilities=[AmendsCapability(rt, options=shop.options)],
        )


class PydanticAISupervisor(PydanticAIHarness):
    """The clerk is a tool of another agent."""

    def agent(self, rt: amends.AsyncRuntime, shop: Shop, turns: Sequence[Turn], *more: Any) -> Any:
        clerk = super().agent(rt, shop, turns)

        async def ask_clerk(request: str) -> str:
            """Ask the clerk."""
            result = await clerk.run(request)
            return str(result.output)

        return super().agent(rt, shop, asks_clerk("request"), ask_clerk)


class TestPydanticAI(Conformance):
    harness = PydanticAIHarness()


class TestPydanticAISupervisor(SupervisorConformance):
    __test__ = True
    harness = PydanticAISupervisor()


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
        done = await agent.run(message_history=messages, deferred_tool_results=wake(messages))
        assert done.output == "done"
    assert shop.states() == ["committed"]


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

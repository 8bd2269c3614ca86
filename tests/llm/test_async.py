"""The same with the async clients, in async runs and in blocking ones."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import openai as openai_sdk
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

import amends
from amends import AsyncRuntime, Runtime, tool
from amends.errors import NoRun
from amends.llm import record
from tests.llm.conftest import CLAUDE, GPT, SAID, chat, messages, responses
from tests.llm.server import TEXT, Server
from tests.llm.test_streams import check_broken_off

Asking = Callable[..., Awaitable[Any]]

# A stream that is dropped leaves the SDK's own generators to the collector, which may find one still at work.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def what_was_dropped_is_collected_here() -> Iterator[None]:
    yield
    gc.collect()


def with_clients(server: Server, api: str, program: Callable[[AsyncRuntime, Asking], Awaitable[None]]) -> None:
    """Run a program with an async runtime, and with how to ask a recorded client in this wire format."""

    async def main() -> None:
        async with AsyncOpenAI(**server.openai) as openai, AsyncAnthropic(**server.anthropic) as anthropic:
            client: Any = record(anthropic if api == "messages" else openai)
            apis: dict[str, Any] = {"chat.completions": chat, "responses": responses, "messages": messages}

            async def ask(*, options: dict[str, Any] | None = None, **more: Any) -> Any:
                return await apis[api](client if options is None else client.with_options(**options), **more)

            async with AsyncRuntime("memory:") as rt:
                await program(rt, ask)

    asyncio.run(main())


async def only(rt: AsyncRuntime, run_id: str = "r") -> amends.Call:
    [call] = (await rt.report(run_id)).calls
    return call


async def read_some(stream: Any) -> None:
    events = aiter(stream)
    for _ in range(5):
        await anext(events)


def test_a_request_is_recorded(server: Server, api: str) -> None:
    async def program(rt: AsyncRuntime, ask: Asking) -> None:
        async with rt.run("r"):
            await ask()
        call = await only(rt)
        assert (call.kind, call.state, call.result["tokens"]["total"]) == ("read", "succeeded", 1200)
        assert call.args["api"] == api

    with_clients(server, api, program)


def test_a_stream_is_recorded(server: Server, api: str) -> None:
    async def program(rt: AsyncRuntime, ask: Asking) -> None:
        async with rt.run("r"):
            seen = [event async for event in await ask(stream=True)]
        call = await only(rt)
        assert len(seen) > 5
        assert (call.state, call.result["complete"], call.result["tokens"]["total"]) == ("succeeded", True, 1200)

    with_clients(server, api, program)


def test_parallel_requests_are_calls_of_their_own(server: Server, api: str) -> None:
    async def program(rt: AsyncRuntime, ask: Asking) -> None:
        async with rt.run("r"):
            await asyncio.gather(*(ask() for _ in range(5)))
        assert [call.state for call in (await rt.report("r")).calls] == ["succeeded"] * 5

    with_clients(server, api, program)


def test_a_closed_stream_settles_what_is_known(server: Server, api: str) -> None:
    async def program(rt: AsyncRuntime, ask: Asking) -> None:
        async with rt.run("r") as run:
            async with await ask(stream=True) as stream:
                await read_some(stream)
            check_broken_off((await run.report()).calls[0], api)

    with_clients(server, api, program)


def test_a_dropped_stream_settles_what_is_known(server: Server, api: str) -> None:
    async def program(rt: AsyncRuntime, ask: Asking) -> None:
        async with rt.run("r"):
            stream = await ask(stream=True)
            await read_some(stream)
            del stream
            gc.collect()
        check_broken_off(await only(rt), api)

    with_clients(server, api, program)


def test_a_stream_that_is_open_when_the_run_is_left_settles_what_is_known(server: Server, api: str) -> None:
    async def program(rt: AsyncRuntime, ask: Asking) -> None:
        async with rt.run("r"):
            stream = await ask(stream=True)
            await read_some(stream)
        check_broken_off(await only(rt), api)
        await stream.close()

    with_clients(server, api, program)


def test_a_stream_that_another_task_still_reads_is_waited_for(server: Server, api: str) -> None:
    async def program(rt: AsyncRuntime, ask: Asking) -> None:
        async def read() -> int:
            return len([event async for event in await ask(stream=True)])

        async with rt.run("r") as run:
            reading = run.submit(read)
            while not (await run.report()).calls:
                await asyncio.sleep(0)
        assert reading.done()
        assert (await only(rt)).result["complete"] is True

    with_clients(server, api, program)


def test_a_stream_that_is_open_when_the_run_is_taken_back_settles_what_is_known(server: Server, api: str) -> None:
    async def program(rt: AsyncRuntime, ask: Asking) -> None:
        with pytest.raises(amends.RolledBack):
            async with rt.run("r") as run:
                stream = await ask(stream=True)
                await read_some(stream)
                await run.rollback("enough")
        check_broken_off(await only(rt), api)
        await stream.close()

    with_clients(server, api, program)


def test_a_cancelled_request_is_a_failed_read(server: Server, api: str) -> None:
    async def program(rt: AsyncRuntime, ask: Asking) -> None:
        async with rt.run("r"):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await ask(model="silent")
        assert (await only(rt)).state == "failed"
        assert (await rt.report("r")).state == "committed"

    with_clients(server, api, program)


def test_a_stream_that_is_cancelled_midway_is_a_failed_read(server: Server, api: str) -> None:
    async def program(rt: AsyncRuntime, ask: Asking) -> None:
        async with rt.run("r"):
            stream = await ask(model="waits", stream=True)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    async for _ in stream:
                        pass
        assert (await only(rt)).state == "failed"

    with_clients(server, api, program)


def test_errors_and_timeouts_come_out_as_themselves(server: Server) -> None:
    async def program(rt: AsyncRuntime, ask: Asking) -> None:
        async with rt.run("r"):
            with pytest.raises(openai_sdk.BadRequestError):
                await ask(model="fails-400")
            with pytest.raises(openai_sdk.APITimeoutError):
                await ask(model="silent", options={"timeout": 0.1})
            with pytest.raises(openai_sdk.APIConnectionError):
                async for _ in await ask(model="breaks", stream=True):
                    pass
        assert [call.state for call in (await rt.report("r")).calls] == ["failed"] * 3

    with_clients(server, "chat.completions", program)


def test_outside_a_run_nothing_is_sent(server: Server, api: str) -> None:
    async def program(rt: AsyncRuntime, ask: Asking) -> None:
        with pytest.raises(NoRun):
            await ask()

    with_clients(server, api, program)
    assert server.asked == []


def test_raw_responses_and_helpers_are_as_they_were(server: Server) -> None:
    async def main() -> None:
        async with AsyncOpenAI(**server.openai) as openai, AsyncAnthropic(**server.anthropic) as anthropic:
            async with AsyncRuntime("memory:") as rt, rt.run("r"):
                raw = await record(openai).chat.completions.with_raw_response.create(model=GPT, messages=SAID)
                assert raw.parse().choices[0].message.content == TEXT
                async with record(openai).responses.with_streaming_response.create(model=GPT, input="?") as late:
                    assert (await late.parse()).output_text == TEXT
                async with record(openai).responses.stream(model=GPT, input="?") as events:
                    assert (await events.get_final_response()).output_text == TEXT
                async with record(anthropic).messages.stream(model=CLAUDE, max_tokens=9, messages=SAID) as stream:
                    assert await stream.get_final_text() == TEXT
                report = await amends.current_run().report()
                assert [call.result["tokens"]["total"] for call in report.calls] == [1200] * 4

    asyncio.run(main())


def test_an_ended_run_is_answered_from_its_record(server: Server, api: str) -> None:
    async def program(rt: AsyncRuntime, ask: Asking) -> None:
        async with rt.run("r"):
            first = await ask()
        async with rt.run("r"):
            again = await ask()
        assert again.to_dict() == first.to_dict()

    with_clients(server, api, program)
    assert len(server.asked) == 1


def test_an_async_client_works_in_a_blocking_run(server: Server, api: str) -> None:
    async def once() -> None:
        async with AsyncOpenAI(**server.openai) as openai, AsyncAnthropic(**server.anthropic) as anthropic:
            apis: dict[str, Any] = {"chat.completions": chat, "responses": responses, "messages": messages}
            client: Any = record(anthropic if api == "messages" else openai)
            await apis[api](client)
            assert [event async for event in await apis[api](client, stream=True)]
            async with await apis[api](client, stream=True) as stream:
                await read_some(stream)
            with pytest.raises(Exception, match="refused 400"):
                await apis[api](client, model="fails-400")

    @tool(kind="read")
    async def summarise() -> None:
        await once()

    with Runtime("memory:", tools=[summarise]) as rt:
        with rt.run("r") as run:
            run.call(summarise)
            asyncio.run(once())
        outer, *inner = rt.report("r").calls
    assert [call.state for call in inner] == ["succeeded", "succeeded", "succeeded", "failed"] * 2
    assert [call.parent for call in inner] == [outer.id] * 4 + [None] * 4

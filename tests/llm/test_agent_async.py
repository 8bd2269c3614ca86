"""The agent loop with the async runtime and the async clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import ollama
import pytest
from anthropic import AsyncAnthropic
from google import genai
from openai import AsyncOpenAI, OpenAI

from amends import AsyncRuntime, Runtime, UsageError, tool
from amends.llm import Finished, ModelServer, ScriptedModel, run_agent_async
from tests.llm.shop import World, tools_of
from tests.llm.test_agent import BACK, BIG, CHARGE, KINDS, SHIP, effects, told

Agent = Callable[..., Awaitable[Finished]]


@asynccontextmanager
async def client_of(kind: str, model: ScriptedModel) -> AsyncIterator[tuple[Any, Any]]:
    if kind == "script":
        yield model, None
        return
    if kind == "generate_content":
        with ModelServer(model) as server:
            http: Any = {**server.gemini["http_options"], "httpx_async_client": httpx2.AsyncClient(verify=False)}
            with genai.Client(**{**server.gemini, "http_options": http}) as gemini:
                yield gemini, kind
                await http["httpx_async_client"].aclose()
        return
    if kind == "chat":
        with ModelServer(model) as server:
            async with ollama.AsyncClient(**server.ollama, verify=False) as local:
                yield local, kind
        return
    with ModelServer(model) as server:
        made: Any = AsyncAnthropic if kind == "messages" else AsyncOpenAI
        given = server.anthropic if kind == "messages" else server.openai
        async with made(**given, http_client=httpx2.AsyncClient(verify=False)) as client:
            yield client, kind


def agent_of(rt: AsyncRuntime, kind: str) -> Agent:
    async def run(*turns: Any, **more: Any) -> Finished:
        model = turns[0] if isinstance(turns[0], ScriptedModel) else ScriptedModel(*turns)
        async with client_of(kind, model) as (client, api):
            return await run_agent_async(rt, "Ship order 7.", client=client, model="gpt-4o-mini", api=api, **more)

    return run


@pytest.fixture(params=KINDS, ids=lambda kind: kind.replace(".", "-"))
def play(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., World]:
    """Plays an async program with a runtime and an agent."""

    def playing(program: Callable[[AsyncRuntime, Agent], Awaitable[None]]) -> World:
        world = World(tmp_path)

        async def main() -> None:
            async with AsyncRuntime("memory:", tools=tools_of(world)) as rt:
                await program(rt, agent_of(rt, request.param))

        asyncio.run(main())
        return world

    return playing


def test_a_model_gets_real_results_and_its_run_commits(play: Any) -> None:
    async def program(rt: AsyncRuntime, agent: Agent) -> None:
        done = await agent([("balance", {"account": "a"}), CHARGE], [SHIP, ("mail", {"to": "ada"})], "On its way.")
        assert (done.outcome, done.text, done.turns, done.state) == ("done", "On its way.", 3, "committed")
        assert told(done)[:3] == ["9000", '{"id":"ch_7"}', '"parcel_7"']

    assert effects(play(program)) == ["charge 7", "ship 7", "mail ada"]


def test_what_the_model_says_is_streamed_to_a_coroutine_too(play: Any) -> None:
    async def program(rt: AsyncRuntime, agent: Agent) -> None:
        pieces: list[str] = []

        async def hear(piece: str) -> None:
            pieces.append(piece)

        done = await agent(["Let me see. ", CHARGE], "All is well.", on_text=hear)
        assert ("".join(pieces), done.text) == ("Let me see. All is well.", "All is well.")
        await agent("Hello.", on_text=pieces.append)
        assert pieces[-1] == "Hello."

    play(program)


def test_a_held_call_lets_the_run_go_and_the_same_id_goes_on(play: Any) -> None:
    async def program(rt: AsyncRuntime, agent: Agent) -> None:
        done = await agent(*BIG, "Shipped.", id="o-7")
        assert (done.outcome, done.state, done.turns) == ("waiting", "open", 2)
        [held] = done.waiting
        await rt.approve(held.approval.id, digest=held.approval.digest, by="ada")
        again = await agent(*BIG, "Shipped.", id="o-7")
        assert (again.outcome, again.text, again.turns) == ("done", "Shipped.", 3)
        assert told(again) == ['{"id":"ch_big"}', '"parcel_big"', '"r_box"']
        assert (await agent("Something else.", id="o-7")).text == "Shipped."

    assert effects(play(program)) == ["charge big", "reserve box", "ship big"]


def test_too_many_turns_and_a_models_wish_take_back(play: Any) -> None:
    async def program(rt: AsyncRuntime, agent: Agent) -> None:
        done = await agent(CHARGE, "Done.", max_turns=1)
        assert (done.outcome, done.state) == ("max_turns", "rolled_back")
        done = await agent(CHARGE, BACK, may_roll_back=True)
        assert (done.outcome, done.state) == ("rolled_back", "rolled_back")
        done = await agent(CHARGE, SHIP, BACK, "Gone.", may_roll_back=True)
        assert (done.outcome, done.state) == ("done", "committed")

    assert effects(play(program)) == ["charge 7", "refund ch_7", "charge 7", "refund ch_7", "charge 7", "ship 7"]


def test_the_calls_of_one_turn_run_side_by_side() -> None:
    met = asyncio.Event()

    @tool(kind="read")
    async def wait() -> str:
        await asyncio.wait_for(met.wait(), 20)
        return "met"

    @tool(kind="read")
    async def meet() -> str:
        met.set()
        return "met"

    async def main() -> None:
        async with AsyncRuntime("memory:", tools=[wait, meet]) as rt:
            done = await agent_of(rt, "script")([("wait", {}), ("meet", {})], "Done.")
            assert told(done) == ['"met"', '"met"']

    asyncio.run(main())


def test_what_has_the_other_colour_is_refused() -> None:
    async def main() -> None:
        async with AsyncRuntime("memory:") as rt:
            with pytest.raises(UsageError, match="run_agent"):
                await run_agent_async(rt, "Hi.", client=OpenAI(api_key="x"), model="m")
            with pytest.raises(UsageError, match="run_agent"):
                await run_agent_async(Runtime("memory:"), "Hi.", client=ScriptedModel("x"), model="m")  # type: ignore[arg-type]

    asyncio.run(main())

"""The loop of amends itself: with a scripted model, and with the clients of Gemini and Ollama, which have no agent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ollama
import pytest
from google import genai

import amends
from amends.errors import Suspended
from amends.llm import Finished, ModelServer, Reply, ScriptedModel, run_agent, run_agent_async
from amends.llm.wire import Api
from tests.adapters.conformance import Conformance, Outcome, RichResults, SameRequest, Stopped, Turn, TwoRuntimes
from tests.adapters.sdks import Played, run_id, script_of
from tests.adapters.shop import Shop

pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")

LLAMA = "llama3.2"


class RunAgentHarness:
    """``run_agent`` with a scripted model instead of a client."""

    api: Api = "chat.completions"
    model = "gpt-4o-mini"

    @contextmanager
    def client(self, model: ScriptedModel) -> Iterator[Any]:
        yield model

    def drive(self, shop: Shop, turns: Sequence[Turn], *, thread: str = "t1", resume: bool = False) -> Outcome:
        script = script_of(turns)
        played = Played(self.api, script)
        with (
            self.client(script) as client,
            amends.Runtime(shop.url, tools=declared(shop)) as rt,
            played.watched(),
        ):
            rt.reach(bodies(shop))
            tags, id = (f"thread:{thread}",), run_id(shop, thread, resume=resume)
            done = run_agent(rt, "Do it.", client=client, model=self.model, id=id, tags=tags, **shop.options)
            _note(played, done, id)
        return played.outcome

    def stop(self, shop: Shop, turns: Sequence[Turn], *, after: int) -> None:
        enough = _Enough(turns, after)
        with (
            self.client(script_of(_thinking(turns))) as client,
            amends.Runtime(shop.url, tools=declared(shop)) as rt,
            pytest.raises(Suspended),
        ):
            rt.reach(bodies(shop))
            id = run_id(shop, "t1", resume=False)
            run_agent(rt, "Do it.", client=client, model=self.model, id=id, tags=("thread:t1",), on_text=enough.hear)


class GeminiHarness(RunAgentHarness):
    """The same with a client of Gemini."""

    api: Api = "generate_content"
    model = "gemini-3.8-flash"

    @contextmanager
    def client(self, model: ScriptedModel) -> Iterator[Any]:
        with ModelServer(model) as server, genai.Client(**server.gemini) as client:
            yield client


class OllamaHarness:
    """``run_agent_async`` with a client of Ollama."""

    def drive(self, shop: Shop, turns: Sequence[Turn], *, thread: str = "t1", resume: bool = False) -> Outcome:
        return asyncio.run(self._drive(shop, turns, thread, resume))

    async def _drive(self, shop: Shop, turns: Sequence[Turn], thread: str, resume: bool) -> Outcome:
        model = script_of(turns)
        played = Played("chat", model)
        with ModelServer(model) as server, played.watched():
            async with (
                ollama.AsyncClient(**server.ollama) as client,
                amends.AsyncRuntime(shop.url, tools=declared(shop)) as rt,
            ):
                rt.reach(bodies(shop))
                tags, id = (f"thread:{thread}",), run_id(shop, thread, resume=resume)
                done = await run_agent_async(rt, "Do it.", client=client, model=LLAMA, id=id, tags=tags, **shop.options)
                _note(played, done, id)
        return played.outcome

    def stop(self, shop: Shop, turns: Sequence[Turn], *, after: int) -> None:
        asyncio.run(self._stop(shop, turns, after))

    async def _stop(self, shop: Shop, turns: Sequence[Turn], after: int) -> None:
        model, enough = script_of(_thinking(turns)), _Enough(turns, after)
        with ModelServer(model) as server, pytest.raises(Suspended):
            async with (
                ollama.AsyncClient(**server.ollama) as client,
                amends.AsyncRuntime(shop.url, tools=declared(shop)) as rt,
            ):
                rt.reach(bodies(shop))
                options: Any = {"id": run_id(shop, "t1", resume=False), "tags": ("thread:t1",), "on_text": enough.hear}
                await run_agent_async(rt, "Do it.", client=client, model=LLAMA, **options)


class _Enough:
    """Whoever reads the text of the model stops when it goes on after so many results."""

    def __init__(self, turns: Sequence[Turn], after: int) -> None:
        self._counts = [len(turn) if isinstance(turn, list) else 0 for turn in turns]
        self._after, self._heard = after, 0

    def hear(self, text: str) -> None:
        if sum(self._counts[: self._heard]) >= self._after:
            raise Suspended("the user pressed Stop")
        self._heard += 1


def _thinking(turns: Sequence[Turn]) -> list[Any]:
    """The same turns with a word before each call: what is streamed to whoever reads."""
    return [Reply("Hm.", turn) if isinstance(turn, list) else turn for turn in turns]


def declared(shop: Shop) -> list[Any]:
    """The tools of the shop; one that nobody declared would not be offered to the model."""
    return [*shop.declared(), amends.declare("stamp", compensate=print, needs_approval=True)]


def bodies(shop: Shop) -> dict[str, Any]:
    return {one.__name__: one for one in shop.functions() if not hasattr(one, "__amends__")}


def _note(played: Played, done: Finished, id: str) -> None:
    assert done.run_id == id
    if done.outcome == "waiting":
        played.how = "paused"
    elif done.outcome != "done":
        played.how, played.error = "failed", done.why


class TestRunAgent(Conformance, SameRequest, RichResults, Stopped, TwoRuntimes):
    harness = RunAgentHarness()


@pytest.mark.rest  # the same through a client
class TestGemini(Conformance, SameRequest, RichResults, Stopped, TwoRuntimes):
    harness = GeminiHarness()


@pytest.mark.rest  # the other client, in the other colour
class TestOllama(Conformance, SameRequest, RichResults, Stopped, TwoRuntimes):
    harness = OllamaHarness()

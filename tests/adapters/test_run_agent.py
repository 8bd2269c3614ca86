"""The loop of amends itself: with a scripted model, and with the clients of Gemini and Ollama, which have no agent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx2
import ollama
import pytest
from google import genai
from openai import OpenAI

import amends
from amends.errors import Suspended
from amends.llm import Finished, ModelServer, Reply, ScriptedModel, run_agent, run_agent_async
from amends.llm.wire import Api
from tests.adapters.cells import Absent, Cells, Impossible, Tested
from tests.adapters.conformance import (
    Conformance,
    Outcome,
    Retried,
    RichResults,
    SameRequest,
    Stopped,
    Turn,
    TwoRuntimes,
)
from tests.adapters.sdks import Played, down_once, run_id, script_of
from tests.adapters.shop import Shop

pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")

LLAMA = "llama3.2"
CELLS: Cells = {
    "lost server": Absent("A tool's body calls a server with `call_tool`; see the MCP server."),
    "server's error": Absent("A tool's body calls a server with `call_tool`; see the MCP server."),
    "not yet": Absent("A tool's body calls a server with `call_tool`; see the MCP server."),
    "sub-agent": Impossible(
        "amends 0.1",
        "`run_agent` opens a run of its own, and is refused inside another run of its runtime. Write the inner agent as a "
        'loop over `run.answer`, in a tool with `kind="agent"`.',
        "test_an_agent_inside_a_run_of_its_own_runtime_is_refused_before_its_model_is_asked",
    ),
    "several agents": Absent("`run_agent` is one agent, in a run of its own."),
    "unguarded": Absent("The model is offered the tools of the runtime, and nothing else."),
    "no name": Tested("test_an_agents_run_without_a_name_is_warned_of_once"),
}


class RunAgentHarness:
    """``run_agent`` with a scripted model instead of a client."""

    api: Api = "chat.completions"
    model = "gpt-4o-mini"

    def script(self, shop: Shop, turns: Sequence[Turn]) -> ScriptedModel:
        return script_of(turns)

    @contextmanager
    def client(self, model: ScriptedModel) -> Iterator[Any]:
        yield model

    def drive(self, shop: Shop, turns: Sequence[Turn], *, thread: str = "t1", resume: bool = False) -> Outcome:
        script = self.script(shop, turns)
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


class RunAgentRetried(RunAgentHarness):
    """With a client that asks again by itself when the model is down."""

    def script(self, shop: Shop, turns: Sequence[Turn]) -> ScriptedModel:
        return down_once(shop, turns)

    @contextmanager
    def client(self, model: ScriptedModel) -> Iterator[Any]:
        http = httpx2.Client(verify=False)
        with ModelServer(model) as server, OpenAI(**{**server.openai, "max_retries": 2}, http_client=http) as client:
            client._calculate_retry_timeout = lambda *_, **__: 0.001  # type: ignore[method-assign]
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


class TestRunAgentRetried(Retried):
    harness = RunAgentRetried()


@pytest.mark.rest  # the same through a client
class TestGemini(Conformance, SameRequest, RichResults, Stopped, TwoRuntimes):
    harness = GeminiHarness()


@pytest.mark.rest  # the other client, in the other colour
class TestOllama(Conformance, SameRequest, RichResults, Stopped, TwoRuntimes):
    harness = OllamaHarness()


# ---- its own ------------------------------------------------------------------------------


def test_an_agents_run_without_a_name_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    warned: list[bool] = []

    def says(heard: Any) -> str:
        warned.append("no name of yours" in caplog.text)
        return "Done."

    with amends.Runtime("memory:") as rt:
        for name in ("named", None, None):
            run_agent(rt, "Do it.", client=ScriptedModel(says), model="gpt-4o-mini", id=name)
    assert warned == [False, True, True], "before the model is asked, since the process may be killed then"
    assert caplog.text.count("no name of yours") == 1


def test_an_agent_inside_a_run_of_its_own_runtime_is_refused_before_its_model_is_asked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    inner = ScriptedModel("paid")

    @amends.tool(kind="agent")
    def ask_clerk(request: str) -> str:
        return run_agent(rt, request, client=inner, model="gpt-4o-mini").text

    outer = ScriptedModel(("ask_clerk", {"request": "pay"}), "then not")
    with amends.Runtime("memory:", tools=[ask_clerk]) as rt:
        done = run_agent(rt, "Do it.", client=outer, model="gpt-4o-mini", id="o")
    assert inner.asked == []
    assert "has a fault (UsageError)" in str(done.messages)
    assert "use run.child() for work that belongs to this run" in caplog.text

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
from tests.adapters.cells import Absent, Cells, Tested
from tests.adapters.conformance import (
    Conformance,
    Outcome,
    Retried,
    RichResults,
    SameRequest,
    Stopped,
    SupervisorConformance,
    Turn,
    TwoRuntimes,
    asks_clerk,
)
from tests.adapters.sdks import Played, down_once, run_id, script_of
from tests.adapters.shop import Shop

pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")

LLAMA = "llama3.2"
CELLS: Cells = {
    "lost server": Absent("A tool's body calls a server with `call_tool`; see the MCP server."),
    "server's error": Absent("A tool's body calls a server with `call_tool`; see the MCP server."),
    "not yet": Absent("A tool's body calls a server with `call_tool`; see the MCP server."),
    "several agents": Absent("`run_agent` is one agent, in a run of its own."),
    "unguarded": Absent("The model is offered the tools of the runtime, and nothing else."),
    "no name": Tested("test_an_agents_run_without_a_name_is_warned_of_once"),
}


class RunAgentHarness:
    """``run_agent`` with a scripted model instead of a client."""

    api: Api = "chat.completions"
    model = "gpt-4o-mini"
    stop_with: type[BaseException] = Suspended
    more: Sequence[Any] = ()
    """More tools."""
    rt: amends.Runtime

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
            amends.Runtime(shop.url, tools=[*declared(shop), *self.more]) as rt,
            played.watched(),
        ):
            self.rt = rt
            rt.reach(bodies(shop))
            tags, id = (f"thread:{thread}",), run_id(shop, thread, resume=resume)
            done = run_agent(rt, "Do it.", client=client, model=self.model, id=id, tags=tags, **shop.options)
            _note(played, done, id)
        return played.outcome

    def stop(self, shop: Shop, turns: Sequence[Turn], *, after: int) -> None:
        enough = _Enough(turns, after, self.stop_with)
        with (
            self.client(script_of(_thinking(turns))) as client,
            amends.Runtime(shop.url, tools=declared(shop)) as rt,
            pytest.raises(self.stop_with),
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


class RunAgentInterrupted(RunAgentHarness):
    """Stopped by Ctrl-C."""

    stop_with = KeyboardInterrupt


class RunAgentSupervisor(RunAgentHarness):
    """The clerk is ``run_agent`` again, in a tool that is an agent."""

    def script(self, shop: Shop, turns: Sequence[Turn]) -> ScriptedModel:
        def ask_clerk(request: str) -> str:
            """Ask the clerk."""
            names = [one.__name__ for one in shop.functions()]
            return run_agent(self.rt, request, client=script_of(turns), model=self.model, tools=names).text

        self.more = [amends.tool(ask_clerk, kind="agent")]
        return script_of(asks_clerk("request"))


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
        """Cancel the task that awaits the agent, as a server does when its client goes away."""
        enough, reached = _Enough(turns, after), asyncio.Event()

        async def on_text(text: str) -> None:
            try:
                enough.hear(text)
            except Suspended:
                reached.set()
                await asyncio.Event().wait()

        async def work() -> None:
            with ModelServer(script_of(_thinking(turns))) as server:
                async with (
                    ollama.AsyncClient(**server.ollama) as client,
                    amends.AsyncRuntime(shop.url, tools=declared(shop)) as rt,
                ):
                    rt.reach(bodies(shop))
                    options: Any = {"id": run_id(shop, "t1", resume=False), "tags": ("thread:t1",), "on_text": on_text}
                    await run_agent_async(rt, "Do it.", client=client, model=LLAMA, **options)

        working = asyncio.create_task(work())
        await reached.wait()
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working


class _Enough:
    """Whoever reads the text of the model stops when it goes on after so many results."""

    def __init__(self, turns: Sequence[Turn], after: int, stop_with: type[BaseException] = Suspended) -> None:
        self._stop_with = stop_with
        self._counts = [len(turn) if isinstance(turn, list) else 0 for turn in turns]
        self._after, self._heard = after, 0

    def hear(self, text: str) -> None:
        if sum(self._counts[: self._heard]) >= self._after:
            raise self._stop_with("the user pressed Stop")
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


@pytest.mark.rest  # another way to stop
class TestRunAgentInterrupted(Stopped):
    harness = RunAgentInterrupted()


class TestRunAgentSupervisor(SupervisorConformance):
    harness = RunAgentSupervisor()


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


@amends.tool
def reserve(sku: str) -> str:
    return f"r_{sku}"


@reserve.compensate
def release(result: str) -> None:
    RELEASED.append(result)


RELEASED: list[str] = []
OUTER = (("ask_clerk", {"request": "reserve it"}), "then not")


def test_an_agent_inside_an_agent_that_does_not_finish_is_taken_back_and_its_caller_is_told() -> None:
    RELEASED.clear()

    @amends.tool(kind="agent")
    def ask_clerk(request: str) -> str:
        inner = ScriptedModel(("reserve", {"sku": "S1"}), ("reserve", {"sku": "S2"}), "done")
        return run_agent(rt, request, client=inner, model="gpt-4o-mini", tools=["reserve"], max_turns=2).text

    with amends.Runtime("memory:", tools=[ask_clerk, reserve]) as rt:
        options: Any = {"client": ScriptedModel(*OUTER), "model": "gpt-4o-mini", "on_open_failure": "commit"}
        done = run_agent(rt, "Do it.", id="o", **options)
        [child] = done.report.children
    assert "the model did not finish in 2 turns" in str(done.messages)
    assert (done.text, child.state, RELEASED) == ("then not", "rolled_back", ["r_S2", "r_S1"])


def test_an_agent_inside_an_agent_is_awaited_and_replayed() -> None:
    @amends.tool(kind="agent")
    async def ask_clerk(request: str) -> str:
        inner = ScriptedModel(("reserve", {"sku": "S1"}), "reserved")
        return (await run_agent_async(rt, request, client=inner, model="gpt-4o-mini", tools=["reserve"])).text

    async def program() -> str:
        outer = ScriptedModel(*OUTER)
        done = await run_agent_async(rt, "Do it.", client=outer, model="gpt-4o-mini", id="o", tools=["ask_clerk"])
        return str(done.messages)

    async def main() -> None:
        said = await program()
        assert '"reserved"' in said
        [child] = (await rt.report("o")).children
        assert [call.tool for call in child.calls if call.kind != "read"] == ["reserve"]
        assert await rt.replay("o", program) == said

    rt = amends.AsyncRuntime("memory:", tools=[ask_clerk, reserve])
    asyncio.run(main())


@pytest.mark.parametrize("kind", ["pivot", "agent"])
def test_an_agent_with_a_name_or_inside_a_call_is_refused_before_its_model_is_asked(
    kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    inner = ScriptedModel("paid")

    @amends.tool(kind=kind)
    def ask_clerk(request: str) -> str:
        return run_agent(rt, request, client=inner, model="gpt-4o-mini", id="mine" if kind == "agent" else None).text

    with amends.Runtime("memory:", tools=[ask_clerk]) as rt:
        done = run_agent(rt, "Do it.", client=ScriptedModel(*OUTER), model="gpt-4o-mini", id="o")
    assert inner.asked == []
    assert "has a fault (UsageError)" in str(done.messages)
    assert "use run.child() for work that belongs to this run" in caplog.text

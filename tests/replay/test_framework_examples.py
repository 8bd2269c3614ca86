"""A recorded run of each framework's example replays to what it printed, and nothing happens in its world.

The examples of servers start theirs in a process of its own, which a replay refuses: here client and server are in one.
Left out is ``crewai_crew``: CrewAI is too heavy for this environment (see ``tests/adapters/conftest.py``).
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from amends import Runtime
from amends.llm import ModelServer, ScriptedModel, record

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
FLIGHT, HOTEL = ("book_flight", {"trip": "lisbon"}), ("book_hotel", {"trip": "lisbon", "nights": 2})
STUTTERS = [FLIGHT, FLIGHT, HOTEL, "All booked."]
SAID = ["  agent: All booked.", "  ledger: run commits is committed"]
FAILS = [FLIGHT, HOTEL, ConnectionError("the model is down")]
FAILED = ["  agent failed: the model is down", "  ledger: run fails is rolled_back"]
WORLD = ["  airline: flight to lisbon booked", "  hotel: 2 nights in lisbon booked"]

Load = Callable[[str], Any]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """An example by its name, in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def loaded(name: str) -> Any:
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.DATA.mkdir()
        return module

    return loaded


def ledger(example: Any) -> bytes:
    """The ledger's file, byte by byte."""
    files = sorted(example.DATA.glob("ledger.db*"))
    return b"".join(file.name.encode() + file.read_bytes() for file in files)


@pytest.mark.parametrize("name, client", [("openai_agent", "OpenAI"), ("anthropic_agent", "Anthropic")])
def test_a_loop_over_an_sdk(load: Load, capsys: pytest.CaptureFixture[str], name: str, client: str) -> None:
    example = load(name)
    tools = [example.book_flight, example.book_hotel]
    with Runtime(f"sqlite:///{example.DATA}/ledger.db", tools=tools) as rt:
        with (
            ModelServer(ScriptedModel(*STUTTERS)) as server,
            getattr(example, client)(**getattr(server, client.lower())) as asked,
        ):
            live = example.agent(rt, "commits", record(asked))
        assert (live, capsys.readouterr().out.splitlines()) == ("All booked.", WORLD)
        bundle = rt.export("commits")
        before = ledger(example)
        with getattr(example, client)(api_key="none") as asked:  # its server is gone
            assert rt.replay("commits", example.agent, rt, "commits", record(asked)) == live
            assert rt.replay(bundle, example.agent, rt, "commits", record(asked)) == live
        assert capsys.readouterr().out == ""
        assert ledger(example) == before


@pytest.mark.parametrize("name", ["openai_agents_agent", "pydantic_ai_agent"])
def test_an_agent_whose_run_the_framework_opens(load: Load, capsys: pytest.CaptureFixture[str], name: str) -> None:
    example = load(name)
    if name == "openai_agents_agent":
        example.set_tracing_disabled(True)  # as its main does: nothing is sent to anybody

    async def both(id: str, script: list[Any], said: list[str]) -> None:
        await example.talk(id, script)
        live = capsys.readouterr().out.splitlines()
        assert (live[:2], live[-2:]) == (WORLD, said)
        async with example.runtime() as rt:
            bundle, before = await rt.export(id), ledger(example)
            for source in (id, bundle):
                await rt.replay(source, example.talk, id, script)
                assert capsys.readouterr().out.splitlines() == said
            assert ledger(example) == before

    asyncio.run(both("commits", STUTTERS, SAID))
    asyncio.run(both("fails", FAILS, FAILED))


def test_a_graph(load: Load, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    example = load("langchain_agent")
    recorded = example.DATA

    def both(thread: str, script: list[Any], said: list[str]) -> None:
        example.talk(thread, script)
        live = capsys.readouterr().out.splitlines()
        said = [line.replace(f"run {thread}", f"run {thread}/1") for line in said]
        assert (live[:2], live[-2:]) == (WORLD, said)
        with example.agent([], None)[2] as rt:
            bundle, before = rt.export(f"{thread}/1"), ledger(example)
            for place, source in enumerate((f"{thread}/1", bundle)):
                example.DATA = tmp_path / f"{thread}-{place}"  # the graph's own memory is no record: it begins anew
                example.DATA.mkdir()
                rt.replay(source, example.talk, thread, script)
                assert capsys.readouterr().out.splitlines() == said
                example.DATA = recorded
            assert ledger(example) == before

    both("commits", STUTTERS, SAID)
    both("fails", FAILS, FAILED)


@asynccontextmanager
async def with_runtimes_closed(example: Any) -> AsyncIterator[None]:
    """A server keeps its runtime as long as its process lives; here that is as long as this is."""
    made: list[Any] = []
    make = example.runtime
    example.runtime = lambda: made.append(make()) or made[-1]  # type: ignore[func-returns-value]
    try:
        yield
    finally:
        for rt in made:
            await rt.close()


def in_process(name: str, made: Any) -> Any:
    """A client of a server that is in this process: no other one may be started in a replay."""
    module: Any = import_module("mcp" if name == "mcp_server" else "fastmcp")
    return module.Client(made)


@pytest.mark.parametrize("name", ["mcp_server", "fastmcp_server"])
def test_a_server(load: Load, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    example = load(name)
    monkeypatch.setattr(example, "connected", lambda: in_process(name, example.server()))
    world = example.DATA / "world.txt"

    @with_runtimes_closed(example)
    async def both() -> None:
        await example.talk("commits", FLIGHT, FLIGHT, HOTEL, how="commit")
        live = capsys.readouterr().out.splitlines()
        assert len(live) == 6
        rt = example.runtime()
        bundle, before = await rt.export("commits"), ledger(example)
        for source in ("commits", bundle):
            world.touch()  # the client reads it in the end
            await rt.replay(source, lambda: example.talk("commits", FLIGHT, FLIGHT, HOTEL, how="commit"))
            assert capsys.readouterr().out.splitlines() == live[:4]
            assert ledger(example) == before

    asyncio.run(both())


@pytest.mark.parametrize("name", ["mcp_server", "fastmcp_server"])
def test_a_request_that_is_a_run_of_its_own(load: Load, name: str) -> None:
    example = load(name)

    async def ask() -> list[str]:
        async with in_process(name, example.server()) as client:
            told = await client.call_tool(*HOTEL)
            return [block.text for block in told.content]

    @with_runtimes_closed(example)
    async def both() -> None:
        live = await ask()
        async with example.runtime() as rt:
            (run,) = [one async for one in rt.runs("")]
            before = ledger(example)
            assert await rt.replay(run.id, ask) == live == ["H-lisbon"]
            assert ledger(example) == before
        assert (example.DATA / "world.txt").read_text().splitlines() == ["hotel: 2 nights in lisbon booked"]

    asyncio.run(both())

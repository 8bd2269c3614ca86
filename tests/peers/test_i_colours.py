"""Experiment i: async tools in blocking programs and the reverse. Nothing is recorded that did not run."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from amends import AsyncRuntime, InDoubt, RunBlocked, tool
from amends.errors import BadDeclaration, WrongColour
from tests.peers.conftest import Ledger


def _aio(folder: Path, main: Callable[[Any], Awaitable[None]], *tools: Any, **options: Any) -> None:
    async def whole() -> None:
        async with AsyncRuntime(f"sqlite:///{folder / 'ledger.db'}", tools=tools, **options) as rt:
            await main(rt)

    asyncio.run(whole())


def _async_charge(log: list[str], error: Exception | None = None) -> Any:
    @tool(name="charge")
    async def charge() -> str:
        await asyncio.sleep(0)
        if error is not None:
            raise error
        log.append("charge")
        return "ch_1"

    charge.compensate(lambda: log.append("refund"))
    return charge


def _blocking_charge(log: list[str], error: Exception | None = None) -> Any:
    @tool(name="charge")
    def charge() -> str:
        if error is not None:
            raise error
        log.append("charge")
        return "ch_1"

    charge.compensate(lambda: log.append("refund"))
    return charge


async def _really(log: list[str]) -> str:
    await asyncio.sleep(0)
    log.append("charge")
    return "ch_1"


def test_an_async_tool_in_a_blocking_run_is_awaited_before_it_is_recorded(ledger: Ledger) -> None:
    """SafeAgent 2.4 i: receipt executed, 0 effects. AgentRelay 3.4 i: success before it runs. saga-agent 1.3: SUCCESS."""
    log: list[str] = []
    charge = _async_charge(log)
    rt = ledger(charge)
    with rt.run("r") as run:
        assert [run.call(charge), run.call(charge), run.answer("charge", {}).value] == ["ch_1"] * 3
        assert run.execute([{"tool": "charge", "args": {}}])[0].value == "ch_1"
    assert log == ["charge"]
    (call,) = rt.calls()
    assert (call.state, call.result) == ("succeeded", "ch_1")


def test_a_failing_async_tool_is_failed(ledger: Ledger) -> None:
    """AgentRelay 3.4 i: a failing async tool is recorded success."""
    charge = _async_charge([], ValueError("declined"))
    rt = ledger(charge)
    with rt.run("r") as run:
        with pytest.raises(ValueError, match="declined"):
            run.call(charge)
        assert run.answer("charge", {}).status == "failed"
    assert {call.state for call in rt.calls()} == {"failed"}


def test_a_lost_answer_of_an_async_tool_is_doubt(ledger: Ledger) -> None:
    """SafeAgent, AgentRelay 3.4 i: whatever the coroutine does later, the row says that it went well."""
    charge = _async_charge([], TimeoutError())
    rt = ledger(charge)
    with pytest.raises(RunBlocked), rt.run("r") as run, pytest.raises(InDoubt):
        run.call(charge)
    assert [call.state for call in rt.doubts()] == ["in_doubt"]


def test_a_direct_call_in_the_wrong_colour_raises_and_nothing_is_recorded(tmp_path: Path, ledger: Ledger) -> None:
    """saga-agent 1.3: coroutine never awaited, step marked SUCCESS. agent-saga 1.1: returns a coroutine, 0 effects."""
    log: list[str] = []
    slow, fast = _async_charge(log), _blocking_charge(log)
    rt = ledger(slow)
    with rt.run("r"), pytest.raises(WrongColour):
        asyncio.run(slow())
    assert list(rt.calls()) == []

    async def main(rt: Any) -> None:
        async with rt.run("s"):
            with pytest.raises(WrongColour):
                fast()
        assert [call async for call in rt.calls()] == []

    _aio(tmp_path, main, fast)
    assert log == []


def test_a_blocking_tool_in_an_async_run_is_done_once_and_recorded(tmp_path: Path) -> None:
    """agent-ledger 4.4 i: effect runs, then TypeError, row failed for ever. effect-ledger: effect done, indeterminate."""
    log: list[str] = []
    charge = _blocking_charge(log)

    async def main(rt: Any) -> None:
        async with rt.run("r") as run:
            assert [await run.call(charge), await run.call(charge)] == ["ch_1", "ch_1"]
            assert (await run.answer("charge", {})).status == "replayed"
        assert [call.state async for call in rt.calls()] == ["succeeded"]

    _aio(tmp_path, main, charge)
    assert log == ["charge"]


def test_a_failing_blocking_tool_in_an_async_run_is_failed_and_may_be_asked_again(tmp_path: Path) -> None:
    """agent-ledger 4.4 i: a sync handler is failed for ever, whatever it did."""
    turns: list[Exception | None] = [ValueError("busy"), None]

    @tool
    def charge() -> str:
        if (turn := turns.pop(0)) is not None:
            raise turn
        return "ch_1"

    charge.compensate(lambda: None)

    async def main(rt: Any) -> None:
        async with rt.run("r") as run:
            with pytest.raises(ValueError, match="busy"):
                await run.call(charge)
            assert await run.call(charge) == "ch_1"

    _aio(tmp_path, main, charge)


def test_a_blocking_tool_does_not_stop_the_event_loop(tmp_path: Path) -> None:
    """SafeAgent 2.4 i: a sync call inside an event loop blocks it (0 ticks in 0.3 s)."""
    gate = threading.Event()

    @tool
    def charge() -> str:
        assert gate.wait(60)
        return "ch_1"

    charge.compensate(lambda: None)

    async def main(rt: Any) -> None:
        async with rt.run("r") as run:
            call = asyncio.create_task(run.call(charge))
            for _ in range(20):  # only a loop that goes on gets this far, and only then the tool does
                await asyncio.sleep(0.001)
            gate.set()
            assert await call == "ch_1"

    began = time.monotonic()
    _aio(tmp_path, main, charge)
    assert time.monotonic() - began < 50


@pytest.mark.parametrize("wrap", ["returns a coroutine", "partial", "callable object"])
@pytest.mark.parametrize("colour", ["blocking", "async"])
def test_a_coroutine_in_disguise_is_run_and_not_recorded_unrun(
    wrap: str, colour: str, tmp_path: Path, ledger: Ledger
) -> None:
    """exactly-once: a sync function returning a coroutine: 0 effects, key stuck. idempotent-tools: the same."""
    log: list[str] = []

    class Charges:
        async def execute(self) -> str:
            return await _really(log)

        def compensate(self) -> None:
            log.append("refund")

    def hidden() -> Any:
        return _really(log)

    made: Any = {
        "returns a coroutine": lambda: tool(hidden, name="charge", compensate=lambda: None),
        "partial": lambda: tool(functools.partial(_really, log), name="charge", compensate=lambda: None),
        "callable object": lambda: tool(Charges(), name="charge"),
    }[wrap]()
    if colour == "blocking":
        with ledger(made).run("r") as run:
            assert [run.call(made), run.call(made)] == ["ch_1", "ch_1"]
    else:

        async def main(rt: Any) -> None:
            async with rt.run("r") as run:
                assert [await run.call(made), await run.call(made)] == ["ch_1", "ch_1"]

        _aio(tmp_path, main, made)
    assert log == ["charge"]


@pytest.mark.parametrize("twin", ["async", "blocking"])
def test_a_compensation_of_either_colour_runs_in_either_run(twin: str, tmp_path: Path, ledger: Ledger) -> None:
    """saga-agent 1.3: async tools break the main API; AgentRelay 3.4 i: the undo would be a coroutine too."""
    log: list[str] = []

    async def refund_async() -> None:
        await asyncio.sleep(0)
        log.append("refund")

    def refund() -> None:
        log.append("refund")

    blocking, slow = _blocking_charge(log), _async_charge(log)
    for one in (blocking, slow):
        one.compensate(refund_async if twin == "async" else refund)
    with pytest.raises(KeyError), ledger(blocking).run("r"):
        blocking()
        raise KeyError

    async def main(rt: Any) -> None:
        with pytest.raises(KeyError):
            async with rt.run("s"):
                await slow()
                raise KeyError
        assert (await rt.report("s")).state == "rolled_back"

    _aio(tmp_path, main, slow)
    assert log == ["charge", "refund", "charge", "refund"]


def test_an_async_generator_is_refused_where_it_is_declared() -> None:
    """saga-agent 1.3: what cannot be run to its end is marked SUCCESS."""

    async def stream() -> Any:
        yield 1

    with pytest.raises(BadDeclaration):
        tool(stream, compensate=lambda: None)

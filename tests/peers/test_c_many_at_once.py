"""Experiment c: threads and tasks; what is called from where no run is; callers that are cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from amends import Absent, AsyncRuntime, Happened, InDoubt, RunBlocked, current_run, tool
from amends.errors import NoRun
from tests.peers.conftest import Ledger
from tests.world import World, runtime, together


def _aio(folder: Path, main: Callable[[Any], Awaitable[None]], *tools: Any, **options: Any) -> None:
    async def whole() -> None:
        given: dict[str, Any] = {"tools": tools, "wait": 20} | options
        async with AsyncRuntime(f"sqlite:///{folder / 'ledger.db'}", **given) as rt:
            await main(rt)

    asyncio.run(whole())


def _counted(log: list[str], **options: Any) -> Any:
    """A charge that is still running when the last of the others asks."""

    @tool(name="charge", **options)
    def charge(order: str = "1") -> dict[str, Any]:
        log.append(order)
        threading.Event().wait(0.02)
        return {"order": order, "number": len(log)}

    charge.compensate(lambda order: log.append(f"refund {order}"))
    return charge


@pytest.mark.parametrize("where", ["memory", "file"])
def test_fifty_threads_that_ask_for_one_call_have_one_effect_and_fifty_equal_results(
    where: str, ledger: Ledger
) -> None:
    """SafeAgent 2.3, 2.4 c: memory 50 effects; SQLite 49 told claim_pending. saga-agent, agent-saga: 50 of 50."""
    log: list[str] = []
    charge = _counted(log)
    rt = runtime(charge, wait=20) if where == "memory" else ledger(charge, wait=20)
    barrier = threading.Barrier(50)

    def ask() -> Any:
        barrier.wait(20)
        return charge()

    with rt.run("r") as run:
        answers = together([run.bind(ask)] * 50)
    assert answers == [{"order": "1", "number": 1}] * 50
    assert log == ["1"]


def test_fifty_threads_with_runs_of_their_own_have_one_effect_where_the_ledger_is_the_scope(ledger: Ledger) -> None:
    """SafeAgent 2.4 c: 10 of 49 told ok False. effect-ledger: 33 to 49 of 50 got in_flight instead of the result."""
    log: list[str] = []
    charge = _counted(log, key="order", scope="ledger")
    rt = ledger(charge, wait=20)

    def ask(number: int) -> Any:
        with rt.run(f"r-{number}"):
            return charge()

    answers = together([partial(ask, number) for number in range(50)])
    assert answers == [{"order": "1", "number": 1}] * 50
    assert log == ["1"]


def test_fifty_tasks_that_ask_for_one_call_have_one_effect_and_fifty_equal_results(tmp_path: Path) -> None:
    """saga-agent 1.4 c: 50 of 50 effects. agent-ledger 4.4 c: held, by polling."""
    log: list[str] = []

    @tool
    async def charge() -> dict[str, int]:
        log.append("charge")
        await asyncio.sleep(0.02)
        return {"number": len(log)}

    charge.compensate(lambda: None)

    async def main(rt: Any) -> None:
        async with rt.run("r"):
            answers = await asyncio.gather(*(charge() for _ in range(50)))
        assert answers == [{"number": 1}] * 50
        assert len({id(answer) for answer in answers}) == 50

    _aio(tmp_path, main, charge)
    assert log == ["charge"]


@pytest.mark.parametrize("runs", ["one run", "a run each"])
def test_five_hundred_distinct_calls_from_fifty_threads_are_all_done_and_all_recorded(
    runs: str, ledger: Ledger
) -> None:
    """SafeAgent 2.4 c: 52 of 500 raised, 25 of them after the effect had run (473 effects, 448 receipts)."""
    done: list[int] = []

    @tool
    def charge(number: int) -> int:
        done.append(number)
        return number * 2

    charge.compensate(lambda: None)
    rt = ledger(charge, wait=20)

    def ten(first: int) -> list[int]:
        if runs == "one run":
            return [charge(number=number) for number in range(first, first + 10)]
        with rt.run(f"r-{first}"):
            return [charge(number=number) for number in range(first, first + 10)]

    starts = range(0, 500, 10)
    if runs == "one run":
        with rt.run("r") as run:
            answers = together([run.bind(partial(ten, first)) for first in starts])
    else:
        answers = together([partial(ten, first) for first in starts])
    assert [value for ten_ in answers for value in ten_] == [number * 2 for number in range(500)]
    assert sorted(done) == list(range(500))
    calls = list(rt.calls())
    assert sorted(call.result for call in calls) == [number * 2 for number in range(500)]
    assert {call.state for call in calls} == {"succeeded"}


def test_five_hundred_distinct_calls_of_tasks_are_all_done_and_all_recorded(tmp_path: Path) -> None:
    """SafeAgent 2.4 c, for the other colour."""

    @tool
    async def charge(number: int) -> int:
        return number * 2

    charge.compensate(lambda: None)

    async def main(rt: Any) -> None:
        async with rt.run("r"):
            answers = await asyncio.gather(*(charge(number=number) for number in range(500)))
        assert answers == [number * 2 for number in range(500)]
        assert sorted([call.result async for call in rt.calls()]) == answers

    _aio(tmp_path, main, charge)


def test_calls_made_together_keep_an_order_of_their_own(ledger: Ledger) -> None:
    """AgentRelay 3.4 c: 50 distinct calls, 3 distinct sequence numbers, so the order is lost."""
    log: list[str] = []
    charge = _counted(log)
    rt = ledger(charge, wait=20)
    with rt.run("r") as run:
        together([run.bind(partial(charge, order=str(n))) for n in range(50)])
    settled = [event.seq for event in rt.events("r") if event.to == "succeeded"]
    assert len(set(settled)) == 50
    assert settled == sorted(settled)


# ---- never unguarded ----------------------------------------------------------------------


def test_a_tool_outside_a_run_never_runs(ledger: Ledger) -> None:
    """AgentRelay 3.2: outside a session @tool calls the function unguarded. agent-saga 1.1: the same."""
    world = World()
    charge = world.compensatable("charge")
    ledger(charge)
    with pytest.raises(NoRun):
        charge()
    assert world.log == []


def test_fifty_plain_threads_of_a_run_run_nothing_unrecorded(ledger: Ledger) -> None:
    """AgentRelay 3.4 c: plain ThreadPoolExecutor, 50 effects, 0 rows. agent-saga 1.1: unguarded and unrecorded."""
    world = World()
    charge = world.compensatable("charge")
    rt = ledger(charge)
    with rt.run("r"), ThreadPoolExecutor(10) as pool:
        futures = [pool.submit(charge, x=str(number)) for number in range(50)]
        assert {type(future.exception(20)) for future in futures} == {NoRun}
    assert world.log == []
    assert list(rt.calls()) == []


def test_fifty_calls_carried_into_a_pool_are_all_recorded(ledger: Ledger) -> None:
    """AgentRelay 3.4 c: it works only with a context that the user copies by hand."""
    world = World()
    charge = world.compensatable("charge")
    rt = ledger(charge, wait=20)
    with rt.run("r") as run:
        futures = [run.submit(charge, x=str(number)) for number in range(50)]
        assert [future.result(20) for future in futures] == [f"charge:{number}" for number in range(50)]
    assert len(list(rt.calls())) == 50


def test_a_task_of_another_run_is_not_this_runs_task(tmp_path: Path) -> None:
    """AgentRelay 3.4 c: what decides is where the context was copied, and nobody looks."""

    @tool
    async def charge() -> str:
        return str(current_run().id)

    charge.compensate(lambda: None)

    async def main(rt: Any) -> None:
        async def one(number: int) -> str:
            async with rt.run(f"r-{number}"):
                await asyncio.sleep(0)
                return await charge()

        assert await asyncio.gather(*(one(number) for number in range(20))) == [f"r-{number}" for number in range(20)]
        with pytest.raises(NoRun):
            await charge()

    _aio(tmp_path, main, charge)


# ---- cancelled and interrupted ------------------------------------------------------------


def _charged(log: list[str], *, probe: bool) -> tuple[Any, Any]:
    """A flight, and a charge that goes through and then keeps its caller waiting."""

    @tool
    async def flight() -> str:
        log.append("flight")
        return "f-1"

    flight.compensate(lambda: log.append("undo flight"))

    @tool
    async def charge() -> str:
        log.append("charge")
        await asyncio.sleep(30)
        return "never"

    charge.compensate(lambda: log.append("undo charge"))
    if probe:
        charge.probe(lambda: Happened("ch_1") if "charge" in log else Absent())
    return flight, charge


def test_a_cancelled_saga_is_taken_back_the_cancelled_call_too(tmp_path: Path) -> None:
    """saga-agent 1.4 d: no compensation ran. agent-saga: "Rollback clean" with the charge standing."""
    log: list[str] = []
    flight, charge = _charged(log, probe=True)

    async def saga(rt: Any) -> None:
        async with rt.run("r"):
            await flight()
            await charge()

    async def main(rt: Any) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(saga(rt), 1.0)
        assert (await rt.report("r")).state == "rolled_back"

    _aio(tmp_path, main, flight, charge)
    assert log == ["flight", "charge", "undo charge", "undo flight"]


def test_a_cancelled_saga_without_a_probe_undoes_the_rest_and_shows_the_doubt(tmp_path: Path) -> None:
    """agent-ledger 4.4 c: the row stays processing for ever. agent-saga: the step counts as never run."""
    log: list[str] = []
    flight, charge = _charged(log, probe=False)

    async def saga(rt: Any) -> None:
        async with rt.run("r"):
            await flight()
            await charge()

    async def main(rt: Any) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(saga(rt), 1.0)
        report = await rt.report("r")
        assert report.state == "blocked"
        (doubt,) = report.doubts
        assert doubt.tool == "charge"
        assert (await rt.resolve(doubt.id, Happened("ch_1"), by="ada", why="seen")).state == "rolled_back"
        assert "started" not in [call.state async for call in rt.calls()]

    _aio(tmp_path, main, flight, charge)
    assert log == ["flight", "charge", "undo flight", "undo charge"]


def test_a_cancelled_call_leaves_no_row_that_waits_for_ever(tmp_path: Path) -> None:
    """agent-ledger 4.4 c: retry times out for ever."""
    log: list[str] = []
    _, charge = _charged(log, probe=False)

    async def main(rt: Any) -> None:
        with pytest.raises(RunBlocked):
            async with rt.run("r"):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(charge(), 0.05)
                with pytest.raises(InDoubt):  # at once, not after a wait
                    await asyncio.wait_for(charge(), 5)
        assert [call.state async for call in rt.calls()] == ["in_doubt"]

    _aio(tmp_path, main, charge)
    assert log == ["charge"]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_between_two_calls_takes_the_saga_back(stop: type[BaseException], ledger: Ledger) -> None:
    """saga-agent 1.4 d: the exception escapes, no compensation ran, no audit record."""
    world = World()
    flight, car = world.compensatable("flight"), world.compensatable("car")
    rt = ledger(flight, car)
    with pytest.raises(stop), rt.run("r"):
        flight()
        car()
        raise stop
    assert world.log == ["flight:1", "car:1", "undo car:1", "undo flight:1"]
    assert rt.report("r").state == "rolled_back"


def test_an_interrupt_inside_a_body_is_doubt_and_the_others_are_taken_back(ledger: Ledger) -> None:
    """saga-agent 1.4 d: no compensation ran."""
    world = World()
    flight, charge = world.compensatable("flight"), world.compensatable("charge")
    world.script["charge"] = [(KeyboardInterrupt(),)]
    rt = ledger(flight, charge)
    with pytest.raises(KeyboardInterrupt), rt.run("r"):
        flight()
        charge()
    assert world.log == ["flight:1", "charge:1", "undo flight:1"]
    (doubt,) = rt.doubts()
    assert rt.resolve(doubt.id, Happened("charge:1"), by="ada", why="seen").state == "rolled_back"
    assert world.standing == []

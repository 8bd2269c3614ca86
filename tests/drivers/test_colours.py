"""Both colours: async runs, bridges between them, cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import pytest

from amends import AsyncRuntime, InDoubt, RolledBack, RunBlocked, UsageError, current_run, tool
from amends.errors import Busy, NoRun, WrongColour
from tests.world import World, runtime, until


def _async_tool(log: list[str], name: str = "pay", delay: float = 0.0, **options):
    @tool(name=name, **options)
    async def pay(x: str = "1") -> str:
        log.append(f"start {x}")
        await asyncio.sleep(delay)
        log.append(f"{name}:{x}")
        return f"{name}:{x}"

    @pay.compensate
    async def undo(result: str) -> None:
        log.append(f"undo {result}")

    return pay


def _run(main, *tools, **options):
    async def outer():
        given: dict[str, Any] = {"tools": tools, "wait": 0.5} | options
        rt = AsyncRuntime("memory:", **given)
        try:
            return await main(rt)
        finally:
            await rt.close()

    return asyncio.run(outer())


def test_an_async_run_commits_and_replays() -> None:
    log: list[str] = []
    pay = _async_tool(log)

    async def main(rt):
        async with rt.run("r") as run:
            assert await pay() == await pay() == "pay:1"
            assert run.state == "open"
        assert run.state == "committed"
        assert (await rt.report("r")).state == "committed"

    _run(main, pay)
    assert log == ["start 1", "pay:1"]


def test_an_async_run_goes_back_on_an_exception() -> None:
    log: list[str] = []
    pay = _async_tool(log)

    async def main(rt):
        with pytest.raises(KeyError) as caught:
            async with rt.run("r"):
                await pay()
                raise KeyError
        assert caught.value.__notes__ == ["amends: run r rolled back, 1 call compensated"]
        with pytest.raises(RolledBack):
            async with rt.run("s") as run:
                await pay()
                await run.rollback("no")

    _run(main, pay)
    assert log.count("undo pay:1") == 2


def test_the_wrong_colour_raises_both_ways_before_anything_is_recorded() -> None:
    log: list[str] = []
    pay = _async_tool(log)
    reserve = World().compensatable()

    async def main(rt):
        async with rt.run("r"):
            with pytest.raises(WrongColour) as wrong:
                reserve()
            assert wrong.value.tool == "reserve"
        assert [call async for call in rt.calls()] == []

    _run(main, pay, reserve)
    rt = runtime(pay)
    with rt.run("r"), pytest.raises(WrongColour):
        asyncio.run(pay())
    assert list(rt.calls()) == []
    assert log == []


def test_run_call_bridges_an_async_tool_into_a_blocking_run() -> None:
    log: list[str] = []
    pay = _async_tool(log)
    rt = runtime(pay)
    with pytest.raises(KeyError), rt.run("r") as run:
        assert run.call(pay, x="2") == "pay:2"
        raise KeyError
    assert log == ["start 2", "pay:2", "undo pay:2"]
    rt.close()


def test_run_call_bridges_a_blocking_tool_into_an_async_run_without_blocking_the_loop() -> None:
    main_thread = threading.get_ident()
    seen: list[object] = []

    @tool
    def pay() -> str:
        seen.append(threading.get_ident() != main_thread)
        seen.append(current_run().id)
        return "paid"

    pay.compensate(lambda: seen.append("undone"))

    async def main(rt):
        with pytest.raises(KeyError):
            async with rt.run("r") as run:
                assert await run.call(pay) == "paid"
                raise KeyError

    _run(main, pay)
    assert seen == [True, "r", "undone"]


def test_a_coroutine_that_a_plain_function_returns_is_awaited_not_recorded_unrun() -> None:
    log: list[str] = []

    async def really() -> str:
        log.append("done")
        return "paid"

    @tool
    def pay() -> str:
        return really()  # type: ignore[return-value]

    pay.compensate(lambda: None)
    rt = runtime(pay)
    with rt.run("r"):
        assert pay() == "paid"
    rt.close()

    async def main(rt):
        async with rt.run("r") as run:
            assert await run.call(pay) == "paid"

    _run(main, pay)
    assert log == ["done", "done"]


def test_a_cancelled_call_is_in_doubt_and_asking_again_does_not_hang() -> None:
    log: list[str] = []
    pay = _async_tool(log, delay=5)

    async def main(rt):
        with pytest.raises(RunBlocked) as blocked:
            async with rt.run("r"):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(pay(), 0.02)
                with pytest.raises(InDoubt):
                    await asyncio.wait_for(pay(), 30)
        assert blocked.value.__cause__ is None
        assert [call.state async for call in rt.doubts()] == ["in_doubt"]

    _run(main, pay)
    assert log == ["start 1"]


def test_a_cancelled_blocking_body_goes_on_in_its_thread_and_its_return_is_evidence() -> None:
    gate = threading.Event()

    @tool
    def pay() -> str:
        gate.wait(60)
        return "paid"

    pay.compensate(lambda: None)

    async def main(rt):
        async with rt.run("r") as run:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(run.call(pay), 0.02)
            gate.set()
            for _ in range(6000):
                if any([event.what == "evidence" async for event in rt.events()]):
                    break
                await asyncio.sleep(0.005)
            assert await run.call(pay) == "paid"

    _run(main, pay)


def test_a_cancelled_plan_is_in_doubt_and_asking_again_does_not_hang() -> None:
    log: list[str] = []
    pay = _async_tool(log, delay=5)

    async def main(rt):
        with pytest.raises(RunBlocked) as blocked:
            async with rt.run("r") as run:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(run.execute([[{"tool": "pay"}, {"tool": "pay", "args": {"x": "2"}}]]), 0.02)
                assert [call.state async for call in rt.calls()] == ["in_doubt", "in_doubt"]
                with pytest.raises(InDoubt):
                    await asyncio.wait_for(pay(), 30)
        assert blocked.value.__cause__ is None

    _run(main, pay)


@pytest.mark.parametrize("policy, state", [("rollback", "rolled_back"), ("resume", "open"), ("wait", "open")])
def test_cancelling_the_block_is_shielded_and_follows_the_policy(policy, state) -> None:
    log: list[str] = []
    pay = _async_tool(log)

    async def main(rt):
        async def work() -> None:
            async with rt.run("r", recover=policy):
                await pay()
                await asyncio.sleep(60)

        task = asyncio.create_task(work())
        while "pay:1" not in log:
            await asyncio.sleep(0.002)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        report = await rt.report("r")
        assert (report.state, report.run.owner) == (state, None)

    _run(main, pay)
    assert ("undo pay:1" in log) == (policy == "rollback")


def test_cancelling_after_the_pivot_lets_the_run_go() -> None:
    wire = World().pivot()

    async def main(rt):
        async def work() -> None:
            async with rt.run("r") as run:
                await run.call(wire)
                await asyncio.sleep(60)

        task = asyncio.create_task(work())
        while not [call async for call in rt.calls("status:succeeded")]:
            await asyncio.sleep(0.002)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        report = await rt.report("r")
        assert (report.state, report.run.owner) == ("pivoted", None)

    _run(main, wire)


def test_a_cancellation_during_the_rollback_lets_it_finish() -> None:
    log: list[str] = []

    @tool
    async def pay() -> None: ...

    @pay.compensate
    async def undo() -> None:
        await asyncio.sleep(0.05)
        log.append("undone")

    async def main(rt):
        async def work() -> None:
            async with rt.run("r"):
                await pay()
                raise KeyError

        task = asyncio.create_task(work())
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises((asyncio.CancelledError, KeyError)):
            await task
        assert (await rt.report("r")).state == "rolled_back"

    _run(main, pay)
    assert log == ["undone"]


def test_tasks_still_running_are_waited_for() -> None:
    log: list[str] = []
    pay = _async_tool(log, delay=0.03)

    async def main(rt):
        async with rt.run("r") as run:
            run.submit(pay, x="1")
            task = asyncio.create_task(pay(x="2"))
            await asyncio.sleep(0.005)
        assert task.done()
        assert (await rt.report("r")).state == "committed"
        assert {call.state for call in (await rt.report("r")).calls} == {"succeeded"}

    _run(main, pay)
    assert "pay:1" in log
    assert "pay:2" in log


def test_an_async_timeout_is_doubt() -> None:
    log: list[str] = []
    pay = _async_tool(log, delay=5, timeout=0.02)

    async def main(rt):
        with pytest.raises(RunBlocked):
            async with rt.run("r"):
                with pytest.raises(InDoubt):
                    await pay()

    _run(main, pay)


def test_an_async_run_that_is_open_is_busy_and_nesting_raises() -> None:
    async def main(rt):
        run = await rt.open("r")
        with pytest.raises(Busy):
            await rt.open("r", wait=0)
        await run.commit()
        assert run.state == "committed"
        async with rt.run("s"):
            with pytest.raises(UsageError):
                async with rt.run("t"):
                    pass
        with pytest.raises(RolledBack):
            run = await rt.open("u")
            await run.rollback("no")
        assert run.state == "rolled_back"

    _run(main)


def test_a_task_made_outside_the_block_has_no_run() -> None:
    log: list[str] = []
    pay = _async_tool(log)

    async def main(rt):
        go = asyncio.Event()

        async def stranger() -> None:
            await go.wait()
            with pytest.raises(NoRun):
                await pay()

        task = asyncio.create_task(stranger())
        await asyncio.sleep(0)
        async with rt.run("r"):
            go.set()
            await task

    _run(main, pay)
    assert log == []


def test_async_children_once_and_hand_made_attempts() -> None:
    log: list[str] = []
    pay = _async_tool(log)

    async def send(to: str) -> str:
        log.append(f"sent {to}")
        return to

    async def main(rt):
        async with rt.run("r") as run:
            async with run.child("c"):
                await pay()
            for _ in range(2):
                assert await run.once("mail", send, "anna") == "anna"
            attempt = await run.begin("pay", {"x": "9"})
            await attempt.succeed("by hand")
            assert await pay(x="9") == "by hand"
        for _ in range(2):
            assert await rt.once("k", send, "bob") == "bob"

    _run(main, pay)
    assert log == ["start 1", "pay:1", "sent anna", "sent bob"]


def test_a_blocking_runtime_works_in_a_thread_with_a_running_loop() -> None:
    log: list[str] = []
    pay = _async_tool(log)
    rt = runtime(pay)

    async def main() -> None:
        with rt.run("r") as run:
            assert run.call(pay) == "pay:1"

    asyncio.run(main())
    rt.close()
    until(lambda: log == ["start 1", "pay:1"])
    with contextlib.suppress(RuntimeError):
        asyncio.get_event_loop_policy()

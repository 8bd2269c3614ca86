"""A guarded call that is never awaited raises: nothing of it was done, and nobody would notice."""

# mypy: disable-error-code="unused-coroutine"
# The mistake that these tests are about is one that a type checker sees, too.

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from amends import AsyncRuntime, Runtime, current_run, tool
from amends.errors import NAMED_MAX, NoRun, NotAwaited, RunBlocked, WrongColour
from tests.world import World

pytestmark = pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")


@tool
async def pay(x: str = "1") -> str:
    _log.append(x)
    return f"pay:{x}"


@pay.compensate
async def undo(x: str) -> None:
    _log.append(f"undo {x}")


@tool(kind="pivot")
async def wire(x: str = "1") -> str:
    return f"wire:{x}"


_log: list[str] = []


@pytest.fixture(autouse=True)
def _clean() -> None:
    _log.clear()


def _run(main: Callable[[AsyncRuntime], Any]) -> None:
    async def outer() -> None:
        rt = AsyncRuntime("memory:", tools=[pay, wire], wait=0.5)
        try:
            await main(rt)
        finally:
            await rt.close()

    asyncio.run(outer())


@pytest.mark.parametrize(
    "kept_in",
    [pytest.param("nothing", marks=pytest.mark.rest), pytest.param("a list", marks=pytest.mark.rest), "a cycle"],
)
@pytest.mark.parametrize(
    "forget",
    [
        lambda run: pay(x="2"),
        lambda run: pay.with_options(again="because")(x="2"),
        lambda run: run.call(pay, x="2"),
        lambda run: run.answer("pay", {"x": "2"}),
        lambda run: run.answer_all([]),
        lambda run: run.execute([{"tool": "pay", "args": {"x": "2"}}]),
        lambda run: run.once("key", lambda: 1),
        lambda run: run.begin("pay", {"x": "2"}),
    ],
)
def test_leaving_the_block_raises_and_takes_it_back(forget: Callable[[Any], Any], kept_in: str) -> None:
    async def main(rt: AsyncRuntime) -> None:
        kept: list[Any] = []
        with pytest.raises(NotAwaited) as found:
            async with rt.run("r") as run:
                await pay(x="1")
                made = [forget(run)]
                if kept_in == "a list":
                    kept += made
                elif kept_in == "a cycle":
                    made.append(made)
                del made
                gc.collect()
        assert found.value.tool
        assert found.value.run_id == "r"
        assert (await rt.report("r")).state == "rolled_back"
        for one in kept:
            one.close()

    _run(main)
    assert _log == ["1", "undo 1"]


def test_many_calls_of_many_tools_are_named_in_part() -> None:
    def declared(n: int) -> Any:
        @tool(name=f"tool_{n}")
        async def body() -> str:
            return "done"

        @body.compensate
        async def undo() -> None: ...

        return body

    async def main() -> NotAwaited:
        tools = [declared(n) for n in range(30)]
        async with AsyncRuntime("memory:", tools=tools) as rt:
            with pytest.raises(NotAwaited) as found:
                async with rt.run("r"):
                    for one in tools:
                        one()
            return found.value

    error = asyncio.run(main())
    assert f": tool_0, tool_1, tool_2, tool_3, tool_4 and {30 - NAMED_MAX} more. Nothing of it was done" in str(error)
    assert len(error.tools) == 30


def test_a_rollback_that_is_never_awaited_does_not_commit() -> None:
    async def main(rt: AsyncRuntime) -> None:
        with pytest.raises(NotAwaited, match="await") as found:
            async with rt.run("r") as run:
                await pay(x="1")
                run.rollback("the customer changed their mind")
        assert found.value.tool == "run.rollback"
        assert (await rt.report("r")).state == "rolled_back"

    _run(main)
    assert _log == ["1", "undo 1"]


def test_a_blocking_runtime_refuses_async_functions_that_it_would_never_await() -> None:
    async def later() -> None:
        _log.append("later")

    rt = Runtime("memory:", tools=[pay])
    for fn in (later, functools.partial(later), pay):
        with rt.run(), pytest.raises(WrongColour) as found:
            current_run().submit(fn)
        assert "async" in str(found.value)
    with rt.run("r"):
        pass
    with pytest.raises(WrongColour):
        rt.replay("r", later)
    assert _log == []


def test_the_error_names_each_tool() -> None:
    async def main(rt: AsyncRuntime) -> None:
        with pytest.raises(NotAwaited) as found:
            async with rt.run("r"):
                pay(x="1")
                wire()
        assert found.value.tools == ("pay", "wire")
        assert "pay, wire" in str(found.value)

    _run(main)


def test_a_child_and_a_run_without_a_block_raise_too() -> None:
    async def main(rt: AsyncRuntime) -> None:
        async with rt.run("r") as run:
            with pytest.raises(NotAwaited):
                async with run.child("c"):
                    pay()
        opened = await rt.open("s")
        opened.call(pay)
        with pytest.raises(NotAwaited):
            await opened.commit()
        assert (await rt.report("r")).state == "committed"
        assert (await rt.report("s")).state == "rolled_back"

    _run(main)


def test_after_the_pivot_the_run_is_blocked_not_committed() -> None:
    async def main(rt: AsyncRuntime) -> None:
        with pytest.raises((NotAwaited, RunBlocked)):
            async with rt.run("r"):
                await wire()
                pay()
        assert (await rt.report("r")).state == "blocked"

    _run(main)


def test_a_replay_of_it_ends_as_it_did() -> None:
    async def main(rt: AsyncRuntime) -> None:
        async def agent() -> None:
            async with rt.run("r"):
                await pay(x="1")
                pay(x="2")

        with pytest.raises(NotAwaited):
            await agent()
        _log.clear()
        with pytest.raises(NotAwaited):
            await rt.replay("r", agent)
        assert _log == []

    _run(main)


def test_an_error_of_the_block_comes_out_as_itself() -> None:
    async def main(rt: AsyncRuntime) -> None:
        with pytest.raises(KeyError):
            async with rt.run("r"):
                pay()
                raise KeyError

    _run(main)


def test_what_is_awaited_somewhere_is_no_mistake() -> None:
    async def main(rt: AsyncRuntime) -> None:
        async with rt.run("r") as run:
            made = pay(x="1")
            await made
            await asyncio.gather(pay(x="2"), run.call(pay, x="3"))
            task = asyncio.create_task(pay(x="4"))  # it is waited for when the block is left
            async with asyncio.TaskGroup() as group:
                group.create_task(pay(x="5"))
            await asyncio.wait_for(pay(x="6"), 5)
            run.submit(pay, x="7")
            run.submit(_later, pay(x="8"))
        assert task.done()
        assert {call.state for call in (await rt.report("r")).calls} == {"succeeded"}

    _run(main)
    assert sorted(_log) == list("12345678")


async def _later(made: Any) -> Any:
    for _ in range(20):
        await asyncio.sleep(0.001)
    return await made


def test_what_is_closed_or_cancelled_before_it_began_is_no_mistake() -> None:
    async def main(rt: AsyncRuntime) -> None:
        async with rt.run("r"):
            pay(x="1").close()
            task = asyncio.create_task(pay(x="2"))
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            del task
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(pay(x="3"), 0)
        assert (await rt.report("r")).state == "committed"

    _run(main)


def test_a_coroutine_made_outside_may_be_awaited_inside() -> None:
    async def main(rt: AsyncRuntime) -> None:
        made = pay(x="1")
        async with rt.run("r"):
            assert await made == "pay:1"
        with pytest.raises(NoRun):
            await pay(x="2")

    _run(main)


def test_an_async_tool_in_a_blocking_run_raises_where_it_is_called() -> None:
    rt = Runtime("memory:", tools=[pay])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no coroutine was made
        with rt.run("r") as run:
            with pytest.raises(WrongColour) as wrong:
                pay(x="1")
            with pytest.raises(WrongColour):
                run.bind(pay)(x="1")
            with run.child("c"), pytest.raises(WrongColour):
                pay(x="1")
    assert wrong.value.tool == "pay"
    assert list(rt.calls()) == []
    assert _log == []


def test_an_async_tool_in_the_body_of_a_blocking_run_raises_where_it_is_called() -> None:
    @tool
    def outer() -> str:
        with pytest.raises(WrongColour):
            pay()
        return "done"

    outer.compensate(lambda: None)
    rt = Runtime("memory:", tools=[pay, outer])
    with rt.run("r"):
        assert outer() == "done"
    assert [call.tool for call in rt.calls()] == ["outer"]


def test_a_blocking_tool_in_an_async_run_raises_where_it_is_called() -> None:
    reserve = World().compensatable()

    async def main(rt: AsyncRuntime) -> None:
        rt.add(reserve)
        async with rt.run("r"):
            with pytest.raises(WrongColour):
                reserve()
        assert [call async for call in rt.calls()] == []

    _run(main)


def test_frameworks_still_see_a_coroutine_function() -> None:
    for one in (pay, pay.with_options(again="x"), AsyncRuntime("memory:").run, tool(undo)):
        assert inspect.isfunction(one) or inspect.ismethod(one)
    assert inspect.iscoroutinefunction(pay)
    assert asyncio.iscoroutinefunction(pay)
    assert inspect.iscoroutinefunction(pay.with_options(again="x"))
    made = pay()
    assert inspect.iscoroutine(made)
    made.close()

"""Inside a handler the tool's own function is the body of its call: once, with its arguments, until it ends."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pydantic import BaseModel

from amends import AsyncRuntime, RunBlocked, Runtime, UsageError, current_call, current_run, declare, tool
from amends.errors import Error, KeyConflict, NoRun, RunEnded
from tests.world import FAST, World, runtime


def _attempt(act: Callable[[], Any]) -> Any:
    try:
        return act()
    except Error as error:
        return type(error)


def test_the_function_is_the_body_once() -> None:
    world = World()
    pay = world.compensatable("pay")
    rt = runtime(pay)

    def handler(x: str, n: int) -> Any:
        return [_attempt(lambda: pay(x=x, n=n)), _attempt(lambda: pay(x=x, n=n)), _attempt(lambda: pay(x, n))]

    with rt.run("r") as run:
        answer = run.answer("pay", {"x": "7", "n": 1}, handler=handler)
    assert answer.status == "done"
    assert world.log == ["pay:7"]
    assert len(rt.report("r").calls) == 1


def test_a_second_use_is_refused_at_once_and_by_name() -> None:
    world = World()
    pay = world.compensatable("pay")
    found: list[NoRun] = []

    def handler(**args: Any) -> str:
        pay(**args)
        with pytest.raises(NoRun) as refused:
            pay(**args)
        found.append(refused.value)
        return "done"

    with runtime(pay, wait=60).run("r") as run:
        run.answer("pay", {}, handler=handler)
    assert found[0].tool == "pay"
    assert world.log == ["pay:1"]


def test_a_use_that_raised_is_used_up() -> None:
    world = World()
    pay = world.compensatable("pay", retry=1)
    world.script["pay"] = [(ValueError("answer lost"),)]

    def handler(**args: Any) -> str:
        with pytest.raises(ValueError, match="answer lost"):
            pay(**args)
        with pytest.raises(NoRun):
            pay(**args)
        return "done"

    with runtime(pay).run("r") as run:
        run.answer("pay", {}, handler=handler)
    assert world.log == ["pay:1"]


def test_each_attempt_of_the_call_has_its_own_use() -> None:
    world = World()
    pay = world.compensatable("pay", retry=FAST, idempotent=True)
    world.script["pay"] = [TimeoutError(), TimeoutError()]
    with runtime(pay).run("r") as run:
        assert run.answer("pay", {}, handler=lambda **args: pay(**args)).status == "done"
    (call,) = run.report().calls
    assert (call.attempt, call.state) == (3, "succeeded")
    assert world.log == ["pay:1"]


def test_other_arguments_are_a_call_of_their_own() -> None:
    world = World()
    pay = world.compensatable("pay")

    def handler(**args: Any) -> str:
        assert pay(x="8") == "pay:8"
        return pay(**args)

    rt = runtime(pay)
    with rt.run("r") as run:
        run.answer("pay", {"x": "7"}, handler=handler)
    assert sorted((call.args["x"], call.state) for call in rt.report("r").calls) == [
        ("7", "succeeded"),
        ("8", "succeeded"),
    ]
    with pytest.raises(KeyError), rt.run("s") as run:
        run.answer("pay", {"x": "7"}, handler=handler)
        raise KeyError
    assert sorted(world.log[-2:]) == ["undo pay:7", "undo pay:8"]


def test_a_deliberate_repeat_is_a_call_of_its_own() -> None:
    world = World()
    pay = world.compensatable("pay")
    rt = runtime(pay)

    def handler(x: str, n: int) -> str:
        pay(x=x, n=n)
        return str(pay.with_options(again="second box")(x=x, n=n))

    with rt.run("r") as run:
        assert run.answer("pay", {"x": "7", "n": 1}, handler=handler).status == "done"
    assert world.log == ["pay:7", "pay:7"]
    assert [(call.state, call.again) for call in rt.report("r").calls] == [
        ("succeeded", None),
        ("succeeded", "second box"),
    ]


def test_other_arguments_under_the_same_key_are_a_conflict() -> None:
    world = World()
    pay = world.compensatable("pay", key="x")
    found: list[object] = []

    def handler(x: str, n: int) -> str:
        found.append(_attempt(lambda: pay(x=x, n=n + 1)))
        return pay(x=x, n=n)

    with runtime(pay).run("r") as run:
        assert run.answer("pay", {"x": "7", "n": 1}, handler=handler).status == "done"
    assert found == [KeyConflict]
    assert world.log == ["pay:7"]


def test_other_tools_are_guarded_in_a_handler_and_in_the_body() -> None:
    world = World()
    other = world.compensatable("other")

    @tool
    def pay(x: str) -> str:
        world.happen(f"pay:{x}")
        assert current_call().tool == "pay"
        return other(x="inside")

    pay.compensate(lambda: None)
    rt = runtime(pay, other)

    def handler(x: str) -> str:
        other(x="before")
        return pay(x=x)

    with rt.run("r") as run:
        run.answer("pay", {"x": "7"}, handler=handler)
    parents = {(call.tool, call.args.get("x")): call.parent for call in rt.report("r").calls}
    assert set(parents) == {("pay", "7"), ("other", "before"), ("other", "inside")}
    assert world.log == ["other:before", "pay:7", "other:inside"]


def test_inside_the_body_of_another_tool_the_function_is_no_longer_bare() -> None:
    world = World()
    pay = world.compensatable("pay")
    found: list[object] = []

    @tool
    def other(x: str) -> str:
        found.append(_attempt(lambda: pay(x=x)))
        return "other"

    other.compensate(lambda: None)

    def handler(x: str, n: int) -> str:
        other(x=x)
        return pay(x=x)

    with runtime(pay, other, wait=0.05).run("r") as run:
        run.answer("pay", {"x": "7"}, handler=handler)
    assert world.log == ["pay:7"]
    assert found != ["pay:7"]


def test_a_handler_inside_a_handler_has_its_own_use() -> None:
    world = World()
    pay = world.compensatable("pay")

    def inner(x: str, n: int) -> str:
        return pay(x=x)

    def outer(x: str, n: int) -> str:
        told = current_run().answer("pay", {"x": "inner"}, handler=inner)
        assert told.value == "pay:inner"
        return pay(x=x)

    rt = runtime(pay)
    with rt.run("r") as run:
        assert run.answer("pay", {"x": "outer"}, handler=outer).value == "pay:outer"
    assert world.log == ["pay:inner", "pay:outer"]
    assert len(rt.report("r").calls) == 2


def test_what_a_handler_left_running_cannot_use_it() -> None:
    world = World()
    pay = world.compensatable("pay")
    go = threading.Event()
    ended: list[object] = []

    def late(x: str) -> None:
        go.wait(5)
        ended.append(_attempt(lambda: pay(x=x)))

    threads: list[threading.Thread] = []

    def handler(x: str, n: int) -> str:
        for one in (x, "other"):
            threads.append(threading.Thread(target=contextvars.copy_context().run, args=(late, one)))
            threads[-1].start()
        return "done without it"

    with runtime(pay).run("r") as run:
        run.answer("pay", {"x": "7"}, handler=handler)
    go.set()
    for thread in threads:
        thread.join(5)
    assert set(ended) <= {NoRun, RunEnded, "done without it"}
    assert RunEnded in ended
    assert world.log == []


def test_threads_of_a_handler_use_it_once_between_them() -> None:
    world = World()
    pay = world.compensatable("pay")

    def handler(x: str, n: int) -> int:
        with ThreadPoolExecutor(8) as pool:
            made = [pool.submit(contextvars.copy_context().run, _attempt, lambda: pay(x=x)) for _ in range(16)]
            ends = [one.result() for one in made]
        assert sorted(map(str, ends)) == sorted(map(str, ["pay:7", *[NoRun] * 15]))
        return 1

    with runtime(pay, wait=30).run("r") as run:
        run.answer("pay", {"x": "7"}, handler=handler)
    assert world.log == ["pay:7"]


def test_a_thread_without_the_context_has_no_use() -> None:
    world = World()
    pay = world.compensatable("pay")

    def handler(x: str, n: int) -> str:
        with ThreadPoolExecutor(1) as pool:
            assert isinstance(pool.submit(pay, x=x).exception(), NoRun)
        return "done"

    with runtime(pay).run("r") as run:
        run.answer("pay", {"x": "7"}, handler=handler)
    assert world.log == []


class Order(BaseModel):
    id: str
    lines: list[int] = []


def test_arguments_are_compared_by_what_they_mean() -> None:
    log: list[Order] = []

    @tool
    def place(order: Order, express: bool = False) -> str:
        log.append(order if isinstance(order, Order) else Order.model_validate(order))
        return "placed"

    place.compensate(lambda: None)

    def spelled(order: Order, express: bool) -> str:
        return place({"lines": [1, 2], "id": order.id})  # type: ignore[arg-type]

    def changed(order: Order, express: bool) -> str:
        order.lines.append(99)
        return place(order)

    rt = runtime(place)
    for name, handler in (("spelled", spelled), ("changed", changed)):
        with rt.run(name) as run:
            run.answer("place", {"order": {"id": "a", "lines": [1, 2]}}, handler=handler)
    assert len(rt.report("spelled").calls) == 1
    assert len(rt.report("changed").calls) == 2  # what was changed is another call, written down as it is
    assert [order.lines for order in log] == [[1, 2], [1, 2, 99]]


def test_a_block_inside_the_handler_keeps_the_use() -> None:
    world = World()
    pay = world.compensatable("pay")

    def handler(x: str, n: int) -> str:
        with current_run().child("c"):
            return pay(x=x)

    rt = runtime(pay)
    with rt.run("r") as run:
        run.answer("pay", {"x": "7"}, handler=handler)
    assert world.log == ["pay:7"]
    assert len(list(rt.calls())) == 1


def test_calls_of_a_turn_have_their_uses_each() -> None:
    from amends import ToolCall

    world = World()
    pay = world.compensatable("pay")

    def twice(**args: Any) -> Any:
        done = pay(**args)
        assert _attempt(lambda: pay(**args)) is NoRun
        return done

    with runtime(pay, wait=30).run("r") as run:
        calls = [ToolCall("pay", {"x": str(n)}, handler=twice) for n in range(4)]
        assert [answer.value for answer in run.answer_all(calls)] == [f"pay:{n}" for n in range(4)]
    assert sorted(world.log) == [f"pay:{n}" for n in range(4)]


def test_a_handler_that_times_out_keeps_its_use_until_it_ends() -> None:
    world = World()
    pay = world.compensatable("pay", timeout=0.05)
    over, go = threading.Event(), threading.Event()

    def handler(x: str, n: int) -> str:
        assert go.wait(60)
        pay(x=x)
        over.set()
        return "late"

    with pytest.raises(RunBlocked), runtime(pay).run("r") as run:
        assert run.answer("pay", {"x": "7"}, handler=handler).status == "in_doubt"
    go.set()
    assert over.wait(60)
    assert world.log == ["pay:7"]  # of the attempt that is in doubt, and its evidence


@pytest.mark.parametrize("deep", [False, True])
def test_a_body_that_asks_for_its_own_call_does_not_wait_for_itself(deep: bool) -> None:
    found: list[object] = []

    @tool
    def middle(x: str) -> str:
        found.append(_attempt(lambda: current_run().call(pay, x=x)))
        return "middle"

    middle.compensate(lambda: None)

    @tool
    def pay(x: str) -> str:
        found.append(_attempt(lambda: pay(x=x) if not deep else middle(x=x)))
        return "paid"

    pay.compensate(lambda: None)
    with runtime(pay, middle, wait=60).run("r") as run:
        assert pay(x="7") == "paid"
        assert run.answer("pay", {"x": "8"}, handler=lambda x: current_run().call(pay, x=x)).status == "refused"
    assert found[0] is UsageError


# ---- on an event loop ---------------------------------------------------------------------


def _run(main: Callable[[AsyncRuntime, list[str], Any], Any], **options: Any) -> list[str]:
    log: list[str] = []

    @tool
    async def pay(x: str = "1") -> str:
        log.append(f"start {x}")
        await asyncio.sleep(0)
        log.append(f"pay:{x}")
        return f"pay:{x}"

    @pay.compensate
    async def undo(x: str) -> None:
        log.append(f"undo {x}")

    async def outer() -> None:
        rt = AsyncRuntime("memory:", tools=[pay], **({"wait": 30.0} | options))
        try:
            await asyncio.wait_for(main(rt, log, pay), 20)
        finally:
            await rt.close()

    asyncio.run(outer())
    return log


async def _attempt_async(awaitable: Any) -> Any:
    try:
        return await awaitable
    except Error as error:
        return type(error)


def test_an_async_function_is_the_body_once() -> None:
    async def main(rt: AsyncRuntime, log: list[str], pay: Any) -> None:
        async def handler(x: str) -> Any:
            first = await pay(x=x)
            assert await _attempt_async(pay(x=x)) is NoRun
            ends = await asyncio.gather(_attempt_async(pay(x=x)), _attempt_async(pay(x)))
            assert list(ends) == [NoRun, NoRun]
            assert await pay(x="other") == "pay:other"
            return first

        async with rt.run("r") as run:
            assert (await run.answer("pay", {"x": "7"}, handler=handler)).value == "pay:7"
        assert len((await rt.report("r")).calls) == 2

    assert _run(main) == ["start 7", "pay:7", "start other", "pay:other"]


def test_tasks_of_a_handler_use_it_once_between_them() -> None:
    async def main(rt: AsyncRuntime, log: list[str], pay: Any) -> None:
        async def handler(x: str) -> Any:
            ends = await asyncio.gather(*(_attempt_async(pay(x=x)) for _ in range(8)))
            assert sorted(map(str, ends)) == sorted(map(str, ["pay:7", *[NoRun] * 7]))
            return "done"

        async with rt.run("r") as run:
            await run.answer("pay", {"x": "7"}, handler=handler)

    assert _run(main) == ["start 7", "pay:7"]


def test_a_task_that_outlives_its_handler_cannot_use_it() -> None:
    async def main(rt: AsyncRuntime, log: list[str], pay: Any) -> None:
        go = asyncio.Event()
        tasks: list[asyncio.Task[Any]] = []

        async def late(x: str) -> Any:
            await go.wait()
            return await _attempt_async(pay(x=x))

        async def handler(x: str) -> Any:
            tasks.extend((asyncio.create_task(late(x)), asyncio.create_task(late("other"))))
            if current_run().id == "r":  # made in the handler, awaited after it
                tasks.append(asyncio.create_task(_after(go, pay(x=x))))
            await asyncio.sleep(0)
            return "without"

        async with rt.run("r") as run:
            await run.answer("pay", {"x": "7"}, handler=handler)
            go.set()
            assert await asyncio.gather(*tasks) == ["without", "pay:other", "without"]
        tasks.clear()
        go.clear()
        async with rt.run("s") as run:
            await run.answer("pay", {"x": "7"}, handler=handler)
        go.set()
        assert set(await asyncio.gather(*tasks)) <= {NoRun, RunEnded, "without"}

    assert _run(main) == ["start other", "pay:other"]


async def _after(go: asyncio.Event, made: Any) -> Any:
    await go.wait()
    return await _attempt_async(made)


def test_a_plain_handler_may_return_the_coroutine_of_the_tool() -> None:
    async def main(rt: AsyncRuntime, log: list[str], pay: Any) -> None:
        async with rt.run("r") as run:
            answer = await run.answer("pay", {"x": "7"}, handler=lambda **args: pay(**args))
            assert answer.value == "pay:7"
        assert len((await rt.report("r")).calls) == 1

    assert _run(main) == ["start 7", "pay:7"]


@pytest.mark.parametrize("handler_is_async", [True, False])
def test_the_async_function_is_the_body_in_a_blocking_run_too(handler_is_async: bool) -> None:
    log: list[str] = []

    @tool
    async def pay(x: str = "1") -> str:
        log.append(f"pay:{x}")
        return f"pay:{x}"

    pay.compensate(lambda: None)

    async def awaited(x: str) -> Any:
        found = await pay(x=x)
        assert await _attempt_async(pay(x=x)) is NoRun
        return found

    rt = runtime(pay)
    with rt.run("r") as run:
        handler: Any = awaited if handler_is_async else lambda **args: pay(**args)
        assert run.answer("pay", {"x": "7"}, handler=handler).value == "pay:7"
    rt.close()
    assert log == ["pay:7"]


def test_a_blocking_function_is_the_body_in_an_async_run_too() -> None:
    world = World()
    pay = world.compensatable("pay")

    async def main() -> None:
        rt = AsyncRuntime("memory:", tools=[pay], wait=30)

        def blocking(x: str, n: int) -> Any:
            found = pay(x=x)
            assert _attempt(lambda: pay(x=x)) is NoRun
            return found

        async def awaited(x: str, n: int) -> Any:
            return await asyncio.to_thread(blocking, x, n)

        for n, handler in enumerate((blocking, awaited)):
            async with rt.run(f"r{n}") as run:
                assert (await run.answer("pay", {"x": "7"}, handler=handler)).value == "pay:7"
        await rt.close()

    asyncio.run(main())
    assert world.log == ["pay:7", "pay:7"]


def test_a_deliberate_repeat_is_a_call_of_its_own_in_an_async_run() -> None:
    log: list[str] = []

    @tool
    async def pay(x: str) -> str:
        log.append(x)
        return x

    pay.compensate(lambda: None)

    async def handler(x: str) -> str:
        return await pay.with_options(again="second box")(x=x)

    async def main() -> None:
        rt = AsyncRuntime("memory:", tools=[pay])
        async with rt.run("r") as run:
            assert (await run.answer("pay", {"x": "7"}, handler=handler)).status == "done"
        assert [call.again for call in (await rt.report("r")).calls] == [None, "second box"]

    asyncio.run(main())
    assert log == ["7"]


def test_a_staged_call_keeps_the_handler_it_came_with() -> None:
    sent: list[str] = []
    tools = [declare("mail", kind="retriable", idempotent=True), declare("wire", kind="pivot", at="commit")]
    rt = Runtime("memory:", tools=tools)
    with rt.run("r") as run:
        run.answer("wire", {"n": 1}, handler=lambda n: sent.append("wire"))
        run.answer("mail", {"n": 1}, handler=lambda n: sent.append("mail"))
    assert sent == ["wire", "mail"]
    assert run.state == "committed"


# ---- What a handler returns ------------------------------------------------------------------


class Booked(BaseModel):
    id: str


def _booked(handler: Callable[..., Any], cancel: Callable[..., None], *more: str) -> None:
    """Call a tool whose body is elsewhere, and fail."""
    rt = Runtime("memory:", tools=[declare(name, compensate=cancel) for name in ("book", *more)])
    try:
        with rt.run("r") as run:
            run.answer("book", {}, handler=handler)
            rt.reach(dict.fromkeys(more, handler))
            raise LookupError
    except LookupError:
        pass


def test_a_compensation_gets_the_class_that_the_handler_is_annotated_with() -> None:
    handed: list[Any] = []

    def handler() -> Any:
        return Booked(id="7")

    handler.__annotations__["return"] = Booked
    _booked(handler, lambda result: handed.append(result))
    _booked(handler, lambda result: handed.append(result), "other")
    assert handed == [Booked(id="7")] * 2


def test_a_compensation_gets_the_class_that_its_own_result_is_annotated_with() -> None:
    handed: list[Any] = []

    def cancel(result: Booked) -> None:
        handed.append(result)

    _booked(lambda: Booked(id="7"), cancel)
    _booked(lambda: {"id": "8"}, cancel)
    assert handed == [Booked(id="7"), Booked(id="8")]

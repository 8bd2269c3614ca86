"""A block may be left in another context, thread or task than it was entered in."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from amends import AsyncRuntime, Run, Runtime, UsageError, current_run, tool
from amends.errors import NoRun, RunEnded, TransactionOpen
from amends.run import Entered
from tests.world import World, runtime, until


def _in_a_copy(act: Callable[[], Any]) -> Any:
    return contextvars.copy_context().run(act)


def _in_an_empty_context(act: Callable[[], Any]) -> Any:
    return contextvars.Context().run(act)


def _in_a_thread(act: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(act).result()


def _in_a_thread_with_the_context(act: Callable[[], Any]) -> Any:
    context = contextvars.copy_context()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(context.run, act).result()


def _here(act: Callable[[], Any]) -> Any:
    return act()


WAYS = [_in_a_copy, _in_an_empty_context, _in_a_thread, _in_a_thread_with_the_context, _here]
PAIRS = [(enter, leave) for enter in WAYS for leave in WAYS]


@pytest.mark.parametrize("enter, leave", PAIRS)
def test_a_block_of_a_generator_is_left_wherever_the_generator_ends(enter: Any, leave: Any) -> None:
    world = World()
    pay = world.compensatable("pay")
    rt = runtime(pay)

    def dependency() -> Iterator[Run]:
        with rt.run("r") as run:
            yield run

    steps = dependency()
    run = enter(lambda: next(steps))
    assert run.call(pay) == "pay:1"
    assert leave(lambda: next(steps, "over")) == "over"
    assert rt.report("r").state == "committed"
    assert rt._host.heartbeat.kept() == []
    with pytest.raises(NoRun):
        pay()
    with pytest.raises(NoRun):
        current_run()
    with rt.run("next"):
        assert pay() == "pay:1"
    assert rt.report("next").state == "committed"


@pytest.mark.parametrize("enter, leave", PAIRS)
def test_an_error_takes_the_run_back_wherever_the_block_is_left(enter: Any, leave: Any) -> None:
    world = World()
    pay = world.compensatable("pay")
    rt = runtime(pay)
    stack = contextlib.ExitStack()
    run = enter(lambda: stack.enter_context(rt.run("r")))
    child = enter(lambda: stack.enter_context(run.child("c")))
    child.call(pay)
    error = KeyError("mine")
    leave(lambda: stack.__exit__(KeyError, error, None))
    assert rt.report("r").state == "rolled_back"
    assert world.log == ["pay:1", "undo pay:1"]
    with pytest.raises(NoRun):
        pay()


def test_the_context_that_entered_the_block_is_in_the_run_around_again() -> None:
    world = World()
    pay = world.compensatable("pay")
    rt = runtime(pay)
    with rt.run("r") as run:
        inner = run.child("c")
        inner.__enter__()
        assert current_run().id == "r/c"
        _in_a_thread(lambda: inner.__exit__(None, None, None))
        assert current_run() is run
        pay()
    (call,) = rt.report("r").calls
    assert (call.run_id, call.state) == ("r", "succeeded")


def test_blocks_left_in_the_wrong_order_leave_nobody_inside() -> None:
    world = World()
    pay = world.compensatable("pay")
    rt = runtime(pay, wait=0.05)
    outer = rt.run("r")
    run = outer.__enter__()
    inner = run.child("c")
    inner.__enter__()
    pay()
    with contextlib.suppress(Exception):
        outer.__exit__(None, None, None)
    with contextlib.suppress(Exception):
        inner.__exit__(None, None, None)
    with pytest.raises(NoRun):
        pay(x="2")
    with rt.run("next"):
        pay(x="3")
    assert world.log.count("pay:2") == 0
    assert rt._host.heartbeat.kept() == []


def test_work_that_outlives_a_child_does_not_slip_into_the_run_around() -> None:
    world = World()
    pay = world.compensatable("pay")
    rt = runtime(pay)
    go, ended = threading.Event(), list[object]()

    def late() -> None:
        go.wait(5)
        for act in (pay, current_run):
            try:
                ended.append(act())
            except Exception as error:
                ended.append(error)

    with rt.run("r") as run:
        with pytest.raises(KeyError), run.child("c"):
            straggler = threading.Thread(target=contextvars.copy_context().run, args=(late,))
            straggler.start()
            raise KeyError
        go.set()
        straggler.join(5)
    assert [type(one) for one in ended] == [RunEnded, NoRun]
    assert world.log == []


@pytest.mark.parametrize("leave", [_in_a_copy, _in_a_thread])
def test_tasks_that_are_started_after_it_are_in_no_run(leave: Any) -> None:
    rt = runtime()
    block = rt.run("r")
    block.__enter__()
    leave(lambda: block.__exit__(None, None, None))

    async def main() -> None:
        with pytest.raises(NoRun):
            await charge()
        with pytest.raises(NoRun):
            current_run()

    asyncio.run(main())


def test_work_that_outlives_a_run_may_open_its_own() -> None:
    world = World()
    pay = world.compensatable("pay")
    rt = runtime(pay)
    with rt.run("r"):
        context = contextvars.copy_context()
        with pytest.raises(UsageError):
            context.run(rt.open, "nested")

    def late() -> None:
        with pytest.raises((NoRun, RunEnded)):
            pay(x="2")
        with rt.run("own"):
            pay()

    _in_a_thread(lambda: context.run(late))
    assert rt.report("own").state == "committed"
    assert world.log == ["pay:1"]


@pytest.mark.parametrize("way", [_in_a_copy, _in_a_thread, _here])
def test_a_generator_that_is_collected_takes_its_run_back(way: Any) -> None:
    world = World()
    pay = world.compensatable("pay")
    rt = runtime(pay)

    def dependency() -> Iterator[Run]:
        with rt.run("r") as run:
            run.call(pay)
            yield run

    def begin() -> None:
        steps = dependency()
        next(steps)
        cycle: list[Any] = [steps]
        cycle.append(cycle)

    way(begin)
    gc.collect()
    assert rt.report("r").state == "rolled_back"
    assert world.log == ["pay:1", "undo pay:1"]
    with pytest.raises(NoRun):
        pay()


def test_a_block_is_left_once() -> None:
    rt = runtime()
    block = rt.run("r")
    block.__enter__()
    with pytest.raises(UsageError):
        _in_a_thread(block.__enter__)
    block.__exit__(None, None, None)
    block.__exit__(KeyError, KeyError(), None)
    assert rt.report("r").state == "committed"
    with block as run:  # entered again, the run is opened again
        assert run.state == "committed"


def test_a_block_that_is_dropped_is_not_kept_alive() -> None:
    rt = runtime(lease=0.2)
    block: Any = rt.run("r")
    block.__enter__()
    del block
    gc.collect()
    assert rt._host.heartbeat.kept() == []
    with rt.run("next"):
        pass


def test_a_replay_may_be_left_elsewhere() -> None:
    world = World()
    pay = world.compensatable("pay")
    rt = runtime(pay)
    with rt.run("r"):
        pay()
    for enter, leave in PAIRS:
        stack = contextlib.ExitStack()
        run = enter(partial(stack.enter_context, rt.replaying("r")))
        assert run.call(pay) == "pay:1"
        leave(stack.close)
        with pytest.raises(NoRun):
            pay()
        with rt.run():
            pay(x="live")
    assert world.log == ["pay:1", *["pay:live"] * len(PAIRS)]


@pytest.mark.parametrize("commits", [True, False])
def test_a_transaction_of_another_thread_is_waited_for_not_for_ever(tmp_path: Any, commits: bool) -> None:
    world = World()
    pay = world.compensatable("pay")
    path = tmp_path / "l.db"
    rt = Runtime(f"sqlite:///{path}", tools=[pay], wait=5 if commits else 0.2)
    block = rt.run("r")
    block.__enter__()
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("begin immediate")
    pay.with_options(connection=connection)(x="1")
    if commits:
        with ThreadPoolExecutor(1) as pool:
            leaving = pool.submit(block.__exit__, None, None, None)
            time.sleep(0.2)
            connection.commit()
            leaving.result(20)
        assert rt.report("r").state == "committed"
    else:
        with pytest.raises(TransactionOpen):
            _in_a_thread(lambda: block.__exit__(None, None, None))
        connection.rollback()
    connection.close()
    assert rt._host.heartbeat.kept() == []


# ---- on an event loop ---------------------------------------------------------------------


@tool
async def charge(x: str = "1") -> str:
    return f"charge:{x}"


_undone: list[str] = []


@charge.compensate
async def uncharge(result: str) -> None:
    _undone.append(result)


@pytest.fixture(autouse=True)
def _clean() -> None:
    _undone.clear()


def _run(main: Callable[[AsyncRuntime], Any], url: str = "memory:", **options: Any) -> Any:
    async def outer() -> Any:
        rt = AsyncRuntime(url, tools=[charge], wait=30.0, **options)
        try:
            return await main(rt)
        finally:
            await rt.close()

    return asyncio.run(outer())


async def _stream(rt: AsyncRuntime, id: str = "r") -> AsyncIterator[str]:
    async with rt.run(id):
        yield await charge(x="1")
        yield await charge(x="2")


async def _state(rt: AsyncRuntime, id: str, state: str) -> None:
    for _ in range(2000):
        if (await rt.report(id)).state == state:
            return
        await asyncio.sleep(0.005)
    raise AssertionError((await rt.report(id)).state)


@pytest.mark.parametrize("url", ["memory:", "sqlite"])
def test_a_consumer_that_breaks_leaves_the_run_and_is_outside_of_it(url: str, tmp_path: Any) -> None:
    async def main(rt: AsyncRuntime) -> None:
        async for _ in _stream(rt):
            break
        await _state(rt, "r", "rolled_back")
        while rt._host.heartbeat.kept():  # the ledger says so before the task that leaves has let go
            await asyncio.sleep(0.005)
        with pytest.raises(NoRun):
            await charge()
        with pytest.raises(NoRun):
            await asyncio.create_task(charge())
        async with rt.run("next"):
            await charge()
        await _state(rt, "next", "committed")

    _run(main, url if url == "memory:" else f"sqlite:///{tmp_path / 'l.db'}")
    assert _undone == ["charge:1"]


def test_a_consumer_that_breaks_inside_a_run_is_in_that_run_again() -> None:
    async def inner(run: Any) -> AsyncIterator[str]:
        async with run.child("c"):
            yield await charge(x="1")

    async def main(rt: AsyncRuntime) -> None:
        async with rt.run("r") as run:
            async for _ in inner(run):
                break
            while not _undone:
                await asyncio.sleep(0.001)
            await asyncio.gather(charge(x="2"), charge(x="3"))
            assert current_run() is run
        assert (await rt.report("r")).state == "committed"
        found = {call.args["x"]: call.run_id async for call in rt.calls()}
        assert found == {"1": "r/c", "2": "r", "3": "r"}

    _run(main)


@pytest.mark.parametrize("how", ["committed", "rolled_back"])
def test_an_exit_stack_may_be_closed_in_another_task(how: str) -> None:
    async def main(rt: AsyncRuntime) -> None:
        stack = contextlib.AsyncExitStack()
        run = await stack.enter_async_context(rt.run("r"))
        await stack.enter_async_context(run.child("c"))
        await charge()
        error = KeyError("mine") if how == "rolled_back" else None
        await asyncio.create_task(stack.__aexit__(None if error is None else KeyError, error, None))
        assert (await rt.report("r")).state == how
        with pytest.raises(NoRun):
            await charge()
        async with rt.run("next"):
            await charge()

    _run(main)


def test_a_block_may_be_entered_in_one_task_and_left_in_another() -> None:
    async def main(rt: AsyncRuntime) -> None:
        stack = contextlib.AsyncExitStack()
        run = await asyncio.create_task(stack.enter_async_context(rt.run("r")))
        with pytest.raises(NoRun):
            await charge()
        await run.call(charge)
        await asyncio.create_task(stack.aclose())
        assert (await rt.report("r")).state == "committed"
        assert rt._host.heartbeat.kept() == []

    _run(main)


def test_a_block_is_left_in_another_loop(tmp_path: Any) -> None:
    async def main(rt: AsyncRuntime) -> None:
        stack = contextlib.AsyncExitStack()
        await stack.enter_async_context(rt.run("r"))
        await charge()
        await asyncio.to_thread(asyncio.run, stack.__aexit__(KeyError, KeyError(), None))
        assert (await rt.report("r")).state == "rolled_back"
        with pytest.raises(NoRun):
            await charge()

    _run(main, f"sqlite:///{tmp_path / 'l.db'}")
    assert _undone == ["charge:1"]


@pytest.mark.parametrize("url", ["memory:", "sqlite"])
@pytest.mark.parametrize("where", ["block", "call"])
def test_a_coroutine_that_outlives_its_loop_takes_its_run_back(url: str, where: str, tmp_path: Any) -> None:
    rt = AsyncRuntime(url if url == "memory:" else f"sqlite:///{tmp_path / 'l.db'}", tools=[charge, slow], wait=30.0)

    begun = threading.Event()
    _begun.append(begun.set)

    async def work() -> None:
        async with rt.run("r"):
            await charge()
            if where == "call":
                await slow()
            begun.set()
            await asyncio.sleep(60)

    async def main() -> None:
        main.task = asyncio.ensure_future(work())  # type: ignore[attr-defined]
        while not begun.is_set():
            await asyncio.sleep(0.002)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.close()
    main.task.get_coro().close()  # type: ignore[attr-defined]
    report = asyncio.run(rt.report("r"))
    assert report.state == ("rolled_back" if where == "block" else "blocked")
    assert rt._host.heartbeat.kept() == []
    asyncio.run(rt.close())


_begun: list[Callable[[], None]] = []


@tool
async def slow() -> None:
    _begun[-1]()
    await asyncio.sleep(60)


slow.compensate(lambda: None)


def test_a_generator_of_a_closed_loop_is_not_kept_alive() -> None:
    rt = AsyncRuntime("memory:", tools=[charge], lease=5)

    async def main() -> AsyncIterator[str]:
        steps = _stream(rt)
        await anext(steps)
        return steps

    loop = asyncio.new_event_loop()
    steps = loop.run_until_complete(main())
    loop.close()
    assert len(rt._host.heartbeat.kept()) == 1
    del steps
    gc.collect()
    assert rt._host.heartbeat.kept() == []
    asyncio.run(rt.close())


def test_a_coroutine_that_is_closed_while_it_leaves_does_not_cut_that_short() -> None:
    async def main(rt: AsyncRuntime) -> None:
        async def work() -> None:
            async with rt.run("r"):
                await charge()
                await asyncio.sleep(60)

        assert [run async for run in rt.runs()] == []
        coroutine = work()
        coroutine.send(None)
        assert len((await rt.report("r")).calls) == 1
        with contextlib.suppress(RuntimeError):
            coroutine.close()
        await _state(rt, "r", "rolled_back")
        for _ in range(200):
            if not rt._host.heartbeat.kept():
                break
            await asyncio.sleep(0.005)
        assert rt._host.heartbeat.kept() == []

    _run(main)
    assert _undone == ["charge:1"]


def test_a_task_that_outlives_its_run_does_nothing_in_it() -> None:
    async def main(rt: AsyncRuntime) -> None:
        go = asyncio.Event()

        async def late() -> None:
            await go.wait()
            with pytest.raises((NoRun, RunEnded)):
                await charge(x="late")
            async with rt.run("own"):
                await charge(x="own")

        async with rt.run("r"):
            task = asyncio.create_task(late())
            await asyncio.sleep(0)
        go.set()
        await task
        assert [call.args["x"] for call in (await rt.report("own")).calls] == ["own"]
        assert (await rt.report("r")).calls == ()

    _run(main)


def test_a_cancellation_while_the_block_is_left_elsewhere_lets_it_finish() -> None:
    async def main(rt: AsyncRuntime) -> None:
        stack = contextlib.AsyncExitStack()
        await stack.enter_async_context(rt.run("r"))
        await charge()
        leaving = asyncio.create_task(stack.__aexit__(KeyError, KeyError(), None))
        await asyncio.sleep(0)
        leaving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await leaving
        assert (await rt.report("r")).state == "rolled_back"

    _run(main)


def test_an_async_replay_may_be_left_in_another_task() -> None:
    async def main(rt: AsyncRuntime) -> None:
        async with rt.run("r"):
            await charge()
        stack = contextlib.AsyncExitStack()
        run = await stack.enter_async_context(rt.replaying("r"))
        assert await run.call(charge) == "charge:1"
        await asyncio.create_task(stack.aclose())
        with pytest.raises(NoRun):
            await charge()
        async with rt.run("next"):
            await charge()

    _run(main)


def test_a_bound_function_that_is_closed_elsewhere_leaves_its_scope() -> None:
    async def main(rt: AsyncRuntime) -> None:
        async with rt.run("r") as run:

            @run.bind
            async def bound() -> None:
                await asyncio.sleep(60)

            coroutine: Any = bound()
            contextvars.copy_context().run(coroutine.send, None)
            contextvars.Context().run(coroutine.close)
        assert (await rt.report("r")).state == "committed"

    _run(main)


def test_a_block_that_the_collector_finalizes_before_its_generator_is_left() -> None:
    world = World()
    pay = world.compensatable("pay")
    rt = runtime(pay)

    def lines() -> Iterator[str]:
        with rt.run("r") as run:
            yield run.call(pay, x="1")

    stream: Any = lines()
    next(stream)
    [block] = [one for one in gc.get_objects() if type(one) is Entered and one.run.id == "r"]
    block.__del__()
    assert rt.report("r").state == "open"
    stream.close()
    assert rt.report("r").state == "rolled_back"
    assert rt._host.heartbeat.kept() == []


# ---- in a server --------------------------------------------------------------------------


def test_a_dependency_of_a_server_enters_and_leaves_in_threads_of_a_pool() -> None:
    anyio = pytest.importorskip("anyio")
    world = World()
    pay = world.compensatable("pay")
    rt = runtime(pay)

    @contextlib.contextmanager
    def dependency(id: str) -> Iterator[Run]:
        with rt.run(id) as run:
            yield run

    async def request(id: str, *, fails: bool = False) -> None:
        block = dependency(id)  # as FastAPI does it with a dependency that is no coroutine
        run = await anyio.to_thread.run_sync(block.__enter__)
        await anyio.to_thread.run_sync(lambda: run.call(pay, x=id))
        error = KeyError("mine") if fails else None
        await anyio.to_thread.run_sync(block.__exit__, None if error is None else KeyError, error, None)

    async def main() -> None:
        await asyncio.gather(*(request(f"r{n}", fails=n % 2 == 1) for n in range(6)))

    asyncio.run(main())
    assert [rt.report(f"r{n}").state for n in range(6)] == ["committed", "rolled_back"] * 3
    assert rt._host.heartbeat.kept() == []


def test_a_stream_of_a_server_whose_client_goes_away_is_left() -> None:
    responses = pytest.importorskip("starlette.responses")
    world = World()
    pay = world.compensatable("pay")
    rt = runtime(pay)

    def lines() -> Iterator[str]:
        with rt.run("r") as run:
            for n in range(1000):
                yield run.call(pay, x=str(n))

    async def main() -> None:
        async def send(message: Any) -> None:
            if message.get("body"):
                raise OSError("the client is gone")

        async def receive() -> Any:
            await asyncio.sleep(60)

        scope = {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.4"}}
        with pytest.raises(BaseException):  # noqa: B017 (the server's own)
            await responses.StreamingResponse(lines())(scope, receive, send)

    asyncio.run(main())
    gc.collect()
    until(lambda: rt.report("r").state == "rolled_back")
    assert world.log == ["pay:0", "undo pay:0"]
    time.sleep(0)
    with pytest.raises(NoRun):
        pay()


def test_a_run_of_another_runtime_may_be_opened_after_it() -> None:
    first, second = Runtime("memory:"), Runtime("memory:")
    block = first.run("r")
    _in_a_copy(block.__enter__)
    _in_a_thread(lambda: block.__exit__(None, None, None))
    with second.run("s"):
        pass
    assert [first.report("r").state, second.report("s").state] == ["committed", "committed"]


def test_a_block_that_a_body_leaves_open_does_not_reach_its_caller() -> None:
    world = World()
    pay = world.compensatable("pay")
    opened: list[Any] = []

    @tool
    def begin() -> None:
        opened.append(current_run().child("c"))
        opened[0].__enter__()
        pay(x="1", n=1)

    begin.compensate(lambda: None)
    rt = runtime(pay, begin)
    with rt.run("r") as run:
        begin()
        assert current_run() is run
        pay(x="2", n=1)
        opened[0].__exit__(None, None, None)
        assert current_run() is run
    (outside,) = [call for call in rt.report("r").calls if call.tool == "pay"]
    (inside,) = rt.report("r/c").calls
    assert (outside.parent, inside.parent) == (None, next(c.id for c in rt.report("r").calls if c.tool == "begin"))


def test_a_bound_function_that_gives_back_a_coroutine_carries_its_run() -> None:
    async def main() -> None:
        @tool
        async def pay(n: int) -> int:
            return n

        pay.compensate(lambda: None)
        rt = AsyncRuntime("memory:", tools=[pay])
        async with rt.run("r") as run:
            bound = run.bind(lambda: pay(1))

            async def elsewhere() -> int:
                return await bound()

            assert await asyncio.create_task(elsewhere(), context=contextvars.Context()) == 1

    asyncio.run(main())

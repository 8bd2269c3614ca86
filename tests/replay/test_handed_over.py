"""Work that a replayed program hands to tasks and threads older than the replay starts nothing; live work goes on."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from amends import current_run
from amends.errors import NoRun, ReplayDenied, UsageError
from tests.replay.test_async import Clinic, on_a_loop
from tests.replay.test_replay import Clinic as BlockingClinic

Work = Callable[[], Coroutine[Any, Any, object]]
Start = Callable[[Work], asyncio.Future[Any]]


async def _consume(work: asyncio.Queue[Any]) -> None:
    while True:
        act, done = await work.get()
        try:
            done.set_result(await act())
        except Exception as error:
            done.set_exception(error)


async def _consume_within(work: asyncio.Queue[Any], clinic: Clinic) -> None:
    async with clinic.rt.run("worker"):
        await _consume(work)


async def _consume_patiently(work: asyncio.Queue[Any]) -> None:
    while True:
        try:
            act, done = await asyncio.wait_for(work.get(), 0.05)
        except TimeoutError:
            continue
        try:
            done.set_result(await act())
        except Exception as error:
            done.set_exception(error)


async def _given(work: asyncio.Queue[Any], act: Work) -> Any:
    done = asyncio.get_running_loop().create_future()
    await work.put((act, done))
    return await done


async def _in_an_empty_task(act: Work) -> Any:
    return await asyncio.create_task(act(), context=contextvars.Context())


async def _in_a_bare_task(act: Work) -> Any:
    return await asyncio.Task(act(), loop=asyncio.get_running_loop(), context=contextvars.Context())


async def _by_a_callback(act: Work) -> Any:
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def begin() -> None:
        task = asyncio.ensure_future(act())
        task.add_done_callback(
            lambda ended: done.set_exception(ended.exception() or AssertionError("it was done"))  # type: ignore[arg-type]
        )

    loop.call_soon(begin, context=contextvars.Context())
    return await done


async def _by_a_timer(act: Work) -> Any:
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def begin() -> None:
        task = loop.create_task(act())
        task.add_done_callback(lambda ended: done.set_exception(ended.exception() or AssertionError("it was done")))

    loop.call_later(0.001, begin, context=contextvars.Context())
    return await done


async def _after_a_while(act: Work) -> Any:
    async def later() -> Any:
        await asyncio.sleep(0.001)
        await asyncio.to_thread(int)
        return await act()

    return await asyncio.create_task(later(), context=contextvars.Context())


async def _by_a_task_of_an_empty_task(act: Work) -> Any:
    async def begin() -> Any:
        return await asyncio.gather(contextvars.Context().run(asyncio.ensure_future, act()))

    return await asyncio.create_task(begin(), context=contextvars.Context())


async def _in_another_loop(act: Work) -> Any:
    loop = asyncio.new_event_loop()
    thread = contextvars.Context().run(lambda: threading.Thread(target=loop.run_forever))
    thread.start()
    try:
        return await asyncio.wrap_future(contextvars.Context().run(asyncio.run_coroutine_threadsafe, act(), loop))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        await asyncio.to_thread(thread.join)
        loop.close()


WAYS = [
    _in_an_empty_task,
    _in_a_bare_task,
    _by_a_callback,
    _by_a_timer,
    _after_a_while,
    _by_a_task_of_an_empty_task,
    _in_another_loop,
]


def _deeds(clinic: Clinic) -> dict[str, Work]:
    async def own_run() -> object:
        async with clinic.rt.run("beside"):
            return await clinic.order(99)

    async def made_run() -> object:
        async with clinic.rt.run():
            return await clinic.order(99)

    async def same_run() -> object:
        async with clinic.rt.run("r"):
            return await clinic.order(99)

    async def once() -> object:
        return await clinic.rt.once("k", clinic.started.append, "once")

    async def by_hand() -> object:
        run = await clinic.rt.open("by hand")
        return await run.call(clinic.order, n=99)

    return {"own": own_run, "made": made_run, "same": same_run, "once": once, "by hand": by_hand}


DEEDS = ["own", "made", "same", "once", "by hand"]


@pytest.mark.parametrize("deed", DEEDS)
@pytest.mark.parametrize("way", WAYS)
@on_a_loop
async def test_work_with_an_empty_context_starts_nothing(tmp_path: Path, way: Any, deed: str) -> None:
    clinic = Clinic(tmp_path)
    await clinic.record(lambda: clinic.order(1))
    act = _deeds(clinic)[deed]

    async def agent() -> None:
        await clinic.order(1)
        with pytest.raises(ReplayDenied):
            await asyncio.wait_for(way(act), 10)

    with pytest.raises(ReplayDenied):
        await clinic.rt.replay("r", agent)
    assert clinic.started == []
    assert [run.id async for run in clinic.rt.runs()] == ["r"]
    await clinic.rt.close()


@pytest.mark.parametrize("deed", [*DEEDS, "tool"])
@pytest.mark.parametrize("worker", ["outside", "inside a run", "patient"])
@on_a_loop
async def test_work_for_an_older_task_starts_nothing(tmp_path: Path, worker: str, deed: str) -> None:
    clinic = Clinic(tmp_path)
    work: asyncio.Queue[Any] = asyncio.Queue()
    workers = {
        "outside": lambda: _consume(work),
        "inside a run": lambda: _consume_within(work, clinic),
        "patient": lambda: _consume_patiently(work),
    }
    await clinic.record(lambda: clinic.order(1))
    older = asyncio.create_task(workers[worker]())
    await asyncio.sleep(0.05)

    async def use_tool() -> object:
        return await clinic.order(99)

    act = {**_deeds(clinic), "tool": use_tool}[deed]

    async def agent() -> object:
        await clinic.order(1)
        return await _given(work, act)

    with pytest.raises(UsageError) as found:
        await asyncio.wait_for(clinic.rt.replay("r", agent), 10)
    assert isinstance(found.value, ReplayDenied | NoRun) or worker == "inside a run"
    assert clinic.started == []

    async def live() -> object:
        return "live" if worker == "inside a run" else await _deeds(clinic)["made"]()

    assert await asyncio.wait_for(_given(work, live), 10)  # after it the worker is anybody's
    older.cancel()
    await asyncio.gather(older, return_exceptions=True)
    await clinic.rt.close()


@on_a_loop
async def test_a_busy_worker_knows_whose_work_it_does(tmp_path: Path) -> None:
    clinic = Clinic(tmp_path)
    work: asyncio.Queue[Any] = asyncio.Queue()
    await clinic.record(lambda: clinic.order(1))
    older = asyncio.create_task(_consume(work))
    go = asyncio.Event()

    def deed(n: int) -> Work:
        async def act() -> object:
            await go.wait()
            async with clinic.rt.run(f"live {n}"):
                return await clinic.order(n)

        return act

    async def server() -> list[object]:
        return await asyncio.gather(*(_given(work, deed(n)) for n in range(3)))

    serving = asyncio.create_task(server())
    await asyncio.sleep(0)

    async def agent() -> object:
        await clinic.order(1)
        mine = asyncio.gather(*(_given(work, deed(n + 100)) for n in range(3)), return_exceptions=True)
        await asyncio.sleep(0.01)
        go.set()
        return await mine

    with pytest.raises(ReplayDenied):
        await asyncio.wait_for(clinic.rt.replay("r", agent), 20)
    assert len(await serving) == 3
    assert sorted(clinic.started) == ["order 0", "order 1", "order 2"]
    older.cancel()
    await clinic.rt.close()


@on_a_loop
async def test_live_tasks_of_a_server_go_on_beside_a_replay(tmp_path: Path) -> None:
    clinic = Clinic(tmp_path)
    work: asyncio.Queue[Any] = asyncio.Queue()
    await clinic.record(lambda: clinic.order(1))
    lock, gate, over = asyncio.Lock(), asyncio.Semaphore(1), asyncio.Event()
    older = asyncio.create_task(_consume(work))
    done = 0

    async def live() -> None:
        nonlocal done
        while not over.is_set():
            async with lock, gate, clinic.rt.run(f"live {done}"):
                await clinic.order(1000 + done)
            await _given(work, _deeds(clinic)["made"])
            asyncio.get_running_loop().call_soon(int)
            await asyncio.create_task(asyncio.sleep(0))
            done += 1

    async def agent() -> object:
        found = await clinic.order(1)
        for _ in range(50):
            async with lock, gate:
                await asyncio.sleep(0.002)
        return found

    serving = asyncio.create_task(live())
    await asyncio.wait_for(clinic.rt.replay("r", agent), 30)
    over.set()
    await serving
    older.cancel()
    assert done > 1
    assert clinic.started
    await clinic.rt.close()


@on_a_loop
async def test_a_call_that_a_replay_made_is_its_own_in_any_task(tmp_path: Path) -> None:
    clinic = Clinic(tmp_path)
    todo: list[Any] = []
    woken, done = asyncio.Event(), asyncio.Event()
    await clinic.record(lambda: clinic.order(1))
    told: list[object] = []

    async def worker() -> None:
        async with clinic.rt.run("worker"):
            await woken.wait()
            told.append(await todo.pop())
            done.set()

    older = asyncio.create_task(worker())
    await asyncio.sleep(0.05)

    async def agent() -> None:
        todo.append(clinic.order(1))
        woken.set()
        await done.wait()

    await asyncio.wait_for(clinic.rt.replay("r", agent), 10)
    await older
    assert told == ["order 1 #1"]
    assert clinic.started == []
    await clinic.rt.close()


@on_a_loop
async def test_a_live_run_that_the_program_holds_starts_nothing(tmp_path: Path) -> None:
    clinic = Clinic(tmp_path)
    await clinic.record(lambda: clinic.order(1))
    held = await clinic.rt.open("held")
    verbs: list[Callable[[], Coroutine[Any, Any, object]]] = [
        lambda: held.call(clinic.order, n=99),
        lambda: held.once("k", clinic.started.append, "once"),
        lambda: held.execute([{"tool": "order", "args": {"n": 99}}]),
        lambda: held.begin("order", {"n": 99}),
        lambda: held.commit(),
        lambda: held.leave(),
        lambda: held.rollback("no"),
    ]
    for verb in verbs:

        async def agent(verb: Any = verb) -> None:
            await clinic.order(1)
            await verb()

        with pytest.raises(ReplayDenied):
            await clinic.rt.replay("r", agent)
    assert clinic.started == []
    await held.call(clinic.order, n=2)
    await held.commit()
    assert clinic.started == ["order 2"]
    await clinic.rt.close()


# ---- threads ------------------------------------------------------------------------------


@pytest.fixture
def clinic(tmp_path: Path) -> BlockingClinic:
    return BlockingClinic(tmp_path)


@pytest.mark.parametrize("kind", [queue.Queue, queue.LifoQueue])
@pytest.mark.parametrize("within", [False, True])
def test_work_for_an_older_thread_starts_nothing(clinic: BlockingClinic, within: bool, kind: Any) -> None:
    clinic.record(lambda: clinic.order_lab(patient="p"))
    work: queue.Queue[Any] = kind()

    def consume() -> None:
        while (item := work.get()) is not None:
            act, done, ends = item
            try:
                ends.append(act())
            except Exception as error:
                ends.append(error)
            done.set()

    def worker() -> None:
        if within:
            with clinic.rt.run("worker"):
                consume()
        else:
            consume()

    def given(act: Callable[[], object]) -> object:
        done, ends = threading.Event(), list[object]()
        work.put((act, done, ends))
        assert done.wait(10)
        return ends[0]

    def deed() -> object:
        if within:
            return clinic.order_lab(patient="q")
        with clinic.rt.run("beside"):
            return clinic.order_lab(patient="q")

    older = threading.Thread(target=worker, daemon=True)
    older.start()

    def agent() -> None:
        clinic.order_lab(patient="p")
        assert isinstance(given(deed), ReplayDenied)

    with pytest.raises(ReplayDenied):
        clinic.rt.replay("visit", agent)
    assert clinic.started == []
    assert not isinstance(given(deed), Exception)  # after it the worker is anybody's
    work.put(None)
    older.join(10)
    assert clinic.started == ["order_lab"]


def test_a_thread_of_an_older_pool_with_an_empty_context_starts_nothing(clinic: BlockingClinic) -> None:
    clinic.record(lambda: clinic.order_lab(patient="p"))

    def beside() -> object:
        with clinic.rt.run("beside"):
            return clinic.order_lab(patient="q")

    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()

        def agent() -> None:
            clinic.order_lab(patient="p")
            ended = pool.submit(lambda: contextvars.Context().run(beside)).exception()
            assert isinstance(ended, ReplayDenied)

        with pytest.raises(ReplayDenied):
            clinic.rt.replay("visit", agent)
    assert clinic.started == []


def test_a_live_run_that_a_blocking_program_holds_starts_nothing(clinic: BlockingClinic) -> None:
    clinic.record(lambda: clinic.order_lab(patient="p"))
    held = clinic.rt.open("held")
    for verb in (
        lambda: held.call(clinic.order_lab, patient="q"),
        lambda: held.answer("order_lab", {"patient": "q"}),
        held.commit,
        held.leave,
        lambda: held.rollback("no"),
    ):

        def agent(verb: Any = verb) -> None:
            clinic.order_lab(patient="p")
            verb()

        with pytest.raises(ReplayDenied):
            clinic.rt.replay("visit", agent)
    assert clinic.started == []
    held.commit()


def test_what_a_bound_function_asks_an_older_thread_for_is_answered(clinic: BlockingClinic) -> None:
    work: queue.Queue[Any] = queue.Queue()

    def consume() -> None:
        while (item := work.get()) is not None:
            act, done, ends = item
            ends.append(act())
            done.set()

    older = threading.Thread(target=consume, daemon=True)
    older.start()

    def agent() -> object:
        done, ends = threading.Event(), list[object]()
        work.put((current_run().bind(lambda: clinic.order_lab(patient="p")), done, ends))
        assert done.wait(10)
        return ends[0]

    told = clinic.record(agent)
    assert clinic.rt.replay("visit", agent) == told
    work.put(None)
    older.join(10)
    assert clinic.started == []

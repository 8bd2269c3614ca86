"""One file, many event loops: no loop waits for the disk, and a cancellation waits for its operation."""

import asyncio
import linecache
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from amends import AsyncRuntime, current_call, tool
from amends.errors import LeaseLost, LedgerUnavailable
from amends.ledger import operations as ops
from amends.ledger.plain import Started
from amends.stores import waiter
from amends.stores.memory import MemoryStore
from amends.stores.sqlite import group_commit
from amends.stores.sqlite import store as sqlite_store
from amends.stores.sqlite.connection import BUSY_S_MAX
from amends.stores.sqlite.group_commit import AT_ONCE_MAX
from amends.stores.sqlite.store import APART_MIN, INLINE_MAX, SqliteStore
from amends.testing.conformance.ledger import Ledger, audit
from tests.stores.many import CALLERS, Gate, commits, in_line, numbered, stored, wait_for

PATIENCE_S: Final = 20.0


@pytest.fixture
def shared(tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteStore]:
    """A file on a disk that is never quick enough to be written on the loop; its clock is the gate."""
    monkeypatch.setattr(sqlite_store, "INLINE_FLUSH_S", 0.0)
    made = SqliteStore(tmp_path / "ledger.db", "FULL", gate)
    made.open(create=True)
    yield made
    if not made._closed:
        audit(Ledger(made))
    made.close()


@pytest.fixture
def quick(tmp_path: Path, gate: Gate) -> Iterator[SqliteStore]:
    """A file that is written without a flush, so that the loop itself may write it."""
    made = SqliteStore(tmp_path / "ledger.db", "NORMAL", gate)
    made.open(create=True)
    yield made
    audit(Ledger(made))
    made.close()


def test_tasks_that_come_together_share_flushes(shared: SqliteStore) -> None:
    ledger = Ledger(shared)
    requests = numbered(ledger, ledger.run(), CALLERS)
    is_stored = stored(shared.path)

    async def ask(op: ops.AdmitCall) -> tuple[str, bool]:
        return (await shared.perform_async(op)).verdict, is_stored(op.call_id)

    async def all_at_once() -> list[tuple[str, bool]]:
        return await asyncio.gather(*map(ask, requests))

    before = commits(shared.path)
    assert asyncio.run(all_at_once()) == [("start", True)] * CALLERS
    assert commits(shared.path) - before <= 3


def test_tasks_and_threads_share_the_line(shared: SqliteStore, gate: Gate) -> None:
    ledger = Ledger(shared)
    requests = numbered(ledger, ledger.run(), 20)
    gate.once(in_line(shared, 19))

    async def tasks(mine: list[ops.AdmitCall]) -> list[ops.Admission]:
        return await asyncio.gather(*map(shared.perform_async, mine))

    with ThreadPoolExecutor(12) as pool:
        others = [pool.submit(shared.perform, request) for request in requests[:10]]
        loops = [pool.submit(asyncio.run, tasks(requests[10:15])), pool.submit(asyncio.run, tasks(requests[15:]))]
        answers = [future.result() for future in others] + [one for loop in loops for one in loop.result()]
    assert {answer.verdict for answer in answers} == {"start"}
    assert len(ledger.calls()) == 20


def test_the_loop_goes_on_while_the_ledger_is_written(shared: SqliteStore, gate: Gate) -> None:
    ledger = Ledger(shared)
    run = ledger.run()
    ticks = threading.Event()
    gate.once(lambda: ticks.wait(60))

    async def main() -> None:
        asking = asyncio.ensure_future(shared.perform_async(ledger.admit_op(run)))
        wait = asyncio.get_running_loop().run_in_executor(None, wait_for, lambda: shared._commits._leader is not None)
        await wait
        assert await shared.perform_async(ops.ReadCall("nobody")) is None, "nor do reads wait"
        ticks.set()
        assert (await asking).verdict == "start"

    asyncio.run(main())


@pytest.mark.parametrize("when", ["leading", "in line"])
def test_a_cancelled_task_learns_it_when_its_operation_is_over(shared: SqliteStore, gate: Gate, when: str) -> None:
    ledger = Ledger(shared)
    first, second = numbered(ledger, ledger.run(), 2)
    go = threading.Event()
    gate.once(lambda: go.wait(60))
    cancelled = first if when == "leading" else second

    async def main() -> None:
        asking = {op.call_id: asyncio.ensure_future(shared.perform_async(op)) for op in (first, second)}
        await asyncio.get_running_loop().run_in_executor(None, in_line(shared, 1))
        task = asking[cancelled.call_id]
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert stored(shared.path)(cancelled.call_id)
        [other] = [one for one in asking.values() if one is not task]
        assert (await other).verdict == "start"

    asyncio.run(main())
    assert len(ledger.calls()) == 2


def test_a_cancelled_task_whose_operation_failed_is_cancelled(shared: SqliteStore, gate: Gate) -> None:
    ledger = Ledger(shared)
    [request] = numbered(ledger, ledger.run(), 1)
    request.epoch = 7
    go = threading.Event()
    gate.once(lambda: go.wait(60))

    async def main() -> None:
        held = asyncio.ensure_future(shared.perform_async(ledger.open_op("other")))
        task = asyncio.ensure_future(shared.perform_async(request))
        await asyncio.get_running_loop().run_in_executor(None, in_line(shared, 1))
        task.cancel()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        await held

    asyncio.run(main())


def test_a_loop_that_closes_early_does_not_stop_the_others(shared: SqliteStore, gate: Gate) -> None:
    ledger = Ledger(shared)
    first, second, third = numbered(ledger, ledger.run(), 3)
    go = threading.Event()
    gate.once(lambda: go.wait(60))
    with ThreadPoolExecutor(2) as pool:
        leading = pool.submit(shared.perform, first)
        wait_for(lambda: shared._commits._leader is not None)
        loop = asyncio.new_event_loop()
        left = shared.perform_async(second)
        task = loop.create_task(left)
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        other = pool.submit(shared.perform, third)
        in_line(shared, 2)()
        go.set()
        assert {leading.result().verdict, other.result().verdict} == {"start"}
    assert len(ledger.calls()) == 3
    left.close()


def test_closing_serves_those_in_line_first(shared: SqliteStore, gate: Gate) -> None:
    ledger = Ledger(shared)
    requests = numbered(ledger, ledger.run(), 6)
    go = threading.Event()
    gate.once(lambda: go.wait(60))

    async def tasks() -> list[ops.Admission]:
        return await asyncio.gather(*map(shared.perform_async, requests[3:]))

    with ThreadPoolExecutor(5) as pool:
        waiting = [pool.submit(shared.perform, request) for request in requests[:3]]
        loop = pool.submit(asyncio.run, tasks())
        in_line(shared, 5)()
        closing = pool.submit(shared.close)
        wait_for(lambda: shared._commits._closed)
        with pytest.raises(LedgerUnavailable):
            ledger.run("late")
        go.set()
        closing.result()
        answers = [future.result() for future in waiting] + loop.result()
    assert {answer.verdict for answer in answers} == {"start"}
    again = SqliteStore(shared.path, "NORMAL")
    assert len(Ledger(again).calls()) == 6
    again.close()


def test_a_loop_goes_on_while_a_ledger_that_is_asked_for_an_answer_waits_to_be_opened(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("begin immediate")
        other.execute("create table kept (it)")

        async def play(store: SqliteStore) -> None:
            run = Ledger(MemoryStore()).run()
            answer = asyncio.create_task(store.perform_async(Ledger(store).admit_op(run)))
            for _ in range(3):
                await asyncio.sleep(0)
            other.execute("rollback")  # only a loop that went on comes here before who asked gives up
            await answer

        with closing(SqliteStore(path, "NORMAL", lock_wait_s=2.0)) as store:
            with pytest.raises(AssertionError, match="a run that it does not have"):
                asyncio.run(play(store))


# ---- what the loop writes itself ----------------------------------------------------------


def writers(store: SqliteStore, gate: Gate, requests: list[ops.AdmitCall]) -> tuple[list[str], set[int], int]:
    """Perform them in one turn of a loop; return the verdicts, the threads that wrote, and that of the loop."""
    threads: set[int] = set()
    gate.before = lambda: threads.add(threading.get_ident())

    async def all_at_once() -> list[ops.Admission]:
        return await asyncio.gather(*map(store.perform_async, requests))

    verdicts = [answer.verdict for answer in asyncio.run(all_at_once())]
    gate.before = lambda: None
    return verdicts, threads, threading.get_ident()


def test_a_turn_of_the_loop_is_one_transaction_on_the_loop_itself(quick: SqliteStore, gate: Gate) -> None:
    ledger = Ledger(quick)
    requests = numbered(ledger, ledger.run(), INLINE_MAX)
    before = commits(quick.path)
    verdicts, threads, loop = writers(quick, gate, requests)
    assert verdicts == ["start"] * INLINE_MAX
    assert threads == {loop}
    assert commits(quick.path) - before == 1


def test_a_turn_with_too_many_operations_is_left_to_a_thread(quick: SqliteStore, gate: Gate) -> None:
    ledger = Ledger(quick)
    verdicts, threads, loop = writers(quick, gate, numbered(ledger, ledger.run(), INLINE_MAX + 1))
    assert verdicts == ["start"] * (INLINE_MAX + 1)
    assert loop not in threads


def test_a_disk_that_flushes_slowly_is_left_to_a_thread(shared: SqliteStore, gate: Gate) -> None:
    ledger = Ledger(shared)
    verdicts, threads, loop = writers(shared, gate, numbered(ledger, ledger.run(), 2))
    assert (verdicts, loop in threads) == (["start"] * 2, False)


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("count", [1, 3])
def test_a_loop_goes_on_while_another_process_has_the_file(
    quick: SqliteStore, gate: Gate, plain: bool, count: int
) -> None:
    """It would write by itself, but finds the lock taken: a thread waits for it, with the whole turn."""
    ledger = Ledger(quick)
    run = ledger.run()
    if plain:
        ledger.start_plain(run)  # its tool is known now
        asked: list[ops.StoreOp[Any]] = [ledger.plain_op(run, args=f"[{number}]") for number in range(count)]
    else:
        asked = [*numbered(ledger, run, count)]

    async def play(other: sqlite3.Connection) -> list[Any]:
        tasks = [asyncio.create_task(quick.perform_async(op)) for op in asked]
        before = time.monotonic()
        for _ in range(5):
            await asyncio.sleep(0)
        assert time.monotonic() - before < BUSY_S_MAX, "SQLite itself would wait as long, on the loop"
        assert not any(task.done() for task in tasks)
        other.execute("rollback")  # only a loop that went on comes here
        return await asyncio.gather(*tasks)

    with closing(sqlite3.connect(quick.path, isolation_level=None)) as other:
        other.execute("begin immediate")
        answers = asyncio.run(play(other))
    assert len(answers) == count
    assert len(ledger.calls()) == count + int(plain)


def test_an_operation_that_fails_on_the_loop_fails_alone(quick: SqliteStore, gate: Gate) -> None:
    ledger = Ledger(quick)
    first, second, third = numbered(ledger, ledger.run(), 3)
    first.epoch = second.epoch = 7

    async def all_at_once() -> list[Any]:
        return await asyncio.gather(*map(quick.perform_async, (first, second, third)), return_exceptions=True)

    answers = asyncio.run(all_at_once())
    assert [type(answer) for answer in answers] == [LeaseLost, LeaseLost, ops.Admission]
    assert len(ledger.calls()) == 1


@pytest.mark.parametrize("plain", [True, False])
def test_an_interrupt_while_the_loop_writes_tells_its_caller_and_the_next_goes_on(
    quick: SqliteStore, gate: Gate, plain: bool
) -> None:
    ledger = Ledger(quick)
    run = ledger.run()
    ledger.start_plain(run, args="[0]")
    ops_of = [ledger.plain_op(run, args=f"[{n}]") for n in (1, 2)] if plain else numbered(ledger, run, 2)

    def interrupt() -> None:
        raise KeyboardInterrupt

    loop = asyncio.new_event_loop()
    with closing(loop):
        gate.once(interrupt)
        interrupted = loop.create_task(quick.perform_async(ops_of[0]))
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(interrupted)
        with pytest.raises(LedgerUnavailable, match="interrupted"):
            loop.run_until_complete(asyncio.wait_for(interrupted, 10.0))
        assert quick._commits._leader is None
        assert loop.run_until_complete(asyncio.wait_for(quick.perform_async(ops_of[1]), 10.0)) is not None


def test_an_interrupt_while_the_loop_writes_tells_everybody_of_the_turn(quick: SqliteStore, gate: Gate) -> None:
    ledger = Ledger(quick)
    run = ledger.run()
    ledger.start_plain(run, args="[0]")
    asked = [ledger.plain_op(run, args=f"[{n}]") for n in range(1, 5)]

    def interrupt() -> None:
        raise KeyboardInterrupt

    loop = asyncio.new_event_loop()
    with closing(loop):
        gate.once(interrupt)
        tasks = [loop.create_task(quick.perform_async(op)) for op in asked]
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(asyncio.wait(tasks))
        loop.run_until_complete(asyncio.wait(tasks, timeout=10.0))
        assert [type(task.exception()) for task in tasks] == [LedgerUnavailable] * 4
        assert quick._commits._leader is None
        assert len(ledger.calls()) == 1


def test_a_closed_store_refuses_a_turn_of_the_loop(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "ledger.db", "NORMAL")
    ledger = Ledger(store)
    run = ledger.run()
    store.close()

    async def all_at_once() -> list[Any]:
        return await asyncio.gather(*map(store.perform_async, numbered(ledger, run, 2)), return_exceptions=True)

    assert [type(answer) for answer in asyncio.run(all_at_once())] == [LedgerUnavailable] * 2


def lone_runtime(tmp_path: Path) -> tuple[AsyncRuntime, Any]:
    @tool(key="n")
    async def note(n: int) -> int:
        return n

    @note.compensate
    async def forget(n: int) -> None: ...

    return AsyncRuntime(f"sqlite:///{tmp_path / 'ledger.db'}?synchronous=normal", tools=[note]), note


def test_a_task_that_is_alone_pauses_now_and_then(tmp_path: Path) -> None:
    """It does not wait for others that are not there, but they come to their turn if they are."""

    async def main() -> int:
        rt, note = lone_runtime(tmp_path)
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with rt, rt.run("r"):
            for n in range(20):
                await note(n=n)
            beside = asyncio.create_task(other())
            await asyncio.sleep(0)
            turns = 0
            for n in range(20, 120):
                await note(n=n)
            beside.cancel()
        return turns

    turns = asyncio.run(main())
    assert 200 // AT_ONCE_MAX - 2 <= turns < 200  # 100 calls are 200 operations


def test_tasks_that_come_after_a_lone_one_share_flushes(tmp_path: Path) -> None:
    async def main() -> int:
        rt, note = lone_runtime(tmp_path)
        async with rt, rt.run("r") as run:
            for n in range(20):
                await note(n=n)
            before = commits(tmp_path / "ledger.db")
            assert await asyncio.gather(*(note(n=n) for n in range(100, 164))) == list(range(100, 164))
            shared = commits(tmp_path / "ledger.db") - before
            assert len((await rt.report(run.id)).calls) == 84
        return shared

    assert asyncio.run(main()) <= 64  # 128 operations


# ---- what the loop writes, and a thread flushes ---------------------------------------------


def test_a_crowd_of_tasks_is_written_on_the_loop_and_flushed_by_a_thread(tmp_path: Path) -> None:
    """Every answer is durable, the calls are those that were made, and a program that ends meanwhile loses nothing."""

    @tool(key="n")
    async def note(n: int) -> int:
        assert is_stored(current_call().id), "no body starts before its admission is durable"
        return n

    @note.compensate
    async def forget(n: int) -> None: ...

    path, tasks, calls = tmp_path / "ledger.db", 3 * APART_MIN, 6

    async def work(rt: AsyncRuntime, number: int) -> list[int]:
        async with rt.run(f"r{number}"):
            return [await note(n=n) for n in range(calls)]

    async def main() -> None:
        async with AsyncRuntime(f"sqlite:///{path}?synchronous=full", tools=[note]) as rt:
            before = commits(path)
            done = await asyncio.gather(*(work(rt, number) for number in range(tasks)))
            assert done == [list(range(calls))] * tasks
            assert commits(path) - before < tasks * calls  # 2 * tasks * calls operations, beginnings and ends
            assert (await rt.verify()).ok

    is_stored = stored(path)
    with closing(SqliteStore(path, "FULL")) as made:  # its log stays while it is open
        made.open(create=True)
        asyncio.run(main())


def test_closing_serves_a_crowd_that_a_thread_flushes(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "ledger.db", "FULL")
    ledger = Ledger(store)
    runs = [ledger.run(f"r{number}") for number in range(2 * INLINE_MAX)]
    ledger.start_plain(runs[0])  # its tool is known now

    async def main() -> list[Any]:
        asked = [asyncio.ensure_future(store.perform_async(ledger.plain_op(run))) for run in runs[1:]]
        while not store._commits.queue:  # some are being flushed, the others wait
            await asyncio.sleep(0)
        store.close()  # on the loop itself
        return await asyncio.gather(*asked)

    answers = asyncio.run(main())
    assert all(isinstance(answer, Started) or answer.verdict == "start" for answer in answers)


# ---- interrupts ---------------------------------------------------------------------------

MODULES: Final = (group_commit.__file__, waiter.__file__)
POINTS_MAX: Final = 1000
HELD: Final = ("try:", "finally:", "with self._mutex")
"""Lines that do nothing, and the end of a block that has a lock: Python takes no interrupt there."""
CALLED_BY_ASYNCIO: Final = ("get_loop", "add_done_callback")
"""As a task begins to wait: an interrupt there loses the task, whatever it waits for."""


class Interrupt:
    """Raise a KeyboardInterrupt at one line, or one call or return of a C function, counted, of the modules."""

    def __init__(self, point: int) -> None:
        self.left = point

    def at_line(self, frame: Any, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in MODULES or frame.f_code.co_name in (*CALLED_BY_ASYNCIO, "wake"):
            return None  # in ``wake`` nothing is called between the lines, and Python takes no interrupt there
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if event == "line" and not line.startswith(HELD) and line not in ("return", "return None"):
            self.count()
        return self.at_line

    def at_call(self, frame: Any, event: str, _: Any) -> None:
        is_ours = frame.f_code.co_filename in MODULES and frame.f_code.co_name not in CALLED_BY_ASYNCIO
        if is_ours and event in ("call", "c_return"):
            self.count()

    def count(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("place", ["line", "call"])
@pytest.mark.parametrize("how", ["on the loop", "apart", "in a thread", "locked"])
def test_an_interrupt_at_any_point_of_an_event_loop_loses_neither_the_lead_nor_an_operation(
    how: str, place: str
) -> None:
    """Whoever is cancelled then is told, as ``asyncio.run`` does it; nothing is done twice, and others go on."""
    with ThreadPoolExecutor(1) as pool:
        for point in range(1, POINTS_MAX):
            if not is_interrupted(pool, how, place, point):
                assert point > 20, "the interrupts came inside"
                return
    raise AssertionError("every point was passed")


def is_interrupted(pool: ThreadPoolExecutor, how: str, place: str, point: int) -> bool:
    """Perform two operations on a loop that is interrupted there; return whether it has so many points."""
    interrupt, done, written = Interrupt(point), list[object](), list[object]()

    def flush(batch: list[group_commit.Pending], may_wait: bool) -> None:
        if how == "locked" and not may_wait:
            raise group_commit.WouldWait
        queue.join(batch)
        for one in batch:
            done.append(one.op)
            one.answer = one.op

    def write(batch: list[group_commit.Pending]) -> bool:
        for one in batch:
            written.append(one.op)
            one.answer = one.op
        return True

    def commit(batch: list[group_commit.Pending]) -> None:
        done.extend(one.op for one in batch)

    queue = group_commit.GroupCommit(
        flush,
        lambda op: None,
        lambda: pool,
        lambda count: how in ("on the loop", "locked"),
        (lambda queued: len(queued)) if how == "apart" else lambda _: 0,
        write,
        commit,
    )
    asked = [ops.ReadRun(name) for name in ("one", "two")]

    async def ask() -> None:
        tasks.extend(asyncio.create_task(queue.perform_async(op)) for op in asked)
        await asyncio.wait(tasks)

    async def cancel() -> None:
        for task in tasks:
            task.cancel()
        _, waiting = await asyncio.wait(tasks, timeout=PATIENCE_S)
        assert not waiting, f"interrupted at {place} {point}, a task waits for ever"

    async def perform(op: ops.ReadRun) -> None:
        assert await asyncio.wait_for(queue.perform_async(op), PATIENCE_S) is op

    tasks = list[asyncio.Task[Any]]()
    loop = asyncio.new_event_loop()
    before = sys.gettrace(), sys.getprofile()
    with closing(loop):
        try:
            if place == "line":
                sys.settrace(interrupt.at_line)
            else:
                sys.setprofile(interrupt.at_call)
            loop.run_until_complete(ask())
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before[0])
            sys.setprofile(before[1])
        if tasks:
            loop.run_until_complete(cancel())
        loop.run_until_complete(perform(ops.ReadRun("late")))
        late = threading.Thread(target=lambda: queue.perform(ops.ReadRun("later")), daemon=True)
        late.start()
        late.join(PATIENCE_S)
        assert not late.is_alive(), f"interrupted at {place} {point}, nobody leads"
    for op, task in zip(asked, tasks, strict=False):
        assert done.count(op) <= 1, f"interrupted at {place} {point}, an operation was done twice"
        error = None if task.cancelled() else task.exception()
        if error is None and not task.cancelled():
            assert task.result() is op
            assert done.count(op) == 1, f"interrupted at {place} {point}, what was not committed was reported"
    wait_for(lambda: queue._leader is None)
    assert (list(queue.queue), queue._turns) == ([], {})
    return interrupt.left <= 0


def test_a_thread_is_not_kept_waiting_by_a_body_that_blocks_the_loop(
    shared: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its operation is queued behind one of a loop, which is then blocked: a heartbeat would lose its leases."""
    ledger = Ledger(shared)
    runs = [ledger.run(f"run {number}") for number in range(APART_MIN + 2)]
    ledger.start_plain(runs[0], args="[0]")
    asked = [ledger.plain_op(run, args="[1]") for run in runs]
    flushing, go_on = threading.Event(), threading.Event()
    commit = shared._commits._commit_apart

    def slowly(batch: list[Any]) -> None:
        flushing.set()
        go_on.wait(PATIENCE_S)
        commit(batch)

    monkeypatch.setattr(shared._commits, "_commit_apart", slowly)

    async def play() -> None:
        tasks = [asyncio.create_task(shared.perform_async(op)) for op in asked[:-2]]
        while not flushing.is_set():
            await asyncio.sleep(0)
        tasks.append(asyncio.create_task(shared.perform_async(asked[-2])))
        while not shared._commits.queue:
            await asyncio.sleep(0)
        thread = threading.Thread(target=shared.perform, args=(asked[-1],))
        thread.start()
        in_line(shared, 2)()
        go_on.set()
        thread.join(PATIENCE_S)  # a body that blocks its loop
        assert not thread.is_alive(), "it waited for the loop"
        await asyncio.gather(*tasks)

    asyncio.run(play())


def test_a_loop_goes_on_while_another_thread_waits_to_open_the_ledger(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    store = SqliteStore(path, "FULL", lock_wait_s=PATIENCE_S)

    async def play(other: sqlite3.Connection) -> list[Any]:
        reads = [asyncio.create_task(store.perform_async(ops.ReadRun("", uid="run"))) for _ in range(2)]
        for _ in range(20):
            await asyncio.sleep(0.01)
        other.execute("rollback")  # only a loop that went on comes here in time
        return await asyncio.gather(*reads, return_exceptions=True)

    with closing(sqlite3.connect(path, isolation_level=None)) as other, closing(store):
        other.execute("begin immediate")
        other.execute("create table kept (it)")
        before = time.monotonic()
        assert len(asyncio.run(play(other))) == 2
        assert time.monotonic() - before < PATIENCE_S / 2

"""One file, many callers: threads, tasks, processes, forks. Nobody is answered before the flush."""

import asyncio
import os
import signal
import sqlite3
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from amends import ops
from amends.errors import LeaseLost, LedgerUnavailable
from amends.rows import RunRow
from amends.store.batch import BATCH_MAX
from amends.store.sqlite import SqliteStore
from tests.store.ledger import Ledger, audit
from tests.store.test_sqlite import child

CALLERS = 64


class Gate:
    """A clock that can keep the writing thread inside its transaction."""

    def __init__(self) -> None:
        self.before: Callable[[], object] = lambda: None

    def __call__(self) -> float:
        self.before()
        return 1_000_000.0

    def once(self, act: Callable[[], object]) -> None:
        def first() -> None:
            self.before = lambda: None
            act()

        self.before = first


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def store(tmp_path: Path, gate: Gate) -> Iterator[SqliteStore]:
    made = SqliteStore(tmp_path / "ledger.db", "NORMAL", gate)
    made.open(create=True)
    yield made
    if not made._closed:
        audit(Ledger(made))
    made.close()


def wait_for(condition: Callable[[], bool]) -> None:
    """Until it holds; a minute is a failure."""
    pause = threading.Event()
    for _ in range(60_000):
        if condition():
            return
        pause.wait(0.001)
    raise AssertionError("it never came true")


def in_line(store: SqliteStore, count: int) -> Callable[[], None]:
    """Waits until so many operations wait for the one that is being written."""
    return lambda: wait_for(lambda: len(store._commits.line) >= count)


def commits(path: Path) -> int:
    """How many transactions stand in the log: each ends with a frame that says how large the database is."""
    log = path.with_name(f"{path.name}-wal").read_bytes()
    [size] = struct.unpack(">I", log[8:12])
    ends = range(32, len(log) - size - 23, 24 + size)
    return sum(struct.unpack(">I", log[place + 4 : place + 8]) != (0,) for place in ends)


def ask_together(store: SqliteStore, gate: Gate, pool: ThreadPoolExecutor, requests: list[Any]) -> list[Future[Any]]:
    """The first is kept inside its transaction until all the others are in line."""
    gate.once(in_line(store, len(requests) - 1))
    asked = [pool.submit(store.perform, requests[0])]
    wait_for(lambda: store._commits._led)
    return asked + [pool.submit(store.perform, request) for request in requests[1:]]


def numbered(ledger: Ledger, run: RunRow, count: int) -> list[ops.AdmitCall]:
    return [ledger.admit_op(run, "charge", key=f"key {number}") for number in range(count)]


def stored(path: Path) -> Callable[[str], bool]:
    """Whether somebody else sees this call: asked through a connection of one's own."""

    def asked(call_id: str) -> bool:
        connection = sqlite3.connect(path)
        found = connection.execute("select 1 from calls where id = ?", (call_id,)).fetchone()
        connection.close()
        return found is not None

    return asked


# ---- threads ------------------------------------------------------------------------------


def test_those_who_come_together_share_one_flush(store: SqliteStore, gate: Gate) -> None:
    ledger = Ledger(store)
    requests = numbered(ledger, ledger.run(), CALLERS)
    before = commits(store.path)
    is_stored = stored(store.path)
    gate.once(in_line(store, CALLERS - 1))
    with ThreadPoolExecutor(CALLERS) as pool:
        seen = list(pool.map(lambda op: (store.perform(op).verdict, is_stored(op.call_id)), requests))
    assert seen == [("start", True)] * CALLERS, "whoever was answered is seen by everybody"
    assert commits(store.path) - before == 1


def test_a_batch_has_a_limit(store: SqliteStore, gate: Gate) -> None:
    ledger = Ledger(store)
    requests = numbered(ledger, ledger.run(), BATCH_MAX + 10)
    before = commits(store.path)
    with ThreadPoolExecutor(len(requests)) as pool:
        asked = ask_together(store, gate, pool, requests)
        assert {future.result().verdict for future in asked} == {"start"}
    assert commits(store.path) - before == 2


def test_one_that_fails_takes_nobody_along(store: SqliteStore, gate: Gate) -> None:
    ledger = Ledger(store)
    run = ledger.run()
    requests = numbered(ledger, run, 9)
    for request in requests[3:5]:
        request.epoch = 7
    requests[7].args = "\ud800"
    with ThreadPoolExecutor(len(requests)) as pool:
        errors = [type(future.exception()) for future in ask_together(store, gate, pool, requests)]
    assert [error for error in errors if error is not type(None)] == [LeaseLost, LeaseLost, UnicodeEncodeError]
    assert {call.id for call in ledger.calls()} == {
        request.call_id for request, error in zip(requests, errors, strict=True) if error is type(None)
    }


def test_one_that_comes_first_and_fails_leaves_the_lead_to_the_next(store: SqliteStore, gate: Gate) -> None:
    ledger = Ledger(store)
    run = ledger.run()
    requests = numbered(ledger, run, 5)
    requests[0].args = "\ud800"
    with ThreadPoolExecutor(5) as pool:
        failing, *others = ask_together(store, gate, pool, requests)
        assert [future.result().verdict for future in others] == ["start"] * 4
        assert isinstance(failing.exception(), UnicodeEncodeError)


class Refusing:
    """SQLite's cursor, until the disk fails under it."""

    def __init__(self, cursor: sqlite3.Cursor, at: str) -> None:
        self._cursor, self._at = cursor, at

    def execute(self, sql: str, params: Any = ()) -> Any:
        if sql == self._at:
            raise sqlite3.OperationalError("disk I/O error")
        return self._cursor.execute(sql, params)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


@pytest.mark.parametrize("at", ["commit", "savepoint op"])
def test_when_the_flush_fails_everybody_in_it_is_told(store: SqliteStore, gate: Gate, at: str) -> None:
    ledger = Ledger(store)
    requests = numbered(ledger, ledger.run(), 9)
    before = ledger.everything()
    assert store._writer is not None
    store._writer.cursor = Refusing(store._writer.cursor, at)  # type: ignore[assignment]
    with ThreadPoolExecutor(9) as pool:
        errors = {type(future.exception()) for future in ask_together(store, gate, pool, requests)}
    assert errors == {LedgerUnavailable}
    assert ledger.everything() == before
    for request in requests:  # through a new connection; each says that it comes again
        request.repeated = True
        assert store.perform(request).verdict == "start"


def test_a_disk_that_fails_before_anything_began_is_told_and_forgotten(store: SqliteStore) -> None:
    ledger = Ledger(store)
    run = ledger.run()
    assert store._writer is not None
    store._writer.cursor = Refusing(store._writer.cursor, "begin immediate")  # type: ignore[assignment]
    with pytest.raises(LedgerUnavailable):
        ledger.admit(run)
    assert ledger.admit(run).verdict == "start"


def test_threads_that_hammer_are_all_answered(store: SqliteStore) -> None:
    ledger = Ledger(store)
    runs = [ledger.run(f"run {number}") for number in range(8)]

    def hammer(run: RunRow) -> int:
        mine = Ledger(store, made=1000 * (1 + runs.index(run)))
        for number in range(25):
            mine.do(run, f"tool {number}")
            assert mine.admit(run, f"tool {number}").verdict == "replay"
        return len(mine(ops.ReadRun("", uid=run.uid)).calls)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(hammer, runs)) == [25] * 8


# ---- interrupts ---------------------------------------------------------------------------


def test_an_interrupt_in_the_middle_writes_nothing_and_the_next_goes_on(store: SqliteStore, gate: Gate) -> None:
    ledger = Ledger(store)
    run = ledger.run()
    first, *others = numbered(ledger, run, 4)

    def interrupt() -> None:
        in_line(store, 3)()
        raise KeyboardInterrupt

    gate.once(interrupt)
    with ThreadPoolExecutor(3) as pool:
        waiting: list[Any] = []

        def when_led() -> None:
            wait_for(lambda: store._commits._led)
            waiting.extend(pool.submit(store.perform, request) for request in others)

        starter = threading.Thread(target=when_led)
        starter.start()
        with pytest.raises(KeyboardInterrupt):
            store.perform(first)
        starter.join()
        assert [future.result().verdict for future in waiting] == ["start"] * 3
    assert first.call_id not in {call.id for call in ledger.calls()}
    assert ledger.admit(run, "ship").verdict == "start"


def test_an_interrupt_while_leading_others_tells_them(store: SqliteStore, gate: Gate) -> None:
    ledger = Ledger(store)
    first, *others = numbered(ledger, ledger.run(), 4)

    def later() -> None:
        in_line(store, 3)()
        gate.once(interrupt)

    def interrupt() -> None:
        raise KeyboardInterrupt

    gate.once(later)
    with ThreadPoolExecutor(3) as pool:
        waiting: list[Any] = []

        def when_led() -> None:
            wait_for(lambda: store._commits._led)
            waiting.extend(pool.submit(store.perform, request) for request in others)

        starter = threading.Thread(target=when_led)
        starter.start()
        with pytest.raises(KeyboardInterrupt):
            store.perform(first)
        starter.join()
        assert [type(future.exception()) for future in waiting] == [LedgerUnavailable] * 3
    assert ledger.calls() == []


@pytest.mark.skipif(sys.platform == "win32", reason="no signals between threads")
def test_who_is_interrupted_in_line_leaves_it(store: SqliteStore, gate: Gate) -> None:
    ledger = Ledger(store)
    first, mine = numbered(ledger, ledger.run(), 2)
    main = threading.get_ident()

    def interrupt_the_other() -> None:
        in_line(store, 1)()
        signal.pthread_kill(main, signal.SIGINT)
        wait_for(lambda: not store._commits.line)

    gate.once(interrupt_the_other)
    with ThreadPoolExecutor(1) as pool:
        leading = pool.submit(store.perform, first)
        wait_for(lambda: store._commits._led)
        with pytest.raises(KeyboardInterrupt):
            store.perform(mine)
        assert leading.result().verdict == "start"
    assert [call.id for call in ledger.calls()] == [first.call_id]


# ---- event loops --------------------------------------------------------------------------


def test_tasks_that_come_together_share_flushes(store: SqliteStore) -> None:
    ledger = Ledger(store)
    requests = numbered(ledger, ledger.run(), CALLERS)
    is_stored = stored(store.path)

    async def ask(op: ops.AdmitCall) -> tuple[str, bool]:
        return (await store.perform_async(op)).verdict, is_stored(op.call_id)

    async def all_at_once() -> list[tuple[str, bool]]:
        return await asyncio.gather(*map(ask, requests))

    before = commits(store.path)
    assert asyncio.run(all_at_once()) == [("start", True)] * CALLERS
    assert commits(store.path) - before <= 3


def test_tasks_and_threads_share_the_line(store: SqliteStore, gate: Gate) -> None:
    ledger = Ledger(store)
    requests = numbered(ledger, ledger.run(), 20)
    gate.once(in_line(store, 19))

    async def tasks(mine: list[ops.AdmitCall]) -> list[ops.Admission]:
        return await asyncio.gather(*map(store.perform_async, mine))

    with ThreadPoolExecutor(12) as pool:
        others = [pool.submit(store.perform, request) for request in requests[:10]]
        loops = [pool.submit(asyncio.run, tasks(requests[10:15])), pool.submit(asyncio.run, tasks(requests[15:]))]
        answers = [future.result() for future in others] + [one for loop in loops for one in loop.result()]
    assert {answer.verdict for answer in answers} == {"start"}
    assert len(ledger.calls()) == 20


def test_the_loop_goes_on_while_the_ledger_is_written(store: SqliteStore, gate: Gate) -> None:
    ledger = Ledger(store)
    run = ledger.run()
    ticks = threading.Event()
    gate.once(lambda: ticks.wait(60))

    async def main() -> None:
        asking = asyncio.ensure_future(store.perform_async(ledger.admit_op(run)))
        wait = asyncio.get_running_loop().run_in_executor(None, wait_for, lambda: store._commits._led)
        await wait
        assert await store.perform_async(ops.ReadCall("nobody")) is None, "nor do reads wait"
        ticks.set()
        assert (await asking).verdict == "start"

    asyncio.run(main())


@pytest.mark.parametrize("when", ["leading", "in line"])
def test_a_cancelled_task_learns_it_when_its_operation_is_over(store: SqliteStore, gate: Gate, when: str) -> None:
    ledger = Ledger(store)
    first, second = numbered(ledger, ledger.run(), 2)
    go = threading.Event()
    gate.once(lambda: go.wait(60))
    cancelled = first if when == "leading" else second

    async def main() -> None:
        asking = {op.call_id: asyncio.ensure_future(store.perform_async(op)) for op in (first, second)}
        await asyncio.get_running_loop().run_in_executor(None, in_line(store, 1))
        task = asking[cancelled.call_id]
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert stored(store.path)(cancelled.call_id)
        [other] = [one for one in asking.values() if one is not task]
        assert (await other).verdict == "start"

    asyncio.run(main())
    assert len(ledger.calls()) == 2


def test_a_cancelled_task_whose_operation_failed_is_cancelled(store: SqliteStore, gate: Gate) -> None:
    ledger = Ledger(store)
    [request] = numbered(ledger, ledger.run(), 1)
    request.epoch = 7
    go = threading.Event()
    gate.once(lambda: go.wait(60))

    async def main() -> None:
        held = asyncio.ensure_future(store.perform_async(ledger.open_op("other")))
        task = asyncio.ensure_future(store.perform_async(request))
        await asyncio.get_running_loop().run_in_executor(None, in_line(store, 1))
        task.cancel()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        await held

    asyncio.run(main())


def test_a_loop_that_closes_early_does_not_stop_the_others(store: SqliteStore, gate: Gate) -> None:
    ledger = Ledger(store)
    first, second, third = numbered(ledger, ledger.run(), 3)
    go = threading.Event()
    gate.once(lambda: go.wait(60))
    with ThreadPoolExecutor(2) as pool:
        leading = pool.submit(store.perform, first)
        wait_for(lambda: store._commits._led)
        loop = asyncio.new_event_loop()
        left = store.perform_async(second)
        task = loop.create_task(left)
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        other = pool.submit(store.perform, third)
        in_line(store, 2)()
        go.set()
        assert {leading.result().verdict, other.result().verdict} == {"start"}
    assert len(ledger.calls()) == 3
    left.close()


def test_closing_serves_those_in_line_first(store: SqliteStore, gate: Gate) -> None:
    ledger = Ledger(store)
    requests = numbered(ledger, ledger.run(), 6)
    go = threading.Event()
    gate.once(lambda: go.wait(60))

    async def tasks() -> list[ops.Admission]:
        return await asyncio.gather(*map(store.perform_async, requests[3:]))

    with ThreadPoolExecutor(5) as pool:
        waiting = [pool.submit(store.perform, request) for request in requests[:3]]
        loop = pool.submit(asyncio.run, tasks())
        in_line(store, 5)()
        closing = pool.submit(store.close)
        wait_for(lambda: store._commits._closed)
        with pytest.raises(LedgerUnavailable):
            ledger.run("late")
        go.set()
        closing.result()
        answers = [future.result() for future in waiting] + loop.result()
    assert {answer.verdict for answer in answers} == {"start"}
    again = SqliteStore(store.path, "NORMAL")
    assert len(Ledger(again).calls()) == 6
    again.close()


# ---- processes ----------------------------------------------------------------------------

HAMMER = """
    import sys
    from pathlib import Path
    from amends.store.sqlite import SqliteStore
    from tests.store.ledger import Clock, Ledger

    name, path = sys.argv[1], Path(sys.argv[2])
    store = SqliteStore(path, "NORMAL", Clock())
    ledger = Ledger(store, made=10_000 * int(name))
    run = ledger.run(f"run {name}", owner=name)
    shared = 0
    for number in range(60):
        ledger.do(run, f"tool {number}")
        shared += ledger.admit(run, "once", key=f"shared {number}", scope="ledger").verdict == "start"
    print(shared)
    store.close()
"""


def test_processes_that_share_a_file_start_each_shared_key_once(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with ThreadPoolExecutor(3) as pool:
        started = [int(out) for out in pool.map(lambda name: child(HAMMER, name, path), (1, 2, 3))]
    assert sum(started) == 60
    store = SqliteStore(path, "NORMAL")
    ledger = Ledger(store)
    assert len(ledger.calls()) == 3 * 60 + 60
    audit(ledger)
    store.close()


FORKS = """
    import os, sys, threading
    from pathlib import Path
    from amends.store.sqlite import SqliteStore
    from tests.store.ledger import Clock, Ledger, audit

    path = Path(sys.argv[1])
    store = SqliteStore(path, "NORMAL", Clock())
    ledger = Ledger(store)
    run = ledger.run("parent")
    ledger.runs()
    stop = threading.Event()

    def hammer():
        mine, number = Ledger(store, made=50_000), 0
        while not stop.is_set():
            number += 1
            mine.do(run, f"tool {number}")
            mine.read(run)

    thread = threading.Thread(target=hammer)
    thread.start()
    for name in range(1, 9):
        pid = os.fork()
        if pid == 0:
            mine = Ledger(store, made=1000 * name)
            own = mine.run(f"child {name}")
            for number in range(5):
                mine.do(own, f"tool {number}")
            assert len(mine(__import__("amends.ops").ops.ReadRun("", uid=own.uid)).calls) == 5
            store.close()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    stop.set()
    thread.join()
    audit(ledger)
    print(len(ledger.runs()))
    store.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_forked_children_write_beside_a_parent_that_writes(tmp_path: Path) -> None:
    assert child(FORKS, tmp_path / "ledger.db").strip() == "9"
    raw = sqlite3.connect(tmp_path / "ledger.db")
    assert raw.execute("pragma integrity_check").fetchone() == ("ok",)
    raw.close()

"""One file, many event loops: no loop waits for the disk, and a cancellation waits for its operation."""

import asyncio
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from amends.errors import LedgerUnavailable
from amends.ledger import operations as ops
from amends.stores.memory import MemoryStore
from amends.stores.sqlite.store import SqliteStore
from amends.testing.conformance.ledger import Ledger
from tests.stores.many import CALLERS, Gate, commits, in_line, numbered, stored, wait_for


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
        wait = asyncio.get_running_loop().run_in_executor(None, wait_for, lambda: shared._commits._led)
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
        wait_for(lambda: shared._commits._led)
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

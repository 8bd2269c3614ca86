"""What a second look at the shared ledgers found: each was wrong once."""

import asyncio
import os
import queue
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from amends.drivers.blocking import Live
from amends.drivers.event_loop import AsyncDriver
from amends.drivers.wakeup import Wakeup
from amends.errors import LedgerUnavailable, TransitionRefused
from amends.ledger import operations as ops
from amends.stores.memory import MemoryStore
from amends.stores.pool import LoopPool
from amends.stores.sqlite.store import SqliteStore
from amends.testing.conformance.ledger import Ledger, audit
from tests.store.many import Gate, ask_together

LEASE_S = 30.0


class Refusing:
    """A store of somebody else's, which refuses when it is told to."""

    url = "elsewhere:"

    def __init__(self) -> None:
        self.asked, self.told = asyncio.Event(), asyncio.Event()

    async def perform_async(self, op: ops.StoreOp[Any]) -> Any:
        self.asked.set()
        await self.told.wait()
        raise TransitionRefused("no", frm="open", to="open")


@pytest.mark.parametrize("handled", [False, True])
def test_a_cancellation_is_not_lost_when_the_ledger_refuses_meanwhile(handled: bool) -> None:
    after: list[str] = []

    async def flow() -> str:
        try:
            await ops.ReadCall("one")
        except TransitionRefused:
            after.append("refused")
            if not handled:
                raise
        return "done"

    async def play() -> None:
        store: Any = Refusing()
        driver = AsyncDriver(store, Live(), LEASE_S)
        running = asyncio.create_task(driver.run(flow()))
        await store.asked.wait()
        running.cancel()
        await asyncio.sleep(0)
        store.told.set()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(play())
    assert after == ["refused"], "the flow knows what the ledger said"


class Line:
    """A connection that is only counted."""

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


def test_who_waits_on_a_loop_when_the_ledger_closes_is_told_and_connects_no_more() -> None:
    made: list[Line] = []

    async def connect() -> Line:
        made.append(Line())
        return made[-1]

    async def play() -> None:
        pool: LoopPool[Line] = LoopPool(connect, size=1, wait_s=5.0, shown="here")
        held = await pool.take()
        waiting = [asyncio.create_task(pool.take()) for _ in range(3)]
        await asyncio.sleep(0)
        pool.close(loop_is_closed=False)
        pool.give(held, keep=True)
        ends = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(end, LedgerUnavailable) and "closed" in str(end) for end in ends)
        assert (len(made), held.closed, pool._count) == (1, True, 0)

    asyncio.run(play())


class Telling(MemoryStore):
    """Remembers whom it shall tell."""

    def __init__(self) -> None:
        super().__init__()
        self.rings: list[Any] = []

    def watch(self, ring: Any) -> bool:
        self.rings.append(ring)
        return True


def test_a_store_is_asked_to_tell_again_in_a_fork() -> None:
    store = Telling()
    wakeup = Wakeup(store)
    wakeup.watch("one")
    assert store.rings == [wakeup.ring]
    child = os.fork()
    if not child:
        store.rings.clear()  # as a store that starts with nothing of its parent's
        wakeup.watch("two")
        os._exit(0 if store.rings == [wakeup.ring] else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_two_runtimes_of_one_store_are_both_rung(postgres_url: str) -> None:
    from amends.stores.postgres.store import PostgresStore

    store, other = PostgresStore(postgres_url), PostgresStore(postgres_url)
    store.open(create=True)
    one: queue.Queue[str] = queue.Queue()
    two: queue.Queue[str] = queue.Queue()
    try:
        assert store.watch(one.put)
        assert store.watch(two.put)
        assert store.watch(two.put), "asked twice, told once"
        assert one.get(timeout=20) == ""
        ledger = Ledger(other)
        run = ledger.run()
        ledger(ops.LetGo(run.uid, "a", 1, None))
        assert one.get(timeout=20) == run.uid
        heard: list[str] = []
        while not heard or heard[-1] != run.uid:
            heard.append(two.get(timeout=20))
        assert two.empty()
        assert [thread.name for thread in threading.enumerate()].count("amends-watch") == 1
    finally:
        store.close()
        other.close()


def test_a_ledger_that_was_replaced_answers_nothing_from_the_old_record(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with closing(SqliteStore(path, "NORMAL")) as store:
        ledger = Ledger(store)
        run = ledger.run()
        ledger.do(run)
        assert ledger.admit(run).verdict == "replay"
        path.rename(tmp_path / "elsewhere.db")
        with pytest.raises(LedgerUnavailable, match="removed or replaced"):
            ledger.admit(run)


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


def test_a_settlement_that_breaks_in_the_middle_of_a_flush_leaves_the_others_and_no_event(tmp_path: Path) -> None:
    gate = Gate()
    with closing(SqliteStore(tmp_path / "ledger.db", "NORMAL", gate)) as store, ThreadPoolExecutor(8) as pool:
        ledger = Ledger(store)
        run = ledger.run()
        calls = [ledger.start(run, f"tool {number}") for number in range(5)]
        settlements = [ledger.settle_op(call) for call in calls]
        for place in (2, 4):  # what was seen is no row of this ledger: found out after the event was written
            settlements[place].seen = replace(calls[place], seq=calls[place].seq + 1000)
        asked = ask_together(store, gate, pool, settlements)
        ends = [future.exception() for future in asked]
        assert [type(end) for end in ends] == [type(None), type(None), AssertionError, type(None), AssertionError]
        states = [ledger.look(call).state for call in calls]
        assert states == ["succeeded", "succeeded", "started", "succeeded", "started"]
        audit(ledger)

"""Bodies on event loops and threads: leases, timeouts and cancellation."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from amends import AsyncRuntime, Runtime, tool
from amends.drivers.blocking import Live
from amends.drivers.event_loop import AsyncDriver
from amends.errors import LeaseLost, LedgerUnavailable, TransitionRefused
from amends.ledger import operations as ops
from amends.ledger.leases import Lease
from amends.ledger.operations import (
    AdmitCall,
)
from amends.ledger.plain import AdmitPlain, PlainRun, PlainTool, SettlePlain
from amends.ledger.store import OUTCOME
from amends.ledger.world import Invoke
from amends.model import NoEffect
from amends.stores.memory import MemoryStore

LEASE_S = 30.0


def invoke(fn: Any, *, lease: Lease | None, timeout: float | None) -> Any:
    rt = Runtime("memory:")

    class Called:
        id = run_id = tool = "c"

    del rt
    return Invoke(fn, {}, False, timeout, Called(), lease, "execute")  # type: ignore[arg-type]


def test_a_body_that_waited_for_a_thread_checks_its_lease_again() -> None:
    began: list[str] = []

    async def main() -> None:
        driver = AsyncDriver(MemoryStore(), Live(), LEASE_S)
        driver._threads = ThreadPoolExecutor(1)
        lease = Lease("u", "w", 1, LEASE_S, time.monotonic() + 1e6)
        free = threading.Event()
        first = asyncio.ensure_future(driver._invoke(invoke(free.wait, lease=None, timeout=None)))
        await asyncio.sleep(0.05)
        second = asyncio.ensure_future(driver._invoke(invoke(lambda: began.append("sent"), lease=lease, timeout=None)))
        await asyncio.sleep(0.05)
        lease.lost = True
        free.set()
        await first
        with pytest.raises(LeaseLost):
            await second
        driver.close()

    asyncio.run(main())
    assert began == []


def test_a_body_that_never_got_a_thread_in_its_time_never_starts() -> None:
    began: list[str] = []

    async def main() -> Any:
        driver = AsyncDriver(MemoryStore(), Live(), LEASE_S)
        driver._threads = ThreadPoolExecutor(1)
        free = threading.Event()
        first = asyncio.ensure_future(driver._invoke(invoke(free.wait, lease=None, timeout=None)))
        await asyncio.sleep(0.05)
        ended = await driver._invoke(invoke(lambda: began.append("sent"), lease=None, timeout=0.05))
        free.set()
        await first
        driver.close()
        return ended

    ended = asyncio.run(main())
    assert isinstance(ended.error, NoEffect)
    assert not ended.in_flight
    assert began == []


def test_a_body_that_ends_its_thread_is_not_waited_for() -> None:
    @tool(timeout=30)
    def leaves(n: int) -> None:
        raise SystemExit(n)

    @leaves.compensate
    def unleaves(n: int) -> None: ...

    rt = Runtime("memory:", tools=[leaves], wait=0.0)
    begun = time.monotonic()
    run = rt.open("r")
    assert run.answer("leaves", {"n": 1}).status == "in_doubt"
    assert time.monotonic() - begun < 25


def test_a_cancellation_is_not_lost_with_a_refusal() -> None:
    """A task that is cancelled while the ledger writes ends as cancelled, whatever the ledger says."""

    class Slow(MemoryStore):
        url = "slow:"

        async def perform_async(self, op: Any) -> Any:
            answer = self.perform(op)
            if isinstance(op, AdmitCall):
                await asyncio.sleep(0.1)
            return answer

    @tool(kind="pivot", after=["never"])
    async def wire(n: int) -> None: ...

    @tool(name="never")
    async def never(n: int) -> None: ...

    @never.compensate
    async def unnever(n: int) -> None: ...

    async def main() -> None:
        async with AsyncRuntime(tools=[wire, never], store=Slow()) as rt:
            run = await rt.open("r")
            task = asyncio.ensure_future(run.call(wire, n=1))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())


def test_a_run_that_was_taken_over_cancels_what_it_still_runs() -> None:
    ended: list[str] = []
    began = asyncio.Event()

    @tool
    async def slow(n: int) -> int:
        began.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return n

    @slow.compensate
    async def unslow(n: int) -> None: ...

    async def main() -> None:
        store = MemoryStore()
        async with AsyncRuntime(tools=[slow], store=store) as rt:
            run = await rt.open("r")
            calling = asyncio.ensure_future(run.call(slow, n=1))
            await began.wait()
            uid, row = next(iter(store.runs.items()))
            store.runs[uid] = replace(row, owner="other", epoch=row.epoch + 1)
            rt._host.heartbeat.renew(rt._host.heartbeat.kept())  # it learns so
            with pytest.raises(LeaseLost):
                await asyncio.wait_for(calling, 30)
            assert not calling.cancelled()

    asyncio.run(main())
    assert ended == ["cancelled"]


def test_a_repeated_start_that_is_cancelled_is_in_flight_until_its_thread_returns() -> None:
    free, starts = threading.Event(), list[int]()

    @tool(idempotent=True)
    def pay(n: int) -> str:
        starts.append(n)
        if len(starts) == 1:
            raise TimeoutError("no answer")
        free.wait(10)
        return "paid"

    @pay.compensate
    def unpay(n: int) -> None: ...

    async def main() -> None:
        store = MemoryStore()
        async with AsyncRuntime(tools=[pay], store=store) as rt:
            run = await rt.open("r")
            calling = asyncio.ensure_future(run.call(pay, n=1))
            while len(starts) < 2:
                await asyncio.sleep(0.01)
            calling.cancel()
            await asyncio.gather(calling, return_exceptions=True)
            row = next(iter(store.calls.values()))
            assert (row.state, row.quiet_mono) == ("in_doubt", None), "it may still be sent"
            free.set()
            while not next(iter(store.calls.values())).evidence:
                await asyncio.sleep(0.01)
            assert await run.call(pay, n=1) == "paid"
            assert len(starts) == 2

    asyncio.run(asyncio.wait_for(main(), 15))


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


class Unsure(MemoryStore):
    """Keeps the outcome of a cancelled operation: at first, that the ledger cannot be reached."""

    url = "unsure:"
    keeps_outcome = True

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.told = asyncio.Event(), asyncio.Event()
        self.tries: list[tuple[str, bool]] = []
        self.unsure: tuple[type[Any], ...] = ()

    async def perform_async(self, op: Any) -> Any:
        if not isinstance(op, self.unsure):
            return self.perform(op)
        self.tries.append((type(op).__name__, op.repeated))
        if len(self.tries) > 1:
            return self.perform(op)
        self.asked.set()
        try:
            await self.told.wait()
        except asyncio.CancelledError as stop:
            setattr(stop, OUTCOME, self.fail)
            raise
        return self.fail()

    def fail(self) -> Any:
        raise LedgerUnavailable("nobody answers")


@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("kind", [AdmitPlain, SettlePlain])
def test_a_plain_step_that_may_not_be_written_is_repeated_even_for_a_caller_that_was_cancelled(
    kind: type[Any], cancelled: bool
) -> None:
    began: list[int] = []

    @tool
    async def charge(n: int) -> str:
        began.append(n)
        return "ok"

    @charge.compensate
    async def refund(n: int) -> None: ...

    async def main() -> None:
        store = Unsure()
        async with AsyncRuntime(tools=[charge], store=store, lease=LEASE_S) as rt:
            run = await rt.open("r")
            store.unsure = (kind,)
            task = asyncio.ensure_future(run.call(charge, n=1))
            await store.asked.wait()
            if cancelled:
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            else:
                store.told.set()
                assert await task == "ok"
            store.unsure = ()
            assert store.tries == [(kind.__name__, False), (kind.__name__, True)]
            assert began == ([] if cancelled and kind is AdmitPlain else [1]), (
                "nothing begins for a caller that is gone"
            )
            if kind is SettlePlain:
                assert [call.state for call in (await rt.report("r")).calls] == ["succeeded"]

    asyncio.run(main())


def test_a_plain_step_is_not_tried_again_without_patience() -> None:
    """A further try that does not say that it is one could meet its own call."""

    async def flow(op: Any) -> Any:
        return await op

    async def main() -> None:
        store: Any = Unsure()
        store.unsure = (AdmitPlain,)
        store.told.set()
        run = PlainRun("u", "r", "", "", "", "a", 1)
        op = AdmitPlain(run, PlainTool("charge", "1", "compensatable", 0, 1), 1, bytes(32), bytes(32), bytes(32), "{}")
        with pytest.raises(LedgerUnavailable):
            await AsyncDriver(store, Live(), 0.0).run(flow(op))
        assert store.tries == [("AdmitPlain", False)]

    asyncio.run(main())

"""What a review found: each of these failed before it was mended."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from amends import AsyncRuntime, Happened, Runtime, declare, tool
from amends.drivers import process
from amends.drivers.blocking import Driver, Live
from amends.drivers.event_loop import AsyncDriver
from amends.errors import Busy, Held, LeaseLost, LedgerError, UsageError
from amends.host.heartbeat import Heartbeat
from amends.ledger.operations import (
    AdmitCall,
    BeginCompensation,
    BeginRollback,
    ClaimRun,
    CloseRun,
    LetGo,
    NoteEvidence,
    NoteProbe,
    OpenChild,
    OpenRun,
    Renewed,
    RenewLeases,
    ResolveCall,
    SettleCall,
    SettleCompensation,
    StartCall,
    WatchDoubt,
)
from amends.ledger.rows import CallRow
from amends.ledger.world import Invoke, Lease
from amends.model import NoEffect
from amends.stores.memory import MemoryStore

LEASE_S = 30.0


def opened(store: MemoryStore, *, owner: str = "w1", opener: str = "o1", mono: float = 0.0) -> OpenRun:
    op = OpenRun("u1", "r", "", owner, opener, LEASE_S, "", "", "boot", mono)
    assert store.perform(op).how in ("fresh", "resumed")
    return op


def admitted(store: MemoryStore, **facts: Any) -> CallRow:
    op = AdmitCall("c1", "u1", "u1", "w1", 1, "pay", "1", "compensatable", "k", "i", "d", "{}", undoable=True)
    answer = store.perform(replace(op, **facts))
    assert answer.call is not None
    return answer.call


# ---- ownership ----------------------------------------------------------------------------


def test_a_compensation_in_flight_is_not_quiet_when_its_run_is_taken_over() -> None:
    store = MemoryStore()
    opened(store)
    admitted(store)
    store.perform(SettleCall("c1", "w1", 1, 1, "succeeded", boot="boot", mono=1.0))
    store.perform(BeginRollback("u1", "w1", "failed", person=False, owner="w1", epoch=1))
    assert store.perform(BeginCompensation("c1", "w1", 1, 1)) is not None
    # It outlived its timeout, so it may still be sent; the run is given back meanwhile.
    store.perform(SettleCompensation("c1", "w1", 1, 1, "compensation_in_doubt", boot="boot", mono=None))
    store.perform(LetGo("u1", "w1", 1, 0.0))
    assert store.perform(ClaimRun("u1", "w2", "o2", LEASE_S, "boot", 100.0)) is not None
    assert store.calls["c1"].comp_mono == 100.0 + LEASE_S


def test_a_process_that_proc_hides_is_not_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``hidepid`` the processes of other users have no place under /proc."""
    real = Path.read_text

    def hidden(self: Path, *args: Any, **kwargs: Any) -> str:
        if str(self) == "/proc/1/stat":
            raise FileNotFoundError(str(self))
        return real(self, *args, **kwargs)

    def not_yours(pid: int, number: int) -> None:
        raise PermissionError(pid)

    monkeypatch.setattr(Path, "read_text", hidden)
    monkeypatch.setattr(os, "kill", not_yours)
    host = process.owner_name().rsplit("|", 2)[0]
    assert not process.is_dead(f"{host}|1|5")


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="only Linux has a clock that counts sleep")
def test_a_lease_runs_out_while_the_host_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A laptop that was closed for an hour wakes up: another host has gone on with its run meanwhile."""
    asleep = [0.0]
    real = time.clock_gettime
    monkeypatch.setattr(time, "clock_gettime", lambda clock: real(clock) + asleep[0])
    driver = Driver(MemoryStore(), Live(), LEASE_S)
    lease = Lease("u", "w", 1, LEASE_S, process.clocks().mono + LEASE_S)
    lease.check(driver.mono())
    asleep[0] = 3_600.0
    with pytest.raises(LeaseLost):
        lease.check(driver.mono())


def test_a_worker_finds_its_runs_behind_many_that_it_has_no_tools_for() -> None:
    @tool
    def theirs(n: int) -> int:
        return n

    @theirs.compensate
    def untheirs(n: int) -> None: ...

    @tool
    def ours(n: int) -> int:
        return n

    @ours.compensate
    def unours(n: int) -> None: ...

    store = MemoryStore()
    both = Runtime(tools=[theirs, ours], store=store)
    for n in range(5):
        both.open(f"theirs-{n}").call(theirs, n=n)
    both.open("ours").call(ours, n=1)
    for uid, row in list(store.runs.items()):
        store.runs[uid] = replace(row, owner="", lease_until=0.0, wake_at=1.0)
    worker = Runtime(tools=[ours], store=store)
    worker.recover(limit=3)
    assert worker.report("ours").state == "rolled_back"


def test_a_person_without_the_tools_leaves_the_rollback_to_a_worker_that_has_them() -> None:
    gone: list[int] = []

    @tool
    def reserve(n: int) -> int:
        return n

    @reserve.compensate
    def release(n: int) -> None:
        gone.append(n)

    store = MemoryStore()
    agent = Runtime(tools=[reserve], store=store)
    agent.open("r", recover="wait").call(reserve, n=1)
    row = next(iter(store.runs.values()))
    store.runs[row.uid] = replace(row, owner="", lease_until=0.0, wake_at=None)
    Runtime(store=store).rollback("r", by="anna", why="stop")
    Runtime(tools=[reserve], store=store).recover()
    assert gone == [1]
    assert agent.report("r").state == "rolled_back"


# ---- repeated after a lost answer ---------------------------------------------------------


def test_a_child_that_was_there_before_is_resumed_whether_or_not_the_answer_was_lost() -> None:
    store = MemoryStore()
    opened(store)
    first = store.perform(OpenChild("u2", "r/x", "u1", 1, "w1", "", ""))
    again = store.perform(OpenChild("u3", "r/x", "u1", 1, "w1", "", "", repeated=True))
    lost = store.perform(OpenChild("u2", "r/x", "u1", 1, "w1", "", "", repeated=True))
    assert (first.how, again.how, lost.how) == ("fresh", "resumed", "fresh")


def test_blocking_a_blocked_run_again_gives_it_back_although_the_first_request_never_arrived() -> None:
    store = MemoryStore()
    opened(store)
    store.perform(CloseRun("u1", "w1", 1, "blocked", causes=("ask anna",), wake_s=0.0))
    assert store.perform(ClaimRun("u1", "w2", "o2", LEASE_S, "boot", 1.0)) is not None
    run = store.perform(CloseRun("u1", "w2", 2, "blocked", causes=("ask bob",), repeated=True))
    assert (run.owner, json.loads(run.causes)) == ("", ["ask bob"])


def test_a_probe_noted_twice_is_one_probe() -> None:
    store = MemoryStore()
    opened(store)
    admitted(store)
    store.perform(SettleCall("c1", "w1", 1, 1, "in_doubt", why="timeout", boot="boot", mono=1.0))
    store.perform(NoteProbe("c1", 1, 1, "unknown", "", next_s=1.0))
    store.perform(NoteProbe("c1", 1, 1, "unknown", "", next_s=1.0, repeated=True))
    assert store.calls["c1"].probes == 1
    assert [event.what for event in store.events].count("probed") == 1


def test_what_a_slow_worker_says_of_an_older_attempt_does_not_shorten_the_settle_delay() -> None:
    store = MemoryStore()
    opened(store)
    admitted(store)
    store.perform(SettleCall("c1", "w1", 1, 1, "in_doubt", why="timeout", boot="boot", mono=1.0))
    store.perform(ResolveCall("c1", "backing_off", "probe", "", epoch=1, owner="w1", retry_s=0.0))
    assert store.perform(StartCall("c1", "w1", 1, 2)) is not None
    store.perform(SettleCall("c1", "w1", 1, 2, "in_doubt", why="timeout", boot="boot", mono=None))
    store.perform(NoteProbe("c1", 1, 1, "absent, too early to believe", "", next_s=1.0, left_s=1.0))
    store.perform(WatchDoubt("c1", 1, "elsewhere", 2.0))
    assert (store.calls["c1"].quiet_mono, store.calls["c1"].quiet_left) == (None, None)


def test_a_lease_that_was_given_back_and_taken_again_is_still_renewed() -> None:
    asked: list[str] = []
    old = Lease("u1", "w1", 1, LEASE_S, 1e9)
    new = Lease("u1", "w1", 2, LEASE_S, 1e9)

    def renew(op: RenewLeases) -> Renewed:
        if not asked:
            asked.append("once")
            heartbeat.forget(old)
            heartbeat.keep(new)
            return Renewed({})
        return Renewed(dict.fromkeys(op.epochs, ""))

    heartbeat = Heartbeat(renew, LEASE_S, beats=False)
    heartbeat.keep(old)
    heartbeat.renew(heartbeat.kept())
    assert heartbeat.kept() == [new]


def test_a_heartbeat_survives_what_nobody_expected() -> None:
    beats: list[int] = []

    def renew(op: RenewLeases) -> Renewed:
        beats.append(1)
        raise RuntimeError("disk on fire")

    heartbeat = Heartbeat(renew, 0.06)
    heartbeat.keep(Lease("u1", "w1", 1, 0.06, 1e12))
    until = time.monotonic() + 5
    while len(beats) < 3 and time.monotonic() < until:
        time.sleep(0.01)
    heartbeat.close()
    assert len(beats) >= 3


# ---- evidence -----------------------------------------------------------------------------


def test_a_late_effect_is_not_lost_when_the_next_attempt_fails() -> None:
    store = MemoryStore()
    opened(store)
    admitted(store)
    store.perform(SettleCall("c1", "w1", 1, 1, "in_doubt", why="timeout", boot="boot", mono=1.0))
    store.perform(ResolveCall("c1", "backing_off", "probe", "", epoch=1, owner="w1", retry_s=0.0))
    assert store.perform(StartCall("c1", "w1", 1, 2)) is not None
    store.perform(NoteEvidence("c1", 1, True, '"r"', "", "boot", 2.0, "late"))
    settled = store.perform(SettleCall("c1", "w1", 1, 2, "failed", error='["E", "no"]', boot="boot", mono=3.0))
    assert (settled.call.state, settled.call.late, settled.call.result) == ("succeeded", 1, '"r"')


# ---- leaving ------------------------------------------------------------------------------


def test_a_submit_that_cannot_start_does_not_keep_the_block_waiting_for_ever() -> None:
    async def main() -> str:
        async with AsyncRuntime("memory:") as rt:
            with pytest.raises(TypeError):
                async with rt.run("r") as run:
                    run.submit(int)  # type: ignore[arg-type]
            return (await rt.report("r")).state

    assert asyncio.run(asyncio.wait_for(main(), 5)) == "rolled_back"


def test_a_submit_to_a_block_that_is_left_does_not_count_as_live() -> None:
    rt = Runtime("memory:")
    with rt.run("r") as run:
        run.submit(int).result()
    with pytest.raises(RuntimeError):
        run.submit(int)
    assert rt._host.live.count(run._session.uid) == 0


def test_a_block_that_waits_lets_its_other_calls_land_first() -> None:
    @tool
    async def slow(n: int) -> int:
        await asyncio.sleep(0.2)
        return n

    @slow.compensate
    async def unslow(n: int) -> None: ...

    async def main() -> list[str]:
        async with AsyncRuntime("memory:", tools=[slow]) as rt:
            with pytest.raises(Busy):
                async with rt.run("r") as run:
                    task = asyncio.ensure_future(run.call(slow, n=1))
                    await asyncio.sleep(0.05)
                    raise Busy("not yet", owner="x", retry_after=1.0)
            states: list[str] = [call.state for call in (await rt.report("r")).calls]
            await asyncio.gather(task, return_exceptions=True)
            return states

    assert asyncio.run(main()) == ["succeeded"]


def test_a_run_that_still_waits_for_a_person_is_not_taken_back_when_another_doubt_is_resolved() -> None:
    @tool
    def reserve(n: int) -> int:
        if n == 3:
            raise TimeoutError("no answer")
        return n

    @reserve.compensate
    def release(n: int) -> None: ...

    store = MemoryStore()
    Runtime(tools=[reserve], store=store).open("r").call(reserve, n=1)
    rt = resumed(store, reserve)
    with pytest.raises(Held), rt.run("r") as run:
        doubt = run.answer("reserve", {"n": 3, "again_because": "another one"})
        assert (doubt.status, run.answer("reserve", {"n": 2}).status) == ("in_doubt", "held")
    assert doubt.call is not None
    assert rt.resolve(doubt.call.id, Happened(3), by="anna", why="looked").state == "open"
    assert rt.recover() == []
    assert [call.state for call in rt.report("r").calls] == ["succeeded", "succeeded", "held"]


# ---- drivers ------------------------------------------------------------------------------


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
    assert time.monotonic() - begun < 5


def test_a_guard_that_times_out_has_started_no_compensation() -> None:
    tries: list[str] = []

    @tool
    def write(n: int) -> int:
        return n

    @write.compensate
    def unwrite(n: int) -> None:
        tries.append("undone")

    @write.guard
    def unchanged(n: int) -> bool:
        tries.append("looked")
        if len(tries) == 1:
            raise TimeoutError("no answer")
        return True

    rt = Runtime("memory:", tools=[write])
    with pytest.raises(KeyError), rt.run("r"):
        write(n=1)
        raise KeyError
    assert rt.report("r").state == "rolled_back"
    assert tries == ["looked", "looked", "undone"]


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

    @tool
    async def slow(n: int) -> int:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return n

    @slow.compensate
    async def unslow(n: int) -> None: ...

    async def main() -> None:
        store = MemoryStore()
        async with AsyncRuntime(tools=[slow], store=store, lease=0.6) as rt:
            run = await rt.open("r")
            calling = asyncio.ensure_future(run.call(slow, n=1))
            await asyncio.sleep(0.05)
            uid, row = next(iter(store.runs.items()))
            store.runs[uid] = replace(row, owner="other", epoch=row.epoch + 1)
            with pytest.raises(LeaseLost):
                await asyncio.wait_for(calling, 5)
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


# ---- the law ------------------------------------------------------------------------------


def resumed(store: MemoryStore, *tools: Any) -> Runtime:
    row = next(iter(store.runs.values()))
    store.runs[row.uid] = replace(store.runs[row.uid], owner="", lease_until=0.0)
    return Runtime(tools=tools, store=store, repeats=True)


def test_a_decided_retriable_still_waits_for_the_pivot() -> None:
    sent: list[int] = []

    @tool(kind="retriable", idempotent=True)
    def mail(n: int) -> None:
        sent.append(n)

    store = MemoryStore()
    Runtime(tools=[mail], store=store).open("r").call(mail, n=1)
    rt = resumed(store, mail)
    with pytest.raises(Held) as held, rt.run("r"):
        mail(n=2)
    rt.decide(held.value.call.id, "run", by="anna", why="another one")
    with pytest.raises(KeyError), rt.run("r"):
        mail(n=2)
        assert sent == [], "it is sent before the run has decided anything"
        raise KeyError
    assert sent == []


def test_a_decided_call_is_not_done_after_the_pivot() -> None:
    done: list[str] = []

    @tool
    def reserve(n: int) -> int:
        done.append(f"reserve {n}")
        return n

    @reserve.compensate
    def release(n: int) -> None: ...

    @tool(kind="pivot")
    def wire(n: int) -> None:
        done.append(f"wire {n}")

    store = MemoryStore()
    first = Runtime(tools=[reserve, wire], store=store).open("r", recover="wait")
    first.call(reserve, n=1)
    first.call(wire, n=1)
    rt = resumed(store, reserve, wire)
    with rt.run("r") as run:
        for name in ("reserve", "wire"):
            held = run.answer(name, {"n": 2})
            assert held.call is not None
            assert held.status == "held"
            with pytest.raises(UsageError, match="has pivoted"):
                rt.decide(held.call.id, "run", by="anna", why="another one")
            rt.decide(held.call.id, "refuse", by="anna", why="too late")
            assert run.answer(name, {"n": 2}).status == "refused"
    assert done == ["reserve 1", "wire 1"]
    assert run.state == "committed"


def test_a_staged_call_keeps_the_handler_it_came_with() -> None:
    sent: list[str] = []
    tools = [declare("mail", kind="retriable", idempotent=True), declare("wire", kind="pivot", at="commit")]
    rt = Runtime("memory:", tools=tools)
    with rt.run("r") as run:
        run.answer("wire", {"n": 1}, handler=lambda n: sent.append("wire"))
        run.answer("mail", {"n": 1}, handler=lambda n: sent.append("mail"))
    assert sent == ["wire", "mail"]
    assert run.state == "committed"


# ---- forked processes ---------------------------------------------------------------------


def test_a_forked_child_is_not_the_owner_of_its_parents_run(tmp_path: Path) -> None:
    told = tmp_path / "told"

    @tool
    def reserve(n: int) -> int:
        with told.open("a") as file:
            file.write(f"reserve {n}\n")
        return n

    @reserve.compensate
    def release(n: int) -> None:
        with told.open("a") as file:
            file.write(f"release {n}\n")

    with Runtime(f"sqlite:///{tmp_path}/a.db", tools=[reserve]) as rt, rt.run("r") as run:
        reserve(n=1)
        pid = os.fork()
        if pid == 0:
            try:
                try:
                    reserve(n=2)
                except (UsageError, LedgerError) as error:
                    told.open("a").write(f"{type(error).__name__}\n")
                try:
                    run.commit()
                except (UsageError, LedgerError) as error:
                    told.open("a").write(f"{type(error).__name__}\n")
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        assert run.state == "open"
        assert told.read_text() == "reserve 1\nNoRun\nNoRun\n"

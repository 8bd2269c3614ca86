"""What is learned late, what a fenced worker did, what a broken ledger must not hide, and held conflicts."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from amends import AsyncRuntime, InDoubt, RunBlocked, Runtime, tool
from amends.errors import Held, LeaseLost, LedgerUnavailable
from amends.ledger.operations import NoteEvidence
from amends.stores.memory import MemoryStore
from tests.world import FAST, World, die, runtime, states, twin_of, until, wake


class Flaky(MemoryStore):
    """A ledger that can be unplugged."""

    down = False

    def perform(self, op: Any) -> Any:
        if self.down:
            raise LedgerUnavailable("unplugged")
        return super().perform(op)


def _impatient(rt: Any) -> Any:
    """Let a runtime with a long lease insist on an answer of its ledger only as long as one with a short lease does."""
    rt._driver.lease_s = 0.1
    return rt


def test_a_worker_that_lost_its_lease_settles_nothing_and_its_outcome_is_evidence() -> None:
    world, store = World(), MemoryStore()
    inside, gate = threading.Event(), threading.Event()

    @tool(name="pay")
    def pay() -> str:
        inside.set()
        gate.wait(30)
        return world.happen("pay:1")

    @pay.compensate
    def undo() -> None:
        world.undo("pay:1")

    first = runtime(pay, store=store)
    run = first.open("r")
    ends: list[BaseException] = []

    def work() -> None:
        try:
            run.call(pay)
        except BaseException as error:
            ends.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(30)
    die(run)
    worker = twin_of(store, pay)
    (report,) = worker.recover()
    assert report.state == "blocked"  # nobody knows whether it happened
    gate.set()
    thread.join(30)
    assert isinstance(ends[0], LeaseLost)
    assert any(event.what == "evidence" for event in worker.events("r"))
    (report,) = worker.recover()
    assert report.state == "rolled_back"
    assert world.log == ["pay:1", "undo pay:1"]


def test_an_effect_that_lands_after_the_rollback_reopens_it_and_is_taken_back() -> None:
    world = World()
    gate = threading.Event()

    @tool(name="pay", timeout=0.02)
    def pay() -> str:
        gate.wait(30)
        return world.happen("pay:1")

    @pay.compensate
    def undo() -> None:
        world.undo("pay:1")

    rt = runtime(pay)
    with pytest.raises(RunBlocked), rt.run("r"):
        pay()
    (doubt,) = rt.doubts()
    from amends import Absent

    assert rt.resolve(doubt.id, Absent(), by="anna", why="surely not").state == "rolled_back"
    gate.set()
    until(lambda: rt.report("r").state == "rolling_back")
    assert [report.state for report in rt.recover()] == ["rolled_back"]
    assert world.log == ["pay:1", "undo pay:1"]


def test_a_broken_ledger_does_not_hide_your_exception() -> None:
    world, store = World(), Flaky()
    pay = world.compensatable("pay")
    rt = _impatient(runtime(pay, store=store))
    for error in (KeyError("mine"), KeyboardInterrupt(), SystemExit(3)):
        store.down = False
        with pytest.raises(type(error)) as caught, rt.run(f"r-{type(error).__name__}", recover="wait"):
            pay()
            store.down = True
            raise error
        assert caught.value is error
        assert "could not be closed here" in error.__notes__[0]
    store.down = False


def test_a_broken_ledger_is_said_when_the_block_would_have_committed() -> None:
    world, store = World(), Flaky()
    pay = world.compensatable("pay")
    rt = _impatient(runtime(pay, store=store))
    with pytest.raises(LedgerUnavailable), rt.run("r"):
        pay()
        store.down = True
    store.down = False
    assert rt.report("r").state == "open"


def test_a_broken_ledger_starts_nothing() -> None:
    world, store = World(), Flaky()
    pay = world.compensatable("pay")
    rt = _impatient(runtime(pay, store=store))
    with rt.run("r"):
        store.down = True
        with pytest.raises(LedgerUnavailable):
            pay()
        store.down = False
    assert world.log == []


def test_a_settlement_is_repeated_until_the_ledger_takes_it() -> None:
    store = Flaky()

    @tool
    def pay() -> str:
        store.down = True
        threading.Timer(0.05, lambda: setattr(store, "down", False)).start()
        return "paid"

    pay.compensate(lambda: None)
    rt = Runtime(store=store, tools=[pay], lease=5)
    with rt.run("r"):
        assert pay() == "paid"
    assert states(rt, "r") == {"pay": "succeeded"}


def test_being_stopped_comes_out_as_itself_even_if_the_rollback_is_blocked() -> None:
    world = World()
    pay = world.compensatable("pay")
    world.script["pay"] = [(TimeoutError(),)]
    rt = runtime(pay)
    with pytest.raises(KeyboardInterrupt) as stopped, rt.run("r"):
        with pytest.raises(InDoubt):
            pay()
        raise KeyboardInterrupt
    assert stopped.value.__notes__ == ["amends: run r is blocked"]
    assert rt.report("r").state == "blocked"


# ---- on_conflict="hold" -------------------------------------------------------------------


def _conflict(rt, pay) -> Held:
    with pytest.raises(Held) as held, rt.run("r", recover="wait"):
        pay(x="1", n=1)
        pay(x="1", n=2)
    assert held.value.reason == "conflict"
    assert held.value.twin.args == {"x": "1", "n": 1}
    return held.value


@pytest.mark.parametrize("decision, log", [("run", 2), ("replay", 1)])
def test_a_held_conflict_is_decided_by_a_person(decision, log) -> None:
    world = World()
    pay = world.compensatable("pay", key="x", on_conflict="hold")
    rt = runtime(pay)
    held = _conflict(rt, pay)
    rt.decide(held.call.id, decision, by="anna", why="looked")
    with rt.run("r", history=True) as run:
        assert pay(x="1", n=1) == "pay:1"
        assert pay(x="1", n=2) == "pay:1"
    assert run.state == "committed"
    assert len(world.log) == log


def test_a_held_conflict_asked_for_again_is_the_same_one() -> None:
    world = World()
    pay = world.compensatable("pay", key="x", on_conflict="hold")
    rt = runtime(pay)
    first = _conflict(rt, pay)
    with pytest.raises(Held) as again, rt.run("r", recover="wait", history=True):
        pay(x="1", n=2)
    assert again.value.call.id == first.call.id
    assert len(list(rt.calls())) == 2


def test_a_rollback_drops_what_is_held() -> None:
    world = World()
    pay = world.compensatable("pay", key="x", on_conflict="hold")
    rt = runtime(pay)
    _conflict(rt, pay)
    assert rt.rollback("r", by="anna", why="stop").state == "rolled_back"
    assert sorted(call.state for call in rt.calls()) == ["compensated", "dropped"]


# ---- the other colour ---------------------------------------------------------------------


def test_an_async_worker_recovers_as_a_blocking_one() -> None:
    world, store = World(), MemoryStore()
    pay, mail = world.compensatable("pay"), world.retriable(retry=FAST)
    run = runtime(pay, mail, store=store).open("r")
    run.call(pay)
    run.call(mail)
    die(run)

    async def main() -> None:
        rt = AsyncRuntime(store=store, tools=[pay, mail], wait=0.2)
        assert [report.state for report in await rt.recover()] == ["rolled_back"]
        events = len(store.events)
        wake(store)
        assert await rt.recover() == []
        assert len(store.events) == events
        await rt.close()

    asyncio.run(main())
    assert world.log == ["pay:1", "undo pay:1"]


def test_async_blocks_follow_the_same_table() -> None:
    world = World()
    pay, wire, mail = world.compensatable("pay"), world.pivot(), world.retriable()

    async def main() -> None:
        rt = AsyncRuntime("memory:", tools=[pay, wire, mail], wait=0.2)
        with pytest.raises(KeyError):
            async with rt.run("after") as run:
                await run.call(mail)
                await run.call(wire)
                raise KeyError
        assert (await rt.report("after")).state == "blocked"
        world.script["pay"] = [(TimeoutError(),)]
        with pytest.raises(RunBlocked):
            async with rt.run("doubt") as run:
                with pytest.raises(InDoubt):
                    await run.call(pay)
        (doubt,) = [call async for call in rt.doubts()]
        from amends import Happened

        assert (await rt.resolve(doubt.id, Happened("x"), by="anna", why="seen")).state == "committed"
        async with rt.run("answers") as run:
            answer = await run.answer("pay", '{"x": "9"}')
            assert (answer.status, answer.value) == ("done", "pay:9")
            assert (await run.report()).state == "open"
        await rt.close()

    asyncio.run(main())


@tool
def reserve(n: int) -> str:
    return f"r{n}"


@reserve.compensate
def release(result: str) -> None: ...


def test_late_evidence_in_a_child_of_a_closed_run_is_named_and_wakes_nobody() -> None:
    store = MemoryStore()

    @tool
    def odd(n: int) -> str:
        raise RuntimeError("it says that nothing happened")

    odd.compensate(lambda: None)
    rt = Runtime(tools=[odd, reserve], store=store)
    with rt.run("r") as run:
        reserve(n=1)
        with pytest.raises(RuntimeError), run.child("inner"):
            odd(n=1)
    call = next(row for row in store.calls.values() if row.tool == "odd")
    store.perform(NoteEvidence(call.id, 1, True, '"x"', "", "boot", 1.0, source="late"))
    report = rt.report("r")
    assert (report.state, report.children[0].state) == ("committed", "rolled_back")
    assert [left.call.tool for left in report.residue] == ["odd"]
    assert rt.recover() == []

"""Experiment b: two processes, one key. And who may take over from whom."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from functools import partial
from pathlib import Path

import pytest

from amends import Absent, AsyncRuntime, Happened, LedgerError, RunBlocked, Runtime, tool
from amends.drivers import process
from amends.errors import Busy, LeaseLost
from amends.host import heartbeat
from amends.ledger.operations import RenewLeases
from tests.peers import races
from tests.peers.children import Child
from tests.peers.conftest import Ledger
from tests.peers.flaky import BEAT, Flaky
from tests.scenarios import world as outside
from tests.world import OFTEN, World, expire, is_kept, until


@pytest.mark.parametrize("how", ["run", "ledger", "once"])
def test_two_processes_released_together_have_one_effect_and_both_get_its_result(tmp_path: Path, how: str) -> None:
    """AgentRelay 3.4 b: always two. SafeAgent 2.4 b: the loser is told ok False. idempotent-tools: 2 in 12 of 12."""
    racers = [Child(races.race, tmp_path, how, me, 2) for me in "ab"]
    one, other = (racer.answer() for racer in racers)
    assert one == other
    assert [answer["order"] for answer in one] == [f"order-{number}" for number in range(races.ROUNDS)]
    assert len(outside.World(tmp_path).entries("charge")) == races.ROUNDS


def test_a_second_session_with_the_same_input_after_the_first_has_no_second_effect(tmp_path: Path) -> None:
    """AgentRelay 3.3: a retry of the process or of the block gets a new run id: two sessions, 2 effects."""
    answers = [Child(races.race, tmp_path, "run", "a", 1, 2).answer() for _ in range(2)]
    assert answers[0] == answers[1]
    assert len(outside.World(tmp_path).entries("charge")) == 2


def test_a_slow_owner_is_not_taken_over_while_its_heartbeat_lives(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """agent-ledger 4.3: an owner alive but slower than the threshold: the second worker ran it too, 2 effects."""
    gate, log = threading.Event(), []

    @tool
    def charge() -> str:
        log.append("charge")
        gate.wait(20)
        return "ch_1"

    charge.compensate(lambda: log.append("refund"))
    monkeypatch.setattr(heartbeat, "BEATS_PER_LEASE", OFTEN)
    slow, other = ledger(charge), ledger(charge, wait=0.05)

    def owner() -> None:
        with slow.run("r"):
            charge()

    thread = threading.Thread(target=owner)
    thread.start()
    until(lambda: log == ["charge"])
    for _ in range(4):
        expire(slow._host.store, "r")
        until(partial(is_kept, slow._host.store, "r"))
        assert other.recover() == []
        with pytest.raises(Busy), other.run("r"):
            raise AssertionError("nobody gets in")
    gate.set()
    thread.join(20)
    with other.run("r"):
        assert charge() == "ch_1"
    assert log == ["charge"]


def test_one_lost_heartbeat_is_not_the_end_of_a_healthy_owner(
    tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """exactly-once: one failed heartbeat ends its thread silently; two workers ran it, both were told success."""
    gate, log = threading.Event(), []

    @tool
    def charge() -> str:
        log.append("charge")
        gate.wait(20)
        return "ch_1"

    charge.compensate(lambda: log.append("refund"))
    store = Flaky(tmp_path)
    store.left[BEAT] = 1
    monkeypatch.setattr(heartbeat, "BEATS_PER_LEASE", OFTEN)
    owner, other = ledger(charge, store=store), ledger(charge)
    with owner.run("r") as run:
        future = run.submit(charge)
        until(lambda: store.refused > 0)
        for _ in range(3):
            expire(other._host.store, "r")  # the lease it began with has ended
            until(partial(is_kept, other._host.store, "r"))
            assert other.recover() == []
        gate.set()
        assert future.result(20) == "ch_1"
    assert log == ["charge"]
    assert other.report("r").state == "committed"


def test_a_frozen_owner_that_wakes_settles_nothing_and_starts_nothing(tmp_path: Path) -> None:
    """agent-saga: woke, ran the next step, reported success. exactly-once: its result overwrites the new owner's."""
    world = outside.World(tmp_path)
    dead = Child(races.zombie, tmp_path)
    until(lambda: bool(world.entries("slow")))
    dead.stop()
    rt, _, _ = races.build(world, wait=0.1)

    @tool
    def wait_for_the_end() -> str:
        raise AssertionError("it is not started again")

    wait_for_the_end.compensate(lambda: world.undo("slow", "slow"))
    rt.add(wait_for_the_end)
    with rt:
        rt.report("r")  # opens the ledger
        expire(rt._host.store, "r")
        assert rt.recover()
        (doubt,) = rt.doubts()
        assert rt.resolve(doubt.id, Happened("seen by ada"), by="ada", why="looked").state == "rolled_back"
        world.note("woken")
        dead.wake()
        told = dead.answer()
        assert "done" not in told.values()
        assert (rt.report("r").state, world.standing("slow"), world.entries("charge")) == ("rolled_back", [], [])
        assert rt.call(doubt.id).result == "seen by ada"


def test_the_outcome_of_a_fenced_worker_is_refused_and_kept_as_evidence(ledger: Ledger) -> None:
    """exactly-once: A's late commit needs no token, the stored result is A's and B's is dropped."""
    gate, started = threading.Event(), threading.Event()
    told: list[object] = []
    log: list[str] = []

    @tool(key="order")
    def charge(order: str) -> str:
        started.set()
        gate.wait(20)
        return "of the fenced one"

    charge.compensate(lambda: log.append("refund"))
    first, other = ledger(charge), ledger(charge)
    run = first.open("r")

    def ask() -> None:
        try:
            told.append(run.call(charge, order="1"))
        except Exception as error:
            told.append(type(error))

    thread = threading.Thread(target=ask)
    thread.start()
    assert started.wait(20)
    expire(first._host.store, "r")  # it has not beaten: a long pause of its machine
    assert other.recover()
    (doubt,) = other.doubts()
    other.resolve(doubt.id, Absent(), by="ada", why="the provider has none")
    gate.set()
    thread.join(20)
    assert told == [LeaseLost]
    assert any(event.what == "evidence" and event.by == "fenced" for event in other.events("r"))
    assert [left.why for left in other.report("r").residue] == ["it has not been compensated yet"]
    assert other.recover()
    assert (log, other.report("r").state) == (["refund"], "rolled_back")


def test_a_fenced_task_is_told_and_its_outcome_changes_nothing(tmp_path: Path, ledger: Ledger) -> None:
    """idemkit: the late writer is refused there too. agent-saga: the zombie finishes and reports OK."""
    log: list[str] = []
    taken = threading.Event()

    @tool
    async def charge(order: str) -> str:
        log.append(order)
        while not taken.is_set():
            with contextlib.suppress(asyncio.CancelledError):  # it is told to stop, and has already sent
                await asyncio.sleep(0.005)
        return "of the fenced one"

    charge.compensate(lambda: log.append("refund"))
    other = ledger(charge)
    rt = AsyncRuntime(f"sqlite:///{tmp_path / 'ledger.db'}", tools=[charge])

    def take_over() -> None:
        until(lambda: log == ["1"])
        expire(rt._host.store, "r")  # it has not beaten: a long pause of its machine
        other.recover()
        rt._host.heartbeat.renew(rt._host.heartbeat.kept())  # it goes on, and learns what happened meanwhile
        taken.set()

    async def main() -> None:
        async with rt:
            with pytest.raises(LeaseLost):
                async with rt.run("r"):
                    with pytest.raises(LeaseLost):
                        await charge(order="1")
                    await charge(order="2")

    thread = threading.Thread(target=take_over)
    thread.start()
    asyncio.run(main())
    thread.join(20)
    assert any(event.what == "evidence" and event.by == "fenced" for event in other.events("r"))
    other.recover()
    assert log == ["1", "refund"]
    assert other.report("r").state == "rolled_back"


def test_a_waiting_retry_does_not_push_the_takeover_away(ledger: Ledger) -> None:
    """agent-ledger 4.3: each retry's upsert resets updated_at, so the stale takeover never comes."""
    world = World()
    charge = world.compensatable("charge")
    dead, other = ledger(charge), ledger(charge, wait=0.02)
    run = dead.open("r", recover="resume")
    run.call(charge)
    with pytest.raises(Busy), other.run("r"):
        raise AssertionError("it is not over yet")
    lease = run._session.lease
    dead._host.heartbeat.forget(lease)
    clock = process.clocks()
    dead._host.store.perform(RenewLeases(lease.owner, {lease.root: lease.epoch}, 0.3, boot=clock.boot, mono=clock.mono))

    def comes_in() -> bool:
        try:
            with other.run("r"):
                assert charge() == "charge:1"
        except Busy:
            return False
        return True

    until(comes_in)
    assert world.log == ["charge:1"]


def test_one_key_in_two_tenants_is_two_calls_however_the_names_are_put_together(ledger: Ledger) -> None:
    """agent-ledger 4.3: the parts are joined with |, so two tenants share a key."""
    world = World()
    charge, piped = world.compensatable("charge", scope="ledger"), world.compensatable("x|charge", scope="ledger")
    rt = ledger(charge, piped)
    with rt.scoped(tenant="a|x").run("r"):
        charge(x="1")
    with rt.scoped(tenant="a").run("r"):
        piped(x="1")
    assert world.log == ["charge:1", "x|charge:1"]
    assert len({call.key for tenant in ("a|x", "a") for call in rt.scoped(tenant=tenant).calls()}) == 2


def test_a_store_that_cannot_be_reached_starts_nothing_and_says_so(tmp_path: Path) -> None:
    """SafeAgent 2.3: silently falls back to memory: two registries, 2 effects. onceonly: fails open, 3 of 3 ran."""
    world = World()
    charge = world.compensatable("charge")
    (tmp_path / "file").write_text("no folder")
    for url in (f"sqlite:///{tmp_path}/file/ledger.db", f"sqlite:///{tmp_path}/nowhere/ledger.db"):
        for _ in range(2):
            with pytest.raises(LedgerError), Runtime(url, tools=[charge]).run("r"):
                charge()
    with pytest.raises(LedgerError), Runtime(f"sqlite:///{tmp_path}/none.db", tools=[charge], create=False).run("r"):
        charge()
    assert world.log == []


def test_a_ledger_that_goes_away_between_two_calls_starts_nothing_more(tmp_path: Path, ledger: Ledger) -> None:
    """SafeAgent 2.3, onceonly: a guard that cannot record lets the call through."""
    world = World()
    charge = world.compensatable("charge")

    store = Flaky(tmp_path)
    rt = ledger(charge, store=store)
    rt._driver.lease_s = 0.5  # so long it insists on an answer
    with pytest.raises(LedgerError), rt.run("r"):
        charge(x="1")
        store.is_gone = True
        charge(x="2")
    assert world.log == ["charge:1"]
    store.is_gone = False
    expire(store, "r")
    assert [report.state for report in ledger(charge).recover()] == ["rolled_back"]
    assert world.standing == []


def test_a_block_that_ends_blocked_says_who_must_do_what(ledger: Ledger) -> None:
    """SafeAgent 2.4 a: indistinguishable from a real failure; nothing named recover, resolve, release."""
    world = World()
    charge = world.compensatable("charge")
    world.script["charge"] = [(TimeoutError(),)]
    with pytest.raises(RunBlocked) as blocked, ledger(charge).run("r"):
        charge()
    assert [call.tool for call in blocked.value.doubts] == ["charge"]
    assert all("resolve" in cause for cause in blocked.value.causes)

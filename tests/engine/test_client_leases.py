"""Runs that belong to a client: the death of their owner is no reason to take them back while the client may live."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from amends import AsyncRuntime, Happened, Held, RolledBack, UsageError
from amends.errors import Busy, LeaseLost
from amends.stores.memory import MemoryStore
from amends.testing import Crash, TestRuntime
from amends.testing import runtime as virtual
from tests.world import World, die, runtime, states, twin_of

CLIENT_S = 60.0


def server(world: World, **options: Any) -> tuple[TestRuntime, Any]:
    pay = world.compensatable("pay")
    return virtual(tools=[pay], lease=10.0, wait=1.0, **options), pay


def test_a_run_is_left_alone_until_its_client_lease_has_passed_since_its_owner_died() -> None:
    world = World()
    rt, pay = server(world)
    rt.open("r", client_lease=CLIENT_S).call(pay)
    rt.clock.advance(300.0)  # the owner lives and renews its lease
    rt.crash()
    for _ in range(5):
        assert [one.state for one in rt.recover()] in ([], ["open"])
        rt.clock.advance(CLIENT_S / 5 - 1)
    rt.clock.advance(6.0)
    assert [one.state for one in rt.recover()] == ["rolled_back"]
    assert world.log == ["pay:1", "undo pay:1"]


def test_its_client_goes_on_at_once_through_another_server() -> None:
    world = World()
    rt, pay = server(world)
    rt.open("r", client_lease=CLIENT_S).call(pay)
    rt.crash()
    run = rt.open("r")
    assert run.resumed
    run.commit()
    info = rt.report("r").run
    assert (info.state, info.client_lease) == ("committed", CLIENT_S)
    assert info.to_dict()["client_lease"] == CLIENT_S
    assert next(iter(rt.runs())).client_lease == CLIENT_S


def test_every_opening_is_a_sign_of_the_client() -> None:
    rt, pay = server(World())
    rt.open("r", client_lease=CLIENT_S).call(pay)
    for _ in range(4):
        rt.crash()
        rt.clock.advance(CLIENT_S - 5)
        assert [one.state for one in rt.recover()] in ([], ["open"])
        rt.open("r")
    assert rt.report("r").state == "open"


def test_a_silent_owner_on_another_host_is_no_reason_either() -> None:
    world, store = World(), MemoryStore()
    pay = world.compensatable("pay")
    run = runtime(pay, store=store).open("r", client_lease=3_600.0)
    run.call(pay)
    die(run)
    worker = twin_of(store, pay)
    assert [one.state for one in worker.recover()] in ([], ["open"])
    assert worker.report("r").state == "open"
    assert worker.open("r").resumed


def test_a_person_is_followed_at_once() -> None:
    world = World()
    rt, pay = server(world)
    rt.open("r", client_lease=CLIENT_S).call(pay)
    rt.crash()
    assert rt.rollback("r", by="anna", why="stop").state == "rolled_back"
    assert world.log == ["pay:1", "undo pay:1"]


def test_a_commit_that_was_decided_goes_on_at_once() -> None:
    world = World()
    mail = world.retriable()
    rt = virtual(tools=[mail], lease=10.0)
    run = rt.open("r", client_lease=CLIENT_S)
    run.call(mail)
    rt._test_driver.faults[rt._test_driver.points + 1] = "before"  # decided, and nothing of it is done
    with pytest.raises(Crash):
        run.commit()
    rt.crash()
    assert rt.report("r").run.goal == "commit"
    assert [one.state for one in rt.recover()] == ["committed"]


def test_a_settled_doubt_does_not_start_the_policy_while_the_client_may_live() -> None:
    world = World()
    rt, pay = server(world)
    attempt = rt.open("r", client_lease=CLIENT_S).begin("pay", {}, lease=5.0)
    rt.crash()
    rt.clock.advance(1.0)
    rt.open("r")  # its next owner makes it doubt
    rt.crash()
    report = rt.resolve(attempt.call.id, Happened("pay:1"), by="anna", why="looked")
    assert report.state == "open"
    assert states(rt, "r") == {"pay": "succeeded"}
    assert rt.open("r").call(pay) == "pay:1"


def test_a_preview_of_a_doubt_says_that_its_owner_goes_on() -> None:
    rt, _ = server(World())
    attempt = rt.open("r", client_lease=CLIENT_S).begin("pay", {}, lease=5.0)
    rt.crash()
    rt.open("r")
    rt.crash()
    assert rt.preview(attempt.call.id).happened.who == "owner"


# ---- Letting a run go


def test_a_released_run_is_its_clients_for_the_rest_of_the_lease() -> None:
    world = World()
    rt, pay = server(world)
    run = rt.open("r", client_lease=CLIENT_S)
    run.call(pay)
    run.release(silent=20.0)
    assert rt.report("r").run.owner is None
    rt.clock.advance(39.0)
    assert rt.recover() == []
    rt.clock.advance(2.0)
    assert [one.state for one in rt.recover()] == ["rolled_back"]


@pytest.mark.parametrize("silent", [CLIENT_S, 1e9, float("inf")])
def test_a_run_whose_client_was_silent_too_long_is_recovery_s_at_once(silent: float) -> None:
    rt, pay = server(World())
    run = rt.open("r", client_lease=CLIENT_S)
    run.call(pay)
    run.release(silent=silent)
    assert [one.state for one in rt.recover()] == ["rolled_back"]


def test_a_run_without_a_client_lease_is_recoverys_at_once() -> None:
    rt, pay = server(World())
    run = rt.open("r")
    run.call(pay)
    run.release()
    run.release()  # again: nothing is left to release
    assert [one.state for one in rt.recover()] == ["rolled_back"]


def test_a_released_run_is_opened_again() -> None:
    world = World()
    rt, pay = server(world)
    with rt.run("r", client_lease=CLIENT_S) as run:
        run.call(pay)
        run.release()
    with rt.run("r") as again:
        assert again.resumed
        assert again.call(pay) == "pay:1"
    assert rt.report("r").state == "committed"
    assert world.log == ["pay:1"]


def test_an_open_attempt_of_a_released_run_is_in_doubt_until_its_performer_has_ended() -> None:
    rt, _ = server(World())
    run = rt.open("r", client_lease=CLIENT_S)
    attempt = run.begin("pay", {}, lease=20.0)
    run.release()
    row = rt._host.store.calls[attempt.call.id]  # type: ignore[attr-defined]
    assert (row.state, row.quiet_mono) == ("in_doubt", pytest.approx(rt.clock.mono + 22.0))
    with pytest.raises(LeaseLost):
        attempt.succeed("pay:1")
    told = rt.report_late(attempt.call.id, Happened("pay:1"), attempt=1, epoch=1, by="worker")
    assert told.state == "succeeded"
    assert [one.state for one in rt.recover()] == ["open"]  # it is still its client's
    assert rt.open("r").call(_tool(rt)) == "pay:1"


def _tool(rt: TestRuntime) -> Any:
    return rt._host.tools[0]


def test_a_run_that_waits_for_a_person_is_released_to_that_person() -> None:
    world = World()
    pay = world.compensatable("pay", needs_approval=True)
    rt = virtual(tools=[pay])
    run = rt.open("r", client_lease=CLIENT_S)
    with pytest.raises(Held):
        run.call(pay)
    run.release()
    rt.clock.advance(CLIENT_S * 2)
    assert [one.state for one in rt.recover()] in ([], ["open"])
    rt.approve_all()
    with rt.run("r") as again:
        assert again.call(pay) == "pay:1"


def test_a_child_is_released_with_its_root() -> None:
    rt, pay = server(World())
    with rt.run("r", client_lease=CLIENT_S) as run, run.child("c") as inner:
        inner.call(pay)
        with pytest.raises(UsageError, match="child"):
            inner.release()
    assert rt.report("r").state == "committed"


@pytest.mark.parametrize("lease", [0, -1, True, "60", float("nan"), float("inf")])
def test_a_client_lease_is_a_number_of_seconds(lease: Any) -> None:
    rt, _ = server(World())
    with pytest.raises(UsageError, match="client_lease is"), rt.run("r", client_lease=lease):
        pass
    with pytest.raises(UsageError, match="silent is"), rt.run("r") as run:
        run.release(silent=-1)
    assert {one.id for one in rt.runs()} == {"r"}


def test_on_an_event_loop_it_is_the_same() -> None:
    world = World()
    pay = world.compensatable("pay")

    async def main() -> None:
        async with AsyncRuntime("memory:", tools=[pay]) as rt:
            run = await rt.open("r", client_lease=CLIENT_S)
            await run.call(pay)
            with pytest.raises(Busy):
                await rt.open("r", wait=0)
            await run.release()
            assert await rt.recover() == []
            again = await rt.open("r")
            await again.release(silent=CLIENT_S)
            assert [one.state for one in await rt.recover()] == ["rolled_back"]

    asyncio.run(main())
    assert world.log == ["pay:1", "undo pay:1"]


def test_the_policy_of_a_run_is_read_with_a_client_lease_behind_it() -> None:
    rt, _ = server(World())
    run = rt.open("r", client_lease=0.00001, recover="wait", interrupted="commit", reads="again")
    info = rt.report("r").run
    assert (info.recover, info.interrupted, info.client_lease) == ("wait", "commit", 0.00001)
    with pytest.raises(RolledBack):
        run.rollback("stop")

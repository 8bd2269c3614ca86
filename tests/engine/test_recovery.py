"""A worker takes over what a dead process left: by goal, by pivot, by policy; and changes nothing when repeated."""

from __future__ import annotations

import time

import pytest

from amends.errors import InDoubt, LeaseLost
from amends.ledger.flow import finish
from amends.ledger.operations import BeginRollback
from amends.stores.memory import MemoryStore
from tests.world import FAST, World, die, runtime, states, twin_of, wake


def _first(store: MemoryStore, *tools, **options):
    return runtime(*tools, store=store, **options)


def _open(rt, run_id: str = "r", **options):
    return rt.open(run_id, **options)


def test_a_run_whose_owner_died_is_rolled_back_by_default() -> None:
    world, store = World(), MemoryStore()
    pay, mail = world.compensatable("pay"), world.retriable()
    run = _open(_first(store, pay, mail))
    run.call(pay)
    run.call(mail)
    worker = twin_of(store, pay, mail)
    assert worker.recover() == []  # its lease is alive
    die(run)
    (report,) = worker.recover()
    assert report.state == "rolled_back"
    assert world.log == ["pay:1", "undo pay:1"]
    assert states(worker, "r") == {"pay": "compensated", "mail": "dropped"}


def test_the_dead_owner_is_fenced() -> None:
    world, store = World(), MemoryStore()
    pay, hold = world.compensatable("pay"), world.compensatable("hold")
    run = _open(_first(store, pay, hold))
    run.call(pay)
    die(run)
    worker = twin_of(store, pay, hold)
    worker.recover()
    with pytest.raises((LeaseLost, Exception)) as lost:
        run.call(hold)
    assert "hold:1" not in world.log
    assert lost.value is not None


def test_a_call_that_was_started_is_doubt_and_the_probe_decides() -> None:
    for turn, log in (((KeyboardInterrupt(),), ["pay:1", "undo pay:1"]), (KeyboardInterrupt(), [])):
        world, store = World(), MemoryStore()
        pay = world.probed(world.compensatable("pay"))
        world.script["pay"] = [turn]
        rt = _first(store, pay)
        with pytest.raises(KeyboardInterrupt), rt.run("r", recover="wait"):
            pay()
        worker = twin_of(store, pay, wait=1)
        report = worker.rollback("r", by="anna", why="stop")
        assert report.state == "rolled_back"
        assert world.log == log


def test_a_pivoted_run_goes_forward_then_waits_to_be_opened_or_finished() -> None:
    world, store = World(), MemoryStore()
    wire, mail = world.pivot(), world.retriable()
    run = _open(_first(store, wire, mail))
    run.call(mail)
    run.call(wire)
    die(run)
    worker = twin_of(store, wire, mail)
    (report,) = worker.recover()
    assert world.log == ["wire:1", "mail:1"]
    assert report.state == "blocked"
    assert "rt.finish('r'" in report.run.causes[0]
    assert worker.finish("r", by="anna", why="all done").state == "committed"


def test_a_run_that_was_committing_is_committed() -> None:
    world, store = World(), MemoryStore()
    pay, mail = world.compensatable("pay"), world.retriable(retry=FAST)
    world.script["mail"] = [ValueError("down")]
    rt = _first(store, pay, mail)
    with rt.run("r"):
        pay()
        mail()
    time.sleep(0.01)  # longer than the delay of its next attempt
    (report,) = twin_of(store, pay, mail).recover()
    assert report.state == "committed"
    assert world.log == ["pay:1", "mail:1"]


def test_policy_wait_leaves_the_run_to_whoever_opens_it() -> None:
    world, store = World(), MemoryStore()
    pay = world.compensatable("pay", key="x")
    run = _open(_first(store, pay), recover="wait")
    run.call(pay)
    die(run)
    worker = twin_of(store, pay)
    (report,) = worker.recover()
    assert (report.state, report.run.owner) == ("open", None)
    assert worker.recover() == []
    with worker.run("r"):
        assert pay() == "pay:1"
    assert world.log == ["pay:1"]


def test_policy_resume_gives_the_run_to_its_agent_again() -> None:
    world, store = World(), MemoryStore()
    pay, hold = world.compensatable("pay", key="x"), world.compensatable("hold", key="x")

    def agent(run):
        pay()
        if not run.resumed:
            raise KeyboardInterrupt
        hold()
        return {"asked": run.input}

    rt = _first(store, pay, hold, agents={"clerk": agent})
    with pytest.raises(KeyboardInterrupt):
        rt.start("clerk", id="r", input="order 7")
    wake(store)
    worker = twin_of(store, pay, hold, agents={"clerk": agent})
    (report,) = worker.recover()
    assert report.state == "committed"
    assert report.output == {"asked": "order 7"}
    assert world.log == ["pay:1", "hold:1"]
    assert worker.start("clerk", id="r", input="order 7") == {"asked": "order 7"}


def test_an_agent_that_fails_again_takes_its_run_back() -> None:
    world, store = World(), MemoryStore()
    pay = world.compensatable("pay", key="x")

    def agent(run):
        pay()
        raise KeyboardInterrupt if not run.resumed else ValueError("still broken")

    rt = _first(store, pay, agents={"clerk": agent})
    with pytest.raises(KeyboardInterrupt):
        rt.start("clerk", id="r")
    wake(store)
    (report,) = twin_of(store, pay, agents={"clerk": agent}).recover()
    assert report.state == "rolled_back"
    assert world.standing == []


def test_a_worker_without_the_agent_does_not_take_the_run_away_from_one_that_has_it() -> None:
    world, store = World(), MemoryStore()
    pay = world.compensatable("pay", key="x")

    def agent(run):
        pay()
        if not run.resumed:
            raise KeyboardInterrupt
        return "done"

    rt = _first(store, pay, agents={"clerk": agent})
    with pytest.raises(KeyboardInterrupt):
        rt.start("clerk", id="r")
    wake(store)
    twin_of(store, pay).recover()
    wake(store)
    knows = twin_of(store, pay, agents={"clerk": agent})
    knows.recover()
    assert knows.report("r").state == "committed"


def test_unknown_tools_are_skipped_and_named() -> None:
    world, store = World(), MemoryStore()
    pay = world.compensatable("pay")
    run = _open(_first(store, pay))
    run.call(pay)
    die(run)
    stranger = twin_of(store)
    (report,) = stranger.recover()
    assert report.skipped == ("pay",)
    assert "pay" in str(report)
    assert report.state == "open"
    assert [report.state for report in twin_of(store, pay).recover()] == ["rolled_back"]


def test_undeclared_code_that_was_done_once_does_not_keep_a_run_from_being_recovered() -> None:
    world, store = World(), MemoryStore()
    pay = world.compensatable("pay")
    run = _open(_first(store, pay))
    run.call(pay)
    run.once("mail", lambda: "sent")
    die(run)
    (report,) = twin_of(store, pay).recover()
    assert report.skipped == ()
    assert report.state == "blocked"  # what was sent stands, and is named
    assert world.standing == []


def test_a_doubt_that_nobody_settles_blocks_the_recovered_run() -> None:
    world, store = World(), MemoryStore()
    hold, pay = world.compensatable("hold"), world.compensatable("pay")
    world.script["pay"] = [(KeyboardInterrupt(),)]
    rt = _first(store, hold, pay)
    with pytest.raises(KeyboardInterrupt), rt.run("r"):
        hold()
        pay()
    report = rt.report("r")
    assert report.state == "blocked"
    assert [call.tool for call in report.doubts] == ["pay"]
    assert world.standing == ["pay:1"]


@pytest.mark.parametrize("policy", ["rollback", "resume", "wait"])
@pytest.mark.parametrize("doubt", [False, True])
@pytest.mark.parametrize("pivot", [False, True])
def test_recovery_repeated_changes_nothing(policy, doubt, pivot) -> None:
    world, store = World(), MemoryStore()
    pay, wire, mail = world.compensatable("pay"), world.pivot(), world.retriable()
    run = _open(_first(store, pay, wire, mail), recover=policy)
    run.call(mail)
    run.call(pay, x="1")
    if doubt:
        world.script["pay"] = [(TimeoutError(),)]
        with pytest.raises(InDoubt):
            run.call(pay, x="2")
    elif pivot:
        run.call(wire)
    die(run)
    worker = twin_of(store, pay, wire, mail)
    worker.recover()
    rows = (dict(store.runs), dict(store.calls), list(store.events), list(world.log))
    for _ in range(3):
        wake(store)
        worker.recover()
    assert (dict(store.runs), dict(store.calls), list(store.events), list(world.log)) == rows


def test_what_a_person_decided_is_followed_not_the_policy() -> None:
    world, store = World(), MemoryStore()
    pay = world.compensatable("pay")
    run = _open(_first(store, pay), recover="wait")
    run.call(pay)
    worker = twin_of(store, pay)
    worker.rollback("r", by="anna", why="stop")
    assert worker.report("r").run.goal == "rollback"
    die(run)
    assert [report.state for report in worker.recover()] == ["rolled_back"]
    assert world.standing == []


@pytest.mark.parametrize("policy", ["wait", "resume"])
def test_a_child_that_was_going_back_goes_on_although_its_parent_waits(policy: str) -> None:
    world, store = World(), MemoryStore()
    pay, book, hold = (world.compensatable(name) for name in ("pay", "book", "hold"))
    world.script["hold"] = [TimeoutError()]
    run = _open(runtime(pay, book, hold, store=store), recover=policy)
    run.call(pay)
    inner = finish(run._open_child("c", None))
    inner.call(book)
    with pytest.raises(InDoubt):
        inner.call(hold)
    lease = run._session.lease
    store.perform(BeginRollback(inner._session.uid, "c", "it failed", False, lease.owner, lease.epoch))
    die(run)
    (report,) = twin_of(store, pay, book, hold).recover()
    assert report.state == "blocked"
    assert [left.call.tool for left in report.residue] == ["hold"]
    assert world.log == ["pay:1", "book:1", "undo book:1"]


def test_a_child_that_was_going_back_has_gone_back_when_its_parent_is_opened_again() -> None:
    world, store = World(), MemoryStore()
    pay = world.compensatable("pay")
    run = _open(runtime(pay, store=store), recover="wait")
    inner = finish(run._open_child("c", None))
    inner.call(pay)
    lease = run._session.lease
    store.perform(BeginRollback(inner._session.uid, "c", "it failed", False, lease.owner, lease.epoch))
    die(run)
    (report,) = twin_of(store, pay).recover()
    assert (report.state, report.children[0].state) == ("open", "rolled_back")
    assert world.log == ["pay:1", "undo pay:1"]

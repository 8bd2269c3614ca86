"""A worker takes over what a dead process left: by goal, by pivot, by policy; and changes nothing when repeated."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from amends import AsyncRuntime, Happened, Runtime, Unknown
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


def _agent_that_loses_an_answer(world: World, store: MemoryStore, body, *, is_async: bool = False, **options):
    """Stop an agent before it did anything, and return the worker that will start it again."""

    def agent(run):
        if not run.resumed:
            raise KeyboardInterrupt
        return body(run)

    async def agent_async(run):
        if not run.resumed:
            raise KeyboardInterrupt
        return await body(run)

    agents = {"clerk": agent_async if is_async else agent}
    given: dict[str, Any] = {"store": store, "wait": 0.01, "agents": agents} | options
    if is_async:
        rt = AsyncRuntime(**given)
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(rt.start("clerk", id="r"))
        return rt
    blocking = Runtime(**given)
    with pytest.raises(KeyboardInterrupt):
        blocking.start("clerk", id="r")
    return blocking


def _slowly_probed(one, *, unknown: int):
    """Give the tool a probe that knows nothing the first times."""
    asked = []

    def look(x: str):
        asked.append(x)
        return Unknown("not yet") if len(asked) <= unknown else Happened(f"{one.name}:{x}")

    one.probe(look)
    return one


def _plainly(pay, hold):
    return pay(), hold()


def _over_another_error(pay, hold):
    pay()
    try:
        hold()
    except Exception as error:
        raise ValueError("the hotel does not answer") from error


def _in_a_group(pay, hold):
    pay()
    try:
        hold()
    except Exception as error:
        raise ExceptionGroup("two at once", [KeyError("a"), error]) from None


def _swallowed(pay, hold):
    pay()
    try:
        hold()
    except Exception:
        failed = True
    else:
        failed = False
    if failed:
        raise ValueError("sorry")


@pytest.mark.parametrize("body", [_plainly, _over_another_error, _in_a_group, _swallowed])
def test_a_worker_waits_for_the_doubt_of_an_agent_that_it_resumed(body, caplog) -> None:
    world, store = World(), MemoryStore()
    pay = world.compensatable("pay", key="x")
    hold = _slowly_probed(world.compensatable("hold", key="x"), unknown=3)
    world.script["hold"] = [(TimeoutError("no answer"),)]
    worker = _agent_that_loses_an_answer(world, store, lambda run: body(pay, hold), tools=[pay, hold])
    for _ in range(3):
        wake(store)
        (report,) = worker.recover()
        assert (report.state, report.run.goal) == ("open", None)
        assert [call.state for call in report.calls] == ["succeeded", "in_doubt"]
    assert "run r waits for the outcome of hold; a worker continues it in " in caplog.text
    wake(store)
    (report,) = worker.recover()
    assert report.state == "committed"
    assert world.log == ["pay:1", "hold:1"]


def test_an_async_worker_waits_for_the_doubt_of_an_agent_that_it_resumed() -> None:
    world, store = World(), MemoryStore()
    pay = world.compensatable("pay", key="x")
    hold = _slowly_probed(world.compensatable("hold", key="x"), unknown=2)
    world.script["hold"] = [(TimeoutError("no answer"),)]

    async def body(run):
        await run.call(pay)
        await run.call(hold)

    worker = _agent_that_loses_an_answer(world, store, body, tools=[pay, hold], is_async=True)
    states = []
    for _ in range(3):
        wake(store)
        states += [report.state for report in asyncio.run(worker.recover())]
    assert states == ["open", "open", "committed"]
    assert world.log == ["pay:1", "hold:1"]


def test_a_doubt_in_a_child_of_a_resumed_agent_is_waited_for_too() -> None:
    world, store = World(), MemoryStore()
    pay = world.compensatable("pay", key="x")
    hold = _slowly_probed(world.compensatable("hold", key="x"), unknown=2)
    world.script["hold"] = [(TimeoutError("no answer"),)]

    def body(run):
        with run.child("trip"):
            pay()
            hold()

    worker = _agent_that_loses_an_answer(world, store, body, tools=[pay, hold])
    states = []
    for _ in range(3):
        wake(store)
        states += [report.state for report in worker.recover()]
    assert states == ["open", "open", "committed"]
    assert world.log == ["pay:1", "hold:1"]


def test_a_doubt_that_only_a_person_can_settle_blocks_the_run_of_a_resumed_agent_and_it_goes_on_afterwards() -> None:
    world, store = World(), MemoryStore()
    pay, hold = world.compensatable("pay", key="x"), world.compensatable("hold", key="x")
    world.script["hold"] = [(TimeoutError("no answer"),)]
    worker = _agent_that_loses_an_answer(world, store, lambda run: (pay(), hold()), tools=[pay, hold])
    wake(store)
    (report,) = worker.recover()
    assert (report.state, report.run.goal) == ("blocked", None)
    assert "rt.resolve(" in report.run.causes[0]
    (doubt,) = worker.doubts()
    assert worker.resolve(doubt.id, Happened("hold:1"), by="anna", why="looked").state == "committed"
    assert world.log == ["pay:1", "hold:1"]


def test_a_resumed_agent_that_fails_without_a_doubt_is_rolled_back() -> None:
    world, store = World(), MemoryStore()
    pay = world.probed(world.compensatable("pay", key="x"))

    def body(run):
        pay()
        raise ValueError("no")

    worker = _agent_that_loses_an_answer(world, store, body, tools=[pay])
    wake(store)
    (report,) = worker.recover()
    assert report.state == "rolled_back"
    assert world.standing == []


def test_a_person_who_rolls_a_waiting_run_back_is_obeyed() -> None:
    world, store = World(), MemoryStore()
    pay = world.compensatable("pay", key="x")
    hold = _slowly_probed(world.compensatable("hold", key="x"), unknown=1)
    world.script["hold"] = [(TimeoutError("no answer"),)]
    worker = _agent_that_loses_an_answer(world, store, lambda run: (pay(), hold()), tools=[pay, hold])
    wake(store)
    worker.recover()
    assert worker.rollback("r", by="anna", why="enough").state == "rolled_back"
    assert world.standing == []

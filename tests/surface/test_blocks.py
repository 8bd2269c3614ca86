"""What leaving a block does: the nine rows of the surface, before and after the pivot."""

from __future__ import annotations

import contextlib
import sys
import threading
from types import FrameType
from typing import Any

import pytest

from amends import Retry, RunBlocked, UsageError
from amends.errors import Busy, Held, InDoubt, LedgerUnavailable, RunEnded, Suspended
from amends.tools import scope
from tests.world import ONCE, World, expire, runtime, states, until


def test_nothing_pending_commits() -> None:
    world = World()
    reserve = world.compensatable()
    rt = runtime(reserve)
    with rt.run("r") as run:
        assert reserve(x="7") == "reserve:7"
        assert run.state == "open"
    assert rt.report("r").state == "committed"
    assert world.log == ["reserve:7"]


def test_nothing_pending_commits_after_the_pivot() -> None:
    world = World()
    wire = world.pivot()
    rt = runtime(wire)
    with rt.run("r") as run:
        wire()
        assert run.state == "pivoted"
    assert run.state == "committed"


def test_an_exception_takes_everything_back_and_comes_out_unchanged_with_a_note() -> None:
    world = World()
    reserve, hold = world.compensatable("reserve"), world.compensatable("hold")
    rt = runtime(reserve, hold)
    error = KeyError("mine")
    with pytest.raises(KeyError) as caught, rt.run("order-1042"):
        reserve()
        hold()
        raise error
    assert caught.value is error
    assert error.__notes__ == ["amends: run order-1042 rolled back, 2 calls compensated"]
    assert world.log == ["reserve:1", "hold:1", "undo hold:1", "undo reserve:1"]
    assert rt.report("order-1042").state == "rolled_back"


def test_the_note_counts_one_call_as_one() -> None:
    world = World()
    reserve = world.compensatable()
    with pytest.raises(KeyError) as caught, runtime(reserve).run("r"):
        reserve()
        raise KeyError
    assert caught.value.__notes__ == ["amends: run r rolled back, 1 call compensated"]


def test_an_exception_after_the_pivot_goes_forward_and_comes_out_with_a_note() -> None:
    world = World()
    wire, mail = world.pivot(), world.retriable()
    rt = runtime(wire, mail)
    with pytest.raises(KeyError) as caught, rt.run("r"):
        mail()
        wire()
        raise KeyError
    assert world.log == ["wire:1", "mail:1"]
    assert len(caught.value.__notes__) == 1
    assert rt.report("r").state == "blocked"
    assert states(rt, "r") == {"mail": "succeeded", "wire": "succeeded"}


def test_staged_calls_make_the_commit_the_pivot_and_are_done_on_return() -> None:
    world = World()
    reserve, mail = world.compensatable(), world.retriable()
    rt = runtime(reserve, mail)
    with rt.run("r") as run:
        staged = mail()
        reserve()
        assert world.log == ["reserve:1"]
    assert world.log == ["reserve:1", "mail:1"]
    assert run.state == "committed"
    assert staged.result == "mail:1"


def test_staged_calls_that_back_off_leave_the_run_pivoted_and_the_block_returns() -> None:
    world = World()
    mail = world.retriable()
    world.script["mail"] = [ValueError("smtp down")]
    rt = runtime(mail)
    with rt.run("r") as run:
        staged = mail()
    assert run.state == "pivoted"
    assert not staged.done
    assert states(rt, "r") == {"mail": "backing_off"}


def test_staged_calls_after_the_pivot_are_done_on_return() -> None:
    world = World()
    wire, mail, crm = world.pivot(), world.retriable("mail"), world.retriable("crm")
    rt = runtime(wire, mail, crm)
    with rt.run("r") as run:
        mail()
        wire()
        crm()
    assert sorted(world.log) == ["crm:1", "mail:1", "wire:1"]
    assert world.log[0] == "wire:1"
    assert run.state == "committed"


def test_calls_still_running_in_threads_are_waited_for_before_the_commit() -> None:
    world = World()
    reserve = world.compensatable()
    world.script["reserve"] = [0.05]
    rt = runtime(reserve)
    with rt.run("r") as run:
        future = run.submit(reserve)
    assert run.state == "committed"
    assert future.result(0) == "reserve:1"
    assert states(rt, "r") == {"reserve": "succeeded"}


def test_a_call_in_a_plain_thread_that_takes_longer_than_wait_is_still_waited_for() -> None:
    world = World()
    reserve = world.compensatable()
    world.script["reserve"] = [0.3]
    rt = runtime(reserve, wait=0.05)
    with rt.run("r") as run:
        thread = threading.Thread(target=run.bind(reserve))
        thread.start()
        until(lambda: bool(list(rt.calls("status:started"))))
    thread.join()
    assert run.state == "committed"


def test_an_exception_waits_for_a_long_call_in_a_thread_then_takes_it_back_too() -> None:
    world = World()
    reserve, hold = world.compensatable("reserve"), world.compensatable("hold")
    world.script["reserve"] = [0.3]
    rt = runtime(reserve, hold, wait=0.05)
    with pytest.raises(KeyError) as caught, rt.run("r") as run:
        hold()
        thread = threading.Thread(target=run.bind(reserve))
        thread.start()
        until(lambda: bool(list(rt.calls("status:started"))))
        raise KeyError
    thread.join()
    assert caught.value.__notes__ == ["amends: run r rolled back, 2 calls compensated"]
    assert world.standing == []


def test_calls_still_running_after_the_pivot_are_waited_for() -> None:
    world = World()
    wire, mail = world.pivot(), world.retriable()
    world.script["mail"] = [0.05]
    rt = runtime(wire, mail)
    with rt.run("r") as run:
        wire()
        run.submit(mail)
    assert run.state == "committed"
    assert world.log == ["wire:1", "mail:1"]


def _held(rt, pay):
    """A suspected duplicate after a resume is the core's own reason to hold."""
    with pytest.raises(KeyboardInterrupt), rt.run("r", recover="wait"):
        pay(x="1")
        raise KeyboardInterrupt
    return rt.run("r", recover="wait")


def test_a_run_with_a_held_call_never_commits_even_if_held_was_swallowed() -> None:
    world = World()
    pay = world.compensatable("pay")
    rt = runtime(pay)
    block = _held(rt, pay)
    with pytest.raises(Held) as held, block:
        with pytest.raises(Held):
            pay(x="2")
    assert held.value.reason == "duplicate"
    report = rt.report("r")
    assert report.state == "open"
    assert report.run.owner is None
    assert world.log == ["pay:1"]


def test_waiting_lets_the_run_go_without_a_rollback() -> None:
    world = World()
    pay = world.compensatable("pay")
    rt = runtime(pay)
    with pytest.raises(Held), _held(rt, pay):
        pay(x="2")
    report = rt.report("r")
    assert (report.state, report.run.owner) == ("open", None)
    assert world.standing == ["pay:1"]
    assert rt.recover() == []


def test_waiting_after_the_pivot_lets_the_run_go() -> None:
    world = World()
    wire = world.pivot()
    rt = runtime(wire)
    with pytest.raises(Busy), rt.run("r"):
        wire()
        raise Busy("elsewhere", owner="x", retry_after=1.0)
    report = rt.report("r")
    assert (report.state, report.run.owner) == ("pivoted", None)


@pytest.mark.parametrize("swallowed", [True, False])
def test_a_doubt_that_nobody_settles_blocks_the_run(swallowed: bool) -> None:
    world = World()
    reserve, hold = world.compensatable("reserve"), world.compensatable("hold")
    world.script["hold"] = [(TimeoutError("lost"),)]
    rt = runtime(reserve, hold)
    with pytest.raises(RunBlocked) as blocked, rt.run("r"):
        reserve()
        if swallowed:
            with pytest.raises(InDoubt):
                hold()
        else:
            hold()
    assert [call.tool for call in blocked.value.doubts] == ["hold"]
    assert "rt.resolve(" in blocked.value.causes[0]
    assert rt.report("r").state == "blocked"
    assert (blocked.value.__cause__ is None) == swallowed
    assert world.standing == (["reserve:1", "hold:1"] if swallowed else ["hold:1"])


@pytest.mark.parametrize("swallowed", [True, False])
def test_a_pivot_in_doubt_blocks_the_run_and_nothing_is_taken_back(swallowed: bool) -> None:
    world = World()
    reserve, wire = world.compensatable(), world.pivot()
    world.script["wire"] = [(TimeoutError("lost"),)]
    rt = runtime(reserve, wire)
    with pytest.raises(RunBlocked) as blocked, rt.run("r"):
        reserve()
        if swallowed:
            with pytest.raises(InDoubt):
                wire()
        else:
            wire()
    assert [call.tool for call in blocked.value.doubts] == ["wire"]
    assert world.standing == ["reserve:1", "wire:1"]
    assert rt.report("r").state == "blocked"


def test_a_doubt_after_the_pivot_blocks_the_run() -> None:
    world = World()
    wire, mail = world.pivot(), world.retriable(idempotent=True, retry=Retry(attempts=1, delay=0.01))
    world.script["mail"] = [(TimeoutError("lost"),)] * 10
    rt = runtime(wire, mail, wait=2)
    with pytest.raises(RunBlocked), rt.run("r"):
        wire()
        with pytest.raises(InDoubt):
            mail()
    assert rt.report("r").state == "blocked"


def test_a_rollback_that_cannot_finish_raises_run_blocked_from_your_exception() -> None:
    world = World()
    reserve = world.compensatable(twin={"retry": ONCE})
    world.script["undo reserve"] = [ValueError("no way")]
    rt = runtime(reserve)
    error = KeyError("mine")
    with pytest.raises(RunBlocked) as blocked, rt.run("r"):
        reserve()
        raise error
    assert blocked.value.__cause__ is error
    assert [left.call.tool for left in blocked.value.residue] == ["reserve"]
    assert "rt.retry(" in blocked.value.causes[0]


def test_a_ledger_error_comes_out_and_nothing_is_done_here() -> None:
    world = World()
    reserve = world.compensatable()
    rt = runtime(reserve)
    with pytest.raises(LedgerUnavailable), rt.run("r"):
        reserve()
        raise LedgerUnavailable("gone")
    assert rt.report("r").state == "open"
    assert world.standing == ["reserve:1"]
    expire(rt._host.store, "r")
    assert [report.state for report in rt.recover()] == ["rolled_back"]


@pytest.mark.parametrize("stop", [SystemExit, KeyboardInterrupt])
def test_being_stopped_takes_the_run_back_by_default(stop: type[BaseException]) -> None:
    world = World()
    reserve = world.compensatable()
    rt = runtime(reserve)
    with pytest.raises(stop), rt.run("r"):
        reserve()
        raise stop
    assert world.standing == []
    assert rt.report("r").state == "rolled_back"


@pytest.mark.parametrize("policy", ["resume", "wait"])
@pytest.mark.parametrize("stop", [SystemExit, KeyboardInterrupt])
def test_being_stopped_lets_a_run_go_that_resumes_or_waits(policy, stop) -> None:
    world = World()
    reserve = world.compensatable()
    rt = runtime(reserve)
    with pytest.raises(stop), rt.run("r", recover=policy):
        reserve()
        raise stop
    report = rt.report("r")
    assert (report.state, report.run.owner) == ("open", None)
    assert world.standing == ["reserve:1"]


@pytest.mark.parametrize("policy", ["rollback", "resume", "wait"])
def test_being_stopped_after_the_pivot_lets_the_run_go(policy) -> None:
    world = World()
    wire, mail = world.pivot(), world.retriable()
    rt = runtime(wire, mail)
    with pytest.raises(KeyboardInterrupt), rt.run("r", recover=policy):
        mail()
        wire()
        raise KeyboardInterrupt
    report = rt.report("r")
    assert (report.state, report.run.owner) == ("pivoted", None)
    assert world.log == ["wire:1"]


def test_a_keyboard_interrupt_in_a_body_is_doubt() -> None:
    world = World()
    reserve = world.compensatable()
    world.script["reserve"] = [(KeyboardInterrupt(),)]
    rt = runtime(reserve)
    with pytest.raises(KeyboardInterrupt), rt.run("r", recover="wait"):
        reserve()
    assert states(rt, "r") == {"reserve": "in_doubt"}


def test_opening_a_run_inside_a_run_raises_and_the_outer_one_goes_on() -> None:
    world = World()
    reserve = world.compensatable()
    rt = runtime(reserve)
    with rt.run("outer"):
        with pytest.raises(UsageError) as refused, rt.run("inner"):
            raise AssertionError("never entered")
        assert "run.child()" in refused.value.hint
        reserve()
    assert [run.id for run in rt.runs()] == ["outer"]


def test_open_commit_and_rollback_work_without_a_block() -> None:
    world = World()
    reserve = world.compensatable()
    rt = runtime(reserve)
    run = rt.open("r")
    assert run.call(reserve, x="5") == "reserve:5"
    run.commit()
    assert run.state == "committed"
    with pytest.raises(RunEnded):
        run.call(reserve, x="6")


# ---- somebody stops the agent


def test_a_run_that_is_stopped_waits_for_its_consumer_and_nothing_staged_starts() -> None:
    world = World()
    pay, mail = world.compensatable("pay"), world.retriable()
    rt = runtime(pay, mail)
    with pytest.raises(Suspended), rt.run("r"):
        pay(x="1")
        mail()
        raise Suspended("the user pressed Stop")
    assert (rt.report("r").state, rt.report("r").run.owner) == ("open", None)
    assert world.log == ["pay:1"]
    assert rt.recover() == [], "a worker leaves it alone"
    assert [(item.what, item.run_id) for item in rt.inbox()] == [("suspended", "r")]
    with rt.run("r"):
        pay(x="1")
    assert rt.report("r").state == "committed"
    assert world.log == ["pay:1", "mail:1"]


def test_a_stopped_run_is_left_alone_until_its_deadline_and_then_taken_back() -> None:
    world = World()
    pay = world.compensatable("pay")
    rt = runtime(pay)
    with pytest.raises(Suspended), rt.run("r", deadline=3.0):
        pay(x="1")
        raise Suspended("stop")
    assert (rt.recover(), rt.report("r").state) == ([], "open")
    until(lambda: rt.recover() != [])
    assert (rt.report("r").state, world.standing) == ("rolled_back", [])


def test_a_person_takes_a_stopped_run_back() -> None:
    world = World()
    pay = world.compensatable("pay")
    rt = runtime(pay)
    with pytest.raises(Suspended), rt.run("r"):
        pay(x="1")
        raise Suspended("stop")
    rt.rollback("r", by="ann", why="not wanted")
    rt.recover()
    assert (rt.report("r").state, world.standing) == ("rolled_back", [])


def test_after_the_pivot_a_stop_does_not_hold_back_what_is_recorded() -> None:
    world = World()
    wire, mail = world.pivot(), world.retriable()
    rt = runtime(wire, mail)
    with pytest.raises(Suspended), rt.run("r"):
        wire()
        raise Suspended("stop")
    assert (rt.report("r").state, rt.recover()) == ("pivoted", [])
    with rt.run("r"):
        mail()
    assert (rt.report("r").state, world.log) == ("committed", ["wire:1", "mail:1"])


def test_a_child_passes_the_stop_on_to_its_root() -> None:
    world = World()
    pay = world.compensatable("pay")
    rt = runtime(pay)
    with pytest.raises(Suspended), rt.run("r") as run, run.child("inner"):
        pay(x="1")
        raise Suspended("stop")
    assert (rt.report("r").state, world.standing, rt.recover()) == ("open", ["pay:1"], [])


def test_a_bound_function_that_leaves_its_own_block_does_not_call_into_the_run_around() -> None:
    world = World()
    reserve = world.compensatable()
    rt = runtime(reserve)
    with rt.run("outer") as run:
        block = contextlib.ExitStack()
        child = block.enter_context(run.child("inner"))

        def leave_and_call() -> None:
            block.close()
            reserve(x="7")

        with pytest.raises(RunEnded):
            child.bind(leave_and_call)()
    assert world.log == []
    assert rt.report("outer").calls == ()


def test_an_interrupt_as_a_body_begins_does_not_leave_the_thread_inside_the_run() -> None:
    """Between the entry into the scope of a body and the memory of it a signal can arrive; a REPL goes on after it."""
    world = World()
    reserve = world.compensatable()
    rt = runtime(reserve)

    def interrupt(frame: FrameType, event: str, _: object) -> Any:
        if event == "return" and frame.f_code is scope.enter_scope_of.__code__:
            sys.settrace(None)
            raise KeyboardInterrupt
        return interrupt

    before = sys.gettrace()
    with pytest.raises(KeyboardInterrupt), rt.run("r"):
        sys.settrace(interrupt)
        try:
            reserve()
        finally:
            sys.settrace(before)
    assert scope.scope_here() is None
    with rt.run("next"):
        assert reserve(x="7") == "reserve:7"
    assert rt.report("next").state == "committed"

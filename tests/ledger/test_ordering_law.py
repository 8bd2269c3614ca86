"""The ordering law, on whatever order a model chooses."""

from __future__ import annotations

import threading

import pytest

from amends import InDoubt, RunBlocked, tool
from amends.errors import OutOfOrder, RunEnded
from tests.world import World, runtime, states, until


def _law(error: pytest.ExceptionInfo[OutOfOrder]) -> str:
    return error.value.law


def test_before_the_pivot_reads_and_compensatables_start_and_retriables_are_staged() -> None:
    world = World()
    look, pay, mail = world.read(), world.compensatable("pay"), world.retriable()
    rt = runtime(look, pay, mail)
    with rt.run("r"):
        look()
        pay()
        staged = mail()
        assert not staged.done
        assert staged.call.staged
        assert mail().call.id == staged.call.id
        with pytest.raises(ValueError):
            _ = staged.result
        assert world.log == ["look:1", "pay:1"]


def test_after_the_pivot_reads_and_retriables_start_and_nothing_else() -> None:
    world = World()
    look, pay, mail, wire, other = (
        world.read(),
        world.compensatable("pay"),
        world.retriable(),
        world.pivot("wire"),
        world.pivot("other"),
    )
    rt = runtime(look, pay, mail, wire, other)
    with rt.run("r") as run:
        wire()
        assert run.state == "pivoted"
        look()
        assert mail().done
        assert mail().result == "mail:1"
        with pytest.raises(OutOfOrder) as late:
            pay()
        with pytest.raises(OutOfOrder) as twice:
            other()
        assert wire() == "wire:1"
    assert (_law(late), late.value.pivot) == ("after_pivot", "wire")
    assert late.value.allowed == ("look", "mail")
    assert (_law(twice), twice.value.pivot) == ("pivot_twice", "wire")
    assert world.log == ["wire:1", "look:1", "mail:1"]


def test_the_same_compensatable_from_before_the_pivot_is_still_answered_after_it() -> None:
    world = World()
    pay, wire = world.compensatable("pay"), world.pivot()
    with runtime(pay, wire).run("r"):
        pay()
        wire()
        assert pay() == "pay:1"


def test_a_pivot_is_refused_while_something_is_missing() -> None:
    world = World()
    pay, hold, wire = world.compensatable("pay"), world.compensatable("hold"), world.pivot(after=["pay", "hold"])
    rt = runtime(pay, hold, wire)
    with rt.run("r"):
        hold()
        with pytest.raises(OutOfOrder) as early:
            wire()
        pay()
        wire()
    assert (_law(early), early.value.missing) == ("pivot_early", ("pay",))
    assert rt.report("r").state == "committed"


def test_a_failed_call_does_not_count_as_done_before_the_pivot() -> None:
    world = World()
    pay, wire = world.compensatable("pay"), world.pivot(after=["pay"])
    world.script["pay"] = [ValueError()]
    with runtime(pay, wire).run("r"):
        with pytest.raises(ValueError):
            pay()
        with pytest.raises(OutOfOrder):
            wire()


def test_a_pivot_is_refused_while_something_is_unsettled() -> None:
    world = World()
    pay, wire = world.compensatable("pay"), world.pivot()
    world.script["pay"] = [(TimeoutError(),)]
    rt = runtime(pay, wire)
    with pytest.raises(RunBlocked), rt.run("r"):
        with pytest.raises(InDoubt):
            pay()
        with pytest.raises(OutOfOrder) as early:
            wire()
    assert (_law(early), early.value.unsettled) == ("pivot_early", ("pay",))
    assert "wire:1" not in world.log


def test_a_pivot_is_refused_while_a_call_runs_in_a_thread() -> None:
    world = World()
    pay, wire = world.compensatable("pay"), world.pivot()
    gate = threading.Event()
    world.script["pay"] = [gate]
    rt = runtime(pay, wire)
    with rt.run("r") as run:
        future = run.submit(pay)
        until(lambda: bool(list(rt.calls("status:started"))))
        with pytest.raises(OutOfOrder) as early:
            wire()
        gate.set()
        future.result(30)
        wire()
    assert early.value.unsettled == ("pay",)


def test_while_a_pivot_is_in_flight_only_reads_start_and_nothing_is_staged() -> None:
    world = World()
    gate, inside = threading.Event(), threading.Event()
    look, pay, mail = world.read(), world.compensatable("pay"), world.retriable()

    @tool(kind="pivot")
    def wire() -> str:
        inside.set()
        gate.wait(30)
        return "w"

    rt = runtime(look, pay, mail, wire)
    with rt.run("r") as run:
        future = run.submit(wire)
        assert inside.wait(30)
        look()
        for blocked in (pay, mail):
            with pytest.raises(OutOfOrder) as refused:
                blocked()
            assert _law(refused) == "pivot_in_flight"
        with pytest.raises(RunEnded), run.child("c"):
            pass
        gate.set()
        assert future.result(30) == "w"
    assert run.state == "committed"


def test_a_rollback_asked_for_while_the_pivot_is_in_flight_is_void_when_it_happened() -> None:
    world = World()
    gate, inside = threading.Event(), threading.Event()

    @tool(kind="pivot")
    def wire() -> str:
        inside.set()
        gate.wait(30)
        return "w"

    pay = world.compensatable("pay")
    rt = runtime(wire, pay)
    with rt.run("r") as run:
        pay()
        future = run.submit(wire)
        assert inside.wait(30)
        rt.rollback("r", by="anna", why="stop")
        assert rt.report("r").run.goal == "rollback"
        gate.set()
        future.result(30)
    assert run.state == "committed"
    assert world.standing == ["pay:1"]


def test_a_pivot_that_certainly_failed_frees_the_way_for_another() -> None:
    world = World()
    pay, wire, other = world.compensatable("pay"), world.pivot("wire"), world.pivot("other")
    world.script["wire"] = [ValueError("refused")]
    rt = runtime(pay, wire, other)
    with rt.run("r"):
        with pytest.raises(ValueError):
            wire()
        pay()
        other()
    assert world.log == ["pay:1", "other:1"]


def test_a_pivot_in_doubt_resolved_as_absent_follows_the_goal() -> None:
    from amends import Absent

    world = World()
    pay, wire = world.compensatable("pay"), world.pivot()
    world.script["wire"] = [TimeoutError()]
    rt = runtime(pay, wire)
    with pytest.raises(RunBlocked), rt.run("r"):
        pay()
        wire()
    (doubt,) = rt.doubts()
    assert rt.resolve(doubt.id, Absent(), by="anna", why="not there").state == "rolled_back"
    assert world.standing == []


def test_a_pivot_in_doubt_resolved_as_happened_goes_forward() -> None:
    from amends import Happened

    world = World()
    pay, wire, mail = world.compensatable("pay"), world.pivot(), world.retriable()
    world.script["wire"] = [(TimeoutError(),)]
    rt = runtime(pay, wire, mail)
    with pytest.raises(RunBlocked), rt.run("r"):
        pay()
        mail()
        wire()
    (doubt,) = rt.doubts()
    report = rt.resolve(doubt.id, Happened("wire:1"), by="anna", why="there")
    assert report.run.state == "blocked"  # the block ended early: interrupted
    assert world.log == ["pay:1", "wire:1", "mail:1"]
    assert rt.finish("r", by="anna", why="nothing was missing").state == "committed"


# ---- a pivot that waits for the commit ----------------------------------------------------


def test_a_pivot_at_commit_is_staged_and_starts_first_when_the_run_commits() -> None:
    world = World()
    pay, mail = world.compensatable("pay"), world.retriable()
    wire = world.pivot(at="commit", after=["pay"])
    rt = runtime(pay, mail, wire)
    with rt.run("r") as run:
        pay()
        mail()
        staged = wire()
        pay(x="2")
        assert world.log == ["pay:1", "pay:2"]
        assert not staged.done
    assert world.log == ["pay:1", "pay:2", "wire:1", "mail:1"]
    assert staged.result == "wire:1"
    assert run.state == "committed"


def test_a_pivot_at_commit_is_the_runs_pivot_and_another_is_refused() -> None:
    world = World()
    wire, other, third = world.pivot("wire", at="commit"), world.pivot("other"), world.pivot("third", at="commit")
    rt = runtime(wire, other, third)
    with rt.run("r"):
        wire()
        for one in (other, third):
            with pytest.raises(OutOfOrder) as twice:
                one()
            assert (_law(twice), twice.value.pivot) == ("pivot_twice", "wire")
    assert world.log == ["wire:1"]


def test_a_pivot_that_fails_at_commit_takes_the_run_back_and_its_error_comes_out() -> None:
    world = World()
    pay, mail, wire = world.compensatable("pay"), world.retriable(), world.pivot(at="commit")
    world.script["wire"] = [ValueError("refused")]
    rt = runtime(pay, mail, wire)
    with pytest.raises(ValueError, match="refused"), rt.run("r"):
        pay()
        mail()
        wire()
    assert world.log == ["pay:1", "undo pay:1"]
    assert rt.report("r").state == "rolled_back"
    assert states(rt, "r") == {"pay": "compensated", "mail": "dropped", "wire": "failed"}


def test_a_pivot_at_commit_in_doubt_blocks_the_run() -> None:
    world = World()
    pay, wire = world.compensatable("pay"), world.pivot(at="commit")
    world.script["wire"] = [(TimeoutError(),)]
    rt = runtime(pay, wire)
    with pytest.raises(RunBlocked), rt.run("r"):
        pay()
        wire()
    assert world.standing == ["pay:1", "wire:1"]
    assert rt.report("r").state == "blocked"


def test_staged_calls_are_dropped_on_a_rollback() -> None:
    world = World()
    mail, wire = world.retriable(), world.pivot(at="commit")
    rt = runtime(mail, wire)
    with pytest.raises(KeyError), rt.run("r"):
        mail()
        wire()
        raise KeyError
    assert world.log == []
    assert states(rt, "r") == {"mail": "dropped", "wire": "dropped"}

"""Runs inside runs."""

from __future__ import annotations

import re
import threading
import time

import pytest

from amends import RolledBack, RunBlocked, current_run, tool
from amends.errors import InDoubt, RunConflict, RunEnded
from amends.host import heartbeat
from amends.ledger.flow import finish
from tests.world import OFTEN, ONCE, World, expire, is_kept, runtime, until


def test_a_child_commits_into_its_parent() -> None:
    world = World()
    reserve = world.compensatable()
    rt = runtime(reserve)
    with rt.run("r") as run:
        with run.child("c") as inner:
            reserve()
            assert inner.id == "r/c"
        assert inner.state == "committed"
    report = rt.report("r")
    assert report.state == "committed"
    assert [child.run.id for child in report.children] == ["r/c"]
    assert report.children[0].run.parent == "r"
    assert [call.tool for call in report.children[0].calls] == ["reserve"]


def test_a_parent_that_goes_back_takes_its_committed_child_back_too() -> None:
    world = World()
    reserve, hold = world.compensatable("reserve"), world.compensatable("hold")
    rt = runtime(reserve, hold)
    with pytest.raises(KeyError), rt.run("r") as run:
        with run.child("c"):
            reserve()
        hold()
        raise KeyError
    assert world.log == ["reserve:1", "hold:1", "undo hold:1", "undo reserve:1"]
    assert rt.report("r").state == "rolled_back"
    assert rt.report("r/c").state == "rolled_back"


def test_a_childs_pivot_is_residue_and_blocks_the_parents_rollback() -> None:
    world = World()
    reserve, wire = world.compensatable(), world.pivot()
    rt = runtime(reserve, wire)
    with pytest.raises(RunBlocked) as blocked, rt.run("r") as run:
        reserve()
        with run.child("c"):
            wire()
        raise KeyError
    assert [left.call.tool for left in blocked.value.residue] == ["wire"]
    assert "rt.abandon(" in blocked.value.causes[0]
    assert world.standing == ["wire:1"]
    report = rt.report("r")
    assert report.state == "blocked"
    assert [left.call.tool for left in report.residue] == ["wire"]
    assert rt.report("r/c").state == "committed"
    assert rt.abandon("r", by="anna", why="it stays").state == "abandoned"


def test_the_cause_that_a_childs_pivot_is_names_a_verb_that_removes_it() -> None:
    world = World()
    wire = world.pivot("wire")
    rt = runtime(wire)
    with pytest.raises(RunBlocked), rt.run("r") as run:
        with run.child("c"):
            wire()
        raise KeyError
    (cause,) = rt.report("r").run.causes
    verb = re.search(r"rt\.abandon\('(.+)', by=", cause)
    assert verb is not None, cause
    assert rt.abandon(verb[1], by="ada", why="it stays").state == "abandoned"


def test_a_child_that_cannot_be_taken_back_and_is_passed_over_blocks_its_parent_and_is_named() -> None:
    """What stands is inside the child: the pivot of a run in it."""
    rt = runtime()
    with pytest.raises(RunBlocked) as blocked, rt.run("r") as run:
        with pytest.raises(RunBlocked), run.child("c") as inner:
            inner.once("k", list)
            raise KeyError
    assert rt.report("r").state == "blocked"
    (cause,) = blocked.value.causes
    assert "of child r/c/once:k cannot be rolled back" in cause
    assert [one.why for one in blocked.value.residue] == ["the pivot of a child run stands"]
    assert "rt.abandon('r'" in cause
    rt.abandon("r", by="ann", why="it stays")
    assert rt.report("r").state == "abandoned"


def test_a_child_that_fails_is_taken_back_alone_and_asked_again_is_its_next_generation() -> None:
    world = World()
    reserve, hold = world.compensatable("reserve"), world.compensatable("hold")
    rt = runtime(reserve, hold)
    with rt.run("r") as run:
        hold()
        with pytest.raises(KeyError), run.child("c") as first:
            reserve()
            raise KeyError
        assert world.log == ["hold:1", "reserve:1", "undo reserve:1"]
        with run.child("c") as second:
            reserve()
        assert (first.generation, second.generation) == (1, 2)
    assert rt.report("r").state == "committed"
    assert world.standing == ["hold:1", "reserve:1"]


def test_the_same_request_finds_the_same_child() -> None:
    world = World()
    reserve = world.compensatable()
    rt = runtime(reserve)
    with rt.run("r") as run:
        for _ in range(2):
            with run.child("c"):
                assert reserve() == "reserve:1"
        with run.child(input={"a": 1}) as one:
            pass
        with run.child(input={"a": 1}) as two:
            pass
        assert one.id == two.id
        with pytest.raises(RunConflict), run.child("c", input=5):
            pass
    assert world.log == ["reserve:1"]


def test_staged_calls_of_a_child_move_to_its_parent() -> None:
    world = World()
    mail = world.retriable()
    rt = runtime(mail)
    with rt.run("r") as run:
        with run.child("c"):
            staged = mail()
        assert world.log == []
        assert run.state == "open"
    assert staged.result == "mail:1"
    assert [call.tool for call in rt.report("r").calls] == ["mail"]


def test_staged_calls_of_a_child_are_dropped_when_the_parent_goes_back() -> None:
    world = World()
    mail = world.retriable()
    rt = runtime(mail)
    with pytest.raises(KeyError), rt.run("r") as run:
        with run.child("c"):
            mail()
        raise KeyError
    assert world.log == []
    assert [call.state for call in rt.calls()] == ["dropped"]


def test_staged_calls_of_a_child_that_pivoted_run_at_the_childs_own_commit() -> None:
    world = World()
    wire, mail = world.pivot(), world.retriable()
    rt = runtime(wire, mail)
    with rt.run("r") as run:
        with run.child("c"):
            mail()
            wire()
        assert world.log == ["wire:1", "mail:1"]
    assert rt.report("r").state == "committed"


def test_a_parent_cannot_commit_or_pivot_over_an_open_child() -> None:
    world = World()
    reserve, wire = world.compensatable(), world.pivot()
    rt = runtime(reserve, wire)
    with rt.run("r") as run:
        inner = finish(run._open_child("c", None))
        inner.call(reserve)
        answer = run.answer("wire", {})
        assert answer.error.law == "pivot_early"
        assert answer.error.unsettled == ("r/c",)
    # Left open it never finished: it went back before the parent committed.
    assert world.standing == []
    assert rt.report("r").state == "committed"
    assert rt.report("r/c").state == "rolled_back"


def test_a_child_that_pivoted_and_backs_off_keeps_its_parent_going_not_spinning() -> None:
    world = World()
    wire, mail, reserve = world.pivot(), world.retriable(), world.compensatable()
    world.script["mail"] = [ValueError("down")]
    rt = runtime(wire, mail, reserve)
    with rt.run("r") as run:
        reserve()
        with run.child("c"):
            wire()
            mail()
    report = rt.report("r")
    assert report.run.goal == "commit"
    assert report.run.owner is None
    time.sleep(1.4)
    assert [one.state for one in rt.recover()] == ["committed"]
    assert world.log == ["reserve:1", "wire:1", "mail:1"]


def test_a_childs_rollback_raises_out_of_its_block_and_the_lease_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "BEATS_PER_LEASE", OFTEN)
    world = World()
    reserve = world.compensatable()
    rt = runtime(reserve)
    with rt.run("r") as run:
        with pytest.raises(RolledBack), run.child("c") as inner:
            reserve()
            inner.rollback("not this way")
        expire(rt._host.store, "r")
        until(lambda: is_kept(rt._host.store, "r"))
        reserve(x="2")
    assert world.standing == ["reserve:2"]
    assert rt.report("r").state == "committed"


def test_a_childs_commit_inside_its_block_keeps_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "BEATS_PER_LEASE", OFTEN)
    world = World()
    reserve = world.compensatable()
    rt = runtime(reserve)
    with rt.run("r") as run:
        with run.child("c") as inner:
            inner.commit()
        expire(rt._host.store, "r")
        until(lambda: is_kept(rt._host.store, "r"))
        reserve()
    assert rt.report("r").state == "committed"


def test_a_body_may_have_a_child_of_its_own_without_waiting_for_itself() -> None:
    world = World()
    inner_tool = world.compensatable("inner")

    @tool
    def outer() -> str:
        with current_run().child("c"):
            return inner_tool()

    @outer.compensate
    def undo() -> None: ...

    rt = runtime(outer, inner_tool, wait=60)
    began = time.monotonic()
    with rt.run("r"):
        assert outer() == "inner:1"
    assert time.monotonic() - began < 30
    assert rt.report("r").state == "committed"


def test_a_child_in_a_thread_is_not_closed_by_a_sibling_that_ends() -> None:
    world = World()
    slow, quick = world.compensatable("slow"), world.compensatable("quick")
    world.script["slow"] = [0.1]
    rt = runtime(slow, quick)
    began = threading.Event()

    def work(run) -> None:
        with run.child("slow"):
            began.set()
            slow()

    with rt.run("r") as run:
        run.submit(work, run)
        began.wait()
        with run.child("quick"):
            quick()
    assert sorted(world.standing) == ["quick:1", "slow:1"]
    assert [child.state for child in rt.report("r").children] == ["committed", "committed"]


@pytest.mark.parametrize("policy, state", [("rollback", "rolled_back"), ("wait", "open")])
def test_an_interrupt_inside_a_child_follows_the_policy_of_the_tree(policy, state) -> None:
    world = World()
    reserve = world.compensatable()
    rt = runtime(reserve)
    with pytest.raises(KeyboardInterrupt), rt.run("r", recover=policy) as run, run.child("c"):
        reserve()
        raise KeyboardInterrupt
    assert rt.report("r").state == state
    assert rt.report("r/c").state == state


def test_a_child_of_a_committed_run_answers_from_the_record() -> None:
    world = World()
    reserve = world.compensatable()
    rt = runtime(reserve)
    with rt.run("r") as run, run.child("c"):
        reserve()
    with rt.run("r") as run:
        with run.child("c"):
            assert reserve() == "reserve:1"
        assert world.log == ["reserve:1"]
        with pytest.raises(RunEnded), run.child("new"):
            pass


def test_a_doubt_inside_a_child_blocks_the_tree_and_resolving_it_unblocks_it() -> None:
    world = World()
    reserve = world.compensatable()
    world.script["reserve"] = [(TimeoutError("lost"),)]
    rt = runtime(reserve)
    with pytest.raises(RunBlocked), rt.run("r") as run:
        with pytest.raises(RunBlocked), run.child("c"), pytest.raises(InDoubt):
            reserve()
    (doubt,) = rt.doubts()
    from amends import Happened

    rt.resolve(doubt.id, Happened("reserve:1"), by="anna", why="seen")
    until(lambda: rt.report("r").state == "committed")


def test_a_child_shares_the_scope_of_keys_with_its_root() -> None:
    world = World()
    reserve = world.compensatable()
    rt = runtime(reserve)
    with rt.run("r") as run:
        reserve()
        with run.child("c"):
            assert reserve() == "reserve:1"
    assert world.log == ["reserve:1"]


def test_a_child_that_cannot_be_taken_back_blocks_its_parent_until_a_person_helped() -> None:
    world = World()
    reserve, hold = world.compensatable("reserve", twin={"retry": ONCE}), world.compensatable("hold")
    world.script["undo reserve"] = [ValueError("no way")]
    rt = runtime(reserve, hold)
    with pytest.raises(RunBlocked) as blocked, rt.run("r") as run:
        hold()
        with pytest.raises(RunBlocked), run.child("c"):
            reserve()
            raise KeyError
    assert "rt.retry(" in blocked.value.causes[0]
    assert rt.report("r").state == "blocked"
    (stuck,) = rt.calls("status:compensation_failed")
    assert rt.retry(stuck.id, by="anna", why="it works again").state == "committed"
    assert rt.report("r/c").state == "rolled_back"
    assert world.standing == ["hold:1"]

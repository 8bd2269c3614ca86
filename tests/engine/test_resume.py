"""A resumed run and its record: which request gets which answer, and what is suspected to be a duplicate."""

from __future__ import annotations

import contextlib

import pytest

from amends import Happened, tool
from amends.errors import Held, InDoubt, Rejected, ToolFailed
from tests.world import World, runtime


def _interrupted(world: World, rt, *calls) -> None:
    with pytest.raises(KeyboardInterrupt), rt.run("r", recover="wait"):
        for call in calls:
            with contextlib.suppress(ValueError):
                call()
        raise KeyboardInterrupt


def test_the_nth_request_after_a_resume_gets_the_nth_generation() -> None:
    world = World()
    pay = world.compensatable("pay", key="x")
    world.script["pay"] = [ValueError("declined")]
    rt = runtime(pay)
    _interrupted(world, rt, pay, pay)
    with rt.run("r"):
        with pytest.raises(ToolFailed) as failed:
            pay()
        assert failed.value.type_name == "ValueError"
        assert pay() == "pay:1"
        assert pay() == "pay:1"
    assert world.log == ["pay:1"]


def test_after_a_resume_other_arguments_than_the_failed_ones_get_the_generation_that_stands() -> None:
    world = World()
    pay = world.compensatable("pay", key="x")
    world.script["pay"] = [ValueError("declined")]
    rt = runtime(pay)
    _interrupted(world, rt, lambda: pay(n=1), lambda: pay(n=2))
    with rt.run("r"):
        assert pay(n=2) == "pay:1"
    assert world.log == ["pay:1"]


def test_after_a_resume_a_generation_that_was_taken_back_is_not_an_answer() -> None:
    world = World()
    pay = world.compensatable("pay", key="x")
    rt = runtime(pay)
    with pytest.raises(KeyboardInterrupt), rt.run("r", recover="wait") as run:
        with pytest.raises(KeyError), run.child("c"):
            pay()
            raise KeyError
        with run.child("c"):
            pay()
        raise KeyboardInterrupt
    with rt.run("r") as run, run.child("c"):
        assert pay() == "pay:1"
    assert world.log == ["pay:1", "undo pay:1", "pay:1"]


def test_after_a_resume_another_runs_generation_is_not_an_answer() -> None:
    world = World()
    pay = world.compensatable("pay", key="x", scope="ledger")
    rt = runtime(pay)
    with pytest.raises(KeyError), rt.run("other"):
        pay()
        raise KeyError
    _interrupted(world, rt, pay)
    with rt.run("r"):
        assert pay() == "pay:1"
    assert world.log == ["pay:1", "undo pay:1", "pay:1"]


def test_a_reworded_request_after_a_resume_is_held_and_both_are_shown() -> None:
    world = World()
    pay = world.compensatable("pay")
    rt = runtime(pay)
    _interrupted(world, rt, lambda: pay(x="order 7"))
    with pytest.raises(Held) as held, rt.run("r", recover="wait"):
        pay(x="Order 7")
    assert held.value.reason == "duplicate"
    assert held.value.call.args["x"] == "Order 7"
    assert held.value.twin.args["x"] == "order 7"
    assert world.log == ["pay:order 7"]


def test_a_suspected_duplicate_decided_as_replay_becomes_an_alias() -> None:
    world = World()
    pay = world.compensatable("pay")
    rt = runtime(pay)
    _interrupted(world, rt, lambda: pay(x="order 7"))
    with pytest.raises(Held) as held, rt.run("r", recover="wait"):
        pay(x="Order 7")
    rt.decide(held.value.call.id, "replay", by="anna", why="the same")
    with rt.run("r") as run:
        assert pay(x="Order 7") == "pay:order 7"
        assert pay(x="Order 7") == "pay:order 7"
    assert run.state == "committed"
    assert world.log == ["pay:order 7"]


def test_a_suspected_duplicate_decided_as_run_is_done() -> None:
    world = World()
    pay = world.compensatable("pay")
    rt = runtime(pay)
    _interrupted(world, rt, lambda: pay(x="order 7"))
    with pytest.raises(Held) as held, rt.run("r", recover="wait"):
        pay(x="order 8")
    rt.decide(held.value.call.id, "run", by="anna", why="another one")
    with rt.run("r") as run:
        assert pay(x="order 8") == "pay:order 8"
    assert run.state == "committed"
    assert world.log == ["pay:order 7", "pay:order 8"]


def test_a_suspected_duplicate_decided_as_refused_stays_refused() -> None:
    world = World()
    pay = world.compensatable("pay")
    rt = runtime(pay)
    _interrupted(world, rt, lambda: pay(x="order 7"))
    with pytest.raises(Held) as held, rt.run("r", recover="wait"):
        pay(x="order 8")
    rt.decide(held.value.call.id, "refuse", by="anna", why="wrong order")
    with rt.run("r") as run:
        with pytest.raises(Rejected) as no:
            pay(x="order 8")
    assert (no.value.by, no.value.reason) == ("anna", "wrong order")
    assert run.state == "committed"


def test_a_request_repeated_word_for_word_is_no_suspect_and_clears_the_suspicion() -> None:
    world = World()
    pay = world.compensatable("pay")
    rt = runtime(pay)
    _interrupted(world, rt, lambda: pay(x="7"))
    with rt.run("r"):
        assert pay(x="7") == "pay:7"
        assert pay(x="8") == "pay:8"
    assert world.log == ["pay:7", "pay:8"]


def test_history_counts_everything_as_asked_for() -> None:
    world = World()
    pay = world.compensatable("pay")
    rt = runtime(pay)
    _interrupted(world, rt, lambda: pay(x="7"))
    with rt.run("r", history=True):
        assert pay(x="8") == "pay:8"
        assert pay(x="7") == "pay:7"
    assert world.log == ["pay:7", "pay:8"]


def test_a_declared_identity_is_exact_after_a_resume() -> None:
    world = World()
    pay = world.compensatable("pay", key="x")
    rt = runtime(pay)
    _interrupted(world, rt, lambda: pay(x="7"))
    with rt.run("r"):
        assert pay(x="8") == "pay:8"


def test_resolve_on_a_live_run_answers_the_next_request() -> None:
    world = World()
    pay = world.compensatable("pay")
    world.script["pay"] = [(TimeoutError(),)]
    rt = runtime(pay)
    with rt.run("r"):
        with pytest.raises(InDoubt) as doubt:
            pay()
        rt.resolve(doubt.value.call.id, Happened("seen"), by="anna", why="looked")
        assert pay() == "seen"
    assert rt.report("r").state == "committed"


def test_after_a_resume_a_committed_child_reads_what_it_had_read_itself_in_its_order() -> None:
    """What it did with each reading is asked for again with that reading, and is found."""
    seen = [0]

    @tool(kind="read")
    def look() -> int:
        seen[0] += 1
        return seen[0]

    world = World()
    pay = world.compensatable("pay", key="n")
    rt = runtime(pay, look)
    told: list[tuple[int, int, int]] = []

    def program() -> None:
        with rt.run("r", recover="wait") as run:
            with run.child("c"):
                first = look()
                pay(n=first)
                second = look()
                pay(n=second)
            told.append((first, second, look()))
            if len(told) < 3:
                raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            program()
    program()
    assert told == [(1, 2, 3), (1, 2, 4), (1, 2, 5)]
    assert len(world.log) == 2
    assert rt.report("r").state == "committed"

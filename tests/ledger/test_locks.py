"""Runs that name the same thing: one works on it at a time, until it has ended."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from typing import Any

import pytest

from amends import AsyncRuntime, Lock, tool
from amends.errors import BadDeclaration, Deadlocked, Locked, Refused, RolledBack, RunBlocked
from tests.world import World, die, runtime, states, together, twin_of, until, wake


def on(*names: str) -> Any:
    return lambda call: list(names)


def by_x(call: Any) -> list[str]:
    return [f"item-{call.args['x']}"]


@pytest.fixture
def world() -> World:
    return World()


# ---- holding and waiting ------------------------------------------------------------------


def test_another_run_waits_until_the_first_has_ended(world: World) -> None:
    reserve = world.compensatable(locks=by_x)
    rt = runtime(reserve, wait=10.0)
    first = rt.open("first")
    first.call(reserve, x="1")
    order: list[str] = []

    def second() -> None:
        with rt.run("second"):
            reserve(x="1")
            order.append("second")

    waiter = threading.Thread(target=second)
    waiter.start()
    until(lambda: [lock.waiting for lock in rt.locks()] == [("second",)])
    order.append("first")
    first.commit()
    waiter.join(10)
    assert order == ["first", "second"]
    assert list(rt.locks()) == []


def test_other_names_and_other_tenants_do_not_wait(world: World) -> None:
    reserve = world.compensatable(locks=by_x)
    rt = runtime(reserve, wait=0.0)
    rt.open("first").call(reserve, x="1")
    rt.open("second").call(reserve, x="2")
    rt.scoped(tenant="other").open("first").call(reserve, x="1")
    assert [(lock.name, lock.run_id) for lock in rt.locks()] == [("item-1", "first"), ("item-2", "second")]
    assert [lock.name for lock in rt.scoped(tenant="other").locks()] == ["item-1"]


def test_who_loses_patience_is_told_who_has_it_and_since_when(world: World) -> None:
    reserve = world.compensatable(locks=by_x)
    rt = runtime(reserve, wait=0.05)
    rt.open("first").call(reserve, x="1")
    second = rt.open("second")
    with pytest.raises(Locked) as raised:
        second.call(reserve, x="1")
    no = raised.value
    assert (no.tool, no.lock, no.holder, no.run_id, no.code) == ("reserve", "item-1", "first", "second", "locked")
    [lock] = rt.locks()
    assert (no.since, no.waited >= 0.05) == (lock.since, True)
    assert "run first" in str(no)
    assert "item-1" in no.for_model()
    assert isinstance(no, Refused)
    assert rt.report("second").calls == (), "no key is taken, no call made"
    assert second.call(reserve, x="2") == "reserve:2", "a refused call is not a failed run"


def test_a_tool_may_say_that_it_does_not_wait(world: World) -> None:
    reserve = world.compensatable(locks=by_x, on_lock="raise")
    rt = runtime(reserve, wait=30.0)
    rt.open("first").call(reserve, x="1")
    began = time.monotonic()
    with pytest.raises(Locked), rt.run("second"):
        reserve(x="1")
    assert time.monotonic() - began < 25
    assert rt.report("second").state == "rolled_back"
    assert "waits" not in {event.what for event in rt.events("second")}


def test_a_model_is_told_in_words_it_can_act_on(world: World) -> None:
    reserve = world.compensatable(locks=by_x)
    rt = runtime(reserve, wait=0.0)
    rt.open("first").call(reserve, x="1")
    answer = rt.open("second").answer("reserve", {"x": "1"})
    assert (answer.status, answer.is_error) == ("refused", True)
    assert answer.text == (
        "Not run: another task is working on item-1. "
        "Go on with other work and call reserve again later with the same arguments, or tell the user."
    )


def test_a_run_that_waits_for_a_person_keeps_its_locks_and_shows_their_age(world: World) -> None:
    reserve, pay = world.compensatable(locks=by_x), world.compensatable("pay")
    rt = runtime(reserve, pay)
    world.script["undo pay"] = [OSError("down")] * 9
    with pytest.raises(RunBlocked), rt.run("first"):
        reserve(x="1")
        pay()
        raise ValueError("on purpose")
    report = rt.report("first")
    assert report.state == "blocked"
    [lock] = rt.locks()
    assert isinstance(lock, Lock)
    assert (lock.name, lock.run_state, lock.tool, lock.held_s > 0) == ("item-1", "blocked", "reserve", True)
    assert [one.name for one in report.locks] == ["item-1"]
    assert "holds item-1 for" in str(report)
    assert report.to_dict()["locks"][0]["name"] == "item-1"
    rt.abandon("first", by="anna", why="looked")
    assert list(rt.locks()) == []


def test_a_compensation_needs_no_lock_and_frees_them_all(world: World) -> None:
    reserve = world.compensatable(locks=by_x)
    rt = runtime(reserve, wait=5.0)
    with pytest.raises(ValueError), rt.run("first"):
        reserve(x="1")
        reserve(x="2")
        raise ValueError("on purpose")
    assert world.standing == []
    with rt.run("second"):
        reserve(x="1")
        reserve(x="2")
    assert world.standing == ["reserve:1", "reserve:2"]


def test_children_share_what_their_root_has(world: World) -> None:
    reserve = world.compensatable(locks=on("x"))
    rt = runtime(reserve, wait=0.0)
    with rt.run("first") as run:
        reserve(x="1")
        with run.child("inner"):
            reserve(x="2")
        assert [(lock.name, lock.run_id) for lock in rt.locks()] == [("x", "first")]


def test_a_read_may_want_a_lock_and_a_replay_takes_none(world: World) -> None:
    look, reserve = world.read(locks=on("x")), world.compensatable(locks=on("x"))
    rt = runtime(look, reserve, wait=0.0)
    with rt.run("first"):
        look(x="1")
        [end] = together([lambda: rt.open("second").call(reserve, x="1")])  # its own thread: not inside this run
        assert isinstance(end, Locked)
    with rt.run("first"):
        assert list(rt.locks()) == [], "a closed run answers from its record"


def test_a_call_by_hand_takes_its_locks(world: World) -> None:
    reserve = world.compensatable(locks=by_x)
    rt = runtime(reserve, wait=0.0)
    first, second = rt.open("first"), rt.open("second")
    with first.begin("reserve", {"x": "1"}) as attempt:
        attempt.succeed("done")
    with pytest.raises(Locked):
        second.begin("reserve", {"x": "1"}).__enter__()


def test_locks_of_a_dead_process_are_freed_by_its_recovery(world: World) -> None:
    reserve = world.compensatable(locks=by_x)
    rt = runtime(reserve)
    first = rt.open("first")
    first.call(reserve, x="1")
    die(first)
    other = twin_of(rt._host.store, reserve)
    assert [lock.run_id for lock in other.locks()] == ["first"]
    other.recover()
    assert other.report("first").state == "rolled_back"
    with other.run("second"):
        reserve(x="1")


# ---- deadlocks ----------------------------------------------------------------------------


def test_a_deadlock_ends_with_the_younger_run_taken_back_and_told_why(world: World) -> None:
    reserve = world.compensatable(locks=by_x)
    rt = runtime(reserve, wait=60.0)
    gate = threading.Barrier(2)

    def task(id: str, mine: str, other: str) -> str:
        with rt.run(id) as run:
            reserve(x=mine)
            gate.wait(30)
            reserve(x=other)
        return run.id

    rt.open("older").commit()
    began = time.monotonic()
    ends = together([lambda: task("a", "1", "2"), lambda: task("b", "2", "1")])
    assert time.monotonic() - began < 50, "nobody waits for his patience to end"
    [victim] = [end for end in ends if isinstance(end, Deadlocked)]
    [winner] = [end for end in ends if isinstance(end, str)]
    assert {victim.run_id, winner} == {"a", "b"}
    for word in ("item-1", "item-2", "run a", "run b", "deadlock"):
        assert word in str(victim)
    assert "started again" in victim.for_model()
    assert rt.report(victim.run_id).state == "rolled_back"
    assert rt.report(winner).state == "committed"
    assert list(rt.locks()) == []
    assert [event.by for event in rt.events(victim.run_id) if event.what == "goal"] == ["deadlock"]
    with rt.run(victim.run_id) as again:
        reserve(x="1")
    assert again.generation == 2


def test_a_victim_that_swallows_the_news_is_taken_back_all_the_same(world: World) -> None:
    reserve = world.compensatable(locks=by_x)
    rt = runtime(reserve, wait=20.0)
    older = rt.open("older")
    older.call(reserve, x="1")
    taken = threading.Event()

    def younger() -> None:
        with rt.run("younger"):
            reserve(x="2")
            taken.set()
            with suppress(Deadlocked):
                reserve(x="1")

    def go_on() -> None:
        assert taken.wait(30)
        older.call(reserve, x="2")
        older.commit()

    ends = together([younger, go_on])
    assert isinstance(ends[0], RolledBack)
    assert "deadlock" in str(ends[0])
    assert ends[1] is None
    assert world.standing == ["reserve:1", "reserve:2"]


# ---- staged -------------------------------------------------------------------------------


def test_what_is_staged_takes_its_locks_at_commit_and_the_commit_waits(world: World) -> None:
    reserve, mail = world.compensatable(locks=on("x")), world.retriable(locks=on("x"))
    rt = runtime(reserve, mail, wait=0.05)
    first = rt.open("first")
    first.call(reserve, x="1")
    with pytest.raises(Locked) as raised, rt.run("second"):
        mail(x="2")
    assert (raised.value.tool, raised.value.holder) == ("mail", "first")
    assert "commits when the lock is free" in raised.value.hint
    report = rt.report("second")
    assert (report.state, report.run.goal) == ("open", "commit"), "its block has ended: only forward"
    assert "mail:2" not in world.log
    first.commit()
    with rt.run("second"):
        pass
    assert rt.report("second").state == "committed"
    assert world.standing == ["reserve:1", "mail:2"]


def test_past_the_pivot_a_retriable_is_accepted_and_sent_when_the_lock_is_free(world: World) -> None:
    reserve, wire, mail = world.compensatable(locks=on("x")), world.pivot(), world.retriable(locks=on("x"))
    rt = runtime(reserve, wire, mail, wait=0.02)
    first = rt.open("first", wait=30.0)
    first.call(reserve, x="1")
    with rt.run("second") as run:
        wire(x="2")
        staged = mail(x="2")
        assert not staged.done
        assert (staged.call.state, staged.call.reason) == ("held", "lock")
    assert rt.report("second").state == "pivoted"
    assert states(rt, "second") == {"wire": "succeeded", "mail": "held"}
    assert "waits for a lock" in str(rt.report("second"))
    first.commit()
    wake(rt._host.store)
    assert rt.recover()
    assert rt.report("second").state == "committed"
    assert (run.id, staged.done) == ("second", True)


# ---- declaring ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given, words",
    [
        ("item-1", "returned str"),
        (None, "returned NoneType"),
        ([""], "returned ''"),
        ([7], "returned '7'"),
        (["x" * 201], "1 to 200"),
        (["a\nb"], "printable"),
        ([f"x{n}" for n in range(33)], "more than 32"),
    ],
)
def test_names_that_make_no_sense_are_refused_before_anything_is_recorded(world: World, given: Any, words: str) -> None:
    reserve = world.compensatable(locks=lambda call: given)
    rt = runtime(reserve)
    with pytest.raises(BadDeclaration, match=words):
        rt.open("first").call(reserve)
    assert (rt.report("first").calls, world.log) == ((), [])


def test_the_same_name_twice_is_one_lock_and_none_is_none(world: World) -> None:
    twice, none = world.compensatable("twice", locks=on("x", "x")), world.compensatable("none", locks=on())
    rt = runtime(twice, none)
    run = rt.open("first")
    run.call(none)
    assert list(rt.locks()) == []
    run.call(twice)
    assert [lock.name for lock in rt.locks()] == ["x"]


def test_on_lock_is_checked_where_the_runtime_is_built(world: World) -> None:
    with pytest.raises(BadDeclaration, match='on_lock must be "wait" or "raise"'):
        runtime(world.compensatable(locks=on("x"), on_lock="hope"))
    with pytest.raises(BadDeclaration, match="but no locks"):
        runtime(world.compensatable(on_lock="raise"))


def test_locks_are_kept_where_the_law_is_only_advice(world: World) -> None:
    reserve = world.compensatable(locks=on("x"))
    rt = runtime(reserve, order="advise", wait=0.0)
    rt.open("first").call(reserve, x="1")
    with pytest.raises(Locked):
        rt.open("second").call(reserve, x="2")


# ---- async --------------------------------------------------------------------------------


def test_the_same_on_an_event_loop() -> None:
    log: list[str] = []

    @tool(locks=by_x)
    async def take(x: str) -> str:
        log.append(x)
        return x

    @take.compensate
    async def put(x: str) -> None:
        log.append(f"undo {x}")

    async def main() -> list[Any]:
        async with AsyncRuntime("memory:", tools=[take], wait=20.0) as rt:
            both = asyncio.Barrier(2)

            async def task(id: str, mine: str, other: str) -> str:
                async with rt.run(id):
                    await take(x=mine)
                    await both.wait()
                    await take(x=other)
                return id

            ends = await asyncio.gather(task("a", "1", "2"), task("b", "2", "1"), return_exceptions=True)
            assert [lock async for lock in rt.locks()] == []
            return list(ends)

    ends = asyncio.run(asyncio.wait_for(main(), 15))
    assert {type(end) for end in ends} == {str, Deadlocked}
    assert len([one for one in log if one.startswith("undo")]) == 1

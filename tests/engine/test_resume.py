"""A resumed run and its record: which request gets which answer, and what is suspected to be a duplicate."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from amends import AsyncRuntime, Happened, tool
from amends.errors import Held, InDoubt, Rejected, ToolFailed, UsageError
from amends.stores.memory import MemoryStore
from tests.world import World, runtime, wake


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
    assert told == [(1, 2, 3)] * 3
    assert len(world.log) == 2
    assert rt.report("r").state == "committed"


# ---- Reads of a resumed run


def _room(log: list[str], free: list[int], **options):
    """Return a read that sees what the other tool has changed, and that tool."""

    @tool(kind="read", **options)
    def free_rooms() -> int:
        log.append("read")
        return free[0]

    @tool(key="guest")
    def book_room(guest: str) -> str:
        log.append(f"book {guest}")
        free[0] -= 1
        return f"room of {guest}"

    @book_room.compensate
    def cancel(guest: str) -> None:
        free[0] += 1

    return free_rooms, book_room


def _resumed(rt, agent, **options) -> Any:
    """Run the agent, interrupt it at its end, and run it again in the resumed run."""
    with pytest.raises(KeyboardInterrupt), rt.run("r", recover="resume", **options) as run:
        agent(run)
        raise KeyboardInterrupt
    with rt.run("r", recover="resume", **options) as run:
        return agent(run)


def test_what_was_read_before_the_interruption_is_answered_from_the_record() -> None:
    log: list[str] = []
    free_rooms, book_room = _room(log, [1])
    rt = runtime(free_rooms, book_room)

    def agent(run):
        if free_rooms() == 0:  # it would see its own booking, and plan differently
            return "sold out"
        return book_room(guest="ada")

    assert _resumed(rt, agent) == "room of ada"
    assert log == ["read", "book ada"]
    assert rt.report("r").state == "committed"


def test_reads_are_answered_in_order_and_run_again_from_the_first_new_call_on() -> None:
    log: list[str] = []
    free_rooms, book_room = _room(log, [5])
    rt = runtime(free_rooms, book_room)
    seen: list[list[int]] = []

    def agent(run):
        seen.append([])
        seen[-1].append(free_rooms())
        book_room(guest="ada")
        seen[-1].append(free_rooms())
        if run.resumed:
            book_room(guest="bob")  # the record does not have it
            seen[-1].append(free_rooms())

    _resumed(rt, agent)
    assert seen == [[5, 4], [5, 4, 3]]
    assert log == ["read", "book ada", "read", "book bob", "read"]


def test_a_new_read_ends_the_answers_from_the_record_too() -> None:
    world = World()
    look, other = world.read("look"), world.read("other")
    rt = runtime(look, other)
    seen: list[list[int]] = []

    def agent(run):
        seen.append([look(), *([other()] if run.resumed else []), look()])

    _resumed(rt, agent)
    assert seen == [[1, 2], [1, 3, 4]]


def test_who_wants_the_other_says_so() -> None:
    log: list[str] = []
    free_rooms, book_room = _room(log, [1])
    rt = runtime(free_rooms, book_room)

    def agent(run):
        return "sold out" if free_rooms() == 0 else book_room(guest="ada")

    assert _resumed(rt, agent, reads="again") == "sold out"
    assert log == ["read", "book ada", "read"]
    with pytest.raises(UsageError, match="reads is 'never'"):
        rt.open("other", reads="never")


def test_with_history_the_model_asks_anew() -> None:
    world = World()
    look = world.read("look")
    rt = runtime(look)
    with pytest.raises(KeyboardInterrupt), rt.run("r", recover="wait"):
        look()
        raise KeyboardInterrupt
    with rt.run("r", history=True):
        assert look() == 2


def test_a_read_that_failed_fails_again_and_one_that_was_lost_runs() -> None:
    world = World()
    look = world.read("look", key="x")
    world.script["look"] = [ValueError("no such room"), None, KeyboardInterrupt()]
    rt = runtime(look)
    seen: list[Any] = []

    def agent(run):
        for _ in range(3):
            try:
                seen.append(look())
            except Exception as error:
                seen.append(type(error).__name__)

    with pytest.raises(KeyboardInterrupt), rt.run("r", recover="wait") as run:
        agent(run)
    with rt.run("r") as run:
        agent(run)
    assert seen == ["ValueError", 1, "ToolFailed", 1, 2]


def test_a_worker_and_a_child_and_an_async_run_do_the_same() -> None:
    log: list[str] = []
    free_rooms, book_room = _room(log, [1])

    def agent(run):
        with run.child("trip"):
            left = free_rooms()
            done = "sold out" if left == 0 else book_room(guest="ada")
        if not run.resumed:
            raise KeyboardInterrupt
        return done

    store = MemoryStore()
    rt = runtime(free_rooms, book_room, store=store, agents={"clerk": agent})
    with pytest.raises(KeyboardInterrupt):
        rt.start("clerk", id="r")
    wake(store)
    (report,) = rt.recover()
    assert (report.state, report.output) == ("committed", "room of ada")

    async def main() -> list[Any]:
        rt = AsyncRuntime("memory:", tools=[free_rooms, book_room])
        answers = []
        for _ in range(2):
            try:
                async with rt.run("s", recover="resume") as run:
                    answers.append(await run.call(free_rooms))
                    await run.call(book_room, guest="bob")
                    if not run.resumed:
                        raise asyncio.CancelledError
            except asyncio.CancelledError:
                continue
        return answers

    assert asyncio.run(main()) == [0, 0]


def test_a_resumed_run_with_reads_from_the_record_can_be_replayed() -> None:
    log: list[str] = []
    free_rooms, book_room = _room(log, [1])
    rt = runtime(free_rooms, book_room)

    def agent(run):
        return "sold out" if free_rooms() == 0 else book_room(guest="ada")

    _resumed(rt, agent)
    before = list(log)
    assert rt.replay("r", lambda: agent(None)) == "room of ada"
    assert log == before

"""Opening runs: resuming, waiting for another owner, conflicts, ended runs and generations."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel

from amends import RolledBack, UsageError, current_call, tool
from amends.encoding.dataclass import changed
from amends.errors import Busy, NotStorable, RunConflict, RunEnded, ToolFailed
from tests.world import World, die, runtime, states, until


class Order(BaseModel):
    id: str
    cents: int = 0


@dataclass
class Plain:
    id: str


def test_an_id_is_made_when_none_is_given() -> None:
    rt = runtime()
    with rt.run() as one:
        pass
    with rt.run() as two:
        pass
    assert one.id != two.id
    assert one.generation == 1
    assert not one.resumed


@pytest.mark.parametrize("bad", ["", "x" * 513])
def test_an_id_that_cannot_be_one_is_refused_before_anything_is_written(bad) -> None:
    rt = runtime()
    with pytest.raises(UsageError), rt.run(bad):
        pass
    assert list(rt.runs()) == []


@pytest.mark.parametrize(
    "option",
    [{"recover": "retry"}, {"if_rolled_back": "no"}, {"wait": -1}, {"deadline": "soon"}, {"deadline": float("inf")}],
)
def test_an_option_that_makes_no_sense_is_refused_before_anything_is_written(option) -> None:
    rt = runtime()
    with pytest.raises(UsageError), rt.run("r", **option):
        pass
    assert list(rt.runs()) == []


def test_a_known_id_resumes_the_run() -> None:
    world = World()
    reserve = world.compensatable(key="x")
    rt = runtime(reserve)
    with pytest.raises(KeyboardInterrupt), rt.run("r", recover="wait", input={"a": 1}):
        reserve()
        raise KeyboardInterrupt
    with rt.run("r") as run:
        assert run.resumed
        assert run.input == {"a": 1}
        assert reserve() == "reserve:1"
    assert world.log == ["reserve:1"]
    assert run.state == "committed"


def test_a_run_that_is_open_in_another_thread_is_busy() -> None:
    rt = runtime()
    with rt.run("r"):
        caught: list[BaseException] = []

        def other() -> None:
            with pytest.raises(Busy) as busy, rt.run("r", wait=0):
                pass
            caught.append(busy.value)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    (busy,) = caught
    assert isinstance(busy, Busy)
    assert busy.run_id == "r"
    assert busy.retry_after > 0


def test_waiting_for_a_busy_run_ends_when_the_other_has_finished() -> None:
    world = World()
    reserve = world.compensatable()
    rt = runtime(reserve)
    answers: list[str] = []
    entered = threading.Event()

    def other() -> None:
        entered.set()
        with rt.run("r", wait=30):
            answers.append(reserve())

    thread = threading.Thread(target=other)
    with rt.run("r"):
        thread.start()
        entered.wait()
        reserve()
        time.sleep(0.02)
    thread.join()
    assert answers == ["reserve:1"]
    assert world.log == ["reserve:1"]


def test_another_input_for_the_same_id_is_a_conflict_that_shows_both() -> None:
    rt = runtime()
    with rt.run("r", input={"a": 1, "b": 2}):
        pass
    with pytest.raises(RunConflict) as conflict, rt.run("r", input={"a": 1, "b": 3}):
        pass
    assert conflict.value.recorded == {"a": 1, "b": 2}
    assert conflict.value.given == {"a": 1, "b": 3}


@pytest.mark.parametrize(
    "first, second",
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (Order(id="1", cents=5), Order(cents=5, id="1")),
        (Plain("1"), Plain("1")),
        (1, 1.0),
        ([1, 2], (1, 2)),
    ],
)
def test_the_same_input_in_other_words_is_no_conflict(first, second) -> None:
    rt = runtime()
    with rt.run("r", input=first):
        pass
    with rt.run("r", input=second) as run:
        assert run.resumed


def test_an_input_that_cannot_be_written_down_opens_nothing() -> None:
    rt = runtime()
    with pytest.raises(NotStorable), rt.run("r", input=object()):
        pass
    assert list(rt.runs()) == []


def test_an_output_that_cannot_be_written_down_is_the_runs_failure() -> None:
    world = World()
    reserve = world.compensatable()
    rt = runtime(reserve)
    with pytest.raises(NotStorable), rt.run("r") as run:
        reserve()
        run.output = object()
    assert rt.report("r").state == "rolled_back"
    assert world.standing == []


def test_an_output_that_cannot_be_written_down_does_not_hide_an_exception() -> None:
    rt = runtime()
    with pytest.raises(KeyError), rt.run("r") as run:
        run.output = object()
        raise KeyError
    assert rt.report("r").state == "rolled_back"


def test_a_run_that_failed_opens_again_as_its_next_generation_with_its_own_keys() -> None:
    keys: list[str] = []

    @tool
    def pay() -> str:
        keys.append(current_call().key)
        return "p"

    @pay.compensate
    def refund() -> None: ...

    rt = runtime(pay)
    with pytest.raises(KeyError), rt.run("r") as run:
        pay()
        raise KeyError
    with rt.run("r") as again:
        pay()
    assert (run.generation, again.generation) == (1, 2)
    assert not again.resumed
    assert len(set(keys)) == 2
    assert rt.report("r").run.generation == 2


def test_if_rolled_back_raise_refuses_the_next_generation() -> None:
    rt = runtime()
    with pytest.raises(KeyError), rt.run("r"):
        raise KeyError
    with pytest.raises(RunEnded) as ended, rt.run("r", if_rolled_back="raise"):
        pass
    assert ended.value.state == "rolled_back"


def test_a_run_that_a_person_took_back_is_not_opened_again() -> None:
    world = World()
    reserve = world.compensatable()
    rt = runtime(reserve)
    with pytest.raises(RolledBack), rt.run("r"):
        reserve()
        assert rt.rollback("r", by="anna", why="wrong order").state == "open"
    assert world.standing == []
    with pytest.raises(RunEnded) as ended, rt.run("r"):
        pass
    assert ended.value.state == "rolled_back"


def test_a_persons_rollback_closes_admission_of_a_live_run() -> None:
    world = World()
    reserve, hold = world.compensatable("reserve"), world.compensatable("hold")
    rt = runtime(reserve, hold)
    with pytest.raises(RolledBack), rt.run("r"):
        reserve()
        rt.rollback("r", by="anna", why="wrong order")
        with pytest.raises(RunEnded):
            hold()
    assert world.log == ["reserve:1", "undo reserve:1"]


def test_a_persons_rollback_of_a_run_nobody_owns_is_done_at_once() -> None:
    world = World()
    reserve = world.compensatable()
    rt = runtime(reserve)
    with pytest.raises(KeyboardInterrupt), rt.run("r", recover="wait"):
        reserve()
        raise KeyboardInterrupt
    assert rt.rollback("r", by="anna", why="no").state == "rolled_back"
    assert world.standing == []


def test_a_rollback_of_a_pivoted_or_committed_run_is_refused() -> None:
    world = World()
    wire = world.pivot()
    rt = runtime(wire)
    with rt.run("r"):
        wire()
        with pytest.raises(RunEnded):
            rt.rollback("r", by="anna", why="no")
    with pytest.raises(RunEnded):
        rt.rollback("r", by="anna", why="no")
    assert rt.report("r").state == "committed"


def test_an_abandoned_run_is_not_opened_again() -> None:
    world = World()
    reserve = world.compensatable()
    rt = runtime(reserve)
    with pytest.raises(KeyboardInterrupt), rt.run("r", recover="wait"):
        reserve()
        raise KeyboardInterrupt
    report = rt.abandon("r", by="anna", why="leave it")
    assert report.state == "abandoned"
    assert [left.call.tool for left in report.residue] == ["reserve"]
    with pytest.raises(RunEnded) as ended, rt.run("r"):
        pass
    assert ended.value.state == "abandoned"


def test_a_block_whose_run_was_abandoned_meanwhile_does_not_end_as_if_it_had_committed() -> None:
    world = World()
    reserve = world.compensatable()
    rt = runtime(reserve)
    with pytest.raises(RunEnded) as ended, rt.run("r"):
        reserve()
        rt.abandon("r", by="anna", why="leave it")
    assert ended.value.state == "abandoned"


def test_a_committed_run_answers_from_its_record_and_refuses_what_is_new() -> None:
    world = World()
    reserve, look, mail = world.compensatable(), world.read(), world.retriable()
    rt = runtime(reserve, look, mail)
    with rt.run("r") as run:
        seen = look()
        reserve()
        mail()
        run.output = {"done": True}
    before = list(world.log)
    with rt.run("r") as again:
        assert again.resumed
        assert again.output == {"done": True}
        assert look() == seen
        assert reserve() == "reserve:1"
        assert mail().result == "mail:1"
        with pytest.raises(RunEnded) as ended:
            reserve(x="2")
        with pytest.raises(RunEnded):
            look(x="2")
    assert ended.value.state == "committed"
    assert world.log == before


def test_a_committed_run_answers_a_recorded_failure_as_a_failure() -> None:
    world = World()
    reserve = world.compensatable()
    world.script["reserve"] = [ValueError("sold out")]
    rt = runtime(reserve)
    with rt.run("r"), pytest.raises(ValueError):
        reserve()
    with rt.run("r"), pytest.raises(ToolFailed) as failed:
        reserve()
    assert failed.value.message == "sold out"
    assert world.log == []


def test_an_exception_in_a_committed_run_changes_nothing_and_comes_out() -> None:
    world = World()
    reserve = world.compensatable()
    rt = runtime(reserve)
    with rt.run("r"):
        reserve()
    with pytest.raises(KeyError), rt.run("r"):
        raise KeyError
    assert rt.report("r").state == "committed"
    assert world.standing == ["reserve:1"]


def test_a_committed_run_whose_mail_still_backs_off_answers_from_its_record() -> None:
    world = World()
    reserve, mail = world.compensatable(), world.retriable()
    world.script["mail"] = [ValueError("down")]
    rt = runtime(reserve, mail)
    with rt.run("r"):
        reserve()
        mail()
    assert rt.report("r").state == "pivoted"
    with rt.run("r") as again:
        assert reserve() == "reserve:1"
        assert not mail().done
        with pytest.raises(RunEnded):
            reserve(x="2")
    assert again.state == "pivoted"
    assert states(rt, "r") == {"reserve": "succeeded", "mail": "backing_off"}


def test_a_run_whose_owner_died_is_taken_over_when_its_lease_has_run_out() -> None:
    world = World()
    reserve = world.compensatable(key="x")
    rt = runtime(reserve)
    run = rt.open("r", recover="resume")
    run.call(reserve)
    with pytest.raises(Busy):
        rt.open("r", wait=0)
    die(run)
    again = rt.open("r")
    assert again.resumed
    assert again.call(reserve) == "reserve:1"
    again.commit()
    assert world.log == ["reserve:1"]


def _pass_deadline(rt: Any) -> None:
    """Let the deadline of the only run pass."""
    ((uid, row),) = rt._host.store.runs.items()
    rt._host.store.runs[uid] = changed(row, {"deadline_at": row.deadline_at - 120})


def test_a_deadline_that_passed_takes_the_run_back() -> None:
    world = World()
    reserve, hold = world.compensatable("reserve"), world.compensatable("hold")
    rt = runtime(reserve, hold)
    with pytest.raises(RolledBack), rt.run("r", deadline=60):
        reserve()
        _pass_deadline(rt)
        with pytest.raises(RunEnded):
            hold()
    assert world.log == ["reserve:1", "undo reserve:1"]
    assert rt.report("r").run.deadline_at is not None


def test_a_deadline_is_found_at_commit_too() -> None:
    world = World()
    reserve = world.compensatable()
    rt = runtime(reserve)
    with pytest.raises(RolledBack), rt.run("r", deadline=60):
        reserve()
        _pass_deadline(rt)
    assert world.standing == []


def test_a_deadline_does_nothing_after_the_pivot() -> None:
    world = World()
    wire, mail = world.pivot(), world.retriable()
    rt = runtime(wire, mail)
    with rt.run("r", deadline=60) as run:
        wire()
        _pass_deadline(rt)
        mail()
    assert run.state == "committed"
    until(lambda: world.log == ["wire:1", "mail:1"])

"""What amends says of a run with very many calls: it names a few, says how many more there are, and where all are listed."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from amends import Happened, Retry, RolledBack, RunBlocked, Runtime, Tool, UsageError, tool
from amends.errors import (
    CAUSES_MAX,
    NAMED_MAX,
    InDoubt,
    OutOfOrder,
    how_many,
    listed,
    some,
    some_in_words,
)
from amends.stores.memory import MemoryStore
from amends.worker import work
from tests.world import ONCE, World, die, runtime

MANY = 300
CHARS_MAX = 4_000
"""What a text about a run of any size must not exceed here."""
MORE = f"and {MANY - NAMED_MAX} more"
SOON = Retry(attempts=50, delay=60, factor=1.0, jitter=0.0)


@tool
def book(n: int) -> str:
    raise TimeoutError("the answer was lost")


@book.compensate
def unbook(n: int) -> None: ...


@tool
def rent(n: int) -> str:
    return f"car {n}"


@rent.compensate(retry=ONCE)
def return_car(n: int) -> None:
    raise ValueError("the desk is closed")


@tool(kind="retriable", idempotent=True)
def mail(n: int) -> str:
    return f"sent {n}"


def doubtful(run: Any, count: int = MANY) -> None:
    """Make calls whose answers are lost, as a program does that goes on."""
    for n in range(count):
        with pytest.raises(InDoubt):
            run.call(book, n=n)


def many_that_failed(run: Any) -> None:
    """Make calls that cannot be taken back, and then roll back."""
    for n in range(MANY):
        run.call(rent, n=n)
    run.rollback("changed my mind")


def one_that_failed_and_many_doubts(run: Any) -> None:
    run.call(rent, n=0)
    doubtful(run)
    run.rollback("changed my mind")


def blocked(rt: Runtime, program: Callable[[Any], object], id: str = "r") -> RunBlocked:
    with pytest.raises(RunBlocked) as raised, rt.run(id) as run:
        program(run)
    return raised.value


def texts(error: RunBlocked) -> list[str]:
    """Return all that a person, a log or a model reads of an error."""
    return [str(error), error.hint, error.for_model(), *error.__notes__]


# ---- The error of a blocked run


def test_a_run_with_many_doubts_names_a_few_and_says_how_many_more_there_are_and_where() -> None:
    rt = Runtime(tools=[book], store=MemoryStore())
    error = blocked(rt, doubtful)
    assert all(len(text) <= CHARS_MAX for text in texts(error))
    assert error.hint.count("rt.resolve(") == NAMED_MAX
    assert error.hint.endswith(f"; {MORE}: rt.report('r') lists them all")
    assert f"hint: {error.hint}" in error.__notes__


def test_the_attributes_of_the_error_and_the_report_have_all_calls() -> None:
    rt = Runtime(tools=[book], store=MemoryStore())
    error = blocked(rt, doubtful)
    assert (len(error.doubts), len(error.causes), error.residue) == (MANY, MANY, ())
    assert {call.id for call in rt.report("r").doubts} == {call.id for call in error.doubts}


def test_as_many_causes_as_are_named_are_all_named_as_ever() -> None:
    rt = Runtime(tools=[book], store=MemoryStore())
    error = blocked(rt, lambda run: doubtful(run, NAMED_MAX))
    assert error.hint == "; ".join(error.causes)
    assert rt.report("r").run.causes == error.causes


def test_a_rollback_that_leaves_many_calls_standing_says_so_in_few_words() -> None:
    rt = Runtime(tools=[rent], store=MemoryStore())
    error = blocked(rt, many_that_failed)
    assert len(error.residue) == MANY
    assert all(len(text) <= CHARS_MAX for text in texts(error))
    assert f"taken back completely; rent and {MANY - 1} more stand." in error.for_model()
    assert error.hint.endswith(f"; {MORE}: rt.report('r') lists them all")


def test_many_tools_are_not_all_in_the_message() -> None:
    world = World()
    tools = [world.compensatable(f"tool_{n}", twin={"retry": ONCE}) for n in range(30)]
    world.script |= {f"undo tool_{n}": [ValueError("closed")] for n in range(30)}
    rt = runtime(*tools)

    def program(run: Any) -> None:
        for one in tools:
            one()
        run.rollback("changed my mind")

    error = blocked(rt, program)
    assert len(error.residue) == 30
    assert str(error).startswith("run r is blocked: tool_")
    assert str(error).endswith(" and 25 more")
    assert str(error).count("tool_") == NAMED_MAX


# ---- What is recorded of it


def test_the_recorded_causes_and_their_event_do_not_grow_with_the_run() -> None:
    rt = Runtime(tools=[book], store=MemoryStore())
    error = blocked(rt, doubtful)
    *some_causes, last = rt.report("r").run.causes
    assert some_causes == list(error.causes[:CAUSES_MAX])
    assert last == f"and {MANY - CAUSES_MAX} more: rt.report('r') lists them all"
    (event,) = [one for one in rt.events("r") if one.to == "blocked"]
    assert len(json.dumps(dict(event.facts))) <= CHARS_MAX
    rt.verify("r").raise_if_broken()


def test_each_verb_that_removes_a_cause_is_recorded_however_many_causes_come_before_it() -> None:
    rt = Runtime(tools=[book, rent], store=MemoryStore())
    blocked(rt, one_that_failed_and_many_doubts)
    causes = rt.report("r").run.causes
    assert len(causes) == CAUSES_MAX + 1
    assert sum("may have happened" in cause for cause in causes) == CAUSES_MAX - 1
    assert "rt.retry(" in causes[-2]
    assert causes[-1].startswith(f"and {MANY + 1 - CAUSES_MAX} more: ")


def test_the_inbox_has_each_doubt_and_the_run_only_for_what_is_no_doubt() -> None:
    rt = Runtime(tools=[book, rent], store=MemoryStore())
    blocked(rt, doubtful)
    assert [item.what for item in rt.inbox()] == ["doubt"] * MANY
    blocked(rt, one_that_failed_and_many_doubts, "other")
    (item,) = [item for item in rt.inbox('run:"other"') if item.what != "doubt"]
    assert (item.what, item.verbs) == ("blocked", ("retry", "accept"))
    assert item.why.startswith("rent (")


def test_what_stands_in_the_inbox_is_short() -> None:
    rt = Runtime(tools=[rent], store=MemoryStore())
    blocked(rt, many_that_failed)
    (item,) = rt.inbox()
    assert item.why.count("rt.retry(") == NAMED_MAX
    assert item.why.endswith(f"; {MORE}: rt.report('r') lists them all")


def test_a_preview_counts_what_would_still_be_open() -> None:
    rt = Runtime(tools=[book], store=MemoryStore())
    error = blocked(rt, doubtful)
    said = str(rt.preview(error.doubts[0].id).happened)
    assert said.endswith(f" (and {MANY - 2} more)")
    assert len(said) <= CHARS_MAX


def test_a_replay_raises_the_same_hint() -> None:
    rt = Runtime(tools=[book], store=MemoryStore())
    error = blocked(rt, doubtful)
    raised: list[RunBlocked] = []

    def program() -> None:
        try:
            with rt.run("r") as run:
                doubtful(run)
        except RunBlocked as again:
            raised.append(again)
            raise

    with pytest.raises(RunBlocked):
        rt.replay("r", program)
    assert [(str(one), one.hint) for one in raised] == [(str(error), error.hint)]


def many_tools(count: int) -> list[Tool]:
    """Return tools whose compensations fail."""

    def made(n: int) -> Tool:
        @tool(name=f"tool_{n:02}")
        def act() -> str:
            return "done"

        @act.compensate(retry=Retry(attempts=1))
        def undo(result: str) -> None:
            raise ValueError("not possible")

        return act

    return [made(n) for n in range(count)]


def test_a_replay_has_every_call_that_blocked_the_run_also_those_that_the_record_only_counts() -> None:
    tools = many_tools(CAUSES_MAX + 10)
    rt = Runtime(tools=tools, store=MemoryStore())
    raised: list[RunBlocked] = []

    def program() -> None:
        try:
            with rt.run("r") as run:
                for one in tools:
                    one()
                run.rollback("wrong order")
        except RunBlocked as error:
            raised.append(error)
            raise

    def facts(error: RunBlocked) -> tuple[object, ...]:
        left = [(one.call.id, one.why) for one in error.residue]
        return str(error), error.hint, left, [call.id for call in error.doubts], list(error.causes)

    with pytest.raises(RunBlocked):
        program()
    with pytest.raises(RunBlocked):
        rt.replay("r", program)
    live, again = raised
    assert len(live.residue) == len(tools)
    assert facts(again) == facts(live)
    rt.retry(live.residue[0].call.id, by="anna", why="mended")  # what people do later changes no replay
    with pytest.raises(RunBlocked):
        rt.replay("r", program)
    assert len(raised[-1].residue) == len(tools)


def test_a_child_with_many_causes_is_replayed_with_all_of_them() -> None:
    tools = many_tools(CAUSES_MAX + 5)
    rt = Runtime(tools=tools, store=MemoryStore())
    counts: list[int] = []

    def program() -> None:
        with rt.run("r") as run:
            try:
                with run.child("c") as child:
                    for one in tools:
                        one()
                    child.rollback("wrong order")
            except RunBlocked as error:
                counts.append(len(error.residue))
            raise KeyError("stop")

    for play in (program, lambda: rt.replay("r", program)):
        with pytest.raises(Exception):  # noqa: B017 (the end of the parent does not matter here)
            play()
    assert counts == [len(tools), len(tools)]


def test_a_run_that_many_forks_depend_on_names_a_few_of_them() -> None:
    world = World()
    a, b = world.compensatable("a"), world.compensatable("b")
    rt = runtime(a, b)
    count = CAUSES_MAX + 10
    with pytest.raises(RunBlocked) as raised, rt.run("r") as run:
        a("1")
        (first,) = run.report().calls
        for n in range(count):
            rt.fork("r", at=first.id, id=f"fork-{n}")
        b("1")
        run.rollback("wrong order")
    error = raised.value
    assert all(len(text) <= CHARS_MAX for text in texts(error))
    more = f"; and {count - NAMED_MAX} more: rt.report('r') lists them all"
    assert str(error).endswith(more)
    assert error.hint.endswith(more)
    causes = rt.report("r").run.causes
    assert (len(causes), how_many(causes)) == (CAUSES_MAX + 1, count)
    assert len(rt.report("r").forks) == count


# ---- Notes, logs and other errors


def test_the_note_and_the_log_of_a_run_that_goes_forward_name_a_few_calls(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    wire, mails = world.pivot(), [world.retriable(f"mail_{n}", retry=SOON) for n in range(MANY)]
    world.script |= {one.name: [ValueError("down")] for one in mails}
    rt = runtime(wire, *mails)
    with caplog.at_level(logging.INFO, "amends"), rt.run("r") as run:
        wire()
        for one in mails:
            one()
    assert rt.report("r").state == "pivoted"
    told = [record.getMessage() for record in caplog.records if "has pivoted and goes on" in record.getMessage()]
    assert told
    for text in (run.note, *told):
        assert len(text) <= CHARS_MAX
        assert text.count("and is tried again") == NAMED_MAX
        assert f"{MORE}: rt.report('r') lists them all" in text


def test_a_worker_logs_a_few_causes_of_a_blocked_run(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    rt = Runtime(f"sqlite:///{tmp_path / 'many.db'}", tools=[rent])
    run = rt.open("r")
    for n in range(MANY):
        run.call(rent, n=n)
    die(run)
    with caplog.at_level(logging.INFO, "amends"):
        (report,) = work(rt, once=True)
    assert (report.state, len(report.residue)) == ("blocked", MANY)
    told = [record.getMessage() for record in caplog.records if record.getMessage().startswith("run r: ")]
    assert len(told) == 2 * (NAMED_MAX + 1)  # what stands, and why the run is blocked
    assert sum(MORE in text for text in told) == 2
    assert sum(map(len, told)) <= 2 * CHARS_MAX


def test_an_incomplete_run_names_a_few_of_its_failures_and_all_that_it_requires() -> None:
    world = World()
    pay, hotel = world.compensatable("pay"), world.compensatable("hotel")
    world.script["pay"] = [ValueError(f"declined {n}") for n in range(MANY)]
    rt = runtime(pay, hotel)
    said = ""
    with pytest.raises(RolledBack) as raised, rt.run("r", requires=["hotel"], on_open_failure="rollback") as run:
        for n in range(MANY):
            run.answer("pay", {"x": str(n)})
        said = run.before_end()
    for text in (said, str(raised.value), raised.value.hint, raised.value.for_model(), rt.report("r").run.goal_why):
        assert text is not None
        assert len(text) <= CHARS_MAX
    assert f"{MORE}; hotel has not succeeded" in said
    assert f"{MORE}: rt.report('r') lists them all; hotel has not succeeded" in str(raised.value)
    assert len(rt.report("r").missing) == MANY + 1


def test_a_refusal_of_a_pivot_names_a_few_unsettled_calls() -> None:
    few, many = [f"t{n}" for n in range(NAMED_MAX)], [f"t{n}" for n in range(MANY)]
    assert f"and {listed(few)} have no result yet" in str(OutOfOrder("wire", law="pivot_early", unsettled=few))
    error = OutOfOrder("wire", law="pivot_early", unsettled=many)
    assert f"t4 {MORE} have no result yet" in str(error)
    assert f"t4 {MORE} is settled" in error.hint
    assert error.unsettled == tuple(many)


def test_a_run_with_many_calls_in_flight_is_not_abandoned_and_few_of_them_are_named() -> None:
    rt = Runtime(tools=[rent], store=MemoryStore())
    with rt.run("r") as run:
        attempts = [run.begin("rent", {"n": n}) for n in range(MANY)]
        with pytest.raises(UsageError, match=f"in flight \\(rent and {MANY - 1} more\\)") as raised:
            rt.abandon("r", by="ada", why="enough")
        assert len(str(raised.value)) <= CHARS_MAX
        for attempt in attempts:
            attempt.succeed("a car")


def test_a_plan_says_in_few_words_what_must_be_accepted() -> None:
    rt = Runtime(tools=[mail], store=MemoryStore())
    with rt.run("r") as run:
        for n in range(MANY):
            run.call(mail, n=n)
    plan = rt.plan_rollback("r")
    with pytest.raises(UsageError) as raised:
        rt.rollback("r", plan=plan.hash, by="ada", why="wrong")
    assert len(str(raised.value)) + len(raised.value.hint) <= CHARS_MAX
    assert MORE in str(raised.value)
    assert "rt.plan_rollback('r')" in raised.value.hint


def test_an_answer_to_one_of_many_doubts_leaves_the_right_number(tmp_path: Path) -> None:
    with Runtime(f"sqlite:///{tmp_path / 'many.db'}", tools=[book]) as rt:
        error = blocked(rt, lambda run: doubtful(run, 30))
        report = rt.resolve(error.doubts[0].id, Happened(None), by="ada", why="the hotel has it")
        assert how_many(report.run.causes) == 29
        rt.verify().raise_if_broken()


# ---- How it is said


def test_a_few_texts_are_all_there() -> None:
    for count in range(NAMED_MAX + 1):
        few = [f"t{n}" for n in range(count)]
        assert some(few, where="nowhere") == few
        assert some_in_words(few) == ", ".join(few)
        assert how_many(few) == count


def test_many_texts_are_counted_once_however_often_they_are_shortened() -> None:
    many = [f"t{n}" for n in range(18_000)]
    first = some(many, where="look there", most=CAUSES_MAX)
    assert (len(first), first[-1], how_many(first)) == (CAUSES_MAX + 1, "and 17,980 more: look there", 18_000)
    assert some(first, where="or there") == [*many[:NAMED_MAX], "and 17,995 more: or there"]
    assert some_in_words(many) == "t0, t1, t2, t3, t4 and 17,995 more"
    assert some_in_words(["a"] * 7) == "a and 6 more"

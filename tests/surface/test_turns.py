"""``run.answer_all``: what a model asks for in one turn is one group, with a point of no return last."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from amends import AsyncRuntime, Held, Runtime, ToolCall, tool
from amends.engine.turns import SIDE_BY_SIDE_MAX

DONE: list[str] = []


@tool(kind="read")
def look(n: int) -> int:
    return n


@tool(key="n")
def book(n: int) -> str:
    if n == 13:
        raise ValueError("no such seat")
    DONE.append(f"book {n}")
    return f"b_{n}"


@book.compensate
def cancel(n: int) -> None:
    DONE.append(f"cancel {n}")


@tool(kind="pivot", needs_approval=lambda call: call.args["n"] == 99)
def pay(n: int) -> str:
    DONE.append(f"pay {n}")
    return f"p_{n}"


TOOLS = [look, book, pay]


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    DONE.clear()


@pytest.fixture
def rt() -> Iterator[Runtime]:
    with Runtime("memory:", tools=TOOLS) as rt:
        yield rt


def call(tool: str, n: Any, **more: Any) -> ToolCall:
    return ToolCall(tool, {"n": n}, **more)


def test_answers_come_in_the_order_of_the_calls(rt: Runtime) -> None:
    with rt.run() as run:
        answers = run.answer_all([call("pay", 1), call("look", 5), call("nothing", 1), ToolCall("book", "{broken")])
        assert [answer.status for answer in answers] == ["refused", "done", "refused", "refused"]
        answers = run.answer_all([call("pay", 1), call("book", 1), call("look", 5)])
        assert [answer.value for answer in answers] == ["p_1", "b_1", 5]
    assert DONE == ["book 1", "pay 1"]


def test_nothing_asked_is_nothing_done(rt: Runtime) -> None:
    with rt.run() as run:
        assert run.answer_all([]) == []


def test_a_pivot_beside_something_that_was_not_done_is_refused(rt: Runtime) -> None:
    with rt.run() as run:
        answers = run.answer_all([call("pay", 1), call("book", 13)])
        assert [answer.status for answer in answers] == ["refused", "failed"]
        assert "book has not been done" in answers[0].text
    assert DONE == []


def test_of_two_pivots_one_is_done(rt: Runtime) -> None:
    with rt.run() as run:
        answers = run.answer_all([call("pay", 1), call("pay", 2)])
        assert [answer.status for answer in answers] == ["done", "refused"]
    assert DONE == ["pay 1"]


def test_equal_calls_of_one_turn_are_done_once(rt: Runtime) -> None:
    with rt.run() as run:
        answers = run.answer_all([call("book", 1), call("book", 1)])
        assert sorted(answer.status for answer in answers) == ["done", "replayed"]
    assert DONE == ["book 1"]


def test_more_than_run_side_by_side_are_done_too(rt: Runtime) -> None:
    with rt.run() as run:
        numbers = range(20, 20 + SIDE_BY_SIDE_MAX * 2 + 1)
        assert [one.value for one in run.answer_all(call("look", n) for n in numbers)] == list(numbers)


def test_a_held_call_says_that_it_waits_and_its_siblings_are_done(rt: Runtime) -> None:
    with pytest.raises(Held), rt.run("r") as run:
        first, second = run.answer_all([call("book", 1), call("pay", 99)])
        assert (first.waits, second.waits) == (False, True)
        assert isinstance(second.error, Held)
        raise second.error
    assert DONE == ["book 1"]
    assert rt.report("r").state == "open"


def test_tools_that_nobody_declared_wait_each_in_a_run_of_its_own(rt: Runtime) -> None:
    def stamp(n: int) -> str:
        DONE.append(f"stamp {n}")
        return "s"

    with pytest.raises(Held), rt.run("r") as run:
        answers = run.answer_all([call("stamp", 1, handler=stamp), call("book", 1), call("stamp", 2, handler=stamp)])
        assert [(one.status, one.waits) for one in answers] == [("held", True), ("done", False), ("held", True)]
        error = answers[0].error
        assert error is not None
        raise error
    assert DONE == ["book 1"]


def test_inside_a_compensation_all_of_them_are_refused() -> None:
    told: list[Any] = []
    runs: list[Any] = []

    @tool(key="n")
    def odd(n: int) -> int:
        return n

    @odd.compensate
    def undo() -> None:
        told.extend(runs[0].answer_all([call("book", 1), call("look", 1)]))

    with Runtime("memory:", tools=[*TOOLS, odd]) as rt, pytest.raises(RuntimeError), rt.run() as run:
        runs.append(run)
        odd(n=1)
        raise RuntimeError
    assert [one.status for one in told] == ["refused", "refused"]
    assert DONE == []


def test_the_calls_run_side_by_side_and_know_their_run(rt: Runtime) -> None:
    both = threading.Barrier(2, timeout=20)

    @tool(kind="read")
    def meet(n: int) -> int:
        both.wait()
        return n

    with Runtime("memory:", tools=[meet]) as rt, rt.run() as run:
        assert [one.value for one in run.answer_all([call("meet", 1), call("meet", 2)])] == [1, 2]


def test_the_same_awaited() -> None:
    async def main() -> None:
        async with AsyncRuntime("memory:", tools=TOOLS) as rt, rt.run() as run:
            answers = await run.answer_all([call("pay", 1), call("book", 1), call("nothing", 1)])
            assert [answer.status for answer in answers] == ["refused", "done", "refused"]
            answers = await run.answer_all([call("pay", 1), call("look", 1)])
            assert [answer.value for answer in answers] == ["p_1", 1]
            assert run.state == "pivoted"

    asyncio.run(main())
    assert DONE == ["book 1", "pay 1"]


def test_the_very_request_of_before_a_stop_is_told_plainly(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    asked = [call("book", 1, tool_call_id="c1"), call("pay", 99, tool_call_id="c2")]
    with Runtime(url, tools=TOOLS) as rt:
        with pytest.raises(Held), rt.run("r") as run:
            waiting = run.answer_all(asked)[1].error
            assert waiting is not None
            raise waiting
        with pytest.raises(Held), rt.run("r") as run:
            first = run.answer("book", {"n": 1}, tool_call_id="c1")
            other = run.answer("book", {"n": 1}, tool_call_id="c7")
            assert (first.status, first.text) == ("replayed", '"b_1"')
            assert other.text == 'Already done in this task; the same result: "b_1"'
    assert DONE == ["book 1"]

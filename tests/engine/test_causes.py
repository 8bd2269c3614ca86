"""What a blocked run says: the question that a person must answer comes first, and the rest waits for it."""

from __future__ import annotations

import pytest

from amends import Absent, Runtime, tool
from amends.errors import RunBlocked
from amends.stores.memory import MemoryStore


@tool
def book_flight(to: str) -> str:
    return f"flight to {to}"


@book_flight.compensate
def cancel_flight(result: str) -> None: ...


@tool
def book_hotel(to: str) -> str:
    return f"hotel in {to}"


@book_hotel.compensate
def cancel_hotel(result: str) -> None: ...


@tool(kind="pivot")
def pay(amount: int) -> str:
    raise TimeoutError("the answer was lost")


def blocked(store: MemoryStore) -> Runtime:
    """Return a runtime whose run "trip" has booked twice, and does not know whether it has paid."""
    rt = Runtime(tools=[book_flight, book_hotel, pay], store=store)
    with pytest.raises(RunBlocked), rt.run("trip") as run:
        run.call(book_flight, to="Rome")
        run.call(book_hotel, to="Rome")
        run.call(pay, amount=3)
    return rt


def test_the_doubt_is_named_before_what_waits_for_it() -> None:
    rt = blocked(MemoryStore())
    (doubt,) = rt.doubts()
    question, *waiting = rt.report("trip").run.causes
    assert f"rt.resolve({doubt.id!r}" in question
    assert len(waiting) == 2
    for cause in waiting:
        assert f"waits for the answer about pay ({doubt.id})" in cause
        assert "rt." not in cause, "no verb helps before the doubt is resolved"


def test_the_answer_takes_back_what_waited() -> None:
    rt = blocked(MemoryStore())
    (doubt,) = rt.doubts()
    report = rt.resolve(doubt.id, Absent(), by="ada", why="the bank has no payment")
    assert (report.state, report.run.causes) == ("rolled_back", ())


def test_a_plan_says_what_waits_for_the_doubt() -> None:
    rt = blocked(MemoryStore())
    plan = rt.plan_rollback("trip")
    assert [one.call.tool for one in plan.doubts] == ["pay"]
    assert {left.call.tool for left in plan.cannot} == {"book_flight", "book_hotel"}
    assert all("waits for the answer about pay" in left.why for left in plan.cannot)


def test_without_the_tools_a_plan_says_that_they_are_not_loaded() -> None:
    store = MemoryStore()
    blocked(store)
    plan = Runtime(store=store).plan_rollback("trip")
    assert all("not loaded here" in left.why for left in plan.cannot)

"""``check_tool`` finds each claim that is not true: of the probe, the compensation, the result and the key."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from amends import Absent, Call, Happened, Probed, Unknown, current_call, tool
from amends.testing import check_tool

HERE: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    HERE.clear()


def found(one: Any, **args: Any) -> set[str]:
    given = args or {"order": "1"}
    verdict = check_tool(one, args=given, state=lambda: dict(HERE), fresh=HERE.clear, seeds=10)
    return {violation.checker for violation in verdict.violations}


def booking(*, absent_ok: bool = False, undoes: Any = None, probe: Any = None, **options: Any) -> Any:
    @tool(**options)
    def book(order: str) -> str:
        HERE[current_call().key] = order
        return current_call().key

    def unbook(call: Call) -> None:
        HERE.pop(call.key, None)

    book.compensate(undoes or unbook, absent_ok=absent_ok)
    if probe is not None:
        book.probe(probe)
    return book


def find(call: Call) -> Probed[str]:
    return Happened(call.key) if call.key in HERE else Absent()


def test_an_honest_tool_breaks_nothing() -> None:
    assert found(booking(absent_ok=True, probe=find)) == set()


def test_a_probe_that_does_not_know_is_no_lie_before_the_effect() -> None:
    def shy(call: Call) -> Probed[str]:
        return Happened(call.key) if call.key in HERE else Unknown()

    assert "probe_before" not in found(booking(probe=shy))


def test_a_probe_that_always_says_happened_is_found_before_and_after() -> None:
    def eager(call: Call) -> Probed[str]:
        return Happened(call.key)

    assert {"probe_before", "probe_sees_it_gone"} <= found(booking(probe=eager))


def test_a_probe_that_writes_is_found_and_the_compensation_is_not_blamed() -> None:
    def counts(call: Call) -> Probed[str]:
        HERE["asked"] = HERE.get("asked", 0) + 1
        return find(call)

    broken = found(booking(probe=counts))
    assert "probe_changes_nothing" in broken
    assert "compensation_restores" not in broken


def test_a_probe_with_another_result_is_found() -> None:
    def other(call: Call) -> Probed[str]:
        return Happened("yes") if call.key in HERE else Absent()

    assert "probe_result" in found(booking(probe=other))


def test_a_compensation_that_needs_an_effect_and_says_absent_ok_is_found() -> None:
    def strict(call: Call) -> None:
        del HERE[call.key]

    assert found(booking(absent_ok=True, undoes=strict)) >= {"compensates_twice", "compensates_nothing"}
    assert not {"compensates_twice", "compensates_nothing"} & found(booking(undoes=strict))


def test_a_compensation_that_counts_and_says_absent_ok_is_found() -> None:
    def counts(call: Call) -> None:
        HERE.pop(call.key, None)
        HERE["undone"] = HERE.get("undone", 0) + 1

    assert found(booking(absent_ok=True, undoes=counts)) >= {"compensates_twice", "compensates_nothing"}


def test_a_key_of_chance_is_found() -> None:
    assert "key_stable" in found(booking(key=lambda request: str(random.random())))


def test_a_result_that_comes_back_as_another_class_is_found() -> None:
    class Receipt(str):
        __slots__ = ()

    @tool(kind="pivot")
    def pay(order: str) -> Any:
        HERE[current_call().key] = order
        return Receipt(order)

    assert "result_type" in found(pay)


def test_a_tool_that_only_lies_about_its_idempotence_breaks_only_that() -> None:
    @tool(idempotent=True)
    def add(order: str) -> int:
        HERE[current_call().key] = HERE.get(current_call().key, 0) + 1
        return 1

    @add.compensate
    def take(call: Call) -> None:
        HERE.pop(call.key, None)

    assert found(add) == {"idempotent", "late_landing"}


def test_a_staged_tool_runs_and_is_checked() -> None:
    @tool(kind="retriable", idempotent=True)
    def mail(order: str) -> None:
        HERE["sent"] = HERE.get("sent", 0) + 1

    assert "idempotent" in found(mail)


def test_a_compensation_that_is_a_tool_is_found_among_the_others() -> None:
    @tool(kind="retriable", idempotent=True)
    def forget(order: str) -> None:
        HERE.pop(order, None)

    @tool(compensate="forget")
    def keep(order: str) -> str:
        HERE[order] = 1
        return order

    verdict = check_tool(keep, args={"order": "1"}, state=lambda: dict(HERE), fresh=HERE.clear, tools=[keep, forget])
    assert {violation.checker for violation in verdict.violations} == {"late_compensation"}

"""``check_tool`` reads before, and lets a start and a compensation land late."""

from __future__ import annotations

from typing import Any

import pytest

from amends import current_call, tool
from amends.testing import check_tool

HERE: dict[str, Any] = {}


def _reset() -> None:
    HERE.clear()
    HERE["price"] = 1


def _setter(idempotent: Any, undo: Any, *, reads: Any = None) -> Any:
    _reset()

    @tool(key="sku", idempotent=idempotent, locks=lambda call: [call.args["sku"]])
    def put(sku: str, cents: int) -> None:
        HERE["price"] = cents

    put.before(reads or (lambda: HERE["price"]))

    @put.compensate(idempotent=undo)
    def put_back(before: int) -> None:
        HERE["price"] = before

    return put


def _found(one: Any) -> set[str]:
    return {
        v.checker for v in check_tool(one, args={"sku": "tea", "cents": 5}, state=lambda: HERE, fresh=_reset).violations
    }


def test_a_setter_that_says_put_is_fine() -> None:
    assert _found(_setter("put", "put")) == set()


def test_a_setter_that_says_true_is_a_violation() -> None:
    assert _found(_setter(True, "put")) == {"late_landing"}
    assert "late_compensation" in _found(_setter("put", True))


def test_a_destination_that_keeps_the_key_may_say_true() -> None:
    HERE.clear()

    @tool(idempotent=True)
    def charge(sku: str, cents: int) -> None:
        HERE.setdefault(current_call().key, cents)

    @charge.compensate(idempotent=True)
    def refund(call: Any) -> None:
        HERE[call.key] = 0

    found = check_tool(
        charge, args={"sku": "tea", "cents": 5}, state=lambda: sum(v for v in HERE.values()), fresh=HERE.clear
    )
    assert found.violations == []


def test_a_before_that_changes_something_is_a_violation() -> None:
    def reads() -> int:
        HERE["read"] = HERE.get("read", 0) + 1
        return int(HERE["price"])

    assert "before_changes_nothing" in _found(_setter("put", "put", reads=reads))


@pytest.fixture(autouse=True)
def _clean() -> Any:
    yield
    HERE.clear()


def test_tasks_that_are_killed_on_purpose_log_nothing(caplog: pytest.LogCaptureFixture) -> None:
    value = {"x": 1}

    @tool(key="k", on_conflict="next")
    def put(k: str, v: int) -> None:
        value[k] = v

    put.before(lambda k: value[k])
    put.compensate(lambda k, before: value.update({k: before}))
    verdict = check_tool(put, args={"k": "x", "v": 2}, state=lambda: dict(value))
    assert caplog.records == []
    assert [(one.checker, one.what.rpartition("reset it: ")[2]) for one in verdict.violations] == [
        ("changes_something", "fresh=")
    ], "its lost starts are left to a person, with the value"
    verdict = check_tool(put, args={"k": "x", "v": 2}, state=lambda: dict(value), fresh=lambda: value.update(x=1))
    assert verdict.violations == []

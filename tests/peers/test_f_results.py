"""Experiment f: what a call gives back, the first time and every time after."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel

from amends import tool
from amends.errors import ResultLost
from amends.stores.memory import MemoryStore
from tests.peers.conftest import Ledger
from tests.world import runtime, twin_of


class Receipt(BaseModel):
    id: str
    amount: Decimal


@dataclass
class Box:
    name: str
    parts: tuple[int, ...]


class Client:
    """What a provider's library hands out: no data, only behaviour."""


RESULTS: dict[str, tuple[Any, Any]] = {
    "payment id": (str, "payment-id-123"),
    "dict": (dict[str, str], {"payment_id": "payment-id-123"}),
    "decimal": (Decimal, Decimal("1.50")),
    "tuple": (tuple[int, str], (1, "x")),
    "untyped tuple": (Any, (1, ("x", [2]))),
    "int keys": (dict[int, str], {1: "a"}),
    "untyped int keys": (Any, {1: "a", "1": "b"}),
    "datetime": (datetime, datetime(2026, 1, 2, tzinfo=UTC)),
    "date": (Any, date(2026, 1, 2)),
    "set": (Any, {1, 2}),
    "bytes": (bytes, b"\x00\xff"),
    "uuid": (UUID, UUID(int=9)),
    "model": (Receipt, Receipt(id="r", amount=Decimal("2.50"))),
    "dataclass": (Box, Box("b", (1, 2))),
    "64-bit id": (int, 2**64 - 1),
    "nothing": (type(None), None),
    "false": (bool, False),
    "text that looks like JSON": (str, '{"a": 1}'),
}


@pytest.mark.parametrize("kind, value", RESULTS.values(), ids=RESULTS.keys())
def test_a_replay_gives_the_first_callers_value_in_its_type(kind: Any, value: Any, ledger: Ledger) -> None:
    """AgentRelay 3.3: Decimal to text, tuple to list, int key to text. agent-ledger 4.3: tuple, int keys change."""

    def body() -> Any:
        return value

    body.__annotations__["return"] = kind
    make = tool(body, name="make", compensate=lambda: None)
    with ledger(make).run("r"):
        first, second = make(), make()
    with ledger(make).run("r"):
        third = make()
    assert first == second == third == value
    assert type(first) is type(second) is type(third) is type(value)
    assert repr(first) == repr(third)


def test_a_call_returns_its_value_and_not_a_receipt(ledger: Ledger) -> None:
    """SafeAgent 2.3: the return value is discarded on every path. onceonly: the result is not stored."""

    @tool
    def charge() -> str:
        return "ch_1"

    charge.compensate(lambda: None)
    rt = ledger(charge)
    with rt.run("r"):
        assert charge() == "ch_1"
    (call,) = ledger().calls()  # a process without the tool can read it too
    assert call.result == "ch_1"
    assert call.id


@pytest.mark.parametrize(
    "value", [Client(), lambda: 1, open, "x" * (1 << 20)], ids=["client", "lambda", "open", "large"]
)
def test_a_result_that_cannot_be_written_down_is_a_success_with_a_stated_loss(value: Any, ledger: Ledger) -> None:
    """agent-ledger 4.4 f: effect done, row failed. saga-agent 1.4 f: TypeError from the logger. exactly-once: quarantine."""
    log: list[str] = []

    @tool
    def connect() -> Any:
        log.append("connect")
        return value

    connect.compensate(lambda: log.append("undo"))
    rt = ledger(connect)
    with rt.run("r"):
        assert connect() is value
    with ledger(connect).run("r"):
        with pytest.raises(ResultLost):  # told, not started again
            connect()
    (call,) = rt.calls()
    assert (call.state, bool(call.loss)) == ("succeeded", True)
    assert log == ["connect"]


def test_a_lost_result_does_not_keep_a_run_from_being_taken_back(ledger: Ledger) -> None:
    """saga-agent 1.4 f: on the failing path the caller gets TypeError instead of the outcome."""
    log: list[str] = []

    @tool
    def connect() -> Any:
        return Client()

    connect.compensate(lambda: log.append("undo"))
    rt = ledger(connect)
    with pytest.raises(KeyError), rt.run("r"):
        connect()
        raise KeyError
    assert log == ["undo"]
    assert rt.report("r").state == "rolled_back"


def test_a_caller_that_changes_a_result_changes_nobody_elses() -> None:
    """agent-ledger 4.3: memory replay returns the same mutable object (a caller's change was visible in the next)."""

    @tool
    def find() -> dict[str, list[int]]:
        return {"ids": [1]}

    find.compensate(lambda: None)
    store = MemoryStore()
    rt, other = runtime(find, store=store), twin_of(store, find)
    with rt.run("r"):
        find()["ids"].append(2)
        assert find() == {"ids": [1]}
    next(iter(rt.calls())).result["ids"].append(3)
    with other.run("r"):
        assert find() == {"ids": [1]}


def test_a_caller_that_changes_an_argument_changes_no_record(ledger: Ledger) -> None:
    """SafeAgent 2.4 e: the receipt echoes whatever payload the caller has in hand now."""
    given = {"cents": [10]}

    @tool
    def charge(facts: dict[str, list[int]]) -> str:
        facts["cents"].append(999_999)
        return "ch_1"

    charge.compensate(lambda: None)
    rt = ledger(charge)
    with rt.run("r"):
        charge(facts=given)
    given["cents"].append(7)
    (call,) = rt.calls()
    assert call.args == {"facts": {"cents": [10]}}


def test_the_first_two_callers_get_equal_values_whoever_was_first() -> None:
    """AgentRelay 3.3: the same prompt twice: object first, str second."""

    @tool
    def make() -> Receipt:
        return Receipt(id="r", amount=Decimal(1))

    make.compensate(lambda: None)
    rt = runtime(make)
    with rt.run("r") as run:
        values = [make(), run.call(make), run.answer("make", {}).value]
    assert values == [Receipt(id="r", amount=Decimal(1))] * 3
    assert {type(value) for value in values} == {Receipt}

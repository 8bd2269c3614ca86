"""Arguments and results: typed, written down, limited, never shared."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel

from amends import UsageError, tool
from amends.errors import BadArguments, NotStorable, ResultLost, TooLarge
from tests.world import World, runtime, states


class Receipt(BaseModel):
    id: str
    cents: int


@dataclass
class Box:
    name: str
    parts: list[int] = field(default_factory=list)


class Colour(enum.Enum):
    RED = "red"


VALUES = [
    (Receipt, Receipt(id="a", cents=3)),
    (Box, Box("b", [1, 2])),
    (Decimal, Decimal("1.10")),
    (tuple[int, str], (1, "x")),
    (set[int], {1, 2}),
    (frozenset[str], frozenset({"a"})),
    (datetime, datetime(2026, 1, 2, 3, 4, tzinfo=UTC)),
    (date, date(2026, 1, 2)),
    (UUID, UUID(int=5)),
    (Colour, Colour.RED),
    (bytes, b"\x00\xff"),
    (list[Receipt], [Receipt(id="a", cents=3)]),
    (dict[str, Box], {"k": Box("b")}),
    (int, 2**200),
    (float, float("inf")),
    (type(None), None),
    (Any, {"a": (1, {2}), "b": Decimal(2)}),
]


@pytest.mark.parametrize("kind, value", VALUES, ids=lambda value: repr(value)[:30])
def test_a_result_has_its_type_in_the_first_call_and_in_every_replay(kind, value) -> None:
    def body():
        return value

    body.__annotations__["return"] = kind
    made = tool(body, name="make", compensate=lambda: None)
    rt = runtime(made)
    with rt.run("r"):
        first, second = made(), made()
    with rt.run("r"):
        third = made()
    assert first == second == third == value
    assert {type(first), type(second), type(third)} == {type(value)}
    (call,) = rt.calls()
    assert (call.result, call.loss) == (value, None)


def test_mutable_results_are_not_shared_between_callers() -> None:
    @tool
    def make() -> list[int]:
        return [1]

    make.compensate(lambda: None)
    with runtime(make).run("r"):
        make().append(2)
        assert make() == [1]


def test_a_compensation_sees_the_result_as_it_was_recorded_not_as_it_was_changed_later() -> None:
    seen: list[Any] = []

    @tool
    def make() -> list[int]:
        return [1]

    @make.compensate
    def undo(result: list[int]) -> None:
        seen.append(result)

    with pytest.raises(KeyError), runtime(make).run("r"):
        make().append(2)
        raise KeyError
    assert seen == [[1]]


@pytest.mark.parametrize("value", [object(), lambda: 1, "x" * (1 << 20) + "y"], ids=["object", "lambda", "large"])
def test_a_result_that_cannot_be_written_down_is_a_success_with_a_stated_loss(value) -> None:
    @tool
    def make() -> Any:
        return value

    make.compensate(lambda: None)
    rt = runtime(make)
    with rt.run("r"):
        assert make() is value
        with pytest.raises(ResultLost):
            make()
    (call,) = rt.calls()
    assert call.state == "succeeded"
    assert call.loss


@pytest.mark.parametrize("value, error", [(object(), NotStorable), ("x" * (1 << 20) + "y", TooLarge)])
def test_arguments_that_cannot_be_written_down_are_refused_before_anything_is_recorded(value, error) -> None:
    started: list[int] = []

    @tool
    def make(what: Any) -> None:
        started.append(1)

    make.compensate(lambda: None)
    rt = runtime(make)
    with rt.run("r"), pytest.raises(error) as refused:
        make(what=value)
    assert refused.value.path.startswith("args")
    assert started == []
    assert list(rt.calls()) == []


def test_arguments_that_do_not_fit_are_refused_before_anything_is_recorded() -> None:
    world = World()
    pay = world.compensatable("pay")
    rt = runtime(pay)
    with rt.run("r"):
        with pytest.raises(BadArguments):
            pay(n="forty")
        with pytest.raises(BadArguments):
            pay(y=1)
    assert list(rt.calls()) == []


def test_a_staged_call_is_no_argument() -> None:
    world = World()
    mail, pay = world.retriable(), world.compensatable("pay")
    rt = runtime(mail, pay)
    with rt.run("r"):
        staged = mail()
        with pytest.raises(BadArguments):
            pay(x=staged)
    assert states(rt, "r") == {"mail": "succeeded"}


def test_a_staged_call_inside_an_argument_is_no_argument_either() -> None:
    world = World()
    mail = world.retriable()

    @tool
    def pay(things: list[Any]) -> None: ...

    pay.compensate(lambda: None)
    rt = runtime(mail, pay)
    with rt.run("r"):
        staged = mail()
        with pytest.raises((BadArguments, NotStorable)):
            pay(things=[staged])
    assert states(rt, "r") == {"mail": "succeeded"}


def test_typed_arguments_reach_body_compensation_and_probe_as_their_types() -> None:
    seen: list[Any] = []

    @tool
    def pay(box: Box, when: datetime, amount: Decimal) -> str:
        seen.append((box, when, amount))
        return "p"

    @pay.compensate
    def refund(box: Box, when: datetime, amount: Decimal) -> None:
        seen.append((box, when, amount))

    args = (Box("b", [1]), datetime(2026, 1, 1, tzinfo=UTC), Decimal("1.5"))
    with pytest.raises(KeyError), runtime(pay).run("r"):
        pay(*args)
        raise KeyError
    assert seen == [args, args]
    assert [type(one) for one in seen[1]] == [Box, datetime, Decimal]


def test_a_body_that_changes_its_arguments_does_not_change_the_record() -> None:
    @tool
    def pay(parts: list[int]) -> None:
        parts.append(99)

    pay.compensate(lambda: None)
    rt = runtime(pay)
    given = [1]
    with rt.run("r"):
        pay(parts=given)
    (call,) = rt.calls()
    assert call.args == {"parts": [1]}
    assert given in ([1], [1, 99])


def test_what_is_no_tool_is_said_to_be_none() -> None:
    rt = runtime()
    with rt.run("r") as run, pytest.raises(UsageError):
        run.call(len, [1])

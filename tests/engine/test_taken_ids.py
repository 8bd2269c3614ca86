"""Two processes drew the same id: the second call gets another one, and runs its body once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from amends import AsyncRuntime, Runtime, tool
from amends.encoding.ids import call_id, new_number
from amends.engine.call import DRAWS_MAX
from amends.ledger.rows import IdTaken

RAN: list[str] = []


@tool
def pay(order: str) -> str:
    RAN.append(order)
    return f"paid {order}"


@pay.compensate
def unpay(order: str) -> None: ...


@tool(key="order")
def book(order: str, what: list[object] | None = None) -> str:
    RAN.append(order)
    return f"booked {order}"


@book.compensate
def unbook(order: str) -> None: ...


@tool(kind="read")
def look(order: str) -> str:
    RAN.append(order)
    return f"saw {order}"


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    RAN.clear()
    return "memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/a.db"


def clash(rt: Any, number: int, times: int) -> Callable[[], None]:
    """Let the runtime draw this number so often before it draws others."""
    host, left = rt._host, [0]

    def draw() -> int:
        left[0] -= 1
        return number if left[0] >= 0 else new_number()

    new_id = host.new_id
    host.new_number = draw
    host.new_id = lambda what: call_id(draw()) if what == "call" else new_id(what)
    return lambda: left.__setitem__(0, times)


@pytest.mark.parametrize("times", [1, 2, DRAWS_MAX - 1])
@pytest.mark.parametrize("called", [pay, book, look], ids=["pay", "book", "look"])
def test_a_call_whose_id_is_taken_gets_another_one(url: str, called: Any, times: int) -> None:
    number = new_number()
    rt = Runtime(url, tools=[pay, book, look])
    again = clash(rt, number, times)
    with rt.run("first"):
        again()
        assert pay(order="1") == "paid 1"
    with rt.run("second") as run:
        again()
        answer = run.call(called, order="2", what=[1]) if called is book else called(order="2")
        assert answer.endswith("2")
        if called is not look:
            assert called(order="2", **({"what": [1]} if called is book else {})) == answer
    assert RAN == ["1", "2"]
    assert [[call.args["order"] for call in rt.report(id).calls] for id in ("first", "second")] == [["1"], ["2"]]
    assert rt.verify().ok
    rt.close()


def test_the_same_awaited(url: str) -> None:
    async def live() -> None:
        rt = AsyncRuntime(url, tools=[pay])
        again = clash(rt, new_number(), 2)
        for number in ("1", "2"):
            async with rt.run(f"run {number}") as run:
                again()
                assert await run.call(pay, order=number) == f"paid {number}"
        await rt.close()

    asyncio.run(live())
    assert RAN == ["1", "2"]


def test_a_source_of_ids_that_only_repeats_itself_is_no_endless_loop(url: str) -> None:
    rt = Runtime(url, tools=[pay])
    again = clash(rt, new_number(), 10 * DRAWS_MAX)
    with rt.run("first"):
        again()
        pay(order="1")
    with pytest.raises(IdTaken), rt.run("second"):
        pay(order="2")
    assert RAN == ["1"]
    rt.close()

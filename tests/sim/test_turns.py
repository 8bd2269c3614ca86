"""A model's turn at every crash point: killed, taken over and killed again, nothing happens twice and nothing is lost."""

from __future__ import annotations

from typing import Any

from amends import Absent, Happened, Run, ToolCall, current_call, tool
from amends.testing import simulate

WORLD: dict[str, str] = {}


@tool(key="n")
def book(n: int) -> str:
    WORLD[f"book {n} {current_call().key}"] = "b"
    return f"b_{n}"


@book.compensate(idempotent=True)
def cancel(n: int) -> None:
    for name in [name for name in WORLD if name.startswith(f"book {n} ")]:
        del WORLD[name]


@book.probe(settle=0.0)
def find(n: int) -> Any:
    return Happened(f"b_{n}") if any(name.startswith(f"book {n} ") for name in WORLD) else Absent()


@tool(kind="pivot", idempotent=True)
def pay(n: int) -> str:
    WORLD[f"pay {n}"] = "p"
    return f"p_{n}"


def turn(run: Run) -> None:
    answers = run.answer_all(
        [ToolCall("pay", {"n": 1}, "c1"), ToolCall("book", {"n": 1}, "c2"), ToolCall("book", {"n": 2})]
    )
    for answer in answers:
        if answer.error is not None:
            raise answer.error


def booked() -> list[str]:
    return sorted(" ".join(name.split()[:2]) for name in WORLD)


def test_a_turn_survives_every_crash() -> None:
    verdict = simulate(turn, tools=[book, pay], state=booked, fresh=WORLD.clear, crashes=2, seeds=50)
    verdict.raise_if_broken()
    assert verdict.schedules > 100

"""S4: refunds that a model asks for again in other words after a restart."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from typing import Any

from amends import Run, Runtime, Waiting, tool
from tests.scenarios.processes import main
from tests.scenarios.world import World, die_at

PAIRS = 200

FIRST = ("late parcel", "damaged box", "wrong size", "customer changed their mind", "sent twice by the warehouse")
AGAIN = (
    "parcel arrived late",
    "the box was damaged",
    "the size was wrong",
    "the customer no longer wants it",
    "warehouse sent it two times",
)


def first_words(i: int) -> dict[str, Any]:
    """How a model asks before the restart."""
    return {"order": f"order-{i}", "amount": 50, "reason": f"{FIRST[i % 5]} ({i})", "ref": f"a{i}"}


def other_words(i: int) -> dict[str, Any]:
    """The same intent, synthesised anew: other reason, other reference, other spelling of the amount."""
    amount = ("50.00", "50", 50.0, "5E+1", "050.0")[i % 5]
    return {"ref": f"f{i * 7 + 9}", "reason": f"{AGAIN[i % 5]}, case {i}", "amount": amount, "order": f"order-{i}"}


def other_intent(i: int) -> tuple[str, dict[str, Any]]:
    """What looks alike and is not the same: another order, a second refund on purpose, another amount."""
    asked = other_words(i)
    match i % 3:
        case 0:
            return "done", {**asked, "order": f"order-{PAIRS + i}"}
        case 1:
            return "done", {**asked, "amount": 10, "again_because": "a second partial refund, agreed by phone"}
        case _:
            return "refused", {**asked, "amount": 60}


def build(world: World, variant: str) -> Runtime:
    options: dict[str, Any] = {"key": "order", "ignore": ["reason", "ref"]} if variant == "declared" else {}

    @tool(**options)
    def refund(order: str, amount: Decimal, reason: str, ref: str) -> str:
        return world.do("refund", f"R-{len(world.entries('refund')) + 1}", order=order, amount=str(amount.normalize()))

    @refund.compensate
    def claw_back(result: str) -> None:
        world.undo("refund", result)

    return Runtime(world.url, tools=[refund], repeats=True)


def _ask(run: Run, asked: dict[str, Any]) -> str:
    answer = run.answer("refund", asked)
    held = getattr(answer.error, "reason", "")
    return f"{answer.status} {held}".strip()


def first(rt: Runtime, world: World) -> None:
    with rt.run("refunds") as run:
        for i in range(PAIRS):
            assert _ask(run, first_words(i)) == "done"
        die_at("all refunded")


def again(rt: Runtime, world: World) -> dict[str, Any]:
    told: dict[str, Any] = {"same": Counter(), "other": Counter(), "wrong": 0}
    try:
        with rt.run("refunds") as run:
            for i in range(PAIRS):
                told["same"][_ask(run, other_words(i))] += 1
            for i in range(PAIRS):
                expected, asked = other_intent(i)
                answer = _ask(run, asked)
                told["other"][answer] += 1
                told["wrong"] += answer != expected
    except Waiting:
        told["waits"] = True
    return told


def only_again(rt: Runtime, world: World) -> dict[str, Any]:
    told: Counter[str] = Counter()
    try:
        with rt.run("refunds") as run:
            for i in range(PAIRS):
                told[_ask(run, other_words(i))] += 1
    except Waiting:
        told["waits"] += 1
    return dict(told)


if __name__ == "__main__":
    main(build, {"first": first, "again": again, "only_again": only_again})

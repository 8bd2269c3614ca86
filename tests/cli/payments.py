"""A user's program whose payments need approval, cost something, and can be listed."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from amends import Budget, Rule, Runtime, tool

BANK = Path(__file__).with_name("bank.json")


def bank() -> list[dict[str, Any]]:
    return list(json.loads(BANK.read_text(encoding="utf-8"))) if BANK.exists() else []


@tool(kind="pivot", key="order", cost=lambda call: call.args["cents"] / 100)
def pay(order: str, cents: int) -> str:
    BANK.write_text(json.dumps([*bank(), {"order": order, "cents": cents}]), encoding="utf-8")
    return f"ch_{order}"


@pay.list_effects
def paid() -> list[dict[str, Any]]:
    return [{"order": one["order"]} for one in bank()]


rt = Runtime(
    "sqlite:///shop.db",
    tools=[pay],
    principal="clerk",
    agent="till",
    rules=[
        Rule(tool="pay", args={"cents": ">100000"}, approvers=2, roles=("finance",), why="it is a lot"),
        Rule(
            tool="pay",
            args={"cents": ">10000"},
            reasons=("too much", "wrong account"),
            expires=float(os.environ.get("EXPIRES", "3600")),
            why="it is much",
        ),
        Rule(tool="pay", decision="allow"),
    ],
    approvers={"finance": ("anna", "bob")},
    budgets=[Budget(5000, per="agent", every="day")],
)

if __name__ == "__main__":
    order, cents = sys.argv[1], int(sys.argv[2])
    with rt.run(f"order-{order}"):
        pay(order=order, cents=cents)

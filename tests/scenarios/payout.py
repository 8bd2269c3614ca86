"""S3: a payout agent that wires the money before the checks, then does too much."""

from __future__ import annotations

from typing import Any

from amends import Runtime, current_call, tool
from amends.errors import OutOfOrder
from tests.scenarios.processes import main
from tests.scenarios.world import World

TOOLS = ("create_payee", "reserve_funds", "send_wire")

SCRIPT: list[tuple[str, dict[str, Any]]] = [
    ("create_payee", {"name": "Ines"}),
    ("send_wire", {"payee": "Ines", "cents": 90_000}),
    ("sanctions_check", {"payee": "Ines"}),
    ("send_wire", {"payee": "Ines", "cents": 90_000}),
    ("reserve_funds", {"payee": "Ines", "cents": 90_000}),
    ("send_wire", {"payee": "Ines", "cents": 90_000}),
    ("create_payee", {"name": "Rui"}),
    ("send_wire", {"payee": "Rui", "cents": 1}),
]


def build(world: World, variant: str) -> Runtime:
    @tool(key="name")
    def create_payee(name: str) -> str:
        return world.do("create_payee", f"P-{name}")

    @create_payee.compensate
    def remove_payee(result: str) -> None:
        world.undo("create_payee", result)

    @tool(kind="read")
    def sanctions_check(payee: str) -> str:
        return "clear"

    @tool(key="payee")
    def reserve_funds(payee: str, cents: int) -> str:
        return world.do("reserve_funds", f"R-{payee}", cents=cents)

    @reserve_funds.compensate
    def free_funds(result: str) -> None:
        world.undo("reserve_funds", result)

    @tool(kind="pivot", after=["sanctions_check", "reserve_funds"], idempotent=True)
    def send_wire(payee: str, cents: int) -> str:
        return world.do("send_wire", f"W-{payee}", key=current_call().key)

    return Runtime(world.url, tools=[create_payee, sanctions_check, reserve_funds, send_wire])


def play(rt: Runtime, world: World) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = []
    with rt.run("payout-3") as run:
        for name, args in SCRIPT:
            answer = run.answer(name, args)
            law = answer.error if isinstance(answer.error, OutOfOrder) else None
            told.append(
                {
                    "tool": name,
                    "status": answer.status,
                    "text": answer.text,
                    "law": law and law.law,
                    "missing": law and law.missing,
                    "wires": len(world.standing("send_wire")),
                }
            )
    return told


if __name__ == "__main__":
    main(build, {"play": play})

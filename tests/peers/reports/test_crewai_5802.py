"""crewAI #5802: a crew's work that is retried runs its tools again: payments, mails, trades.

Seen on crewai 1.15.30: a guardrail refuses the first answer, all is done again, and the customer pays twice. CrewAI's own
cache answers only a repeat in the very same words; the model words its note anew. With amends the second attempt is
answered from the record.
"""

from __future__ import annotations

from typing import Any

from crewai.tools import tool as crew_tool

import amends
from amends.adapters.crewai import amends_tools
from tests.adapters.test_crewai import kickoff


class Reworded(list[Any]):
    """A script whose one call is worded anew in each attempt, and whose first answer is not good enough."""

    attempts = 0

    def __len__(self) -> int:
        return 2

    def __getitem__(self, place: Any) -> Any:
        if place == 0:
            self.attempts += 1
            return [("pay", {"order": "7", "note": f"attempt {self.attempts}"})]
        return "paid, with a receipt" if self.attempts > 1 else "paid"


def has_receipt(output):  # CrewAI reads annotations, and refuses postponed ones
    return ("receipt" in output.raw, output.raw)


def paid_by(guard: Any) -> list[str]:
    paid: list[str] = []

    @crew_tool("pay")
    def pay(order: str, note: str) -> str:
        """Pay an order."""
        paid.append(order)
        return f"paid {order}"

    script = Reworded()
    kickoff(guard([pay]), script, [], guardrail=has_receipt)
    assert script.attempts == 2, "it was to be done twice"
    return paid


def test_bare_the_second_attempt_pays_again() -> None:
    assert paid_by(list) == ["7", "7"]


def test_with_amends_it_pays_once() -> None:
    pay = amends.declare("pay", kind="pivot", key="order", ignore="rest")
    with amends.Runtime("memory:", tools=[pay]) as rt, rt.run("order-7"):
        assert paid_by(amends_tools) == ["7"]

"""The errors of budgets and costs; ``errors`` has them with all others."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from amends.error import Refused, UsageError
from amends.phrases import over_budget


class BadCost(UsageError):
    """What ``cost=`` says of this call is no cost, or its function raised; the call was not started."""

    default_hint = "let cost= give a number, a Cost, or a table of units and numbers for every call"

    def __init__(self, tool: str, *, why: str, run_id: str | None = None) -> None:
        super().__init__(f"{tool} was not started: its cost= says nothing that can be reserved ({why})", run_id=run_id)
        self.tool, self.why = tool, why


class BudgetExceeded(Refused):
    """The call would have passed a budget; nothing was started and nothing spent."""

    def __init__(
        self,
        tool: str,
        *,
        budget: Any,
        spent: Decimal,
        reserved: Decimal,
        asked: Decimal,
        left: Decimal,
        period: str | None = None,
        run_id: str | None = None,
    ) -> None:
        self.tool, self.budget, self.period = tool, budget, period
        self.spent, self.reserved, self.asked, self.left = spent, reserved, asked, left
        super().__init__(over_budget(self), run_id=run_id, hint="rt.budgets() shows what is spent and reserved of each")

    def for_model(self) -> str:
        return (
            f"Not run: {self}. {'Stop' if self.budget.unit == 'calls' else 'Ask for less, or stop'} and tell the user."
        )

"""How budgets stand and what calls have cost, in both colours. Each verb only drives its flow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amends import accounts
from amends.accounts import By
from amends.budget import BudgetState, CostLine

if TYPE_CHECKING:
    from amends.flow import Flow
    from amends.hub import Hub, View
    from amends.people import T


class BudgetDesk:
    """What a blocking runtime tells of money and of whatever else is counted."""

    if TYPE_CHECKING:
        _hub: Hub
        _view: View

        def _drive(self, flow: Flow[T]) -> T: ...

    def budgets(self, filter: str = "") -> list[BudgetState]:
        """How every budget stands now: spent, reserved for calls under way, left."""
        return self._drive(accounts.budget_states(self._hub, self._view, filter))

    def costs(self, by: By = "run", filter: str = "") -> list[CostLine]:
        """What calls have cost, by run, tool, agent or day; the filter is that of ``calls``."""
        return self._drive(accounts.cost_lines(self._view, by, filter))


class AsyncBudgetDesk:
    """The same, awaited."""

    if TYPE_CHECKING:
        _hub: Hub
        _view: View

        async def _drive(self, flow: Flow[T]) -> T: ...

    async def budgets(self, filter: str = "") -> list[BudgetState]:
        """How every budget stands now: spent, reserved for calls under way, left."""
        return await self._drive(accounts.budget_states(self._hub, self._view, filter))

    async def costs(self, by: By = "run", filter: str = "") -> list[CostLine]:
        """What calls have cost, by run, tool, agent or day; the filter is that of ``calls``."""
        return await self._drive(accounts.cost_lines(self._view, by, filter))

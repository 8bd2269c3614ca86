"""What a flow may ask of the ledger about budgets, besides starting and settling calls."""

from __future__ import annotations

from amends.budgetrows import SliceRow
from amends.ledger import StoreOp
from amends.record import dataclass


@dataclass(slots=True)
class ListBudgets(StoreOp[tuple[list[SliceRow], float]]):
    """A page of a tenant's slices, by name, and the ledger's time."""

    tenant: str
    after: str = ""
    limit: int = 200

"""Budgets in the ledger: their rows, what a call asks of them, and what a transaction can do with them.

A budget that many runs share is kept in slices, each with its own part of the cap, so that it is not one row for which
all of them wait. As in ``rows``: equality on indexed columns only. Amounts are decimals, written as text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from amends.flow import Op
from amends.record import dataclass


@dataclass(frozen=True, slots=True)
class SliceRow:
    """One slice of one budget in one period: ``allot`` is its part of the cap."""

    name: str
    tenant: str
    root: str
    """Of a budget per run: its root. Empty: many runs share it."""
    words: str
    """What the budget says, and whose it is, as JSON."""
    unit: str
    cap: str
    allot: str
    reserved: str
    spent: str
    period: str


SLICE_COLUMNS: Final = tuple(field.name for field in fields(SliceRow))


@dataclass(frozen=True, slots=True)
class Want:
    """What a call needs of one budget, in billionths."""

    unit: str
    cap: int
    per: str
    every: str
    tool: str
    then: str
    who: str
    """The run, agent or tool whose budget it is; empty for one of a tenant or of the whole ledger."""
    amount: int
    passes: bool = False
    """A person let this call pass the cap."""

    @property
    def holds(self) -> bool:
        """Whether a person is asked about what would pass the cap."""
        return self.then == "hold"


@dataclass(frozen=True, slots=True)
class Bill:
    """What a call costs, (unit, amount, what comes back), and the budgets that it comes out of."""

    costs: tuple[tuple[str, int, int], ...] = ()
    wants: tuple[Want, ...] = ()
    wide: bool = False
    """Look at every slice: the one that was asked first had not enough."""
    ask: tuple[str, str] = ("", "")
    """Id and nonce of the request that is made if a budget holds the call for a person."""


FREE: Final = Bill()


@dataclass(frozen=True, slots=True)
class Overrun:
    """The budget that a call would have passed, in billionths, with how it stood."""

    want: Want
    spent: int
    reserved: int
    asked: int
    period: str = ""
    tool: str = ""
    also: tuple[Overrun, ...] = ()
    """The others that it would have passed."""

    @property
    def left(self) -> int:
        """What was still there."""
        return max(0, self.want.cap - self.spent - self.reserved)


# ---- what a transaction can do ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FindSlice(Op["SliceRow | None"]):
    """The slice of this name, nobody else's until the transaction ends, where the database has such locks."""

    name: str


@dataclass(frozen=True, slots=True)
class AddSlice(Op[bool]):
    """Add a slice unless there is one of its name; false: somebody was faster."""

    row: SliceRow


@dataclass(frozen=True, slots=True)
class UpdateSlice(Op[SliceRow]):
    """Change columns of a slice that this transaction has found."""

    row: SliceRow
    changes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DropSlices(Op[int]):
    """Remove the slices of this root; how many there were."""

    root: str


@dataclass(frozen=True, slots=True)
class PageSlices(Op[list[SliceRow]]):
    """The slices of a tenant by name, above ``after``."""

    tenant: str
    after: str
    limit: int

"""Reading the record to check it: whole trees as they are written, page by page, each page from one snapshot."""

from __future__ import annotations

from typing import Final

from amends.approvalrows import ApprovalRow, DelegationRow
from amends.flow import Op
from amends.ledger import StoreOp
from amends.record import dataclass
from amends.rows import CallRow, EventRow, RunRow

ROWS_MAX: Final = 1_000_000
"""Runs, calls or requests of the trees of one page: whoever puts in more of them without events is found out by these."""


@dataclass(frozen=True, slots=True)
class Place:
    """How far the record was read: every tree up to ``done``, and of the tree ``within`` the first ``n`` events."""

    done: str = ""
    within: str = ""
    n: int = 0


@dataclass(frozen=True, slots=True)
class Chains:
    """Some trees, in the order of their roots, each with its events in their order.

    The rows are those of the trees that end here, as they stood when the last events of these were read. A tree that
    is longer than a page comes in several, and its rows with the last.
    """

    events: tuple[EventRow, ...]
    runs: tuple[RunRow, ...] = ()
    calls: tuple[CallRow, ...] = ()
    approvals: tuple[ApprovalRow, ...] = ()
    delegations: tuple[DelegationRow, ...] = ()
    next: Place | None = None
    """Where to go on; None: that was all."""


@dataclass(slots=True)
class ReadChains(StoreOp[Chains]):
    """The trees after this place, as they are written: nothing in them is decrypted."""

    place: Place = Place()
    alone: bool = False
    """Only the tree that the place is within."""
    limit: int = 2_000


# ---- what a transaction can do ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChainOf(Op[list[EventRow]]):
    """The events of a tree above this number, in their order."""

    root: str
    after: int
    limit: int


@dataclass(frozen=True, slots=True)
class ChainsAbove(Op[list[EventRow]]):
    """The events of all trees whose root comes after this one, tree by tree."""

    root: str
    limit: int


@dataclass(frozen=True, slots=True)
class RunsBetween(Op[list[RunRow]]):
    """The runs of the trees whose roots come after one and not after another; None: to the end."""

    above: str
    upto: str | None
    limit: int = ROWS_MAX


@dataclass(frozen=True, slots=True)
class CallsBetween(Op[list[CallRow]]):
    """The same, of calls."""

    above: str
    upto: str | None
    limit: int = ROWS_MAX


@dataclass(frozen=True, slots=True)
class ApprovalsBetween(Op[list[ApprovalRow]]):
    """The same, of requests for a yes."""

    above: str
    upto: str | None
    limit: int = ROWS_MAX


@dataclass(frozen=True, slots=True)
class DelegationsBetween(Op[list[DelegationRow]]):
    """The same, of delegations: each is the root of its own chain."""

    above: str
    upto: str | None
    limit: int = ROWS_MAX


@dataclass(frozen=True, slots=True)
class FindDelegation(Op["DelegationRow | None"]):
    """The delegation of this id."""

    id: str

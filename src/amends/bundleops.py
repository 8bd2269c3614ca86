"""Taking whole trees out of a ledger as they are written, and adding them to another one."""

from __future__ import annotations

from typing import Final

from amends.approvalrows import ApprovalRow
from amends.flow import Op
from amends.ledger import StoreOp
from amends.record import dataclass
from amends.rows import CallRow, EventRow, RunRow

EVENTS_MAX: Final = 1_000_000
"""Events that one tree may have to be taken out: it is held in memory."""


@dataclass(frozen=True, slots=True)
class Record:
    """A run tree, all of it; parents before children, the rest in ledger order."""

    runs: tuple[RunRow, ...]
    calls: tuple[CallRow, ...]
    events: tuple[EventRow, ...]
    approvals: tuple[ApprovalRow, ...]

    @property
    def root(self) -> RunRow:
        """The run that the others are inside of."""
        return self.runs[0]


@dataclass(slots=True)
class FindTrees(StoreOp[list[RunRow]]):
    """The roots of every generation of a run, oldest first; empty: there is no such run."""

    tenant: str
    id: str


@dataclass(slots=True)
class ReadRecord(StoreOp["Record | None"]):
    """One whole tree as it is written: nothing in it is decrypted."""

    root: str


@dataclass(slots=True)
class LoadRecords(StoreOp[list[str]]):
    """Add these trees of other ledgers, all or none; the roots of those that were not here before.

    With them one run of our own is written, that says so. What is here already stays as it is.
    """

    uid: str
    id: str
    """Of that run."""
    tenant: str
    owner: str
    records: tuple[Record, ...]


@dataclass(slots=True)
class HasLoaded(StoreOp[bool]):
    """Whether runs of other ledgers were ever loaded: then times do not ascend with places."""


# ---- what a transaction can do ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunsOf(Op[list[RunRow]]):
    """Every generation of the run with this id, oldest first."""

    tenant: str
    id: str

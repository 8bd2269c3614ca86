"""The record's own rows: what happened, in the order of the ledger and in the chain of its tree."""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter
from typing import Final

from amends.chain import body_of
from amends.flow import Op
from amends.record import dataclass


@dataclass(frozen=True, slots=True)
class EventRow:
    """One line of the record; ``seq`` is the ledger's own order."""

    seq: int
    at: float
    root: str
    run: str
    run_id: str
    tenant: str
    call: str
    what: str
    frm: str
    to_state: str
    by_whom: str
    epoch: int
    facts: str
    n: int
    """Its number among the events of its tree."""
    hash: str
    """Its link in the chain of its tree (``amends.chain``)."""

    @property
    def body(self) -> str:
        """The digest of what it says."""
        return body_of(*SAID(self))


EVENT_COLUMNS: Final = tuple(field.name for field in fields(EventRow))
SAID: Final = attrgetter(*EVENT_COLUMNS[2:-2])
"""What an event says, without its place and its moment: what ``body_of`` is of."""


# ---- what a transaction can do ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AddEvent(Op[int]):
    """Write an event at the end of its tree's chain and return its place in the ledger."""

    at: float
    root: str
    run: str
    run_id: str
    tenant: str
    call: str
    what: str
    frm: str
    to_state: str
    by_whom: str
    epoch: int
    facts: str

    @property
    def body(self) -> str:
        """The digest of what it says."""
        return body_of(*SAID(self))


@dataclass(frozen=True, slots=True)
class PageEvents(Op[list[EventRow]]):
    """Events in ledger order, above ``after``."""

    root: str | None
    tenant: str | None
    after: int
    limit: int

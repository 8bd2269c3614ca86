"""Marks: what a ledger says of itself, each once and by name. As in ``rows``: equality on indexed columns only."""

from __future__ import annotations

from dataclasses import fields
from typing import Final

from amends.flow import Op
from amends.record import dataclass


@dataclass(frozen=True, slots=True)
class MarkRow:
    """One thing that stays true of the ledger: who said it first has said it."""

    name: str
    value: str
    made_at: float


MARK_COLUMNS: Final = tuple(field.name for field in fields(MarkRow))


@dataclass(frozen=True, slots=True)
class FindMark(Op["MarkRow | None"]):
    """The mark of this name."""

    name: str


@dataclass(frozen=True, slots=True)
class AddMark(Op[bool]):
    """Add a mark unless there is one of its name; false: somebody was faster."""

    row: MarkRow


TIME: Final = "time"
"""The mark whose ``made_at`` is the latest moment that the ledger has seen: what has expired stays expired when a clock is
set back."""


@dataclass(frozen=True, slots=True)
class MoveTime(Op[None]):
    """Move the ledger's time on to this moment, unless it is there already or somebody else is moving it."""

    at: float

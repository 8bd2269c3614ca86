"""One statement: all that a flow over SQL asks of a connection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from amends.flow import Op

Result: TypeAlias = tuple[list[tuple[Any, ...]], int, int]
"""The rows, how many rows the statement met (not: really changed), and the id that an insert made."""


@dataclass(slots=True)
class Execute(Op[Result]):
    """One statement, inside the transaction that is open."""

    sql: str
    params: Sequence[Any]
    lasting: bool = False
    """Said with nearly every call: worth being prepared by hand."""

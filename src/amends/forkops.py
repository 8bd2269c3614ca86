"""What forking asks of the ledger besides ``ledger``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from amends.ledger import StoreOp
from amends.record import dataclass, field
from amends.rows import CallRow, RunRow


@dataclass(frozen=True, slots=True)
class Copied:
    """A call as the fork will have it, the call that it was copied from, and the state that one was seen in."""

    of: str
    seen: str
    row: CallRow


@dataclass(frozen=True, slots=True)
class Forked:
    """``how``: forked, taken (``run`` has that id), moved (the source is not where it was), back (``run``, whose calls
    would be shared, goes back or has gone).
    """

    how: Literal["forked", "taken", "moved", "back"]
    run: RunRow


@dataclass(slots=True)
class ForkRun(StoreOp[Forked]):
    """Add a run that shares the calls of another one up to a point; said in the record of both.

    ``runs``: the fork and what is inside it, parents first, with the state that each is to be in.
    """

    source: str
    runs: tuple[RunRow, ...]
    calls: tuple[Copied, ...]
    by: str
    proofs: Mapping[str, str] = field(default_factory=dict)
    """Of payloads that are encrypted on the way, by the row's id and the column (``amends.proofs``)."""


@dataclass(slots=True)
class ReadForks(StoreOp[list[RunRow]]):
    """The forks, open or committed, that stand on what this tree did; forks of forks too."""

    root: str

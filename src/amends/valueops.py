"""What a program reads through its run besides its calls: the clock, written down so that a replay reads the same."""

from __future__ import annotations

from typing import Final

from amends.ledger import StoreOp
from amends.record import dataclass

VALUE: Final = "value"
"""The event of a clock that was read; its time is what was read."""


@dataclass(slots=True)
class NoteValue(StoreOp["float | None"]):
    """Read the ledger's clock and write down that it was read; None when the run has ended."""

    run: str
    root: str
    owner: str
    epoch: int
    call: str
    """The call in whose body it is read; empty: in the program itself."""
    nonce: str

"""What the ledger is asked for its own chain. See ``ledger`` for the rest, and ``checkpoint`` for what it is."""

from __future__ import annotations

from typing import Final

from amends.checkpoint import HEADS_MAX
from amends.checkpointrows import CheckpointRow
from amends.ledger import StoreOp
from amends.record import dataclass

PLACES_MAX: Final = 200
"""So many events are looked up by number at once."""


@dataclass(slots=True)
class DraftCheckpoint(StoreOp["CheckpointRow | None"]):
    """What the next checkpoint would say, not signed yet; None: nothing has happened since the last one.

    One that says nothing new is still drafted where the last one was made with another key.
    """

    ledger: str
    """The ledger's name, should it have none yet."""
    key: str
    limit: int = HEADS_MAX


@dataclass(slots=True)
class WriteCheckpoint(StoreOp[bool]):
    """Put a checkpoint at the end of the chain; false: somebody else has, and it must be drafted anew."""

    row: CheckpointRow


@dataclass(slots=True)
class ReadCheckpoints(StoreOp[list[CheckpointRow]]):
    """A page of checkpoints in their order; ``after`` -1: only the newest."""

    after: int
    limit: int = 100


@dataclass(slots=True)
class ReadHashes(StoreOp[list[tuple[str, int, str]]]):
    """Tree, number and hash of those of these events that are there."""

    places: tuple[tuple[str, int], ...]

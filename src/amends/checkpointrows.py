"""The rows of the ledger's own chain, and what a transaction can do with them. See ``checkpoint``."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime
from typing import Final

from amends.checkpoint import Anchored, Checkpoint, checkpoint_hash, read_heads
from amends.flow import Op
from amends.record import dataclass


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """One checkpoint as it is stored."""

    n: int
    at: float
    ledger: str
    high: int
    """The place in the ledger up to which events were looked at."""
    gaps: str
    """Places below it that nobody had written to yet, as JSON ``[[from, to, since], …]``: they are looked at again."""
    heads: str
    """The newest event of each tree that has changed, as JSON ``[[root, n, hash], …]``."""
    prev: str
    hash: str
    key: str
    signature: str

    @property
    def true_hash(self) -> str:
        """What its hash must be."""
        return checkpoint_hash(
            n=self.n, at=self.at, ledger=self.ledger, high=self.high, gaps=self.gaps, heads=self.heads,
            prev=self.prev, key=self.key,
        )  # fmt: skip

    @property
    def anchored(self) -> Anchored:
        """What is kept of it outside the ledger."""
        return Anchored(self.ledger, self.n, self.at, self.hash, self.key, self.signature)

    def told(self) -> Checkpoint:
        """As people and hooks see it."""
        return Checkpoint(
            ledger=self.ledger,
            n=self.n,
            at=datetime.fromtimestamp(self.at, UTC),
            heads=len(read_heads(self.heads)),
            prev=self.prev,
            hash=self.hash,
            key=self.key,
            signature=self.signature,
        )


CHECKPOINT_COLUMNS: Final = tuple(field.name for field in fields(CheckpointRow))


@dataclass(frozen=True, slots=True)
class Head:
    """Of an event: its place, its tree, its number in it, and its hash."""

    seq: int
    root: str
    n: int
    hash: str


# ---- what a transaction can do ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewestCheckpoint(Op["CheckpointRow | None"]):
    """The end of the ledger's own chain."""


@dataclass(frozen=True, slots=True)
class PageCheckpoints(Op[list[CheckpointRow]]):
    """Checkpoints in their order, above ``after``."""

    after: int
    limit: int


@dataclass(frozen=True, slots=True)
class AddCheckpoint(Op[bool]):
    """Add a checkpoint unless there is one of its number; false: somebody was faster."""

    row: CheckpointRow


@dataclass(frozen=True, slots=True)
class PageHeads(Op[list[Head]]):
    """Places, trees, numbers and hashes of events in ledger order, above ``after``, up to ``upto`` if that is said."""

    after: int
    limit: int
    upto: int | None = None


@dataclass(frozen=True, slots=True)
class HashesAt(Op[list[tuple[str, int, str]]]):
    """Tree, number and hash of those of these events (tree and number) that are there, in any order."""

    places: tuple[tuple[str, int], ...]

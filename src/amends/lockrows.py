"""Locks between runs: their rows, and what a transaction of the ledger can do with them.

A lock is a name of its tenant that belongs to one root run until that has ended. A wait is what a root wanted and
somebody else had, so that people see it and a deadlock is found. As in ``rows``: equality on indexed columns only.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Final

from amends.flow import Op
from amends.record import dataclass


@dataclass(frozen=True, slots=True)
class LockRow:
    """One name, held by one root run; ``call`` and ``tool`` are those that wanted it first."""

    tenant: str
    name: str
    root: str
    run_id: str
    call: str
    tool: str
    taken_at: float


@dataclass(frozen=True, slots=True)
class WaitRow:
    """A root run that wants a name which another one has; ``seen_at`` is when it last asked."""

    root: str
    tenant: str
    name: str
    run_id: str
    tool: str
    since: float
    seen_at: float


@dataclass(frozen=True, slots=True)
class Wanted:
    """The names that a call needs. ``waits``: whoever asks will ask again; ``waited``: it has asked before."""

    names: tuple[str, ...] = ()
    waits: bool = False
    waited: bool = False


NOTHING: Final = Wanted()


@dataclass(frozen=True, slots=True)
class Contention:
    """Why locks were not taken: who has one of them, and since when."""

    name: str
    run_id: str
    """Empty: somebody was faster just now; who it was is known to whoever asks again."""
    root: str
    since: float
    now: float
    victim: str = ""
    """Waiting would never have ended, and the run that asked is the one that goes back: why."""


LOCK_COLUMNS: Final = tuple(field.name for field in fields(LockRow))
WAIT_COLUMNS: Final = tuple(field.name for field in fields(WaitRow))


# ---- what a transaction can do ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FindLocks(Op[list[LockRow]]):
    """Those of these names that somebody holds, by name."""

    tenant: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TakeLock(Op[bool]):
    """Add a lock unless somebody has the name; false: somebody was faster."""

    row: LockRow


@dataclass(frozen=True, slots=True)
class DropLock(Op[None]):
    """Remove one lock of this root."""

    root: str
    name: str


@dataclass(frozen=True, slots=True)
class FreeLocks(Op[int]):
    """Remove every lock of this root; how many there were."""

    root: str


@dataclass(frozen=True, slots=True)
class LocksOf(Op[list[LockRow]]):
    """The locks of this root, by name."""

    root: str


@dataclass(frozen=True, slots=True)
class PageLocks(Op[list[LockRow]]):
    """The locks of a tenant by name, above ``after``."""

    tenant: str
    after: str
    limit: int


@dataclass(frozen=True, slots=True)
class SeeWait(Op[bool]):
    """Note that this root still waits for this name; true when it is new."""

    row: WaitRow


@dataclass(frozen=True, slots=True)
class WaitsOf(Op[list[WaitRow]]):
    """What this root waits for, by name."""

    root: str


@dataclass(frozen=True, slots=True)
class WaitsFor(Op[list[WaitRow]]):
    """Who waits for this name, longest first."""

    tenant: str
    name: str


@dataclass(frozen=True, slots=True)
class DropWaits(Op[None]):
    """Forget that this root waits, for these names or, without any, for all."""

    root: str
    names: tuple[str, ...] = ()

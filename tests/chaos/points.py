"""Where a process may be told to die or to freeze: around every operation of the ledger and every effect.

Nothing of amends knows about it: the store is wrapped, its clock is ours, and the effects are ours.
"""

from __future__ import annotations

import functools
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from amends.drivers.wakeup import Telling
from amends.ledger import operations, plain
from amends.ledger.operations import StoreOp
from amends.ledger.store import Store

T = TypeVar("T")

NAMES: Final[dict[type[Any], str]] = {
    operations.OpenRun: "open",
    operations.OpenChild: "open child",
    operations.ClaimRun: "claim",
    operations.RenewLeases: "renewal",
    operations.ReleaseLease: "let go",
    operations.AdmitCall: "admit",
    plain.AdmitPlain: "admit",
    operations.StartCall: "start",
    operations.PrepareCall: "prepare",
    operations.DropCall: "drop",
    operations.SettleCall: "settle",
    plain.SettlePlain: "settle",
    plain.FailPlain: "settle",
    operations.NoteProbe: "probe noted",
    operations.ResolveCall: "resolve",
    operations.BeginRollback: "rollback",
    plain.TurnPlain: "rollback",
    operations.BeginCompensation: "compensation",
    operations.SettleCompensation: "compensation settle",
    plain.UndonePlain: "compensation settle",
    operations.DecideCommit: "commit decision",
    operations.CloseRun: "close",
}
EFFECTS: Final = ("effect", "pivot effect", "compensation effect")

CALLERS: Final = tuple(
    f"{when} {name}"
    for name in (
        "open", "open child", "admit", "pivot", "start", "settle", "rollback", "compensation", "compensation settle",
        "commit decision", "close", "renewal", *EFFECTS,
    )
    for when in ("before", "after")
)  # fmt: skip
WORKERS: Final = tuple(
    f"{when} {name}"
    for name in (
        "claim", "let go", "start", "settle", "resolve", "probe noted", "rollback", "compensation",
        "compensation settle", "commit decision", "close", "renewal", *EFFECTS,
    )
    for when in ("before", "after")
)  # fmt: skip
DURING: Final = ("during claim", "during admit", "during settle", "during commit decision", "during compensation")
"""Inside the transaction: only where the store asks us for the time while it writes."""
RARE: Final = ("open child", "pivot", "start", "rollback", "compensation", "let go", "renewal", "resolve", "probe")
"""Passed a few times in a process's life."""


@dataclass(slots=True)
class Fate:
    """What becomes of this process, where, and at the how many-th passing."""

    point: str = ""
    passes: int = 0
    number: int = signal.SIGKILL

    def passing(self, point: str) -> None:
        """The process is at a named point; perhaps it ends here."""
        if point != self.point:
            return
        self.passes -= 1
        if self.passes == 0:
            os.kill(os.getpid(), self.number)


class MortalStore:
    """A ledger whose user may die before, inside and after every operation."""

    def __init__(self, url: str, make: Callable[[Callable[[], float]], Store], fate: Fate) -> None:
        self.url, self.fate = url, fate
        self.inside: Counter[str] = Counter()
        self._make = make

    @functools.cached_property
    def inner(self) -> Store:
        """The store itself, made in the process that uses it."""
        return self._make(self._clock)

    def open(self, *, create: bool) -> bool:
        """As the store does."""
        return self.inner.open(create=create)

    def perform(self, op: StoreOp[T]) -> T:
        """One operation, if we live to see it."""
        name = self._before(op)
        try:
            answer = self.inner.perform(op)
        finally:
            self.inside[name] -= 1
        self.fate.passing(f"after {name}")
        return answer

    async def perform_async(self, op: StoreOp[T]) -> T:
        """The same from an event loop."""
        name = self._before(op)
        try:
            answer = await self.inner.perform_async(op)
        finally:
            self.inside[name] -= 1
        self.fate.passing(f"after {name}")
        return answer

    def watch(self, ring: Callable[[str], None]) -> bool:
        """As the store does, if it can."""
        return isinstance(self.inner, Telling) and self.inner.watch(ring)

    def close(self) -> None:
        """As the store does."""
        self.inner.close()

    def _before(self, op: StoreOp[Any]) -> str:
        name = NAMES.get(type(op), "read")
        if isinstance(op, operations.AdmitCall) and op.kind == "pivot":
            name = "pivot"
        self.fate.passing(f"before {name}")
        self.inside[name] += 1
        return name

    def _clock(self) -> float:
        """The time, for a store that asks in the middle of a transaction."""
        if self.inside[self.fate.point.removeprefix("during ")] > 0:
            self.fate.passing(self.fate.point)
        return time.time()

"""What a ledger answers to the operations of ``ledger``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from amends.approvalrows import ApprovalRow
from amends.budgetrows import Overrun
from amends.lockrows import Contention, LockRow, WaitRow
from amends.record import dataclass
from amends.rows import CallRow, RunRow


@dataclass(frozen=True, slots=True)
class Opened:
    """``how``: fresh, resumed, ended, busy, conflict, foreign, refused."""

    how: Literal["fresh", "resumed", "ended", "busy", "conflict", "foreign", "refused"]
    run: RunRow
    now: float = 0.0


@dataclass(frozen=True, slots=True)
class Renewed:
    """Which trees are still ours, with the goal each has by now.

    ``given_back``: let go or ended under our own epoch, so taken over by nobody. ``busy``: somebody else's transaction
    has the row at this moment, so nothing is known of it.
    """

    goals: Mapping[str, str]
    given_back: frozenset[str] = frozenset()
    busy: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Admission:
    """What the ledger says to a request.

    ``verdict``: start, replay, failed (recorded), staged, held, void, wait, locked, doubt, retry, refused, ended,
    conflict, rejected, spent, again (and look at every slice of its budgets). ``run`` is told where the answer is
    about a run: not for a start or a replay.
    """

    verdict: str
    call: CallRow | None = None
    twin: CallRow | None = None
    run: RunRow | None = None
    law: str = ""
    missing: tuple[str, ...] = ()
    unsettled: tuple[str, ...] = ()
    pivot: str = ""
    lock: Contention | None = None
    over: Overrun | None = None
    approval: ApprovalRow | None = None
    void: str = ""
    """Why an approval counts for nothing, ``approval`` being the request made instead if there is one; what a rule says."""


@dataclass(frozen=True, slots=True)
class Settled:
    """``fenced``: the ledger did not take it, the run has another owner by now; kept as evidence."""

    call: CallRow
    fenced: bool = False


@dataclass(frozen=True, slots=True)
class Rollback:
    """``how``: rolling, deferred (a pivot is in flight: the goal is kept), refused (it has passed), ended, stale (the
    tree is not where it was when the rollback was planned), forked (forks stand on it, and nobody said that it goes
    back all the same).
    """

    how: Literal["rolling", "deferred", "refused", "ended", "stale", "forked"]
    run: RunRow
    tree: Tree | None = None
    """Where it is rolling: the run and what is inside it, as this transaction left them."""
    forks: tuple[RunRow, ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """``how``: committed, forward (decided: run what is staged), pivot (start it first), early (its pivot may not
    start: ``missing``), unsettled, locked (what is staged needs what another run has), over (it costs more than a
    budget has), rollback, ended.
    """

    how: Literal["committed", "forward", "pivot", "early", "unsettled", "locked", "over", "rollback", "ended"]
    run: RunRow
    calls: tuple[CallRow, ...] = ()
    children: tuple[RunRow, ...] = ()
    missing: tuple[str, ...] = ()
    lock: Contention | None = None
    over: Overrun | None = None


@dataclass(frozen=True, slots=True)
class Swept:
    """What one transaction of gc removed, or would; ``after``: where the next one begins, None at the end."""

    runs: int
    calls: int
    freed: int
    """Bytes of text."""
    kept: tuple[tuple[str, int], ...]
    """Why ended trees were left whole, and how many."""
    after: tuple[float, str] | None


@dataclass(frozen=True, slots=True)
class Tree:
    """A run with its descendants and all their calls, read in one transaction."""

    run: RunRow
    runs: tuple[RunRow, ...]
    calls: tuple[CallRow, ...]
    now: float
    locks: tuple[LockRow, ...] = ()
    approvals: tuple[ApprovalRow, ...] = ()


@dataclass(frozen=True, slots=True)
class HeldLock:
    """One lock, the root run that has it, and who waits for it now."""

    lock: LockRow
    root: RunRow
    waits: tuple[WaitRow, ...]
    now: float

"""The ledger's rows, and the few things a store can do with them inside one transaction.

The store's operations (``store/``) are flows over these: written once, run on dicts in memory, on SQL
through a blocking connection, or on SQL through an async one. Conditions are only ever equality on indexed
columns, so that a new store has little to prove.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from amends.eventrows import EVENT_COLUMNS as EVENT_COLUMNS
from amends.eventrows import AddEvent as AddEvent
from amends.eventrows import EventRow as EventRow
from amends.eventrows import PageEvents as PageEvents
from amends.flow import Op
from amends.record import dataclass


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run. ``owner``, ``epoch``, ``lease_until`` and ``wake_at`` mean something on roots only."""

    uid: str
    id: str
    tenant: str
    generation: int
    root: str
    parent: str
    state: str
    created_at: float
    came_from: str = ""
    goal: str = ""
    goal_by: str = ""
    goal_why: str = ""
    plan: str = ""
    """The plan that a person's rollback was given by; empty: none was."""
    policy: str = "rollback"
    order_mode: str = "strict"
    agent: str = ""
    principal: str = ""
    input: str = ""
    input_digest: str = ""
    output: str = ""
    tags: str = "[]"
    deadline_at: float | None = None
    owner: str = ""
    opener: str = ""
    epoch: int = 0
    lease_s: float = 0.0
    lease_until: float = 0.0
    wake_at: float | None = None
    suspended: int = 0
    history: int = 0
    interrupted: int = 0
    pivot: str = ""
    """The pivot that was started last: in flight until the run is ``pivoted`` or the call is settled."""
    staged_pivot: str = ""
    locked: int = 0
    """On roots: the tree has named locks, so there may be some to free, or to take with its pivot."""
    charged: int = 0
    """On roots: a staged call costs something, so there may be something to reserve with a pivot."""
    budgets: str = ""
    """On roots: the budgets that the run was opened with, as JSON; empty: none."""
    causes: str = "[]"
    closed_at: float | None = None
    gone_at: float | None = None
    """When gc removed the payloads of the whole tree."""
    origin: str = ""
    """The ledger that it was loaded from: a record, that nothing here works with; empty: it is ours."""
    forked_from: str = ""
    """The run that this one, of a fork, was copied from; empty: it is no fork, or was begun in it."""
    forked_at: str = ""
    """Of a fork, as JSON: where that was; of a run inside it: what it was in each run that the fork stands on."""
    lease_boot: str = ""
    """On roots: the boot whose monotonic clock ``lease_mono`` is of; empty: the owner did not say."""
    lease_mono: float | None = None
    """When the lease ends on the owner's monotonic clock. A wall clock that is set does not move it."""
    silent_boot: str = ""
    """The boot that first noticed that the lease seems to have ended; empty: nobody has, or a heartbeat came since."""
    silent_mono: float | None = None
    silent_at: float | None = None
    """When that was, on the monotonic clock of that boot and in ledger time."""

    @property
    def lost_at(self) -> float | None:
        """When gc removed its input or its output; None: neither was removed."""
        return lost_at(self.input, self.output)

    @property
    def phase(self) -> str:
        """The state that matters for the law: where a blocked run stands."""
        return self.came_from if self.state == "blocked" else self.state


@dataclass(frozen=True, slots=True)
class CallRow:
    """One call: a key's generation, its attempts, and its compensation's own attempts."""

    id: str
    seq: int
    run: str
    root: str
    run_id: str
    tenant: str
    tool: str
    version: str
    kind: str
    key: str
    generation: int
    ident: str
    digest: str
    args: str
    state: str
    created_at: float
    created_epoch: int
    asked_epoch: int
    scope: str = "run"
    declared: int = 0
    again: str = ""
    call_ref: str = ""
    parent: str = ""
    grp: str = ""
    reason: str = ""
    twin: str = ""
    alias: str = ""
    at_commit: int = 0
    undoable: int = 0
    locks: str = ""
    """The names of what it must hold when it first starts, as JSON; empty: none."""
    cost: str = ""
    """What it costs, and what of it is reserved or spent of which budgets, as JSON; empty: nothing."""
    violation: str = ""
    attempt: int = 0
    result: str | None = None
    loss: str = ""
    error: str = ""
    why: str = ""
    evidence: str = ""
    learned: str = ""
    """What probes and late returns said of it while it was in doubt, as JSON, newest last; empty: nothing."""
    late: int = 0
    first_at: float | None = None
    started_at: float | None = None
    settled_at: float | None = None
    settled_seq: int = 0
    retry_at: float | None = None
    tries_from: int = 0
    """Attempts before this one no longer count: a person said try again."""
    quiet_boot: str = ""
    quiet_mono: float | None = None
    """From when on, on which host's monotonic clock, nothing new can have been sent; None: still in flight."""
    quiet_left: float | None = None
    """How long that still was, settle delay included, when somebody last watched: what another host goes on from."""
    probes: int = 0
    probe_at: float | None = None
    agent: str = ""
    principal: str = ""
    replays: int = 0
    comp_attempt: int = 0
    comp_from: int = 0
    comp_error: str = ""
    comp_gave_up: int = 0
    comp_blind: int = 0
    """Compensated while nobody knew whether there was anything to take back."""
    comp_at: float | None = None
    comp_settled_at: float | None = None
    comp_retry_at: float | None = None
    comp_boot: str = ""
    comp_mono: float | None = None
    approval: str = ""
    """The newest request for a person's yes to it; empty: it needed none."""
    accepts: str = ""
    """Of a tool that nobody declared: the rule whose author takes what it leaves behind."""
    shared: str = ""
    """In a fork: the call of another run that this one stands for, which alone had, and keeps, the effect."""

    @property
    def is_loaded(self) -> bool:
        """Of a run that was loaded from another ledger."""
        return self.key.startswith(LOADED)

    @property
    def in_question(self) -> int:
        """The attempt, of the call or of its compensation, that nobody knows the outcome of; 0: there is none."""
        return {"in_doubt": self.attempt, "compensation_in_doubt": self.comp_attempt}.get(self.state, 0)

    @property
    def is_staged(self) -> bool:
        """Accepted, waiting for the pivot or the commit; past it, for a lock."""
        return self.reason in ("order", "lock") and self.state in ("held", "ready")

    @property
    def lost_at(self) -> float | None:
        """When gc removed its arguments or its result: no body of ours can be given them any more; None: all is there."""
        return lost_at(self.args, self.result)


LOADED: Final = "loaded:"
"""How the keys of calls begin whose run was loaded from another ledger: no request of ours has such a key."""
GONE: Final = "gone:"
"""What gc removed leaves this and its time in its place: no JSON begins so, and nothing reads as if it had been empty."""
PLAIN: Final = frozenset({"", "null", "{}", "[]"})
"""What says nothing of anybody: it stays, and is answered from the record for ever."""


def removed(text: str, at: float) -> str:
    """A payload with its words gone; what has none, or lost them before, as it is."""
    return text if text in PLAIN or text.startswith(GONE) else f"{GONE}{at!r}"


def lost_at(*texts: str | None) -> float | None:
    """When gc removed one of these payloads; None: all are as they were written."""
    for text in texts:
        if text is not None and text.startswith(GONE):
            return float(text.removeprefix(GONE))
    return None


def needs_tool(root: RunRow, call: CallRow) -> bool:
    """Whether going on with this tree may need the tool of this call: its body, its probe or its compensation."""
    if call.kind == "read" or call.shared or call.state in ("failed", "compensated", "refused", "dropped", "residue"):
        return False
    if call.state == "succeeded" and call.kind == "pivot":
        return False  # it stands whatever happens: no body of it is ever needed again
    return call.state != "succeeded" or (root.phase != "pivoted" and root.goal != "commit")


RUN_COLUMNS: Final = tuple(field.name for field in fields(RunRow))
CALL_COLUMNS: Final = tuple(field.name for field in fields(CallRow))

Changes = Mapping[str, Any]


# ---- what a transaction can do ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Now(Op[float]):
    """Ledger time: the latest of the clock, the newest event, and the mark that heartbeats and approvals move on."""


@dataclass(frozen=True, slots=True)
class LedgerClock(Op[float]):
    """The ledger's clock as it is set now. Behind ledger time, which then stands still, if it was set back."""


@dataclass(frozen=True, slots=True)
class FindRun(Op["RunRow | None"]):
    """The run of this uid, its root locked until the transaction ends where the database has such locks."""

    uid: str
    skip: bool = False
    """Answer None instead of waiting when another transaction has it locked: who claims takes the next one."""
    peek: bool = False
    """A run of another tree, only looked at: two trees that look at each other must not wait for each other."""


@dataclass(frozen=True, slots=True)
class FindRunById(Op["RunRow | None"]):
    """The newest generation of the run with this id."""

    tenant: str
    id: str


@dataclass(frozen=True, slots=True)
class ListTree(Op[list[RunRow]]):
    """The root and all its descendants, parents first."""

    root: str


@dataclass(frozen=True, slots=True)
class ListDue(Op[list[RunRow]]):
    """Roots for which recovery has something to do now, longest waiting first."""

    now: float
    tenant: str | None
    limit: int


@dataclass(frozen=True, slots=True)
class ListOwned(Op[list[RunRow]]):
    """Roots that have an owner now; whether it lives is for the caller to find out."""

    tenant: str | None
    limit: int


@dataclass(frozen=True, slots=True)
class PageRuns(Op[list[RunRow]]):
    """Runs, newest first, below ``before`` (a uid's rowid order is its creation time and uid)."""

    tenant: str | None
    states: tuple[str, ...]
    before: tuple[float, str] | None
    limit: int


@dataclass(frozen=True, slots=True)
class PageClosed(Op[list[RunRow]]):
    """Roots that ended before this time and still have their payloads, longest ended first, above ``after``."""

    before: float
    tenant: str | None
    after: tuple[float, str] | None
    limit: int


@dataclass(frozen=True, slots=True)
class InsertRun(Op[None]):
    """Add a run."""

    row: RunRow


@dataclass(frozen=True, slots=True)
class UpdateRun(Op[RunRow]):
    """Change columns of a run; a change of ``state`` is guarded by the table of moves."""

    row: RunRow
    changes: Changes


@dataclass(frozen=True, slots=True)
class FindCall(Op["CallRow | None"]):
    """The call of this id; its root is locked as that of a run is."""

    id: str


@dataclass(frozen=True, slots=True)
class FindKey(Op["CallRow | None"]):
    """The newest generation of this key; one of another tree may change at any time."""

    key: str


@dataclass(frozen=True, slots=True)
class ListGenerations(Op[list[CallRow]]):
    """Every generation of this key, oldest first."""

    key: str


@dataclass(frozen=True, slots=True)
class ListCalls(Op[list[CallRow]]):
    """The calls of a tree, in ledger order; only these states if any are given."""

    root: str
    states: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PageCalls(Op[list[CallRow]]):
    """Calls of the whole ledger, newest first, below ``before``; of one tool, if one is named."""

    tenant: str | None
    states: tuple[str, ...]
    before: int | None
    limit: int
    tool: str = ""


@dataclass(frozen=True, slots=True)
class InsertCall(Op[None]):
    """Add a call; its key and generation must be new."""

    row: CallRow


@dataclass(frozen=True, slots=True)
class UpdateCall(Op[CallRow]):
    """Change columns of a call; a change of ``state`` is guarded by the table of moves."""

    row: CallRow
    changes: Changes

"""The ledger's rows, and the few things a store can do with them inside one transaction.

The store's operations (``store/``) are flows over these: written once, run on dicts in memory, on SQL
through a blocking connection, or on SQL through an async one. Conditions are only ever equality on indexed
columns, so that a new store has little to prove.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, Final, Literal, TypeAlias, get_args
from unicodedata import category, normalize

from amends.encoding.chain import Anchored, Checkpoint, body_of, checkpoint_hash, read_heads
from amends.encoding.dataclass import dataclass
from amends.ledger.flow import Flow, Op
from amends.model import ApprovalState

# ---- The record's own rows: what happened, in the order of the ledger and in the chain of its tree


@dataclass(frozen=True, slots=True)
class EventRow:
    """One line of the record; ``seq`` is the ledger's own order."""

    seq: int
    at: float
    root: str
    run: str
    run_id: str
    tenant: str
    call: str
    what: str
    frm: str
    to_state: str
    by_whom: str
    epoch: int
    facts: str
    n: int
    """Its number among the events of its tree."""
    hash: str
    """Its link in the chain of its tree (``amends.encoding.chain``)."""

    @property
    def body(self) -> str:
        """The digest of what it says."""
        return body_of(*SAID(self))


EVENT_COLUMNS: Final = tuple(field.name for field in fields(EventRow))
SAID: Final = attrgetter(*EVENT_COLUMNS[2:-2])
"""What an event says, without its place and its moment: what ``body_of`` is of."""


# ---- what a transaction can do ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AddEvent(Op[int]):
    """Write an event at the end of its tree's chain and return its place in the ledger."""

    at: float
    root: str
    run: str
    run_id: str
    tenant: str
    call: str
    what: str
    frm: str
    to_state: str
    by_whom: str
    epoch: int
    facts: str

    @property
    def body(self) -> str:
        """The digest of what it says."""
        return body_of(*SAID(self))


@dataclass(frozen=True, slots=True)
class PageEvents(Op[list[EventRow]]):
    """Events in ledger order, above ``after``."""

    root: str | None
    tenant: str | None
    after: int
    limit: int


# ---- The ledger's rows, and the few things a store can do with them inside one transaction

# The store's operations (``store/``) are flows over these: written once, run on dicts in memory, on SQL
# through a blocking connection, or on SQL through an async one. Conditions are only ever equality on indexed
# columns, so that a new store has little to prove.


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


# ---- Approvals: their rows, and what a transaction of the ledger can do with them

# A request is asked for with a call, decided by people, and used up in the transaction that starts the call. As in
# ``rows``: equality on indexed columns only.


APPROVAL_STATES: Final[tuple[ApprovalState, ...]] = get_args(ApprovalState)
BUDGET: Final = "budget:"
"""How the policy of a request begins that was made because a call would pass a cap."""
OPEN: Final = ("pending", "approved")
"""What a person may still decide, or a call may still use."""


@dataclass(frozen=True, slots=True)
class ApprovalRow:
    """One request for a person's yes to exactly one call and generation."""

    id: str
    seq: int
    """The place of its first event."""
    call: str
    run: str
    """The run that asked; a staged call may since have been passed to its parent."""
    root: str
    run_id: str
    tenant: str
    tool: str
    version: str
    principal: str
    agent: str
    digest: str
    nonce: str
    state: str
    needed: int
    roles: str
    reasons: str
    rule: str
    """Why it is asked, in words."""
    policy: str
    given: str
    """Who said yes, as JSON: by, for, roles, why, at, bypass."""
    requested_at: float
    expires_at: float
    use_key: str = ""
    """Which tool by which agent, for rules about a first use."""
    residue: str = ""
    """``accept``: who wrote the rule takes what it leaves behind."""
    follows: str = ""
    """The request that this one replaces."""
    by_whom: str = ""
    reason: str = ""
    decided_at: float | None = None
    used_at: float | None = None
    used_seq: int = 0
    """The place of the event that used it up."""
    told_at: float | None = None
    tell_at: float | None = None
    """When somebody is to tell people of it; None: they were told, it was given up, or need not be."""
    tells: int = 0
    """How often that was begun."""
    teller: str = ""
    """Whose turn it is until then; empty: anybody's."""
    editors: str = ""
    """Who wrote any part of what is asked for in place of who asked first, as JSON; empty: nobody. Each is an asker."""

    @property
    def edited_by(self) -> tuple[str, ...]:
        """Return everybody who edited it, first to last."""
        return tuple(json.loads(self.editors)) if self.editors else ()

    @property
    def is_about_money(self) -> bool:
        """Whether it was made because the call would pass a budget; a yes lets it."""
        return self.policy.startswith(BUDGET)

    def lives(self, now: float) -> bool:
        """Whether it may still be decided or used."""
        return self.state in OPEN and self.expires_at > now

    def state_at(self, now: float) -> str:
        """The state that matters: a request that nobody touched since it ran out has expired."""
        return "expired" if self.state in OPEN and self.expires_at <= now else self.state

    @property
    def yeses(self) -> list[dict[str, Any]]:
        """Who said yes."""
        said: list[dict[str, Any]] = json.loads(self.given)
        return said


def person(name: str) -> str:
    """Whose name this is: other capitals, other spellings of a letter and what nobody sees make no other person."""
    plain = name if name.isascii() else "".join(one for one in normalize("NFKC", name) if category(one) != "Cf")
    return plain.strip().casefold()


Tell: TypeAlias = Callable[[ApprovalRow], Flow[None]]
"""Tells people that they are asked, where a process has a way to."""

APPROVAL_COLUMNS: Final = tuple(field.name for field in fields(ApprovalRow))


@dataclass(frozen=True, slots=True)
class DelegationRow:
    """One person's word that another may decide for them, for a while."""

    id: str
    tenant: str
    by_whom: str
    to_whom: str
    until_at: float
    why: str
    made_at: float
    seq: int
    """The place of its event. One without an event counts for nothing."""

    @property
    def root(self) -> str:
        """Return the chain that its one event is in: its own."""
        return self.id


DELEGATION_COLUMNS: Final = tuple(field.name for field in fields(DelegationRow))


@dataclass(frozen=True, slots=True)
class Need:
    """What the rules say of a request that may not simply start. ``id`` and ``nonce``: of the request to be made."""

    id: str
    nonce: str
    decision: Literal["approve", "refuse"] = "approve"
    needed: int = 1
    roles: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    expires_s: float = 86_400.0
    why: str = ""
    policy: str = ""
    first_use: bool = False
    residue: str = ""
    editors: tuple[str, ...] = ()
    """Who wrote what is asked for, besides who asked first."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Under what a recorded call may start now: the tool's version here, what the rules say of it, what comes first."""

    version: str
    need: Need | None = None
    after: tuple[str, ...] = ()
    advise: bool = False
    """The ordering law is only advice here."""


@dataclass(frozen=True, slots=True)
class Unapproved:
    """Why a call was not started: its request is not decided, or void for this reason."""

    call: CallRow
    approval: ApprovalRow | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Requested:
    """A request with its call, and the ledger's time."""

    approval: ApprovalRow
    call: CallRow
    now: float


@dataclass(frozen=True, slots=True)
class Ruled:
    """What became of a person's word. ``void``: why it counts for nothing."""

    approval: ApprovalRow
    call: CallRow
    now: float
    void: str = ""


TermsOf: TypeAlias = Mapping[str, Terms]
"""By the id of a call."""


# ---- what a transaction can do ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FindApproval(Op["ApprovalRow | None"]):
    """The request of this id; its root is locked as that of a call is."""

    id: str


@dataclass(frozen=True, slots=True)
class ApprovalsOf(Op[list[ApprovalRow]]):
    """Every request of a tree, oldest first."""

    root: str


@dataclass(frozen=True, slots=True)
class PageApprovals(Op[list[ApprovalRow]]):
    """Requests of the whole ledger, newest first, below ``before``."""

    tenant: str | None
    states: tuple[str, ...]
    before: int | None
    limit: int


@dataclass(frozen=True, slots=True)
class ListTells(Op[list[ApprovalRow]]):
    """Requests that somebody is to be told of by now, longest waiting first."""

    now: float
    tenant: str | None
    limit: int


@dataclass(frozen=True, slots=True)
class FindUse(Op[bool]):
    """Whether this tool was used by this agent after somebody approved it."""

    use: str


@dataclass(frozen=True, slots=True)
class InsertApproval(Op[None]):
    """Add a request."""

    row: ApprovalRow


@dataclass(frozen=True, slots=True)
class UpdateApproval(Op[ApprovalRow]):
    """Change columns of a request that is still in the state that was read."""

    row: ApprovalRow
    changes: Changes


@dataclass(frozen=True, slots=True)
class AddDelegation(Op[bool]):
    """Add a person's word unless it is there; false: it was."""

    row: DelegationRow


@dataclass(frozen=True, slots=True)
class DelegationsTo(Op[list[DelegationRow]]):
    """For whom this person may decide, newest last."""

    tenant: str
    to_whom: str


# ---- Budgets in the ledger: their rows, what a call asks of them, and what a transaction can do with them

# A budget that many runs share is kept in slices, each with its own part of the cap, so that it is not one row for which
# all of them wait. As in ``rows``: equality on indexed columns only. Amounts are decimals, written as text.


@dataclass(frozen=True, slots=True)
class SliceRow:
    """One slice of one budget in one period: ``allot`` is its part of the cap."""

    name: str
    tenant: str
    root: str
    """Of a budget per run: its root. Empty: many runs share it."""
    words: str
    """What the budget says, and whose it is, as JSON."""
    unit: str
    cap: str
    allot: str
    reserved: str
    spent: str
    period: str


SLICE_COLUMNS: Final = tuple(field.name for field in fields(SliceRow))


@dataclass(frozen=True, slots=True)
class Want:
    """What a call needs of one budget, in billionths."""

    unit: str
    cap: int
    per: str
    every: str
    tool: str
    then: str
    who: str
    """The run, agent or tool whose budget it is; empty for one of a tenant or of the whole ledger."""
    amount: int
    passes: bool = False
    """A person let this call pass the cap."""

    @property
    def holds(self) -> bool:
        """Whether a person is asked about what would pass the cap."""
        return self.then == "hold"


@dataclass(frozen=True, slots=True)
class Bill:
    """What a call costs, (unit, amount, what comes back), and the budgets that it comes out of."""

    costs: tuple[tuple[str, int, int], ...] = ()
    wants: tuple[Want, ...] = ()
    wide: bool = False
    """Look at every slice: the one that was asked first had not enough."""
    ask: tuple[str, str] = ("", "")
    """Id and nonce of the request that is made if a budget holds the call for a person."""


FREE: Final = Bill()


@dataclass(frozen=True, slots=True)
class Overrun:
    """The budget that a call would have passed, in billionths, with how it stood."""

    want: Want
    spent: int
    reserved: int
    asked: int
    period: str = ""
    tool: str = ""
    also: tuple[Overrun, ...] = ()
    """The others that it would have passed."""

    @property
    def left(self) -> int:
        """What was still there."""
        return max(0, self.want.cap - self.spent - self.reserved)


# ---- what a transaction can do ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FindSlice(Op["SliceRow | None"]):
    """The slice of this name, nobody else's until the transaction ends, where the database has such locks."""

    name: str


@dataclass(frozen=True, slots=True)
class AddSlice(Op[bool]):
    """Add a slice unless there is one of its name; false: somebody was faster."""

    row: SliceRow


@dataclass(frozen=True, slots=True)
class UpdateSlice(Op[SliceRow]):
    """Change columns of a slice that this transaction has found."""

    row: SliceRow
    changes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DropSlices(Op[int]):
    """Remove the slices of this root; how many there were."""

    root: str


@dataclass(frozen=True, slots=True)
class PageSlices(Op[list[SliceRow]]):
    """The slices of a tenant by name, above ``after``."""

    tenant: str
    after: str
    limit: int


# ---- Locks between runs: their rows, and what a transaction of the ledger can do with them

# A lock is a name of its tenant that belongs to one root run until that has ended. A wait is what a root wanted and
# somebody else had, so that people see it and a deadlock is found. As in ``rows``: equality on indexed columns only.


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


# ---- Marks: what a ledger says of itself, each once and by name. As in ``rows``: equality on indexed colu


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


# ---- The rows of the ledger's own chain, and what a transaction can do with them. See ``checkpoint``


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


# ---- What a transaction can ask about forks, besides ``rows``


FORKS_MAX: Final = 10_000
"""Forks of one run, and forks of those, that are looked at."""


@dataclass(frozen=True, slots=True)
class ListForks(Op[list[RunRow]]):
    """The runs that were forked from this root, oldest first; only looked at: each is a tree of its own."""

    root: str
    limit: int = FORKS_MAX


@dataclass(frozen=True, slots=True)
class Point:
    """Where a fork left the run that it was forked from."""

    run_id: str
    call: str
    """The last call that it shares."""
    kin: str
    """The root by which the keys of the whole family are named: the one that is no fork itself."""
    phases: tuple[tuple[str, str, str], ...] = ()
    """Whose program this was, and until when: a root, the last call that is shared of it, and that call in the fork."""


def point_of(row: RunRow) -> Point | None:
    """Where this run was forked; None: it is no fork."""
    if not row.forked_at or row.uid != row.root:
        return None
    run_id, call, kin, phases = json.loads(row.forked_at)
    return Point(run_id, call, kin, tuple((root, last, mine) for root, last, mine in phases))


def written_point(point: Point) -> str:
    """The same as the ledger keeps it."""
    return json.dumps([point.run_id, point.call, point.kin, point.phases], ensure_ascii=False)


def twins_of(row: RunRow) -> tuple[str, ...]:
    """What this run was in each of the last phases of a fork, the oldest first."""
    point = point_of(row)
    if point is not None:
        return tuple(root for root, _, _ in point.phases)
    return tuple(json.loads(row.forked_at)) if row.forked_at else ()


def forked_key(key: str, fork: str) -> str:
    """The key in this fork of a request that has ``key`` in its kin, or in another fork of that."""
    head, colon, rest = key.partition(":")
    return f"{head.partition('@')[0]}@{fork}{colon}{rest}"

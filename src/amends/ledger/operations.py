"""What a flow may ask of the ledger, and what a ledger must be able to do.

Operations are named by intention; each is one transaction. Repeated after a lost answer (``repeated=True``) an
operation gives the first answer: the ids and attempt numbers it carries are its nonce.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, Protocol, TypeVar

from amends.encoding.chain import HEADS_MAX
from amends.encoding.dataclass import dataclass, field
from amends.ledger.flow import Op
from amends.ledger.rows import (
    FREE,
    NOTHING,
    ApprovalRow,
    Bill,
    CallRow,
    CheckpointRow,
    Contention,
    DelegationRow,
    EventRow,
    LockRow,
    Need,
    Overrun,
    Requested,
    Ruled,
    RunRow,
    SliceRow,
    Terms,
    TermsOf,
    Unapproved,
    WaitRow,
    Want,
    Wanted,
)

# ---- What a ledger answers to the operations of ``ledger``


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


# ---- What a flow may ask of the ledger, and what a ledger must be able to do

# Operations are named by intention; each is one transaction. Repeated after a lost answer (``repeated=True``) an
# operation gives the first answer: the ids and attempt numbers it carries are its nonce.


T = TypeVar("T")


@dataclass(slots=True)
class StoreOp(Op[T]):
    """One transaction of the ledger."""

    repeated: bool = field(default=False, kw_only=True)
    proof: str = field(default="", kw_only=True)
    """Of its payload, where that is encrypted on the way (``amends.ledger.changes``); empty: the ledger makes it."""


@dataclass(slots=True)
class OpenRun(StoreOp[Opened]):
    """Open this run, or its next generation, for this owner; or say why not."""

    uid: str
    id: str
    tenant: str
    owner: str
    opener: str
    lease_s: float
    input: str
    input_digest: str
    boot: str
    mono: float
    policy: str = "rollback"
    order_mode: str = "strict"
    agent: str = ""
    principal: str = ""
    tags: str = "[]"
    deadline_s: float | None = None
    if_rolled_back: str = "again"
    history: bool = False
    dead_owner: str = ""
    budgets: str = ""


@dataclass(slots=True)
class OpenChild(StoreOp[Opened]):
    """Open a run inside another one: same owner, same lease."""

    uid: str
    id: str
    parent: str
    epoch: int
    owner: str
    input: str
    input_digest: str


@dataclass(slots=True)
class ClaimRun(StoreOp["RunRow | None"]):
    """Take over a tree whose owner missed its lease or is dead; None when somebody was faster."""

    root: str
    owner: str
    opener: str
    lease_s: float
    boot: str
    mono: float
    dead_owner: str = ""
    force: bool = False
    """Also when recovery had nothing to do: a person asked."""


@dataclass(slots=True)
class RenewLeases(StoreOp[Renewed]):
    """Extend the leases of these roots that are still ours.

    Without ``waits`` a root that another transaction has locked is passed over, and told as busy: one that is stuck
    must not cost the others of its process their leases.
    """

    owner: str
    epochs: Mapping[str, int]
    lease_s: float
    waits: bool = True
    boot: str = ""
    mono: float = 0.0
    """The owner's monotonic clock before this was sent, and its boot; without a boot only ledger time is written."""


@dataclass(slots=True)
class LetGo(StoreOp[RunRow]):
    """Give the tree back: to a person (``suspended``), to whoever opens it, or to a worker after ``wake_s``."""

    root: str
    owner: str
    epoch: int
    wake_s: float | None
    suspended: bool = False
    replays: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class DueRuns(StoreOp[list[tuple[RunRow, tuple[str, ...], bool]]]):
    """Trees that recovery should look at: the root, the names of the tools that it still needs, and whether it is due.

    Those that are not due have an owner that may be dead.
    """

    tenant: str | None
    limit: int


@dataclass(slots=True)
class AdmitCall(StoreOp[Admission]):
    """Write the request down and start it, or answer from the record, or refuse it by the law."""

    call_id: str
    run: str
    root: str
    owner: str
    epoch: int
    tool: str
    version: str
    kind: str
    key: str
    ident: str
    digest: str
    args: str
    scope: str = "run"
    declared: bool = False
    again: str = ""
    call_ref: str = ""
    parent: str = ""
    grp: str = ""
    at_commit: bool = False
    after: tuple[str, ...] = ()
    undoable: bool = False
    on_conflict: str = "raise"
    advise: bool = False
    locks: Wanted = NOTHING
    costs: Bill = FREE
    need: Need | None = None
    """What the rules say of it; None: it may start."""
    outbox: TermsOf = field(default_factory=dict)
    """With a pivot: under what the staged calls that need an approval may follow it."""
    accepts: str = ""
    """The rule whose author takes what it leaves behind."""
    expected: bool = False
    """The key was asked for before: a store may look for the answer before it takes its write lock."""
    run_id: str = ""
    tenant: str = ""
    """Of the run, where the caller knows them: an event says them, and a store need not read them first."""


@dataclass(slots=True)
class StartCall(StoreOp[CallRow | Contention | Overrun | Unapproved | None]):
    """Start attempt number ``attempt`` of a known call; None when its state does not allow it."""

    call_id: str
    owner: str
    epoch: int
    attempt: int
    terms: Terms | None = None
    outbox: TermsOf = field(default_factory=dict)
    """See ``AdmitCall.outbox``."""


@dataclass(slots=True)
class SettleCall(StoreOp[Settled]):
    """Record how an attempt ended. Under an old epoch nothing is settled: it is kept as evidence."""

    call_id: str
    owner: str
    epoch: int
    attempt: int
    to: str
    result: str | None = None
    loss: str = ""
    error: str = ""
    why: str = ""
    retry_s: float | None = None
    boot: str = ""
    mono: float | None = None
    doom: bool = False
    """The tool said that its failure is the run's."""
    spent: tuple[tuple[str, int], ...] = ()
    """What the body said that it cost, by unit, in billionths."""
    wants: tuple[Want, ...] = ()
    """The budgets that this comes out of, where nothing of its unit was reserved."""
    seen: CallRow | None = None
    """The call as it was when the attempt started, where the caller has it: a store need not read it back."""


@dataclass(slots=True)
class NoteEvidence(StoreOp["CallRow | None"]):
    """Keep what was learned after the fact; it reopens what it contradicts."""

    call_id: str
    attempt: int
    happened: bool
    result: str | None
    error: str
    boot: str
    mono: float
    source: str
    certain: bool = False
    """The error says that nothing happened; otherwise only that the body has returned."""


@dataclass(slots=True)
class NoteProbe(StoreOp[CallRow]):
    """Keep a probe's answer that decided nothing, and when to ask again."""

    call_id: str
    about: int
    number: int
    """The attempt that was asked about, and which answer to this call it is."""
    answer: str
    why: str
    next_s: float | None
    left_s: float | None = None
    """How much of the settle delay was left, when the answer was ``Absent``."""
    by: str = "probe"
    paced: bool = True
    """Whether it was amends' own question: a person's leaves alone when the next one is asked."""


@dataclass(slots=True)
class WatchDoubt(StoreOp[CallRow]):
    """Start counting the settle delay on this host's clock, where the old host's clock is out of reach."""

    call_id: str
    about: int
    boot: str
    mono: float


@dataclass(slots=True)
class ResolveCall(StoreOp[CallRow]):
    """Settle a doubt: by a probe under the lease (``epoch``), or by a person's word."""

    call_id: str
    to: str
    by: str
    why: str
    result: str | None = None
    loss: str = ""
    epoch: int | None = None
    owner: str = ""
    retry_s: float | None = None


@dataclass(slots=True)
class DecideCall(StoreOp[CallRow]):
    """A person's word on a held call: run, replay or refuse."""

    call_id: str
    decision: Literal["run", "replay", "refuse"]
    by: str
    why: str


@dataclass(slots=True)
class RetryCall(StoreOp[CallRow]):
    """A person's word that a call or compensation that gave up is tried again.

    ``result``: what the call gave back, for a compensation that lacked it.
    """

    call_id: str
    by: str
    why: str
    result: str | None = None


@dataclass(slots=True)
class BeginRollback(StoreOp[Rollback]):
    """Make ``rollback`` the goal and close admission; with an owner also begin it."""

    run: str
    by: str
    why: str
    person: bool
    owner: str = ""
    epoch: int | None = None
    plan: str = ""
    mark: str = ""
    """The plan that a person looked at, and where the tree stood then (``tree_mark``): moved since, it is stale."""


@dataclass(slots=True)
class BeginCompensation(StoreOp["CallRow | None"]):
    """Start compensation attempt ``attempt``; None when the state or the order does not allow it."""

    call_id: str
    owner: str
    epoch: int
    attempt: int
    from_doubt: bool = False
    seen: CallRow | None = None
    """See ``SettleCall.seen``: here as the rollback read it."""


@dataclass(slots=True)
class SettleCompensation(StoreOp[Settled]):
    """Record how a compensation's attempt ended."""

    call_id: str
    owner: str
    epoch: int
    attempt: int
    to: str
    error: str = ""
    retry_s: float | None = None
    gave_up: bool = False
    boot: str = ""
    mono: float | None = None
    seen: CallRow | None = None


@dataclass(slots=True)
class DecideCommit(StoreOp[Decision]):
    """Make ``commit`` the goal; decide it in this transaction if everything is settled."""

    run: str
    owner: str
    epoch: int
    output: str | None = None
    replays: Mapping[str, int] = field(default_factory=dict)
    after: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What must have succeeded before each tool that is a pivot at commit."""
    outbox: TermsOf = field(default_factory=dict)
    """See ``AdmitCall.outbox``."""


@dataclass(slots=True)
class CloseRun(StoreOp[RunRow]):
    """End the run, or block it with its causes, as the calls in the ledger allow."""

    run: str
    owner: str
    epoch: int
    to: str
    causes: tuple[str, ...] = ()
    wake_s: float | None = None
    interrupted: bool = False


@dataclass(slots=True)
class AbandonRun(StoreOp[RunRow]):
    """A person closes the run over what stands, each named."""

    run: str
    by: str
    why: str


@dataclass(slots=True)
class FinishRun(StoreOp[RunRow]):
    """A person closes an interrupted run as committed, naming what is missing."""

    run: str
    by: str
    why: str


@dataclass(slots=True)
class ReadRun(StoreOp["Tree | None"]):
    """One run's tree, by uid, or by id in a tenant."""

    tenant: str
    id: str = ""
    uid: str = ""


@dataclass(slots=True)
class ReadCall(StoreOp["CallRow | None"]):
    """One call."""

    call_id: str


@dataclass(slots=True)
class ListRuns(StoreOp[list[RunRow]]):
    """A page of runs, newest first."""

    tenant: str | None
    states: tuple[str, ...] = ()
    before: tuple[float, str] | None = None
    limit: int = 100


@dataclass(slots=True)
class SearchCalls(StoreOp[list[CallRow]]):
    """A page of calls, newest first; of one tool, if one is named."""

    tenant: str | None
    states: tuple[str, ...] = ()
    before: int | None = None
    limit: int = 100
    tool: str = ""


@dataclass(slots=True)
class ListLocks(StoreOp[list[HeldLock]]):
    """A page of a tenant's locks, by name."""

    tenant: str
    after: str = ""
    limit: int = 100


@dataclass(slots=True)
class ReadEvents(StoreOp[list[EventRow]]):
    """A page of events in ledger order."""

    tenant: str | None
    root: str | None = None
    after: int = 0
    limit: int = 500


@dataclass(slots=True)
class CollectGarbage(StoreOp[Swept]):
    """Remove the payloads of some trees that ended long enough ago; identities, states and events stay.

    Repeated it counts only what it does itself: what is removed is removed once.
    """

    older_than_s: float
    tenant: str | None = None
    after: tuple[float, str] | None = None
    limit: int = 50
    dry_run: bool = False


class Store(Protocol):
    """A durable ledger. Every operation is one transaction; what is answered is durable.

    Where a store cannot tell whether an operation happened it raises ``LedgerUnavailable``.
    """

    url: str

    def open(self, *, create: bool) -> bool:
        """Connect and bring the schema up to date; True when the ledger is new."""
        ...

    def perform(self, op: StoreOp[T]) -> T:
        """Carry out one operation; returns when it is durable."""
        ...

    async def perform_async(self, op: StoreOp[T]) -> T:
        """The same from an event loop, without blocking it."""
        ...

    def close(self) -> None:
        """Give back connections and threads. May be called twice."""
        ...


# ---- What people and the engine may ask of the ledger about approvals. See ``ledger``: each is one transa


@dataclass(slots=True)
class DecideApproval(StoreOp[Ruled]):
    """A person's word on a request: approve, bypass, reject or withdraw; or why it counts for nothing."""

    approval: str
    verb: Literal["approve", "bypass", "reject", "withdraw"]
    by: str
    why: str
    digest: str = ""
    """What the person saw; an approval is of exactly that."""
    behalf: str = ""
    """Who delegated it."""
    roles: tuple[str, ...] = ()
    """Of the person who decides, or of the one who delegated it."""


@dataclass(slots=True)
class AskAgain(StoreOp[Ruled]):
    """Ask anew for a call whose request has expired."""

    approval: str
    id: str
    nonce: str
    by: str
    why: str


@dataclass(slots=True)
class EditApproval(StoreOp[Ruled]):
    """Refuse a request and make one for other arguments, which ``instead`` brings."""

    approval: str
    by: str
    why: str
    instead: AdmitCall
    roles: tuple[str, ...] = ()
    """Of the person who says so: it is a no, too."""


@dataclass(slots=True)
class ExpireApprovals(StoreOp[RunRow]):
    """Write down what has expired in a tree: nobody decided in time."""

    root: str
    owner: str
    epoch: int


@dataclass(slots=True)
class VoidApproval(StoreOp[Ruled]):
    """The ledger was put back: what was asked or given before counts no more."""

    approval: str
    by: str
    why: str


@dataclass(slots=True)
class ReadApproval(StoreOp["Requested | None"]):
    """One request, with its call."""

    approval: str


@dataclass(slots=True)
class SearchApprovals(StoreOp[list[Requested]]):
    """A page of requests, newest first."""

    tenant: str | None
    states: tuple[str, ...] = ()
    before: int | None = None
    limit: int = 100


@dataclass(slots=True)
class Delegate(StoreOp[DelegationRow]):
    """One person lets another decide, until a time."""

    id: str
    tenant: str
    by: str
    to: str
    until_at: float
    why: str


# ---- Reading the record to check it: whole trees as they are written, page by page, each page from one sn


ROWS_MAX: Final = 1_000_000
"""Runs, calls or requests of the trees of one page: whoever puts in more of them without events is found out by these."""


@dataclass(frozen=True, slots=True)
class Place:
    """How far the record was read: every tree up to ``done``, and of the tree ``within`` the first ``n`` events."""

    done: str = ""
    within: str = ""
    n: int = 0


@dataclass(frozen=True, slots=True)
class Chains:
    """Some trees, in the order of their roots, each with its events in their order.

    The rows are those of the trees that end here, as they stood when the last events of these were read. A tree that
    is longer than a page comes in several, and its rows with the last.
    """

    events: tuple[EventRow, ...]
    runs: tuple[RunRow, ...] = ()
    calls: tuple[CallRow, ...] = ()
    approvals: tuple[ApprovalRow, ...] = ()
    delegations: tuple[DelegationRow, ...] = ()
    next: Place | None = None
    """Where to go on; None: that was all."""


@dataclass(slots=True)
class ReadChains(StoreOp[Chains]):
    """The trees after this place, as they are written: nothing in them is decrypted."""

    place: Place = Place()
    alone: bool = False
    """Only the tree that the place is within."""
    limit: int = 2_000


# ---- what a transaction can do ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChainOf(Op[list[EventRow]]):
    """The events of a tree above this number, in their order."""

    root: str
    after: int
    limit: int


@dataclass(frozen=True, slots=True)
class ChainsAbove(Op[list[EventRow]]):
    """The events of all trees whose root comes after this one, tree by tree."""

    root: str
    limit: int


@dataclass(frozen=True, slots=True)
class RunsBetween(Op[list[RunRow]]):
    """The runs of the trees whose roots come after one and not after another; None: to the end."""

    above: str
    upto: str | None
    limit: int = ROWS_MAX


@dataclass(frozen=True, slots=True)
class CallsBetween(Op[list[CallRow]]):
    """The same, of calls."""

    above: str
    upto: str | None
    limit: int = ROWS_MAX


@dataclass(frozen=True, slots=True)
class ApprovalsBetween(Op[list[ApprovalRow]]):
    """The same, of requests for a yes."""

    above: str
    upto: str | None
    limit: int = ROWS_MAX


@dataclass(frozen=True, slots=True)
class DelegationsBetween(Op[list[DelegationRow]]):
    """The same, of delegations: each is the root of its own chain."""

    above: str
    upto: str | None
    limit: int = ROWS_MAX


@dataclass(frozen=True, slots=True)
class FindDelegation(Op["DelegationRow | None"]):
    """The delegation of this id."""

    id: str


# ---- What a flow may ask of the ledger about budgets, besides starting and settling calls


@dataclass(slots=True)
class ListBudgets(StoreOp[tuple[list[SliceRow], float]]):
    """A page of a tenant's slices, by name, and the ledger's time."""

    tenant: str
    after: str = ""
    limit: int = 200


# ---- Taking whole trees out of a ledger as they are written, and adding them to another one


EVENTS_MAX: Final = 1_000_000
"""Events that one tree may have to be taken out: it is held in memory."""


@dataclass(frozen=True, slots=True)
class Record:
    """A run tree, all of it; parents before children, the rest in ledger order."""

    runs: tuple[RunRow, ...]
    calls: tuple[CallRow, ...]
    events: tuple[EventRow, ...]
    approvals: tuple[ApprovalRow, ...]

    @property
    def root(self) -> RunRow:
        """The run that the others are inside of."""
        return self.runs[0]


@dataclass(slots=True)
class FindTrees(StoreOp[list[RunRow]]):
    """The roots of every generation of a run, oldest first; empty: there is no such run."""

    tenant: str
    id: str


@dataclass(slots=True)
class ReadRecord(StoreOp["Record | None"]):
    """One whole tree as it is written: nothing in it is decrypted."""

    root: str


@dataclass(slots=True)
class LoadRecords(StoreOp[list[str]]):
    """Add these trees of other ledgers, all or none; the roots of those that were not here before.

    With them one run of our own is written, that says so. What is here already stays as it is.
    """

    uid: str
    id: str
    """Of that run."""
    tenant: str
    owner: str
    records: tuple[Record, ...]


@dataclass(slots=True)
class HasLoaded(StoreOp[bool]):
    """Whether runs of other ledgers were ever loaded: then times do not ascend with places."""


# ---- what a transaction can do ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunsOf(Op[list[RunRow]]):
    """Every generation of the run with this id, oldest first."""

    tenant: str
    id: str


# ---- What the ledger is asked for its own chain. See ``ledger`` for the rest, and ``checkpoint`` for what


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


# ---- What a person's desk asks of the ledger besides ``ledger``: the words over what is left standing


@dataclass(slots=True)
class AcceptCall(StoreOp[CallRow]):
    """A person's word that an effect stays, or that nobody will know: it is residue, and named for good."""

    call_id: str
    by: str
    why: str


# ---- What forking asks of the ledger besides ``ledger``


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
    """Of payloads that are encrypted on the way, by the row's id and the column (``amends.ledger.changes``)."""


@dataclass(slots=True)
class ReadForks(StoreOp[list[RunRow]]):
    """The forks, open or committed, that stand on what this tree did; forks of forks too."""

    root: str


# ---- What the ledger is asked about notices: who has to be told of which request. See ``ledger``: each is

# The columns of a request are the outbox: written with the request itself, so that no crash can lose a notice.


TELLS_MAX: Final = 24
"""So often is tried to tell of one request: a hook that kills its process must not do so for ever."""


@dataclass(slots=True)
class DueNotices(StoreOp[list[str]]):
    """The requests that somebody has to be told of now, longest waiting first."""

    tenant: str | None
    limit: int


@dataclass(slots=True)
class ClaimNotice(StoreOp[Requested | None]):
    """Be the one who tells of this request, for so long; None: somebody else is, or there is nothing to tell."""

    approval: str
    teller: str
    """Names this claim: it is new."""
    claim_s: float


@dataclass(slots=True)
class NoteTold(StoreOp[ApprovalRow]):
    """People were told of this request; or, with an error, they were not, and are to be after ``retry_s``."""

    approval: str
    teller: str
    error: str = ""
    retry_s: float | None = None
    """None: it is given up."""


# ---- What hiding and encryption ask of the ledger. See ``ledger`` for the rest


@dataclass(slots=True)
class PinKey(StoreOp[str]):
    """Pin the fingerprint of the key that commitments are made with; the one that is pinned. Empty: only look."""

    fingerprint: str


@dataclass(slots=True)
class RewriteTexts(StoreOp[int]):
    """Write payloads of one call or run anew, each only where it is still as it was read; how many were."""

    row: str
    is_call: bool
    was: Mapping[str, str]
    now: Mapping[str, str]


# ---- What a program reads through its run besides its calls: the clock, written down so that a replay rea


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

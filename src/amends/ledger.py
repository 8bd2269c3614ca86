"""What a flow may ask of the ledger, and what a ledger must be able to do.

Operations are named by intention; each is one transaction. Repeated after a lost answer (``repeated=True``) an
operation gives the first answer: the ids and attempt numbers it carries are its nonce.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol, TypeVar

from amends.answers import Admission as Admission
from amends.answers import Decision as Decision
from amends.answers import HeldLock as HeldLock
from amends.answers import Opened as Opened
from amends.answers import Renewed as Renewed
from amends.answers import Rollback as Rollback
from amends.answers import Settled as Settled
from amends.answers import Swept as Swept
from amends.answers import Tree as Tree
from amends.approvalrows import Need, Terms, TermsOf, Unapproved
from amends.budgetrows import FREE, Bill, Overrun, Want
from amends.flow import Op
from amends.lockrows import NOTHING, Contention, Wanted
from amends.record import dataclass, field
from amends.rows import CallRow, EventRow, RunRow

T = TypeVar("T")


@dataclass(slots=True)
class StoreOp(Op[T]):
    """One transaction of the ledger."""

    repeated: bool = field(default=False, kw_only=True)
    proof: str = field(default="", kw_only=True)
    """Of its payload, where that is encrypted on the way (``amends.proofs``); empty: the ledger makes it."""


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

"""Define the ledger's operations and their answers. ``store.py`` has the ``Store`` protocol that performs them.

A ``StoreOp`` is one transaction, named by its intention. If the answer of an operation is lost, the operation is
repeated with ``repeated=True`` and returns its first answer: the ids and attempt numbers that it carries identify it.
What an operation does is found in the other modules of ``ledger/`` (``dispatch`` says in which one).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeVar

from amends.encoding.chain import HEADS_MAX
from amends.encoding.dataclass import dataclass, field
from amends.ledger.flow import Op
from amends.ledger.rows import (
    FREE,
    NOTHING,
    AnswerRow,
    ApprovalRow,
    BudgetDemand,
    CallCost,
    CallRow,
    CheckpointRow,
    Contention,
    DecisionOutcome,
    DelegationRow,
    DirectiveRow,
    EventRow,
    LockRequest,
    LockRow,
    Need,
    Overrun,
    RequestWithCall,
    RunRow,
    SliceRow,
    Terms,
    TermsByCall,
    Unapproved,
    WaitRow,
)

if TYPE_CHECKING:
    from amends.ledger.folded import FoldedCall, FoldedEvent
    from amends.ledger.plain import PlainRun

# ---- Answers


@dataclass(frozen=True, slots=True)
class Opened:
    """The answer to opening a run; ``run`` is the run that was found or made.

    ``how``: fresh (a new run or generation), resumed, ended (already closed), busy (another owner has it), conflict
    (other input), foreign (loaded from another ledger), refused.
    """

    how: Literal["fresh", "resumed", "ended", "busy", "conflict", "foreign", "refused"]
    run: RunRow
    now: float = 0.0


@dataclass(frozen=True, slots=True)
class Renewed:
    """The trees that the owner still holds, with the current goal of each.

    ``given_back``: released or ended under our own epoch, so nobody took them over. ``busy``: another transaction holds
    the row at this moment, so nothing is known about it.
    """

    goals: Mapping[str, str]
    given_back: frozenset[str] = frozenset()
    busy: frozenset[str] = frozenset()
    wanted: frozenset[str] = frozenset()
    """Another server has asked for them since the last renewal, for their clients."""


@dataclass(frozen=True, slots=True)
class Admission:
    """The ledger's answer to a request for a call.

    ``verdict``: start, replay, failed (recorded), staged, held, void, wait, locked, doubt, retry, refused, ended,
    conflict, rejected, spent, again (repeat the request and look at every slice of its budgets). ``run`` is set where
    the answer is about a run: not for a start or a replay.
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
    """Why an approval does not count (``approval`` is then the new request, if one was made), or what a rule says."""
    halt: DirectiveRow | None = None
    """The halt because of which nothing starts."""
    is_prepared: bool = False
    """Whether the call has got its locks with this answer, so that what is there before it can be read at once."""


@dataclass(frozen=True, slots=True)
class Settled:
    """The call after it was settled.

    ``fenced``: the ledger did not accept the outcome, because the run has another owner by now; it is kept as evidence.
    """

    call: CallRow
    fenced: bool = False
    then: CallRow | RunRow | None = None
    """The answer to ``SettleCompensation.then``, if that was done."""


@dataclass(frozen=True, slots=True)
class Rollback:
    """The answer to beginning a rollback.

    ``how``: rolling, deferred (a pivot is in flight: the goal is kept), refused (the pivot has passed), ended, stale
    (the tree has changed since the rollback was planned), forked (forks depend on it, and the person did not say that
    it is rolled back all the same), unaccepted (of a committed run: other calls must be accepted).
    """

    how: Literal["rolling", "deferred", "refused", "ended", "stale", "forked", "unaccepted"]
    run: RunRow
    tree: Tree | None = None
    """If it is rolling: the run and its descendants, as this transaction left them."""
    forks: tuple[RunRow, ...] = ()
    begun: CallRow | None = None
    """If the answer of ``TurnPlain`` was lost: the compensation that it had begun, whose body has not run."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to committing a run.

    ``how``: committed, forward (decided: run the staged calls), pivot (start it first), early (the pivot may not start:
    ``missing``), unsettled, locked (a staged call needs a lock that another run holds), over (the staged calls cost
    more than a budget has left), halted (a staged call may not start), judge (say whether the tree with this ``mark`` is
    complete), incomplete (before the pivot its goal is now to roll back, after it the run is blocked), rollback, ended.
    """

    how: Literal[
        "committed",
        "forward",
        "pivot",
        "early",
        "unsettled",
        "locked",
        "over",
        "halted",
        "judge",
        "incomplete",
        "rollback",
        "ended",
    ]
    run: RunRow
    calls: tuple[CallRow, ...] = ()
    children: tuple[RunRow, ...] = ()
    missing: tuple[str, ...] = ()
    lock: Contention | None = None
    over: Overrun | None = None
    halt: DirectiveRow | None = None
    mark: str = ""
    """The state of the tree that must be judged: see ``tree_mark``."""


@dataclass(frozen=True, slots=True)
class Swept:
    """What one transaction of garbage collection removed, or would remove.

    ``after``: where the next transaction begins; None at the end.
    """

    runs: int
    calls: int
    freed: int
    """Bytes of text."""
    kept: tuple[tuple[str, int], ...]
    """Why ended trees were kept whole, and how many of them."""
    after: tuple[float, str] | None


@dataclass(frozen=True, slots=True)
class ErasedTree:
    """What one transaction erased of a run tree, or would erase."""

    root: str
    run_id: str
    state: str
    runs: int = 0
    calls: int = 0
    approvals: int = 0
    events: int = 0
    """How many events lost texts; all of them stay in the chain."""
    freed: int = 0
    """Bytes of text."""
    kept: str = ""
    """Why nothing was erased; empty: it was, or there was nothing to erase."""
    done_before: bool = False
    """Everything was erased before: this transaction changed nothing."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A run with its descendants and all their calls, read in one transaction."""

    run: RunRow
    runs: tuple[RunRow, ...]
    calls: tuple[CallRow, ...]
    now: float
    locks: tuple[LockRow, ...] = ()
    approvals: tuple[ApprovalRow, ...] = ()
    mark: str = ""
    """The digest of all that a rollback depends on (``tree_mark``), of the rows as they are stored; empty: nobody asked."""


@dataclass(frozen=True, slots=True)
class HeldLock:
    """One lock, the root run that holds it, and the runs that wait for it now."""

    lock: LockRow
    root: RunRow
    waits: tuple[WaitRow, ...]
    now: float


# ---- Operations of runs and calls

# Operations are named by intention; each is one transaction. Repeated after a lost answer (``repeated=True``) an
# operation gives the first answer: the ids and attempt numbers it carries are its nonce.


T = TypeVar("T")


@dataclass(slots=True)
class StoreOp(Op[T]):
    """One transaction of the ledger."""

    repeated: bool = field(default=False, kw_only=True)
    proof: str = field(default="", kw_only=True)
    """The digest of its payload if that is encrypted on the way (``amends.ledger.changes``); empty: the ledger
    makes it."""
    token: str = field(default="", kw_only=True)
    """The id of the token by which somebody asked for it over the network: each of its events says so."""


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
    completion: str = ""
    wants: bool = False
    """It is opened by a server for its client: if another server has it, ask that one to let it go."""


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
    """Take over a tree whose owner missed its lease or is dead; None if another process was faster."""

    root: str
    owner: str
    opener: str
    lease_s: float
    boot: str
    mono: float
    dead_owner: str = ""
    force: bool = False
    """Claim it even if recovery has nothing to do: a person asked for it."""


@dataclass(slots=True)
class RenewLeases(StoreOp[Renewed]):
    """Extend the leases of those of these roots that this owner still holds.

    Without ``waits`` a root that another transaction has locked is skipped and reported as busy: a stuck transaction
    must not cost the other roots of the process their leases.
    """

    owner: str
    epochs: Mapping[str, int]
    lease_s: float
    waits: bool = True
    boot: str = ""
    mono: float = 0.0
    """The boot and the monotonic clock of the owner before this was sent; without a boot only ledger time is written.
    """


@dataclass(slots=True)
class ReleaseLease(StoreOp[RunRow]):
    """Release the lease: to a person (``suspended``), to the next opener, or to a worker after ``wake_s``."""

    root: str
    owner: str
    epoch: int
    wake_s: float | None
    suspended: bool = False
    replays: Mapping[str, int] = field(default_factory=dict)
    is_wanted: bool = False
    """Another server has asked for it since it was opened, for its client."""
    boot: str = ""
    mono: float = 0.0
    silent_s: float | None = None
    """Of a run with a client lease: how long its client has been silent, on the clock of this boot; None: it is not left
    to its client."""


@dataclass(slots=True)
class ListWanted(StoreOp[list[RunRow]]):
    """List the trees of this owner that another server wants for their client, since the last heartbeat."""

    owner: str
    limit: int = 100


@dataclass(slots=True)
class CountReplays(StoreOp[None]):
    """Write how often calls of a tree were answered from the record, where nothing else is written when it is left."""

    root: str
    replays: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class DueRuns(StoreOp[list[tuple[RunRow, tuple[str, ...], bool]]]):
    """List the trees that recovery should look at.

    Each comes with its root, the names of the tools that it still needs, and whether it is due. A tree that is not due
    has an owner that may be dead.
    """

    tenant: str | None
    limit: int


@dataclass(slots=True)
class AdmitCall(StoreOp[Admission]):
    """Record the request and start the call, or answer from the record, or refuse it by the ordering rules."""

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
    reads: bool = False
    """What is there before the call is read first: take its locks and make it ready instead of starting it."""
    put: int = 0
    """See ``CallRow.put``."""
    locks: LockRequest = NOTHING
    costs: CallCost = FREE
    need: Need | None = None
    """What the approval rules require; None: it may start."""
    outbox: TermsByCall = field(default_factory=dict)
    """With a pivot: the terms under which the staged calls that need an approval may follow it."""
    accepts: str = ""
    """The rule whose author accepts the residue of the call."""
    expected: bool = False
    """The key was requested before: a store may look for the answer before it takes its write lock."""
    permits: tuple[str, ...] = ()
    """The permits that its process found to cover it: one of them may stand for a person's decision."""
    run_id: str = ""
    tenant: str = ""
    """``run_id`` and ``tenant`` of the run, if the caller knows them: events carry them, and the store need not read
    them first."""
    remote_s: float = 0.0
    """See ``CallRow.remote_s``: of the attempt that this starts."""


@dataclass(slots=True)
class StartCall(StoreOp[CallRow | Contention | Overrun | Unapproved | DirectiveRow | None]):
    """Start attempt number ``attempt`` of a recorded call; None if its state does not allow it.

    A ``DirectiveRow`` is the halt that does not let it start.
    """

    call_id: str
    owner: str
    epoch: int
    attempt: int
    terms: Terms | None = None
    outbox: TermsByCall = field(default_factory=dict)
    """See ``AdmitCall.outbox``."""
    before: str | None = None
    """What is there before the call, read since it was prepared; recorded with its first start."""
    remote_s: float = 0.0
    """See ``CallRow.remote_s``."""


@dataclass(slots=True)
class PrepareCall(StoreOp[CallRow | Contention | None]):
    """Take the locks of a recorded call, so that what is there before it can be read; None if it may not start."""

    call_id: str
    owner: str
    epoch: int


@dataclass(slots=True)
class DropCall(StoreOp[CallRow]):
    """Give up a prepared call that was not started: free the locks that it alone needed.

    One that nobody has approved and that is not accepted for later is ``dropped``; any other can be prepared again.
    """

    call_id: str
    owner: str
    epoch: int
    why: str
    error: str = ""
    doom: bool = False
    """See ``SettleCall.doom``."""


@dataclass(slots=True)
class SettleCall(StoreOp[Settled]):
    """Record how an attempt ended. Under an old epoch nothing is settled: the outcome is kept as evidence."""

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
    """The tool declared that its failure makes the run fail."""
    spent: tuple[tuple[str, int], ...] = ()
    """The cost that the body reported, by unit, in billionths."""
    wants: tuple[BudgetDemand, ...] = ()
    """The budgets to charge for units of which nothing was reserved."""
    seen: CallRow | None = None
    """The call as it was when the attempt started, if the caller has it: the store need not read it again."""


@dataclass(slots=True)
class NoteEvidence(StoreOp["CallRow | None"]):
    """Record evidence that arrived after the fact; it reopens a state that it contradicts."""

    call_id: str
    attempt: int
    happened: bool
    result: str | None
    error: str
    boot: str
    mono: float
    source: str
    certain: bool = False
    """The error proves that nothing happened; otherwise it only proves that the body has returned."""


@dataclass(slots=True)
class NoteReport(StoreOp[CallRow]):
    """Keep what the performer of an attempt reported too late to settle it: evidence, which settles the doubt if it can.

    ``ReportConflict`` if it reported something else about the same attempt before. The same report again changes nothing.
    """

    call_id: str
    phase: Literal["execute", "compensate"]
    attempt: int
    epoch: int
    """Under which the attempt was handed out; recorded."""
    by: str
    happened: bool
    result: str | None
    error: str
    boot: str
    mono: float
    loss: str = ""
    certain: bool = False
    """See ``NoteEvidence.certain``. The error of a compensation: nothing happened, and it may be tried again."""


@dataclass(slots=True)
class NoteProbe(StoreOp[CallRow]):
    """Record a probe's answer that decided nothing, and when to probe again."""

    call_id: str
    about: int
    number: int
    """The attempt that was probed (``about``), and the number of this answer among the call's answers."""
    answer: str
    why: str
    next_s: float | None
    left_s: float | None = None
    """How much of the settle delay was left when the answer was ``Absent``."""
    by: str = "probe"
    paced: bool = True
    """Whether amends itself asked: a probe by a person does not move the time of the next one."""
    who: str = ""
    """The name of the person who asked, for the event; empty: it has none."""


@dataclass(slots=True)
class WatchDoubt(StoreOp[CallRow]):
    """Start to count the settle delay on this host's clock, because the old host's clock cannot be read."""

    call_id: str
    about: int
    boot: str
    mono: float
    renewed: bool = False
    """Whoever performs it has more time: what was left on other hosts does not count any more."""


@dataclass(slots=True)
class ResolveCall(StoreOp[CallRow]):
    """Settle a doubt: by a probe under the lease (``epoch``), or by a person's decision."""

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
    """Apply a person's decision on a held call: run, replay or refuse."""

    call_id: str
    decision: Literal["run", "replay", "refuse"]
    by: str
    why: str


@dataclass(slots=True)
class RetryCall(StoreOp[CallRow]):
    """Apply a person's decision to retry a call or a compensation that gave up.

    ``result``: what the call returned, for a compensation that lacked it.
    """

    call_id: str
    by: str
    why: str
    result: str | None = None


@dataclass(slots=True)
class BeginRollback(StoreOp[Rollback]):
    """Set the goal ``rollback`` and close admission; with an owner also begin the rollback."""

    run: str
    by: str
    why: str
    person: bool
    owner: str = ""
    epoch: int | None = None
    plan: str = ""
    mark: str = ""
    """The plan that a person looked at, and the state of the tree then (``tree_mark``): if that has changed, the plan
    is stale. Only with them is a committed run taken back."""
    accept: tuple[str, ...] = ()
    """Of a committed run: the calls that stay (``must_accept``), all of them, by the person's word."""
    plain: PlainRun | None = None
    """The run if its session saw nothing unusual about it: the store may then begin the rollback by a plain statement."""


@dataclass(slots=True)
class BeginCompensation(StoreOp["CallRow | None"]):
    """Start compensation attempt ``attempt``; None if the state or the order does not allow it."""

    call_id: str
    owner: str
    epoch: int
    attempt: int
    from_doubt: bool = False
    seen: CallRow | None = None
    """See ``SettleCall.seen``: the call as the rollback read it."""
    remote_s: float = 0.0
    """See ``CallRow.remote_s``: of the compensation."""


@dataclass(slots=True)
class SettleCompensation(StoreOp[Settled]):
    """Record how an attempt of a compensation ended."""

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
    guarded: bool = False
    """The guard did not let it start."""
    untried: bool = False
    """Nobody was there to do it: it does not count as a try."""
    then: BeginCompensation | CloseRun | None = None
    """What follows a compensation that is settled as ``compensated``, in the same transaction: the next one begins, or the
    run is closed. A store may leave it undone (``Settled.then`` is None), and then it is asked for by itself."""


@dataclass(slots=True)
class DecideCommit(StoreOp[Decision]):
    """Set the goal ``commit``; commit in this transaction if everything is settled."""

    run: str
    owner: str
    epoch: int
    output: str | None = None
    replays: Mapping[str, int] = field(default_factory=dict)
    after: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """For each tool that is a pivot at commit: the tools that must have succeeded before it."""
    outbox: TermsByCall = field(default_factory=dict)
    """See ``AdmitCall.outbox``."""
    plain: PlainRun | None = None
    """See ``BeginRollback.plain``."""
    completion: str = ""
    """The run's ``completion``, if it has changed since it was opened."""
    judged: str = ""
    """The ``mark`` of the tree that was judged; empty: it was not. Another tree is judged anew."""
    incomplete: str = ""
    """Why the judged tree is not complete; empty: it is."""
    cause: str = ""
    """What blocks the run if it is not complete and has pivoted, with the verbs that help."""


@dataclass(slots=True)
class CloseRun(StoreOp[RunRow]):
    """End the run, or block it with its causes, as far as the recorded calls allow."""

    run: str
    owner: str
    epoch: int
    to: str
    causes: tuple[str, ...] = ()
    wake_s: float | None = None
    interrupted: bool = False
    plain: PlainRun | None = None
    """See ``BeginRollback.plain``."""


@dataclass(slots=True)
class AbandonRun(StoreOp[RunRow]):
    """Close the run by a person's decision although effects remain; each of them is named."""

    run: str
    by: str
    why: str


@dataclass(slots=True)
class FinishRun(StoreOp[RunRow]):
    """Close an interrupted run as committed by a person's decision, naming what is missing."""

    run: str
    by: str
    why: str


@dataclass(slots=True)
class ReadRun(StoreOp["Tree | None"]):
    """Read the tree of one run, by uid, or by id in a tenant; ``marked``: with the mark that binds a plan.

    ``states``: only the calls in one of these states, ``()`` for none of them; None: all. ``limit``: only so many calls, in
    the order of the requests, those that were requested after the call ``after``.
    """

    tenant: str
    id: str = ""
    uid: str = ""
    marked: bool = False
    states: tuple[str, ...] | None = None
    after: str = ""
    limit: int | None = None


@dataclass(slots=True)
class ReadCall(StoreOp["CallRow | None"]):
    """Read one call."""

    call_id: str


@dataclass(slots=True)
class ListRuns(StoreOp[list[RunRow]]):
    """Read a page of runs, newest first."""

    tenant: str | None
    states: tuple[str, ...] = ()
    before: tuple[float, str] | None = None
    limit: int = 100


@dataclass(slots=True)
class CountRuns(StoreOp[dict[str, int]]):
    """Count runs by state; no more than the newest ``limit`` are looked at."""

    tenant: str | None
    limit: int = 1_000


@dataclass(frozen=True, slots=True)
class Outline:
    """A tree without its ordinary calls, of which there may be very many."""

    tree: Tree
    """Its calls are those about which there is something to tell, and those that wait or are under way."""
    calls: int
    """How many calls it has."""


@dataclass(slots=True)
class WaitingRuns(StoreOp[list[RunRow]]):
    """Read the runs of a tenant that are blocked or suspended; no more than the newest ``limit`` are looked at."""

    tenant: str
    limit: int = 1_000


@dataclass(slots=True)
class ReadOutlines(StoreOp[tuple[list[Outline], bool]]):
    """Read the outlines of these trees, in their order; one that does not exist is left out.

    At most ``limit`` calls are read that neither wait nor are under way. The second part of the answer: whether there were
    more.
    """

    roots: tuple[str, ...]
    limit: int = 2_000


@dataclass(slots=True)
class ListUnfinished(StoreOp[list[RunRow]]):
    """Read the roots that have not ended, newest first. ``before``: the uid of the last one seen."""

    tenant: str | None
    before: str = ""
    limit: int = 100


@dataclass(slots=True)
class SearchCalls(StoreOp[list[CallRow]]):
    """Read a page of calls, newest first; of one tool, if one is named. ``before``: the id of the last one seen."""

    tenant: str | None
    states: tuple[str, ...] = ()
    before: str | None = None
    limit: int = 100
    tool: str = ""


@dataclass(slots=True)
class ListLocks(StoreOp[list[HeldLock]]):
    """Read a page of a tenant's locks, by name."""

    tenant: str
    after: str = ""
    limit: int = 100


@dataclass(slots=True)
class ReadEvents(StoreOp[list[EventRow]]):
    """Read a page of events: of one tree by number, of the ledger by moment, tree and number.

    ``after``: with a root the number of the last event seen, without one its place; 0 or empty: from the beginning.
    """

    tenant: str | None
    root: str | None = None
    after: int | str = 0
    limit: int = 500


@dataclass(slots=True)
class ReadEventsBack(StoreOp[list[EventRow]]):
    """Read a page of the events of the ledger, newest first. ``before``: the place of the last one seen."""

    tenant: str | None
    before: str = ""
    limit: int = 500


@dataclass(slots=True)
class ReadNewestEvent(StoreOp["EventRow | None"]):
    """Read the last event, of one tree or of the ledger: a feed that begins there shows what comes next."""

    tenant: str | None
    root: str | None = None


@dataclass(slots=True)
class CollectGarbage(StoreOp[Swept]):
    """Remove the payloads of some trees that ended long enough ago; identities, states and events stay.

    A repeated operation counts only what it removes itself, because nothing is removed twice.
    """

    older_than_s: float
    tenant: str | None = None
    after: tuple[float, str] | None = None
    limit: int = 50
    dry_run: bool = False


# ---- Operations of erasure


@dataclass(slots=True)
class EraseTree(StoreOp["ErasedTree | None"]):
    """Erase every text about people from an ended tree; identities, states, digests and the chain stay. None: no such tree.

    Without ``dry_run`` it is one transaction, with one event that names who, why and by which order. Repeated, it changes
    nothing and gives the first answer.
    """

    root: str
    by: str
    why: str
    order: str
    """The id of the order of work that it belongs to."""
    residue: bool = False
    """Also erase a tree that has ended and left something standing or in doubt."""
    dry_run: bool = False
    scrubs: bool = False
    """The file of the ledger must be rewritten afterwards: note it in the same transaction."""


@dataclass(slots=True)
class ReadScrub(StoreOp[str]):
    """Read which order of erasure still needs the file of the ledger rewritten; empty: none."""


@dataclass(slots=True)
class EndScrub(StoreOp[bool]):
    """Note that the file was rewritten after this order; return whether no order needs it now.

    If another order has erased something since, it still does.
    """

    order: str


# ---- Operations of approvals


@dataclass(slots=True)
class DecideApproval(StoreOp[DecisionOutcome]):
    """Apply a person's decision on a request: approve, bypass, reject or withdraw; or say why it does not count."""

    approval: str
    verb: Literal["approve", "bypass", "reject", "withdraw"]
    by: str
    why: str
    digest: str = ""
    """The digest of what the person saw; the decision is about exactly that."""
    behalf: str = ""
    """The person who delegated the decision."""
    roles: tuple[str, ...] = ()
    """The roles of the person who decides, or of the one who delegated it."""


@dataclass(slots=True)
class RenewRequest(StoreOp[DecisionOutcome]):
    """Make a new request for a call whose request has expired."""

    approval: str
    id: str
    nonce: str
    by: str
    why: str


@dataclass(slots=True)
class EditApproval(StoreOp[DecisionOutcome]):
    """Reject a request and make a new one for other arguments, which ``instead`` carries."""

    approval: str
    by: str
    why: str
    instead: AdmitCall
    roles: tuple[str, ...] = ()
    """The roles of the editor: an edit is a rejection, too."""
    call_id: str = ""
    """The call that is rejected."""
    told: str = ""
    """The other arguments once more, for the reason of the rejection; encrypted for that call. Empty: those of ``instead``."""


@dataclass(slots=True)
class ExpireApprovals(StoreOp[RunRow]):
    """Mark the expired requests of a tree as expired."""

    root: str
    owner: str
    epoch: int


@dataclass(slots=True)
class VoidApproval(StoreOp[DecisionOutcome]):
    """Void a request or an approval that was made before the ledger was restored from a backup."""

    approval: str
    by: str
    why: str


@dataclass(slots=True)
class ReadApproval(StoreOp["RequestWithCall | None"]):
    """Read one request, with its call."""

    approval: str


@dataclass(slots=True)
class SearchApprovals(StoreOp[list[RequestWithCall]]):
    """Read a page of requests, newest first. ``before``: the id of the last one seen.

    ``use``: only those for one tool as used by one agent (``ApprovalRow.use_key``).
    """

    tenant: str | None
    states: tuple[str, ...] = ()
    before: str | None = None
    limit: int = 100
    use: str = ""


@dataclass(slots=True)
class Delegate(StoreOp[DelegationRow]):
    """Let another person decide in one's place, until a time."""

    id: str
    tenant: str
    by: str
    to: str
    until_at: float
    why: str


# ---- Operations of permits


@dataclass(slots=True)
class Permit(StoreOp[DirectiveRow]):
    """Approve calls to come: exactly these arguments, or those that a rule matches, so many times, until a time."""

    id: str
    tenant: str
    tool: str
    words: str
    """What it covers, and the roles of the person who gives it, as JSON."""
    by: str
    why: str
    until_at: float
    uses: int


@dataclass(slots=True)
class RevokePermit(StoreOp["DirectiveRow | None"]):
    """End a permit by a person's word; None: there is no such permit. One that has ended stays as it is."""

    id: str
    tenant: str
    by: str
    why: str


@dataclass(slots=True)
class ListPermits(StoreOp[tuple[list[DirectiveRow], float]]):
    """Read the permits that may still be used, oldest first, and the ledger's time; of one tool, if named.

    ``tenant`` None: of every tenant.
    """

    tenant: str | None
    tool: str = ""


# ---- Operations of tokens


@dataclass(slots=True)
class MakeToken(StoreOp["DirectiveRow | None"]):
    """Let somebody ask over the network by a token, until a time; None: another token has this id.

    ``tenant`` None: for every tenant. ``words``: its name, its scopes, for whom it acts and the digest of its secret, as
    JSON.
    """

    id: str
    tenant: str | None
    agent: str
    words: str
    by: str
    why: str
    until_at: float


@dataclass(slots=True)
class EndToken(StoreOp["DirectiveRow | None"]):
    """End a token by a person's word; None: there is no such token. One that has ended stays as it is.

    ``tenant``: of this tenant only; None: of any. ``expired``: nobody said so, but its time is over. If it is not, by
    the ledger's time, nothing is changed.
    """

    id: str
    tenant: str | None
    by: str
    why: str
    expired: bool = False


@dataclass(slots=True)
class ReadToken(StoreOp["tuple[DirectiveRow | None, float]"]):
    """Read a token, whatever became of it, and the ledger's time."""

    id: str


@dataclass(slots=True)
class ListTokens(StoreOp[tuple[list[DirectiveRow], float]]):
    """Read the tokens that are valid, oldest first, and the ledger's time: of a tenant, or (None) of all."""

    tenant: str | None


@dataclass(slots=True)
class NoteDriver(StoreOp[bool]):
    """Record that somebody else drives an open run from now on, by the token of this operation; False: it has ended."""

    root: str
    by: str
    nonce: str


# ---- Operations of work on the ledger


@dataclass(slots=True)
class OrderWork(StoreOp[DirectiveRow]):
    """Record that a person ordered work on the ledger; ``tenant`` None: on all of it. It comes before the work."""

    id: str
    tenant: str | None
    words: str
    """What was ordered, as JSON."""
    by: str
    why: str


# ---- Operations of halts


@dataclass(slots=True)
class Halt(StoreOp[DirectiveRow]):
    """Let nothing start from this transaction on: in the ledger, or for one tenant, agent or tool.

    Compensations go on. ``tenant`` None: of every tenant. An empty agent or tool: every one.
    """

    id: str
    tenant: str | None
    agent: str
    tool: str
    by: str
    why: str


@dataclass(slots=True)
class Unhalt(StoreOp[list[DirectiveRow]]):
    """Lift every halt of exactly this extent; return them as they are then. An empty list: there was none."""

    tenant: str | None
    agent: str
    tool: str
    by: str
    why: str
    nonce: str


@dataclass(slots=True)
class ListHalts(StoreOp[list[DirectiveRow]]):
    """Read the halts that stand, oldest first."""


# ---- Operations of the audit: whole trees as they are stored, page by page, each page from one snapshot


ROWS_MAX: Final = 1_000_000
"""The most runs, calls or requests in the trees of one page: a larger number without events is itself a finding."""


@dataclass(frozen=True, slots=True)
class Place:
    """How far the record was read: every tree up to ``done``, and the first ``n`` events of the tree ``within``."""

    done: str = ""
    within: str = ""
    n: int = 0


class Misfit(NamedTuple):
    """Something that the store keeps beside the rows (a number, an index, the end of a chain) and that does not fit."""

    root: str
    run_id: str
    tenant: str | None
    """None: it belongs to no run."""
    text: str


@dataclass(frozen=True, slots=True)
class Chains:
    """Some trees, in the order of their roots, each with its events in order.

    The rows are those of the trees that end on this page, read in the same snapshot as their last events. A tree that
    is longer than a page spans several pages, and its rows come with the last one.
    """

    events: tuple[EventRow | FoldedEvent, ...]
    runs: tuple[RunRow, ...] = ()
    calls: tuple[CallRow | FoldedCall, ...] = ()
    approvals: tuple[ApprovalRow, ...] = ()
    delegations: tuple[DelegationRow, ...] = ()
    directives: tuple[DirectiveRow, ...] = ()
    next: Place | None = None
    """Where to continue; None: this was the last page."""
    misfits: tuple[Misfit, ...] = ()
    """Only if one tree was read alone: what in the store's own tables does not fit it; without a root, all of it."""


@dataclass(slots=True)
class ReadChains(StoreOp[Chains]):
    """Read the trees after this place, as they are stored: nothing in them is decrypted."""

    place: Place = Place()
    alone: bool = False
    """Read only the tree named by ``place.within``."""
    limit: int = 2_000


# ---- Row operations of the audit


@dataclass(frozen=True, slots=True)
class Misfits(Op[list[Misfit]]):
    """Return what in the store's own tables does not fit the rows of this tree; an empty root: of any, or of none."""

    root: str


# ---- Operations of budgets (besides the reservations made by starting and settling calls)


@dataclass(slots=True)
class ListBudgets(StoreOp[tuple[list[SliceRow], float]]):
    """Read a page of a tenant's budget slices, by name, and the ledger's time."""

    tenant: str
    after: str = ""
    limit: int = 200


@dataclass(slots=True)
class ReadSlices(StoreOp[tuple[list[SliceRow], float]]):
    """Read those of these budget slices that exist, by name, and the ledger's time."""

    tenant: str
    names: tuple[str, ...]


# ---- Operations of bundles: whole trees are exported as they are stored, and loaded into another ledger


EVENTS_MAX: Final = 1_000_000
"""The most events of a tree that can be exported: the tree is held in memory."""


@dataclass(frozen=True, slots=True)
class Record:
    """One whole run tree; parents before children, the rest in the order of the tree."""

    runs: tuple[RunRow, ...]
    calls: tuple[CallRow, ...]
    events: tuple[EventRow, ...]
    approvals: tuple[ApprovalRow, ...]

    @property
    def root(self) -> RunRow:
        """The root run of the tree."""
        return self.runs[0]


@dataclass(slots=True)
class FindTrees(StoreOp[list[RunRow]]):
    """List the roots of every generation of a run, oldest first; empty: there is no such run."""

    tenant: str
    id: str


@dataclass(slots=True)
class ReadRecord(StoreOp["Record | None"]):
    """Read one whole tree as it is stored: nothing in it is decrypted."""

    root: str


@dataclass(slots=True)
class LoadRecords(StoreOp[list[str]]):
    """Load these trees of other ledgers, all or none; answer with the roots that were not here before.

    The same transaction writes one run of this ledger that records the load. Trees that are already here stay as they
    are.
    """

    uid: str
    id: str
    """The ids of the run that records the load."""
    tenant: str
    owner: str
    records: tuple[Record, ...]
    by: str = ""
    """Who loads them; empty: nobody said so, and the record names the owner."""
    why: str = ""


@dataclass(slots=True)
class ReserveTools(StoreOp[None]):
    """Reserve names of tools for the workers of a tenant, for ever."""

    tenant: str
    tools: tuple[str, ...]


@dataclass(slots=True)
class ReadReserved(StoreOp[frozenset[str]]):
    """Return which of these names are reserved for the workers of a tenant."""

    tenant: str
    tools: tuple[str, ...]


@dataclass(slots=True)
class HasLoaded(StoreOp[bool]):
    """Return whether runs of other ledgers were ever loaded: then times do not ascend with places."""


# ---- Operations of checkpoints: the ledger's own hash chain


PLACES_MAX: Final = 200
"""How many events are looked up by number at once."""


@dataclass(slots=True)
class DraftCheckpoint(StoreOp["CheckpointRow | None"]):
    """Draft the next checkpoint, not yet signed; None: nothing has happened since the last one.

    A checkpoint without news is still drafted if the last one was signed with another key.
    """

    ledger: str
    """The name for the ledger if it has none yet."""
    key: str
    limit: int = HEADS_MAX


@dataclass(slots=True)
class WriteCheckpoint(StoreOp[bool]):
    """Append a checkpoint to the chain; false: another process was faster, and it must be drafted anew."""

    row: CheckpointRow


@dataclass(slots=True)
class ReadCheckpoints(StoreOp[list[CheckpointRow]]):
    """Read a page of checkpoints in order; ``after`` -1: only the newest."""

    after: int
    limit: int = 100


@dataclass(slots=True)
class ReadHashes(StoreOp[list[tuple[str, int, str]]]):
    """Read tree, number and hash of those of these events that exist."""

    places: tuple[tuple[str, int], ...]


# ---- Operation of accepted residue


@dataclass(slots=True)
class AcceptCall(StoreOp[CallRow]):
    """Apply a person's decision that an effect stays or can never be known: it is residue, named for good."""

    call_id: str
    by: str
    why: str


# ---- Operations of forks


@dataclass(frozen=True, slots=True)
class SharedCopy:
    """A call as the fork will have it, the id of the original call, and the state in which that one was seen."""

    of: str
    seen: str
    row: CallRow


@dataclass(frozen=True, slots=True)
class Forked:
    """The answer to forking a run.

    ``how``: forked, taken (``run`` has that id already), moved (the source has changed), back (``run``, whose calls
    would be shared, is being rolled back or has been).
    """

    how: Literal["forked", "taken", "moved", "back"]
    run: RunRow


@dataclass(slots=True)
class ForkRun(StoreOp[Forked]):
    """Add a run that shares the calls of another one up to a point; both records say so.

    ``runs``: the fork and its descendants, parents first, each with the state that it will have.
    """

    source: str
    runs: tuple[RunRow, ...]
    calls: tuple[SharedCopy, ...]
    by: str
    proofs: Mapping[str, str] = field(default_factory=dict)
    """Digests of payloads that are encrypted on the way, by row id and column (``amends.ledger.changes``)."""


@dataclass(slots=True)
class ReadAnswers(StoreOp[list[AnswerRow]]):
    """List the runs that were answered from calls of this committed tree."""

    root: str


@dataclass(slots=True)
class ReadForks(StoreOp[list[RunRow]]):
    """List the forks, open or committed, that depend on the effects of this tree; forks of forks too."""

    root: str


# ---- Operations of notices: who must be notified of which request
#
# The columns of a request are the outbox: they are written with the request itself, so that no crash can lose a notice.


@dataclass(slots=True)
class DueRequests(StoreOp[list[ApprovalRow]]):
    """List the requests that nobody answered and whose timetable has an entry that is due, longest waiting first."""

    tenant: str | None
    limit: int


@dataclass(slots=True)
class FollowTimetable(StoreOp["DecisionOutcome | None"]):
    """Remind, escalate or refuse, as the timetable of a request says; None: nothing is due, or another process did it."""

    approval: str
    reached: int
    """How many entries had been reached when it was found: only who found it so may carry out the next ones."""


NOTICES_MAX: Final = 24
"""The most attempts to notify of one request: a hook that kills its process must not do so for ever."""


@dataclass(slots=True)
class DueNotices(StoreOp[list[str]]):
    """List the requests that are due for a notice now, longest waiting first."""

    tenant: str | None
    limit: int


@dataclass(slots=True)
class ClaimNotice(StoreOp[RequestWithCall | None]):
    """Claim the notice of this request for ``claim_s``; None: another process has it, or there is nothing to send."""

    approval: str
    teller: str
    """The name of this claim; unique."""
    claim_s: float


@dataclass(slots=True)
class RecordNotice(StoreOp[ApprovalRow]):
    """Record that people were notified of this request; or, with an error, that they were not, and when to retry."""

    approval: str
    teller: str
    error: str = ""
    retry_s: float | None = None
    """None: give up."""
    reached: int = 0
    """How many entries of the timetable were reached when the notice was claimed: each entry has its own notice."""


# ---- Operations of redaction and encryption


@dataclass(slots=True)
class PinKey(StoreOp[str]):
    """Pin the fingerprint of the key of the commitments; answer with the pinned one. Empty: only read it."""

    fingerprint: str


@dataclass(slots=True)
class RewriteTexts(StoreOp[int]):
    """Replace payloads of one call or run, each only if it still is as it was read; answer how many were replaced."""

    row: str
    is_call: bool
    was: Mapping[str, str]
    now: Mapping[str, str]


# ---- Operation of recorded values: the clock that a program reads through its run


VALUE: Final = "value"
"""The event of a clock reading; the time of the event is the value that was read."""


@dataclass(slots=True)
class NoteValue(StoreOp["float | None"]):
    """Read the ledger's clock and record that it was read; None if the run has ended."""

    run: str
    root: str
    owner: str
    epoch: int
    call: str
    """The call in whose body the clock is read; empty: the program itself."""
    nonce: str

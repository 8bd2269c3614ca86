"""Define the ledger's rows, their tables, and the special row operations: those that no table alone can answer.

The operations of tables, which the decisions mostly use, are in ``tables.py``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, Final, Literal, TypeAlias, get_args
from unicodedata import category, normalize

from amends.encoding.chain import Anchored, Checkpoint, body_of, checkpoint_hash, feed_place, read_heads
from amends.encoding.dataclass import dataclass
from amends.errors import UNANSWERED
from amends.ledger.flow import Flow, Op
from amends.ledger.tables import Table
from amends.model import ApprovalState
from amends.states import CALL_STATES, RUN_STATES

# ---- Runs and calls


CLIENT: Final = "+client"
"""In the policy of a run: its client lease follows, in seconds."""


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run. ``owner``, ``epoch``, ``lease_until`` and ``wake_at`` have a meaning on roots only."""

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
    """The plan by which a person rolled the run back; empty: there was none."""
    policy: str = "rollback"
    """What recovery does before the pivot; with ``+commit``, ``+again`` and ``+client`` behind it: see the properties."""
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
    """On roots: a staged call has a cost, so there may be something to reserve with a pivot."""
    budgets: str = ""
    """On roots: the budgets that the run was opened with, as JSON; empty: none."""
    completion: str = ""
    """On roots: when the run is complete, and what an open failure means, as JSON; empty: nobody said."""
    causes: str = "[]"
    closed_at: float | None = None
    gone_at: float | None = None
    """When gc or an erasure removed the payloads of the whole tree."""
    origin: str = ""
    """The ledger from which it was loaded: then it is a read-only record; empty: it belongs to this ledger.
    """
    forked_from: str = ""
    """In a fork: the run that this one was copied from; empty: it is no fork, or it was begun in the fork."""
    forked_at: str = ""
    """JSON. Of a fork: where it was forked. Of a run inside a fork: its counterpart in each run that the fork depends
    on."""
    lease_boot: str = ""
    """On roots: the boot to whose monotonic clock ``lease_mono`` belongs; empty: the owner did not say."""
    lease_mono: float | None = None
    """When the lease ends on the owner's monotonic clock, which does not move when the wall clock is set."""
    silent_boot: str = ""
    """The boot that first noticed that the lease seems to have ended; empty: none did, or a heartbeat came since."""
    silent_mono: float | None = None
    silent_at: float | None = None
    """The time of that notice, on the monotonic clock of that boot and in ledger time."""
    wanted: str = ""
    """When another server last asked for it, for its client: a boot, the time on its monotonic clock and on the ledger's, as
    JSON; empty: none did, or a heartbeat came since."""

    @property
    def lost_at(self) -> float | None:
        """When gc or an erasure removed its input or its output; None: neither was removed."""
        return lost_at(self.input, self.output)

    @property
    def is_erased(self) -> bool:
        """Whether a person erased the texts of its tree: no new text about it is kept. Has a meaning on roots only."""
        return self.input.startswith(GONE) and self.input.endswith(ERASED)

    @property
    def recover(self) -> str:
        """What recovery does before the pivot: ``rollback``, ``resume`` or ``wait``."""
        return self.policy.partition("+")[0]

    @property
    def commits_interrupted(self) -> bool:
        """Whether it commits if its block ends early after the pivot and nothing is pending."""
        return "+commit" in self.policy

    @property
    def reads_again(self) -> bool:
        """Whether reads run again after a resume, instead of being answered from the record."""
        return "+again" in self.policy

    @property
    def client_lease_s(self) -> float:
        """How long recovery leaves the run to its client after the last sign of its owner; 0: it has no client lease."""
        _, _, said = self.policy.partition(CLIENT)
        return float(said.partition("+")[0]) if said else 0.0

    @property
    def is_clients(self) -> bool:
        """Whether its client decides how it goes on: nobody has set a goal, and it has not begun to end."""
        return not self.goal and self.phase in ("open", "pivoted")

    @property
    def phase(self) -> str:
        """The state that the ordering rules look at: of a blocked run, the state before it was blocked."""
        return self.came_from if self.state == "blocked" else self.state


@dataclass(frozen=True, slots=True)
class CallRow:
    """One call: one generation of a key, its attempts, and the attempts of its compensation."""

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
    """The names of the locks that it must hold when it first starts, as JSON; empty: none."""
    cost: str = ""
    """Its cost, and how much of it is reserved or spent in which budgets, as JSON; empty: no cost."""
    violation: str = ""
    attempt: int = 0
    result: str | None = None
    loss: str = ""
    error: str = ""
    why: str = ""
    evidence: str = ""
    learned: str = ""
    """What probes and late returns said while it was in doubt, as JSON, newest last; empty: nothing."""
    late: int = 0
    first_at: float | None = None
    started_at: float | None = None
    settled_at: float | None = None
    settled_seq: int = 0
    retry_at: float | None = None
    tries_from: int = 0
    """Attempts before this one no longer count: a person asked for a retry."""
    quiet_boot: str = ""
    quiet_mono: float | None = None
    """The moment, on which host's monotonic clock, after which nothing new can have been sent; None: still in flight.
    """
    quiet_left: float | None = None
    """How much time was left until then, settle delay included, when it was last observed: another host continues from
    it."""
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
    """Compensated although nobody knew whether there was an effect to compensate."""
    comp_at: float | None = None
    comp_settled_at: float | None = None
    comp_retry_at: float | None = None
    comp_boot: str = ""
    comp_mono: float | None = None
    approval: str = ""
    """The newest approval request for it; empty: it needed none."""
    accepts: str = ""
    """Of an undeclared tool: the rule whose author accepts the residue of the call."""
    shared: str = ""
    """In a fork: the call of another run that this one stands for. That one alone had the effect, and keeps it."""
    comp_guarded: int = 0
    """Its guard did not let its compensation start: somebody else may have changed the thing since."""
    put: int = 0
    """``PUT``: it sets a value (``idempotent="put"``); ``PUT_BACK``: its compensation does. While that is in doubt, nothing
    else touches what its locks name."""
    before: str | None = None
    """What was there before the body first ran, as the tool's ``before`` read it; None: it has none, or did not start."""
    remote_s: float = 0.0
    """The work lease of whoever performs it, or its compensation, outside the owner's process: after the owner's last
    sign that performer may go on for so many seconds. 0: the owner's process performs it."""
    asked_by: str = ""
    """Of a resumed run: the id of the request that was answered with this call in ``asked_epoch``. The same request, repeated
    because its answer was lost, is answered with it again."""

    @property
    def is_loaded(self) -> bool:
        """Whether its run was loaded from another ledger."""
        return self.key.startswith(LOADED)

    @property
    def in_question(self) -> int:
        """The attempt, of the call or of its compensation, whose outcome is unknown; 0: there is none."""
        return {"in_doubt": self.attempt, "compensation_in_doubt": self.comp_attempt}.get(self.state, 0)

    @property
    def is_staged(self) -> bool:
        """Whether it is accepted and waits for the pivot or the commit; after that, for a lock."""
        return self.reason in ("order", "lock") and self.state in ("held", "ready")

    @property
    def lost_at(self) -> float | None:
        """When gc or an erasure removed its arguments or its result; None: all are there.

        No body can receive removed values.
        """
        args, result, before = self.args, self.result, self.before
        if args[:1] != "g" and (result is None or result[:1] != "g") and (not before or before[:1] != "g"):
            return None  # none begins as a removed one does
        return lost_at(args, result, before)

    @property
    def is_reading(self) -> bool:
        """Whether it has its locks, and nothing else, so that what is there before it can be read."""
        return self.state == "ready" and self.reason == READING and not self.attempt


PUT: Final = 1
PUT_BACK: Final = 2
READING: Final = "before"
"""The reason of a call that is ``ready`` so that what is there before it can be read."""
FINAL_NO: Final = "final no"
"""Why a call failed whose tool said that no repeat helps: its error answers every repeat in its run."""
LOADED: Final = "loaded:"
"""Prefix of the keys of calls whose run was loaded from another ledger: no request of ours has such a key."""
GONE: Final = "gone:"
"""Prefix of what replaces a removed payload, followed by the time: no JSON begins so, and it cannot be read as empty.
"""
assert GONE[0] == "g", "lost_at of a call looks at the first letter"
PLAIN: Final = frozenset({"", "null", "{}", "[]"})
"""Payloads that carry no personal data: they stay, and are answered from the record for ever."""


ERASED: Final = ":erased"
"""Suffix of what replaces a removed payload if a person erased it (``amends.ledger.erasure``)."""


def removed(text: str, at: float, *, erased: bool = False) -> str:
    """Return what replaces a removed payload; an empty or already removed payload stays as it is."""
    return text if text in PLAIN or text.startswith(GONE) else f"{GONE}{at!r}{ERASED if erased else ''}"


def lost_at(*texts: str | None) -> float | None:
    """Return when gc or an erasure removed one of these payloads; None: all are as they were written."""
    for text in texts:
        if text is not None and text.startswith(GONE):
            return float(text.removeprefix(GONE).removesuffix(ERASED))
    return None


def needs_tool(root: RunRow, call: CallRow) -> bool:
    """Return whether going on with this tree may need the body, the probe or the compensation of this call's tool."""
    if call.kind == "read" or call.shared or call.state in ("failed", "compensated", "refused", "dropped", "residue"):
        return False
    if call.state == "succeeded" and call.kind == "pivot":
        return False  # it stays whatever happens: its body is never needed again
    return call.state != "succeeded" or (root.phase != "pivoted" and root.goal != "commit")


def is_left_to_program(root: RunRow) -> bool:
    """Return whether only its program continues this run: recovery settles its doubts, and does nothing else with it."""
    is_kept = root.recover == "wait" or (root.recover == "resume" and not root.agent)
    return is_kept and root.phase == "open" and not root.goal and not deadline_passed(root)


def deadline_passed(root: RunRow) -> bool:
    """Return whether its owner was last seen after the deadline of the run: recovery then rolls it back."""
    return root.deadline_at is not None and root.lease_until - root.lease_s > root.deadline_at


RUNS: Final = Table("run", RunRow, "uid", by=("root", "id", "forked_from"), locks="tree", states=RUN_STATES)
CALLS: Final = Table("call", CallRow, "id", by=("key", "root"), locks="tree", states=CALL_STATES)
RUN_COLUMNS: Final = RUNS.columns
CALL_COLUMNS: Final = CALLS.columns


@dataclass(frozen=True, slots=True)
class Now(Op[float]):
    """Return ledger time for the tree of this root; an empty root: for the ledger.

    It is the latest of the clock, the newest event of the tree, and the mark that every heartbeat, every checkpoint and
    every operation with an approval advances (``move_time``). ``known``: ledger time as this transaction has read it
    for the ledger, instead of the clock and the mark. Without a root, return the clock as it is set now: if it was set
    back, it is behind ledger time, which then stands still.
    """

    root: str | None
    known: float = 0.0


class IdTaken(AssertionError):
    """Another call has this id, so it cannot be added; nothing was written. Whoever made the id makes another one."""

    def __init__(self, id: str) -> None:
        super().__init__(f"the ledger has another call {id}")


# ---- Events


@dataclass(frozen=True, slots=True)
class EventRow:
    """One line of the audit log."""

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
    """Its number among the events of its tree: the order inside the tree."""
    hash: str
    """Its link in the chain of its tree (``amends.encoding.chain``)."""

    @property
    def body(self) -> str:
        """The digest of its content; of an erased event, of the content that it had."""
        return erased_body(self.facts) or body_of(*SAID(self))

    @property
    def left_body(self) -> str:
        """The digest of the content that it has now."""
        return body_of(*SAID(self))

    @property
    def place(self) -> str:
        """Its place in a feed of many trees."""
        return feed_place(self.at, self.root, self.n)


EVENTS: Final = Table("event", EventRow, "root", "n")
"""Events are only listed and found here; ``AddEvent`` appends one."""
EVENT_COLUMNS: Final = EVENTS.columns
SAID: Final = attrgetter(*EVENT_COLUMNS[1:-2])
"""The content of an event, without its number and time: the input of ``body_of``."""


@dataclass(frozen=True, slots=True)
class AddEvent(Op[int]):
    """Append an event to the chain of its tree and return its number there."""

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
        """The digest of its content; of an erased event that is loaded from another ledger, of the content it had."""
        return erased_body(self.facts) or body_of(*SAID(self))


_ERASED: Final = '{"erased": "'
"""How the facts of an erased event begin. No other event has a fact of this name."""
_BODY_END: Final = len(_ERASED) + 64


def erased_body(facts: str) -> str:
    """Return the digest of the content that an erased event had; empty: it is not erased.

    The chain is linked by it. That the event was erased by a person, and that nothing else of it was changed, is proved
    by the event ``erased`` of its tree: whoever trusts this digest must look for that one.
    """
    if not facts.startswith(_ERASED):
        return ""
    body = facts[len(_ERASED) : _BODY_END]
    return (
        body
        if len(body) == 64 and body.isalnum() and body.isascii() and facts[_BODY_END : _BODY_END + 1] == '"'
        else ""
    )


# ---- Approvals

# A request is made with a call, decided by people, and used up in the transaction that starts the call.


APPROVAL_STATES: Final[tuple[ApprovalState, ...]] = get_args(ApprovalState)
BUDGET: Final = "budget:"
"""Prefix of the policy of a request that was made because a call would exceed a budget."""
SYSTEM: Final = UNANSWERED
"""Who reminds, escalates, and refuses what nobody answered: no person. Nobody can decide under this name."""
OPEN: Final = ("pending", "approved")
"""The states in which a person may still decide, or a call may still use the approval."""


@dataclass(frozen=True, slots=True)
class ApprovalRow:
    """One request for a person's approval of exactly one call and generation."""

    id: str
    seq: int
    """The number of its first event in its tree."""
    call: str
    run: str
    """The run that asked; a staged call may have moved to the parent since."""
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
    """Why approval is needed, in words."""
    policy: str
    given: str
    """The approvals given, as JSON: by, for, roles, why, at, bypass."""
    requested_at: float
    expires_at: float
    use_key: str = ""
    """Tool and agent, for rules about a first use."""
    residue: str = ""
    """``accept``: the author of the rule accepts the residue of the call."""
    follows: str = ""
    """The request that this one replaces."""
    by_whom: str = ""
    reason: str = ""
    decided_at: float | None = None
    used_at: float | None = None
    used_seq: int = 0
    """The number of the event that used it up."""
    told_at: float | None = None
    tell_at: float | None = None
    """When people are to be notified of it; None: they were, it was given up, or there is no need."""
    tells: int = 0
    """How many notices were begun."""
    teller: str = ""
    """Who has claimed the notice until ``tell_at``; empty: nobody."""
    editors: str = ""
    """Everybody who edited what is asked for after the first asker, as JSON; empty: nobody. Each of them counts as an
    asker."""
    timetable: str = ""
    """What happens while nobody answers, as JSON: entries of seconds after the request, what, roles; empty: nothing."""
    reached: int = 0
    """How many entries of the timetable were reached."""
    due_at: float | None = None
    """When the next entry is due; None: there is none, or the request is decided."""
    asked_at: float | None = None
    """When the roles of the last escalation were asked; None: it was not escalated."""

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The entries of its timetable, in order."""
        return read_timetable(self.timetable)

    @property
    def asked_roles(self) -> tuple[str, ...]:
        """The roles that may decide now: those of the request, and those that it was escalated to since."""
        first: list[str] = json.loads(self.roles)
        return tuple(dict.fromkeys([*first, *(role for one in self.entries[: self.reached] for role in one.roles)]))

    @property
    def edited_by(self) -> tuple[str, ...]:
        """Everybody who edited it, first to last."""
        return tuple(json.loads(self.editors)) if self.editors else ()

    @property
    def is_about_money(self) -> bool:
        """Whether it was made because the call would exceed a budget; an approval lets the call exceed it."""
        return self.policy.startswith(BUDGET)

    def lives(self, now: float) -> bool:
        """Return whether it may still be decided or used."""
        return self.state in OPEN and self.expires_at > now

    def state_at(self, now: float) -> str:
        """Return the state that counts at this time: an open request past its expiry has expired."""
        return "expired" if self.state in OPEN and self.expires_at <= now else self.state

    @property
    def yeses(self) -> list[dict[str, Any]]:
        """The approvals given."""
        said: list[dict[str, Any]] = json.loads(self.given)
        return said


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the timetable of a request: what happens if nobody has answered by then."""

    after_s: float
    """Seconds after the request."""
    what: Literal["remind", "escalate", "refuse"]
    roles: tuple[str, ...] = ()
    """The roles that may decide from then on too."""


def entry_at(requested_at: float, entries: Sequence[Entry], reached: int) -> float | None:
    """Return when the next entry of a timetable is due; None: there is none."""
    return requested_at + entries[reached].after_s if reached < len(entries) else None


def write_timetable(entries: Iterable[Entry]) -> str:
    """Return a timetable as the ledger keeps it; empty: it has no entry."""
    rows = [[one.after_s, one.what, list(one.roles)] for one in entries]
    return json.dumps(rows, ensure_ascii=False) if rows else ""


def read_timetable(text: str) -> tuple[Entry, ...]:
    """Return the entries of a timetable."""
    return tuple(Entry(after, what, tuple(roles)) for after, what, roles in json.loads(text)) if text else ()


def person(name: str) -> str:
    """Return the normal form of a name: the same for names that differ only in case, width or invisible characters."""
    plain = name if name.isascii() else "".join(one for one in normalize("NFKC", name) if category(one) != "Cf")
    return plain.strip().casefold()


Tell: TypeAlias = Callable[[ApprovalRow], Flow[None]]
"""A flow that notifies people of a request, in a process that has a notifier."""

APPROVALS: Final = Table("approval", ApprovalRow, "id", by=("root",), locks="tree", states=APPROVAL_STATES)


@dataclass(frozen=True, slots=True)
class DelegationRow:
    """One person's permission that another may decide for them, for a while."""

    id: str
    tenant: str
    by_whom: str
    to_whom: str
    until_at: float
    why: str
    made_at: float
    seq: int
    """The number of its event, in a chain of its own: 1. A delegation without an event does not count."""

    @property
    def root(self) -> str:
        """The chain of its only event: its own."""
        return self.id


DELEGATIONS: Final = Table("delegation", DelegationRow, "id")


# ---- Directives: what a person ordered for what is to come


@dataclass(frozen=True, slots=True)
class DirectiveRow:
    """One order of a person: a halt, a permit, a token, or work on the ledger. Its events are a chain of its own."""

    id: str
    kind: str
    """``halt``, ``permit``, ``token`` or ``work``."""
    tenant: str
    wide: int
    """It counts for every tenant; ``tenant`` is then empty."""
    agent: str
    """Empty: it counts for every agent."""
    tool: str
    """Empty: it counts for every tool."""
    words: str
    """What else it says, as JSON; empty: nothing."""
    by_whom: str
    why: str
    made_at: float
    until_at: float | None
    uses: int
    """How many uses are left of a permit."""
    closed_at: float | None
    """When it was lifted, revoked, used up or found expired; for work: when it was ordered. None: it stands."""
    seq: int
    """The number of its newest event."""

    @property
    def root(self) -> str:
        """The chain of its events: its own."""
        return self.id

    def is_about(self, tool: str, *runs: RunRow) -> bool:
        """Return whether it counts for this tool in one of these runs, which are of one tree."""
        mine = bool(self.wide) or self.tenant == runs[0].tenant
        return mine and self.tool in ("", tool) and (not self.agent or any(run.agent == self.agent for run in runs))


DIRECTIVES: Final = Table("directive", DirectiveRow, "id", locks="row")
DIRECTIVES_MAX: Final = 10_000
"""The most directives that are looked at together."""


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """The only row about the ledger as a whole. ``halt``: how many halts stand; a plain call starts only at 0."""

    no: int
    halt: int


LEDGER: Final = Table("ledger", LedgerRow, "no", locks="row")
THIS: Final = 1
"""The key of the only row of ``LEDGER``."""


@dataclass(frozen=True, slots=True)
class Need:
    """What the rules require of a call before it may start. ``id`` and ``nonce``: of the request to be made."""

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
    """Everybody who edited what is asked for, besides the first asker."""
    timetable: str = ""
    """What happens while nobody answers (``write_timetable``)."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms under which a recorded call may start now.

    They are the tool's version in this process, what the rules require, and what must have succeeded before.
    """

    version: str
    need: Need | None = None
    after: tuple[str, ...] = ()
    advise: bool = False
    """Violations of the ordering rules are recorded and passed (``order="advise"``)."""
    permits: tuple[str, ...] = ()
    """The permits that its process found to cover it: one of them may stand for a person's decision."""


@dataclass(frozen=True, slots=True)
class Unapproved:
    """Why a call was not started: its request is not decided, or void for the reason ``why``."""

    call: CallRow
    approval: ApprovalRow | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class RequestWithCall:
    """A request with its call, and the ledger's time."""

    approval: ApprovalRow
    call: CallRow
    now: float


@dataclass(frozen=True, slots=True)
class DecisionOutcome:
    """The outcome of a person's decision. ``void``: why it does not count."""

    approval: ApprovalRow
    call: CallRow
    now: float
    void: str = ""


TermsByCall: TypeAlias = Mapping[str, Terms]
"""By the id of a call."""


# ---- Budgets

# A budget that many runs share is kept in slices, each with its own part of the cap, so that they do not all wait for
# one row. Amounts are decimals, written as text.


@dataclass(frozen=True, slots=True)
class SliceRow:
    """One slice of one budget in one period: ``allot`` is its part of the cap."""

    name: str
    tenant: str
    root: str
    """The root, of a budget per run. Empty: many runs share it."""
    words: str
    """The definition of the budget, and whose it is, as JSON."""
    unit: str
    cap: str
    allot: str
    reserved: str
    spent: str
    period: str


BUDGETS: Final = Table("budget", SliceRow, "name", locks="row")


@dataclass(frozen=True, slots=True)
class BudgetDemand:
    """How much a call needs of one budget, in billionths."""

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
    """A person allowed this call to exceed the cap."""

    @property
    def holds(self) -> bool:
        """Whether a person is asked when a call would exceed the cap."""
        return self.then == "hold"


@dataclass(frozen=True, slots=True)
class CallCost:
    """The cost of a call, as (unit, amount, refund on compensation), and the budgets to charge."""

    costs: tuple[tuple[str, int, int], ...] = ()
    wants: tuple[BudgetDemand, ...] = ()
    wide: bool = False
    """Look at every slice: the first one had not enough left."""
    ask: tuple[str, str] = ("", "")
    """Id and nonce of the request that is made if a budget holds the call for a person."""


FREE: Final = CallCost()


@dataclass(frozen=True, slots=True)
class Overrun:
    """The budget that a call would have exceeded, and its state then, in billionths."""

    want: BudgetDemand
    spent: int
    reserved: int
    asked: int
    period: str = ""
    tool: str = ""
    also: tuple[Overrun, ...] = ()
    """The other budgets that it would have exceeded."""

    @property
    def left(self) -> int:
        """What was still available."""
        return max(0, self.want.cap - self.spent - self.reserved)


# ---- Locks between runs

# A lock is a name in its tenant that belongs to one root run until that run has ended. A wait records that a root wants
# a name that another root holds, so that people see it and a deadlock is found.


@dataclass(frozen=True, slots=True)
class LockRow:
    """One name, held by one root run; ``call`` and ``tool`` are the first that needed it."""

    tenant: str
    name: str
    root: str
    run_id: str
    call: str
    tool: str
    taken_at: float


@dataclass(frozen=True, slots=True)
class WaitRow:
    """A root run that wants a name which another root holds; ``seen_at`` is when it last asked."""

    root: str
    tenant: str
    name: str
    run_id: str
    tool: str
    since: float
    seen_at: float


LOCKS: Final = Table("lock", LockRow, "tenant", "name")
WAITS: Final = Table("wait", WaitRow, "root", "name")


@dataclass(frozen=True, slots=True)
class LockRequest:
    """The lock names that a call needs. ``waits``: the caller will ask again; ``waited``: it has asked before."""

    names: tuple[str, ...] = ()
    waits: bool = False
    waited: bool = False


NOTHING: Final = LockRequest()


@dataclass(frozen=True, slots=True)
class Contention:
    """Why locks were not taken: who holds one of them, and since when."""

    name: str
    run_id: str
    """Empty: another transaction was faster just now; the next try finds out which run it was."""
    root: str
    since: float
    now: float
    victim: str = ""
    """Set on a deadlock in which the asking run is the one to roll back: the explanation."""
    lost: CallRow | None = None
    """Set if no other run holds it: a setter of this run that is in doubt, and may still land."""


# ---- Answers across runs


@dataclass(frozen=True, slots=True)
class AnswerRow:
    """A run that was answered from a call of another run (``scope="ledger"``): it relies on that call."""

    call: str
    root: str
    run_id: str
    at: float


ANSWERS: Final = Table("answer", AnswerRow, "call", "root")
ANSWERS_MAX: Final = 10_000
"""The most answered runs that a plan names."""


# ---- Marks: facts about the ledger itself, each written once, by name


@dataclass(frozen=True, slots=True)
class MarkRow:
    """One fact about the ledger that stays true: the first value that was written."""

    name: str
    value: str
    made_at: float


MARKS: Final = Table("mark", MarkRow, "name")
TIME: Final = "time"
"""The mark whose ``made_at`` is the latest moment that the ledger has seen: what has expired stays expired when a clock
is set back. Whoever judges whether an approval has expired moves it in the same transaction."""


# ---- Checkpoints: the ledger's own hash chain


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """One checkpoint as it is stored."""

    n: int
    at: float
    ledger: str
    heads: str
    """The newest event of each tree that has changed, as JSON ``[[root, n, hash], …]``."""
    prev: str
    hash: str
    key: str
    signature: str

    @property
    def true_hash(self) -> str:
        """The hash that it must have."""
        return checkpoint_hash(n=self.n, at=self.at, ledger=self.ledger, heads=self.heads, prev=self.prev, key=self.key)

    @property
    def anchored(self) -> Anchored:
        """What is kept of it outside the ledger."""
        return Anchored(self.ledger, self.n, self.at, self.hash, self.key, self.signature)

    def told(self) -> Checkpoint:
        """Return it as people and hooks see it."""
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


CHECKPOINTS: Final = Table("checkpoint", CheckpointRow, "n")


@dataclass(frozen=True, slots=True)
class Head:
    """The newest event of a chain: its tree, number and hash."""

    root: str
    n: int
    hash: str


@dataclass(frozen=True, slots=True)
class PageUnsealed(Op[list[Head]]):
    """Return the heads of the chains with events that no checkpoint covers, by root, above ``after``.

    These are the trees and delegations whose newest number is not the one that was last marked (``MarkSealed``).
    """

    after: str
    limit: int


@dataclass(frozen=True, slots=True)
class CountStates(Op[dict[str, int]]):
    """Return how many of the newest runs of a tenant (None: of all) are in each state; at most ``limit`` are looked at."""

    tenant: str | None
    limit: int


@dataclass(frozen=True, slots=True)
class FindWaiting(Op[list[str]]):
    """Return which of the newest runs of a tenant are blocked or suspended, by uid; at most ``limit`` are looked at."""

    tenant: str
    limit: int


@dataclass(frozen=True, slots=True)
class CountCalls(Op[dict[str, int]]):
    """Return how many calls each of these trees has; one without calls is left out."""

    roots: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UnusualCalls(Op[list[CallRow]]):
    """Return calls of these trees about which more is known than what every call has, at most ``limit``, in no order.

    A call that has a cost, belongs to a child run, was answered from the record or went wrong is one of them.
    """

    roots: tuple[str, ...]
    limit: int


@dataclass(frozen=True, slots=True)
class MarkSealed(Op[None]):
    """Note that a checkpoint covers these chains up to these heads.

    A chain that another transaction has locked is left out: the next checkpoint names it again.
    """

    heads: tuple[Head, ...]


# ---- Forks


FORKS_MAX: Final = 10_000
"""The most forks of one run, forks of forks included, that are looked at."""


@dataclass(frozen=True, slots=True)
class Point:
    """Where a fork left the run that it was forked from."""

    run_id: str
    call: str
    """The last call that it shares."""
    kin: str
    """The root that names the keys of the whole family of forks: the one that is no fork itself."""
    phases: tuple[tuple[str, str, str], ...] = ()
    """Which program ran until when: a root, the last shared call of it, and the copy of that call in the fork."""


def point_of(row: RunRow) -> Point | None:
    """Return where this run was forked; None: it is no fork."""
    if not row.forked_at or row.uid != row.root:
        return None
    run_id, call, kin, phases = json.loads(row.forked_at)
    return Point(run_id, call, kin, tuple((root, last, mine) for root, last, mine in phases))


def dump_point(point: Point) -> str:
    """Return the point as the ledger stores it."""
    return json.dumps([point.run_id, point.call, point.kin, point.phases], ensure_ascii=False)


def counterparts_of(row: RunRow) -> tuple[str, ...]:
    """Return the counterparts of this run in the earlier phases of its fork, oldest first."""
    point = point_of(row)
    if point is not None:
        return tuple(root for root, _, _ in point.phases)
    return tuple(json.loads(row.forked_at)) if row.forked_at else ()


def forked_key(key: str, fork: str) -> str:
    """Return the key that a request with ``key`` (in the original run, or in another fork of it) has in this fork."""
    head, colon, rest = key.partition(":")
    return f"{head.partition('@')[0]}@{fork}{colon}{rest}"

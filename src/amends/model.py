"""The values that amends hands out: runs, calls, approvals, answers.

All are frozen; users receive most of them and build only a few (``Retry``, ``Happened``). What people read (reports,
plans, comparisons) is in ``report``; budgets and costs are in ``budgets``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import datetime
from decimal import Decimal
from typing import Any, ClassVar, Final, Generic, Literal, TypeAlias, TypeVar

from amends.encoding.chain import feed_place, read_place
from amends.encoding.dataclass import dataclass, field
from amends.errors import (
    ApprovalVoid,
    Held,
    ResultGone,
    ResultLost,
    is_a,
)
from amends.states import CallState, HoldReason, RunState

Kind: TypeAlias = Literal["read", "compensatable", "pivot", "retriable"]
Scope: TypeAlias = Literal["run", "ledger"]
Order: TypeAlias = Literal["strict", "advise"]
Policy: TypeAlias = Literal["rollback", "resume", "wait"]
OnOpenFailure: TypeAlias = Literal["rollback", "commit"]
Phase: TypeAlias = Literal["execute", "compensate", "probe"]
ApprovalState: TypeAlias = Literal["pending", "approved", "rejected", "expired", "used", "cancelled"]
Status: TypeAlias = Literal["done", "replayed", "staged", "held", "refused", "failed", "in_doubt"]
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
AHEAD_MAX_S: Final = 100 * 365 * 86_400.0
"""How far ahead a time may be set: a hundred years. Times after the year 9999 cannot be stored."""


# ---- Runs and calls


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One run as the ledger has it."""

    id: str
    state: RunState
    generation: int = 1
    tenant: str | None = None
    agent: str | None = None
    principal: str | None = None
    parent: str | None = None
    goal: str | None = None
    recover: Policy = "rollback"
    input: Any = None
    output: Any = None
    tags: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    owner: str | None = None
    epoch: int = 0
    opened_at: datetime | None = None
    closed_at: datetime | None = None
    deadline_at: datetime | None = None
    gone_at: datetime | None = None
    """When gc removed the payloads of its tree; ``input`` and ``output`` are then None."""
    origin: str | None = None
    """The ledger that it was loaded from; None: it belongs to this ledger."""
    forked_from: str | None = None
    """The run that this one was forked from; ``forked_at`` is the last call that they share."""
    forked_at: str | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for: everything that a rule sees."""

    run_id: str
    tool: str
    version: str
    args: Mapping[str, Any]
    tenant: str | None = None
    agent: str | None = None
    principal: str | None = None


@dataclass(frozen=True, slots=True)
class Call(Request):
    """One call of a tool in a run, as the ledger has it."""

    id: str = ""
    key: str = ""
    """The idempotency key for the destination: digest(key, generation)."""
    kind: Kind = "compensatable"
    state: CallState = "started"
    generation: int = 1
    attempt: int = 1
    phase: Phase = "execute"
    digest: str = ""
    """Digest of tool, version and all canonical arguments."""
    result: Any = None
    loss: str | None = None
    """What part of the result could not be stored."""
    error: str | None = None
    why: str | None = None
    """Why it is held, in doubt, or left standing."""
    reason: HoldReason | None = None
    again: str | None = None
    tool_call_id: str | None = None
    parent: str | None = None
    """The call whose body asked for this one."""
    violation: str | None = None
    """What ``order="strict"`` would have refused (with ``order="advise"`` only)."""
    compensation: Compensation | None = None
    requested_at: datetime | None = None
    started_at: datetime | None = None
    settled_at: datetime | None = None
    replays: int = 0
    gone_at: datetime | None = None
    """When gc removed its arguments or its result; None: it did not."""
    costs: Mapping[str, Decimal] = field(default_factory=dict)
    """Its current cost by unit: spent, or reserved while it has no result."""
    shared: str | None = None
    """In a fork: the call of the original run that it stands for, which alone had the effect."""
    classes: Mapping[str, str] = field(default_factory=dict)
    """The class of each argument, or part of one ("to", "items[0].owner"), if its annotation allows several."""

    @property
    def staged(self) -> bool:
        """Whether it is accepted and waits for the pivot or the commit, or after that for a lock."""
        return self.state in ("held", "ready") and self.reason in ("order", "lock")

    @property
    def seconds(self) -> float | None:
        """How long the last attempt took; None if it has not ended or was lost."""
        lost = self.state == "in_doubt" and self.why == "lost"
        if self.started_at is None or self.settled_at is None or lost:
            return None
        return (self.settled_at - self.started_at).total_seconds()


@dataclass(frozen=True, slots=True)
class Compensation:
    """The record of a call's compensation, which runs at most once."""

    key: str
    attempts: int
    error: str | None = None
    started_at: datetime | None = None
    settled_at: datetime | None = None
    next_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Missing:
    """What a run lacks to be complete: a required tool that has not succeeded, or a failure that is still open."""

    tool: str
    why: str
    call: Call | None = None
    """The call that failed; None: it was never made, or a check of the program said no."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {"tool": self.tool, "why": self.why, "call": None if self.call is None else self.call.id}


@dataclass(frozen=True, slots=True)
class Residue:
    """An effect left standing, and why."""

    call: Call
    why: str


@dataclass(frozen=True, slots=True)
class Lock:
    """A name that one run holds until it has ended."""

    name: str
    run_id: str
    tool: str
    """The tool that asked for it first, and its call."""
    call_id: str
    since: datetime
    held_s: float
    """How many seconds it had been held when this was read."""
    run_state: RunState
    waiting: tuple[str, ...] = ()
    """The runs that wait for it; the longest waiting is first."""


@dataclass(frozen=True, slots=True)
class Event:
    """One change of state, written in the transaction of the change."""

    seq: int
    """Its number in its run tree."""
    at: datetime
    run_id: str
    call_id: str | None
    what: str
    frm: str
    to: str
    by: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    place: str = ""
    """Its place in the feed of the ledger, for ``rt.events(after=...)``: by moment, run tree and number."""


class Feed:
    """Follow the events of a ledger by their places, without losing one that is committed late.

    Transactions overlap: an event with an earlier moment may be committed after a later one was read. A feed therefore
    reads the last ``margin_s`` seconds again each time, and says which events are new. A feed that begins at a place that
    an earlier feed had reached shows those seconds once more; ``Event.place`` tells which events are known.

        feed = Feed()
        while True:
            for event in rt.events(after=feed.after):
                if feed.is_new(event):
                    ...
    """

    MARGIN_S: ClassVar[float] = 5.0

    def __init__(self, after: str = "", *, margin_s: float = MARGIN_S) -> None:
        self.place = after
        """The latest place that it has shown."""
        self._margin_s = margin_s
        self._at, self._newest = read_place(after)[0], read_place(after)
        self._shown: dict[str, float] = {}

    @property
    def after(self) -> str:
        """The place after which to read next: ``margin_s`` before the latest one."""
        return feed_place(self._at - self._margin_s) if self.place else ""

    def is_new(self, event: Event) -> bool:
        """Return whether this event was not shown yet; from now on it counts as shown."""
        if event.place in self._shown:
            return False
        where = read_place(event.place)
        self._shown[event.place] = where[0]
        if where > self._newest:
            self.place, self._newest, self._at = event.place, where, where[0]
            for place in [one for one, at in self._shown.items() if at < self._at - self._margin_s]:
                del self._shown[place]
        return True


class _WithoutResult(Call):
    """A call whose result is lost: reading it raises, because None could be taken for the result."""

    __slots__ = ("_lost",)
    _lost: Exception

    @property
    def result(self) -> Any:
        """Raise ``ResultLost``."""
        raise self._lost

    def __repr__(self) -> str:
        return f"Call(id={self.id!r}, tool={self.tool!r}, state={self.state!r}, loss={str(self._lost)!r})"


def without_result(call: Call, lost: Exception) -> Call:
    """Return the same call with a ``result`` that raises this error."""
    made = object.__new__(_WithoutResult)
    for one in fields(Call):
        if one.name != "result":
            object.__setattr__(made, one.name, getattr(call, one.name))
    object.__setattr__(made, "_lost", lost)
    return made


# ---- Staged calls, and requests of a model


class Staged(Generic[R_co]):
    """A call accepted for later: it starts after the pivot, or at commit."""

    __slots__ = ("_read", "call")

    def __init__(self, call: Call, read: Callable[[], Call]) -> None:
        self.call = call
        self._read = read

    @property
    def done(self) -> bool:
        """Whether it has run. Reads the ledger until it has."""
        if self.call.state != "succeeded":
            self.call = self._read()
        return self.call.state == "succeeded"

    @property
    def result(self) -> R_co:
        """Its result; raises ``ValueError`` before it is done."""
        if not self.done:
            raise ValueError(f"{self.call.tool} is {self.call.state}: it has no result yet; look at .done first")
        call = self.call
        if call.gone_at is not None and call.loss is not None:
            raise ResultGone(f"{call.tool} ({call.id})", gone_at=call.gone_at, call=call, run_id=call.run_id)
        if call.result is None and call.loss is not None:
            raise ResultLost(f"{call.tool} ({call.id})", why=call.loss, call=call, run_id=call.run_id)
        value: R_co = self.call.result
        return value

    def __repr__(self) -> str:
        return f"<Staged {self.call.tool} {self.call.state}>"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """What a model asks for: a tool by its name, with JSON arguments. Built by the code that reads a model's answer."""

    tool: str
    args: Mapping[str, Any] | str
    """An object, or its JSON text as some providers send it."""
    tool_call_id: str | None = None
    """Recorded, but never the identity of the call: providers make a new one for every retry."""
    handler: Callable[..., object] | None = None
    """The function to call instead of the tool's own body."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of a model's request, and the text for the model."""

    status: Status
    text: str
    value: Any = None
    call: Call | None = None
    error: Exception | None = None

    @property
    def is_error(self) -> bool:
        """Whether the model must be told that it was not done."""
        if self.status in ("done", "replayed", "staged"):
            return False
        return not (self.status == "held" and getattr(self.error, "reason", None) in ("approval", "budget"))

    @property
    def waits(self) -> bool:
        """Whether a person must decide before it can continue: raise ``error`` to release the run until then."""
        if is_a(self.error, Held):
            return self.error.reason != "duplicate"  # a model can settle that one by saying what it meant
        return is_a(self.error, ApprovalVoid) and self.error.asked


# ---- Approvals


@dataclass(frozen=True, slots=True)
class Approval:
    """A request for a person's approval of one call, exactly as it is shown here."""

    id: str
    call: Call
    digest: str
    """What is approved: this call with all its arguments, in this run, for this one request."""
    state: ApprovalState
    expires_at: datetime
    requested_at: datetime
    rule: str = ""
    """Why approval is needed, in words."""
    needed: int = 1
    """How many different people must approve."""
    roles: tuple[str, ...] = ()
    """The roles that may approve; empty: anybody except the requester."""
    reasons: tuple[str, ...] = ()
    """The reasons that a rejection may give; empty: any."""
    given: tuple[Yes, ...] = ()
    by: str | None = None
    """Who decided it."""
    reason: str | None = None
    """Why it was rejected."""
    decided_at: datetime | None = None
    used_at: datetime | None = None
    follows: str | None = None
    """The request that this one replaced."""
    editors: tuple[str, ...] = ()
    """Who edited the request: each counts as a requester and cannot approve it."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Links to approve and reject it, if the runtime makes links."""


@dataclass(frozen=True, slots=True)
class Yes:
    """One person's approval of a request."""

    by: str
    at: datetime
    why: str = ""
    behalf: str | None = None
    """Who delegated it."""
    roles: tuple[str, ...] = ()
    bypass: bool = False


# ---- Answers of a probe


class _Lost:
    """The type of ``LOST``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "(not said)"


LOST: Final = _Lost()
"""Stands for a result that is not available, or was not given."""


@dataclass(frozen=True, slots=True)
class Happened(Generic[R_co]):
    """The call took effect, with this result; without one, the result is unknown."""

    result: R_co = LOST  # type: ignore[assignment]  # has no type: every reader checks for LOST first


@dataclass(frozen=True, slots=True)
class Absent:
    """The call had no effect; it may be started again."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """The outcome is unknown; ask again later, or ask a person."""

    why: str = ""


Probed: TypeAlias = Happened[R] | Absent | Unknown


class NoEffect(Exception):
    """Raise it in a body: this call certainly changed nothing."""


# ---- Retries


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how fast a call is started again after an error that certainly had no effect.

    ``attempts`` counts starts, not repeats: 3 means three starts. ``on`` names the errors that certainly had no
    effect; a timeout is allowed only for an idempotent or probed tool.
    """

    attempts: int = 3
    on: type[Exception] | tuple[type[Exception], ...] = ()
    delay: float = 1.0
    factor: float = 2.0
    max_delay: float = 60.0
    jitter: float = 0.3

    def pause(self, attempt: int, luck: float) -> float:
        """Return the seconds to wait after start number ``attempt``; ``luck`` in [0, 1) is the random jitter."""
        assert attempt >= 1, "attempts are counted from one"
        grown = self.delay * self.factor ** min(attempt - 1, 64)
        capped = min(grown, self.max_delay)
        return capped * (1 + self.jitter * (2 * luck - 1))


# ---- The ledger itself


@dataclass(frozen=True, slots=True)
class Schema:
    """The schema version of a ledger, and the versions that this amends supports."""

    version: int
    """0: there is no ledger yet."""
    newest: int
    """The newest schema version that this amends supports."""
    needs: int
    """The schema version that an amends must support to use the ledger."""
    pending: tuple[str, ...]
    """The migrations that this amends would apply."""
    ledger: str = ""
    """The ledger's own name, chosen when it was created."""


@dataclass(frozen=True, slots=True)
class Collected:
    """What gc removed, or would remove in a dry run."""

    runs: int
    """The number of run trees."""
    calls: int
    bytes: int
    """The bytes of removed text; a database frees the space later."""
    kept: Mapping[str, int] = field(default_factory=dict)
    """How many ended trees were kept, by reason."""
    dry_run: bool = False

"""The values amends hands out. All are frozen; users receive them and never build most of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

from amends.errors import ApprovalVoid, Held, ResultGone, ResultLost
from amends.phrases import is_a
from amends.record import dataclass, field
from amends.states import CallState, HoldReason, RunState

Kind: TypeAlias = Literal["read", "compensatable", "pivot", "retriable"]
Scope: TypeAlias = Literal["run", "ledger"]
Order: TypeAlias = Literal["strict", "advise"]
Policy: TypeAlias = Literal["rollback", "resume", "wait"]
Phase: TypeAlias = Literal["execute", "compensate", "probe"]
ApprovalState: TypeAlias = Literal["pending", "approved", "rejected", "expired", "used", "cancelled"]
Status: TypeAlias = Literal["done", "replayed", "staged", "held", "refused", "failed", "in_doubt"]

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


# ---- what a probe answers -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Schema:
    """The version a ledger has, and what this amends knows."""

    version: int
    """0: there is no ledger yet."""
    newest: int
    """The newest version that this amends knows."""
    needs: int
    """The version that an amends must know to use the ledger: below it two amends cannot share it."""
    pending: tuple[str, ...]
    """The migrations that this amends would apply."""
    ledger: str = ""
    """The ledger's own name, made when it was made."""


class _Lost:
    """Stands for a result that nobody has."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "(not said)"


LOST: Final = _Lost()
"""Stands for a result that nobody has, or that nobody said."""
AHEAD_MAX_S: Final = 100 * 365 * 86_400.0
"""How far ahead a time may be set: a hundred years. Times after the year 9999 cannot be written down."""


@dataclass(frozen=True, slots=True)
class Happened(Generic[R_co]):
    """The call took effect, with this result; without one: nobody knows what it gave back."""

    result: R_co = LOST  # type: ignore[assignment]  # of no type: whoever reads it asks for LOST first


@dataclass(frozen=True, slots=True)
class Absent:
    """The call had no effect; it may be started again."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """The world does not say; ask again later, or a person."""

    why: str = ""


Probed: TypeAlias = Happened[R] | Absent | Unknown


class NoEffect(Exception):
    """Raise it in a body: this call certainly changed nothing."""


# ---- what a tool says ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how fast a call is started again after an error that certainly had no effect.

    ``attempts`` counts starts, not repeats: 3 is three starts. ``on`` names the errors that certainly had no
    effect; a timeout may stand there only for an idempotent or probed tool.
    """

    attempts: int = 3
    on: type[Exception] | tuple[type[Exception], ...] = ()
    delay: float = 1.0
    factor: float = 2.0
    max_delay: float = 60.0
    jitter: float = 0.3

    def pause(self, attempt: int, luck: float) -> float:
        """Seconds to wait after start number ``attempt``; ``luck`` in [0, 1) spreads callers apart."""
        assert attempt >= 1, "attempts are counted from one"
        grown = self.delay * self.factor ** min(attempt - 1, 64)
        capped = min(grown, self.max_delay)
        return capped * (1 + self.jitter * (2 * luck - 1))


# ---- records ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for: all that a rule sees."""

    run_id: str
    tool: str
    version: str
    args: Mapping[str, Any]
    tenant: str | None = None
    agent: str | None = None
    principal: str | None = None


@dataclass(frozen=True, slots=True)
class Call(Request):
    """One use of a tool in a run, as the ledger has it."""

    id: str = ""
    key: str = ""
    """digest(key, generation): what the destination gets as its idempotency key."""
    kind: Kind = "compensatable"
    state: CallState = "started"
    generation: int = 1
    attempt: int = 1
    phase: Phase = "execute"
    digest: str = ""
    """Digest of tool, version and all canonical arguments."""
    result: Any = None
    loss: str | None = None
    """What of the result could not be written down."""
    error: str | None = None
    why: str | None = None
    """Why it is held, in doubt, or left standing."""
    reason: HoldReason | None = None
    again: str | None = None
    tool_call_id: str | None = None
    parent: str | None = None
    """The call whose body asked for this one."""
    violation: str | None = None
    """What ``order="strict"`` would have said (advise only)."""
    compensation: Compensation | None = None
    requested_at: datetime | None = None
    started_at: datetime | None = None
    settled_at: datetime | None = None
    replays: int = 0
    gone_at: datetime | None = None
    """When gc removed its arguments or its result; None: they are as they were."""
    costs: Mapping[str, Decimal] = field(default_factory=dict)
    """What it costs by unit, as it stands: spent, or reserved for it while it has no result."""
    shared: str | None = None
    """In a fork: the call of the original run that it stands for, which alone had the effect, and keeps it."""
    classes: Mapping[str, str] = field(default_factory=dict)
    """The class of each argument, or part of one ("to", "items[0].owner"), where its annotation allows several."""

    @property
    def staged(self) -> bool:
        """Accepted, and waiting for the pivot or the commit; past it, for a lock."""
        return self.state in ("held", "ready") and self.reason in ("order", "lock")

    @property
    def seconds(self) -> float | None:
        """How long the last attempt took; None: it was lost, and nobody knows."""
        lost = self.state == "in_doubt" and self.why == "lost"
        if self.started_at is None or self.settled_at is None or lost:
            return None
        return (self.settled_at - self.started_at).total_seconds()


class _WithoutResult(Call):
    """A call whose result nobody has: asking for it raises, where None would be taken for the result."""

    __slots__ = ("_lost",)
    _lost: Exception

    @property
    def result(self) -> Any:
        """Raise ``ResultLost``."""
        raise self._lost

    def __repr__(self) -> str:
        return f"Call(id={self.id!r}, tool={self.tool!r}, state={self.state!r}, loss={str(self._lost)!r})"


def without_result(call: Call, lost: Exception) -> Call:
    """Return the same call, whose ``result`` raises this error."""
    made = object.__new__(_WithoutResult)
    for one in fields(Call):
        if one.name != "result":
            object.__setattr__(made, one.name, getattr(call, one.name))
    object.__setattr__(made, "_lost", lost)
    return made


@dataclass(frozen=True, slots=True)
class Compensation:
    """The twin's own record: it is a call of its own, at most once."""

    key: str
    attempts: int
    error: str | None = None
    started_at: datetime | None = None
    settled_at: datetime | None = None
    next_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Residue:
    """An effect left standing, and why."""

    call: Call
    why: str


@dataclass(frozen=True, slots=True)
class Lock:
    """A name that one run has to itself until it has ended."""

    name: str
    run_id: str
    tool: str
    """The tool that wanted it first, and its call."""
    call_id: str
    since: datetime
    held_s: float
    """For how many seconds, when this was read."""
    run_state: RunState
    waiting: tuple[str, ...] = ()
    """The runs that wait for it, longest first."""


@dataclass(frozen=True, slots=True)
class Event:
    """One change of state, written in the transaction of the change."""

    seq: int
    at: datetime
    run_id: str
    call_id: str | None
    what: str
    frm: str
    to: str
    by: str
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Yes:
    """One person's yes to a request."""

    by: str
    at: datetime
    why: str = ""
    behalf: str | None = None
    """Who delegated it."""
    roles: tuple[str, ...] = ()
    bypass: bool = False


@dataclass(frozen=True, slots=True)
class Approval:
    """A request for a person's yes to one call, exactly as it stands here."""

    id: str
    call: Call
    digest: str
    """What is said yes to: this call with all its arguments, in this run, asked for this once."""
    state: ApprovalState
    expires_at: datetime
    requested_at: datetime
    rule: str = ""
    """Why it is asked, in words."""
    needed: int = 1
    """How many different people must say yes."""
    roles: tuple[str, ...] = ()
    """Of which roles they must be; none: anybody but the one who asked."""
    reasons: tuple[str, ...] = ()
    """The reasons that a no may have; none: any."""
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
    """Who edited what is asked for: each counts as an asker, and cannot say yes to it."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Where to approve and reject it, where links are made."""


class Staged(Generic[R_co]):
    """A call accepted for later: it starts after the pivot, or at commit."""

    __slots__ = ("_read", "call")

    def __init__(self, call: Call, read: Callable[[], Call]) -> None:
        self.call = call
        self._read = read

    @property
    def done(self) -> bool:
        """Whether it has run by now. Reads the ledger until it has."""
        if self.call.state != "succeeded":
            self.call = self._read()
        return self.call.state == "succeeded"

    @property
    def result(self) -> R_co:
        """Its result, once done."""
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
    """What a model asks for: a tool by its name, with JSON. Built by whoever reads a model's answer."""

    tool: str
    args: Mapping[str, Any] | str
    """An object, or the text of one as some providers send it."""
    tool_call_id: str | None = None
    """Recorded, and never the call's identity: a provider makes a new one for every retry."""
    handler: Callable[..., object] | None = None
    """The function to call instead of the tool's own body."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a model's request, and the words for the model."""

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
        """Whether a person decides before it can go on: raise ``error`` to let the run go until then."""
        if is_a(self.error, Held):
            return self.error.reason != "duplicate"  # that one the model can settle by saying what it meant
        return is_a(self.error, ApprovalVoid) and self.error.asked


@dataclass(frozen=True, slots=True)
class Collected:
    """What gc removed, or in a dry run would remove."""

    runs: int
    """Trees, counted by their roots."""
    calls: int
    bytes: int
    """Of text; a database gives room back in its own time."""
    kept: Mapping[str, int] = field(default_factory=dict)
    """Ended trees that were left whole, by reason."""
    dry_run: bool = False


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
    """When gc removed the payloads of its tree; ``input`` and ``output`` are None then, whatever they were."""
    origin: str | None = None
    """The ledger that it was loaded from; None: it is of this one."""
    forked_from: str | None = None
    """The run that this one was forked from, and the last call that it shares with it."""
    forked_at: str | None = None

"""The values that amends hands out: runs, calls, approvals, answers.

All are frozen; users receive most of them and build only a few (``Retry``, ``Happened``). What people read (reports,
plans, comparisons) is in ``report``; budgets and costs are in ``budgets``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, ClassVar, Final, Generic, Literal, TypeAlias, TypeVar

from amends.encoding.chain import feed_place, read_place
from amends.encoding.dataclass import dataclass, field
from amends.errors import (
    ApprovalVoid,
    Error,
    Held,
    ResultGone,
    ResultLost,
    class_name,
    cut,
    is_a,
    plain_mapping,
    words_of,
)
from amends.states import CallState, HoldReason, RunState
from amends.visible import visible

Kind: TypeAlias = Literal["read", "compensatable", "pivot", "retriable", "agent"]
Scope: TypeAlias = Literal["run", "ledger"]
Order: TypeAlias = Literal["strict", "advise"]
Policy: TypeAlias = Literal["rollback", "resume", "wait"]
Interrupted: TypeAlias = Literal["block", "commit"]
OnOpenFailure: TypeAlias = Literal["rollback", "commit"]
Phase: TypeAlias = Literal["execute", "compensate", "probe", "before"]
ApprovalState: TypeAlias = Literal["pending", "approved", "rejected", "expired", "used", "cancelled"]
Status: TypeAlias = Literal["done", "replayed", "staged", "held", "refused", "failed", "in_doubt"]
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
AHEAD_MAX_S: Final = 100 * 365 * 86_400.0
"""How far ahead a time may be set: a hundred years. Times after the year 9999 cannot be stored."""


REPR_CHARS_MAX: Final = 200
"""How much of a call's arguments a debugger shows."""


# ---- Records as JSON data


def plain(value: Any) -> Any:
    """Return any value as JSON data, with ``str()`` of what JSON has no type for."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, Mapping):
        return plain_mapping(value, plain)
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(one) for one in value]
    if isinstance(value, datetime):
        return value.isoformat()
    if is_a(value, BaseException):
        return value.to_dict() if is_a(value, Error) else {"type": class_name(type(value)), "message": words_of(value)}
    if type(value).__module__ in _RECORDS and hasattr(value, "to_dict"):
        return value.to_dict()
    return plain_fields(value) if is_dataclass(value) and not isinstance(value, type) else str(value)


_RECORDS: Final = ("amends.model", "amends.report")


def plain_fields(record: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as JSON data; a result that is lost is None."""
    found: dict[str, Any] = {}
    for one in fields(record):
        try:
            found[one.name] = plain(getattr(record, one.name))
        except ResultLost:
            found[one.name] = None
    return found


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
    interrupted: Interrupted = "block"
    """What recovery does if its block ends early after the pivot and nothing is pending: ask a person, or commit."""
    client_lease: float | None = None
    """How many seconds recovery leaves it to its client after the last sign of its owner; None: it has no client lease."""
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
    """When gc or an erasure removed the payloads of its tree; ``input`` and ``output`` are then None."""
    origin: str | None = None
    """The ledger that it was loaded from; None: it belongs to this ledger."""
    forked_from: str | None = None
    """The run that this one was forked from; ``forked_at`` is the last call that they share."""
    forked_at: str | None = None
    now: Now | None = None
    """What happens to it at this moment; only with ``rt.runs(now=True)``, and None once it has ended."""
    place: str = ""
    """Its place in the listing of runs, for ``rt.runs(after=...)``."""
    goal_why: str | None = None
    """Why it has its goal: the reason that was given for a rollback, or the error that caused it."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return plain_fields(self)


@dataclass(frozen=True, slots=True)
class Now:
    """What happens to an unfinished run at this moment: it runs, waits, or was orphaned by its process."""

    what: Literal["running", "waiting", "orphaned"]
    where: str | None = None
    """The process that has the run: ``web-1 (4121)``, its host and its process id."""
    waits_for: str | None = None
    """Who or what must act first: ``a person``, a role, ``a worker``, ``its program``, ``a probe``, ``a lock``."""
    since: datetime | None = None
    """Of an orphaned run: the last sign of life of its process. Of one that waits for approval: the request."""

    def __str__(self) -> str:
        if self.what == "running":
            return f"runs on {self.where}"
        if self.what == "waiting":
            return f"waits for {self.waits_for}"
        return "orphaned" if self.since is None else f"orphaned since {self.since:%Y-%m-%d %H:%M:%S} UTC"

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return plain_fields(self)


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

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return plain_fields(self)


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
    """How often it was answered from the record, written when a run is left: after a crash, a lower bound."""
    gone_at: datetime | None = None
    """When gc or an erasure removed its arguments or its result; None: neither did."""
    costs: Mapping[str, Decimal] = field(default_factory=dict)
    """Its current cost by unit: spent, or reserved while it has no result."""
    shared: str | None = None
    """In a fork: the call of the original run that it stands for, which alone had the effect."""
    classes: Mapping[str, str] = field(default_factory=dict)
    """The class of each argument, or part of one ("to", "items[0].owner"), if its annotation allows several."""
    before: Any = None
    """What was there before the body first ran, as the tool's ``before`` read it."""
    twin: str | None = None
    """Of a call that is held as a suspected duplicate or a conflict: the earlier call that it looks like."""

    def __repr__(self) -> str:
        args = cut(repr(dict(self.args)), REPR_CHARS_MAX)
        return f"Call(id={self.id!r}, tool={self.tool!r}, args={args}, state={self.state!r}, run_id={self.run_id!r})"

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

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return plain_fields(self)


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


NOT_LOADED: Final = "it has not been compensated, and its tool is not loaded here"
"""Why an effect stands in the eyes of a process that lacks the code of its tool."""


@dataclass(frozen=True, slots=True)
class Residue:
    """An effect that remains, and why."""

    call: Call
    why: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {"call": self.call.id, "tool": self.call.tool, "why": self.why}


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

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return plain_fields(self)


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

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return plain_fields(self)


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

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data, as it was last read."""
        return {"staged": True, "call": self.call.to_dict()}

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
    schema: Mapping[str, Any] | None = None
    """The JSON schema of the arguments, if the handler does not name them."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data, without the handler and the schema."""
        return {"tool": self.tool, "args": plain(self.args), "tool_call_id": self.tool_call_id}


@dataclass(frozen=True, slots=True)
class Once(Generic[R_co]):
    """What ``tell_once`` returns: the value, and whether the code was executed now or answered from the record."""

    value: R_co
    replayed: bool
    """Whether it was answered from the record: the code did not run."""
    call: Call

    @property
    def executed(self) -> bool:
        """Whether the code ran now."""
        return not self.replayed

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {"value": plain(self.value), "replayed": self.replayed, "call": self.call.to_dict()}


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

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return plain_fields(self) | {"is_error": self.is_error, "waits": self.waits}


# ---- Approvals


@dataclass(frozen=True, slots=True)
class Shift:
    """One row of the on-call table: this person is asked for this role during this time."""

    role: str
    person: str
    start: datetime
    until: datetime

    def covers(self, at: datetime) -> bool:
        """Return whether the person is on call at this time."""
        return self.start <= at < self.until

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return plain_fields(self)


@dataclass(frozen=True, slots=True)
class ShiftProblem:
    """What is wrong with the on-call table during a time."""

    kind: Literal["gap", "overlap", "no_role", "unused", "unreadable"]
    role: str
    people: tuple[str, ...]
    start: datetime
    until: datetime
    text: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return plain_fields(self)


Occasion: TypeAlias = Literal["request", "reminder", "escalation"]
"""What a notice about a request is about."""


@dataclass(frozen=True, slots=True)
class NextEntry:
    """What happens to a request if nobody answers it by then."""

    what: Literal["remind", "escalate", "refuse", "expire"]
    at: datetime
    roles: tuple[str, ...] = ()
    """The roles that are asked from then on too."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return plain_fields(self)


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
    asked: tuple[str, ...] = ()
    """Who is asked now: the people on call for its roles; for a role with nobody on call, all who have it. Never a requester."""
    asked_at: datetime | None = None
    """Since when they are asked: the time of the request, or of its last escalation."""
    reached: int = 0
    """How many entries of its timetable were reached: reminders and escalations."""
    occasion: Occasion = "request"
    """What the newest notice of it is about."""
    next: NextEntry | None = None
    """What happens next if nobody answers; None: it is decided."""

    @property
    def notice_id(self) -> str:
        """The id of its newest notice: the same when that notice is sent twice, another for each reminder."""
        return f"{self.id}.{self.reached}" if self.reached else self.id

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return plain_fields(self)

    def __repr__(self) -> str:
        return f"Approval(id={self.id!r}, state={self.state!r}, call={self.call!r})"


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

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return plain_fields(self)


@dataclass(frozen=True, slots=True)
class Halt:
    """An emergency stop, in force or lifted: nothing starts in the part of the ledger that it names."""

    id: str
    tenant: str | None
    """None: every tenant."""
    agent: str | None
    """None: every agent."""
    tool: str | None
    """None: every tool."""
    by: str
    why: str
    at: datetime
    lifted_at: datetime | None = None

    @property
    def extent(self) -> str:
        """What is halted, in words."""
        parts = [("tool", self.tool), ("agent", self.agent), ("tenant", self.tenant)]
        named = [f"{name} {visible(value)}" for name, value in parts if value]
        if self.tenant == "":
            named.append("the tenant without a name")
        return ", ".join(named) or "the whole ledger"

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON data."""
        lifted = None if self.lifted_at is None else self.lifted_at.isoformat()
        named = {"id": self.id, "tenant": self.tenant, "agent": self.agent, "tool": self.tool, "extent": self.extent}
        return named | {"by": self.by, "why": self.why, "at": self.at.isoformat(), "lifted_at": lifted}


@dataclass(frozen=True, slots=True)
class Permit:
    """An approval that was given before its call was asked for."""

    id: str
    tool: str
    by: str
    why: str
    at: datetime
    expires_at: datetime
    uses: int
    """How many uses are left."""
    digest: str | None = None
    """The digest of the tool's version and of the arguments that it covers; None: it covers what ``rule`` matches."""
    rule: Mapping[str, Any] | None = None
    """The conditions of the rule by which it covers calls; None: it covers exactly ``digest``."""
    roles: tuple[str, ...] = ()
    ended_at: datetime | None = None
    """When it was revoked or used up."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON data."""
        ended = None if self.ended_at is None else self.ended_at.isoformat()
        facts = {"id": self.id, "tool": self.tool, "by": self.by, "why": self.why, "at": self.at.isoformat()}
        covers = {"digest": self.digest, "rule": None if self.rule is None else dict(self.rule)}
        left = {"uses": self.uses, "expires_at": self.expires_at.isoformat(), "ended_at": ended}
        return facts | covers | {"roles": list(self.roles)} | left


TokenScope: TypeAlias = Literal["viewer", "agent", "worker", "approver", "operator"]
TokenKind: TypeAlias = Literal["token", "login", "link"]


@dataclass(frozen=True, slots=True)
class Token:
    """A credential for the service, valid until it expires or is revoked. The ledger has only its digest."""

    id: str
    name: str
    """What people call it."""
    principal: str
    """For whom it acts: decisions and runs are recorded under this name."""
    scopes: tuple[TokenScope, ...]
    tenant: str | None
    """None: every tenant, which only an operator's may be for."""
    agent: str
    """The agent that an agent's token speaks for; else empty."""
    kind: TokenKind
    """``token``, or how its cookie came about: by a company's ``login``, or by a one-time ``link``."""
    by: str
    why: str
    at: datetime
    expires_at: datetime
    ended_at: datetime | None = None
    """When it was revoked, or first used after its end."""
    text: str | None = None
    """The token itself. Only ``create_token`` returns it, once; neither ``repr`` nor ``to_dict`` shows it."""

    def __repr__(self) -> str:
        return f"<Token {self.id} {visible(self.name)!r} ({', '.join(self.scopes)}) of {visible(self.principal)!r}>"

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON data, without its secret."""
        ended = None if self.ended_at is None else self.ended_at.isoformat()
        whose = {"id": self.id, "name": self.name, "principal": self.principal, "scopes": list(self.scopes)}
        place = {"tenant": self.tenant, "agent": self.agent, "kind": self.kind, "by": self.by, "why": self.why}
        return whose | place | {"at": self.at.isoformat(), "expires_at": self.expires_at.isoformat(), "ended_at": ended}


# ---- Answers of a probe


class _Lost:
    """The type of ``LOST``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "(not given)"


LOST: Final = _Lost()
"""Stands for a result that is not available, or was not given."""


@dataclass(frozen=True, slots=True)
class Happened(Generic[R_co]):
    """The call took effect, with this result; without one, the result is unknown."""

    result: R_co = LOST  # type: ignore[assignment]  # has no type: every reader checks for LOST first

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data; without ``result`` if it is unknown."""
        return {"answer": "happened"} | ({} if self.result is LOST else {"result": plain(self.result)})


@dataclass(frozen=True, slots=True)
class Absent:
    """The call had no effect; it may be started again."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {"answer": "absent"}


@dataclass(frozen=True, slots=True)
class Unknown:
    """The outcome is unknown; ask again later, or ask a person."""

    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {"answer": "unknown", "why": self.why}


Probed: TypeAlias = Happened[R] | Absent | Unknown


class NoEffect(Exception):
    """Raise it in a body: this call certainly changed nothing.

    ``final=True``: and it never will. The call is not retried, and a repeat in this run is answered with this error.
    """

    final: bool = False
    is_try: bool = True
    """False: nobody was there to do it, which is no attempt of a compensation."""

    def __init__(self, *args: object, final: bool = False) -> None:
        super().__init__(*args)
        self.final = final


class WorkLost(TimeoutError):
    """Raise it in the body of a tool that another process performs: its work lease has ended, and nobody has reported.

    The call is in doubt, and nothing more is sent.
    """


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

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return plain_fields(self)


@dataclass(frozen=True, slots=True)
class PlannedStatement:
    """One statement of a migration that is not applied yet."""

    sql: str
    table: str
    """The table that it changes; empty: none."""
    locks: str
    """What it locks and who waits for it, in words."""
    rows: int | None
    """About how many rows the table has; None: it does not exist yet, or the database does not know."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return plain_fields(self)


@dataclass(frozen=True, slots=True)
class PlannedMigration:
    """A migration that is not applied yet, and what it would do."""

    version: int
    name: str
    needs: int
    """The schema version that an amends must support to use the ledger afterwards."""
    is_contract: bool
    """Whether no program applies it by itself, only ``amends db migrate``: older versions of amends must be gone first."""
    statements: tuple[PlannedStatement, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {**plain_fields(self), "statements": [one.to_dict() for one in self.statements]}


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

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return plain_fields(self)


@dataclass(frozen=True, slots=True)
class ErasedRun:
    """A run tree that was erased, would be, or cannot be."""

    run_id: str
    """The id of its root. It stays."""
    state: str
    runs: int = 0
    """How many runs the tree has: the root, its children, theirs."""
    calls: int = 0
    approvals: int = 0
    events: int = 0
    """How many of its events lost texts. They stay in the chain."""
    bytes: int = 0
    """The bytes of removed text."""
    why: str = ""
    """Why it cannot be erased; empty: it can."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return plain_fields(self)


@dataclass(frozen=True, slots=True)
class Erasure:
    """What was erased about one person, or would be in a dry run."""

    runs: tuple[ErasedRun, ...] = ()
    """The run trees that were erased; those that were erased before are not in it."""
    kept: tuple[ErasedRun, ...] = ()
    """Those that are about the person and could not be erased, each with the reason."""
    stays: tuple[str, ...] = ()
    """What still names the person afterwards, in words: ids of runs, permits."""
    order: str = ""
    """The id of the order in the record; empty: nothing was erased."""
    dry_run: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        runs, kept = [one.to_dict() for one in self.runs], [one.to_dict() for one in self.kept]
        return {"runs": runs, "kept": kept, "stays": list(self.stays), "order": self.order, "dry_run": self.dry_run}

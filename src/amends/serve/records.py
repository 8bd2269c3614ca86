"""The shapes of answers, for the OpenAPI document. A handler answers ``to_dict()`` of a record; these describe it.

A record whose ``to_dict`` has exactly its fields is described by itself; the others have a model here.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from amends import Approval, Call, Event, Lock, RunInfo, Shift, ShiftProblem
from amends.serve.problems import Problem

T = TypeVar("T")


class Record(BaseModel):
    """A record of the ledger."""

    model_config = ConfigDict(extra="allow")


class Page(Record, Generic[T]):
    """One page of a listing; ``next`` is ``after`` of the next page, or null at the end."""

    items: list[T]
    next: str | None


class Tools(Record):
    """The tools as a model gets them."""

    tools: list[dict[str, Any]]


class OpenedRun(Record):
    """A run that is open here, or has ended."""

    id: str
    state: str
    generation: int
    resumed: bool = Field(description="Whether it was known before")
    over: bool = Field(description="Whether it has ended: it answers from its record only")
    input: Any
    client_lease: float = Field(description="Seconds without a request until the server lets it go")


class RenewedRun(Record):
    """A run whose client is alive."""

    id: str
    state: str
    client_lease: float


class AnswerRecord(Record):
    """The outcome of a model's request, and the text for the model."""

    status: Literal["done", "replayed", "staged", "held", "refused", "failed", "in_doubt"]
    text: str = Field(description="What to tell the model")
    value: Any
    call: Call | None
    error: dict[str, Any] | None
    is_error: bool
    waits: bool = Field(description="Whether a person must decide first")


class ToldRecord(Record):
    """What a model is told of a call."""

    answer: AnswerRecord | None = Field(description="null: the call has not ended, and nothing was told")


class AnswersRecord(Record):
    """The outcome of each request, in their order."""

    answers: list[AnswerRecord]


class CheckRecord(Record):
    """What is wrong with a plan."""

    problems: list[dict[str, Any]]
    lawful_order: list[Any] | None


class TextRecord(Record):
    """What to tell a model; empty: nothing."""

    text: str


class ForkedRecord(Record):
    """A new run, to be opened."""

    id: str


class CheckpointRecord(Record):
    """The newest checkpoint; null: nothing has happened yet."""

    checkpoint: dict[str, Any] | None


class RecentEventsRecord(Page[Event]):
    """The newest events that a search found before it stopped."""

    looked: int


class ResidueRecord(Record):
    """An effect that remains, and why."""

    call: str
    tool: str
    why: str


class MissingRecord(Record):
    """What a run lacks to be complete."""

    tool: str
    why: str
    call: str | None


class ReportRecord(Record):
    """What a run did."""

    run: RunInfo
    calls: list[Call]
    residue: list[ResidueRecord]
    doubts: list[str]
    children: list[ReportRecord]
    ledger: str
    skipped: list[str]
    locks: list[Lock]
    forks: list[str]
    missing: list[MissingRecord]
    unreached: list[str]


class ClaimRecord(Record):
    """A call that the client makes itself, or the recorded answer."""

    call: str = Field(description="The id of the call")
    key: str = Field(description="The idempotency key for the destination")
    attempt: int
    state: str
    replayed: bool = Field(description="Whether it was answered from the record: make nothing")
    token: str | None = Field(description="The right to report about this attempt; null if it was replayed")
    lease: float | None = Field(description="Seconds until the attempt is in doubt, unless it is renewed")
    result: Any = None


class ReportedRecord(Record):
    """A claimed call after a report, or a renewal."""

    call: str
    attempt: int
    state: str
    lease: float | None = Field(None, description="Seconds from now, if it was renewed")


class WorkerRecord(Record):
    """A worker, and the tools that it performs."""

    id: str
    name: str
    tools: list[str]
    by: str
    lease: float = Field(description="Seconds without a request for work until it is forgotten")


class PieceRecord(Record):
    """One phase of one attempt of a call, handed out once."""

    run: str
    call: str
    tool: str
    phase: Literal["execute", "compensate", "probe"]
    attempt: int
    key: str = Field(description="The idempotency key for the destination")
    args: dict[str, Any]
    result: Any = Field(None, description="Of a compensation that needs it: what the call returned")
    token: str = Field(description="The right to report about this piece of work, and no other right")
    lease: float = Field(description="Seconds without a report or a renewal until it is in doubt")


class WorkRecord(Record):
    """A piece of work, or none."""

    work: PieceRecord | None


class CallRefRecord(Record):
    """A call, by its id."""

    call: str
    tool: str


class PlannedRecord(CallRefRecord):
    """What amends would do next with a call."""

    what: str
    by: str
    args: dict[str, Any]
    note: str


class PlanRecord(Record):
    """What a rollback would do, in order."""

    run: str
    hash: str = Field(description="Send it with the rollback: 409 if the run has changed since")
    state: str
    refused: str | None
    complete: bool
    compensations: list[PlannedRecord]
    cannot: list[ResidueRecord]
    doubts: list[PlannedRecord]
    dropped: list[CallRefRecord]
    running: list[CallRefRecord]
    forks: list[str]
    must_accept: list[CallRefRecord]
    answered: list[str]


class NextRecord(Record):
    """What would follow from one answer to a doubt."""

    call_state: str
    run_state: str
    does: list[PlannedRecord]
    who: str
    causes: list[str]
    refused: str | None


class PreviewRecord(CallRefRecord):
    """What the run would do next for each of the three answers to a doubt."""

    happened: NextRecord
    absent: NextRecord
    unknown: NextRecord


class UsualRecord(Record):
    """A number among the arguments of a request, and what it was in earlier calls of the same tool."""

    path: str
    value: str
    median: str
    most: str
    times: int
    factor: float | None


class PrecedentsRecord(Record):
    """What a request for approval can be compared with."""

    approval_id: str
    before: Approval | None
    edited: Approval | None
    first_use: bool
    seen: int
    is_all: bool
    times: int
    usual: list[UsualRecord]


class ProbedRecord(Record):
    """What the outside world says about a call."""

    answer: Literal["happened", "absent", "unknown"]
    result: Any = None
    why: str | None = None


class EvidenceRecord(Record):
    """One piece of evidence about a doubt."""

    at: datetime
    by: str
    attempt: int
    answer: str
    why: str


class DoubtRecord(CallRefRecord):
    """A call that is in doubt, or whose compensation is."""

    run: str
    kind: str
    state: str
    about: Literal["call", "compensation"]
    key: str
    attempt: int
    sent: dict[str, Any]
    sent_at: datetime | None
    lost_at: datetime | None
    why: str | None
    error: str | None
    probe: str | None
    next_probe_at: datetime | None
    evidence: list[EvidenceRecord]


class InboxRecord(Record):
    """One thing that waits for a person."""

    id: str
    what: Literal["approval", "expired", "doubt", "decision", "blocked", "suspended"]
    run: str
    call: str | None
    tool: str | None
    args: dict[str, Any] | None
    state: str | None
    since: datetime
    expires_at: datetime | None
    why: str
    verbs: list[str]
    roles: list[str]
    asked: list[str]
    tenant: str | None
    agent: str | None
    principal: str | None


class RunLineRecord(Record):
    """One run in an overview, with the sums over its calls."""

    run: RunInfo
    calls: int
    doubts: int
    repeats: int
    costs: dict[str, str]


class OverviewRecord(Record):
    """One page of runs, newest first, and how many of the newest runs are in each state."""

    runs: list[RunLineRecord]
    next: str | None
    looked_at: int
    is_cut: bool
    counts: dict[str, int]
    counted: int
    counted_all: bool
    summed_all: bool


class BudgetRecord(Record):
    """A cap on spending."""

    cap: str
    unit: str
    per: str
    every: str | None
    tool: str
    then: str


class BudgetStateRecord(Record):
    """The state of one budget."""

    budget: BudgetRecord
    who: str | None
    period: str | None
    spent: str
    reserved: str
    left: str


class ChargedRecord(Record):
    """What one call took of a budget."""

    call_id: str
    run_id: str
    tool: str
    agent: str | None
    at: datetime
    spent: str
    reserved: str


class SpendingRecord(BudgetStateRecord):
    """One budget in its present period, and which of the newest calls were charged to it, oldest first."""

    charged: list[ChargedRecord]


class ToolInfoRecord(Record):
    """One declared tool: what amends knows of it."""

    name: str
    kind: str
    version: str
    description: str
    key: list[str] | None
    key_by_function: bool
    ignored: list[str]
    scope: str
    idempotent: bool
    window: float | None
    compensation: str | None
    compensation_idempotent: bool
    probe: str | None
    guarded: bool
    approval: str
    rules: list[str]
    costs: dict[str, str] | None
    cost_by_function: bool
    attempts: int
    timeout: float | None
    settle: float
    remote: float
    has_body: bool
    parameters: dict[str, Any]
    where: str


class CostRecord(Record):
    """What calls have cost in one unit."""

    what: str
    unit: str
    calls: int
    spent: str
    reserved: str


class HaltRecord(Record):
    """An emergency stop."""

    id: str
    tenant: str | None
    agent: str | None
    tool: str | None
    extent: str
    by: str
    why: str
    at: datetime
    lifted_at: datetime | None


class PermitRecord(Record):
    """An approval that was given before its call was asked for."""

    id: str
    tool: str
    by: str
    why: str
    at: datetime
    digest: str | None
    rule: dict[str, Any] | None
    roles: list[str]
    uses: int
    expires_at: datetime
    ended_at: datetime | None


class TokenRecord(Record):
    """A credential for the service."""

    id: str
    name: str
    principal: str
    scopes: list[str]
    tenant: str | None
    agent: str
    kind: str
    by: str
    why: str
    at: datetime
    expires_at: datetime
    ended_at: datetime | None
    text: str | None = Field(None, description="The token itself: only in the answer that created it")


class TamperingRecord(Record):
    """One place where the record was changed."""

    run: str
    event: int
    how: str
    text: str


class ErasedRecord(Record):
    """An erasure that the record names; what it removed is gone on purpose."""

    run_id: str
    at: datetime
    by: str
    why: str
    order: str
    token: str
    runs: int
    calls: int
    approvals: int
    events: int


class VerifiedRecord(Record):
    """What an audit found."""

    ok: bool
    runs: int
    events: int
    checkpoints: int
    unanchored: int
    unproved: int
    anchored: int
    erasures: int
    erased: list[ErasedRecord]
    problems: list[TamperingRecord]


class LongWorkRecord(Record):
    """Long work under way, or its end."""

    id: str
    what: Literal["verify", "gc", "erase", "reencrypt", "recover", "replay_each"]
    state: Literal["running", "done", "failed"]
    runs: int = Field(description="How many runs were checked so far")
    events: int = Field(description="How many events were checked so far")
    started_at: datetime
    ended_at: datetime | None
    verified: VerifiedRecord | None
    result: dict[str, Any] | None = Field(description="What it came to")
    problem: Problem | None


class SettingRecord(Record):
    """A setting, and where its value comes from."""

    value: Any
    origin: str


class SettingsRecord(Record):
    """Every setting by its name, and what is valid but suspicious."""

    settings: dict[str, SettingRecord]
    warnings: list[str]


class SchemaRecord(Record):
    """The schema version of a ledger, and the versions that this amends supports."""

    version: int
    newest: int
    needs: int
    pending: list[str]
    ledger: str


class KindRecord(Record):
    """What kind of tool this is."""

    tool: str
    kind: str
    may_repeat: bool = Field(description="Whether a model may repeat a call on purpose")


class ApprovalForRecord(Record):
    """The request for approval that a call would wait for; null: it needs none."""

    approval: Approval | None


class NewestEventRecord(Record):
    """The last event; null: there is none."""

    event: Event | None


class OnCallRecord(Record):
    """Who is on call."""

    items: list[Shift]


class OnCallProblems(Record):
    """What is wrong with the on-call table."""

    items: list[ShiftProblem]


class DelegationRecord(Record):
    """Who decides for whom, and for how long."""

    by: str
    to: str
    until: float = Field(description="Seconds from now")
    why: str


class LoadedRecord(Record):
    """The runs that a bundle held."""

    runs: list[str]


class LoginRecord(Record):
    """Who is logged in with this browser."""

    name: str
    scopes: list[str]
    tenant: str | None
    kind: str
    expires_at: datetime
    csrf: str = Field(description="The value of X-CSRF-Token for requests that change something")


class LogoutRecord(Record):
    """Where to log out at the provider of the login, if there is such an address."""

    provider: str | None


class HealthRecord(Record):
    """Whether the process runs, or the service can work."""

    status: Literal["ok", "failing"]
    version: str
    ledger: str | None = Field(None, description="Whether the ledger answers: ok, or why not")
    runs: int | None = Field(None, description="Runs that clients have open here")

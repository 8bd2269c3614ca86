"""For agents: calls that the client makes itself, under a work lease. See ``docs/explanation/ownership.md``.

A claim is handed out at most once. Its token names the run, the epoch, the call and the attempt, and is signed: it gives
the right to report about this attempt and to renew its lease, and no other right.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeAlias
from unicodedata import normalize

from pydantic import AfterValidator, Field

from amends import Absent, AsyncAttempt, Happened, Unknown
from amends.errors import Busy, CallNotFound, Held, LeaseLost, ReportConflict, UsageError
from amends.secrets import BadSignature, Secrets
from amends.serve.exchange import Body, Exchange, Reply, encoded
from amends.serve.problems import TooMany
from amends.serve.runs import KEY_CHARS_MAX, REPLAYED, await_tools, key_of, session_of
from amends.serve.sessions import Session

LEASE_S: Final = 60.0
"""How long the performer of a call may be silent, unless it says."""
UNITS_MAX: Final = 20
"""In how many units the cost of one call may be reported."""
UNIT_CHARS_MAX: Final = 64
CLAIMS_MAX: Final = 1_000
"""How many claims one run may have under way, and how many are remembered; the oldest that has ended is forgotten first."""

# ---- What a client sends


class MakeClaim(Body):
    """A call that the client is about to make itself."""

    tool: str = Field(min_length=1, max_length=200)
    args: dict[str, Any] = Field(default_factory=dict)
    key: str | None = Field(None, min_length=1, max_length=KEY_CHARS_MAX, description="Or the header Idempotency-Key")
    kind: Literal["pivot", "read"] | None = Field(None, description="For a tool that is not declared in the server")
    cost: float | None = Field(None, ge=0, le=1e9, description="What it will cost, in usd")
    lease: float = Field(LEASE_S, gt=0, le=86_400, description="Seconds without a report until it is in doubt")


def _unit(name: str) -> str:
    """Return the name of a unit; raise ``ValueError`` for one that no budget can have."""
    text = normalize("NFKC", name).strip().casefold()
    if not 0 < len(text) <= UNIT_CHARS_MAX or not text.isprintable():
        raise ValueError(f"a unit is a text of 1 to {UNIT_CHARS_MAX} characters")
    return name


Spent: TypeAlias = Annotated[
    dict[Annotated[str, AfterValidator(_unit)], Annotated[float, Field(ge=0, le=1e9)]],
    Field(max_length=UNITS_MAX, description='What it really cost, by unit: {"usd": 0.02, "tokens": 1300}'),
]


class Succeed(Body):
    """The call happened."""

    token: str = Field(min_length=1, max_length=2_000)
    result: Any = None
    spent: Spent = Field(default_factory=dict)


class Fail(Body):
    """The call ended with an error."""

    token: str = Field(min_length=1, max_length=2_000)
    error: str = Field(min_length=1, max_length=10_000)
    no_effect: bool = Field(False, description="It certainly changed nothing")
    doubt: bool = Field(False, description="Nobody knows whether it happened")
    spent: Spent = Field(default_factory=dict)


class RenewClaim(Body):
    """The performer is alive."""

    token: str = Field(min_length=1, max_length=2_000)


class PerformerFailed(Exception):
    """Whoever performed the call reported an error."""


# ---- Tokens


@dataclass(frozen=True, slots=True)
class Work:
    """The piece of work that a token names."""

    tenant: str
    run: str
    epoch: int
    call: str
    attempt: int
    phase: Literal["execute", "compensate", "probe"] = "execute"
    turn: int = 0
    """Tells apart what may be asked of a worker several times about one attempt."""


def sign(work: Work, secrets: Secrets) -> str:
    """Return the token of a piece of work."""
    named = {"tenant": work.tenant, "run": work.run, "epoch": work.epoch, "call": work.call}
    return secrets.sign("claim", named | {"attempt": work.attempt, "phase": work.phase, "turn": work.turn})


def read(token: str, secrets: Secrets) -> Work | None:
    """Return the piece of work that this token names; None: it was not signed here."""
    try:
        return Work(**secrets.read("claim", token))
    except BadSignature:
        return None


# ---- Claiming


@dataclass(slots=True)
class Claim:
    """An attempt that a performer outside has, and what it has reported."""

    attempt: AsyncAttempt
    epoch: int
    number: int
    """The number of the attempt."""
    report: str = ""
    """The digest of the report that was recorded; empty: none yet."""
    is_charged: bool = False
    """Whether the attempt was told what it cost: a report that could not be recorded comes again."""
    answer: dict[str, Any] | None = None

    @property
    def is_over(self) -> bool:
        """Whether it was reported, or nobody reported within its lease."""
        return self.answer is not None or self.is_lapsed

    @property
    def is_lapsed(self) -> bool:
        """Whether nobody reported within its lease: it is in doubt, and whatever is reported now is evidence."""
        return not self.report and self.attempt.state != "started"


async def begin(x: Exchange) -> Reply:
    """Claim a call, to execute it in the client: its key and a token, or the recorded answer."""
    said: MakeClaim = x.body
    key = said.key or key_of(x)
    session = await session_of(x, x.path["id"], asks=True)
    given: dict[str, Any] = {"kind": said.kind, "cost": said.cost, "lease": said.lease}
    if key is not None:
        given["key"] = lambda _: key
    if said.kind is None:
        await await_tools(x, session, [said.tool])
    else:  # it need not be declared, unless it is a worker's
        await x.service.desk.check_declared(x.tenant, [said.tool])
    _check_room(session)
    try:
        attempt = await x.service.finished(x, session, session.run.begin(said.tool, said.args, **given))
    except Held as held:
        place = {"Location": x.service.approval_place(x, held.approval)} if held.approval is not None else {}
        told = {"status": "held", "text": held.for_model(), "call": None, "error": held.to_dict(), "value": None}
        return Reply(told | {"is_error": False, "waits": True}, 202, place | {"Retry-After": "5"})
    call, number = attempt.call_id, attempt.number
    facts: dict[str, Any] = {"call": call, "key": attempt.key, "attempt": number, "state": attempt.state}
    if attempt.replayed:
        facts |= {"replayed": True, "token": None, "lease": None, "result": attempt.call.to_dict()["result"]}
        return Reply(facts, 200, REPLAYED)
    _remember(session, call, Claim(attempt, attempt.epoch, number))
    work = Work(x.tenant, session.root_id, attempt.epoch, call, number)
    token = sign(work, x.service.secrets)
    return Reply(facts | {"replayed": False, "token": token, "lease": attempt.lease, "result": None}, 201)


def _check_room(session: Session) -> None:
    """Raise ``TooMany`` if the run has as many claims under way as are remembered."""
    if len(session.claims) >= CLAIMS_MAX and not any(one.is_over for one in session.claims.values()):
        raise TooMany(f"{CLAIMS_MAX:,} claims of run {session.root_id} are under way: report about some of them first")


def _remember(session: Session, call: str, claim: Claim) -> None:
    if len(session.claims) >= CLAIMS_MAX:  # reports about those that are forgotten are late, and answered all the same
        ended = [id for id, one in session.claims.items() if one.is_over]
        for id in ended[: max(1, CLAIMS_MAX // 2)]:
            del session.claims[id]
    session.claims[call] = claim


# ---- Reporting


async def succeed(x: Exchange) -> Reply:
    """Report that the call happened, with its result."""
    said: Succeed = x.body
    return await _reported(x, said.token, ["succeed", said.result], said.spent)


async def fail(x: Exchange) -> Reply:
    """Report that the call ended with an error: judged as if a tool's body had raised it."""
    said: Fail = x.body
    if said.no_effect and said.doubt:
        raise UsageError("a report says no_effect or doubt, not both")
    how = "no_effect" if said.no_effect else "doubt" if said.doubt else "raised"
    return await _reported(x, said.token, [how, said.error], said.spent)


async def renew(x: Exchange) -> Reply:
    """Renew the work lease: the performer is alive."""
    said: RenewClaim = x.body
    work = _work(x, said.token)
    if (piece := x.service.desk.found(work)) is not None:
        lease_s = x.service.desk.renew(piece)
        return Reply({"call": piece.work.call, "attempt": piece.work.attempt, "state": "started", "lease": lease_s})
    session, claim = _found(x, work)
    if session is None or claim is None:
        return await _renewed_late(x, work)
    with session.request():
        lease_s = await claim.attempt.renew()
        facts = {"call": work.call, "attempt": claim.number, "state": claim.attempt.state}
        return Reply(facts | {"lease": lease_s})


async def _renewed_late(x: Exchange, work: Work) -> Reply:
    """Renew a claim that another server has handed out: take its run up, as every request of its client does."""
    found = await x.rt.call(work.call)
    if "agent" in x.who.scopes and not x.owns(found):
        raise CallNotFound(work.call)
    if work.phase != "execute" or "worker" in x.who.scopes or found.state not in ("started", "in_doubt"):
        raise LeaseLost("this attempt is not this server's any more: stop, if you can", hint="report all the same")
    session = await session_of(x, work.run)
    if work.epoch == session.run.epoch:  # it was handed out here, and its lease has ended here
        raise LeaseLost("the work lease is over: stop, if you can", hint="report what happened all the same")
    lease_s = await session.run.renew_late(work.call, attempt=work.attempt)
    return Reply({"call": work.call, "attempt": work.attempt, "state": "in_doubt", "lease": lease_s})


def _work(x: Exchange, token: str) -> Work:
    """Return what this token names; a token of something else is not found."""
    work = read(token, x.service.secrets)
    if work is None or work.call != x.path["call"] or work.tenant != x.tenant:
        raise CallNotFound(x.path["call"])
    return work


def _found(x: Exchange, work: Work) -> tuple[Session | None, Claim | None]:
    """Return the claim of this piece of work, if this server has it."""
    session = x.service.sessions.found(work.tenant, work.run)
    if session is None:
        return None, None
    if "agent" in x.who.scopes and not x.owns(session):
        raise CallNotFound(x.path["call"])
    claim: Claim | None = session.claims.get(work.call)
    if claim is None or (claim.epoch, claim.number) != (work.epoch, work.attempt):
        return session, None
    return session, claim


async def _reported(x: Exchange, token: str, report: list[Any], spent: Mapping[str, float]) -> Reply:
    work = _work(x, token)
    piece = x.service.desk.found(work)
    if piece is not None and (reply := await x.service.desk.report(x, piece, report, spent)) is not None:
        return reply
    session, claim = _found(x, work)
    if session is None or claim is None:
        return await _late(x, work, report)
    digest = digest_of(report, spent)
    if claim.report:
        return _repeated(claim, digest)
    claim.report = digest
    if not claim.is_charged:
        claim.is_charged = True
        for unit, amount in spent.items():
            claim.attempt.spent(amount, unit)
    try:
        with session.request():
            await _ended(claim.attempt, *report)
    except LeaseLost:  # the run has another owner: for it the report is evidence
        x.service.sessions.forget(work.tenant, work.run, session)
        return await _late(x, work, report)
    except BaseException:
        claim.report = ""
        raise
    claim.answer = {"call": work.call, "attempt": claim.number, "state": claim.attempt.state}
    return Reply(claim.answer)


def digest_of(report: list[Any], spent: Mapping[str, float]) -> str:
    """Return what tells a report from another one about the same attempt."""
    return hashlib.sha256(encoded([*report, dict(sorted(spent.items()))] if spent else report)).hexdigest()


def _repeated(claim: Claim, digest: str) -> Reply:
    if claim.report != digest:
        call = claim.attempt.call
        raise ReportConflict(
            f"attempt {call.attempt} of call {call.id} was reported otherwise before",
            call_id=call.id, attempt=call.attempt, run_id=call.run_id,
        )  # fmt: skip
    if claim.answer is None:
        raise Busy("the same report is being recorded", owner="this server", retry_after=1.0)
    return Reply(claim.answer, 200, REPLAYED)


async def _ended(attempt: AsyncAttempt, how: str, what: Any) -> None:
    match how:
        case "succeed":
            await attempt.succeed(what)
        case "no_effect":
            await attempt.fail(what)
        case "doubt":
            await attempt.doubt(what)
        case _:
            await attempt.raised(PerformerFailed(what))


async def _late(x: Exchange, work: Work, report: list[Any]) -> Reply:
    """Keep a report about an attempt that this server has not started, or no longer owns, as evidence."""
    how, what = report
    answers: dict[str, Any] = {"succeed": Happened(what), "no_effect": Absent(), "doubt": Unknown(str(what))}
    answer = answers.get(how) or PerformerFailed(what)
    found = await x.rt.call(work.call)
    if "agent" in x.who.scopes and not x.owns(found):
        raise CallNotFound(work.call)
    given: dict[str, Any] = {"attempt": work.attempt, "epoch": work.epoch, "by": x.who.name, "phase": work.phase}
    call = await x.rt.report_late(work.call, answer, **given)
    if call.state == "started" and "worker" not in x.who.scopes:
        # Its owner is gone, or another server. The report is kept, and settles nothing while nobody has the run: take it
        # up, as every request of its client does, so that the client can rely on what it has reported.
        await session_of(x, work.run)
        call = await x.rt.report_late(work.call, answer, **given)
    return Reply({"call": call.id, "attempt": call.attempt, "state": call.state})

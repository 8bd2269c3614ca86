"""Run one guarded call: admit it, start it at most once, settle it, answer the caller.

``ledger/admission.py`` and ``ledger/settlement.py`` are the other side: the transactions that these flows await.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final, NoReturn

from amends.encoding.canonical import diff
from amends.encoding.dataclass import dataclass
from amends.encoding.payloads import round_trip
from amends.encoding.secret import SEALED
from amends.engine.approvals import (
    PAUSE_HINT,
    ApprovalWait,
    held_for,
    notify_of,
    outbox_terms,
    raise_unapproved,
    raise_void,
    rejected,
    request_of_call,
    terms_for,
)
from amends.engine.checkpoints import anchor_use, check_again
from amends.engine.costs import exceeded
from amends.engine.doubts import is_checked, note_late, settle_doubt, stays_in_doubt
from amends.engine.halts import halted
from amends.engine.locks import deadlocked, locked, locks_for, start_when_unlocked, wait_for_lock
from amends.engine.outcomes import NESTED, Judgement, has_ended, heard, judge
from amends.engine.permits import covering_permits
from amends.engine.retries import may_retry, retry_delay, should_retry
from amends.engine.rules import need_for, residue_rule
from amends.engine.session import (
    Ask,
    Session,
    Wait,
    body_args,
    call_of,
    cause_of,
    cost_with_request_ids,
    decode_args,
    describe_error,
    error_parts,
    error_text,
    first_result,
    hidden_values_of,
    kept_result,
    lacking,
    later_of,
    put_of,
    recorded_result,
    remember,
    remember_hidden_args,
    secrets_of,
    undeclared_costs,
)
from amends.errors import (
    REMOTE,
    Busy,
    Error,
    GenerationsSpent,
    InDoubt,
    KeyConflict,
    LeaseLost,
    LedgerError,
    Locked,
    OutOfOrder,
    RuleRefused,
    RunEnded,
    ToolFailed,
    UsageError,
    is_a,
    only_waits,
    words_of,
)
from amends.ledger.leases import work_left_s
from amends.ledger.operations import Admission, AdmitCall, DropCall, ReadCall, SettleCall
from amends.ledger.rows import (
    FINAL_NO,
    CallRow,
    Contention,
    DirectiveRow,
    IdTaken,
    Overrun,
    TermsByCall,
    Unapproved,
    lost_at,
)
from amends.ledger.world import Ended, Invoke, LazyCall, ReadClocks, Sleep
from amends.model import LOST, NoEffect
from amends.tools.spec import Spec

# ---- A request, from admission to answer


NO_TERMS: Final[TermsByCall] = {}
DRAWS_MAX: Final = 8
"""How often a call draws its id. Two processes of one microsecond draw the same one in 2,048."""


@dataclass(frozen=True, slots=True)
class Done:
    """How a request was answered."""

    row: CallRow
    value: Any = None
    replayed: bool = False
    staged: bool = False


async def guarded_call(session: Session, ask: Ask, first: Admission | None = None) -> Done:
    """Run the call once in this run and return its result.

    Raises the tool's own error, or the error that says why the call was not run. ``first``: what the ledger has already
    answered to this request.
    """
    answered = await _answer_from_memory(session, ask) if first is None else None
    if answered is not None:
        _note_effect_inside(body_around(session, ask), ask, answered)
        return answered
    wait, approval_wait = await _wait_limits(session, ask)
    done: Done | None = None
    try:
        done = await _answer(session, ask, wait, approval_wait, first)
        return done
    except Exception as error:
        _note_passed_error(error, approval_wait)
        raise
    finally:
        approval_wait.observe("over")
        _note_effect_inside(approval_wait.body, ask, done)


async def _answer(
    session: Session, ask: Ask, wait: Wait, approval_wait: ApprovalWait, first: Admission | None = None
) -> Done:
    while True:
        answer = await admit(session, ask, wait) if first is None else await _heard(session, ask, first)
        first = None
        approval_wait.observe(answer.verdict)
        match answer.verdict:
            case "start":
                return await run_attempts(session, ask, row_of(answer))
            case "replay":
                return _replayed(session, ask.spec, row_of(answer))
            case "staged":
                session.handlers.setdefault(row_of(answer).id, (ask.fn, ask.is_async))
                if answer.approval is not None:
                    session.asked_calls.add(row_of(answer).id)
                return Done(row_of(answer), staged=True)
            case "doubt":
                _keep_body(session, ask, row_of(answer))
                await _settle_known_doubt(session, ask, row_of(answer))
            case "retry":
                return await resume_attempts(session, ask, row_of(answer), is_prepared=answer.is_prepared)
            case "wait":
                await _wait_for_equal(session, ask, answer, wait)
            case "locked":
                await wait_for_lock(session, ask, answer, wait)
            case "held" if await approval_wait.wait_decided(answer):
                continue
            case "void" if approval_wait.body is not None and await approval_wait.wait_decided(answer):
                continue  # a new approval is requested, and the body waits for it
            case "void":
                _remember_held(session, ask, answer)
                await raise_void(session, ask, answer)
            case _:
                _remember_held(session, ask, answer)
                refuse(session, ask, answer)


async def _wait_for_equal(session: Session, ask: Ask, answer: Admission, wait: Wait) -> None:
    """Wait for a call with the same identity that is running; raise ``Busy`` when the limit is reached."""
    row = row_of(answer)
    _refuse_itself(session, ask, row)
    if row.is_reading and row.id not in session.memory.reading:
        # Its flow was stopped before it started, and this is another value.
        await DropCall(row.id, session.lease.owner, session.lease.epoch, "set to another value")
    elif not await wait.again(row.root):
        raise busy(session, answer, wait.waited)


async def _settle_known_doubt(session: Session, ask: Ask, known: CallRow) -> None:
    """Settle the doubt that is in the way of a request: its own, or that of a setter of the same thing."""
    remember_hidden_args(session, ask, known)
    own = known.tool == ask.spec.name
    row = await settle_doubt(
        session, ask.spec if own else session.spec(known.tool), known, flight=ask.flight if own else None
    )
    if stays_in_doubt(row):
        raise in_doubt(session, row)


def _keep_body(session: Session, ask: Ask, row: CallRow) -> None:
    """Remember the body that came with this request for a call in doubt, to start an idempotent call again with it.

    Only the body of the very request: it is given the recorded arguments, and may know more of the request than these.
    """
    if (row.key, row.ident) == (ask.key, ask.ident) and ask.fn is not ask.spec.fn:
        session.handlers[row.id] = (ask.fn, ask.is_async)


def _remember_held(session: Session, ask: Ask, answer: Admission, *, by_hand: bool = False) -> None:
    """Remember a held call, to check it again when the run is closed.

    If the body came with the request, nobody else has it: the run must be released so that its caller can return.
    """
    held = answer.call if answer.approval is not None or answer.verdict == "held" else None
    if held is None:
        return
    session.asked_calls.add(held.id)  # released by a person it may be staged: then the rules are checked again
    if by_hand or ask.undeclared or ask.spec.fn is None:
        session.held_from_caller[held.id] = held


async def guarded_admission(session: Session, ask: Ask) -> Done:
    """Start a call whose body the caller runs.

    The row is ``started`` if the caller must run it, else it was answered.
    """
    wait, approval_wait = await _wait_limits(session, ask)
    done: Done | None = None
    try:
        done = await _admit_by_hand(session, ask, wait, approval_wait)
        return done
    except Exception as error:
        _note_passed_error(error, approval_wait)
        raise
    finally:
        approval_wait.observe("over")
        _note_effect_inside(approval_wait.body, ask, done)


async def _admit_by_hand(session: Session, ask: Ask, wait: Wait, approval_wait: ApprovalWait) -> Done:
    while True:
        answer = await admit(session, ask, wait)
        approval_wait.observe(answer.verdict)
        match answer.verdict:
            case "start":
                return Done(row_of(answer))
            case "replay":
                return _replayed(session, ask.spec, row_of(answer))
            case "doubt":
                await _settle_known_doubt(session, ask, row_of(answer))
            case "retry":
                restarted = await _restart(session, ask, row_of(answer), is_prepared=answer.is_prepared)
                if restarted is not None:
                    await _anchor_approval(session, ask, restarted)
                    return Done(restarted)
            case "wait":
                await _wait_for_equal(session, ask, answer, wait)
            case "locked":
                await wait_for_lock(session, ask, answer, wait)
            case "staged":
                raise UsageError(f"{ask.spec.name} is staged: a call that starts at commit cannot be run by hand")
            case "held" if await approval_wait.wait_decided(answer):
                continue
            case "void" if approval_wait.body is not None and await approval_wait.wait_decided(answer):
                continue  # a new approval is requested, and the body waits for it
            case "void":
                _remember_held(session, ask, answer, by_hand=True)
                await raise_void(session, ask, answer)
            case _:
                _remember_held(session, ask, answer, by_hand=True)
                refuse(session, ask, answer)


async def _answer_from_memory(session: Session, ask: Ask) -> Done | None:
    """Answer without the ledger if this process can; in a replay it answers everything, or raises."""
    if session.recall.record is not None:
        done: Done = await session.recall.record(session, ask)
        return done
    known = None if ask.spec.on_conflict == "next" else await _cached_success(session, ask)
    return None if known is None else _replayed(session, ask.spec, known)


async def _cached_success(session: Session, ask: Ask) -> CallRow | None:
    """Return the success cached by this process while its lease is valid (see ``Recall``)."""
    row = None if ask.again else session.recall.of(ask.key, ask.ident)
    if row is None:
        return None
    clocks = await ReadClocks()
    return row if session.lease.is_ours(clocks.mono) else None  # otherwise the ledger says who owns it


async def admit(session: Session, ask: Ask, wait: Wait, *, wide: bool = False, by_permit: bool = True) -> Admission:
    """Ask the ledger for a verdict on this request; ``by_permit``: a permit may start it."""
    for _ in range(DRAWS_MAX - 1):
        try:
            return await _admit(session, ask, wait, wide=wide, by_permit=by_permit)
        except IdTaken:  # another process drew the same number
            continue
    return await _admit(session, ask, wait, wide=wide, by_permit=by_permit)


async def _admit(session: Session, ask: Ask, wait: Wait, *, wide: bool, by_permit: bool) -> Admission:
    spec, asked = ask.spec, session.asked
    expected = session.resumed or ask.key in asked
    asked.add(ask.key)
    need = await need_for(session, ask) if session.rules or spec.needs_approval or ask.undeclared else None
    covers = need is not None and need.decision != "refuse"
    answer = await AdmitCall(
        call_id=session.new_id("call"), run=session.uid, root=session.root, run_id=session.id, tenant=session.tenant,
        owner=session.lease.owner, epoch=session.lease.epoch, tool=spec.name, version=spec.version, kind=spec.kind,
        key=ask.key, ident=ask.ident, digest=ask.digest, args=ask.text, scope=spec.scope, declared=spec.declared_key,
        again=ask.again, call_ref=ask.call_ref, parent=ask.parent, grp=ask.grp, at_commit=spec.at == "commit",
        after=spec.after, undoable=spec.compensate is not None, on_conflict=spec.on_conflict,
        advise=session.advises(spec),
        reads=spec.before is not None and spec.kind != "read",
        put=put_of(spec),
        locks=locks_for(ask, wait),
        costs=cost_with_request_ids(session, ask, wide=wide) if session.budgets else ask.costs,
        need=need,
        permits=await covering_permits(session, ask) if by_permit and covers else (),
        accepts=await residue_rule(session, ask) if ask.undeclared else "",
        outbox=await outbox_terms(session) if spec.kind == "pivot" else NO_TERMS,
        expected=expected, remote_s=spec.remote,
    )  # fmt: skip
    if answer.verdict == "again":
        return await _admit(session, ask, wait, wide=True, by_permit=by_permit)
    return await _heard(session, ask, answer)


async def _heard(session: Session, ask: Ask, answer: Admission) -> Admission:
    """Note what the ledger has answered to the request."""
    if answer.verdict == "start":
        ask.flight.call, ask.flight.sent = answer.call, False
    elif answer.approval is not None:
        await notify_of(session, answer.approval)
    return answer


def _replayed(session: Session, spec: Spec, row: CallRow) -> Done:
    done = recorded_done(session, spec, row)
    session.replays[row.id] = session.replays.get(row.id, row.replays) + 1
    return done


def recorded_done(session: Session, spec: Spec, row: CallRow) -> Done:
    """Return the recorded answer; raise ``ResultLost`` if there is none, even in the process that ran the call.

    A repeat must not depend on which process answers it: what a replay cannot return is not returned here either.
    """
    return Done(row, recorded_result(session, spec, row), replayed=True, staged=spec.is_staging)


# ---- Attempts


async def run_attempts(session: Session, ask: Ask, row: CallRow, *, needs_result: bool = True) -> Done:
    """Run a started call to its end, with retries, doubts and probes.

    ``needs_result``: the caller waits for the result; otherwise only for the end, and a lost result is no error.
    """
    remember_hidden_args(session, ask, row)
    while True:
        assert row.state == "started", "an attempt runs only after its start is durable"
        ask.flight.call, ask.flight.sent, ask.flight.doubted = row, False, False
        if row.approval:
            await _anchor_approval(session, ask, row)
        if session.anchor is not None and not session.anchor.is_compared:
            await compare_again(session, ask, row)
        later = await body_of(session, ask, row)
        session.bodies[later.id] = later
        try:
            ended = await Invoke(
                fn=ask.fn,
                kwargs=ask.fresh(),
                is_async=ask.is_async,
                timeout=ask.timeout,
                call=later,
                lease=session.lease,
                phase="execute",
                run=session.run,
                late=partial(note_late, session, ask.known, ask.spec, row, body=later),
                flight=ask.flight,
            )
        finally:
            session.end_body(later)
        ended = heard(ended, later)
        after = await after_attempt(session, ask, row, ended, body=later, needs_result=needs_result)
        if isinstance(after, Done):
            return after
        row = after


async def after_attempt(
    session: Session, ask: Ask, row: CallRow, ended: Ended, *, body: LazyCall, needs_result: bool = True
) -> Done | CallRow:
    """Settle an attempt that has ended. Return the answer, or the call if its next attempt has started."""
    value, row = await settle_outcome(session, ask, row, ended, body=body)
    return await after_settlement(session, ask, row, ended, value=value, needs_result=needs_result)


async def after_settlement(
    session: Session, ask: Ask, row: CallRow, ended: Ended, *, value: Any = LOST, needs_result: bool = True
) -> Done | CallRow:
    """Go on after an attempt was settled, as ``after_attempt`` does; ``value``: what the body returned."""
    if row.state == "succeeded":
        session.recall.keep(row)
        return Done(row, first_result(session, ask.spec, row) if value is LOST and needs_result else value)
    if row.state == "in_doubt":
        _keep_body(session, ask, row)
        row = await settle_doubt(session, ask.spec, row, flight=ask.flight)
    if row.state == "succeeded":
        return Done(row, first_result(session, ask.spec, row) if needs_result else None)
    if stays_in_doubt(row):
        raise in_doubt(session, row) from cause_of(session, ended.error, ask.known)
    if row.state == "started":
        return await guarded_call(session, ask)  # an equal call has started it again: its outcome answers us
    if row.state != "backing_off":
        raise ended.error or failure(ask.spec, row)
    if ask.spec.kind == "retriable":
        ask.flight.call = None
        return Done(row, staged=True)  # forward work continues in the drain, or in a worker
    restarted = await _restart(session, ask, row)
    if restarted is None:
        return await guarded_call(session, ask)  # an equal call was faster: its outcome answers us
    return restarted


async def body_of(session: Session, ask: Ask, row: CallRow) -> LazyCall:
    """Return the call as its body may ask for it, with the time that the body has."""
    later = later_of(row, ask)
    around = body_around(session, ask)
    later.until = None if around is None else around.until
    if ask.timeout is not None:
        until = (await ReadClocks()).mono + ask.timeout
        later.until = until if later.until is None else min(later.until, until)
    return later


async def compare_again(session: Session, ask: Ask, row: CallRow) -> None:
    """Compare the ledger with its anchor once more, since another server may have answered this start.

    If it is behind, or cannot be read, settle the call as certainly never sent, and raise.
    """
    try:
        await check_again(session.anchor)
    except LedgerError as broken:
        await settle_outcome(session, ask, row, Ended(error=NoEffect(words_of(broken))))
        raise


async def _anchor_approval(session: Session, ask: Ask, row: CallRow) -> None:
    """Write the used approval to the anchor outside the ledger.

    If that fails, settle the call as certainly never sent.
    """
    try:
        await anchor_use(session, row)
    except LedgerError as broken:
        await settle_outcome(session, ask, row, Ended(error=NoEffect(words_of(broken))))
        raise


async def resume_attempts(session: Session, ask: Ask, row: CallRow, *, is_prepared: bool = False) -> Done:
    """Continue with a call that was found backing off, or that a person released, or that was just prepared."""
    approved = await as_approved(session, ask, row)
    restarted = await _restart(session, ask, row, is_prepared=is_prepared)
    if restarted is None:
        return await guarded_call(session, ask)
    return await run_attempts(session, approved, restarted)


async def as_approved(session: Session, ask: Ask, row: CallRow) -> Ask:
    """Return the request with the arguments that were approved, if they differ only in what does not enter the key."""
    if not row.approval or row.digest == ask.digest:
        return ask
    if lacking(session, row):
        # Only the approved request itself brings the hidden values.
        raise held_for(session, row, await request_of_call(row))
    copy = partial(body_args, session, ask.spec, row)
    return replace(
        ask,
        args=copy(),
        text=row.args,
        recorded_digest=row.digest,
        shown=None,
        known=hidden_values_of(session, row),
        copy=copy,
    )


async def _restart(session: Session, ask: Ask, row: CallRow, *, is_prepared: bool = False) -> CallRow | None:
    if row.retry_at is not None:
        clocks = await ReadClocks()
        await Sleep(max(0.0, row.retry_at - clocks.wall))
    outbox = await outbox_terms(session) if row.kind == "pivot" else NO_TERMS
    wait, _ = await _wait_limits(session, ask)
    remember_hidden_args(session, ask, row)
    while True:
        started = await start_when_unlocked(
            session, row, await terms_for(session, row, ask), outbox, wait=wait, remote_s=ask.spec.remote,
            is_prepared=is_prepared,
        )  # fmt: skip
        is_prepared = False
        if not isinstance(started, Contention) or started.lost is None:
            break
        await _settle_known_doubt(session, ask, started.lost)
    if isinstance(started, Unapproved):
        await raise_unapproved(session, ask, started)
    if isinstance(started, Overrun):
        raise exceeded(row.tool, started, session.id)
    if isinstance(started, DirectiveRow):
        raise halted(session, row.tool, started)
    if isinstance(started, Contention):
        if started.victim:
            raise deadlocked(session, row.tool, started.victim)
        raise locked(session, row.tool, started, waited=wait.waited)
    if started is None:
        newest = await ReadCall(row.id)
        if newest is not None and newest.state == row.state and newest.attempt == row.attempt:
            raise ended(session, session.state or "closing")
    return started


async def settle_outcome(
    session: Session,
    ask: Ask,
    row: CallRow,
    ended: Ended,
    *,
    reported: dict[str, int] | None = None,
    body: LazyCall | None = None,
    is_undone: Callable[[Exception], bool] | None = None,
    is_over: bool = False,
) -> tuple[Any, CallRow]:
    """Settle the outcome of the body and its reported cost; the caller is answered only when that is durable.

    ``reported``: the cost reported by hand, if there is no ``body``. ``is_undone``: says whether an
    error can have left effects only in the database, where the savepoint undoes them. ``is_over``: whoever performs it
    elsewhere has ended too. The returned value is ``LOST`` if the call succeeded although this attempt returned nothing.
    """
    reported = reported if body is None else body.spent
    settle = SettleCall(
        row.id, session.lease.owner, session.lease.epoch, row.attempt, "succeeded", seen=row
    )  # fmt: skip
    value = ended.value
    if ended.in_flight or ended.error is not None:  # the settle delay of a doubt is counted from here
        clocks = await ReadClocks()
        settle.boot, settle.mono = clocks.boot, clocks.mono
    if ended.in_flight:
        settle.to, settle.why, settle.mono = "in_doubt", _timeout_reason(body), None
        settle.error = describe_error(TimeoutError(f"no answer within {ask.timeout} s"))
    elif ended.error is None:
        value, stored = round_trip(ended.value, ask.spec.result_type, limit=session.payload_bytes_max)
        stored = kept_result(session, ask.spec, row, stored, ask.known)
        remember(session, ask.spec, row, value, stored)
        settle.result, settle.loss = stored.text, stored.loss or ""
    else:
        settle.error = describe_error(ended.error, session.redactor, secrets_of(session, ask.known))
        found = judge(
            ask.spec, ended.error, around=ended.around, nested=body is not None and body.touched, is_undone=is_undone
        )
        if found.verdict == "certain" and body is not None and any(ended.error is one for one in body.passed):
            # The error came from a call inside the body: it says nothing certain about this call.
            found = Judgement("ordinary")
        settle.to, settle.why = _outcome_of(ask.spec, ended.error, found)
        if settle.why == "timeout":
            settle.why = _timeout_reason(body)
        if settle.to == "failed" and settle.why != FINAL_NO and should_retry(ask.spec, row, ended.error):
            settle.to, settle.retry_s = "backing_off", await retry_delay(ask.spec, row)
        elif settle.to == "failed" and ask.spec.kind == "retriable":
            settle.to, settle.why = "backing_off", "permanent"  # never failed: it waits for a person
        settle.doom = settle.to == "failed" and ask.spec.on_failure == "rollback"
    if ask.spec.kind == "read" and settle.to == "in_doubt":
        settle.to, settle.why = "failed", ""
        reported = _cost_of_lost_read(ask, reported)
    _wait_for_performer(settle, row, is_over=is_over or has_ended(ended.error))
    if reported:
        settle.spent, settle.wants = tuple(reported.items()), undeclared_costs(session, ask, reported)
    settled = await settle
    ask.flight.call = None
    around = body_around(session, ask)
    if around is not None and row.kind != "read" and settled.call.state in ("succeeded", "in_doubt"):
        around.touched = True
    if ask.shown is not None and settled.call.state in ("succeeded", "failed"):
        session.live.pop(row.id, None)
    if settled.fenced:
        raise LeaseLost(
            f"{row.tool} ended after run {row.run_id} had another owner; its outcome is kept as evidence",
            run_id=row.run_id,
        )
    if settled.call.state == "succeeded" and settle.to != "succeeded":  # an earlier attempt had its effect after all
        value = LOST
    return value, settled.call


def _wait_for_performer(settle: SettleCall, row: CallRow, *, is_over: bool) -> None:
    """Let a doubt be quiet only when whoever performs the call elsewhere has certainly ended."""
    if settle.to == "in_doubt" and settle.mono is not None and not is_over:
        settle.mono += work_left_s(row)


def _cost_of_lost_read(ask: Ask, reported: dict[str, int] | None) -> dict[str, int]:
    """Return the cost of a read that was sent and never answered.

    Nobody knows it, so it is all of the declared cost.
    """
    return {unit: amount for unit, amount, _ in ask.costs.costs} | (reported or {})


def _timeout_reason(body: LazyCall | None) -> str:
    return NESTED if body is not None and (body.waits or body.is_stuck) else "timeout"


def _outcome_of(spec: Spec, error: Exception, found: Judgement) -> tuple[str, str]:
    match found.verdict:
        case "certain":
            return "failed", found.why
        case "doubt":
            return "in_doubt", found.why
        case _:
            # With a probe every error is probed; without one the error is the tool's word that nothing happened.
            if spec.probe is None or spec.kind == "read":
                return "failed", ""
            # Record which: another process, which never saw the error, may receive the probe's answer.
            return "in_doubt", "error" if may_retry(spec, error) else "final error"


# ---- Calls inside a body

BODY_WAIT_SHARE: Final = 0.95
"""The part of the body's remaining time that a call inside it may wait: the rest is for the body to end."""


def body_around(session: Session, ask: Ask) -> LazyCall | None:
    """Return the body that makes this request, while it runs in this process."""
    return session.bodies.get(ask.parent) if ask.parent else None


async def _wait_limits(session: Session, ask: Ask) -> tuple[Wait, ApprovalWait]:
    """Return how long this request may wait for other runs and equal calls, and for people.

    Inside a body the limit is the body's remaining time, or what the user has set: the run cannot be released while a
    body runs.
    """
    body = body_around(session, ask)
    if body is None:
        return (
            Wait(session.wait_s, longest_s=session.poll_s),
            ApprovalWait(session.wait_approval_s, longest_s=session.poll_approval_s),
        )
    left = math.inf
    if body.until is not None:
        left = BODY_WAIT_SHARE * max(0.0, body.until - (await ReadClocks()).mono)
    wait = (session.wait_s if body.until is None else math.inf) if session.user_wait_s is None else session.user_wait_s
    limit = math.inf if session.user_wait_approval_s is None else session.user_wait_approval_s
    return (
        Wait(min(wait, left), longest_s=session.poll_s),
        ApprovalWait(min(limit, left), body=body, longest_s=session.poll_approval_s),
    )


def _refuse_itself(session: Session, ask: Ask, row: CallRow) -> None:
    """Raise ``UsageError`` if a body asks for its own call: it would wait for itself."""
    around = ask.parent
    while around:
        if around == row.id:
            raise UsageError(
                f"the body of {row.tool} requests {row.tool} with the same identity: it would wait for itself",
                hint="call tool.fn, the bare function, or give the call inside other arguments",
                run_id=session.id,
            )
        body = session.bodies.get(around)
        around = "" if body is None else body.row.parent


def _note_passed_error(error: Exception, approval_wait: ApprovalWait) -> None:
    """Record in the enclosing body what a call inside it raised: the body may raise it as its own."""
    if approval_wait.body is None:
        return
    approval_wait.body.passed.append(error)
    if is_a(error, Error) and (only_waits(error) or is_a(error, Locked)) and PAUSE_HINT not in error.hint:
        error.hint = f"{error.hint}; inside the body of {approval_wait.body.tool} it waited in place: {PAUSE_HINT}"


def _note_effect_inside(body: LazyCall | None, ask: Ask, done: Done | None) -> None:
    """Record that a call inside this body had its effect, or may have.

    A later refusal no longer means that nothing happened.
    """
    if body is None or ask.spec.kind == "read":
        return
    if ask.flight.call is not None or (done is not None and done.row.state == "succeeded"):
        body.touched = True


# ---- Errors for the verdicts of the ledger


def row_of(answer: Admission) -> CallRow:
    """Return the call that an answer is about."""
    assert answer.call is not None, f"a verdict {answer.verdict!r} names its call"
    return answer.call


def in_doubt(session: Session, row: CallRow) -> InDoubt:
    """Return the error for a call that may have had its effect."""
    words = f"{row.tool} was sent and its answer was lost ({row.why or row.state}); it may have happened"
    if row.state == "compensation_in_doubt":
        words = f"the compensation of {row.tool} ({row.id}) was sent and its answer was lost; it may still land"
    elif row.why == NESTED:
        words = (
            f"{row.tool} may have happened: its body was stopped by a call inside it "
            f"({error_text(row.error)}); {PAUSE_HINT}"
        )
    elif row.why == REMOTE:
        words = error_parts(row.error)[1] or words
    probed = str(json.loads(row.learned)[-1][-1]) if row.learned else ""
    probed = "" if probed.startswith(SEALED) else probed
    return InDoubt(
        words,
        call=call_of(row, session.spec(row.tool)),
        why=row.why,
        run_id=row.run_id,
        hint=f"{probed}; fix it, or decide with rt.resolve({row.id!r}, ...)" if probed else None,
        checked=is_checked(session.spec(row.tool), row),
    )


def failure(spec: Spec | None, row: CallRow) -> ToolFailed:
    """Return the error for a recorded failure: only the text of the original exception is left."""
    name, message = error_parts(row.error)
    words = "it failed" if row.lost_at is None else "it failed; its message was removed"
    final = row.why == FINAL_NO
    return ToolFailed(
        message or row.why or words, call=call_of(row, spec), type_name=name, run_id=row.run_id, final=final
    )


def busy(session: Session, answer: Admission, waited: float) -> Busy:
    """Return the error for a call that somebody else is running."""
    row = row_of(answer)
    whose = f" in run {answer.run.id}, which may still roll it back" if answer.twin is not None and answer.run else ""
    return Busy(
        f"{row.tool} is {row.state}{whose}; waited {waited:.1f} s",
        owner=row.run_id,
        retry_after=session.lease.lease_s,
        run_id=session.id,
    )


def ended(session: Session, state: str) -> RunEnded:
    """Return the error for a run that takes no more calls."""
    return RunEnded(f"run {session.id} is {state}: it takes no new call", state=state, run_id=session.id)


def refuse(session: Session, ask: Ask, answer: Admission) -> NoReturn:
    """Raise the error for a verdict that starts nothing."""
    spec = ask.spec
    match answer.verdict:
        case "refused" if answer.over is not None:
            raise exceeded(spec.name, answer.over, session.id)
        case "refused" if answer.halt is not None:
            raise halted(session, spec.name, answer.halt)
        case "refused" if answer.law == "rule":
            raise RuleRefused(spec.name, why=answer.void, run_id=session.id)
        case "refused":
            raise OutOfOrder(
                spec.name,
                law=answer.law,
                missing=answer.missing,
                unsettled=answer.unsettled,
                allowed=[one.name for one in session.specs.values() if one.kind in ("retriable", "read")],
                pivot=answer.pivot or None,
                run_id=session.id,
            )
        case "conflict":
            raise conflict(session, ask, row_of(answer))
        case "held":
            raise held_for(session, row_of(answer), answer.approval, answer.twin)
        case "failed":
            raise failure(spec, row_of(answer))
        case "rejected":
            raise rejected(session, row_of(answer))
        case "spent":
            raise GenerationsSpent(spec.name, limit=row_of(answer).generation, run_id=session.id)
        case "ended":
            assert answer.run is not None, "an ended run is named"
            if answer.run.goal_by == "deadlock":
                raise deadlocked(session, spec.name, answer.run.goal_why)
            closing = answer.run.goal == "rollback" and answer.run.state == "open"
            raise ended(session, "rolling_back" if closing else answer.run.state)
    raise AssertionError(f"the ledger gave an unknown verdict: {answer.verdict}")


def conflict(session: Session, ask: Ask, row: CallRow) -> KeyConflict:
    """Return the error for a known identity with other arguments."""
    changed, shown = {}, "they were removed since"
    given = ask.args if ask.shown is None else ask.shown
    if row.args.startswith(SEALED):
        shown = "they are encrypted, and this process has no key for them"
    elif lost_at(row.args) is None:
        changed = diff(decode_args(row, session.spec(row.tool)), given)
        shown = ", ".join(f"{name}: {was!r} then, {now!r} now" for name, (was, now) in changed.items())
        if not changed:  # the record lacks an argument that has a default now
            shown = f"its version {row.version} had other arguments than its version {ask.spec.version}"
    return KeyConflict(
        f"{row.tool} was already asked for under this identity with other arguments ({shown}); nothing was started",
        tool=row.tool,
        call=call_of(row, session.spec(row.tool)),
        given=dict(given),
        diff=changed,
        may_repeat=session.may_repeat(row.tool),
        run_id=session.id,
    )

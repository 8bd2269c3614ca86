"""Settle calls in doubt.

A doubt is settled by evidence, then by the probe, then by one more idempotent start, then by a person. Never by a
timer.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from amends.encoding.dataclass import dataclass
from amends.encoding.payloads import round_trip
from amends.encoding.redaction import Known
from amends.encoding.secret import SEALED
from amends.engine.keys import compensation_key
from amends.engine.outcomes import NESTED, has_ended, heard, judge
from amends.engine.retries import LOST_STARTS_MAX, should_retry_absent
from amends.engine.session import (
    Session,
    body_args,
    call_of,
    companion_args,
    describe_error,
    error_parts,
    hidden_values_of,
    kept_result,
    lacking,
    missing,
    recorded_error,
    remember,
    reported_result,
    revealed_call,
    secrets_of,
    store_result,
)
from amends.errors import REMOTE, LeaseLost, clean, cut
from amends.ledger.leases import work_left_s
from amends.ledger.operations import (
    NoteEvidence,
    NoteProbe,
    ReadCall,
    ResolveCall,
    SettleCall,
    StartCall,
    Tree,
    WatchDoubt,
)
from amends.ledger.rows import CallRow, DirectiveRow
from amends.ledger.world import DrawRandom, Ended, Flight, Invoke, LazyCall, ReadClocks, Sleep
from amends.model import LOST, Absent, Call, Happened, Retry, Unknown
from amends.tools.spec import ProbeSpec, Spec

# ---- Settling a doubt


PROBE_PACE: Final = Retry(attempts=8, delay=0.2, factor=2.0, max_delay=30.0, jitter=0.3)
PROBE_TIMEOUT_S: Final = 30.0
LATE_LOSS: Final = "the late result could not be kept"


def stays_in_doubt(row: CallRow) -> bool:
    """Return whether the outcome stays unknown here."""
    return row.state in ("in_doubt", "compensation_in_doubt", "compensation_failed", "residue")


def is_checked(spec: Spec | None, row: CallRow) -> bool:
    """Return whether amends itself learns the outcome: by a probe that answers, or by starting an idempotent call again."""
    if spec is None or row.state != "in_doubt":
        return False
    if spec.probe is not None:
        return not probe_failure(row)
    return bool(spec.idempotent) and row.probe_at is not None


async def settle_doubt(
    session: Session, spec: Spec | None, row: CallRow, *, back: bool = False, flight: Flight | None = None
) -> CallRow:
    """Settle one call's doubt as far as amends can alone; return the row as it is then.

    ``back``: the run is rolling back, so a call that had no effect is ``failed`` and not started again. ``flight``: by
    which the caller learns what was started if this flow is stopped.
    """
    row = await _refreshed(row)
    if row.state != "in_doubt":
        return row
    row = await by_evidence(session, spec, row, back)
    if row.state == "in_doubt" and spec is not None and spec.probe is not None:
        row = await _by_probe(session, spec, row, back)
    if row.state == "in_doubt" and spec is not None and not (back and may_compensate_in_doubt(spec)):
        row = await _by_repeating(session, spec, row, flight or session.memory.flight(row))
    return row


async def _refreshed(row: CallRow) -> CallRow:
    newest = await ReadCall(row.id)
    assert newest is not None, "calls are never deleted while their run is open"
    return newest


def may_compensate_in_doubt(spec: Spec) -> bool:
    """Return whether the compensation tolerates that there is no effect to compensate.

    It does not if it needs the result: nobody has the result of a call in doubt.
    """
    compensation = spec.compensate
    return compensation is not None and (compensation.absent_ok or compensation.wins) and not compensation.needs_result


# ---- By evidence


async def by_evidence(session: Session, spec: Spec | None, row: CallRow, back: bool) -> CallRow:
    """Settle a doubt by what was learned after the fact, if it settles it."""
    if not row.evidence:
        return row
    kept: dict[str, Any] = json.loads(row.evidence)
    if kept["happened"]:
        loss = "" if kept["result"] is not None else LATE_LOSS
        return await _resolve(session, row, "succeeded", by="evidence", result=kept["result"], loss=loss)
    unprobed = spec is None or spec.probe is None
    if kept["certain"] and unprobed and kept["attempt"] == row.attempt and row.attempt == 1 and not kept["result"]:
        return await _resolve_absent(session, spec, row, back, by="evidence")
    return row


# ---- By the probe


async def _by_probe(session: Session, spec: Spec, row: CallRow, back: bool) -> CallRow:
    assert spec.probe is not None, "only a probed tool is probed"
    spent, asked = 0.0, 0
    while True:
        answer = await ask_probe(session, spec, spec.probe, row)
        asked += 1
        if isinstance(answer, Happened):
            text, loss = reported_result(session, spec, row, answer.result)
            if loss and answer.result is not LOST and answer.result is not None:
                session.memory.keep_result(row.id, answer.result)
            return await _resolve(session, row, "succeeded", by="probe", result=text, loss=loss)
        moved = isinstance(answer, Absent) and not await _same_host(row)
        left = await settle_delay_left(session, spec, row) if isinstance(answer, Absent) else None
        if left is not None and left <= 0:
            return await _resolve_absent(session, spec, row, back, by="probe")
        pause = PROBE_PACE.pause(asked, await DrawRandom()) if left is None else left
        named, why = _named(answer, row), answer.why if isinstance(answer, Unknown) else ""
        if asked >= PROBE_PACE.attempts or spent + pause > session.wait_s:
            # No person is needed yet: the next process that looks at the run probes again.
            if moved and left is not None and left < float("inf"):
                # The clocks of two hosts cannot be compared: time waited here is time that the next host need not wait.
                await Sleep(session.wait_s - spent)
                left -= session.wait_s - spent
            await NoteProbe(
                row.id,
                row.in_question,
                row.probes + 1,
                named,
                why,
                next_s=_next_probe_s(row, answer, min(pause, PROBE_PACE.max_delay)),
                left_s=left,
            )
            return await _refreshed(row)
        await NoteProbe(row.id, row.in_question, row.probes + 1, named, why, next_s=pause, left_s=left)
        await Sleep(pause)
        spent += pause
        row = await _refreshed(row)
        if row.state != "in_doubt":
            return row


PROBE_FAILURES_MAX: Final = 5
"""After so many failures in a row of a probe a person is asked; then it is asked seldom."""
FAILED: Final = "failed"
FAILED_UNDOING: Final = "failed, about the compensation"
"""The recorded words for a probe that failed: attempts of a call and of its compensation have the same numbers."""
SELDOM_S: Final = (60.0, 3_600.0)
"""How soon, and at last how seldom, a probe that keeps failing is asked."""


@dataclass(frozen=True, slots=True)
class NoAnswer(Unknown):
    """The probe itself failed: it raised, took too long, returned something else, or could not be called."""


def probe_failure(row: CallRow) -> str:
    """Return why the probe of a call in doubt keeps failing, so that a person must be asked; "" if it does not."""
    failed = _failures(row)
    if len(failed) < PROBE_FAILURES_MAX:
        return ""
    why = str(failed[-1])
    return "its error is encrypted" if why.startswith(SEALED) else why or "it gives no answer"


def probed_seldom(session: Session, tree: Tree) -> float | None:
    """Return the seconds until a probe that keeps failing is asked again: a blocked run is still probed."""
    found = []
    for row in tree.calls:
        spec = session.spec(row.tool)
        if row.in_question and row.probe_at is not None and spec is not None and probe_failure(row):
            found.append(max(1.0, row.probe_at - tree.now))
    return min(found, default=None)


def _failures(row: CallRow) -> list[Any]:
    """Return the reasons of the newest failures in a row of the probe, for the attempt that is in doubt."""
    kept: list[Any] = json.loads(row.learned) if row.learned else []
    mine = [one for one in kept if one[1] == "probe" and one[2] == row.in_question]
    word = failed_word(row)
    ended = next((n for n, one in enumerate(reversed(mine)) if one[3] != word), len(mine))
    return [one[4] for one in mine[len(mine) - ended :]]


def failed_word(row: CallRow) -> str:
    """Return what is recorded when the probe of what is in doubt has failed."""
    return FAILED_UNDOING if row.state == "compensation_in_doubt" else FAILED


def _named(answer: Absent | Unknown, row: CallRow) -> str:
    """Return an answer that decides nothing, in the words of the record."""
    if isinstance(answer, Absent):
        return "absent, too early to believe"
    return failed_word(row) if isinstance(answer, NoAnswer) else "unknown"


def _next_probe_s(row: CallRow, answer: Absent | Unknown, pause: float) -> float:
    """Return the seconds until the next probe: after many failures in a row it is asked seldom."""
    failed = len(_failures(row)) + 1
    if not isinstance(answer, NoAnswer) or failed < PROBE_FAILURES_MAX:
        return pause
    first, longest = SELDOM_S
    return min(longest, first * 2.0 ** (failed - PROBE_FAILURES_MAX))


async def note_unknown(row: CallRow, answer: Unknown, *, pause: float, left_s: float | None) -> CallRow:
    """Record an answer of a compensation's probe that decides nothing, and when to ask it again."""
    next_s = _next_probe_s(row, answer, pause)
    return await NoteProbe(
        row.id, row.in_question, row.probes + 1, _named(answer, row), answer.why, next_s=next_s, left_s=left_s
    )


RETURNED: Final = "the probe returned"
RETURNED_CHARS_MAX: Final = 100


async def ask_probe(session: Session, spec: Spec, probe: ProbeSpec, row: CallRow) -> Happened[Any] | Absent | Unknown:
    """Return what the world says about a call. Anything other than the three answers is ``Unknown``."""
    if row.lost_at is not None:
        return NoAnswer("what it would be asked with was removed")
    if why := missing(session, spec, row, probe):
        return NoAnswer(why)
    made = revealed_call(session, spec, row, phase="probe")
    kwargs, call = companion_args(session, spec, probe, row, call=made)
    if spec.compensate is not None and probe is spec.compensate.probe:
        # As in the compensation: ``call`` is what is compensated, ``current_call()`` the compensation, with the key that
        # its destination was given. Made from the whole call: one whose result is lost cannot be copied.
        undoing = replace(made, key=compensation_key(row), attempt=row.comp_attempt)
        _, call = companion_args(session, spec, probe, row, call=undoing)
    ended = await Invoke(
        fn=probe.fn,
        kwargs=kwargs,
        is_async=probe.is_async,
        timeout=PROBE_TIMEOUT_S,
        call=call,
        lease=session.lease,
        phase="probe",
        run=session.run,
        probes=True,
    )
    answer = _probe_answer(ended, describe=lambda error: recorded_error(session, row, error))
    if not isinstance(answer, Unknown):
        return answer
    return type(answer)(session.redactor.scrub(answer.why, hidden_values_of(session, row)))


def _probe_answer(ended: Ended, *, describe: Callable[[BaseException], str]) -> Happened[Any] | Absent | Unknown:
    if ended.in_flight:
        return NoAnswer("the probe did not answer in time")
    if ended.error is not None:
        return NoAnswer(": ".join(part for part in error_parts(describe(ended.error)) if part))
    if ended.value is Absent or isinstance(ended.value, Absent):
        return Absent()
    if isinstance(ended.value, Happened):
        return ended.value
    if isinstance(ended.value, Unknown):
        return Unknown(clean(ended.value.why))
    if ended.value is Unknown:
        return Unknown()
    return NoAnswer(f"{RETURNED} {_shown(ended.value)}; a probe returns Happened(result), Absent() or Unknown()")


def _shown(value: object) -> str:
    try:
        return cut(f"{value!r}", RETURNED_CHARS_MAX)
    except Exception:  # its own __repr__ raises
        return f"a {type(value).__name__}"


async def settle_delay_left(session: Session, spec: Spec, row: CallRow) -> float:
    """Return the seconds until ``Absent`` may be believed; infinite while the body may still be running here."""
    compensating = row.state == "compensation_in_doubt"
    boot, quiet = (row.comp_boot, row.comp_mono) if compensating else (row.quiet_boot, row.quiet_mono)
    if quiet is None:
        return float("inf")
    clocks = await ReadClocks()
    if boot != clocks.boot:
        # The old host's clock cannot be read: continue with what was left there, or as if it could have sent until now.
        known = row.quiet_left
        unknown = session.lease.lease_s + work_left_s(row)
        quiet = clocks.mono + (unknown if known is None else known - spec.settle)
        await WatchDoubt(row.id, row.in_question, clocks.boot, quiet)
    return quiet + spec.settle - clocks.mono


async def wait_settle_delay(session: Session, spec: Spec, row: CallRow) -> float:
    """Wait for the settle delay as long as this flow may wait; return the seconds that are left, 0 when it is over."""
    moved = not await _same_host(row)
    left = await settle_delay_left(session, spec, row)
    if left <= 0:
        return 0.0
    if left <= session.wait_s:
        await Sleep(left)
        return 0.0
    if moved and left < float("inf"):
        await Sleep(session.wait_s)
        left -= session.wait_s
        await NoteProbe(
            row.id,
            row.in_question,
            row.probes + 1,
            "not probed: its settle delay is not over",
            "",
            next_s=left,
            left_s=left,
        )
    return left


async def _same_host(row: CallRow) -> bool:
    boot = row.comp_boot if row.state == "compensation_in_doubt" else row.quiet_boot
    return (await ReadClocks()).boot == boot


# ---- By one more idempotent start


async def _by_repeating(session: Session, spec: Spec, row: CallRow, flight: Flight) -> CallRow:
    """Start an idempotent call again, inside its window, to learn its result: its destination knows the key.

    It is repeated as the tool's ``retry`` says, and only as long as this flow may wait: a later flow continues. The body
    of a tool that is declared by name comes with a request: without one, nothing is started here.
    """
    body, left = session.body(row), session.wait_s
    if body is None:
        return row
    wait = await _not_before(spec, row)
    if spec.put and row.state == "in_doubt":
        row, late = await _until_landed(session, spec, row)
        if late > 0:
            return row
        wait = await _not_before(spec, row)
    while row.state == "in_doubt" and wait <= left and await is_repeatable(session, spec, row):
        await Sleep(wait)
        left -= wait
        started = await StartCall(
            row.id, session.lease.owner, session.lease.epoch, row.attempt + 1, remote_s=spec.remote
        )
        if started is None:
            return await _refreshed(row)
        if isinstance(started, DirectiveRow):
            later = session.lease.lease_s
            return await NoteProbe(
                row.id, row.in_question, row.probes + 1, "not started again: halted", "", next_s=later
            )
        assert isinstance(started, CallRow), "what was started before has its locks until its run has ended"
        row = await _repeat(session, spec, started, body, flight, alone=row.quiet_mono is not None)
        if row.state == "in_doubt" and await is_repeatable(session, spec, row):
            pace = spec.retry if spec.retry_declared and row.why != REMOTE else PROBE_PACE
            wait = pace.pause(max(1, row.attempt - row.tries_from), await DrawRandom())
            answer = "not probed: it was started again"
            row = await NoteProbe(row.id, row.in_question, row.probes + 1, answer, "", next_s=wait)
            if spec.put:
                row, late = await _until_landed(session, spec, row)
                if late > 0:
                    return row
    return row


async def _not_before(spec: Spec, row: CallRow) -> float:
    """Return the seconds until the next start that an earlier visit has scheduled.

    0 if a probe was just asked instead.
    """
    if row.probe_at is None or spec.probe is not None:
        return 0.0
    return max(0.0, row.probe_at - (await ReadClocks()).wall)


async def _until_landed(session: Session, spec: Spec, row: CallRow) -> tuple[CallRow, float]:
    """Wait until a lost start of a setter has landed or never will: it would overwrite what came after it.

    The call stays in doubt until then, so that nothing else touches what its locks name; its next start comes last.
    Return the call, and the seconds that are left if that takes longer than this flow may wait.
    """
    left = await wait_settle_delay(session, spec, row)
    row = await _refreshed(row)
    if left > 0 and left != float("inf") and row.state == "in_doubt" and row.probe_at is None:
        answer = "not probed: its settle delay is not over"
        row = await NoteProbe(row.id, row.in_question, row.probes + 1, answer, "", next_s=left, left_s=left)
    return row, left


async def is_repeatable(session: Session, spec: Spec, row: CallRow) -> bool:
    """Return whether a call in doubt may be started again: its destination still deduplicates, and it has starts left.

    It may not if a hidden argument is missing that only the requesting process had.
    """
    if lacking(session, row):
        return False
    tried = row.attempt - row.tries_from
    endless = spec.kind == "retriable" and not spec.retry_declared  # after the pivot there is only forward
    endless = endless or row.why == REMOTE  # no start was lost: its server answered, and waits for somebody
    if not spec.idempotent or (not endless and tried >= max(spec.retry.attempts, LOST_STARTS_MAX)):
        return False
    if spec.window is None:
        return True
    clocks = await ReadClocks()
    return row.first_at is not None and clocks.wall < row.first_at + spec.window


async def waits_for_request(session: Session, row: CallRow) -> bool:
    """Return whether a call in doubt only waits for its next request, which has the body to start it again with."""
    spec = session.spec(row.tool)
    if row.state != "in_doubt" or spec is None or session.body(row) is not None:
        return False
    return spec.probe is None and await is_repeatable(session, spec, row)


async def _repeat(
    session: Session, spec: Spec, row: CallRow, body: tuple[Callable[..., Any], bool], flight: Flight, *, alone: bool
) -> CallRow:
    fn, is_async = body
    known, args = hidden_values_of(session, row), body_args(session, spec, row)
    later = LazyCall(row, lambda: call_of(row, spec, args=body_args(session, spec, row)))
    flight.call, flight.sent, flight.doubted = row, False, True
    around = session.bodies.get(row.parent)
    later.until = None if around is None else around.until
    if spec.timeout is not None:
        until = (await ReadClocks()).mono + spec.timeout
        later.until = until if later.until is None else min(later.until, until)
    session.bodies[later.id] = later
    try:
        ended = await Invoke(
            fn=fn,
            kwargs=args,
            is_async=is_async,
            timeout=spec.timeout,
            call=later,
            lease=session.lease,
            phase="execute",
            run=session.run,
            late=partial(note_late, session, known, spec, row, body=later),
            flight=flight,
        )
    finally:
        session.end_body(later)
    ended = heard(ended, later)
    clocks = await ReadClocks()
    settle = SettleCall(
        row.id, session.lease.owner, session.lease.epoch, row.attempt, "succeeded", boot=clocks.boot, mono=clocks.mono
    )
    if not alone:
        settle.mono = None  # the start before this one is still in flight
    if ended.in_flight:
        settle.to, settle.why, settle.mono = "in_doubt", NESTED if later.waits else "timeout", None
    elif ended.error is not None:
        # The first start may have had its effect: an error of the second says nothing about the first.
        settle.to, settle.why, settle.error = "in_doubt", "error", describe_error(ended.error, session.redactor, known)
        found = judge(spec, ended.error, around=ended.around, nested=later.touched)
        if found.verdict == "doubt":
            settle.why = found.why
    else:
        settle.result, settle.loss = store_result(session, spec, row, ended.value)
    if settle.to == "in_doubt" and settle.mono is not None and not has_ended(ended.error):
        settle.mono += work_left_s(row)
    settle.spent = tuple((later.spent or {}).items())
    settled = await settle
    flight.call = None
    if settled.fenced:
        raise LeaseLost(
            f"{row.tool} ended after run {row.run_id} had another owner; its outcome is kept as evidence",
            run_id=row.run_id,
        )
    return settled.call


async def note_late(
    session: Session, known: Known, spec: Spec, row: CallRow, late: Ended, *, body: LazyCall | None = None
) -> None:
    """Record the return of a body that outlived its timeout: it is evidence, never a settlement.

    ``known``: the hidden values of the call. ``late``: how the body ended. ``body``: the body itself, for calls inside it.
    """
    clocks = await ReadClocks()
    late = heard(late, body or call_of(row, spec))
    text = None
    happened = late.error is None
    if happened:
        seen, stored = round_trip(late.value, spec.result_type, limit=session.payload_bytes_max)
        stored = kept_result(session, spec, row, stored, known)
        remember(session, spec, row, seen, stored)
        text = stored.text
    certain = False
    if late.error is not None and spec.probe is None:
        nested = body is not None and body.touched
        certain = judge(spec, late.error, around=late.around, nested=nested).verdict != "doubt"
    await NoteEvidence(
        row.id,
        row.attempt,
        happened=happened,
        result=text,
        error="" if late.error is None else describe_error(late.error, session.redactor, secrets_of(session, known)),
        boot=clocks.boot,
        mono=clocks.mono if happened or has_ended(late.error) else clocks.mono + work_left_s(row),
        source="late" if happened or certain else "late, unclear",
        certain=certain,
    )


# ---- Recording the answer


async def _resolve_absent(session: Session, spec: Spec | None, row: CallRow, back: bool, *, by: str) -> CallRow:
    """Record that certainly nothing happened: back off if the call should be started again, else it failed."""
    again = not back and spec is not None and should_retry_absent(spec, row)
    pause = 0.0 if spec is None or row.why == "lost" else spec.retry.pause(max(1, row.attempt), await DrawRandom())
    return await _resolve(
        session, row, "backing_off" if again else "failed", by=by, why=row.why, retry_s=pause if again else None
    )


async def _resolve(
    session: Session,
    row: CallRow,
    to: str,
    *,
    by: str,
    why: str = "",
    result: str | None = None,
    loss: str = "",
    retry_s: float | None = None,
) -> CallRow:
    return await ResolveCall(
        row.id,
        to,
        by,
        why,
        result=result,
        loss=loss,
        epoch=session.lease.epoch,
        owner=session.lease.owner,
        retry_s=retry_s,
    )


def doubt_question(call: Call, failure: str = "") -> str:
    """Return what a person is asked about a doubt, with the verb that settles it; ``failure``: of its probe."""
    probed = f", and its probe keeps failing ({failure}): fix the probe, or" if failure else ":"
    return (
        f"{call.tool} ({call.id}) may have happened{probed} look, then "
        f"rt.resolve({call.id!r}, Happened(...) | Absent() | Unknown(), by=..., why=...)"
    )

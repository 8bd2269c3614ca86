"""Reports of performers that came too late to settle their attempt: evidence, whoever owns the run by then."""

from __future__ import annotations

import json
from typing import Any, Final, Literal

from amends.errors import ReportConflict
from amends.ledger.events import learned_facts, proof_of, write_event
from amends.ledger.operations import NoteReport, ResolveCall
from amends.ledger.rows import CALLS, CallRow, Now
from amends.ledger.settlement import error_words, keep_evidence, resolve_call, with_answer
from amends.ledger.tables import Change, Find
from amends.ledger.trees import find_run

COMPENSATED: Final = "compensated"
NOT_COMPENSATED: Final = "not compensated"
UNCLEAR: Final = "its compensation returned"
"""What is kept of a report about a compensation."""


async def note_report(op: NoteReport) -> CallRow:
    """Keep a late report (``NoteReport``). Only a doubt is settled by it: never an attempt that has a live owner."""
    call = await Find(CALLS, op.call_id)
    assert call is not None, "calls are never deleted"
    if op.phase == "compensate":
        return await _note_compensation(op, call)
    known = known_report(call, op.attempt)
    if known is not None:
        proved = proof_of(op, op.result)
        if known["happened"] != op.happened or (op.happened and known.get("proof") != proved):
            raise conflict(call, op.attempt)
        return await _settled(op, call)
    kept = await keep_evidence(
        call, op.attempt, happened=op.happened, certain=op.certain, result=op.result, proved=proof_of(op, op.result),
        error=op.error, source=op.by, boot=op.boot, mono=op.mono, repeated=op.repeated, reported=op.epoch,
    )  # fmt: skip
    return await _settled(op, kept)


async def _settled(op: NoteReport, call: CallRow) -> CallRow:
    """Settle the doubt about a call that happened; that nothing happened is for whoever goes on with the run to judge."""
    if not op.happened or call.state != "in_doubt":
        return call
    happened = ResolveCall(op.call_id, "succeeded", op.by, "", result=op.result, loss=op.loss, proof=op.proof)
    return await resolve_call(happened)


def known_report(call: CallRow, attempt: int) -> dict[str, Any] | None:
    """Return what is known for certain of this attempt of a call by evidence; None: nothing, or nothing certain."""
    known: dict[str, Any] = json.loads(call.evidence) if call.evidence else {}
    return known if known.get("attempt") == attempt and (known["happened"] or known["certain"]) else None


def reported_undoing(call: CallRow) -> Literal["compensated", "compensation_failed", ""]:
    """Return what a compensation in doubt came to, if the performers of the attempts that nobody decided about reported it."""
    known: list[Any] = json.loads(call.learned) if call.learned else []
    said = {(answer, attempt) for _, _, attempt, answer, _ in known if attempt > call.comp_from}
    if any(answer == COMPENSATED for answer, _ in said):
        return "compensated"
    # One that nobody has reported about may have had its effect.
    open_attempts = range(call.comp_from + 1, call.comp_attempt + 1)
    is_failed = bool(open_attempts) and all((NOT_COMPENSATED, attempt) in said for attempt in open_attempts)
    return "compensation_failed" if is_failed else ""


def conflict(call: CallRow, attempt: int) -> ReportConflict:
    """Return the error for a performer that says something else than before."""
    return ReportConflict(
        f"something else was reported about attempt {attempt} of {call.tool} ({call.id}) before; nothing was changed",
        call_id=call.id,
        attempt=attempt,
        run_id=call.run_id,
    )


async def _note_compensation(op: NoteReport, call: CallRow) -> CallRow:
    word = COMPENSATED if op.happened else NOT_COMPENSATED if op.certain else UNCLEAR
    said = {answer for _, _, attempt, answer, _ in json.loads(call.learned or "[]") if attempt == op.attempt}
    if word in said:
        return call
    if said & {COMPENSATED, NOT_COMPENSATED}:
        raise conflict(call, op.attempt)
    now = await Now(call.root)
    run, root = await find_run(call.run), await find_run(call.root)
    error = "" if root.is_erased else op.error
    kept = {"learned": with_answer(call, at=now, by=op.by, attempt=op.attempt, answer=word, why=error_words(error))}
    await write_event(
        run, "evidence", at=now, by=op.by, epoch=root.epoch, call=call.id, attempt=op.attempt, compensation=word,
        error=error, reported=op.epoch, **learned_facts(kept),
    )  # fmt: skip
    call = await Change(CALLS, call, kept)
    if op.happened and call.state in ("compensation_in_doubt", "compensation_failed"):
        return await resolve_call(ResolveCall(op.call_id, "compensated", op.by, ""))
    if call.state == "compensation_in_doubt" and reported_undoing(call) == "compensation_failed":
        return await resolve_call(ResolveCall(op.call_id, "compensation_failed", op.by, ""))
    return call

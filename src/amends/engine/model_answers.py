"""Turn the outcome of a call into the answer for a model."""

from __future__ import annotations

import json
from typing import Any, Final

from amends.encoding.canonical import CLASS_MARK
from amends.encoding.payloads import decode
from amends.encoding.secret import SEALED
from amends.engine.approvals import held_for, rejected
from amends.engine.call import Done, failure, in_doubt
from amends.engine.outcomes import answered_status, is_broken
from amends.engine.session import Ask, Session, call_of, long_secrets, scrubbed
from amends.errors import (
    Busy,
    Error,
    Held,
    InDoubt,
    ResultGone,
    ResultLost,
    RolledBack,
    RunBlocked,
    ToolFailed,
    Waiting,
    clean,
    is_a,
    shown,
    type_name,
    what_helps,
    words_of,
)
from amends.ledger.rows import ApprovalRow, CallRow
from amends.model import Answer, Call, NoEffect, Status

# ---- Answers for a model

NOT_SHOWN: Final = "(done; its result cannot be shown)"


def answer_done(session: Session, ask: Ask, done: Done) -> Answer:
    """Return the answer for a call that was done, answered from the record, or accepted for later."""
    spec = ask.spec
    call = call_of(done.row, spec)
    if done.staged and done.row.state != "succeeded":
        return _accepted(call)
    value = call.result if done.value is None else done.value
    text = _result_text(done.row, value)
    if spec.redact is not None:  # as it was recorded: there its hidden fields are masked
        text = session.redactor.scrub(text if call.result is None else _json(call.result), ask.known)
    if session.known:  # another tool of the run may know what was hidden
        text = session.redactor.scrub(text, long_secrets(session))
    if done.replayed and session.resumed and ask.call_ref and ask.call_ref == done.row.call_ref:
        return Answer("replayed", text, value, call)  # the very request whose answer was lost: the model never had it
    if done.replayed:
        return Answer("replayed", f"Already done in this task; the same result: {text}", value, call)
    return Answer("done", text, value, call)


def _accepted(call: Call) -> Answer:
    text = f"Accepted: {call.tool} will run once the task is committed. Do not call it again."
    return Answer("staged", text, call=call)


def _result_text(row: CallRow, value: Any) -> str:
    """Return a result as a model reads it.

    If the annotation leaves the class open, the text has the class as the model must write it when it passes the value on.
    """
    recorded = row.result or ""
    return _json(decode(recorded) if CLASS_MARK in recorded and not recorded.startswith(SEALED) else value)


def answer_recorded(
    session: Session, row: CallRow, *, approval: ApprovalRow | None = None, twin: CallRow | None = None
) -> Answer | None:
    """Return what a model is told of a call as the ledger has it; None: nothing yet."""
    spec, tool = session.spec(row.tool), row.tool
    call = call_of(row, spec)
    match row.state:
        case "started" | "backing_off":
            return None
        case "held" | "ready" | "dropped":
            if row.reason in ("order", "lock") and not approval:
                return _accepted(call)
            return answer_error(session, tool, held_for(session, row, approval, twin))
        case "refused":
            return answer_error(session, tool, rejected(session, row))
        case "failed":
            return answer_error(session, tool, failure(spec, row))
        case "in_doubt" | "compensation_in_doubt" | "compensation_failed" | "residue":
            return answer_error(session, tool, in_doubt(session, row))
        case _:
            pass
    if row.result is None and row.loss:
        lost = ResultLost(f"{tool} ({row.id})", why=row.loss, call=call, run_id=row.run_id)
        return answer_error(session, tool, lost)
    if call.gone_at is not None and call.loss is not None:
        gone = ResultGone(f"{tool} ({row.id})", gone_at=call.gone_at, call=call, run_id=row.run_id)
        return answer_error(session, tool, gone)
    return Answer("done", _result_text(row, call.result), call.result, call)


def answer_of_agent(value: Any, replayed: bool) -> Answer:
    """Return the answer of an agent that did what was asked of it, in a child run; ``replayed``: it had done so before."""
    text = _json(value)
    return (
        Answer("replayed", f"Already done in this task; the same result: {text}", value)
        if replayed
        else Answer("done", text, value)
    )


def _json(value: Any) -> str:
    """Return a result as a model reads it. Never raise: the call was done, whatever its result does when it is shown."""
    try:
        dump = getattr(value, "model_dump_json", None)
        if callable(dump):
            return str(dump())
        from dataclasses import asdict, is_dataclass

        plain = asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
        return json.dumps(plain, ensure_ascii=False, default=str, separators=(",", ":"))
    except Exception:
        try:
            return str(value)
        except Exception:
            return NOT_SHOWN


def answer_error(session: Session, tool: str, error: Exception) -> Answer:
    """Return the answer for a call that was not done."""
    if is_a(error, Error):
        return Answer(_status(error), clean(error.for_model()), call=getattr(error, "call", None), error=error)
    call: Call | None = _call_on(error)
    why = shown(scrubbed(session, words_of(error) or type_name(error)))
    if is_a(error, NoEffect) and error.final is True:
        again = "That is final: do not call it so again."
    else:
        # urllib's HTTPError calls its address a file.
        has_file = (
            is_a(error, OSError) and OSError.filename.__get__(error) is not None and answered_status(error) is None
        )
        again = what_helps(type(error), has_file=has_file, broken=not has_file and is_broken(error))
    text = f"{tool} failed and changed nothing: {why}. {again}"
    return Answer("failed", text, call=call, error=error)


def _call_on(error: Exception) -> Call | None:
    """Return the call that a tool's own error names, if it does."""
    try:
        call = getattr(error, "call", None)
    except Exception:
        return None
    return call if isinstance(call, Call) else None


def _status(error: Error) -> Status:
    if isinstance(error, InDoubt):
        return "in_doubt"
    if isinstance(error, Held | Busy | Waiting):
        return "held"
    if isinstance(error, ToolFailed | RunBlocked | RolledBack):
        return "failed"
    return "refused"

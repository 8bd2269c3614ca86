"""Hidden values in the engine: given to bodies where they can be had, named where they cannot, spelled in no text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from amends.canonical import Stored, faithful, load_result, misfits
from amends.engine.session import Ask, Session, args_of, call_of, decode_args, describe_error, moment
from amends.errors import Error, ResultGone, ResultLost, ToolFailed
from amends.model import LOST, Call, Phase, without_result
from amends.phrases import is_a, type_name, words_of
from amends.rows import CallRow, lost_at
from amends.secret import MARK
from amends.signature import admits_none
from amends.spec import EVERYTHING
from amends.tool import ProbeSpec, Spec, Twin, twin_kwargs
from amends.veil import NO_SECRETS, REDACTED, Known


def bring(session: Session, ask: Ask, row: CallRow) -> None:
    """Whoever asks for a recorded call in its own words brings its hidden arguments, until it is settled."""
    if ask.shown is not None and ask.digest == row.digest:
        session.live[row.id] = ask


def known_of(session: Session, row: CallRow) -> Known:
    """How the hidden values of a recorded call are spelled, where this process can know it."""
    ask = session.live.get(row.id)
    return {**session.known, **session.veil.known(row.args)} if ask is None else ask.known


def body_args(session: Session, spec: Spec, row: CallRow) -> Mapping[str, Any]:
    """What the body of a recorded call is given; see ``lacking`` first."""
    ask = session.live.get(row.id)
    return _given(session, spec, row) if ask is None else ask.fresh()


def lacking(session: Session, row: CallRow, params: Iterable[str] | None = None) -> tuple[str, ...]:
    """The hidden arguments that a body, or a twin that asks for these, would need and that nobody here has.

    A twin gets only what every process could give it: that it worked here must not hide that it fails elsewhere.
    """
    if MARK not in row.args or (params is None and row.id in session.live):
        return ()
    return session.veil.lacking(row.args, params)


def lacks(names: Iterable[str]) -> str:
    """Why a call cannot be started here, in words."""
    return f"its {', '.join(names)} is redacted, and only the program that asked for it has the value"


def missing(session: Session, spec: Spec, row: CallRow, asked: Twin | ProbeSpec) -> str:
    """Return why a compensation, guard or probe cannot be started: what it needs and nobody here has; "" otherwise."""
    if gone := lacking(session, row, dict.fromkeys((*asked.params, *asked.needs))):
        return f"it asks for {', '.join(gone)}, which is redacted and not kept"
    args = () if lost_at(row.args) is not None else decode_args(row, spec)
    if absent := [name for name in asked.needs if name != "result" and name not in args]:
        return f"it asks for {', '.join(absent)}, which the record of the call does not have"
    if "result" not in asked.needs or (asked.takes_none and row.comp_blind):
        return ""
    why = result_loss(session, spec, row)
    return f"it asks for the result of the call, which nobody here has: {why}" if why else ""


def result_loss(session: Session, spec: Spec | None, row: CallRow) -> str:
    """Return why this process does not have the whole result of a call; "" where it does."""
    if row.id in session.memory.results:
        return ""
    if (gone_at := moment(lost_at(row.result))) is not None:
        return f"gc removed it on {gone_at:%Y-%m-%d}"
    if row.result is None:
        return row.loss or "nobody knows what it gave back"
    if row.loss.startswith(REDACTED):
        return row.loss
    if MARK in row.result and session.veil.lacking(f'{{"result":{row.result}}}'):
        return "a part of it is encrypted, and this process has no key to read it"
    if spec is not None and not row.loss and misfits(session.veil.revealed(row.result), spec.result_type):
        return f"what was recorded cannot be read as {spec.result_type} any more"
    return ""


def twin_given(
    session: Session, spec: Spec, asked: Twin | ProbeSpec, row: CallRow, *, call: Call
) -> tuple[dict[str, Any], Call]:
    """Return what a compensation, a guard or a probe is called with, and its call; see ``missing`` first.

    A result that nobody has is left out; None for a call in doubt, where it says that it takes that. ``call.result``
    raises then.
    """
    usable = call.args
    if EVERYTHING in asked.params and MARK in row.args:
        gone = session.veil.lacking(row.args)
        usable = {name: value for name, value in usable.items() if name not in gone}
    result: Any = LOST
    if why := result_loss(session, spec, row):
        lost = ResultLost(f"{row.tool} ({row.id})", why=why, run_id=row.run_id)
        call = without_result(call, lost)
        result = None if asked.takes_none and row.comp_blind else LOST
    else:
        result = session.memory.results.get(row.id, LOST)
        result = (
            result_of(session, spec, row, hint=asked.result_type if row.loss else Any) if result is LOST else result
        )
        call = replace(call, result=result)
    return twin_kwargs(asked.params, args=usable, result=result, call=call), call


def call_given(session: Session, spec: Spec, row: CallRow, *, phase: Phase = "execute") -> Call:
    """The call as its own code sees it: with its hidden arguments, where they were kept and can be read here."""
    return call_of(row, spec, phase=phase, args=_given(session, spec, row))


def _given(session: Session, spec: Spec, row: CallRow) -> Mapping[str, Any]:
    return {} if lost_at(row.args) is not None else args_of(session.veil.revealed(row.args), spec)


def result_of(session: Session, spec: Spec, row: CallRow, *, hint: Any = Any) -> Any:
    """The recorded result as its caller gets it; as ``hint`` says, where the tool does not say what it is."""
    said = spec.result_type if hint is Any else hint
    return load_result(row.result and session.veil.revealed(row.result), said)


def kept_result(session: Session, spec: Spec, row: CallRow, value: object) -> tuple[str | None, str]:
    """Return what the ledger keeps of a body's result, and what of it is lost; remember here what it cannot keep."""
    seen, stored = _stored(session, spec, row, value)
    remember(session, spec, row, seen, stored)
    return stored.text, stored.loss or ""


def told_result(session: Session, spec: Spec, row: CallRow, value: object) -> tuple[str | None, str]:
    """Return the same for a result that a probe or a person tells, who say None where they do not know it."""
    if value is LOST or (value is None and not admits_none(spec.result_type)):
        return None, "whoever said that it happened did not say its result"
    _, stored = _stored(session, spec, row, value)
    return stored.text, stored.loss or ""


def _stored(session: Session, spec: Spec, row: CallRow, value: object) -> tuple[Any, Stored]:
    seen, stored = faithful(value, spec.result_type)
    if spec.redact:
        stored = session.veil.kept(stored, known_of(session, row), (row.tenant, row.tool))
    return seen, stored


def remember(session: Session, spec: Spec, row: CallRow, value: object, stored: Stored) -> None:
    """Keep a result in this process where the ledger does not have the whole of it."""
    is_whole = stored.text is not None and not (stored.loss or "").startswith(REDACTED)
    if not is_whole or (type(value).__module__ == "builtins" and misfits(stored.text or "", spec.result_type)):
        session.memory.keep_result(row.id, value)


def first_result(session: Session, spec: Spec, row: CallRow) -> Any:
    """Return the result of a call to whoever waited for it; raise ``ResultLost`` where nobody has it."""
    if row.id in session.memory.results:
        return session.memory.results[row.id]
    return recorded_result(session, spec, row)


def recorded_result(session: Session, spec: Spec, row: CallRow) -> Any:
    """Return the result as the ledger has it; raise ``ResultLost`` where it has none."""
    call = call_of(row, spec)
    if (gone_at := moment(lost_at(row.result))) is not None:
        raise ResultGone(f"{row.tool} ({row.id})", gone_at=gone_at, call=call, run_id=session.id)
    if row.result is None:
        why = row.loss or "nobody knows what it gave back"
        raise ResultLost(f"{row.tool} ({row.id})", why=why, call=call, run_id=session.id)
    return result_of(session, spec, row)


def said_of(session: Session, row: CallRow, error: BaseException) -> str:
    """An exception about a recorded call, as the ledger keeps it."""
    return describe_error(error, session.veil, known_of(session, row))


def scrubbed(session: Session, text: str) -> str:
    """A text of this run without what is hidden in it."""
    return session.veil.scrub(text, session.known)


def cause_of(session: Session, error: BaseException | None, known: Known = NO_SECRETS) -> BaseException | None:
    """What an error of ours is said to come from: the error itself, unless its text would tell what is hidden."""
    if error is None or is_a(error, Error):
        return error
    text = words_of(error)
    shown = session.veil.scrub(text, {**session.known, **known})
    if shown == text:
        return error
    return ToolFailed(shown, call=None, type_name=type_name(error))

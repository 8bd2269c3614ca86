"""Hidden values in the engine: given to bodies where they can be had, named where they cannot, spelled in no text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from amends.canonical import load_result, store_result
from amends.engine.session import Ask, Session, args_of, call_of, describe_error
from amends.errors import Error, ToolFailed
from amends.model import Call, Phase
from amends.phrases import is_a, type_name, words_of
from amends.rows import CallRow, lost_at
from amends.secret import MARK
from amends.spec import EVERYTHING
from amends.tool import Spec, twin_kwargs
from amends.veil import NO_SECRETS, Known


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
    return _given(session, spec, row) if ask is None else ask.args


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


def twin_given(session: Session, spec: Spec, params: tuple[str, ...], row: CallRow, *, call: Call) -> dict[str, Any]:
    """What a compensation, a guard or a probe is called with; see ``lacking`` first."""
    args = call.args
    if row.result is not None and MARK in row.result:
        call = replace(call, result=result_of(session, spec, row))
    usable = args
    if EVERYTHING in params and MARK in row.args:
        gone = session.veil.lacking(row.args)
        usable = {name: value for name, value in args.items() if name not in gone}
    return twin_kwargs(params, args=usable, result=call.result, call=call)


def call_given(session: Session, spec: Spec, row: CallRow, *, phase: Phase = "execute") -> Call:
    """The call as its own code sees it: with its hidden arguments, where they were kept and can be read here."""
    return call_of(row, spec, phase=phase, args=_given(session, spec, row))


def _given(session: Session, spec: Spec, row: CallRow) -> Mapping[str, Any]:
    return {} if lost_at(row.args) is not None else args_of(session.veil.revealed(row.args), spec)


def result_of(session: Session, spec: Spec, row: CallRow) -> Any:
    """The recorded result as its caller gets it."""
    return load_result(row.result and session.veil.revealed(row.result), spec.result_type)


def kept_result(session: Session, spec: Spec, row: CallRow, value: object) -> tuple[str | None, str]:
    """What the ledger keeps of a result that somebody told it, and what of it is lost."""
    stored = store_result(value, spec.result_type)
    if spec.redact:
        stored = session.veil.kept(stored, known_of(session, row), (row.tenant, row.tool))
    return stored.text, stored.loss or ""


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

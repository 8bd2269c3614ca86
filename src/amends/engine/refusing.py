"""Answers that are errors: what a verdict of the ledger means to who asked."""

from __future__ import annotations

import json
from typing import NoReturn

from amends.canonical import diff
from amends.engine.asking import PAUSES, held_for, rejected
from amends.engine.judge import NESTED
from amends.engine.locking import deadlocked
from amends.engine.session import (
    Ask,
    Session,
    call_of,
    decode_args,
    error_parts,
    error_text,
)
from amends.engine.spending import exceeded
from amends.errors import (
    Busy,
    GenerationsSpent,
    InDoubt,
    KeyConflict,
    OutOfOrder,
    RuleRefused,
    RunEnded,
    ToolFailed,
)
from amends.ledger import Admission
from amends.rows import CallRow, lost_at
from amends.secret import SEALED
from amends.tool import Spec


def row_of(answer: Admission) -> CallRow:
    """The call that an answer is about."""
    assert answer.call is not None, f"a verdict {answer.verdict!r} names its call"
    return answer.call


def in_doubt(session: Session, row: CallRow) -> InDoubt:
    """The typed error for a call that may have happened."""
    words = f"{row.tool} was sent and its answer was lost ({row.why or row.state}); it may have happened"
    if row.why == NESTED:
        words = (
            f"{row.tool} may have happened: its body was stopped by a call inside it "
            f"({error_text(row.error)}); {PAUSES}"
        )
    said = str(json.loads(row.learned)[-1][-1]) if row.learned else ""
    said = "" if said.startswith(SEALED) else said
    return InDoubt(
        words,
        call=call_of(row, session.spec(row.tool)),
        why=row.why,
        run_id=row.run_id,
        hint=f"{said}; mend it, or decide with rt.resolve({row.id!r}, ...)" if said else None,
    )


def failure(spec: Spec | None, row: CallRow) -> ToolFailed:
    """A recorded failure: only its words are left of the original exception."""
    name, message = error_parts(row.error)
    words = "it failed" if row.lost_at is None else "it failed; gc has removed what it said"
    return ToolFailed(message or row.why or words, call=call_of(row, spec), type_name=name, run_id=row.run_id)


def busy(session: Session, answer: Admission, waited: float) -> Busy:
    """The typed error for a call that somebody else is at."""
    row = row_of(answer)
    whose = f" in run {answer.run.id}, which may still take it back" if answer.twin is not None and answer.run else ""
    return Busy(
        f"{row.tool} is {row.state}{whose}; waited {waited:.1f} s",
        owner=row.run_id,
        retry_after=session.lease.lease_s,
        run_id=session.id,
    )


def ended(session: Session, state: str) -> RunEnded:
    """The typed error for a run that takes nothing more."""
    return RunEnded(f"run {session.id} is {state}: it takes no new call", state=state, run_id=session.id)


def refuse(session: Session, ask: Ask, answer: Admission) -> NoReturn:
    """Raise what a verdict that starts nothing means."""
    spec = ask.spec
    match answer.verdict:
        case "refused" if answer.over is not None:
            raise exceeded(spec.name, answer.over, session.id)
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
    raise AssertionError(f"the ledger gave a verdict nobody knows: {answer.verdict}")


def conflict(session: Session, ask: Ask, row: CallRow) -> KeyConflict:
    """The typed error for a known identity with other arguments."""
    changed, shown = {}, "gc has removed them since"
    given = ask.args if ask.shown is None else ask.shown
    if row.args.startswith(SEALED):
        shown = "they are encrypted, and this process has no key for them"
    elif lost_at(row.args) is None:
        changed = diff(decode_args(row, session.spec(row.tool)), given)
        shown = ", ".join(f"{name}: {was!r} then, {now!r} now" for name, (was, now) in changed.items())
    return KeyConflict(
        f"{row.tool} was already asked for under this identity with other arguments ({shown}); nothing was started",
        tool=row.tool,
        call=call_of(row, session.spec(row.tool)),
        given=dict(given),
        diff=changed,
        may_repeat=session.may_repeat(row.tool),
        run_id=session.id,
    )

"""Turn rows of the ledger into reports for people, and outcomes into answers for a model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from amends.encoding.canonical import CLASS_MARK
from amends.encoding.payloads import decode
from amends.encoding.secret import SEALED, UNREADABLE
from amends.engine.call import Done
from amends.engine.rollback import commit_obstacles, rollback_obstacles
from amends.engine.session import Ask, Session, call_of, moment, scrubbed
from amends.errors import (
    Busy,
    Error,
    Held,
    InDoubt,
    ResultGone,
    RolledBack,
    RunBlocked,
    ToolFailed,
    Waiting,
    clean,
    is_a,
    shown,
    type_name,
    words_of,
)
from amends.ledger.operations import HeldLock, Tree
from amends.ledger.rows import EventRow, LockRow, RunRow, lost_at, point_of
from amends.model import Answer, Call, Event, Lock, Residue, RunInfo, Status
from amends.report import Report


def info_of(run: RunRow, parent: str = "") -> RunInfo:
    """Return a run's row as users see it."""
    point = point_of(run)
    return RunInfo(
        id=run.id,
        state=run.state,  # type: ignore[arg-type]  # the ledger's own words
        generation=run.generation,
        tenant=run.tenant or None,
        agent=run.agent or None,
        principal=run.principal or None,
        parent=parent or None,
        goal=run.goal or None,
        recover=run.policy,  # type: ignore[arg-type]
        input=_payload(run.input),
        output=_payload(run.output),
        tags=tuple(json.loads(run.tags)),
        causes=tuple(json.loads(run.causes)),
        owner=run.owner or None,
        epoch=run.epoch,
        opened_at=moment(run.created_at),
        closed_at=moment(run.closed_at),
        deadline_at=moment(run.deadline_at),
        gone_at=moment(run.gone_at or run.lost_at),
        origin=run.origin or None,
        forked_from=None if point is None else point.run_id,
        forked_at=None if point is None else point.call,
    )


def _payload(text: str) -> Any:
    if text.startswith(SEALED):
        return UNREADABLE
    return decode(text) if text and lost_at(text) is None else None


def output_gone_error(run: RunRow) -> ResultGone | None:
    """Return the error for a run's output that gc removed; None: it is there, or never was."""
    gone_at = moment(lost_at(run.output))
    return None if gone_at is None else ResultGone(f"run {run.id}", gone_at=gone_at, run_id=run.id)


def report_of(
    session: Session, tree: Tree, *, ledger: str = "", skipped: tuple[str, ...] = (), forks: Iterable[RunRow] = ()
) -> Report:
    """Return a tree as a report; its children are reports inside it."""
    residue = _residue(session, tree)
    by_parent: dict[str, list[RunRow]] = {}
    for run in tree.runs[1:]:
        by_parent.setdefault(run.parent, []).append(run)
    report = _report(session, tree, tree.run, by_parent, residue, ledger, skipped)
    return replace(report, forks=tuple(fork.id for fork in forks))


def _report(
    session: Session,
    tree: Tree,
    run: RunRow,
    by_parent: Mapping[str, list[RunRow]],
    residue: tuple[Residue, ...],
    ledger: str,
    skipped: tuple[str, ...],
) -> Report:
    calls = tuple(call_of(row, session.spec(row.tool)) for row in tree.calls if row.run == run.uid)
    children = tuple(_report(session, tree, child, by_parent, (), "", ()) for child in by_parent.get(run.uid, []))
    parent = next((one.id for one in tree.runs if one.uid == run.parent), "")
    doubts = tuple(call for call in calls if call.state in ("in_doubt", "compensation_in_doubt"))
    locks = tuple(lock_of(row, run, tree.now) for row in tree.locks if row.root == run.uid)
    return Report(info_of(run, parent), calls, residue, doubts, children, ledger, skipped, locks)


def _residue(session: Session, tree: Tree) -> tuple[Residue, ...]:
    """Return every effect that remains although the run was rolled back, or that may remain and nobody knows."""
    found: list[Residue] = []
    state = tree.run.phase
    if state in ("rolling_back", "abandoned"):
        found += [
            Residue(call_of(one.row, session.spec(one.row.tool)), one.why) for one in rollback_obstacles(session, tree)
        ]
    elif tree.run.state == "blocked":
        found += [
            Residue(call_of(one.row, session.spec(one.row.tool)), one.why) for one in commit_obstacles(session, tree)
        ]
    named = {left.call.id for left in found}
    for row in tree.calls:
        if row.id in named:
            continue
        if row.state == "residue" or (row.late and row.state == "succeeded" and tree.run.state == "committed"):
            why = row.why or (
                "its effect came after it was believed absent" if row.late else "a person said that it stays"
            )
            found.append(Residue(call_of(row, session.spec(row.tool)), why))
    return tuple(found)


def lock_of(row: LockRow, run: RunRow, now: float, waiting: tuple[str, ...] = ()) -> Lock:
    """Return one lock as users see it."""
    since = moment(row.taken_at)
    assert since is not None, "a lock was taken at some time"
    return Lock(
        name=row.name,
        run_id=row.run_id,
        tool=row.tool,
        call_id=row.call,
        since=since,
        held_s=now - row.taken_at,
        run_state=run.state,  # type: ignore[arg-type]  # the ledger's own words
        waiting=waiting,
    )


def held_lock_of(held: HeldLock) -> Lock:
    """Return one lock as users see it, with the runs that wait for it."""
    return lock_of(held.lock, held.root, held.now, tuple(wait.run_id for wait in held.waits))


def event_of(row: EventRow) -> Event:
    """Return one line of the audit log."""
    at = moment(row.at)
    assert at is not None, "every event has a time"
    return Event(
        seq=row.seq,
        at=at,
        run_id=row.run_id,
        call_id=row.call or None,
        what=row.what,
        frm=row.frm,
        to=row.to_state,
        by=row.by_whom,
        facts=json.loads(row.facts),
    )


# ---- Answers for a model


def answer_done(session: Session, ask: Ask, done: Done) -> Answer:
    """Return the answer for a call that was done, answered from the record, or accepted for later."""
    spec = ask.spec
    call = call_of(done.row, spec)
    if done.staged and done.row.state != "succeeded":
        text = f"Accepted: {spec.name} will run once the task is committed. Do not call it again."
        return Answer("staged", text, call=call)
    value = call.result if done.value is None else done.value
    recorded = done.row.result or ""
    # If the annotation leaves the class open, the text has the class as the model must write it when it passes the
    # value on.
    text = _json(decode(recorded) if CLASS_MARK in recorded and not recorded.startswith(SEALED) else value)
    if spec.redact is not None:  # as it was recorded: there its hidden fields are masked
        text = session.redactor.scrub(text if call.result is None else _json(call.result), ask.known)
    if done.replayed and session.resumed and ask.call_ref and ask.call_ref == done.row.call_ref:
        return Answer("replayed", text, value, call)  # the very request whose answer was lost: the model never had it
    if done.replayed:
        return Answer("replayed", f"Already done in this task; the same result: {text}", value, call)
    return Answer("done", text, value, call)


def _json(value: Any) -> str:
    dump = getattr(value, "model_dump_json", None)
    if callable(dump):
        return str(dump())
    try:
        from dataclasses import asdict, is_dataclass

        plain = asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
        return json.dumps(plain, ensure_ascii=False, default=str, separators=(",", ":"))
    except (TypeError, ValueError):
        return str(value)


def answer_error(session: Session, tool: str, error: Exception) -> Answer:
    """Return the answer for a call that was not done."""
    if is_a(error, Error):
        return Answer(_status(error), clean(error.for_model()), call=getattr(error, "call", None), error=error)
    call: Call | None = _call_on(error)
    why = shown(scrubbed(session, words_of(error) or type_name(error)))
    text = f"{tool} failed and changed nothing: {why}. You may correct the arguments and call it again."
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

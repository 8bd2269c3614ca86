"""Log what an operator should know, one record each on the logger ``amends``, with its facts as fields of the record.

The records are made from the answers of the ledger, so that none says more than the record, and none is written for an
operation that was repeated. They hold ids, tools, states, times and types of errors; never arguments, results or the
messages of errors.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from amends.encoding.patterns import pattern
from amends.engine.session import Session, error_parts, moment
from amends.errors import LeaseLost
from amends.ledger import operations
from amends.ledger.operations import Admission, Decision, Settled
from amends.ledger.plain import Begun, FailedPlain, FailPlain, TakenBack, UndonePlain
from amends.ledger.rows import ApprovalRow, CallRow, DecisionOutcome, RunRow, Unapproved
from amends.visible import visible, visible_log

log = visible_log("amends")
TOLD_MAX: Final = 10_000
"""How many records are remembered that must not be written twice."""
ERROR_NAME: Final = pattern(r"([A-Za-z_]\w*(?:Error|Exception|Exceeded|Refused|Interrupt)): ")
"""The class at the beginning of a recorded reason; the rest may be anything, and is encrypted in some ledgers."""
_told: dict[tuple[str, ...], None] = {}


def tell(op: Any, answer: Any) -> None:
    """Write the record of this answer, if there is one; an error here must not lose the answer."""
    record = _RECORDS.get(type(op))
    if record is None:
        return
    try:
        record(op, answer)
    except Exception:
        log.exception("a log record of %s was lost", type(op).__name__)


def tell_lease_lost(root: str, epoch: int, *, run: str = "") -> None:
    """Write once that this process lost a run tree to another process or to a person."""
    if _is_news("lease_lost", root, str(epoch)):
        about = f"run {visible(run)}" if run else f"run tree {root}"
        _write(
            logging.WARNING, "lease_lost", f"this process lost {about}: it was taken over, or a person ended it",
            run=run or None, root=root, epoch=epoch,
        )  # fmt: skip


def tell_pivoted(session: Session, words: str) -> None:
    """Write that a block was left with its run ``pivoted``: something is still to be done, and no error says so."""
    facts = {"run": session.id, "state": "pivoted", "tenant": session.tenant or None, "agent": session.agent or None}
    _write(logging.WARNING, "pivoted", words, **facts)


def tell_refused(op: Any, error: Exception) -> None:
    """Write that the ledger refused an operation because the run has another owner by now, if that is this error."""
    if not isinstance(error, LeaseLost):
        return
    root, epoch = getattr(op, "root", "") or getattr(op, "run", ""), getattr(op, "epoch", None)
    if root and isinstance(epoch, int):
        tell_lease_lost(root, epoch, run=getattr(op, "run_id", ""))


# ---- One function for each kind of answer


def _admitted(op: operations.AdmitCall, answer: Admission) -> None:
    asked, call = answer.approval, answer.call
    if asked is None or call is None or asked.state != "pending":
        return
    if call.id == op.call_id or asked.follows:  # not for a request that was made before
        _asked(asked)


def _started(_op: operations.StartCall, answer: object) -> None:
    asked = answer.approval if isinstance(answer, Unapproved) else None
    if asked is not None and asked.state == "pending" and asked.follows:
        _asked(asked)


def _asked_again(_op: object, answer: DecisionOutcome) -> None:
    if not answer.void and answer.approval.state == "pending":
        _asked(answer.approval)


def _asked(row: ApprovalRow) -> None:
    if not _is_news("approval_asked", row.id):
        return
    expires_at = moment(row.expires_at)
    _write(
        logging.INFO, "approval_asked", f"{visible(row.tool)} of run {visible(row.run_id)} waits for approval ({row.id})",
        run=row.run_id, call=row.call, tool=row.tool, approval=row.id, tenant=row.tenant or None,
        agent=row.agent or None, expires_at=None if expires_at is None else expires_at.isoformat(),
    )  # fmt: skip


def _not_started(op: operations.DropCall, row: CallRow) -> None:
    if not op.error or row.state == "dropped":  # then its caller has the error
        return
    about = f"{visible(row.tool)} ({row.id}) of run {visible(row.run_id)}"
    words = f"{about} was not started: what is there before it could not be read; it is tried again"
    _write(logging.WARNING, "not_started", words, **_facts(row), error_type=_type(op.error))


def _settled(op: operations.SettleCall, answer: Settled) -> None:
    row = answer.call
    if not answer.fenced and op.why != "timeout" and row.state != "in_doubt":
        return
    about = f"{visible(row.tool)} ({row.id}) of run {visible(row.run_id)}"
    if answer.fenced:
        tell_lease_lost(row.root, op.epoch, run=row.run_id)
        return
    if op.why == "timeout":
        _write(logging.WARNING, "timeout", f"{about} got no answer in time", **_facts(row), error_type=_type(op.error))
    if row.state == "in_doubt":
        words = f"{about} may have happened: it is in doubt ({row.why or 'lost'})"
        _write(logging.WARNING, "doubt", words, **_facts(row), why=row.why, error_type=_type(op.error))


def _compensated(op: operations.SettleCompensation, answer: Settled) -> None:
    row = answer.call
    if op.to == "compensated" and not answer.fenced:
        if answer.then is not None:
            tell(op.then, answer.then)
        return
    about = f"the compensation of {visible(row.tool)} ({row.id}) of run {visible(row.run_id)}"
    if answer.fenced:
        tell_lease_lost(row.root, op.epoch, run=row.run_id)
    elif op.to == "compensation_in_doubt":
        facts = {**_facts(row), "attempt": op.attempt, "error_type": _type(op.error)}
        _write(logging.WARNING, "doubt", f"{about} may have happened: it is in doubt", **facts)
    elif op.to == "compensation_failed":
        is_over = op.gave_up or op.retry_s is None
        then = "a person is needed" if is_over else f"it is tried again in {op.retry_s:.1f} s"
        facts = {**_facts(row), "attempt": op.attempt, "error_type": _type(op.error), "gave_up": is_over}
        level = logging.ERROR if is_over else logging.WARNING
        _write(level, "compensation_failed", f"{about} failed: {then}", **facts)


def _failed(op: FailPlain, answer: FailedPlain | Settled) -> None:
    if isinstance(answer, Settled):  # there is no record of an ordinary failure
        _settled(op.general(), answer)


def _taken_back(op: UndonePlain, answer: Begun | TakenBack | Settled) -> None:
    if isinstance(answer, TakenBack):
        _rolled_back(op.run.run_id, op.run.tenant, op.run.agent, "self", op.why)
    elif isinstance(answer, Settled):
        _compensated(op.general(), answer)


def _rolled_back(run_id: str, tenant: str, agent: str, by: str, why: str) -> None:
    if not log.isEnabledFor(logging.INFO):
        return
    cause = ERROR_NAME.match(why)
    kind = cause[1] if cause else None
    words = f"run {visible(run_id)} was rolled back{f' after {kind}' if kind else ''}"
    facts = {"run": run_id, "state": "rolled_back", "tenant": tenant or None, "agent": agent or None}
    _write(logging.INFO, "rollback", words, **facts, by=by, error_type=kind)


def _closed(_op: object, row: RunRow) -> None:
    facts = {"run": row.id, "state": row.state, "tenant": row.tenant or None, "agent": row.agent or None}
    if row.state == "rolled_back":
        _rolled_back(row.id, row.tenant, row.agent, "self" if "|" in row.goal_by else row.goal_by, row.goal_why)
    elif row.state == "blocked" and _is_news("blocked", row.uid, row.causes):
        _write(logging.ERROR, "blocked", f"run {visible(row.id)} is blocked: a person is needed", **facts)


def _decided(_op: operations.DecideCommit, answer: Decision) -> None:
    if answer.how == "incomplete" and answer.run.state == "blocked":
        _closed(_op, answer.run)


def _claimed(_op: operations.ClaimRun, row: RunRow | None) -> None:
    if row is not None:
        words = f"run {visible(row.id)} was taken over"
        _write(logging.INFO, "taken_over", words, run=row.id, state=row.state, root=row.uid, epoch=row.epoch)


_RECORDS: Final[Mapping[type[Any], Callable[[Any, Any], None]]] = {
    operations.AdmitCall: _admitted,
    operations.StartCall: _started,
    operations.RenewRequest: _asked_again,
    operations.EditApproval: _asked_again,
    operations.DropCall: _not_started,
    operations.SettleCall: _settled,
    operations.SettleCompensation: _compensated,
    FailPlain: _failed,
    UndonePlain: _taken_back,
    operations.CloseRun: _closed,
    operations.DecideCommit: _decided,
    operations.ClaimRun: _claimed,
}

TOLD: Final = frozenset(_RECORDS)
"""Operations of whose answers there may be a record."""

# ---- Records


def _write(level: int, event: str, words: str, **facts: Any) -> None:
    log.log(level, "%s", words, extra={"event": event, **facts})


def _facts(row: CallRow) -> dict[str, Any]:
    return {
        "run": row.run_id,
        "call": row.id,
        "tool": row.tool,
        "kind": row.kind,
        "state": row.state,
        "attempt": row.attempt,
        "tenant": row.tenant or None,
        "agent": row.agent or None,
    }


def _type(error: str) -> str | None:
    return error_parts(error)[0] or None if error else None


def _is_news(*name: str) -> bool:
    """Return whether this was not written yet by this process."""
    if name in _told:
        return False
    if len(_told) >= TOLD_MAX:
        _told.clear()
    _told[name] = None
    return True

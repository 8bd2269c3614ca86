"""What stands in the way of an end, each with its name and the verb that removes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from amends.engine.doubt import unclear
from amends.engine.session import Session, call_of, error_parts, error_text
from amends.engine.veiling import lacking, lacks
from amends.ledger import Tree
from amends.record import dataclass
from amends.rows import CallRow, RunRow, lost_at
from amends.states import UNSETTLED

NOT_STARTED: Final = "NotStarted"
"""The name of the recorded error of a compensation that was not started, because something it needs is missing."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """An effect that is, or may be, still there, and what to do about it."""

    row: CallRow
    why: str
    cause: str
    doubtful: bool = False


def leftovers(session: Session, tree: Tree) -> list[Leftover]:
    """Everything that keeps a run that goes back from being ``rolled_back``."""
    runs = {run.uid: run for run in tree.runs}
    found = []
    for row in tree.calls:
        left = _leftover(session, row, runs[row.run], tree.run)
        if left is not None:
            found.append(left)
    return found


def taken_by_rule(left: list[Leftover]) -> str:
    """What stands, where who wrote a rule said beforehand that all of it may; empty: somebody must be asked."""
    if not all(one.row.accepts and not one.doubtful for one in left):
        return ""
    return "; ".join(dict.fromkeys(f"{one.row.tool} stands: {one.row.accepts}" for one in left))


def _leftover(session: Session, row: CallRow, run: RunRow, closing: RunRow) -> Leftover | None:
    """``closing``: the run that goes back, whose end waits for a person's word on this call."""
    if row.kind == "read" or row.shared:
        return None
    inside = row.run != closing.uid
    if inside and _kept(run):
        if row.id != run.pivot or row.state != "succeeded":
            return None
        return Leftover(
            row,
            "the pivot of a child run stands",
            _accept(row, f"{row.tool} of child {run.id} cannot be taken back", closing),
        )
    if inside and run.state == "open" and row.state != "in_doubt":
        return None  # its child waits for the word on its pivot: that is named instead
    spec = session.spec(row.tool)
    call = call_of(row, spec)
    match row.state:
        case "in_doubt":
            return Leftover(row, "it may have happened", unclear(call), doubtful=True)
        case "compensation_in_doubt":
            why = "its compensation may have happened"
            verb = f"rt.resolve({row.id!r}, Happened(None) | Absent(), by=..., why=...)"
            return Leftover(row, why, f"{row.tool} ({row.id}): {why}: look, then {verb}", doubtful=True)
        case "compensation_failed":
            return _not_taken_back(row)
        case "succeeded":
            why = _why_standing(session, row)
            what = f"{row.tool}: {why}"
            cause = _accept(row, what, closing)
            if row.undoable and row.lost_at is None:  # by a process that has what this one lacks
                where = f"rt.rollback({closing.id!r}, by=..., why=...) where all its tools and compensations are known"
                cause = f"{what} ({row.id}): {where}, or accept it with rt.abandon({closing.id!r}, by=..., why=...)"
            return Leftover(row, (row.violation and f"it broke the law ({row.violation})") or why, cause)
        case "residue":  # rolled_back never has residue: the person who said that it stays also closes the run
            why = row.why or "a person said that it stays"
            return Leftover(row, why, _accept(row, f"{row.tool} stays ({why})", closing))
    return None


def _not_taken_back(row: CallRow) -> Leftover:
    """A compensation that gave up, or that was not started because something it needs is missing."""
    name, words = error_parts(row.comp_error)
    retry = f"rt.retry({row.id!r}, by=..., why=...)"
    if name != NOT_STARTED:
        why = f"its compensation failed: {error_text(row.comp_error) or 'no reason kept'}"
        return Leftover(row, why, f"{row.tool} ({row.id}): {why}: {retry}")
    why = f"its compensation was not started: {words}"
    verbs = [f"take it back by hand, then rt.resolve({row.id!r}, Happened(None), by=..., why=...)"]
    if row.result is None or lost_at(row.result) is not None or row.loss:
        verbs.append(f"give the result with rt.retry({row.id!r}, result=..., by=..., why=...)")
    else:
        verbs.append(f"{retry} where nothing is missing")
    verbs.append(f"or let it stand with rt.accept({row.id!r}, by=..., why=...)")
    return Leftover(row, why, f"{row.tool} ({row.id}): {why}: {', '.join(verbs)}")


def _why_standing(session: Session, row: CallRow) -> str:
    if row.lost_at is not None:
        return "gc removed what its compensation would be given: take it back by hand"
    spec = session.spec(row.tool)
    if spec is None:
        return "this process does not know its tool"
    return "it has not been taken back yet" if spec.compensate else "it has no compensation"


def under(fork: RunRow, run: RunRow) -> str:
    """Why a run is not taken back under this fork, and the verbs that change that."""
    back = f"rt.rollback({run.id!r}, by=..., why=...)"
    if fork.phase in ("pivoted", "committed"):
        stays = f"let it stand with rt.abandon({run.id!r}, by=..., why=...), or take it back all the same with {back}"
        return f"fork {fork.id} has {fork.phase} on what run {run.id} did: {stays}"
    ends = f"end the fork with rt.rollback({fork.id!r}, by=..., why=...), or take this back under it with {back}"
    return f"fork {fork.id} is open and stands on what run {run.id} did: {ends}"


def _is_under_forks(run: RunRow) -> bool:
    """Whether it would go back, and only forks keep it: it has not turned, and says that it is blocked."""
    return run.state == "blocked" and run.came_from == "open" and run.goal == "rollback" and not run.pivot


def _around(runs: Mapping[str, RunRow], row: CallRow, closing: RunRow) -> list[RunRow]:
    """The run of a call and those around it, below the one that is closed: what keeps one of these keeps that too."""
    around: list[RunRow] = []
    uid = row.run
    while uid != closing.uid and uid in runs and len(around) < len(runs):
        around.append(runs[uid])
        uid = runs[uid].parent
    return around


def _kept(run: RunRow) -> bool:
    return run.phase == "pivoted" or (run.state == "committed" and bool(run.pivot))


def _accept(row: CallRow, what: str, closing: RunRow) -> str:
    return f"{what} ({row.id}): accept it with rt.abandon({closing.id!r}, by=..., why=...)"


def _unknown_to_us(session: Session, row: CallRow, run: RunRow, closing: RunRow) -> Leftover | None:
    """A call that has to be started and cannot be: its hidden arguments died with the process that asked for it."""
    due = row.is_staged or (row.state == "backing_off" and row.kind == "retriable")
    gone = lacking(session, row) if due and run.phase in ("open", "pivoted") else ()
    if not gone:
        return None
    why = f"it was not started: {lacks(gone)}"
    verb = "rollback" if closing.phase == "open" else "abandon"
    return Leftover(row, why, f"{row.tool} ({row.id}): {why}: rt.{verb}({closing.id!r}, by=..., why=...)")


def obstacles(session: Session, tree: Tree) -> list[Leftover]:
    """Everything that keeps a run from committing and needs a person."""
    found = []
    runs = {run.uid: run for run in tree.runs}
    expired = {row.id for row in tree.approvals if row.state_at(tree.now) == "expired"}
    for row in tree.calls:
        if row.approval in expired and row.state in ("held", "ready") and not row.attempt:
            back = f"rt.rollback({tree.run.id!r}, by=..., why=...)"
            if tree.run.phase == "pivoted":  # which only goes forward, with it or without
                back = f"rt.withdraw({row.approval!r}, by=..., why=...)"
            verb = f"rt.ask_again({row.approval!r}, by=..., why=...), or {back}"
            found.append(
                Leftover(row, "nobody decided in time", f"{row.tool} ({row.id}): nobody decided in time: {verb}")
            )
            continue
        left = _unknown_to_us(session, row, runs[row.run], tree.run)
        around = _around(runs, row, tree.run)
        kept = next((run for run in around if _is_under_forks(run)), None)
        if row.state == "succeeded" and kept is not None:
            found.append(Leftover(row, "a fork stands on it", "; ".join(json.loads(kept.causes))))
            continue
        if any(run.phase == "rolling_back" for run in around):
            left = _leftover(session, row, runs[row.run], tree.run)  # a child that cannot be taken back
        if left is not None:
            found.append(left)
        if left is not None or row.state not in UNSETTLED or (row.is_staged and row.run == tree.run.uid):
            continue
        if row.state == "in_doubt":
            found.append(
                Leftover(row, "it may have happened", unclear(call_of(row, session.spec(row.tool))), doubtful=True)
            )
        elif row.state == "backing_off" and row.retry_at is None:
            why = f"it fails for good: {error_text(row.error) or row.why}"
            found.append(Leftover(row, why, f"{row.tool} ({row.id}): {why}: rt.retry({row.id!r}, by=..., why=...)"))
    return found

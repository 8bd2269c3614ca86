"""Name what blocks a run, each cause with the verb that removes it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Final

from amends.encoding.dataclass import dataclass
from amends.encoding.patterns import pattern
from amends.engine.doubts import (
    doubt_question,
    probe_failure,
)
from amends.engine.session import (
    Session,
    call_of,
    error_parts,
    error_text,
    lacking,
    lacking_words,
)
from amends.errors import CAUSES_MAX, RunBlocked, listed_in, some, some_in_words
from amends.ledger.locks import is_held_back
from amends.ledger.operations import (
    Tree,
)
from amends.ledger.rows import CallRow, RunRow, lost_at
from amends.ledger.trees import accepted_in, unknown_pivots
from amends.model import NOT_LOADED, Residue
from amends.states import UNSETTLED

NOT_STARTED: Final = "NotStarted"
"""The name of the recorded error of a compensation that was not started because something it needs is missing."""
NOT_YET: Final = "it has not been compensated yet"
DOUBTS_NAMED_MAX: Final = 3
"""How many doubts are named by a call that waits for them."""
_VERB: Final = pattern(r"\brt\.(\w+)\(")


@dataclass(frozen=True, slots=True)
class Obstacle:
    """An effect that exists, or may exist, and what a person can do about it."""

    row: CallRow
    why: str
    cause: str
    doubtful: bool = False


def rollback_obstacles(session: Session, tree: Tree) -> list[Obstacle]:
    """Return everything that keeps a run that is rolling back from becoming ``rolled_back``: what is in doubt first."""
    runs = {run.uid: run for run in tree.runs}
    found = []
    for row in tree.calls:
        passed = None
        if row.state == "succeeded" and row.locks:
            passed = next((later for later in tree.calls if is_held_back(row, later)), None)
        left = _rollback_obstacle(session, row, runs[row.run], tree.run)
        if left is not None and passed is not None and row.undoable:
            left = _held_back(row, passed)
        if left is not None:
            found.append(left)
    return _doubts_first(found)


def _doubts_first(found: list[Obstacle]) -> list[Obstacle]:
    """Put the questions that a person must answer first; what could be compensated but for them waits for the answers.

    A verb is named where it helps: to roll back again does nothing before the doubts are resolved.
    """
    doubts = [one for one in found if one.doubtful]
    if not doubts or len(doubts) == len(found):
        return found
    names = [f"{one.row.tool} ({one.row.id})" for one in doubts[:DOUBTS_NAMED_MAX]]
    more = f" and {len(doubts) - DOUBTS_NAMED_MAX} others" if len(doubts) > DOUBTS_NAMED_MAX else ""
    why = f"{NOT_YET}: it waits for the answer about {', '.join(names)}{more}"
    rest = [one for one in found if not one.doubtful]
    return doubts + [
        Obstacle(one.row, why, f"{one.row.tool} ({one.row.id}): {why}") if one.why == NOT_YET else one for one in rest
    ]


def blocked(session: Session, left: Sequence[Obstacle], *, named: str = "", causes: Sequence[str] = ()) -> RunBlocked:
    """Return the error of a blocked run: its attributes have everything that is left, its texts name a part.

    ``named``, ``causes``: what is said where nothing is left.
    """
    calls = [call_of(one.row, session.spec(one.row.tool)) for one in left]
    names = named or some_in_words(dict.fromkeys(one.row.tool for one in left)) or "nothing amends can name"
    return RunBlocked(
        f"run {session.id} is blocked: {names}",
        run_id=session.id,
        residue=[Residue(call, one.why) for call, one in zip(calls, left, strict=True) if not one.doubtful],
        doubts=[call for call, one in zip(calls, left, strict=True) if one.doubtful],
        causes=[one.cause for one in left] or list(causes),
    )


def recorded_causes(run_id: str, causes: Sequence[str]) -> tuple[str, ...]:
    """Return the causes that are recorded of a blocked run: at most ``CAUSES_MAX``, and how many more there are.

    Each verb that removes one of them is named, so that people are offered it.
    """
    if len(causes) <= CAUSES_MAX:
        return tuple(causes)
    told: set[str] = set()
    chosen: list[int] = []
    for place, cause in enumerate(causes):
        verbs = set(_VERB.findall(cause))
        if not verbs <= told:
            told |= verbs
            chosen.append(place)
    others = (place for place in range(len(causes)) if place not in chosen)
    first = sorted([*chosen, *others][:CAUSES_MAX])
    rest = [place for place in range(len(causes)) if place not in first]
    return tuple(some([causes[place] for place in (*first, *rest)], where=listed_in(run_id), most=CAUSES_MAX))


def accepted_by_rule(run_id: str, left: list[Obstacle]) -> str:
    """Return the accepted residue if rules accepted all of it beforehand; empty: a person must be asked."""
    if not all(one.row.accepts and not one.doubtful for one in left):
        return ""
    stays = dict.fromkeys(f"{one.row.tool} stands: {one.row.accepts}" for one in left)
    return "; ".join(some(list(stays), where=listed_in(run_id)))


def accepted_by_plan(run: RunRow, left: list[Obstacle]) -> str:
    """Return what stays of a committed run that is taken back, if a person accepted all of it; empty: not all."""
    accepted = accepted_in(run.plan)
    if accepted is None or any(one.doubtful for one in left):
        return ""
    if not all(one.row.id in accepted or one.row.accepts or one.row.state == "residue" for one in left):
        return ""
    return f"accepted: {run.goal_why}" if left else ""  # the reason of each call that stays; its report names it


def _rollback_obstacle(session: Session, row: CallRow, run: RunRow, closing: RunRow) -> Obstacle | None:
    """Return why this call keeps ``closing``, the run that is rolling back, from its end; None: it does not."""
    if row.kind == "read" or row.shared:
        return None
    inside = row.run != closing.uid
    if inside and _keeps_pivot(run):
        if row.id != run.pivot or row.state != "succeeded":
            return None
        return Obstacle(
            row,
            "the pivot of a child run stands",
            _accept(row, f"{row.tool} of child {run.id} cannot be rolled back", closing),
        )
    if inside and run.state == "open" and row.state != "in_doubt":
        return None  # its child waits for a decision on its pivot: that is named instead
    match row.state:
        case "in_doubt":
            question = doubt_question(call_of(row, session.spec(row.tool)), probe_failure(row))
            return Obstacle(row, "it may have happened", question, doubtful=True)
        case "compensation_in_doubt":
            why = "its compensation may have happened"
            verb = f"rt.resolve({row.id!r}, Happened(None) | Absent(), by=..., why=...)"
            broken = probe_failure(row)
            probed = f", and its probe keeps failing ({broken}): fix the probe, or" if broken else ":"
            return Obstacle(row, why, f"{row.tool} ({row.id}): {why}{probed} look, then {verb}", doubtful=True)
        case "compensation_failed":
            return _failed_compensation(row)
        case "succeeded":
            why = _why_not_compensated(session, row)
            what = f"{row.tool}: {why}"
            cause = _accept(row, what, closing)
            if row.undoable and row.lost_at is None:  # by a process that has what this one lacks
                where = f"rt.rollback({closing.id!r}, by=..., why=...) where all its tools and compensations are known"
                cause = f"{what} ({row.id}): {where}, or accept it with rt.abandon({closing.id!r}, by=..., why=...)"
            return Obstacle(row, (row.violation and f"it broke the ordering rules ({row.violation})") or why, cause)
        case "residue":  # rolled_back never has residue: the person who said that it stays also closes the run
            why = row.why or "a person said that it stays"
            close = f"close the run with rt.abandon({closing.id!r}, by=..., why=...)"
            return Obstacle(row, why, f"{row.tool} ({row.id}) stays, as a person accepted ({why}): {close}")
    return None


def _failed_compensation(row: CallRow) -> Obstacle:
    """Return the obstacle for a compensation that gave up, or was not started because something it needs is missing."""
    name, words = error_parts(row.comp_error)
    retry = f"rt.retry({row.id!r}, by=..., why=...)"
    if name != NOT_STARTED:
        why = f"its compensation failed: {error_text(row.comp_error) or 'no reason kept'}"
        by_hand = f"or compensate it by hand, then rt.resolve({row.id!r}, Happened(None), by=..., why=...)"
        accept = f"or accept it with rt.accept({row.id!r}, by=..., why=...)"
        return Obstacle(row, why, f"{row.tool} ({row.id}): {why}: {retry}, {by_hand}, {accept}")
    why = f"its compensation was not started: {words}"
    verbs = [f"compensate it by hand, then rt.resolve({row.id!r}, Happened(None), by=..., why=...)"]
    if row.result is None or lost_at(row.result) is not None or row.loss:
        verbs.append(f"give the result with rt.retry({row.id!r}, result=..., by=..., why=...)")
    else:
        verbs.append(f"{retry} where nothing is missing")
    verbs.append(f"or accept it with rt.accept({row.id!r}, by=..., why=...)")
    return Obstacle(row, why, f"{row.tool} ({row.id}): {why}: {', '.join(verbs)}")


def _held_back(row: CallRow, passed: CallRow) -> Obstacle:
    """Return the obstacle for a call whose compensation would overwrite what somebody else has changed since."""
    why = f"{passed.tool} ({passed.id}) after it was changed by somebody else, which going further back would overwrite"
    accept = f"accept it with rt.accept({row.id!r}, by=..., why=...)"
    retry = "" if passed.state == "residue" else f"rt.retry({passed.id!r}, by=..., why=...) once that is undone, or "
    cause = f"{row.tool} ({row.id}): {why}: {retry}{accept}"
    return Obstacle(row, why, cause)


def _why_not_compensated(session: Session, row: CallRow) -> str:
    if row.lost_at is not None:
        return "what its compensation needs was removed: compensate it by hand"
    spec = session.spec(row.tool)
    if spec is None:
        return NOT_LOADED if row.undoable else "it has no compensation"
    return NOT_YET if spec.compensate else "it has no compensation"


def fork_obstacle(fork: RunRow, run: RunRow) -> str:
    """Return why a run is not rolled back under this fork, and the verbs that change that."""
    back = f"rt.rollback({run.id!r}, by=..., why=...)"
    if fork.phase in ("pivoted", "committed"):
        stays = f"accept it with rt.abandon({run.id!r}, by=..., why=...), or roll it back all the same with {back}"
        return f"fork {fork.id} has {fork.phase} on what run {run.id} did: {stays}"
    ends = f"end the fork with rt.rollback({fork.id!r}, by=..., why=...), or roll this back under it with {back}"
    return f"fork {fork.id} is open and depends on what run {run.id} did: {ends}"


def _waits_for_forks(run: RunRow) -> bool:
    """Return whether the run would roll back and only forks prevent it: it is blocked and has not begun."""
    return run.state == "blocked" and run.came_from == "open" and run.goal == "rollback" and not run.pivot


def _runs_around(runs: Mapping[str, RunRow], row: CallRow, closing: RunRow) -> list[RunRow]:
    """Return the run of a call and its ancestors below the run that is closing.

    What blocks one of these blocks that too.
    """
    around: list[RunRow] = []
    uid = row.run
    while uid != closing.uid and uid in runs and len(around) < len(runs):
        around.append(runs[uid])
        uid = runs[uid].parent
    return around


def _keeps_pivot(run: RunRow) -> bool:
    return run.phase == "pivoted" or (run.state == "committed" and bool(run.pivot))


def _accept(row: CallRow, what: str, closing: RunRow) -> str:
    return f"{what} ({row.id}): accept it with rt.abandon({closing.id!r}, by=..., why=...)"


def _lacks_hidden_args(session: Session, row: CallRow, run: RunRow, closing: RunRow) -> Obstacle | None:
    """Return the obstacle for a call that must be started but lacks hidden arguments, which only its requester had."""
    due = row.is_staged or (row.state == "backing_off" and row.kind == "retriable")
    gone = lacking(session, row) if due and run.phase in ("open", "pivoted") else ()
    if not gone:
        return None
    why = f"it was not started: {lacking_words(gone)}"
    verb = "rollback" if closing.phase == "open" else "abandon"
    return Obstacle(row, why, f"{row.tool} ({row.id}): {why}: rt.{verb}({closing.id!r}, by=..., why=...)")


def commit_obstacles(session: Session, tree: Tree) -> list[Obstacle]:
    """Return everything that keeps a run from committing and needs a person."""
    found = []
    runs = {run.uid: run for run in tree.runs}
    unknown = (unknown_pivots(run, [row for row in tree.calls if row.run == run.uid]) for run in tree.runs)
    for row in chain.from_iterable(unknown):  # of a child, too: its parent waits for it
        why = "nobody knows whether it happened, so nothing may follow it"
        back, accept = (f"rt.{verb}({tree.run.id!r}, by=..., why=...)" for verb in ("rollback", "abandon"))
        verbs = f"take the rest back with {back}, or accept it with {accept}"
        found.append(Obstacle(row, why, f"{row.tool} ({row.id}): {why}: {verbs}"))
    expired = {row.id for row in tree.approvals if row.state_at(tree.now) == "expired"}
    for row in tree.calls:
        if row.approval in expired and row.state in ("held", "ready") and not row.attempt:
            back = f"rt.rollback({tree.run.id!r}, by=..., why=...)"
            if tree.run.phase == "pivoted":  # a pivoted run only goes forward, with the call or without it
                back = f"rt.withdraw({row.approval!r}, by=..., why=...)"
            verb = f"rt.ask_again({row.approval!r}, by=..., why=...), or {back}"
            found.append(
                Obstacle(row, "nobody decided in time", f"{row.tool} ({row.id}): nobody decided in time: {verb}")
            )
            continue
        left = _lacks_hidden_args(session, row, runs[row.run], tree.run)
        around = _runs_around(runs, row, tree.run)
        kept = next((run for run in around if _waits_for_forks(run)), None)
        if row.state == "succeeded" and kept is not None:
            forks = some(json.loads(kept.causes), where=listed_in(kept.id))
            found.append(Obstacle(row, "a fork depends on it", "; ".join(forks)))
            continue
        if any(run.phase == "rolling_back" for run in around):
            left = _rollback_obstacle(session, row, runs[row.run], tree.run)  # a child that cannot be rolled back
        if left is not None:
            found.append(left)
        if left is not None or row.state not in UNSETTLED or (row.is_staged and row.run == tree.run.uid):
            continue
        if row.state == "in_doubt":
            found.append(
                Obstacle(
                    row,
                    "it may have happened",
                    doubt_question(call_of(row, session.spec(row.tool)), probe_failure(row)),
                    doubtful=True,
                )
            )
        elif row.state == "backing_off" and row.retry_at is None:
            why = f"it failed permanently: {error_text(row.error) or row.why}"
            verbs = f"rt.retry({row.id!r}, by=..., why=...), or close the run with rt.abandon({tree.run.id!r}, by=..., why=...)"
            found.append(Obstacle(row, why, f"{row.tool} ({row.id}): {why}: {verbs}"))
    return _doubts_first(found)

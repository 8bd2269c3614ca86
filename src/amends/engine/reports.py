"""Make the reports and listings that users see from rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from amends.encoding.payloads import decode
from amends.encoding.secret import SEALED, UNREADABLE
from amends.engine.blocked import commit_obstacles, rollback_obstacles
from amends.engine.locks import lock_of
from amends.engine.session import Session, call_of, moment
from amends.errors import ResultGone
from amends.ledger.operations import Tree
from amends.ledger.rows import EventRow, RunRow, lost_at, point_of
from amends.model import Event, Missing, Residue, RunInfo
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
        recover=run.recover,  # type: ignore[arg-type]
        interrupted="commit" if run.commits_interrupted else "block",
        client_lease=run.client_lease_s or None,
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
        place=f"{run.created_at!r}/{run.uid}",
        goal_why=run.goal_why or None,
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
    session: Session,
    tree: Tree,
    *,
    ledger: str = "",
    skipped: tuple[str, ...] = (),
    forks: Iterable[RunRow] = (),
    is_whole: bool = True,
) -> Report:
    """Return a tree as a report; its children are reports inside it.

    ``is_whole``: the tree has all its calls; a part of them does not tell what is missing.
    """
    residue = _residue(session, tree)
    by_parent: dict[str, list[RunRow]] = {}
    for run in tree.runs[1:]:
        by_parent.setdefault(run.parent, []).append(run)
    report = _report(session, tree, tree.run, by_parent, residue, ledger, skipped)
    is_said = is_whole and not tree.run.parent and (tree.run.completion or session.closing.text)
    found = missing_of(session, tree) if is_said else ((), ())
    return replace(report, forks=tuple(fork.id for fork in forks), missing=found[0], unreached=found[1])


def missing_of(session: Session, tree: Tree) -> tuple[tuple[Missing, ...], tuple[str, ...]]:
    """Return what an agent's run lacks, and the pivots that it never reached although it has effects."""
    from amends.engine import completion  # here: it is about agents' runs only

    effects = [row for row in tree.calls if row.kind == "compensatable" and row.state == "succeeded"]
    pivots = sorted(name for name, spec in session.specs.items() if spec.kind == "pivot")
    unreached = () if tree.run.pivot or not effects or tree.run.state != "committed" else tuple(pivots)
    missing = completion.missing_in(session, tree, all_failures=True)
    return tuple(missing or completion.recorded_reason(tree.run)), unreached


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


def event_of(row: EventRow) -> Event:
    """Return one line of the audit log."""
    at = moment(row.at)
    assert at is not None, "every event has a time"
    return Event(
        seq=row.n,
        at=at,
        run_id=row.run_id,
        call_id=row.call or None,
        what=row.what,
        frm=row.frm,
        to=row.to_state,
        by=row.by_whom,
        facts=json.loads(row.facts),
        place=row.place,
    )

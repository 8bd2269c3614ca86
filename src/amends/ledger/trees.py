"""Find the runs that belong together: a run with its descendants, the forks on it, the runs that it was forked from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from amends.encoding.canonical import digest
from amends.ledger.operations import AdmitCall
from amends.ledger.queries import answers_from, list_calls, list_forks, list_tree
from amends.ledger.rows import FORKS_MAX, RUNS, AnswerRow, CallRow, RunRow
from amends.ledger.tables import Find


async def find_run(uid: str, *, peek: bool = False) -> RunRow:
    """Return the run with this uid, which must exist."""
    row = await Find(RUNS, uid, peek=peek)
    assert row is not None, f"the ledger names a run that it does not have: {uid}"
    return row


def key_root(op: AdmitCall) -> str:
    """Return the tree whose calls may have the key of this request; empty: those of the whole ledger."""
    return "" if op.scope == "ledger" else op.root


ENDED_UNCOMMITTED: Final = ("rolled_back", "abandoned")
COMMITTED: Final = "committed"
"""Stands between the hash of a plan and the accepted calls, in the plan of a committed run."""


async def forks_on(root: str) -> list[RunRow]:
    """Return the open or committed forks that depend on this tree; forks of its forks too, whatever their state."""
    found: list[RunRow] = []
    todo = [root]
    seen = 0
    while todo and seen < FORKS_MAX:
        for fork in await list_forks(todo.pop(0)):
            seen += 1
            todo.append(fork.uid)
            if fork.state not in ENDED_UNCOMMITTED and not fork.origin:
                found.append(fork)
    return found


async def sources(fork: RunRow, *, peek: bool = True) -> list[RunRow]:
    """Return the run that this one was forked from, the one that that was forked from, and so on.

    If they are locked, then from the youngest to the oldest; everybody who locks more than one does it in this order.
    """
    found: list[RunRow] = []
    uid = fork.forked_from
    while uid and len(found) < FORKS_MAX:
        row = await Find(RUNS, uid, peek=peek)
        assert row is not None, "a fork names a run of this ledger"
        found.append(row)
        uid = row.forked_from
    return found


async def subtree(run: RunRow) -> list[RunRow]:
    """Return the run and its descendants, parents first."""
    inside = {run.uid}
    rows = [run]
    for row in await list_tree(run.root):
        if row.parent in inside and row.uid not in inside:
            inside.add(row.uid)
            rows.append(row)
    return rows


async def mark_of(run: RunRow) -> str:
    """Return the digest of the state of the run: see ``tree_mark``."""
    runs = await subtree(run)
    inside = {row.uid for row in runs}
    calls = [call for call in await list_calls(run.root) if call.run in inside]
    return tree_mark(runs, calls, await forks_on(run.root), await answered_by(run, calls))


async def answered_by(run: RunRow, calls: Iterable[CallRow]) -> list[AnswerRow]:
    """Return the answers that other runs have from the calls of a committed run."""
    ids = tuple(call.id for call in calls if call.scope == "ledger" and call.state == "succeeded")
    return await answers_from(ids) if ids and run.state == "committed" else []


def must_accept(calls: Iterable[CallRow]) -> list[CallRow]:
    """Return the calls that stay although their committed run is taken back: a person must accept each of them."""
    return [call for call in calls if call.kind != "read" and not call.shared and _stays(call)]


def _stays(call: CallRow) -> bool:
    is_undoable = bool(call.undoable) and call.violation != "after_pivot" and call.lost_at is None
    return call.state == "succeeded" and not is_undoable


def plan_text(hash: str, accept: Iterable[str]) -> str:
    """Return how the ledger writes down the plan by which a committed run is taken back."""
    return " ".join((hash, COMMITTED, *sorted(accept)))


def accepted_in(plan: str) -> frozenset[str] | None:
    """Return the calls that were accepted with this plan; None: it is not the plan of a committed run."""
    _, *rest = plan.split(" ")
    return frozenset(rest[1:]) if rest[:1] == [COMMITTED] else None


def tree_mark(
    runs: Iterable[RunRow],
    calls: Iterable[CallRow],
    forks: Iterable[RunRow] = (),
    answered: Iterable[AnswerRow] = (),
) -> str:
    """Return a digest of all that a rollback of this tree depends on, forks and the runs that it answered included.

    Reads, heartbeats, takeovers and probes that decided nothing do not change it: none of them changes an effect.
    """
    parts: list[str | int | None] = ["tree"]
    for run in sorted(runs, key=lambda run: run.uid):
        parts += [run.uid, run.parent, run.state, run.came_from, run.goal, run.pivot, run.staged_pivot]
    for call in sorted(calls, key=lambda call: call.id):
        if call.kind != "read":
            parts += [call.id, call.run, call.kind, call.state, call.attempt, call.settled_seq, call.tries_from]
            parts += [call.comp_attempt, call.comp_from, call.comp_gave_up, call.undoable, call.violation, call.grp]
            parts += [call.args, call.result, call.evidence]
    return digest(*parts, *sorted(fork.uid for fork in forks), *sorted(f"{one.call} {one.root}" for one in answered))


def unknown_pivots(run: RunRow, mine: Sequence[CallRow]) -> list[CallRow]:
    """Return the calls of an open run that keep it from committing: a pivot of which a person said that nobody can know.

    What was staged behind it must not start: it may tell people of something that never happened. The only call of a child
    that has nothing staged concerns nobody else: its parent names it as residue.
    """
    if run.phase != "open" or (run.parent and not any(call.is_staged for call in mine)):
        return []
    return [call for call in mine if call.kind == "pivot" and call.state == "residue"]

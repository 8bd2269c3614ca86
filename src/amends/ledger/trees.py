"""Find the runs that belong together: a run with its descendants, the forks on it, the runs that it was forked from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from amends.encoding.canonical import digest
from amends.ledger.operations import AdmitCall
from amends.ledger.queries import list_calls, list_forks, list_tree
from amends.ledger.rows import FORKS_MAX, RUNS, CallRow, RunRow
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
    return tree_mark(runs, calls, await forks_on(run.root))


def tree_mark(runs: Iterable[RunRow], calls: Iterable[CallRow], forks: Iterable[RunRow] = ()) -> str:
    """Return a digest of all that a rollback of this tree depends on, forks included.

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
    return digest(*parts, *sorted(fork.uid for fork in forks))

"""Read runs and calls: each answer is one snapshot, limited in size."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from amends.encoding.dataclass import changed
from amends.ledger import trees
from amends.ledger.operations import (
    CountRuns,
    ListRuns,
    ListUnfinished,
    Outline,
    ReadCall,
    ReadOutlines,
    ReadRun,
    SearchCalls,
    Tree,
    WaitingRuns,
)
from amends.ledger.queries import (
    approvals_of,
    calls_after,
    calls_of_trees,
    find_roots,
    list_calls,
    locks_of,
    newest_run,
    page_calls,
    page_runs,
    page_unfinished,
    runs_of_trees,
)
from amends.ledger.rows import CALLS, RUNS, CallRow, CountCalls, CountStates, FindWaiting, Now, RunRow, UnusualCalls
from amends.ledger.tables import Find
from amends.ledger.trees import answered_by, forks_on, subtree
from amends.states import LIVE, UNSETTLED

UNDER_WAY: Final = tuple(sorted({*UNSETTLED, *LIVE, "compensation_failed", "compensation_in_doubt"}))
"""The states of calls that say what happens to an unfinished run."""


async def read_run(op: ReadRun) -> Tree | None:
    """Read the tree of one run (``ReadRun``)."""
    run = await (Find(RUNS, op.uid) if op.uid else newest_run(op.tenant, op.id))
    if run is None:
        return None
    runs = await subtree(run)
    inside = {row.uid for row in runs}
    if op.limit is None:
        rows = [] if op.states == () else await list_calls(run.root, op.states or ())
        calls = [call for call in rows if call.run in inside]
    else:
        calls = await _some_calls(run.root, inside, op.after, op.limit)
    tree = await tree_of(run, runs, calls, await Now(run.root))
    if not op.marked:
        return tree
    # Made here and not by whoever reads: there the payloads are decrypted, and the mark would never be that of the ledger.
    mark = trees.tree_mark(runs, calls, await forks_on(run.root), await answered_by(run, calls))
    return changed(tree, {"mark": mark})


async def _some_calls(root: str, inside: set[str], after: str, limit: int) -> list[CallRow]:
    """Return at most so many calls of the runs inside, those requested after the call ``after``; none if it is not theirs."""
    seq, found = 0, list[CallRow]()
    if after:
        last = await Find(CALLS, after)
        if last is None or last.root != root:
            return []
        seq = last.seq
    while len(found) < limit:  # ends: each page begins after the one before
        rows = await calls_after(root, seq, limit)
        found += [row for row in rows if row.run in inside]
        if len(rows) < limit:
            break
        seq = rows[-1].seq
    return found[:limit]


async def tree_of(run: RunRow, runs: Sequence[RunRow], calls: Sequence[CallRow], now: float) -> Tree:
    """Return the tree of these rows, with its locks and the approval requests of its calls."""
    locks = await locks_of(run.uid) if run.locked else []
    asked = await approvals_of(run.root) if any(call.approval for call in calls) else []
    mine = {call.id for call in calls} if asked else set()
    approvals = tuple(row for row in asked if row.call in mine)
    return Tree(run, tuple(runs), tuple(calls), now, tuple(locks), approvals)


async def read_call(op: ReadCall) -> CallRow | None:
    """Read one call (``ReadCall``)."""
    return await Find(CALLS, op.call_id)


async def list_runs(op: ListRuns) -> list[RunRow]:
    """Read a page of runs (``ListRuns``)."""
    return await page_runs(op.tenant, op.states, op.before, op.limit)


async def count_runs(op: CountRuns) -> dict[str, int]:
    """Count runs by state (``CountRuns``)."""
    return await CountStates(op.tenant, op.limit)


async def waiting_runs(op: WaitingRuns) -> list[RunRow]:
    """Read the newest runs that are blocked or suspended (``WaitingRuns``)."""
    uids = await FindWaiting(op.tenant, op.limit)
    return await find_roots(tuple(uids), peek=True) if uids else []


async def read_outlines(op: ReadOutlines) -> tuple[list[Outline], bool]:
    """Read the outlines of several trees (``ReadOutlines``)."""
    if not op.roots:
        return [], False
    runs, counts = await runs_of_trees(op.roots), await CountCalls(op.roots)
    unusual = await UnusualCalls(op.roots, op.limit + 1)
    known = {call.id: call for call in unusual[: op.limit]}
    unfinished = tuple(run.uid for run in runs if run.uid == run.root and run.closed_at is None)
    if unfinished:
        known |= {call.id: call for call in await calls_of_trees(unfinished, UNDER_WAY)}
    now = await Now("")  # once: reading the end of each chain would cost as much as all the rest
    calls = sorted(known.values(), key=attrgetter("seq"))
    found: list[Outline] = []
    for root in op.roots:
        mine = [run for run in runs if run.root == root]
        if mine:
            tree = await tree_of(mine[0], mine, [call for call in calls if call.root == root], now)
            found.append(Outline(tree, counts.get(root, 0)))
    return found, len(unusual) > op.limit


async def list_unfinished(op: ListUnfinished) -> list[RunRow]:
    """Read a page of roots that have not ended (``ListUnfinished``)."""
    return await page_unfinished(op.tenant, op.before, op.limit)


async def search_calls(op: SearchCalls) -> list[CallRow]:
    """Read a page of calls (``SearchCalls``)."""
    return await page_calls(op.tenant, op.states, op.before, op.limit, op.tool)

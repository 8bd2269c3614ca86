"""Read runs and calls: each answer is one snapshot, limited in size."""

from __future__ import annotations

from collections.abc import Sequence

from amends.ledger.operations import (
    ListRuns,
    ReadCall,
    ReadRun,
    SearchCalls,
    Tree,
)
from amends.ledger.queries import approvals_of, list_calls, locks_of, newest_run, page_calls, page_runs
from amends.ledger.rows import CALLS, RUNS, CallRow, Now, RunRow
from amends.ledger.tables import Find
from amends.ledger.trees import subtree


async def read_run(op: ReadRun) -> Tree | None:
    """Read the tree of one run (``ReadRun``)."""
    run = await (Find(RUNS, op.uid) if op.uid else newest_run(op.tenant, op.id))
    if run is None:
        return None
    runs = await subtree(run)
    inside = {row.uid for row in runs}
    calls = [call for call in await list_calls(run.root) if call.run in inside]
    return await tree_of(run, runs, calls, await Now(run.root))


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


async def search_calls(op: SearchCalls) -> list[CallRow]:
    """Read a page of calls (``SearchCalls``)."""
    return await page_calls(op.tenant, op.states, op.before, op.limit, op.tool)

"""Read runs, calls, events, locks and budgets: each answer is one snapshot, limited in size."""

from __future__ import annotations

from collections.abc import Sequence

from amends.ledger.changes import find_run, subtree
from amends.ledger.locks import waits_now
from amends.ledger.operations import (
    HeldLock,
    ListBudgets,
    ListLocks,
    ListRuns,
    ReadCall,
    ReadEvents,
    ReadNewestEvent,
    ReadRun,
    SearchCalls,
    Tree,
)
from amends.ledger.rows import (
    ApprovalsOf,
    CallRow,
    EventRow,
    FindCall,
    FindRun,
    FindRunById,
    ListCalls,
    LocksOf,
    NewestEvent,
    Now,
    PageCalls,
    PageEvents,
    PageLocks,
    PageRuns,
    PageSlices,
    RunRow,
    SliceRow,
    WaitsFor,
)


async def read_run(op: ReadRun) -> Tree | None:
    """Read the tree of one run (``ReadRun``)."""
    run = await (FindRun(op.uid) if op.uid else FindRunById(op.tenant, op.id))
    if run is None:
        return None
    runs = await subtree(run)
    inside = {row.uid for row in runs}
    calls = [call for call in await ListCalls(run.root) if call.run in inside]
    return await tree_of(run, runs, calls, await Now(run.root))


async def tree_of(run: RunRow, runs: Sequence[RunRow], calls: Sequence[CallRow], now: float) -> Tree:
    """Return the tree of these rows, with its locks and the approval requests of its calls."""
    locks = await LocksOf(run.uid) if run.locked else []
    asked = await ApprovalsOf(run.root) if any(call.approval for call in calls) else []
    mine = {call.id for call in calls} if asked else set()
    approvals = tuple(row for row in asked if row.call in mine)
    return Tree(run, tuple(runs), tuple(calls), now, tuple(locks), approvals)


async def read_call(op: ReadCall) -> CallRow | None:
    """Read one call (``ReadCall``)."""
    return await FindCall(op.call_id)


async def list_runs(op: ListRuns) -> list[RunRow]:
    """Read a page of runs (``ListRuns``)."""
    return await PageRuns(op.tenant, op.states, op.before, op.limit)


async def search_calls(op: SearchCalls) -> list[CallRow]:
    """Read a page of calls (``SearchCalls``)."""
    return await PageCalls(op.tenant, op.states, op.before, op.limit, op.tool)


async def list_locks(op: ListLocks) -> list[HeldLock]:
    """Read a page of locks, with the runs that wait for them (``ListLocks``)."""
    now = await Now("")
    held: list[HeldLock] = []
    for lock in await PageLocks(op.tenant, op.after, op.limit):
        root = await find_run(lock.root)
        asked = await WaitsFor(lock.tenant, lock.name)
        waits = [wait for wait in asked if waits_now(wait, await find_run(wait.root), now)]
        held.append(HeldLock(lock, root, tuple(waits), now))
    return held


async def list_budgets(op: ListBudgets) -> tuple[list[SliceRow], float]:
    """Read a page of budget slices, and the ledger's time (``ListBudgets``)."""
    return await PageSlices(op.tenant, op.after, op.limit), await Now("")


async def read_events(op: ReadEvents) -> list[EventRow]:
    """Read a page of events (``ReadEvents``)."""
    return await PageEvents(op.root, op.tenant, op.after, op.limit)


async def read_newest_event(op: ReadNewestEvent) -> EventRow | None:
    """Read the last event (``ReadNewestEvent``)."""
    return await NewestEvent(op.root, op.tenant)

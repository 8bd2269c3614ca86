"""Reading: one consistent look, bounded in size."""

from __future__ import annotations

from amends.ledger import ListRuns, ReadCall, ReadEvents, ReadRun, SearchCalls, Tree
from amends.rows import (
    CallRow,
    EventRow,
    FindCall,
    FindRun,
    FindRunById,
    ListCalls,
    ListTree,
    Now,
    PageCalls,
    PageEvents,
    PageRuns,
    RunRow,
)


async def read_run(op: ReadRun) -> Tree | None:
    """See ``ReadRun``."""
    run = await (FindRun(op.uid) if op.uid else FindRunById(op.tenant, op.id))
    if run is None:
        return None
    inside = {run.uid}
    runs = [run]
    for row in await ListTree(run.root):
        if row.parent in inside and row.uid not in inside:
            inside.add(row.uid)
            runs.append(row)
    calls = [call for call in await ListCalls(run.root) if call.run in inside]
    return Tree(run, tuple(runs), tuple(calls), await Now())


async def read_call(op: ReadCall) -> CallRow | None:
    """See ``ReadCall``."""
    return await FindCall(op.call_id)


async def list_runs(op: ListRuns) -> list[RunRow]:
    """See ``ListRuns``."""
    return await PageRuns(op.tenant, op.states, op.before, op.limit)


async def search_calls(op: SearchCalls) -> list[CallRow]:
    """See ``SearchCalls``."""
    return await PageCalls(op.tenant, op.states, op.before, op.limit)


async def read_events(op: ReadEvents) -> list[EventRow]:
    """See ``ReadEvents``."""
    return await PageEvents(op.root, op.tenant, op.after, op.limit)

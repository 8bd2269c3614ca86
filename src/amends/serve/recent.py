"""For people: what happened lately, how tools did, what they are, and the runs that have not ended.

Each verb reads from the newest on and stops after a number of rows, so that its cost does not grow with the ledger.
"""

from __future__ import annotations

from pydantic import Field

from amends.serve.exchange import Exchange, FilterQuery, PageQuery, Query, Reply, part_of

NEWEST = Field(1_000, ge=1, le=100_000, description="How many of the newest calls are read")


class RecentQuery(FilterQuery):
    """Which of the newest."""

    looks: int = Field(2_000, ge=1, le=100_000, description="How many are read at most")


class ToolUseQuery(PageQuery):
    """Which tool, and how far back."""

    tool: str = Field("", max_length=200, description="Only this tool")
    newest: int = NEWEST


class SpendingQuery(FilterQuery):
    """Which budgets, and how far back."""

    newest: int = NEWEST


class CheckpointsQuery(Query):
    """How many checkpoints."""

    limit: int = Field(50, ge=1, le=200, description="How many")


async def describe_tools(x: Exchange) -> Reply:
    """List the declared tools by name: kind, key, compensation, probe, approval, cost and schema of each."""
    tenant = x.service.own_tenant(x)
    return part_of([one for one in x.rt.describe_tools() if not x.service.desk.is_hidden(one.name, tenant)], x.query)


async def tool_use(x: Exchange) -> Reply:
    """List how each tool did among the newest calls: failures, doubts and durations."""
    query: ToolUseQuery = x.query
    return part_of(await x.rt.tool_use(query.tool, newest=query.newest), query)


async def spending(x: Exchange) -> Reply:
    """List the budgets that the newest calls were charged to, with what each call took."""
    query: SpendingQuery = x.query
    return part_of(await x.rt.spending(query.filter, newest=query.newest), query)


async def recent_events(x: Exchange) -> Reply:
    """List the newest events that pass the filter, newest first; ``next`` says where the search goes on."""
    query: RecentQuery = x.query
    found = await x.rt.recent_events(query.filter, after=query.after, limit=query.limit, looks=query.looks)
    return Reply(found.to_dict())


async def unfinished(x: Exchange) -> Reply:
    """List the root runs that have not ended, newest first, each with what happens to it at this moment."""
    query: PageQuery = x.query
    found = await x.rt.unfinished(after=query.after, limit=query.limit + 1)
    shown = found[: query.limit]
    next_ = shown[-1].place if len(found) > query.limit else None
    return Reply({"items": [one.to_dict() for one in shown], "next": next_})


async def checkpoints(x: Exchange) -> Reply:
    """List the newest checkpoints of the ledger, newest first."""
    found = await x.rt.checkpoints(limit=x.query.limit)
    return Reply({"items": [one.to_dict() for one in found], "next": None})

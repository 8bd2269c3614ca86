"""A run with what is inside it, and with who stands on it."""

from __future__ import annotations

from amends.planmark import tree_mark
from amends.rows import ListCalls, ListTree, RunRow
from amends.store.kin import forks_on, standing_on


async def subtree(run: RunRow) -> list[RunRow]:
    """The run and everything inside it, parents first."""
    inside = {run.uid}
    rows = [run]
    for row in await ListTree(run.root):
        if row.parent in inside and row.uid not in inside:
            inside.add(row.uid)
            rows.append(row)
    return rows


async def mark_of(run: RunRow) -> str:
    """Where the run stands: see ``tree_mark``."""
    below = await subtree(run)
    inside = {row.uid for row in below}
    calls = [call for call in await ListCalls(run.root) if call.run in inside]
    return tree_mark(below, calls, await forks_on(run.root))


async def forks_of(run: RunRow) -> list[RunRow]:
    """The forks that share a call of this run, or of one inside it, while it could still be taken back."""
    if run.phase not in ("open", "committed") or not await forks_on(run.root):
        return []
    inside = {row.uid for row in await subtree(run)}
    return await standing_on(run.root, {call.id for call in await ListCalls(run.root) if call.run in inside})


async def forks_are_gone(run: RunRow) -> bool:
    """Whether it, or a run inside it, was not taken back because of forks, and none of those stands any more.

    Asked in the transaction that blocks it: one that ended just before found nobody to wake.
    """
    if run.uid != run.root:
        return False
    waiting = [one for one in await subtree(run) if one.goal == "rollback" and one.phase == "open" and not one.pivot]
    return any([not await forks_of(one) for one in waiting])

"""Who stands on whom: a fork on the run that it was forked from, a fork of that on both."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from amends.forkrows import FORKS_MAX, ListForks
from amends.rows import FindRun, ListCalls, RunRow

GONE_BACK: Final = ("rolled_back", "abandoned")


async def forks_on(root: str) -> list[RunRow]:
    """The forks that stand on what this tree did, open or committed; forks of all its forks too, whatever those are."""
    found: list[RunRow] = []
    todo = [root]
    seen = 0
    while todo and seen < FORKS_MAX:
        for fork in await ListForks(todo.pop(0)):
            seen += 1
            todo.append(fork.uid)
            if fork.state not in GONE_BACK and not fork.origin:
                found.append(fork)
    return found


async def standing_on(root: str, calls: Collection[str]) -> list[RunRow]:
    """The forks on this tree that share one of these calls of it."""
    forks = await forks_on(root)
    return [fork for fork in forks if any(call.shared in calls for call in await ListCalls(fork.uid))]


async def sources(fork: RunRow, *, peek: bool = True) -> list[RunRow]:
    """The run that this one was forked from, the one that that was forked from, and so on.

    Locked, they are locked from the youngest to the oldest, and everybody who locks more than one does so.
    """
    found: list[RunRow] = []
    uid = fork.forked_from
    while uid and len(found) < FORKS_MAX:
        row = await FindRun(uid, peek=peek)
        assert row is not None, "a fork names a run of this ledger"
        found.append(row)
        uid = row.forked_from
    return found


def goes_back(run: RunRow) -> bool:
    """Whether what this run did is being taken back, was, or will be."""
    return run.phase in ("rolling_back", "rolled_back") or (run.goal == "rollback" and run.phase == "open")


async def taken_back(fork: RunRow) -> RunRow | None:
    """The run under this fork that is taken back, or was; None: what the fork shares stands."""
    if not fork.forked_from:
        return None
    return next((run for run in await sources(fork) if run.phase in ("rolling_back", "rolled_back")), None)

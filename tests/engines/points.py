"""The points around a request, for processes that work for an engine: the same as an ordinary program has."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from amends.adapters.durable_runs import DurableRuns
from tests.engines.world import world


def install() -> None:
    """Let every request to ``DurableRuns`` reach its points, before it is asked and after it is answered."""
    perform = DurableRuns.perform

    async def performed(runs: DurableRuns, run: Any, call: Any, body: Any = None) -> Any:
        world().reach(f"{call.tool}: asked")
        outcome = await perform(runs, run, call, body)
        world().reach(f"{call.tool}: answered")
        return outcome

    DurableRuns.perform = performed  # type: ignore[assignment, method-assign]
    DurableRuns.commit = _with_points("commit", DurableRuns.commit)  # type: ignore[method-assign]
    DurableRuns.roll_back = _with_points("rollback", DurableRuns.roll_back)  # type: ignore[method-assign]


def _with_points(verb: str, end: Callable[..., Awaitable[Any]]) -> Any:
    async def ended(runs: DurableRuns, run: Any, said: Any = None) -> Any:
        world().reach(f"{verb}: asked")
        ending = await end(runs, run, said)
        if ending.is_final:
            world().reach(f"{verb}: answered")
        return ending

    return ended

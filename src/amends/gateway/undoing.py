"""Take back a run of the gateway from a terminal: with its declarations, and with servers that are started for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from amends import AsyncRuntime, Report, RollbackPlan
from amends.gateway.config import Config
from amends.gateway.gateway import Gateway
from amends.secrets import secrets_of

T = TypeVar("T")


class Undoing:
    """The two verbs of a rollback, as the runtime of a program has them, for the runs of one gateway.

    ``opens``: makes a runtime over the ledger of the gateway.
    """

    def __init__(self, config: Config, opens: Callable[[], AsyncRuntime]) -> None:
        self._config, self._opens = config, opens

    def plan_rollback(self, run_id: str) -> RollbackPlan:
        """Return what a rollback would do. No server is started for that."""
        return self._done(lambda gateway: gateway.rt.plan_rollback(run_id))

    def rollback(self, run_id: str, *, by: str, why: str, plan: str, accept: Sequence[str]) -> Report:
        """Roll a run back by a plan, with servers of its own."""

        async def undo(gateway: Gateway) -> Report:
            async with gateway.servers():
                return await gateway.rt.rollback(run_id, by=by, why=why, plan=plan, accept=accept)

        return self._done(undo)

    def _done(self, work: Callable[[Gateway], Awaitable[T]]) -> T:
        async def whole() -> T:
            rt = self._opens()
            try:
                return await work(Gateway(self._config, rt, secrets=secrets_of(rt)))
            finally:
                await rt.close()

        return asyncio.run(whole())

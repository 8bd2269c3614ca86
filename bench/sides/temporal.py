"""Calls on Temporal: as bare activities, and as calls of amends. One process is the worker of both, in turn.

A call is an activity that does nothing, awaited by a ``workflow`` that makes them one after another. The server is a real
one, in a folder on the disk; the ledger is beside its data, so both flush to the same disk.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, Final

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    import amends
    from amends import AsyncRuntime
    from amends.adapters.temporal import AmendsPlugin, durable_run
    from bench.places import BUILD
    from bench.sides.ours import pay
    from bench.sides.timing import Figures, args_of, asked, fresh, serve

QUEUE: Final = "bench"
LIMIT: Final = timedelta(seconds=60)


@activity.defn(name="bare")
async def bare(order_id: str, to: str, amount: float, currency: str) -> dict[str, bool]:
    """Do nothing, as ``pay`` does."""
    return pay.fn(order_id, to, amount, currency)  # type: ignore[return-value]


@workflow.defn(name="Bare")
class Bare:
    """Calls as Temporal itself makes them."""

    @workflow.run
    async def run(self, keys: list[str]) -> None:
        """Make one call for each key."""
        for key in keys:
            await workflow.execute_activity(bare, args=list(args_of(key).values()), start_to_close_timeout=LIMIT)


@workflow.defn(name="Guarded")
class Guarded:
    """The same calls, with amends."""

    @workflow.run
    async def run(self, keys: list[str]) -> None:
        """Make one call for each key."""
        run = durable_run()
        for key in keys:
            await run.call(pay, args_of(key))


class Calls:
    """The two works, on one server and one ledger."""

    def __init__(self) -> None:
        from tests.servers.temporal import TemporalServer  # here: the sandbox imports this module, too

        BUILD.mkdir(parents=True, exist_ok=True)
        self._server = TemporalServer(folder=BUILD).start()
        self._ledger = f"sqlite:///{self._server.folders[0] / 'ledger.db'}?synchronous=full"

    def works(self) -> dict[str, Any]:
        """Return the works by name."""
        return {"bare": self.bare, "guarded": self.guarded}

    async def bare(self, n: int, _limit_s: float) -> Figures:
        """Make n calls without amends."""
        return await self._timed(Bare, n, plugins=[])

    async def guarded(self, n: int, _limit_s: float) -> Figures:
        """Make n calls with amends."""
        rt = AsyncRuntime(self._ledger, tools=[pay])
        try:
            return await self._timed(Guarded, n, plugins=[AmendsPlugin(rt)])
        finally:
            await rt.close()

    async def _timed(self, code: Any, n: int, *, plugins: list[Any]) -> Figures:
        async with self._worker(plugins) as client:
            keys, id = [fresh() for _ in range(n)], fresh("run")
            begin = time.perf_counter()
            await client.execute_workflow(code.run, keys, id=id, task_queue=QUEUE)
            return {"count": n, "seconds": time.perf_counter() - begin}

    @contextlib.asynccontextmanager
    async def _worker(self, plugins: list[Any]) -> AsyncIterator[Client]:
        client = await Client.connect(self._server.address)
        async with Worker(
            client, task_queue=QUEUE, workflows=[Bare, Guarded], activities=[bare], plugins=plugins
        ):  # fmt: skip
            yield client

    def close(self) -> None:
        """End the server."""
        self._server.close()


def main() -> None:
    """Serve both works."""
    _ = asked()
    logging.getLogger("amends").setLevel(logging.ERROR)
    calls = Calls()
    try:
        serve(calls.works(), version=amends.__version__)
    finally:
        calls.close()


if __name__ == "__main__":
    main()

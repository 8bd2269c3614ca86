"""Calls on Restate: as bare ``ctx.run``, and as calls of amends. One process serves both, in turn.

A call is a blocking function that does nothing. A handler makes them one after another. The server is a real one, in a folder
on the disk; the ledger is beside its data. So both flush to the same disk: Restate when a call begins and when it ends,
amends before the body and after it. A third work, ``flushing``, is the bare call whose body writes and flushes a page twice: what
any record costs that is on the disk before an effect and after it.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any, Final

import restate

import amends
from amends import AsyncRuntime
from amends.adapters.restate import RestateRuns
from bench.places import BUILD
from bench.sides.ours import pay
from bench.sides.timing import Figures, args_of, asked, fresh, serve

LEDGER: Final = "AMENDS_BENCH_LEDGER"
FOLDER: Final = "AMENDS_BENCH_FOLDER"
PAGE_BYTES: Final = 4_096


# ---- Served, in a process of its own

bare = restate.Service("bare")
guarded = restate.Workflow("guarded")


@bare.handler()
async def calls(ctx: restate.Context, keys: list[str]) -> int:
    """Make one call for each key, as Restate itself makes them."""
    for key in keys:
        _ = await ctx.run_typed("pay", _paid, restate.RunOptions(), key)
    return len(keys)


@bare.handler()
async def flushing(ctx: restate.Context, keys: list[str]) -> int:
    """Make one call for each key, as Restate itself makes them; each body flushes two pages."""
    with tempfile.TemporaryFile(dir=os.environ[FOLDER]) as file:
        for key in keys:
            _ = await ctx.run_typed("pay", _recorded, restate.RunOptions(), key, file.fileno())
    return len(keys)


def _paid(key: str) -> Any:
    return pay.fn(**args_of(key))


def _recorded(key: str, file: int) -> Any:
    for _ in range(2):
        os.write(file, bytes(PAGE_BYTES))
        os.fdatasync(file)
    return pay.fn(**args_of(key))


def application() -> Any:
    """Return what is served."""
    logging.getLogger("amends").setLevel(logging.ERROR)
    runs = RestateRuns(AsyncRuntime(os.environ[LEDGER], tools=[pay]), guarded)

    @guarded.main("calls")
    async def guarded_calls(ctx: restate.WorkflowContext, keys: list[str]) -> int:
        async with runs.open(ctx) as run:
            for key in keys:
                _ = await run.call(pay, args_of(key))
        return len(keys)

    return runs.app([bare, guarded])


if os.environ.get(LEDGER):
    app = application()


# ---- Asked


class Calls:
    """The two works, on one server and one ledger."""

    def __init__(self, folder: Path) -> None:
        from tests.servers.asgi import AsgiServer
        from tests.servers.restate import RestateServer

        self._server = RestateServer(folder=folder).start()
        beside = self._server.folders[0]
        env = {LEDGER: f"sqlite:///{beside / 'ledger.db'}?synchronous=full", FOLDER: str(beside)}
        self._service = AsgiServer("bench.sides.restate:app", env=env).start()
        self._server.register(self._service.url)

    def works(self) -> dict[str, Any]:
        """Return the works by name."""
        return {"bare": self.bare, "guarded": self.guarded, "flushing": self.flushing}

    def bare(self, n: int, limit_s: float) -> Figures:
        """Make n calls without amends."""
        return self._timed("/bare/calls", n, limit_s)

    def guarded(self, n: int, limit_s: float) -> Figures:
        """Make n calls with amends."""
        return self._timed(f"/guarded/{fresh('run')}/calls", n, limit_s)

    def flushing(self, n: int, limit_s: float) -> Figures:
        """Make n calls without amends that flush twice."""
        return self._timed("/bare/flushing", n, limit_s)

    def _timed(self, path: str, n: int, limit_s: float) -> Figures:
        keys = [fresh() for _ in range(n)]
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(self._server.ingress() + path, json.dumps(keys).encode(), headers)
        begin = time.perf_counter()
        with urllib.request.urlopen(request, timeout=limit_s) as answer:
            made = json.load(answer)
        return {"count": made, "seconds": time.perf_counter() - begin}

    def close(self) -> None:
        """End the processes."""
        self._service.close()
        self._server.close()


def main() -> None:
    """Serve both works."""
    _ = asked()
    BUILD.mkdir(parents=True, exist_ok=True)
    made = Calls(BUILD)
    try:
        serve(made.works(), version=amends.__version__)
    finally:
        made.close()


if __name__ == "__main__":
    main()

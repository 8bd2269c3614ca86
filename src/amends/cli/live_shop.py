"""The live shop of ``amends demo``: its console in this process, and a worker process that visitors may kill.

The worker fills orders in a process of its own (``python shop.py --open`` in the folder of the demo). The page ``/demo`` shows the
bank's book next to the ledger, and its button kills the worker with SIGKILL while a charge is under way. Then the next
worker starts, and the visitor sees what it finds.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import amends
from amends import AsyncRuntime, Runtime
from amends.cli.output import BOLD, DIM, put, say
from amends.errors import UsageError
from amends.secrets import Secrets
from amends.serve import Service, server
from amends.serve.console import PAGES
from amends.serve.console.demo import Killed, NobodyToKill, Worker, demo_pages

LOG: Final = "shop.log"
PORT: Final = 8642
BANK_S: Final = 2.5
"""How long the bank takes to answer: long enough to be watched."""
PAUSE_S: Final = 4.0
"""How long the shop waits for the next customer."""
RESTART_S: Final = 3.0
"""How long nobody works after a crash."""
STARTS_MAX: Final = 200
FAILURES_MAX: Final = 3
"""How many workers may end by themselves, one after another."""
KILL_S_MAX: Final = 15.0
"""How long to wait for a charge that is under way."""
RING_S: Final = 4.0
STOP_S_MAX: Final = 10.0
LOOK_S: Final = 0.05


def serve_shop(shop: Any, folder: Path, *, port: int | None) -> None:
    """Serve the console of the demo's shop until Ctrl-C or SIGTERM, and keep a worker running beside it."""
    rt: Runtime = shop.rt
    service_rt = rt.as_async()

    async def main() -> None:
        live = LiveShop(service_rt, shop, folder)
        pages = (*demo_pages(live), *PAGES)
        service = Service(rt, worker=False, secrets=Secrets(os.urandom(32).hex()), pages=pages)
        with _listening(port) as listening:
            address = server.address(listening)
            assert service.logins is not None
            link = service.logins.new_link(address, name="you", next="/demo")
            keeper = asyncio.create_task(live.keep(), name="amends-demo")
            try:
                put()
                put(f"the shop is open: {address}/demo", style=BOLD)
                put(f"open within five minutes: {link}", fold=False)
                put("kill its worker there, approve its orders, roll one back; Ctrl-C here ends it", style=DIM)
                sys.stdout.flush()
                await server.serve(service, listening)
            finally:
                keeper.cancel()
                await asyncio.gather(keeper, return_exceptions=True)
                await live.close()

    try:
        server.run(main())
    finally:
        say("the shop is closed; its ledger and its books stay where they are")


def _listening(port: int | None) -> Any:
    """Return a socket on the port, or by default on the usual one if it is free, and on any other if not."""
    if port is not None:
        return server.bind("127.0.0.1", port)
    try:
        return server.bind("127.0.0.1", PORT)
    except UsageError:
        return server.bind("127.0.0.1", 0)


class LiveShop:
    """The worker process of the shop: starts it, kills it when asked, and starts the next one."""

    def __init__(self, rt: AsyncRuntime, shop: Any, folder: Path) -> None:
        self._rt, self._shop, self._folder = rt, shop, folder
        self._process: subprocess.Popen[bytes] | None = None
        self._ended_at = 0.0
        self._failures = 0
        self._starts = 0
        self._killing = asyncio.Lock()
        self.killed: list[Killed] = []

    # ---- What the page shows

    @property
    def worker(self) -> Worker:
        """Return the state of the worker process."""
        if self._is_alive() and self._process is not None:
            return Worker("working", pid=self._process.pid)
        if self._failures >= FAILURES_MAX or self._starts >= STARTS_MAX:
            return Worker("gone", why=f"it has ended by itself: {self._folder / LOG} says more")
        return Worker("starting", in_s=max(0.0, self._ended_at + RESTART_S - time.monotonic()))

    def book(self) -> list[Mapping[str, Any]]:
        """Return the bank's own book, oldest entry first."""
        entries: list[Mapping[str, Any]] = self._shop.entries("payments")
        return entries

    async def kill(self) -> Killed:
        """Kill the worker while a charge is under way that the bank has booked and the ledger does not know of."""
        if self._killing.locked():
            raise NobodyToKill("somebody else has pressed the button already: the worker is about to be killed")
        async with self._killing:
            until, rung = time.monotonic() + KILL_S_MAX, 0.0
            while time.monotonic() < until:
                process = self._process
                if process is None or not self._is_alive():
                    raise NobodyToKill("no worker is running at the moment: the next one starts within seconds")
                if time.monotonic() - rung > RING_S:
                    rung = time.monotonic()
                    self._ring(process)
                call = await self._charging()
                if call is not None and self._is_alive():
                    process.kill()
                    process.wait()
                    self._ended_at = time.monotonic()
                    self.killed.append(Killed(process.pid, call.run_id, call.id, datetime.now(UTC)))
                    return self.killed[-1]
                await asyncio.sleep(LOOK_S)
            raise NobodyToKill(f"no charge was under way for {KILL_S_MAX:.0f} s")

    async def _charging(self) -> amends.Call | None:
        """Return a call of the bank that is in its book, and still ``started`` in the ledger."""
        booked = {entry.get("key") for entry in self.book()}
        async for call in self._rt.calls("tool:charge state:started"):
            if call.key in booked:
                return call
        return None

    # ---- The process

    async def keep(self) -> None:
        """Start a worker, and the next one a little after each that ends, until cancelled."""
        self._start()
        while self._starts < STARTS_MAX and self._failures < FAILURES_MAX:
            await asyncio.sleep(LOOK_S)
            if self._is_alive():
                continue
            if not self._ended_at:
                self._ended_at = time.monotonic()
                self._failures += 1
            if time.monotonic() - self._ended_at >= RESTART_S:
                self._start()

    def _start(self) -> None:
        source = str(Path(amends.__file__).resolve().parent.parent)
        path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
        own = {"SHOP_BANK_S": str(BANK_S), "SHOP_PAUSE_S": str(PAUSE_S), "AMENDS_POLL_WORKER": "1"}
        with (self._folder / LOG).open("ab") as log:
            # A session of its own: Ctrl-C is for this process, which then closes the shop in order. If this process is
            # killed instead, the worker's input ends, and so does the worker.
            self._process = subprocess.Popen(
                [sys.executable, "shop.py", "--open"],
                cwd=self._folder,
                env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **own},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._starts += 1
        self._ended_at = 0.0
        if not self.killed:
            self._ring(self._process)

    def _is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @staticmethod
    def _ring(process: subprocess.Popen[bytes]) -> None:
        """Send a customer in."""
        assert process.stdin is not None, "its input is a pipe"
        with suppress(BrokenPipeError):
            process.stdin.write(b"order\n")
            process.stdin.flush()

    async def close(self) -> None:
        """End the worker after its order, and kill it if that takes long; nothing of it is left."""
        process = self._process
        if process is None:
            return
        assert process.stdin is not None, "its input is a pipe"
        with suppress(BrokenPipeError):
            process.stdin.close()
        try:
            await asyncio.to_thread(process.wait, STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

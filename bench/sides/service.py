"""Claims, made and reported by 256 clients at once: in the process that has the ledger, and over HTTP.

A pair is a claim and the report that it succeeded, two durable commits as every call has. Each client has its own run,
opened before the clock starts, and over HTTP its own connection. The server is a process of its own, ``amends serve`` as
it is; the clients are one process with bare sockets, since a client is not what is measured.
After each turn the ledger is compared with the answers: every pair that was answered is there, and no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import amends
from amends import AsyncRuntime, Runtime
from bench.sides.ours import pay, url_of
from bench.sides.timing import Figures, Tally, args_of, asked, fresh, p99, serve

CLIENTS: Final = 256
START_S_MAX: Final = 60.0
LEASE_S: Final = 60.0
Pair = Callable[[], Awaitable[object]]


class Lost(Exception):
    """The ledger has not what was answered."""


class Clients:
    """The two works, on one ledger."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._rt: AsyncRuntime | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._folder = tempfile.TemporaryDirectory()
        self._address, self._token = ("", 0), ""

    def works(self) -> dict[str, Any]:
        """Return the works by name."""
        return {"pairs": self.pairs, "pairs_http": self.pairs_http}

    async def pairs(self, n: int, limit_s: float) -> Figures:
        """Claim and report in this process."""
        rt = await self._runtime()

        @contextlib.asynccontextmanager
        async def client(id: str) -> AsyncIterator[Pair]:
            run = await rt.open(id)

            async def pair() -> None:
                attempt = await run.begin("pay", args_of(fresh()), lease=LEASE_S)
                await attempt.succeed({"ok": True})

            try:
                yield pair
            finally:
                await run.commit()

        return await self._timed(client, n, limit_s)

    async def pairs_http(self, n: int, limit_s: float) -> Figures:
        """Claim and report over HTTP."""
        await self._runtime()
        if self._server is None:
            await self._start()

        @contextlib.asynccontextmanager
        async def client(id: str) -> AsyncIterator[Pair]:
            _, line = await asyncio.get_running_loop().create_connection(Line, *self._address)
            try:
                await line.post("/v1/runs", {"id": id}, self._token)
                claims = f"/v1/runs/{id}/claims"

                async def pair() -> None:
                    said = {"tool": "pay", "args": args_of(fresh()), "lease": LEASE_S}
                    claim = await line.post(claims, said, self._token)
                    report = {"token": claim["token"], "result": {"ok": True}}
                    await line.post(f"/v1/claims/{claim['call']}/succeed", report, self._token)

                yield pair
                await line.post(f"/v1/runs/{id}/commit", {}, self._token)
            finally:
                line.close()

        return await self._timed(client, n, limit_s)

    async def _timed(self, client: Callable[[str], Any], n: int, limit_s: float) -> Figures:
        tally, laps, made = Tally(limit_s), [], [fresh("serve") for _ in range(CLIENTS)]

        async def loop(pair: Pair) -> int:
            count = 0
            while not tally.is_over() and count < max(1, n // CLIENTS):
                begun = time.perf_counter()
                try:
                    await pair()
                except Exception as error:
                    tally.failed(error)
                    break
                laps.append(time.perf_counter() - begun)
                tally.done()
                count += 1
            return count

        async with contextlib.AsyncExitStack() as stack:
            pairs = [await stack.enter_async_context(client(id)) for id in made]
            tally.begin()
            answered = await asyncio.gather(*(asyncio.create_task(loop(pair)) for pair in pairs))
        await self._compare(dict(zip(made, answered, strict=True)))
        # Whatever was begun in time is answered and counts, with the time that it took: a pair is long with 256 at once.
        figures: Figures = {"seconds": tally.last - tally.start, "count": sum(answered), "clients": CLIENTS}
        if laps:
            figures |= {"p50": sorted(laps)[len(laps) // 2], "p99_ms": p99(laps) * 1e3}
        return figures | ({"errors": tally.errors} if tally.errors else {})

    async def _compare(self, answered: dict[str, int]) -> None:
        rt = await self._runtime()
        for id, count in answered.items():
            report = await rt.report(id)
            recorded = sum(call.state == "succeeded" for call in report.calls)
            if (recorded, len(report.calls), report.run.state) != (count, count, "committed"):
                raise Lost(f"{id}: {count} answered, {recorded} of {len(report.calls)} recorded, {report.run.state}")

    async def _runtime(self) -> AsyncRuntime:
        if self._rt is None:
            self._rt = await AsyncRuntime(self.url, tools=[pay]).__aenter__()
        return self._rt

    async def _start(self) -> None:
        made = await (await self._runtime()).create_token("bench", scopes="agent", agent="bench", by="me", why="bench")
        self._token = str(made.text)
        env = {**os.environ, "AMENDS_BENCH_LEDGER": self.url, "XDG_STATE_HOME": self._folder.name}
        command = [sys.executable, "-m", "amends", "serve", "bench/sides/program.py:rt", "--port", "0", "--json"]
        self._server = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)  # noqa: ASYNC220 (nothing else runs yet)
        assert self._server.stdout is not None, "the pipe was asked for"
        line = await asyncio.wait_for(asyncio.to_thread(self._server.stdout.readline), START_S_MAX)
        host, _, port = json.loads(line)["url"].rpartition("/")[2].rpartition(":")
        self._address = (host, int(port))

    def close(self) -> None:
        """End the server."""
        if self._server is not None:
            self._server.kill()
            self._server.communicate()
        self._folder.cleanup()


class Line(asyncio.Protocol):
    """One connection that is kept: a request, then its answer. It reads what the service sends, and no more of HTTP."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._answer: asyncio.Future[Any] | None = None

    def connection_made(self, transport: Any) -> None:
        """Keep the way out."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Read an answer that is complete."""
        self._data += data
        head, found, body = bytes(self._data).partition(b"\r\n\r\n")
        if not found or self._answer is None:
            return
        start = head.lower().index(b"content-length:") + len(b"content-length:")
        length = int(head[start:].partition(b"\r\n")[0])
        if len(body) < length:
            return
        self._data.clear()
        answer, self._answer = self._answer, None
        if head[9:11] == b"20":
            answer.set_result(json.loads(body))
        else:
            answer.set_exception(Lost(f"{head[9:12].decode()}: {body[:200].decode(errors='replace')}"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever waits."""
        if self._answer is not None:
            self._answer.set_exception(Lost(f"the connection broke: {exc}"))

    async def post(self, path: str, body: Any, token: str) -> Any:
        """Return the answer to one request."""
        data = json.dumps(body).encode()
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(
            f"POST {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode()
            + data
        )
        return await self._answer

    def close(self) -> None:
        """Hang up."""
        self._transport.close()


def main() -> None:
    """Serve both works on one store."""
    said = asked()
    logging.getLogger("amends").setLevel(logging.ERROR)  # do not log that a ledger was created
    url = url_of(said.store, said.place)
    with Runtime(url):
        pass  # the ledger is there before the server is
    clients = Clients(url)
    try:
        serve(clients.works(), version=amends.__version__)
    finally:
        clients.close()


if __name__ == "__main__":
    main()

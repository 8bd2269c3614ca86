"""The little shop behind HTTP, on a real socket in this process, and a client of each colour."""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import uvicorn

from amends import Runtime
from amends.client import AsyncClient, Client
from amends.serve import Limits, app
from tests.serve.shop import SECRET, World, access, tools_of


@contextmanager
def served(url: str = "memory:", *, limits: Limits | None = None, **given: Any) -> Iterator[tuple[str, World]]:
    """Serve the shop; yield its address and what its tools did."""
    world = World()
    tools = [*tools_of(world), *given.pop("tools", ())]
    rt = Runtime(url, tools=tools, **{"lease": 5.0, "wait": 2.0} | given)
    service = app(rt, access=access, limits=limits, secrets=SECRET)
    config = uvicorn.Config(service, port=0, log_level="warning", timeout_graceful_shutdown=1, log_config=None)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, name="shop", daemon=True)
    thread.start()
    until = time.monotonic() + 20
    while not server.started:
        assert time.monotonic() < until
        time.sleep(0.005)
    try:
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}", world
    finally:
        server.should_exit = True
        thread.join(20)
        rt.close()


class Both:
    """Drive a client of either colour by the same words: awaits what can be awaited, lists what can be listed."""

    def __init__(self, is_async: bool) -> None:
        self.is_async = is_async
        self._loop = asyncio.new_event_loop() if is_async else None
        self._clients: list[Any] = []

    def client(self, url: str, token: str = "operator", **given: Any) -> Any:
        made = (AsyncClient if self.is_async else Client)(url, token=token, **{"patience": 5.0} | given)
        self._clients.append(made)
        return made

    def do(self, made: Any) -> Any:
        if self._loop is not None and inspect.isawaitable(made):
            return self._loop.run_until_complete(_awaited(made))
        return made

    def list(self, found: Any) -> list[Any]:
        return self.do(_listed(found)) if self.is_async else list(found)

    @contextmanager
    def block(self, opened: Any) -> Iterator[Any]:
        """Enter and leave a block; what is raised inside leaves it."""
        enter = opened.__aenter__ if self.is_async else opened.__enter__
        leave = opened.__aexit__ if self.is_async else opened.__exit__
        entered = self.do(enter())
        try:
            yield entered
        except BaseException as error:
            self.do(leave(type(error), error, error.__traceback__))
            raise
        else:
            self.do(leave(None, None, None))

    def close(self) -> None:
        for one in self._clients:
            self.do(one.close())
            self.do(one._driver.close())  # what was given to the client stays open otherwise
        if self._loop is not None:
            self._loop.close()


@contextmanager
def working(both: Both, url: str, tools: list[Any], **given: Any) -> Iterator[Any]:
    """Perform tools for the service beside the test, in the colour of the test: on a loop of its own, if it is async."""
    options: dict[str, Any] = {"name": "w", "lease": 5.0, "wait": 5.0} | given
    if not both.is_async:
        with Client(url, token="worker", patience=5.0) as client, client.worker(tools, **options) as worker:
            yield worker
        return
    begun: queue.Queue[Any] = queue.Queue()

    async def main() -> None:
        try:
            async with AsyncClient(url, token="worker", patience=5.0) as client:
                async with client.worker(tools, **options) as worker:
                    begun.put((asyncio.get_running_loop(), worker))
                    await worker._stopped.wait()
        except BaseException as error:
            begun.put(error)
            raise

    with futures.ThreadPoolExecutor(1) as pool:
        going = pool.submit(lambda: asyncio.run(main()))
        made = begun.get(timeout=20)
        if isinstance(made, BaseException):
            raise made
        loop, worker = made
        try:
            yield worker
        finally:
            loop.call_soon_threadsafe(worker.stop)
            going.result(30)


async def _awaited(made: Any) -> Any:
    return await made


async def _listed(found: AsyncIterator[Any]) -> list[Any]:
    return [one async for one in found]

"""Perform tools of this process for the service: declare them, take work by long poll, and report.

A piece of work is one phase (execute, compensate or probe) of one attempt, handed out once. The worker renews its work
lease while the body runs; if this process vanishes, the call is in doubt, never failed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterable, Mapping
from secrets import token_urlsafe
from typing import Any, Final, Self

from amends import AsyncRuntime, Runtime
from amends.client.exchange import AnyClient, ask, part, post
from amends.client.flows import Do, Repeat, Sleep, Stop
from amends.client.problems import ServiceError, Unreachable
from amends.errors import BadConfig, Error, LeaseLost, LedgerError, UsageError, Waiting

log = logging.getLogger("amends")
PAUSE_S_MAX: Final = 1.0
RENEWALS: Final = 3
"""How many renewals of a work lease may be lost before it ends."""
MARGIN_S: Final = 10.0
"""How much longer than the service waits for work the answer may take."""
WORDS_MAX: Final = 2_000


class AnyWorker:
    """A worker of either colour."""

    def __init__(
        self, client: AnyClient, tools: Iterable[object], *, name: str, threads: int, lease: float, wait: float
    ) -> None:
        if threads < 1:
            raise UsageError(f"a worker does at least one piece of work at once, not {threads} (threads=)")
        self._client, self._driver, self._name, self._wait_s = client, client._driver, name, float(wait)
        self._places = threads
        tools = tuple(tools)
        colour = AsyncRuntime if client._driver.is_async else Runtime
        self._rt: Any = colour(
            "memory:", tools=tools
        )  # it checks the declarations and runs the bodies; it records nothing
        self._declared = self._rt.declarations(*_names(tools), lease=float(lease))
        if not self._declared:
            raise BadConfig("a worker needs a tool", setting="tools", hint="client.worker([charge, mail])")
        self._ids: dict[int, str] = {}
        self._route = f"worker-{token_urlsafe(12)}"
        """By which a proxy sends all its requests to one server: that one knows it."""
        self._is_stopping = False
        self.performed = 0
        """How many pieces of work it has reported."""
        self.error: BaseException | None = None
        """Why it has stopped by itself; None: it has not."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._client.url}: {', '.join(self.tools)}>"

    @property
    def tools(self) -> tuple[str, ...]:
        """The names of the tools that it performs."""
        return tuple(one["name"] for one in self._declared)


def _names(tools: Iterable[object]) -> list[str]:
    """Return the names of these tools; empty for all, if one of them is a module."""
    found = [getattr(getattr(one, "__amends__", one), "name", None) for one in tools]
    return [] if None in found else [str(one) for one in found]


# ---- Taking work


async def register(worker: AnyWorker, place: int) -> str:
    """Declare the tools; the service forgets a worker that does not ask for work."""
    body = {"name": worker._name, "tools": worker._declared}
    made = await post(worker._client, "/v1/workers", body, route=worker._route)
    id: str = worker._ids.setdefault(place, made["id"])
    return id


async def serve(worker: AnyWorker, place: int) -> None:
    """Take work and perform it until the worker is stopped; errors of the connection pass."""
    pause_s = 0.1
    while not worker._is_stopping:
        try:
            id = worker._ids.get(place) or await register(worker, place)
            asked_at = time.monotonic()
            piece = await _take(worker, id)
            pause_s = 0.1
        except (Unreachable, LedgerError, Waiting) as error:
            log.warning("worker %s goes on in %g s: %s", worker._name, pause_s, error)
            await Sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)
            continue
        except ServiceError as error:
            if error.name == "WorkerNotFound" or error.status in (429, 502, 504):
                worker._ids.pop(place, None)
                await Sleep(pause_s)
                continue
            raise
        if piece is not None:
            await _perform(worker, piece, asked_at)


async def _take(worker: AnyWorker, id: str) -> dict[str, Any] | None:
    body = {"wait": worker._wait_s}
    at = f"/v1/workers/{part(id)}/take"
    timeout_s = worker._wait_s + MARGIN_S
    answer = await ask(worker._client, "POST", at, body=body, timeout=timeout_s, patience=0.0, route=worker._route)
    work: dict[str, Any] | None = answer.json()["work"]
    return work


async def leave(worker: AnyWorker) -> None:
    """Tell the service that this worker ends, so that its requests for work are answered at once."""
    for place, id in list(worker._ids.items()):
        worker._ids.pop(place, None)
        try:
            await ask(worker._client, "DELETE", f"/v1/workers/{part(id)}", patience=0.0, route=worker._route)
        except Error as error:
            log.debug("worker %s could not be taken off: %s", id, error)


# ---- Performing it


async def _perform(worker: AnyWorker, piece: Mapping[str, Any], asked_at: float) -> None:
    at, token, lease_s = f"/v1/claims/{part(piece['call'])}", piece["token"], piece["lease"]

    async def renewed() -> bool:
        try:
            asked = {"body": {"token": token}, "patience": lease_s / RENEWALS, "route": worker._route}
            await ask(worker._client, "POST", f"{at}/renew", **asked)
        except (LeaseLost, UsageError):
            return False  # it is in doubt already, and its report is evidence
        except Error:
            return True
        return True

    # The lease is counted from before it was asked for: most of it may have passed while the service waited for work.
    if time.monotonic() - asked_at > lease_s / RENEWALS and not await renewed():
        await _report(
            worker, at, {"token": token, "error": "it was not started: its lease was over", "no_effect": True}
        )
        return
    renewing = await Repeat(renewed, lease_s / RENEWALS, f"amends-work-{piece['call']}")
    given = {"result": piece["result"]} if "result" in piece else {}
    try:
        done = await Do(
            lambda: worker._rt.perform(
                piece["tool"], piece["args"], key=piece["key"], phase=piece["phase"], attempt=piece["attempt"],
                call_id=piece["call"], run_id=piece["run"], **given,
            )
        )  # fmt: skip
    finally:
        await Stop(renewing)
    if done.how == "succeed":
        await _report(worker, at, {"token": token, "result": done.result})
        return
    words = done.error[:WORDS_MAX] or "no reason"
    flags = {done.how: True} if done.how in ("no_effect", "doubt") else {}
    await _report(worker, at, {"token": token, "error": words, **flags})


async def _report(worker: AnyWorker, at: str, body: Mapping[str, Any]) -> None:
    """Report what happened; a report that cannot be made leaves the call in doubt."""
    how = "fail" if "error" in body else "succeed"
    try:
        await post(worker._client, f"{at}/{how}", body, route=worker._route)
    except Error as error:
        log.warning("the report about %s could not be made, so it is in doubt: %s", at, error)
    else:
        worker.performed += 1


# ---- The two colours


class Worker(AnyWorker):
    """Performs tools for the service in threads of its own: ``with client.worker([charge]):``, or ``run()``."""

    def __init__(
        self, client: AnyClient, tools: Iterable[object], *, name: str, threads: int, lease: float, wait: float
    ) -> None:
        super().__init__(client, tools, name=name, threads=threads, lease=lease, wait=wait)
        self._stopped = threading.Event()
        self._going: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._is_stopping = False
        self._stopped.clear()
        self._driver.run(register(self, 0))  # a declaration that the service refuses is an error here
        self._going = [
            threading.Thread(target=self._serve, args=(place,), name=f"amends-worker-{place}", daemon=True)
            for place in range(self._places)
        ]
        for one in self._going:
            one.start()
        return self

    def _serve(self, place: int) -> None:
        try:
            self._driver.run(serve(self, place))
        except BaseException as error:  # a body that exits would end its thread without a word
            self.error = error
            log.error("worker %s has stopped: %s", self._name, error)  # noqa: TRY400 (it is raised by run())
            self.stop()

    def stop(self) -> None:
        """Take no more work; what is under way is finished."""
        self._is_stopping = True
        self._stopped.set()

    def run(self) -> None:
        """Perform work until ``stop`` is called, or it is interrupted; raise what stopped it otherwise."""
        with self:
            self._stopped.wait()
        if self.error is not None:
            raise self.error

    def __exit__(self, *exc: object) -> None:
        self.stop()
        self._driver.run(leave(self))
        for one in self._going:
            one.join()
        self._driver.run(leave(self))  # of those that have just registered again


class AsyncWorker(AnyWorker):
    """``Worker`` for an event loop: its work is tasks of the loop; blocking bodies run in threads."""

    def __init__(
        self, client: AnyClient, tools: Iterable[object], *, name: str, threads: int, lease: float, wait: float
    ) -> None:
        super().__init__(client, tools, name=name, threads=threads, lease=lease, wait=wait)
        self._stopped = asyncio.Event()
        self._going: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._is_stopping = False
        self._stopped.clear()
        await self._driver.run(register(self, 0))
        loop = asyncio.get_running_loop()
        self._going = [loop.create_task(self._serve(place)) for place in range(self._places)]
        return self

    async def _serve(self, place: int) -> None:
        try:
            await self._driver.run(serve(self, place))
        except Exception as error:
            self.error = error
            log.error("worker %s has stopped: %s", self._name, error)  # noqa: TRY400 (it is raised by run())
            self.stop()

    def stop(self) -> None:
        """Take no more work; what is under way is finished."""
        self._is_stopping = True
        self._stopped.set()

    async def run(self) -> None:
        """Perform work until ``stop`` is called, or it is interrupted; raise what stopped it otherwise."""
        async with self:
            await self._stopped.wait()
        if self.error is not None:
            raise self.error

    async def __aexit__(self, *exc: object) -> None:
        self.stop()
        await self._driver.run(leave(self))
        if self._going:
            await asyncio.wait(self._going)  # not cancelled: work that was handed out is performed and reported
        await self._driver.run(leave(self))

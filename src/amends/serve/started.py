"""Agents that live in the server: a client names the work, and the server does it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

from pydantic import Field

from amends.errors import Error, Forbidden, RunConflict, WrongColour, log_error
from amends.serve.exchange import Body, Exchange, Reply, encoded
from amends.serve.problems import KeyMissing, TooMany
from amends.serve.runs import REPLAYED, failed_with, key_of, known_run, place_of
from amends.visible import visible_log

log = visible_log("amends")
T = TypeVar("T")
STARTED_MAX: Final = 1_000
"""How many agents work at once here."""
STOP_S: Final = 5.0
"""How long agents may take to end when the service is closed; a worker resumes the others."""


class Start(Body):
    """The work of an agent."""

    id: str | None = Field(
        None, min_length=1, max_length=512, description="Of its run; else the header Idempotency-Key"
    )
    input: Any = Field(None, description="Recorded; another input for the same id is a conflict")
    requires: list[str] | None = Field(None, max_length=100, description="Tools that must have succeeded at the end")
    wait: float = Field(1.0, ge=0, le=60, description="Seconds to wait for its end, and for an error")


class Started:
    """The agents that work in this process."""

    def __init__(self) -> None:
        self._working: dict[tuple[str, str], tuple[asyncio.Task[None], str, Any]] = {}
        """The work by tenant and run, with its agent and its input."""

    def begin(self, x: Exchange, id: str, agent: str, options: dict[str, Any]) -> asyncio.Task[None]:
        """Let an agent work in the background; if it works on this very run already, return that work.

        Raises ``RunConflict`` if another agent works on this run, or with another input.
        """
        place, input = (x.tenant, id), options["input"]
        if (known := self._working.get(place)) is not None:
            going, by, given = known
            if by != agent or (input is not None and encoded(given) != encoded(input)):
                raise RunConflict(
                    f"agent {by} is at work on run {id} with another input, or you name another agent",
                    recorded=given, given=input, run_id=id,
                )  # fmt: skip
            return going
        if len(self._working) >= STARTED_MAX:
            raise TooMany(f"{STARTED_MAX:,} agents are at work here, and no more are started")
        going = asyncio.get_running_loop().create_task(self._work(x, id, agent, options))
        self._working[place] = (going, agent, input)
        going.add_done_callback(lambda _: self._working.pop(place, None))
        return going

    async def _work(self, x: Exchange, id: str, agent: str, options: dict[str, Any]) -> None:
        try:
            blocking = x.service.blocking(x)
            if blocking is not None:
                try:
                    await in_thread(lambda: blocking.start(agent, id=id, **options))
                    return
                except WrongColour:  # it is async, and nothing was started
                    pass
            await x.rt.start(agent, id=id, **options)
        except Exception as error:  # the report of the run has it, too
            log_error(log, logging.WARNING, f"agent {agent} did not end its run {id}", error)
            raise

    async def close(self) -> None:
        """Wait a moment; then stop those that still work: their runs are resumed by a worker."""
        if self._working:
            _, left = await asyncio.wait({going for going, *_ in self._working.values()}, timeout=STOP_S)
            for going in left:
                going.cancel()
            await asyncio.gather(*left, return_exceptions=True)


async def in_thread(work: Callable[[], T]) -> T:
    """Work in a thread of its own, for which a process that ends does not wait: a worker resumes the run."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def end(made: T) -> None:
        if not done.done():
            done.set_result(made)

    def fail(error: BaseException) -> None:
        if not done.done():
            done.set_exception(error if isinstance(error, Exception) else RuntimeError(type(error).__name__))

    def main() -> None:
        try:
            made = work()
        except BaseException as error:
            with suppress(RuntimeError):  # the loop is closed by now
                loop.call_soon_threadsafe(fail, error)
        else:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(end, made)

    threading.Thread(target=main, name="amends-agent", daemon=True).start()
    return await done


async def start(x: Exchange) -> Reply:
    """Open a run and give it to an agent of the server. 202: it goes on, and the run's report tells what it came to."""
    said: Start = x.body
    agent, id = x.path["id"], said.id or key_of(x)
    if id is None:
        raise KeyMissing("a run that is started over HTTP needs an id, or the header Idempotency-Key")
    if x.who.agent and agent != x.who.agent:
        raise Forbidden(f"this token speaks for agent {x.who.agent}, not for {agent}", why="agent")
    known = await known_run(x, id)
    going = x.service.started.begin(x, id, agent, {"input": said.input, "requires": said.requires})
    going.add_done_callback(retrieve)
    await asyncio.wait({going}, timeout=said.wait)
    place = {"Location": place_of(x, id)}
    if not going.done():
        return Reply({"id": id}, 202, place | {"Retry-After": "1"})
    try:
        going.result()
    except Error:
        raise
    except Exception as error:
        raise await failed_with(x, id, error) from error
    return Reply({"id": id}, 200, place | (REPLAYED if known is not None and known.closed_at is not None else {}))


def retrieve(done: asyncio.Task[None]) -> None:
    """Take the error of work that nobody waits for any more; the record has it."""
    if not done.cancelled():
        done.exception()

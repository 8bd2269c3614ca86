"""Streams: every event is seen on its way to the caller, and the call is settled when the stream ends.

A stream ends when it was read to its end, when reading it fails, when it is closed, when nobody has it any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import weakref
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from amends.llm.asking import Outcome, outcome
from amends.llm.assembling import assembler
from amends.llm.settling import Entry, fail, fail_async, succeed, succeed_async
from amends.visible import visible_log

log = visible_log("amends")

SWEEP_S_MAX: Final = 5.0
"""How long leaving a run waits for a dropped stream that is being settled."""


def is_stream(answer: object) -> bool:
    """Whether this is one of the SDKs' streams."""
    return any(
        cls.__name__ in ("Stream", "AsyncStream") and cls.__module__.partition(".")[0] in ("openai", "anthropic")
        for cls in type(answer).__mro__
    )


class _Seen:
    """What has come of one stream."""

    def __init__(self, entry: Entry, *, hide_usage: bool) -> None:
        self.entry = entry
        self._whole = assembler(entry.asked.api)
        self._hide_usage = hide_usage

    def see(self, event: Any) -> bool:
        """Take an event in; whether the caller is to have it. Never raises: the caller paid for the event."""
        try:
            plain = event.to_dict(mode="json", warnings=False) if hasattr(event, "to_dict") else event
            if not isinstance(plain, Mapping):
                return True
            self._whole.see(plain)
            return not (self._hide_usage and plain.get("usage") and not plain.get("choices"))
        except Exception:
            log.exception("%s: an event of a stream could not be recorded", self.entry.asked.tool)
            return True

    def told(self, *, complete: bool) -> dict[str, Any]:
        """How the call is ended."""
        return {"response": self._whole.response, "complete": complete, "characters": self._whole.characters}

    def known(self) -> Outcome:
        """What was spent before reading it failed."""
        return outcome(self.entry.asked, **self.told(complete=False))


# ---- blocking -----------------------------------------------------------------------------


def watch(stream: Any, entry: Entry, *, hide_usage: bool) -> None:
    """From now on this stream settles the call when it ends."""
    seen = _Seen(entry, hide_usage=hide_usage)
    watched = _Watched(stream._iterator, seen)
    stream._iterator = watched
    entry.attempt.at_leave = partial(_left, seen)  # what was seen, never the stream: it must go when nobody has it
    _start_sweeper()
    # Weak, both: a stream that is dropped must go at once, and its connection with it.
    response, watching = weakref.ref(stream.response), weakref.ref(watched)

    def close() -> None:
        found, still = response(), watching()
        if found is not None:
            type(found).close(found)
        if still is not None:
            still.closed()

    stream.response.close = close


class _Watched:
    """The iterator of a stream."""

    def __init__(self, events: Any, seen: _Seen) -> None:
        self._events, self._seen = events, seen
        self._pulling = False

    def __iter__(self) -> _Watched:
        return self

    def __next__(self) -> Any:
        while True:
            event = self._pull()
            if self._seen.see(event):
                return event

    def _pull(self) -> Any:
        self._pulling = True  # the SDK closes the response itself, inside: that is an end, not a breaking off
        try:
            return next(self._events)
        except StopIteration:
            succeed(self._seen.entry, **self._seen.told(complete=True))
            raise
        except BaseException as error:
            fail(self._seen.entry, error, self._seen.known())
            raise
        finally:
            self._pulling = False

    def closed(self) -> None:
        if not self._pulling:
            succeed(self._seen.entry, **self._seen.told(complete=False))

    def __del__(self) -> None:
        if not self._seen.entry.is_taken:
            _dropped.put(self._seen)


# A finalizer runs wherever the interpreter happens to be, perhaps inside the ledger's own lock: so it only says that
# the stream is gone (the one queue whose put may be called there), and this thread settles the call.
_dropped: Final[queue.SimpleQueue[_Seen]] = queue.SimpleQueue()
_starting: Final = threading.Lock()
_sweeper: threading.Thread | None = None


def _start_sweeper() -> None:
    global _sweeper
    with _starting:
        if _sweeper is None or not _sweeper.is_alive():  # after a fork it is not
            _sweeper = threading.Thread(target=_sweep, name="amends-streams", daemon=True)
            _sweeper.start()


def _sweep() -> None:
    while True:
        seen = _dropped.get()
        try:
            succeed(seen.entry, **seen.told(complete=False))
        except Exception as error:
            _log_late(seen.entry, error)


def _left(seen: _Seen) -> None:
    """The run is left: what is known by now is all that will be."""
    succeed(seen.entry, **seen.told(complete=False))
    seen.entry.over.wait(SWEEP_S_MAX)  # whoever was faster


def _log_late(entry: Entry, error: Exception) -> None:
    log.warning("%s: a stream that was dropped could not be settled (%s); close streams", entry.asked.tool, error)


# ---- awaited ------------------------------------------------------------------------------


def watch_async(stream: Any, entry: Entry, *, hide_usage: bool) -> None:
    """The same for an async stream."""
    seen = _Seen(entry, hide_usage=hide_usage)
    watched = _AsyncWatched(stream._iterator, seen)
    stream._iterator = watched
    entry.attempt.at_leave = partial(_left_async if entry.run.is_async else _left, seen)
    response, watching = weakref.ref(stream.response), weakref.ref(watched)

    async def aclose() -> None:
        found, still = response(), watching()
        if found is not None:
            await type(found).aclose(found)
        if still is not None:
            await still.closed()

    stream.response.aclose = aclose


class _AsyncWatched:
    """The iterator of an async stream."""

    def __init__(self, events: Any, seen: _Seen) -> None:
        self._events, self._seen = events, seen
        self._pulling = False
        self._loop = asyncio.get_running_loop()

    def __aiter__(self) -> _AsyncWatched:
        return self

    async def __anext__(self) -> Any:
        while True:
            event = await self._pull()
            if self._seen.see(event):
                return event

    async def _pull(self) -> Any:
        self._pulling = True
        try:
            return await anext(self._events)
        except StopAsyncIteration:
            await succeed_async(self._seen.entry, **self._seen.told(complete=True))
            raise
        except BaseException as error:
            await fail_async(self._seen.entry, error, self._seen.known())
            raise
        finally:
            self._pulling = False

    async def closed(self) -> None:
        if not self._pulling:
            await succeed_async(self._seen.entry, **self._seen.told(complete=False))

    def __del__(self) -> None:
        if not self._seen.entry.is_taken and not self._loop.is_closed():
            with contextlib.suppress(RuntimeError):  # closed meanwhile: leaving the run has settled it
                self._loop.call_soon_threadsafe(_settle_soon, self._seen)


async def _left_async(seen: _Seen) -> None:
    await succeed_async(seen.entry, **seen.told(complete=False))


_settling: Final[set[asyncio.Future[None]]] = set()
"""Kept, since an event loop does not keep what runs on it."""


def _settle_soon(seen: _Seen) -> None:
    run = seen.entry.run
    settled = run.submit(_settle, seen) if run.is_async else asyncio.ensure_future(_settle(seen))
    _settling.add(settled)
    settled.add_done_callback(_settling.discard)


async def _settle(seen: _Seen) -> None:
    try:
        await succeed_async(seen.entry, **seen.told(complete=False))
    except Exception as error:
        _log_late(seen.entry, error)

"""Tell a page which runs have changed, as server-sent events; the page then loads its live parts again.

A message has no content of the ledger but the ids of runs: whatever is shown is loaded by the ordinary address, with its
rights, and replaced by its id. So no row is there twice, whatever was missed or repeated. ``id:`` is the place to continue
after; a page that was away gets one message, however much has happened.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Final

from pydantic import Field
from starlette.responses import Response, StreamingResponse

from amends import Feed
from amends.errors import Error
from amends.serve.console.pages import Said
from amends.serve.events import ALIVE_S, POLL_S
from amends.serve.exchange import Exchange, encoded
from amends.serve.people import check_run
from amends.serve.problems import TooMany, problem_of

EVENTS_MAX: Final = 500
"""After so many events at once a message says that much has changed, and goes on from the newest."""
PASSED_MAX: Final = 5_000
"""How many events of the last seconds are passed over then; a busier ledger says once more that much has changed."""
RUNS_MAX: Final = 50
"""How many runs one message names."""


class LiveQuery(Said):
    """From where on, and of which run."""

    run: str | None = Field(None, min_length=1, max_length=512)
    after: str = Field("", max_length=1_000)


async def changes(x: Exchange) -> Response:
    """Follow the changes of the ledger, or of one run."""
    query: LiveQuery = x.query
    if query.run is not None:
        await check_run(x, query.run)
    after = x.request.headers.get("last-event-id", "") or query.after
    async for _ in x.rt.events(query.run, after=after):  # a wrong place is an error, not a broken stream
        break
    service = x.service
    if service.streams >= service.limits.streams_max:
        raise TooMany(f"{service.streams} streams are open, and no more are accepted (streams_max)", retry_after=5.0)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", "X-Content-Type-Options": "nosniff"}
    return StreamingResponse(_stream(x, query.run, after), 200, headers, "text/event-stream")


async def _stream(x: Exchange, run: str | None, after: str) -> AsyncIterator[bytes]:
    service, feed, place = x.service, Feed(after), after
    checked = told = time.monotonic()
    service.streams += 1
    try:
        yield b"retry: 1000\n\nevent: hello\ndata: {}\n\n"
        while not service.is_closing:
            runs: dict[str, None] = {}
            count = 0
            async for event in x.rt.events(run, after=place if run else feed.after):
                if run or feed.is_new(event):
                    place, count = event.place, count + 1
                    runs[event.run_id] = None
                if count >= EVENTS_MAX:
                    feed = await _newest(x, run)
                    place = feed.place
                    break
            if count:
                told = time.monotonic()
                said = {"runs": list(runs)[:RUNS_MAX], "many": count >= EVENTS_MAX or len(runs) > RUNS_MAX}
                yield f"id: {place}\nevent: change\ndata: ".encode() + encoded(said) + b"\n\n"
            if time.monotonic() - checked >= ALIVE_S:
                checked = time.monotonic()
                await service.check(x)  # the login may have ended
            if time.monotonic() - told >= ALIVE_S:
                told = time.monotonic()
                yield b": alive\n\n"
            await asyncio.sleep(POLL_S)
    except Error as error:
        yield b"event: problem\ndata: " + encoded(problem_of(error)) + b"\n\n"
    finally:
        service.streams -= 1


async def _newest(x: Exchange, run: str | None) -> Feed:
    """Return a feed that has shown everything up to now."""
    newest = await x.rt.newest_event(run)
    feed, seen = Feed(newest.place if newest else ""), 0
    if run is None:
        async for event in x.rt.events(after=feed.after):
            feed.is_new(event)
            seen += 1
            if seen >= PASSED_MAX:
                break
    return feed

"""Events: page by page, or as a stream of server-sent events that continues after ``Last-Event-ID``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Final

from pydantic import Field

from amends import Event, Feed
from amends.errors import Error, Forbidden
from amends.serve.exchange import Exchange, FilterQuery, Query, Reply, encoded, page_of
from amends.serve.people import check_run
from amends.serve.problems import TooMany, problem_of

POLL_S: Final = 0.5
"""How often a stream looks for new events."""
ALIVE_S: Final = 15.0
"""After how long without an event a stream says that it is alive: proxies close silent connections. As often, busy or not, it
looks whether its token is still valid."""
STREAM: Final = "text/event-stream"


class EventsQuery(FilterQuery):
    """Which events."""

    run: str | None = Field(None, min_length=1, max_length=512, description="Only those of this run's tree")


class NewestQuery(Query):
    """Whose last event."""

    run: str | None = Field(None, min_length=1, max_length=512, description="Only those of this run's tree")


async def events(x: Exchange) -> Reply:
    """List events, oldest first; with ``Accept: text/event-stream`` follow them. ``id:`` is the place to continue after."""
    query: EventsQuery = x.query
    if query.run is not None:
        await check_run(x, query.run)
    elif not x.is_wide:
        raise Forbidden("an agent reads the events of its own runs: name one (run=)", needs=("viewer",))
    accepted = [one.partition(";")[0].strip().lower() for one in x.request.headers.get("accept", "").split(",")]
    if STREAM not in accepted:
        found = x.rt.events(query.run, after=query.after, filter=query.filter)
        return await page_of(found, query, lambda one: one.place)
    after = x.request.headers.get("last-event-id", "") or query.after
    await _check(x, query, after)
    service = x.service
    if service.streams >= service.limits.streams_max:
        raise TooMany(f"{service.streams} streams are open, and no more are accepted (streams_max)", retry_after=5.0)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return Reply(None, 200, headers, STREAM, stream=_stream(x, query, after))


async def newest_event(x: Exchange) -> Reply:
    """Return the last event, of one run's tree or of the ledger: its ``place`` is where to follow from."""
    run = x.query.run
    if run is not None:
        await check_run(x, run)
    elif not x.is_wide:
        raise Forbidden("an agent reads the events of its own runs: name one (run=)", needs=("viewer",))
    found = await x.rt.newest_event(run)
    return Reply({"event": None if found is None else found.to_dict()})


async def _check(x: Exchange, query: EventsQuery, after: str) -> None:
    """Look once: what is wrong with the place or with the filter is an error, not a broken stream."""
    async for _ in x.rt.events(query.run, after=after, filter=query.filter):
        break


async def _stream(x: Exchange, query: EventsQuery, after: str) -> AsyncIterator[bytes]:
    service, feed, place = x.service, Feed(after), after
    silent_s, checked = 0.0, time.monotonic()
    service.streams += 1
    try:
        yield b"retry: 1000\n\n"
        while not service.is_closing:
            told = False
            # Inside one run no event is committed late: its numbers have no gaps.
            async for event in x.rt.events(query.run, after=place if query.run else feed.after, filter=query.filter):
                if query.run or feed.is_new(event):
                    told, place = True, event.place
                    yield _told(event)
            silent_s = 0.0 if told else silent_s + POLL_S
            if time.monotonic() - checked >= ALIVE_S:
                checked = time.monotonic()
                await service.check(x)  # the token may have been revoked
            if silent_s >= ALIVE_S:
                silent_s = 0.0
                yield b": alive\n\n"
            await asyncio.sleep(POLL_S)
    except Error as error:
        yield b"event: problem\ndata: " + encoded(problem_of(error)) + b"\n\n"
    finally:
        service.streams -= 1


def _told(event: Event) -> bytes:
    return (
        f"id: {event.place}\nevent: {event.what.replace(' ', '_')}\ndata: ".encode()
        + encoded(event.to_dict())
        + b"\n\n"
    )

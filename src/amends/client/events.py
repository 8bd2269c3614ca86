"""Follow the events of the service as they happen (server-sent events), over broken connections too."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncGenerator
from typing import Final

from amends import Event, Feed
from amends.client.exchange import PASSING, PAUSE_S, PAUSE_S_MAX, AnyClient, error_in, request, transport_errors
from amends.client.flows import CloseStream, Do, OpenStream, ReadLine, Sleep
from amends.client.problems import error_of
from amends.client.records import event_of

SILENT_S_MAX: Final = 45.0
"""After how long without a line a stream is opened again: the service says every 15 seconds that it is there."""


async def follow(
    client: AnyClient, run_id: str | None = None, *, after: str = "", filter: str = ""
) -> AsyncGenerator[Event, None]:
    """Yield events, oldest first, of one run's tree or of the ledger, and then each new one as it happens; never end.

    ``after``: the ``place`` of an event. A connection that breaks is opened again where it broke: no event is left out,
    and none comes twice. Errors that do not pass are raised.
    """
    feed, pause_s = Feed(after), PAUSE_S
    query = {"run": run_id, "filter": filter, "after": after}
    while True:
        place = {"Last-Event-ID": feed.place} if feed.place else {}
        headers = {"Accept": "text/event-stream", **place}
        sent = request(client, "GET", "/v1/events", query=query, headers=headers, timeout=SILENT_S_MAX)
        try:
            answer = await OpenStream(sent)
            try:
                if answer.status_code >= 400:
                    await Do(answer.aread if client._driver.is_async else answer.read)
                    if answer.status_code not in PASSING:
                        raise error_in(answer)
                else:
                    pause_s = PAUSE_S
                    lines = answer.aiter_lines() if client._driver.is_async else answer.iter_lines()
                    kind, data = "", ""
                    while (line := await ReadLine(lines)) is not None:
                        name, _, value = line.partition(": ")
                        if name == "event":
                            kind = value
                        elif name == "data":
                            data = value
                        elif not line and data:
                            if kind == "problem":
                                raise error_of(json.loads(data))
                            event = event_of(json.loads(data))
                            kind, data = "", ""
                            if feed.is_new(event):
                                yield event
            finally:
                await CloseStream(answer)
        except transport_errors(client):
            pass  # opened again below
        await Sleep(pause_s * (0.5 + random.random() / 2))
        pause_s = min(2 * pause_s, PAUSE_S_MAX)

"""The limits of the service, each with a name: size, time, rate and number."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request

from amends.serve.problems import BadRequest, BodyTooLarge, TooMany, TooSlow

BUCKETS_MAX: Final = 10_000
"""How many tokens are counted at once; the one that was used least recently is forgotten."""
DISCARDED_BYTES_MAX: Final = 1 << 28
"""How much of a body that is too large is read and thrown away. A client that is still sending when the connection is closed
does not get to read why."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the service accepts before it refuses; every refusal is a 4xx, and nothing was started."""

    body_bytes_max: int = 1 << 20
    bundle_bytes_max: int = 64 << 20
    """Of ``POST /v1/load``."""
    head_bytes_max: int = 1 << 16
    """Of the head of a request, which is its address and headers, where ``amends serve`` serves."""
    head_s_max: float = 15.0
    """How long the head of a request may take to arrive, where ``amends serve`` serves."""
    connections_max: int = 2_000
    """Connections at once, where ``amends serve`` serves."""
    body_s_max: float = 15.0
    """How long a request's body may take to arrive."""
    answer_s_max: float = 30.0
    """After this, a call that is not over is answered with 409: it goes on, and the same request gets its result."""
    requests_per_s: float = 5_000.0
    """Of one token; bursts may be twice as many."""
    page_max: int = 200
    """Items of one page; no more than 200."""
    streams_max: int = 200
    """Event streams at once."""
    runs_max: int = 10_000
    """Runs that clients have open at once."""
    client_lease_s: float = 60.0
    """How long a client may be silent before its run is let go, unless it says."""
    client_lease_s_max: float = 3_600.0
    """How long a client may say that it may be silent; no more than an hour."""
    workers_max: int = 1_000
    """Workers at once."""
    worker_tools_max: int = 5_000
    """Tools that workers have declared since the server was started."""
    worker_lease_s: float = 30.0
    """How long a worker may not ask for work before it is forgotten, and its tools count as performed by nobody."""
    workers_back_s_max: float = 10.0
    """For how long after the start a run from before waits for workers that perform its tools."""
    take_s_max: float = 60.0
    """How long a worker's request for work is kept waiting."""
    pickup_s_max: float = 30.0
    """How long a piece of work waits for a worker; then it has certainly had no effect."""


class Rates:
    """Count the requests of each token."""

    def __init__(self, per_s: float) -> None:
        self._per_s, self._burst = per_s, max(1.0, 2 * per_s)
        self._left: dict[str, tuple[float, float]] = {}

    def check(self, token: str) -> None:
        """Raise ``TooMany`` if this token makes requests faster than allowed."""
        now = time.monotonic()
        left, since = self._left.pop(token, (self._burst, now))
        left = min(self._burst, left + (now - since) * self._per_s)
        if len(self._left) >= BUCKETS_MAX:
            del self._left[next(iter(self._left))]
        self._left[token] = (max(0.0, left - 1), now)
        if left < 1:
            raise TooMany(
                f"this token makes more than {self._per_s:g} requests a second (requests_per_s)",
                retry_after=(1 - left) / self._per_s,
            )


async def read_body(request: Request, *, bytes_max: int, s_max: float) -> bytes:
    """Return the whole body; raise if it is too large or too slow. Never more than ``bytes_max`` of it are in memory."""
    body = bytearray()
    said = request.headers.get("content-length", "")
    size, declared = 0, int(said) if said.isascii() and said.isdigit() else 0
    try:
        async with asyncio.timeout(s_max):
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise BadRequest("the client went away before the body was complete")
                part = message.get("body", b"")
                size += len(part)
                if size <= bytes_max:
                    body += part
                else:
                    body.clear()
                if not message.get("more_body", False) or size > DISCARDED_BYTES_MAX:
                    break
    except TimeoutError:
        if max(size, declared) <= bytes_max:
            raise TooSlow(f"the body did not arrive within {s_max:g} s (body_s_max)") from None
    if max(size, declared) > bytes_max:
        raise BodyTooLarge(f"the body has more than the {bytes_max:,} bytes that are accepted")
    return bytes(body)

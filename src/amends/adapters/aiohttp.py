"""aiohttp: a client middleware that sends the idempotency key of the current call."""

from __future__ import annotations

import asyncio

from aiohttp import ClientHandlerType, ClientRequest, ClientResponse
from aiohttp.payload import BytesPayload

from amends.idempotency import HEADER, STATUSES, WAIT_S, sending


class IdempotencyMiddleware:
    """Adds the ``Idempotency-Key`` of the current call to its requests: ``ClientSession(middlewares=[…])``.

    A request that already has the header, is sent outside a tool's body, or only reads, is not changed. ``wait`` is for
    how many seconds a request is sent again while the destination still works on it (409).
    """

    def __init__(self, *, header: str = HEADER, wait: float = WAIT_S) -> None:
        self._header, self._wait_s = header, wait

    async def __call__(self, request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        """Send the request with the key."""
        sent = None if self._header in request.headers else sending(request.method, wait_s=self._wait_s)
        if sent is not None:
            request.headers[self._header] = sent.key
        try:
            while True:  # sending.read bounds how long it is repeated
                response = await handler(request)
                if sent is None or response.status not in STATUSES:
                    return response
                text = await response.text(errors="replace") + response.headers.get("link", "")
                again = not request.body or isinstance(request.body, bytes | BytesPayload)
                after = response.headers.get("retry-after")
                pause = sent.read(response.status, text, retry_after=after, again=again)
                if pause is None:
                    return response
                response.release()
                await asyncio.sleep(pause)
        finally:
            if sent is not None:  # an outer middleware may send the request again
                request.headers.pop(self._header, None)

"""aiohttp: a client middleware that sends the key of the current call along."""

from __future__ import annotations

import asyncio

from aiohttp import ClientHandlerType, ClientRequest, ClientResponse
from aiohttp.payload import BytesPayload

from amends.idempotency import HEADER, STATUSES, WAIT_S, sending


class IdempotencyMiddleware:
    """Puts the key of the call whose body sends a request into its ``Idempotency-Key``: ``ClientSession(middlewares=[…])``.

    A header that the request already has stays as it is; requests outside a tool's body, and those that only read, pass
    by. ``wait``: for how many seconds a request that the destination is still at work on (409) is asked for again.
    """

    def __init__(self, *, header: str = HEADER, wait: float = WAIT_S) -> None:
        self._header, self._wait_s = header, wait

    async def __call__(self, request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        """Send it, with the key."""
        sent = None if self._header in request.headers else sending(request.method, wait_s=self._wait_s)
        if sent is not None:
            request.headers[self._header] = sent.key
        try:
            while True:  # until the answer is the caller's, or sending.read has no more patience
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
            if sent is not None:  # a middleware around this one may send it again
                request.headers.pop(self._header, None)

"""httpx (and httpx2): a transport that sends the idempotency key of the current call."""

from __future__ import annotations

import asyncio
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

from amends.idempotency import HEADER, STATUSES, WAIT_S, Sending, sending

if TYPE_CHECKING:
    import httpx
    import httpx2

    class _Transport(httpx.BaseTransport, httpx.AsyncBaseTransport, httpx2.BaseTransport, httpx2.AsyncBaseTransport):
        def handle_request(self, request: Any) -> Any: ...
        async def handle_async_request(self, request: Any) -> Any: ...
else:

    class _Transport:
        """No base class: both packages accept any object with these methods, and either may be installed."""


class IdempotencyTransport(_Transport):
    """Adds the ``Idempotency-Key`` of the current call to its requests, blocking and async.

    A request that already has the header, is sent outside a tool's body, or only reads, is not changed. ``inner`` is
    the transport that sends requests; by default that of the package. ``wait`` is for how many seconds a request is
    sent again while the destination still works on it (409).
    """

    def __init__(self, inner: Any = None, *, header: str = HEADER, wait: float = WAIT_S) -> None:
        self._inner, self._header, self._wait_s = inner, header, wait

    def handle_request(self, request: Any) -> Any:
        """Send the request with the key."""
        inner = self._sender(request, "HTTPTransport")
        sent = self._sending(request)
        try:
            while True:  # sending.read bounds how long it is repeated
                response = inner.handle_request(request)
                if sent is None or response.status_code not in STATUSES:
                    return response
                response.read()
                pause = self._read(sent, request, response)
                if pause is None:
                    return response
                response.close()
                time.sleep(pause)
        finally:
            self._sent(sent, request)

    async def handle_async_request(self, request: Any) -> Any:
        """Send the request with the key, on an event loop."""
        inner = self._sender(request, "AsyncHTTPTransport")
        sent = self._sending(request)
        try:
            while True:
                response = await inner.handle_async_request(request)
                if sent is None or response.status_code not in STATUSES:
                    return response
                await response.aread()
                pause = self._read(sent, request, response)
                if pause is None:
                    return response
                await response.aclose()
                await asyncio.sleep(pause)
        finally:
            self._sent(sent, request)

    def _sender(self, request: Any, name: str) -> Any:
        if self._inner is None:
            package = import_module(type(request).__module__.partition(".")[0])
            self._inner = getattr(package, name)()
        return self._inner

    def _sending(self, request: Any) -> Sending | None:
        sent = None if self._header in request.headers else sending(request.method, wait_s=self._wait_s)
        if sent is not None:
            request.headers[self._header] = sent.key
        return sent

    def _sent(self, sent: Sending | None, request: Any) -> None:
        """Remove the key: the same object may be sent again, after a redirect or by another call."""
        if sent is not None:
            request.headers.pop(self._header, None)

    def _read(self, sent: Sending, request: Any, response: Any) -> float | None:
        text = response.text + response.headers.get("link", "")
        # A body that is generated while it is sent cannot be sent again.
        again = type(request.stream).__name__ == "ByteStream"
        return sent.read(response.status_code, text, retry_after=response.headers.get("retry-after"), again=again)

    def close(self) -> None:
        """Close the inner transport."""
        if self._inner is not None:
            self._inner.close()

    async def aclose(self) -> None:
        """Close the inner async transport."""
        if self._inner is not None:
            await self._inner.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

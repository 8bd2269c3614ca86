"""httpx (and httpx2): a transport that sends the key of the current call along."""

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
        """Both packages take whatever has the methods; whichever is installed."""


class IdempotencyTransport(_Transport):
    """Puts the key of the call whose body sends a request into its ``Idempotency-Key``, for both colours.

    A header that the request already has stays as it is; requests outside a tool's body, and those that only read, pass
    by. ``inner``: the transport that sends them; None: the package's own. ``wait``: for how many seconds a request that
    the destination is still at work on (409) is asked for again.
    """

    def __init__(self, inner: Any = None, *, header: str = HEADER, wait: float = WAIT_S) -> None:
        self._inner, self._header, self._wait_s = inner, header, wait

    def handle_request(self, request: Any) -> Any:
        """Send it, with the key."""
        inner = self._sender(request, "HTTPTransport")
        sent = self._sending(request)
        try:
            while True:  # until the answer is the caller's, or sending.read has no more patience
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
        """The same, awaited."""
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
        """The key is gone from a request that may be sent again, redirected, or by another call."""
        if sent is not None:
            request.headers.pop(self._header, None)

    def _read(self, sent: Sending, request: Any, response: Any) -> float | None:
        text = response.text + response.headers.get("link", "")
        # A body that is made while it is sent cannot be sent again.
        again = type(request.stream).__name__ == "ByteStream"
        return sent.read(response.status_code, text, retry_after=response.headers.get("retry-after"), again=again)

    def close(self) -> None:
        """Close the inner one."""
        if self._inner is not None:
            self._inner.close()

    async def aclose(self) -> None:
        """The same, awaited."""
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

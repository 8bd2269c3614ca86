"""requests: a transport adapter that sends the idempotency key of the current call."""

from __future__ import annotations

import time
from typing import Any

from requests import PreparedRequest, Response
from requests.adapters import HTTPAdapter

from amends.idempotency import HEADER, STATUSES, WAIT_S, sending


class IdempotencyAdapter(HTTPAdapter):
    """Adds the ``Idempotency-Key`` of the current call to its requests: ``session.mount("https://", …)``.

    A request that already has the header, is sent outside a tool's body, or only reads, is not changed. ``wait`` is for
    how many seconds a request is sent again while the destination still works on it (409). The other options are those
    of ``HTTPAdapter``.
    """

    def __init__(self, *, header: str = HEADER, wait: float = WAIT_S, **options: Any) -> None:
        self._header, self._wait_s = header, wait
        super().__init__(**options)

    def send(self, request: PreparedRequest, *args: Any, **options: Any) -> Response:
        """Send the request with the key."""
        sent = None if self._header in request.headers else sending(request.method or "GET", wait_s=self._wait_s)
        if sent is not None:
            request.headers[self._header] = sent.key
        try:
            while True:  # sending.read bounds how long it is repeated
                response = super().send(request, *args, **options)
                if sent is None or response.status_code not in STATUSES:
                    return response
                again = request.body is None or isinstance(request.body, str | bytes)
                text = response.text + response.headers.get("link", "")
                after = response.headers.get("retry-after")
                pause = sent.read(response.status_code, text, retry_after=after, again=again)
                if pause is None:
                    return response
                response.close()
                time.sleep(pause)
        finally:
            if sent is not None:  # the same object may be sent again: after a redirect, or by another call
                request.headers.pop(self._header, None)

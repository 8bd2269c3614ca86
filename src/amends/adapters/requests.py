"""requests: a transport adapter that sends the key of the current call along."""

from __future__ import annotations

import time
from typing import Any

from requests import PreparedRequest, Response
from requests.adapters import HTTPAdapter

from amends.idempotency import HEADER, STATUSES, WAIT_S, sending


class IdempotencyAdapter(HTTPAdapter):
    """Puts the key of the call whose body sends a request into its ``Idempotency-Key``: ``session.mount("https://", …)``.

    A header that the request already has stays as it is; requests outside a tool's body, and those that only read, pass
    by. ``wait``: for how many seconds a request that the destination is still at work on (409) is asked for again. The
    other options are those of ``HTTPAdapter``.
    """

    def __init__(self, *, header: str = HEADER, wait: float = WAIT_S, **options: Any) -> None:
        self._header, self._wait_s = header, wait
        super().__init__(**options)

    def send(self, request: PreparedRequest, *args: Any, **options: Any) -> Response:
        """Send it, with the key."""
        sent = None if self._header in request.headers else sending(request.method or "GET", wait_s=self._wait_s)
        if sent is not None:
            request.headers[self._header] = sent.key
        try:
            while True:  # until the answer is the caller's, or sending.read has no more patience
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
            if sent is not None:  # it may be sent again, redirected, or by another call
                request.headers.pop(self._header, None)

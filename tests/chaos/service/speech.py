"""HTTP as a careful client speaks it: every request may be sent again. Standard library only."""

from __future__ import annotations

import http.client
import json
import time
from typing import Any, Final
from urllib.parse import urlsplit

from tests.chaos.service.fate import Fate

PATIENCE_S: Final = 60.0
"""How long a server may be away."""
PAUSE_S: Final = 0.1
ANSWER_S_MAX: Final = 30.0


class GaveUp(Exception):
    """Nobody answered in time."""


class Speaker:
    """Sends requests to one server until it answers; each request is a step at which the process may die."""

    def __init__(self, url: str, fate: Fate, *, token: str = "") -> None:
        self._place, self._fate, self._token = urlsplit(url).netloc, fate, token

    def ask(self, step: str, path: str, body: Any = None, *, method: str = "POST") -> tuple[int, Any]:
        """Return status and answer; 409, 429 and 503 that say when to try again are tried again."""
        self._fate.passing(f"before {step}")
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                status, answer = self.once(step, path, body, method=method)
            except (OSError, http.client.HTTPException) as error:
                status, answer = 0, {"code": type(error).__name__}
            if status and not (status in (409, 429, 503) and answer.get("retry_after")):
                self._fate.passing(f"after {step}")
                return status, answer
            if time.monotonic() > until:
                raise GaveUp(f"{step}: {status} {answer}")
            time.sleep(PAUSE_S)

    def once(self, step: str, path: str, body: Any = None, *, method: str = "POST") -> tuple[int, Any]:
        """Send one request, once."""
        sent = json.dumps({} if body is None else body).encode() if method == "POST" else None
        headers = {"X-Step": step, "Content-Type": "application/json"} if sent is not None else {"X-Step": step}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        connection = http.client.HTTPConnection(self._place, timeout=ANSWER_S_MAX + 10)
        try:
            connection.request(method, path, body=sent, headers=headers)
            got = connection.getresponse()
            return got.status, json.loads(got.read() or b"{}")
        except ValueError as error:  # the server died in the middle of its answer
            raise http.client.HTTPException(str(error)) from error
        finally:
            connection.close()

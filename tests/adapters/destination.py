"""A destination on this machine that deduplicates on ``Idempotency-Key``, as the draft says it should."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PROBLEM = "https://developer.example.com/idempotency"


class Destination(ThreadingHTTPServer):
    """``/charges`` charges once for a key. Faults are asked for by setting ``next``."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.seen: list[tuple[str, str | None]] = []
        """Method and key of every request."""
        self.charges: dict[str, tuple[str, str]] = {}
        """By key: the payload and the answer."""
        self.next: list[Any] = []
        """What becomes of the next requests: ``lost``, ``running``, or a status with a body. Then nothing special."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None: ...


@contextmanager
def serving() -> Iterator[Destination]:
    server = Destination()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Destination

    def log_message(self, format: str, *args: Any) -> None: ...

    def do_GET(self) -> None:
        self.server.seen.append(("GET", self.headers.get("Idempotency-Key")))
        self._send(200, {"charges": len(self.server.charges)})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0)).decode()
        key = self.headers.get("Idempotency-Key")
        self.server.seen.append(("POST", key or self.headers.get("X-Key")))
        fault = self.server.next.pop(0) if self.server.next else ""
        if isinstance(fault, tuple):
            return self._send(*fault)
        if fault == "running":
            return self._problem(409, "A request is outstanding for this Idempotency-Key")
        if key is None:
            return self._problem(400, "Idempotency-Key is missing")
        if key in self.server.charges and self.server.charges[key][0] != body:
            return self._problem(422, "Idempotency-Key is already used")
        self.server.charges.setdefault(key, (body, f"ch_{len(self.server.charges) + 1}"))
        if fault == "lost":
            self.close_connection = True
            return None
        return self._send(200, {"id": self.server.charges[key][1]})

    def _problem(self, status: int, title: str) -> None:
        self._send(status, {"type": PROBLEM, "title": title})

    def _send(self, status: int, data: Any) -> None:
        content = b"" if data is None else json.dumps(data).encode()
        self.send_response(status)
        self.send_header("content-type", "application/problem+json" if status >= 400 else "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

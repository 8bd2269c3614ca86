"""A real HTTP server that receives notices and answers as a test says."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Received:
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def said(self) -> Any:
        """Return the body as data."""
        return json.loads(self.body)


@dataclass
class Receiver:
    """The requests received, and how the next ones are answered: a status, "hang up", or "wait" until released."""

    url: str = ""
    received: list[Received] = field(default_factory=list)
    answers: list[int | str] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)

    @property
    def ids(self) -> list[str]:
        """Return the id of each notice that arrived, in order."""
        return [one.headers["webhook-id"] for one in self.received]


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Run a receiver on its own port."""
    here = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            size = int(self.headers.get("content-length") or 0)
            headers = {name.lower(): value for name, value in self.headers.items()}
            here.received.append(Received(self.command, self.path, headers, self.rfile.read(size)))
            answer = here.answers.pop(0) if here.answers else 204
            if answer == "wait":
                here.released.wait(30)
            if isinstance(answer, str):
                self.close_connection = True
                return
            self.send_response(answer)
            if 300 <= answer < 400:
                self.send_header("location", f"{here.url}elsewhere")
            self.send_header("content-length", "0")
            self.end_headers()

        do_GET = do_POST

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    here.url = f"http://127.0.0.1:{server.server_address[1]}/"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield here
    finally:
        here.released.set()
        server.shutdown()
        server.server_close()
        thread.join(10)

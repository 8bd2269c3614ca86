"""A little bank: its books are a file of its own, and it survives everybody. Standard library only.

``do`` is not idempotent: a repeated request is a second effect, and the books show it. ``undo`` is, by its key. The bank
keeps what the tools declare of it: it takes no request that was sent longer ago than the settle delay.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

SETTLE_S: Final = 1.0
"""What the tools declare: nothing arrives later than this."""
LATE_S: Final = 0.8
"""What the bank refuses, by the clock of this machine."""


class Books:
    """Every effect is one line, written before it is confirmed."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")
        self._lock = threading.Lock()
        self._rows: dict[str, list[dict[str, Any]]] = defaultdict(list)

    def post(self, what: str, said: dict[str, Any]) -> tuple[int, Any]:
        """Carry out one request."""
        with self._lock:
            mine = self._rows[said["order"]]
            match what:
                case "do" | "undo" if time.time() - said["sent"] > LATE_S:
                    return 410, {"error": "too late"}
                case "do":
                    return 200, self._write(mine, "do", said)
                case "undo":
                    known = [row for row in mine if row["op"] == "undo" and row["key"] == said["key"]]
                    return 200, known[0] if known else self._write(mine, "undo", said)
                case "find":
                    done = [row for row in mine if row["op"] == "do" and row["tool"] == said["tool"]]
                    return 200, {"found": len(done), "id": done[0]["id"] if done else None}
                case "rows":
                    return 200, {"rows": mine}
                case _:
                    return 404, {}

    def _write(self, mine: list[dict[str, Any]], op: str, said: dict[str, Any]) -> dict[str, Any]:
        row = {"op": op, "id": f"{op}-{said['tool']}-{len(mine) + 1}", **{k: said[k] for k in ("order", "tool", "key")}}
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        mine.append(row)
        return row


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        """Answer with JSON."""
        length = int(self.headers.get("Content-Length", "0"))
        data = self.rfile.read(length)
        if len(data) < length:
            return  # half a request is none
        status, answer = self.server.books.post(self.path.strip("/"), json.loads(data))  # type: ignore[attr-defined]
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class Bank(ThreadingHTTPServer):
    """Handles each request in a thread."""

    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that dies in the middle is what this is about."""


def main() -> None:
    """Serve until the parent ends: then stdin does."""
    bank = Bank(("127.0.0.1", 0), Handler)
    bank.books = Books(Path(sys.argv[1]))  # type: ignore[attr-defined]
    threading.Thread(target=bank.serve_forever, daemon=True).start()
    print(bank.server_address[1], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()

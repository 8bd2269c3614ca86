"""A little bank in a process of its own. It deduplicates nothing: whatever it is asked to do twice, it does twice."""

from __future__ import annotations

import json
import socket
import socketserver
import subprocess
import sys
import threading
from collections import Counter
from types import TracebackType
from typing import Any, Self

ANSWER_S = 30


class Bank:
    """The process, and how to ask it. Every entry of its book is one thing that happened."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.failover.bank"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self._port = int(self._process.stdout.readline())

    def do(self, what: str, key: str) -> str:
        """It happens, once more."""
        return str(self._ask({"what": what, "key": key}))

    def has(self, what: str, key: str) -> bool:
        """What a probe learns."""
        return self.book()[(what, key)] > 0

    def book(self) -> Counter[tuple[str, str]]:
        """How often each thing happened."""
        return Counter({(what, key): count for what, key, count in self._ask({})})

    def void(self, what: str, key: str) -> None:
        """A person takes it out of the book."""
        self._ask({"void": what, "key": key})

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()  # its end
        self._process.wait(ANSWER_S)
        self._process.stdout.close()

    def _ask(self, question: dict[str, str]) -> Any:
        with socket.create_connection(("127.0.0.1", self._port), ANSWER_S) as line, line.makefile("rw") as file:
            file.write(json.dumps(question) + "\n")
            file.flush()
            return json.loads(file.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Clerk(socketserver.StreamRequestHandler):
    server: _Office

    def handle(self) -> None:
        asked = json.loads(self.rfile.readline())
        with self.server.lock:
            if "void" in asked:
                self.server.book[asked["void"], asked["key"]] -= 1
                answer: Any = ""
            elif asked:
                self.server.book[asked["what"], asked["key"]] += 1
                answer = f"{asked['what']}-{asked['key'][:8]}"
            else:
                answer = [[what, key, count] for (what, key), count in self.server.book.items() if count]
        self.wfile.write(json.dumps(answer).encode() + b"\n")


class _Office(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Clerk)
        self.book: Counter[tuple[str, str]] = Counter()
        self.lock = threading.Lock()


def main() -> None:
    with _Office() as office:
        threading.Thread(target=office.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        print(office.server_address[1], flush=True)
        sys.stdin.read()  # until its owner ends
        office.shutdown()


if __name__ == "__main__":
    main()

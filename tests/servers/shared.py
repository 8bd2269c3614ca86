"""One server of each kind for a whole pytest session, started when the first test asks for it.

Under xdist the controller owns them, because it is the only process that lives as long as the session: a worker
may end early, or be killed by its own test. Workers ask it through a socket whose path comes in their `workerinput`.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable
from typing import Literal

from tests.servers.found import Unavailable, User
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer
from tests.servers.process import Process

Kind = Literal["postgres", "mysql"]
VARIABLES: dict[Kind, str] = {"postgres": "AMENDS_TEST_POSTGRES_URL", "mysql": "AMENDS_TEST_MYSQL_URL"}
SERVERS: dict[Kind, Callable[[], PostgresServer | MariadbServer]] = {
    "postgres": PostgresServer,
    "mysql": MariadbServer,
}
# Longer than a slow start of a server, for the workers that wait for the first one's.
ASK_S = 180
ANSWER_BYTES_MAX = 1 << 16
WAITING_MAX = 64


class Owner:
    """Starts what is asked for, once, and throws it away at the end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started: dict[Kind, PostgresServer | MariadbServer] = {}
        self._refused: dict[Kind, str] = {}
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._place: Process | None = None

    def url(self, kind: Kind) -> str:
        """The URL of a server in which databases may be made; `Unavailable` says why there is none."""
        if given := os.environ.get(VARIABLES[kind]):
            return given
        with self._lock:
            if kind in self._refused:
                raise Unavailable(self._refused[kind])
            if kind not in self._started:
                try:
                    self._started[kind] = SERVERS[kind]().start()
                except Unavailable as refusal:
                    self._refused[kind] = str(refusal)
                    raise
            return self._started[kind].url()

    def listen(self) -> str:
        """Workers may ask from now on; the path to ask at."""
        if self._place is None:
            # No program runs in it; it is a folder that goes away with us.
            self._place = Process(discard_signal="KILL", user=User(os.geteuid(), os.getegid()))
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(str(self._place.folder / "ask"))
            self._listener.listen(WAITING_MAX)
            self._thread = threading.Thread(target=self._serve, args=(self._listener,), name="servers", daemon=True)
            self._thread.start()
        return str(self._place.folder / "ask")

    def close(self) -> None:
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        if self._thread is not None:
            self._thread.join(ASK_S)
        if self._place is not None:
            self._place.close()
        for server in self._started.values():
            server.close()
        self._started.clear()

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                asking, _ = listener.accept()
            except OSError:
                return  # closed
            # One after another: a second question is the same question, or can wait for the first.
            with asking:
                try:
                    self._answer(asking)
                except OSError:
                    continue  # the worker died meanwhile

    def _answer(self, asking: socket.socket) -> None:
        wanted = asking.recv(ANSWER_BYTES_MAX).decode()
        try:
            answer = {"url": self.url("postgres" if wanted == "postgres" else "mysql")}
        except Unavailable as refusal:
            answer = {"refused": str(refusal)}
        except Exception as error:
            answer = {"refused": f"the start failed: {error!r}"}
        asking.sendall(json.dumps(answer).encode())


def ask(path: str, kind: Kind) -> str:
    """What `Owner.url` says, from another process."""
    with socket.socket(socket.AF_UNIX) as owner:
        owner.settimeout(ASK_S)
        owner.connect(path)
        owner.sendall(kind.encode())
        answer = json.loads(owner.makefile("rb").read(ANSWER_BYTES_MAX))
    if "refused" in answer:
        raise Unavailable(answer["refused"])
    return str(answer["url"])

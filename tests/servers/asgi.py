"""A Python program that serves an ASGI application over HTTP/2, in a process of its own that may be killed."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.servers.found import User
from tests.servers.process import Process, Server, free_port, listens

IMPORTS = os.pathsep.join([str(Path(__file__).parents[2]), str(Path(__file__).parents[2] / "src")])


class AsgiServer(Server):
    """Hypercorn with an application, such as ``tests.engines.service:app``; the address stays over `start()`.

    `env` is added to a nearly empty environment.
    """

    def __init__(self, application: str, *, env: Mapping[str, str] | None = None) -> None:
        self._application, self._env = application, dict(env or {})
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def _made(self) -> Process:
        return Process(discard_signal="KILL", user=User(os.geteuid(), os.getegid()))

    def _prepare(self, process: Process) -> None:
        self._port = free_port()

    def _answers(self) -> bool:
        return listens(("127.0.0.1", self._port))

    def _command(self) -> list[str]:
        env = {"PYTHONPATH": IMPORTS, "PYTHONUNBUFFERED": "1", **self._env}
        # No worker processes: whoever kills this process kills what it does.
        serve = [sys.executable, "-m", "hypercorn", "--workers", "0", "--bind", f"127.0.0.1:{self._port}"]
        return ["env", *(f"{name}={value}" for name, value in env.items()), *serve, self._application]

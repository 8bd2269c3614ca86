"""nginx with a given configuration of its `http` part, on ports of loopback."""

from __future__ import annotations

import signal
import socket
from typing import Self

from tests.servers.found import system_program
from tests.servers.process import Process

MAIN = """
daemon off;
pid nginx.pid;
error_log error.log;
events {{ worker_connections 512; }}
http {{
    access_log access.log;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    {http}
}}
"""


class Nginx:
    """A proxy in a folder of its own. `files` are put there, to be named in the configuration."""

    def __init__(self, http: str, *, port: int, files: dict[str, str] | None = None) -> None:
        self._program = system_program("nginx", "nginx")
        self._http, self._port, self._files = http, port, files or {}
        self._process: Process | None = None

    def start(self) -> Self:
        """It accepts connections."""
        try:
            self._process = Process(discard_signal="KILL")
            folder = self._process.folder
            for name, text in {**self._files, "nginx.conf": MAIN.format(http=self._http)}.items():
                (folder / name).write_text(text, encoding="utf-8")
            argv = [str(self._program), "-e", "error.log", "-p", f"{folder}/", "-c", str(folder / "nginx.conf")]
            self._process.start(argv, answers=self._answers)
        except BaseException:
            self.close()
            raise
        return self

    @property
    def log(self) -> str:
        """Which requests it got."""
        assert self._process is not None, "not started"
        return (self._process.folder / "access.log").read_text(encoding="utf-8")

    def close(self) -> None:
        """Nothing is left of it."""
        if self._process is not None:
            self._process.stop(signal.SIGTERM)
            self._process.close()
            self._process = None

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
        except OSError:
            return False
        return True

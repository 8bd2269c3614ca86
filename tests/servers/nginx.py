"""nginx with a given configuration of its `http` part, on ports of loopback."""

from __future__ import annotations

import socket

from tests.servers.found import system_program
from tests.servers.process import Process, Server

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


class Nginx(Server):
    """A proxy in a folder of its own. `files` are put there, to be named in the configuration."""

    def __init__(self, http: str, *, port: int, files: dict[str, str] | None = None) -> None:
        self._program = system_program("nginx", "nginx")
        self._http, self._port, self._files = http, port, files or {}

    @property
    def log(self) -> str:
        """Which requests it got."""
        return (self.folder / "access.log").read_text(encoding="utf-8")

    def _prepare(self, process: Process) -> None:
        for name, text in {**self._files, "nginx.conf": MAIN.format(http=self._http)}.items():
            (process.folder / name).write_text(text, encoding="utf-8")

    def _command(self) -> list[str]:
        return [
            str(self._program), "-e", "error.log", "-p", f"{self.folder}/", "-c", str(self.folder / "nginx.conf"),
        ]  # fmt: skip

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
        except OSError:
            return False
        return True

"""PgBouncer in transaction mode, in front of a PostgreSQL server that is known by its URL."""

from __future__ import annotations

import signal
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, unquote, urlsplit

from tests.servers import databases
from tests.servers.found import system_program
from tests.servers.process import Process

PORT = 6432
CLIENTS_MAX = 300
POOL_DEFAULT = 1


class PgBouncer:
    """A pooler whose clients get a session for one transaction at a time, as in many a production.

    `pool` is how many sessions of the server a database has: one shows at once what relies on a session of its own.
    """

    def __init__(self, server_url: str, *, pool: int = POOL_DEFAULT, settings: dict[str, str] | None = None) -> None:
        self._program = system_program("pgbouncer", "PgBouncer")
        self._server_url = server_url
        self._settings = {
            "pool_mode": "transaction",
            "default_pool_size": str(pool),
            "max_client_conn": str(CLIENTS_MAX),
            # Whoever reaches the socket is let in, as the server's own user.
            "auth_type": "any",
            "ignore_startup_parameters": "extra_float_digits",
        } | (settings or {})
        self._process: Process | None = None

    def start(self) -> Self:
        """It answers."""
        import psycopg

        def answers() -> bool:
            try:
                databases.execute(self.url(databases.database_of(self._server_url)), ["SELECT 1"])
            except psycopg.OperationalError:
                return False
            return True

        if self._process is not None:
            self._process.start(self._command(), answers=answers)
            return self
        try:
            self._process = Process(discard_signal="KILL")
            self._write(self.folder)
            self._process.start(self._command(), answers=answers)
        except BaseException:
            self.close()
            raise
        return self

    def stop(self) -> None:
        """It has ended, and cut its clients off."""
        if self._process is not None:
            self._process.stop(signal.SIGTERM)

    def kill(self) -> None:
        """It has had SIGKILL and is gone."""
        if self._process is not None:
            self._process.kill()
            (self.folder / f".s.PGSQL.{PORT}").unlink(missing_ok=True)

    def close(self) -> None:
        """Nothing is left of it."""
        if self._process is not None:
            self._process.close()
            self._process = None

    @property
    def folder(self) -> Path:
        assert self._process is not None, "not started"
        return self._process.folder

    def url(self, database: str) -> str:
        return f"postgresql://postgres@/{database}?host={self.folder}&port={PORT}"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _command(self) -> list[str]:
        return [str(self._program), str(self.folder / "pgbouncer.ini")]

    def _write(self, folder: Path) -> None:
        parts = urlsplit(self._server_url)
        target = {
            "host": parts.hostname or parse_qs(parts.query).get("host", ["127.0.0.1"])[0],
            "port": str(parts.port or 5432),
            "user": unquote(parts.username or "postgres"),
        } | ({"password": unquote(parts.password)} if parts.password else {})
        settings = self._settings | {"listen_addr": "", "listen_port": str(PORT), "unix_socket_dir": str(folder)}
        lines = ["[databases]", "* = " + " ".join(f"{name}={value}" for name, value in target.items()), "[pgbouncer]"]
        lines += [f"{name} = {value}" for name, value in settings.items()]
        (folder / "pgbouncer.ini").write_text("\n".join([*lines, ""]), encoding="utf-8")

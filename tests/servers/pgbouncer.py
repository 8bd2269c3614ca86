"""PgBouncer in transaction mode, in front of a PostgreSQL server that is known by its URL."""

from __future__ import annotations

from urllib.parse import parse_qs, unquote, urlsplit

from tests.servers import databases
from tests.servers.found import system_program
from tests.servers.process import Process, Server

PORT = 6432
CLIENTS_MAX = 300
POOL_DEFAULT = 1


class PgBouncer(Server):
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

    def kill(self) -> None:
        """It has had SIGKILL and is gone."""
        super().kill()
        if self._process is not None:
            (self.folder / f".s.PGSQL.{PORT}").unlink(missing_ok=True)

    def url(self, database: str) -> str:
        return f"postgresql://postgres@/{database}?host={self.folder}&port={PORT}"

    def _command(self) -> list[str]:
        return [str(self._program), str(self.folder / "pgbouncer.ini")]

    def _answers(self) -> bool:
        import psycopg

        try:
            databases.execute(self.url(databases.database_of(self._server_url)), ["SELECT 1"])
        except psycopg.OperationalError:
            return False
        return True

    def _prepare(self, process: Process) -> None:
        parts = urlsplit(self._server_url)
        target = {
            "host": parts.hostname or parse_qs(parts.query).get("host", ["127.0.0.1"])[0],
            "port": str(parts.port or 5432),
            "user": unquote(parts.username or "postgres"),
        } | ({"password": unquote(parts.password)} if parts.password else {})
        settings = self._settings | {
            "listen_addr": "",
            "listen_port": str(PORT),
            "unix_socket_dir": str(process.folder),
        }
        lines = ["[databases]", "* = " + " ".join(f"{name}={value}" for name, value in target.items()), "[pgbouncer]"]
        lines += [f"{name} = {value}" for name, value in settings.items()]
        (process.folder / "pgbouncer.ini").write_text("\n".join([*lines, ""]), encoding="utf-8")

"""A MariaDB server of one's own."""

from __future__ import annotations

from pathlib import Path

from tests.servers import databases
from tests.servers.found import system_program
from tests.servers.process import DISK, Process, Server, free_port, listens

CONNECTIONS_MAX = 300

# Survives SIGKILL of the server, not the loss of the machine: 2 hands every commit to the kernel. (0 would keep it in
# the server's own memory for a second.)
FAST = {"innodb_flush_log_at_trx_commit": "2", "innodb_doublewrite": "0", "sync_frm": "0"}
DURABLE = {"innodb_flush_log_at_trx_commit": "1", "innodb_doublewrite": "1"}
SETTINGS = {
    "max_connections": str(CONNECTIONS_MAX),
    "innodb_buffer_pool_size": "128M",
    "character_set_server": "utf8mb4",
    "default_time_zone": "+00:00",
    "skip_name_resolve": "1",
    "performance_schema": "0",
}
# Only while the tables of a new server are made, which nobody could want to save.
MAKING = {
    "innodb_flush_log_at_trx_commit": "0",
    "innodb_doublewrite": "0",
    "sync_frm": "0",
    "innodb_log_file_size": "16M",
}


class MariadbServer(Server):
    """A server that is started by `start()` or `with`, and thrown away by `close()`, `with`, or our own end.

    `tcp` gives it a port on loopback beside its socket; then `url()` is that one. The address stays the same over
    restarts. `durable` is for measuring and costs an fsync a commit. `folder` is where its folder is made (default:
    in memory, or /tmp if durable or if there is little memory), and must be open to `nobody`.
    `settings` are added to the command line.
    """

    def __init__(
        self,
        *,
        tcp: bool = False,
        durable: bool = False,
        folder: Path | None = None,
        settings: dict[str, str] | None = None,
    ) -> None:
        self._server = system_program("mariadbd", "MariaDB")
        self._installer = system_program("mariadb-install-db", "MariaDB")
        self._settings = SETTINGS | (DURABLE if durable else FAST) | (settings or {})
        self.port = 3306  # with tcp, another one from the first start on
        self._tcp = tcp
        self._folder = folder or (DISK if durable else None)

    def url(self, database: str = "mysql") -> str:
        if self._tcp:
            return f"mysql://root@127.0.0.1:{self.port}/{database}"
        return f"mysql://root@localhost/{database}?unix_socket={self.folder / 'socket'}"

    def create_database(self, name: str | None = None) -> str:
        """A new database; its URL."""
        return databases.create_database(self.url(), name)

    def drop_database(self, name_or_url: str) -> None:
        """The database is gone, with whatever connections it had."""
        databases.drop_database(self.url(), name_or_url)

    def _made(self) -> Process:
        return Process(discard_signal="KILL", folder=self._folder)

    def _prepare(self, process: Process) -> None:
        process.run(
            [
                str(self._installer),
                *["--no-defaults", f"--datadir={process.folder / 'data'}", "--auth-root-authentication-method=normal"],
                *["--skip-name-resolve", "--skip-test-db"],
                *_options(MAKING),
            ]
        )
        # Now, not before: making took a second, in which somebody may have taken the port.
        self.port = free_port() if self._tcp else self.port

    def _command(self) -> list[str]:
        listen = ["--bind-address=127.0.0.1", f"--port={self.port}"] if self._tcp else ["--skip-networking"]
        return [
            *[str(self._server), "--no-defaults", f"--datadir={self.folder / 'data'}"],
            *[f"--socket={self.folder / 'socket'}", f"--pid-file={self.folder / 'mariadbd.pid'}"],
            *listen,
            *_options(self._settings),
        ]

    def _answers(self) -> bool:
        import pymysql  # type: ignore[import-untyped]

        # PyMySQL leaves its socket open when nobody listens, and a warning is an error here.
        if not listens(("127.0.0.1", self.port) if self._tcp else str(self.folder / "socket")):
            return False
        try:
            databases.execute(self.url(), ["SELECT 1"])
        except pymysql.err.OperationalError:
            return False
        return True


def _options(settings: dict[str, str]) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]

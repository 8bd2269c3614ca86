"""The ledgers of the play, each with what can be done to it."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from amends.ledger.store import Store
from amends.stores import store_for
from amends.stores.sqlite.store import SqliteStore
from tests.chaos.points import DURING
from tests.servers import MariadbServer, PostgresServer

CLONE_NEWNS: Final = 0x00020000
ROOM_MB: Final = 2048
PAGE_BYTES: Final = 4096


class Place(Protocol):
    """One ledger. ``faults``: names of what can be done to it while all run."""

    name: str
    url: str
    points: tuple[str, ...]
    faults: tuple[str, ...]
    said: str

    def store(self, clock: Callable[[], float]) -> Store:
        """A store of this ledger, for one process."""
        ...

    def begin(self, fault: str) -> None:
        """Do it to the ledger."""
        ...

    def end(self, fault: str) -> None:
        """Mend it."""
        ...

    def close(self) -> None:
        """Throw it away."""
        ...


class SqlitePlace:
    """A file, on a small file system of its own where one may be mounted, so that it can be full."""

    name = "sqlite"
    points: tuple[str, ...] = DURING

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "ledger"
        self.folder.mkdir()
        self.url = f"sqlite:///{self.folder / 'ledger.db'}"
        self.faults: tuple[str, ...] = ("full disk",) if self._mounted() else ()
        self.said = (
            f"a tmpfs of {ROOM_MB} MB, shrunk to what is used when the disk is to be full"
            if self.faults
            else "a plain folder; no full disk: mounting a tmpfs needs root"
        )

    def _mounted(self) -> bool:
        # In a mount namespace of our own: whatever becomes of us, the machine is left as it was.
        if os.geteuid() != 0 or ctypes.CDLL(None).unshare(CLONE_NEWNS) != 0:
            return False
        private = ["mount", "--make-rprivate", "/"]
        mount = ["mount", "-t", "tmpfs", "-o", f"size={ROOM_MB}m", "chaos", str(self.folder)]
        try:
            return all(subprocess.run(one, capture_output=True).returncode == 0 for one in (private, mount))
        except FileNotFoundError:
            return False

    def store(self, clock: Callable[[], float]) -> Store:
        """The file."""
        return SqliteStore(self.folder / "ledger.db", clock=clock, lock_wait_s=10.0)

    def begin(self, fault: str) -> None:
        """No byte is left."""
        used = os.statvfs(self.folder)
        self._resize(f"{(used.f_blocks - used.f_bfree) * used.f_frsize + PAGE_BYTES}")

    def end(self, fault: str) -> None:
        """Room again."""
        self._resize(f"{ROOM_MB}m")

    def _resize(self, size: str) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size}", str(self.folder)], capture_output=True, check=False)

    def close(self) -> None:
        """The namespace ends with us; a plain folder is its owner's."""
        if self.faults:
            subprocess.run(["umount", str(self.folder)], capture_output=True, check=False)


class ServerPlace:
    """A server of the play's own, killed with SIGKILL and started again on the same data while all run.

    Its clock is the ledger's: a clock set back is the processes' own. No full disk: a server that cannot write its log
    ends itself, which is what the kill does.
    """

    points: tuple[str, ...] = ()
    faults: tuple[str, ...] = ("server killed",)

    def __init__(self, name: str, server: PostgresServer | MariadbServer) -> None:
        self.name, self.server = name, server.start()
        self.url = server.create_database()
        self.said = f"a server of its own at {self.url}"

    def store(self, clock: Callable[[], float]) -> Store:
        """The database; it asks its own clock."""
        return store_for(self.url)

    def begin(self, fault: str) -> None:
        """The server and all its processes are dead."""
        self.server.kill()

    def end(self, fault: str) -> None:
        """It answers again."""
        self.server.start()

    def close(self) -> None:
        """Nothing is left of it."""
        self.server.close()


def _sqlite(folder: Path) -> Place:
    return SqlitePlace(folder)


def _postgresql(folder: Path) -> Place:
    import amends.stores.postgres.store  # noqa: F401  (a child must not pay for it)

    return ServerPlace("postgresql", PostgresServer())


def _mariadb(folder: Path) -> Place:
    import amends.stores.mysql.store  # noqa: F401

    return ServerPlace("mariadb", MariadbServer())


STORES: Final[dict[str, Callable[[Path], Place]]] = {
    "sqlite": _sqlite,
    "postgresql": _postgresql,
    "mariadb": _mariadb,
}
"""Each raises ``Unavailable`` where this machine has no such server."""

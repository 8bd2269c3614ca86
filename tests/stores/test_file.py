"""What the operating system tells about a ledger's file."""

import os
from pathlib import Path

import pytest

from amends.errors import LedgerUnavailable
from amends.stores.sqlite import connection as file
from amends.stores.sqlite.connection import lock_holders, network_file_system
from amends.stores.sqlite.store import SqliteStore

MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
server:/export /mnt/share nfs4 rw 0 0
//server/c$ /mnt/with\\040space cifs rw 0 0
drvfs /mnt/c 9p rw 0 0
/dev/sdb1 /mnt/share/local xfs rw 0 0
me@host: /home/me/remote fuse.sshfs rw 0 0
broken
"""


@pytest.mark.parametrize(
    "place, kind",
    [
        ("/var/lib/ledger.db", None),
        ("/mnt/share/ledger.db", "nfs4"),
        ("/mnt/share/local/ledger.db", None),
        ("/mnt/shared/ledger.db", None),
        ("/mnt/with space/ledger.db", "cifs"),
        ("/mnt/c/ledger.db", "9p"),
        ("/home/me/remote/a/ledger.db", "fuse.sshfs"),
    ],
)
def test_a_network_file_system_is_known_by_its_mount(place: str, kind: str | None) -> None:
    assert network_file_system(Path(place), MOUNTS) == kind


def test_the_root_of_a_sandbox_is_not_a_network() -> None:
    assert network_file_system(Path("/data/ledger.db"), "none / 9p rw 0 0\n") is None
    assert network_file_system(Path("/data/ledger.db"), "server:/ / nfs rw 0 0\n") == "nfs"
    assert network_file_system(Path("/data/ledger.db"), "") is None


def test_a_ledger_on_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "_read", lambda name: "server:/ / nfs rw 0 0\n")
    with pytest.raises(LedgerUnavailable) as refused:
        SqliteStore(tmp_path / "ledger.db").open(create=True)
    assert "nfs" in str(refused.value)
    assert "local disk" in refused.value.hint


def test_the_holders_of_a_lock_are_read_from_the_systems_table(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.touch()
    inode = path.stat().st_ino
    table = (
        f"1: POSIX  ADVISORY  WRITE 4711 fe:00:{inode} 120 120\n"
        f"2: POSIX  ADVISORY  READ 4712 fe:00:{inode} 124 124\n"
        f"3: POSIX  ADVISORY  WRITE 4713 fe:00:{inode + 1} 120 120\n"
        f"4: POSIX  ADVISORY  WRITE {os.getpid()} fe:00:{inode} 120 120\n"
    )
    assert lock_holders(path, table) == [4711]

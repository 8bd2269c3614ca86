"""Other platforms, by their answers: no boot id, no start times, no signal 0, no file owners, no ``flock``, no ``fork``.

Where something cannot be known, amends waits: an owner that cannot be proved dead keeps its run until its lease has ended.
``docs/reference/platforms.md`` says what holds where.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from amends.drivers import process
from amends.errors import LedgerUnavailable
from amends.host.anchor import Anchor, Mark
from amends.host.settings import settle_settings

Refuse = Callable[..., None]


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    """What a process has found out about its host belongs to one test."""
    process.boot_id.cache_clear()
    yield
    process.boot_id.cache_clear()


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """Make the files and links that begin like this unreadable."""
    reads, links = Path.read_text, Path.readlink

    def made(*places: str, error: type[OSError] = FileNotFoundError) -> None:
        def read(self: Path, *args: Any, **given: Any) -> str:
            if str(self).startswith(places):
                raise error(str(self))
            return reads(self, *args, **given)

        def link(self: Path) -> Path:
            if str(self).startswith(places):
                raise error(str(self))
            return links(self)

        monkeypatch.setattr(Path, "read_text", read)
        monkeypatch.setattr(Path, "readlink", link)
        process.boot_id.cache_clear()  # a thread that an earlier test left behind may have asked meanwhile

    return made


def gone_pid() -> int:
    """Return the id of a process that has ended."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


def owner_with(pid: int, started: str = "") -> str:
    return f"{process.owner_name().rsplit('|', 2)[0]}|{pid}|{started}"


def elsewhere() -> str:
    """Return the owner name of another process of this host, which has ended."""
    code = "from amends.drivers.process import owner_name; print(owner_name())"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_a_process_that_has_ended_is_dead_where_that_can_be_proved() -> None:
    assert process.is_dead(elsewhere())
    assert process.is_dead(owner_with(gone_pid()))


@pytest.mark.parametrize(
    "places, error",
    [
        (("/proc",), FileNotFoundError),
        (("/proc/sys/kernel/random/boot_id",), PermissionError),
        (("/proc/self/ns",), FileNotFoundError),
        (("/proc/self/ns",), PermissionError),
        (("/proc/self/ns/time",), PermissionError),
    ],
    ids=["no proc", "no boot id", "no namespaces", "hidden namespaces", "hidden time namespace"],
)
def test_without_a_boot_id_or_namespaces_no_other_process_is_dead(
    refuse: Refuse, places: tuple[str, ...], error: type[OSError]
) -> None:
    other = elsewhere()
    refuse(*places, error=error)
    assert not process.is_dead(other)
    assert process.boot_id() == process.boot_id()
    mine = process.boot_id()
    process.boot_id.cache_clear()
    assert process.boot_id() != mine, "two processes do not compare their clocks"


def test_on_an_older_kernel_there_is_one_time_namespace(refuse: Refuse) -> None:
    other = elsewhere()
    refuse("/proc/self/ns/time")
    here = process.boot_id()
    assert here == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert not process.is_dead(other), "it says that it has another clock"


def test_without_start_times_a_process_id_that_is_used_again_is_not_dead(refuse: Refuse) -> None:
    pid, started = os.getppid(), "5"
    assert process.is_dead(owner_with(pid, started)), "another process has its id now"
    refuse(f"/proc/{pid}/stat")
    assert not process.is_dead(owner_with(pid, started))
    assert process.is_dead(owner_with(gone_pid(), started)), "nobody has this id"


def test_where_signal_0_is_ctrl_c_nobody_is_signalled(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    pid = gone_pid()
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append(pid))
    assert not process.is_dead(owner_with(pid))
    assert not process.is_dead(process.owner_name())
    assert not process.is_dead(owner_with(os.getppid()))
    assert sent == []


def test_a_process_never_signals_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("it was signalled"))
    assert not process.is_dead(process.owner_name())
    assert process.is_dead(owner_with(os.getpid(), "5")), "an earlier process had this id"


def test_leases_end_during_sleep_where_another_clock_counts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLOCK_MONOTONIC of macOS counts sleep, ``time.monotonic`` there does not."""
    monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)
    assert process._sleep_clock() == time.CLOCK_MONOTONIC
    monkeypatch.delattr(time, "clock_gettime")
    assert process._sleep_clock() is None


# ---- Locks of the anchor


class FakeLocks:
    """The locks of Windows: of a byte of a file, until they are lifted."""

    LK_LOCK, LK_UNLCK = 1, 0

    def __init__(self, *, is_taken: bool = False) -> None:
        self.calls: list[int] = []
        self.is_taken = is_taken

    def locking(self, fd: int, how: int, count: int) -> None:
        assert os.fstat(fd)
        if self.is_taken:
            raise OSError(36, "Resource deadlock avoided")
        self.calls.append(how)


def test_without_flock_the_anchor_is_locked_by_the_systems_own_locks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    locks = FakeLocks()
    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setitem(sys.modules, "msvcrt", locks)  # type: ignore[arg-type]
    anchor = Anchor(tmp_path / "a.anchor")
    anchor.reset()
    assert (anchor.read(), locks.calls) == (Mark(), [FakeLocks.LK_LOCK, FakeLocks.LK_UNLCK])


def test_an_anchor_whose_lock_is_taken_is_not_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setitem(sys.modules, "msvcrt", FakeLocks(is_taken=True))  # type: ignore[arg-type]
    with pytest.raises(LedgerUnavailable):
        Anchor(tmp_path / "a.anchor").reset()
    assert not (tmp_path / "a.anchor").exists()


@pytest.mark.parametrize("without", ["both modules", "flock on this file system"])
def test_a_system_without_file_locks_still_keeps_an_anchor(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, without: str
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    fake = SimpleNamespace(flock=unsupported, LOCK_EX=2)
    monkeypatch.setitem(sys.modules, "fcntl", None if without == "both modules" else fake)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "msvcrt", None)  # type: ignore[arg-type]
    anchor = Anchor(tmp_path / "a.anchor")
    anchor.reset()
    assert anchor.read() == Mark()


# ---- Owners of files


def test_without_file_owners_a_settings_file_is_read_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "amends.toml"
    file.write_text("lease = 7.0\n")
    file.chmod(0o666)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delattr(os, "geteuid")
    assert settle_settings({}, environ={})["lease"].value == 7.0


# ---- A whole run on a platform without all of it


PLATFORM = """
import os, pathlib, select, signal, sys, time
for module, names in (
    (os, "fork register_at_fork geteuid getuid uname O_DIRECTORY killpg getpgid setsid"),
    (time, "CLOCK_BOOTTIME CLOCK_MONOTONIC clock_gettime"),
    (signal, "SIGKILL pthread_sigmask"),
    (select, "poll epoll"),
):
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
for name in ("fcntl", "pwd", "grp", "resource", "termios"):
    sys.modules[name] = None
reads, links = pathlib.Path.read_text, pathlib.Path.readlink
def read(self, *args, **given):
    if str(self).startswith("/proc"):
        raise FileNotFoundError(str(self))
    return reads(self, *args, **given)
def link(self):
    if str(self).startswith("/proc"):
        raise FileNotFoundError(str(self))
    return links(self)
pathlib.Path.read_text, pathlib.Path.readlink = read, link
real_kill = os.kill
def kill(pid, number):
    assert number, "signal 0 is Ctrl-C here"
    real_kill(pid, number)
os.kill = kill
"""
SHOP = """
from amends import Absent, Happened, Runtime, tool
BOOK = pathlib.Path(sys.argv[1]) / "book"

@tool(key="order")
def charge(order: str) -> str:
    with BOOK.open("a") as file:
        file.write("charge\\n")
    if sys.argv[2] == "dies":
        os._exit(9)
    return order

@charge.compensate
def refund(order: str) -> None:
    with BOOK.open("a") as file:
        file.write("refund\\n")

@charge.probe(settle=0.0)
def find(order: str):
    return Happened(order) if "charge" in BOOK.read_text() else Absent()

rt = Runtime(f"sqlite:///{sys.argv[1]}/l.db", tools=[charge], lease=3.0, wait=0.1)
"""


def on_that_platform(folder: Path, what: str, code: str) -> subprocess.CompletedProcess[str]:
    program = PLATFORM + SHOP + textwrap.dedent(code)
    return subprocess.run(
        [sys.executable, "-c", program, str(folder), what], capture_output=True, text=True, timeout=60
    )


def test_a_run_is_recovered_once_its_lease_has_ended_and_no_sooner(tmp_path: Path) -> None:
    """Nothing proves that the owner is dead: it is waited for, and then its effect is taken back once."""
    died = on_that_platform(tmp_path, "dies", 'with rt.run("r"): charge(order="1")')
    assert died.returncode == 9, died.stderr
    recovered = on_that_platform(
        tmp_path,
        "recovers",
        """
        begun = time.monotonic()
        early = [report.state for report in rt.recover()]
        until = begun + 30
        while rt.report("r").state != "rolled_back" and time.monotonic() < until:
            rt.recover()
            time.sleep(0.05)
        print(early, rt.report("r").state, rt.verify().ok)
        """,
    )
    assert recovered.stdout.strip() == "[] rolled_back True", recovered.stderr
    assert (tmp_path / "book").read_text() == "charge\nrefund\n"


def test_an_approved_call_starts_there(tmp_path: Path) -> None:
    done = on_that_platform(
        tmp_path,
        "approves",
        """
        from amends import Held, Rule
        rt = Runtime(f"sqlite:///{sys.argv[1]}/l.db", tools=[charge], rules=[Rule("charge")])
        try:
            with rt.run("r", recover="wait"): charge(order="1")
        except Held as held:
            rt.approve(held.approval.id, digest=held.approval.digest, by="anna")
        with rt.run("r"): print(charge(order="1"))
        """,
    )
    assert done.stdout.strip() == "1", done.stderr
    assert (tmp_path / "l.db.anchor").exists()

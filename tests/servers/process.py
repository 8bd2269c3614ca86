"""One server process in a folder of its own, both gone when its owner is, however the owner ended."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from tests.scratch import scratch_folder
from tests.servers.found import Unavailable, User, unprivileged_user

START_S = 60
STOP_S = 30
POLL_S = 0.02
LOG_TAIL_CHARS = 2000
# Below what Linux (32768) and macOS (49152) give to clients.
PORTS = (20000, 32000)
PORT_TRIES_MAX = 100
PORTS_HELD_MAX = 256
"""So many ports a process keeps; the oldest are free again."""
_HELD: deque[int] = deque()
DISK = Path("/tmp")
"""For a server whose flushes are measured."""

# Stands between a killed test process and a server that would run for ever. It waits on a pipe whose other end only
# the owner has: the kernel closes it whatever the owner died of. PR_SET_PDEATHSIG would be less code and less use: it
# follows the *thread* that started the server, it is lost when the user changes, it is Linux's alone, and nobody
# would remove the folder. A line on the pipe means the same as its end, for an owner whose forked children still
# hold the pipe. The pid file is written by the server's own process before it becomes the server, so there is no
# moment in which a server runs and nobody knows it.
WATCHDOG = """
read -r _
if read -r pid <"$1/pid"; then
    kill -s "$2" -- "-$pid"
    left=250
    while [ "$left" -gt 0 ]; do
        left=$((left - 1))
        kill -s 0 -- "-$pid" || break
        sleep 0.02
    done
    kill -s KILL -- "-$pid"
fi 2>/dev/null
rm -rf -- "$1"
"""
# A group of its own: the interrupt of a terminal is for the tests, and initdb is ended with what it started.
LAUNCH = 'echo $$ >pid && exec "$@"'


class Process:
    """A folder, at most one program running in it, and the watchdog that outlives us."""

    def __init__(self, *, discard_signal: str, folder: Path | None = None, user: User | None = None) -> None:
        self.user = user or unprivileged_user()
        # A socket's path has at most 107 bytes, 103 on macOS, where the usual temporary folder is half of that.
        parent = folder or scratch_folder() or (DISK if os.access(DISK, os.W_OK) else None)
        self.folder = Path(tempfile.mkdtemp(prefix="amends-", dir=parent))
        if self.user.is_other:
            os.chown(self.folder, self.user.uid, self.user.gid)
        self._running: subprocess.Popen[bytes] | None = None
        read_end, self._leash = os.pipe()
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", WATCHDOG, "watchdog", str(self.folder), discard_signal],
            stdin=read_end,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        os.close(read_end)

    @property
    def pid(self) -> int | None:
        return self._running.pid if self._running is not None else None

    @property
    def log(self) -> str:
        try:
            return (self.folder / "log").read_text(encoding="utf-8", errors="replace")[-LOG_TAIL_CHARS:]
        except FileNotFoundError:
            return ""

    def run(self, argv: Sequence[str]) -> None:
        """The program ran to its end and said yes."""
        self._launch(argv)
        assert self._running is not None
        status = self._running.wait(START_S)
        self._ended()
        if status != 0:
            raise Unavailable(f"{argv[0]} ended with {status}: {self.log}")

    def start(self, argv: Sequence[str], *, answers: Callable[[], bool]) -> None:
        """The server answers."""
        assert self._running is None, "already started"
        self._launch(argv)
        assert self._running is not None
        deadline = time.monotonic() + START_S
        while not answers():
            if self._running.poll() is not None:
                status = self._running.returncode
                self._ended()
                raise Unavailable(f"{argv[0]} ended with {status}: {self.log}")
            if time.monotonic() > deadline:
                self.kill()
                raise Unavailable(f"{argv[0]} did not answer within {START_S} s: {self.log}")
            time.sleep(POLL_S)

    def stop(self, number: int) -> None:
        """The server has ended in order; its data stays."""
        if self._running is None:
            return
        self._running.send_signal(number)
        try:
            self._running.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self._ended()

    def kill(self) -> None:
        """The server and all its children have had SIGKILL and are gone; its data stays as it was."""
        if self._running is None:
            return
        self._running.kill()
        self._running.wait()
        deadline = time.monotonic() + STOP_S
        # Found by where they are: PostgreSQL's backends leave the group, and are init's once the postmaster is dead.
        while survivors := _processes_in(self.folder):
            for pid in survivors:
                _kill_if_there(pid)
            if time.monotonic() > deadline:
                raise RuntimeError(f"processes {survivors} in {self.folder} survive SIGKILL")
            time.sleep(POLL_S / 10)
        self._ended()

    def close(self) -> None:
        """No process, no folder."""
        if self._leash < 0:
            return
        if self._watchdog.poll() is not None:  # somebody ended it
            self.kill()
            shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(BrokenPipeError):
            os.write(self._leash, b"\n")
        os.close(self._leash)
        self._leash = -1
        if self._running is not None:
            # First: the watchdog takes a dead server that nobody has waited for, for a living one.
            self._running.wait(STOP_S)
            self._running = None
        self._watchdog.wait(STOP_S)

    def _launch(self, argv: Sequence[str]) -> None:
        other = {"user": self.user.uid, "group": self.user.gid, "extra_groups": []} if self.user.is_other else {}
        with (self.folder / "log").open("ab") as log:
            self._running = subprocess.Popen(
                ["/bin/sh", "-c", LAUNCH, "launch", *argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self.folder,
                env=self._environment(),
                **other,  # type: ignore[call-overload]
            )

    def _environment(self) -> dict[str, str]:
        """Nothing of ours but PATH, and no folder of everybody's: MariaDB, when it starts, removes from /tmp the
        temporary tables of every other server there.
        """
        home = str(self.folder)
        return {"PATH": os.environ.get("PATH", os.defpath), "HOME": home, "TMPDIR": home, "LC_ALL": "C", "TZ": "UTC"}

    def _ended(self) -> None:
        self._running = None
        (self.folder / "pid").unlink(missing_ok=True)


class Server(ABC):
    """A server that is started by `start()` or `with`, and thrown away by `close()`, `with`, or our own end.

    Its address and its data stay the same over `stop()` or `kill()` and `start()`.
    """

    STOP_SIGNAL: ClassVar[int] = signal.SIGTERM
    """What ends it in order."""
    _process: Process | None = None

    @abstractmethod
    def _command(self) -> list[str]:
        """Return what starts it."""

    @abstractmethod
    def _answers(self) -> bool:
        """Return whether it can be used."""

    def _made(self) -> Process:
        """Return the folder for it."""
        return Process(discard_signal="KILL")

    @abstractmethod
    def _prepare(self, process: Process) -> None:
        """Put into its folder what the first start needs."""

    def start(self) -> Self:
        """It answers: with nothing in it the first time, later with what it had."""
        if self._process is not None:
            self._process.start(self._command(), answers=self._answers)
            return self
        try:
            self._process = self._made()
            self._prepare(self._process)
            self._process.start(self._command(), answers=self._answers)
        except BaseException:
            self.close()
            raise
        return self

    def stop(self) -> None:
        """It has ended in order, and cut its clients off; its data stays."""
        if self._process is not None:
            self._process.stop(self.STOP_SIGNAL)

    def kill(self) -> None:
        """It and its children have had SIGKILL and are gone; its data stays as it was."""
        if self._process is not None:
            self._process.kill()

    def restart(self) -> Self:
        """It answers again, on the same address, with the same data; was it running, it was stopped in order."""
        self.stop()
        return self.start()

    def close(self) -> None:
        """Nothing is left of it."""
        if self._process is not None:
            self._process.close()
            self._process = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.pid is not None

    @property
    def folder(self) -> Path:
        assert self._process is not None, "not started"
        return self._process.folder

    @property
    def log(self) -> str:
        return self._process.log if self._process is not None else ""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def free_port() -> int:
    """A port on loopback that nobody uses now, and that the kernel gives to no client later.

    A client that tries again and again to reach a killed server on a port of the kernel's own range is one day given
    that very port, is connected to itself, and the server cannot come back.

    This process keeps the port: no other test process of this user gets it while a killed server is away.
    """
    for _ in range(PORT_TRIES_MAX):
        # Not the seeded one: tests seed it, and all workers would try the same ports.
        port = random.SystemRandom().randrange(*PORTS)
        held = _hold(port)
        if held is None:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if _can_bind(probe, port):
                _HELD.append(held)
                return port
        os.close(held)
    raise Unavailable(f"no free port on loopback between {PORTS[0]} and {PORTS[1]}")


def _hold(port: int) -> int | None:
    """Return a lock on the port's number, or nothing if another process has it, or this one."""
    folder = Path(tempfile.gettempdir(), f"amends-test-ports-{os.geteuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    lock = os.open(folder / str(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    if len(_HELD) == PORTS_HELD_MAX:
        os.close(_HELD.popleft())
    return lock


def _can_bind(probe: socket.socket, port: int) -> bool:
    try:
        probe.bind(("127.0.0.1", port))
    except OSError:
        return False
    return True


def listens(address: tuple[str, int] | str) -> bool:
    with socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET) as probe:
        return probe.connect_ex(address) == 0


def _processes_in(folder: Path) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            place = (entry / "cwd").readlink()
        except OSError:
            continue
        if place.is_relative_to(folder):
            found.append(int(entry.name))
    return found


def _kill_if_there(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)

"""This process and its host: the name of the owner, whether another owner is alive, clocks, ids and random numbers."""

from __future__ import annotations

import os
import random
import sys
import time
from functools import lru_cache
from pathlib import Path
from typing import Final

from amends.encoding.ids import call_id, new_number
from amends.ledger.world import Clocks


def _sleep_clock() -> int | None:
    """Return the clock that counts the time in which the host sleeps; None: only ``time.monotonic`` is there.

    Linux has CLOCK_BOOTTIME. CLOCK_MONOTONIC of macOS counts sleep too; its ``time.monotonic`` does not.
    """
    found: int | None = getattr(time, "CLOCK_BOOTTIME", None) or getattr(time, "CLOCK_MONOTONIC", None)
    return found if hasattr(time, "clock_gettime") else None


_CLOCK: Final = _sleep_clock()
pid = os.getpid()
"""This process. Every call compares it with that of its run, and reading it costs less than asking the system."""


def _after_fork_in_child() -> None:
    global pid
    pid = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def mono() -> float:
    """Return monotonic time that also passes while the host sleeps: leases expire and effects happen meanwhile."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


def clocks() -> Clocks:
    """Return wall and monotonic time, with the id of the boot that the monotonic clock belongs to."""
    return Clocks(time.time(), mono(), boot_id())


def luck() -> float:
    """Return a random number in [0, 1)."""
    return random.random()


def new_id(prefix: str) -> str:
    """Return a new id whose prefix is its type; ids of one process sort by time."""
    if prefix == "call":
        return call_id(new_number())
    return f"{prefix}_{time.time_ns() // 1000:013x}{os.urandom(5).hex()}"


@lru_cache(maxsize=1)
def boot_id() -> str:
    """Return the id of this boot of the host: monotonic clocks of one boot can be compared across processes."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        # A container may have a time namespace of its own, whose monotonic clock has an offset to the host's.
        _pid_namespace()  # where namespaces cannot be read, nothing proves that two processes share a clock
        return f"{boot} {_time_namespace()}".strip()
    except OSError:
        # Outside Linux there is no such file. With an id of its own, no process compares its clock with another's, and
        # none counts as dead before its lease has ended: that only makes amends wait longer.
        return os.urandom(16).hex()


def _time_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/time").readlink())
    except FileNotFoundError:
        return ""  # an older kernel: there is only one


def _pid_namespace() -> str:
    """Return the namespace in which process ids are unique; raise ``OSError`` if it cannot be read."""
    return str(Path("/proc/self/ns/pid").readlink())


def _host() -> str:
    """Return the scope in which a process id is unique: host name, boot, and (in containers) the pid namespace.

    If the namespace cannot be read, ``boot_id`` is this process's own: no other process is in its scope.
    """
    try:
        namespace = _pid_namespace()
    except OSError:
        namespace = ""
    return f"{_host_name()}|{boot_id()}|{namespace}"


def _host_name() -> str:
    if hasattr(os, "uname"):
        return os.uname().nodename
    from socket import gethostname  # here: it takes as long to import as a call takes

    return gethostname()


def owner_name() -> str:
    """Return the name of this process in the ledger."""
    pid = os.getpid()
    return f"{_host()}|{pid}|{_started(pid) or ''}"


def is_dead(owner: str) -> bool:
    """Return whether that owner is certainly dead: on the same host, and its process is gone. False if unknown."""
    host, _, rest = owner.rpartition("|")
    host, _, pid_text = host.rpartition("|")
    if host != _host() or not pid_text.isdigit():
        return False
    pid = int(pid_text)
    if sys.platform == "win32" or pid == os.getpid():
        # Windows has no signal 0: there it is Ctrl-C, and would interrupt that process, or this one.
        return pid == os.getpid() and _is_other(_started(pid), rest)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # a process of another user has that id: compare its start time
    started = _started(pid)
    return started == "" or _is_other(started, rest)


def _is_other(started: str | None, recorded: str) -> bool:
    """Return whether a process that started then is certainly not the recorded one."""
    return bool(started) and bool(recorded) and started != recorded


def _started(pid: int) -> str | None:
    """Return when that process started, in clock ticks since boot; "" if it is a zombie; None if unknown."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None  # not Linux, or hidden from us (hidepid): ``os.kill`` has found it, so it is not gone
    fields = text.rpartition(")")[2].split()
    return "" if fields[0] in ("Z", "X") else fields[19]

"""Who this process is, whether another one still lives, and what the clocks say."""

from __future__ import annotations

import os
import random
import time
from functools import lru_cache
from pathlib import Path
from typing import Final

from amends.ledger.world import Clocks

_BOOTTIME: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", None)


def mono() -> float:
    """Monotonic time that also passes while the host sleeps: a lease runs out, and an effect lands, all the same."""
    return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)


def clocks() -> Clocks:
    """Wall and monotonic time, with the name of the boot that the monotonic clock belongs to."""
    return Clocks(time.time(), mono(), boot_id())


def luck() -> float:
    """A number in [0, 1)."""
    return random.random()


def new_id(prefix: str) -> str:
    """A new id whose prefix tells its type; ids of one process sort by time."""
    return f"{prefix}_{time.time_ns() // 1000:013x}{os.urandom(5).hex()}"


@lru_cache(maxsize=1)
def boot_id() -> str:
    """This boot of this host: monotonic clocks of one boot can be compared across processes."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        # A container may have a time namespace of its own, whose monotonic clock is set off against the host's.
        return f"{boot} {_time_namespace()}".strip()
    except OSError:
        # No such file outside Linux: a name of our own keeps the clocks of two processes apart, which only
        # makes amends wait longer.
        return os.urandom(16).hex()


def _time_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/time").readlink())
    except OSError:
        return ""  # an older kernel: there is only one


def _host() -> str:
    """The host as far as process ids mean the same: name, boot, and (in containers) the pid namespace."""
    from socket import gethostname  # here: only a process that owns a run has a name

    try:
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        namespace = ""
    return f"{gethostname()}|{boot_id()}|{namespace}"


def owner_name() -> str:
    """This process as the ledger names it."""
    pid = os.getpid()
    return f"{_host()}|{pid}|{_started(pid) or ''}"


def is_dead(owner: str) -> bool:
    """Whether that owner is certainly dead: same host, and its process is gone. Otherwise nobody can say."""
    host, _, rest = owner.rpartition("|")
    host, _, pid_text = host.rpartition("|")
    if host != _host() or not pid_text.isdigit():
        return False
    pid = int(pid_text)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # somebody else's process has that id: its start time tells
    started = _started(pid)
    return started == "" or (started is not None and bool(rest) and started != rest)


def _started(pid: int) -> str | None:
    """When that process started, in clock ticks since boot; "" if it is a zombie; None if unknown."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None  # not Linux, or hidden from us (hidepid): a process that has gone is told by its signal
    fields = text.rpartition(")")[2].split()
    return "" if fields[0] in ("Z", "X") else fields[19]

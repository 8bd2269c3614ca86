"""Where tests put files that nobody keeps: in memory if there is room, because creating a ledger flushes many files."""

from __future__ import annotations

import os
from pathlib import Path

MEMORY = Path("/dev/shm")
# The two servers of a session take 250 MB when they are new; the rest is a guess. Docker gives 64 MB: too little.
FREE_BYTES_MIN = 4 << 30


def scratch_folder() -> Path | None:
    """Return a folder in memory that may hold large files and programs, or None if this machine has none.

    A file there outlives SIGKILL of every process, like one that was handed to the kernel: what tests of crashes need.
    """
    if not os.access(MEMORY, os.W_OK | os.X_OK):
        return None
    found = os.statvfs(MEMORY)
    is_large = found.f_bavail * found.f_frsize >= FREE_BYTES_MIN
    return MEMORY if is_large and not found.f_flag & getattr(os, "ST_NOEXEC", 0) else None

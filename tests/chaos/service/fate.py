"""When a process dies: at a named point, the how many-th time it comes there. Standard library only.

The order is a file, so that a process that is already running can be told. Whoever dies removes it first: the process
that is started afterwards lives.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Final

ENVIRON: Final = "AMENDS_CHAOS_FATES"
"""The folder of the orders; a process without one lives."""


ANYWHERE: Final = "anywhere"
"""The point at which a process always is."""


class Fate:
    """The end of one process, and what it passed on the way."""

    def __init__(self, folder: str | Path | None, actor: str) -> None:
        self._order = Path(folder) / actor if folder else None
        self._trace = Path(folder) / f"{actor}.trace" if folder else None
        self._passed: Counter[str] = Counter()
        self._seen = 0
        self._lock = threading.Lock()

    @classmethod
    def of(cls, actor: str) -> Fate:
        """Return the fate of this process."""
        return cls(os.environ.get(ENVIRON), actor)

    def passing(self, point: str) -> None:
        """Note that the process is at a named point; perhaps it ends here."""
        if self._order is None or self._trace is None:
            return
        with self._lock:
            try:
                made = self._order.stat()
            except FileNotFoundError:
                return
            if made.st_mtime_ns != self._seen:  # another order: count from here
                self._seen = made.st_mtime_ns
                self._passed.clear()
            self._passed[point] += 1
            self._passed[ANYWHERE] += 1
            wanted = json.loads(self._order.read_text())
            if wanted.get("trace"):
                with self._trace.open("a", encoding="utf-8") as trace:
                    trace.write(f"{point}\t{self._passed[point]}\n")
            at = wanted.get("point")
            if at in (point, ANYWHERE) and wanted.get("number") == self._passed[at]:
                self._order.unlink()
                os.kill(os.getpid(), signal.SIGKILL)


def order(folder: Path, actor: str, *, point: str = "", number: int = 1, trace: bool = False) -> None:
    """Tell a process where to die, or to write down what it passes."""
    (folder / f"{actor}.trace").unlink(missing_ok=True)
    new = folder / f"{actor}.new"
    new.write_text(json.dumps({"point": point, "number": number, "trace": trace}), encoding="utf-8")
    new.replace(folder / actor)


def traced(folder: Path, actor: str) -> list[tuple[str, int]]:
    """Return what a process passed, in order."""
    path = folder / f"{actor}.trace"
    if not path.exists():
        return []
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    return [(point, int(number)) for point, number in rows]


def is_done(folder: Path, actor: str) -> bool:
    """Return whether an order was carried out."""
    return not (folder / actor).exists()


def forget(folder: Path, actor: str) -> bool:
    """Withdraw an order; return whether nobody had carried it out."""
    try:
        (folder / actor).unlink()
    except FileNotFoundError:
        return False
    return True

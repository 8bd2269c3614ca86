"""The anchor: the newest checkpoint, kept in a file outside the ledger.

The anchor is a mark outside the ledger: the newest approval that was consumed, and the newest checkpoint. A ledger that
does not have both was restored from a copy. Without the first, yesterday's copy would offer approvals again, for calls
that were made. Without the second, the copy would look like a ledger in which nothing happened today.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import IO, Any, Final

from amends.encoding.chain import Anchored, anchored_from
from amends.encoding.dataclass import dataclass
from amends.errors import LedgerUnavailable, UsageError
from amends.ledger.paths import split_path
from amends.visible import visible_log

log = visible_log("amends")

NOT_AN_ANCHOR: Final = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)
"""The errors that reading a file raises if it is not an anchor."""
BYTES_MAX: Final = 4_096
"""A mark is one line; a larger file is no anchor."""


@dataclass(frozen=True, slots=True)
class Mark:
    """When an approval was last consumed, that approval, and the newest checkpoint."""

    at: float = 0.0
    """Only orders two uses; what a ledger must have is the approval, consumed."""
    approval: str = ""
    checkpoint: Anchored | None = None


def moved_to(known: Mark | None, newest: Anchored) -> Mark | None:
    """Return the mark with this checkpoint, or ``known`` if it has a later one; None if it has another ledger's."""
    kept = None if known is None else known.checkpoint
    if kept is None or known is None:
        return Mark(0.0 if known is None else known.at, "" if known is None else known.approval, newest)
    if kept.ledger != newest.ledger:
        return None
    return known if kept.n >= newest.n else Mark(known.at, known.approval, newest)


class Anchor:
    """One file, replaced atomically. It never moves backwards, except by ``reset``, which a person asks for."""

    def __init__(self, path: Path, ledger: str = "") -> None:
        self.path = path
        self.ledger = ledger
        """Where the ledger is, for people: its file, or its url."""
        self._lock, self._counting = threading.Lock(), threading.Lock()
        self.sessions = 0
        """How often the store has begun a session with a server, or lost one: each time another server, with an older
        copy of the ledger, may answer from then on."""
        self.held_at = self.asked_at = -1
        """The value of ``sessions`` before this process last saw that the ledger has the checkpoint; and before it last
        compared the ledger with what the anchor has, if only with nothing."""
        self._file = os.fspath(path)
        self._is_unlocked = False
        """Whether it was said that the file cannot be locked."""
        self._seen: tuple[bytes, Mark] | None = None
        """What the file said when it was last read, and the mark that this is."""

    @property
    def is_held(self) -> bool:
        """Whether this process has checked that the ledger has the checkpoint, in the sessions that it has now."""
        return self.held_at == self.sessions

    @property
    def is_compared(self) -> bool:
        """Whether the ledger was compared with the anchor in the sessions that this process has now."""
        return self.asked_at == self.sessions

    def doubt(self) -> None:
        """Note that another server may answer from now on; any thread may, and no note is lost."""
        with self._counting:
            self.sessions += 1

    def read(self) -> Mark | None:
        """Return the mark; None if no approval was ever consumed and there is no checkpoint."""
        try:
            # Every opening of a run reads it: not by a file object, which takes ten times as long.
            file = os.open(self._file, os.O_RDONLY | getattr(os, "O_BINARY", 0))
            try:
                raw = os.read(file, BYTES_MAX)
            finally:
                os.close(file)
            seen = self._seen
            if seen is not None and seen[0] == raw:
                return seen[1]
            said = json.loads(raw)
            kept = said.get("checkpoint")
            mark = Mark(_time(said["at"]), str(said["approval"]), None if kept is None else anchored_from(kept))
            self._seen = raw, mark
            return mark
        except FileNotFoundError:
            return None
        except (OSError, *NOT_AN_ANCHOR) as error:
            raise LedgerUnavailable(
                f"the ledger's anchor {self.path} cannot be read: {error}",
                hint="restore the file, or check the ledger and call rt.reconcile_restore(by=..., why=...)",
            ) from error

    def keep(self, at: float, approval: str) -> None:
        """Move the mark at least to this use; it is on disk when this returns."""
        with self._exclusive():
            known = self.read()
            if known is None or known.at <= at:  # two concurrent calls may arrive in either order
                self._write(Mark(at, approval, None if known is None else known.checkpoint))

    def keep_checkpoint(self, newest: Anchored) -> bool:
        """Move the mark at least to this checkpoint, on disk; return False if the anchor belongs to another ledger."""
        with self._exclusive():
            known = self.read()
            moved = moved_to(known, newest)
            if moved is not None and moved is not known:
                try:
                    self._write(moved)
                except LedgerUnavailable as error:
                    raise LedgerUnavailable(
                        f"checkpoint {newest.n} is in the ledger but cannot be written to its anchor {self.path}:"
                        f" {error.__cause__ or error}",
                        hint="make its folder writable, or name another file with anchor=",
                    ) from error
        return moved is not None

    def reset(self) -> None:
        """Accept the ledger as it is now, because a person has checked it."""
        with self._exclusive():
            self._write(Mark())

    def _write(self, mark: Mark) -> None:
        beside = self.path.with_name(f"{self.path.name}.{os.getpid()}.new")
        try:
            with beside.open("wb") as file:
                file.write(json.dumps(_said(mark)).encode())
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self.path)
            if hasattr(os, "O_DIRECTORY"):
                folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    os.fsync(folder)
                finally:
                    os.close(folder)
        except OSError as error:
            raise LedgerUnavailable(
                f"the ledger's anchor {self.path} cannot be written, so no approved call is started: {error}",
                hint="make its folder writable, or name another file with anchor=",
            ) from error

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Exclude other threads, and other processes where the system has file locks."""
        with self._lock, contextlib.ExitStack() as stack:
            beside = self.path.with_name(f"{self.path.name}.lock")
            try:
                _lock(stack.enter_context(beside.open("ab")), stack)
            except (ImportError, OSError) as error:  # a system, or a file system, without locks
                if not self._is_unlocked:  # once: it is asked for often
                    log.warning("the anchor cannot be locked by %s; only one process may write it: %s", beside, error)
                self._is_unlocked = True
            yield


def _lock(held: IO[bytes], stack: contextlib.ExitStack) -> None:
    """Lock an open file until the stack is left: by ``flock``, on Windows by ``msvcrt``.

    Raise ``OSError`` or ``ImportError`` if the system has neither.
    """
    try:
        import fcntl
    except ImportError:
        import msvcrt
    else:
        fcntl.flock(held, fcntl.LOCK_EX)  # ends when the file is closed
        return
    locks: Any = msvcrt  # its names are known on Windows only
    held.seek(0)
    try:
        locks.locking(held.fileno(), locks.LK_LOCK, 1)  # it tries for ten seconds
    except OSError as error:
        raise LedgerUnavailable(f"another process keeps the lock of the ledger's anchor: {held.name}") from error

    def unlock() -> None:
        held.seek(0)
        locks.locking(held.fileno(), locks.LK_UNLCK, 1)

    stack.callback(unlock)


def _time(said: Any) -> float:
    at = float(said)
    if not isfinite(at):
        raise ValueError(f"{said} is not a time")
    return at


def read_copy(path: Path) -> Anchored:
    """Return the checkpoint in a copy of an anchor, or in a file with the JSON of ``Checkpoint.to_dict``."""
    try:
        with path.open("rb") as file:
            said = json.loads(file.read(BYTES_MAX))
        return anchored_from(said.get("checkpoint") or said)
    except (OSError, *NOT_AN_ANCHOR) as error:
        raise UsageError(
            f"{path} holds no checkpoint: {type(error).__name__}: {error}",
            hint="give a copy of the ledger's .anchor file, or the checkpoint that on_checkpoint= received, as JSON",
        ) from error


def _said(mark: Mark) -> dict[str, Any]:
    said: dict[str, Any] = {"at": mark.at, "approval": mark.approval}
    return said if mark.checkpoint is None else {**said, "checkpoint": asdict(mark.checkpoint)}


def anchor_of(url: str, said: str | None) -> Anchor | None:
    """Return the anchor of a ledger: at ``said``, else beside a SQLite file; None if it has none."""
    path = Path(split_path(url.removeprefix("sqlite:///"))[0]).absolute() if url.startswith("sqlite:///") else None
    ledger = url if path is None else str(path)
    if said:
        return Anchor(Path(said).absolute(), ledger)
    return None if path is None else Anchor(path.with_name(f"{path.name}.anchor"), ledger)

"""A mark outside the ledger: the newest approval that was used up, and the newest checkpoint of its own chain.

A ledger that does not have them was put back. Without the one, yesterday's copy would offer its approvals once more,
for calls that have been made; without the other, nobody could tell it from a ledger in which nothing happened today.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from amends.checkpoint import Anchored, anchored_from
from amends.errors import LedgerUnavailable, UsageError
from amends.record import dataclass

NO_MARK: Final = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)
"""What a file raises that holds something else."""
BYTES_MAX: Final = 4_096
"""A mark is a line; a larger file is not ours."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The place in the ledger's record up to which approvals were used up, the approval that was, and a checkpoint."""

    seq: int
    approval: str = ""
    checkpoint: Anchored | None = None


def moved_to(known: Mark | None, newest: Anchored) -> Mark | None:
    """The mark with this checkpoint, or itself where it knows a later one; None: what it knows is another ledger's."""
    kept = None if known is None else known.checkpoint
    if kept is None or known is None:
        return Mark(0 if known is None else known.seq, "" if known is None else known.approval, newest)
    if kept.ledger != newest.ledger:
        return None
    return known if kept.n >= newest.n else Mark(known.seq, known.approval, newest)


class Anchor:
    """One file; written whole or not at all, and never backwards but by a person's word."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self.is_held = False
        """Whether this process has found the ledger to have the checkpoint: it is asked for once."""

    def read(self) -> Mark | None:
        """The mark; None: nothing was ever used up, and there is no checkpoint."""
        try:
            with self.path.open("rb") as file:
                said = json.loads(file.read(BYTES_MAX))
            kept = said.get("checkpoint")
            return Mark(int(said["seq"]), str(said["approval"]), None if kept is None else anchored_from(kept))
        except FileNotFoundError:
            return None
        except (OSError, *NO_MARK) as error:
            raise LedgerUnavailable(
                f"the ledger's anchor {self.path} cannot be read: {error}",
                hint="put it back, or look at the ledger and call rt.reconcile_restore(by=..., why=...)",
            ) from error

    def keep(self, seq: int, approval: str) -> None:
        """The mark is at least here when this returns, on the disk."""
        with self._alone():
            known = self.read()
            if known is None or known.seq < seq:  # two who start at once may come here in either order
                self._write(Mark(seq, approval, None if known is None else known.checkpoint))

    def keep_checkpoint(self, newest: Anchored) -> bool:
        """The mark's checkpoint is at least this one when this returns, on the disk; false: it is another ledger's."""
        with self._alone():
            known = self.read()
            moved = moved_to(known, newest)
            if moved is not None and moved is not known:
                try:
                    self._write(moved)
                except LedgerUnavailable as error:
                    raise LedgerUnavailable(
                        f"checkpoint {newest.n} is in the ledger and cannot be written to its anchor {self.path}:"
                        f" {error.__cause__ or error}",
                        hint="make its folder writable, or name another file with anchor=",
                    ) from error
        return moved is not None

    def reset(self, seq: int) -> None:
        """A person has looked: the ledger counts from here on."""
        with self._alone():
            self._write(Mark(seq))

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
                f"the ledger's anchor {self.path} cannot be written, so nothing that was approved is started: {error}",
                hint="make its folder writable, or name another file with anchor=",
            ) from error

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Other processes write it too: one after another, where the system has locks for files."""
        with self._lock, contextlib.ExitStack() as stack:
            with contextlib.suppress(ImportError, OSError):
                import fcntl

                held: Any = stack.enter_context(self.path.with_name(f"{self.path.name}.lock").open("ab"))
                fcntl.flock(held, fcntl.LOCK_EX)
            yield


def read_copy(path: Path) -> Anchored:
    """The checkpoint in a copy of an anchor, or in a file that holds one as ``Checkpoint.to_dict`` says it."""
    try:
        with path.open("rb") as file:
            said = json.loads(file.read(BYTES_MAX))
        return anchored_from(said.get("checkpoint") or said)
    except (OSError, *NO_MARK) as error:
        raise UsageError(
            f"{path} holds no checkpoint: {type(error).__name__}: {error}",
            hint="give a copy of the ledger's .anchor file, or what on_checkpoint= was given, as JSON",
        ) from error


def _said(mark: Mark) -> dict[str, Any]:
    said: dict[str, Any] = {"seq": mark.seq, "approval": mark.approval}
    return said if mark.checkpoint is None else {**said, "checkpoint": asdict(mark.checkpoint)}


def anchor_of(url: str, said: str | None) -> Anchor | None:
    """The anchor of a ledger: beside a file, or where it is said; None: it has none."""
    if said:
        return Anchor(Path(said).absolute())
    if not url.startswith("sqlite:///"):
        return None
    path = Path(url.removeprefix("sqlite:///").partition("?")[0]).absolute()
    return Anchor(path.with_name(f"{path.name}.anchor"))

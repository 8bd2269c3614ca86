"""The outside world: one file per kind of thing, appended to and synced. What is in it has happened."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any


class World:
    """Effects by the name of their tool. ``standing`` is what was done and not undone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def url(self) -> str:
        """The ledger, which lies beside the world and is no part of it."""
        return f"sqlite:///{self.folder / 'ledger.db'}"

    def note(self, book: str, **facts: Any) -> None:
        """Write one line into a book; when this returns, it is on the disk."""
        with (self.folder / f"{book}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({**facts, "at": time.time(), "pid": os.getpid()}) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def entries(self, book: str) -> list[dict[str, Any]]:
        """What is in a book."""
        path = self.folder / f"{book}.jsonl"
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []

    def do(self, tool: str, id: str, **facts: Any) -> str:
        """An effect. ``key``: the destination deduplicates on it."""
        key = facts.get("key")
        if key is not None:
            for entry in self.entries(tool):
                if entry.get("key") == key and "do" in entry:
                    return str(entry["do"])
        self.note(tool, do=id, **facts)
        die_at(f"after {tool}")
        return id

    def undo(self, tool: str, id: str) -> None:
        """The twin's effect."""
        self.note(tool, undo=id)

    def standing(self, tool: str) -> list[str]:
        """What is there now."""
        found: list[str] = []
        for entry in self.entries(tool):
            if "do" in entry:
                found.append(entry["do"])
            elif entry.get("undo") in found:
                found.remove(entry["undo"])
        return found

    def undone(self, tool: str) -> list[str]:
        """What was taken back, in order."""
        return [entry["undo"] for entry in self.entries(tool) if "undo" in entry]

    def contents(self) -> dict[str, bytes]:
        """Everything, to compare."""
        return {path.name: path.read_bytes() for path in sorted(self.folder.glob("*.jsonl"))}


def die_at(point: str) -> None:
    """The machine's own way out: nothing is flushed, closed or told."""
    if os.environ.get("DIE_AT") == point:
        os.kill(os.getpid(), signal.SIGKILL)

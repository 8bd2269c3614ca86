"""The outside world: one file per run, appended to. One line is one thing that happened, and no ledger can undo it."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PER_FOLDER = 500


@dataclass(frozen=True, slots=True)
class Traits:
    """How the destination of a tool behaves, and so what may be asked of amends there."""

    safe: bool
    """Call and compensation have a probe or an idempotent destination: nothing of it may ever need a person."""
    dedups: bool = False
    undo_dedups: bool = False
    undo_tolerates: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that happened. ``what``: do, undo, told."""

    what: str
    tool: str
    key: str
    call: str
    run: str
    attempt: int
    pid: int
    at: float


class World:
    """What is in it has happened: a single write to a file opened with O_APPEND, which no kill can split."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, number: int) -> Path:
        """Where the effects of one run are."""
        return self.folder / str(number // PER_FOLDER) / str(number)

    def make(self, runs: int) -> None:
        """Folders for so many runs."""
        for place in range(runs // PER_FOLDER + 1):
            (self.folder / str(place)).mkdir(parents=True, exist_ok=True)

    def note(self, number: int, what: str, tool: str, *, key: str, call: str, run: str, attempt: int) -> None:
        """It happens: when this returns, and also if the process dies right after."""
        line = json.dumps([what, tool, key, call, run, attempt, os.getpid(), round(time.monotonic(), 4)]) + "\n"
        file = os.open(self.path(number), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)

    def has(self, number: int, what: str, key: str) -> bool:
        """What a probe learns: whether it happened under this key."""
        return any(line.what == what and line.key == key for line in self.lines(number))

    def lines(self, number: int) -> list[Line]:
        """Everything that happened to one run's things, in order."""
        try:
            text = self.path(number).read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        return [Line(*json.loads(line)) for line in text.splitlines()]

    def numbers(self) -> Iterator[int]:
        """The runs that left a trace."""
        for folder in self.folder.iterdir():
            for path in folder.iterdir():
                yield int(path.name)


@dataclass(slots=True)
class Standing:
    """One run's part of the world as its destinations see it; also what the simulator's checkers ask of a world."""

    done: Counter[str] = field(default_factory=Counter)
    """Effects per call; what a destination recognised as a repeat is none."""
    undone: Counter[str] = field(default_factory=Counter)
    tools: dict[str, str] = field(default_factory=dict)
    runs: dict[str, str] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)
    there: set[str] = field(default_factory=set)
    unwritten: list[str] = field(default_factory=list)

    def stands(self, call_id: str) -> bool:
        """Whether the effect of this call is there now."""
        return call_id in self.there

    def landed_counts(self, phase: str) -> Counter[str]:
        """How often each call's effect, or its compensation, landed."""
        return self.done if phase == "execute" else self.undone

    def standing_intents(self, store: Any) -> Counter[tuple[str, str, str]]:
        """How often each intent stands, over all generations of the run."""
        calls = [call for call in store.calls.values() if call.kind != "read" and self.stands(call.id)]
        return Counter((store.runs[call.root].id, call.tool, call.args) for call in calls)


def standing(lines: list[Line], traits: dict[str, Traits]) -> Standing:
    """Play the lines to the destinations."""
    now = Standing()
    seen: set[tuple[str, str]] = set()
    for line in lines:
        if line.what == "told":
            now.told.add(line.run)
            continue
        now.tools[line.call], now.runs[line.call] = line.tool, line.run
        kind = traits[line.tool]
        repeat = (line.what, line.key) in seen
        seen.add((line.what, line.key))
        if line.what == "do" and not (repeat and kind.dedups):
            now.done[line.call] += 1
            now.there.add(line.call)
        elif line.what == "undo" and not (repeat and kind.undo_dedups):
            if line.call in now.there or not kind.undo_tolerates:
                now.undone[line.call] += 1
            now.there.discard(line.call)
    return now

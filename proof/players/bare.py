"""The tasks without a guard, as most programs are today: a framework's retries around each call, and a restart after a crash."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from proof.destination import Destination, Scenario, die, reword

VERSION = "bare, 3 tries a call"
TRIES_MAX = 3


def prepare(catalogue: dict[str, Any]) -> None:
    """Nothing to do."""


def play(scenario: Scenario) -> int:
    """Work on the task; every error is tried again, as frameworks do by default."""
    there = Destination(scenario)
    resumed = scenario.has_struck
    for number, (tool, args) in enumerate(scenario.calls):
        here = number == scenario.at
        if here and resumed and scenario.fault == "reworded":
            args = reword(tool, args) or args
        for attempt in range(TRIES_MAX):
            try:
                there.perform(tool, args)
                break
            except Exception:
                if attempt == TRIES_MAX - 1:
                    raise
        if not here:
            continue
        if scenario.fault == "new id":
            there.perform(tool, args)
        if scenario.fault in ("kill after", "reworded") and scenario.strike():
            die()
        if scenario.fault == "failure" and scenario.strike():
            return 0
    Path(scenario.folder, "done").touch()
    return 0


def finish(scenario: Scenario) -> int:
    """Nobody is there who could finish it: say how it stands."""
    done = Path(scenario.folder, "done").exists()
    outcome: dict[str, Any] = {
        "state": "committed" if done else "left",
        "residue": [],
        "causes": [],
        "doubts": [],
        "verified": True,
        "report": "",
    }
    Path(scenario.folder, "outcome.json").write_text(json.dumps(outcome), encoding="utf-8")
    return 0

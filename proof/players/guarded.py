"""A task over a package that guards single calls: a key for each call, a restart after a crash, compensations by hand.

A player of such a package gives ``guard(key, tool, args, body)``, which runs the body at most once for the key, as its
documentation says. The key is made of the tool and all its arguments, since the framework's call id is new in every retry.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from proof.abilities import SNAPSHOT, UNDO, choice, given
from proof.destination import Destination, Scenario, die, reword

TRIES_MAX = 3
Guard = Callable[[str, str, dict[str, Any], Callable[[], Any]], Any]


class TaskFailed(Exception):
    """The agent gave up, as the scenario wants, or since a call failed each time."""


class NotRepeated(Exception):
    """The package did not start the body again and gave no result: a person has to look."""


def key_of(tool: str, args: dict[str, Any]) -> str:
    """Return the key of a call: the tool and its arguments."""
    return f"{tool}:{json.dumps(args, sort_keys=True)}"


def play(scenario: Scenario, guard: Guard) -> int:
    """Work on the task; each call through the guard, tried again after an error; on failure undo in reverse order."""
    there = Destination(scenario)
    resumed = scenario.has_struck
    done: list[tuple[str, dict[str, Any], Any, Any]] = []
    try:
        for number, (tool, args) in enumerate(scenario.calls):
            here = number == scenario.at
            if here and resumed and scenario.fault == "reworded":
                args = reword(tool, args) or args
            before = SNAPSHOT[tool](there.world, args) if tool in SNAPSHOT else None
            result = _tried(scenario, guard, there, tool, args)
            done.append((tool, args, result, before))
            if here:
                _strike(scenario, guard, there, tool, args)
    except TaskFailed:
        for tool, args, result, before in reversed(done):
            if tool in UNDO and result is not None:
                undo = functools.partial(UNDO[tool], there.world, given(args), result, before)
                guard(f"undo {key_of(tool, args)}", f"undo_{tool}", args, undo)
        Path(scenario.folder, "taken back").touch()
        return 0
    except NotRepeated as error:
        Path(scenario.folder, "blocked").write_text(str(error), encoding="utf-8")
        return 0
    Path(scenario.folder, "done").touch()
    return 0


def _tried(scenario: Scenario, guard: Guard, there: Destination, tool: str, args: dict[str, Any]) -> Any:
    """Make a call, as often as a model would. A read is not guarded: nobody would."""
    is_read = choice(scenario.suite, tool)[0] == "read"
    for attempt in range(TRIES_MAX):
        ran: list[bool] = []

        def body() -> Any:
            ran.append(True)  # called before the next turn, or never
            return there.perform(tool, dict(args))

        try:
            return body() if is_read else guard(key_of(tool, args), tool, args, body)
        except Exception as error:
            print(tool, type(error).__name__, error)
            if not ran:
                raise NotRepeated(f"{tool}: {type(error).__name__}: {error}") from error
            if attempt == TRIES_MAX - 1:
                raise TaskFailed from error
    return None


def _strike(scenario: Scenario, guard: Guard, there: Destination, tool: str, args: dict[str, Any]) -> None:
    if scenario.fault == "new id":
        _tried(scenario, guard, there, tool, args)
    if scenario.fault in ("kill after", "reworded") and scenario.strike():
        die()
    if scenario.fault == "failure" and scenario.strike():
        raise TaskFailed


def finish(scenario: Scenario, *, left: str = "left") -> int:
    """Write down how the task stands: nobody else finishes it."""
    folder = Path(scenario.folder)
    blocked = folder / "blocked"
    causes = [blocked.read_text(encoding="utf-8")] if blocked.exists() else []
    state = "committed" if (folder / "done").exists() else "rolled_back" if (folder / "taken back").exists() else left
    state = "blocked" if causes and state == left else state
    outcome = {"state": state, "residue": [], "causes": causes, "doubts": [], "verified": True, "report": ""}
    (folder / "outcome.json").write_text(json.dumps(outcome), encoding="utf-8")
    return 0

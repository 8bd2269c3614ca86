"""What must be true after a scenario: which calls took effect and were compensated, played bare on a fresh world."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from proof.abilities import SETTERS, SNAPSHOT, UNDO, choice, comes_last, given
from proof.destination import Scenario, World

Calls = list[tuple[str, dict[str, Any]]]


@dataclass(frozen=True)
class Expected:
    """The state of the run, the world, and how often each effect was made."""

    state: str
    world: dict[str, Any]
    effects: Counter[str]


def expected(scenario: Scenario, world: World) -> Expected:
    """Play what must have happened on a world of its own, without amends and without a fault."""
    world.ask("new", suite=scenario.suite, task=scenario.task)
    forward, made = _ending(scenario)
    done: list[tuple[str, dict[str, Any], Any, Any]] = []
    suite = scenario.suite
    direct = [call for call in made if forward or not comes_last(suite, call[0])]
    # Staged calls run at the end, in the order in which they were asked for.
    for tool, args in sorted(direct, key=lambda call: comes_last(suite, call[0])):
        before = SNAPSHOT[tool](world, args) if tool in SNAPSHOT else None
        done.append((tool, args, world.call(tool, dict(args)), before))
    if not forward:
        for tool, args, result, before in reversed(done):
            if tool in UNDO:
                UNDO[tool](world, given(args), result, before)
    found = world.ask("state")
    return Expected("committed" if forward else "rolled_back", found["state"], effects_in(suite, found["journal"]))


def effects_in(suite: str, journal: list[Any]) -> Counter[str]:
    """Return how often each effect is in a journal of a world: without reads, and without values that are set."""
    return Counter(effect_name(tool, args) for tool, args in journal if counts(suite, tool))


def counts(suite: str, tool: str) -> bool:
    """Return whether it matters how often a tool was carried out."""
    return choice(suite, tool)[0] != "read" and tool not in SETTERS


def effect_name(tool: str, args: dict[str, Any]) -> str:
    """Return what an effect is, however it is worded."""
    kept = {name: value for name, value in args.items() if name not in ("body", "subject", "description")}
    return f"{tool} {sorted(kept.items())}"


def _ending(scenario: Scenario) -> tuple[bool, Calls]:
    """Return whether the run goes forward, and the calls that take effect (those of a rollback are undone again)."""
    calls, at = scenario.calls, scenario.at
    ends = scenario.fault == "failure" or (scenario.then == "rollback" and scenario.fault.startswith("kill"))
    if not ends:
        return True, calls
    tool = calls[at][0]
    if comes_last(scenario.suite, tool) and scenario.fault in ("kill before", "kill between"):
        return True, calls  # struck while the commit carried it out: past the point of no return
    # A call whose process died before it sent anything leaves nothing. A value that is set has no probe: it is set once more, to
    # learn that it is set.
    repeated = choice(scenario.suite, tool)[2].get("idempotent") == "put"
    made = calls[:at] if scenario.fault == "kill before" and not repeated else calls[: at + 1]
    pivoted = any(
        choice(scenario.suite, name)[0] == "pivot" and not comes_last(scenario.suite, name) for name, _ in made
    )
    return pivoted, made

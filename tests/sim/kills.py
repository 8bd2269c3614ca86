"""The schedules that kill the seeded bugs, remembered in ``kills.json``: played first, they save ``make test`` the search.

A schedule that no longer kills its bug is only out of date: the search follows. Write the file again with
``make sim ARGS=--remember-kills``.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from typing import Any

from amends.testing.simulation import Fault
from tests.sim.bugs import BUGS, Bug, Kill, killed_by, killed_in
from tests.sim.scenarios import Variant
from tests.sim.schedule import Schedule
from tests.sim.sweep import Play, Tally, scenarios_of

FILE = Path(__file__).with_name("kills.json")
_FAULTS = ("agent", "recovery", "second", "later")


class StaleKill(UserWarning):
    """A remembered schedule does not kill its bug any more, or there is none."""


def remembered(bug: Bug) -> list[Play]:
    """Return what is known to kill the bug, once for each flow of the remembered name; nothing if there is no such flow."""
    known = _read().get(bug.number)
    if known is None:
        return []
    variant = Variant(**known["variant"])
    asked: dict[str, Any] = {
        name: _faults(value) if name in _FAULTS else value for name, value in known["schedule"].items()
    }
    flows = enumerate(scenarios_of(variant))
    return [(variant, index, Schedule(**asked)) for index, flow in flows if flow.name == known["flow"]]


def known() -> set[str]:
    """Return the numbers of the bugs that have a remembered schedule."""
    return set(_read())


def killed_as_remembered(bug: Bug) -> Kill | None:
    """Return how the remembered schedule kills the bug; None if it does not."""
    return killed_in(bug, remembered(bug), Tally())


def remember_kills() -> list[str]:
    """Write a schedule for each bug, the known one where it still kills; return the bugs that survived everything."""
    found: dict[str, Any] = {}
    survivors = []
    for bug in BUGS:
        kill = killed_as_remembered(bug) or killed_by(bug, seconds=120.0)[0]
        if kill is None:
            survivors.append(bug.number)
        else:
            found[bug.number] = _written(kill)
        print(f"   bug {bug.number:<4} {bug.what:<62} {'SURVIVED' if kill is None else kill.checker}", flush=True)
    lines = (f"  {json.dumps(number)}: {json.dumps(found[number])}" for number in found)
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    _read.cache_clear()
    print(f"{len(found)} schedules are in {FILE.name}", flush=True)
    return survivors


@cache
def _read() -> dict[str, Any]:
    known: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    return known


def _faults(written: list[tuple[int, str]]) -> tuple[Fault, ...]:
    return tuple(Fault(at, kind) for at, kind in written)


def _written(kill: Kill) -> dict[str, Any]:
    """Return the kill as JSON, without what has its default value."""
    flow = scenarios_of(kill.variant)[kill.index].name
    schedule = _unlike(kill.schedule, Schedule())
    for name in schedule.keys() & set(_FAULTS):
        schedule[name] = [[fault["at"], fault["kind"]] for fault in schedule[name]]
    return {"flow": flow, "variant": _unlike(kill.variant, Variant()), "schedule": schedule}


def _unlike(value: Variant | Schedule, default: Variant | Schedule) -> dict[str, Any]:
    names = [each.name for each in fields(value) if getattr(value, each.name) != getattr(default, each.name)]
    return {name: asdict(value)[name] for name in names}

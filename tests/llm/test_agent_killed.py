"""An agent that is killed, at every point that matters, goes on with the same id: nothing twice, nothing lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import amends
from amends import Happened, Runtime
from tests.llm.shop import World, tools_of

ROOT = Path(__file__).resolve().parent.parent.parent
ALL = ["charge 7", "reserve box", "reserve ribbon", "ship 7", "mail ada"]


def play(folder: Path, kind: str = "script", *, fails: str = "", **environment: str) -> Any:
    """What the program printed; None where it died, or failed as it was to."""
    path = os.pathsep.join((str(Path(amends.__file__).resolve().parent.parent), str(ROOT)))
    done = subprocess.run(
        [sys.executable, "-m", "tests.llm.shop", str(folder), kind],
        env={**os.environ, "PYTHONPATH": path, **environment}, cwd=folder, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    if "DIE_AT" in environment or fails:
        assert done.returncode == (1 if fails else -signal.SIGKILL), done.stderr
        assert fails in done.stderr
        return None
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def effects(folder: Path) -> list[str]:
    return sorted(" ".join(line.split()[:2]) for line in World(folder).done)


POINTS = {
    "before charge": 3,
    "after charge": 3,
    "after reserve box": 3,
    "second turn": 3,
    "after reserve ribbon": 2,
    "last words": 1,
}
"""Where it dies, and how often the model is asked after that: what it had said is in the ledger."""


@pytest.mark.parametrize(
    "point", [one if one.startswith("after charge") else pytest.param(one, marks=pytest.mark.rest) for one in POINTS]
)
def test_a_killed_agent_goes_on_where_it_was(tmp_path: Path, point: str) -> None:
    play(tmp_path, DIE_AT=point)
    done = play(tmp_path)
    assert (done["outcome"], done["state"], done["text"]) == ("done", "committed", "Order 7 is on its way.")
    assert (done["turns"], done["asked"]) == (4, POINTS[point])
    assert effects(tmp_path) == sorted(ALL)


@pytest.mark.parametrize(
    "kind",
    ["chat", *(pytest.param(one, marks=pytest.mark.rest) for one in ("responses", "messages", "generate_content"))],
)
def test_a_killed_agent_of_an_sdk_goes_on_where_it_was(tmp_path: Path, kind: str) -> None:
    play(tmp_path, kind, DIE_AT="after reserve ribbon")
    done = play(tmp_path, kind)
    assert (done["outcome"], done["turns"], done["asked"]) == ("done", 4, 2)
    assert effects(tmp_path) == sorted(ALL)


def test_it_may_die_again_and_again(tmp_path: Path) -> None:
    for point in ("before charge", "second turn", "after reserve ribbon", "last words"):
        play(tmp_path, DIE_AT=point)
    assert play(tmp_path)["outcome"] == "done"
    assert effects(tmp_path) == sorted(ALL)


def test_what_nobody_can_tell_stays_a_doubt_until_a_person_says(tmp_path: Path) -> None:
    play(tmp_path, DIE_AT="after reserve ribbon")
    play(tmp_path, fails="RunBlocked", BLIND="1", AMENDS_WAIT="0.5")
    assert effects(tmp_path) == ["charge 7", "reserve box", "reserve ribbon"], "not one of them twice"
    with Runtime(World(tmp_path).url, create=False) as rt:
        [doubt] = rt.doubts()
        rt.resolve(doubt.id, Happened("r_ribbon"), by="ada", why="it is on the shelf")
    assert play(tmp_path, BLIND="1", AMENDS_WAIT="0.5")["outcome"] == "done"
    assert effects(tmp_path) == sorted({*ALL} - {"ship 7"}), "that was refused over the doubt, and the script went on"


def test_a_killed_agent_that_nobody_starts_again_is_taken_back(tmp_path: Path) -> None:
    play(tmp_path, DIE_AT="second turn")
    world = World(tmp_path)
    with Runtime(world.url, tools=tools_of(world)) as rt:
        assert [report.state for report in rt.recover()] == ["rolled_back"]
    assert effects(tmp_path) == ["charge 7", "refund ch_7", "release r_box", "reserve box"]

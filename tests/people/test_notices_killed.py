"""A process that is killed anywhere between asking and telling loses no notice; without a kill nobody is told twice."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import amends
from amends import Runtime
from tests.forked import run_python
from tests.people.office import COLOURS

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE_S = 120.0

POINTS = {
    "after AdmitCall": 1,
    "before ClaimNotice": 1,
    "after ClaimNotice": 1,
    "before hook": 1,
    "after hook": 2,
    "before RecordNotice": 2,
    "after RecordNotice": 1,
}
"""Where it dies, and how often people are told in the end: twice only where nobody could know that they had been."""


class Scene:
    def __init__(self, folder: Path, colour: str) -> None:
        self.url, self.told_file, self.colour = f"sqlite:///{folder / 'ledger.db'}", folder / "told.txt", colour

    def play(self, verb: str, die_at: str = "") -> int:
        """One process, to its end or its death; how it ended."""
        path = os.pathsep.join((str(Path(amends.__file__).resolve().parent.parent), str(ROOT)))
        done = run_python(
            ["-m", "tests.people.teller", self.url, str(self.told_file), self.colour, verb],
            cwd=ROOT, env={**os.environ, "PYTHONPATH": path, "DIE_AT": die_at}, timeout=PATIENCE_S,
        )  # fmt: skip
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        return done.returncode

    @property
    def told(self) -> list[str]:
        return self.told_file.read_text().split() if self.told_file.exists() else []


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("point", POINTS)
def test_a_notice_survives_its_process(point: str, colour: str, tmp_path: Path) -> None:
    scene = Scene(tmp_path, colour)
    assert scene.play("ask", die_at=point) == -signal.SIGKILL
    assert scene.play("recover until told") == 0
    with Runtime(scene.url, create=False) as rt:
        (approval,) = rt.approvals()
    assert scene.told == [approval.id] * POINTS[point]
    scene.play("recover")
    assert scene.told == [approval.id] * POINTS[point]


@pytest.mark.parametrize("colour", COLOURS)
def test_a_worker_that_dies_while_it_tells_leaves_it_to_the_next(colour: str, tmp_path: Path) -> None:
    scene = Scene(tmp_path, colour)
    scene.play("ask", die_at="after AdmitCall")
    assert scene.play("recover", die_at="before hook") == -signal.SIGKILL
    assert scene.told == []
    assert scene.play("recover until told") == 0
    assert len(scene.told) == 1


@pytest.mark.parametrize("colour", COLOURS)
def test_without_a_death_people_are_told_once(colour: str, tmp_path: Path) -> None:
    scene = Scene(tmp_path, colour)
    scene.play("ask")
    scene.play("ask")
    scene.play("recover")
    assert len(scene.told) == 1

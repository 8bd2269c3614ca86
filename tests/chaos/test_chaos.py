"""A short play over each ledger: real processes, real kills, and nothing done twice, lost, stuck or unnamed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import amends
from tests.servers.fixtures import unavailable

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE_S = 300  # a machine that does ten other things; alone it takes ten seconds
LINE = re.compile(r"(\w+): (\d+) runs, (\d+) kills, 0 duplicated, 0 lost, 0 stuck, 0 unnamed")


SERVERS = [pytest.param(name, marks=pytest.mark.rest) for name in ("postgresql", "mariadb")]


@pytest.mark.parametrize("store", ["sqlite", *SERVERS])
def test_a_short_play_ends_with_four_zeros(store: str) -> None:
    path = os.pathsep.join((str(Path(amends.__file__).resolve().parent.parent), str(ROOT)))
    # A process of its own: the play forks, and whoever forks has no threads.
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos", "--short", "--store", store],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    last = done.stdout.strip().rpartition("\n")[2]
    if done.returncode == 0 and "skipped" in last:
        unavailable(last)
    line = LINE.fullmatch(last)
    assert done.returncode == 0, f"{done.stderr}\n{done.stdout}"
    assert line is not None, f"{done.stderr}\n{done.stdout}"
    assert line[1] == store
    assert int(line[2]) > 0
    assert int(line[3]) > 0

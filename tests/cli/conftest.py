from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.command import PATIENCE_S, environment
from tests.forked import run_python

APP = Path(__file__).with_name("app.py")
Play = Callable[..., None]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Return a folder with a user's program, app.py."""
    shutil.copy(APP, tmp_path / "app.py")
    return tmp_path


@pytest.fixture
def play(shop: Path) -> Play:
    """Return a function that runs that program; ``dies`` is the order after whose effect it is killed."""

    def play(kind: str, *orders: str, dies: str = "") -> None:
        done = run_python(["app.py", kind, *orders], cwd=shop, env=environment(DIE=dies), timeout=PATIENCE_S)
        assert done.returncode == (-signal.SIGKILL if dies else 0), done.stderr

    return play

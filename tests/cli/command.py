"""``amends`` as a process, in an environment that says nothing about ledgers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import amends

SOURCE = Path(amends.__file__).resolve().parent.parent
PATIENCE_S = 90


def environment(**extra: str) -> dict[str, str]:
    """This process's, without what is set for amends."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AMENDS_", "NO_COLOR"))}
    return {**kept, "PYTHONPATH": str(SOURCE), "PYTHONIOENCODING": "utf-8", **extra}


def run(*args: str, cwd: Path, **extra: str) -> subprocess.CompletedProcess[str]:
    """One command, to its end."""
    return subprocess.run(
        [sys.executable, "-m", "amends", *args],
        cwd=cwd,
        env=environment(**extra),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE_S,
        check=False,
    )


def assert_refused(done: subprocess.CompletedProcess[str], *words: str, code: int = 2) -> None:
    """Exit 2, words on stderr, nothing on stdout, and no traceback."""
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert done.stderr.startswith("error["), done.stderr
    assert "docs: docs/reference/" in done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr

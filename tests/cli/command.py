"""Run ``amends`` as a process, in an environment without settings of amends."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import amends
from amends.cli import main
from amends.errors import DOCS
from tests.forked import run_python

SOURCE = Path(amends.__file__).resolve().parent.parent
PATIENCE_S = 90
FOREIGN = ("AMENDS_", "NO_COLOR", "COLUMNS")


def environment(**extra: str) -> dict[str, str]:
    """Return this process's environment without the settings of amends, and without a width, which pytest may set."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    return {**kept, "PYTHONPATH": str(SOURCE), "PYTHONIOENCODING": "utf-8", **extra}


def run(*args: str, cwd: Path, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    return run_python(["-m", "amends", *args], cwd=cwd, env=environment(**extra), timeout=PATIENCE_S)


def assert_refused(done: subprocess.CompletedProcess[str], *words: str, code: int = 2) -> None:
    """Check for exit code 2, an error on stderr with these words, nothing on stdout, and no traceback."""
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert done.stderr.startswith("error["), done.stderr
    assert f"docs: {DOCS}reference/" in done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


def here(*args: str, cwd: Path, columns: int | None = None) -> subprocess.CompletedProcess[str]:
    """Run one command in this process, which is faster; ``columns``: as wide as COLUMNS says."""
    kept, folder, path, modules = dict(os.environ), Path.cwd(), list(sys.path), set(sys.modules)
    out, err = io.StringIO(), io.StringIO()
    try:
        for name in [name for name in os.environ if name.startswith(FOREIGN)]:
            del os.environ[name]
        if columns is not None:
            os.environ["COLUMNS"] = str(columns)
        os.chdir(cwd)
        with redirect_stdout(out), redirect_stderr(err):
            code = main(args)
    finally:
        os.chdir(folder)
        os.environ.pop("COLUMNS", None)
        os.environ.update(kept)
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(cwd)):
                sys.modules.pop(name)  # the user's program, which the next test has in another folder
    return subprocess.CompletedProcess(args, code, out.getvalue(), err.getvalue())

"""Run commands in processes that are forked from one that has imported everything, which is faster than new ones."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import time
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from amends.cli import main

_FORKS: Final = get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.cli.loaded", __name__])


def forked(
    args: tuple[str, ...], *, cwd: Path, env: dict[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """Return what ``python -m amends ARGS`` would print, and its exit code."""
    with TemporaryDirectory(prefix="amends-cli-") as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        process = _FORKS.Process(target=_command, args=(args, cwd, env, out, err))
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(["amends", *args], timeout, out.read_text("utf-8"), err.read_text("utf-8"))
        return subprocess.CompletedProcess(args, process.exitcode, out.read_text("utf-8"), err.read_text("utf-8"))


def _command(args: tuple[str, ...], cwd: Path, env: dict[str, str], out: Path, err: Path) -> None:
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    for number, path, how in ((0, os.devnull, os.O_RDONLY), (1, out, os.O_WRONLY), (2, err, os.O_WRONLY)):
        file = os.open(path, how | os.O_CREAT, 0o600)
        os.dup2(file, number)
        os.close(file)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 (it ends with the process)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.argv = ["amends", *args]
    sys.path[:0] = [str(cwd)]  # as python -m does
    try:
        sys.exit(main(args))
    finally:
        atexit._run_exitfuncs()

"""Run Python programs in processes that are forked from one that has imported amends: a new one imports for long.

``loaded`` names the module that imports everything; another one also has, for example, the frameworks.

A child is a process of its own in every other way: its folder, its environment, its files, its signals, its death.
What only a new interpreter shows, such as an import that is missing, has tests that start one.
"""

from __future__ import annotations

import atexit
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Sequence
from contextlib import chdir
from multiprocessing import forkserver, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Final, Self
from unittest import mock

ROOT: Final = Path(__file__).resolve().parent.parent
AMENDS: Final = "tests.loaded"
_FORKS: Final = get_context("forkserver")
_SERVERS: Final[dict[str, forkserver.ForkServer]] = {}


def _server(loaded: str) -> forkserver.ForkServer:
    """Return the process to fork from that has imported this module, started when the first child is."""
    if loaded not in _SERVERS:
        server = _SERVERS[loaded] = forkserver.ForkServer()
        server.set_forkserver_preload([loaded, __name__])
        with chdir(ROOT):  # it finds `tests` through its folder, and says nothing when it does not
            server.ensure_running()
    return _SERVERS[loaded]


class Child:
    """One program, with the part of ``subprocess.Popen`` that tests use. ``args`` are what follows ``python``."""

    def __init__(
        self,
        args: Sequence[str],
        *,
        cwd: Path,
        env: dict[str, str],
        terminal: int | None = None,
        loaded: str = AMENDS,
    ) -> None:
        self.args = list(args)
        self._folder = TemporaryDirectory(prefix="amends-forked-")
        self._out, self._err = (Path(self._folder.name, name) for name in ("out", "err"))
        screen = None if terminal is None else Connection(os.dup(terminal))
        files = (os.devnull, str(self._out), str(self._err))
        self._process = _FORKS.Process(target=_program, args=(loaded, self.args, str(cwd), env, files, screen))
        # The standard library has one such server for a process; this one is used in its place.
        with mock.patch.object(forkserver, "connect_to_new_process", _server(loaded).connect_to_new_process):
            self._process.start()
        if screen is not None:
            screen.close()
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    @property
    def sentinel(self) -> int:
        """Return what can be selected on: it is ready when the child has ended."""
        return self._process.sentinel

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None and self.pid is not None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()

    def terminate(self) -> None:
        self._process.terminate()

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if (code := self.returncode) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0, *self.printed())
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for its end and return what it printed."""
        self.wait(timeout)
        return self.printed()

    def printed(self) -> tuple[str, str]:
        """Return what it has printed so far."""
        out, err = (path.read_text("utf-8") if path.exists() else "" for path in (self._out, self._err))
        return out, err

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        if value is not None:
            self.kill()
        self._process.join()
        self._folder.cleanup()


def run_python(
    args: Sequence[str], *, cwd: Path, env: dict[str, str], timeout: float, loaded: str = AMENDS
) -> subprocess.CompletedProcess[str]:
    """Return what ``python ARGS`` would print, and its exit code."""
    with Child(args, cwd=cwd, env=env, loaded=loaded) as child:
        out, err = child.communicate(timeout)
        return subprocess.CompletedProcess(child.args, child.returncode or 0, out, err)


def _program(
    loaded: str,
    args: list[str],
    cwd: str,
    env: dict[str, str],
    files: tuple[str, str, str],
    screen: Connection | None,
) -> None:
    was_loaded = loaded in sys.modules
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    _open_files(env, files, screen)
    try:
        assert was_loaded, f"{loaded} could not be imported in advance: import it to see why"
        _main(args, cwd)
    except SystemExit:
        raise
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
        sys.exit(1)
    finally:
        threading._shutdown()  # type: ignore[attr-defined]  # as an interpreter does at its end, and in its order
        atexit._run_exitfuncs()


def _open_files(env: dict[str, str], files: tuple[str, str, str], screen: Connection | None) -> None:
    for number, path in enumerate(files):
        opened = (
            screen.fileno() if screen else os.open(path, (os.O_WRONLY if number else os.O_RDONLY) | os.O_CREAT, 0o600)
        )
        os.dup2(opened, number)
        if screen is None:
            os.close(opened)
    if screen is not None:
        screen.close()
    encoding = env.get("PYTHONIOENCODING", "utf-8")
    lines = 1 if screen or env.get("PYTHONUNBUFFERED") else -1
    sys.stdin = open(0, encoding=encoding, closefd=False)  # noqa: SIM115 (they end with the process)
    sys.stdout = open(1, "w", buffering=lines, encoding=encoding, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding=encoding, errors="backslashreplace", closefd=False)  # noqa: SIM115


def _main(args: list[str], cwd: str) -> None:
    """Do what ``python ARGS`` does: ``-m MODULE``, ``-c CODE`` or a file; before it, ``-W ACTION``."""
    match args:
        case ["-W", action, *rest]:
            warnings.resetwarnings()
            warnings.simplefilter(action)  # type: ignore[arg-type]
            _main(rest, cwd)
        case ["-m", name, *rest]:
            sys.argv, sys.path[:0] = [name, *rest], [cwd]
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        case ["-c", code, *rest]:
            sys.argv, sys.path[:0] = ["-c", *rest], [""]
            exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
        case [path, *rest]:
            sys.argv, sys.path[:0] = [path, *rest], [str(Path(path).resolve().parent)]
            runpy.run_path(path, run_name="__main__")
        case _:
            raise AssertionError(f"not a program: {args}")

"""Processes of their own, forked from a server that has amends already: a real SIGKILL for the price of a fork."""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import amends

PATIENCE_S = 60
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.peers.trip", "tests.peers.races"])


class Child:
    """One process that does ``fn(*args)`` and answers, or dies on the way."""

    def __init__(self, fn: Callable[..., Any], *args: Any, **environment: str) -> None:
        _ready()
        self._answers, theirs = _context.Pipe(duplex=False)
        self._process = _context.Process(target=_live, args=(theirs, fn, args, environment), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process.pid is not None
        return self._process.pid

    def answer(self) -> Any:
        """What it answered at its end."""
        assert self._answers.poll(PATIENCE_S), "no answer in time"
        value, error = self._answers.recv()
        self._end()
        assert not error, error
        return value

    def was_killed(self) -> None:
        """It died as a killed process dies."""
        self._process.join(PATIENCE_S)
        assert self._process.exitcode == -signal.SIGKILL, self._process.exitcode
        self._end()

    def stop(self) -> None:
        """Freeze it where it stands."""
        os.kill(self.pid, signal.SIGSTOP)

    def wake(self) -> None:
        """Let it go on."""
        os.kill(self.pid, signal.SIGCONT)

    def _end(self) -> None:
        self._process.join(PATIENCE_S)
        self._process.close()
        self._answers.close()


def _ready() -> None:
    """The server imports from where this process does, so that its children need not."""
    kept = os.environ.get("PYTHONPATH")
    roots = (Path(amends.__file__).parent.parent, Path(__file__).parent.parent.parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(str(root) for root in roots)
    try:
        forkserver.ensure_running()
    finally:
        if kept is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = kept


def _live(answers: Any, fn: Callable[..., Any], args: tuple[Any, ...], environment: dict[str, str]) -> None:
    os.environ.update(environment)
    try:
        answers.send((fn(*args), ""))
    except BaseException:
        answers.send((None, traceback.format_exc()))

"""One side of the comparison: a process, a pipe, and a time limit for its answers."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, Final, Self

from bench.sides.timing import MARK

ROOT: Final = Path(__file__).resolve().parent.parent
START_S_MAX: Final = 60.0
ANSWER_S_MAX: Final = 150.0
"""Added to the limit that a side has for one measurement."""
END_S_MAX: Final = 10.0


class SideFailed(Exception):
    """A side did not start, did not answer, or reported an error."""


class Side:
    """One process. Ask it for a work; it answers with figures."""

    def __init__(self, name: str, module: str, store: str, place: str, *, python: str = sys.executable) -> None:
        self.name, self.place = name, place
        self._said: queue.Queue[str] = queue.Queue()
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (lives as long as the process)
        environ = dict(os.environ)
        if python != sys.executable:
            environ.pop("PYTHONPATH", None)  # a peer sees only its own environment, and this folder through its -m
            environ["PYTHONWARNINGS"] = "ignore"
        self._process = subprocess.Popen(
            [python, "-m", module, "--store", store, "--place", place],
            cwd=ROOT, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
        )  # fmt: skip
        threading.Thread(target=self._listen, daemon=True).start()
        first = self._answer(START_S_MAX)
        self.works: frozenset[str] = frozenset(first["works"])
        self.version: str = first["version"]

    def ask(self, work: str, n: int, limit_s: float) -> dict[str, Any]:
        """Return the figures of one measurement."""
        if self._process.poll() is not None:
            raise SideFailed(f"{self.name} has ended: {self._last_words()}")
        assert self._process.stdin is not None, "the pipe was asked for"
        self._process.stdin.write(json.dumps({"work": work, "n": n, "limit_s": limit_s}) + "\n")
        self._process.stdin.flush()
        return self._answer(ANSWER_S_MAX + limit_s)

    def close(self) -> None:
        """End the process. May be called twice."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            with contextlib.suppress(OSError):  # the process has ended, and its pipe with it
                self._process.stdin.close()
        try:
            self._process.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None, "the pipe was asked for"
        for line in self._process.stdout:
            if line.startswith(MARK):
                self._said.put(line.removeprefix(MARK))
        self._said.put("")
        self._process.stdout.close()

    def _answer(self, limit_s: float) -> dict[str, Any]:
        try:
            line = self._said.get(timeout=limit_s)
        except queue.Empty:
            self._process.kill()
            raise SideFailed(f"{self.name} did not answer in {limit_s:.0f} s") from None
        if not line:
            raise SideFailed(f"{self.name} ended: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise SideFailed(answer["error"])
        return answer

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().splitlines() if line.strip()]
        return lines[-1][:300] if lines else "without a word"

"""Run ``amends`` at a real terminal: what a person sees, and what they type."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cli.command import PATIENCE_S, environment
from tests.forked import Child

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True, slots=True)
class Seen:
    """The exit code of a command at a terminal, and everything on the screen."""

    code: int
    raw: str

    @property
    def text(self) -> str:
        """Return the text without colours, with the lines as a terminal shows them."""
        plain = ESCAPES.sub("", self.raw).replace("\r\n", "\n")
        return "\n".join(line.rpartition("\r")[2] for line in plain.split("\n"))

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()


def at_terminal(*args: str, cwd: Path, answers: Sequence[tuple[str, str]] = (), width: int = 80, **extra: str) -> Seen:
    """Run one command to its end; type each of ``answers`` when its words are on the screen."""
    ours, theirs = _opened(width)
    env = _sized(environment(**{"TERM": "xterm-256color", **extra}))
    try:
        with Child(["-m", "amends", *args], cwd=cwd, env=env, terminal=theirs) as child:
            os.close(theirs)
            raw = _talk(ours, list(answers))
            return Seen(child.wait(PATIENCE_S), raw)
    finally:
        os.close(ours)


def in_terminal(
    command: Sequence[str], *, cwd: Path, env: dict[str, str], answers: Sequence[tuple[str, str]] = (), width: int = 80
) -> Seen:
    """Run any program in the same way."""
    ours, theirs = _opened(width)
    child = subprocess.Popen(command, cwd=cwd, env=_sized(env), stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    try:
        raw = _talk(ours, list(answers))
        return Seen(child.wait(PATIENCE_S), raw)
    finally:
        os.close(ours)
        if child.poll() is None:
            child.kill()
            child.wait()


def _opened(width: int) -> tuple[int, int]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    return ours, theirs


def _sized(env: dict[str, str]) -> dict[str, str]:
    """Return the environment without what would speak against the size of the terminal."""
    return {name: value for name, value in env.items() if name not in ("COLUMNS", "LINES")}


def _talk(ours: int, answers: list[tuple[str, str]]) -> str:
    said, seen, until = b"", 0, time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        ready, _, _ = select.select([ours], [], [], 1.0)
        if not ready:
            continue
        try:
            part = os.read(ours, 65536)
        except OSError:  # Linux says so when the other end is closed
            break
        if not part:
            break
        said += part
        new = ESCAPES.sub("", said.decode("utf-8", "replace"))
        if answers and answers[0][0] in new[seen:]:
            seen = len(new)
            os.write(ours, answers.pop(0)[1].encode())
    assert not answers, f"never asked: {answers}; seen: {said.decode('utf-8', 'replace')}"
    return said.decode("utf-8", "replace")

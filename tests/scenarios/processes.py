"""Programs in their own processes, and the ledger as a third process reads it."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import amends
from amends import Report, Runtime
from tests.forked import Child
from tests.scenarios.world import World

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE_S = 60


# ---- inside a child -----------------------------------------------------------------------


def main(build: Callable[[World, str], Runtime], verbs: Mapping[str, Callable[[Runtime, World], Any]]) -> None:
    """``python -m tests.scenarios.x FOLDER VARIANT VERB``: the answer is printed as JSON."""
    folder, variant, verb = sys.argv[1:4]
    world = World(Path(folder))
    if verb == "recover":
        for _ in range(int(os.environ.get("TIMES", "1"))):
            with build(world, variant) as rt:
                rt.recover()
        return
    with build(world, variant) as rt:
        print(json.dumps(verbs[verb](rt, world)))


# ---- outside ------------------------------------------------------------------------------


class Program:
    """One scenario's program, in one variant, in one folder."""

    def __init__(self, module: str, folder: Path, variant: str = "-") -> None:
        self.module, self.variant, self.world = f"tests.scenarios.{module}", variant, World(folder)

    def start(self, verb: str, **environment: str) -> Child:
        """Start the program in its own process."""
        path = os.pathsep.join((str(Path(amends.__file__).resolve().parent.parent), str(ROOT)))
        return Child(
            ["-m", self.module, str(self.world.folder), self.variant, verb],
            cwd=self.world.folder,
            env={**os.environ, "PYTHONPATH": path, **environment},
        )

    def play(self, verb: str, **environment: str) -> Any:
        """Run it to its end and return its answer."""
        with self.start(verb, **environment) as child:
            out, err = child.communicate(timeout=PATIENCE_S)
        assert child.returncode == 0, err
        return json.loads(out) if out.strip() else None

    def killed(self, verb: str, *, at: str) -> None:
        """Run it until it kills itself."""
        with self.start(verb, DIE_AT=at) as child:
            _, err = child.communicate(timeout=PATIENCE_S)
        assert child.returncode == -signal.SIGKILL, err

    def recover(self, *, times: int = 1) -> None:
        """Run a worker in another process."""
        self.play("recover", TIMES=str(times))

    def report(self, run_id: str) -> Report:
        """Return the run, as a process without any tools reads it."""
        with Runtime(self.world.url, create=False) as rt:
            return rt.report(run_id)

    def call_id(self, run_id: str, tool: str) -> str:
        """Return the newest call of a tool."""
        return [call.id for call in self.report(run_id).calls if call.tool == tool][-1]

    def rows(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return every row of runs, calls and events."""
        with sqlite3.connect(self.world.folder / "ledger.db") as connection:
            found = {
                t: connection.execute(f"select * from {t} order by 1, 2").fetchall()
                for t in ("amends_run", "amends_call", "amends_event")
            }
        connection.close()
        return found

    def assert_quiet(self) -> None:
        """Recovery, three times more, changes neither the ledger nor the world."""
        rows, contents = self.rows(), self.world.contents()
        self.recover(times=3)
        assert self.rows() == rows
        assert self.world.contents() == contents

    def assert_agrees(self, tools: Iterable[str]) -> None:
        """What the ledger says stands is what stands."""
        with Runtime(self.world.url, create=False) as rt:
            calls = list(rt.calls())
        for tool in tools:
            recorded = sorted(call.result for call in calls if call.tool == tool and call.state == "succeeded")
            assert recorded == sorted(self.world.standing(tool)), tool


def wait_until(condition: Callable[[], bool], *, timeout_s: float = 30.0) -> None:
    """For what another process does: looked at, never slept for."""
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.01)

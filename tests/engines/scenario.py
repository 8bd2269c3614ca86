"""Play one shared flow on one engine, with one kill, and restart what was killed until the flow has ended."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from amends import Runtime
from tests.engines.flows import Final_, check_promises, final
from tests.engines.person import decide
from tests.engines.world import FOLDER, Target, World

ROOT = Path(__file__).resolve().parents[2]
ENDED_S_MAX = 90.0
POLL_S = 0.05
STARTS_MAX = 6


class Server(Protocol):
    """A server of an engine, whose data outlives its process."""

    @property
    def address(self) -> str: ...
    def kill(self) -> None: ...
    def start(self) -> object: ...


@dataclass(frozen=True, slots=True)
class Engine:
    """How a flow is played on an engine: commands of Python modules, whose arguments follow."""

    name: str
    worker: tuple[str, ...]
    """Started again whenever it ends. On no engine it is the program itself, and done when it ends with 0."""
    starter: tuple[str, ...] | None
    """Starts the flow and ends with it."""
    server: str = ""
    """The fixture of its server."""
    targets: tuple[Target, ...] = ("worker", "server")
    """What is killed."""


EMBEDDED = Engine("embedded", ("tests.engines.on_embedded",), None)
ENGINES = (
    Engine(
        "temporal", ("tests.engines.on_temporal", "work"), ("tests.engines.on_temporal", "start"),
        server="temporal_server",
    ),
    Engine(
        "restate", ("tests.engines.on_restate", "work"), ("tests.engines.on_restate", "start"), server="restate_server",
    ),
    Engine(
        "restate of three", ("tests.engines.on_restate", "work"), ("tests.engines.on_restate", "start"),
        server="restate_node", targets=("node",),
    ),
)  # fmt: skip
"""The durable engines of the suite."""


def played(
    engine: Engine, flow: str, folder: Path, *, server: Server | None = None, point: str = "", target: Target = "worker"
) -> Final_:
    """Return how the flow ended. ``server``: a running one; it is killed and started if it is the target."""
    here = World(folder)
    if point:
        here.arm(point, target)
    where = [] if server is None else [server.address]
    with ExitStack() as stack:
        processes = stack.enter_context(_processes(here))
        rt = stack.enter_context(Runtime(here.ledger, tools=[]))
        starter = None if engine.starter is None else processes.start([*engine.starter, *where, flow])
        worker, starts, is_killed = processes.start([*engine.worker, *where, flow]), 1, False
        until = time.monotonic() + ENDED_S_MAX
        while (worker if starter is None else starter).poll() != 0:
            assert starter is None or starter.poll() is None, f"{flow} could not be started\n{processes.log}"
            assert time.monotonic() < until, f"{flow} has not ended on {engine.name}\n{processes.log}\n{_shown(rt)}"
            if worker.poll() is not None:
                assert starts < STARTS_MAX, f"the worker of {engine.name} ends again and again\n{processes.log}"
                worker, starts = processes.start([*engine.worker, *where, flow]), starts + 1
            if target != "worker" and server is not None and here.is_fired and not is_killed:
                server.kill()
                here.server_was_killed()
                server.start()
                is_killed = True
            decide(here, rt, after_told=starter is None)
            time.sleep(POLL_S)
        assert here.is_fired == bool(point), f"{point!r} was not reached: {here.points}"
        ended = final(here, rt)
        check_promises(ended, rt.report(here.run_id))
        return ended


def _shown(rt: Runtime) -> str:
    return "\n".join(str(rt.report(run.id)) for run in rt.runs(""))


class _Processes:
    """The processes of one scenario, and what they have printed."""

    def __init__(self, here: World, log: IO[bytes]) -> None:
        self._here, self._log = here, log
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, command: list[str]) -> subprocess.Popen[bytes]:
        made = subprocess.Popen(
            [sys.executable, "-m", *command], cwd=ROOT, stdout=self._log, stderr=self._log, stdin=subprocess.DEVNULL,
            env={**os.environ, FOLDER: str(self._here.folder)},
        )  # fmt: skip
        self.running.append(made)
        return made

    @property
    def log(self) -> str:
        return (self._here.folder / "log").read_text(errors="replace")[-5_000:]


@contextmanager
def _processes(here: World) -> Iterator[_Processes]:
    with (here.folder / "log").open("ab") as log:
        found = _Processes(here, log)
        try:
            yield found
        finally:
            for one in found.running:
                one.kill()
                one.wait()

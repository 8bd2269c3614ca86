"""The processes: callers that run agents, and workers. Forked from a parent that has imported everything."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import amends.runtime
import amends.worker
from amends import AsyncRun, AsyncRuntime, Error, LedgerError, NoEffect, RolledBack, Run, Runtime, ToolError
from amends.errors import TransitionRefused
from tests.chaos.board import Board
from tests.chaos.places import Place
from tests.chaos.plans import Plan, Planned, plan_of, play, play_async
from tests.chaos.points import MortalStore
from tests.chaos.tools import LEASE_S, Broke, Kit
from tests.chaos.world import World

AT_ONCE: Final = 4
"""Runs that one caller with an event loop has open."""
WORKER_EVERY_S: Final = 0.2
OWN: Final = (Broke, NoEffect, TimeoutError, ConnectionResetError)
"""What the tools raise: it comes out of a call as itself once it is certain that nothing happened."""
DIE_WITH_PARENT: Final = 1
"""PR_SET_PDEATHSIG"""
_real_time: Final = time.time


@dataclass(slots=True)
class Scene:
    """Everything that a process of the play knows when it is born."""

    seed: int
    place: Place
    folder: Path
    world: World
    board: Board
    kit: Kit
    rt: Runtime = field(init=False)
    art: AsyncRuntime = field(init=False)

    def __post_init__(self) -> None:
        # Before the first fork: checking declarations and making their models would be most of a short life.
        self.rt, self.art = _runtime(self), _async_runtime(self)
        for host in (self.rt._host, self.art._host):
            for spec in host.specs.values():
                spec.bind((), {"n": 0, "item": "", "mood": ""})

    @property
    def surprises(self) -> Path:
        """Where a process writes down an error that no program should ever see."""
        return self.folder / "surprises"

    def run_id(self, number: int) -> str:
        """The run's id in the ledger."""
        return f"chaos-{self.seed}-{number}"

    def plan(self, number: int) -> Plan:
        """The run's program."""
        return plan_of(self.seed, number)


def forked(scene: Scene, main: Callable[[Scene], None], *, point: str, passes: int, number: int) -> int:
    """A child that does ``main`` and ends, or meets its fate on the way; its process id."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
        logging.basicConfig(filename=scene.folder / "log", level=logging.WARNING, format="%(process)d %(message)s")
        fate = scene.kit.fate
        fate.point, fate.passes, fate.number = point, passes, number
        _shift_clock(scene.board)
        main(scene)
        code = 0
    except LedgerError:
        time.sleep(0.1)  # its ledger is gone, as it was to be; whoever supervises it starts another
    except BaseException:
        _surprise(scene, "a process ended with")
    finally:
        os._exit(code)


def _shift_clock(board: Board) -> None:
    def shifted() -> float:
        return _real_time() + board.shift_s

    # The engine's wall clock, too: amends reads it as time.time().
    time.time = shifted


def _surprise(scene: Scene, what: str) -> None:
    with scene.surprises.open("a", encoding="utf-8") as file:
        file.write(f"{what}:\n{traceback.format_exc()}\n")


def _store(scene: Scene) -> MortalStore:
    return MortalStore(scene.place.url, scene.place.store, scene.kit.fate)


def _runtime(scene: Scene) -> Runtime:
    def clerk(run: Run) -> str:
        number = run.input["n"]
        return play(run, scene.kit.tools, scene.plan(number), scene.board.deliveries(number))

    return Runtime(
        store=_store(scene),
        tools=scene.kit.tools.values(),
        agents={"clerk": clerk},
        lease=LEASE_S,
        wait=2 * LEASE_S,
        create=False,
    )


def _async_runtime(scene: Scene) -> AsyncRuntime:
    async def clerk(run: AsyncRun) -> str:
        number = run.input["n"]
        return await play_async(run, scene.kit.tools, scene.plan(number), scene.board.deliveries(number))

    return AsyncRuntime(
        store=_store(scene),
        tools=scene.kit.tools.values(),
        agents={"clerk": clerk},
        lease=LEASE_S,
        wait=2 * LEASE_S,
        create=False,
    )


# ---- callers ------------------------------------------------------------------------------


def caller(numbers: list[int]) -> Callable[[Scene], None]:
    """A process that delivers these runs, one after another."""

    def main(scene: Scene) -> None:
        with scene.rt as rt:
            for number in numbers:
                try:
                    _told(scene, number, _deliver(scene, rt, scene.plan(number)))
                except Exception as error:
                    _ended_badly(scene, number, error)

    return main


def async_caller(numbers: list[int]) -> Callable[[Scene], None]:
    """A process that delivers these runs, several at once, on an event loop."""

    async def one_by_one(scene: Scene, rt: AsyncRuntime, mine: list[int]) -> None:
        for number in mine:
            try:
                _told(scene, number, await _deliver_async(scene, rt, scene.plan(number)))
            except Exception as error:
                _ended_badly(scene, number, error)

    async def all_of_them(scene: Scene) -> None:
        async with scene.art as rt:
            await asyncio.gather(*(one_by_one(scene, rt, numbers[i::AT_ONCE]) for i in range(AT_ONCE)))

    return lambda scene: asyncio.run(all_of_them(scene))


def _deliver(scene: Scene, rt: Runtime, plan: Plan) -> bool:
    deliveries = scene.board.deliver(plan.number)
    if plan.policy == "resume":
        rt.start("clerk", id=scene.run_id(plan.number), input={"n": plan.number})
        return True
    with rt.run(scene.run_id(plan.number), input={"n": plan.number}, recover=plan.policy) as run:
        if run.state == "committed":
            return True
        run.output = play(run, scene.kit.tools, plan, deliveries)
    return True


async def _deliver_async(scene: Scene, rt: AsyncRuntime, plan: Plan) -> bool:
    deliveries = scene.board.deliver(plan.number)
    if plan.policy == "resume":
        await rt.start("clerk", id=scene.run_id(plan.number), input={"n": plan.number})
        return True
    async with rt.run(scene.run_id(plan.number), input={"n": plan.number}, recover=plan.policy) as run:
        if run.state == "committed":
            return True
        run.output = await play_async(run, scene.kit.tools, plan, deliveries)
    return True


def _told(scene: Scene, number: int, committed: bool) -> None:
    """The caller now believes that its run is done: that must be true for ever."""
    if committed:
        scene.world.note(number, "told", "", key="", call="", run=scene.run_id(number), attempt=0)
        scene.board.end(number)


def _ended_badly(scene: Scene, number: int, error: Exception) -> None:
    if isinstance(error, TransitionRefused) or not isinstance(error, (Error, Planned, *OWN)):
        _surprise(scene, f"run {scene.run_id(number)} ended with")
    elif isinstance(error, (Planned, RolledBack, ToolError, *OWN)):
        scene.board.end(number)
    elif isinstance(error, LedgerError):
        time.sleep(0.05)  # an agent's program that finds its ledger gone does not come back at once


# ---- workers ------------------------------------------------------------------------------


def worker(*, colour: str) -> Callable[[Scene], None]:
    """A process that does what ``amends worker`` does."""

    def main(scene: Scene) -> None:
        rt: Any = scene.rt if colour == "blocking" else scene.art
        amends.worker.work(rt, every=WORKER_EVERY_S, limit=20)

    return main

"""A trip, as a program of its own: flight, car, charge. It can be killed at any point of the way there and back."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from amends import Absent, Happened, Probed, Runtime, current_call, tool
from tests.peers.children import Child
from tests.scenarios.processes import Program
from tests.scenarios.world import World, die_at

NAMES = ("flight", "car", "charge")


class Trip(Program):
    """The trip in one folder. ``plain``, ``probed``, ``idempotent``, ``absent_ok``: what its tools can say."""

    def __init__(self, folder: Path, variant: str = "plain") -> None:
        super().__init__("trip", folder, variant)

    def child(self, verb: str, **environment: str) -> Child:
        """One life of the program, in a process of its own."""
        return Child(life, self.world.folder, self.variant, verb, **environment)

    def killed(self, verb: str, *, at: str) -> None:
        """To the point where it kills itself."""
        self.child(verb, DIE_AT=at).was_killed()

    def here(self, verb: str) -> Any:
        """One life of the program, in this process."""
        return life(self.world.folder, self.variant, verb)

    def recover(self, *, times: int = 1) -> None:
        """What a worker does, each time with a runtime of its own."""
        for _ in range(times):
            self.here("recover")

    def assert_quiet(self) -> None:
        """Recovery, twice more, changes neither the ledger nor the world."""
        rows, contents = self.rows(), self.world.contents()
        self.recover(times=2)
        assert self.rows() == rows
        assert self.world.contents() == contents


def life(folder: Path, variant: str, verb: str) -> Any:
    """Built, used and closed."""
    world = World(folder)
    with build(world, variant) as rt:
        return VERBS[verb](rt, world)


def booking(world: World, name: str, variant: str) -> Any:
    """One tool with its twin."""
    options: dict[str, Any] = {"idempotent": True} if variant == "idempotent" else {}
    twin: dict[str, Any] = dict(options)
    if variant == "absent_ok":
        twin["absent_ok"] = True

    def is_undone(result: str) -> Probed[None]:
        return Happened(None) if result in world.undone(name) else Absent()

    if variant == "probed":
        twin["probe"] = is_undone

    @tool(name=name, key="order", **options)
    def book(order: str, cents: int = 0) -> str:
        key = {"key": current_call().key} if variant == "idempotent" else {}
        return world.do(name, f"{name}-{len(world.entries(name)) + 1}", order=order, **key)

    @book.compensate(**twin)
    def cancel(order: str, result: str | None = None) -> None:
        die_at(f"before undo {name}")
        world.note("undos", tool=name, result=result, key=current_call().key)
        world.undo(name, result or (world.standing(name) or ["nothing"])[-1])
        die_at(f"after undo {name}")

    if variant == "probed":

        @book.probe
        def find(order: str) -> Probed[str]:
            return Happened(world.standing(name)[-1]) if world.standing(name) else Absent()

    return book


def build(world: World, variant: str) -> Runtime:
    """The runtime of every process that takes part."""
    return Runtime(world.url, tools=[booking(world, name, variant) for name in NAMES], wait=20)


def steps(rt: Runtime) -> list[dict[str, Any]]:
    """The whole trip as a plan."""
    return [{"tool": name, "args": {"order": "7"}} for name in NAMES]


def book(rt: Runtime, world: World, *, recover: Any = "rollback", fail: bool = False) -> Any:
    """Do the trip; the run has the id of the order, as every restart has it."""
    with rt.run("trip-7", recover=recover) as run:
        answers = []
        for step in steps(rt):
            answers.append(run.answer(step["tool"], step["args"]))
            die_at(f"recorded {step['tool']}")
        if fail:
            raise ValueError("the trip is off")
    return [answer.value for answer in answers]


def resume(rt: Runtime, world: World) -> Any:
    """The same by a program that goes on where it was."""
    return book(rt, world, recover="resume")


def fail(rt: Runtime, world: World) -> str:
    """The whole trip, and then it is off."""
    try:
        book(rt, world, fail=True)
    except ValueError:
        return rt.report("trip-7").state
    return "it did not fail"


def slow(rt: Runtime, world: World) -> Any:
    """Stops in the middle of the charge until the world says go."""
    with rt.run("trip-7") as run:
        run.answer("flight", {"order": "7"})
        done = run.answer("car", {"order": "7"})
        world.note("sent", car=done.value)
        while not world.entries("go"):
            time.sleep(0.005)
        return run.answer("charge", {"order": "7"}).status


def recover(rt: Runtime, world: World) -> None:
    """What a worker does."""
    rt.recover()


VERBS = {"book": book, "resume": resume, "fail": fail, "slow": slow, "recover": recover}

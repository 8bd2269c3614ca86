"""Programs that race: two processes, released together, that want the same thing."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from amends import Runtime, tool
from tests.scenarios.world import World

ROUNDS = 10


def build(world: World, **options: Any) -> tuple[Runtime, Any, Any]:
    """A charge per run, and one that happens once in the whole ledger. The result names the process that did it."""

    def do(order: str) -> dict[str, Any]:
        time.sleep(0.01)  # long enough for the other one to be there
        world.do("charge", order)
        return {"order": order, "by": os.getpid()}

    @tool(key="order")
    def charge(order: str, cents: int = 0) -> dict[str, Any]:
        return do(order)

    @tool(key="order", scope="ledger")
    def charge_once(order: str, cents: int = 0) -> dict[str, Any]:
        return do(order)

    charge.compensate(lambda order: world.undo("charge", order))
    charge_once.compensate(lambda order: world.undo("charge", order))
    given: dict[str, Any] = {"tools": [charge, charge_once], "wait": 30} | options
    return Runtime(world.url, **given), charge, charge_once


def meet(world: World, place: str, *, of: int) -> None:
    """Nobody goes on before everybody is there."""
    world.note(place)
    while len(world.entries(place)) < of:
        time.sleep(0.001)


def race(folder: Path, how: str, me: str, of: int, rounds: int = ROUNDS) -> list[Any]:
    """Every round's answer of this process."""
    world = World(folder)
    rt, charge, charge_once = build(world)
    answers: list[Any] = []
    with rt:
        for number in range(rounds):
            order = f"order-{number}"
            meet(world, f"meet-{number}", of=of)
            if how == "run":
                with rt.run(order):
                    answers.append(charge(order=order))
            elif how == "ledger":
                with rt.run(f"{me}-{number}"):
                    answers.append(charge_once(order=order))
            else:
                answers.append(rt.once(order, charge.fn, order=order))
    return answers


def zombie(folder: Path) -> dict[str, str]:
    """Charges, is frozen before it can say so, wakes up after somebody else took over, and goes on."""
    world = World(folder)
    rt, charge, _ = build(world, wait=0.1)
    told: dict[str, str] = {}

    def attempt(name: str, do: Any) -> None:
        try:
            do()
            told[name] = "done"
        except Exception as error:
            told[name] = type(error).__name__

    @tool
    def wait_for_the_end() -> str:
        world.do("slow", "slow")
        while not world.entries("woken"):
            time.sleep(0.005)
        return "of the dead"

    wait_for_the_end.compensate(lambda: world.undo("slow", "slow"))
    rt.add(wait_for_the_end)
    run = rt.open("r")
    attempt("first", lambda: run.call(wait_for_the_end))
    attempt("next", lambda: run.call(charge, order="1"))
    attempt("commit", run.commit)
    rt.close()
    return told

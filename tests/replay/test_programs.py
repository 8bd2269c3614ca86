"""Whatever a program was told it is told again, and nothing is started for it."""

from __future__ import annotations

import contextlib
from itertools import zip_longest
from random import Random
from typing import Any

import pytest

from amends.errors import Error, Held
from amends.testing.simulation import Crash
from tests.replay.programs import Act, Player, World, program, rt_for

SEEDS = 300
ODD = (945, 992, 1042, 1209, 1280, 1750, 1955, 2434, 2684)
"""Children that were blocked, had ended or met a pivot in doubt: each was once taken for another program."""


class Made(Exception):
    """The program's own failure at its end."""


@pytest.mark.parametrize("block", range(6))
def test_a_program_is_told_in_a_replay_what_it_was_told_when_it_ran(block: int) -> None:
    for seed in range(block * SEEDS // 6, (block + 1) * SEEDS // 6):
        one(seed)


@pytest.mark.parametrize("seed", ODD)
def test_a_program_whose_children_were_blocked_and_taken_over_is_told_the_same(seed: int) -> None:
    one(seed)


def one(seed: int) -> None:
    chance = Random(seed)
    world = World(Random(seed + 1))
    rt, tools = rt_for(world, seed)
    acts = program(chance)
    fails = chance.random() < 0.2
    last = live(rt, world, tools, acts, chance, fails=fails)
    if last is None:
        return
    rt._test_driver.faults = {}
    before, rows = (
        list(world.started),
        repr([*rt._memory.events, *rt._memory.calls.values(), *rt._memory.runs.values()]),
    )
    player = Player(world, tools)
    again: Any = None
    try:
        with rt.replaying("r") as run:
            again = player.told
            player.play(run, acts)
            if fails:
                raise Made
    except (Made, Held):
        pass
    wrong = next((pair for pair in zip_longest(again, last) if pair[0] != pair[1]), None)
    assert wrong is None, f"seed {seed}: {wrong} {acts}"
    assert world.started == before, f"seed {seed}: a body was started"
    after = repr([*rt._memory.events, *rt._memory.calls.values(), *rt._memory.runs.values()])
    assert rows == after, f"seed {seed}: the record was touched"


def live(rt: Any, world: World, tools: list[Any], acts: list[Act], chance: Random, *, fails: bool) -> list[Any] | None:
    """Run it until it has ended: killed at most twice, and approved where it was held. What it was told last."""
    kills = chance.choice([0, 0, 1, 2])
    told: list[Any] | None = None
    for _ in range(8):
        player = Player(world, tools)
        if kills:
            kills -= 1
            at = chance.randrange(1, 40)
            rt._test_driver.faults = {rt._test_driver.points + at: chance.choice(["before", "after"])}
        try:
            with rt.run("r", recover="wait") as run:
                told = told if run._over else player.told
                player.play(run, acts)
                if fails:
                    raise Made
        except Crash:
            rt._test_driver.faults = {}
            with contextlib.suppress(Crash):
                rt.crash()
            continue
        except Held as held:
            if held.approval is None:
                return None
            rt._test_driver.faults = {}
            rt.approve_all()
            continue
        except (Made, Error):
            return told
        return told
    return None

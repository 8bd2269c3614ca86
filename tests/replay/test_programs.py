"""Whatever a program was told it is told again, and nothing is started for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from random import Random
from typing import Any

import pytest

from amends.errors import Diverged, Error, Held
from amends.replay import answers
from amends.testing.simulation import Crash
from tests.replay.programs import ACTS, WILD, Act, Player, World, program, rt_for

SEEDS = 300
ODD = (
    *(945, 992, 1042, 1209, 1280, 1750, 1853, 1955, 2434, 2538, 2684, 3696, 3787, 3851, 3883, 4151, 4523, 4626, 4631),
    *(2745, 2889, 2915, 4904, 5367, 5408, 5597, 6614, 7423, 10218, 12391, 12567, 14733, 16331, 17931),
)
"""Programs that were taken over, with children that were blocked, had ended or were opened twice, and keys that were
freed meanwhile: each was once taken for another program."""
SMALL: dict[str, list[Act]] = {
    "a child that was blocked before is opened twice": [
        ("child", (0, [("lost", 1)])),
        ("crash", 0),
        ("child", (0, [("pay", 1)])),
        ("look", 1),
    ],
    "opening a child that had come to its end commits it, and what it had staged runs": [
        ("child", (0, [("mail", 2), ("wire", 1), ("stranger", 2)])),
        ("look", 1),
    ],
    "what is staged in a child is done when the child has been left": [
        ("child", (0, [("keep mail", 2), ("see", 0), ("wire", 1), ("see", 0)])),
        ("see", 0),
    ],
    "the program asks itself for what a body had asked for before the takeover": [
        ("failing child", (0, [("conflict", 0)])),
        ("outer", 0),
        ("approved", 1),
        ("outer", 0),
    ],
    "a compensation is in doubt, and the program asks for the call": [
        ("failing child", (0, [("outer", 0), ("crash while refunding", 0)])),
        ("conflict", 0),
    ],
    "a child that was left after its pivot is opened again and committed": [
        ("failing child", (1, [("wire", 1)])),
        ("child", (1, [("wire", 1), ("mail", 0)])),
        ("child", (1, [("mail", 0)])),
    ],
    "a child that was left after its pivot is committed by opening the run around it": [
        ("child", (1, [("failing child", (2, [("wire", 2)])), ("stranger", 0)])),
        ("look", 1),
    ],
    "what a failed child had staged is asked for again outside it": [
        ("failing child", (1, [("mail", 1)])),
        ("mail", 1),
        ("failing child", (1, [("mail", 1), ("pay", 2)])),
        ("mail", 1),
        ("pay", 2),
    ],
    "an execution asks for nothing and only comes to its end": [
        ("child", (1, [("ask", 2), ("stranger", 0), ("lost", 1)])),
    ],
    "a call that a person let go is refused by the ordering law": [
        ("wire", 1),
        ("approved", 0),
        ("child", (1, [("approved", 0), ("pay", 1)])),
    ],
    "a body fails with a group of errors": [
        ("group", 1),
        ("failing child", (0, [("group", 2)])),
        ("crash", 0),
        ("group", 1),
    ],
    "a body lets a refusal through": [
        ("meek", 1),
        ("child", (0, [("meek", 2)])),
        ("crash", 0),
        ("meek", 1),
    ],
    "a run tells its state": [
        ("state", 0),
        ("child", (0, [("state", 0), ("wire", 1), ("state", 0)])),
        ("wire", 2),
        ("state", 0),
        ("crash", 0),
        ("child", (0, [("state", 0)])),
        ("state", 0),
    ],
    "a child is rolled back by the program, after its pivot too": [
        ("undone child", (0, [("pay", 1)])),
        ("undone child", (0, [("pay", 1), ("wire", 0)])),
        ("undone child", (0, [("look", 2)])),
        ("child", (0, [("look", 2)])),
        ("pay", 1),
    ],
    "a key has calls in several wordings": [
        ("failing child", (0, [("conflict", 2)])),
        ("stranger", 0),
        ("child", (0, [("ask", 2)])),
        ("approved", 1),
    ],
}


WILD_ODD = (34, 116, 122, 324, 494, 2243, 2568, 3548, 3964)
"""The same of the wild programs."""


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("fails", [False, True])
def test_a_small_program_is_told_the_same(name: str, *, fails: bool) -> None:
    for luck in range(4):
        same(ran(SMALL[name], luck, fails=fails), name)


class Made(Exception):
    """The program's own failure at its end."""


@pytest.mark.parametrize("block", [*range(3), *(pytest.param(n, marks=pytest.mark.rest) for n in range(3, 6))])
def test_a_program_is_told_in_a_replay_what_it_was_told_when_it_ran(block: int) -> None:
    for seed in range(block * SEEDS // 6, (block + 1) * SEEDS // 6):
        one(seed)


@pytest.mark.parametrize("seed", ODD)
def test_a_program_whose_children_were_blocked_and_taken_over_is_told_the_same(seed: int) -> None:
    one(seed)


@pytest.mark.parametrize(
    "block", [0, 1, pytest.param(2, marks=pytest.mark.rest), pytest.param(3, marks=pytest.mark.rest)]
)
def test_a_wild_program_is_told_in_a_replay_what_it_was_told_when_it_ran(block: int) -> None:
    for seed in range(block * 40, (block + 1) * 40):
        one(seed, WILD)


@pytest.mark.parametrize("seed", WILD_ODD)
def test_a_wild_program_that_was_taken_over_is_told_the_same(seed: int) -> None:
    one(seed, WILD)


@pytest.mark.parametrize("of", [ACTS, WILD], ids=["acts", "wild"])
def test_one_seed_decides_everything_that_a_program_does(of: tuple[str, ...]) -> None:
    for seed in (*range(25), 2538):
        first, second = recorded(seed, of), recorded(seed, of)
        assert (first is None) == (second is None)
        if first is not None and second is not None:
            assert first.told == second.told
            assert (first.world.started, first.rows()) == (second.world.started, second.rows())


@dataclass
class Recorded:
    """A program that ran live, and what it was told in its last execution."""

    rt: Any
    world: World
    tools: list[Any]
    acts: list[Act]
    fails: bool
    told: list[Any]

    def replay(self, acts: list[Act]) -> list[Any]:
        """Replay the run against these acts; return what they were told."""
        player = Player(self.world, self.tools)
        with contextlib.suppress(Made, Held), self.rt.replaying("r") as run:
            player.play(run, acts)
            if self.fails:
                raise Made
        return player.told

    def rows(self) -> str:
        """Return everything that the ledger has."""
        memory = self.rt._memory
        return repr([*memory.events, *memory.calls.values(), *memory.runs.values()])


def recorded(seed: int, of: tuple[str, ...] = ACTS) -> Recorded | None:
    """Run the program of this seed; None: it never came to its end."""
    chance = Random(seed)
    world = World(Random(seed + 1))
    rt, tools = rt_for(world, seed)
    acts = program(chance, of=of)
    fails = chance.random() < 0.2
    told = live(rt, world, tools, acts, chance, fails=fails)
    rt._test_driver.faults = {}
    return None if told is None else Recorded(rt, world, tools, acts, fails, told)


def ran(acts: list[Act], luck: int, *, fails: bool) -> Recorded | None:
    """Run this program; it dies only where it says so."""
    world = World(Random(luck))
    rt, tools = rt_for(world, luck)
    world.crash = rt.crash
    told = live(rt, world, tools, acts, None, fails=fails)
    return None if told is None else Recorded(rt, world, tools, acts, fails, told)


def one(seed: int, of: tuple[str, ...] = ACTS) -> None:
    """Run the program of this seed and replay it."""
    same(recorded(seed, of), f"seed {seed}")


def same(ran: Recorded | None, name: str) -> None:
    """Replay a program, and compare."""
    if ran is None:
        return
    before, rows = list(ran.world.started), ran.rows()
    again = ran.replay(ran.acts)
    wrong = next((pair for pair in zip_longest(again, ran.told) if pair[0] != pair[1]), None)
    assert wrong is None, f"{name}: {wrong} {ran.acts}"
    assert ran.world.started == before, f"{name}: a body was started"
    assert rows == ran.rows(), f"{name}: the record was touched"


def live(
    rt: Any, world: World, tools: list[Any], acts: list[Act], chance: Random | None, *, fails: bool
) -> list[Any] | None:
    """Run it until it has ended: killed at most twice, and approved where it was held. What it was told last."""
    kills = 0 if chance is None else chance.choice([0, 0, 1, 2])
    told: list[Any] | None = None
    for _ in range(8):
        player = Player(world, tools)
        if chance is not None and kills:
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


# ---- other programs -----------------------------------------------------------------------

UNASKED = 99
"""A number that no program asks with."""


@pytest.mark.parametrize(
    "block", [0, 1, pytest.param(2, marks=pytest.mark.rest), pytest.param(3, marks=pytest.mark.rest)]
)
def test_a_changed_program_diverges(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "ORDER_S_MAX", 0.0)  # nobody else is about to ask for what is due
    caught = 0
    for seed in (*range(block * 15, (block + 1) * 15), *ODD[block::4]):
        ran = recorded(seed)
        if ran is None:
            continue
        before = list(ran.world.started)
        for how, acts in changed(ran.acts):
            try:
                told = ran.replay(acts)
            except Diverged:
                caught += 1
                continue
            # While the pivot is in flight a new child is refused, which leaves no trace in any ledger.
            refused = [one for one in told if isinstance(one, tuple) and one[:2] == ("error", "RunEnded")]
            assert refused, f"seed {seed}: {how} is not noticed: {acts}"
            assert "child" in how or "once" in how, f"seed {seed}: {how} is not noticed: {acts}"
        assert ran.world.started == before, f"seed {seed}: a body was started"
    assert caught > 100


def changed(acts: list[Act]) -> Iterator[tuple[str, list[Act]]]:
    """Programs that ask for something else than this one, wherever it had come to."""
    for place in range(len(acts) + 1):
        for what in ("pay", "look", "wire", "mail", "once", "begin", "child"):
            new: Act = (what, (UNASKED, [])) if what == "child" else (what, UNASKED)
            yield f"one more {what} at {place}", [*acts[:place], new, *acts[place:]]
    for place, (what, _) in enumerate(acts):
        if what in ("look", "hand read"):  # what reads does so in every execution
            yield f"no {what} at {place}", [*acts[:place], *acts[place + 1 :]]
            yield f"another {what} at {place}", [*acts[:place], (what, UNASKED), *acts[place + 1 :]]
        both = acts[place : place + 2]
        if len(both) == 2 and all(act[0] in ("look", "hand read") for act in both) and both[0] != both[1]:
            yield f"the other order at {place}", [*acts[:place], both[1], both[0], *acts[place + 2 :]]

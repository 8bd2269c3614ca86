"""What the agents do: run number n of a seed is always the same run."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Final, Literal

from amends import AsyncRun, Run
from amends.model import Policy
from tests.chaos.tools import Broke

WHOLE: Final = ("charge", "book", "charge", "book", "note", "reserve")
PIVOTS: Final = ("ship", "ship", "publish", "wire")
RETRIABLES: Final = ("mail", "inform")
MOODS: Final = ("no effect", "request lost", "answer lost")
UNDO_MOODS: Final = ("undo breaks", "undo breaks", "undo answer lost")

Ending = Literal["commit", "raise", "raise once after the pivot"]


class Planned(Exception):
    """The agent gives up, as it was meant to."""


@dataclass(frozen=True, slots=True)
class Want:
    """One request of the agent. ``child``: the name of the run inside the run that makes it."""

    tool: str
    item: str
    mood: str = ""
    child: str = ""
    caught: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """One run."""

    number: int
    policy: Policy
    wants: tuple[Want, ...]
    ending: Ending = "commit"
    redelivered: bool = False
    """Whoever replaces a dead caller opens the run again, instead of leaving it to the workers."""


def plan_of(seed: int, number: int) -> Plan:
    """Run number ``number``: 2 to 5 calls, and what becomes of it."""
    dice = random.Random(f"{seed}:{number}")
    policy: Policy = dice.choice(("rollback", "rollback", "resume", "wait"))
    shape = dice.choices(("plain", "pivot", "fails", "child", "outbox"), (30, 25, 25, 12, 8))[0]
    wants = [Want(dice.choice(WHOLE), str(i), _mood(dice)) for i in range(dice.randint(2, 3))]
    ending: Ending = "commit"
    if dice.random() < 0.15:
        wants.insert(dice.randint(0, len(wants)), Want("look", "look"))
    match shape:
        case "pivot":
            if dice.random() < 0.3:
                wants.append(Want(dice.choice(RETRIABLES), "staged"))
            wants.append(Want(dice.choice(PIVOTS), "pivot"))
            if dice.random() < 0.7:
                wants.append(Want(dice.choice(RETRIABLES), "after"))
            if dice.random() < 0.1:
                ending = "raise once after the pivot"
        case "fails":
            if dice.random() < 0.5:
                wants.append(Want(dice.choice(("decline", "note", "note", "note")), "broken", "raise"))
            ending = "raise"
        case "outbox":
            wants.append(Want(dice.choice(RETRIABLES), "staged"))
        case "child":
            wants += _child(dice)
            ending = "raise" if dice.random() < 0.3 else "commit"
        case _:
            if dice.random() < 0.2:
                wants.append(Want("note", "missed", "raise", caught=True))
    return Plan(number, policy, tuple(wants), ending, redelivered=dice.random() < 0.4)


def _mood(dice: random.Random) -> str:
    luck = dice.random()
    if luck < 0.06:
        return dice.choice(MOODS)
    return dice.choice(UNDO_MOODS) if luck < 0.18 else ""


def _child(dice: random.Random) -> list[Want]:
    part = [Want(dice.choice(("charge", "book", "note")), f"in {i}", _mood(dice), child="part") for i in range(2)]
    luck = dice.random()
    if luck < 0.25:
        part.append(Want("note", "in broken", "raise", child="part", caught=True))
    elif luck < 0.4:
        part.append(Want("ship", "in pivot", child="part"))
    elif luck < 0.6:
        part.append(Want("mail", "in staged", child="part"))
    return part


def parts(plan: Plan) -> list[tuple[str, list[Want]]]:
    """The requests, by the run that makes them, in order."""
    found: list[tuple[str, list[Want]]] = []
    for want in plan.wants:
        if not found or found[-1][0] != want.child:
            found.append((want.child, []))
        found[-1][1].append(want)
    return found


def ends(plan: Plan, deliveries: int) -> None:
    """The last line of the agent's program."""
    if plan.ending == "raise" or (plan.ending != "commit" and deliveries == 1):
        raise Planned(plan.ending)


def play(run: Run, tools: dict[str, Any], plan: Plan, deliveries: int) -> str:
    """The agent's program, blocking."""
    for child, wants in parts(plan):
        if child:
            try:
                with run.child(child) as inner:
                    for want in wants:
                        inner.call(tools[want.tool], n=plan.number, item=want.item, mood=want.mood)
            except Broke:
                pass  # the part was taken back, and the rest goes on
            continue
        for want in wants:
            try:
                run.call(tools[want.tool], n=plan.number, item=want.item, mood=want.mood)
            except Broke:
                if not want.caught:
                    raise
    ends(plan, deliveries)
    return f"run {plan.number}"


async def play_async(run: AsyncRun, tools: dict[str, Any], plan: Plan, deliveries: int) -> str:
    """The same on an event loop."""
    for child, wants in parts(plan):
        if child:
            try:
                async with run.child(child) as inner:
                    for want in wants:
                        await inner.call(tools[want.tool], n=plan.number, item=want.item, mood=want.mood)
            except Broke:
                pass
            continue
        for want in wants:
            try:
                await run.call(tools[want.tool], n=plan.number, item=want.item, mood=want.mood)
            except Broke:
                if not want.caught:
                    raise
    ends(plan, deliveries)
    return f"run {plan.number}"

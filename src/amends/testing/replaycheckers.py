"""What must hold of replays, and of what they give again, at the end of every schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from amends.store.memory import MemoryStore
from amends.testing.world import World


def replays_start_nothing(_: MemoryStore, world: World) -> Iterator[str]:
    """No body, compensation or probe was started by who replays."""
    yield from world.replay_bodies


def readings_repeat(_: MemoryStore, world: World) -> Iterator[str]:
    """The nth reading of a run's clock, die or name is one value, however often its program began anew."""
    known: dict[tuple[str, int], object] = {}
    for run, number, value in world.read:
        first = known.setdefault((run, number), value)
        if first != value:
            yield f"reading {number} of run {run} was {first} and is {value}"


REPLAY_CHECKERS: Final[tuple[Callable[[MemoryStore, World], Iterator[str]], ...]] = (
    replays_start_nothing,
    readings_repeat,
)

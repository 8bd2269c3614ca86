"""Many callers of one process, for a moment; and the checker of ``make crowd`` finds what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.crowd import World, by_tasks, by_threads, problems


def test_a_crowd_leaves_the_world_and_the_ledger_alike(tmp_path: Path) -> None:
    url, world = f"sqlite:///{tmp_path / 'ledger.db'}", World()
    callers = by_threads(url, 16, 0.3, world) + by_tasks(url, 32, 0.3, world)
    assert any(one.committed for one in callers)
    assert problems(url, callers, world) == []


@pytest.mark.parametrize("wrong", ["twice", "lost", "left", "unknown"])
def test_what_is_wrong_is_found(tmp_path: Path, wrong: str) -> None:
    url, world = f"sqlite:///{tmp_path / 'ledger.db'}", World()
    callers = by_threads(url, 8, 0.3, world)
    while not any(one.rolled_back for one in callers):
        callers += by_threads(url, 1, 0.3, world)
    kept = next(order for order in world.done if order not in world.undone)
    if wrong == "twice":
        world.do(kept)
    elif wrong == "lost":
        del world.done[kept]
    elif wrong == "left":
        del world.undone[next(iter(world.undone))]
    else:
        world.do(f"{kept} that nobody asked for")
    assert len(problems(url, callers, world)) == 1

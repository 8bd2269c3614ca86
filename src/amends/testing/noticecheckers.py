"""What must hold of notices at the end of every schedule: who is asked was told, and told again only after a failure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from amends.noticeops import TELLS_MAX
from amends.store.memory import MemoryStore
from amends.testing.world import World


def people_are_told(store: MemoryStore, world: World) -> Iterator[str]:
    """No request waits for people who were never told of it, whoever died in between."""
    told = {one.approval for one in world.notices if one.arrived}
    for row in store.shelf.approvals.values():
        if row.told_at is not None and row.id not in told:
            yield f"{row.id} ({row.tool}) is told by the record, and nobody heard of it"
        waits = row.state == "pending" and row.expires_at > store._now_is()
        if world.has_hook and waits and row.id not in told and row.tells < TELLS_MAX:
            yield f"{row.id} ({row.tool}) waits for people whom nobody told"


def told_once(store: MemoryStore, world: World) -> Iterator[str]:
    """Each claim tells once; where nothing died, stood still or failed, there is one."""
    fired = Counter(one.approval for one in world.notices)
    disturbed = {one.approval for one in world.notices if one.disturbed}
    for row in store.shelf.approvals.values():
        if fired[row.id] > row.tells:
            yield f"{row.id} ({row.tool}) was told of {fired[row.id]} times, and claimed {row.tells} times"
        elif fired[row.id] > 1 and not world.is_disturbed and row.id not in disturbed:
            yield f"{row.id} ({row.tool}) was told of {fired[row.id]} times, and nothing had gone wrong"


NOTICE_CHECKERS: Final[tuple[Callable[[MemoryStore, World], Iterator[str]], ...]] = (people_are_told, told_once)

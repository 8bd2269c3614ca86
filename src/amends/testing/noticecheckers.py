"""What must hold of notices at the end of every schedule: who is asked was told, and told again only after a failure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from amends.approvalrows import ApprovalRow
from amends.noticeops import TELLS_MAX
from amends.notices import CLAIM_S
from amends.store.memory import MemoryStore
from amends.testing.world import World

LIFE_CLAIMS: Final = 10
"""A request that lives for so many claims outlives those who die while they tell of it."""


def people_are_told(store: MemoryStore, world: World) -> Iterator[str]:
    """No request waits for people who were never told of it, whoever died in between; the record does not say so."""
    told = {one.approval for one in world.notices if one.arrived}
    now = max(store._clock(), store.events[-1].at) if store.events else 0.0
    for row in store.shelf.approvals.values():
        if row.id in told or not world.asks:
            continue
        if row.told_at is not None:
            yield f"{row.id} ({row.tool}) is told by the record, and nobody heard of it"
        elif row.state_at(now) == "pending" and row.tells < TELLS_MAX:
            yield f"{row.id} ({row.tool}) waits for people whom nobody told"
        elif row.state_at(now) == "expired" and _lived_long(row, world):
            yield f"{row.id} ({row.tool}) ran out, and nobody was ever told of it"


def _lived_long(row: ApprovalRow, world: World) -> bool:
    """Whether there was time to tell of it: a clock that was put forward leaves none."""
    return row.expires_at - row.requested_at > LIFE_CLAIMS * CLAIM_S and not world.sim.jumped


def told_once(store: MemoryStore, world: World) -> Iterator[str]:
    """Each claim tells once at most; where nothing died, stood still or failed, people are told once."""
    fired = Counter(one.approval for one in world.notices)
    failed = {one.approval for one in world.notices if one.failed}
    for row in store.shelf.approvals.values():
        if fired[row.id] > row.tells:
            yield f"{row.id} ({row.tool}) was told of {fired[row.id]} times, and claimed {row.tells} times"
        elif fired[row.id] > 1 and world.is_quiet and row.id not in failed:
            yield f"{row.id} ({row.tool}) was told of {fired[row.id]} times, and nothing had gone wrong"


NOTICE_CHECKERS: Final[tuple[Callable[[MemoryStore, World], Iterator[str]], ...]] = (people_are_told, told_once)

"""What must hold of checkpoints at the end of every schedule: one chain, over what is there, known outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final

from amends.chain import GENESIS
from amends.checkpoint import read_heads
from amends.store.memory import MemoryStore
from amends.testing.world import World


def checkpoints_chain(store: MemoryStore, _world: World) -> Iterator[str]:
    """Each follows the one before it, whoever wrote them and whoever died or was faster."""
    rows = store.checkpoints
    if rows and (rows[0].n, rows[0].prev) != (1, GENESIS):
        yield f"the first checkpoint is {rows[0].n}"
    for one, other in pairwise(rows):
        if (other.n, other.prev, other.ledger) != (one.n + 1, one.hash, one.ledger):
            yield f"checkpoint {other.n} does not follow {one.n}"
    yield from (f"checkpoint {row.n} is not what its hash says" for row in rows if row.hash != row.true_hash)


def checkpoints_cover(store: MemoryStore, _world: World) -> Iterator[str]:
    """What a checkpoint names is there, and every event up to its place is behind one."""
    hashes = {(event.root, event.n): event.hash for event in store.events}
    behind: dict[str, int] = {}
    for row in store.checkpoints:
        for root, n, hash in read_heads(row.heads):
            behind[root] = max(behind.get(root, 0), n)
            if hashes.get((root, n)) != hash:
                yield f"checkpoint {row.n} names event {n} of {root}, which is not there"
    high = store.checkpoints[-1].high if store.checkpoints else 0
    for event in store.events:
        if event.seq <= high and behind.get(event.root, 0) < event.n:
            yield f"event {event.n} of {event.run_id} is behind no checkpoint"


def checkpoints_anchored(store: MemoryStore, world: World) -> Iterator[str]:
    """The anchor knows the newest checkpoint and none that the ledger does not have."""
    mark = world.sim.anchor.mark
    known = None if mark is None else mark.checkpoint
    newest = store.checkpoints[-1].anchored if store.checkpoints else None
    if known != newest:
        yield f"the anchor knows checkpoint {known and known.n}, and the ledger ends with {newest and newest.n}"


CHECKPOINT_CHECKERS: Final[tuple[Callable[[MemoryStore, World], Iterator[str]], ...]] = (
    checkpoints_chain,
    checkpoints_cover,
    checkpoints_anchored,
)

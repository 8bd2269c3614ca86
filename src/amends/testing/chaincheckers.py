"""What must hold of the record at the end of every schedule: it is as an audit would have it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from amends.engine.verify import Audit, verify_chains
from amends.flow import run_flow
from amends.store.memory import MemoryStore
from amends.testing.world import World


def record_is_whole(store: MemoryStore, _world: World) -> Iterator[str]:
    """Every event hangs on the one before it, and every row stands where its events left it, with what they proved."""
    verified = run_flow(verify_chains(Audit()), store.perform).verified()
    yield from map(str, verified.problems)
    if verified.events != len(store.events):
        yield f"{len(store.events) - verified.events} events are in no chain"


CHAIN_CHECKERS: Final[tuple[Callable[[MemoryStore, World], Iterator[str]], ...]] = (record_is_whole,)

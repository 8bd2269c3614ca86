"""What must hold of locks at the end of every schedule, read from the record and from what the world saw."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Final

from amends.rows import EventRow
from amends.states import RUN_FINAL
from amends.store.memory import MemoryStore
from amends.testing.world import World


def one_holder(store: MemoryStore, world: World) -> Iterator[str]:
    """From the first start of a call that names a lock until its tree has ended, nobody else's call has it."""
    holders: dict[tuple[str, str], str] = {}
    for event in store.events:
        call = store.calls.get(event.call)
        if event.what == "call" and event.to_state == "started" and call is not None and call.locks:
            if store.runs[call.root].goal == "rollback" and event.frm == "in_doubt":
                continue  # to learn a result on the way back
            for name in json.loads(call.locks):
                other = holders.setdefault((call.tenant, name), call.root)
                if other != call.root:
                    yield f"{call.tool} of {call.run_id} had {name} while run {store.runs[other].id} had not ended"
        for key in _released(event, holders):
            del holders[key]


def _released(event: EventRow, holders: dict[tuple[str, str], str]) -> list[tuple[str, str]]:
    if event.what == "lock let go":
        key = (event.tenant, json.loads(event.facts)["lock"])
        return [key] if holders.get(key) == event.root else []
    ended = event.what == "run" and event.run == event.root and event.to_state in RUN_FINAL
    return [key for key, root in holders.items() if ended and root == event.root]


def body_holds_its_locks(store: MemoryStore, world: World) -> Iterator[str]:
    """A body runs only while its root has, in the ledger, what its call names."""
    yield from world.unlocked


def locks_end_with_their_run(store: MemoryStore, world: World) -> Iterator[str]:
    """Who has ended holds nothing and waits for nothing."""
    for lock in store.locks.values():
        if store.runs[lock.root].state in RUN_FINAL:
            yield f"run {lock.run_id} is {store.runs[lock.root].state} and still has {lock.name}"
    for wait in store.waits.values():
        if store.runs[wait.root].state in RUN_FINAL:
            yield f"run {wait.run_id} is {store.runs[wait.root].state} and still waits for {wait.name}"


def deadlocks_end(store: MemoryStore, world: World) -> Iterator[str]:
    """Nobody waits to the end of his patience in a circle out of which a run could have been taken."""
    yield from world.deadlocks


def victims_had_not_pivoted(store: MemoryStore, world: World) -> Iterator[str]:
    """Whoever goes back to end a deadlock had no pivot in its tree, neither passed nor in flight."""
    pivots: dict[str, set[str]] = {}
    for event in store.events:
        call = store.calls.get(event.call)
        seen = pivots.setdefault(event.root, set())
        if event.what == "call" and call is not None and call.kind == "pivot" and not call.violation:
            (seen.discard if event.to_state == "failed" else seen.add)(call.tool if event.to_state != "held" else "")
            seen.discard("")
        if event.what == "run" and event.to_state == "pivoted":
            seen.add("its commit")
        if event.what == "goal" and event.by_whom == "deadlock" and seen:
            yield f"run {event.run_id} was chosen to go back over {', '.join(sorted(seen))}"


def compensations_never_wait(store: MemoryStore, world: World) -> Iterator[str]:
    """A tree that goes back waits for no lock."""
    going_back: set[str] = set()
    for event in store.events:
        if event.what == "run" and event.run == event.root and event.to_state == "rolling_back":
            going_back.add(event.root)
        if event.what == "waits" and event.root in going_back:
            yield f"run {event.run_id} goes back and waits for {json.loads(event.facts)['lock']}"


LOCK_CHECKERS: Final[tuple[Callable[[MemoryStore, World], Iterator[str]], ...]] = (
    one_holder,
    body_holds_its_locks,
    locks_end_with_their_run,
    deadlocks_end,
    victims_had_not_pivoted,
    compensations_never_wait,
)

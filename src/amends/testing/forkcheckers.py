"""What must hold of forks and of the runs that they were forked from, read from the record and the world."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Final

from amends.rows import CallRow
from amends.store.memory import MemoryStore
from amends.testing.world import World


def not_taken_back_under_a_fork(store: MemoryStore, world: World) -> Iterator[str]:
    """While a fork stands on a run, nothing that they share is taken back without a person's word."""
    standing: set[str] = set()
    sharing: dict[str, set[str]] = {}
    for event in store.events:
        if event.what == "shared":
            sharing.setdefault(json.loads(event.facts)["shared"], set()).add(event.root)
            standing.add(event.root)
        if event.what == "run" and event.run == event.root and event.to_state in ("rolled_back", "abandoned"):
            standing.discard(event.root)
        forks = sharing.get(event.call, set()) & standing
        undone = event.what == "call" and event.to_state == "compensating"
        if undone and forks and not by_word(store, event.call):
            yield f"{store.calls[event.call].tool} of {event.run_id} was taken back under {sorted(forks)}"


def shared_stays_as_it_is(store: MemoryStore, world: World) -> Iterator[str]:
    """What a fork shares is never started, moved or taken back in it."""
    shared = {call.id: call for call in store.calls.values() if call.shared}
    for event in store.events:
        if event.what == "call" and event.call in shared:
            yield f"{shared[event.call].tool} is shared, and was moved to {event.to_state} in {event.run_id}"
    for phase in ("execute", "compensate"):
        for call_id in world.landed_counts(phase):
            if call_id in shared:
                yield f"{shared[call_id].tool} is shared, and {phase} of it landed in the fork"


def shared_is_not_done_again(store: MemoryStore, world: World) -> Iterator[str]:
    """What a fork shares is answered from the record: the same request starts nothing in it."""
    done = {_asked(call) for call in store.calls.values() if call.shared and call.state == "succeeded"}
    for call in store.calls.values():
        if not call.shared and call.attempt and call.kind != "read" and _asked(call) in done:
            yield f"{call.tool} of fork {call.run_id} was done again, although the fork shares it"


def _asked(call: CallRow) -> tuple[str, ...]:
    return (call.root, call.tool, call.ident, call.again)


def forks_end_with_what_they_share(store: MemoryStore, world: World) -> Iterator[str]:
    """A fork under which a person took its original back neither commits nor starts anything after that."""
    turned: set[str] = set()
    pivoted: set[str] = set()
    for event in store.events:
        run = store.runs.get(event.root)
        if event.what == "run" and event.run == event.root and event.to_state == "rolling_back":
            turned.add(event.root)
        if run is None or run.forked_from not in turned:
            if event.what == "call" and event.to_state == "started" and _kind(store, event.call) == "pivot":
                pivoted.add(event.root)
            continue
        begins = event.what == "call" and event.frm == "(new)" and event.to_state == "started"
        commits = (
            event.what == "run" and event.run == event.root and (event.frm, event.to_state) == ("open", "committed")
        )
        if (begins or commits) and event.root not in pivoted and _kind(store, event.call) != "read":
            yield f"fork {event.run_id} went on ({event.to_state}) after {run.forked_from} was taken back"


def by_word(store: MemoryStore, call_id: str) -> bool:
    """Whether the tree of this call goes back by a person's word."""
    return call_id in store.calls and store.runs[store.calls[call_id].root].goal_by == "person"


def _kind(store: MemoryStore, call_id: str) -> str:
    return store.calls[call_id].kind if call_id in store.calls else ""


def forks_are_of_what_stood(store: MemoryStore, world: World) -> Iterator[str]:
    """A run that goes back, or will, is not forked."""
    going: dict[str, str] = {}
    for event in store.events:
        if event.what == "goal" and event.run == event.root:
            going[event.root] = event.to_state
        if event.what == "forked" and going.get(event.root) == "rollback":
            yield f"run {event.run_id} was forked on its way back"


def waits_for_forks_that_stand(store: MemoryStore, world: World) -> Iterator[str]:
    """A run that is not taken back because of forks goes on when none of them stands any more."""
    forks = {run.uid: run for run in store.runs.values() if run.forked_from and run.uid == run.root}
    for run in store.runs.values():
        waits = run.state == "blocked" and run.came_from == "open" and run.goal == "rollback" and not run.pivot
        if run.uid != run.root or not waits or run.wake_at is not None:
            continue
        mine = {call.id for call in store.calls.values() if call.root == run.uid}
        sharing = {call.root for call in store.calls.values() if call.shared in mine}
        if not any(forks[uid].state not in ("rolled_back", "abandoned") for uid in sharing):
            yield f"run {run.id} waits for forks, and none of them stands any more"


FORK_CHECKERS: Final[tuple[Callable[[MemoryStore, World], Iterator[str]], ...]] = (
    not_taken_back_under_a_fork,
    shared_stays_as_it_is,
    shared_is_not_done_again,
    forks_end_with_what_they_share,
    forks_are_of_what_stood,
    waits_for_forks_that_stand,
)

"""What must hold of approvals at the end of every schedule, read from the record and from what the world saw."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Final

from amends.approvalrows import OPEN
from amends.rows import EventRow
from amends.store.memory import MemoryStore
from amends.testing.world import World


def approvals_against_starts(store: MemoryStore, world: World) -> Iterator[str]:
    """What needs a yes starts by using one up, of exactly this call, unexpired, once, in the breath of its start."""
    yield from world.unapproved
    used: dict[str, EventRow] = {}
    now = 0.0
    for event in store.events:
        now = max(now, event.at)  # ledger time: a clock that was set back makes nothing younger
        if event.what == "approval" and event.to_state == "used":
            yield from _badly_used(store, event, used, now)
            used[_id(event)] = event
        call = store.calls.get(event.call)
        if event.what != "call" or event.to_state != "started" or call is None:
            continue
        first = json.loads(event.facts).get("attempt", 1) == 1
        if not first or not (call.approval or call.tool in world.asks):
            continue
        mine = used.get(call.approval)
        if mine is None or mine.call != call.id:
            yield f"{call.tool} {call.id} was started without using up a yes to it"
        elif call.kind != "retriable" and not call.at_commit and not _one_breath(store, mine, event):
            yield f"the yes to {call.tool} {call.id} was used up in another transaction than its start"


def _badly_used(store: MemoryStore, event: EventRow, used: dict[str, EventRow], now: float) -> Iterator[str]:
    row = store.shelf.approvals[_id(event)]
    if row.id in used:
        yield f"approval {row.id} was used up twice"
    if now >= row.expires_at:
        yield f"approval {row.id} of {row.tool} was used after it had expired"
    if event.frm != "approved":
        yield f"approval {row.id} of {row.tool} was used while it was {event.frm}"
    people = {said["by"].casefold() for said in row.yeses}
    if people & {row.principal.casefold(), row.agent.casefold()} - {""}:
        yield f"approval {row.id} of {row.tool} was given by who had asked for it"
    if people & {name.casefold() for name in row.edited_by}:
        yield f"approval {row.id} of {row.tool} was given by who had edited it"


def _one_breath(store: MemoryStore, used: EventRow, started: EventRow) -> bool:
    between = store.events[used.seq : started.seq - 1]
    return all(one.what in ("approval", "call") and one.root == started.root and one.at == used.at for one in between)


def _id(event: EventRow) -> str:
    return str(json.loads(event.facts)["approval"])


def approvals_recorded(store: MemoryStore, world: World) -> Iterator[str]:
    """The record, replayed, gives exactly the requests; what was decided is not decided again."""
    states: dict[str, str] = {}
    for event in store.events:
        if event.what != "approval":
            continue
        was = states.get(_id(event), "(new)")
        if event.frm != was or (was not in OPEN and was != "(new)"):
            yield f"event {event.seq} moves approval {_id(event)} from {event.frm} to {event.to_state}; it was {was}"
        states[_id(event)] = event.to_state
    for row in store.shelf.approvals.values():
        if states.get(row.id) != row.state:
            yield f"approval {row.id} is {row.state}, the record says {states.get(row.id)}"
        call = store.calls.get(row.call)
        if row.state in OPEN and call is not None and call.approval == row.id and call.state not in ("held", "ready"):
            yield f"somebody is still asked about {row.tool} {row.call}, which is {call.state}"


def people_are_waited_for(store: MemoryStore, world: World) -> Iterator[str]:
    """No policy takes a run back while somebody may still say yes to what it waits for, or has."""
    states: dict[str, str] = {}
    now = 0.0
    for event in store.events:
        now = max(now, event.at)
        if event.what == "approval":
            states[_id(event)] = event.to_state
        by_policy = event.what == "goal" and event.to_state == "rollback" and event.by_whom == "recovery"
        if not by_policy or event.run != event.root:
            continue
        for id, state in states.items():
            row = store.shelf.approvals[id]
            if row.root == event.root and state in OPEN and row.expires_at > now:
                yield f"run {event.run_id} was taken back while {row.tool} waited for a person ({state})"


def repeats_are_offered(store: MemoryStore, world: World) -> Iterator[str]:
    """No call is a deliberate repeat where none was offered: what a model makes up is refused."""
    for call in store.calls.values():
        if call.again and call.tool in world.unrepeated:
            yield f"{call.tool} {call.id} was done once more ({call.again}), and no repeat was offered"


APPROVAL_CHECKERS: Final[tuple[Callable[[MemoryStore, World], Iterator[str]], ...]] = (
    approvals_against_starts,
    approvals_recorded,
    people_are_waited_for,
    repeats_are_offered,
)

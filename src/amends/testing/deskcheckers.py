"""What must hold of a person's plans at the end of every schedule, read from the record and not from its digests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Final

from amends.planned import RollbackPlan
from amends.states import STANDING, UNSETTLED
from amends.store.memory import MemoryStore
from amends.testing.world import World


def plans_bind(store: MemoryStore, world: World) -> Iterator[str]:
    """When the ledger took a planned rollback, every call stood as the plan had shown it, and there was no other."""
    state: dict[str, str] = {}
    for event in store.events:
        if event.what == "call":
            state[event.call] = event.to_state
        if event.what != "rollback planned":
            continue
        plan = world.plans.get(json.loads(event.facts)["plan"])
        if plan is None:
            yield f"run {event.run_id} goes back by a plan that nobody was shown"
            continue
        shown = _shown(plan)
        for call_id, now in state.items():
            call = store.calls[call_id]
            if call.root != event.root or call.kind == "read" or now not in STANDING | UNSETTLED:
                continue
            if shown.get(call_id) != now:
                yield f"{call.tool} is {now}, and the plan of {event.run_id} has it as {shown.get(call_id)}"


def _shown(plan: RollbackPlan) -> dict[str, str]:
    shown = {one.call.id: one.call.state for one in (*plan.compensations, *plan.doubts)}
    shown |= {left.call.id: left.call.state for left in plan.cannot if left.call.id not in shown}
    return {**shown, **{call.id: call.state for call in (*plan.dropped, *plan.running)}}


def stale_plans_do_nothing(store: MemoryStore, world: World) -> Iterator[str]:
    """Who was told that a plan is stale finds no rollback of that plan in the record."""
    for event in store.events:
        if event.what == "rollback planned" and json.loads(event.facts)["plan"] in world.told_stale:
            yield f"run {event.run_id} goes back by a plan that its person was told is stale"


DESK_CHECKERS: Final[tuple[Callable[[MemoryStore, World], Iterator[str]], ...]] = (plans_bind, stale_plans_do_nothing)

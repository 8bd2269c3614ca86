"""What must hold of budgets at the end of every schedule, read from the ledger and from what the world saw."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Final

from amends.store.memory import MemoryStore
from amends.testing.books import imbalances, overdrawn, unpaid
from amends.testing.world import World


def sum_of_budgets(store: MemoryStore, world: World) -> Iterator[str]:
    """What stands in the world never cost more than a cap, and no more is spent and reserved than it."""
    yield from world.overspent
    # What lands after it was thought absent is spent all the same; and a person may let a call pass.
    if not any(call.late or '"passed"' in call.cost for call in store.calls.values()):
        yield from overdrawn(store.slices.values())


def books_balance(store: MemoryStore, world: World) -> Iterator[str]:
    """Every slice holds what its calls hold, and the slices of a budget are its cap."""
    yield from imbalances(store.slices.values(), store.calls.values())


def paid_before_it_starts(store: MemoryStore, world: World) -> Iterator[str]:
    """A body runs only while what it costs is reserved; what has, or may have, an effect keeps it."""
    yield from world.unpaid
    yield from unpaid(store.calls.values())


def no_budget_on_the_way_back(store: MemoryStore, world: World) -> Iterator[str]:
    """A tree that goes back is refused nothing by a budget, and none takes a run back over its pivot."""
    going_back: set[str] = set()
    pivoted: set[str] = set()
    for event in store.events:
        if event.what == "run" and event.to_state == "rolling_back":
            going_back.add(event.run)
        if event.what == "run" and event.to_state == "pivoted":
            pivoted.add(event.run)
        by_budget = event.what == "refused" and json.loads(event.facts).get("law") == "budget"
        if by_budget and event.run in going_back:
            yield f"run {event.run_id} goes back and was refused money"
        if event.what == "goal" and event.by_whom == "budget" and event.run in pivoted:
            yield f"run {event.run_id} was to go back over its pivot for a budget"


BUDGET_CHECKERS: Final[tuple[Callable[[MemoryStore, World], Iterator[str]], ...]] = (
    sum_of_budgets,
    books_balance,
    paid_before_it_starts,
    no_budget_on_the_way_back,
)

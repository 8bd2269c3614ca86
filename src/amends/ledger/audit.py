"""Read whole trees and the hashes of events for an audit, each page in one snapshot.

A row can be compared with its events only if both are read in one snapshot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amends.ledger.operations import PLACES_MAX, Chains, Misfits, Place, ReadChains, ReadHashes
from amends.ledger.queries import (
    approvals_between,
    approvals_of,
    calls_between,
    chains_above,
    delegations_between,
    directives_between,
    list_calls,
    list_tree,
    page_events,
    runs_between,
)
from amends.ledger.rows import DELEGATIONS, DIRECTIVES, EVENTS, EventRow
from amends.ledger.tables import Find

if TYPE_CHECKING:
    from amends.ledger.folded import FoldedEvent


async def read_chains(op: ReadChains) -> Chains:
    """Read a page of trees as they are stored (``ReadChains``)."""
    place = op.place
    if op.alone:
        return await _alone(op, await page_events(place.within, None, place.n, op.limit))
    events: list[EventRow | FoldedEvent] = []
    if place.within:
        events += await page_events(place.within, None, place.n, op.limit)
    if len(events) < op.limit:
        events += await chains_above(place.within or place.done, op.limit - len(events))
    if len(events) < op.limit:
        return await _ended(events, place.done, None, None)
    newest = events[-1]
    whole = [event for event in events if event.root != newest.root]
    if not whole and newest.root != place.within and place.within:
        # The tree that was begun has no more events: what follows is another one.
        return await _ended([], place.done, place.within, Place(place.within))
    if not whole:
        return Chains(tuple(events), next=Place(place.done, newest.root, newest.n))
    return await _ended(whole, place.done, whole[-1].root, Place(whole[-1].root))


async def _ended(events: list[EventRow | FoldedEvent], above: str, upto: str | None, then: Place | None) -> Chains:
    runs, calls = await runs_between(above, upto), await calls_between(above, upto)
    approvals, delegations = await approvals_between(above, upto), await delegations_between(above, upto)
    directives = await directives_between(above, upto)
    rows = (tuple(events), tuple(runs), tuple(calls), tuple(approvals), tuple(delegations), tuple(directives))
    return Chains(*rows, then)


async def _alone(op: ReadChains, events: list[EventRow]) -> Chains:
    root = op.place.within
    if len(events) == op.limit:
        return Chains(tuple(events), next=Place(op.place.done, root, events[-1].n))
    runs, calls = await list_tree(root), await list_calls(root)
    delegation, directive = await Find(DELEGATIONS, root), await Find(DIRECTIVES, root, peek=True)
    delegations = () if delegation is None else (delegation,)
    directives = () if directive is None else (directive,)
    approvals, misfits = await approvals_of(root), await Misfits(root)
    rows = (tuple(events), tuple(runs), tuple(calls), tuple(approvals), delegations, directives)
    return Chains(*rows, misfits=tuple(misfits))


# ---- Hashes of events


async def read_hashes(op: ReadHashes) -> list[tuple[str, int, str]]:
    """Read the hashes of events (``ReadHashes``)."""
    assert len(op.places) <= PLACES_MAX, "a page has its limit"
    found = [await Find(EVENTS, place) for place in dict.fromkeys(op.places)]
    return [(event.root, event.n, event.hash) for event in found if event is not None]

"""Read whole trees and the hashes of events for an audit, each page in one snapshot.

A row can be compared with its events only if both are read in one snapshot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amends.ledger.operations import (
    PLACES_MAX,
    ApprovalsBetween,
    CallsBetween,
    ChainOf,
    Chains,
    ChainsAbove,
    DelegationsBetween,
    FindDelegation,
    Misfits,
    Place,
    ReadChains,
    ReadHashes,
    RunsBetween,
)
from amends.ledger.rows import (
    ApprovalsOf,
    EventRow,
    HashesAt,
    ListCalls,
    ListTree,
)

if TYPE_CHECKING:
    from amends.ledger.folded import FoldedEvent


async def read_chains(op: ReadChains) -> Chains:
    """Read a page of trees as they are stored (``ReadChains``)."""
    place = op.place
    if op.alone:
        return await _alone(op, await ChainOf(place.within, place.n, op.limit))
    events: list[EventRow | FoldedEvent] = list(await ChainOf(place.within, place.n, op.limit)) if place.within else []
    if len(events) < op.limit:
        events += await ChainsAbove(place.within or place.done, op.limit - len(events))
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
    runs, calls = await RunsBetween(above, upto), await CallsBetween(above, upto)
    approvals, delegations = await ApprovalsBetween(above, upto), await DelegationsBetween(above, upto)
    return Chains(tuple(events), tuple(runs), tuple(calls), tuple(approvals), tuple(delegations), then)


async def _alone(op: ReadChains, events: list[EventRow]) -> Chains:
    root = op.place.within
    if len(events) == op.limit:
        return Chains(tuple(events), next=Place(op.place.done, root, events[-1].n))
    runs, calls = await ListTree(root), await ListCalls(root)
    delegation = await FindDelegation(root)
    delegations = () if delegation is None else (delegation,)
    approvals, misfits = await ApprovalsOf(root), await Misfits(root)
    return Chains(tuple(events), tuple(runs), tuple(calls), tuple(approvals), delegations, misfits=tuple(misfits))


# ---- Hashes of events


async def read_hashes(op: ReadHashes) -> list[tuple[str, int, str]]:
    """Read the hashes of events (``ReadHashes``)."""
    assert len(op.places) <= PLACES_MAX, "a page has its limit"
    return await HashesAt(op.places) if op.places else []

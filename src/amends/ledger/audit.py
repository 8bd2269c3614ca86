"""Read whole trees for an audit, each page in one snapshot, and write the checkpoints of the ledger's own chain.

A row can be compared with its events only if both are read in one snapshot.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any, Final

from amends.encoding.chain import GENESIS, written_heads
from amends.encoding.dataclass import changed
from amends.ledger.operations import (
    PLACES_MAX,
    ApprovalsBetween,
    CallsBetween,
    ChainOf,
    Chains,
    ChainsAbove,
    DelegationsBetween,
    DraftCheckpoint,
    FindDelegation,
    Place,
    ReadChains,
    ReadCheckpoints,
    ReadHashes,
    RunsBetween,
    WriteCheckpoint,
)
from amends.ledger.rows import (
    AddCheckpoint,
    ApprovalsOf,
    CheckpointRow,
    EventRow,
    HashesAt,
    Head,
    ListCalls,
    ListTree,
    MoveTime,
    NewestCheckpoint,
    Now,
    PageCheckpoints,
    PageHeads,
)


async def read_chains(op: ReadChains) -> Chains:
    """Read a page of trees as they are stored (``ReadChains``)."""
    place = op.place
    if op.alone:
        return await _alone(op, await ChainOf(place.within, place.n, op.limit))
    events: list[EventRow] = await ChainOf(place.within, place.n, op.limit) if place.within else []
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


async def _ended(events: list[EventRow], above: str, upto: str | None, then: Place | None) -> Chains:
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
    return Chains(tuple(events), tuple(runs), tuple(calls), tuple(await ApprovalsOf(root)), delegations)


# ---- The ledger's own chain of checkpoints


MARGIN_S: Final = 60.0
"""How long an open transaction may still write below the place that was read. A longer one is not waited for: what it
wrote is covered by the next event of its tree."""
GAPS_MAX: Final = 64
"""The most gaps that are kept; more of them are merged into fewer, longer ones."""


async def draft_checkpoint(op: DraftCheckpoint) -> CheckpointRow | None:
    """Draft the next checkpoint (``DraftCheckpoint``). Servers commit out of order: skipped places are read again."""
    last = await NewestCheckpoint()
    now = await Now()
    high = 0 if last is None else last.high
    gaps: list[list[Any]] = [] if last is None else json.loads(last.gaps)
    found: list[Head] = []
    for frm, to, _ in gaps:
        found += await PageHeads(frm - 1, op.limit, to)
    late = frozenset(one.seq for one in found)
    news = await PageHeads(high, op.limit)
    heads: dict[str, Head] = {}
    for one in (*found, *news):
        if one.root not in heads or heads[one.root].n < one.n:
            heads[one.root] = one
    if not heads and (last is None or last.key == op.key):
        return None
    left = _gaps(gaps, late, [high, *(one.seq for one in news)], now)
    row = CheckpointRow(
        n=1 if last is None else last.n + 1,
        at=now,
        ledger=op.ledger if last is None else last.ledger,
        high=news[-1].seq if news else high,
        gaps=json.dumps(left, separators=(",", ":")),
        heads=written_heads((one.root, one.n, one.hash) for one in heads.values()),
        prev=GENESIS if last is None else last.hash,
        hash="",
        key=op.key,
        signature="",
    )
    return changed(row, {"hash": row.true_hash})


def _gaps(old: list[list[Any]], late: frozenset[int], places: list[int], now: float) -> list[list[Any]]:
    """Return the places that have no event yet and may still get one."""
    left: list[list[Any]] = []
    for frm, to, since in old:
        if since > now - MARGIN_S:
            edges = [frm - 1, *sorted(seq for seq in late if frm <= seq <= to), to + 1]
            left += [[a + 1, b - 1, since] for a, b in pairwise(edges) if b > a + 1]
    left += [[a + 1, b - 1, now] for a, b in pairwise(places) if b > a + 1]
    while len(left) > GAPS_MAX:
        left[:2] = [[left[0][0], left[1][1], left[1][2]]]
    return left


async def write_checkpoint(op: WriteCheckpoint) -> bool:
    """Append a checkpoint (``WriteCheckpoint``). Its number decides who is first; the others have read another end."""
    last = await NewestCheckpoint()
    if op.repeated and last is not None and (last.n, last.hash) == (op.row.n, op.row.hash):
        return True
    end = (0, GENESIS) if last is None else (last.n, last.hash)
    await MoveTime(op.row.at)
    return (op.row.n - 1, op.row.prev) == end and await AddCheckpoint(op.row)


async def read_checkpoints(op: ReadCheckpoints) -> list[CheckpointRow]:
    """Read a page of checkpoints (``ReadCheckpoints``)."""
    if op.after >= 0:
        return await PageCheckpoints(op.after, op.limit)
    last = await NewestCheckpoint()
    return [] if last is None else [last]


async def read_hashes(op: ReadHashes) -> list[tuple[str, int, str]]:
    """Read the hashes of events (``ReadHashes``)."""
    assert len(op.places) <= PLACES_MAX, "a page has its limit"
    return await HashesAt(op.places) if op.places else []

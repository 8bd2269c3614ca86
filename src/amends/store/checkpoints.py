"""The ledger's own chain: what has changed since its end, and one more link, whoever is first."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any, Final

from amends.chain import GENESIS
from amends.checkpoint import written_heads
from amends.checkpointops import PLACES_MAX, DraftCheckpoint, ReadCheckpoints, ReadHashes, WriteCheckpoint
from amends.checkpointrows import (
    AddCheckpoint,
    CheckpointRow,
    HashesAt,
    Head,
    NewestCheckpoint,
    PageCheckpoints,
    PageHeads,
)
from amends.markrows import MoveTime
from amends.record import changed
from amends.rows import Now

MARGIN_S: Final = 60.0
"""A transaction that is open for longer than this may write below what was looked at, and is not waited for: what it
wrote is behind the next event of its tree."""
GAPS_MAX: Final = 64
"""More gaps than this are looked at as fewer, longer ones."""


async def draft_checkpoint(op: DraftCheckpoint) -> CheckpointRow | None:
    """See ``DraftCheckpoint``. A server commits out of order: a place that is passed over is looked at again."""
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
    """The places that still nobody has written to, and that somebody may still write to."""
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
    """See ``WriteCheckpoint``. The number decides who is first; whoever is not has seen another end of the chain."""
    last = await NewestCheckpoint()
    if op.repeated and last is not None and (last.n, last.hash) == (op.row.n, op.row.hash):
        return True
    end = (0, GENESIS) if last is None else (last.n, last.hash)
    await MoveTime(op.row.at)
    return (op.row.n - 1, op.row.prev) == end and await AddCheckpoint(op.row)


async def read_checkpoints(op: ReadCheckpoints) -> list[CheckpointRow]:
    """See ``ReadCheckpoints``."""
    if op.after >= 0:
        return await PageCheckpoints(op.after, op.limit)
    last = await NewestCheckpoint()
    return [] if last is None else [last]


async def read_hashes(op: ReadHashes) -> list[tuple[str, int, str]]:
    """See ``ReadHashes``."""
    assert len(op.places) <= PLACES_MAX, "a page has its limit"
    return await HashesAt(op.places) if op.places else []

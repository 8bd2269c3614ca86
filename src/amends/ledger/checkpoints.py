"""Draft, write and read the checkpoints of the ledger."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any, Final

from amends.encoding.chain import GENESIS, written_heads
from amends.encoding.dataclass import changed
from amends.ledger.operations import (
    DraftCheckpoint,
    ReadCheckpoints,
    WriteCheckpoint,
)
from amends.ledger.rows import (
    AddCheckpoint,
    CheckpointRow,
    Head,
    MoveTime,
    NewestCheckpoint,
    Now,
    PageCheckpoints,
    PageHeads,
)

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
    """Append a checkpoint (``WriteCheckpoint``). Return False if another process has appended one first."""
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

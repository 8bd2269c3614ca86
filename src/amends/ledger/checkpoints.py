"""Draft, write and read the checkpoints of the ledger."""

from __future__ import annotations

from amends.encoding.chain import GENESIS, read_heads, written_heads
from amends.encoding.dataclass import changed
from amends.ledger.operations import (
    DraftCheckpoint,
    ReadCheckpoints,
    WriteCheckpoint,
)
from amends.ledger.queries import move_time, newest_checkpoint, page_checkpoints
from amends.ledger.rows import CHECKPOINTS, CheckpointRow, Head, MarkSealed, Now, PageUnsealed
from amends.ledger.tables import Add


async def draft_checkpoint(op: DraftCheckpoint) -> CheckpointRow | None:
    """Draft the next checkpoint (``DraftCheckpoint``): over the trees that have events which none covers yet."""
    last = await newest_checkpoint()
    heads = await PageUnsealed("", op.limit)
    if not heads and (last is None or last.key == op.key):
        return None
    row = CheckpointRow(
        n=1 if last is None else last.n + 1,
        at=await Now(""),
        ledger=op.ledger if last is None else last.ledger,
        heads=written_heads((one.root, one.n, one.hash) for one in heads),
        prev=GENESIS if last is None else last.hash,
        hash="",
        key=op.key,
        signature="",
    )
    return changed(row, {"hash": row.true_hash})


async def write_checkpoint(op: WriteCheckpoint) -> bool:
    """Append a checkpoint (``WriteCheckpoint``). Return False if another process has appended one first.

    The chains that it names are marked as covered in the same transaction. Events that were written since the draft
    stay uncovered: the mark is the number in the checkpoint.
    """
    last = await newest_checkpoint()
    if op.repeated and last is not None and (last.n, last.hash) == (op.row.n, op.row.hash):
        return True
    end = (0, GENESIS) if last is None else (last.n, last.hash)
    await move_time(op.row.at)
    if (op.row.n - 1, op.row.prev) != end or not await Add(CHECKPOINTS, op.row, if_absent=True):
        return False
    await MarkSealed(tuple(Head(*head) for head in read_heads(op.row.heads)))
    return True


async def read_checkpoints(op: ReadCheckpoints) -> list[CheckpointRow]:
    """Read a page of checkpoints (``ReadCheckpoints``)."""
    if op.after >= 0:
        return await page_checkpoints(op.after, op.limit)
    last = await newest_checkpoint()
    return [] if last is None else [last]

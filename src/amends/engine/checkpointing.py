"""Writing checkpoints: drafted, signed, put at the end of the chain if nobody was faster, then told outside."""

from __future__ import annotations

from typing import Any, Final

from amends.checkpoint import Anchored
from amends.checkpointops import DraftCheckpoint, ReadCheckpoints, WriteCheckpoint
from amends.checkpointrows import CheckpointRow
from amends.ops import KeepCheckpoint, ReadAnchor
from amends.record import changed, dataclass

ROUNDS_MAX: Final = 1_000
"""So many checkpoints are written, or lost to others, at once; what is more is behind the next ones."""


@dataclass(frozen=True, slots=True)
class Written:
    """What came of it."""

    rows: tuple[CheckpointRow, ...]
    """Those that were written here, in order."""
    newest: CheckpointRow | None
    """The end of the chain, whoever wrote it; None: nothing has ever happened in this ledger."""
    behind: bool = False
    """The anchor knows a checkpoint that the ledger does not have, and so was left as it is."""


async def write_checkpoints(*, ledger: str, key: Any, anchor: Any) -> Written:
    """Everything that is in the ledger now is behind a checkpoint, and the anchor knows the newest.

    ``key`` signs; None: nobody does. ``ledger``: its name, should it have none yet.
    """
    rows: list[CheckpointRow] = []
    for _ in range(ROUNDS_MAX):
        draft = await DraftCheckpoint(ledger, "" if key is None else key.name)
        if draft is None:
            break
        row = draft if key is None else changed(draft, {"signature": key.sign(draft.hash)})
        if await WriteCheckpoint(row):
            rows.append(row)
    # Asked again also where nothing was written: who wrote it may have died before its anchor knew.
    newest = rows[-1:] or await ReadCheckpoints(-1, 1)
    if not newest:
        return Written((), None)
    return Written(tuple(rows), newest[0], behind=not await _anchored(anchor, newest[0]))


async def _anchored(anchor: Any, newest: CheckpointRow) -> bool:
    """The anchor knows this checkpoint or a later one; false where it knows one that is not in this chain."""
    if anchor is None:
        return True
    mark = await ReadAnchor(anchor)
    known = None if mark is None else mark.checkpoint
    if known is not None and not await holds_checkpoint(known, newest):
        return False
    if known is not None and known.n >= newest.n:
        return True
    kept: bool = await KeepCheckpoint(anchor, newest.anchored)
    return kept


async def holds_checkpoint(known: Anchored, newest: CheckpointRow | None = None) -> bool:
    """Whether the ledger has the checkpoint that an anchor knows."""
    if newest is not None and newest.n == known.n + 1:
        return newest.prev == known.hash and newest.ledger == known.ledger
    found = await ReadCheckpoints(known.n - 1, 1)
    return bool(found) and (found[0].n, found[0].hash, found[0].ledger) == (known.n, known.hash, known.ledger)

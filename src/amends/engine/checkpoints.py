"""Write and sign checkpoints, and compare the ledger with its anchor."""

from __future__ import annotations

from typing import Any, Final

from amends.encoding.chain import HEADS_MAX, Anchored, Checkpoint
from amends.encoding.dataclass import changed, dataclass
from amends.engine.session import Session
from amends.errors import LedgerBehind
from amends.ledger.operations import DraftCheckpoint, ReadApproval, ReadCheckpoints, WriteCheckpoint
from amends.ledger.rows import CallRow, CheckpointRow
from amends.ledger.world import KeepAnchor, KeepCheckpoint, ReadAnchor

ROUNDS_MAX: Final = 1_000
"""How many checkpoints are written, or lost to faster processes, at once; later ones cover the rest."""


@dataclass(frozen=True, slots=True)
class Written:
    """What was written."""

    told: tuple[Checkpoint, ...]
    """The checkpoints that were written here, in order."""
    newest: CheckpointRow | None
    """The end of the chain, whoever wrote it; None: nothing has ever happened in this ledger."""
    behind: bool = False
    """The anchor knows a checkpoint that the ledger does not have, and so was not changed."""


async def write_checkpoints(*, ledger: str, key: Any, anchor: Any) -> Written:
    """Cover everything that is in the ledger now by a checkpoint, and let the anchor know the newest.

    ``key`` signs; None: no signature. ``ledger``: the name for the ledger if it has none yet.
    """
    told: list[Checkpoint] = []
    newest: list[CheckpointRow] = []  # only one: a row is 25 kB of heads, and a backlog takes many rows
    for _ in range(ROUNDS_MAX):
        draft = await DraftCheckpoint(ledger, "" if key is None else key.name)
        # The same heads again: another transaction holds their runs, so that they could not be marked as covered.
        if draft is None or (newest and draft.heads == newest[0].heads):
            break
        row = draft if key is None else changed(draft, {"signature": key.sign(draft.hash)})
        if not await WriteCheckpoint(row):
            continue
        newest = [row]
        told.append(row.told())
        if told[-1].heads < HEADS_MAX:
            break  # it covers all that there was; what has happened since is for the next time, else this never ends
    # Read it even if nothing was written: its writer may have died before its anchor knew.
    newest = newest or await ReadCheckpoints(-1, 1)
    if not newest:
        return Written((), None)
    return Written(tuple(told), newest[0], behind=not await _anchored(anchor, newest[0]))


async def _anchored(anchor: Any, newest: CheckpointRow) -> bool:
    """Make the anchor know this checkpoint or a later one; return False if it knows one that is not in this chain."""
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
    """Return whether the ledger has the checkpoint that an anchor knows."""
    if newest is not None and newest.n == known.n + 1:
        return newest.prev == known.hash and newest.ledger == known.ledger
    found = await ReadCheckpoints(known.n - 1, 1)
    return bool(found) and (found[0].n, found[0].hash, found[0].ledger) == (known.n, known.hash, known.ledger)


# ---- Comparing the ledger with its anchor, before anything is opened and after an approval was used up


async def check_again(anchor: Any) -> None:
    """Do what ``check_anchor`` does if another server may answer since it was last done, as after a failover."""
    if anchor is not None and not anchor.is_compared:
        await check_anchor(anchor)


async def check_anchor(anchor: Any) -> None:
    """Raise ``LedgerBehind`` if the ledger lacks what its anchor says was used up, or happened."""
    if anchor is None:
        return
    sessions = anchor.sessions  # as they are before: one that begins meanwhile may be with another server
    mark = await ReadAnchor(anchor)
    if mark is not None:
        await _check_mark(anchor, mark, sessions)
    anchor.asked_at = sessions


async def _check_mark(anchor: Any, mark: Any, sessions: int) -> None:
    if mark.checkpoint is not None and not anchor.is_held:
        await _check_checkpoint(anchor, mark.checkpoint)
        anchor.held_at = sessions
    if not mark.approval:
        return
    found = await ReadApproval(mark.approval)
    if found is not None and found.approval.state == "used":
        return
    has = "does not have it" if found is None else f"says that it is {found.approval.state}"
    raise _behind(
        anchor, f"approval {mark.approval} was used up, and the ledger", has, known=mark.approval,
        found="" if found is None else found.approval.state,
    )  # fmt: skip


async def _check_checkpoint(anchor: Any, known: Any) -> None:
    """Check the checkpoint once for each session: a ledger that forgot what it did would do it again, approved or not."""
    if await holds_checkpoint(known):
        return
    newest = await ReadCheckpoints(-1, 1)
    has = f"its newest is {newest[0].n}" if newest else "it has none"
    other = "" if not newest or newest[0].ledger == known.ledger else f", of another ledger than {known.ledger}"
    raise _behind(
        anchor, "the ledger", f"does not have checkpoint {known.n} ({has}{other})", known=str(known.n),
        found=str(newest[0].n) if newest else "",
    )  # fmt: skip


def _behind(anchor: Any, what: str, has: str, *, known: str, found: str) -> LedgerBehind:
    """Return the error, which names both files and both ways out."""
    ledger, path = anchor.ledger, str(anchor.path)
    return LedgerBehind(
        f"{what} {ledger} {has}, which its anchor {path} knows: the ledger was deleted or restored to an earlier state,"
        " has forgotten what it did since, and starts nothing",
        known=known,
        found=found,
        ledger=ledger,
        anchor=path,
        hint=f"if {ledger} was deleted on purpose, and nothing that it did matters, delete {path} too; otherwise put the"
        " newest copy back, or compare this one with the outside world, then say so: amends db restored --why=..., or"
        " rt.reconcile_restore(by=..., why=...)",
    )


async def anchor_use(session: Session, row: CallRow) -> None:
    """Write to the anchor that the approval of this call was used up, before its body runs."""
    if session.anchor is None or not row.approval:
        return
    found = await ReadApproval(row.approval)
    assert found is not None, "a call names a request of this ledger"
    await KeepAnchor(session.anchor, found.approval.used_at or 0.0, row.approval)

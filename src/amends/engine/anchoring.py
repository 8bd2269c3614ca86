"""Holding the ledger against its anchor, before anything is opened and after an approval was used up."""

from __future__ import annotations

from typing import Any

from amends.approvalops import ReadApproval
from amends.checkpointops import ReadCheckpoints
from amends.engine.checkpointing import holds_checkpoint
from amends.engine.session import Session
from amends.errors import LedgerBehind
from amends.ledger import ReadEvents
from amends.ops import KeepAnchor, ReadAnchor
from amends.rows import CallRow


async def check_anchor(anchor: Any) -> None:
    """Raise ``LedgerBehind`` when the ledger does not have what its anchor says was used up, or happened."""
    mark = None if anchor is None else await ReadAnchor(anchor)
    if mark is None:
        return
    if mark.checkpoint is not None and not anchor.is_held:
        await _check_checkpoint(anchor, mark.checkpoint)
        anchor.is_held = True
    if not mark.seq:
        return
    later = await ReadEvents(None, None, max(0, mark.seq - 1), 1)
    found = await ReadApproval(mark.approval) if mark.approval else None
    used = not mark.approval or (found is not None and found.approval.state == "used")
    if later and used:
        return
    raise LedgerBehind(
        f"the ledger does not have event {mark.seq}, at which approval {mark.approval or '(none)'} was used up:"
        " it was put back to an earlier state, and starts nothing",
        known=mark.seq,
        found=later[0].seq if later else 0,
    )


async def _check_checkpoint(anchor: Any, known: Any) -> None:
    """Once in a process: a ledger that forgot what it did would do it again, approved or not."""
    if await holds_checkpoint(known):
        return
    newest = await ReadCheckpoints(-1, 1)
    has = f"its newest is {newest[0].n}" if newest else "it has none"
    other = "" if not newest or newest[0].ledger == known.ledger else f", of another ledger than {known.ledger}"
    raise LedgerBehind(
        f"the ledger does not have checkpoint {known.n}, which its anchor knows ({has}{other}): it was put back to an"
        " earlier state or deleted, has forgotten what it did since, and starts nothing",
        known=known.n,
        found=newest[0].n if newest else 0,
        hint=f"{LedgerBehind.default_hint}; if it was deleted on purpose, and nothing that it did matters, delete"
        f" {anchor.path} as well",
    )


async def anchor_use(session: Session, row: CallRow) -> None:
    """What was used up to start this call is known outside the ledger before its body runs."""
    if session.anchor is None or not row.approval:
        return
    found = await ReadApproval(row.approval)
    assert found is not None, "a call names a request of this ledger"
    await KeepAnchor(session.anchor, found.approval.used_seq, row.approval)

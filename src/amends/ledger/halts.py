"""Decide about halts: from the transaction of a halt on nothing starts, in the ledger or in one part of it.

The number of halts that stand is kept in one row of the ledger. The plain statements compare it, so that a plain call
needs no other look: while any halt stands, every call takes the general flow, which asks ``halt_on``.
"""

from __future__ import annotations

import json

from amends.encoding.chain import storable
from amends.ledger.directives import end_directive, make_directive
from amends.ledger.operations import Halt, ListHalts, Unhalt
from amends.ledger.queries import lifted_halts, move_time, page_events, standing_halts
from amends.ledger.rows import DIRECTIVES, LEDGER, THIS, DirectiveRow, Now, RunRow
from amends.ledger.tables import Change, Find


async def halt_on(tool: str, *runs: RunRow) -> DirectiveRow | None:
    """Return the halt that lets this tool not start in these runs of one tree; None: there is none."""
    ledger = await Find(LEDGER, THIS, peek=True)
    assert ledger is not None, "a ledger has one row about itself"
    if not ledger.halt:
        return None
    return next((halt for halt in await standing_halts() if halt.is_about(tool, *runs)), None)


async def halt(op: Halt) -> DirectiveRow:
    """Halt the ledger, or a part of it (``Halt``)."""
    ledger = await Find(LEDGER, THIS)
    assert ledger is not None, "a ledger has one row about itself"
    known = await Find(DIRECTIVES, op.id) if op.repeated else None
    if known is not None:
        return known  # recorded before, and the answer was lost
    now = await Now("")
    await move_time(now)
    row = DirectiveRow(
        id=op.id, kind="halt", tenant=op.tenant or "", wide=int(op.tenant is None), agent=storable(op.agent),
        tool=storable(op.tool), words="", by_whom=storable(op.by), why=storable(op.why), made_at=now, until_at=None,
        uses=0, closed_at=None, seq=0,
    )  # fmt: skip
    row = await make_directive(row)
    await Change(LEDGER, ledger, {"halt": ledger.halt + 1})
    return row


async def unhalt(op: Unhalt) -> list[DirectiveRow]:
    """Lift the halts of exactly this extent (``Unhalt``)."""
    ledger = await Find(LEDGER, THIS)
    assert ledger is not None, "a ledger has one row about itself"
    mine = (op.tenant or "", int(op.tenant is None), storable(op.agent), storable(op.tool))
    if op.repeated:
        done = [row for row in await lifted_halts() if _extent(row) == mine and await _is_lifted_by(row, op.nonce)]
        if done:
            return sorted(done, key=lambda row: (row.made_at, row.id))  # as they were lifted
    await move_time(await Now(""))
    said = {"by": op.by, "why": storable(op.why), "nonce": op.nonce}
    standing = [row for row in await standing_halts() if _extent(row) == mine]
    lifted = [await end_directive(row, at=await Now(row.id), **said) for row in standing]
    if lifted:
        await Change(LEDGER, ledger, {"halt": ledger.halt - len(lifted)})
    return lifted


def halted_facts(row: DirectiveRow) -> dict[str, object]:
    """Return what the event of a refusal says of its halt: a replay tells it again."""
    said = {"tenant": None if row.wide else row.tenant, "agent": row.agent, "tool": row.tool}
    return said | {"by": row.by_whom, "why": row.why, "at": row.made_at}


def _extent(row: DirectiveRow) -> tuple[str, int, str, str]:
    return row.tenant, row.wide, row.agent, row.tool


async def _is_lifted_by(row: DirectiveRow, nonce: str) -> bool:
    last = await page_events(row.id, None, row.seq - 1, 1)
    return bool(last) and json.loads(last[0].facts).get("nonce") == nonce


async def list_halts(_op: ListHalts) -> list[DirectiveRow]:
    """Read the halts that stand (``ListHalts``)."""
    return await standing_halts()

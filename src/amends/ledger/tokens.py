"""Decide about tokens: by which somebody may ask over the network, for a while.

A row has the digest of the secret, never the secret. That a token has expired is decided by the ledger's time, and written
down when somebody uses it after that: then it has ended for good, whatever the clock says later.
"""

from __future__ import annotations

import json
from typing import Any, TypeVar

from amends.encoding.chain import storable
from amends.encoding.dataclass import changed
from amends.ledger.directives import EXPIRED, end_directive, make_directive_once
from amends.ledger.events import with_token, write_event
from amends.ledger.flow import Flow, run_flow_async
from amends.ledger.operations import EndToken, ListTokens, MakeToken, NoteDriver, ReadToken
from amends.ledger.queries import move_time, newest_event, standing_tokens
from amends.ledger.rows import DIRECTIVES, AddEvent, DirectiveRow, Now
from amends.ledger.tables import Find
from amends.ledger.trees import find_run

T = TypeVar("T")


async def make_token(op: MakeToken) -> DirectiveRow | None:
    """Record a token (``MakeToken``)."""
    now = await Now("")
    row = DirectiveRow(
        id=op.id, kind="token", tenant=op.tenant or "", wide=int(op.tenant is None), agent=storable(op.agent), tool="",
        words=storable(op.words), by_whom=storable(op.by), why=storable(op.why), made_at=now, until_at=op.until_at,
        uses=0, closed_at=None, seq=0,
    )  # fmt: skip
    known = await Find(DIRECTIVES, op.id)
    if known is not None:
        # Its words have a digest that nobody else has: then it was recorded before, and the answer was lost.
        return known if op.repeated and known.words == row.words else None
    await move_time(now)
    return await make_directive_once(row)


async def end_token(op: EndToken) -> DirectiveRow | None:
    """End a token (``EndToken``)."""
    row = await Find(DIRECTIVES, op.id)
    if row is None or row.kind != "token" or not _is_of(row, op.tenant):
        return None
    if row.closed_at is not None:
        return row
    now = await Now("")
    if op.expired and now < (row.until_at or 0.0):
        return row
    await move_time(now)
    at = max(now, await Now(row.id))
    return await end_directive(row, at=at, by=op.by, what=EXPIRED if op.expired else "", why=storable(op.why))


async def read_token(op: ReadToken) -> tuple[DirectiveRow | None, float]:
    """Read a token (``ReadToken``)."""
    row = await Find(DIRECTIVES, op.id)
    return None if row is None or row.kind != "token" else row, await Now("")


async def list_tokens(op: ListTokens) -> tuple[list[DirectiveRow], float]:
    """Read the tokens that are valid (``ListTokens``)."""
    now = await Now("")
    return [row for row in await standing_tokens(op.tenant, now) if _is_of(row, op.tenant)], now


async def note_driver(op: NoteDriver) -> bool:
    """Record who drives a run (``NoteDriver``)."""
    run = await find_run(op.root)
    last = await newest_event(run.uid, None) if op.repeated else None
    if last is not None and json.loads(last.facts).get("nonce") == op.nonce:
        return True  # recorded before, and the answer was lost
    if run.closed_at is not None:
        return False
    await write_event(run, "driven", at=await Now(run.uid), by=storable(op.by), epoch=run.epoch, nonce=op.nonce)
    return True


def _is_of(row: DirectiveRow, tenant: str | None) -> bool:
    """Return whether the token belongs to this tenant; one for every tenant belongs to none."""
    return tenant is None or (row.tenant == tenant and not row.wide)


async def signed(flow: Flow[T], token: str, *, only: str = "") -> T:
    """Run the flow of an operation; each event that it writes also says by which token it was asked for.

    ``only``: the tree whose events say so. What a load copies from another ledger stays as it was written there.
    """

    def noted(op: Any) -> Any:
        is_meant = isinstance(op, AddEvent) and only in ("", op.root)
        return changed(op, {"facts": with_token(op.facts, token)}) if is_meant else op

    return await run_flow_async(flow, noted)

"""Record who ordered work on the ledger: a checkpoint, gc, encrypting with a new key, a pass of recovery.

The work itself leaves no event that names a person, or none at all.
"""

from __future__ import annotations

from amends.encoding.chain import storable
from amends.ledger.directives import make_directive
from amends.ledger.operations import OrderWork
from amends.ledger.queries import move_time
from amends.ledger.rows import DIRECTIVES, DirectiveRow, Now
from amends.ledger.tables import Find


async def order_work(op: OrderWork) -> DirectiveRow:
    """Record an order of work (``OrderWork``)."""
    known = await Find(DIRECTIVES, op.id) if op.repeated else None
    if known is not None:
        return known  # recorded before, and the answer was lost
    now = await Now("")
    await move_time(now)
    row = DirectiveRow(
        id=op.id, kind="work", tenant=op.tenant or "", wide=int(op.tenant is None), agent="", tool="",
        words=storable(op.words), by_whom=storable(op.by), why=storable(op.why), made_at=now, until_at=None, uses=0,
        closed_at=now, seq=0,
    )  # fmt: skip
    return await make_directive(row)

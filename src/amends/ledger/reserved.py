"""Names of tools that workers perform: what such a tool is, only a worker's own declaration says.

A server forgets the declarations of workers when it ends. That a name belongs to workers is remembered here, so that nobody
can use it meanwhile as if it were an undeclared tool, without the approval, say, that its declaration asks for.
"""

from __future__ import annotations

import hashlib
import json

from amends.ledger.operations import ReadReserved, ReserveTools
from amends.ledger.rows import MARKS, MarkRow, Now
from amends.ledger.tables import Add, Find


async def reserve_tools(op: ReserveTools) -> None:
    """Reserve names (``ReserveTools``)."""
    now = await Now("")
    for tool in sorted(set(op.tools)):  # in one order: others may reserve the same ones
        said = json.dumps([op.tenant, tool])
        if await Find(MARKS, _place(said)) is None:
            await Add(MARKS, MarkRow(_place(said), said, now), if_absent=True)


async def read_reserved(op: ReadReserved) -> frozenset[str]:
    """Return which names are reserved (``ReadReserved``)."""
    found = set()
    for tool in op.tools:
        if await Find(MARKS, _place(json.dumps([op.tenant, tool]))) is not None:
            found.add(tool)
    return frozenset(found)


def _place(said: str) -> str:
    return f"worker's tool {hashlib.sha256(said.encode('utf-8', 'surrogatepass')).hexdigest()}"

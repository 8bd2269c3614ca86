"""Names of tools that only workers declare: reserve them, and ask which are reserved."""

from __future__ import annotations

from collections.abc import Iterable

from amends.host.host import Host, View
from amends.ledger.operations import ReadReserved, ReserveTools


async def reserve_tools(_host: Host, view: View, tools: Iterable[str]) -> None:
    """Record that workers of this tenant perform these tools; only a worker's declaration describes them.

    For a server that forgets such declarations when it ends: it asks ``reserved_tools`` before it treats a tool as
    undeclared.
    """
    if names := tuple(tools):
        await ReserveTools(view.tenant or "", names)


async def reserved_tools(_host: Host, view: View, tools: Iterable[str]) -> frozenset[str]:
    """Return which of these tools are performed by workers of this tenant, now or at any time before."""
    names = tuple(tools)
    return await ReadReserved(view.tenant or "", names) if names else frozenset()

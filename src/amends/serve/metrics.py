"""For machines: health, readiness, metrics, and the OpenAPI document."""

from __future__ import annotations

import asyncio
from typing import Final

from amends import __version__
from amends.serve.exchange import Exchange, Reply

READY_S_MAX: Final = 5.0
"""How long the ledger may take to answer."""


async def openapi(x: Exchange) -> Reply:
    """Describe every route: OpenAPI 3.1."""
    return Reply(x.service.document())


async def health(_x: Exchange) -> Reply:
    """Say that the process runs; the ledger is not asked."""
    return Reply({"status": "ok", "version": __version__})


async def ready(x: Exchange) -> Reply:
    """Say whether the ledger answers, so that requests can be carried out."""
    try:
        async with asyncio.timeout(READY_S_MAX):
            await x.service.rt.newest_event()
    except Exception as error:
        why = type(error).__name__
        return Reply({"status": "failing", "version": __version__, "ledger": why}, 503, {"Retry-After": "5"})
    return Reply({"status": "ok", "version": __version__, "ledger": "ok", "runs": len(x.service.sessions)})

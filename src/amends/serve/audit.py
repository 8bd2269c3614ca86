"""For auditors: verify the record in the background, export runs as a file that anybody can check, and load one."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from amends.serve.exchange import Body, Exchange, Query, Reply
from amends.serve.long_work import LongWork, Work


class Verify(Body):
    """What to verify: all of the ledger, or these runs and those of the filter."""

    runs: list[str] = Field(default_factory=list, max_length=1_000)
    filter: str = Field("", max_length=2_000)


class Export(Body):
    """Which runs to export."""

    runs: list[str] = Field(min_length=1, max_length=1_000)


class LoadQuery(Query):
    """Why the runs of a bundle are loaded."""

    why: str = Field("", max_length=2_000, description="The reason, for the record")


class Order(Body):
    """Why somebody orders work on the ledger."""

    why: str = Field("", max_length=2_000, description="The reason, for the record")


async def verify(x: Exchange) -> Reply:
    """Begin to verify the record; the address in Location tells how far it is, and then what was found."""
    said: Verify = x.body
    return x.service.long_works.begin(x, "verify", verifying(x, said))


def verifying(x: Exchange, said: Verify) -> Work:
    """Return the work of a verification."""

    async def work(going: LongWork) -> dict[str, Any]:
        tenant = x.service.own_tenant(x)
        found = await x.rt.verify(*said.runs, filter=said.filter, progress=going.progress, tenant=tenant)
        going.progress(found.runs, found.events)
        return found.to_dict()

    return work


async def export(x: Exchange) -> Reply:
    """Return everything that the ledger has of these runs as one file that anybody can verify: ``python FILE``."""
    data = await x.rt.export(*x.body.runs)
    headers = {"Content-Disposition": 'attachment; filename="amends-bundle.zip"'}
    return Reply(data, 200, headers, "application/zip")


async def load(x: Exchange) -> Reply:
    """Load the runs of a bundle as records that nothing here changes."""
    tenant = x.service.own_tenant(x)
    return Reply({"runs": await x.rt.load(x.body, tenant=tenant, by=x.who.name, why=x.query.why)})


async def checkpoint(x: Exchange) -> Reply:
    """Write a signed checkpoint that covers every event so far, and write it to the anchor."""
    await x.rt.note_work("checkpoint", by=x.who.name, why=x.body.why)
    made = await x.rt.checkpoint()
    return Reply({"checkpoint": None if made is None else made.to_dict()}, 201)

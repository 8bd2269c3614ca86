"""A Restate service for tests of the servers: a virtual object that counts."""

from __future__ import annotations

import restate

counter = restate.VirtualObject("counter")


@counter.handler()
async def add(ctx: restate.ObjectContext, by: int) -> int:
    total = (await ctx.get("total", type_hint=int) or 0) + by
    ctx.set("total", total)
    return total


app = restate.app([counter])

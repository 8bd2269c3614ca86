"""agent-ledger on PostgreSQL, async. It has no saga: compensations are guarded calls by hand."""

import contextlib
from importlib.metadata import version

from agent_ledger import EffectLedger, EffectLedgerOptions, ToolCall
from agent_ledger.stores.postgres import SCHEMA_SQL, PostgresStore
from psycopg_pool import AsyncConnectionPool

from bench.sides.timing import KNOWN, args_of, asked, fresh, many_async, plain_async, serve, timed_async

POOL = 20
said = asked()


async def noop(_effect):
    return {"ok": True}


async def boom(_effect):
    raise ValueError("the last of four fails")


class Peer:
    ledger = None

    def __init__(self):
        self.known = []

    async def open(self):
        if self.ledger is None:
            pool = AsyncConnectionPool(said.place, min_size=POOL, max_size=POOL, open=False)
            await pool.open()
            async with pool.connection() as con:
                await con.execute(SCHEMA_SQL)
            self.ledger = EffectLedger(EffectLedgerOptions(store=PostgresStore(pool)))
        return self.ledger

    def call(self, key, fn=noop, tool="pay", saga="bench"):
        return self.ledger.run(ToolCall(workflow_id=saga, tool=tool, args=args_of(key)), fn)

    async def fresh(self, n, limit_s):
        await self.open()
        return await timed_async(lambda _: self.call(fresh()), n, limit_s)

    async def many(self, n, limit_s):
        await self.open()
        return await many_async(lambda: plain_async(lambda: self.call(fresh())), n, limit_s)

    async def replay(self, n, limit_s):
        await self.open()
        while len(self.known) < KNOWN:
            self.known.append(fresh())
            await self.call(self.known[-1])
        return await timed_async(lambda i: self.call(self.known[i % KNOWN]), n, limit_s)

    async def saga(self, n, limit_s):
        await self.open()

        async def one(_):
            saga = fresh("saga")
            for i in range(3):
                await self.call(f"o-{i}", saga=saga)
            with contextlib.suppress(ValueError):
                await self.call("o-3", boom, saga=saga)
            for i in reversed(range(3)):
                await self.call(f"o-{i}", tool="undo", saga=saga)

        return await timed_async(one, n, limit_s)


peer = Peer()
works = {"fresh_async": peer.fresh, "many_async": peer.many, "replay": peer.replay, "saga": peer.saga}
serve(works, version=version("agent-ledger"))

"""agent-saga, async: its file log (flushed every time, so compared with SQLite FULL) and PostgreSQL.

It does not answer repeated calls, so there is no row for that. Its saga compensates four calls: the failed one too.
"""

import contextlib
import logging
from importlib.metadata import version

logging.disable(logging.CRITICAL)

from agent_saga import SagaAborted  # noqa: E402
from agent_saga.decorator import saga_scope, tool  # noqa: E402
from agent_saga.registry import compensator  # noqa: E402
from agent_saga.semantics import ActionSemantics, Compensation  # noqa: E402
from agent_saga.wal import FileWAL  # noqa: E402

from bench.sides.timing import args_of, asked, erased, fresh, many_async, serve, timed_async  # noqa: E402

said = asked()


@compensator("bench.undo")
async def undo(order_id):
    return None


def undone(_result):
    return Compensation(fn=undo, handler="bench.undo", kwargs={"order_id": "x"})


@tool("pay", semantics=ActionSemantics.COMPENSABLE, compensate=undone)
async def pay(**kwargs):
    return {"ok": True}


@tool("boom", semantics=ActionSemantics.COMPENSABLE, compensate=undone)
async def boom(**kwargs):
    raise ValueError("the last of four fails")


class Peer:
    wal = None

    async def open(self):
        if self.wal is None:
            if said.store == "postgres":
                from agent_saga.wal.postgres_wal import PostgresWAL

                self.wal = PostgresWAL(said.place)
            else:
                self.wal = FileWAL(erased(said.place))
            await self.wal.start()
        return self.wal

    async def fresh(self, n, limit_s):
        async with saga_scope(wal=await self.open()):
            return await timed_async(lambda _: pay(**args_of(fresh())), n, limit_s)

    async def many(self, n, limit_s):
        """One saga for all 64: separate sagas cannot be opened before the clock starts."""
        async with saga_scope(wal=await self.open()):
            return await many_async(self.caller, n, limit_s)

    @contextlib.asynccontextmanager
    async def caller(self):
        yield lambda: pay(**args_of(fresh()))

    async def saga(self, n, limit_s):
        wal = await self.open()

        async def one(_):
            with contextlib.suppress(SagaAborted):
                async with saga_scope(wal=wal):
                    for i in range(3):
                        await pay(**args_of(f"o-{i}"))
                    await boom(**args_of("o-3"))

        return await timed_async(one, n, limit_s)


peer = Peer()
serve({"fresh_async": peer.fresh, "many_async": peer.many, "saga": peer.saga}, version=version("agent-saga"))

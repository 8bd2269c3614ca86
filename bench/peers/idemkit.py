"""idemkit on PostgreSQL, async. It has no saga: by hand."""

import contextlib
import warnings
from importlib.metadata import version

warnings.simplefilter("ignore")
from idemkit import MethodConfig, PostgresBackend, idempotent  # noqa: E402
from idemkit.backends.postgres import init_pg  # noqa: E402

from bench.sides.timing import KNOWN, args_of, asked, fresh, many_async, plain_async, serve, timed_async  # noqa: E402

said = asked()


class Peer:
    pay = boom = None

    def __init__(self):
        self.known = []

    async def open(self):
        if self.pay is not None:
            return
        await init_pg(said.place)
        backend, config = PostgresBackend.from_url(said.place), MethodConfig(key_fields=["key"])

        @idempotent(backend=backend, config=config)
        async def pay(*, key, args):
            return {"ok": True}

        @idempotent(backend=backend, config=config)
        async def boom(*, key, args):
            raise ValueError("the last of four fails")

        self.pay, self.boom = pay, boom

    def call(self, key):
        return self.pay(key=key, args=args_of(key))

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
                await self.call(f"{saga}-{i}")
            with contextlib.suppress(ValueError):
                await self.boom(key=f"{saga}-3", args=args_of("o-3"))
            for i in reversed(range(3)):
                await self.call(f"{saga}-undo-{i}")

        return await timed_async(one, n, limit_s)


peer = Peer()
works = {"fresh_async": peer.fresh, "many_async": peer.many, "replay": peer.replay, "saga": peer.saga}
serve(works, version=version("idemkit"))

"""exactly-once on SQLite (WAL, synchronous=NORMAL) and PostgreSQL. It has no saga: by hand."""

import contextlib
from importlib.metadata import version

from exactly_once import Store, once

from bench.sides.timing import KNOWN, args_of, asked, erased, fresh, many, plain, serve, timed

said = asked()
store = Store.postgres(said.place) if said.store == "postgres" else Store.sqlite(erased(said.place))


@once(store, key=lambda key, args: key)
def pay(key, args):
    return {"ok": True}


@once(store, key=lambda key, args: key)
def boom(key, args):
    raise ValueError("the last of four fails")


def call(key, fn=pay):
    return fn(key, args_of(key))


known = []


def replay(n, limit_s):
    while len(known) < KNOWN:
        known.append(fresh())
        call(known[-1])
    return timed(lambda i: call(known[i % KNOWN]), n, limit_s)


def one(_):
    saga = fresh("saga")
    for i in range(3):
        call(f"{saga}-{i}")
    with contextlib.suppress(ValueError):
        call(f"{saga}-3", boom)
    for i in reversed(range(3)):
        call(f"{saga}-undo-{i}")


works = {
    "fresh": lambda n, limit_s: timed(lambda _: call(fresh()), n, limit_s),
    "many": lambda n, limit_s: many(lambda: plain(lambda: call(fresh())), n, limit_s),
    "replay": replay,
    "saga": lambda n, limit_s: timed(one, n, limit_s),
}
serve(works, version=version("exactly-once"))

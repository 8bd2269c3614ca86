"""DBOS on SQLite and PostgreSQL. A call is one of its durable functions, called in a durable function that is running.

It writes once per call, after it: nothing records beforehand that a call is about to happen. It is included because
people compare. With 64 callers each call is a separate durable function, because those of one cannot run at once.
"""

import contextlib
from importlib.metadata import version

from dbos import DBOS, SetWorkflowID

from bench.sides.timing import KNOWN, args_of, asked, erased, fresh, many, plain, serve, timed

said = asked()
url = said.place if said.store == "postgres" else f"sqlite:///{erased(said.place)}"
DBOS(config={"name": "bench", "system_database_url": url, "log_level": "CRITICAL"})


@DBOS.step()
def pay(args: dict) -> dict:
    return {"ok": True}


@DBOS.step()
def boom(args: dict) -> dict:
    raise ValueError("the last of four fails")


@DBOS.workflow()
def calls(n: int, limit_s: float) -> dict:
    return timed(lambda _: pay(args_of(fresh())), n, limit_s)


@DBOS.workflow()
def single(args: dict) -> dict:
    return pay(args)


@DBOS.workflow()
def taken_back() -> None:
    for i in range(3):
        pay(args_of(f"o-{i}"))
    try:
        boom(args_of("o-3"))
    except ValueError:
        for i in range(3):
            pay(args_of(f"undo-{i}"))


def named(key):
    with SetWorkflowID(key):
        return single(args_of(key))


known = []


def replay(n, limit_s):
    while len(known) < KNOWN:
        known.append(fresh())
        named(known[-1])
    return timed(lambda i: named(known[i % KNOWN]), n, limit_s)


DBOS.launch()
works = {
    "fresh": calls,
    "many": lambda n, limit_s: many(lambda: plain(lambda: single(args_of(fresh()))), n, limit_s),
    "replay": replay,
    "saga": lambda n, limit_s: timed(lambda _: taken_back(), n, limit_s),
}
with contextlib.suppress(BrokenPipeError):
    serve(works, version=version("dbos"))
DBOS.destroy()

"""SafeAgent on SQLite (synchronous=FULL) and PostgreSQL. It has no saga: compensations are guarded calls by hand."""

from importlib.metadata import version

from safeagent_exec_guard import SettlementRequestRegistry

from bench.sides.timing import KNOWN, args_of, asked, erased, fresh, many, plain, serve, timed

said = asked()
registry = (
    SettlementRequestRegistry(postgres_dsn=said.place)
    if said.store == "postgres"
    else SettlementRequestRegistry(sqlite_path=erased(said.place))
)


def noop(_payload):
    return {"ok": True}


def boom(_payload):
    raise ValueError("the last of four fails")


def call(key, fn=noop):
    return registry.execute(request_id=key, action="pay", payload=args_of(key), execute_fn=fn)


def must(key):
    if not call(key)["ok"]:
        raise RuntimeError("not executed")


known = []


def replay(n, limit_s):
    while len(known) < KNOWN:
        known.append(fresh())
        call(known[-1])
    return timed(lambda i: call(known[i % KNOWN]), n, limit_s)


def one(_):
    saga = fresh("saga")
    for i in range(3):
        must(f"{saga}-{i}")
    if not call(f"{saga}-3", boom)["ok"]:
        for i in reversed(range(3)):
            must(f"{saga}-undo-{i}")


works = {
    "fresh": lambda n, limit_s: timed(lambda _: must(fresh()), n, limit_s),
    "many": lambda n, limit_s: many(lambda: plain(lambda: must(fresh())), n, limit_s),
    "replay": replay,
    "saga": lambda n, limit_s: timed(one, n, limit_s),
}
serve(works, version=version("safeagent-exec-guard"))

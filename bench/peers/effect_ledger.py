"""effect-ledger on SQLite (rollback journal, FULL) and PostgreSQL, a connection per transaction. No saga: by hand."""

from importlib.metadata import version

from effect_ledger import EffectExecutor

from bench.sides.timing import KNOWN, args_of, asked, erased, fresh, many, plain, serve, timed

said = asked()
if said.store == "postgres":
    from effect_ledger.postgres import PostgresOperationStore

    executor = EffectExecutor(scope="bench", store=PostgresOperationStore(said.place))
else:
    executor = EffectExecutor(erased(said.place), scope="bench")


def noop(_operation):
    return {"ok": True}


def boom(_operation):
    raise ValueError("the last of four fails")


def call(key, fn=noop, want="completed"):
    if executor.execute(key, "pay:v1", args_of(key), fn).state != want:
        raise RuntimeError(f"not {want}")


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
    call(f"{saga}-3", boom, "indeterminate")
    for i in reversed(range(3)):
        call(f"{saga}-undo-{i}")


works = {
    "fresh": lambda n, limit_s: timed(lambda _: call(fresh()), n, limit_s),
    "many": lambda n, limit_s: many(lambda: plain(lambda: call(fresh())), n, limit_s),
    "replay": replay,
    "saga": lambda n, limit_s: timed(one, n, limit_s),
}
serve(works, version=version("effect-ledger"))

"""A ledger in PostgreSQL: the URL, making it, sharing it between threads, loops and processes."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from amends import Runtime
from amends.errors import (
    BadConfig,
    LedgerCorrupt,
    LedgerMissing,
    LedgerTooNew,
    LedgerTooOld,
    LedgerUnavailable,
    NotStorable,
)
from amends.ledger import operations as ops
from amends.model import Schema
from amends.stores import store_for
from amends.stores.migrations import migrations, sql_of
from amends.stores.postgres import connection, schema
from amends.stores.postgres.store import PostgresStore
from amends.stores.postgres.url import read_url
from amends.testing.conformance.ledger import Clock, Ledger, audit
from tests.servers.databases import execute, with_database
from tests.stores.many import wait_for
from tests.stores.pg import count, sessions

Make = Callable[..., PostgresStore]


@pytest.fixture
def make(postgres_url: str) -> Iterator[Make]:
    """Stores of one database, closed at the end."""
    made: list[PostgresStore] = []

    def one(url: str = "", **given: Any) -> PostgresStore:
        made.append(PostgresStore(url or postgres_url, **given))
        return made[-1]

    yield one
    for store in made:
        store.close()


def with_option(url: str, option: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}{option}"


# ---- the URL ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url, shown",
    [
        ("postgresql://bob:secret@host:5433/shop", "postgresql://bob@host:5433/shop"),
        ("postgres://host/shop", "postgresql://host/shop"),
        ("postgresql+psycopg://bob:sec%40ret@host/shop", "postgresql://bob@host/shop"),
        ("postgresql://host/shop?user=bob&password=secret", "postgresql://bob@host/shop"),
        ("postgresql:///shop?host=/run/pg&password=secret", "postgresql:///run/pg/shop"),
        ("postgresql://bob:secret@a:1,b:2/shop?target_session_attrs=read-write", "postgresql://bob@a:1,b:2/shop"),
        ("postgresql://bob:secret@host/shop?schema=ledger&pool_max=3", "postgresql://bob@host/shop?schema=ledger"),
    ],
)
def test_a_store_is_named_without_its_password(url: str, shown: str) -> None:
    store = store_for(url)
    assert isinstance(store, PostgresStore)
    assert store.url == shown
    assert "sec" not in repr(store) + repr(store._address) + repr(store._pool)


def test_our_own_options_are_not_shown_to_libpq() -> None:
    place = read_url(
        "postgresql://bob:s%3Fcret@host/shop?schema=led+ger&sslmode=require&pool_max=3&lock_wait_s=0.5&pooler=transaction"
    )
    assert place.conninfo == "postgresql://bob:s%3Fcret@host/shop?sslmode=require"
    assert (place.schema, place.pool_max, place.lock_wait_s, place.pooler) == ("led ger", 3, 0.5, "transaction")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql:shop", "postgresql://bob:secret@host/shop?pool_max=0", "postgresql://bob:secret@host/shop?pool_max=x",
        "postgresql://bob:secret@host/shop?pooler=statement", "postgresql://bob:secret@host/shop?schema=",
        "postgresql://bob:secret@host/shop?lock_wait_s=-1", "postgresql://bob:secret@host/shop?no_such_option=1",
        "postgresql://bob:sec%ret@host/shop", "postgresql://bob:secret@host:port:1/shop?a=b",
        "postgresql://bob:a/secret@host/shop", "postgresql://bob:secret/a@host/shop", "postgresql://bob:secret?a@host/shop",
        "postgresql://bob:a@secret@host/shop", "postgresql://bob:a#secret@host/shop",
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_said_without_the_password(url: str) -> None:
    with pytest.raises(BadConfig) as bad:
        store_for(url)
    assert bad.value.setting == "url"
    assert bad.value.hint
    told = f"{bad.value} {bad.value.hint} {bad.value.to_dict()} {bad.value.__cause__} {bad.value.__context__}"
    assert "sec" not in told


def test_without_psycopg_the_extra_is_named(tmp_path: Path) -> None:
    (tmp_path / "psycopg.py").write_text("raise ImportError('no pq wrapper available')")
    code = (
        "from amends.stores import store_for\n"
        "try: store_for('postgresql://bob:secret@host/shop')\n"
        "except Exception as error: print(type(error).__name__, error, error.hint)"
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ | {"PYTHONPATH": path}
    )
    assert done.stdout.startswith("BadConfig")
    assert "pip install 'amends[postgres]'" in done.stdout
    assert "secret" not in done.stdout


def test_the_settings_of_a_runtime_hide_the_password() -> None:
    rt = Runtime("postgresql://bob:hush@host/shop")
    assert rt.settings["url"].value == "postgresql://bob@host/shop"
    assert "hush" not in str(dict(rt.settings))


# ---- opening ------------------------------------------------------------------------------


def test_making_a_store_connects_to_nothing() -> None:
    PostgresStore("postgresql://nobody@127.0.0.1:1/nothing").close()


def test_opening_says_whether_the_ledger_is_new(make: Make, postgres_url: str) -> None:
    first, second = make(), make()
    assert first.open(create=True) is True
    assert first.open(create=True) is False
    assert second.open(create=False) is False
    assert first.schema() == second.schema()
    assert len(first.schema().ledger) == 16
    assert first.schema().pending == ()


def test_without_create_nothing_is_made(make: Make, postgres_url: str) -> None:
    with pytest.raises(LedgerMissing) as missing:
        make().open(create=False)
    assert "create=True" in missing.value.hint
    assert make().schema().version == 0
    assert count(postgres_url, "pg_tables where schemaname = 'public'") == 0


def test_the_first_operation_opens_in_both_colours(make: Make) -> None:
    Ledger(make()).run()
    assert Ledger(make(), "async").runs()[0].state == "open"


def test_two_starters_do_not_migrate_at_once(make: Make) -> None:
    stores = [make() for _ in range(6)]
    start = threading.Barrier(len(stores))
    made: list[bool] = []

    def begin(store: PostgresStore) -> None:
        start.wait()
        made.append(store.open(create=True))

    threads = [threading.Thread(target=begin, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == [False] * 5 + [True]


def test_a_schema_of_its_own_keeps_ledgers_apart(make: Make, postgres_url: str) -> None:
    one, two = (make(with_option(postgres_url, f"schema={name}")) for name in ("one", 'of%20"us"'))
    assert one.open(create=True)
    assert two.open(create=True)
    Ledger(one).run()
    assert Ledger(two).runs() == []
    assert len(Ledger(one, "async").runs()) == 1
    assert count(postgres_url, "one.amends_run") == 1
    assert count(postgres_url, "pg_tables where schemaname = 'public'") == 0
    assert one.schema().ledger != two.schema().ledger


def test_tables_of_something_else_are_not_touched(make: Make, postgres_url: str) -> None:
    execute(postgres_url, ["create table amends_event (mine text)", "insert into amends_event values ('precious')"])
    with pytest.raises(LedgerCorrupt) as corrupt:
        make().open(create=True)
    assert "?schema=amends" in corrupt.value.hint
    assert execute(postgres_url, ["select * from amends_event"]) == [("precious",)]
    assert make().schema().version == 0


def test_who_creates_the_tables_by_hand_gets_a_ledger(make: Make, postgres_url: str) -> None:
    """``amends db sql`` prints all of it: a first start then has nothing to create."""
    execute(postgres_url, [sql_of("postgresql")])
    store = make()
    assert store.open(create=False) is False
    assert (store.schema().version, len(store.schema().ledger)) == (len(migrations("postgresql")), 16)
    assert Ledger(store).do(Ledger(store).run()).state == "succeeded"


def test_a_ledger_lives_beside_the_tables_of_somebody_else(make: Make, postgres_url: str) -> None:
    tables = ("runs", "calls", "events", "marks")
    execute(postgres_url, [f"create table {table} as select 26 as miles" for table in tables])
    store = make()
    assert store.open(create=True) is True
    assert Ledger(store).do(Ledger(store).run()).state == "succeeded"
    for table in tables:
        assert execute(postgres_url, [f"select * from {table}"]) == [(26,)]


def test_a_ledger_of_the_first_release_is_refused_and_left_as_it_is(make: Make, postgres_url: str) -> None:
    """Its tables were ``runs``, ``calls`` and so on, beside the same ``amends_schema``."""
    execute(
        postgres_url,
        [
            "create table amends_schema as select 9 as version, 9 as needs, 0.0 as applied_at, 'its name' as ledger",
            "create table runs as select 'precious' as uid",
        ],
    )
    for create in (True, False):
        with pytest.raises(LedgerTooOld, match="nothing was changed"):
            make().open(create=create)
    tables = execute(postgres_url, ["select tablename from pg_tables where schemaname = 'public' order by 1"])
    assert tables == [("amends_schema",), ("runs",)]


def test_a_ledger_that_needs_a_newer_amends_is_refused(make: Make, postgres_url: str) -> None:
    make().open(create=True)
    execute(postgres_url, ["insert into amends_schema values (99, 99, 0, 'x')"])
    with pytest.raises(LedgerTooNew):
        make().open(create=True)


def test_an_older_ledger_is_brought_up_to_date(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    make().open(create=True)
    newer = replace(
        migrations("postgresql")[-1],
        version=len(migrations("postgresql")) + 1,
        name="9999_more",
        statements=("create table more (a text)",),
    )
    both = (*migrations("postgresql"), newer)
    monkeypatch.setattr(schema, "migrations", lambda _: both)
    monkeypatch.setattr(schema, "schema_of", lambda _, found, needs, name: _schema(found, needs, name, both))
    store = make()
    assert store.open(create=False) is False
    assert store.schema().version == len(both)


def _schema(found: int, needs: int, ledger: str, known: tuple[Any, ...]) -> Schema:
    return Schema(found, known[-1].version, needs, tuple(one.name for one in known if one.version > found), ledger)


def test_a_server_that_is_too_old_is_refused(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PG_MIN", 99_00_00)
    with pytest.raises(LedgerUnavailable) as old:
        make().open(create=True)
    assert "needs 99 or newer" in str(old.value)


def test_a_database_that_cannot_hold_every_character_is_refused(make: Make, postgres_url: str) -> None:
    name = "amends_test_latin"
    execute(postgres_url, [f"create database {name} encoding 'LATIN1' locale 'C' template template0"])
    try:
        with pytest.raises(BadConfig) as bad:
            make(with_database(postgres_url, name)).open(create=True)
        assert "LATIN1" in str(bad.value)
    finally:
        execute(postgres_url, [f"drop database {name}"])


# ---- texts --------------------------------------------------------------------------------


@pytest.mark.parametrize("colour", ["blocking", "async"])
def test_an_identity_that_cannot_be_held_is_refused_before_anything(make: Make, colour: str) -> None:
    ledger = Ledger(make(), colour)
    for given in ({"id": "a\x00b"}, {"id": "a", "tenant": "\x00"}, {"id": "\ud800"}):
        with pytest.raises(NotStorable) as refused:
            ledger.open(**given)
        assert refused.value.path in ("run id", "tenant")
    assert ledger.everything() == ([], [], [])


@pytest.mark.parametrize("colour", ["blocking", "async"])
def test_a_free_text_is_kept_or_its_odd_characters_are_shown(make: Make, colour: str) -> None:
    """Odd words must never be the reason that an outcome is not recorded. What is kept as JSON is kept as it was."""
    ledger = Ledger(make(), colour)
    run = ledger.run()
    call = ledger.start(run)
    odd = "nul: \x00, half: \udcff, whole: \N{SNOWMAN}"
    ledger.settle(call, "failed", error=odd)
    assert ledger.look(call).error == odd
    ledger(ops.AbandonRun(run.uid, "ann", odd))
    assert ledger.read(run).goal_why == "nul: \N{SYMBOL FOR NULL}, half: ?, whole: \N{SNOWMAN}"
    audit(ledger)


# ---- the clock ----------------------------------------------------------------------------


def test_time_is_the_server_s(make: Make, postgres_url: str) -> None:
    [(before,)] = execute(postgres_url, ["select extract(epoch from clock_timestamp())::float8"])
    opened = Ledger(make()).open()
    [(after,)] = execute(postgres_url, ["select extract(epoch from clock_timestamp())::float8"])
    assert before <= opened.now <= after


# ---- threads, loops, forks ----------------------------------------------------------------


def test_threads_share_few_connections(make: Make, postgres_url: str) -> None:
    store = make(pool_max=3, clock=Clock())
    ledger = Ledger(store)
    runs = [ledger.run(f"order-{n}") for n in range(8)]
    ops_of = [[ledger.admit_op(run, f"tool-{n}") for n in range(5)] for run in runs]
    threads = [threading.Thread(target=lambda mine=mine: [store.perform(op) for op in mine]) for mine in ops_of]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ledger.calls()) == 40
    assert sessions(postgres_url) <= 3
    audit(ledger)


def test_an_event_loop_waits_for_its_turn(make: Make, postgres_url: str) -> None:
    store = make(pool_max=2)
    ledger = Ledger(store)
    runs = [ledger.run(f"order-{n}") for n in range(6)]

    async def all_at_once() -> None:
        await asyncio.gather(*(store.perform_async(ledger.admit_op(run)) for run in runs for _ in range(2)))

    asyncio.run(all_at_once())
    assert len(ledger.calls()) == 6
    assert sessions(postgres_url) <= 3  # and one of the threads


def test_loops_come_and_go(make: Make, postgres_url: str) -> None:
    store = make()
    ledger = Ledger(store, "async")
    for n in range(5):
        ledger.run(f"order-{n}")
    assert len(store._loops) == 1
    assert sessions(postgres_url) <= 2
    store.close()
    wait_for(lambda: sessions(postgres_url) == 0)  # the server ends a session a moment after its client
    with pytest.raises(LedgerUnavailable):
        ledger.run()


def test_a_cancellation_waits_until_the_operation_is_over(make: Make) -> None:
    store = make()
    ledger = Ledger(store)
    store.open(create=True)

    async def cancelled() -> None:
        writing = asyncio.create_task(store.perform_async(ledger.open_op("order")))
        await asyncio.sleep(0)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        # Durable by now, seen from another connection.
        assert [run.id for run in await asyncio.to_thread(ledger.runs)] == ["order"]

    asyncio.run(cancelled())


def test_a_loop_that_ends_in_the_middle_leaves_nothing_half_done(make: Make) -> None:
    store = make()
    ledger = Ledger(store)
    store.open(create=True)

    async def left_behind() -> None:
        asyncio.get_running_loop().create_task(store._performed(ledger.open_op("order")))
        await asyncio.sleep(0.001)

    asyncio.run(left_behind())
    runs, _, events = ledger.everything()
    assert len(runs) == len(events)
    ledger.run("another")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_a_fork_uses_connections_of_its_own(make: Make, postgres_url: str) -> None:
    store = make()
    ledger = Ledger(store)
    ledger.run("parent")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            Ledger(store, made=100).run("child")
            asyncio.run(store.perform_async(ops.ListRuns(None)))
            store.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert ledger.run("parent again")
    assert sorted(run.id for run in ledger.runs()) == ["child", "parent", "parent again"]


def test_closing_twice_is_fine_and_ends_everything(make: Make, postgres_url: str) -> None:
    store = make()
    Ledger(store).run()
    Ledger(store, "async").runs()
    store.close()
    store.close()
    wait_for(lambda: sessions(postgres_url) == 0)  # the server ends a session a moment after its client
    with pytest.raises(LedgerUnavailable):
        store.perform(ops.ListRuns(None))
    with pytest.raises(LedgerUnavailable):
        store.open(create=True)

"""A ledger through the program's own pool: it works whatever the program set there, and changes none of it."""

import asyncio
import logging
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.types.numeric import FloatDumper, NumericLoader
from psycopg_pool import AsyncConnectionPool, ConnectionPool, NullConnectionPool

from amends import AsyncRuntime, Runtime, tool
from amends.errors import BadConfig, LedgerUnavailable
from amends.stores.postgres.store import PostgresStore
from amends.testing.conformance import CHECKS, COLOURS, check_store
from amends.testing.conformance.ledger import Ledger, audit
from amends.testing.conformance.prove import Colour
from tests.servers.databases import execute
from tests.servers.fixtures import unavailable
from tests.servers.found import Unavailable
from tests.servers.postgres import PostgresServer
from tests.stores.emptied import Emptied
from tests.stores.harness import Harness

SIZE = 4
STATE = (
    "select current_setting('search_path'), current_setting('lock_timeout'), current_setting('client_encoding'),"
    " current_setting('idle_in_transaction_session_timeout'), current_setting('transaction_isolation'),"
    " (select count(*) from pg_listening_channels()),"
    " (select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()),"  # others use this server
    " (select count(*) from pg_class where relpersistence = 't'),"
    " (select array_agg(name || statement order by name) from pg_prepared_statements)"
)


class LoudFloat(FloatDumper):
    """Writes floats as no ledger can have them."""

    def dump(self, obj: float) -> bytes:
        return b"-1"


def unusual(connection: "psycopg.Connection[Any]") -> None:
    """Set what programs set on their connections: none of it may reach the ledger."""
    connection.execute("select 78", prepare=True)
    connection.commit()
    connection.row_factory = dict_row
    connection.cursor_factory = psycopg.ClientCursor
    connection.adapters.register_loader("float8", NumericLoader)
    connection.adapters.register_dumper(float, LoudFloat)
    connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
    connection.read_only = True
    connection.prepare_threshold = 0
    raw = connection.pgconn
    for sql in (b"set search_path = theirs, public", b"set lock_timeout = '77s'", b"prepare theirs as select 77"):
        raw.exec_(sql)


def state_of(connection: "psycopg.Connection[Any]") -> tuple[Any, ...]:
    """Return all that the session and psycopg know about this connection."""
    found = connection.pgconn.exec_(STATE.encode())  # not by psycopg: it would prepare this, and begin a transaction
    kept = (connection.autocommit, connection.isolation_level, connection.read_only, connection.prepare_threshold)
    prepared = list(connection._prepared._names)  # what psycopg believes to be prepared
    return (
        connection.info.backend_pid, connection.info.transaction_status, connection.pgconn.pipeline_status,
        [found.get_value(0, column) for column in range(found.nfields)], kept, connection.row_factory,
        connection.cursor_factory, str(prepared),
    )  # fmt: skip


def states_of(pool: "ConnectionPool[Any]") -> dict[int, tuple[Any, ...]]:
    """Return the state of each connection, by its process id."""
    taken = [pool.getconn() for _ in range(SIZE)]
    states = {one.info.backend_pid: state_of(one) for one in taken}
    for one in taken:
        pool.putconn(one)
    return states


@contextmanager
def pool_of(url: str, *, autocommit: bool = False, **given: Any) -> "Iterator[ConnectionPool[Any]]":
    """A pool of connections with the program's own settings."""
    execute(url, ["create schema if not exists theirs"])
    options: dict[str, Any] = {"configure": unusual, "min_size": SIZE, "max_size": SIZE} | given
    with ConnectionPool(url, open=True, kwargs={"autocommit": autocommit}, **options) as pool:
        pool.wait(60.0)  # until all are connected
        yield pool


@tool
def price(sku: str) -> float:
    return 2.5


@price.compensate
def free(sku: str) -> None:
    pass


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    try:
        made = PostgresServer(tcp=True).start()
    except Unavailable as refusal:
        unavailable(refusal)
    yield made
    made.close()


@pytest.fixture(scope="module")
def harness(server: PostgresServer) -> Iterator[Harness]:
    url = server.create_database()
    with ExitStack() as stack:
        pool = stack.enter_context(pool_of(url))
        first = PostgresStore(pool=pool, schema="ledger")
        assert first.open(create=True)
        first.close()
        database = stack.enter_context(closing(Emptied(f"{url}?options=-csearch_path%3Dledger")))

        def make(clock: Callable[[], float]) -> PostgresStore:
            database.empty()
            return PostgresStore(clock=clock, pool=pool, schema="ledger")

        yield Harness(make, lambda _, clock: PostgresStore(clock=clock, pool=pool, schema="ledger"), url=url)


def test_every_connection_that_the_pool_lends_for_the_first_time_is_a_session(server: PostgresServer) -> None:
    """So that a ledger is compared with its anchor after a failover that only the program's pool has noticed."""
    with pool_of(server.create_database(), min_size=1, max_size=1) as pool:
        store, sessions = PostgresStore(pool=pool, schema="ledger"), list[int]()
        store.open(create=True)
        store.on_session.append(lambda: sessions.append(1))
        store.schema()
        assert sessions == []
        lent = pool.getconn()
        lent.close()
        pool.putconn(lent)  # the pool makes another one
        pool.wait(60.0)
        store.schema()
        store.schema()
        assert sessions == [1]
        store.close()


SOME = [name for name in CHECKS if name.startswith("storing.")]


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("colour", COLOURS)
def test_a_store_conforms_on_the_programs_connections(harness: Harness, colour: Colour, name: str) -> None:
    check_store(name, harness.make, second=harness.second, colour=colour)


@pytest.mark.parametrize("autocommit", [False, True])
def test_connections_are_given_back_as_they_came(
    postgres_url: str, caplog: pytest.LogCaptureFixture, autocommit: bool
) -> None:
    """Also after errors and retries: a rollback by psycopg's cursor would deallocate what the program has prepared."""
    with pool_of(postgres_url, autocommit=autocommit) as pool, caplog.at_level(logging.WARNING, "psycopg"):
        before = states_of(pool)
        ledger = Ledger(PostgresStore(pool=pool, schema="ledger"))
        run = ledger.run()
        ledger.do(run, "first")
        execute(postgres_url, ["alter table ledger.amends_call add constraint no_more check (no < 0) not valid"])
        with pytest.raises(Exception, match="no_more"):
            ledger.do(run, "second")
        execute(postgres_url, ["alter table ledger.amends_call drop constraint no_more"])
        ledger.do(run, "third")
        assert len(ledger.calls()) == 2
        audit(ledger)
        ledger.store.close()
        assert states_of(pool) == before
    assert not [one.getMessage() for one in caplog.records if one.name.startswith("psycopg")]


@pytest.mark.parametrize("kind", [ConnectionPool, NullConnectionPool])
def test_runtimes_of_both_colours_share_one_pool_and_leave_it_open(postgres_url: str, kind: Any) -> None:
    given: dict[str, Any] = {} if kind is ConnectionPool else {"min_size": 0}
    with kind(postgres_url, open=True, max_size=SIZE, **({"min_size": SIZE} | given)) as pool:
        with closing(Runtime(store=PostgresStore(pool=pool), tools=[price])) as rt:
            with rt.run("blocking"):
                assert [price("a"), price("b")] == [2.5, 2.5]
            with pytest.raises(ZeroDivisionError), rt.run("undone"):
                price("a") / 0

        async def awaited() -> float:
            art = AsyncRuntime(store=PostgresStore(pool=pool), tools=[price])
            try:
                async with art.run("awaited") as run:
                    return float(await run.call(price, sku="c"))
            finally:
                await art.close()

        assert asyncio.run(awaited()) == 2.5
        with closing(Runtime(store=PostgresStore(pool=pool))) as rt:
            assert {run.id: run.state for run in rt.runs()} == {
                "blocking": "committed", "undone": "rolled_back", "awaited": "committed",
            }  # fmt: skip
            assert not rt.verify().problems
        with pool.connection() as connection:
            assert connection.execute("select 1").fetchone() == (1,)


def test_the_ledger_stays_where_it_was_found_whatever_the_search_path_becomes(postgres_url: str) -> None:
    with pool_of(postgres_url) as pool:
        ledger = Ledger(PostgresStore(pool=pool))  # in the first schema of the program's search path
        run = ledger.run()
        taken = [pool.getconn() for _ in range(SIZE)]
        for one in taken:
            one.pgconn.exec_(b"set search_path = public")
            pool.putconn(one)
        ledger.do(run, "first")
        ledger.store.close()
        found = execute(postgres_url, ["select schemaname from pg_tables where tablename = 'amends_call'"])
        assert [name for (name,) in found] == ["theirs"]


def test_a_session_that_ends_is_replaced_by_the_pool(postgres_url: str) -> None:
    with pool_of(postgres_url) as pool:
        ledger = Ledger(PostgresStore(pool=pool))
        run = ledger.run()
        sessions = "pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
        execute(postgres_url, [f"select pg_terminate_backend(pid) from {sessions}"])
        for n in range(2 * SIZE):
            try:
                ledger.do(run, f"tool-{n}")
            except LedgerUnavailable:
                continue  # every session was ended, and one operation tries only two of them
        ledger.do(run, "last")
        assert "last" in {call.tool for call in ledger.calls()}
        audit(ledger)
        ledger.store.close()


def test_a_pool_without_a_free_or_any_connection_is_an_unavailable_ledger(postgres_url: str) -> None:
    with pool_of(postgres_url) as pool:
        ledger = Ledger(PostgresStore(pool=pool, lock_wait_s=0.5))
        run = ledger.run()
        taken = [pool.getconn() for _ in range(SIZE)]
        with pytest.raises(LedgerUnavailable) as error:
            ledger.admit(run)
        assert "PoolTimeout" in str(error.value)
        for one in taken:
            pool.putconn(one)
        assert ledger.admit(run).verdict == "start"
    with pytest.raises(LedgerUnavailable) as error:
        ledger.admit(run)
    assert "PoolClosed" in str(error.value)


def test_the_password_of_the_pool_is_shown_nowhere(postgres_url: str) -> None:
    pool = ConnectionPool("postgresql://shop:hunter2@db.example:5433/orders", open=False, kwargs={"dbname": "books"})
    store = PostgresStore(pool=pool, schema="ledger")
    assert store.url == "postgresql://shop@db.example:5433/books?schema=ledger"
    assert "hunter2" not in repr(store) + repr(store.__dict__["_address"])


def _refused_in_child(store: PostgresStore, answers: Any) -> None:
    try:
        Ledger(store).run("of the child")
    except LedgerUnavailable as error:
        answers.put(str(error))
    else:
        answers.put("")


def test_a_forked_child_does_not_use_its_parents_connections(postgres_url: str) -> None:
    with pool_of(postgres_url) as pool:
        store = PostgresStore(pool=pool)
        ledger = Ledger(store)
        run = ledger.run()
        fork = multiprocessing.get_context("fork")
        answers = fork.SimpleQueue()
        child = fork.Process(target=_refused_in_child, args=(store, answers))
        child.start()
        answer = answers.get()
        child.join()
        assert "forked" in answer
        ledger.do(run, "after")
        store.close()


# ---- What is refused


def test_what_is_no_blocking_psycopg_pool_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def made() -> "AsyncConnectionPool[Any]":
        return AsyncConnectionPool("postgresql:///x", open=False)

    wrong: tuple[object, ...] = (asyncio.run(made()), "postgresql:///x", object())
    for pool in wrong:
        with pytest.raises(BadConfig) as error:
            PostgresStore(pool=pool)  # type: ignore[arg-type]
        assert error.value.setting == "pool"
    monkeypatch.setitem(sys.modules, "psycopg_pool", None)  # not installed
    with pytest.raises(BadConfig) as error:
        PostgresStore(pool=object())  # type: ignore[arg-type]
    assert error.value.setting == "pool"


def test_a_url_or_a_pool_and_not_both() -> None:
    pool: ConnectionPool[Any] = ConnectionPool("postgresql:///x", open=False)
    for given in ({}, {"url": "postgresql:///x", "pool": pool}, {"pool": pool, "pool_max": 3}):
        with pytest.raises(BadConfig):
            PostgresStore(**given)  # type: ignore[arg-type]


def test_connections_that_cannot_carry_a_ledger_are_refused_and_given_back(postgres_url: str) -> None:
    """Text would lose characters in another encoding; a transaction of the program would contain ours."""

    def latin(connection: "psycopg.Connection[Any]") -> None:
        connection.pgconn.exec_(b"set client_encoding = latin1")

    with pool_of(postgres_url, configure=latin, reset=latin) as pool:
        for _ in range(2 * SIZE):
            with pytest.raises(BadConfig):
                PostgresStore(pool=pool).open(create=True)
        assert len(states_of(pool)) == SIZE
    assert not execute(postgres_url, ["select 1 from pg_class where relname = 'amends_schema'"])


def test_values_are_written_as_psycopg_does_by_default(postgres_url: str) -> None:
    """The program's own adapters would record wrong times, and read them as decimals."""
    with pool_of(postgres_url) as pool:
        with pool.connection() as connection:
            read = connection.execute("select 1.5::float8 as x").fetchone()
            assert read == {"x": Decimal("1.5")}, "the program has its own adapters"
        ledger = Ledger(PostgresStore(pool=pool))
        run = ledger.run()
        assert type(run.created_at) is float
        assert run.created_at > 0
        ledger.store.close()

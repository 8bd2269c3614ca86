"""PgBouncer in transaction mode without ``pooler=transaction`` is named at the first connection; nothing is written."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest

from amends import AsyncRuntime, Runtime, tool
from amends.errors import BadConfig
from amends.stores.postgres.store import PostgresStore
from tests.servers.databases import connect, database_of
from tests.servers.fixtures import server_url, unavailable
from tests.servers.found import Unavailable
from tests.servers.pgbouncer import PgBouncer


@tool(kind="read")
def look() -> int:
    return 1


def tables(url: str) -> list[str]:
    with contextlib.closing(connect(url)) as link:
        found = link.execute("select tablename from pg_tables where schemaname = 'public' order by 1").fetchall()
    return [name for (name,) in found]


def assert_named(no: BadConfig) -> None:
    assert "PgBouncer" in str(no)
    assert "pooler=transaction" in no.hint
    assert no.setting == "url"


def with_option(url: str, option: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}{option}"


@pytest.mark.parametrize("said", ["", "pooler=session"])
def test_a_pooler_that_is_not_said_is_named_before_anything_is_written(pooled_postgres_url: str, said: str) -> None:
    url = with_option(pooled_postgres_url, said) if said else pooled_postgres_url
    rt = Runtime(url, tools=[look])
    for verb in (rt.schema, rt.migrate, lambda: list(rt.runs()), rt.run("r").__enter__, rt.__enter__):
        with pytest.raises(BadConfig) as no:
            verb()
        assert_named(no.value)
    rt.close()
    assert tables(pooled_postgres_url) == []


def test_an_async_runtime_names_it_too(pooled_postgres_url: str) -> None:
    async def main() -> None:
        rt = AsyncRuntime(pooled_postgres_url, tools=[look])
        with pytest.raises(BadConfig) as no:
            async with rt.run("r"):
                raise AssertionError("the run was opened")
        assert_named(no.value)
        await rt.close()

    asyncio.run(main())
    assert tables(pooled_postgres_url) == []


def test_nothing_is_left_in_the_sessions_of_others(pooled_postgres_url: str) -> None:
    with contextlib.closing(connect(pooled_postgres_url)) as link:
        asked = "select name, setting from pg_settings where name in ('search_path', 'lock_timeout', 'TimeZone')"
        before = link.execute(asked).fetchall()
        with pytest.raises(BadConfig):
            PostgresStore(with_option(pooled_postgres_url, "schema=led")).open(create=True)
        assert link.execute(asked).fetchall() == before
        assert link.execute("select count(*) from pg_prepared_statements").fetchall() == [(0,)]


def test_with_the_option_it_works(pooled_postgres_url: str) -> None:
    with Runtime(with_option(pooled_postgres_url, "pooler=transaction"), tools=[look]) as rt:
        with rt.run("r"):
            assert look() == 1
        assert rt.report("r").state == "committed"


@pytest.fixture(params=[("session", 1), ("session", 5), ("transaction", 5)], ids=lambda one: f"{one[0]}-{one[1]}")
def pooled(request: pytest.FixtureRequest, pytestconfig: pytest.Config, postgres_url: str) -> Iterator[tuple[str, str]]:
    mode, pool = request.param
    try:
        pooler = PgBouncer(server_url(pytestconfig, "postgres"), pool=pool, settings={"pool_mode": mode}).start()
    except Unavailable as refusal:
        unavailable(refusal)
    yield mode, pooler.url(database_of(postgres_url))
    pooler.close()


def test_session_mode_is_let_through_whatever_the_size_of_its_pool(pooled: tuple[str, str]) -> None:
    mode, url = pooled
    store = PostgresStore(url)
    if mode == "transaction":
        with pytest.raises(BadConfig) as no:
            store.open(create=True)
        assert_named(no.value)
    else:
        assert store.open(create=True)
    store.close()

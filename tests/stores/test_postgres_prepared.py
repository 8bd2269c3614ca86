"""A statement that is prepared by hand answers as it did before it was, in both colours."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from amends.stores import waiting
from amends.stores.postgres.connection import (
    FIRST_USES,
    AsyncConnection,
    Connection,
    connect,
    connect_async,
    numbered,
    written,
)
from amends.stores.postgres.transaction import Preamble
from amends.stores.postgres.url import read_url
from amends.stores.sql import Execute
from tests.stores.pg import ends_sessions, fails, works_again
from tests.stores.test_postgres import Make, make  # noqa: F401

USES = FIRST_USES + 3
ECHO = "select %s::text, %s::bigint, %s::float8, (%s::boolean)::text, %s::text where %s::text is null"
VALUES: list[tuple[Any, ...]] = [
    ("plain", 1, 0.1, True, "", None),
    ("naïve ✓ 🙂 ' \" \\ $1", -(2**53), 1e-300, False, "\n\t", None),
    ("nul \x00 and half \ud800", 2**62, 1700000000.123456, True, "%", None),
    (None, None, None, None, None, None),
    ("none", 1, 1.5, True, "", "not null: no row"),
]


def alone(connection: Connection, sql: str, params: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Carry out a statement that is prepared as soon as it is due; return its rows."""
    return connection.execute(Execute(sql, params, prepare=True))[0]


@pytest.fixture
def link(postgres_url: str) -> Iterator[Connection]:
    made = connect(read_url(postgres_url), opened=False)
    yield made
    made.close()


@pytest.mark.parametrize("values", VALUES, ids=lambda values: ascii(values[0]))
def test_every_use_has_the_same_answer(link: Connection, values: tuple[Any, ...]) -> None:
    first = link.execute(Execute(ECHO, values))
    assert [link.execute(Execute(ECHO, values, prepare=True)) for _ in range(USES)] == [first] * USES


def test_every_use_has_the_same_answer_awaited(postgres_url: str) -> None:
    async def main() -> None:
        link: AsyncConnection = await connect_async(read_url(postgres_url), opened=False)
        for values in VALUES:
            first = await link.execute(Execute(ECHO, values))
            for _ in range(USES):
                assert await link.execute(Execute(ECHO, values, prepare=True)) == first
        link.close()

    asyncio.run(main())


def test_an_error_is_the_same_and_the_connection_goes_on(link: Connection) -> None:
    for _ in range(USES):
        with pytest.raises(psycopg.errors.DivisionByZero) as caught:
            link.execute(Execute("select 1 / %s::bigint", (0,), prepare=True))
        assert caught.value.sqlstate == "22012"
        assert link.execute(Execute("select 1 / %s::bigint", (1,), prepare=True))[0] == [(1,)]


@pytest.mark.parametrize("how", ["rollback", "deallocate all"])
def test_what_was_deallocated_is_prepared_anew(link: Connection, how: str) -> None:
    """psycopg does it after every rollback; a pooler or a person may at any time."""
    for turn in range(USES * 3):
        assert link.execute(Execute("select %s::bigint", (turn,), prepare=True))[0] == [(turn,)]
        if turn % USES == 0:
            link.command("begin")
            link.command(how)
            if how != "rollback":
                link.command("commit")


def test_a_lost_connection_is_the_same_error(link: Connection) -> None:
    for _ in range(USES):
        link.execute(Execute("select %s::text", ("x",), prepare=True))
    with pytest.raises(psycopg.OperationalError):
        link.execute(Execute("select pg_terminate_backend(pg_backend_pid())", ()))
        link.execute(Execute("select %s::text", ("x",), prepare=True))
    assert link.closed


def test_a_prepared_admission_and_settlement_survive_what_the_first_ones_do(make: Make, postgres_url: str) -> None:  # noqa: F811
    """Failures that the server undid, and sessions that it ended in the middle, with statements prepared long before."""
    from amends import Runtime, tool

    done: list[int] = []

    @tool
    def book(n: int) -> int:
        done.append(n)
        return n

    book.compensate(lambda: None)
    store = make()
    with Runtime(store=store, tools=[book], wait=5) as rt, rt.run("r") as run:
        for n in range(USES):
            assert book(n) == n
        fails(postgres_url, "40001", times=2)
        assert book(USES) == USES
        works_again(postgres_url)
        ends_sessions(postgres_url, times=1)
        assert book(USES + 1) == USES + 1
        works_again(postgres_url)
        assert book(USES + 2) == USES + 2
        run.commit()
        assert run.state == "committed"
    assert done == [*range(USES + 3)]


def test_parameters_are_numbered_and_written_as_text() -> None:
    assert numbered("select %s, %s::text") == b"select $1, $2::text"
    assert written(["é", 7, 0.1, True, None]) == ["é".encode(), b"7", b"0.1", b"t", None]


@pytest.mark.parametrize("how", ["asleep", "awake"])
def test_an_interrupt_while_a_step_waits_cancels_its_statement(
    postgres_url: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As psycopg does it: whoever interrupts does not want that it happens later."""
    if how == "awake":
        monkeypatch.setattr(waiting, "FIRST_ASLEEP", 0)
        monkeypatch.setattr(waiting, "AWAKE_S_MAX", 100.0)
        monkeypatch.setattr(waiting, "cores", lambda: 2)
    address = read_url(postgres_url)
    connection = connect(address, opened=False)
    other = connect(address, opened=False)
    sql = "select 1 from pg_sleep(%s::float8)"
    for _ in range(FIRST_USES + 1):
        alone(connection, sql, (0.0,))

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            alone(connection, sql, (60.0,))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    [(running,)], _, _ = other.execute(
        Execute("select count(*) from pg_stat_activity where state = 'active' and query like %s", ("%pg_sleep($1%",))
    )
    assert running == 0
    assert alone(connection, "select %s::bigint", (5,)) == [(5,)]
    connection.close()
    other.close()


def test_a_step_of_any_size_is_sent_whole(postgres_url: str) -> None:
    connection = connect(read_url(postgres_url), opened=False)
    sql = "select length(%s::text)"
    for size in (*range(FIRST_USES + 1), 30_000_000):
        assert alone(connection, sql, ("x" * size,)) == [(size,)]
    with pytest.raises(psycopg.errors.DivisionByZero):
        for _ in range(FIRST_USES + 2):
            alone(connection, "select 1 / %s::bigint", (0,))
    assert alone(connection, sql, ("ab",)) == [(2,)]
    connection.close()


def test_plain_statements_are_planned_once_and_general_ones_for_their_values(postgres_url: str) -> None:
    # The server would choose by costs that it estimated when the tables were empty. Then a rollback was planned anew each
    # time once the tables had been analyzed: three times as long.
    link = connect(read_url(postgres_url), opened=False)
    pairs = "select %s::bigint + %s::bigint"
    for _ in range(USES):
        alone(link, pairs, (1, 2))
    [(generic, custom)] = link.raw.execute("select generic_plans, custom_plans from pg_prepared_statements").fetchall()
    assert custom == 0
    assert generic > 0
    preamble = Preamble(read_url(postgres_url))
    for begin in (preamble.writing, preamble.reading):
        link.command(begin)
        assert link.raw.execute("show plan_cache_mode").fetchone() == ("auto",)
        link.command("rollback")
        assert link.raw.execute("show plan_cache_mode").fetchone() == ("force_generic_plan",)
    link.close()

"""A call inside the caller's own transaction: effect and record become true together, or neither does."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from amends import AsyncRuntime, Runtime, tool
from amends.errors import CannotJoin, Held, LedgerUnavailable, Locked, TransactionOpen, WrongColour
from amends.host.heartbeat import Heartbeat
from amends.ledger.leases import Lease
from amends.ledger.operations import Renewed
from tests.host.joined import Shop, sqlite_url
from tests.servers.databases import create_database, drop_database
from tests.servers.fixtures import server_url
from tests.servers.shared import Kind
from tests.stores.emptied import Emptied

KINDS = ["sqlite", "postgres", "mysql"]


@pytest.fixture(scope="module")
def postgres_emptied(pytestconfig: pytest.Config) -> Iterator[Emptied]:
    yield from _emptied(pytestconfig, "postgres")


@pytest.fixture(scope="module")
def mysql_emptied(pytestconfig: pytest.Config) -> Iterator[Emptied]:
    yield from _emptied(pytestconfig, "mysql")


def _emptied(config: pytest.Config, kind: Kind) -> Iterator[Emptied]:
    """A database for the ledgers and the shops of all tests here."""
    server = server_url(config, kind)
    url = create_database(server)
    try:
        with closing(Emptied(url)) as database:
            yield database
    finally:
        drop_database(server, url)


@pytest.fixture(params=KINDS)
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    kind = request.param
    if kind == "sqlite":
        url = sqlite_url(tmp_path)
    else:
        database: Emptied = request.getfixturevalue(f"{kind}_emptied")
        database.empty()
        url = database.url
    with closing(Shop(kind, url)) as shop:
        yield shop


@pytest.fixture
def rt(shop: Shop) -> Iterator[tuple[Runtime, Any]]:
    tools = shop.tools()
    with Runtime(url=shop.url, tools=list(tools.values())) as runtime:
        shop.make(runtime)
        yield runtime, type("Tools", (), tools)


def test_effect_and_record_are_true_when_the_caller_commits_and_not_before(shop: Shop, rt: Any) -> None:
    runtime, tools = rt
    with runtime.run("r") as run:
        conn = shop.begin()
        assert tools.place.with_options(connection=conn)("1") == "order 1"
        assert tools.count.with_options(connection=conn)() == 1
        assert (shop.orders(), shop.calls()) == ([], [])
        conn.commit()
        assert shop.orders() == ["1"]
        assert [row[0] for row in shop.calls()] == ["succeeded", "succeeded"]
    assert run.state == "committed"


@pytest.mark.parametrize("factory", [bytes, lambda raw: raw.decode("latin-1")], ids=["bytes", "latin-1"])
def test_the_record_is_read_as_text_whatever_the_callers_connection_makes_of_text(tmp_path: Path, factory: Any) -> None:
    with closing(Shop("sqlite", sqlite_url(tmp_path))) as shop:
        tools = shop.tools()
        with Runtime(url=shop.url, tools=list(tools.values())) as runtime:
            shop.make(runtime)
            with runtime.run("r") as run:
                conn = shop.begin()
                conn.text_factory = factory
                place = tools["place"].with_options(connection=conn)
                assert [place("ä"), place("ä")] == ["order ä"] * 2
                assert conn.text_factory is factory
                conn.commit()
            assert [call.generation for call in runtime.report(run.id).calls] == [1]
            assert runtime.verify().ok


def test_rolled_back_the_call_never_was_and_the_next_is_the_first(shop: Shop, rt: Any) -> None:
    runtime, tools = rt
    events = shop.events()
    with runtime.run("r") as run:
        conn = shop.begin()
        tools.place.with_options(connection=conn)("1")
        assert tools.place.with_options(connection=conn)("1") == "order 1"
        conn.rollback()
        conn.close()
        assert (shop.orders(), shop.calls()) == ([], [])
        assert shop.events() == events + 1  # of the opening
        conn = shop.begin()
        tools.place.with_options(connection=conn)("1")
        conn.commit()
        assert shop.calls() == [("succeeded", 1, 1)]
    report = runtime.report(run.id)
    assert [(call.generation, call.replays) for call in report.calls] == [(1, 0)]


def test_a_known_key_is_answered_inside_the_transaction(shop: Shop, rt: Any) -> None:
    runtime, tools = rt
    with runtime.run("r"):
        for _ in range(2):
            conn = shop.begin()
            assert tools.place.with_options(connection=conn)("1") == "order 1"
            conn.commit()
        assert shop.orders() == ["1"]


def test_a_body_that_raises_leaves_nothing_but_the_record(shop: Shop, rt: Any) -> None:
    runtime, tools = rt
    shop.failing = ValueError("no")
    with pytest.raises(ValueError, match="no"), runtime.run("r"):
        conn = shop.begin()
        try:
            tools.place.with_options(connection=conn)("1")
        finally:
            shop.failing = None
            shop.execute("insert into orders values (?)", "mine")  # the transaction is well
            conn.commit()
    assert shop.orders() == ["mine"]
    assert [row[0] for row in shop.calls()] == ["failed"]


def test_an_error_of_the_database_is_a_failure_and_no_doubt(shop: Shop, rt: Any) -> None:
    runtime, tools = rt
    with runtime.run("r"):
        conn = shop.begin()
        shop.table = "nowhere"
        with pytest.raises(Exception, match="nowhere"):
            tools.place.with_options(connection=conn)("1")
        conn.commit()
        assert [row[0] for row in shop.calls()] == ["failed"]


def test_an_interrupted_body_never_was_even_if_the_caller_commits(shop: Shop, rt: Any) -> None:
    runtime, tools = rt
    with runtime.run("r"):
        conn = shop.begin()
        shop.failing = KeyboardInterrupt()
        with pytest.raises(KeyboardInterrupt):
            tools.place.with_options(connection=conn)("1")
        shop.failing = None
        conn.commit()
        assert (shop.orders(), shop.calls()) == ([], [])


def test_what_rode_is_compensated_when_the_run_is_taken_back(shop: Shop, rt: Any) -> None:
    runtime, tools = rt
    with pytest.raises(ValueError, match="later"), runtime.run("r"):
        conn = shop.begin()
        tools.place.with_options(connection=conn)("1")
        conn.commit()
        raise ValueError("later")
    assert (shop.orders(), shop.taken_back) == ([], ["1"])
    assert [row[0] for row in shop.calls()] == ["compensated"]


def test_only_what_can_be_taken_back_may_ride(shop: Shop, rt: Any) -> None:
    runtime, tools = rt
    with runtime.run("r"):
        conn = shop.begin()
        for one in (tools.ship, tools.mail, tools.slow, tools.place.with_options(timeout=1)):
            with pytest.raises(CannotJoin):
                one.with_options(connection=conn)("1")
        conn.rollback()
        assert shop.calls() == []


def test_a_connection_that_cannot_be_ridden_is_refused(shop: Shop, rt: Any, tmp_path: Path) -> None:
    runtime, tools = rt
    with runtime.run("r"):
        with pytest.raises(CannotJoin, match="connection= is a"):
            tools.place.with_options(connection=object())("1")
        shop.connection = shop.connect()
        with pytest.raises(CannotJoin, match="in no transaction"):
            tools.place.with_options(connection=shop.connection)("1")
        shop.connection.close()
        with pytest.raises(CannotJoin, match=r"closed|cannot be used"):
            tools.place.with_options(connection=shop.connection)("1")
        if shop.kind == "sqlite":
            other = sqlite3.connect(tmp_path / "other.db")
            other.execute("begin")
            with pytest.raises(CannotJoin, match=r"other\.db"):
                tools.place.with_options(connection=other)("1")
            assert other.in_transaction
            other.close()
        assert shop.calls() == []


def test_another_isolation_is_refused(shop: Shop, rt: Any) -> None:
    if shop.kind == "sqlite":
        pytest.skip("SQLite has one")
    runtime, tools = rt
    with runtime.run("r"):
        conn = shop.connection = shop.connect()
        conn.cursor().execute(
            "begin isolation level repeatable read"
            if shop.kind == "postgres"
            else "set session transaction isolation level repeatable read"
        )
        if shop.kind == "mysql":
            conn.begin()
        with pytest.raises(CannotJoin, match="need"):
            tools.place.with_options(connection=conn)("1")
        conn.rollback()


def test_another_database_of_the_server_is_refused(shop: Shop, rt: Any) -> None:
    if shop.kind == "sqlite":
        pytest.skip("a file is the database")
    runtime, tools = rt
    with runtime.run("r"):
        conn = shop.begin()
        name = "elsewhere" if shop.kind == "postgres" else None
        if name is None:
            conn.select_db("information_schema")
        else:
            import psycopg

            conn.close()
            conn = shop.connection = psycopg.connect(shop.url, dbname="postgres")
            conn.execute("select 1")
        with pytest.raises(CannotJoin, match="another database"):
            tools.place.with_options(connection=conn)("1")
        conn.rollback()


def test_whoever_would_wait_for_himself_is_told_at_once(shop: Shop, rt: Any) -> None:
    runtime, tools = rt
    with runtime.run("r") as run:
        conn = shop.begin()
        tools.place.with_options(connection=conn)("1")
        for act in (lambda: tools.place("2"), run.commit, lambda: run.rollback("no"), lambda: run.begin("ship", {})):
            with pytest.raises(TransactionOpen):
                act()
        tools.place.with_options(connection=conn)("3")  # belongs to it
        conn.commit()
        conn.cursor().execute("begin")  # another one, in which nothing rides
        tools.ship("1")
        conn.rollback()
    assert shop.orders() == ["1", "3"]


def test_a_block_that_is_left_too_early_says_so(shop: Shop, rt: Any) -> None:
    runtime, tools = rt
    with pytest.raises(TransactionOpen), runtime.run("r"):
        conn = shop.begin()
        tools.place.with_options(connection=conn)("1")
    conn.rollback()
    conn.close()
    with pytest.raises(ValueError, match="mine") as raised, runtime.run("s"):
        conn = shop.begin()
        tools.place.with_options(connection=conn)("2")
        raise ValueError("mine")
    assert "still open" in raised.value.__notes__[0]
    conn.rollback()


def test_another_thread_waits_and_goes_on(shop: Shop, rt: Any) -> None:
    runtime, tools = rt
    with runtime.run("r") as run:
        conn = shop.begin()
        tools.place.with_options(connection=conn)("1")
        began = threading.Event()

        def other() -> str:
            began.set()
            result: str = tools.place("1")
            return result

        waiting = run.submit(other)
        began.wait(5)
        conn.commit()
        assert waiting.result(20) == "order 1"
    assert shop.orders() == ["1"]


def test_nobody_else_can_end_or_claim_the_run_meanwhile(shop: Shop, rt: Any) -> None:
    runtime, tools = rt
    opened = runtime.run("r")
    wait_s = 0.2 if shop.kind == "postgres" else 1  # MariaDB counts whole seconds
    url = shop.url if shop.kind == "sqlite" else f"{shop.url}{'&' if '?' in shop.url else '?'}lock_wait_s={wait_s}"
    with opened:
        conn = shop.begin()
        tools.place.with_options(connection=conn)("1")
        if shop.kind != "sqlite":  # its whole file is locked, for longer than a test should wait
            with Runtime(url=url, tools=[]) as other:
                assert other.recover() is not None
                with pytest.raises(LedgerUnavailable):
                    other.rollback("r", by="ann", why="a person")
        conn.commit()
    assert shop.orders() == ["1"]


def test_a_body_that_ends_the_transaction_is_named(shop: Shop, rt: Any) -> None:
    runtime, _ = rt

    @tool(name="naughty")
    def naughty() -> None:
        shop.execute("insert into orders values (?)", "n")
        shop.connection.commit()

    @naughty.compensate(absent_ok=True)
    def undo() -> None:
        pass

    runtime._host.add([naughty])
    with pytest.raises(CannotJoin, match="ended the caller's transaction"), runtime.run("r"):
        shop.begin()
        naughty.with_options(connection=shop.connection)()
    assert [row[0] for row in shop.calls()] != ["started"]


def test_a_ledger_in_memory_cannot_be_joined(tmp_path: Path) -> None:
    with closing(Shop("sqlite", sqlite_url(tmp_path))) as shop:
        tools = shop.tools()
        with Runtime(url="memory:", tools=list(tools.values())) as runtime, runtime.run("r"):
            with pytest.raises(CannotJoin, match="memory"):
                tools["place"].with_options(connection=shop.connect())("1")


# ---- async --------------------------------------------------------------------------------


def test_async_rides_on_an_async_connection(postgres_url: str) -> None:
    import psycopg

    current: list[Any] = []

    @tool(name="place_order")
    async def place(id: str) -> str:
        await current[0].execute("insert into orders values (%s)", (id,))
        return f"order {id}"

    @place.compensate
    async def cancel(id: str) -> None:
        pass

    async def main() -> None:
        async with AsyncRuntime(url=postgres_url, tools=[place]) as runtime, runtime.run("r") as run:
            async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as conn:
                current.append(conn)
                await conn.execute("create table orders (id text)")
                async with conn.transaction():
                    assert await place.with_options(connection=conn)("1") == "order 1"
                    with pytest.raises(TransactionOpen):
                        await place("2")
                with pytest.raises(ZeroDivisionError):
                    async with conn.transaction():
                        await place.with_options(connection=conn)("3")
                        raise ZeroDivisionError
                assert [call.state for call in (await run.report()).calls] == ["succeeded"]
                assert await (await conn.execute("select id from orders")).fetchall() == [("1",)]
                await _cancelled(conn, place)
                with psycopg.connect(postgres_url) as blocking, pytest.raises(CannotJoin, match="blocking"):
                    blocking.execute("select 1")
                    await place.with_options(connection=blocking)("4")
                assert [call.state for call in (await run.report()).calls] == ["succeeded"]

    async def _cancelled(conn: Any, place: Any) -> None:
        async with conn.transaction():
            await conn.execute("create table slow as select 1")
            current[0] = _Slow(conn)
            riding = asyncio.ensure_future(place.with_options(connection=conn)("5"))
            await current[0].began.wait()
            riding.cancel()
            with pytest.raises(asyncio.CancelledError):
                await riding
            current[0] = conn

    class _Slow:
        def __init__(self, conn: Any) -> None:
            self.conn, self.began = conn, asyncio.Event()

        async def execute(self, sql: str, params: Any) -> None:
            await self.conn.execute(sql, params)
            self.began.set()
            await asyncio.Event().wait()

    asyncio.run(main())


def test_a_blocking_tool_does_not_ride_in_an_async_run(tmp_path: Path) -> None:
    shop = Shop("sqlite", sqlite_url(tmp_path))
    tools = shop.tools()

    async def main() -> None:
        async with AsyncRuntime(url=shop.url, tools=list(tools.values())) as runtime, runtime.run("r") as run:
            with pytest.raises(WrongColour):
                await run.call(tools["place"].with_options(connection=shop.connect()), "1")

    with closing(shop):
        asyncio.run(main())


# ---- the heartbeat ------------------------------------------------------------------------


def test_a_run_that_is_ridden_in_costs_the_others_no_lease(shop: Shop, rt: Any) -> None:
    runtime, tools = rt
    asked: list[list[str]] = []
    with runtime.run("r") as run:
        conn = shop.begin()
        tools.place.with_options(connection=conn)("1")
        mine, other = run._session.lease, Lease("other", run._session.lease.owner, 1, 30.0, 0.0)

        def renew(op: Any) -> Any:
            asked.append(sorted(op.epochs))
            return Renewed(dict.fromkeys(op.epochs, ""))

        heartbeat = Heartbeat(renew, 30.0, beats=False)
        assert heartbeat.renew([mine, other]) == [mine]
        assert (asked, other.until > 0, mine.lost) == ([["other"]], True, False)
        conn.commit()
        assert heartbeat.renew([mine, other]) == []


# ---- killed -------------------------------------------------------------------------------

POINTS = ("begun", "admitted", "in the body", "returned", "committed")
KILLS = 4 * len(POINTS)
"""A process kills itself exactly at its point: repeating that shows only that leftovers do not hinder the next one."""


def test_a_kill_leaves_both_or_neither(shop: Shop) -> None:
    with Runtime(url=shop.url, tools=list(shop.tools().values())) as runtime:
        shop.make(runtime)
    for number in range(KILLS):
        child = os.fork()
        if child == 0:
            _live_until(shop, str(number), POINTS[number % len(POINTS)])
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    done = sorted(str(number) for number in range(KILLS) if POINTS[number % len(POINTS)] == "committed")
    assert shop.orders() == done
    assert [row[0] for row in shop.calls()] == ["succeeded"] * len(done)


def _live_until(shop: Shop, id: str, point: str) -> None:
    def reached(here: str) -> None:
        if here == point:
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        execute = shop.execute

        def dying(sql: str, *params: Any) -> None:
            reached("admitted")
            execute(sql, *params)
            reached("in the body")

        shop.execute = dying  # type: ignore[method-assign]
        tools = shop.tools()
        with Runtime(url=shop.url, tools=list(tools.values())) as runtime, runtime.run(f"run {id}"):
            conn = shop.begin()
            reached("begun")
            tools["place"].with_options(connection=conn)(id)
            reached("returned")
            conn.commit()
            reached("committed")
    finally:
        os._exit(1)


# ---- locks --------------------------------------------------------------------------------


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_a_lock_is_taken_with_the_callers_commit_or_not_at_all(shop: Shop, ends: str) -> None:
    @tool(name="place", locks=lambda call: [f"item-{call.args['id']}"], on_lock="raise")
    def place(id: str) -> str:
        shop.execute("insert into orders values (?)", id)
        return f"order {id}"

    @place.compensate
    def unplace(id: str) -> None:
        raise AssertionError("nothing is taken back here")

    with Runtime(url=shop.url, tools=[place], wait=0.0) as runtime:
        shop.make(runtime)
        first, second = runtime.open("one"), runtime.open("two")
        first.call(place.with_options(connection=shop.begin()), "1")
        getattr(shop.connection, ends)()
        if ends == "commit":
            assert [(lock.name, lock.run_id) for lock in runtime.locks()] == [("item-1", "one")]
            with pytest.raises(Locked):
                second.call(place.with_options(connection=shop.begin()), "1")
            shop.connection.rollback()
        else:
            assert list(runtime.locks()) == []
            second.call(place.with_options(connection=shop.begin()), "1")
            shop.connection.commit()
        assert shop.orders() == ["1"]
        first.commit()
        second.commit()
        assert list(runtime.locks()) == []


# ---- approvals ----------------------------------------------------------------------------


def test_a_yes_is_used_with_the_callers_commit_or_not_at_all(shop: Shop) -> None:
    told: list[str] = []

    @tool(name="place", needs_approval=True)
    def place(id: str) -> str:
        shop.execute("insert into orders values (?)", id)
        return f"order {id}"

    @place.compensate
    def unplace(id: str) -> None:
        raise AssertionError("nothing is taken back here")

    with Runtime(url=shop.url, tools=[place], on_approval_needed=lambda one: told.append(one.id)) as runtime:
        shop.make(runtime)
        with pytest.raises(Held), runtime.run("r"):
            conn = shop.begin()
            try:
                place.with_options(connection=conn)("1")
            finally:
                conn.rollback()
        assert (list(runtime.approvals()), told) == ([], [])
        with pytest.raises(Held), runtime.run("r"):
            place("1")
        [asked] = runtime.approvals()
        assert told == [asked.id]
        runtime.approve(asked.id, digest=asked.digest, by="anna")
        with runtime.run("r"):
            for ends, state in (("rollback", "approved"), ("commit", "used")):
                conn = shop.begin()
                assert place.with_options(connection=conn)("1") == "order 1"
                getattr(conn, ends)()
                assert runtime.approval(asked.id).state == state
        assert shop.orders() == ["1"]

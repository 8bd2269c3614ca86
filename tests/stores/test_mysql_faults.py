"""What goes wrong with a server, with a real one: a clear error, nothing twice, and the next operation is served."""

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pymysql  # type: ignore[import-untyped]
import pytest

from amends.errors import LedgerError, LedgerMissing, LedgerUnavailable
from amends.ledger import operations as ops
from amends.stores.mysql.store import MysqlStore
from amends.testing.conformance.ledger import Ledger, audit
from tests.servers import databases
from tests.servers.fixtures import unavailable
from tests.servers.found import Unavailable
from tests.servers.mariadb import MariadbServer
from tests.stores.many import wait_for

PASSWORD = "se:cr@t/ü"
QUOTED = "se%3Acr%40t%2F%C3%BC"


@pytest.fixture(scope="module")
def server() -> Iterator[MariadbServer]:
    """In another time zone, and with a user who is not all-powerful."""
    try:
        made = MariadbServer(tcp=True, settings={"default_time_zone": "-07:00"}).start()
    except Unavailable as refusal:
        unavailable(refusal)
    databases.execute(made.url(), [f"create user bob@'%' identified by '{PASSWORD}'", "grant all on *.* to bob@'%'"])
    # Whoever may do everything is neither counted nor kept from writing.
    databases.execute(made.url(), ["revoke super, read only admin, connection admin on *.* from bob@'%'"])
    yield made
    made.close()


@pytest.fixture
def url(server: MariadbServer) -> Iterator[str]:
    """A ledger of its own, as bob."""
    made = server.create_database()
    yield made.replace("root@", f"bob:{QUOTED}@")
    server.drop_database(made)


def arguments(url: str) -> dict[str, Any]:
    """A connection of this test's own, as the user of the URL."""
    given = databases.mysql_arguments(url)
    return given | {"password": given["password"].encode()}  # as text it would be sent in latin-1


def ask(url: str, statements: list[str]) -> Any:
    with pymysql.connect(**arguments(url), autocommit=True) as connection:
        cursor = connection.cursor()
        for statement in statements:
            cursor.execute(statement)
        return cursor.fetchall()


@contextmanager
def global_setting(server: MariadbServer, name: str, value: object) -> Iterator[None]:
    [(before,)] = databases.execute(server.url(), [f"select @@global.{name}"])
    databases.execute(server.url(), [f"set global {name} = {value}"])
    try:
        yield
    finally:
        databases.execute(server.url(), [f"set global {name} = {before}"])


def refused(store: MysqlStore, *words: str) -> LedgerError:
    """What opening it says: short words for the cause, something to do, and no password."""
    with pytest.raises(LedgerError) as raised:
        store.open(create=True)
    store.close()
    error = raised.value
    assert all(word in str(error) for word in words), str(error)
    assert error.hint
    for secret in (PASSWORD, QUOTED):
        assert secret not in str(error) + error.hint + repr(error.__cause__)
    return error


# ---- at the door --------------------------------------------------------------------------


def test_the_password_of_the_url_is_the_one_that_is_used(url: str) -> None:
    store = MysqlStore(url)
    assert Ledger(store).do(Ledger(store).run()).state == "succeeded"
    store.close()


def test_a_wrong_password(url: str) -> None:
    assert type(refused(MysqlStore(url.replace(QUOTED, "wrong")), "1045", "refused the login")) is LedgerUnavailable


def test_no_such_database(url: str) -> None:
    missing = refused(MysqlStore(f"{url}_not"), "no such database")
    assert type(missing) is LedgerMissing
    assert "CREATE DATABASE" in missing.hint


def test_nobody_listens(url: str, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        refused(MysqlStore(f"mysql://bob:{QUOTED}@127.0.0.1:{port}/shop"), "cannot be reached")
    refused(MysqlStore(f"mysql://bob@localhost/shop?unix_socket={tmp_path}/none"), "cannot be reached")
    refused(MysqlStore("mysql://bob@host.invalid/shop"), "cannot be reached")


def test_a_system_without_unix_sockets_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delattr(socket, "AF_UNIX")
    refused(MysqlStore(f"mysql://bob@localhost/shop?unix_socket={tmp_path}/none"), "no Unix sockets")


def test_a_user_who_may_not_make_tables(server: MariadbServer, url: str) -> None:
    databases.execute(server.url(), ["create user if not exists eve@'%' identified by 'x'"])
    databases.execute(
        server.url(), [f"grant select, insert, update, execute on {databases.database_of(url)}.* to eve@'%'"]
    )
    eve = url.replace(f"bob:{QUOTED}", "eve:x")
    refusal = refused(MysqlStore(eve), "refused the user")
    assert "grant" in refusal.hint
    MysqlStore(url).migrate()
    store = MysqlStore(eve)  # a ledger that is there needs no more than this
    assert not store.open(create=True)
    assert Ledger(store).do(Ledger(store).run()).state == "succeeded"
    store.close()


def test_too_many_connections(server: MariadbServer, url: str) -> None:
    store = MysqlStore(url)
    run = Ledger(store).run()
    others: list[Any] = []
    with global_setting(server, "max_connections", 10):
        assert Ledger(store).do(run, key="before").state == "succeeded"
        wait_for(lambda: not _another(url, others))
        crowded = refused(MysqlStore(url), "1040", "no connection left")
        assert "max_connections" in crowded.hint
        assert Ledger(store, made=100).do(run).state == "succeeded"  # who has a connection goes on with it
        for other in others:
            other.close()
    store.close()


def _another(url: str, others: list[Any]) -> bool:
    """One more, if there is room; a connection that was just closed may keep its place for a moment."""
    for _ in range(50):
        try:
            others.append(pymysql.connect(**arguments(url)))
        except pymysql.err.OperationalError:
            continue
        return True
    return False


def test_a_server_that_takes_small_packets_only(server: MariadbServer, url: str) -> None:
    with global_setting(server, "max_allowed_packet", 1 << 20):
        small = refused(MysqlStore(url), "1,048,576 bytes only")
    assert "max_allowed_packet" in small.hint


def test_the_time_is_the_same_in_every_time_zone(url: str) -> None:
    store = MysqlStore(url)
    before = time.time()
    assert before - 0.001 <= Ledger(store).open().now <= time.time() + 0.001
    store.close()


# ---- read only, and full ------------------------------------------------------------------


def test_a_server_that_was_made_read_only(server: MariadbServer, url: str) -> None:
    store = MysqlStore(url)
    ledger = Ledger(store)
    run = ledger.run()
    with global_setting(server, "read_only", 1):
        with pytest.raises(LedgerUnavailable, match="read only, nothing was written") as raised:
            ledger.start(run)
        assert "primary" in raised.value.hint
        assert ledger.read(run) == run
    assert ledger.do(run).state == "succeeded"
    audit(ledger)
    store.close()


def test_a_full_disk() -> None:
    settings = {"innodb_file_per_table": "0", "innodb_data_file_path": "ibdata1:12M:autoextend:max:28M"}
    try:
        server = MariadbServer(settings=settings).start()
    except Unavailable as refusal:
        unavailable(refusal)
    try:
        store = MysqlStore(server.create_database())
        ledger = Ledger(store)
        run = ledger.run()
        told = 0
        with pytest.raises(LedgerUnavailable, match="no space left, nothing of this was written") as raised:
            for number in range(64):
                ledger.start(run, key=f"key {number}", args="x" * 1_000_000)
                told += 1
        assert "make room" in raised.value.hint
        assert len(ledger.calls()) == told
        audit(ledger)
        store.close()
    finally:
        server.close()


# ---- locks --------------------------------------------------------------------------------


@contextmanager
def holding(url: str, *statements: str) -> Iterator[Any]:
    """Another program in the middle of a transaction."""
    with pymysql.connect(**arguments(url)) as other:
        cursor = other.cursor()
        for statement in statements:
            cursor.execute(statement)
        yield other
        other.rollback()


def test_a_row_that_somebody_keeps_locked(url: str) -> None:
    store = MysqlStore(url, lock_wait_s=1.0)
    ledger = Ledger(store)
    run = ledger.run()
    with holding(url, f"select uid from amends_run where uid = '{run.uid}' for update"):
        with pytest.raises(
            LedgerUnavailable, match=f"AdmitCall waited for the row '{run.uid}' of amends_run"
        ) as raised:
            ledger.start(run)
        assert "PROCESSLIST" in raised.value.hint
    assert ledger.do(run).state == "succeeded"
    assert len(ledger.calls()) == 1
    audit(ledger)
    store.close()


def test_a_lock_that_comes_free_in_time_is_waited_for(url: str) -> None:
    store = MysqlStore(url, lock_wait_s=20.0)
    ledger = Ledger(store)
    run = ledger.run()
    with ThreadPoolExecutor(1) as pool:
        with holding(url, f"select uid from amends_run where uid = '{run.uid}' for update") as other:
            asked = pool.submit(ledger.start, run)
            wait_for(lambda: _waits(url))
            other.rollback()
        assert asked.result(30).state == "started"
    store.close()


def _waits(url: str) -> bool:
    time.sleep(0.15)  # the server renews this table only when nobody has looked for a tenth of a second
    found = ask(url, ["select count(*) from information_schema.innodb_trx where trx_state = 'LOCK WAIT'"])
    return bool(found[0][0])


def test_a_deadlock_is_tried_again(server: MariadbServer, url: str) -> None:
    store = MysqlStore(url)
    ledger = Ledger(store)
    first, second = sorted((ledger.run("first").uid, ledger.run("second").uid))
    ask(url, ["create table heavy (it int)"])
    heavy = ["insert into heavy values " + ", ".join(["(1)"] * 5000)]  # the lighter of two is the victim
    before = _deadlocks(server)
    with ThreadPoolExecutor(1) as pool:
        with holding(url, *heavy, f"select uid from amends_run where uid = '{second}' for update") as other:
            asked = pool.submit(store.perform, ops.RenewLeases("a", {first: 1, second: 1}, 77.0))
            wait_for(lambda: _waits(url))
            other.cursor().execute(f"select uid from amends_run where uid = '{first}' for update")
            wait_for(lambda: _deadlocks(server) > before)
        assert set(asked.result(30).goals) == {first, second}
    assert {run.lease_s for run in ledger.runs()} == {77.0}
    store.close()


def test_leases_are_locked_in_one_order(server: MariadbServer, url: str) -> None:
    """Two who renew many, named in opposite orders, never wait for each other in a circle."""
    store = MysqlStore(url)
    ledger = Ledger(store)
    uids = [ledger.run(f"run {number}").uid for number in range(20)]
    gate = threading.Barrier(2)

    def renew(names: list[str]) -> int:
        gate.wait(30)
        return sum(len(store.perform(ops.RenewLeases("a", dict.fromkeys(names, 1), 30.0)).goals) for _ in range(20))

    before = _deadlocks(server)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(renew, [uids, uids[::-1]])) == [400, 400]
    assert _deadlocks(server) == before
    store.close()


def _deadlocks(server: MariadbServer) -> int:
    [(_, count)] = databases.execute(server.url(), ["show global status like 'innodb_deadlocks'"])
    return int(count)


def test_a_pool_that_is_used_up(url: str) -> None:
    store = MysqlStore(url, pool_max=1, lock_wait_s=1.0)
    ledger = Ledger(store)
    run = ledger.run()
    link = store._pool.take()
    with pytest.raises(LedgerUnavailable, match="all 1 connections") as raised:
        ledger.start(run)
    assert "pool_max" in raised.value.hint
    store._pool.give(link, keep=True)
    assert ledger.do(run).state == "succeeded"
    store.close()


# ---- the server goes away -----------------------------------------------------------------


def test_connections_that_died_while_they_rested_are_not_noticed(server: MariadbServer, url: str) -> None:
    store = MysqlStore(url)
    ledger = Ledger(store)
    run = ledger.run()
    for turn in range(3):
        mine = "select id from information_schema.processlist where db = database() and command = 'Sleep'"
        for (number,) in ask(url, [mine]):
            databases.execute(server.url(), [f"kill {number}"])
        assert ledger.do(run, key=f"key {turn}").state == "succeeded"
        assert ledger.read(run).uid == run.uid
    store.close()


def test_a_server_that_is_killed_and_started_again(mariadb_server: MariadbServer) -> None:
    url = mariadb_server.create_database()
    store = MysqlStore(url)
    ledger = Ledger(store)
    run = ledger.run()
    # In order, between two operations: nobody notices.
    mariadb_server.restart()
    assert ledger.do(run, key="between").state == "succeeded"
    # Not running.
    mariadb_server.kill()
    with pytest.raises(LedgerUnavailable, match="cannot be reached"):
        ledger.read(run)
    mariadb_server.start()
    # In the middle of a transaction, which waits for a lock meanwhile.
    other = pymysql.connect(**arguments(url))
    other.cursor().execute(f"select uid from amends_run where uid = '{run.uid}' for update")
    op = ledger.admit_op(run, key="in the middle")
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(store.perform, op)
        wait_for(lambda: _waits(url))
        mariadb_server.kill()
        with pytest.raises(LedgerUnavailable):
            asked.result(60)
    other.close()
    mariadb_server.start()
    op.repeated = True
    assert store.perform(op).verdict == "start"
    assert [call.key for call in ledger.calls()] == ["in the middle", "between"]
    audit(ledger)
    store.close()

"""What a ledger on MariaDB or MySQL does that the conformance suite cannot know."""

import asyncio
import random
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from amends import Runtime
from amends.errors import BadConfig, LedgerCorrupt, LedgerMissing, LedgerTooNew, LedgerUnavailable, TooLarge
from amends.ledger import operations as ops
from amends.stores import store_for
from amends.stores.migrations import Migrating, migrations
from amends.stores.mysql.schema import check_server
from amends.stores.mysql.store import RUN_ID_BYTES_MAX, TENANT_BYTES_MAX, MysqlStore
from amends.testing.conformance.ledger import Ledger, audit
from tests.servers import databases
from tests.servers.databases import database_of, execute
from tests.stores.many import child
from tests.world import World


@pytest.fixture
def store(mysql_url: str) -> Iterator[MysqlStore]:
    made = MysqlStore(mysql_url)
    assert made.open(create=True)
    yield made
    audit(Ledger(made))
    made.close()


# ---- opening ------------------------------------------------------------------------------


def test_nothing_is_asked_of_a_server_before_it_is_needed() -> None:
    store = MysqlStore("mysql://bob:secret@host.invalid/shop")
    assert store.url == "mysql://bob@host.invalid/shop"
    store.close()
    store.close()


def test_the_first_to_open_makes_the_ledger_and_says_so(mysql_url: str) -> None:
    first, second = MysqlStore(mysql_url), MysqlStore(mysql_url)
    assert isinstance(first, Migrating)
    assert first.schema().version == 0
    with pytest.raises(LedgerMissing, match="creating one was not allowed"):
        first.open(create=False)
    assert first.open(create=True)
    assert not first.open(create=True)
    assert not second.open(create=False)
    assert first.schema() == second.migrate()
    assert first.schema().ledger
    assert first.schema().pending == ()
    first.close()
    second.close()


def test_of_many_who_start_at_once_one_makes_the_ledger(mysql_url: str) -> None:
    stores = [MysqlStore(mysql_url) for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        made = list(pool.map(lambda store: store.open(create=True), stores))
    assert sorted(made) == [False] * 5 + [True]
    assert len({store.schema().ledger for store in stores}) == 1
    for store in stores:
        store.close()


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_start_that_died_in_the_middle_of_a_migration_is_finished_by_the_next(mysql_url: str, count: int) -> None:
    databases.execute(mysql_url, migrations("mysql")[0].statements[:count])
    store = MysqlStore(mysql_url)
    assert store.schema().version == 0
    assert store.open(create=True)
    assert Ledger(store).do(Ledger(store).run()).state == "succeeded"
    store.close()


def test_somebody_elses_tables_are_left_alone(mysql_url: str) -> None:
    databases.execute(mysql_url, ["create table amends_run (kilometres int)", "insert into amends_run values (42)"])
    store = MysqlStore(mysql_url)
    with pytest.raises(LedgerCorrupt, match="tables of another program: amends_run") as corrupt:
        store.open(create=True)
    assert corrupt.value.hint
    assert databases.execute(mysql_url, ["select * from amends_run"]) == [(42,)]
    assert len(databases.execute(mysql_url, ["show tables"])) == 1
    store.close()


def test_other_tables_beside_the_ledger_are_welcome(mysql_url: str) -> None:
    databases.execute(mysql_url, ["create table orders (id int)"])
    store = MysqlStore(mysql_url)
    assert store.open(create=True)
    store.close()


def test_a_ledger_that_a_newer_amends_has_changed_is_refused(store: MysqlStore, mysql_url: str) -> None:
    databases.execute(mysql_url, ["insert into amends_schema values (9, 1, 0, 'x')"])
    newer = MysqlStore(mysql_url)
    assert not newer.open(create=False)  # what it can live with
    newer.close()
    databases.execute(mysql_url, ["update amends_schema set needs = 9 where version = 9"])
    newer = MysqlStore(mysql_url)
    with pytest.raises(LedgerTooNew):
        newer.open(create=True)
    newer.close()


@pytest.mark.parametrize("said", ["10.5.9-MariaDB", "5.7.44-log", "8.0.18", "5.5.5-10.3.2-MariaDB"])
def test_a_server_that_is_too_old_is_refused(said: str) -> None:
    with pytest.raises(LedgerUnavailable, match="too old") as old:
        check_server(lambda _: [(said, 1 << 24)], "mysql://host/shop")
    assert "or newer" in old.value.hint


@pytest.mark.parametrize("said", ["10.6.0-MariaDB", "5.5.5-10.11.2-MariaDB-log", "8.0.19", "9.1.0", "11.4.2-MariaDB"])
def test_a_server_that_is_new_enough_is_used(said: str) -> None:
    assert check_server(lambda _: [(said, 1 << 24)], "mysql://host/shop") == 1 << 24


def test_a_vanished_ledger_is_not_made_again(mysql_url: str) -> None:
    store = MysqlStore(mysql_url)
    Ledger(store).run()
    tables = [str(name) for (name,) in databases.execute(mysql_url, ["show tables"])]
    databases.execute(mysql_url, [f"drop table {', '.join(tables)}"])
    with pytest.raises(LedgerUnavailable, match="lacks a part of its tables"):
        Ledger(store).run("other")
    assert databases.execute(mysql_url, ["show tables"]) == []
    store.close()


# ---- what is kept is what was given -------------------------------------------------------

NAMES = [
    "a", "a ", " a", "A", "á", "a\u0301", "a\0", "a'", 'a"', "a\\", "a\\'", "a%s", "a%%", "a;--", "a\n", "ß", "ss",
    "\N{SMILING FACE WITH HALO}", "\N{SMILING FACE WITH SUNGLASSES}", "\ufeffa", "\uffff",
]  # fmt: skip


def test_ids_that_differ_in_one_sign_are_different_runs(store: MysqlStore) -> None:
    ledger = Ledger(store)
    made = {(tenant, id): ledger.run(id, tenant=tenant) for id in NAMES for tenant in ("t", "T", "t ")}
    assert len({run.uid for run in made.values()}) == len(NAMES) * 3
    for (tenant, id), run in made.items():
        found = store.perform(ops.ReadRun(tenant, id=id))
        assert found is not None
        assert (found.run.uid, found.run.id, found.run.tenant) == (run.uid, id, tenant)
    assert len(store.perform(ops.ListRuns("t", limit=1000))) == len(NAMES)


@pytest.mark.parametrize("text", [*NAMES, "x" * 1_000_000, "'" * 1_000_000, "\N{SMILING FACE WITH HALO}" * 250_000])
def test_a_text_comes_back_as_it_went(store: MysqlStore, text: str) -> None:
    ledger = Ledger(store)
    call = ledger.settle(ledger.start(ledger.run(), args=text), "succeeded", result=text, why=text).call
    found = ledger.look(call)
    assert (found.args, found.result, found.why) == (text, text, text)


def test_a_time_comes_back_to_the_last_bit(store: MysqlStore) -> None:
    ledger = Ledger(store)
    dice = random.Random(7)
    spans = [0.1, 1 / 3, 1e-300, 5e-324, 1.7976931348623157e308, 123456789.123456789, 1e22, 1e23, 0.1 + 0.2, -0.0]
    spans += [dice.uniform(0, 2e9) for _ in range(150)]
    for number, span in enumerate(spans):
        run = ledger.run(f"run {number}")
        databases_row = ops.RenewLeases("a", {run.uid: 1}, span)
        store.perform(databases_row)
        assert ledger.read(run).lease_s == span


def test_the_time_is_the_servers_and_the_statements(store: MysqlStore) -> None:
    opened = store.perform(Ledger(store).open_op())
    assert abs(opened.now - time.time()) < 60.0  # a time zone is more than that
    assert opened.run.created_at == opened.now


@pytest.mark.parametrize("id, tenant", [("x" * (RUN_ID_BYTES_MAX + 1), "t"), ("x", "ä" * (TENANT_BYTES_MAX // 2 + 1))])
def test_an_id_that_does_not_fit_its_index_is_refused_before_anything_runs(
    store: MysqlStore, id: str, tenant: str
) -> None:
    ledger = Ledger(store)
    with pytest.raises(TooLarge) as large:
        ledger.run(id, tenant=tenant)
    assert large.value.limit < large.value.size
    with pytest.raises(TooLarge):
        run = ledger.run()
        store.perform(ops.OpenChild("c", "x" * (RUN_ID_BYTES_MAX + 1), run.uid, 1, "a", "", ""))


# ---- many at once -------------------------------------------------------------------------


def test_callers_share_a_few_connections(mysql_url: str) -> None:
    store = MysqlStore(mysql_url, pool_max=4)
    ledger = Ledger(store)
    run = ledger.run()
    requests = [ledger.admit_op(run, key=f"key {number}") for number in range(64)]
    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(store.perform, requests))
    assert {answer.verdict for answer in answers} == {"start"}
    [(count,)] = databases.execute(
        mysql_url, ["select count(*) from information_schema.processlist where db = database()"]
    )
    assert count <= 4 + 1
    audit(ledger)
    store.close()


def test_runs_do_not_wait_for_each_other(mysql_url: str) -> None:
    store = MysqlStore(mysql_url)
    ledger = Ledger(store)
    first, second = ledger.run("first"), ledger.run("second")
    import pymysql  # type: ignore[import-untyped]

    with pymysql.connect(**databases.mysql_arguments(mysql_url)) as other:
        other.cursor().execute("select uid from amends_run where uid = %s for update", (first.uid,))
        assert ledger.do(second).state == "succeeded"
        assert ledger.read(first) == first  # reading waits for nobody
        assert ledger(ledger.claim_op(first)) is None  # who claims takes the next one
    store.close()


def test_many_who_change_one_run_at_once_are_all_served(mysql_url: str) -> None:
    store = MysqlStore(mysql_url)
    ledger = Ledger(store)
    run = ledger.run()

    def call(number: int) -> str:
        mine = Ledger(store, made=number * 1000)
        started = mine.start(run, key=f"key {number}")
        return str(mine.settle(started, "succeeded").call.state)

    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(call, range(1, 41))) == {"succeeded"}
    audit(ledger)
    store.close()


def test_an_event_loop_goes_on_while_the_ledger_is_asked(store: MysqlStore) -> None:
    ledger = Ledger(store)
    run = ledger.run()

    async def ask() -> list[Any]:
        return await asyncio.gather(
            *(store.perform_async(ledger.admit_op(run, key=f"key {number}")) for number in range(20))
        )

    assert {answer.verdict for answer in asyncio.run(ask())} == {"start"}


def test_a_cancellation_is_raised_when_the_operation_is_over(store: MysqlStore, mysql_url: str) -> None:
    ledger = Ledger(store)
    run = ledger.run()
    op = ledger.admit_op(run)

    async def cancelled() -> None:
        asked = asyncio.ensure_future(store.perform_async(op))
        await asyncio.sleep(0)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked

    asyncio.run(cancelled())
    assert [call.id for call in ledger.calls()] == [op.call_id]


def test_a_closed_ledger_says_so(mysql_url: str) -> None:
    store = MysqlStore(mysql_url)
    store.open(create=True)
    store.close()
    for asked in (lambda: Ledger(store).run(), lambda: asyncio.run(store.perform_async(ops.ReadCall("c")))):
        with pytest.raises(LedgerUnavailable, match="is closed"):
            asked()


def test_a_child_process_uses_no_connection_of_its_parent(mysql_url: str) -> None:
    said = child(
        """
        import os, sys
        from amends.stores.mysql.store import MysqlStore
        from amends.testing.conformance.ledger import Ledger, audit
        store = MysqlStore(sys.argv[1])
        ledger = Ledger(store)
        run = ledger.run()
        for number in range(3):
            pid = os.fork()
            if pid == 0:
                mine = Ledger(store, made=1000 * (number + 1))
                for turn in range(20):
                    mine.do(run, key=f"{number} {turn}")
                store.close()
                os._exit(0)
            for turn in range(20):
                ledger.do(run, key=f"parent {number} {turn}")
            assert os.waitpid(pid, 0)[1] == 0
        audit(ledger)
        print(len(ledger.calls()))
        """,
        mysql_url,
    )
    assert said.strip() == "120"


# ---- URLs ---------------------------------------------------------------------------------


def test_a_url_names_the_server_and_the_password_is_shown_nowhere() -> None:
    store = store_for("mariadb://bob:se%3Acr%40t@db.example:3307/shop?pool_max=3&lock_wait_s=2.5&ssl_ca=/ca.pem")
    assert isinstance(store, MysqlStore)
    assert store.url == "mariadb://bob@db.example:3307/shop"
    address = store._address
    assert (address.password, address.pool_max, address.lock_wait_s) == ("se:cr@t", 3, 2.5)
    given = address.arguments()
    assert (given["ssl_verify_cert"], given["ssl_verify_identity"]) == (True, True)
    assert "se:cr" not in repr(store) + repr(address) + store.url
    assert "se%3A" not in repr(store) + repr(address) + store.url


@pytest.mark.parametrize(
    "url",
    [
        "mysql:", "mysql://", "mysql://host", "mysql://bob:secret@host/", "mysql:///shop", "mysql://bob:secret@/shop",
        "mysql://bob:secret@host:port/shop", "mysql://bob:secret@host/shop?pool_max=0", "mysql://h/s?pool_max=many",
        "mysql://bob:secret@host/shop?colour=red", "mysql://bob:secret@host/a/b", "mysql://bob:secret@[host/shop",
        "mysql://host/shop?ssl_verify_identity=perhaps", "mysql://host/shop?lock_wait_s=-1",
    ],
)  # fmt: skip
def test_a_url_that_cannot_be_used_is_said_without_its_password(url: str) -> None:
    with pytest.raises(BadConfig) as bad:
        store_for(url)
    assert bad.value.setting == "url"
    assert bad.value.hint
    assert "secret" not in str(bad.value) + bad.value.hint


def test_without_its_driver_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['pymysql'] = None\n"
        "from amends.stores import store_for\n"
        "try: store_for('mysql://bob:secret@host/shop')\n"
        "except Exception as error: print(type(error).__name__, error.hint)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "BadConfig pip install 'amends[mysql]'"


def test_the_rights_that_the_page_names_are_enough_for_runs_with_locks(mysql_url: str) -> None:
    """It named no right to delete: the first run that took a lock could neither commit nor be taken back."""
    page = Path("docs/reference/mysql.md").read_text()
    said = page[page.index("```sql") + 6 : page.index("```", page.index("```sql") + 6)]
    statements = [line.rstrip(";") for line in said.strip().splitlines() if line.startswith(("create user", "grant"))]
    database, user = database_of(mysql_url), f"u{uuid.uuid4().hex[:12]}"
    mine = [one.replace("shop.", f"{database}.").replace("amends@", f"{user}@") for one in statements]
    at = [one for one in mine if "delete" not in one]
    execute(mysql_url, at)
    url = re.sub(r"//[^@]*@", f"//{user}:...@", mysql_url)
    reserve = World().compensatable(locks=lambda call: ["a"])
    try:
        with Runtime(url, tools=[reserve], create=True) as rt:
            rt.migrate()
            execute(mysql_url, [one for one in mine if one not in at])
            with rt.run("kept"):
                reserve(x="1")
            with pytest.raises(ValueError, match="no"), rt.run("taken back"):
                reserve(x="2")
                raise ValueError("no")
            assert [run.state for run in rt.runs()] == ["rolled_back", "committed"]
            assert list(rt.locks()) == []
    finally:
        execute(mysql_url, [f"drop user {user}@'%'"])

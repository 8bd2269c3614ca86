"""Two versions of amends share a ledger while a deploy rolls: what the newer one adds, the older one lives with."""

import importlib
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from amends.errors import LedgerTooNew, LedgerTooOld, LedgerUnavailable
from amends.stores import migrations as package
from amends.stores.migrations import Migration, migrations
from amends.stores.sqlite.store import SqliteStore
from amends.testing.conformance.ledger import Ledger, audit
from tests.servers import databases

Make = Callable[[], Any]
KINDS = ("sqlite", "postgresql", "mysql")
WHERE = {"sqlite": "sqlite.connection", "postgresql": "postgres.schema", "mysql": "mysql.schema"}
STARTERS = 8
PATIENCE_S = 60

GROWN = ("amends_run", "amends_call", "amends_event")
ADDED = {
    "sqlite": (
        "create table more (x integer not null) strict",
        *(f"alter table {table} add column added text not null default ''" for table in GROWN),
        "create index amends_call_added on amends_call (added)",
    ),
    "postgresql": (
        "create table more (x bigint not null)",
        *(f"alter table {table} add column added text not null default ''" for table in GROWN),
        "create index amends_call_added on amends_call (added)",
    ),
    "mysql": (
        "create table if not exists more (x bigint not null)",
        *(f"alter table {table} add column added longtext not null default ('')" for table in GROWN),
        "alter table amends_call add index amends_call_added (tool)",
    ),
}  # fmt: skip


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> Iterator[Make]:
    """Makes handles on one ledger that does not exist yet."""
    made: list[Any] = []

    def one() -> Any:
        if kind == "sqlite":
            made.append(SqliteStore(tmp_path / "ledger.db", "NORMAL"))
        elif kind == "postgresql":
            from amends.stores.postgres.store import PostgresStore

            made.append(PostgresStore(request.getfixturevalue("postgres_url")))
        else:
            from amends.stores.mysql.store import MysqlStore

            made.append(MysqlStore(request.getfixturevalue("mysql_url")))
        return made[-1]

    if kind != "sqlite":
        one.url = request.getfixturevalue("postgres_url" if kind == "postgresql" else "mysql_url")  # type: ignore[attr-defined]
    yield one
    for store in made:
        store.close()


@contextmanager
def newer(kind: str, statements: tuple[str, ...], *, needs: int = 1, contract: bool = False) -> Iterator[int]:
    """Whoever opens a ledger inside knows one migration more; its version."""
    known = migrations(kind)
    version = len(known) + 1
    more = (*known, Migration(version, f"{version:04d}_more", needs, statements, is_contract=contract))
    with pytest.MonkeyPatch.context() as patch:
        for module in (package, importlib.import_module(f"amends.stores.{WHERE[kind]}")):
            patch.setattr(module, "migrations", lambda dialect: more if dialect == kind else migrations(dialect))
        yield version


def test_an_older_amends_goes_on_with_a_ledger_that_a_newer_one_added_to(kind: str, make: Make) -> None:
    old = Ledger(make())
    old.store.open(create=True)
    before = old.run("before")
    under_way = old.start(before)
    with newer(kind, ADDED[kind]) as version:
        new = Ledger(make())
        assert new.store.open(create=False) is False
        assert new.store.schema().version == version  # type: ignore[attr-defined]
    assert old.settle(under_way).call.state == "succeeded"
    second = Ledger(make(), "async")
    second.store.open(create=False)
    assert second.store.schema().pending == ()  # type: ignore[attr-defined]
    for number, ledger in enumerate((old, new, second)):
        ledger.made = 1000 * (number + 1)  # ids of its own
        run = ledger.run(f"run {number}")
        done = ledger.do(run)
        assert ledger.admit(run, call_id=f"again {number}").call == done
        assert ledger.commit(run).how == "committed"
        taken = ledger.run(f"taken back {number}")
        call = ledger.do(taken, key=f"taken back {number}")
        ledger.roll_back(taken)
        assert ledger.compensate(call).state == "compensated"
        assert ledger.close(taken, "rolled_back").state == "rolled_back"
    assert new.do(before, "ship").state == "succeeded"
    assert old.commit(before).how == "committed"
    assert old.everything() == new.everything() == second.everything()
    audit(old)


def test_an_older_amends_refuses_what_it_cannot_live_with_and_names_both_versions(kind: str, make: Make) -> None:
    make().open(create=True)
    known = len(migrations(kind))
    with newer(kind, ADDED[kind], needs=known + 1):
        make().open(create=True)
    old = make()
    with pytest.raises(LedgerTooNew) as too_new:
        old.open(create=True)
    assert f"needs an amends that knows version {known + 1}" in str(too_new.value)
    assert f"knows versions up to {known}" in str(too_new.value)
    assert "upgrade" in too_new.value.hint
    assert make().schema().needs == known + 1


def test_of_eight_who_start_at_once_one_migrates(kind: str, make: Make, caplog: pytest.LogCaptureFixture) -> None:
    make().open(create=True)
    caplog.set_level(logging.INFO, logger="amends")
    with newer(kind, (*ADDED[kind], "insert into more values (1)")) as version:
        stores = [make() for _ in range(STARTERS)]
        gate = threading.Barrier(STARTERS)

        def start(store: Any) -> Any:
            gate.wait(PATIENCE_S)
            assert store.open(create=False) is False
            return store.schema()

        with ThreadPoolExecutor(STARTERS) as pool:
            seen = set(pool.map(start, stores))
    (schema,) = seen
    assert (schema.version, schema.pending) == (version, ())
    assert len([record for record in caplog.records if "migrating" in record.message]) == 1


# ---- Contracting: only when a person asks for it ------------------------------------------


def test_a_contracting_migration_is_applied_by_a_person_and_by_no_program(kind: str, make: Make) -> None:
    make().open(create=True)
    known = len(migrations(kind))
    with newer(kind, ADDED[kind], needs=known + 1, contract=True) as version:
        new = make()
        assert new.open(create=True) is False
        assert (new.schema().version, new.schema().pending) == (known, (f"{version:04d}_more",))
        ledger = Ledger(new)
        assert ledger.do(ledger.run("before"), key="before").state == "succeeded"
        assert make().migrate().version == version
        assert ledger.do(ledger.run("after"), key="after").state == "succeeded"
    with pytest.raises(LedgerTooNew):
        make().open(create=False)


def test_a_new_ledger_has_what_contracts_too(kind: str, make: Make) -> None:
    with newer(kind, ADDED[kind], needs=2, contract=True) as version:
        assert make().open(create=True) is True
        assert make().schema().version == version


def test_the_head_of_a_file_says_who_can_live_with_it() -> None:
    def read(text: str) -> tuple[int, bool]:
        return package._needs(text), package._is_contract(text)

    assert read("-- About it.\ncreate table a (b integer);\n") == (1, False)
    assert read("-- needs: 3\n-- About it.\n") == (3, False)
    assert read("-- needs: 3\n-- contract\n-- About it.\n") == (3, True)


# ---- What a migration would do ------------------------------------------------------------

LOCKS = {
    "sqlite": ("nothing that others use", *["the file, until"] * 4),
    "postgresql": ("nothing that others use", *["ACCESS EXCLUSIVE on"] * 3, "SHARE on"),
    "mysql": ("nothing that others use", *["metadata of the table"] * 4),
}


def test_a_plan_says_what_would_be_done_and_does_nothing(kind: str, make: Make) -> None:
    store = make()
    store.open(create=True)
    known = store.schema().version
    ledger = Ledger(store)
    run = ledger.run()
    ledger.do(run)
    with newer(kind, ADDED[kind]) as version:
        tables = package.tables_of(kind, known)
        assert tables == {"more", *GROWN}
        rows = make().estimate_rows(tables)
        [planned] = package.plan_of(kind, make().schema(), rows)
        assert make().schema().version == known
    assert (planned.version, planned.needs, planned.is_contract) == (version, 1, False)
    assert [one.table for one in planned.statements] == ["more", *GROWN, "amends_call"]
    assert all(one.locks.startswith(said) for one, said in zip(planned.statements, LOCKS[kind], strict=True))
    assert planned.statements[0].rows is None
    assert set(rows) <= set(GROWN)
    assert planned.to_dict()["statements"][1]["sql"] == ADDED[kind][1]


# ---- PostgreSQL: a migration does not hold up others behind the lock that it waits for -----


def test_a_migration_that_waits_for_a_table_lets_others_go_on(postgres_url: str) -> None:
    import psycopg

    from amends.stores.postgres.store import PostgresStore

    old = PostgresStore(postgres_url)
    old.open(create=True)
    ledger = Ledger(old)
    ended = threading.Event()
    with psycopg.connect(postgres_url) as reader, ThreadPoolExecutor(1) as pool:
        reader.execute("select * from amends_call")  # and its transaction stays open, as that of a backup
        with newer("postgresql", ADDED["postgresql"]) as version:
            new = PostgresStore(postgres_url)
            migrated = pool.submit(new.migrate)
            migrated.add_done_callback(lambda _: ended.set())
            waits = "select 1 from pg_locks where not granted and relation = 'amends_call'::regclass"
            while not databases.execute(postgres_url, [waits]):
                assert not migrated.done(), migrated.result()
            run = ledger.run()
            assert ledger.do(run).state == "succeeded"  # it waits two seconds at most
            assert not ended.is_set()
            reader.rollback()
            assert migrated.result(PATIENCE_S).version == version
    assert ledger.commit(run).how == "committed"
    old.close()
    new.close()


# ---- A ledger of a development version: the same number, other tables ----------------------


@pytest.mark.parametrize("gone", ["column", "table"])
def test_a_ledger_of_a_development_version_is_refused_by_name_and_not_as_damaged(
    kind: str, make: Make, gone: str
) -> None:
    """While there was no release, the first migration was changed in place."""
    store = make()
    store.open(create=True)
    where = store.url if kind == "sqlite" else None
    statement = "alter table amends_run drop column wanted" if gone == "column" else "drop table amends_directive"
    if kind == "sqlite":
        store.close()
        with closing(sqlite3.connect(str(where).removeprefix("sqlite:///"))) as raw:
            raw.execute(statement)
            raw.commit()
    else:
        databases.execute(make.url, [statement])  # type: ignore[attr-defined]
    for use in (lambda: make().open(create=True), lambda: make().open(create=False), make().schema, make().migrate):
        with pytest.raises(LedgerTooOld) as too_old:
            use()
        assert "nothing was changed" in str(too_old.value)
        assert ("wanted in amends_run" if gone == "column" else "amends_directive") in str(too_old.value)


def test_the_columns_of_the_files_are_those_of_the_tables(kind: str, make: Make) -> None:
    """Otherwise a sound ledger would be refused."""
    store = make()
    store.open(create=True)
    said = package.columns_of(kind, len(migrations(kind)))
    assert {"amends_run", "amends_call", "amends_event", "amends_schema", "amends_directive"} <= set(said)
    if kind == "sqlite":
        with closing(sqlite3.connect(store.url.removeprefix("sqlite:///"))) as raw:
            found = {table: {row[1] for row in raw.execute(f"pragma table_xinfo({table})")} for table in said}
    else:
        sql = "select column_name from information_schema.columns where table_name = '{}' and table_schema = {}"
        schema = "current_schema()" if kind == "postgresql" else "database()"
        found = {table: {row[0] for row in databases.execute(make.url, [sql.format(table, schema)])} for table in said}  # type: ignore[attr-defined]
    assert {table: set(columns) for table, columns in said.items()} == found


# ---- MariaDB and MySQL: no transaction around a migration ---------------------------------


@pytest.mark.parametrize("count", range(len(ADDED["mysql"]) + 1))
def test_a_migration_that_ended_after_any_of_its_statements_is_finished_by_the_next(mysql_url: str, count: int) -> None:
    from amends.stores.mysql.store import MysqlStore

    old = MysqlStore(mysql_url)
    old.open(create=True)
    databases.execute(mysql_url, ADDED["mysql"][:count])
    assert Ledger(old).do(Ledger(old).run()).state == "succeeded"  # half of it is lived with as well
    with newer("mysql", ADDED["mysql"]) as version:
        new = MysqlStore(mysql_url)
        assert new.schema().pending == (f"{version:04d}_more",)
        new.open(create=False)
        assert new.schema().version == version
    ledger = Ledger(new, made=1000)
    assert ledger.do(ledger.run("other")).state == "succeeded"
    old.close()
    new.close()


def test_a_migration_whose_connection_is_killed_can_be_repeated(mysql_url: str) -> None:
    from amends.stores.mysql.store import MysqlStore

    first = MysqlStore(mysql_url)
    first.open(create=True)
    slow = (*ADDED["mysql"][:2], "do sleep(50)", *ADDED["mysql"][2:])
    ends: list[BaseException] = []

    def migrate() -> None:
        try:
            first_new.open(create=False)
        except BaseException as error:
            ends.append(error)

    with newer("mysql", slow):
        first_new = MysqlStore(mysql_url)
        thread = threading.Thread(target=migrate)
        thread.start()
        asked = "select id from information_schema.processlist where info = 'do sleep(50)' and db = database()"
        while not (found := databases.execute(mysql_url, [asked])):
            assert thread.is_alive(), ends
        databases.execute(mysql_url, [f"kill connection {found[0][0]}"])
        thread.join(PATIENCE_S)
    assert isinstance(ends[0], LedgerUnavailable), ends
    with newer("mysql", ADDED["mysql"]) as version:
        again = MysqlStore(mysql_url)
        again.open(create=False)  # the server's lock went with the connection
        assert again.schema().version == version
    ledger = Ledger(again)
    assert ledger.do(ledger.run()).state == "succeeded"
    for store in (first, first_new, again):
        store.close()

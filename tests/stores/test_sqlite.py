"""The file of a ledger: making it, finding it, and everything that can be wrong with it."""

import logging
import os
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from amends.errors import LedgerCorrupt, LedgerError, LedgerMissing, LedgerTooNew, LedgerTooOld, LedgerUnavailable
from amends.ledger import operations as ops
from amends.stores.migrations import Migration, migrations
from amends.stores.sqlite import connection as file
from amends.stores.sqlite.store import SqliteStore
from amends.testing.conformance.ledger import Clock, Ledger, audit
from tests.stores.many import child


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def make(path: Path) -> Iterator[Callable[..., SqliteStore]]:
    """Stores of one file, closed at the end."""
    made: list[SqliteStore] = []

    def one(**given: Any) -> SqliteStore:
        made.append(SqliteStore(path, given.pop("synchronous", "NORMAL"), **given))
        return made[-1]

    yield one
    for store in made:
        store.close()


Make = Callable[..., SqliteStore]


# ---- opening ------------------------------------------------------------------------------


def test_making_a_store_touches_nothing(make: Make, path: Path) -> None:
    make()
    assert not path.exists()


def test_opening_says_whether_the_ledger_is_new(make: Make) -> None:
    first, second = make(), make()
    assert first.open(create=True) is True
    assert first.open(create=True) is False
    assert second.open(create=False) is False


def test_the_first_operation_opens(make: Make, path: Path) -> None:
    Ledger(make()).run()
    assert path.exists()
    assert Ledger(make()).runs()[0].state == "open"
    assert Ledger(make(), "async").runs()[0].state == "open"
    assert Ledger(make(), "async").open().how == "busy"


def test_a_store_is_where_it_was_when_the_process_goes_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = SqliteStore("relative.db", "NORMAL")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    store.open(create=True)
    store.close()
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == ["relative.db"]


@pytest.mark.parametrize("synchronous, level", [("FULL", 2), ("NORMAL", 1)])
def test_the_log_is_flushed_as_it_was_asked_for(make: Make, synchronous: str, level: int) -> None:
    store = make(synchronous=synchronous)
    store.open(create=True)
    assert store._writer is not None
    pragma = store._writer.raw.execute
    assert pragma("pragma synchronous").fetchone() == (level,)
    assert pragma("pragma journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize("place", ["ledger.db", "nowhere/ledger.db"])
def test_without_create_a_missing_ledger_is_an_error_and_stays_missing(tmp_path: Path, place: str) -> None:
    store = SqliteStore(tmp_path / place)
    with pytest.raises(LedgerMissing):
        store.open(create=False)
    with pytest.raises(LedgerMissing):
        Ledger(store).run()
    with pytest.raises(LedgerMissing):
        Ledger(store).runs()
    assert list(tmp_path.iterdir()) == []
    store.close()


def test_without_create_an_empty_file_is_no_ledger(make: Make, path: Path) -> None:
    path.touch()
    with pytest.raises(LedgerMissing):
        make().open(create=False)
    assert path.read_bytes() == b""
    assert make().open(create=True) is True


def test_without_create_a_database_of_something_else_is_no_ledger(make: Make, path: Path) -> None:
    other = sqlite3.connect(path)
    other.execute("create table runs (miles)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(LedgerMissing):
        make().open(create=False)
    assert path.read_bytes() == before


def test_a_ledger_lives_beside_the_tables_of_somebody_else(make: Make, path: Path) -> None:
    """All its names begin with ``amends_``: tables that are called as those of a ledger once were are left alone."""
    with closing(sqlite3.connect(path)) as other:
        for table in ("runs", "calls", "events", "marks"):
            other.execute(f"create table {table} (miles)")
            other.execute(f"insert into {table} values (26)")
        other.commit()
    store = make()
    assert store.open(create=True) is True
    ledger = Ledger(store)
    assert ledger.do(ledger.run()).state == "succeeded"
    with closing(sqlite3.connect(path)) as other:
        for table in ("runs", "calls", "events", "marks"):
            assert other.execute(f"select * from {table}").fetchall() == [(26,)]
        names = {name for (name,) in other.execute("select name from sqlite_master where name not like 'sqlite_%'")}
    assert {name for name in names if not name.startswith("amends_")} == {"runs", "calls", "events", "marks"}


def test_a_table_of_somebody_else_that_has_the_name_of_one_of_ours_is_not_taken(make: Make, path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("create table amends_event (miles)")
        other.execute("insert into amends_event values (26)")
        other.commit()
    with pytest.raises(LedgerCorrupt, match="amends_event already exists"):
        make().open(create=True)
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("select name from sqlite_master").fetchall() == [("amends_event",)], "all or nothing"
        assert other.execute("select * from amends_event").fetchall() == [(26,)]


def test_a_ledger_of_the_first_release_is_refused_and_left_as_it_is(make: Make, path: Path) -> None:
    """Its tables were ``runs``, ``calls`` and so on, beside the same ``amends_schema``."""
    with closing(sqlite3.connect(path)) as old:
        old.execute(
            "create table amends_schema (version integer primary key, needs integer, applied_at real, ledger text)"
        )
        old.execute("insert into amends_schema values (9, 9, 0.0, 'its name')")
        old.execute("create table runs (uid text)")
        old.execute("insert into runs values ('precious')")
        old.commit()
    before = path.read_bytes()
    for create in (True, False):
        with pytest.raises(LedgerTooOld, match=r"0\.1\.0\.dev0.*nothing was changed"):
            make().open(create=create)
    with pytest.raises(LedgerTooOld):
        Ledger(make()).run()
    assert path.read_bytes() == before


def test_a_directory_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(LedgerUnavailable) as unavailable:
        SqliteStore(tmp_path / "nowhere" / "ledger.db").open(create=True)
    assert str(tmp_path / "nowhere") in str(unavailable.value)


def test_a_directory_is_no_ledger(tmp_path: Path) -> None:
    with pytest.raises(LedgerUnavailable):
        SqliteStore(tmp_path).open(create=True)


def test_a_file_that_is_no_database_is_left_alone(make: Make, path: Path) -> None:
    path.write_bytes(b"dear diary " * 500)
    with pytest.raises(LedgerCorrupt):
        make().open(create=True)
    with pytest.raises(LedgerCorrupt):
        Ledger(make()).run()
    assert path.read_bytes() == b"dear diary " * 500


def test_strange_characters_in_a_path_are_only_characters(tmp_path: Path) -> None:
    name = "a b?c=d#e%20f'é.db"
    store = SqliteStore(tmp_path / name)
    store.open(create=True)
    store.close()
    assert [file.name for file in tmp_path.iterdir()] == [name]


# ---- versions -----------------------------------------------------------------------------


def test_a_ledger_of_a_newer_amends_is_refused_with_both_versions(make: Make, path: Path) -> None:
    make().open(create=True)
    newest = len(migrations("sqlite"))
    raw = sqlite3.connect(path)
    raw.execute("insert into amends_schema values (?, ?, 0.0, 'x')", (newest + 7, newest + 7))
    raw.commit()
    raw.close()
    with pytest.raises(LedgerTooNew) as too_new:
        make().open(create=True)
    assert str(newest + 7) in str(too_new.value)
    assert str(newest) in str(too_new.value)
    assert "upgrade" in too_new.value.hint


def test_an_older_ledger_is_migrated_once_by_whoever_comes_first(
    make: Make, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make().open(create=True)
    known = migrations("sqlite")
    newer = Migration(len(known) + 1, "more", 1, ("create table more (x)", "insert into more values (1)"))
    monkeypatch.setattr(file, "migrations", lambda dialect: (*known, newer))
    stores = [make() for _ in range(8)]
    caplog.set_level(logging.INFO, logger="amends")
    together([lambda store=store: store.open(create=False) for store in stores])  # type: ignore[misc]
    raw = sqlite3.connect(path)
    assert raw.execute("select x from more").fetchall() == [(1,)]
    assert raw.execute("select version from amends_schema").fetchall() == [(n,) for n in range(1, newer.version + 1)]
    raw.close()
    assert len([record for record in caplog.records if "migrating" in record.message]) == 1


def test_a_migration_that_fails_leaves_the_ledger_as_it_was(
    make: Make, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make().open(create=True)
    known = migrations("sqlite")
    wrong = Migration(len(known) + 1, "wrong", 1, ("create table more (x)", "insert into nowhere values (1)"))
    monkeypatch.setattr(file, "migrations", lambda dialect: (*known, wrong))
    with pytest.raises(LedgerError):
        make().open(create=True)
    monkeypatch.undo()
    assert make().open(create=False) is False
    raw = sqlite3.connect(path)
    assert raw.execute("select count(*) from sqlite_master where name = 'more'").fetchone() == (0,)
    raw.close()


def test_of_many_starters_one_makes_the_ledger(make: Make) -> None:
    stores = [make() for _ in range(8)]
    made = together([lambda store=store: store.open(create=True) for store in stores])  # type: ignore[misc]
    assert sorted(made) == [False] * 7 + [True]


def together(acts: list[Callable[[], Any]]) -> list[Any]:
    """All at once, each in a thread of its own; their answers."""
    barrier = threading.Barrier(len(acts))
    answers: list[Any] = [None] * len(acts)

    def act(place: int) -> None:
        barrier.wait()
        answers[place] = acts[place]()

    threads = [threading.Thread(target=act, args=(place,)) for place in range(len(acts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


# ---- what can happen to a file ------------------------------------------------------------


def test_a_full_disk_is_said_and_leaves_nothing_half_written(make: Make) -> None:
    store = make()
    ledger = Ledger(store)
    run = ledger.run()
    assert store._writer is not None
    [pages] = store._writer.raw.execute("pragma page_count").fetchone()
    store._writer.raw.execute(f"pragma max_page_count = {pages + 2}")
    before = ledger.everything()
    with pytest.raises(LedgerUnavailable) as full:
        ledger.admit(run, args="x" * 100_000)
    assert "space" in str(full.value)
    assert ledger.everything() == before
    assert ledger.admit(run, args="x" * 100_000).verdict == "start"  # there is room again: a new connection
    audit(ledger)


def test_a_damaged_page_is_said(make: Make, path: Path) -> None:
    ledger = Ledger(make())
    run = ledger.run()
    call = ledger.do(run)
    ledger.store.close()
    content = bytearray(path.read_bytes())
    half = len(content) // 4096 * 2048
    content[2048:half] = b"\xff" * (half - 2048)
    path.write_bytes(content)
    for act in (lambda damaged: damaged.look(call), lambda damaged: damaged.admit(run), lambda damaged: damaged.runs()):
        with pytest.raises(LedgerCorrupt):
            act(Ledger(make()))


@pytest.mark.parametrize("again", [False, True])
def test_a_file_that_was_taken_away_is_not_written_any_more(make: Make, path: Path, again: bool) -> None:
    ledger = Ledger(make())
    run = ledger.run()
    path.rename(path.with_name("backup.db"))
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    if again:
        make().open(create=True)
    with pytest.raises(LedgerUnavailable):
        ledger.admit(run)
    if again:
        assert ledger.open().how == "fresh"
    else:
        with pytest.raises(LedgerMissing):
            ledger.admit(run)
        assert not path.exists()


READ_ONLY = """
    import os, sys
    from pathlib import Path
    import amends.stores, amends.stores.sqlite.store
    from amends import ledger as ops
    from amends.errors import LedgerUnavailable
    from amends.stores.sqlite.store import SqliteStore
    from amends.testing.conformance.ledger import Ledger

    folder = Path(sys.argv[1])
    store = SqliteStore(folder / "ledger.db")
    ledger = Ledger(store)
    ledger.run()
    store.close()
    if os.getuid() == 0:
        for file in [folder, *folder.iterdir()]:
            os.chown(file, 65534, 65534)
        os.setgid(65534)
        os.setuid(65534)
    (folder / "ledger.db").chmod(0o444 if sys.argv[2] == "file" else 0o644)
    folder.chmod(0o755 if sys.argv[2] == "file" else 0o555)
    for act in (lambda l: l.run("other"), lambda l: l.store.open(create=True), lambda l: l.store.open(create=False)):
        try:
            act(Ledger(SqliteStore(folder / "ledger.db")))
        except LedgerUnavailable as error:
            print(type(error).__name__)
    if sys.argv[2] == "folder":
        try:
            Ledger(SqliteStore(folder / "new.db")).run()
        except LedgerUnavailable as error:
            print(type(error).__name__)
    folder.chmod(0o755)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="another idea of rights")
@pytest.mark.parametrize("what, errors", [("file", 3), ("folder", 4)])
def test_a_ledger_that_may_only_be_read_is_said_at_once(
    tmp_path_factory: pytest.TempPathFactory, what: str, errors: int
) -> None:
    folder = tmp_path_factory.mktemp("read-only")
    for parent in [folder, *folder.parents][:-2]:
        if parent.owner() != "nobody" and os.access(parent, os.W_OK) and parent.stat().st_uid == os.getuid():
            parent.chmod(parent.stat().st_mode | 0o011)
    assert child(READ_ONLY, folder, what).split() == ["LedgerUnavailable"] * errors


HOLDER = """
    import sqlite3, sys
    connection = sqlite3.connect(sys.argv[1], isolation_level=None)
    connection.execute("begin immediate")
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_lock_that_does_not_come_free_names_who_may_hold_it(make: Make, path: Path) -> None:
    store = make(lock_wait_s=0.05)
    ledger = Ledger(store)
    run = ledger.run()
    command = [sys.executable, "-c", textwrap.dedent(HOLDER), str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(LedgerUnavailable) as locked:
            ledger.admit(run)
        if sys.platform == "linux":
            assert str(holder.pid) in str(locked.value)
        assert "another program" in locked.value.hint
        assert ledger.read(run) == run, "reading waits for nobody"
        assert Ledger(make(lock_wait_s=0.05)).read(run) == run, "nor does opening"
        holder.stdin.close()
    assert ledger.admit(run).verdict == "start"


# ---- closing ------------------------------------------------------------------------------


def test_a_closed_store_says_so_and_may_be_closed_again(make: Make, path: Path) -> None:
    store = make()
    run = Ledger(store).run()
    store.close()
    store.close()
    for colour in ("blocking", "async"):
        ledger = Ledger(store, colour)
        for act in (ledger.run, ledger.runs, lambda ledger=ledger: ledger.admit(run)):
            with pytest.raises(LedgerUnavailable) as closed:
                act()
            assert "closed" in str(closed.value)
    with pytest.raises(LedgerUnavailable):
        store.open(create=True)
    assert [file.name for file in path.parent.iterdir()] == [path.name], "the log is emptied and removed"


def test_a_store_that_was_never_opened_is_closed_without_a_file(make: Make, path: Path) -> None:
    make().close()
    assert not path.exists()


def test_a_broken_rule_of_the_schema_is_our_own_mistake(make: Make) -> None:
    ledger = Ledger(make())
    run = ledger.run()
    ledger.start(run, call_id="same", key="1")
    before = ledger.everything()
    with pytest.raises(AssertionError):
        ledger.start(run, call_id="same", key="2")
    assert ledger.everything() == before


def test_a_value_that_sqlite_cannot_hold_harms_nobody_else(make: Make) -> None:
    ledger = Ledger(make())
    run = ledger.run()
    with pytest.raises(UnicodeEncodeError):
        ledger.admit(run, args="\ud800")
    assert ledger.admit(run, args="a\x00b").call.args == "a\x00b"


def test_ledger_time_is_the_injected_clock(make: Make) -> None:
    clock = Clock(5.0)
    assert Ledger(make(clock=clock)).run().created_at == 5.0
    assert ops.OpenRun in type(Ledger(make()).open_op()).__mro__


def test_a_ledger_that_was_replaced_answers_nothing_from_the_old_record(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with closing(SqliteStore(path, "NORMAL")) as store:
        ledger = Ledger(store)
        run = ledger.run()
        ledger.do(run)
        assert ledger.admit(run).verdict == "replay"
        path.rename(tmp_path / "elsewhere.db")
        with pytest.raises(LedgerUnavailable, match="removed or replaced"):
            ledger.admit(run)  # a general operation, which looks each time

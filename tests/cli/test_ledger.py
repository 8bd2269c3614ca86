import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from amends import Runtime, tool
from amends.errors import LedgerTooOld
from tests.cli.command import assert_refused, run
from tests.cli.conftest import Play
from tests.servers.databases import execute

URL = ("--url", "sqlite:///shop.db")


def test_the_status_of_a_ledger_that_is_not_there_makes_none(tmp_path: Path) -> None:
    done = run("db", "status", "--json", *URL, cwd=tmp_path)
    assert done.returncode == 1
    said = json.loads(done.stdout)
    assert (said["version"], said["ledger"], said["pending"][0]) == (0, None, "0001_ledger")
    assert "amends db migrate" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_ledger_is_made_and_is_then_up_to_date(tmp_path: Path) -> None:
    made = run("db", "migrate", *URL, cwd=tmp_path)
    assert made.returncode == 0
    assert "applied" in made.stderr
    status = run("db", "status", *URL, "--json", cwd=tmp_path)
    assert status.returncode == 0
    said = json.loads(status.stdout)
    assert (said["url"], said["version"], said["pending"]) == (f"sqlite:///{tmp_path}/shop.db", said["newest"], [])
    assert said["ledger"]
    again = run("db", "migrate", *URL, "--json", cwd=tmp_path)
    assert (again.returncode, json.loads(again.stdout), again.stderr.strip()) == (0, said, "nothing to do")
    table = run("db", "status", *URL, cwd=tmp_path)
    assert said["ledger"] in table.stdout


def test_a_ledger_that_needs_a_newer_amends_is_shown_with_exit_code_1(tmp_path: Path) -> None:
    run("db", "migrate", *URL, cwd=tmp_path)
    raw = sqlite3.connect(tmp_path / "shop.db")
    raw.execute("insert into amends_schema values (99, 99, 0.0, 'x')")
    raw.commit()
    raw.close()
    status = run("db", "status", *URL, "--json", cwd=tmp_path)
    assert (status.returncode, json.loads(status.stdout)["needs"]) == (1, 99)
    assert "upgrade amends" in status.stderr
    assert_refused(run("db", "migrate", *URL, cwd=tmp_path), "99", code=21)


@pytest.mark.parametrize("needs", [1, 9])
def test_a_ledger_of_the_first_development_version_is_refused_by_name(tmp_path: Path, needs: int) -> None:
    """It had other tables. Whatever it says about versions, no newer amends could help."""
    raw = sqlite3.connect(tmp_path / "shop.db")
    raw.execute("create table amends_schema (version integer, needs integer, applied_at real, ledger text)")
    raw.execute("insert into amends_schema values (9, ?, 0.0, 'old')", (needs,))
    raw.execute("create table runs (uid text)")
    raw.commit()
    raw.close()
    for verb in (("db", "status"), ("db", "migrate"), ("runs", "list")):
        assert_refused(run(*verb, *URL, cwd=tmp_path), "[ledger_too_old]", "0.1.0.dev0", code=21)


def test_a_ledger_in_memory_has_nothing_to_migrate(tmp_path: Path) -> None:
    assert_refused(run("db", "status", "--url", "memory:", cwd=tmp_path), "has no schema")


def test_the_password_of_a_server_is_not_shown(tmp_path: Path) -> None:
    done = run("db", "status", "--url", "postgresql://me:secret@localhost:1/x", cwd=tmp_path)
    assert_refused(done)
    assert "secret" not in done.stderr


def test_gc_says_what_it_would_remove_and_then_removes_it(shop: Path, play: Play) -> None:
    play("pay", "order-1", "order-2")
    dry = run("gc", "--older-than", "0s", "--dry-run", "--json", *URL, cwd=shop)
    assert (dry.returncode, dry.stderr) == (0, "")
    said = json.loads(dry.stdout)
    assert (said["runs"], said["kept"], said["dry_run"]) == (2, {}, True)
    assert "order-1" in run("runs", "show", "order-1", *URL, "--json", cwd=shop).stdout
    one = run("gc", "--older-than", "0s", "--yes", "--limit", "1", "--json", *URL, cwd=shop)
    assert json.loads(one.stdout)["runs"] == 1
    table = run("gc", "--older-than", "0s", "-y", *URL, cwd=shop)
    assert table.stdout.splitlines()[1].split()[:2] == ["removed", "1"]
    shown = run("runs", "show", "order-1", *URL, cwd=shop)
    assert "(arguments and results removed on 2" in shown.stdout
    none = run("gc", "--older-than", "0s", "-y", *URL, cwd=shop)
    assert none.returncode == 0
    assert "no run" in none.stderr


def test_gc_keeps_what_is_open_or_in_doubt(shop: Path, play: Play) -> None:
    play("blind", "order-1", dies="order-1")
    assert run("recover", "app:rt", cwd=shop).returncode == 3
    done = run("gc", "--older-than", "0s", "--json", "--yes", *URL, cwd=shop)
    assert json.loads(done.stdout)["runs"] == 0
    (line,) = run("doubts", "list", *URL, "--json", cwd=shop).stdout.splitlines()
    assert json.loads(line)["sent"] == {"order": "order-1"}


def test_gc_says_what_is_wrong_with_an_age_and_makes_no_ledger(tmp_path: Path, shop: Path, play: Play) -> None:
    play("pay", "order-1")
    assert_refused(run("gc", "--older-than", "soon", *URL, cwd=shop), "30d")
    assert_refused(run("gc", *URL, cwd=shop), "--older-than")
    assert_refused(run("gc", "--older-than", "1d", *URL, cwd=shop), "--yes")
    assert_refused(run("gc", "--older-than", "1d", "--url", "sqlite:///none.db", cwd=tmp_path), "no ledger")
    assert not (tmp_path / "none.db").exists()


def test_the_printed_sql_creates_a_ledger_that_is_up_to_date_beside_other_tables(tmp_path: Path) -> None:
    done = run("db", "sql", "--url", "sqlite:///shop.db", cwd=tmp_path)
    assert (done.returncode, done.stderr, list(tmp_path.iterdir())) == (0, "", [])
    assert "-- One row for each call." in done.stdout, "the comments are for the people who read it"
    said = json.loads(run("db", "sql", "--url", "sqlite:///shop.db", "--json", cwd=tmp_path).stdout)
    assert said["sql"] == done.stdout
    with sqlite3.connect(tmp_path / "shop.db") as raw:
        raw.executescript(f"create table runs (id text); create table calls (id text); {done.stdout}")
        tables = {name for (name,) in raw.execute("select name from sqlite_master where type = 'table'")}
    raw.close()
    assert {name for name in tables if not name.startswith("amends_")} == {"runs", "calls"}
    assert run("db", "status", "--url", "sqlite:///shop.db", cwd=tmp_path).returncode == 0
    _use(f"sqlite:///{tmp_path / 'shop.db'}")


def test_the_printed_sql_creates_a_ledger_on_a_server_too(postgres_url: str) -> None:
    rt = Runtime(postgres_url, create=False)
    sql = rt.schema_sql()
    rt.close()
    execute(postgres_url, [sql])
    _use(postgres_url)


def test_the_printed_sql_creates_a_ledger_with_the_procedures_of_mariadb(mysql_url: str) -> None:
    rt = Runtime(mysql_url, create=False)
    sql = rt.schema_sql()
    rt.close()
    execute(mysql_url, as_a_client_splits(sql))
    _use(mysql_url)


def as_a_client_splits(sql: str) -> list[str]:
    """Split a file as the command line client of MariaDB does."""
    found, lines, end = list[str](), list[str](), ";"
    for line in sql.splitlines():
        if line.startswith("delimiter "):
            end = line.removeprefix("delimiter ")
        elif line.endswith(end) and not line.startswith("--"):
            found.append("\n".join([*lines, line.removesuffix(end)]))
            lines = []
        else:
            lines.append(line)
    assert not "".join(lines).strip(), "every statement ends"
    return found


@tool(kind="read")
def price(sku: str) -> str:
    return sku


def _use(url: str) -> None:
    """Use the ledger, which must exist."""
    with Runtime(url, create=False, tools=[price]) as rt:
        assert (rt.schema().pending, len(rt.schema().ledger)) == ((), 16)
        with rt.run("order-1"):
            assert price("pen") == "pen"
        assert not rt.verify().problems


OLD = (
    "create table amends_schema (version bigint, needs bigint, applied_at double precision, ledger varchar(64))",
    "insert into amends_schema values (9, 9, 0, 'old')",
    "create table runs (uid varchar(64))",
)


@pytest.mark.parametrize("kind", ["postgres_url", "mysql_url"])
def test_an_old_ledger_on_a_server_is_refused_too(kind: str, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue(kind)
    execute(url, OLD)
    with closing(Runtime(url)) as rt:
        for use in (rt.schema, rt.migrate, lambda: list(rt.runs())):
            with pytest.raises(LedgerTooOld):
                use()

"""Where the ledger is: a path with a question mark, and DATABASE_URL."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from amends import Runtime
from amends.errors import BadConfig, LedgerMissing
from amends.host.settings import settle_settings


@pytest.mark.parametrize(
    "name, query",
    [
        ("what?.db", ""),
        ("a?b=/c.db", ""),
        ("is it?/ledger.db", "?synchronous=normal"),
        ("what%3F.db", ""),
        ("plain.db", ""),
    ],
)
def test_a_path_may_contain_a_question_mark(tmp_path: Path, name: str, query: str) -> None:
    file = tmp_path / name.replace("%3F", "?")
    file.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(2):
        with Runtime(f"sqlite:///{tmp_path / name}{query}", checkpoint=0) as rt, rt.run("r") as run:
            assert run.id == "r"
    assert file.exists()
    assert file.with_name(f"{file.name}.anchor").exists()
    assert len(list(file.parent.glob("*.db"))) == 1
    with Runtime(rt.settings["url"].value, create=False) as again:
        assert again.report("r").state == "committed"


def test_an_unknown_option_is_no_path(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="mode"):
        Runtime(f"sqlite:///{tmp_path / 'a.db'}?mode=ro")


@pytest.mark.parametrize("query", ["synchronous", "Synchronous", "synchronous="])
def test_an_option_without_a_value_is_no_path(tmp_path: Path, query: str) -> None:
    with pytest.raises(BadConfig, match=r"(?i)synchronous"):
        Runtime(f"sqlite:///{tmp_path / 'a.db'}?{query}")


def test_database_url_is_read_last_and_nothing_is_created_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AMENDS_URL", raising=False)
    monkeypatch.setenv("DATABASE_URL", f"sqlite:///{tmp_path / 'shop.db'}")
    rt = Runtime()
    assert rt.settings["url"].origin == rt.settings["create"].origin == "DATABASE_URL"
    with pytest.raises(LedgerMissing), rt.run():
        pass
    rt.close()
    assert not (tmp_path / "amends.db").exists()
    rt = Runtime()
    rt.migrate()
    with rt.run("r"):
        pass
    rt.close()
    assert (tmp_path / "shop.db").exists()


def test_every_other_place_comes_before_it() -> None:
    env = {"DATABASE_URL": "postgresql://app@db/app"}
    assert settle_settings({}, environ=env)["url"].value == "postgresql://app@db/app"
    assert settle_settings({"url": "memory:"}, environ=env)["url"].value == "memory:"
    assert settle_settings({}, environ=env | {"AMENDS_URL": "memory:"})["url"].value == "memory:"
    assert settle_settings({}, environ={"DATABASE_URL": "mssql://db"})["url"].origin == "default"


def test_nothing_lets_a_start_create_tables_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "amends.toml").write_text("create = true\n")
    env = {"DATABASE_URL": "postgresql://app@db/app", "AMENDS_CREATE": "1"}
    for given in ({}, {"create": True}):
        found = settle_settings(given, environ=env)["create"]
        assert (found.value, found.origin) == (False, "DATABASE_URL")
    assert settle_settings({"url": "memory:"}, environ=env)["create"].value is True


@pytest.mark.parametrize(
    "url, name",
    [
        ("sqlite://", None),
        ("sqlite:///:memory:", None),
        ("sqlite+aiosqlite://", None),
        ("mssql://db", None),
        ("nonsense", None),
        ("sqlite+aiosqlite:///shop.db", "shop.db"),
        ("sqlite:///shop.db?check_same_thread=false&mode=rwc", "shop.db"),
        ("SQLITE:///sh?op.db", "sh?op.db"),
    ],
)
def test_a_database_of_the_application_is_read_as_its_library_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, name: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AMENDS_URL", raising=False)
    monkeypatch.setenv("DATABASE_URL", url)
    found = Runtime().settings["url"]
    origin = "default" if name is None else "DATABASE_URL"
    place = str(tmp_path / (name or "amends.db")).replace("?", "%3F")
    assert (found.value, found.origin) == (f"sqlite:///{place}", origin)
    assert list(tmp_path.iterdir()) == []


def test_a_database_in_memory_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url in ("sqlite:///:memory:", "sqlite:///"):
        with pytest.raises(BadConfig):
            Runtime(url)


def test_tables_of_the_application_stay_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "shop.db"
    with sqlite3.connect(file) as shop:
        shop.execute("create table orders (id text)")
    shop.close()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AMENDS_URL", raising=False)
    monkeypatch.setenv("DATABASE_URL", f"sqlite:///{file}")
    with pytest.raises(LedgerMissing) as caught, Runtime(create=True) as rt, rt.run():
        pass
    assert "amends db migrate" in (caught.value.hint or "")
    with sqlite3.connect(file) as shop:
        assert [name for (name,) in shop.execute("select name from sqlite_master")] == ["orders"]
    shop.close()

"""Where the ledger is: a path with a question mark, and DATABASE_URL."""

from __future__ import annotations

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
    assert settle_settings({}, environ=env | {"AMENDS_CREATE": "1"})["create"].value is True

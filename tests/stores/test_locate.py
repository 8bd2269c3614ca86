"""From a URL to a store."""

import subprocess
import sys
from pathlib import Path

import pytest

from amends.errors import BadConfig
from amends.stores import store_for
from amends.stores.memory import MemoryStore
from amends.stores.sqlite.store import SqliteStore


def test_memory_is_a_store_of_its_own_each_time() -> None:
    assert isinstance(store_for("memory:"), MemoryStore)
    assert store_for("memory:") is not store_for("memory:")


@pytest.mark.parametrize(
    "url, path",
    [
        ("sqlite:///shop.db", Path.cwd() / "shop.db"),
        ("sqlite:///data/shop.db?synchronous=normal", Path.cwd() / "data" / "shop.db"),
        ("sqlite:////var/lib/shop.db", Path("/var/lib/shop.db")),
        ("sqlite:////var/lib/shop.db?synchronous=FULL", Path("/var/lib/shop.db")),
    ],
)
def test_a_file_is_named_relative_with_three_slashes_and_absolute_with_four(url: str, path: Path) -> None:
    store = store_for(url)
    assert isinstance(store, SqliteStore)
    assert store.path == path
    assert store.synchronous == ("NORMAL" if url.endswith("normal") else "FULL")
    assert store.url == url.partition("?")[0]


def test_finding_a_store_makes_no_file(tmp_path: Path) -> None:
    store_for(f"sqlite:///{tmp_path}/shop.db")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://bob:secret@host/db", "postgres://bob:secret@host/db", "postgresql+psycopg://bob:secret@host/db",
        "mysql://bob:secret@host/db", "mariadb://bob:secret@host/db", "mysql+pymysql://bob:secret@host/db",
    ],
)  # fmt: skip
def test_a_server_is_found_without_asking_it_and_its_password_is_not_shown(url: str) -> None:
    store = store_for(url)
    assert "secret" not in store.url + repr(store)
    assert "host" in store.url
    store.close()


@pytest.mark.parametrize(
    "url",
    [
        "shop.db", "", "C:\\shop.db", "redis://host", "sqlite:", "sqlite://", "sqlite:///", "sqlite:shop.db",
        "sqlite://shop.db", "sqlite:///data/", "sqlite:///:memory:", "sqlite:///a.db?synchronous=off",
        "sqlite:///a.db?mode=ro", "sqlite:///a.db?synchronous", "memory:shared", "memory:?x=1",
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_said_with_a_hint(url: str) -> None:
    with pytest.raises(BadConfig) as bad:
        store_for(url)
    assert bad.value.setting == "url"
    assert bad.value.hint


def test_a_store_that_is_not_asked_for_is_not_imported() -> None:
    code = "import sys; from amends.stores import store_for; store_for('memory:'); print('sqlite3' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"

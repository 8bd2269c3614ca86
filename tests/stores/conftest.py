"""Every check of the conformance suite runs on every store and in both colours."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from amends.stores.sqlite.store import SqliteStore
from amends.testing.conformance.ledger import Ledger, audit
from tests.servers.databases import create_database, drop_database
from tests.servers.fixtures import server_url
from tests.servers.shared import Kind
from tests.stores.emptied import Emptied
from tests.stores.harness import Harness, in_file, in_memory, on_server
from tests.stores.many import Gate


@pytest.fixture
def memory_harness() -> Harness:
    return in_memory()


@pytest.fixture
def sqlite_harness(tmp_path: Path) -> Harness:
    return in_file(tmp_path / "ledger.db")


@pytest.fixture(scope="session")
def postgresql_harness(pytestconfig: pytest.Config) -> Iterator[Harness]:
    yield from _on_server(pytestconfig, "postgresql", "postgres")


@pytest.fixture(scope="session")
def mysql_harness(pytestconfig: pytest.Config) -> Iterator[Harness]:
    yield from _on_server(pytestconfig, "mysql", "mysql")


def _on_server(config: pytest.Config, store: str, kind: Kind) -> Iterator[Harness]:
    server = server_url(config, kind)
    url = create_database(server)
    try:
        with closing(Emptied(url)) as database:
            yield on_server(store, database)
    finally:
        drop_database(server, url)


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def shared(tmp_path: Path, gate: Gate) -> Iterator[SqliteStore]:
    """A file that many callers share; its clock is the gate."""
    made = SqliteStore(tmp_path / "ledger.db", "NORMAL", gate)
    made.open(create=True)
    yield made
    if not made._closed:
        audit(Ledger(made))
    made.close()


@pytest.fixture(scope="session")
def mysql_kept(pytestconfig: pytest.Config) -> Iterator[str]:
    """A database with a ledger in it, for all tests of this process that empty it themselves."""
    from amends.stores.mysql.store import MysqlStore

    server = server_url(pytestconfig, "mysql")
    url = create_database(server)
    with closing(MysqlStore(url)) as made:
        made.open(create=True)
    yield url
    drop_database(server, url)

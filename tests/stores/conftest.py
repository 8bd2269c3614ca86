"""Ledgers that several tests of the stores share."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from amends.stores.sqlite.store import SqliteStore
from amends.testing.conformance.ledger import Ledger, audit
from tests.servers.databases import create_database, drop_database
from tests.servers.fixtures import server_url
from tests.stores.many import Gate


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

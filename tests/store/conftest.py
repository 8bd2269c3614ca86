"""Every check of the conformance suite runs on every store and in both colours."""

from collections.abc import Iterator
from pathlib import Path

import pytest

# Before anything imports them: a failed check shows the values.
pytest.register_assert_rewrite("amends.testing.conformance")

from amends.store.sqlite import SqliteStore  # noqa: E402
from amends.testing.conformance.ledger import Ledger, audit  # noqa: E402
from tests.servers import databases  # noqa: E402
from tests.servers.fixtures import server_url  # noqa: E402
from tests.store.harness import Harness, in_file, in_memory, on_server  # noqa: E402
from tests.store.many import Gate  # noqa: E402


@pytest.fixture
def memory_harness() -> Harness:
    return in_memory()


@pytest.fixture
def sqlite_harness(tmp_path: Path) -> Harness:
    return in_file(tmp_path / "ledger.db")


@pytest.fixture(scope="session")
def mysql_kept(pytestconfig: pytest.Config) -> Iterator[str]:
    """A database with a ledger in it, for all tests of this process that empty it themselves."""
    from amends.store.mysql import MysqlStore

    server = server_url(pytestconfig, "mysql")
    url = databases.create_database(server)
    made = MysqlStore(url)
    made.open(create=True)
    made.close()
    yield url
    databases.drop_database(server, url)


@pytest.fixture
def mysql_harness(mysql_kept: str) -> Harness:
    from amends.store.mysql import MysqlStore

    def empty() -> None:
        # Not TRUNCATE, which makes files anew: most checks write less than ten rows.
        databases.execute(mysql_kept, [f"delete from {table}" for table in ("events", "calls", "runs")])

    return on_server(mysql_kept, MysqlStore, empty)


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

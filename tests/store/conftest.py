"""Every check of the conformance suite runs on every store and in both colours."""

from collections.abc import Iterator
from pathlib import Path

import pytest

# Before anything imports them: a failed check shows the values.
pytest.register_assert_rewrite("amends.testing.conformance")

from amends.store.sqlite import SqliteStore  # noqa: E402
from amends.testing.conformance.ledger import Ledger, audit  # noqa: E402
from tests.servers.databases import create_database, drop_database, execute  # noqa: E402
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
def postgresql_database(pytestconfig: pytest.Config) -> Iterator[str]:
    """A database with an empty ledger, for all checks of this process."""
    from amends.store.postgres import PostgresStore

    server = server_url(pytestconfig, "postgres")
    url = create_database(server)
    store = PostgresStore(url)
    store.open(create=True)
    store.close()
    yield url
    drop_database(server, url)


@pytest.fixture
def postgresql_harness(postgresql_database: str) -> Harness:
    from amends.store.postgres import PostgresStore

    def empty() -> None:
        execute(postgresql_database, ["truncate runs, calls, events restart identity"])

    return on_server(postgresql_database, PostgresStore, empty)


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

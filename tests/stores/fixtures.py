"""Pytest fixtures with one ``Harness`` for each kind of store, for the checks that run on all of them."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.servers.databases import create_database, drop_database
from tests.servers.fixtures import server_url
from tests.servers.shared import Kind
from tests.stores.emptied import Emptied
from tests.stores.harness import Harness, in_file, in_memory, on_server


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
            harness = on_server(store, database)
            yield harness
            harness.close()
    finally:
        drop_database(server, url)

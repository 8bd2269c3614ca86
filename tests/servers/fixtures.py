"""Fixtures: a fresh database in the session's server, or a server of one's own that may be killed."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any, Never

import pytest

from tests.servers.databases import create_database, database_of, drop_database
from tests.servers.found import Unavailable
from tests.servers.mariadb import MariadbServer
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import PostgresServer
from tests.servers.restate import RestateServer
from tests.servers.shared import Kind, Owner, ask
from tests.servers.temporal import TemporalServer

OWNER = pytest.StashKey[Owner]()
WORKER_INPUT = "amends_servers"
MISSING = "missing server: "
"""How the reason of such a skip begins."""


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.stash[OWNER] = Owner()


def pytest_unconfigure(config: pytest.Config) -> None:
    if OWNER in config.stash:
        config.stash[OWNER].close()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput[WORKER_INPUT] = node.config.stash[OWNER].listen()


@pytest.fixture
def postgres_url(pytestconfig: pytest.Config) -> Iterator[str]:
    """A fresh PostgreSQL database, dropped after."""
    yield from _database(pytestconfig, "postgres")


@pytest.fixture
def mysql_url(pytestconfig: pytest.Config) -> Iterator[str]:
    """A fresh MariaDB (or, by AMENDS_TEST_MYSQL_URL, MySQL) database, dropped after."""
    yield from _database(pytestconfig, "mysql")


@pytest.fixture
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server of this test's own, on a port that it keeps: to be killed and restarted."""
    try:
        server = PostgresServer(tcp=True).start()
    except Unavailable as refusal:
        unavailable(refusal)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def mariadb_server() -> Iterator[MariadbServer]:
    """A MariaDB server of this test's own, on a port that it keeps: to be killed and restarted."""
    try:
        server = MariadbServer(tcp=True).start()
    except Unavailable as refusal:
        unavailable(refusal)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def temporal_server() -> Iterator[TemporalServer]:
    """A Temporal development server of this test's own: to be killed and restarted."""
    try:
        server = TemporalServer().start()
    except Unavailable as refusal:
        unavailable(refusal)
    with contextlib.closing(server):
        yield server


@pytest.fixture
def restate_server() -> Iterator[RestateServer]:
    """A Restate server of one node, this test's own: to be killed and restarted."""
    yield from _restate(nodes=1)


@pytest.fixture
def restate_cluster() -> Iterator[RestateServer]:
    """A Restate server of three nodes, every piece of data on two: one may be killed."""
    yield from _restate(nodes=3)


@pytest.fixture
def pooled_postgres_url(pytestconfig: pytest.Config) -> Iterator[str]:
    """A fresh PostgreSQL database behind a PgBouncer in transaction mode that has one session for all its clients."""
    server = server_url(pytestconfig, "postgres")
    try:
        pooler = PgBouncer(server).start()
    except Unavailable as refusal:
        unavailable(refusal)
    try:
        for url in _database(pytestconfig, "postgres"):
            yield pooler.url(database_of(url))
    finally:
        pooler.close()


def server_url(config: pytest.Config, kind: Kind) -> str:
    """Return the URL of the session's server. Skip the test if there is none; in CI, fail it."""
    workerinput: dict[str, Any] | None = getattr(config, "workerinput", None)
    try:
        return config.stash[OWNER].url(kind) if workerinput is None else ask(workerinput[WORKER_INPUT], kind)
    except Unavailable as refusal:
        unavailable(refusal)


def unavailable(refusal: Unavailable | str) -> Never:
    """Skip the test; fail it if CI is set, where nobody reads skips."""
    if os.environ.get("CI"):
        pytest.fail(f"{refusal} (CI is set: a missing server is a failure)", pytrace=False)
    pytest.skip(f"{MISSING}{refusal}")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say at the end of the suite what was not tested because a server is missing."""
    skipped = [report.longrepr for report in terminalreporter.stats.get("skipped", [])]
    reasons = [str(one[2]).removeprefix("Skipped: ") for one in skipped if isinstance(one, tuple)]
    missing = Counter(one.removeprefix(MISSING) for one in reasons if one.startswith(MISSING))
    if not missing:
        return
    terminalreporter.section("NOT TESTED: servers are missing")
    for reason, count in missing.most_common():
        terminalreporter.line(f"{count} {'test' if count == 1 else 'tests'}: {reason}")
    terminalreporter.line("`make servers` installs them; where CI is set this is a failure")


def _restate(*, nodes: int) -> Iterator[RestateServer]:
    try:
        server = RestateServer(nodes=nodes).start()
    except Unavailable as refusal:
        unavailable(refusal)
    with contextlib.closing(server):
        yield server


def _database(config: pytest.Config, kind: Kind) -> Iterator[str]:
    server = server_url(config, kind)
    url = create_database(server)
    try:
        yield url
    finally:
        drop_database(server, url)

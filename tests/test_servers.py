"""The servers that other tests stand on: they start, answer, keep what was committed, and leave nothing."""

from __future__ import annotations

from tests.servers import MariadbServer, PostgresServer
from tests.servers.databases import execute


def test_a_test_gets_a_postgresql_database(postgres_url: str) -> None:
    assert execute(postgres_url, ["CREATE TABLE a (b int)", "INSERT INTO a VALUES (7)", "SELECT b FROM a"]) == [(7,)]


def test_a_test_gets_a_mariadb_database(mysql_url: str) -> None:
    assert execute(mysql_url, ["CREATE TABLE a (b int)", "INSERT INTO a VALUES (7)", "SELECT b FROM a"]) == [(7,)]


def test_postgresql_keeps_what_was_committed_when_it_is_killed(postgres_server: PostgresServer) -> None:
    assert_survives_a_kill(postgres_server)


def test_mariadb_keeps_what_was_committed_when_it_is_killed(mariadb_server: MariadbServer) -> None:
    assert_survives_a_kill(mariadb_server)


def assert_survives_a_kill(server: PostgresServer | MariadbServer) -> None:
    url = server.create_database()
    execute(url, ["CREATE TABLE a (b int)", "INSERT INTO a VALUES (7)"])
    server.kill()
    assert not server.is_running
    server.start()
    assert execute(url, ["SELECT b FROM a"]) == [(7,)]
    server.restart()
    assert execute(url, ["SELECT b FROM a"]) == [(7,)]

"""Real servers (PostgreSQL, MariaDB, Temporal, Restate, …), thrown away after use: for tests, for chaos and for measuring.

In pytest, use the fixtures of `tests/servers/fixtures.py`. Elsewhere:

    with PostgresServer() as server:
        url = server.create_database()
"""

from tests.servers.databases import create_database, drop_database, with_database
from tests.servers.found import Unavailable
from tests.servers.mariadb import MariadbServer
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import PostgresServer
from tests.servers.restate import RestateServer
from tests.servers.temporal import TemporalServer

__all__ = [
    "MariadbServer",
    "PgBouncer",
    "PostgresServer",
    "RestateServer",
    "TemporalServer",
    "Unavailable",
    "create_database",
    "drop_database",
    "with_database",
]

"""One database for many checks, emptied between them: to create one takes longer than most checks."""

from typing import Any

from tests.servers.databases import CONNECT_S, is_postgres, mysql_arguments

KEPT = ("amends_schema", "amends_ledger", "amends_tool")
"""Not emptied: the migrations wrote these, or a store remembers their numbers."""
TIME = "insert into amends_mark (name, value, made_at) values ('time', '', 0); update amends_ledger set halt = 0"
"""What a migration wrote and emptying removes: without this row ledger time would not move on; and nothing is halted."""

TABLES_OF_POSTGRES = "select table_name from information_schema.tables where table_schema = current_schema()"
TABLES_OF_MYSQL = "select table_name from information_schema.tables where table_schema = database()"


class Emptied:
    """A database that can be emptied quickly, over a connection that is kept."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._is_postgres = is_postgres(url)
        if self._is_postgres:
            import psycopg

            self._connection: Any = psycopg.connect(url, autocommit=True, connect_timeout=CONNECT_S)
            self._execute("set session_replication_role = replica")  # rows go in any order
            self._execute(f"set lock_timeout = '{CONNECT_S}s'")
        else:
            import pymysql  # type: ignore[import-untyped]
            from pymysql.constants import CLIENT  # type: ignore[import-untyped]

            self._connection = pymysql.connect(
                **mysql_arguments(url), autocommit=True, client_flag=CLIENT.MULTI_STATEMENTS
            )
            self._execute("set foreign_key_checks = 0")
            self._execute(f"set innodb_lock_wait_timeout = {CONNECT_S}")
        self._tables: list[str] = []

    def empty(self) -> None:
        """Delete every row; before a store has opened the database there is nothing to delete."""
        if not self._tables:
            found = self._execute(TABLES_OF_POSTGRES if self._is_postgres else TABLES_OF_MYSQL)
            self._tables = [name for (name,) in found if name not in KEPT]
        if self._tables:
            self._execute("; ".join([*(f"delete from {table}" for table in self._tables), TIME]))  # one round trip

    def close(self) -> None:
        self._connection.close()

    def _execute(self, sql: str) -> list[tuple[str, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(sql)
            found = list(cursor.fetchall()) if cursor.description else []
            while cursor.nextset():
                pass
            return found

"""The floor: two durable commits per call, the intent and the outcome, and nothing else. No side can do with less.

SQLite and MariaDB have no cheaper async loop than the blocking one (their drivers block), so the floor of their async
rows is the blocking loop; PostgreSQL's is psycopg's own async connection.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from bench.sides.timing import (
    KNOWN,
    Figures,
    Work,
    args_of,
    asked,
    erased,
    fresh,
    many,
    many_async,
    serve,
    timed,
    timed_async,
)

RESULT: Final = json.dumps({"ok": True})
LOG_BYTES: Final = 4_100_000
"""A little more than the size at which SQLite copies the log into the database and begins it again."""
COMMITS_OF_A_SAGA: Final = 16
"""The beginning, four calls and three compensations at two commits each, the end."""
DDL: Final = (
    "create table calls (k varchar(80) primary key, args text not null, status varchar(16) not null, result text)"
)


class Sqlite:
    """One connection per caller, like a program without a pool."""

    mark = "?"

    def __init__(self, path: str, synchronous: str) -> None:
        self.path, self.synchronous = path, synchronous

    def connect(self) -> Any:
        con = sqlite3.connect(self.path, isolation_level=None, timeout=60, check_same_thread=False)
        con.execute("pragma journal_mode = wal")
        con.execute(f"pragma synchronous = {self.synchronous}")
        return con

    def fill_log(self, con: Any) -> None:
        """Give the log its full size, as amends does: a flush of a file that still grows takes longer."""
        con.execute(
            "pragma cache_size = 10"
        )  # what does not fit is written to the log, and the rollback leaves it there
        con.execute("begin immediate")
        con.execute("create table filling (filler blob)")
        con.execute("insert into filling values (zeroblob(?))", (LOG_BYTES,))
        con.execute("rollback")
        con.execute("pragma cache_size = -2000")


class Postgres:
    """psycopg, autocommit: every statement is a separate commit."""

    mark = "%s"

    def __init__(self, url: str) -> None:
        self.url = url

    def connect(self) -> Any:
        return importlib.import_module("psycopg").connect(self.url, autocommit=True)

    async def connect_async(self) -> Any:
        return await importlib.import_module("psycopg").AsyncConnection.connect(self.url, autocommit=True)


class Mariadb:
    """PyMySQL, autocommit."""

    mark = "%s"

    def __init__(self, url: str) -> None:
        self.url = url

    def connect(self) -> Any:
        return _Cursors(mariadb_connection(self.url))


class _Cursors:
    """PyMySQL's connection with the ``execute`` that the other two have."""

    def __init__(self, raw: Any) -> None:
        self._raw, self._cursor = raw, raw.cursor()

    def execute(self, sql: str, params: tuple[Any, ...] = ()) -> Any:
        self._cursor.execute(sql, params)
        return self._cursor

    def close(self) -> None:
        self._raw.close()


def mariadb_connection(url: str, **more: Any) -> Any:
    """Connect to ``mysql://user@host/db?unix_socket=…`` with autocommit."""
    parts = urlsplit(url)
    query = dict(pair.split("=", 1) for pair in parts.query.split("&") if pair)
    where: dict[str, Any] = {"host": parts.hostname or "localhost", "port": parts.port or 3306}
    if "unix_socket" in query:
        where = {"unix_socket": unquote(query["unix_socket"])}
    return importlib.import_module("pymysql").connect(
        user=unquote(parts.username or "root"), password=unquote(parts.password or ""),
        database=parts.path.lstrip("/") or None, autocommit=True, **where, **more,
    )  # fmt: skip


class Floor:
    """The works, over anything that can connect."""

    def __init__(self, database: Sqlite | Postgres | Mariadb) -> None:
        self.database = database
        self.con = database.connect()
        self.con.execute("drop table if exists calls")
        self.con.execute(DDL)
        if isinstance(database, Sqlite):
            database.fill_log(self.con)
        m = database.mark
        self.insert = f"insert into calls values ({m}, {m}, 'started', null)"
        self.update = f"update calls set status = 'succeeded', result = {m} where k = {m}"
        self.select = f"select result from calls where k = {m}"
        self.known: list[str] = []

    def works(self) -> dict[str, Work]:
        """Return the works by name."""
        on_loop = isinstance(self.database, Postgres)
        return {
            "fresh": self.fresh,
            "fresh_async": self.fresh_async if on_loop else self.fresh,
            "many": self.many,
            "many_async": self.many_async if on_loop else self.many,
            "replay": self.replay,
            "saga": self.saga,
        }

    def guarded(self, con: Any, key: str) -> None:
        """Make one call."""
        con.execute(self.insert, (key, json.dumps(args_of(key))))
        con.execute(self.update, (RESULT, key))

    def fresh(self, n: int, limit_s: float) -> Figures:
        """Make calls one after another."""
        return timed(lambda _: self.guarded(self.con, fresh()), n, limit_s)

    def many(self, n: int, limit_s: float) -> Figures:
        """Run 64 such loops."""

        @contextlib.contextmanager
        def caller() -> Iterator[Callable[[], object]]:
            con = self.database.connect()
            try:
                yield lambda: self.guarded(con, fresh())
            finally:
                con.close()

        return many(caller, n, limit_s)

    def replay(self, n: int, limit_s: float) -> Figures:
        """Read one row by the primary key, and parse its JSON."""
        while len(self.known) < KNOWN:
            self.known.append(fresh("r"))
            self.guarded(self.con, self.known[-1])
        con, sql, known = self.con, self.select, self.known
        return timed(lambda i: json.loads(con.execute(sql, (known[i % KNOWN],)).fetchone()[0]), n, limit_s)

    def saga(self, n: int, limit_s: float) -> Figures:
        """Make as many commits as a saga of four calls that is rolled back."""

        def one(_: int) -> None:
            for _ in range(COMMITS_OF_A_SAGA // 2):
                self.guarded(self.con, fresh("s"))

        return timed(one, n, limit_s)

    # ---- PostgreSQL on an event loop ------------------------------------------------------

    async def guarded_async(self, con: Any, key: str) -> None:
        """Make one call, awaited."""
        await con.execute(self.insert, (key, json.dumps(args_of(key))))
        await con.execute(self.update, (RESULT, key))

    async def fresh_async(self, n: int, limit_s: float) -> Figures:
        """Make calls one after another, awaited."""
        async with self._caller() as call:
            await call()
            return await timed_async(lambda _: call(), n, limit_s)

    async def many_async(self, n: int, limit_s: float) -> Figures:
        """Run 64 such loops on one event loop."""
        return await many_async(self._caller, n, limit_s)

    @contextlib.asynccontextmanager
    async def _caller(self) -> AsyncIterator[Callable[[], Awaitable[object]]]:
        assert isinstance(self.database, Postgres), "only psycopg has an async connection here"
        con = await self.database.connect_async()
        try:
            yield lambda: self.guarded_async(con, fresh())
        finally:
            await con.close()


def main() -> None:
    """Serve the floor of one store."""
    said = asked()
    database: Sqlite | Postgres | Mariadb
    if said.store == "postgres":
        database = Postgres(said.place)
    elif said.store == "mariadb":
        database = Mariadb(said.place)
    else:
        database = Sqlite(erased(said.place), said.store.removeprefix("sqlite-"))
    serve(Floor(database).works(), version=sqlite3.sqlite_version if "sqlite" in said.store else "")


if __name__ == "__main__":
    main()

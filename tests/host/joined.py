"""Databases that hold a ledger and a shop's own table, and connections of the shop's."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

from amends import Runtime, tool
from amends.stores.mysql.url import read_address


class Shop:
    """One database with a ledger and a table ``orders``; ``connection`` is the one whose transaction is ridden in."""

    def __init__(self, kind: str, url: str) -> None:
        self.kind, self.url = kind, url
        self.mark = "?" if kind == "sqlite" else "%s"
        self.connection: Any = None
        self.table = "orders"
        self.failing: BaseException | None = None
        self.taken_back: list[str] = []
        self._connections: list[Any] = []

    def connect(self) -> Any:
        """A connection of the caller's own; ``close`` ends it at the latest."""
        raw = self._connect()
        self._connections.append(raw)
        return raw

    def _connect(self) -> Any:
        if self.kind == "sqlite":
            return sqlite3.connect(self.url.removeprefix("sqlite:///"), check_same_thread=False)
        if self.kind == "postgres":
            import psycopg

            return psycopg.connect(self.url, autocommit=True)
        import pymysql

        raw = pymysql.connect(**read_address(self.url).arguments(), charset="utf8mb4", autocommit=True)
        raw.query("set session transaction isolation level read committed")
        return raw

    def make(self, runtime: Runtime) -> None:
        """The ledger first, then the shop's table beside it."""
        with runtime.run("first"):
            pass
        raw = self.connect()
        raw.cursor().execute("create table if not exists orders (id varchar(80))")
        raw.commit()
        raw.close()

    def begin(self) -> Any:
        """The caller's transaction, on a new connection: the one before is closed with it."""
        if self.connection is not None:
            with contextlib.suppress(Exception):
                self.connection.close()
        self.connection = self.connect()
        begin = {"sqlite": "begin immediate"}.get(self.kind, "begin")
        self.connection.cursor().execute(begin)
        return self.connection

    def close(self) -> None:
        """Give every connection back that the test has not."""
        for raw in (self.connection, *self._connections):  # the first may be one that a test made itself
            with contextlib.suppress(Exception):
                raw.close()
        self._connections.clear()

    def execute(self, sql: str, *params: Any) -> None:
        """On the caller's connection."""
        self.connection.cursor().execute(sql.replace("?", self.mark), params)

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        """As somebody else sees it."""
        raw = self.connect()
        try:
            cursor = raw.cursor()
            cursor.execute(sql)
            return [tuple(one.decode() if isinstance(one, bytes) else one for one in row) for row in cursor.fetchall()]
        finally:
            raw.close()

    def orders(self) -> list[str]:
        """What the shop has."""
        return sorted(row[0] for row in self.ask("select id from orders"))

    def calls(self) -> list[tuple[Any, ...]]:
        """What the ledger says."""
        return self.ask("select state, gen, attempt from amends_call order by no")

    def events(self) -> int:
        """Return how many events the ledger has: rows, and those that are folded into their call."""
        folded = " + ".join(f"count({name})" for name in ("hash", "settled_hash", "comp_hash", "undone_hash"))
        [(rows,)], [(more,)] = (
            self.ask("select count(*) from amends_event"),
            self.ask(f"select {folded} from amends_call"),
        )
        return int(rows) + int(more)

    def tools(self) -> dict[str, Any]:
        """The shop's tools; the first may ride."""

        @tool(name="place_order")
        def place_order(id: str) -> str:
            self.execute(f"insert into {self.table} values (?)", id)
            if self.failing is not None:
                raise self.failing
            return f"order {id}"

        @place_order.compensate
        def cancel(id: str) -> None:
            raw = self.connect()
            raw.cursor().execute(f"delete from orders where id = {self.mark}", (id,))
            raw.commit()
            raw.close()
            self.taken_back.append(id)

        @tool(name="count_orders", kind="read")
        def count_orders() -> int:
            cursor = self.connection.cursor()
            cursor.execute("select count(*) from orders")
            return int(cursor.fetchone()[0])

        @tool(name="ship", kind="pivot")
        def ship(id: str) -> str:
            return id

        @tool(name="mail", kind="retriable", idempotent=True)
        def mail(id: str) -> str:
            return id

        @tool(name="slow", timeout=5.0)
        def slow(id: str) -> str:
            return id

        @slow.compensate
        def unslow(id: str) -> None:
            pass

        return {"place": place_order, "count": count_orders, "ship": ship, "mail": mail, "slow": slow}


def sqlite_url(folder: Path) -> str:
    """A file for a ledger."""
    return f"sqlite:///{folder / 'ledger.db'}"

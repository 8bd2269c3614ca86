"""Somebody who can write the database, who knows how amends hashes, and who has no key."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from amends.encoding.chain import GENESIS, body_of, link
from amends.ledger.rows import (
    APPROVAL_COLUMNS,
    CALL_COLUMNS,
    CHECKPOINT_COLUMNS,
    DELEGATION_COLUMNS,
    EVENT_COLUMNS,
    RUN_COLUMNS,
)
from tests.servers.databases import connect

COLUMNS = {
    "runs": RUN_COLUMNS,
    "calls": CALL_COLUMNS,
    "events": ("place", *EVENT_COLUMNS),
    "approvals": APPROVAL_COLUMNS,
    "checkpoints": CHECKPOINT_COLUMNS,
    "delegations": DELEGATION_COLUMNS,
}
ORDER = {
    "runs": "place",
    "calls": "place",
    "events": "place",
    "approvals": "place",
    "checkpoints": "n",
    "delegations": "id",
}
KEYS = {"runs": "uid", "calls": "id", "events": "place", "approvals": "id", "checkpoints": "n", "delegations": "id"}

Row = dict[str, Any]
Copy = Mapping[str, list[Row]]


OPEN: list[Forger] = []
"""Those that a test has made: its end closes them."""


class Forger:
    """Rows read and written behind the ledger's back."""

    def __init__(self, url: str) -> None:
        OPEN.append(self)
        self.kind = url.partition(":")[0]
        if self.kind == "sqlite":
            path = url.removeprefix("sqlite:///").partition("?")[0]
            self._connection: Any = sqlite3.connect(path, isolation_level=None)
            self.execute("pragma synchronous = off")
        else:
            self._connection = connect(url)

    def close(self) -> None:
        OPEN[:] = [one for one in OPEN if one is not self]
        self._connection.close()

    # ---- rows ---------------------------------------------------------------------------------

    def rows(self, table: str) -> list[Row]:
        """All rows of a table, in their order."""
        columns = COLUMNS[table]
        names = ", ".join(map(self._name, columns))
        order = "rowid" if (self.kind, table) == ("sqlite", "runs") else ORDER[table]
        found = self.execute(f"select {names} from {table} order by {order}")
        return [dict(zip(columns, map(_text, row), strict=True)) for row in found]

    def change(self, table: str, row: Row, **changes: Any) -> None:
        """Some columns of one row."""
        sets = ", ".join(f"{self._name(name)} = ?" for name in changes)
        self.execute(f"update {table} set {sets} where {KEYS[table]} = ?", (*changes.values(), row[KEYS[table]]))

    def delete(self, table: str, rows: Iterable[Row]) -> None:
        for row in rows:
            self.execute(f"delete from {table} where {KEYS[table]} = ?", (row[KEYS[table]],))

    def insert(self, table: str, *rows: Row) -> None:
        columns = COLUMNS[table]
        names, marks = ", ".join(map(self._name, columns)), ", ".join("?" * len(columns))
        over = " overriding system value" if self.kind == "postgresql" and table == "events" else ""
        sql = f"insert into {table} ({names}){over} values ({marks})"
        values = [tuple(row[name] for name in columns) for row in rows]
        if values:
            self._connection.cursor().executemany(sql if self.kind == "sqlite" else sql.replace("?", "%s"), values)

    def execute(self, sql: str, params: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        cursor = self._connection.cursor()
        cursor.execute(sql if self.kind == "sqlite" else sql.replace("?", "%s"), params)
        return list(cursor.fetchall()) if cursor.description else []

    def _name(self, column: str) -> str:
        return f"`{column}`" if self.kind == "mysql" else f'"{column}"'

    # ---- all of it ----------------------------------------------------------------------------

    def copy(self) -> Copy:
        """Everything that is audited, as it is now."""
        return {table: self.rows(table) for table in COLUMNS}

    def put_back(self, copy: Copy, *tables: str) -> None:
        """These tables (or all) are as they were then."""
        with self._at_once():
            for table in tables or COLUMNS:
                self.execute(f"delete from {table}")
                self.insert(table, *copy[table])

    @contextmanager
    def _at_once(self) -> Iterator[None]:
        self.execute("begin")
        yield
        self.execute("commit")

    # ---- with right hashes ----------------------------------------------------------------------

    def hash_anew(self, root: str, start: int) -> None:
        """The chain of a tree is right again from this event on, whatever was done to it."""
        events = sorted((row for row in self.rows("events") if row["root"] == root), key=lambda row: int(row["n"]))
        prev = GENESIS
        with self._at_once():
            for row in events:
                if row["n"] >= start:
                    hash = link(prev, row["n"], row["at"], body_of(*(row[name] for name in EVENT_COLUMNS[1:-2])))
                    self.change("events", row, hash=hash)
                    prev = hash
                else:
                    prev = row["hash"]


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value

"""Somebody who can write the database, who knows how amends stores and hashes, and who has no key.

The tables here are those that the ledger's flows see: ``runs``, ``calls``, ``events``, ``approvals``, ``checkpoints`` and
``delegations``. An event that is folded into its call is made a row before it, or its call, is changed, deleted or
written anew: both are the same record to every reader. ``test_folded`` changes the columns as they are stored.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from amends.encoding.chain import GENESIS, body_of, link
from amends.encoding.ids import new_number, number_of
from amends.ledger.rows import APPROVALS, CALL_COLUMNS, CHECKPOINTS, DELEGATIONS, EVENT_COLUMNS, RUN_COLUMNS, CallRow
from amends.stores import calls as stored
from amends.stores.sql import EVENT_COLUMNS as EVENTS_STORED
from amends.stores.sql import FROM_CALLS, among, folded_events
from amends.stores.sql import OPEN as OPEN_STATES
from tests.servers.databases import connect

COLUMNS = {
    "runs": RUN_COLUMNS,
    "calls": CALL_COLUMNS,
    "events": ("place", *EVENT_COLUMNS),
    "approvals": APPROVALS.columns,
    "checkpoints": CHECKPOINTS.columns,
    "delegations": DELEGATIONS.columns,
}
TABLES = {
    "runs": ("amends_run",),
    "calls": ("amends_call", "amends_tool", "amends_ledger_key", "amends_call_name"),
    "events": ("amends_event",),
    "approvals": ("amends_approval",),
    "checkpoints": ("amends_checkpoint",),
    "delegations": ("amends_delegation",),
}
ORDER = {"runs": "no", "approvals": "no", "checkpoints": "n", "delegations": "id"}
KEYS = {"runs": "uid", "calls": "id", "events": "place", "approvals": "id", "checkpoints": "n", "delegations": "id"}
GENERATED = {"mysql": ("unsealed", "attention", "ended_at")}
"""Of the tables that are copied. The marks of PostgreSQL and SQLite are written by the statements."""
UNSEALED = ("amends_run", "unsealed", "case when parent = '' and (closed_at is null or n <> sealed) then 1 end")
MARKS = {
    "postgresql": (("amends_call", "attention", f"case when {among(OPEN_STATES)} then 1 end"), UNSEALED),
    "sqlite": (UNSEALED,),
}
BYTES = {"c.key", "c.ident", "c.digest", "c.hash", "c.settled_hash", "c.comp_hash", "c.undone_hash"}
NO_RUN = -1
"""The number of the run of a call whose root does not exist."""

Row = dict[str, Any]


class Copy(dict[str, list[Row]]):
    """Everything that is audited, as rows of the flows and, in ``stored``, as it is in the tables."""

    def __init__(self, rows: Mapping[str, list[Row]], stored: Mapping[str, tuple[list[str], list[tuple[Any, ...]]]]):
        super().__init__(rows)
        self.stored = stored


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
        if table == "events":
            return self._events()
        if table == "calls":
            calls = [stored.join(values)[0] for values in self._read(f"{self._calls} order by c.no")]
            return [{name: getattr(one, name) for name in CALL_COLUMNS} for one in calls]
        columns = COLUMNS[table]
        names = ", ".join(map(self._name, columns))
        [physical] = TABLES[table]
        found = self.execute(f"select {names} from {physical} order by {ORDER[table]}")
        return [dict(zip(columns, map(_text, row), strict=True)) for row in found]

    def _events(self) -> list[Row]:
        """The events of all trees in the order of time, the rows and the folded ones."""
        names = ", ".join(map(self._name, EVENTS_STORED))
        found = [
            {name: value if name == "hash" else _text(value) for name, value in zip(EVENTS_STORED, row, strict=True)}
            for row in self.execute(f"select {names} from amends_event")
        ]
        made: list[Row] = [{**row, "hash": bytes(row["hash"]).hex()} for row in found]
        folded = folded_events(self._read(f"{self._folded} order by c.no"))
        made += [{name: getattr(one, name) for name in EVENT_COLUMNS} for one in folded]
        made.sort(key=lambda row: (row["at"], row["root"], row["n"]))
        order = ("place", *EVENT_COLUMNS)
        return [{name: {**row, "place": place}[name] for name in order} for place, row in enumerate(made, 1)]

    def _read(self, sql: str, params: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Return values of ``stored.READ`` and what follows them, with text as text: MariaDB stores some names as bytes."""
        names = [*stored.READ, "r.owners"]
        return [
            tuple(value if name in BYTES else _text(value) for name, value in zip(names, row, strict=False))
            for row in self.execute(sql, params)
        ]

    @property
    def _calls(self) -> str:
        return f"select {', '.join(f'{one[:2]}{self._name(one[2:])}' for one in stored.READ)}{FROM_CALLS}"

    @property
    def _folded(self) -> str:
        return self._calls.replace(FROM_CALLS, f", r.owners{FROM_CALLS}")

    def change(self, table: str, row: Row, **changes: Any) -> None:
        """Some columns of one row."""
        changes.pop("place", None)
        if table == "events":
            self.unfold(row["root"])
            if "hash" in changes:
                changes["hash"] = _raw(changes["hash"])
            self._set("amends_event", changes, {"root": row["root"], "n": row["n"]})
        elif table == "calls":
            self._change_call(row, changes)
        else:
            self._set(TABLES[table][0], changes, {KEYS[table]: row[KEYS[table]]})
        self.mark()

    def _set(self, table: str, changes: Mapping[str, Any], where: Mapping[str, Any]) -> None:
        sets = ", ".join(f"{self._name(name)} = ?" for name in changes)
        terms = " and ".join(f"{self._name(name)} = ?" for name in where)
        self.execute(f"update {table} set {sets} where {terms}", (*changes.values(), *where.values()))

    def _change_call(self, row: Row, changes: Row) -> None:
        self.unfold(row["root"])
        number = self._number(row["id"])
        [values] = self.execute(f"{self._calls} where c.no = ?", (number,))
        new = {**{name: getattr(stored.join(values)[0], name) for name in CALL_COLUMNS}, **changes}
        self._set("amends_call", self._stored_call(new, number), {"no": number})

    def _number(self, id: str) -> int:
        number = number_of(id)
        if number is not None:
            return number
        [found] = self.execute(f"select {self._name('call')} from amends_call_name where id = ?", (id,))
        return int(found[0])

    def _stored_call(self, row: Row, number: int) -> Row:
        """A call that is not folded, as it is stored."""
        made = CallRow(**row)
        found = self.execute("select no, uid, id, tenant, agent, principal from amends_run where uid = ?", (made.root,))
        root = stored.RootFacts(*(found[0] if found else (NO_RUN, made.root, "", "", "", "")))
        values = {**stored.hot(made), "no": number}
        values |= {"root": root.no, "tool": self._tool(made), "more": stored.more(made, values, root)}
        if number_of(made.id) != number and values["more"] is None:
            values["more"] = f'{{"id":"{made.id}"}}'
        return values

    def _tool(self, row: CallRow) -> int:
        columns = ("name", *stored.TOOL[1:])
        facts = tuple(getattr(row, name) for name in stored.TOOL)
        terms = " and ".join(f"{name} = ?" for name in columns)
        for _ in range(2):
            found = self.execute(f"select no from amends_tool where {terms}", facts)
            if found:
                return int(found[0][0])
            self.execute(
                f"insert into amends_tool ({', '.join(columns)}) values ({', '.join('?' * len(columns))})", facts
            )
        raise AssertionError("the tool was just added")

    def delete(self, table: str, rows: Iterable[Row]) -> None:
        for row in rows:
            if table == "events":
                self.unfold(row["root"])
                self.execute("delete from amends_event where root = ? and n = ?", (row["root"], row["n"]))
            elif table == "calls":
                self.unfold(row["root"])
                number = self._number(row["id"])
                self.execute(f"delete from amends_ledger_key where {self._name('call')} = ?", (number,))
                self.execute(f"delete from amends_call_name where {self._name('call')} = ?", (number,))
                self.execute("delete from amends_call where no = ?", (number,))
            else:
                if table == "runs":  # its calls are told apart by it: their events stay what they are
                    self.unfold(row["root"])
                self.execute(f"delete from {TABLES[table][0]} where {KEYS[table]} = ?", (row[KEYS[table]],))

    def insert(self, table: str, *rows: Row) -> None:
        for row in rows:
            if table == "calls":
                self._insert_call(row)
            elif table == "events":
                self._insert("amends_event", {**{name: row[name] for name in EVENTS_STORED}, "hash": _raw(row["hash"])})
            else:
                self._insert(TABLES[table][0], {name: row[name] for name in COLUMNS[table]})

    def _insert_call(self, row: Row) -> None:
        number = number_of(row["id"])
        if number is None:
            number = new_number()
            self._insert("amends_call_name", {"id": row["id"], "call": number})
        values = self._stored_call(row, number)
        self._insert("amends_call", values)
        if row["scope"] == "ledger":
            self._insert("amends_ledger_key", {"key": values["key"], "gen": values["gen"], "call": number})

    def _insert(self, table: str, row: Row) -> None:
        names, marks = ", ".join(map(self._name, row)), ", ".join("?" * len(row))
        self.execute(f"insert into {table} ({names}) values ({marks})", tuple(row.values()))
        if table in ("amends_run", "amends_call"):
            self.mark()

    def execute(self, sql: str, params: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        cursor = self._connection.cursor()
        cursor.execute(sql if self.kind == "sqlite" else sql.replace("?", "%s"), params)
        return list(cursor.fetchall()) if cursor.description else []

    def _name(self, column: str) -> str:
        return f"`{column}`" if self.kind == "mysql" else f'"{column}"'

    # ---- folded events ------------------------------------------------------------------------

    def unfold(self, root: str) -> None:
        """Every event of this tree is a row."""
        events = folded_events(self._read(f"{self._folded} where r.uid = ?", (root,)))
        if not events:
            return
        with self._at_once():
            for one in events:
                row = {name: getattr(one, name) for name in EVENT_COLUMNS}
                self._insert("amends_event", {**{name: row[name] for name in EVENTS_STORED}, "hash": _raw(one.hash)})
            self.execute(
                "update amends_call set hash = null, settled_hash = null, comp_n = null, comp_epoch = null,"
                " comp_hash = null, undone_n = null, undone_hash = null"
                " where root = (select no from amends_run where uid = ?)",
                (root,),
            )
            self._write_tail(root)

    def _write_tail(self, root: str) -> None:
        """The row of the run names the last event, as after every write of an event row."""
        found = self.execute("select n, at, hash from amends_event where root = ? order by n desc limit 1", (root,))
        if found:
            n, at, hash = found[0]
            self.execute("update amends_run set n = ?, at = ?, head = ? where uid = ?", (n, at, hash, root))
            self.mark()

    def mark(self) -> None:
        """Where statements write the marks, they fit again: whoever knows the ledger would not forget them."""
        for table, column, value in MARKS.get(self.kind, ()):
            self.execute(f"update {table} set {column} = {value} where coalesce({column}, 0) <> coalesce({value}, 0)")

    # ---- all of it ----------------------------------------------------------------------------

    def copy(self) -> Copy:
        """Everything that is audited, as it is now."""
        raw = {one: self.stored(one) for tables in TABLES.values() for one in tables}
        return Copy({table: self.rows(table) for table in COLUMNS}, raw)

    def stored(self, table: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """The columns and the rows of a table of the database."""
        cursor = self._connection.cursor()
        cursor.execute(f"select * from {table}")
        return [one[0] for one in cursor.description], list(cursor.fetchall())

    def put_back(self, copy: Copy, *tables: str) -> None:
        """These tables (or all) are as they were then."""
        with self._at_once():
            for table in tables or COLUMNS:
                for one in TABLES[table]:
                    columns, rows = _written(*copy.stored[one], GENERATED.get(self.kind, ()))
                    self.execute(f"delete from {one}")
                    names, marks = ", ".join(map(self._name, columns)), ", ".join("?" * len(columns))
                    over = " overriding system value" if self.kind == "postgresql" else ""
                    sql = f"insert into {one} ({names}){over} values ({marks})"
                    if rows:
                        sql = sql if self.kind == "sqlite" else sql.replace("?", "%s")
                        self._connection.cursor().executemany(sql, rows)

    @contextmanager
    def _at_once(self) -> Iterator[None]:
        self.execute("begin")
        yield
        self.execute("commit")

    # ---- with right hashes ----------------------------------------------------------------------

    def hash_anew(self, root: str, start: int) -> None:
        """The chain of a tree is right again from this event on, whatever was done to it."""
        self.unfold(root)
        events = sorted((row for row in self.rows("events") if row["root"] == root), key=lambda row: int(row["n"]))
        prev = GENESIS
        with self._at_once():
            for row in events:
                if row["n"] >= start:
                    prev = link(prev, row["n"], row["at"], body_of(*(row[name] for name in EVENT_COLUMNS[1:-2])))
                    self._set("amends_event", {"hash": _raw(prev)}, {"root": root, "n": row["n"]})
                else:
                    prev = row["hash"]
            self._write_tail(root)


def _written(
    columns: list[str], rows: list[tuple[Any, ...]], generated: tuple[str, ...]
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Without the columns that the database makes itself."""
    kept = [place for place, name in enumerate(columns) if name not in generated]
    return [columns[place] for place in kept], [tuple(row[place] for place in kept) for row in rows]


def _raw(hash: str) -> bytes:
    """A hash as it is stored; what is none as some other bytes."""
    try:
        raw = bytes.fromhex(hash)
    except ValueError:
        raw = b""
    return raw if raw.hex() == hash else hash.encode()


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value

"""Make a ledger with a million calls in a minute: one real run, written by amends, copied by the database.

The copies are rows with the ledger's own columns. The values that distinguish runs and calls (ids, keys, places, times)
are renewed for each copy; everything else is as amends wrote it.
"""

from __future__ import annotations

import contextlib
import importlib
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from amends import Runtime
from amends.ledger.rows import CALL_COLUMNS, EVENT_COLUMNS, RUN_COLUMNS
from bench.sides.floor import mariadb_connection
from bench.sides.ours import pay, url_of
from bench.sides.timing import args_of

CALLS_PER_RUN: Final = 4
# The columns of a row, and the one that counts runs. A database may have generated columns.
TABLES: Final = {
    "runs": ("place", *RUN_COLUMNS),
    "calls": ("place", *CALL_COLUMNS),
    "events": ("place", *EVENT_COLUMNS),
}
HOLE: Final = "@"
"""In the pattern: where the number of the copy goes."""
DIGITS: Final = 10
APART_S: Final = 0.5
"""Seconds between two runs, so that the record reaches back some days."""
NAME: Final = "bench-pattern"

Cells = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Dialect:
    """What the copying statement needs to know about a database."""

    mark: str
    digits: str
    """The number of the copy, in hexadecimal, with leading zeros."""
    digest: str
    """A substitute for a call's key: evenly distributed, one for each copy."""
    quote: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    indexes: str = ""
    """Names and statements of the indexes that can be rebuilt after copying, which is much quicker."""


DIALECTS: Final = {
    "sqlite": Dialect(
        "?", f"printf('%0{DIGITS}x', n.i)", "lower(hex(randomblob(32)))", '"',
        # Nobody else has the file open, and it is deleted if this fails.
        before=("pragma journal_mode = off", "pragma synchronous = off", "pragma cache_size = -400000"),
        after=("pragma journal_mode = wal",),
        indexes="select name, sql from sqlite_master where type = 'index' and sql is not null",
    ),
    "postgres": Dialect(
        "%s", f"lpad(to_hex(n.i), {DIGITS}, '0')",
        "encode(sha256(convert_to(n.i || '-' || t.place, 'UTF8')), 'hex')", '"',
        before=("set synchronous_commit = off", "set work_mem = '256MB'", "set maintenance_work_mem = '512MB'"),
        after=("analyze", "checkpoint"),
        indexes="select indexname, indexdef from pg_indexes where tablename in ('runs', 'calls', 'events') "
        "and schemaname = current_schema() and indexname not in (select conname from pg_constraint)",
    ),
    "mariadb": Dialect(
        "%s", f"lower(lpad(hex(n.i), {DIGITS}, '0'))", "sha2(concat(n.i, '-', t.place), 256)", "`",
        before=("set max_recursive_iterations = 4294967295", "set unique_checks = 0", "set foreign_key_checks = 0"),
        after=("analyze table runs, calls, events",),
    ),
}  # fmt: skip


def fill(store: str, place: str, calls: int) -> None:
    """Fill the new ledger at this place with this many calls."""
    write_pattern(url_of(store, place))
    family = store.partition("-")[0]
    dialect = DIALECTS[family]
    with _connection(family, place) as con:
        for statement in dialect.before:
            _execute(con, statement)
        pattern = {table: _rows(con, table) for table in TABLES}
        stride = max(row["place"] for row in pattern["events"])
        holes(pattern)
        _execute(con, "begin")
        indexes = _execute(con, dialect.indexes).fetchall() if dialect.indexes else []
        for name, _ in indexes:
            _execute(con, f"drop index {name}")
        for table in TABLES:
            _copy(con, dialect, table, pattern[table], calls // CALLS_PER_RUN, stride)
        for _, definition in indexes:
            _execute(con, definition)
        _execute(con, "commit")
        if family == "postgres":
            _advance(con)
        for statement in dialect.after:
            _execute(con, statement)


def write_pattern(url: str) -> None:
    """Write one committed run of four calls into the ledger."""
    with Runtime(url, tools=[pay]) as rt, rt.run(NAME):
        for i in range(CALLS_PER_RUN):
            pay(**args_of(f"o-{i}"))


def holes(pattern: dict[str, list[Cells]]) -> None:
    """Replace the ids by placeholders, so that the database can fill them."""
    known = {NAME: f"bench-{HOLE}"}
    for kind, rows in (("uid", pattern["runs"]), ("id", pattern["calls"])):
        for place, row in enumerate(rows):
            known[row[kind]] = _with_hole(row[kind], place)
    for rows in pattern.values():
        for row in rows:
            row.update({name: known[cell] for name, cell in row.items() if isinstance(cell, str) and cell in known})


def _with_hole(name: str, place: int) -> str:
    """Make an id of the same length that sorts before the old one: ids grow with time."""
    prefix, _, rest = name.partition("_")
    return f"{prefix}_{'0' * (len(rest) - DIGITS - 2)}{HOLE}{place:02x}"


def _copy(con: Any, dialect: Dialect, table: str, pattern: list[Cells], runs: int, stride: int) -> None:
    q = dialect.quote
    columns = [f"{q}{name}{q}" for name in pattern[0]]
    _execute(con, f"create temporary table pattern_{table} as select * from {table} where 1 = 0")
    marks = ", ".join([dialect.mark] * len(columns))
    for row in pattern:
        _execute(con, f"insert into pattern_{table} ({', '.join(columns)}) values ({marks})", list(row.values()))
    made = [
        _expression(dialect, column, name, [row[name] for row in pattern], runs, stride)
        for column, name in zip(columns, pattern[0], strict=True)
    ]
    _execute(
        con,
        f"insert into {table} ({', '.join(columns)}) "
        f"with recursive n(i) as (select 1 union all select i + 1 from n where i < {runs}) "
        f"select {', '.join(made)} from n cross join pattern_{table} t",
    )


def _expression(dialect: Dialect, column: str, name: str, cells: Sequence[Any], runs: int, stride: int) -> str:
    if name == "place":
        return f"t.{column} + n.i * {stride}"
    if name == "key":
        return dialect.digest
    if (name == "at" or name.endswith("_at")) and any(isinstance(cell, float) for cell in cells):
        return f"t.{column} - ({runs} - n.i) * {APART_S}"
    if any(isinstance(cell, str) and HOLE in cell and not cell.startswith("{") for cell in cells):
        return f"replace(t.{column}, '{HOLE}', {dialect.digits})"
    return f"t.{column}"


def _advance(con: Any) -> None:
    """Advance PostgreSQL's sequences past the copies."""
    for table, column in (("runs", "place"), ("calls", "place"), ("events", "place")):
        owned = "select column_name from information_schema.columns where table_name = %s and column_name = %s"
        if con.execute(owned, (table, column)).fetchone():
            _execute(
                con,
                f"select setval(pg_get_serial_sequence('{table}', '{column}'), (select max({column}) from {table})) "
                f"where pg_get_serial_sequence('{table}', '{column}') is not null",
            )


def _rows(con: Any, table: str) -> list[Cells]:
    cursor = _execute(con, f"select * from {table}")
    names = [column[0] for column in cursor.description]
    found = [dict(zip(names, map(_text, cells), strict=True)) for cells in cursor.fetchall()]
    return [{name: row[name] for name in TABLES[table]} for row in found]


def _text(cell: Any) -> Any:
    """Decode the columns that MariaDB compares byte by byte and returns as bytes."""
    return cell.decode() if isinstance(cell, bytes) else cell


def _execute(con: Any, sql: str, params: Sequence[Any] = ()) -> Any:
    cursor = con.cursor()
    if params:
        cursor.execute(sql, params)
    else:
        cursor.execute(sql)
    return cursor


@contextlib.contextmanager
def _connection(family: str, place: str) -> Iterator[Any]:
    con: Any
    if family == "sqlite":
        con = sqlite3.connect(place, isolation_level=None)
    elif family == "postgres":
        con = importlib.import_module("psycopg").connect(place, autocommit=True)
    else:
        con = mariadb_connection(place)
    try:
        yield con
    finally:
        con.close()

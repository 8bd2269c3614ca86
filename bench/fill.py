"""Make a ledger with a million calls in a minute: one real run, written by amends, copied under other ids.

The copies are rows of the ledger's own tables, inserted without its code. Ids, keys and times are new in each copy, its
chain is computed again, and checkpoints cover it: the ledger is a true one, which an audit finds unchanged.
"""

from __future__ import annotations

import contextlib
import importlib
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from amends import Runtime
from amends.encoding.chain import GENESIS, HEADS_MAX, MICROS, body_of, micros, written_heads
from amends.encoding.dataclass import changed
from amends.encoding.ids import RANDOM_BITS, call_id
from amends.ledger.events import run_columns_digest
from amends.ledger.plain import AdmitPlain, PlainRun, PlainTool, SettlePlain, Started
from amends.ledger.rows import EVENT_COLUMNS, RUN_COLUMNS, CheckpointRow, RunRow
from amends.stores.calls import COLUMNS as CALL_COLUMNS
from amends.stores.quick import admission_body, success_body
from bench.sides.floor import mariadb_connection
from bench.sides.ours import pay, url_of
from bench.sides.timing import args_of

CALLS_PER_RUN: Final = 4
PATTERN_RUNS: Final = 2
"""The first run makes the tool known; the second one, whose calls are all plain, is copied."""
TABLES: Final = {
    "amends_run": ("no", *RUN_COLUMNS, "owners", "touch", "n", "head", "at", "sealed"),
    "amends_call": CALL_COLUMNS,
    "amends_event": EVENT_COLUMNS,
    "amends_checkpoint": ("n", "at", "ledger", "heads", "prev", "hash", "key", "signature"),
}
"""The columns that are written. A database may have generated ones."""
SAID: Final = EVENT_COLUMNS[1:-2]
"""What the body of an event is made of."""
APART_US: Final = 500_000
"""Microseconds between two runs, so that the record reaches back some days."""
NAME: Final = "bench-pattern"
BATCH: Final = 2_000
"""Runs that are computed and written together."""

Cells = dict[str, Any]
Head = tuple[str, int, str]


def fill(store: str, place: str, calls: int, *, calls_per_run: int = CALLS_PER_RUN) -> None:
    """Fill the new ledger at this place with this many calls."""
    write_pattern(url_of(store, place), calls_per_run)
    with _database(store.partition("-")[0], place) as database:
        pattern = _pattern(database)
        heads: list[Head] = []
        runs = calls // calls_per_run
        for first in range(1, runs + 1, BATCH):
            numbers = range(first, min(first + BATCH, runs + 1))
            copies = [_copy(pattern, number, earlier_us=(runs + 1 - number) * APART_US) for number in numbers]
            database.insert("amends_run", [copy.run for copy in copies])
            database.insert("amends_call", [call for copy in copies for call in copy.calls])
            database.insert("amends_event", [event for copy in copies for event in copy.events])
            heads += [(copy.run["uid"], copy.run["n"], copy.run["head"].hex()) for copy in copies]
        database.insert("amends_checkpoint", _checkpoints(pattern, heads))
        database.finish()


def write_pattern(url: str, calls: int = CALLS_PER_RUN) -> None:
    """Write two committed runs of so many calls into the ledger, and no checkpoint."""
    with Runtime(url, tools=[pay], checkpoint="off") as rt:
        for number in range(PATTERN_RUNS):
            with rt.run(f"{NAME}-{number}"):
                for i in range(calls):
                    pay(**args_of(f"o-{i}"))


# ---- The copies


@dataclass(frozen=True, slots=True)
class Pattern:
    """A run with its calls and events, as the tables have them."""

    run: Cells
    calls: list[Cells]
    events: list[Cells]
    tool: PlainTool
    ledger: str
    row: RunRow
    owner: str


@dataclass(frozen=True, slots=True)
class Copy:
    """The rows of one copy."""

    run: Cells
    calls: list[Cells]
    events: list[Cells]


def _pattern(database: Database) -> Pattern:
    """Read the run that is copied."""
    run = database.select("amends_run", "order by no desc")[0]
    calls = database.select("amends_call", f"where root = {run['no']} order by n")
    plain = all(call["hash"] and call["settled_hash"] and call["more"] is None for call in calls)
    assert plain, "the calls of the pattern are not plain: the filled ledger would not be what plain calls leave behind"
    events = database.select("amends_event", f"where root = '{run['uid']}' order by n")
    name, version, kind, declared, undoable = database.execute(
        f"select name, version, kind, declared, undoable from amends_tool where no = {calls[0]['tool']}"
    ).fetchone()
    return Pattern(
        run, calls, events, PlainTool(_text(name), _text(version), _text(kind), declared, undoable),
        _text(database.execute("select ledger from amends_schema").fetchone()[0]),
        RunRow(**{name: run[name] for name in RUN_COLUMNS}), events[0]["by_whom"],
    )  # fmt: skip


def _copy(pattern: Pattern, number: int, *, earlier_us: int) -> Copy:
    """Copy the run under other ids, so many microseconds earlier, with its chain computed again."""
    old = pattern.run
    # As long as a real id, and smaller: those grow with time.
    uid = f"run_{number:0{len(old['uid']) - len('run_')}x}"
    run = old | {"no": old["no"] + number, "uid": uid, "root": uid, "id": f"bench-{number:010x}"}
    run |= {name: _earlier(old[name], earlier_us) for name in ("created_at", "closed_at", "at")}
    calls = [
        call
        | {
            "no": call["no"] - (earlier_us << RANDOM_BITS), "root": run["no"],
            "key": sha256(f"{uid}-{place}".encode("ascii")).digest(),
            "at": _earlier(call["at"], earlier_us), "settled_at": _earlier(call["settled_at"], earlier_us),
        }
        for place, call in enumerate(pattern.calls)
    ]  # fmt: skip
    ids = {"": ""} | {call_id(old["no"]): call_id(new["no"]) for old, new in zip(pattern.calls, calls, strict=True)}
    events = [
        event
        | {
            "root": uid, "run": uid, "run_id": run["id"], "call": ids[event["call"]],
            "at": _earlier(event["at"], earlier_us),
        }
        for event in pattern.events
    ]  # fmt: skip
    row = changed(pattern.row, {"uid": uid, "root": uid, "id": run["id"]})
    events[0]["facts"] = events[0]["facts"].replace(run_columns_digest(pattern.row), run_columns_digest(row))
    _chain(pattern, run, calls, events)
    return Copy(run, calls, events)


def _earlier(at: float, earlier_us: int) -> float:
    return (micros(at) - earlier_us) / MICROS


def _chain(pattern: Pattern, run: Cells, calls: list[Cells], events: list[Cells]) -> None:
    """Compute the hash of every event, folded or not, in the order of their numbers."""
    plain = PlainRun(
        run["uid"], run["id"], run["tenant"], run["agent"], run["principal"], pattern.owner, pattern.run["epoch"]
    )
    steps: list[tuple[int, float, str, Cells, str]] = []
    for call in calls:
        op = AdmitPlain(
            plain, pattern.tool, call["no"], call["key"], call["ident"], call["digest"], call["args"]
        )  # fmt: skip
        settled = SettlePlain(Started(op, call["n"], call["at"]), call["result"])
        steps.append((call["n"], call["at"], admission_body(op), call, "hash"))
        steps.append((call["settled_n"], call["settled_at"], success_body(settled), call, "settled_hash"))
    steps += [(event["n"], event["at"], body_of(*(event[name] for name in SAID)), event, "hash") for event in events]
    prev = GENESIS
    for n, at, body, target, column in sorted(steps, key=lambda step: step[0]):
        hash = sha256(f"{prev}:{n}:{micros(at)}:{body}".encode("ascii"))
        target[column], prev = hash.digest(), hash.hexdigest()
        run |= {"n": n, "sealed": n, "head": hash.digest()}


def _checkpoints(pattern: Pattern, heads: list[Head]) -> list[Cells]:
    """Return checkpoints over all copies: without them the first program to open the ledger would write them."""
    made: list[Cells] = []
    prev, at = GENESIS, pattern.run["closed_at"]
    for first in range(0, len(heads), HEADS_MAX):
        text = written_heads(heads[first : first + HEADS_MAX])
        row = CheckpointRow(
            n=len(made) + 1, at=at, ledger=pattern.ledger, heads=text, prev=prev, hash="", key="", signature=""
        )
        prev = row.true_hash
        made.append({name: getattr(row, name) for name in TABLES["amends_checkpoint"]} | {"hash": prev})
    return made


# ---- The databases


class Database:
    """One connection, and the quickest way to write many rows through it."""

    mark, quote = "?", '"'
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    def __init__(self, con: Any) -> None:
        self.con = con
        for statement in self.before:
            self.execute(statement)

    def execute(self, sql: str) -> Any:
        """Execute a statement without parameters; return its cursor."""
        cursor = self.con.cursor()
        cursor.execute(sql)
        return cursor

    def select(self, table: str, rest: str) -> list[Cells]:
        """Return rows of a table."""
        rows = self.execute(f"select {self._columns(table)} from {table} {rest}").fetchall()
        return [
            {name: _cell(name, cell) for name, cell in zip(TABLES[table], row, strict=True)} for row in rows
        ]  # fmt: skip

    def insert(self, table: str, rows: Sequence[Cells]) -> None:
        """Insert rows."""
        names = TABLES[table]
        marks = ", ".join([self.mark] * len(names))
        sql = f"insert into {table} ({self._columns(table)}) values ({marks})"
        self.con.cursor().executemany(sql, [tuple(row[name] for name in names) for row in rows])

    def finish(self) -> None:
        """Commit, and leave the database as a server would have it after some time."""
        self.execute("commit")
        for statement in self.after:
            self.execute(statement)

    def _columns(self, table: str) -> str:
        return ", ".join(f"{self.quote}{name}{self.quote}" for name in TABLES[table])


class SqliteDatabase(Database):
    """A file that nobody else has open, and that is deleted if this fails: no journal."""

    before = ("pragma journal_mode = off", "pragma synchronous = off", "pragma cache_size = -200000", "begin")
    after = ("pragma journal_mode = wal",)


class PostgresDatabase(Database):
    """COPY."""

    mark = "%s"
    before = ("set synchronous_commit = off", "begin")
    after = (
        "select setval(pg_get_serial_sequence('amends_run', 'no'), (select max(no) from amends_run))",
        "vacuum analyze",
        "checkpoint",
    )

    def insert(self, table: str, rows: Sequence[Cells]) -> None:
        """Insert rows."""
        names = TABLES[table]
        with self.con.cursor().copy(f"copy {table} ({self._columns(table)}) from stdin") as copy:
            for row in rows:
                copy.write_row([row[name] for name in names])


class MariadbDatabase(Database):
    """Statements of many rows, which PyMySQL makes."""

    mark, quote = "%s", "`"
    before = ("set unique_checks = 0", "set foreign_key_checks = 0", "begin")
    after = ("analyze table amends_run, amends_call, amends_event",)


def _cell(name: str, cell: Any) -> Any:
    """Return a value as SQLite gives it: MariaDB returns texts that it compares byte by byte as bytes."""
    if isinstance(cell, memoryview):
        return bytes(cell)
    return cell if name in BYTES else _text(cell)


BYTES: Final = frozenset({"head", "key", "ident", "digest", "hash", "settled_hash", "comp_hash", "undone_hash"})


def _text(cell: Any) -> Any:
    return bytes(cell).decode() if isinstance(cell, bytes | bytearray) else cell


@contextlib.contextmanager
def _database(family: str, place: str) -> Iterator[Database]:
    made: Database
    if family == "sqlite":
        made = SqliteDatabase(sqlite3.connect(place, isolation_level=None))
    elif family == "postgres":
        made = PostgresDatabase(importlib.import_module("psycopg").connect(place, autocommit=True))
    else:
        made = MariadbDatabase(mariadb_connection(place))
    try:
        yield made
    finally:
        made.con.close()

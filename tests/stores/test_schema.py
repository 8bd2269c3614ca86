"""The migrations say what ``rows.py`` and ``states.py`` say; every question has its index."""

import re
import sqlite3
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest

from amends.ledger import rows
from amends.ledger.flow import run_flow
from amends.ledger.rows import (
    APPROVAL_STATES,
    ApprovalRow,
    CallRow,
    CheckpointRow,
    DelegationRow,
    EventRow,
    LockRow,
    MarkRow,
    RunRow,
    SliceRow,
    WaitRow,
)
from amends.states import CALL_STATES, RUN_STATES
from amends.stores.migrations import migrations
from amends.stores.sql import _ROWS, OPEN, SQLITE, Execute, Result, Statements, Transaction

TYPES = {
    "str": ("TEXT", 1), "int": ("INTEGER", 1), "float": ("REAL", 1), "float | None": ("REAL", 0), "str | None": ("TEXT", 0)
}  # fmt: skip
TABLES = {
    "runs": RunRow, "calls": CallRow, "events": EventRow, "locks": LockRow, "waits": WaitRow, "budgets": SliceRow,
    "approvals": ApprovalRow, "delegations": DelegationRow, "marks": MarkRow,
    "checkpoints": CheckpointRow,
}  # fmt: skip


@pytest.fixture
def database() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    for migration in migrations("sqlite"):
        for statement in migration.statements:
            connection.execute(statement)
    yield connection
    connection.close()


@pytest.mark.parametrize("table", TABLES)
def test_the_columns_are_the_fields_in_their_order(database: sqlite3.Connection, table: str) -> None:
    found = [
        (name, kind, 1 if key else not_null)  # a primary key of integers is never null
        for _, name, kind, not_null, _, key in database.execute(f"pragma table_info({table})")
        if name not in ("place", "sealed")
    ]
    assert found == [(field.name, *TYPES[str(field.type)]) for field in fields(TABLES[table])]


def test_the_tables_are_strict(database: sqlite3.Connection) -> None:
    tables = {name: strict for _, name, kind, _, _, strict in database.execute("pragma table_list") if kind == "table"}
    mine = {name: strict for name, strict in tables.items() if not name.startswith("sqlite_")}
    assert mine == dict.fromkeys([*TABLES, "amends_schema"], 1)


@pytest.mark.parametrize(
    "name, states",
    [("runs", RUN_STATES), ("calls", CALL_STATES), ("calls_open", OPEN), ("approvals", APPROVAL_STATES)],
)
def test_the_states_of_the_schema_are_those_of_the_tables(
    database: sqlite3.Connection, name: str, states: tuple[str, ...]
) -> None:
    [(text,)] = database.execute("select sql from sqlite_master where name = ?", (name,))
    assert re.findall(r"state = '(\w+)'", text) == list(states)


def test_a_state_that_no_table_has_is_not_stored(database: sqlite3.Connection) -> None:
    for table in ("runs", "calls", "approvals"):
        columns = [row for row in database.execute(f"pragma table_info({table})") if row[1] not in ("place", "sealed")]
        of = {"INTEGER": 0, "REAL": 0.0, "TEXT": ""}
        values = ["nonsense" if name == "state" else of[kind] for _, name, kind, *_ in columns]
        marks = ", ".join("?" * len(columns))
        names = ", ".join(f'"{column[1]}"' for column in columns)
        with pytest.raises(sqlite3.IntegrityError):
            database.execute(f"insert into {table} ({names}) values ({marks})", values)


def test_migrations_are_numbered_and_split_into_statements() -> None:
    for number, migration in enumerate(migrations("sqlite"), 1):
        assert migration.version == number
        assert migration.name.startswith(f"{number:04d}_")
        assert all(sqlite3.complete_statement(f"{statement};") for statement in migration.statements)


# ---- every question has its index ---------------------------------------------------------

ASKED: list[Any] = [
    rows.Now("r"),
    rows.FindRun("u"),
    rows.FindRunById("t", "i"),
    rows.ListTree("r"),
    rows.ListDue(1.0, None, 9),
    rows.ListDue(1.0, "t", 9),
    rows.ListOwned(None, 9),
    rows.ListOwned("t", 9),
    rows.PageRuns(None, (), None, 9),
    rows.PageRuns("t", ("open",), (1.0, "u"), 9),
    rows.PageClosed(9.0, None, None, 9),
    rows.PageClosed(9.0, "t", (1.0, "u"), 9),
    rows.FindCall("c"),
    rows.FindKey("k", "r"),
    rows.FindKey("k", ""),
    rows.ListGenerations("k", "r"),
    rows.ListGenerations("k", ""),
    rows.ListCalls("r"),
    rows.ListCalls("r", ("started", "in_doubt")),
    rows.PageCalls(None, (), None, 9),
    rows.PageCalls("t", ("succeeded",), "c", 9),
    rows.PageCalls(None, ("in_doubt",), None, 9),
    rows.PageCalls("t", ("in_doubt", "held"), "c", 9),
    rows.PageEvents(None, None, "5000000.r.1", 9),
    rows.PageEvents(None, "t", "", 9),
    rows.NewestEvent(None, None),
    rows.NewestEvent("r", "t"),
    rows.PageEvents("r", "t", 5, 9),
    rows.FindLocks("t", ("x", "y")),
    rows.DropLock("r", "x"),
    rows.FreeLocks("r"),
    rows.LocksOf("r"),
    rows.PageLocks("t", "x", 9),
    rows.RecordWait(rows.WaitRow("r", "t", "x", "i", "a", 1.0, 1.0)),
    rows.WaitsOf("r"),
    rows.WaitsFor("t", "x"),
    rows.DropWaits("r"),
    rows.DropWaits("r", ("x", "y")),
    rows.NewestCheckpoint(),
    rows.PageCheckpoints(5, 9),
    rows.PageUnsealed("r", 9),
    rows.MarkSealed((rows.Head("r", 1, "h"),)),
    rows.HashesAt((("r", 1), ("r", 2))),
    rows.FindApproval("a"),
    rows.ApprovalsOf("r"),
    rows.PageApprovals(None, (), None, 9),
    rows.PageApprovals("t", ("pending",), "a", 9),
    rows.PageApprovals("t", ("pending", "used"), "a", 9),
    rows.ListDueNotices(20.0, None, 9),
    rows.ListDueNotices(20.0, "t", 9),
    rows.FindUse("u"),
    rows.DelegationsTo("t", "b"),
    rows.FindMark("x"),
]


def asked_of(database: sqlite3.Connection, op: Any) -> list[str]:
    """How SQLite means to answer, line by line."""
    lines: list[str] = []

    def explain(execute: Execute) -> Result:
        found = database.execute(f"explain query plan {execute.sql}", execute.params).fetchall()
        lines.extend(detail for *_, detail in found)
        return [], 0, 0

    run_flow(_ROWS[type(op)](Transaction(Statements(SQLITE), float), op), explain)
    return lines


@pytest.mark.parametrize("op", ASKED, ids=repr)
def test_no_question_walks_through_a_table_without_its_order(database: sqlite3.Connection, op: Any) -> None:
    in_order = isinstance(op, rows.Now | rows.PageRuns | rows.PageCalls | rows.PageEvents | rows.PageApprovals)
    in_order = in_order or isinstance(op, rows.NewestCheckpoint | rows.NewestEvent)
    for line in asked_of(database, op):
        walk = line.startswith("SCAN") and (in_order or " INDEX " in line)
        assert (
            line.startswith(("SEARCH", "SCALAR SUBQUERY", "COMPOUND QUERY", "LEFT-MOST SUBQUERY", "UNION ALL"))
            or walk
            or "ORDER BY" in line
        ), line


@pytest.mark.parametrize(
    "op, index",
    [
        (rows.ListDue(1.0, None, 9), "runs_wake"),
        (rows.ListDue(1.0, "t", 9), "runs_wake"),
        (rows.ListOwned(None, 9), "runs_owned"),
        (rows.ListOwned("t", 9), "runs_owned"),
        (rows.PageClosed(50.0, None, None, 9), "runs_closed"),
        (rows.PageClosed(50.0, "t", (1.0, "u"), 9), "runs_closed"),
        (rows.PageRuns("t", ("open",), (1.0, "u"), 9), "runs_created"),
        (rows.PageCalls(None, ("in_doubt",), None, 9), "calls_open"),
        (rows.PageCalls("t", ("in_doubt", "held"), "c", 9), "calls_open"),
        (rows.PageEvents("r", None, 5, 9), "events_root"),
        (rows.PageEvents(None, "t", "5000000.r.1", 9), "events_feed"),
        (rows.NewestEvent(None, None), "events_feed"),
        (rows.Now("r"), "events_root"),
        (rows.HashesAt((("r", 1), ("r", 2))), "events_root"),
        (rows.ApprovalsOf("r"), "approvals_root"),
        (rows.PageApprovals("t", ("pending",), "a", 9), "approvals_state"),
        (rows.FindUse("u"), "approvals_use"),
        (rows.ListDueNotices(20.0, None, 9), "approvals_tell"),
        (rows.ListDueNotices(20.0, "t", 9), "approvals_tell"),
    ],
    ids=repr,
)
def test_what_somebody_waits_for_is_found_by_its_own_index(database: sqlite3.Connection, op: Any, index: str) -> None:
    assert any(f"INDEX {index}" in line for line in asked_of(database, op))

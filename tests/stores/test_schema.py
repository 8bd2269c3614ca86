"""The migrations say what ``rows.py``, ``calls.py`` and ``states.py`` say; every question has its index."""

import re
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import pytest

from amends.ledger import queries, rows
from amends.ledger.flow import run_flow
from amends.ledger.rows import (
    APPROVAL_STATES,
    APPROVALS,
    BUDGETS,
    CALLS,
    DELEGATIONS,
    DIRECTIVES,
    EVENTS,
    LEDGER,
    MARKS,
    RUNS,
    WAITS,
    ApprovalRow,
    CheckpointRow,
    DelegationRow,
    DirectiveRow,
    EventRow,
    LedgerRow,
    LockRow,
    MarkRow,
    RunRow,
    SliceRow,
    WaitRow,
)
from amends.ledger.tables import Change, Find
from amends.states import CALL_STATES, RUN_STATES
from amends.stores import calls
from amends.stores.migrations import migrations
from amends.stores.sql import EVENT_COLUMNS, OPEN, TAIL_COLUMNS, Execute, Result, Transaction, as_sql
from amends.stores.sqlite import quick
from amends.stores.sqlite.store import STATEMENTS

TYPES = {
    "str": ("TEXT", 1), "int": ("INTEGER", 1), "float": ("REAL", 1), "float | None": ("REAL", 0), "str | None": ("TEXT", 0)
}  # fmt: skip
TABLES: dict[str, Any] = {
    "amends_run": RunRow, "amends_lock": LockRow, "amends_wait": WaitRow, "amends_budget": SliceRow,
    "amends_approval": ApprovalRow, "amends_delegation": DelegationRow, "amends_mark": MarkRow,
    "amends_checkpoint": CheckpointRow, "amends_directive": DirectiveRow, "amends_ledger": LedgerRow,
}  # fmt: skip
"""The tables whose columns are the fields of a row."""
OWN: dict[str, tuple[str, ...]] = {
    "amends_run": (*TAIL_COLUMNS, "sealed", "unsealed"), "amends_approval": ("no",), "amends_delegation": ("sealed",),
    "amends_directive": ("sealed",),
}  # fmt: skip
"""The columns that a store keeps for itself."""
OTHERS = (
    "amends_schema",
    "amends_tool",
    "amends_call",
    "amends_ledger_key",
    "amends_answer",
    "amends_call_name",
    "amends_event",
)
CALL_TYPES: dict[str, tuple[str, int]] = {
    **dict.fromkeys(("no", "root", "gen", "n", "tool", "attempt", "epoch"), ("INTEGER", 1)),
    **dict.fromkeys(("settled_n", "comp_n", "comp_epoch", "undone_n"), ("INTEGER", 0)),
    **dict.fromkeys(("settled_at", "comp_at", "undone_at"), ("REAL", 0)),
    **dict.fromkeys(("key", "ident", "digest"), ("BLOB", 1)),
    **dict.fromkeys(("hash", "settled_hash", "comp_hash", "undone_hash"), ("BLOB", 0)),
    **dict.fromkeys(("result", "more"), ("TEXT", 0)),
    "state": ("TEXT", 1), "args": ("TEXT", 1), "at": ("REAL", 1),
}  # fmt: skip
EVENT_TYPES = {field.name: TYPES[str(field.type)] for field in fields(EventRow)} | {"hash": ("BLOB", 1)}


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
        if name not in OWN.get(table, ())
    ]
    assert found == [(field.name, *TYPES[str(field.type)]) for field in fields(TABLES[table])]


@pytest.mark.parametrize(
    "table, columns, types",
    [("amends_call", calls.COLUMNS, CALL_TYPES), ("amends_event", EVENT_COLUMNS, EVENT_TYPES)],
)
def test_the_columns_of_calls_and_events_are_those_that_are_written(
    database: sqlite3.Connection, table: str, columns: tuple[str, ...], types: dict[str, tuple[str, int]]
) -> None:
    found = [
        (name, kind, 1 if key else not_null)
        for _, name, kind, not_null, _, key in database.execute(f"pragma table_info({table})")
    ]
    assert found == [(column, *types[column]) for column in columns]


def test_the_tables_are_strict(database: sqlite3.Connection) -> None:
    tables = {name: strict for _, name, kind, _, _, strict in database.execute("pragma table_list") if kind == "table"}
    mine = {name: strict for name, strict in tables.items() if not name.startswith("sqlite_")}
    assert mine == dict.fromkeys([*TABLES, *OTHERS], 1)


@pytest.mark.parametrize(
    "name, states",
    [
        ("amends_run", RUN_STATES),
        ("amends_call", CALL_STATES),
        ("amends_call_open", OPEN),
        ("amends_approval", APPROVAL_STATES),
    ],
)
def test_the_states_of_the_schema_are_those_of_the_tables(
    database: sqlite3.Connection, name: str, states: tuple[str, ...]
) -> None:
    [(text,)] = database.execute("select sql from sqlite_master where name = ?", (name,))
    assert re.findall(r"state = '(\w+)'", text) == list(states)


def test_a_state_that_no_table_has_is_not_stored(database: sqlite3.Connection) -> None:
    for table in ("amends_run", "amends_call", "amends_approval"):
        columns = list(database.execute(f"pragma table_info({table})"))
        of = {"INTEGER": 0, "REAL": 0.0, "TEXT": "", "BLOB": b""}
        marks = ", ".join("?" * len(columns))
        names = ", ".join(f'"{column[1]}"' for column in columns)
        insert = f"insert into {table} ({names}) values ({marks})"
        states = {"amends_run": "open", "amends_call": "started", "amends_approval": "pending"}
        for state in ("nonsense", states[table]):
            values = [state if name == "state" else of[kind] for _, name, kind, *_ in columns]
            if state == "nonsense":
                with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
                    database.execute(insert, values)
            else:
                database.execute(insert, values)


def test_migrations_are_numbered_and_split_into_statements() -> None:
    for number, migration in enumerate(migrations("sqlite"), 1):
        assert migration.version == number
        assert migration.name.startswith(f"{number:04d}_")
        assert all(sqlite3.complete_statement(f"{statement};") for statement in migration.statements)


# ---- every question has its index ---------------------------------------------------------


class Asked:
    """A question to the tables, and how it is shown."""

    def __init__(self, ask: Callable[..., Any], *args: Any, **options: Any) -> None:
        self.ask, self._args, self._options = ask, args, options

    def __repr__(self) -> str:
        said = [*map(repr, self._args), *(f"{name}={value!r}" for name, value in self._options.items())]
        return f"{self.ask.__name__}({', '.join(said)})"

    async def flow(self) -> Any:
        """Ask it."""
        return await self.ask(*self._args, **self._options)


IN_ORDER = (
    rows.Now, queries.page_runs, queries.page_calls, queries.page_events, queries.page_approvals,
    queries.newest_checkpoint, queries.newest_event,
)  # fmt: skip
"""What may walk through a table or an index in its order."""
ASKED = [
    Asked(rows.Now, "r"),
    Asked(Find, RUNS, "u"),
    Asked(queries.newest_run, "t", "i"),
    Asked(queries.list_tree, "r"),
    Asked(queries.find_roots, ("r", "s", "t"), peek=False),
    Asked(queries.runs_of_trees, ("r", "s", "t")),
    Asked(queries.calls_of_trees, ("r", "s", "t")),
    Asked(queries.list_forks, "r", "s", "t"),
    Asked(queries.list_due, 1.0, None, 9),
    Asked(queries.list_due, 1.0, "t", 9),
    Asked(queries.list_owned, None, 9),
    Asked(queries.list_owned, "t", 9),
    Asked(queries.page_runs, None, (), None, 9),
    Asked(queries.page_runs, "t", ("open",), (1.0, "u"), 9),
    Asked(queries.page_closed, 9.0, None, None, 9),
    Asked(queries.page_closed, 9.0, "t", (1.0, "u"), 9),
    Asked(Find, CALLS, "c"),
    Asked(queries.newest_call, "k", "r"),
    Asked(queries.newest_call, "k", ""),
    Asked(queries.list_generations, "k", "r"),
    Asked(queries.list_generations, "k", ""),
    Asked(queries.list_forks, "r"),
    Asked(queries.generations_of, "t", "i"),
    Asked(queries.runs_between, "r", None),
    Asked(queries.runs_between, "r", "s"),
    Asked(queries.calls_between, "r", "s"),
    Asked(queries.approvals_between, "r", "s"),
    Asked(queries.delegations_between, "r", "s"),
    Asked(queries.page_slices, "t", "x", 9),
    Asked(queries.drop_slices, "r"),
    Asked(queries.move_time, 5.0),
    Asked(queries.list_calls, "r"),
    Asked(queries.list_calls, "r", ("started", "in_doubt")),
    Asked(queries.page_calls, None, (), None, 9),
    Asked(queries.page_calls, "t", ("succeeded",), "call_0000000000001388", 9),
    Asked(queries.page_calls, None, ("in_doubt",), None, 9),
    Asked(queries.page_calls, "t", ("in_doubt", "held"), "call_0000000000001388", 9),
    Asked(queries.page_events, None, None, "5000000.r.1", 9),
    Asked(queries.page_events, None, "t", "", 9),
    Asked(queries.newest_event, None, None),
    Asked(queries.newest_event, "r", "t"),
    Asked(queries.page_events, "r", "t", 5, 9),
    Asked(queries.find_locks, "t", ("x", "y")),
    Asked(queries.drop_locks, "r", "x"),
    Asked(queries.drop_locks, "r"),
    Asked(queries.locks_of, "r"),
    Asked(queries.page_locks, "t", "x", 9),
    Asked(Find, WAITS, ("r", "x")),
    Asked(Find, BUDGETS, "x"),
    Asked(Find, DELEGATIONS, "x"),
    Asked(Find, EVENTS, ("r", 1)),
    Asked(Change, WAITS, rows.WaitRow("r", "t", "x", "i", "a", 1.0, 1.0), {"seen_at": 2.0}),
    Asked(queries.waits_of, "r"),
    Asked(queries.waits_for, "t", "x"),
    Asked(queries.drop_waits, "r"),
    Asked(queries.drop_waits, "r", ("x", "y")),
    Asked(queries.slices_named, "t", ("x", "y")),
    Asked(queries.page_unfinished, "t", "r", 9),
    Asked(queries.page_events_back, "t", "5000000.r.1", 9),
    Asked(queries.newest_checkpoint),
    Asked(queries.page_checkpoints, 5, 9),
    Asked(rows.PageUnsealed, "r", 9),
    Asked(rows.MarkSealed, (rows.Head("r", 1, "h"),)),
    Asked(Find, APPROVALS, "a"),
    Asked(queries.approvals_of, "r"),
    Asked(queries.page_approvals, None, (), None, 9),
    Asked(queries.page_approvals, "t", ("pending",), "a", 9),
    Asked(queries.page_approvals, "t", ("pending", "used"), "a", 9),
    Asked(queries.list_due_notices, 20.0, None, 9),
    Asked(queries.list_due_notices, 20.0, "t", 9),
    Asked(queries.list_due_requests, 20.0, None, 9),
    Asked(queries.list_due_requests, 20.0, "t", 9),
    Asked(queries.used_approvals, "u"),
    Asked(queries.delegations_to, "t", "b"),
    Asked(Find, MARKS, "x"),
    Asked(Find, LEDGER, 1),
    Asked(Find, LEDGER, 1, peek=True),
    Asked(Find, DIRECTIVES, "x"),
    Asked(queries.standing_halts),
    Asked(queries.lifted_halts),
    Asked(queries.directives_between, "r", "s"),
]


def asked_of(database: sqlite3.Connection, op: Asked) -> list[str]:
    """How SQLite means to answer, line by line."""
    lines: list[str] = []

    def explain(execute: Execute) -> Result:
        found = database.execute(f"explain query plan {execute.sql}", execute.params).fetchall()
        lines.extend(detail for *_, detail in found)
        return [(None, None)] if execute.sql == STATEMENTS.newest else [], 0, 0

    run_flow(as_sql(op.flow(), Transaction(STATEMENTS, float)), explain)
    return lines


@pytest.mark.parametrize("tenant", [None, "t"])
def test_states_are_counted_over_the_newest_runs_only(database: sqlite3.Connection, tenant: str | None) -> None:
    lines = asked_of(database, Asked(rows.CountStates, tenant, 9))
    assert "SCAN amends_run USING INDEX amends_run_created" in lines
    assert lines[0] == "CO-ROUTINE newest", "the limit is inside: what is grouped is already cut"


@pytest.mark.parametrize("op", ASKED, ids=repr)
def test_no_question_walks_through_a_table_without_its_order(database: sqlite3.Connection, op: Asked) -> None:
    for line in asked_of(database, op):
        walk = line.startswith("SCAN") and (op.ask in IN_ORDER or " INDEX " in line)
        assert (
            line.startswith(
                (
                    "SEARCH",
                    "SCALAR SUBQUERY",
                    "CORRELATED SCALAR SUBQUERY",
                    "COMPOUND QUERY",
                    "LEFT-MOST SUBQUERY",
                    "UNION ALL",
                )
            )
            or walk
            or "ORDER BY" in line
        ), line


@pytest.mark.parametrize(
    "op, index",
    [
        (Asked(queries.list_due, 1.0, None, 9), "INDEX amends_run_wake"),
        (Asked(queries.list_due, 1.0, "t", 9), "INDEX amends_run_wake"),
        (Asked(queries.list_owned, None, 9), "INDEX amends_run_owned"),
        (Asked(queries.list_owned, "t", 9), "INDEX amends_run_owned"),
        (Asked(queries.page_closed, 50.0, None, None, 9), "INDEX amends_run_closed"),
        (Asked(queries.page_closed, 50.0, "t", (1.0, "u"), 9), "INDEX amends_run_closed"),
        (Asked(queries.page_runs, "t", ("open",), (1.0, "u"), 9), "INDEX amends_run_created"),
        (Asked(queries.page_calls, None, ("in_doubt",), None, 9), "INDEX amends_call_open"),
        (Asked(queries.page_calls, "t", ("in_doubt", "held"), "call_0000000000001388", 9), "INDEX amends_call_open"),
        (Asked(queries.page_events, "r", None, 5, 9), "PRIMARY KEY (root=? AND n"),
        (Asked(queries.page_events, None, "t", "5000000.r.1", 9), "INDEX amends_event_at"),
        (Asked(queries.newest_event, None, None), "INDEX amends_event_at"),
        (Asked(queries.page_events_back, None, "", 9), "INDEX amends_event_at"),
        (Asked(queries.page_events_back, "t", "5000000.r.1", 9), "INDEX amends_event_at"),
        (Asked(queries.page_unfinished, None, "", 9), "INDEX amends_run_unsealed"),
        (Asked(queries.page_unfinished, "t", "r", 9), "INDEX amends_run_unsealed"),
        (Asked(rows.Now, "r"), "PRIMARY KEY (root=?"),
        (Asked(Find, EVENTS, ("r", 1)), "PRIMARY KEY (root=? AND n"),
        (Asked(queries.approvals_of, "r"), "INDEX amends_approval_root"),
        (Asked(queries.page_approvals, "t", ("pending",), "a", 9), "INDEX amends_approval_state"),
        (Asked(queries.used_approvals, "u"), "INDEX amends_approval_use"),
        (Asked(queries.list_due_notices, 20.0, None, 9), "INDEX amends_approval_tell"),
        (Asked(queries.list_due_notices, 20.0, "t", 9), "INDEX amends_approval_tell"),
        (Asked(queries.list_due_requests, 20.0, None, 9), "INDEX amends_approval_due"),
        (Asked(queries.list_due_requests, 20.0, "t", 9), "INDEX amends_approval_due"),
    ],
    ids=repr,
)
def test_what_somebody_waits_for_is_found_by_its_own_index(database: sqlite3.Connection, op: Asked, index: str) -> None:
    assert any(index in line for line in asked_of(database, op))


@pytest.mark.parametrize(
    "op",
    [
        Asked(queries.page_events, None, "t", "5000000.r.1", 9), Asked(queries.newest_event, None, "t"),
        Asked(queries.page_events_back, "t", "", 9), Asked(queries.page_events_back, "t", "5000000.r.1", 9),
        Asked(queries.page_calls, "t", (), None, 9), Asked(queries.page_calls, "t", ("succeeded",), None, 9),
        Asked(queries.page_calls, "t", ("in_doubt",), None, 9),
    ],
    ids=repr,
)  # fmt: skip
def test_calls_of_a_tenant_are_read_from_the_calls_on(database: sqlite3.Connection, op: Asked) -> None:
    """Beginning with the runs of the tenant, the newest event of a million calls took 200 ms."""
    lines = asked_of(database, op)
    joined = [line for line in lines if re.match(r"(SEARCH|SCAN) [crt]\b", line)]
    assert joined[0].split()[1] == "c", lines
    assert not [line for line in lines if line.startswith("SEARCH r USING INDEX")]


PLAIN = {
    "calls.find": STATEMENTS.calls.find, "events.folded_tail": STATEMENTS.events.folded_tail,
    "events.folded_of_root": STATEMENTS.events.folded_of_root, "load": quick.LOAD, "admit": quick.ADMIT,
    "settle": quick.SETTLE, "settle sealed": quick.SETTLE_SEALED, "fail": quick.FAIL, "begin": quick.BEGIN, "end": quick.END,
    "find tool": quick.FIND_TOOL, "touch": STATEMENTS.touch, "turn": quick.TURN_PLAIN, "close": quick.CLOSE_LAST,
}  # fmt: skip


@pytest.mark.parametrize("name", PLAIN)
def test_no_step_of_a_call_walks_through_a_table(database: sqlite3.Connection, name: str) -> None:
    sql = PLAIN[name]
    lines = [detail for *_, detail in database.execute(f"explain query plan {sql}", (None,) * sql.count("?"))]
    # What is scanned has one row, or is the result of a subquery.
    scans = [line for line in lines if line.startswith("SCAN") and line not in ("SCAN amends_ledger", "SCAN f")]
    assert any(line.startswith("SEARCH") for line in lines), lines
    assert scans == []

"""PostgreSQL's migrations say what ``rows.py`` and ``states.py`` say; every question has its index."""

import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from typing import Any

import psycopg
import pytest

from amends.ledger import rows
from amends.ledger.flow import run_flow
from amends.states import CALL_STATES, RUN_STATES
from amends.stores.migrations import migrations
from amends.stores.postgres.store import PostgresStore
from amends.stores.postgres.transaction import READING, WRITING
from amends.stores.sql import _ROWS, OPEN, Execute, Result, Transaction
from tests.servers.databases import create_database, drop_database
from tests.servers.fixtures import server_url
from tests.stores.test_schema import ASKED, TABLES

TYPES = {
    "str": ("text", "NO"), "int": ("bigint", "NO"), "float": ("double precision", "NO"),
    "float | None": ("double precision", "YES"), "str | None": ("text", "YES"),
}  # fmt: skip
# One tenant, as most ledgers have: a planner that takes its index reads everything.
FILLED = """
insert into runs (uid, id, tenant, generation, root, parent, state, created_at, owner, wake_at)
select 'u' || n, 'i' || n, 't', 1, 'u' || n, '', 'committed', n, case when n % 1000 = 0 then 'o' else '' end,
    case when n % 1000 = 0 then n end
from generate_series(1, 20000) n;
insert into calls (id, seq, run, root, run_id, tenant, tool, version, kind, "key", generation, ident, digest, args, state,
    created_at, created_epoch, asked_epoch)
select 'c' || n, n, 'u' || n / 4, 'u' || n / 4, 'i' || n / 4, 't', 'charge', '1', 'compensatable', 'k' || n, 1, '', '', '',
    case when n % 1000 = 0 then 'in_doubt' else 'succeeded' end, n, 1, 1
from generate_series(1, 40000) n;
insert into events (at, root, run, run_id, tenant, "call", what, frm, to_state, by_whom, epoch, n, hash)
select n, 'u' || n / 4, 'u' || n / 4, 'i' || n / 4, 't', 'c' || n, 'call', '(new)', 'started', 'o', 1, n, ''
from generate_series(1, 40000) n;
analyze;
"""


@pytest.fixture(scope="module")
def connection(pytestconfig: pytest.Config) -> Iterator[psycopg.Connection[Any]]:
    """To a ledger with some history: what a planner does with empty tables says nothing."""
    server = server_url(pytestconfig, "postgres")
    url = create_database(server)
    store = PostgresStore(url)
    store.open(create=True)
    store.close()
    with psycopg.connect(url, autocommit=True) as made:
        made.execute(FILLED.encode())
        yield made
    drop_database(server, url)


@pytest.mark.parametrize("table", TABLES)
def test_the_columns_are_the_fields_in_their_order(connection: psycopg.Connection[Any], table: str) -> None:
    found = connection.execute(
        "select column_name, data_type, is_nullable from information_schema.columns "
        "where table_schema = current_schema() and table_name = %s and is_generated = 'NEVER' order by ordinal_position",
        (table,),
    ).fetchall()
    assert [row for row in found if row[0] not in ("place", "sealed")] == [
        (field.name, *TYPES[str(field.type)]) for field in fields(TABLES[table])
    ]


@pytest.mark.parametrize("table", ["runs", "calls"])
def test_the_defaults_are_those_of_the_rows(connection: psycopg.Connection[Any], table: str) -> None:
    found = connection.execute(
        "select column_name, column_default from information_schema.columns "
        "where table_schema = current_schema() and table_name = %s and column_default is not null",
        (table,),
    ).fetchall()
    said = {name: re.sub(r"::.*$", "", text).strip("'") for name, text in found}
    assert said == {
        field.name: f"{field.default:g}" if isinstance(field.default, float) else str(field.default)
        for field in fields(TABLES[table])
        if field.default is not MISSING and field.default is not None
    }


@pytest.mark.parametrize(
    "sql, states",
    [
        ("select pg_get_constraintdef(oid) from pg_constraint where conname = 'runs_state'", RUN_STATES),
        ("select pg_get_constraintdef(oid) from pg_constraint where conname = 'calls_state'", CALL_STATES),
        ("select generation_expression from information_schema.columns where column_name = 'attention'", OPEN),
    ],
)
def test_the_states_of_the_schema_are_those_of_the_tables(
    connection: psycopg.Connection[Any], sql: str, states: tuple[str, ...]
) -> None:
    [(text,)] = connection.execute(sql.encode()).fetchall()
    assert re.findall(r"'(\w+)'", text) == list(states)


def test_migrations_are_numbered() -> None:
    assert [one.version for one in migrations("postgresql")] == list(range(1, len(migrations("postgresql")) + 1))


# ---- every question has its index ---------------------------------------------------------


def plan_of(connection: psycopg.Connection[Any], op: Any) -> str:
    """How PostgreSQL means to answer."""
    lines: list[str] = []

    def explain(execute: Execute) -> Result:
        found = connection.execute(f"explain {execute.sql}".encode(), execute.params).fetchall()
        lines.extend(line for (line,) in found)
        return [], 0, 0

    run_flow(_ROWS[type(op)](Transaction(READING, float), op), explain)
    return "\n".join(lines)


@pytest.mark.parametrize("op", ASKED, ids=repr)
def test_no_question_walks_through_a_table(connection: psycopg.Connection[Any], op: Any) -> None:
    connection.execute("set enable_seqscan = off")  # a table of few rows is walked through however it is indexed
    try:
        plan = plan_of(connection, op)
    finally:
        connection.execute("reset enable_seqscan")
    assert "Seq Scan" not in plan, plan
    assert "Index" in plan, plan


@pytest.mark.parametrize(
    "op, index",
    [
        (rows.ListDue(1.0, None, 9), "runs_wake"),
        (rows.ListDue(1.0, "t", 9), "runs_wake"),
        (rows.ListOwned(None, 9), "runs_owned"),
        (rows.ListOwned("t", 9), "runs_owned"),
        (rows.PageClosed(50.0, None, None, 9), "runs_closed"),
        (rows.PageClosed(50.0, "t", (1.0, "u"), 9), "runs_closed"),
        (rows.PageRuns("t", ("committed",), (1000.0, "u"), 9), "runs_created"),
        (rows.PageRuns("t", (), None, 9), "runs_created"),
        (rows.PageCalls("t", (), None, 9), "calls_place"),
        (rows.PageCalls(None, ("in_doubt",), None, 9), "calls_open"),
        (rows.PageCalls("t", ("in_doubt", "held"), "c5000", 9), "calls_open"),
        (rows.PageEvents("u5", None, 5, 9), "events_root"),
        (rows.FindKey("k"), "calls_key"),
        (rows.ListCalls("u5"), "calls_root"),
        (rows.ListTree("u5"), "runs_root"),
        (rows.FindRunById("t", "i5"), "runs_id"),
    ],
    ids=repr,
)
def test_what_somebody_waits_for_is_found_by_its_own_index(
    connection: psycopg.Connection[Any], op: Any, index: str
) -> None:
    assert index in plan_of(connection, op)


@pytest.mark.parametrize("sql", [WRITING.root_of_run, WRITING.root_of_call, WRITING.claim_root])
def test_a_root_is_locked_by_its_key(connection: psycopg.Connection[Any], sql: str) -> None:
    plan = str(connection.execute(f"explain {sql}".encode(), ("u5",)).fetchall())
    assert "runs_pkey" in plan
    assert "Seq Scan" not in plan

"""PostgreSQL's migrations say what ``rows.py``, ``calls.py`` and ``states.py`` say; every question has its index."""

import itertools
import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import psycopg
import pytest

from amends.ledger import queries, rows
from amends.ledger.flow import run_flow
from amends.states import CALL_STATES, RUN_STATES
from amends.stores import calls
from amends.stores.migrations import migrations
from amends.stores.postgres import quick
from amends.stores.postgres.store import PostgresStore
from amends.stores.postgres.transaction import READING, WRITING, settings_of
from amends.stores.postgres.url import read_url
from amends.stores.sql import EVENT_COLUMNS, OPEN, Execute, Result, Transaction, as_sql
from tests.servers.databases import create_database, drop_database
from tests.servers.fixtures import server_url
from tests.stores.test_schema import ASKED, CALL_TYPES, EVENT_TYPES, OWN, TABLES, Asked

TYPES = {
    "str": ("text", "NO"), "int": ("bigint", "NO"), "float": ("double precision", "NO"),
    "float | None": ("double precision", "YES"), "str | None": ("text", "YES"),
}  # fmt: skip
# One tenant, as most ledgers have: a planner that takes its index reads everything.
FILLED = """
insert into amends_run ({columns})
select {values} from generate_series(1, 20000) n;
insert into amends_tool (name, version, kind, scope, declared, undoable, at_commit)
values ('charge', '1', 'compensatable', 'run', 0, 1, 0);
insert into amends_call (no, root, "key", gen, n, tool, state, attempt, ident, digest, args, at, epoch, hash,
    attention)
select n, n / 4 + 1, sha256(n::text::bytea), 1, n, 1, case when n % 1000 = 0 then 'in_doubt' else 'succeeded' end,
    1, '', '', '', n, 1, sha256(''), case when n % 1000 = 0 then 1 end
from generate_series(1, 40000) n;
insert into amends_event (at, root, run, run_id, tenant, "call", what, frm, to_state, by_whom, epoch, facts, n, hash)
select n, 'u' || n / 4, 'u' || n / 4, 'i' || n / 4, 't', 'c' || n, 'call', '(new)', 'started', 'o', 1, '', n, ''
from generate_series(1, 40000) n;
analyze;
"""
SAID = {
    "uid": "'u' || n", "id": "'i' || n", "tenant": "'t'", "generation": "1", "root": "'u' || n", "state": "'committed'",
    "created_at": "n", "owner": "case when n % 1000 = 0 then 'o' else '' end", "wake_at": "case when n % 1000 = 0 then n end",
}  # fmt: skip
USUAL = {"str": "''", "int": "0", "float": "0", "float | None": "null", "str | None": "null"}


def filled() -> str:
    """Return the statements that write some history."""
    columns = {field.name: SAID.get(field.name, USUAL[str(field.type)]) for field in fields(rows.RunRow)}
    return FILLED.format(columns=", ".join(columns), values=", ".join(columns.values()))


@pytest.fixture(scope="module")
def connection(pytestconfig: pytest.Config) -> Iterator[psycopg.Connection[Any]]:
    """To a ledger with some history: what a planner does with empty tables says nothing."""
    server = server_url(pytestconfig, "postgres")
    url = create_database(server)
    store = PostgresStore(url)
    store.open(create=True)
    store.close()
    with psycopg.connect(url, autocommit=True) as made:
        made.execute(filled().encode())
        yield made
    drop_database(server, url)


@pytest.mark.parametrize("table", TABLES)
def test_the_columns_are_the_fields_in_their_order(connection: psycopg.Connection[Any], table: str) -> None:
    found = connection.execute(
        "select column_name, data_type, is_nullable from information_schema.columns "
        "where table_schema = current_schema() and table_name = %s and is_generated = 'NEVER' order by ordinal_position",
        (table,),
    ).fetchall()
    assert [row for row in found if row[0] not in (*OWN.get(table, ()), "unsealed")] == [
        (field.name, *TYPES[str(field.type)]) for field in fields(TABLES[table])
    ]


@pytest.mark.parametrize(
    "table, columns, types",
    [("amends_call", calls.COLUMNS, CALL_TYPES), ("amends_event", EVENT_COLUMNS, EVENT_TYPES)],
)
def test_the_columns_of_calls_and_events_are_those_that_are_written(
    connection: psycopg.Connection[Any], table: str, columns: tuple[str, ...], types: dict[str, tuple[str, int]]
) -> None:
    found = connection.execute(
        "select column_name, data_type, is_nullable from information_schema.columns "
        "where table_schema = current_schema() and table_name = %s and is_generated = 'NEVER' order by ordinal_position",
        (table,),
    ).fetchall()
    of = {"INTEGER": "bigint", "REAL": "double precision", "TEXT": "text", "BLOB": "bytea"}
    # What a settlement changes stands together here, which makes its log record shorter: statements name their columns.
    written = [(column, of[types[column][0]], "NO" if types[column][1] else "YES") for column in columns]
    assert sorted(row for row in found if row[0] != "attention") == sorted(written)


def test_only_a_store_s_own_columns_have_defaults(connection: psycopg.Connection[Any]) -> None:
    """Every field of a row is written: a default would hide one that was forgotten."""
    found = connection.execute(
        "select table_name, column_name from information_schema.columns "
        "where table_schema = current_schema() and column_default is not null"
    ).fetchall()
    assert found
    assert [one for one in found if one[1] not in OWN.get(one[0], ())] == []


@pytest.mark.parametrize(
    "sql, states",
    [
        ("select pg_get_constraintdef(oid) from pg_constraint where conname = 'amends_run_state_check'", RUN_STATES),
        ("select pg_get_constraintdef(oid) from pg_constraint where conname = 'amends_call_state_check'", CALL_STATES),
        (
            "select pg_get_constraintdef(oid) from pg_constraint where conname = 'amends_approval_state_check'",
            rows.APPROVAL_STATES,
        ),
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


def plan_of(connection: psycopg.Connection[Any], op: Asked) -> str:
    """How PostgreSQL means to answer."""
    lines: list[str] = []

    def explain(execute: Execute) -> Result:
        found = connection.execute(f"explain {execute.sql}".encode(), execute.params).fetchall()
        lines.extend(line for (line,) in found)
        return [(None, None)] if execute.sql == READING.newest else [], 0, 0

    run_flow(as_sql(op.flow(), Transaction(READING, float)), explain)
    return "\n".join(lines)


@pytest.mark.parametrize("op", ASKED, ids=repr)
def test_no_question_walks_through_a_table(connection: psycopg.Connection[Any], op: Asked) -> None:
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
        (Asked(queries.list_due, 1.0, None, 9), "amends_run_wake"),
        (Asked(queries.list_due, 1.0, "t", 9), "amends_run_wake"),
        (Asked(queries.list_owned, None, 9), "amends_run_owned"),
        (Asked(queries.list_owned, "t", 9), "amends_run_owned"),
        (Asked(queries.page_closed, 50.0, None, None, 9), "amends_run_closed"),
        (Asked(queries.page_closed, 50.0, "t", (1.0, "u"), 9), "amends_run_closed"),
        (Asked(queries.page_runs, "t", ("committed",), (1000.0, "u"), 9), "amends_run_created"),
        (Asked(queries.page_runs, "t", (), None, 9), "amends_run_created"),
        (Asked(queries.page_calls, "t", (), None, 9), "amends_call_pkey"),
        (Asked(queries.page_calls, None, ("in_doubt",), None, 9), "amends_call_open"),
        (Asked(queries.page_calls, "t", ("in_doubt", "held"), "call_0000000000001388", 9), "amends_call_open"),
        (Asked(queries.page_events, "u5", None, 5, 9), "amends_event_pkey"),
        (Asked(queries.newest_call, "k", "u5"), "amends_call_key"),
        (Asked(queries.list_calls, "u5"), "amends_call_key"),
        (Asked(queries.list_tree, "u5"), "amends_run_root"),
        (Asked(queries.newest_run, "t", "i5"), "amends_run_id"),
    ],
    ids=repr,
)
def test_what_somebody_waits_for_is_found_by_its_own_index(
    connection: psycopg.Connection[Any], op: Asked, index: str
) -> None:
    assert index in plan_of(connection, op)


@pytest.mark.parametrize(
    "sql, key, index",
    [
        (WRITING.root_of_run, "u5", "amends_run_uid_key"),
        (WRITING.root_of_call, 5, "amends_run_pkey"),
        (WRITING.claim_root, "u5", "amends_run_uid_key"),
    ],
)
def test_a_root_is_locked_by_its_key(connection: psycopg.Connection[Any], sql: str, key: str | int, index: str) -> None:
    plan = str(connection.execute(f"explain {sql}".encode(), (key,)).fetchall())
    assert index in plan
    assert "Seq Scan" not in plan


# ---- migrations ---------------------------------------------------------------------------

MARKS = """
select (select string_agg(state, ',' order by no) from amends_call where attention = 1),
    (select string_agg(uid, ',' order by uid) from amends_run where unsealed = 1),
    pg_relation_filenode('amends_call'), pg_relation_filenode('amends_run')
"""


def test_the_marks_of_an_older_ledger_stay_and_no_table_is_rewritten(postgres_url: str) -> None:
    first = migrations("postgresql")[0]
    columns = {field.name: SAID.get(field.name, USUAL[str(field.type)]) for field in fields(rows.RunRow)}
    names, values = ", ".join(columns), ", ".join(columns.values())
    with psycopg.connect(postgres_url, autocommit=True) as db:
        for statement in first.statements:
            db.execute(statement.encode())
        db.execute("insert into amends_schema values (1, 1, 0, 'its name')")
        db.execute(f"insert into amends_run ({names}) select {values} from generate_series(1, 3) n".encode())
        db.execute(
            "update amends_run set closed_at = 1, n = 4, sealed = case when uid = 'u2' then 4 else 3 end where uid <> 'u1'"
        )
        for n, state in enumerate(CALL_STATES):
            db.execute(
                'insert into amends_call (no, root, "key", gen, n, tool, state, attempt, ident, digest, args, at, epoch)'
                " values (%s, 1, %s, 1, 1, 1, %s, 1, '', '', '', 0, 1)",
                (n, b"%d" % n, state),
            )
        before = db.execute(MARKS).fetchall()
        assert before[0][:2] == (",".join(one for one in CALL_STATES if one in OPEN), "u1,u3")
        store = PostgresStore(postgres_url)
        assert store.open(create=False) is False
        assert (store.schema().version, store.schema().ledger) == (len(migrations("postgresql")), "its name")
        store.close()
        assert db.execute(MARKS).fetchall() == before
        for table in ("amends_call", "amends_run"):
            with pytest.raises(psycopg.errors.CheckViolation, match=f"{table}_state_check"):
                db.execute(f"update {table} set state = 'unheard of'".encode())


def test_no_statement_of_a_plain_call_has_to_parse_a_condition_of_the_schema(
    connection: psycopg.Connection[Any],
) -> None:
    """PostgreSQL does that anew for each statement: it took a quarter of the server's time for a call."""
    hot = "('amends_run', 'amends_call')"
    checks = f"select conname from pg_constraint c join pg_class t on t.oid = c.conrelid where contype = 'c' and relname in {hot}"
    generated = (
        f"select column_name from information_schema.columns where is_generated <> 'NEVER' and table_name in {hot}"
    )
    assert connection.execute(f"{checks} union all {generated}".encode()).fetchall() == []


# ---- a plan is kept while the ledger grows ------------------------------------------------

PLAIN_STATEMENTS = [
    "_ADMIT_FIRST", "_ADMIT_AGAIN", "_SETTLE_PLAIN", "_SETTLE_SEALED", "_FAIL", "_BEGIN", "_END", "_TOGETHER", "_TURN_PLAIN",
    "_NEXT", "_LAST", "_TURN", "_COMMIT", "_CLOSE", "_OPEN_RUN",
]  # fmt: skip
READS = re.compile(r"(?:Scan|Scan using \w+) on amends_(?:call|run)\b")


@pytest.mark.parametrize("calls", [0, 50])
@pytest.mark.parametrize("name", PLAIN_STATEMENTS)
def test_a_plain_statement_that_is_planned_in_a_small_ledger_looks_its_rows_up(
    postgres_url: str, name: str, calls: int
) -> None:
    """The server keeps its plan: one that reads the whole table would do so when it has a million rows."""
    store = PostgresStore(postgres_url)
    store.open(create=True)
    store.close()
    numbers = itertools.count(1)
    sql = re.sub("%s", lambda _: f"${next(numbers)}", getattr(quick, name))
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute(
            'insert into amends_call (no, root, "key", gen, n, tool, state, attempt, ident, digest, args, at, epoch)'
            " select n, 1, n::text::bytea, 1, n, 1, 'started', 1, '', '', '', 0, 1 from generate_series(1, %s) n",
            (calls,),
        )
        db.execute("analyze")
        for statement in settings_of(read_url(postgres_url), "set").split("; "):
            db.execute(statement.encode())
        db.execute(f"prepare planned as {sql}".encode())
        nulls = ", ".join(["null"] * (next(numbers) - 1))
        plan = [line for (line,) in db.execute(f"explain execute planned({nulls})".encode()).fetchall()]
    for place, line in enumerate(plan):
        if READS.search(line):
            assert "Index Cond" in plan[place + 1] or "Recheck Cond" in plan[place + 1], "\n".join(plan)

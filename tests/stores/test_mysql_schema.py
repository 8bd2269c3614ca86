"""The migrations of MariaDB and MySQL say what ``rows.py`` and ``states.py`` say; every question has its index."""

import re
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pymysql  # type: ignore[import-untyped]
import pytest

from amends.ledger import queries, rows
from amends.ledger.flow import run_flow
from amends.ledger.operations import OpenRun
from amends.ledger.rows import (
    APPROVAL_STATES,
    CALLS,
    RUN_COLUMNS,
    RUNS,
    ApprovalRow,
    CheckpointRow,
    DelegationRow,
    DirectiveRow,
    LockRow,
    MarkRow,
    RunRow,
    SliceRow,
    WaitRow,
)
from amends.ledger.tables import Find
from amends.states import CALL_STATES, RUN_STATES
from amends.stores.calls import COLUMNS, TOOL, pack
from amends.stores.migrations import migrations
from amends.stores.mysql.quick import _admits
from amends.stores.mysql.store import RUN_ID_BYTES_MAX, TENANT_BYTES_MAX, MysqlStore
from amends.stores.quick import OPEN_ROOT
from amends.stores.sql import EVENT_COLUMNS, MYSQL, OPEN, Execute, Result, Statements, Transaction, as_sql
from tests.servers import databases
from tests.stores.test_schema import ASKED, IN_ORDER, Asked

TABLES = {
    "amends_run": RunRow, "amends_lock": LockRow, "amends_wait": WaitRow, "amends_budget": SliceRow,
    "amends_approval": ApprovalRow, "amends_delegation": DelegationRow, "amends_mark": MarkRow,
    "amends_checkpoint": CheckpointRow, "amends_directive": DirectiveRow,
}  # fmt: skip
"""The tables whose columns are the fields of a row."""
OTHERS = {
    "amends_schema",
    "amends_ledger",
    "amends_tool",
    "amends_call",
    "amends_ledger_key",
    "amends_answer",
    "amends_call_name",
    "amends_event",
}
OWN = {"no", "sealed", "unsealed", "ended_at", "attention", "owners", "touch", "n", "head", "at"}
"""Columns of these tables that no row has."""
GIVEN = {"amends_checkpoint": OWN - {"n", "at"}}
TYPES = {
    "str": ({"longtext", "varbinary", "varchar"}, "NO"),
    "int": ({"bigint"}, "NO"),
    "float": ({"double"}, "NO"),
    "float | None": ({"double"}, "YES"),
    "str | None": ({"longtext"}, "YES"),
}
COMPARED = {
    "amends_schema": set(),
    "amends_ledger": set(),
    "amends_tool": {"name", "version", "kind", "scope"},
    "amends_run": {"uid", "id", "tenant", "root", "parent", "owner", "forked_from"},
    "amends_call": set(),
    "amends_ledger_key": set(),
    "amends_answer": {"call", "root", "run_id"},
    "amends_call_name": {"id"},
    "amends_event": {"root", "run", "run_id", "tenant", "call"},
    "amends_lock": {"tenant", "name", "root", "run_id", "call"},
    "amends_wait": {"root", "tenant", "name", "run_id"},
    "amends_approval": {"id", "call", "run", "root", "run_id", "tenant", "use_key"},
    "amends_delegation": {"id", "tenant", "to_whom"},
    "amends_directive": {"id", "kind", "tenant", "tool"},
    "amends_mark": {"name"},
    "amends_checkpoint": set(),
    "amends_budget": {"name", "tenant", "root"},
}
"""The texts that are compared byte by byte."""
BYTES = {
    "amends_run": {"head"},
    "amends_call": {"key", "ident", "digest", "hash", "settled_hash", "comp_hash", "undone_hash"},
    "amends_ledger_key": {"key"},
    "amends_event": {"hash"},
}
"""What is no text, and is not decoded."""
KEPT = {"amends_schema", "amends_ledger"}


def filled(row: type[Any], **given: Any) -> dict[str, Any]:
    """A row of a table, with something in every column."""
    empty = {"str": "", "int": 0, "float": 0.0}
    return {field.name: empty.get(str(field.type)) for field in fields(row)} | given


def insert(cursor: Any, table: str, values: dict[str, Any]) -> None:
    names, marks = ", ".join(f"`{name}`" for name in values), ", ".join(["%s"] * len(values))
    cursor.execute(f"insert into {table} ({names}) values ({marks})", tuple(values.values()))


@pytest.fixture(scope="module")
def database(mysql_kept: str) -> Iterator[Any]:
    """A ledger with enough in it that a planner has something to choose."""
    store = MysqlStore(mysql_kept)
    databases.execute(mysql_kept, [f"delete from {table}" for table in (*TABLES, *OTHERS - KEPT)])
    with pymysql.connect(**databases.mysql_arguments(mysql_kept), autocommit=True) as connection:
        cursor = connection.cursor()
        tool = {"no": 1, "name": "pay", "version": "1", "kind": "compensatable", "scope": "run"}
        insert(cursor, "amends_tool", tool | {"declared": 1, "undoable": 1, "at_commit": 0})
        for number in range(300):
            uid, owner = f"u{number}", "" if number % 30 else "somebody"
            wake_at, state = None if number % 10 else 1.0 + number, "succeeded" if number % 30 else "in_doubt"
            run = filled(
                RunRow, uid=uid, id=f"i{number}", tenant="t", generation=1, root=uid, state="open", owner=owner,
                created_at=5.0 + number, wake_at=wake_at,
            )  # fmt: skip
            insert(cursor, "amends_run", {"no": number + 1} | run)
            call = {"no": number + 1, "root": number + 1, "key": pack(f"k{number}"), "gen": 1, "n": 2, "tool": 1}
            call |= {"state": state, "attempt": 1, "ident": b"i", "digest": b"d", "args": "", "at": 5.0, "epoch": 1}
            insert(cursor, "amends_call", call)
            insert(cursor, "amends_call_name", {"id": f"c{number}", "call": number + 1})
            insert(cursor, "amends_ledger_key", {"key": pack(f"k{number}"), "gen": 1, "call": number + 1})
            approval = filled(ApprovalRow, id=f"a{number}", seq=number + 1, call=f"c{number}", run=uid, root=uid)
            approval |= {"tenant": "t", "state": "used" if number % 30 else "pending"}
            insert(cursor, "amends_approval", approval)
            event = dict.fromkeys(EVENT_COLUMNS, "") | {"root": uid, "n": 1, "at": 1.0, "tenant": "t", "epoch": 1}
            insert(cursor, "amends_event", event | {"hash": b"h" * 32})
        cursor.execute("analyze table amends_run, amends_call, amends_event, amends_ledger_key, amends_call_name")
        yield cursor
    store.close()


@pytest.mark.parametrize("table", TABLES)
def test_the_columns_are_the_fields_in_their_order(database: Any, table: str) -> None:
    database.execute(
        "select column_name, data_type, is_nullable from information_schema.columns "
        "where table_schema = database() and table_name = %s order by ordinal_position",
        (table,),
    )
    found = [row for row in database.fetchall() if row[0] not in GIVEN.get(table, OWN)]
    assert [name for name, *_ in found] == [field.name for field in fields(TABLES[table])]
    for field, (name, kind, null) in zip(fields(TABLES[table]), found, strict=True):
        kinds, may_be_null = TYPES[str(field.type)]
        assert kind in kinds, name
        assert null == may_be_null, name


@pytest.mark.parametrize(
    "table, columns",
    [
        ("amends_call", (*COLUMNS, "attention")),
        ("amends_event", EVENT_COLUMNS),
        ("amends_tool", ("no", "name", *TOOL[1:])),
        ("amends_run", ("no", *RUN_COLUMNS, "owners", "touch", "n", "head", "at", "sealed", "unsealed", "ended_at")),
    ],
)
def test_the_columns_are_those_that_are_written(database: Any, table: str, columns: tuple[str, ...]) -> None:
    database.execute(
        "select column_name from information_schema.columns "
        "where table_schema = database() and table_name = %s order by ordinal_position",
        (table,),
    )
    assert tuple(name for (name,) in database.fetchall()) == columns


@pytest.mark.parametrize("table", COMPARED)
def test_what_is_compared_is_compared_byte_by_byte(database: Any, table: str) -> None:
    """Every collation that both servers have takes 'a' for 'a '."""
    database.execute(
        "select column_name, data_type from information_schema.columns "
        "where table_schema = database() and table_name = %s",
        (table,),
    )
    found = dict(database.fetchall())
    assert {name for name, kind in found.items() if kind == "varbinary"} == COMPARED[table]
    bare = {name for name, kind in found.items() if kind in ("binary", "tinyblob", "longblob")}
    assert bare == BYTES.get(table, set())


def test_the_tables_are_kept_by_innodb(database: Any) -> None:
    database.execute("select table_name, engine from information_schema.tables where table_schema = database()")
    assert set(database.fetchall()) == {(name, "InnoDB") for name in (*TABLES, *OTHERS)}


@pytest.mark.parametrize(
    "table, word, states",
    [
        ("amends_run", "check", RUN_STATES),
        ("amends_call", "check", CALL_STATES),
        ("amends_call", "when", OPEN),
        ("amends_approval", "check", APPROVAL_STATES),
    ],
)
def test_the_states_of_the_schema_are_those_of_the_tables(table: str, word: str, states: tuple[str, ...]) -> None:
    [text] = [
        one for one in migrations("mysql")[0].statements if one.startswith(f"create table if not exists {table} ")
    ]
    found = re.search(rf"{word} \(?state in \(([^)]*)\)", text)
    assert found is not None
    assert re.findall(r"'(\w+)'", found[1]) == list(states)


@pytest.mark.parametrize("name", ["amends_turn_1", "amends_move_1"])
def test_a_procedure_that_needs_an_open_run_asks_what_the_other_stores_ask(name: str) -> None:
    [text] = [one for one in migrations("mysql")[0].statements if one.startswith(f"create procedure {name}(")]
    assert OPEN_ROOT in " ".join(text.split())


@pytest.mark.parametrize(
    "change",
    [{"state": "pivoted"}, {"goal": "commit"}, {"pivot": "call"}, {"deadline_at": 5.0}, {"forked_from": "run"}],
)
def test_what_the_rows_say_of_an_open_run_is_what_the_statements_ask(database: Any, change: dict[str, Any]) -> None:
    """``_admits`` judges a row in Python, as ``OPEN_ROOT`` does in SQL."""
    row = RunRow(**filled(RunRow, uid="u1", id="i1", tenant="t", generation=1, root="u1", state="open"))
    for changes, expected in (({}, 1), (change, 0)):
        assert _admits(replace(row, **changes)) is bool(expected)
        values = {"goal": "", "pivot": "", "deadline_at": None, "forked_from": "", "state": "open"} | changes
        columns = ", ".join(f"%s as {name}" for name in values)
        database.execute(f"select {OPEN_ROOT} from (select {columns}) one", tuple(values.values()))
        assert database.fetchall() == ((expected,),)


def test_a_state_that_no_table_has_is_not_stored(database: Any) -> None:
    for table, key in (("amends_run", "uid = 'u1'"), ("amends_call", "no = 1")):
        with pytest.raises(pymysql.err.MySQLError):
            database.execute(f"update {table} set state = 'nonsense' where {key}")


def test_ids_as_long_as_may_be_fit_into_their_index(mysql_kept: str) -> None:
    store = MysqlStore(mysql_kept)
    op = OpenRun(
        uid="long", id="\N{SMILING FACE WITH HALO}" * (RUN_ID_BYTES_MAX // 4), tenant="t" * TENANT_BYTES_MAX, owner="a",
        opener="o", lease_s=1.0, input="", input_digest="", boot="b", mono=1.0,
    )  # fmt: skip
    assert store.perform(op).run.id == op.id
    store.close()


# ---- every question has its index ---------------------------------------------------------


def asked_of(database: Any, op: Asked) -> list[dict[str, Any]]:
    """How the server means to answer, table by table."""
    lines: list[dict[str, Any]] = []

    def explain(execute: Execute) -> Result:
        database.execute(f"explain {execute.sql}", execute.params)
        names = [column[0] for column in database.description]
        lines.extend(dict(zip(names, row, strict=True)) for row in database.fetchall())
        return [(0.0, 0.0)] if execute.sql == statements.newest else [], 0, 0

    statements = Statements(MYSQL)
    run_flow(as_sql(op.flow(), Transaction(statements, float)), explain)
    return [line for line in lines if line["table"] and line["select_type"] != "INSERT"]


@pytest.mark.parametrize("op", ASKED, ids=repr)
def test_no_question_walks_through_a_table(database: Any, op: Asked) -> None:
    in_order = op.ask in IN_ORDER
    for line in asked_of(database, op):
        found = line["type"] in ("const", "ref", "eq_ref", "range")
        assert found or (in_order and line["type"] == "index"), line
        if in_order:
            assert "filesort" not in (line["Extra"] or ""), line


@pytest.mark.parametrize(
    "op, index",
    [
        (Asked(Find, RUNS, "u7"), "amends_run_uid"),
        (Asked(queries.newest_run, "t", "i7"), "amends_run_id"),
        (Asked(queries.list_tree, "u7"), "amends_run_root"),
        (Asked(queries.list_due, 20.0, None, 9), "amends_run_wake"),
        (Asked(queries.list_due, 20.0, "t", 9), "amends_run_wake"),
        (Asked(queries.list_owned, None, 9), "amends_run_owned"),
        (Asked(queries.list_owned, "t", 9), "amends_run_owned"),
        (Asked(queries.page_closed, 50.0, None, None, 9), "amends_run_closed"),
        (Asked(queries.page_closed, 50.0, "t", (1.0, "u"), 9), "amends_run_closed"),
        (Asked(queries.page_runs, "t", ("open",), (100.0, "u"), 9), "amends_run_created"),
        (Asked(Find, CALLS, "c7"), "PRIMARY"),
        (Asked(queries.newest_call, "k7", "u7"), "amends_call_key"),
        (Asked(queries.newest_call, "k7", ""), "PRIMARY"),
        (Asked(queries.list_calls, "u7"), "amends_call_key"),
        (Asked(queries.page_calls, None, ("in_doubt",), None, 9), "amends_call_open"),
        (Asked(queries.page_calls, "t", ("in_doubt", "held"), "call_0000000000001388", 9), "amends_call_open"),
        (Asked(queries.page_events, "u7", None, 0, 9), "PRIMARY"),
        (Asked(queries.page_events, None, None, "5000000.r.1", 9), "amends_event_at"),
        (Asked(rows.PageUnsealed, "u7", 9), "amends_run_unsealed"),
        (Asked(rows.CountStates, "t", 9), "amends_run_created"),
        (Asked(queries.list_due_notices, 20.0, None, 9), "amends_approval_tell"),
        (Asked(queries.list_due_notices, 20.0, "t", 9), "amends_approval_tell"),
        (Asked(queries.list_due_requests, 20.0, None, 9), "amends_approval_due"),
        (Asked(queries.list_due_requests, 20.0, "t", 9), "amends_approval_due"),
    ],
    ids=repr,
)
def test_what_somebody_waits_for_is_found_by_its_own_index(database: Any, op: Asked, index: str) -> None:
    assert any(line["key"] == index for line in asked_of(database, op))


def test_a_page_begins_where_the_last_one_ended(database: Any) -> None:
    """Not by walking from the newest run to it."""
    [line] = asked_of(database, Asked(queries.page_runs, None, (), (10.0, "u5"), 9))
    assert line["type"] == "range"
    assert int(line["rows"]) < 20

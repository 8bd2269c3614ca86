"""The migrations of MariaDB and MySQL say what ``rows.py`` and ``states.py`` say; every question has its index."""

import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from typing import Any

import pymysql  # type: ignore[import-untyped]
import pytest

from amends.ledger import rows
from amends.ledger.flow import run_flow
from amends.ledger.operations import OpenRun
from amends.states import CALL_STATES, RUN_STATES
from amends.stores.migrations import migrations
from amends.stores.mysql.store import RUN_ID_BYTES_MAX, TENANT_BYTES_MAX, MysqlStore
from amends.stores.sql import _ROWS, MYSQL, OPEN, Execute, Result, Statements, Transaction
from tests.servers import databases
from tests.stores.test_schema import ASKED, TABLES

OWN = {"place", "sealed", "attention", "ended_at"}
"""Columns that no row has."""
TYPES = {
    "str": ({"longtext", "varbinary", "varchar"}, "NO"),
    "int": ({"bigint"}, "NO"),
    "float": ({"double"}, "NO"),
    "float | None": ({"double"}, "YES"),
    "str | None": ({"longtext"}, "YES"),
}
COMPARED = {
    "runs": {"uid", "id", "tenant", "root", "parent", "owner", "forked_from"},
    "calls": {"id", "run", "root", "run_id", "tenant", "key"},
    "events": {"root", "run", "run_id", "tenant", "call"},
    "locks": {"tenant", "name", "root", "run_id", "call"},
    "waits": {"root", "tenant", "name", "run_id"},
    "approvals": {"id", "call", "run", "root", "run_id", "tenant", "use_key"},
    "delegations": {"id", "tenant", "to_whom"},
    "marks": {"name"},
    "checkpoints": set(),
    "budgets": {"name", "tenant", "root"},
}


@pytest.fixture(scope="module")
def database(mysql_kept: str) -> Iterator[Any]:
    """A ledger with enough in it that a planner has something to choose."""
    store = MysqlStore(mysql_kept)
    databases.execute(mysql_kept, [f"delete from {table}" for table in TABLES])
    with pymysql.connect(**databases.mysql_arguments(mysql_kept), autocommit=True) as connection:
        cursor = connection.cursor()
        for number in range(300):
            owner = "" if number % 30 else "somebody"
            wake_at = None if number % 10 else 1.0 + number
            cursor.execute(
                "insert into runs (uid, id, tenant, generation, root, parent, state, created_at, input, input_digest,"
                " owner, wake_at) values (%s, %s, 't', 1, %s, '', 'open', %s, '', '', %s, %s)",
                (f"u{number}", f"i{number}", f"u{number}", 5.0 + number, owner, wake_at),
            )
            cursor.execute(
                "insert into calls (id, seq, run, root, run_id, tenant, tool, version, kind, `key`, generation, ident,"
                " digest, args, state, created_at, created_epoch, asked_epoch) values"
                " (%s, %s, %s, %s, 'i', 't', '', '', '', %s, 1, '', '', '', %s, 5.0, 1, 1)",
                (f"c{number}", number + 1, f"u{number}", f"u{number}", f"k{number}",
                 "succeeded" if number % 30 else "in_doubt"),
            )  # fmt: skip
            cursor.execute(
                "insert into approvals (id, seq, `call`, run, root, run_id, tenant, tool, version, principal, agent, digest,"
                " nonce, state, needed, roles, reasons, rule, policy, given, requested_at, expires_at) values"
                " (%s, %s, %s, %s, %s, 'i', 't', '', '', '', '', '', '', %s, 1, '[]', '[]', '', '', '[]', 1.0, 2.0)",
                (f"a{number}", number + 1, f"c{number}", f"u{number}", f"u{number}",
                 "used" if number % 30 else "pending"),
            )  # fmt: skip
            cursor.execute(
                "insert into events (at, root, run, run_id, tenant, `call`, what, frm, to_state, by_whom, epoch, facts,"
                " n, hash) values (1.0, %s, '', '', 't', '', '', '', '', '', 1, '', 1, '')",
                (f"u{number}",),
            )
        cursor.execute("analyze table runs, calls, events")
        yield cursor
    store.close()


@pytest.mark.parametrize("table", TABLES)
def test_the_columns_are_the_fields_in_their_order(database: Any, table: str) -> None:
    database.execute(
        "select column_name, data_type, is_nullable from information_schema.columns "
        "where table_schema = database() and table_name = %s order by ordinal_position",
        (table,),
    )
    found = [row for row in database.fetchall() if row[0] not in OWN]
    assert [name for name, *_ in found] == [field.name for field in fields(TABLES[table])]
    for field, (name, kind, null) in zip(fields(TABLES[table]), found, strict=True):
        kinds, may_be_null = TYPES[str(field.type)]
        assert kind in kinds, name
        assert null == may_be_null, name


@pytest.mark.parametrize("table", TABLES)
def test_a_field_with_a_default_may_be_left_out(database: Any, table: str) -> None:
    asked = [field.name for field in fields(TABLES[table]) if field.default is not MISSING]
    if not asked:
        return
    database.execute(f"select {', '.join(asked)} from {table} limit 1")
    [found] = database.fetchall()
    given = {"owner", "wake_at", "input", "input_digest"}
    for field, value in zip([one for one in fields(TABLES[table]) if one.name in asked], found, strict=True):
        if field.name not in given:
            assert (value.decode() if isinstance(value, bytes) else value) == field.default, field.name


@pytest.mark.parametrize("table", TABLES)
def test_what_is_compared_is_compared_byte_by_byte(database: Any, table: str) -> None:
    """Every collation that both servers have takes 'a' for 'a '."""
    database.execute(
        "select column_name from information_schema.columns "
        "where table_schema = database() and table_name = %s and data_type = 'varbinary'",
        (table,),
    )
    assert {name for (name,) in database.fetchall()} == COMPARED[table]


def test_the_tables_are_kept_by_innodb(database: Any) -> None:
    database.execute("select table_name, engine from information_schema.tables where table_schema = database()")
    assert set(database.fetchall()) == {(name, "InnoDB") for name in (*TABLES, "amends_schema")}


def test_the_states_of_the_schema_are_those_of_the_tables() -> None:
    [_, runs, calls, *_] = migrations("mysql")[0].statements
    assert _named(runs, "check") == list(RUN_STATES)
    assert _named(calls, "check") == list(CALL_STATES)
    assert _named(calls, "when") == list(OPEN)


def _named(text: str, word: str) -> list[str]:
    found = re.search(rf"{word} \(?state in \(([^)]*)\)", text)
    assert found is not None
    return re.findall(r"'(\w+)'", found[1])


def test_a_state_that_no_table_has_is_not_stored(database: Any) -> None:
    for table, key in (("runs", "uid = 'u1'"), ("calls", "id = 'c1'")):
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


def asked_of(database: Any, op: Any) -> list[dict[str, Any]]:
    """How the server means to answer, table by table."""
    lines: list[dict[str, Any]] = []

    def explain(execute: Execute) -> Result:
        database.execute(f"explain {execute.sql}", execute.params)
        names = [column[0] for column in database.description]
        lines.extend(dict(zip(names, row, strict=True)) for row in database.fetchall())
        return [], 0, 0

    run_flow(_ROWS[type(op)](Transaction(Statements(MYSQL), float), op), explain)
    return [line for line in lines if line["table"] and line["select_type"] != "INSERT"]


@pytest.mark.parametrize("op", ASKED, ids=repr)
def test_no_question_walks_through_a_table(database: Any, op: Any) -> None:
    in_order = isinstance(op, rows.Now | rows.PageRuns | rows.PageCalls | rows.PageEvents | rows.PageApprovals)
    in_order = in_order or isinstance(op, rows.NewestCheckpoint)
    for line in asked_of(database, op):
        found = line["type"] in ("const", "ref", "eq_ref", "range")
        assert found or (in_order and line["type"] == "index"), line
        if in_order:
            assert "filesort" not in (line["Extra"] or ""), line


@pytest.mark.parametrize(
    "op, index",
    [
        (rows.FindRun("u7"), "runs_uid"),
        (rows.FindRunById("t", "i7"), "runs_id"),
        (rows.ListTree("u7"), "runs_root"),
        (rows.ListDue(20.0, None, 9), "runs_wake"),
        (rows.ListDue(20.0, "t", 9), "runs_wake"),
        (rows.ListOwned(None, 9), "runs_owned"),
        (rows.ListOwned("t", 9), "runs_owned"),
        (rows.PageClosed(50.0, None, None, 9), "runs_closed"),
        (rows.PageClosed(50.0, "t", (1.0, "u"), 9), "runs_closed"),
        (rows.PageRuns("t", ("open",), (100.0, "u"), 9), "runs_created"),
        (rows.FindCall("c7"), "calls_id"),
        (rows.FindKey("k7"), "calls_key"),
        (rows.ListCalls("u7"), "calls_root"),
        (rows.PageCalls(None, ("in_doubt",), None, 9), "calls_open"),
        (rows.PageCalls("t", ("in_doubt", "held"), "c200", 9), "calls_open"),
        (rows.PageEvents("u7", None, 0, 9), "events_root"),
        (rows.ListDueNotices(20.0, None, 9), "approvals_tell"),
        (rows.ListDueNotices(20.0, "t", 9), "approvals_tell"),
    ],
    ids=repr,
)
def test_what_somebody_waits_for_is_found_by_its_own_index(database: Any, op: Any, index: str) -> None:
    assert any(line["key"] == index for line in asked_of(database, op))


def test_a_page_begins_where_the_last_one_ended(database: Any) -> None:
    """Not by walking from the newest run to it."""
    [line] = asked_of(database, rows.PageRuns(None, (), (10.0, "u5"), 9))
    assert line["type"] == "range"
    assert int(line["rows"]) < 20

"""The SQL is said once: for another spelling, and for a connection that is awaited."""

import asyncio
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from amends.encoding.dataclass import changed
from amends.encoding.ids import call_id
from amends.errors import TransitionRefused
from amends.ledger import operations as ops
from amends.ledger.dispatch import intent
from amends.ledger.flow import Flow, run_flow
from amends.ledger.rows import CALL_COLUMNS, CALLS, RUNS, CallRow, RunRow
from amends.ledger.tables import Add, Change
from amends.states import CALL_MOVES, CALL_STATES, call_may
from amends.stores.migrations import migrations
from amends.stores.sql import _ROWS, SQLITE, Dialect, Execute, Result, Statements, Transaction, as_sql
from amends.testing.conformance.ledger import Ledger

OTHER = Dialect(
    "other",
    mark="%s",
    quote="`",
    lock=" for update",
    skip=" for update skip locked",
    clock="",
    index="",
)


def database() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    for migration in migrations("sqlite"):
        for statement in migration.statements:
            connection.execute(statement)
    return connection


class Awaited:
    """An async connection to a database with other habits: it is given that dialect's words and translates them."""

    def __init__(self) -> None:
        self.raw = database()
        self.said: list[str] = []

    async def execute(self, op: Execute) -> Result:
        await asyncio.sleep(0)
        self.said.append(op.sql)
        cursor = self.raw.execute(
            op.sql.replace("%s", "?").replace("`", '"').replace(" for update", "").replace(" skip locked", ""),
            op.params,
        )
        found = cursor.fetchall()
        return found, cursor.rowcount, 0

    async def drive(self, flow: Flow[Any]) -> Any:
        answer: Any = None
        try:
            while True:
                answer = await self.execute(flow.send(answer))  # type: ignore[arg-type]
        except StopIteration as stop:
            return stop.value


class Spoken:
    """A store over it, as the store of another database would be."""

    url = "other:"

    def __init__(self) -> None:
        self.line = Awaited()
        self.statements = Statements(OTHER)

    def open(self, *, create: bool) -> bool:
        return create

    def close(self) -> None:
        self.line.raw.close()

    def perform(self, op: ops.StoreOp[Any]) -> Any:
        return asyncio.run(self.perform_async(op))

    async def perform_async(self, op: ops.StoreOp[Any]) -> Any:
        return await self.line.drive(as_sql(intent(op), Transaction(self.statements, lambda: 5.0)))


def test_the_same_flows_serve_another_dialect_and_an_async_connection() -> None:
    store = Spoken()
    ledger = Ledger(store, "async")
    run = ledger.run()
    call = ledger.do(run)
    assert ledger.admit(run).verdict == "replay"
    assert ledger.commit(run).how == "committed"
    assert ledger.look(call) == call
    assert all("?" not in sql and '"' not in sql for sql in store.line.said)
    locking = [sql for sql in store.line.said if sql.endswith(" for update")]
    assert any("where uid = (select root from amends_run where uid = %s)" in sql for sql in locking)
    assert any("where no = (select root from amends_call where no = %s)" in sql for sql in locking)
    assert all(" from amends_run " in sql for sql in locking), "a call is safe while its root is locked"
    store.close()


def test_a_text_is_built_once_per_shape() -> None:
    statements = Statements(SQLITE)
    first = statements.change(RUNS, ("state", "goal_why"), "blocked")
    assert statements.change(RUNS, ("state", "goal_why"), "blocked") is first
    assert statements.change(RUNS, ("state", "goal_why"), "open") != first
    first = statements.change(CALLS, ("state", "more"), "failed")
    assert statements.change(CALLS, ("state", "more"), "failed") is first
    assert statements.change(CALLS, ("state", "more"), "succeeded") != first


# ---- the guard ----------------------------------------------------------------------------


def a_call(state: str) -> CallRow:
    values: dict[str, Any] = {"str": "", "int": 0, "float": 0.0, "float | None": None, "str | None": None}
    given = {name: values[str(field.type)] for name, field in CallRow.__dataclass_fields__.items()}
    return CallRow(**given | {"id": call_id(7), "run": "r", "root": "r", "state": state})


def holding(row: CallRow) -> tuple[sqlite3.Connection, Statements, Callable[[Flow[Any]], Any]]:
    """Return a ledger with this call, and how to run a flow over it."""
    connection, statements = database(), Statements(SQLITE)

    def execute(op: Execute) -> Result:
        cursor = connection.execute(op.sql, op.params)
        return cursor.fetchall(), cursor.rowcount, 0

    def run(flow: Flow[Any]) -> Any:
        return run_flow(flow, execute)

    tx = Transaction(statements, float)
    run(_ROWS[Add](tx, Add(RUNS, RunRow("r", "i", "t", 1, "r", "", "open", 0.0))))
    run(_ROWS[Add](tx, Add(CALLS, row)))
    return connection, statements, run


@pytest.mark.parametrize("frm", CALL_STATES)
@pytest.mark.parametrize("to", CALL_STATES)
def test_the_database_itself_refuses_a_move_that_the_table_does_not_have(frm: str, to: str) -> None:
    row = a_call(frm)
    connection, statements, run = holding(row)
    update = _ROWS[Change](Transaction(statements, float), Change(CALLS, row, {"state": to}))
    if call_may(frm, to):
        assert run(update).state == to
    else:
        with pytest.raises(TransitionRefused) as refused:
            run(update)
        assert (refused.value.frm, refused.value.to) == (frm, to)
    [(stored,)] = connection.execute("select state from amends_call")
    assert stored == (to if call_may(frm, to) else frm)
    connection.close()


def test_the_database_refuses_a_change_from_a_state_that_is_no_longer_there() -> None:
    """What was read is stale: nothing is overwritten, whatever the table says about the move."""
    connection, statements, run = holding(a_call("succeeded"))
    before = connection.execute("select * from amends_call").fetchall()
    stale = a_call("started")
    for changes in ({"state": "in_doubt"}, {"why": "x"}, {"attempt": 2}, {"result": '"x"', "state": "succeeded"}):
        with pytest.raises(TransitionRefused):
            run(_ROWS[Change](Transaction(statements, float), Change(CALLS, stale, changes)))
    assert connection.execute("select * from amends_call").fetchall() == before
    connection.close()


def test_rows_made_quickly_are_rows() -> None:
    row = a_call("started")
    made = changed(row, {"state": "failed"})
    assert made == CallRow(**{n: getattr(row, n) for n in CALL_COLUMNS} | {"state": "failed"})
    assert type(made) is CallRow
    assert hash(changed(made, {"state": "started"})) == hash(row)
    assert set(CALL_MOVES) >= set(CALL_STATES)

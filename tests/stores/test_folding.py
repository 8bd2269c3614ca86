"""Folded events: what later happens to the row of a call changes none of them, and an audit finds whoever changes one."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from amends.audit.verify import Audit, verify_chains
from amends.encoding.ids import number_of
from amends.ledger import operations as ops
from amends.ledger.dispatch import intent
from amends.ledger.flow import run_flow
from amends.ledger.operations import RewriteTexts
from amends.ledger.plain import SettlePlain
from amends.ledger.rows import CALLS, CallRow, RunRow, lost_at
from amends.ledger.tables import Change
from amends.stores.calls import COVERED
from amends.stores.sql import _ROWS, Execute, Result, Transaction, as_sql
from amends.stores.sqlite.store import STATEMENTS, SqliteStore
from amends.testing.conformance.ledger import Clock, Ledger, audit

FOLDED = (
    "select hash is not null, settled_hash is not null, comp_hash is not null, undone_hash is not null from amends_call"
)
Edit = Callable[..., list[Any]]


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    clock = Clock()
    with closing(SqliteStore(tmp_path / "ledger.db", "NORMAL", clock)) as store:
        store.open(create=True)
        yield Ledger(store, clock=clock)


@pytest.fixture
def edit(ledger: Ledger, tmp_path: Path) -> Edit:
    """Say something to the file, as anybody can."""

    def said(sql: str, *params: Any) -> list[Any]:
        with closing(sqlite3.connect(tmp_path / "ledger.db")) as raw:
            found = raw.execute(sql, params).fetchall()
            raw.commit()
        return found

    return said


def done(ledger: Ledger, run: RunRow, **given: Any) -> CallRow:
    """Start and settle a plain call."""
    call: CallRow = ledger(SettlePlain(ledger.start_plain(run, **given), '"ok"')).call
    return call


def undone(ledger: Ledger) -> tuple[RunRow, CallRow]:
    """Let an ordinary call have its four events, all of them folded."""
    run = ledger.run()
    ledger.start_plain(run, "other", args="[]")  # an unknown tool goes through the flow; the next does not
    ledger(ops.SettleCall(ledger.calls()[0].id, "a", 1, 1, "failed", error="no"))
    call = done(ledger, run, tool="other", args="[1]")
    ledger.roll_back(run)
    return run, ledger.compensate(call)


def verified(ledger: Ledger) -> Any:
    return run_flow(verify_chains(Audit()), ledger).verified()


def test_the_four_events_of_an_ordinary_call_are_in_its_row(ledger: Ledger, edit: Edit) -> None:
    _, call = undone(ledger)
    assert edit(f"{FOLDED} where no = ?", number_of(call.id)) == [(1, 1, 1, 1)]
    assert edit('select * from amends_event where "call" = ?', call.id) == []
    moves = [event.to_state for event in ledger.events() if event.call == call.id]
    assert moves == ["started", "succeeded", "compensating", "compensated"]
    audit(ledger)


@pytest.mark.parametrize(
    "name, column", [(name, column) for name, columns in COVERED for column in columns], ids=lambda one: str(one)
)
def test_an_event_becomes_a_row_before_a_column_that_it_was_made_from_changes(
    ledger: Ledger, edit: Edit, tmp_path: Path, name: str, column: str
) -> None:
    _, call = undone(ledger)
    before = ledger.events()
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as raw:

        def execute(op: Execute) -> Result:
            cursor = raw.execute(op.sql, op.params)
            return cursor.fetchall(), cursor.rowcount, 0

        update = Change(CALLS, call, {column: getattr(call, column) + 5})
        changed = run_flow(_ROWS[Change](Transaction(STATEMENTS, Clock()), update), execute)
        raw.commit()
    assert getattr(changed, column) == getattr(call, column) + 5
    assert ledger.look(call) == changed
    assert ledger.events() == before, "the same events, of which some are rows now"
    assert edit('select count(*) from amends_event where "call" = ?', call.id)[0][0] >= 1
    assert edit(f"select {name} from amends_call where no = ?", number_of(call.id)) == [(None,)]


def test_a_second_attempt_to_compensate_leaves_the_first_in_the_record(ledger: Ledger, edit: Edit) -> None:
    run = ledger.run()
    done(ledger, run, args="[0]")
    call = done(ledger, run, args="[1]")
    ledger.roll_back(run)
    begun = ledger(ledger.compensate_op(call))
    assert edit(f"{FOLDED} where no = ?", number_of(call.id)) == [(1, 1, 1, 0)]
    failed = ledger.settle_compensation(begun, "compensation_failed").call
    ledger(ops.RetryCall(call.id, "ann", "again"))
    assert ledger.compensate(failed).state == "compensated"
    assert edit(f"{FOLDED} where no = ?", number_of(call.id)) == [(1, 1, 0, 0)]
    moves = [event.to_state for event in ledger.events() if event.call == call.id and event.what == "call"]
    assert moves == ["started", "succeeded", "compensating", "compensation_failed", "compensating", "compensated"]
    audit(ledger)


def test_gc_keeps_what_proves_the_payloads_that_it_removes(ledger: Ledger, edit: Edit) -> None:
    run = ledger.run()
    done(ledger, run, args="[0]")
    call = done(ledger, run, args="[1]", call_ref="ref")
    before = [event for event in ledger.events() if event.call == call.id]
    assert ledger.commit(run).how == "committed"
    ledger.clock.now += 1000
    assert ledger(ops.CollectGarbage(10.0)).runs
    gone = ledger.look(call)
    assert (gone.args, gone.result) != (call.args, call.result)
    assert [event for event in ledger.events() if event.call == call.id][: len(before)] == before
    assert edit(f"{FOLDED} where no = ?", number_of(call.id)) == [(1, 1, 0, 0)], "they are still folded"
    audit(ledger)


def test_gc_empties_many_calls_by_few_statements(ledger: Ledger, tmp_path: Path) -> None:
    """Trees of all sizes, plain and failed calls: each is emptied, nothing is unfolded, and the trees share statements."""
    sizes = (0, 1, 3, 4, 70, 5, 1, 2, 1, 16, 17, 3)
    calls = []
    for place, size in enumerate(sizes):
        run = ledger.run(f"run {place}")
        for number in range(size):
            made = done(ledger, run, args=f"[{number}]", tool=f"tool {place}")
            calls.append(made)
        failed = ledger.settle(
            ledger.start(run, "fails", args='["x"]'), "failed", error='["ValueError", "secret"]'
        ).call
        calls.append(failed)
        assert ledger.commit(run).how == "committed"
    ledger.clock.now += 1000
    before = {event.hash for event in ledger.events()}
    tx, asked = Transaction(STATEMENTS, ledger.clock), list[str]()
    with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as database:

        def execute(op: Any) -> tuple[list[Any], int, int]:
            asked.append(op.sql)
            cursor = database.execute(op.sql, op.params)
            return cursor.fetchall(), cursor.rowcount, 0

        database.execute("begin immediate")
        swept = run_flow(as_sql(intent(ops.CollectGarbage(10.0)), tx), execute)
        database.execute("commit")
    assert (swept.runs, swept.calls) == (len(sizes), len(calls))
    assert len([sql for sql in asked if sql.startswith("update amends_call")]) == 3, (
        "64 and 30 calls of eight trees, and 41 of four"
    )
    assert len(asked) <= 5 * len(sizes) + 2 * 4 + 6
    for call in calls:
        gone = ledger.look(call)
        assert lost_at(gone.args) == ledger.clock.now
        assert "secret" not in gone.error
        assert gone.result is None or lost_at(gone.result) == ledger.clock.now
    assert before < {event.hash for event in ledger.events()}
    assert len(ledger.events()) == len(before) + len(sizes), "one event for each tree"
    audit(ledger)


def test_encrypting_again_keeps_what_proves_the_payloads(ledger: Ledger, edit: Edit) -> None:
    run = ledger.run()
    done(ledger, run, args="[0]")
    call = done(ledger, run, args="[1]")
    before = ledger.events()
    for round in ("one", "two"):
        was = {"args": ledger.look(call).args, "result": ledger.look(call).result or ""}
        assert ledger(RewriteTexts(call.id, True, was, {"args": f"sealed {round}", "result": f"sealed {round}"})) == 2
        assert ledger.events() == before
        assert edit(f"{FOLDED} where no = ?", number_of(call.id)) == [(1, 1, 0, 0)]
    assert ledger.look(call).args == "sealed two"
    # Without a key an audit cannot say that these texts are what was written; the chain itself is as it was.
    assert {problem.how for problem in verified(ledger).problems} == {"payload_changed"}


EDITS = [
    "args = '[9]'", "result = '\"never\"'", "at = at + 1", "settled_at = settled_at + 1", "comp_at = comp_at + 1",
    "undone_at = undone_at + 1", "attempt = 2", "epoch = 2", "comp_epoch = 2", "hash = zeroblob(32)", "hash = null",
    "settled_hash = zeroblob(32)", "settled_hash = null", "comp_hash = null", "undone_hash = null", "n = n + 100",
    "settled_n = settled_n + 100", "comp_n = comp_n + 100", "undone_n = undone_n + 100", '"key" = zeroblob(32)',
    "ident = zeroblob(32)", "digest = zeroblob(32)", "gen = 2", "state = 'succeeded'",
    "more = '{\"args_proof\":\"00\"}'", "more = '{\"result_proof\":\"00\"}'", "more = '{\"comp_attempt\":7}'",
    "more = '{\"run\":\"another\"}'", "more = '{\"call_ref\":\"another\"}'",
]  # fmt: skip


@pytest.mark.parametrize("change", EDITS)
def test_whoever_edits_the_row_of_a_call_is_found(ledger: Ledger, edit: Edit, change: str) -> None:
    _, call = undone(ledger)
    assert verified(ledger).ok
    edit(f"update amends_call set {change} where no = ?", number_of(call.id))
    assert not verified(ledger).ok


@pytest.mark.parametrize(
    "sql",
    [
        "update amends_tool set name = 'another'",
        "update amends_tool set undoable = 0",
        'update amends_run set owners = \'{"1":"b"}\'',
        "update amends_run set tenant = 'another'",
        "delete from amends_call where undone_hash is not null",
    ],
)
def test_whoever_edits_what_a_call_has_in_common_with_others_is_found(ledger: Ledger, edit: Edit, sql: str) -> None:
    undone(ledger)
    edit(sql)
    assert not verified(ledger).ok

"""Folded events: what later happens to the row of a call changes none of them, and an audit finds whoever changes one."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from amends.audit.verify import Audit, verify_chains
from amends.encoding.chain import proof
from amends.encoding.ids import RANDOM_BITS, number_of
from amends.ledger import operations as ops
from amends.ledger.dispatch import intent
from amends.ledger.flow import run_flow
from amends.ledger.operations import RewriteTexts
from amends.ledger.plain import FailPlain, SettlePlain
from amends.ledger.rows import CALLS, CallRow, RunRow, lost_at
from amends.ledger.tables import Change
from amends.stores.calls import COVERED, covered
from amends.stores.sql import _ROWS, SKEW_S, Execute, Result, Transaction, as_sql
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


ERROR = '["ValueError", "no"]'


def failed(ledger: Ledger, *, why: str = "", error: str = ERROR) -> tuple[RunRow, CallRow]:
    """Let a plain call fail, which is its second event, and the last one of its run."""
    run = ledger.run()
    done(ledger, run, args="[0]")
    started = ledger.start_plain(run, args="[1]")
    if why:
        ledger(ledger.settle_op(started.row, "failed", error=error, why=why))
    else:
        ledger(FailPlain(started, error, "boot", 5.0))
    return run, ledger.look(started.row)


def moves_of(ledger: Ledger, call: CallRow) -> list[str]:
    return [event.to_state for event in ledger.events() if event.call == call.id and event.what == "call"]


@pytest.mark.parametrize("why", ["", "final no"])
@pytest.mark.parametrize("error", [ERROR, ""])
def test_the_two_events_of_a_call_that_fails_are_in_its_row(ledger: Ledger, edit: Edit, why: str, error: str) -> None:
    written = edit("select count(*) from amends_event")
    run, call = failed(ledger, why=why, error=error)
    assert (call.state, call.error, call.why, call.settled_seq) == ("failed", error, why, 0)
    assert edit(f"{FOLDED} where no = ?", number_of(call.id)) == [(1, 1, 0, 0)]
    assert edit('select * from amends_event where "call" = ?', call.id) == []
    assert moves_of(ledger, call) == ["started", "failed"]
    # Neither touch nor the end of the chain in the row of the run has moved: it is opened, and a call of a new tool began.
    assert edit("select touch, n from amends_run where uid = ?", run.uid) == [(2, 2)]
    assert (written, edit("select count(*) from amends_event")) == ([(0,)], [(2,)])
    assert verified(ledger).ok
    audit(ledger)


@pytest.mark.parametrize("column, value", [
    ("attempt", 2), ("settled_at", 5.0), ("settled_seq", 9), ("state", "succeeded"), ("why", "seen"), ("error", "added"),
])  # fmt: skip
def test_the_event_of_a_failure_becomes_a_row_before_a_column_that_it_was_made_from_changes(
    ledger: Ledger, edit: Edit, tmp_path: Path, column: str, value: Any
) -> None:
    _, call = failed(ledger, error="" if column == "error" else ERROR)
    assert column in dict(covered(call))["settled_hash"]
    before = ledger.events()
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as raw:

        def execute(op: Execute) -> Result:
            cursor = raw.execute(op.sql, op.params)
            return cursor.fetchall(), cursor.rowcount, 0

        update = Change(CALLS, call, {column: value})
        changed = run_flow(_ROWS[Change](Transaction(STATEMENTS, Clock()), update), execute)
        raw.commit()
    assert getattr(changed, column) == value
    assert ledger.look(call) == changed
    assert ledger.events() == before, "the same events, of which one is a row now"
    assert edit('select to_state from amends_event where "call" = ?', call.id) == [("failed",)]
    found = edit("select settled_n, settled_hash from amends_call where no = ?", number_of(call.id))
    assert found == [(9 if column == "settled_seq" else None, None)]


def test_late_evidence_of_a_call_that_failed_keeps_its_failure(ledger: Ledger, edit: Edit) -> None:
    run, call = failed(ledger)
    before = ledger.events()
    ledger(ops.NoteEvidence(call.id, 1, True, '"late"', "", "boot", 9.0, "late"))
    assert [event for event in ledger.events() if event.n <= len(before)] == before
    late = ledger.look(call)
    assert (late.state, late.settled_seq) == ("succeeded", len(before) + 2)
    assert edit(f"{FOLDED} where no = ?", number_of(call.id)) == [(1, 0, 0, 0)]
    ledger.roll_back(run)
    assert ledger.compensate(late).state == "compensated"
    assert moves_of(ledger, call) == ["started", "failed", "succeeded", "compensating", "compensated"]
    assert verified(ledger).ok
    audit(ledger)


def test_whoever_takes_over_goes_on_from_a_failure(ledger: Ledger, tmp_path: Path) -> None:
    """Its process was killed, and nothing but the row of the call says where the chain ends."""
    run, call = failed(ledger)
    clock = ledger.clock
    with closing(SqliteStore(tmp_path / "ledger.db", "NORMAL", clock)) as other:
        after = Ledger(other, clock=clock)
        assert after.take_over(run).epoch == 2
        assert verified(after).ok
        audit(after)
    assert moves_of(ledger, call) == ["started", "failed"]


def test_a_failure_whose_answer_was_lost_is_answered_again(ledger: Ledger) -> None:
    run = ledger.run()
    started = ledger.start_plain(run)
    op = FailPlain(started, ERROR, "boot", 5.0)
    first = ledger(op)
    op.repeated = True
    before = ledger.everything()
    assert ledger(op).call == first.call
    assert ledger.everything() == before


def test_after_a_failure_the_same_request_is_another_call(ledger: Ledger) -> None:
    run, call = failed(ledger)
    again = ledger.look(ledger.start_plain(run, args="[1]").row)
    assert (again.key, again.generation) == (call.key, 2)
    ledger(SettlePlain(ledger.start_plain(run, args="[2]"), '"ok"'))
    assert ledger.look(call) == call
    assert verified(ledger).ok
    audit(ledger)


@pytest.mark.parametrize("to", ["failed", "succeeded"])
def test_nothing_is_folded_into_a_call_that_was_not_made_when_its_number_says(
    ledger: Ledger, edit: Edit, to: str
) -> None:
    """Feeds look for folded events near the time in the number of their call."""
    run = ledger.run()
    done(ledger, run, args="[0]")
    op = ledger.plain_op(run, args="[1]")
    op.number -= int((SKEW_S * 3) * 1e6) << RANDOM_BITS
    call = ledger(op.general()).call
    settled = ledger(ledger.settle_op(call, to, error=ERROR if to == "failed" else "")).call
    ledger.clock.now += 1.0
    ledger.roll_back(run)
    if to == "succeeded":
        ledger.compensate(settled)
    assert edit(f"{FOLDED} where no = ?", number_of(call.id)) == [(0, 0, 0, 0)]
    events = ledger.events()
    for place, event in enumerate(events):
        assert ledger(ops.ReadEvents(None, None, event.place, 100)) == events[place + 1 :]
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


@pytest.mark.parametrize("why", ["", "final no"])
def test_gc_and_an_erasure_keep_what_proves_the_error_that_they_remove(ledger: Ledger, edit: Edit, why: str) -> None:
    run, call = failed(ledger, why=why)
    before = [event for event in ledger.events() if event.call == call.id]
    assert ledger.commit(run).how == "committed"
    ledger.clock.now += 1000
    assert ledger(ops.CollectGarbage(10.0)).runs
    assert ledger.look(call).error == '["ValueError", ""]'
    assert [event for event in ledger.events() if event.call == call.id][: len(before)] == before
    assert edit(f"{FOLDED} where no = ?", number_of(call.id)) == [(1, 1, 0, 0)], "they are still folded"
    assert verified(ledger).ok
    assert ledger(ops.EraseTree(run.uid, "ann", "asked", "wrk_1"))
    assert ledger.look(call).why == ""
    assert edit(f"{FOLDED} where no = ?", number_of(call.id)) == [(1, 0 if why else 1, 0, 0)]
    assert not edit("select * from amends_event where facts like '%final no%'")
    assert verified(ledger).ok
    audit(ledger)


def test_encrypting_an_error_again_keeps_what_proves_it(ledger: Ledger, edit: Edit) -> None:
    _, call = failed(ledger)
    before = ledger.events()
    for round in ("one", "two"):
        assert (
            ledger(RewriteTexts(call.id, True, {"error": ledger.look(call).error}, {"error": f"sealed {round}"})) == 1
        )
        assert ledger.events() == before
        assert edit(f"{FOLDED} where no = ?", number_of(call.id)) == [(1, 1, 0, 0)]
    assert {problem.how for problem in verified(ledger).problems} == {"payload_changed"}


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


OF_FAILED = [
    "state = 'succeeded'", "state = 'started'", "state = 'refused'", "attempt = 2", "epoch = 2", "at = at + 1", "result = 'null'",
    "settled_n = settled_n + 1", "settled_n = null", "settled_at = settled_at + 1", "settled_at = null",
    "settled_hash = zeroblob(32)", "settled_hash = null", "settled_n = null, settled_hash = null",
    "state = 'started', settled_n = null, settled_at = null, settled_hash = null, more = null", "more = null",
    "more = '{}'", "more = '{'", "more = replace(more, 'ValueError', 'KeyError')", "more = replace(more, 'no', 'yes')",
    "more = replace(more, '\"error\"', '\"comp_error\"')", "more = replace(more, '{', '{\"why\":\"made up\",')",
    "more = replace(more, '{', '{\"error_proof\":\"00\",')", "more = replace(more, '{', '{\"error_proof\":7,')",
    "more = replace(more, '{', '{\"call_ref\":\"made up\",')",
]  # fmt: skip


@pytest.mark.parametrize("change", OF_FAILED)
def test_whoever_edits_the_row_of_a_call_that_failed_is_found(ledger: Ledger, edit: Edit, change: str) -> None:
    run, call = failed(ledger)
    assert ledger.commit(run).how == "committed"
    assert verified(ledger).ok
    assert edit("select count(*) from amends_call where no = ? and settled_hash is not null", number_of(call.id)) == [
        (1,)
    ]
    edit(f"update amends_call set {change} where no = ?", number_of(call.id))
    assert not verified(ledger).ok


def test_an_error_and_the_digest_that_is_kept_for_one_are_not_changed_unnoticed(ledger: Ledger, edit: Edit) -> None:
    """The digest is that of the true error, so that the chain is as it was: the text differs from it."""
    _, call = failed(ledger)
    proved = '{"error_proof":"' + proof(ERROR) + '",'
    edit("update amends_call set more = replace(replace(more, 'ValueError', 'KeyError'), '{', ?)", proved)
    assert {problem.how for problem in verified(ledger).problems} == {"payload_changed"}
    assert ledger.look(call).error != ERROR


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

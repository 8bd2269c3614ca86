"""A whole plain rollback is recorded exactly as by the general operations, or changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from amends.encoding.dataclass import changed
from amends.errors import LeaseLost, LedgerCorrupt
from amends.ledger import operations as ops
from amends.ledger.plain import (
    Begun,
    FailedPlain,
    FailPlain,
    PlainRun,
    SettledPlain,
    SettlePlain,
    Started,
    TakenBack,
    TurnPlain,
    UndonePlain,
)
from amends.ledger.rows import LockRequest, RunRow
from amends.stores.memory import MemoryStore
from amends.stores.mysql.store import MysqlStore
from amends.stores.postgres.store import PostgresStore
from amends.stores.sql import FOLD_WINDOW_S
from amends.stores.sqlite import quick
from amends.stores.sqlite.store import SqliteStore
from amends.testing.conformance.ledger import Clock, Ledger, audit

WHY = "ValueError: it 'failed' \N{SNOWMAN}"


@pytest.fixture(params=["sqlite", "postgres", "mysql"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    clock = Clock()
    store: Any
    if request.param == "sqlite":
        store = SqliteStore(tmp_path / "ledger.db", "NORMAL", clock)
    elif request.param == "postgres":
        store = PostgresStore(request.getfixturevalue("postgres_url"), clock)
    else:
        store = MysqlStore(request.getfixturevalue("mysql_url"), clock)
    with closing(store):
        store.open(create=True)
        yield Ledger(store, clock=clock)


def done(ledger: Ledger, run: RunRow, plain: PlainRun, count: int, tool: str = "charge") -> list[SettledPlain]:
    settled = []
    for number in range(count):
        op = ledger.plain_op(run, tool, args=f"[{number}]", kind="read" if tool == "look" else "compensatable")
        op.run = plain
        started = ledger.raw(op)
        if isinstance(started, ops.Admission):  # the first call of a tool adds the tool
            assert started.call is not None
            started = _started(op, started.call)
        answer = ledger.raw(SettlePlain(started, f'"{number}"'))
        settled.append(answer if isinstance(answer, SettledPlain) else _settled(started, answer.call))
        ledger.clock.now += 0.25
    return settled


def _started(op: Any, call: Any) -> Any:
    return Started(op, call.seq, call.created_at)


def _settled(started: Any, call: Any) -> SettledPlain:
    return SettledPlain(started, call.settled_seq, call.settled_at, call.result)


def plainly(run: RunRow) -> PlainRun:
    return PlainRun(run.uid, run.id, run.tenant, run.agent, run.principal, "a", run.epoch)


def begin(ledger: Ledger, count: int = 3) -> tuple[RunRow, list[SettledPlain], Any]:
    """Let calls succeed in a run, and begin to take them back."""
    run = ledger.run()
    plain = plainly(run)
    left = done(ledger, run, plain, count)
    return run, left, ledger.raw(TurnPlain(plain, "a", WHY, tuple(left)))


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("others", [False, True])
def test_it_is_recorded_as_by_the_general_operations(ledger: Ledger, count: int, others: bool) -> None:
    memory = Ledger(MemoryStore(ledger.clock), clock=ledger.clock)
    start = ledger.clock.now
    for one in (memory, ledger):
        ledger.clock.now = start
        run = one.run()
        plain = plainly(run)
        left = done(one, run, plain, count)
        if others:
            done(one, run, plain, 1, "look")
            failing = one.start_plain(run, "ship", args="{}")
            one.settle(failing.row, "failed", error='["E", "no"]')
        first = one.raw(TurnPlain(plain, "a", WHY, tuple(left)))
        if one is memory:
            _generally(one, run, plain, left)
            continue
        assert isinstance(first, Begun)
        answer: Any = first
        for place in range(count - 1, -1, -1):
            one.clock.now += 0.5
            answer = one.raw(UndonePlain(answer, left[place - 1] if place else None, WHY))
            assert isinstance(answer, Begun if place else TakenBack)
    assert ledger.everything() == memory.everything()
    audit(ledger)


def _generally(ledger: Ledger, run: RunRow, plain: PlainRun, left: list[SettledPlain]) -> None:
    begun = ledger(ops.BeginCompensation(left[-1].row.id, "a", 1, 1))
    for place in range(len(left) - 1, -1, -1):
        ledger.clock.now += 0.5
        then: Any = ops.CloseRun(run.uid, "a", 1, "rolled_back", plain=plain)
        if place:
            then = ops.BeginCompensation(left[place - 1].row.id, "a", 1, 1)
        settled = ledger(ops.SettleCompensation(begun.id, "a", 1, 1, "compensated", then=then))
        begun = settled.then


def test_a_row_that_is_asked_for_is_the_row_of_the_ledger(ledger: Ledger) -> None:
    _, left, begun = begin(ledger)
    assert begun.row == ledger.look(left[-1].row)
    after = ledger.raw(UndonePlain(begun, left[1], WHY))
    assert after.row == ledger.look(left[1].row)


@pytest.mark.parametrize("call_ref", ["", "ref"])
@pytest.mark.parametrize("error", ['["ValueError", "no"]', "", "\N{SNOWMAN} '%s'"])
def test_a_failure_before_it_needs_no_row(ledger: Ledger, error: str, call_ref: str) -> None:
    run = ledger.run()
    plain = PlainRun(run.uid, run.id, run.tenant, run.agent, run.principal, "a", 1)
    done(ledger, run, plain, 1)
    op = ledger.plain_op(run, args="[9]", call_ref=call_ref)
    op.run = plain
    started = ledger.raw(op)
    assert plain.fails, "so the engine asks for it"
    failed = ledger.raw(FailPlain(started, error, "boot", 5.0))
    assert type(failed) is FailedPlain
    assert failed.call == ledger.look(started.row)
    assert failed.call.state == "failed"
    audit(ledger)


@pytest.mark.parametrize("known", [0, 1, 2])
def test_it_is_left_to_the_flow_if_the_run_has_another_effect(ledger: Ledger, known: int) -> None:
    run = ledger.run()
    plain = plainly(run)
    left = done(ledger, run, plain, 3)
    del left[known]
    answer = ledger.raw(TurnPlain(plain, "a", WHY, tuple(left)))
    assert isinstance(answer, ops.Rollback)
    assert answer.begun is None
    assert {call.state for call in ledger.calls()} == {"succeeded"}
    audit(ledger)


def test_it_is_left_to_the_flow_if_a_call_still_runs(ledger: Ledger) -> None:
    run = ledger.run()
    plain = plainly(run)
    left = done(ledger, run, plain, 2)
    ledger.start_plain(run, "charge", args="still")
    answer = ledger.raw(TurnPlain(plain, "a", WHY, tuple(left)))
    assert isinstance(answer, ops.Rollback)
    assert sorted(call.state for call in ledger.calls()) == ["started", "succeeded", "succeeded"]


@pytest.mark.parametrize("how", ["child", "lock", "evidence", "goal"])
def test_it_is_left_to_the_flow_if_anything_is_unusual(ledger: Ledger, how: str) -> None:
    run = ledger.run()
    plain = plainly(run)
    left = done(ledger, run, plain, 2)
    beside = ledger
    match how:
        case "child":
            beside.child(run)
        case "lock":
            beside.settle(beside.start(run, "ship", locks=LockRequest(("x",))), "failed", error='["E", "no"]')
        case "evidence":
            beside(ops.NoteEvidence(left[0].row.id, 1, True, '"late"', "", "boot", 9.0, "late"))
        case _:
            beside(ops.BeginRollback(run.uid, "ann", "stop", True))
    before = ledger.raw(TurnPlain(plain, "a", WHY, tuple(left)))
    assert isinstance(before, Begun if how == "evidence" else ops.Rollback)
    audit(ledger)


def test_another_owner_refuses_it(ledger: Ledger) -> None:
    run = ledger.run()
    plain = plainly(run)
    left = done(ledger, run, plain, 2)
    ledger.take_over(run)
    with pytest.raises(LeaseLost):
        ledger.raw(TurnPlain(plain, "a", WHY, tuple(left)))


def test_an_old_owner_ends_no_compensation(ledger: Ledger) -> None:
    run, left, begun = begin(ledger)
    ledger.take_over(run)
    answer = ledger.raw(UndonePlain(begun, left[1], WHY))
    assert isinstance(answer, ops.Settled)
    assert answer.fenced
    assert ledger.look(left[1].row).state == "succeeded"
    audit(ledger)


def test_repeated_it_says_what_it_has_begun(ledger: Ledger) -> None:
    run, left, begun = begin(ledger)
    plain = plainly(run)
    again = ledger.raw(TurnPlain(plain, "a", WHY, tuple(left), repeated=True))
    assert again.begun == begun.row
    settle = UndonePlain(begun, left[1], WHY)
    after = ledger.raw(settle)
    settle.repeated = True
    repeated = ledger.raw(settle)
    assert repeated.then == after.row
    last = ledger.raw(UndonePlain(after, left[0], WHY))
    close = UndonePlain(last, None, WHY)
    assert isinstance(ledger.raw(close), TakenBack)
    close.repeated = True
    assert ledger.raw(close).then.state == "rolled_back"
    audit(ledger)


def test_only_the_next_one_is_begun(ledger: Ledger) -> None:
    """The order is that of the first step, whoever asks for another."""
    _, left, begun = begin(ledger)
    answer = ledger.raw(UndonePlain(begun, left[0], WHY))
    assert isinstance(answer, ops.Settled)
    assert answer.then is None
    assert answer.call == ledger.look(left[2].row)
    assert [ledger.look(one.row).state for one in left] == ["succeeded", "succeeded", "compensated"]
    audit(ledger)


def test_a_run_with_something_left_is_not_closed(ledger: Ledger) -> None:
    run, _, begun = begin(ledger, 2)
    answer = ledger.raw(UndonePlain(begun, None, WHY))
    assert isinstance(answer, ops.Settled)
    assert answer.then is None
    assert ledger.read(run).state == "rolling_back"
    audit(ledger)


def test_what_was_done_long_ago_is_left_to_the_flow(ledger: Ledger) -> None:
    """A folded event must not be far from the call that it is folded into: feeds look for it there."""
    run = ledger.run()
    plain = plainly(run)
    left = done(ledger, run, plain, 2)
    ledger.clock.now += FOLD_WINDOW_S
    ledger(ops.RenewLeases("a", {run.uid: 1}, 30.0, boot="boot", mono=1e6))
    answer = ledger.raw(TurnPlain(plain, "a", WHY, tuple(left)))
    assert isinstance(answer, ops.Rollback)
    audit(ledger)


@pytest.mark.parametrize("ledger", ["sqlite"], indirect=True)  # elsewhere the rollback is one statement
@pytest.mark.parametrize("name", ["TURN_PLAIN", "FIRST", "END", "BEGIN", "CLOSE_LAST"])
def test_a_step_that_breaks_leaves_nothing_behind(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    run = ledger.run()
    plain = plainly(run)
    left = done(ledger, run, plain, 2)
    steps: list[Any] = [TurnPlain(plain, "a", WHY, tuple(left))]
    if name in ("END", "BEGIN", "CLOSE_LAST"):
        begun = ledger.raw(steps[0])
        steps = [UndonePlain(begun, left[0], WHY)]
    if name == "CLOSE_LAST":
        begun = ledger.raw(steps[0])
        steps = [UndonePlain(begun, None, WHY)]
    before = ledger.everything()
    with monkeypatch.context() as patched:
        patched.setattr(quick, name, "select no such thing")
        with pytest.raises(LedgerCorrupt):
            ledger.raw(steps[0])
    assert ledger.everything() == before
    ledger.raw(steps[0])
    audit(ledger)


def test_a_row_never_changes(ledger: Ledger) -> None:
    _, left, begun = begin(ledger, 1)
    assert begun.row == changed(left[0].row, {"state": "compensating", "comp_attempt": 1, "comp_at": begun.at})

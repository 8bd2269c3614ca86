"""Stale rows: what a caller saw of a call may be old or incomplete; the ledger's own rows decide and are returned."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from amends.errors import LeaseLost
from amends.ledger import operations as ops
from amends.ledger.plain import PlainRun
from amends.ledger.rows import CallRow, RunRow
from amends.testing.conformance.ledger import LEASE_S, Ledger, raises
from amends.testing.conformance.prove import check, check_each
from amends.testing.conformance.scenarios import unknown_pivot

EXPECTED: Final = {"a key that was asked for": True, "a new key": False}
BY: Final = {"by its attempt": {"attempt": 2}, "by its owner": {"owner": "b"}, "by its epoch": {"epoch": 2}}


def resumed_by_its_owner(ledger: Ledger, run: RunRow) -> RunRow:
    """Resume the run in the same process: only the epoch tells the two owners apart."""
    ledger.clock.now += LEASE_S + 1
    again = ledger.run(run.id, owner=run.owner)
    assert (again.owner, again.epoch) == (run.owner, run.epoch + 1)
    return again


# ---- admitting ----------------------------------------------------------------------------


@check_each(EXPECTED)
def an_old_epoch_of_the_same_owner_is_admitted_nothing(ledger: Ledger, expected: bool) -> None:
    run = ledger.run()
    done = ledger.do(run)
    again = resumed_by_its_owner(ledger, run)
    assert ledger.admit(again).call.id == done.id
    tool = "charge" if expected else "other"
    before = ledger.everything()
    with raises(LeaseLost):
        ledger.admit(run, tool, expected=expected)
    assert ledger.everything() == before


@check_each(EXPECTED)
def who_let_its_run_go_is_admitted_nothing(ledger: Ledger, expected: bool) -> None:
    run = ledger.run()
    ledger.do(run)
    ledger(ops.ReleaseLease(run.uid, "a", 1, None))
    before = ledger.everything()
    with raises(LeaseLost):
        ledger.admit(run, "charge" if expected else "other", expected=expected)
    assert ledger.everything() == before


@check
def the_newest_generation_of_a_key_answers(ledger: Ledger) -> None:
    run = ledger.run()
    old = ledger.settle(ledger.start(run), "failed").call
    new = ledger.start(run)
    ledger(ops.NoteEvidence(old.id, 1, True, '"late"', "", "boot", 9.0, "late"))
    assert ledger.look(old).state == "succeeded"
    answer = ledger.admit(run)
    assert (answer.verdict, answer.call) == ("wait", new)


@check
def a_repeat_on_purpose_lets_the_question_go(ledger: Ledger) -> None:
    run = ledger.run()
    ledger.do(run)
    asked = ledger.admit(run, args="[]", on_conflict="hold")
    assert asked.verdict == "held"
    ledger.start(run, args="[]", key="another", again="on purpose")
    assert ledger.look(asked.call).state == "dropped"


# ---- settling -----------------------------------------------------------------------------


@check
def evidence_that_came_while_a_call_was_started_counts_when_it_fails(ledger: Ledger) -> None:
    call = ledger.start(ledger.run())
    ledger(ops.NoteEvidence(call.id, 1, True, '"late"', "", "boot", 9.0, "late"))
    settled = ledger.settle(call, "failed").call
    assert (settled.state, settled.result, settled.late) == ("succeeded", '"late"', 1)
    assert settled == ledger.look(call)


@check
def a_settlement_answers_with_its_own_attempt(ledger: Ledger) -> None:
    first = ledger.start(ledger.run())
    ledger.settle(first, "backing_off", retry_s=0.0)
    ledger.clock.now += 1
    second = ledger(ops.StartCall(first.id, "a", 1, 2))
    assert second.started_at == ledger.clock.now
    settled = ledger(ops.SettleCall(first.id, "a", 1, 2, "succeeded", result='"ok"', seen=first)).call
    assert settled == ledger.look(first)


@check_each(BY)
def a_call_is_settled_by_who_started_it(ledger: Ledger, other: dict[str, Any]) -> None:
    call = ledger.start(ledger.run())
    given: dict[str, Any] = {"owner": "a", "epoch": 1, "attempt": 1} | other
    assert ledger(ops.SettleCall(call.id, to="succeeded", result='"ok"', seen=call, **given)).fenced
    assert ledger.look(call).state == "started"


# ---- committing ---------------------------------------------------------------------------


@check_each({"and a mail behind it": True, "alone": False})
def a_pivot_that_nobody_can_know_keeps_its_run_from_committing(ledger: Ledger, is_staged: bool) -> None:
    """Its owner commits as if it knew of nothing that could be in the way: the pivot was resolved by somebody else."""
    run = ledger.run()
    mail = ledger.admit(run, "mail", kind="retriable").call if is_staged else None
    pivot = unknown_pivot(ledger, run)
    plain = PlainRun(run.uid, run.id, run.tenant, run.agent, run.principal, "a", run.epoch)
    decision = ledger(ops.DecideCommit(run.uid, "a", run.epoch, plain=plain))
    assert (decision.how, [call.id for call in decision.calls]) == ("unsettled", [pivot.id])
    assert ledger.read(run).state == "open"
    assert mail is None or ledger.look(mail).state == "held"


@check
def a_second_pivot_does_not_follow_one_that_nobody_can_know(ledger: Ledger) -> None:
    run = ledger.run()
    unknown_pivot(ledger, run)
    answer = ledger.admit(run, "refund", kind="pivot")
    assert (answer.verdict, answer.law, answer.pivot) == ("refused", "pivot_twice", "wire")
    assert ledger.admit(run, "book").verdict == "start", "what can be taken back may still be done"


@check
def a_child_with_nothing_staged_leaves_its_unknown_pivot_to_its_parent(ledger: Ledger) -> None:
    run = ledger.run()
    child, behind = ledger.child(run, "alone"), ledger.child(run, "and a mail behind it")
    ledger.admit(behind, "mail", kind="retriable")
    pivots = [unknown_pivot(ledger, one) for one in (child, behind)]
    assert ledger.commit(child).how == "committed"
    decision = ledger.commit(behind)
    assert (decision.how, [call.id for call in decision.calls]) == ("unsettled", [pivots[1].id])


# ---- taking back --------------------------------------------------------------------------


def going_back(ledger: Ledger, *tools: str, replays: int = 0) -> tuple[RunRow, list[CallRow]]:
    """Return a run that rolls back, and its calls as they were before anything else was learned of them."""
    run = ledger.run()
    calls = [ledger.do(run, tool) for tool in tools]
    if replays:
        ledger(ops.ReleaseLease(run.uid, "a", 1, None, replays={call.id: replays for call in calls}))
        run = ledger.run()
    ledger.roll_back(run)
    return run, calls


@check
def nothing_is_taken_back_while_what_came_later_is_being_taken_back(ledger: Ledger) -> None:
    _, (first, second) = going_back(ledger, "one", "two")
    begun = ledger(ledger.compensate_op(second))
    before = ledger.everything()
    assert ledger(ledger.compensate_op(first)) is None
    assert ledger.everything() == before
    ledger.settle_compensation(begun, "compensated")
    assert ledger.compensate(first).state == "compensated"


@check
def what_follows_a_compensation_is_done_with_it_or_not_at_all(ledger: Ledger) -> None:
    run, (first, second) = going_back(ledger, "one", "two")
    begun = ledger(ledger.compensate_op(second))
    settled = ledger.settle_compensation(begun, "compensated", then=ledger.compensate_op(first))
    assert settled.call == ledger.look(second)
    assert ledger.look(first) == (settled.then or first), "a store may leave it undone, and then nothing has changed"
    going: Any = settled.then or ledger(ledger.compensate_op(first))
    assert (going.state, going.comp_attempt) == ("compensating", 1)
    settled = ledger.settle_compensation(going, "compensated", then=ops.CloseRun(run.uid, "a", 1, "rolled_back"))
    ended = settled.then or ledger(ops.CloseRun(run.uid, "a", 1, "rolled_back"))
    assert (ended.state, ledger.look(first).state) == ("rolled_back", "compensated")


@check
def what_cannot_follow_a_compensation_does_not_undo_its_settlement(ledger: Ledger) -> None:
    run, (first, second) = going_back(ledger, "one", "two")
    begun = ledger(ledger.compensate_op(second))
    settled = ledger.settle_compensation(begun, "compensated", then=ops.CloseRun(run.uid, "a", 1, "rolled_back"))
    assert (settled.call.state, settled.then) == ("compensated", None), "another call still stands"
    assert (ledger.look(second), ledger.look(first)) == (settled.call, first)
    begun = ledger(ledger.compensate_op(first))
    settled = ledger.settle_compensation(begun, "compensated", then=ledger.compensate_op(second))
    assert (settled.call.state, settled.then) == ("compensated", None), "it is compensated already"


@check
def nothing_follows_a_compensation_that_failed(ledger: Ledger) -> None:
    _, (first, second) = going_back(ledger, "one", "two")
    begun = ledger(ledger.compensate_op(second))
    settled = ledger.settle_compensation(begun, "compensation_failed", then=ledger.compensate_op(first))
    assert (settled.call.state, settled.then) == ("compensation_failed", None)
    assert ledger.look(first) == first


@check
def a_compensation_is_begun_in_the_order_of_its_attempts(ledger: Ledger) -> None:
    _, (call,) = going_back(ledger, "one")
    before = ledger.everything()
    assert ledger(ops.BeginCompensation(call.id, "a", 1, 2, seen=call)) is None
    assert ledger.everything() == before


@check
def a_compensation_that_was_let_go_is_begun_by_nobody(ledger: Ledger) -> None:
    run, (call,) = going_back(ledger, "one")
    ledger(ops.ReleaseLease(run.uid, "a", 1, None))
    before = ledger.everything()
    with raises(LeaseLost):
        ledger(ledger.compensate_op(call))
    assert ledger.everything() == before


@check
def an_old_epoch_of_the_same_owner_takes_nothing_back(ledger: Ledger) -> None:
    run, (call,) = going_back(ledger, "one")
    ledger.take_over(run, owner="a")
    before = ledger.everything()
    with raises(LeaseLost):
        ledger(ledger.compensate_op(call))
    assert ledger.everything() == before


@check_each(BY)
def a_compensation_is_settled_by_who_began_it(ledger: Ledger, other: dict[str, Any]) -> None:
    _, (call,) = going_back(ledger, "one")
    begun = ledger(ledger.compensate_op(call))
    given: dict[str, Any] = {"owner": "a", "epoch": 1, "attempt": 1} | other
    assert ledger(ops.SettleCompensation(call.id, to="compensated", seen=begun, **given)).fenced
    assert ledger.look(call) == begun


@check
def the_end_of_a_compensation_answers_with_its_own_attempt(ledger: Ledger) -> None:
    _, (call,) = going_back(ledger, "one")
    ledger.clock.now += 1
    begun = ledger(ledger.compensate_op(call))
    assert begun.comp_at == ledger.clock.now
    assert ledger(ops.SettleCompensation(call.id, "a", 1, 1, "compensated", seen=call)).call == ledger.look(call)


@check
def a_compensation_for_fear_of_a_doubt_stays_one(ledger: Ledger) -> None:
    _, (call,) = going_back(ledger, "one")
    begun = ledger(ledger.compensate_op(call, from_doubt=True))
    assert (begun.state, begun.comp_blind) == ("compensating", 1)
    assert begun == ledger.look(call)


@check_each(["evidence", "replays"])
def a_compensation_answers_with_what_was_learned_meanwhile(ledger: Ledger, what: str) -> None:
    run, (call,) = going_back(ledger, "one", replays=2 if what == "replays" else 0)
    if what == "evidence":
        ledger(ops.NoteEvidence(call.id, 1, True, '"late"', "", "boot", 9.0, "late"))
    assert getattr(ledger.look(call), what) != getattr(call, what)
    begun = ledger(ledger.compensate_op(call, epoch=run.epoch))
    assert begun == ledger.look(call)
    old = replace(begun, **{what: getattr(call, what)})
    ended = ledger.settle_compensation(old, "compensated", epoch=run.epoch).call
    assert ended == ledger.look(call)

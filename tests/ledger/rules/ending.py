"""Going back, going forward, closing."""

from __future__ import annotations

import json

from amends.errors import LeaseLost, TransitionRefused
from amends.ledger import operations as ops
from amends.testing.conformance.ledger import Ledger, raises
from tests.ledger.rules.registry import check, check_each

# ---- back ---------------------------------------------------------------------------------


@check
def a_rollback_closes_what_has_not_started(ledger: Ledger) -> None:
    run = ledger.run()
    staged = ledger.admit(run, "mail", kind="retriable").call
    waiting = ledger.settle(ledger.start(run, "ship"), "backing_off", retry_s=9.0).call
    done = ledger.do(run, "charge")
    assert ledger.roll_back(run).how == "rolling"
    assert [ledger.look(call).state for call in (staged, waiting, done)] == ["dropped", "failed", "succeeded"]


@check
def a_persons_rollback_of_a_live_run_is_its_goal(ledger: Ledger) -> None:
    run = ledger.run()
    asked = ledger(ops.BeginRollback(run.uid, "ann", "stop", True))
    assert (asked.how, asked.run.state, asked.run.goal, asked.run.goal_by) == ("deferred", "open", "rollback", "person")
    assert ledger.admit(run).verdict == "ended"


@check
def a_rollback_over_a_pivot_in_flight_waits(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.start(run, "wire", kind="pivot")
    assert ledger.roll_back(run).how == "deferred"
    ledger.settle(call, "failed")
    assert ledger.roll_back(run).how == "rolling"


@check
def a_rollback_over_a_pivot_that_passed_is_refused(ledger: Ledger) -> None:
    run = ledger.run()
    ledger.do(run, "wire", kind="pivot")
    assert ledger.roll_back(run).how == "refused"


@check
def a_run_that_ended_is_not_rolled_back(ledger: Ledger) -> None:
    run = ledger.run()
    ledger.commit(run)
    assert ledger(ops.BeginRollback(run.uid, "ann", "stop", True)).how == "ended"


@check
def a_rollback_takes_committed_children_along_and_not_their_pivots(ledger: Ledger) -> None:
    run = ledger.run()
    plain, pivoted = ledger.child(run, "plain"), ledger.child(run, "pivoted")
    ledger.do(plain, "charge", key="1")
    ledger.do(pivoted, "wire", kind="pivot", key="2")
    for child in (plain, pivoted):
        assert ledger.commit(child).how == "committed"
    ledger.roll_back(run)
    assert ledger.read(plain).state == "rolling_back"
    assert ledger.read(pivoted).state == "committed"


@check
def compensations_go_in_reverse_of_settling(ledger: Ledger) -> None:
    run = ledger.run()
    slow, quick = ledger.start(run, "slow"), ledger.start(run, "quick")
    quick, slow = ledger.settle(quick).call, ledger.settle(slow).call
    ledger.roll_back(run)
    assert ledger(ledger.compensate_op(quick)) is None
    assert ledger.compensate(slow).state == "compensated"
    assert ledger.compensate(quick).state == "compensated"


@check
def calls_of_one_group_are_compensated_side_by_side(ledger: Ledger) -> None:
    run = ledger.run()
    one, two = ledger.do(run, "one", grp="g"), ledger.do(run, "two", grp="g")
    ledger.roll_back(run)
    assert ledger(ledger.compensate_op(one)) is not None
    assert ledger(ledger.compensate_op(two)) is not None


@check
def no_compensation_starts_while_a_call_is_started(ledger: Ledger) -> None:
    run = ledger.run()
    done, running = ledger.do(run, "charge"), ledger.start(run, "ship")
    ledger.roll_back(run)
    assert ledger(ledger.compensate_op(done)) is None
    ledger.settle(running, "failed")
    assert ledger(ledger.compensate_op(done)) is not None


@check
def a_compensation_starts_only_in_a_run_that_goes_back(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.do(run)
    assert ledger(ledger.compensate_op(call)) is None


@check
def a_compensation_is_started_once_per_attempt(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.do(run)
    ledger.roll_back(run)
    begun = ledger(ledger.compensate_op(call))
    assert (begun.state, begun.comp_attempt) == ("compensating", 1)
    assert ledger(ledger.compensate_op(call)) is None
    failed = ledger.settle_compensation(begun, "compensation_failed", retry_s=3.0, error="no").call
    assert (failed.comp_retry_at, failed.comp_error) == (ledger.clock.now + 3.0, "no")
    assert ledger.compensate(failed).comp_attempt == 2


@check
def a_doubt_is_compensated_only_where_that_is_allowed(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.settle(ledger.start(run), "in_doubt").call
    ledger.roll_back(run)
    assert ledger(ledger.compensate_op(call)) is None
    assert ledger(ledger.compensate_op(call, from_doubt=True)).state == "compensating"


@check
def a_compensation_settled_under_an_old_epoch_is_evidence_only(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.do(run)
    ledger.roll_back(run)
    begun = ledger(ledger.compensate_op(call))
    ledger.take_over(run)
    assert ledger.settle_compensation(begun, "compensated", owner="a", epoch=1).fenced
    assert ledger.look(call).state == "compensation_in_doubt"


@check
def an_old_owner_compensates_nothing(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.do(run)
    ledger.roll_back(run)
    ledger.take_over(run)
    with raises(LeaseLost):
        ledger(ledger.compensate_op(call))


@check_each(["succeeded", "in_doubt", "started", "compensating", "compensation_failed", "compensation_in_doubt"])
def rolled_back_never_has_residue(ledger: Ledger, left: str) -> None:
    run = ledger.run()
    call = ledger.start(run)
    if left in ("succeeded", "in_doubt"):
        ledger.settle(call, left)
    elif left != "started":
        ledger.settle(call)
    ledger.roll_back(run)
    if left.startswith("compensat"):
        begun = ledger(ledger.compensate_op(call))
        if left != "compensating":
            ledger.settle_compensation(begun, left)
    before = ledger.everything()
    with raises(TransitionRefused):
        ledger.close(run, "rolled_back")
    assert ledger.everything() == before


@check
def rolled_back_is_reached_when_every_effect_is_compensated(ledger: Ledger) -> None:
    run = ledger.run()
    child = ledger.child(run, "part")
    ledger.do(run, "look", kind="read")
    call = ledger.do(child, "charge")
    ledger.commit(child)
    ledger.roll_back(run)
    ledger.compensate(call)
    closed = ledger.close(run, "rolled_back")
    assert (closed.state, closed.owner, closed.wake_at, closed.closed_at) == ("rolled_back", "", None, ledger.clock.now)
    assert ledger.read(child).state == "rolled_back"


@check
def a_parent_is_not_rolled_back_over_a_childs_pivot(ledger: Ledger) -> None:
    run = ledger.run()
    child = ledger.child(run, "part")
    ledger.do(child, "wire", kind="pivot")
    ledger.commit(child)
    ledger.roll_back(run)
    with raises(TransitionRefused):
        ledger.close(run, "rolled_back")


# ---- forward ------------------------------------------------------------------------------


@check
def a_commit_of_what_is_settled_is_decided_at_once(ledger: Ledger) -> None:
    run = ledger.run()
    ledger.do(run)
    decision = ledger(ops.DecideCommit(run.uid, "a", 1, '"done"'))
    assert (decision.how, decision.run.state, decision.run.output, decision.run.owner) == (
        "committed",
        "committed",
        '"done"',
        "",
    )


@check_each(["started", "in_doubt", "backing_off"])
def a_commit_waits_for_what_is_unsettled(ledger: Ledger, to: str) -> None:
    run = ledger.run()
    call = ledger.start(run)
    if to != "started":
        ledger.settle(call, to)
    decision = ledger.commit(run)
    assert (decision.how, [one.id for one in decision.calls]) == ("unsettled", [call.id])
    assert ledger.read(run).goal == "commit"


@check
def a_commit_waits_for_open_children(ledger: Ledger) -> None:
    run = ledger.run()
    child = ledger.child(run, "part")
    decision = ledger.commit(run)
    assert (decision.how, decision.children) == ("unsettled", (child,))


@check
def a_commit_with_staged_calls_is_the_point_of_no_return(ledger: Ledger) -> None:
    run = ledger.run()
    mail = ledger.admit(run, "mail", kind="retriable").call
    decision = ledger.commit(run)
    assert (decision.how, decision.run.state, decision.calls) == ("forward", "pivoted", (mail,))
    started = ledger(ops.StartCall(mail.id, "a", 1, 1))
    ledger.settle(started)
    assert ledger.commit(run).how == "committed"


@check
def a_pivot_staged_for_the_commit_starts_first(ledger: Ledger) -> None:
    run = ledger.run()
    wire = ledger.admit(run, "wire", kind="pivot", at_commit=True).call
    decision = ledger.commit(run)
    assert (decision.how, decision.calls[0].id, decision.calls[0].state) == ("pivot", wire.id, "started")
    ledger.settle(decision.calls[0])
    assert ledger.read(run).state == "pivoted"
    assert ledger.commit(run).how == "committed"


@check
def the_outbox_of_a_child_becomes_its_parents(ledger: Ledger) -> None:
    run = ledger.run()
    child = ledger.child(run, "part")
    mail = ledger.admit(child, "mail", kind="retriable").call
    assert ledger.commit(child).how == "committed"
    assert ledger.look(mail).run == run.uid
    assert ledger.commit(run).calls == (ledger.look(mail),)


@check
def a_run_that_was_told_to_go_back_does_not_commit(ledger: Ledger) -> None:
    run = ledger.run()
    ledger(ops.BeginRollback(run.uid, "ann", "stop", True))
    assert ledger.commit(run).how == "rollback"


@check
def a_run_past_its_deadline_does_not_commit(ledger: Ledger) -> None:
    run = ledger.run(deadline_s=5.0)
    ledger.clock.now += 6
    assert ledger.commit(run).how == "rollback"


@check
def a_run_is_not_closed_as_committed_over_what_is_unsettled(ledger: Ledger) -> None:
    run = ledger.run()
    ledger.do(run, "wire", kind="pivot")
    ledger.start(run, "mail", kind="retriable")
    with raises(TransitionRefused):
        ledger.close(run, "committed")


# ---- blocked, abandoned, finished ---------------------------------------------------------


@check
def a_blocked_run_names_its_causes_and_has_no_owner(ledger: Ledger) -> None:
    run = ledger.run()
    ledger.settle(ledger.start(run), "in_doubt")
    blocked = ledger.close(run, "blocked", causes=("decide", "or wait"), wake_s=7.0)
    assert (blocked.state, blocked.came_from, blocked.owner) == ("blocked", "open", "")
    assert json.loads(blocked.causes) == ["decide", "or wait"]
    assert blocked.wake_at == ledger.clock.now + 7.0
    assert blocked.phase == "open"


@check
def a_blocked_run_may_be_blocked_for_other_causes(ledger: Ledger) -> None:
    run = ledger.run()
    ledger.close(run, "blocked", causes=("one",))
    again = ledger.claim(run, force=True)
    assert again is not None
    blocked = ledger.close(again, "blocked", owner="b", causes=("two",))
    assert (blocked.state, blocked.came_from, json.loads(blocked.causes)) == ("blocked", "open", ["two"])


@check
def an_abandoned_run_names_what_stands(ledger: Ledger) -> None:
    run = ledger.run()
    done, held = ledger.do(run, "charge"), ledger.admit(run, "mail", kind="retriable").call
    doubt = ledger.settle(ledger.start(run, "ship"), "in_doubt").call
    closed = ledger(ops.AbandonRun(run.uid, "ann", "enough"))
    assert (closed.state, closed.epoch, closed.goal_by, closed.goal_why) == ("abandoned", 2, "person", "enough")
    assert [ledger.look(call).state for call in (done, held, doubt)] == ["residue", "dropped", "residue"]
    assert ledger.admit(run).verdict in ("ended", "doubt")


@check
def a_run_with_calls_in_flight_is_not_abandoned(ledger: Ledger) -> None:
    run = ledger.run()
    ledger.start(run)
    with raises(TransitionRefused):
        ledger(ops.AbandonRun(run.uid, "ann", "enough"))


@check
def after_its_pivot_an_abandoned_run_keeps_what_it_did(ledger: Ledger) -> None:
    run = ledger.run()
    charge, wire = ledger.do(run, "charge"), ledger.do(run, "wire", kind="pivot")
    ledger(ops.AbandonRun(run.uid, "ann", "enough"))
    assert [ledger.look(call).state for call in (charge, wire)] == ["succeeded", "succeeded"]


@check
def a_run_is_abandoned_once(ledger: Ledger) -> None:
    run = ledger.run()
    ledger(ops.AbandonRun(run.uid, "ann", "enough"))
    with raises(TransitionRefused):
        ledger(ops.AbandonRun(run.uid, "bob", "enough too"))


@check
def an_interrupted_run_is_finished_by_hand(ledger: Ledger) -> None:
    run = ledger.run()
    ledger.do(run, "wire", kind="pivot")
    with raises(TransitionRefused):
        ledger(ops.FinishRun(run.uid, "ann", "all done"))
    ledger.close(run, "blocked", causes=("open it again",), interrupted=True)
    finished = ledger(ops.FinishRun(run.uid, "ann", "all done"))
    assert (finished.state, finished.closed_at) == ("committed", ledger.clock.now)

"""What the ledger says to a request: each verdict, each law."""

from __future__ import annotations

from typing import Any

from amends.errors import LeaseLost
from amends.ledger import operations as ops
from amends.ledger.admission import GENERATIONS_MAX
from amends.testing.conformance.ledger import LEASE_S, Ledger, raises
from tests.ledger.rules.registry import check, check_each


@check
def a_new_request_is_written_down_as_started(ledger: Ledger) -> None:
    run = ledger.run()
    op = ledger.admit_op(run, args='{"cents": 1}')
    admission = ledger(op)
    assert (admission.verdict, admission.run) == ("start", None)
    call = admission.call
    assert (call.id, call.state, call.attempt, call.generation) == (op.call_id, "started", 1, 1)
    assert call.first_at == call.started_at == ledger.clock.now
    assert ledger.look(call) == call


@check
def the_same_request_is_answered_from_the_record(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.do(run)
    again = ledger.admit(run)
    assert (again.verdict, again.call) == ("replay", call)


@check
def a_request_that_runs_already_waits(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.start(run)
    assert (ledger.admit(run).verdict, ledger.admit(run).call) == ("wait", call)


@check
def the_same_key_with_other_arguments_is_a_conflict(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.do(run, args='{"cents": 1}')
    conflict = ledger.admit(run, args='{"cents": 2}')
    assert (conflict.verdict, conflict.call) == ("conflict", call)
    assert len(ledger.calls()) == 1


@check
def a_conflict_may_be_held_for_a_person(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.do(run, args='{"cents": 1}')
    held = ledger.admit(run, args='{"cents": 2}', on_conflict="hold")
    assert (held.verdict, held.call.state, held.call.reason, held.twin) == ("held", "held", "conflict", call)
    again = ledger.admit(run, args='{"cents": 2}', on_conflict="hold")
    assert (again.verdict, again.call) == ("held", held.call)


@check
def a_call_in_doubt_is_told_as_doubt(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.settle(ledger.start(run), "in_doubt", why="timeout").call
    assert (ledger.admit(run).verdict, ledger.admit(run).call) == ("doubt", call)


@check
def a_call_that_backs_off_is_tried_again(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.settle(ledger.start(run), "backing_off", retry_s=1.0).call
    assert (ledger.admit(run).verdict, ledger.admit(run).call) == ("retry", call)


@check_each({"same arguments": "{}", "other arguments": '{"cents": 2}'})
def a_failed_call_frees_its_key_for_the_next_generation(ledger: Ledger, args: str) -> None:
    run = ledger.run()
    ledger.settle(ledger.start(run), "failed", error="no")
    again = ledger.admit(run, args=args)
    assert (again.verdict, again.call.generation) == ("start", 2)


@check
def a_key_may_fail_so_often_and_no_more(ledger: Ledger) -> None:
    run = ledger.run()
    for generation in range(1, GENERATIONS_MAX + 1):
        call = ledger.start(run)
        assert call.generation == generation
        ledger.settle(call, "failed")
    spent = ledger.admit(run)
    assert (spent.verdict, spent.call.generation) == ("spent", GENERATIONS_MAX)


@check
def a_read_is_recorded_and_never_deduplicated(ledger: Ledger) -> None:
    run = ledger.run()
    one, two = ledger.do(run, "look", kind="read"), ledger.start(run, "look", kind="read")
    assert one.key != two.key
    assert {one.generation, two.generation} == {1}


@check
def a_committed_run_answers_everybody_and_starts_nothing(ledger: Ledger) -> None:
    run = ledger.run()
    read, call = ledger.do(run, "look", kind="read"), ledger.do(run, "charge")
    ledger.commit(run)
    assert (ledger.admit(run, "charge", owner="z").verdict, ledger.admit(run, "charge").call) == ("replay", call)
    assert (ledger.admit(run, "look", kind="read").verdict, ledger.admit(run, "look", kind="read").call) == (
        "replay",
        read,
    )
    assert ledger.admit(run, "ship").verdict == "ended"
    assert ledger.admit(run, "other", kind="read").verdict == "ended"


@check_each(["compensatable", "read", "retriable", "pivot"])
def a_run_that_goes_back_takes_nothing_new(ledger: Ledger, kind: str) -> None:
    run = ledger.run()
    ledger.roll_back(run)
    ended = ledger.admit(run, "x", kind=kind)
    assert (ended.verdict, ended.run.state) == ("ended", "rolling_back")


@check
def a_run_that_commits_takes_reads_only(ledger: Ledger) -> None:
    run = ledger.run()
    ledger.settle(ledger.start(run), "in_doubt")
    assert ledger.commit(run).how == "unsettled"
    assert ledger.admit(run, "ship").verdict == "ended"
    assert ledger.admit(run, "look", kind="read").verdict == "start"


@check
def a_run_past_its_deadline_goes_back(ledger: Ledger) -> None:
    run = ledger.run(deadline_s=5.0)
    ledger.clock.now += 6
    assert ledger.admit(run).verdict == "ended"
    assert (ledger.read(run).goal, ledger.read(run).goal_by) == ("rollback", "deadline")


@check
def an_old_epoch_is_admitted_nothing(ledger: Ledger) -> None:
    run = ledger.run()
    ledger.take_over(run)
    before = ledger.everything()
    with raises(LeaseLost):
        ledger.admit(run, owner="a")
    assert ledger.everything() == before


# ---- staged -------------------------------------------------------------------------------


@check
def a_retriable_before_the_pivot_is_staged(ledger: Ledger) -> None:
    run = ledger.run()
    staged = ledger.admit(run, "mail", kind="retriable")
    assert (staged.verdict, staged.call.state, staged.call.reason) == ("staged", "held", "order")
    again = ledger.admit(run, "mail", kind="retriable")
    assert (again.verdict, again.call) == ("staged", staged.call)


@check
def a_retriable_after_the_pivot_starts(ledger: Ledger) -> None:
    run = ledger.run()
    ledger.do(run, "wire", kind="pivot")
    assert ledger.admit(run, "mail", kind="retriable").verdict == "start"


@check
def a_pivot_for_the_commit_is_staged_and_is_the_runs_pivot(ledger: Ledger) -> None:
    run = ledger.run()
    staged = ledger.admit(run, "wire", kind="pivot", at_commit=True)
    assert staged.verdict == "staged"
    assert ledger.read(run).staged_pivot == staged.call.id
    other = ledger.admit(run, "other wire", kind="pivot")
    assert (other.verdict, other.law, other.pivot) == ("refused", "pivot_twice", "wire")


# ---- the law ------------------------------------------------------------------------------


@check
def a_pivot_waits_for_the_calls_that_it_names(ledger: Ledger) -> None:
    run = ledger.run()
    refused = ledger.admit(run, "wire", kind="pivot", after=("charge",))
    assert (refused.verdict, refused.law, refused.missing) == ("refused", "pivot_early", ("charge",))
    ledger.do(run, "charge")
    assert ledger.admit(run, "wire", kind="pivot", after=("charge",)).verdict == "start"


@check_each(["started", "in_doubt", "backing_off"])
def a_pivot_waits_for_everything_unsettled(ledger: Ledger, to: str) -> None:
    run = ledger.run()
    call = ledger.start(run, "charge")
    if to != "started":
        ledger.settle(call, to)
    refused = ledger.admit(run, "wire", kind="pivot")
    assert (refused.law, refused.unsettled) == ("pivot_early", ("charge",))


@check
def a_pivot_waits_for_open_children(ledger: Ledger) -> None:
    run = ledger.run()
    child = ledger.child(run, "part")
    assert ledger.admit(run, "wire", kind="pivot").unsettled == ("part",)
    ledger.commit(child)
    assert ledger.admit(run, "wire", kind="pivot").verdict == "start"


@check
def while_a_pivot_is_in_flight_only_reads_start(ledger: Ledger) -> None:
    run = ledger.run()
    ledger.start(run, "wire", kind="pivot")
    for kind in ("compensatable", "retriable", "pivot"):
        refused = ledger.admit(run, "x", kind=kind)
        assert (refused.verdict, refused.law, refused.pivot) == ("refused", "pivot_in_flight", "wire")
    assert ledger.admit(run, "look", kind="read").verdict == "start"


@check
def after_the_pivot_nothing_that_can_be_taken_back_starts(ledger: Ledger) -> None:
    run = ledger.run()
    ledger.do(run, "wire", kind="pivot")
    refused = ledger.admit(run, "charge")
    assert (refused.law, refused.pivot) == ("after_pivot", "wire")
    assert ledger.admit(run, "other wire", kind="pivot").law == "pivot_twice"


@check
def a_refusal_is_an_event_and_takes_no_key(ledger: Ledger) -> None:
    run = ledger.run()
    ledger.admit(run, "wire", kind="pivot", after=("charge",))
    assert ledger.calls() == []
    assert [(event.what, event.by_whom) for event in ledger.events()[1:]] == [("refused", "wire")]


@check
def advised_a_violation_is_recorded_and_passes(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.start(run, "wire", kind="pivot", after=("charge",), advise=True)
    assert call.violation == "pivot_early"
    assert ledger.read(run).pivot == ""


# ---- after a resume -----------------------------------------------------------------------


@check
def in_a_resumed_run_the_nth_request_gets_the_nth_generation(ledger: Ledger) -> None:
    run = ledger.run()
    failed = ledger.settle(ledger.start(run), "failed", error="no").call
    done = ledger.do(run)
    resumed = ledger.take_over(run)
    first = ledger.admit(resumed)
    assert (first.verdict, first.call.id) == ("failed", failed.id)
    second = ledger.admit(resumed)
    assert (second.verdict, second.call.id) == ("replay", done.id)


@check
def an_unknown_request_after_a_resume_is_held_as_a_suspected_duplicate(ledger: Ledger) -> None:
    run = ledger.run()
    done = ledger.do(run, args='{"note": "a"}', key="1")
    resumed = ledger.take_over(run)
    held = ledger.admit(resumed, args='{"note": "b"}', key="2")
    assert (held.verdict, held.call.reason, held.twin.id) == ("held", "duplicate", done.id)
    assert ledger.admit(resumed, args='{"note": "b"}', key="2").call == held.call


@check_each({"declared": {"declared": True}, "again": {"again": "a second box"}})
def what_was_said_to_be_another_call_is_not_suspected(ledger: Ledger, given: dict[str, Any]) -> None:
    run = ledger.run()
    ledger.do(run, args='{"note": "a"}', key="1")
    resumed = ledger.take_over(run)
    assert ledger.admit(resumed, args='{"note": "b"}', key="2", **given).verdict == "start"


@check
def who_still_has_the_history_is_not_suspected(ledger: Ledger) -> None:
    ledger.do(ledger.run(), args='{"note": "a"}', key="1")
    ledger.clock.now += LEASE_S + 1
    resumed = ledger.run(owner="b", history=True)
    assert ledger.admit(resumed, args='{"note": "b"}', key="2").verdict == "start"


@check
def a_person_may_say_run_replay_or_no(ledger: Ledger) -> None:
    run = ledger.run()
    for number in "123":
        ledger.do(run, args=f'{{"note": "{number}"}}', key=number)
    resumed = ledger.take_over(run)
    held = {
        say: ledger.admit(resumed, args=f'{{"note": "{say}"}}', key=say).call for say in ("run", "replay", "refuse")
    }
    ledger(ops.DecideCall(held["run"].id, "run", "ann", "because"))
    ledger(ops.DecideCall(held["replay"].id, "replay", "ann", "because"))
    ledger(ops.DecideCall(held["refuse"].id, "refuse", "ann", "because"))
    asked = {say: ledger.admit(resumed, args=f'{{"note": "{say}"}}', key=say) for say in held}
    assert (asked["run"].verdict, asked["run"].call.state) == ("retry", "ready")
    assert (asked["replay"].verdict, asked["replay"].call.id) == ("replay", held["replay"].twin)
    assert asked["refuse"].verdict == "rejected"
    assert "ann" in asked["refuse"].call.error


# ---- keys of the whole ledger -------------------------------------------------------------


@check
def another_runs_call_answers_once_that_run_can_no_longer_take_it_back(ledger: Ledger) -> None:
    one, other = ledger.run("one"), ledger.run("other")
    call = ledger.do(one, key="shared", scope="ledger")
    waits = ledger.admit(other, key="shared", scope="ledger")
    assert (waits.verdict, waits.run.id) == ("wait", "one")
    ledger.commit(one)
    answer = ledger.admit(other, key="shared", scope="ledger")
    assert (answer.verdict, answer.call) == ("replay", call)


@check
def a_shared_key_is_free_when_the_other_run_took_it_back(ledger: Ledger) -> None:
    one, other = ledger.run("one"), ledger.run("other")
    call = ledger.do(one, key="shared", scope="ledger")
    ledger.roll_back(one)
    ledger.compensate(call)
    assert ledger.start(other, key="shared", scope="ledger").generation == 2

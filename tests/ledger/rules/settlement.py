"""How an attempt ended, what was learned later, and what a probe or a person says of a doubt."""

from __future__ import annotations

from typing import Any, Final

from amends.errors import LeaseLost, TransitionRefused
from amends.ledger import operations as ops
from amends.testing.conformance.ledger import Ledger, raises
from tests.ledger.rules.registry import check, check_each

# ---- starting again -----------------------------------------------------------------------


@check
def a_call_that_backs_off_is_started_again_by_its_attempt_number(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.settle(ledger.start(run), "backing_off", retry_s=2.0).call
    assert call.retry_at == ledger.clock.now + 2.0
    assert ledger(ops.StartCall(call.id, "a", 1, 3)) is None
    started = ledger(ops.StartCall(call.id, "a", 1, 2))
    assert (started.state, started.attempt, started.retry_at, started.first_at) == ("started", 2, None, call.first_at)
    assert ledger.look(call) == started


@check_each(["succeeded", "failed"])
def a_settled_call_is_not_started_again(ledger: Ledger, to: str) -> None:
    run = ledger.run()
    call = ledger.settle(ledger.start(run), to).call
    assert ledger(ops.StartCall(call.id, "a", 1, 2)) is None
    assert ledger.look(call) == call


@check
def an_old_owner_starts_nothing(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.settle(ledger.start(run), "backing_off").call
    ledger.take_over(run)
    with raises(LeaseLost):
        ledger(ops.StartCall(call.id, "a", 1, 2))


@check
def a_staged_call_starts_after_the_pivot_only(ledger: Ledger) -> None:
    run = ledger.run()
    staged = ledger.admit(run, "mail", kind="retriable").call
    assert ledger(ops.StartCall(staged.id, "a", 1, 1)) is None
    ledger.do(run, "wire", kind="pivot")
    assert ledger(ops.StartCall(staged.id, "a", 1, 1)).state == "started"


# ---- settling -----------------------------------------------------------------------------


@check_each(["succeeded", "failed", "backing_off", "in_doubt"])
def an_attempt_ends_as_it_is_told(ledger: Ledger, to: str) -> None:
    run = ledger.run()
    call = ledger.start(run)
    settled = ledger.settle(call, to, why="why", error="error", loss="loss")
    assert not settled.fenced
    assert (settled.call.state, settled.call.why, settled.call.error, settled.call.loss) == (to, "why", "error", "loss")
    assert settled.call.result == ('"ok"' if to == "succeeded" else None)
    assert ledger.look(call) == settled.call


@check
def a_pivot_that_succeeded_moves_its_run_in_the_same_transaction(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.start(run, "wire", kind="pivot")
    assert ledger.read(run).pivot == call.id
    before = len(ledger.events())
    ledger.settle(call)
    assert ledger.read(run).state == "pivoted"
    assert [event.to_state for event in ledger.events()[before:]] == ["succeeded", "pivoted"]


@check
def a_pivot_that_failed_leaves_its_run_open_for_another(ledger: Ledger) -> None:
    run = ledger.run()
    ledger.settle(ledger.start(run, "wire", kind="pivot"), "failed")
    assert (ledger.read(run).state, ledger.read(run).pivot) == ("open", "")
    assert ledger.admit(run, "other wire", kind="pivot").verdict == "start"


@check
def a_pivot_that_happened_voids_the_rollback_that_waited_for_it(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.start(run, "wire", kind="pivot")
    assert ledger.roll_back(run).how == "deferred"
    ledger.settle(call)
    assert (ledger.read(run).state, ledger.read(run).goal) == ("pivoted", "")


@check
def a_tool_may_say_that_its_failure_is_the_runs(ledger: Ledger) -> None:
    run = ledger.run()
    ledger.settle(ledger.start(run), "failed", doom=True)
    assert (ledger.read(run).goal, ledger.read(run).goal_by) == ("rollback", "self")


@check
def the_order_of_settling_is_kept(ledger: Ledger) -> None:
    run = ledger.run()
    slow, quick = ledger.start(run, "slow"), ledger.start(run, "quick")
    second, first = ledger.settle(quick).call, ledger.settle(slow).call
    assert second.settled_seq < first.settled_seq


# ---- a dead worker stays dead -------------------------------------------------------------


@check_each(["succeeded", "failed", "in_doubt"])
def a_settlement_under_an_old_epoch_is_kept_as_evidence_and_settles_nothing(ledger: Ledger, to: str) -> None:
    run = ledger.run()
    call = ledger.start(run)
    ledger.take_over(run)
    settled = ledger.settle(call, to, owner="a", epoch=1)
    assert settled.fenced
    assert ledger.look(call).state == "in_doubt"
    assert f'"happened": {str(to == "succeeded").lower()}' in ledger.look(call).evidence
    assert ledger.events()[-1].what == "evidence"


@check
def an_old_attempt_settles_nothing(ledger: Ledger) -> None:
    run = ledger.run()
    first = ledger.start(run)
    ledger.settle(first, "backing_off")
    second = ledger(ops.StartCall(first.id, "a", 1, 2))
    assert ledger.settle(first, "failed").fenced
    assert (ledger.look(second).state, ledger.look(second).attempt) == ("started", 2)


# ---- evidence -----------------------------------------------------------------------------


def evidence(call_id: str, *, happened: bool, attempt: int = 1) -> ops.NoteEvidence:
    return ops.NoteEvidence(call_id, attempt, happened, '"late"', "", "boot", 700.0, "late return")


@check
def evidence_that_a_failed_call_happened_reopens_it(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.settle(ledger.start(run), "failed").call
    found = ledger(evidence(call.id, happened=True))
    assert (found.state, found.late, found.result) == ("succeeded", 1, '"late"')


@check
def evidence_of_what_was_taken_back_knowingly_is_no_news(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.do(run)
    ledger.roll_back(run)
    ledger.compensate(call)
    ledger.close(run, "rolled_back")
    assert ledger(evidence(call.id, happened=True)).state == "compensated"


@check
def evidence_of_what_was_taken_back_in_doubt_reopens_its_run(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.settle(ledger.start(run), "in_doubt").call
    ledger.roll_back(run)
    ledger.compensate(call, from_doubt=True)
    assert ledger.close(run, "rolled_back").closed_at is not None
    assert ledger(evidence(call.id, happened=True)).state == "succeeded"
    again = ledger.read(run)
    assert (again.state, again.goal, again.closed_at, again.wake_at) == (
        "rolling_back",
        "rollback",
        None,
        ledger.clock.now,
    )


@check
def evidence_that_a_pivot_happened_after_all_moves_its_run(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.settle(ledger.start(run, "wire", kind="pivot"), "backing_off", retry_s=5.0).call
    assert ledger(evidence(call.id, happened=True)).state == "succeeded"
    assert ledger.read(run).state == "pivoted"


@check
def evidence_of_nothing_reopens_nothing(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.settle(ledger.start(run), "failed").call
    assert ledger(evidence(call.id, happened=False)).state == "failed"


@check
def a_late_return_ends_the_flight_of_a_doubt_and_wakes_its_run(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.settle(ledger.start(run), "in_doubt", mono=None).call
    ledger.close(run, "blocked", causes=("wait",))
    found = ledger(evidence(call.id, happened=True))
    assert (found.state, found.quiet_mono) == ("in_doubt", 700.0)
    assert (ledger.read(run).state, ledger.read(run).wake_at) == ("open", ledger.clock.now)


@check
def evidence_for_an_unknown_call_is_no_error(ledger: Ledger) -> None:
    assert ledger(evidence("nobody", happened=True)) is None


# ---- doubt --------------------------------------------------------------------------------


@check
def a_probe_that_knows_nothing_is_counted_and_asked_again(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.settle(ledger.start(run), "in_doubt").call
    probed = ledger(ops.NoteProbe(call.id, 1, 1, "unknown", "no answer", 4.0))
    assert (probed.probes, probed.probe_at, probed.state) == (1, ledger.clock.now + 4.0, "in_doubt")


@check
def the_settle_delay_can_be_counted_on_another_host(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.settle(ledger.start(run), "in_doubt").call
    watched = ledger(ops.WatchDoubt(call.id, 1, "other boot", 3.0))
    assert (watched.quiet_boot, watched.quiet_mono) == ("other boot", 3.0)


@check_each(["succeeded", "failed", "backing_off", "residue"])
def a_doubt_is_resolved_by_a_person_and_unblocks_the_run(ledger: Ledger, to: str) -> None:
    run = ledger.run()
    call = ledger.settle(ledger.start(run), "in_doubt").call
    ledger.close(run, "blocked", causes=("decide",))
    resolved = ledger(ops.ResolveCall(call.id, to, "ann", "I looked", result='"seen"' if to == "succeeded" else None))
    assert (resolved.state, resolved.why) == (to, "I looked")
    assert (ledger.read(run).state, ledger.read(run).wake_at) == ("open", ledger.clock.now)


@check
def a_probe_resolves_under_its_lease_only(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.settle(ledger.start(run), "in_doubt").call
    ledger.take_over(run)
    with raises(LeaseLost):
        ledger(ops.ResolveCall(call.id, "failed", "probe", "absent", owner="a", epoch=1))
    assert ledger(ops.ResolveCall(call.id, "failed", "probe", "absent", owner="b", epoch=2)).state == "failed"


@check
def a_probe_that_comes_late_learns_what_was_settled_meanwhile(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.do(run)
    assert ledger(ops.ResolveCall(call.id, "failed", "probe", "absent", owner="a", epoch=1)) == call


@check
def there_is_nothing_to_resolve_without_a_doubt(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.do(run)
    with raises(TransitionRefused) as refused:
        ledger(ops.ResolveCall(call.id, "failed", "ann", "I think so"))
    assert (refused.value.frm, refused.value.to) == ("succeeded", "failed")


@check
def a_pivot_that_a_person_found_happened_moves_its_run(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.settle(ledger.start(run, "wire", kind="pivot"), "in_doubt").call
    ledger(ops.ResolveCall(call.id, "succeeded", "ann", "on the statement", result='"ok"'))
    assert ledger.read(run).state == "pivoted"


# ---- a person's word ----------------------------------------------------------------------


@check
def nobody_decides_about_a_call_that_is_not_held(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.do(run)
    with raises(TransitionRefused):
        ledger(ops.DecideCall(call.id, "run", "ann", "go"))
    staged = ledger.admit(run, "mail", kind="retriable").call
    with raises(TransitionRefused):
        ledger(ops.DecideCall(staged.id, "run", "ann", "go"))


@check
def a_call_that_gave_up_is_tried_again_when_a_person_says_so(ledger: Ledger) -> None:
    run = ledger.run()
    ledger.do(run, "wire", kind="pivot")
    mail = ledger.settle(ledger.start(run, "mail", kind="retriable"), "backing_off", why="gave up").call
    assert mail.retry_at is None
    retried = ledger(ops.RetryCall(mail.id, "ann", "the server is back"))
    assert (retried.retry_at, retried.tries_from, retried.why) == (ledger.clock.now, 1, "")


@check
def a_compensation_that_gave_up_is_tried_again_when_a_person_says_so(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.do(run)
    ledger.roll_back(run)
    failed = ledger.compensate(call, "compensation_failed")
    retried = ledger(ops.RetryCall(failed.id, "ann", "again"))
    assert (retried.comp_from, retried.comp_gave_up, retried.comp_retry_at) == (1, 0, None)


@check
def there_is_nothing_to_try_again_in_a_call_that_succeeded(ledger: Ledger) -> None:
    call = ledger.do(ledger.run())
    with raises(TransitionRefused):
        ledger(ops.RetryCall(call.id, "ann", "again"))


UNKNOWN: Final[dict[str, ops.StoreOp[Any]]] = {
    type(op).__name__: op
    for op in (
        ops.StartCall("nobody", "a", 1, 1),
        ops.SettleCall("nobody", "a", 1, 1, "failed"),
        ops.NoteProbe("nobody", 1, 1, "unknown", "", None),
        ops.WatchDoubt("nobody", 1, "boot", 1.0),
        ops.ResolveCall("nobody", "failed", "ann", ""),
        ops.DecideCall("nobody", "run", "ann", ""),
        ops.RetryCall("nobody", "ann", ""),
    )
}


@check_each(UNKNOWN)
def a_call_that_the_ledger_does_not_have_is_said_so(ledger: Ledger, op: ops.StoreOp[Any]) -> None:
    with raises(LookupError):
        ledger(op)

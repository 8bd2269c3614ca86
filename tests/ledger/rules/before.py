"""What is there before a call, setters, and what a lost setter or a guard keeps away."""

from __future__ import annotations

from amends.ledger import operations as ops
from amends.ledger.rows import LockRequest
from amends.testing.conformance.ledger import Ledger
from amends.testing.conformance.scenarios import doubt
from tests.ledger.rules.registry import check

X = LockRequest(("x",), waits=True, waited=True)


def _locks(ledger: Ledger) -> list[str]:
    return [held.lock.name for held in ledger(ops.ListLocks("acme"))]


@check
def a_call_that_reads_first_has_its_locks_and_has_not_started(ledger: Ledger) -> None:
    run = ledger.run()
    answer = ledger.admit(run, reads=True, locks=X)
    assert (answer.verdict, answer.call.state, answer.call.attempt, _locks(ledger)) == ("retry", "ready", 0, ["x"])
    assert ledger.admit(run, reads=True, locks=X).call.id == answer.call.id
    started = ledger(ops.StartCall(answer.call.id, "a", 1, 1, before='"old"'))
    assert (started.state, started.attempt, started.before, started.reason) == ("started", 1, '"old"', "")


@check
def later_attempts_keep_what_the_first_read(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.admit(run, reads=True).call
    first = ledger(ops.StartCall(call.id, "a", 1, 1, before='"old"'))
    ledger.settle(first, "backing_off")
    again = ledger(ops.StartCall(call.id, "a", 1, 2, before='"new"'))
    assert again.before == '"old"'


@check
def a_death_while_it_is_read_drops_the_call_and_frees_its_locks(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.admit(run, reads=True, locks=X).call
    taken = ledger.take_over(run)
    found = ledger(ops.ReadCall(call.id))
    assert (found.state, found.why, _locks(ledger)) == ("dropped", "lost", [])
    other = ledger.run("other")
    assert ledger.admit(other, locks=X).verdict == "start"
    assert ledger.admit(taken, reads=True).call.generation == 2


@check
def a_death_frees_no_lock_that_another_call_of_the_run_counts_on(ledger: Ledger) -> None:
    run = ledger.run()
    ledger.admit(run, "look", reads=True, locks=X)
    ledger.start(run, "charge", locks=X)
    ledger.take_over(run)
    assert _locks(ledger) == ["x"]


@check
def a_call_that_was_given_up_has_its_error_and_no_lock(ledger: Ledger) -> None:
    call = ledger.admit(ledger.run(), reads=True, locks=X).call
    dropped = ledger(ops.DropCall(call.id, "a", 1, "before", '["OSError", "no"]'))
    assert (dropped.state, dropped.error, _locks(ledger)) == ("dropped", '["OSError", "no"]', [])
    assert ledger(ops.PrepareCall(call.id, "a", 1)) is None


@check
def a_setter_with_another_value_is_the_next_generation(ledger: Ledger) -> None:
    run = ledger.run()
    first = ledger.do(run, args="1", on_conflict="next")
    second = ledger.do(run, args="2", on_conflict="next")
    assert (first.generation, second.generation) == (1, 2)
    assert ledger.admit(run, args="2", on_conflict="next").verdict == "replay"
    third = ledger.admit(run, args="1", on_conflict="next")
    assert (third.verdict, third.call.generation) == ("start", 3)


@check
def another_value_waits_for_the_one_that_is_being_set(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.start(run, args="1", on_conflict="next")
    assert ledger.admit(run, args="2", on_conflict="next").verdict == "wait"
    ledger.settle(call, "in_doubt", why="timeout")
    assert ledger.admit(run, args="2", on_conflict="next").verdict == "doubt"


@check
def a_value_that_failed_does_not_answer_and_what_stands_does(ledger: Ledger) -> None:
    run = ledger.run()
    first = ledger.do(run, args="1", on_conflict="next")
    ledger.settle(ledger.start(run, args="2", on_conflict="next"), "failed")
    again = ledger.admit(run, args="1", on_conflict="next")
    assert (again.verdict, again.call.id) == ("replay", first.id)
    assert ledger.admit(run, args="2", on_conflict="next").call.generation == 3


@check
def a_setter_in_doubt_keeps_others_from_what_its_lock_names(ledger: Ledger) -> None:
    run = ledger.run()
    lost = doubt(ledger, run, "put", locks=X, put=True)
    answer = ledger.admit(run, locks=X)
    assert (answer.verdict, answer.call.id) == ("doubt", lost.id)
    assert ledger.admit(run, "other", locks=LockRequest(("y",))).verdict == "start"


@check
def a_guard_that_said_no_holds_back_older_calls_of_its_lock_and_no_others(ledger: Ledger) -> None:
    run = ledger.run()
    first = ledger.do(run, "zero", locks=LockRequest(("y",)))
    older, newer = (ledger.do(run, tool, locks=X) for tool in ("one", "two"))
    ledger.roll_back(run)
    begun = ledger(ledger.compensate_op(newer))
    ledger(ops.SettleCompensation(begun.id, "a", 1, 1, "compensation_failed", gave_up=True, guarded=True))
    assert ledger(ledger.compensate_op(older)) is None
    assert ledger(ledger.compensate_op(first)).state == "compensating"

"""Two at once, over two handles on one ledger where the store can have them: one is first, and both know who."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final

from amends.errors import Error, LeaseLost, TransitionRefused
from amends.ledger import operations as ops
from amends.stores.memory import MemoryStore
from amends.testing.conformance.alike import ranked, without_places
from amends.testing.conformance.ledger import LEASE_S, Clock, Ledger
from amends.testing.conformance.registry import Skipped, check, check_each
from amends.testing.conformance.scenarios import SCENARIOS, Scenario

ROUNDS: Final = 6
"""Of each race: who is first shall not be the same one always."""
RACE_S_MAX: Final = 60.0

AT_ONCE: Final = (
    "open_fresh", "open_resumed", "open_child", "admit_started", "admit_pivot", "start", "settle_pivot",
    "resolve_by_person", "roll_back", "compensate", "settle_compensation", "commit", "commit_forward", "commit_pivot",
    "close_rolled_back", "abandon",
)  # fmt: skip
"""The scenarios whose operation is also asked twice at once."""


def race(
    ledger: Ledger, one: ops.StoreOp[Any], other: ops.StoreOp[Any], *, may: type[Error] | None = None
) -> tuple[Any, Any]:
    """Both answers; the second operation goes over the second handle, where there is one.

    An error that one of them ``may`` get counts as its answer.
    """
    beside = ledger.beside or Ledger(ledger.store, ledger.colour, ledger.clock)
    gate = threading.Barrier(2)

    def perform(on: Ledger, op: ops.StoreOp[Any]) -> Any:
        gate.wait(RACE_S_MAX)
        try:
            return on(op)
        except Error as error:
            if may is None or not isinstance(error, may):
                raise
            return error

    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(perform, ledger, one), pool.submit(perform, beside, other)]
        first, second = (future.result(RACE_S_MAX) for future in asked)
    return first, second


@check
def two_handles_see_one_ledger(ledger: Ledger) -> None:
    """What one was answered, the other sees at once."""
    if ledger.beside is None:
        raise Skipped("no second handle was given: races are over one")
    run = ledger.run()
    for number in range(ROUNDS):
        call = ledger.do(run, f"tool {number}")
        assert ledger.beside.look(call) == call
        assert ledger.beside.admit(run, f"tool {number}", call_id=f"beside {number}").call == call
    assert ledger.beside.everything() == ledger.everything()


@check
def closing_one_handle_leaves_the_other_alone(ledger: Ledger) -> None:
    if ledger.beside is None:
        raise Skipped("no second handle was given")
    run = ledger.run()
    if ledger.beside.store is not ledger.store:  # a store in memory may have one handle only
        ledger.beside.store.close()
    assert ledger.do(run).state == "succeeded"


@check
def of_two_who_open_a_run_one_is_fresh_and_one_is_told_that_it_is_busy(ledger: Ledger) -> None:
    for number in range(ROUNDS):
        answers = race(ledger, ledger.open_op(f"run {number}", owner="a"), ledger.open_op(f"run {number}", owner="b"))
        assert sorted(answer.how for answer in answers) == ["busy", "fresh"]
        assert answers[0].run == answers[1].run == ledger.read(answers[0].run)
    assert len(ledger.runs()) == ROUNDS


@check
def of_two_who_resume_a_run_one_is_told_that_it_is_busy(ledger: Ledger) -> None:
    for number in range(ROUNDS):
        lost = ledger.start(ledger.run(f"run {number}"), key=f"key {number}")
        ledger.clock.now += LEASE_S + 1
        answers = race(ledger, ledger.open_op(f"run {number}", owner="b"), ledger.open_op(f"run {number}", owner="c"))
        assert sorted(answer.how for answer in answers) == ["busy", "resumed"]
        assert {answer.run.epoch for answer in answers} == {2}
        assert ledger.look(lost).state == "in_doubt"


@check
def of_two_who_open_the_next_generation_one_is_fresh(ledger: Ledger) -> None:
    for number in range(ROUNDS):
        run = ledger.run(f"run {number}")
        ledger.roll_back(run)
        ledger.close(run, "rolled_back")
        answers = race(ledger, ledger.open_op(f"run {number}", owner="a"), ledger.open_op(f"run {number}", owner="b"))
        assert sorted(answer.how for answer in answers) == ["busy", "fresh"]
        assert {answer.run.generation for answer in answers} == {2}


@check
def of_two_same_requests_one_starts_and_one_waits(ledger: Ledger) -> None:
    run = ledger.run()
    for number in range(ROUNDS):
        answers = race(ledger, ledger.admit_op(run, f"tool {number}"), ledger.admit_op(run, f"tool {number}"))
        assert sorted(answer.verdict for answer in answers) == ["start", "wait"]
        assert answers[0].call == answers[1].call
    assert len(ledger.calls()) == ROUNDS


@check
def of_two_requests_for_a_key_of_the_whole_ledger_one_starts(ledger: Ledger) -> None:
    one, other = ledger.run("one"), ledger.run("other", owner="b")
    for number in range(ROUNDS):
        shared: dict[str, Any] = {"key": f"shared {number}", "scope": "ledger"}
        answers = race(ledger, ledger.admit_op(one, **shared), ledger.admit_op(other, **shared))
        assert sorted(answer.verdict for answer in answers) == ["start", "wait"]
    assert len(ledger.calls()) == ROUNDS


@check
def requests_of_two_runs_do_not_disturb_each_other(ledger: Ledger) -> None:
    one, other = ledger.run("one"), ledger.run("other", owner="b")
    for number in range(ROUNDS):
        answers = race(ledger, ledger.admit_op(one, f"tool {number}"), ledger.admit_op(other, f"tool {number}"))
        assert [answer.verdict for answer in answers] == ["start", "start"]
        settled = race(
            ledger, ledger.settle_op(answers[0].call), ledger.settle_op(answers[1].call, "failed", owner="b")
        )
        assert [(answer.call.state, answer.fenced) for answer in settled] == [("succeeded", False), ("failed", False)]


@check
def of_two_pivots_one_starts(ledger: Ledger) -> None:
    for number in range(ROUNDS):
        run = ledger.run(f"run {number}")
        wires = (ledger.admit_op(run, "wire", kind="pivot"), ledger.admit_op(run, "other wire", kind="pivot"))
        answers = race(ledger, *wires)
        assert sorted(answer.verdict for answer in answers) == ["refused", "start"]


@check
def a_pivot_and_a_call_that_it_must_wait_for_do_not_both_start_unseen(ledger: Ledger) -> None:
    for number in range(ROUNDS):
        run = ledger.run(f"run {number}")
        pivot, call = race(ledger, ledger.admit_op(run, "wire", kind="pivot"), ledger.admit_op(run, "charge"))
        assert sorted((pivot.verdict, call.verdict)) == ["refused", "start"]


@check
def of_two_who_claim_a_tree_one_wins(ledger: Ledger) -> None:
    for number in range(ROUNDS):
        run = ledger.run(f"run {number}")
        ledger.clock.now += LEASE_S + 1
        answers = race(ledger, ledger.claim_op(run, owner="b"), ledger.claim_op(run, owner="c"))
        [winner] = [answer for answer in answers if answer is not None]
        assert ledger.read(run) == winner
        assert winner.epoch == 2


@check
def a_claim_that_is_repeated_at_once_is_one_claim(ledger: Ledger) -> None:
    """The repetition may pass over a tree that the first has in hand; it never takes it over a second time."""
    for number in range(ROUNDS):
        run = ledger.run(f"run {number}")
        ledger.clock.now += LEASE_S + 1
        op = ledger.claim_op(run)
        op.repeated = True
        answers = [answer for answer in race(ledger, op, replace(op)) if answer is not None]
        assert answers, "one of them has it"
        found = ledger.read(run)
        assert (found.owner, found.epoch) == ("b", 2)
        assert all(answer == found for answer in answers)


@check
def a_lease_is_renewed_or_taken_over_and_never_both(ledger: Ledger) -> None:
    for number in range(ROUNDS):
        run = ledger.run(f"run {number}")
        renewal = ops.RenewLeases("a", {run.uid: 1}, LEASE_S)
        ledger.clock.now += LEASE_S + 1
        renewed, claimed = race(ledger, renewal, ledger.claim_op(run))
        assert (run.uid in renewed.goals) != (claimed is not None)
        assert ledger.read(run).owner == ("a" if claimed is None else "b")


@check
def an_attempt_is_settled_or_fenced_by_a_takeover_and_never_both(ledger: Ledger) -> None:
    for number in range(ROUNDS):
        run = ledger.run(f"run {number}")
        call = ledger.start(run)
        ledger.clock.now += LEASE_S + 1
        settled, claimed = race(ledger, ledger.settle_op(call), ledger.claim_op(run))
        assert claimed is not None or not settled.fenced, (
            "whoever passes over a run that is in use leaves it to its owner"
        )
        found = ledger.look(call)
        assert found.state == ("in_doubt" if settled.fenced else "succeeded")
        moves = [event.to_state for event in ledger.events(run) if event.call == call.id and event.what == "call"]
        assert moves == ["started", found.state]


@check
def an_admission_comes_before_a_takeover_or_not_at_all(ledger: Ledger) -> None:
    """Who is told that it may start is seen by the next owner."""
    for number in range(ROUNDS):
        run = ledger.run(f"run {number}")
        first = ledger.do(run, "look", kind="read", key=f"look {number}")
        ledger.clock.now += LEASE_S + 1
        op = ledger.admit_op(run)
        told, claimed = race(ledger, op, ledger.claim_op(run), may=LeaseLost)
        is_admitted = isinstance(told, ops.Admission)
        assert is_admitted or claimed is not None
        made = [call for call in ledger(ops.ReadRun("", uid=run.uid)).calls if call.id != first.id]
        state = "started" if claimed is None else "in_doubt"
        assert [(call.id, call.state) for call in made] == ([(op.call_id, state)] if is_admitted else [])


@check
def a_commit_or_a_persons_rollback_wins_and_never_both(ledger: Ledger) -> None:
    for number in range(ROUNDS):
        run = ledger.run(f"run {number}")
        ledger.do(run)
        decision, asked = race(
            ledger, ops.DecideCommit(run.uid, "a", 1), ops.BeginRollback(run.uid, "ann", "stop", True)
        )
        assert (decision.how, asked.how) in (("committed", "ended"), ("rollback", "deferred"))
        found = ledger.read(run)
        assert (found.state, found.goal == "rollback") in (("committed", False), ("open", True))


@check
def a_call_is_admitted_before_the_commit_or_not_at_all(ledger: Ledger) -> None:
    for number in range(ROUNDS):
        run = ledger.run(f"run {number}")
        admission, decision = race(ledger, ledger.admit_op(run), ops.DecideCommit(run.uid, "a", 1))
        assert (admission.verdict, decision.how) in (("start", "unsettled"), ("ended", "committed"))


@check
def a_doubt_is_settled_by_one_word(ledger: Ledger) -> None:
    """A probe that comes late is told what was settled; of two people the second is told or refused."""
    for number in range(ROUNDS):
        run = ledger.run(f"run {number}")
        call = ledger.settle(ledger.start(run), "in_doubt").call
        probe = ops.ResolveCall(call.id, "succeeded", "probe", "found", result='"ok"', owner="a", epoch=1)
        person = ops.ResolveCall(call.id, "failed", "ann", "I looked")
        race(ledger, probe, person, may=TransitionRefused)
        found = ledger.look(call)
        moves = [event.to_state for event in ledger.events(run) if event.call == call.id and event.frm == "in_doubt"]
        assert moves == [found.state]


@check
def a_compensation_is_begun_by_one(ledger: Ledger) -> None:
    for number in range(ROUNDS):
        run = ledger.run(f"run {number}")
        call = ledger.do(run)
        ledger.roll_back(run)
        answers = race(ledger, ledger.compensate_op(call), ledger.compensate_op(call))
        assert sorted(answer is None for answer in answers) == [False, True]
        assert ledger.look(call).comp_attempt == 1


@check_each({name: SCENARIOS[name] for name in AT_ONCE})
def an_operation_that_is_repeated_at_once_happens_once(ledger: Ledger, scenario: Scenario) -> None:
    """Its connection was lost while it was under way, and it is sent again over another one."""
    clock = Clock()
    twin = Ledger(MemoryStore(clock), clock=clock)
    expected = twin(scenario(twin))
    op = scenario(ledger)
    op.repeated = True
    answers = race(ledger, op, replace(op))
    assert [without_places(answer) for answer in answers] == [without_places(expected)] * 2
    assert ranked(ledger) == ranked(twin)

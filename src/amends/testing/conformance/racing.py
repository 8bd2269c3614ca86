"""Races: two operations at once, over two handles on one ledger if the store can have them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final

from amends.audit.verify import Audit, verify_chains
from amends.encoding.dataclass import changed
from amends.errors import Error, LeaseLost, TransitionRefused
from amends.ledger import operations as ops
from amends.ledger.flow import run_flow
from amends.ledger.rows import CallRow, EventRow, LockRequest, RunRow
from amends.stores.memory import MemoryStore
from amends.testing.conformance.ledger import LEASE_S, Clock, Ledger
from amends.testing.conformance.prove import Skipped, check, check_each
from amends.testing.conformance.scenarios import (
    SCENARIOS,
    Scenario,
    a_record,
    bill,
    books,
    drafted,
    elsewhere,
    fork_op,
    forked,
    held,
    load_op,
    opened,
    request_of,
    start_op,
    unanswered,
    yes,
    yes_op,
)
from amends.testing.world import overdrawn

ROUNDS: Final = 6
"""How often each race is run, so that each operation is sometimes the first."""
RACE_S_MAX: Final = 60.0
RACERS: Final = 32
"""How many start at once against one budget."""
DAY_S: Final = 86_400.0
CLAIM_S: Final = 60.0

AT_ONCE: Final = (
    "open_fresh", "open_resumed", "open_child", "admit_started", "admit_pivot", "start", "settle_pivot",
    "resolve_by_person", "roll_back", "compensate", "settle_compensation", "commit", "commit_forward", "commit_pivot",
    "close_rolled_back", "abandon",
)  # fmt: skip
"""The scenarios whose operation is also requested twice at once."""


def race(
    ledger: Ledger, one: ops.StoreOp[Any], other: ops.StoreOp[Any], *, may: type[Error] | None = None
) -> tuple[Any, Any]:
    """Perform both at once and return both answers; the second goes over the second handle, if there is one.

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
    """Read through the second handle what the first was just answered."""
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
    """Let the repetition skip a tree that the first operation is claiming; it must not take it over again."""
    for number in range(ROUNDS):
        run = ledger.run(f"run {number}")
        ledger.clock.now += LEASE_S + 1
        op = ledger.claim_op(run)
        op.repeated = True
        answers = [answer for answer in race(ledger, op, replace(op)) if answer is not None]
        assert answers, "one of the two claims succeeded"
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
        assert claimed is not None or not settled.fenced, "a claim that skips a locked run leaves it to its owner"
        found = ledger.look(call)
        assert found.state == ("in_doubt" if settled.fenced else "succeeded")
        moves = [event.to_state for event in ledger.events(run) if event.call == call.id and event.what == "call"]
        assert moves == ["started", found.state]


@check
def an_admission_comes_before_a_takeover_or_not_at_all(ledger: Ledger) -> None:
    """Require that the next owner sees every call that was allowed to start."""
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
    """Answer a late probe with what was settled; of two people the second is told or refused."""
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
    """Send an operation again over another connection while the first is still under way."""
    clock = Clock()
    reference = Ledger(MemoryStore(clock), clock=clock)
    expected = reference(scenario(reference))
    op = scenario(ledger)
    op.repeated = True
    answers = race(ledger, op, replace(op))
    assert list(answers) == [expected] * 2
    assert ledger.everything() == reference.everything()


@check
def a_yes_and_a_no_at_once_are_one_of_them(ledger: Ledger) -> None:
    for number in range(ROUNDS):
        call = held(ledger, ledger.run(f"run {number}"))
        no = ops.DecideApproval(request_of(ledger, call).id, "reject", "bob", "no")
        race(ledger, yes_op(ledger, call), no, may=TransitionRefused)
        state = (request_of(ledger, call).state, ledger.look(call).state)
        assert state in (("approved", "ready"), ("rejected", "refused"))


@check
def one_yes_starts_one_call_however_many_want_it(ledger: Ledger) -> None:
    for number in range(ROUNDS):
        run = ledger.run(f"run {number}")
        call = yes(ledger, held(ledger, run))
        answers = race(ledger, start_op(call), start_op(call))
        assert sum(isinstance(answer, CallRow) for answer in answers) == 1
        assert request_of(ledger, call).state == "used"


@check
def what_is_written_into_one_tree_at_once_is_one_chain(ledger: Ledger) -> None:
    run = ledger.run()
    first, second = ledger.start(run, "one", key="one"), ledger.start(run, "two", key="two")
    race(ledger, ledger.settle_op(first), ledger.settle_op(second))
    race(ledger, ledger.admit_op(run, "three", key="three"), ledger.admit_op(run, "four", key="four"))
    events: list[EventRow] = ledger.events(run)
    assert [event.n for event in events] == list(range(1, len(events) + 1))
    assert run_flow(verify_chains(Audit()), ledger).verified().ok


@check_each(("tenant", "agent", "ledger"))
def of_many_who_race_no_more_start_than_the_cap_allows(ledger: Ledger, per: str) -> None:
    handles = [ledger, ledger.beside or ledger]
    if ledger.colour == "async":  # an event loop belongs to one thread, and there is no loop for each thread
        handles = [Ledger(one.store, "blocking", ledger.clock) for one in handles]
    runs = [ledger.run(f"run {number}") for number in range(RACERS)]
    asked = [ledger.admit_op(run, costs=bill(7, per=per)) for run in runs]
    gate = threading.Barrier(RACERS)

    def one(number: int) -> str:
        gate.wait(60)
        op, on = asked[number], handles[number % 2]
        answer = on(op)
        if answer.verdict == "again":
            op.costs = replace(op.costs, wide=True)
            answer = on(op)
        return str(answer.verdict)

    with ThreadPoolExecutor(RACERS) as pool:
        verdicts = list(pool.map(one, range(RACERS)))
    assert (verdicts.count("start"), verdicts.count("refused")) == (14, RACERS - 14)
    assert list(overdrawn(ledger.slices())) == []
    assert books(ledger) == ("98", "0")


@check
def of_two_who_write_at_once_one_is_first(ledger: Ledger) -> None:
    for number in range(ROUNDS):
        ledger.run(f"run {number}")
        row = drafted(ledger)
        mine, yours = (changed(row, {"signature": who}) for who in ("mine", "yours"))
        assert sorted(race(ledger, ops.WriteCheckpoint(mine), ops.WriteCheckpoint(yours))) == [False, True]
        [newest] = ledger(ops.ReadCheckpoints(-1))
        assert newest in (mine, yours)
        assert newest.n == number + 1


@check
def a_fork_that_ends_and_its_source_that_goes_back_at_once_do_not_wait_for_each_other(ledger: Ledger) -> None:
    for number in range(ROUNDS):
        run = ledger.run(f"run {number}")
        fork = opened(ledger, forked(ledger, run, ledger.do(run, key=f"key {number}"), id=f"fork {number}"))
        ledger.roll_back(fork, owner="f")
        back = ops.BeginRollback(run.uid, "a", "it failed", False, owner="a", epoch=run.epoch)
        closed, rolled = race(ledger, ops.CloseRun(fork.uid, "f", fork.epoch, "rolled_back"), back)
        assert closed.state == "rolled_back"
        assert rolled.how in ("forked", "rolling")


@check
def of_two_forks_of_one_id_at_once_one_is_made(ledger: Ledger) -> None:
    for number in range(ROUNDS):
        runs = [ledger.run(f"run {number} {side}") for side in ("l", "r")]
        calls = [ledger.do(run, key=f"key {run.id}") for run in runs]
        words = [fork_op(ledger, run, call, id=f"fork {number}") for run, call in zip(runs, calls, strict=True)]
        first, second = race(ledger, *words)
        assert sorted((first.how, second.how)) == ["forked", "taken"]
        assert first.run == second.run


@check
def of_a_fork_and_a_rollback_at_once_one_is_first(ledger: Ledger) -> None:
    for number in range(ROUNDS):
        run = ledger.run(f"run {number}")
        one = ledger.do(run, key=f"key {number}")
        word = fork_op(ledger, run, one, id=f"fork {number}")
        back = ops.BeginRollback(run.uid, "a", "it failed", False, owner="a", epoch=run.epoch)
        fork, rolled = race(ledger, word, back)
        assert (fork.how, rolled.how) in (("forked", "forked"), ("back", "rolling"))


@check
def loaded_twice_at_once_it_is_there_once(ledger: Ledger) -> None:
    record = a_record(elsewhere())
    first, second = load_op(ledger, record), load_op(ledger, record)
    ended = race(ledger, first, second)
    assert sorted(map(len, ended)) == [0, 1]
    assert len([run for run in ledger.runs() if run.uid == record.root.uid]) == 1


@check
def of_two_who_want_one_lock_one_gets_all_of_its_names(ledger: Ledger) -> None:
    for number in range(ROUNDS):
        runs = [ledger.run(f"{who} {number}") for who in ("one", "other")]
        shared = f"shared {number}"
        ops_ = [
            ledger.admit_op(
                run, locks=LockRequest(tuple(sorted((shared, f"{place} {number}"))), waits=False, waited=True)
            )
            for run, place in zip(runs, ("left", "zright"), strict=True)
        ]
        answers = race(ledger, *ops_)
        assert sorted(answer.verdict for answer in answers) == ["locked", "start"]
        winner = runs[0 if answers[0].verdict == "start" else 1]
        locks: list[ops.HeldLock] = ledger(ops.ListLocks("acme"))
        taken = {one.lock.name for one in locks if one.lock.run_id == winner.id}
        assert len(taken) == 2
        assert taken >= {shared}
        assert not {one.lock.run_id for one in locks} & {run.id for run in runs if run is not winner}


@check
def of_two_who_want_to_tell_one_does(ledger: Ledger) -> None:
    run = ledger.run()
    for number in range(ROUNDS):
        call = held(ledger, run, f"tool {number}")
        answers = race(ledger, *(ops.ClaimNotice(call.approval, teller, CLAIM_S) for teller in ("a", "b")))
        (claimed,) = (answer for answer in answers if answer is not None)
        assert claimed.approval == request_of(ledger, call)
        assert claimed.approval.tells == 1


@check
def of_two_who_follow_a_timetable_one_does(ledger: Ledger) -> None:
    for number in range(ROUNDS):
        row = unanswered(ledger, 60.0, tool=f"tool {number}")
        answers = race(ledger, *(ops.FollowTimetable(row.id, row.reached) for _ in ("a", "b")))
        (done,) = (answer for answer in answers if answer is not None)
        assert (done.approval.reached, done.approval.tell_at) == (1, done.now)
        root = ledger(ops.ReadRun("", uid=row.root)).run
        said = [event for event in ledger.events(root) if event.what == "reminded"]
        assert len(said) == 1


@check
def a_yes_and_the_deadline_come_one_after_the_other(ledger: Ledger) -> None:
    for number in range(ROUNDS):
        row = unanswered(ledger, 180.0, tool=f"tool {number}")
        yes = ops.DecideApproval(row.id, "approve", "carl", "", row.digest, roles=("clerk",))
        race(ledger, ops.FollowTimetable(row.id, row.reached), yes)
        found = ledger(ops.ReadApproval(row.id))
        assert (found.approval.state, found.call.state) == ("rejected", "refused")


@check
def a_sweep_and_an_opening_come_one_after_the_other(ledger: Ledger) -> None:
    old, _ = _rolled_back(ledger)
    swept, opened = race(ledger, ops.CollectGarbage(DAY_S / 2), ledger.open_op())
    assert (opened.how, opened.run.generation) == ("fresh", 2)
    assert (ledger.read(old).gone_at is not None) == (swept.runs == 1)


def _rolled_back(ledger: Ledger) -> tuple[RunRow, CallRow]:
    """Return a run that was rolled back a day ago, and its failed call."""
    run = ledger.run()
    call = ledger.settle(ledger.start(run, args='{"card": "4111"}'), "failed").call
    ledger.roll_back(run)
    ledger.close(run, "rolled_back")
    ledger.clock.now += DAY_S
    return run, call


@check
def a_sweep_and_late_evidence_come_one_after_the_other(ledger: Ledger) -> None:
    run, call = _rolled_back(ledger)
    evidence = ops.NoteEvidence(call.id, 1, True, '"late"', "", "boot", 9.0, "late")
    swept, _ = race(ledger, ops.CollectGarbage(DAY_S / 2), evidence)
    late, root = ledger.look(call), ledger.read(run)
    assert (late.state, root.state, root.closed_at) == ("succeeded", "rolling_back", None)
    assert (late.lost_at is not None) == (swept.runs == 1)


@check
def of_two_at_once_each_tree_is_swept_by_one(ledger: Ledger) -> None:
    made = [ledger.run(f"run {number}") for number in range(4)]
    for run in made:
        ledger.do(run)
        ledger.commit(run)
    ledger.clock.now += DAY_S
    one, other = race(ledger, ops.CollectGarbage(0.0), ops.CollectGarbage(0.0))
    left = ledger(ops.CollectGarbage(0.0))  # what both skipped because the other one had locked it
    assert one.runs + other.runs + left.runs == len(made)
    assert [event.what for event in ledger.events()].count("payloads removed") == len(made)
    assert all(ledger.read(run).gone_at is not None for run in made)


@check
def of_two_who_pin_at_once_one_is_right_for_both(ledger: Ledger) -> None:
    first, second = race(ledger, ops.PinKey("one"), ops.PinKey("two"))
    assert first == second
    assert ledger(ops.PinKey("")) == first

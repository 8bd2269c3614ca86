"""A person's words over doubt and rollback: each binds to what the ledger said when it was looked at."""

from __future__ import annotations

import json
from typing import Any

from amends.errors import TransitionRefused
from amends.ledger import operations as ops
from amends.ledger.operations import AcceptCall
from amends.ledger.rows import CallRow
from amends.testing.conformance.ledger import Ledger, raises
from amends.testing.conformance.scenarios import planned
from tests.ledger.rules.registry import check, check_each


@check
def a_planned_rollback_is_kept_with_its_plan(ledger: Ledger) -> None:
    run = ledger.run()
    ledger.do(run)
    asked = ledger(planned(ledger, run))
    assert (asked.how, asked.run.goal, asked.run.plan) == ("deferred", "rollback", "p1")
    said = [event for event in ledger.events(run) if event.what == "rollback planned"]
    assert [(event.by_whom, json.loads(event.facts)["plan"]) for event in said] == [("ann", "p1")]


@check
def a_rollback_planned_before_the_run_moved_is_stale(ledger: Ledger) -> None:
    run = ledger.run()
    ledger.do(run, key="1")
    word = planned(ledger, run)
    ledger.do(run, key="2")
    before = len(ledger.events(run))
    assert ledger(word).how == "stale"
    read = ledger.read(run)
    assert (read.goal, read.plan, len(ledger.events(run))) == ("", "", before)


@check
def a_rollback_planned_before_a_child_moved_is_stale(ledger: Ledger) -> None:
    run = ledger.run()
    child = ledger.child(run)
    word = planned(ledger, run)
    ledger.do(child)
    assert ledger(word).how == "stale"


@check
def a_read_or_a_new_owner_does_not_make_a_plan_stale(ledger: Ledger) -> None:
    run = ledger.run()
    ledger.do(run)
    word = planned(ledger, run)
    ledger.do(run, "look", kind="read", key="r")
    ledger.take_over(run)
    assert ledger(word).how == "deferred"


@check
def a_planned_rollback_repeated_gives_its_first_answer_although_the_run_has_moved(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.do(run)
    word = planned(ledger, run)
    assert ledger(word).how == "deferred"
    ledger.roll_back(run)
    ledger.compensate(call)
    before = len(ledger.events(run))
    word.repeated = True
    assert ledger(word).how == "deferred"
    assert len(ledger.events(run)) == before
    other = planned(ledger, run, "p2")
    other.mark, other.repeated = word.mark, True
    assert ledger(other).how == "stale"


# ---- what was learned ---------------------------------------------------------------------


def _learned(call: CallRow) -> list[list[Any]]:
    found: list[list[Any]] = json.loads(call.learned or "[]")
    return found


@check
def what_a_probe_said_is_kept_with_its_time(ledger: Ledger) -> None:
    call = ledger.settle(ledger.start(ledger.run()), "in_doubt").call
    ledger(ops.NoteProbe(call.id, 1, 1, "unknown", "the bank sleeps", 3.0))
    first = ledger.clock.now
    ledger.clock.now += 5
    noted = ledger(ops.NoteProbe(call.id, 1, 2, "absent, too early to believe", "", 4.0, left_s=2.0))
    assert _learned(noted) == [
        [first, "probe", 1, "unknown", "the bank sleeps"],
        [ledger.clock.now, "probe", 1, "absent, too early to believe", ""],
    ]
    assert ledger.look(call).learned == noted.learned


@check
def a_persons_question_is_kept_and_leaves_the_pace_alone(ledger: Ledger) -> None:
    call = ledger.settle(ledger.start(ledger.run()), "in_doubt").call
    paced = ledger(ops.NoteProbe(call.id, 1, 1, "unknown", "", 3.0))
    word = ops.NoteProbe(call.id, 1, paced.probes, "happened", "'p1'", None, by="person", paced=False)
    noted = ledger(word)
    assert (noted.probes, noted.probe_at) == (paced.probes, paced.probe_at)
    assert [one[1:] for one in _learned(noted)][1:] == [["person", 1, "happened", "'p1'"]]
    word.repeated = True
    assert ledger(word).learned == noted.learned


@check
def only_the_newest_answers_stay_with_the_call(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.settle(ledger.start(run), "in_doubt").call
    for number in range(30):
        ledger(ops.NoteProbe(call.id, 1, number + 1, "unknown", str(number), 1.0))
    assert [one[4] for one in _learned(ledger.look(call))] == [str(number) for number in range(10, 30)]
    assert sum(event.what == "probed" for event in ledger.events(run)) == 30


@check
def a_late_return_is_kept_among_what_was_learned(ledger: Ledger) -> None:
    call = ledger.settle(ledger.start(ledger.run()), "in_doubt").call
    ledger(ops.NoteEvidence(call.id, 1, True, '"p1"', "", "boot", 1.0, "late"))
    assert [one[1:4] for one in _learned(ledger.look(call))] == [["late", 1, "happened"]]


# ---- left standing ------------------------------------------------------------------------


@check_each(["in_doubt", "compensation_in_doubt", "compensation_failed", "succeeded"])
def what_stands_is_accepted_as_residue(ledger: Ledger, left: str) -> None:
    run = ledger.run()
    call = ledger.settle(ledger.start(run), "in_doubt").call if left == "in_doubt" else ledger.do(run)
    ledger.roll_back(run)
    if left.startswith("compensation"):
        begun = ledger(ledger.compensate_op(call))
        ledger.settle_compensation(begun, left, gave_up=True)
    ledger.close(run, "blocked", causes=("decide",))
    word = AcceptCall(call.id, "ann", "they keep it")
    accepted = ledger(word)
    assert (accepted.state, accepted.why) == ("residue", "they keep it")
    assert ledger.read(run).state == "rolling_back", "a cause was removed"
    before = len(ledger.events(run))
    word.repeated = True
    assert ledger(word).state == "residue"
    assert len(ledger.events(run)) == before


@check_each(["open", "failed", "started", "read"])
def what_does_not_stand_is_not_accepted(ledger: Ledger, how: str) -> None:
    run = ledger.run()
    kind = "read" if how == "read" else "compensatable"
    call = ledger.start(run, kind=kind)
    if how != "started":
        call = ledger.settle(call, "failed" if how == "failed" else "succeeded").call
    if how in ("failed", "read"):
        ledger.roll_back(run)
    with raises(TransitionRefused):
        ledger(AcceptCall(call.id, "ann", "stays"))
    assert ledger.look(call).state == call.state


@check
def calls_are_searched_by_their_tool(ledger: Ledger) -> None:
    run = ledger.run()
    first = ledger.do(run, "charge", key="1")
    ledger.do(run, "ship", key="2")
    last = ledger.do(run, "charge", key="3")
    found = ledger(ops.SearchCalls(None, tool="charge"))
    assert [call.id for call in found] == [last.id, first.id]
    assert [call.id for call in ledger(ops.SearchCalls(None, before=last.id, tool="charge"))] == [first.id]
    assert ledger(ops.SearchCalls(None, ("failed",), tool="charge")) == []

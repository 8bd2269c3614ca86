"""A person's words over doubt and rollback: each binds to what the ledger said when it was looked at."""

from __future__ import annotations

import json

from amends import ledger as ops
from amends.planmark import tree_mark
from amends.rows import RunRow
from amends.testing.conformance.ledger import Ledger
from amends.testing.conformance.registry import check


def planned(ledger: Ledger, run: RunRow, plan: str = "p1") -> ops.BeginRollback:
    """A rollback that was planned as the run stands now."""
    tree: ops.Tree | None = ledger(ops.ReadRun("", uid=run.uid))
    assert tree is not None
    return ops.BeginRollback(run.uid, "ann", "stop", True, plan=plan, mark=tree_mark(tree.runs, tree.calls))


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

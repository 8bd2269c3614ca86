"""Budgets of what is staged, held and decided by a person: paid for by what lets it go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from amends.ledger import operations as ops
from amends.ledger.operations import DecideApproval
from amends.ledger.rows import ApprovalRow, Bill, Need, Overrun, RunRow, Terms, Unapproved
from amends.model import ONE
from amends.testing.conformance.budgets import admit, bill, books, start
from amends.testing.conformance.ledger import Ledger
from amends.testing.conformance.registry import check, check_each

# ---- staged -------------------------------------------------------------------------------


@check
def what_is_staged_is_reserved_when_the_commit_is_decided(ledger: Ledger) -> None:
    run, other = ledger.run(), ledger.run("other")
    staged = admit(ledger, run, bill(60), "mail", kind="retriable")
    assert (staged.verdict, ledger.slices()) == ("staged", [])
    taken = start(ledger, other, bill(50))
    decision = ledger.commit(run)
    assert (decision.how, decision.run.goal, decision.run.goal_by) == ("over", "rollback", "budget")
    assert decision.over is not None
    assert decision.over.tool == "mail"
    assert ledger.commit(run).how == "rollback", "it was decided"
    ledger.settle(taken, "failed")
    run = ledger.run("again")
    staged = admit(ledger, run, bill(60), "mail", kind="retriable")
    assert ledger.commit(run).how == "forward"
    assert books(ledger) == ("60", "0")
    assert ledger(ops.StartCall(staged.call.id, "a", 1, 1)).state == "started"
    assert books(ledger) == ("60", "0"), "it has what it needs"


@check_each(("call", "commit"))
def a_pivot_reserves_what_it_lets_go(ledger: Ledger, at: str) -> None:
    run = ledger.run()
    admit(ledger, run, bill(60), "mail", kind="retriable")
    admit(ledger, run, bill(20), "post", kind="retriable")
    if at == "commit":
        assert admit(ledger, run, bill(30), "wire", kind="pivot", at_commit=True).verdict == "staged"
        assert ledger.commit(run).how == "over"
        assert ledger.read(run).pivot == ""
        return
    no = admit(ledger, run, bill(30), "wire", kind="pivot")
    assert (no.verdict, no.over.asked // ONE, no.over.tool) == ("refused", 110, "wire, mail, post")
    assert start(ledger, run, bill(20), "wire", kind="pivot").state == "started"
    assert books(ledger) == ("100", "0")


@check
def what_is_dropped_has_taken_nothing(ledger: Ledger) -> None:
    run = ledger.run()
    admit(ledger, run, bill(60), "mail", kind="retriable")
    ledger.roll_back(run)
    assert (ledger.close(run, "rolled_back").state, ledger.slices()) == ("rolled_back", [])


@check
def what_was_held_is_reserved_when_it_starts(ledger: Ledger) -> None:
    run = ledger.run()
    ledger.settle(start(ledger, run, bill(40), key="1", args="1"))
    run = ledger.take_over(run)
    held = admit(ledger, run, bill(70), key="2", args="2").call
    assert held.state == "held"
    ledger(ops.DecideCall(held.id, "run", "anna", "another one"))
    over = ledger(ops.StartCall(held.id, "b", run.epoch, 1))
    assert isinstance(over, Overrun)
    assert (over.asked // ONE, over.left // ONE) == (70, 60)
    assert ledger.look(held).state == "ready"


# ---- held for a person --------------------------------------------------------------------


def _asking(ledger: Ledger, amount: int, **more: Any) -> Bill:
    """What a call costs that comes out of a budget which asks a person."""
    return replace(bill(amount, then="hold", **more), ask=(ledger.new("apr"), ledger.new("nonce")))


def _yes(ledger: Ledger, request: ApprovalRow) -> None:
    ruled = ledger(DecideApproval(request.id, "approve", "anna", "it is worth it", digest=request.digest))
    assert (ruled.void, ruled.approval.state) == ("", "approved")


def _held(ledger: Ledger, run: RunRow, tool: str = "ship", **given: Any) -> Any:
    start(ledger, run, _asking(ledger, 60))
    return admit(ledger, run, _asking(ledger, 50), tool, **given)


@check_each(("compensatable", "read"))
def what_would_pass_is_held_and_a_yes_lets_it(ledger: Ledger, kind: str) -> None:
    run = ledger.run()
    asked = _held(ledger, run, kind=kind)
    assert (asked.verdict, asked.call.state, asked.call.reason) == ("held", "held", "budget")
    assert (asked.approval.state, asked.approval.is_about_money) == ("pending", True)
    assert books(ledger) == ("60", "0")
    assert admit(ledger, run, _asking(ledger, 50), "ship", kind=kind).verdict == "held"
    _yes(ledger, asked.approval)
    assert admit(ledger, run, _asking(ledger, 50), "ship", kind=kind).verdict == "retry"
    started = ledger(ops.StartCall(asked.call.id, "a", 1, 1))
    assert (started.state, books(ledger)) == ("started", ("110", "0"))
    assert ledger(ops.ReadRun("", uid=run.uid)).approvals[-1].state == "used"
    assert admit(ledger, run, _asking(ledger, 1), "pack", kind=kind).verdict == "held", (
        "it was let pass, and nobody else"
    )


@check
def a_no_takes_nothing(ledger: Ledger) -> None:
    run = ledger.run()
    asked = _held(ledger, run)
    ledger(DecideApproval(asked.approval.id, "reject", "anna", "too much"))
    assert (ledger.look(asked.call).state, books(ledger)) == ("refused", ("60", "0"))
    assert admit(ledger, run, _asking(ledger, 50), "ship").verdict == "rejected"


@check
def a_request_about_money_that_ran_out_is_made_anew(ledger: Ledger) -> None:
    run = ledger.run()
    asked = _held(ledger, run)
    ledger.clock.now += 86_401
    run = ledger.run(owner="b")
    again = admit(ledger, run, _asking(ledger, 50), "ship")
    assert (again.verdict, again.void, again.approval.state) == ("void", "expired", "pending")
    assert (again.approval.follows, again.approval.is_about_money) == (asked.approval.id, True)


@check
def a_commit_that_costs_too_much_waits_for_a_person(ledger: Ledger) -> None:
    run = ledger.run()
    start(ledger, ledger.run("other"), _asking(ledger, 60))
    staged = admit(ledger, run, _asking(ledger, 50), "mail", kind="retriable").call
    decision = ledger.commit(run)
    assert (decision.how, [call.id for call in decision.calls]) == ("unsettled", [staged.id])
    assert (ledger.read(run).state, books(ledger)) == ("open", ("60", "0"))
    assert ledger.commit(run).how == "unsettled", "nobody has said anything"
    [request] = ledger(ops.ReadRun("", uid=run.uid)).approvals
    _yes(ledger, request)
    assert ledger.commit(run).how == "forward"
    assert books(ledger) == ("110", "0")
    assert ledger(ops.StartCall(staged.id, "a", 1, 1)).state == "started"


@check
def a_yes_to_a_call_is_no_yes_to_its_price(ledger: Ledger) -> None:
    """What a rule asks about is asked first; that it also costs too much is another question, about the same call."""
    run = ledger.run()
    start(ledger, run, _asking(ledger, 60))
    need = replace(_need(ledger), needed=2)
    first = admit(ledger, run, _asking(ledger, 50), "ship", need=need)
    assert first.call.reason == "approval"
    for who in ("anna", "bob"):
        ledger(DecideApproval(first.approval.id, "approve", who, "fine", digest=first.approval.digest))
    asked = ledger(ops.StartCall(first.call.id, "a", 1, 1, terms=_terms(need)))
    assert isinstance(asked, Unapproved)
    assert asked.approval is not None
    assert (asked.call.reason, asked.approval.needed, asked.approval.follows) == ("budget", 2, first.approval.id)
    for who in ("anna", "bob"):
        ledger(DecideApproval(asked.approval.id, "approve", who, "fine", digest=asked.approval.digest))
    assert ledger(ops.StartCall(first.call.id, "a", 1, 1, terms=_terms(need))).state == "started"
    assert books(ledger) == ("110", "0")


def _need(ledger: Ledger) -> Need:
    return Need(ledger.new("apr"), ledger.new("nonce"), why="a rule", policy="rule")


def _terms(need: Need) -> Terms:
    return Terms("1", need)

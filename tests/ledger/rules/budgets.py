"""Budgets: what a call costs is reserved with its start, settled with its end, and never more than the cap."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from amends.budgets import ONE, text_of
from amends.ledger import operations as ops
from amends.ledger.operations import DecideApproval
from amends.ledger.rows import (
    ApprovalRow,
    BudgetDemand,
    CallCost,
    CallRow,
    Need,
    Overrun,
    RunRow,
    SliceRow,
    Terms,
    Unapproved,
)
from amends.testing.conformance.ledger import LEASE_S, Ledger
from amends.testing.conformance.scenarios import bill, books
from tests.ledger.rules.registry import check, check_each

RACERS: Final = 32
ALL: Final = ("run", "agent", "tenant", "tool", "ledger")


def admit(ledger: Ledger, run: RunRow, costs: CallCost, tool: str = "charge", **given: Any) -> Any:
    """As an engine asks: once more, wide, where the run's own slice has not enough."""
    op = ledger.admit_op(run, tool, costs=costs, **given)
    answer = ledger(op)
    if answer.verdict == "again":
        op.costs = replace(costs, wide=True)
        answer = ledger(op)
    assert answer.verdict != "again", "with every slice in sight there is an answer"
    return answer


def start(ledger: Ledger, run: RunRow, costs: CallCost, tool: str = "charge", **given: Any) -> CallRow:
    answer = admit(ledger, run, costs, tool, **given)
    assert answer.verdict == "start", answer
    call: CallRow = answer.call
    return call


# ---- reserving ----------------------------------------------------------------------------


@check_each(ALL)
def what_a_call_costs_is_reserved_with_its_start_and_spent_with_its_success(ledger: Ledger, per: str) -> None:
    run = ledger.run()
    call = start(ledger, run, bill(40, per=per))
    assert books(ledger) == ("40", "0")
    ledger.settle(call)
    assert books(ledger) == ("0", "40")
    assert [event.facts for event in ledger.events(run) if "costs" in event.facts]


@check_each(ALL)
def what_would_pass_the_cap_is_refused_with_the_facts_and_takes_no_key(ledger: Ledger, per: str) -> None:
    run = ledger.run()
    ledger.settle(start(ledger, run, bill(40, per=per), "one"))
    start(ledger, run, bill(50, per=per), "two")
    no = admit(ledger, run, bill(11, per=per), "three")
    assert (no.verdict, no.law, no.call) == ("refused", "budget", None)
    over: Overrun = no.over
    facts = (over.spent // ONE, over.reserved // ONE, over.asked // ONE, over.left // ONE, over.tool)
    assert facts == (40, 50, 11, 10, "three")
    assert books(ledger) == ("50", "40")
    assert [event.facts for event in ledger.events(run)][-1].count("budget") == 1
    assert {call.tool for call in ledger.calls()} == {"one", "two"}
    assert admit(ledger, run, bill(10, per=per), "three").verdict == "start"


@check
def a_budget_per_call_looks_at_one_call_alone(ledger: Ledger) -> None:
    run = ledger.run()
    for tool in ("one", "two"):
        start(ledger, run, bill(100, per="call"), tool)
    no = admit(ledger, run, bill(101, per="call"), "three")
    assert (no.verdict, no.over.asked // ONE, no.over.left // ONE) == ("refused", 101, 100)
    assert ledger.slices() == []


@check
def all_budgets_of_a_call_are_reserved_or_none(ledger: Ledger) -> None:
    run = ledger.run()
    wide, narrow = bill(40, per="tenant"), bill(40, per="run", cap=30)
    both = CallCost(wide.costs, wide.wants + narrow.wants)
    no = admit(ledger, run, both)
    assert (no.verdict, no.over.want.per) == ("refused", "run")
    assert books(ledger) == ("0", "0")


@check
def the_gravest_budget_has_the_last_word(ledger: Ledger) -> None:
    run = ledger.run()
    wants = [bill(40, cap=10, per="tenant", then=then).wants[0] for then in ("hold", "refuse", "rollback")]
    no = admit(ledger, run, CallCost(bill(40).costs, tuple(wants)))
    assert no.over.want.then == "rollback"
    assert (ledger.read(run).goal, ledger.read(run).goal_by) == ("rollback", "budget")
    assert admit(ledger, run, bill(1), "two").verdict == "ended"


@check
def nothing_goes_back_over_a_pivot_for_a_budget(ledger: Ledger) -> None:
    run = ledger.run()
    ledger.do(run, "wire", kind="pivot")
    no = admit(ledger, run, bill(40, cap=10, then="rollback"), "mail", kind="retriable")
    assert (no.verdict, ledger.read(run).goal, ledger.read(run).state) == ("refused", "", "pivoted")


@check
def what_is_whose(ledger: Ledger) -> None:
    """Runs share what is per agent, tenant or tool; what is per run they have each for themselves."""
    first, second, other = ledger.run("first"), ledger.run("second"), ledger.run("other", tenant="other")
    for run in (first, second):
        assert admit(ledger, run, bill(80, per="run", who=run.uid), "a").verdict == "start"
    assert admit(ledger, first, bill(80, per="agent", who="bob"), "b").verdict == "start"
    assert admit(ledger, second, bill(80, per="agent", who="bob"), "b").verdict == "refused"
    assert admit(ledger, second, bill(80, per="agent", who="eve"), "b").verdict == "start"
    assert admit(ledger, first, bill(80), "c").verdict == "start"
    assert admit(ledger, second, bill(80), "c").verdict == "refused"
    assert admit(ledger, other, bill(80), "c").verdict == "start"
    assert admit(ledger, first, bill(80, per="ledger"), "d").verdict == "start"
    assert admit(ledger, other, bill(80, per="ledger"), "d").verdict == "refused"


@check_each({"hour": 3600.0, "day": 86400.0, "month": 31 * 86400.0})
def a_new_period_begins_with_nothing_spent(ledger: Ledger, length: float) -> None:
    every = {3600.0: "hour", 86400.0: "day"}.get(length, "month")
    run = ledger.run()
    call = start(ledger, run, bill(80, every=every), "one")
    assert admit(ledger, run, bill(80, every=every), "two").verdict == "refused"
    ledger.clock.now += length
    assert admit(ledger, run, bill(80, every=every), "two").verdict == "start"
    ledger.settle(call)
    assert books(ledger) == ("80", "80"), "each is settled where it was reserved"
    assert len({row.period for row in ledger.slices()}) == 2


@check
def a_cap_that_is_changed_counts_from_what_was_spent(ledger: Ledger) -> None:
    run = ledger.run()
    ledger.settle(start(ledger, run, bill(80), "one"))
    assert admit(ledger, run, bill(50, cap=120), "two").verdict == "refused"
    assert admit(ledger, run, bill(40, cap=120), "two").verdict == "start"
    assert admit(ledger, run, bill(1, cap=100), "three").verdict == "refused"
    assert books(ledger) == ("40", "80")


@check
def allotments_go_where_they_are_needed(ledger: Ledger) -> None:
    """Sixteen runs, two of each slice: together they get exactly the cap, however it was dealt out."""
    started = 0
    for number in range(16):
        run = ledger.run(f"run {number}")
        started += admit(ledger, run, bill(7)).verdict == "start"
    assert started == 14
    assert admit(ledger, ledger.run("last"), bill(2)).verdict == "start"
    assert books(ledger) == ("100", "0")


@check
def fractions_add_up_exactly(ledger: Ledger) -> None:
    run, tenth = ledger.run(), ONE // 10
    want = BudgetDemand("usd", ONE, "tenant", "", "*", "refuse", "", tenth)
    for number in range(10):
        assert admit(ledger, run, CallCost((("usd", tenth, ONE),), (want,)), f"tool {number}").verdict == "start"
    assert books(ledger) == ("1", "0")
    assert admit(
        ledger, run, CallCost((("usd", 1, ONE),), (BudgetDemand("usd", ONE, "tenant", "", "*", "refuse", "", 1),))
    ).over


# ---- settling -----------------------------------------------------------------------------


@check_each({"less": 25, "more": 60})
def what_the_body_says_is_what_it_cost(ledger: Ledger, said: int) -> None:
    run = ledger.run()
    call = start(ledger, run, bill(40))
    ledger.settle(call, spent=(("usd", said * ONE),))
    assert books(ledger) == ("0", str(said))
    assert admit(ledger, run, bill(100 - said), "two").verdict == "start"
    assert admit(ledger, run, bill(1), "three").verdict == "refused"


@check
def what_cost_more_than_the_cap_leaves_nothing_for_anybody(ledger: Ledger) -> None:
    run = ledger.run()
    call = start(ledger, run, bill(10))
    ledger.settle(call, spent=(("usd", 130 * ONE),))
    for number in range(16):
        assert admit(ledger, ledger.run(f"run {number}"), bill(1)).verdict == "refused"


@check
def what_nobody_had_foreseen_is_charged_all_the_same(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.start(run)
    ledger.settle(call, spent=(("usd", 30 * ONE),), wants=bill(0).wants)
    assert books(ledger) == ("0", "30")
    assert admit(ledger, run, bill(71), "two").verdict == "refused"


@check_each(("failed", "backing_off", "in_doubt"))
def a_failure_gives_back_and_a_doubt_keeps(ledger: Ledger, to: str) -> None:
    run = ledger.run()
    call = ledger.settle(start(ledger, run, bill(80)), to).call
    assert books(ledger) == (("0" if to == "failed" else "80"), "0")
    if to == "in_doubt":
        ledger(ops.ResolveCall(call.id, "failed", "probe", "absent", owner="a", epoch=1))
        assert books(ledger) == ("0", "0")
    if to == "backing_off":
        assert ledger(ops.StartCall(call.id, "a", 1, 2)).state == "started"
        assert books(ledger) == ("80", "0"), "later attempts cost nothing more"


@check
def what_was_spent_before_it_failed_stays_spent(ledger: Ledger) -> None:
    run = ledger.run()
    ledger.settle(start(ledger, run, bill(80)), "failed", spent=(("usd", 3 * ONE),))
    assert books(ledger) == ("0", "3")


@check
def a_takeover_keeps_what_may_be_spent(ledger: Ledger) -> None:
    run = ledger.run()
    start(ledger, run, bill(40), "charge")
    start(ledger, run, bill(20), "look", kind="read")
    ledger.take_over(run)
    assert books(ledger) == ("40", "20"), "a lost read may have been paid for"


@check
def residue_keeps_what_it_has(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.settle(start(ledger, run, bill(40)), "in_doubt").call
    ledger(ops.ResolveCall(call.id, "residue", "anna", "nobody knows"))
    assert books(ledger) == ("40", "0")
    ledger.settle(start(ledger, run, bill(30), "ship"))
    ledger(ops.AbandonRun(run.uid, "anna", "enough"))
    assert books(ledger) == ("40", "30")


@check_each({"all": ONE, "nothing": 0, "half": ONE // 2})
def a_compensation_gives_back_what_is_refundable(ledger: Ledger, back: int) -> None:
    run = ledger.run()
    call = ledger.settle(start(ledger, run, bill(40, back=back)), spent=(("usd", 30 * ONE),)).call
    ledger.roll_back(run)
    ledger.compensate(call)
    assert books(ledger) == ("0", text_of(30 * (ONE - back)))


@check
def a_failed_compensation_gives_nothing_back(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.settle(start(ledger, run, bill(40))).call
    ledger.roll_back(run)
    begun = ledger(ledger.compensate_op(call))
    ledger.settle_compensation(begun, "compensation_in_doubt")
    assert books(ledger) == ("0", "40")


@check
def late_evidence_spends_again(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.settle(start(ledger, run, bill(40)), "in_doubt").call
    ledger.roll_back(run)
    ledger.compensate(call, from_doubt=True)
    assert books(ledger) == ("0", "0")
    ledger(ops.NoteEvidence(call.id, 1, True, '"late"', "", "boot", 700.0, "late return"))
    assert books(ledger) == ("0", "40")


@check
def a_replay_costs_nothing(ledger: Ledger) -> None:
    run = ledger.run()
    ledger.settle(start(ledger, run, bill(80)))
    assert admit(ledger, run, bill(80)).verdict == "replay"
    assert books(ledger) == ("0", "80")


# ---- keeping ------------------------------------------------------------------------------


@check
def a_run_keeps_the_budgets_that_it_was_opened_with(ledger: Ledger) -> None:
    run = ledger.run(budgets="[1]")
    assert ledger.read(run).budgets == "[1]"
    ledger.clock.now += LEASE_S + 1
    assert ledger.run(owner="b").budgets == "[1]"
    ledger.clock.now += LEASE_S + 1
    assert ledger.run(owner="c", budgets="[2]").budgets == "[2]"


@check
def gc_takes_the_budgets_of_a_run_and_leaves_those_of_all(ledger: Ledger) -> None:
    run = ledger.run()
    one, all_ = bill(40, per="run", who=run.uid), bill(40)
    ledger.settle(start(ledger, run, CallCost(one.costs, one.wants + all_.wants)))
    ledger.commit(run)
    ledger.clock.now += 10
    assert ledger(ops.CollectGarbage(1.0)).runs == 1
    rows: list[SliceRow] = ledger.slices()
    assert {row.root for row in rows} == {""}
    assert books(ledger) == ("0", "40")


# ---- races --------------------------------------------------------------------------------


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


def _asking(ledger: Ledger, amount: int, **more: Any) -> CallCost:
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

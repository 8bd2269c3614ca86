"""Requests that nobody answers: reminders, escalations and the deadline, each once, by ledger time, in one transaction."""

from __future__ import annotations

from typing import Any

from amends.ledger import operations as ops
from amends.ledger.rows import SYSTEM, ApprovalRow
from amends.testing.conformance.ledger import Ledger
from amends.testing.conformance.prove import check
from amends.testing.conformance.scenarios import unanswered


def follow(ledger: Ledger, row: ApprovalRow) -> Any:
    """Carry out what is due of the timetable."""
    return ledger(ops.FollowTimetable(row.id, read(ledger, row).reached))


def read(ledger: Ledger, row: ApprovalRow) -> ApprovalRow:
    """Return the request as it is now."""
    found: ApprovalRow = ledger(ops.ReadApproval(row.id)).approval
    return found


def due(ledger: Ledger, tenant: str | None = None) -> list[str]:
    """Return what is due now."""
    return [row.id for row in ledger(ops.DueRequests(tenant, 100))]


def said(ledger: Ledger, row: ApprovalRow) -> list[str]:
    """Return what happened to the request."""
    run = ledger(ops.ReadRun("", uid=row.root)).run
    return [event.what for event in ledger.events(run) if event.what in ("reminded", "escalated", "overdue")]


@check
def each_entry_of_a_timetable_is_carried_out_once(ledger: Ledger) -> None:
    row = unanswered(ledger, 59.0)
    assert (due(ledger), follow(ledger, row)) == ([], None)
    ledger.clock.now += 1
    assert (due(ledger), due(ledger, "acme"), due(ledger, "other")) == ([row.id], [row.id], [])
    done = follow(ledger, row).approval
    assert (done.reached, done.tells, done.told_at, done.tell_at) == (1, 0, None, ledger.clock.now)
    assert (done.asked_roles, due(ledger), follow(ledger, row)) == (("clerk",), [], None)
    ledger.clock.now += 60
    done = follow(ledger, row).approval
    assert (done.reached, done.asked_roles, done.asked_at) == (2, ("clerk", "lead"), ledger.clock.now)
    ledger.clock.now += 60
    refused = follow(ledger, row)
    assert (refused.approval.state, refused.approval.by_whom, refused.call.state) == ("rejected", SYSTEM, "refused")
    assert (refused.approval.reason, refused.approval.due_at) == ("nobody answered within 3 min", None)
    assert (said(ledger, row), due(ledger), follow(ledger, row)) == (["reminded", "escalated"], [], None)


@check
def nobody_is_reminded_when_others_are_asked_at_the_same_moment(ledger: Ledger) -> None:
    row = unanswered(ledger, 150.0)
    assert follow(ledger, row).approval.reached == 2
    assert said(ledger, row) == ["escalated"]


@check
def who_may_decide_follows_the_timetable_even_if_no_worker_came_by(ledger: Ledger) -> None:
    row = unanswered(ledger, 119.0)
    yes: dict[str, Any] = {"by": "lea", "why": "", "digest": row.digest, "roles": ("lead",)}
    early = ledger(ops.DecideApproval(row.id, "approve", **yes))
    assert (early.void, early.approval.state) == ("role", "pending")
    ledger.clock.now += 1
    assert ledger(ops.DecideApproval(row.id, "approve", **{**yes, "roles": ("guest",)})).void == "role"
    assert ledger(ops.DecideApproval(row.id, "approve", **yes)).approval.state == "approved"
    assert said(ledger, row) == ["reminded", "escalated"]
    ledger.clock.now += 600
    assert (due(ledger), follow(ledger, row)) == ([], None)


@check
def those_who_were_asked_first_may_still_decide_after_an_escalation(ledger: Ledger) -> None:
    row = unanswered(ledger, 120.0)
    yes = ops.DecideApproval(row.id, "approve", "carl", "", row.digest, roles=("clerk",))
    assert ledger(yes).approval.state == "approved"


@check
def a_yes_after_the_deadline_starts_nothing(ledger: Ledger) -> None:
    row = unanswered(ledger, 180.0)
    late = ledger(ops.DecideApproval(row.id, "approve", "carl", "", row.digest, roles=("clerk",)))
    assert (late.void, late.approval.state, late.call.state) == ("unanswered", "rejected", "refused")


@check
def a_clock_that_is_set_back_brings_no_deadline_closer_and_undoes_none(ledger: Ledger) -> None:
    row = unanswered(ledger, 180.0)
    follow(ledger, row)
    ledger.clock.now -= 170.0
    assert ledger(ops.DecideApproval(row.id, "approve", "carl", "", row.digest, roles=("clerk",))).void == "unanswered"


@check
def the_outcome_of_a_notice_counts_only_for_that_notice(ledger: Ledger) -> None:
    row = unanswered(ledger, 60.0)
    claimed = ledger(ops.ClaimNotice(row.id, "one", 60.0)).approval
    follow(ledger, row)
    assert ledger(ops.RecordNotice(row.id, "one", reached=claimed.reached)).told_at is None
    again = ledger(ops.ClaimNotice(row.id, "two", 60.0)).approval
    assert (again.reached, again.tells) == (1, 1)
    assert ledger(ops.RecordNotice(row.id, "two", reached=again.reached)).told_at == ledger.clock.now


@check
def past_the_pivot_no_timer_refuses_what_must_succeed(ledger: Ledger) -> None:
    run = ledger.run("pivoted")
    ledger.settle(ledger.start(run, "wire", kind="pivot"), "succeeded")
    row = unanswered(ledger, 180.0, run=ledger.read(run), tool="mail", kind="retriable")
    done = follow(ledger, row)
    assert (done.approval.state, done.call.state, done.approval.reached) == ("pending", "held", 3)
    assert said(ledger, row)[-1] == "overdue"
    yes = ops.DecideApproval(row.id, "approve", "lea", "", row.digest, roles=("lead",))
    assert ledger(yes).approval.state == "approved"

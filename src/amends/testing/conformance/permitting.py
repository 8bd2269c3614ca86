"""Permits: a call that needs approval starts by a permit in one transaction, and never by more uses than were given."""

from __future__ import annotations

import json
from typing import Any

from amends.ledger import operations as ops
from amends.ledger.rows import CallRow, Contention, DirectiveRow, LockRequest, Need, RunRow, Terms
from amends.testing.conformance.ledger import Ledger
from amends.testing.conformance.prove import check
from amends.testing.conformance.scenarios import bill


def permit(ledger: Ledger, *, uses: int = 1, ends_s: float = 50.0, **words: Any) -> DirectiveRow:
    """Give a permit for the tool ``charge``."""
    said, until = json.dumps(words or {"rule": {}}), ledger.clock.now + ends_s
    row: DirectiveRow = ledger(ops.Permit(ledger.new("prm"), "acme", "charge", said, "ann", "rent", until, uses))
    return row


def ask(ledger: Ledger, run: RunRow, *permits: DirectiveRow, **given: Any) -> ops.Admission:
    """Ask for a call that needs approval, with these permits."""
    need = Need(ledger.new("apr"), ledger.new("nonce"), why="it needs approval", policy="p")
    ids = tuple(row.id for row in permits)
    answer: ops.Admission = ledger(ledger.admit_op(run, need=need, permits=ids, **given))
    return answer


def state_of(ledger: Ledger, call: CallRow | None) -> str:
    """Return the state of the request for this call."""
    assert call is not None
    return next(row.state for row in ledger.approvals() if row.id == call.approval)


@check
def a_permit_starts_a_call_once_and_its_approval_is_used_up(ledger: Ledger) -> None:
    run, row = ledger.run(), permit(ledger)
    answer = ask(ledger, run, row, key="k1", args="1")
    assert answer.verdict == "start"
    assert answer.call is not None
    assert (answer.call.state, state_of(ledger, answer.call)) == ("started", "used")
    more = ask(ledger, run, row, key="k2", args="2")
    assert (more.verdict, state_of(ledger, more.call)) == ("held", "pending")
    assert [event.what for event in ledger(ops.ReadEvents(None, row.id))] == ["permitted", "permit used"]
    assert ledger(ops.ListPermits("acme"))[0] == []


@check
def exact_arguments_a_foreign_tenant_and_an_end_are_compared(ledger: Ledger) -> None:
    run, other = ledger.run(), ledger.run("other", tenant="umbrella")
    exact = permit(ledger, digest="something else")
    assert ask(ledger, run, exact, key="k1", args="1").verdict == "held"
    wide = permit(ledger, uses=5)
    assert ask(ledger, other, wide, key="k2", args="2").verdict == "held"
    ledger.clock.now += 51
    assert ask(ledger, run, wide, key="k3", args="3").verdict == "held"
    assert ledger(ops.ListPermits("acme"))[0] == []


@check
def a_revoked_permit_covers_nothing(ledger: Ledger) -> None:
    run, row = ledger.run(), permit(ledger, uses=5)
    ended = ledger(ops.RevokePermit(row.id, "acme", "ben", "no"))
    assert ended.closed_at is not None
    assert ledger(ops.RevokePermit(row.id, "umbrella", "ben", "no")) is None
    assert ask(ledger, run, row).verdict == "held"


@check
def nobody_permits_what_they_ask_for(ledger: Ledger) -> None:
    row = permit(ledger)
    assert ask(ledger, ledger.run(principal="Ann"), row).verdict == "held"
    assert ledger(ops.ListPermits("acme"))[0] == [row]


@check
def a_call_that_must_wait_for_a_lock_uses_its_permit_when_it_starts(ledger: Ledger) -> None:
    first, second = ledger.run("first"), ledger.run("second")
    locks = LockRequest(("desk",))
    ledger.do(first, "other", locks=locks)
    row = permit(ledger)
    answer = ask(ledger, second, row, locks=locks)
    assert (answer.verdict, state_of(ledger, answer.call)) == ("retry", "pending")
    assert ledger(ops.ListPermits("acme"))[0] == [row]
    assert answer.call is not None
    need = Need(answer.call.approval, "nonce", why="it needs approval", policy="p")
    start = ops.StartCall(answer.call.id, "a", 1, 1, Terms("1", need, permits=(row.id,)))
    assert isinstance(ledger(start), Contention)
    assert ledger(ops.ListPermits("acme"))[0] == [row]
    ledger.commit(first)
    assert ledger(start).state == "started"
    assert state_of(ledger, answer.call) == "used"
    assert ledger(ops.ListPermits("acme"))[0] == []


@check
def a_call_that_a_budget_refuses_uses_no_permit(ledger: Ledger) -> None:
    row = permit(ledger)
    answer = ask(ledger, ledger.run(), row, costs=bill(11, cap=10))
    assert (answer.verdict, answer.law) == ("refused", "budget")
    assert ledger(ops.ListPermits("acme"))[0] == [row]


@check
def a_call_that_first_reads_what_is_there_is_approved_and_not_started(ledger: Ledger) -> None:
    answer = ask(ledger, ledger.run(), permit(ledger), reads=True)
    assert answer.call is not None
    assert (answer.verdict, answer.call.state, state_of(ledger, answer.call)) == ("retry", "ready", "approved")
    started = ledger(ops.StartCall(answer.call.id, "a", 1, 1, before="7"))
    assert (started.state, started.before, state_of(ledger, started)) == ("started", "7", "used")


@check
def a_permit_that_two_handles_use_is_used_once(ledger: Ledger) -> None:
    beside, row = ledger.beside or ledger, permit(ledger)
    answers = [ask(one, one.run(f"run {n}"), row) for n, one in enumerate((ledger, beside))]
    assert sorted(answer.verdict for answer in answers) == ["held", "start"]

"""The outbox of notices: written with the request, claimed by one, told once, and lost by nobody's death."""

from __future__ import annotations

from typing import Any

from amends.ledger.operations import NOTICES_MAX, ClaimNotice, DecideApproval, DueNotices, ReadApproval, RecordNotice
from amends.ledger.rows import ApprovalRow, Need, RunRow
from amends.testing.conformance.ledger import Ledger
from tests.ledger.rules.registry import check

CLAIM_S = 60.0


def asked(ledger: Ledger, run: RunRow | None = None, tool: str = "charge", **given: Any) -> ApprovalRow:
    """A request that a person has to decide."""
    need = Need(ledger.new("apr"), "nonce", expires_s=given.pop("expires_s", 3_600.0))
    answer = ledger.admit(ledger.run() if run is None else run, tool, need=need, **given)
    row: ApprovalRow = answer.approval
    assert (answer.verdict, row.state, row.id) == ("held", "pending", need.id)
    return row


def _claim(ledger: Ledger, row: ApprovalRow, teller: str = "") -> Any:
    return ledger(ClaimNotice(row.id, teller or ledger.new("tell"), CLAIM_S))


def _due(ledger: Ledger, **given: Any) -> list[str]:
    found: list[str] = ledger(DueNotices(given.pop("tenant", None), given.pop("limit", 100), **given))
    return found


def _now(ledger: Ledger, row: ApprovalRow) -> ApprovalRow:
    found = ledger(ReadApproval(row.id))
    assert found is not None, f"there is no request {row.id}"
    newest: ApprovalRow = found.approval
    return newest


def _decide(ledger: Ledger, row: ApprovalRow, verb: Any) -> Any:
    return ledger(DecideApproval(row.id, verb, "anna", "seen", digest=row.digest))


@check
def a_request_is_in_the_outbox_from_its_first_moment(ledger: Ledger) -> None:
    row = asked(ledger)
    assert (row.told_at, row.tell_at, row.tells) == (None, ledger.clock.now, 0)
    assert _due(ledger) == [row.id]


@check
def who_claims_it_has_it_to_himself_for_a_while(ledger: Ledger) -> None:
    row = asked(ledger)
    claimed = _claim(ledger, row, "one")
    assert (claimed.approval.id, claimed.call.id, claimed.now) == (row.id, row.call, ledger.clock.now)
    assert claimed.approval == _now(ledger, row)
    assert (claimed.approval.teller, claimed.approval.tells) == ("one", 1)
    assert _due(ledger) == []
    assert _claim(ledger, row, "two") is None
    ledger.clock.now += CLAIM_S - 1
    assert _claim(ledger, row, "two") is None
    ledger.clock.now += 1
    assert _due(ledger) == [row.id]
    again = _claim(ledger, row, "two")
    assert (again.approval.teller, again.approval.tells) == ("two", 2)


@check
def what_was_told_is_told_once(ledger: Ledger) -> None:
    run = ledger.run()
    row = asked(ledger, run)
    _claim(ledger, row, "one")
    ledger.clock.now += 1
    told = ledger(RecordNotice(row.id, "one"))
    assert (told.told_at, told.tell_at, told.teller) == (ledger.clock.now, None, "")
    assert told == _now(ledger, row)
    ledger.clock.now += 10 * CLAIM_S
    assert _due(ledger) == []
    assert _claim(ledger, row) is None
    before = ledger.events(run)
    assert ledger(RecordNotice(row.id, "one")) == told, "a second word changes nothing"
    assert ledger.events(run) == before
    assert (before[-1].what, before[-1].call) == ("told", row.call)


@check
def what_failed_is_told_later(ledger: Ledger) -> None:
    run = ledger.run()
    row = asked(ledger, run)
    _claim(ledger, row, "one")
    failed = ledger(RecordNotice(row.id, "one", error="OSError", retry_s=5.0))
    assert (failed.told_at, failed.tell_at, failed.tells) == (None, ledger.clock.now + 5.0, 1)
    assert ledger.events(run)[-1].what == "not told"
    assert _claim(ledger, row) is None
    ledger.clock.now += 5.0
    assert _due(ledger) == [row.id]
    assert _claim(ledger, row).approval.tells == 2


@check
def what_is_given_up_is_given_up(ledger: Ledger) -> None:
    row = asked(ledger)
    _claim(ledger, row, "one")
    failed = ledger(RecordNotice(row.id, "one", error="OSError"))
    assert (failed.told_at, failed.tell_at) == (None, None)
    ledger.clock.now += 10 * CLAIM_S
    assert _due(ledger) == []
    assert _claim(ledger, row) is None


@check
def nobody_is_killed_by_it_for_ever(ledger: Ledger) -> None:
    """A hook that takes its process with it has that many, and the request is still there to be decided."""
    run = ledger.run()
    row = asked(ledger, run, expires_s=10 * NOTICES_MAX * CLAIM_S)
    for _ in range(NOTICES_MAX):
        assert _claim(ledger, row) is not None
        ledger.clock.now += CLAIM_S
    assert _due(ledger) == [row.id]
    assert _claim(ledger, row) is None
    assert _due(ledger) == []
    assert ledger.events(run)[-1].what == "not told"
    assert _now(ledger, row).state == "pending"


@check
def who_comes_back_late_takes_nothing_from_who_came_after(ledger: Ledger) -> None:
    row = asked(ledger)
    _claim(ledger, row, "slow")
    ledger.clock.now += CLAIM_S
    second = _claim(ledger, row, "quick").approval
    assert ledger(RecordNotice(row.id, "slow", error="OSError", retry_s=0.0)) == second, "its failure is an old one"
    assert _due(ledger) == []
    assert ledger(RecordNotice(row.id, "slow")).told_at == ledger.clock.now, "its success is one"
    assert ledger(RecordNotice(row.id, "quick", error="OSError", retry_s=0.0)).told_at == ledger.clock.now
    assert _due(ledger) == []


@check
def what_is_decided_need_not_be_told(ledger: Ledger) -> None:
    rows = [asked(ledger, ledger.run(verb)) for verb in ("approve", "reject", "withdraw")]
    claimed = asked(ledger, ledger.run("claimed"))
    _claim(ledger, claimed, "one")
    for row, verb in zip(rows, ("approve", "reject", "withdraw"), strict=True):
        _decide(ledger, row, verb)
        assert _claim(ledger, row) is None
    _decide(ledger, claimed, "approve")
    ledger.clock.now += CLAIM_S
    assert _claim(ledger, claimed) is None
    assert _due(ledger) == []


@check
def what_has_run_out_need_not_be_told(ledger: Ledger) -> None:
    row = asked(ledger, expires_s=10.0)
    ledger.clock.now += 10.0
    assert _claim(ledger, row) is None
    assert _due(ledger) == []


@check
def the_longest_waiting_come_first_and_only_so_many(ledger: Ledger) -> None:
    run, other, theirs = ledger.run(), ledger.run("other"), ledger.run("theirs", tenant="theirs")
    rows = []
    for number, whose in enumerate((run, other, theirs, run, other)):
        rows.append(asked(ledger, whose, f"tool {number}").id)
        ledger.clock.now += 1
    assert _due(ledger) == rows
    assert _due(ledger, limit=2) == rows[:2]
    assert _due(ledger, tenant="acme") == [rows[0], rows[1], rows[3], rows[4]]
    assert _due(ledger, tenant="theirs") == [rows[2]]


@check
def a_repeated_claim_is_the_same_claim(ledger: Ledger) -> None:
    row = asked(ledger)
    op = ClaimNotice(row.id, "one", CLAIM_S)
    first = ledger(op)
    op.repeated = True
    assert ledger(op) == first
    unsent = ClaimNotice(row.id, "two", CLAIM_S, repeated=True)
    assert ledger(unsent) is None, "it never arrived, and somebody else has it"
    assert ledger(ClaimNotice("nothing of this name", "one", CLAIM_S)) is None


@check
def a_repeated_failure_is_the_same_failure(ledger: Ledger) -> None:
    run = ledger.run()
    row = asked(ledger, run)
    _claim(ledger, row, "one")
    op = RecordNotice(row.id, "one", error="OSError", retry_s=5.0)
    first, events = ledger(op), ledger.events(run)
    op.repeated = True
    ledger.clock.now += 2
    assert ledger(op) == first
    assert ledger.events(run) == events

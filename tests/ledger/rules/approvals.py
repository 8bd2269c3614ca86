"""Approvals: asked with the hold, decided by people, used up by one start, and void in every other way."""

from __future__ import annotations

import json
from typing import Any

from amends.errors import LeaseLost, TransitionRefused
from amends.ledger import operations
from amends.ledger import operations as ops
from amends.ledger.rows import CallRow, Terms, Unapproved
from amends.testing.conformance.ledger import Ledger, raises
from amends.testing.conformance.scenarios import EXPIRES_S, held, need, request_of, start_op, yes, yes_op
from tests.ledger.rules.registry import check, check_each


def _started(ledger: Ledger, call: CallRow, **given: Any) -> Any:
    return ledger(start_op(call, **given))


@check
def a_call_that_needs_a_yes_is_held_with_its_request(ledger: Ledger) -> None:
    run = ledger.run(principal="bot", agent="planner")
    asks = need(ledger, needed=2, roles=("finance",), reasons=("too much",), why="large")
    admission = ledger.admit(run, args='{"a": 1}', need=asks)
    assert (admission.verdict, admission.call.state, admission.call.reason) == ("held", "held", "approval")
    row = request_of(ledger, admission.call)
    assert row == admission.approval
    assert (row.id, row.nonce, row.state, row.needed, json.loads(row.roles)) == (
        asks.id, asks.nonce, "pending", 2, ["finance"],
    )  # fmt: skip
    assert (row.call, row.run, row.root, row.run_id, row.tenant) == (
        admission.call.id, run.uid, run.root, "order", "acme",
    )  # fmt: skip
    assert (row.tool, row.version, row.principal, row.agent, row.rule) == ("charge", "1", "bot", "planner", "large")
    assert (row.requested_at, row.expires_at) == (ledger.clock.now, ledger.clock.now + EXPIRES_S)
    [event] = [event for event in ledger.events(run) if event.what == "approval"]
    assert (event.n, event.to_state, json.loads(event.facts)["digest"]) == (row.seq, "pending", row.digest)
    again = ledger.admit(run, args='{"a": 1}', need=need(ledger))
    assert (again.verdict, again.call.id, again.approval) == ("held", admission.call.id, row), "asked once"


@check
def a_yes_is_used_up_by_the_start(ledger: Ledger) -> None:
    run = ledger.run()
    call = held(ledger, run)
    no = _started(ledger, call)
    assert no is None or isinstance(no, Unapproved), "nobody has said yes"
    ready = yes(ledger, call)
    assert (ready.state, request_of(ledger, call).state) == ("ready", "approved")
    assert ledger.admit(run, need=need(ledger)).verdict == "retry"
    started = _started(ledger, ready)
    assert (started.state, started.attempt) == ("started", 1)
    used = request_of(ledger, call)
    assert (used.state, used.used_at) == ("used", ledger.clock.now)
    assert _started(ledger, ready) is None
    backing = ledger.settle(started, "backing_off").call
    assert _started(ledger, backing).attempt == 2, "later attempts need nothing more"


@check_each(("version", "policy", "expired"))
def what_is_no_longer_what_was_approved_starts_nothing(ledger: Ledger, what: str) -> None:
    run = ledger.run()
    call = yes(ledger, held(ledger, run))
    terms = Terms("1", need(ledger))
    if what == "version":
        terms = Terms("2", need(ledger))
    if what == "policy":
        terms = Terms("1", need(ledger, policy="stricter", needed=2))
    if what == "expired":
        ledger.clock.now += EXPIRES_S
    no = _started(ledger, call, terms=terms)
    assert isinstance(no, Unapproved)
    assert no.why == ("expired" if what == "expired" else "changed")
    assert ledger.look(call).attempt == 0
    if what != "version":
        assert (ledger.look(call).state, request_of(ledger, call).state) == ("held", "pending"), "asked for anew"


@check
def a_clock_that_was_set_back_revives_nothing(ledger: Ledger) -> None:
    run = ledger.run()
    call = yes(ledger, held(ledger, run))
    ledger.clock.now += EXPIRES_S + 1
    ledger.do(run, "ship")
    ledger.clock.now -= EXPIRES_S
    assert isinstance(_started(ledger, call), Unapproved)


@check_each(("start", "request", "decision", "staged", "wait", "notice", "heartbeat", "checkpoint", "delegation"))
def whoever_judges_an_expiry_moves_ledger_time_for_all_runs(ledger: Ledger, judge: str) -> None:
    """Judge in another run whether something has expired, then set the clock back: what had expired stays so."""
    call = yes(ledger, held(ledger, ledger.run()))
    other = ledger.run("other")
    kind = "retriable" if judge == "staged" else "compensatable"
    asked = None if judge in ("heartbeat", "checkpoint", "delegation") else held(ledger, other, kind=kind)
    if asked is not None and judge in ("start", "staged"):
        yes(ledger, asked)
    ledger.clock.now += EXPIRES_S + 1
    match judge:
        case "start":
            assert asked is not None
            _started(ledger, ledger.look(asked))
        case "request":
            ledger.admit(other, need=need(ledger))
        case "decision":
            assert asked is not None
            assert ledger(yes_op(ledger, asked)).void == "expired"
        case "staged":
            assert ledger.commit(other).how == "unsettled"
        case "wait":
            ledger(operations.ReleaseLease(other.uid, other.owner, other.epoch, None, suspended=True))
        case "notice":
            [id] = [row.id for row in ledger.approvals() if row.run == other.uid]
            assert ledger(operations.ClaimNotice(id, "teller", 5.0)) is None
        case "heartbeat":
            ledger(operations.RenewLeases(other.owner, {other.uid: 1}, 30.0))
        case "checkpoint":
            assert ledger(operations.WriteCheckpoint(ledger(operations.DraftCheckpoint("ledger", ""))))
        case _:
            ledger(operations.Delegate("d", "acme", "carl", "bob", ledger.clock.now + 50, "away"))
    ledger.clock.now -= EXPIRES_S
    no = _started(ledger, call)
    assert isinstance(no, Unapproved)
    assert no.why == "expired"


@check
def other_arguments_are_asked_for_anew(ledger: Ledger) -> None:
    run = ledger.run()
    call = yes(ledger, held(ledger, run, args="1"))
    answer = ledger.admit(run, args="2", need=need(ledger))
    assert (answer.verdict, answer.void, answer.call.generation) == ("void", "changed", 2)
    assert (answer.approval.state, answer.approval.follows) == ("pending", request_of(ledger, call).id)
    assert (ledger.look(call).state, request_of(ledger, call).state) == ("dropped", "cancelled")
    assert _started(ledger, call) is None


@check
def words_that_mean_nothing_to_the_key_are_bound_all_the_same(ledger: Ledger) -> None:
    run = ledger.run()
    yes(ledger, held(ledger, run))
    op = ledger.admit_op(run, need=need(ledger))
    op.digest = "of another reason"
    assert ledger(op).void == "changed"


@check_each(("changed", "self", "role", "used", "expired"))
def a_word_that_counts_for_nothing_changes_nothing(ledger: Ledger, why: str) -> None:
    run = ledger.run(principal="Bot")
    asks = need(ledger, roles=("finance",)) if why == "role" else need(ledger)
    call = held(ledger, run, asks=asks)
    op = yes_op(ledger, call, "bot " if why == "self" else "ann")
    if why == "changed":
        op.digest = "another"
    if why == "used":
        yes(ledger, call)
        _started(ledger, ledger.look(call))
    if why == "expired":
        ledger.clock.now += EXPIRES_S
    assert ledger(op).void == why
    assert request_of(ledger, call).state == {"used": "used", "expired": "expired"}.get(why, "pending")


@check
def so_many_different_people_must_say_yes(ledger: Ledger) -> None:
    call = held(ledger, ledger.run(), asks=need(ledger, needed=2, roles=("finance",)))
    assert ledger(yes_op(ledger, call, "ann", roles=("finance",))).approval.state == "pending"
    assert ledger(yes_op(ledger, call, "Ann", roles=("finance",))).approval.state == "pending"
    assert ledger(yes_op(ledger, call, "bob", roles=("it",))).void == "role"
    assert ledger(yes_op(ledger, call, "bob", behalf="carl", roles=("finance",))).void == "role"
    ledger(operations.Delegate("d", "acme", "carl", "bob", ledger.clock.now + 50, "away"))
    ruled = ledger(yes_op(ledger, call, "bob", behalf="Carl", roles=("finance",)))
    assert (ruled.approval.state, ruled.call.state) == ("approved", "ready")
    assert [said["by"] for said in ruled.approval.yeses] == ["Ann", "bob"]


@check
def one_may_pass_over_the_rule_on_the_record(ledger: Ledger) -> None:
    run = ledger.run(agent="planner")
    call = held(ledger, run, asks=need(ledger, needed=3, roles=("finance",)))
    assert ledger(yes_op(ledger, call, "Planner", verb="bypass")).void == "self"
    ruled = ledger(yes_op(ledger, call, "ann", verb="bypass", why="fire"))
    assert (ruled.approval.state, ruled.approval.yeses[0]["bypass"]) == ("approved", True)
    assert any("bypass: fire" in event.facts for event in ledger.events(run))


@check
def a_no_is_replayed_and_frees_the_key_for_other_arguments(ledger: Ledger) -> None:
    run = ledger.run()
    call = held(ledger, run, args="1")
    ruled = ledger(operations.DecideApproval(request_of(ledger, call).id, "reject", "ann", "too much"))
    assert (ruled.approval.state, ruled.call.state) == ("rejected", "refused")
    assert json.loads(ruled.call.error) == ["ann", "too much"]
    assert ledger.admit(run, args="1", need=need(ledger)).verdict == "rejected"
    assert ledger.admit(run, args="2", need=need(ledger)).call.generation == 2
    with raises(TransitionRefused):
        ledger(operations.DecideApproval(ruled.approval.id, "reject", "bob", "me too"))


@check
def a_rule_that_refuses_takes_no_key(ledger: Ledger) -> None:
    run = ledger.run()
    no = ledger.admit(run, need=need(ledger, decision="refuse", why="never"))
    assert (no.verdict, no.law, no.call) == ("refused", "rule", None)
    assert ledger.admit(run).verdict == "start"


@check
def only_the_first_use_needs_a_yes(ledger: Ledger) -> None:
    run = ledger.run(agent="planner")
    call = yes(ledger, held(ledger, run, args="1", key="1", asks=need(ledger, first_use=True)))
    assert ledger.admit(run, args="2", key="2", need=need(ledger, first_use=True)).verdict == "held"
    _started(ledger, call)
    assert ledger.admit(run, args="3", key="3", need=need(ledger, first_use=True)).verdict == "start"
    other = ledger.run("other", agent="another")
    assert ledger.admit(other, args="3", key="4", need=need(ledger, first_use=True)).verdict == "held"


# ---- what is staged -----------------------------------------------------------------------


@check_each(("call", "commit", "none"))
def what_is_staged_needs_its_yes_before_the_run_is_decided(ledger: Ledger, pivot: str) -> None:
    run = ledger.run()
    call = held(ledger, run, "mail", kind="retriable")
    assert (call.reason, ledger.admit(run, "mail", kind="retriable", need=need(ledger)).verdict) == ("order", "staged")
    if pivot == "commit":
        ledger.admit(run, "wire", kind="pivot", at_commit=True)

    def decided() -> str:
        if pivot == "call":
            return str(ledger.admit(run, "wire", kind="pivot").verdict)
        return str(ledger.commit(run).how)

    assert decided() == ("refused" if pivot == "call" else "unsettled")
    ruled = ledger(yes_op(ledger, call))
    assert (ruled.call.state, ruled.call.reason) == ("held", "order")
    assert decided() == {"call": "start", "commit": "pivot", "none": "forward"}[pivot]
    assert request_of(ledger, call).state == "used"
    if pivot == "none":
        assert _started(ledger, ledger.look(call)).state == "started"


@check
def what_expired_is_not_staged_any_more(ledger: Ledger) -> None:
    run = ledger.run()
    yes(ledger, held(ledger, run, "mail", kind="retriable"))
    ledger.clock.now += EXPIRES_S
    assert ledger.commit(run).how == "unsettled"
    assert ledger.admit(run, "wire", kind="pivot").verdict in ("refused", "ended")


@check
def a_no_to_the_pivot_at_commit_makes_rollback_the_goal(ledger: Ledger) -> None:
    run = ledger.run()
    call = held(ledger, run, "wire", kind="pivot", at_commit=True)
    ledger(operations.DecideApproval(request_of(ledger, call).id, "reject", "ann", "no"))
    found = ledger.read(run)
    assert (found.goal, found.goal_by, found.staged_pivot) == ("rollback", "person", "")


@check
def a_rollback_ends_every_request(ledger: Ledger) -> None:
    run = ledger.run()
    calls = [held(ledger, run), held(ledger, run, "mail", kind="retriable")]
    ledger.roll_back(run)
    assert [request_of(ledger, call).state for call in calls] == ["cancelled"] * 2


# ---- waiting ------------------------------------------------------------------------------


@check
def a_run_that_waits_wakes_when_nobody_can_say_yes_any_more(ledger: Ledger) -> None:
    run = ledger.run()
    call = held(ledger, run)
    asked_at = ledger.clock.now
    held(ledger, run, "ship", asks=need(ledger, expires_s=EXPIRES_S * 2))
    ledger.clock.now += 5
    let = ledger(ops.ReleaseLease(run.uid, "a", 1, None, suspended=True))
    assert (let.owner, let.suspended, let.wake_at) == ("", 1, asked_at + EXPIRES_S * 2)
    assert ledger.claim(let) is None
    yes(ledger, call)
    assert (ledger.read(run).suspended, ledger.read(run).wake_at) == (1, asked_at + EXPIRES_S * 2)


@check_each(("rollback", "resume", "wait", "commit"))
def a_decision_lets_whoever_can_go_on(ledger: Ledger, who: str) -> None:
    run = ledger.run(policy="rollback" if who == "commit" else who, agent="planner")
    call = held(ledger, run)
    expires_at = ledger.clock.now + EXPIRES_S
    if who == "commit":
        assert ledger.commit(run).how == "unsettled"
    ledger(ops.ReleaseLease(run.uid, "a", 1, None, suspended=True))
    ledger.clock.now += 5
    yes(ledger, call)
    now = ledger.clock.now
    wake_at = {"rollback": expires_at, "resume": now, "wait": None, "commit": now}[who]
    assert (ledger.read(run).suspended, ledger.read(run).wake_at) == (0, wake_at)


@check
def what_was_decided_while_the_run_was_let_go_is_not_waited_for(ledger: Ledger) -> None:
    run = ledger.run()
    call = held(ledger, run)
    ledger.commit(run)
    yes(ledger, call)
    let = ledger(ops.ReleaseLease(run.uid, "a", 1, None, suspended=True))
    assert (let.suspended, let.wake_at) == (0, ledger.clock.now)


@check
def requests_are_listed_newest_first_page_by_page(ledger: Ledger) -> None:
    calls = [held(ledger, ledger.run(f"run {number}")) for number in range(5)]
    yes(ledger, calls[1])
    held(ledger, ledger.run("theirs", tenant="other"))
    seen: list[str] = []
    before = None
    while page := ledger(operations.SearchApprovals("acme", ("pending",), before, 2)):
        seen += [found.call.run_id for found in page]
        before = page[-1].approval.id
    assert seen == ["run 4", "run 3", "run 2", "run 0"]
    everything = ledger(operations.SearchApprovals(None, (), None, 10))
    assert [found.call.run_id for found in everything] == ["theirs", "run 4", "run 3", "run 2", "run 1", "run 0"]
    assert len(ledger(operations.SearchApprovals("acme", ("pending", "approved"), None, 10))) == 5


# ---- races --------------------------------------------------------------------------------


@check
def a_lease_that_ran_out_starts_nothing_that_was_approved(ledger: Ledger) -> None:
    run = ledger.run()
    call = yes(ledger, held(ledger, run))
    ledger.take_over(run)
    with raises(LeaseLost):
        _started(ledger, call)
    assert request_of(ledger, call).state == "approved"
    assert _started(ledger, call, owner="b", epoch=2).state == "started"

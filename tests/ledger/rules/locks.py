"""Locks between runs: one holder, until its tree has ended; waits that are seen; deadlocks that end."""

from __future__ import annotations

import json
from typing import Any

from amends.errors import LeaseLost
from amends.ledger import operations as ops
from amends.ledger.locks import WAIT_FRESH_S
from amends.ledger.rows import CallRow, Contention, LockRequest, RunRow
from amends.testing.conformance.ledger import LEASE_S, Ledger, raises
from tests.ledger.rules.registry import check, check_each


def _wanted(*names: str, waits: bool = True) -> LockRequest:
    return LockRequest(tuple(sorted(names)), waits=waits, waited=True)


def _held(ledger: Ledger, tenant: str = "acme") -> dict[str, str]:
    """Name and id of the run of every lock there is."""
    found: list[ops.HeldLock] = ledger(ops.ListLocks(tenant))
    return {held.lock.name: held.lock.run_id for held in found}


def _waiting(ledger: Ledger) -> dict[str, list[str]]:
    found: list[ops.HeldLock] = ledger(ops.ListLocks("acme"))
    return {held.lock.name: [wait.run_id for wait in held.waits] for held in found if held.waits}


def _do(ledger: Ledger, run: RunRow, tool: str, *names: str, **given: Any) -> CallRow:
    return ledger.do(run, tool, locks=_wanted(*names), **given)


def _start(ledger: Ledger, call: CallRow, *, owner: str = "a") -> Any:
    return ledger(ops.StartCall(call.id, owner, call.created_epoch, call.attempt + 1))


# ---- holding ------------------------------------------------------------------------------


@check
def a_lock_is_taken_with_the_start_and_freed_with_the_end(ledger: Ledger) -> None:
    run = ledger.run()
    call = _do(ledger, run, "charge", "x", "y")
    assert json.loads(call.locks) == ["x", "y"]
    found: list[ops.HeldLock] = ledger(ops.ListLocks("acme"))
    assert [(one.lock.name, one.lock.root, one.lock.call, one.lock.tool) for one in found] == [
        ("x", run.uid, call.id, "charge"),
        ("y", run.uid, call.id, "charge"),
    ]
    assert found[0].lock.taken_at == ledger.clock.now
    assert ledger.commit(run).how == "committed"
    assert _held(ledger) == {}
    assert [event.what for event in ledger.events(run)][-1] == "locks freed"


@check
def another_run_is_told_who_has_it_and_takes_no_key(ledger: Ledger) -> None:
    first, second = ledger.run("first"), ledger.run("second")
    _do(ledger, first, "charge", "x")
    ledger.clock.now += 7
    no = ledger.admit(second, locks=_wanted("x", "y", waits=False))
    assert (no.verdict, no.call, no.lock) == (
        "locked",
        None,
        Contention("x", "first", first.uid, ledger.clock.now - 7, ledger.clock.now),
    )
    assert _held(ledger) == {"x": "first"}, "all of them, or none"
    assert [call.run_id for call in ledger.calls()] == ["first"]
    assert _waiting(ledger) == {}
    ledger.commit(first)
    assert ledger.admit(second, locks=_wanted("x", "y")).verdict == "start"
    assert _held(ledger) == {"x": "second", "y": "second"}


@check
def a_run_has_what_it_has_and_so_have_its_children(ledger: Ledger) -> None:
    run = ledger.run()
    _do(ledger, run, "charge", "x")
    child = ledger.child(run)
    _do(ledger, child, "ship", "x", "y", owner="a")
    assert _held(ledger) == {"x": "order", "y": "order"}
    assert ledger.commit(child).how == "committed"
    assert _held(ledger) == {"x": "order", "y": "order"}, "they are the root's"


@check
def a_name_is_its_tenants(ledger: Ledger) -> None:
    ours, theirs = ledger.run(), ledger.run(tenant="other")
    _do(ledger, ours, "charge", "x")
    _do(ledger, theirs, "charge", "x")
    assert (_held(ledger), _held(ledger, "other")) == ({"x": "order"}, {"x": "order"})


@check
def names_that_only_look_alike_are_not_the_same(ledger: Ledger) -> None:
    names = ["a", "A", "a ", "ä", "a\N{COMBINING DIAERESIS}", "ａ", "%", "_", "x" * 200]
    for number, name in enumerate(names):
        _do(ledger, ledger.run(f"run {number}"), "charge", name)
    assert _held(ledger) == {name: f"run {number}" for number, name in enumerate(names)}


@check
def whoever_was_taken_over_takes_nothing(ledger: Ledger) -> None:
    run = ledger.run()
    ledger.take_over(run)
    with raises(LeaseLost):
        ledger.admit(run, owner="a", locks=_wanted("x"))
    assert _held(ledger) == {}


@check
def locks_outlive_their_owner_and_a_blocked_run_keeps_them(ledger: Ledger) -> None:
    run = ledger.run()
    _do(ledger, run, "charge", "x")
    claimed = ledger.take_over(run)
    assert _held(ledger) == {"x": "order"}
    ledger.close(claimed, "blocked", owner="b", causes=("somebody must look",))
    assert _held(ledger) == {"x": "order"}
    ledger(ops.AbandonRun(run.uid, "anna", "enough"))
    assert _held(ledger) == {}


@check
def a_read_takes_its_locks_and_a_replay_none(ledger: Ledger) -> None:
    first, second = ledger.run("first"), ledger.run("second")
    call = _do(ledger, first, "charge", "x")
    assert ledger.admit(second, "look", kind="read", locks=_wanted("x")).verdict == "locked"
    assert ledger.commit(first).how == "committed"
    assert ledger.admit(second, "look", kind="read", locks=_wanted("x")).verdict == "start"
    again = ledger.admit(first, locks=_wanted("x"))
    assert (again.verdict, again.call.id) == ("replay", call.id)


@check
def a_page_of_locks_goes_on_where_the_last_one_ended(ledger: Ledger) -> None:
    _do(ledger, ledger.run(), "charge", *(f"x{number}" for number in range(5)))
    seen: list[str] = []
    while page := ledger(ops.ListLocks("acme", seen[-1] if seen else "", 2)):
        seen += [held.lock.name for held in page]
    assert seen == [f"x{number}" for number in range(5)]


# ---- staged -------------------------------------------------------------------------------


@check
def what_is_staged_takes_its_locks_when_the_commit_is_decided(ledger: Ledger) -> None:
    first, second = ledger.run("first"), ledger.run("second")
    staged = ledger.admit(first, "mail", kind="retriable", locks=_wanted("x")).call
    assert (staged.state, _held(ledger)) == ("held", {})
    _do(ledger, second, "charge", "x")
    decision = ledger.commit(first)
    assert (decision.how, decision.run.state, decision.lock and decision.lock.run_id) == ("locked", "open", "second")
    ledger.commit(second)
    assert ledger.commit(first).how == "forward"
    assert _held(ledger) == {"x": "first"}
    assert _start(ledger, staged).state == "started"


@check_each(("call", "commit"))
def a_pivot_takes_the_locks_of_what_it_lets_go(ledger: Ledger, at: str) -> None:
    first, second = ledger.run("first"), ledger.run("second")
    ledger.admit(first, "mail", kind="retriable", locks=_wanted("x"))
    _do(ledger, second, "charge", "x")

    def pivot() -> str:
        if at == "commit":
            return str(ledger.commit(first).how)
        return str(ledger.admit(first, "wire", kind="pivot", locks=_wanted("y")).verdict)

    if at == "commit":
        ledger.admit(first, "wire", kind="pivot", at_commit=True, locks=_wanted("y"))
    assert pivot() == "locked"
    assert ledger.read(first).pivot == ""
    ledger.commit(second)
    assert pivot() == ("pivot" if at == "commit" else "start")
    assert _held(ledger) == {"x": "first", "y": "first"}


@check
def past_the_pivot_a_retriable_is_accepted_and_starts_when_its_lock_is_free(ledger: Ledger) -> None:
    first, second = ledger.run("first"), ledger.run("second")
    ledger.do(first, "wire", kind="pivot")
    _do(ledger, second, "charge", "x")
    staged = ledger.admit(first, "mail", kind="retriable", locks=_wanted("x"))
    assert (staged.verdict, staged.call.state, staged.call.reason) == ("staged", "held", "lock")
    assert _start(ledger, staged.call).run_id == "second"
    ledger.commit(second)
    assert _start(ledger, staged.call).state == "started"


# ---- waiting ------------------------------------------------------------------------------


@check
def a_wait_is_seen_once_in_the_record_until_it_is_over(ledger: Ledger) -> None:
    first, second = ledger.run("first"), ledger.run("second")
    _do(ledger, first, "charge", "x")
    for _ in range(3):
        ledger.clock.now += 1
        assert ledger.admit(second, locks=_wanted("x")).verdict == "locked"
    assert _waiting(ledger) == {"x": ["second"]}
    assert [event.what for event in ledger.events(second)].count("waits") == 1
    assert ledger.admit(second, locks=_wanted("x", waits=False)).verdict == "locked"
    assert _waiting(ledger) == {}, "it gave up"


@check
def a_wait_that_nobody_repeats_no_longer_counts(ledger: Ledger) -> None:
    first, second = ledger.run("first"), ledger.run("second")
    _do(ledger, first, "charge", "x")
    ledger.admit(second, locks=_wanted("x"))
    ledger.clock.now += WAIT_FRESH_S + 1
    assert _waiting(ledger) == {}
    _do(ledger, second, "ship", "y")
    assert ledger.admit(first, "pack", locks=_wanted("y")).verdict == "locked"
    assert (ledger.read(first).goal, ledger.read(second).goal) == ("", ""), "nobody is in a deadlock"


@check
def a_takeover_forgets_what_the_old_owner_waited_for(ledger: Ledger) -> None:
    first, second = ledger.run("first"), ledger.run("second")
    _do(ledger, first, "charge", "x")
    ledger.admit(second, locks=_wanted("x"))
    ledger.clock.now += LEASE_S - 1
    assert ledger(ops.RenewLeases("a", {first.uid: 1}, LEASE_S)).goals
    ledger.clock.now += 2
    assert ledger.claim(second) is not None
    assert _waiting(ledger) == {}


# ---- deadlocks ----------------------------------------------------------------------------


def _crossed(ledger: Ledger) -> tuple[RunRow, RunRow]:
    """Each has what the other wants; the first waits already, and the second is the younger one."""
    first = ledger.run("first")
    ledger.clock.now += 1
    second = ledger.run("second")
    _do(ledger, first, "charge", "x")
    _do(ledger, second, "charge", "y")
    return first, second


@check
def the_younger_run_of_a_deadlock_goes_back_if_it_asks(ledger: Ledger) -> None:
    first, second = _crossed(ledger)
    assert ledger.admit(first, "ship", locks=_wanted("y")).verdict == "locked"
    no = ledger.admit(second, "ship", locks=_wanted("x"))
    assert (no.verdict, no.run.goal, no.run.goal_by) == ("ended", "rollback", "deadlock")
    for word in ("first", "second", "'x'", "'y'"):
        assert word in no.run.goal_why
    assert no.lock.victim == no.run.goal_why
    assert ledger.read(first).goal == ""
    assert [event.by_whom for event in ledger.events(second) if event.what == "goal"] == ["deadlock"]


@check
def the_younger_run_of_a_deadlock_goes_back_if_the_other_asks(ledger: Ledger) -> None:
    first, second = _crossed(ledger)
    assert ledger.admit(second, "ship", locks=_wanted("x")).verdict == "locked"
    assert ledger.admit(first, "ship", locks=_wanted("y")).verdict == "locked"
    assert (ledger.read(second).goal_by, ledger.read(first).goal) == ("deadlock", "")
    no = ledger.admit(second, "ship", locks=_wanted("x"))
    assert (no.verdict, no.run.goal_by) == ("ended", "deadlock")
    ledger.roll_back(second)
    ledger.compensate(next(call for call in ledger.calls() if call.run_id == "second"))
    ledger.close(second, "rolled_back")
    assert ledger.admit(first, "ship", locks=_wanted("y")).verdict == "start"
    assert ledger.open("second").how == "fresh", "it may be tried again"


@check
def whoever_pivoted_is_never_chosen(ledger: Ledger) -> None:
    first, second = _crossed(ledger)
    ledger.do(second, "wire", kind="pivot")
    staged = ledger.admit(second, "mail", kind="retriable", locks=_wanted("x")).call
    assert isinstance(_start(ledger, staged), Contention)
    no = ledger.admit(first, "ship", locks=_wanted("y"))
    assert (no.verdict, no.run.id, no.run.goal_by) == ("ended", "first", "deadlock")
    assert ledger.read(second).goal == ""


@check
def nobody_goes_back_over_a_pivot_in_flight_or_in_a_child(ledger: Ledger) -> None:
    first, second = _crossed(ledger)
    ledger.do(ledger.child(first), "wire", kind="pivot", owner="a")
    ledger.start(second, "wire", kind="pivot")
    assert ledger.admit(second, "look", kind="read", locks=_wanted("x")).verdict == "locked"
    assert ledger.admit(first, "ship", locks=_wanted("y")).verdict == "locked"
    assert (ledger.read(first).goal, ledger.read(second).goal) == ("", "")


@check
def of_two_that_pivoted_one_spares_what_it_has_done_with(ledger: Ledger) -> None:
    first, second = ledger.run("first"), ledger.run("second")
    for run, mine in ((first, "x"), (second, "y")):
        _do(ledger, run, "wire", mine, kind="pivot")
    for run, other in ((first, "y"), (second, "x")):
        ledger.admit(run, "mail", kind="retriable", locks=_wanted(other), key=f"mail of {run.id}")
    mails = [call for call in ledger.calls() if call.tool == "mail"]
    answers = [_start(ledger, mail) for _ in range(3) for mail in mails]
    started = [answer for answer in answers if isinstance(answer, CallRow)]
    assert len(started) == 1, "one of them goes on, and then the other"
    assert "lock let go" in {event.what for event in ledger.events()}


@check
def a_run_whose_block_has_ended_is_chosen_last(ledger: Ledger) -> None:
    first, second = _crossed(ledger)
    ledger.admit(second, "mail", kind="retriable", locks=_wanted("x"))
    assert ledger.commit(second).how == "locked"
    no = ledger.admit(first, "ship", locks=_wanted("y"))
    assert (no.verdict, no.run.id) == ("ended", "first")
    assert ledger.read(second).goal == "commit"


@check
def two_commits_that_need_each_others_locks_do_not_wait_for_ever(ledger: Ledger) -> None:
    first, second = _crossed(ledger)
    ledger.admit(first, "mail", kind="retriable", locks=_wanted("y"))
    ledger.admit(second, "mail", kind="retriable", locks=_wanted("x"))
    assert ledger.commit(first).how == "locked"
    ledger(ops.ReleaseLease(first.uid, "a", 1, LEASE_S))
    ledger.clock.now += WAIT_FRESH_S + 1
    decision = ledger.commit(second)
    assert (decision.how, decision.run.goal_by) == ("rollback", "deadlock"), "the one asleep still waits"


@check
def three_in_a_circle_are_found(ledger: Ledger) -> None:
    runs = [ledger.run(f"run {number}") for number in range(3)]
    for number, run in enumerate(runs):
        _do(ledger, run, "charge", f"x{number}")
    assert ledger.admit(runs[0], "ship", locks=_wanted("x1")).verdict == "locked"
    assert ledger.admit(runs[1], "ship", locks=_wanted("x2")).verdict == "locked"
    ledger.admit(runs[2], "ship", locks=_wanted("x0"))
    assert [ledger.read(run).goal_by for run in runs].count("deadlock") == 1


# ---- races --------------------------------------------------------------------------------

"""Forks: what they share is answered and never theirs, and what they stand on does not go from under them."""

from __future__ import annotations

import json
from typing import Any

from amends.ledger import operations as ops
from amends.ledger.operations import ReadForks
from amends.ledger.rows import CallRow, RunRow, forked_key
from amends.testing.conformance.ledger import LEASE_S, Ledger
from amends.testing.conformance.scenarios import fork_op, forked, opened, planned
from tests.ledger.rules.registry import check


def asked(ledger: Ledger, fork: RunRow, call: CallRow, **given: Any) -> Any:
    """What the fork answers to the request that this call of the original was."""
    key = forked_key(call.key.partition(":")[0], fork.root)
    return ledger.admit(fork, call.tool, key=key, kind=call.kind, owner=fork.owner, **given)


def own(ledger: Ledger, fork: RunRow, tool: str = "book") -> CallRow:
    """A live call of the fork, done."""
    return ledger.do(fork, tool)


@check
def a_fork_has_the_calls_up_to_a_point_as_done_and_none_of_them_as_its_own(ledger: Ledger) -> None:
    run = ledger.run()
    one, read = ledger.do(run), ledger.do(run, "look", kind="read", key="r")
    failed = ledger.settle(ledger.start(run, "pay"), "failed", error='["E", "no"]').call
    ledger.do(run, "after")
    fork = forked(ledger, run, one, read, failed)
    assert (fork.state, fork.owner, fork.wake_at, fork.forked_from) == ("open", "", None, run.uid)
    tree = ledger(ops.ReadRun("", uid=fork.uid))
    assert [(c.tool, c.state, c.shared) for c in tree.calls] == [
        ("charge", "succeeded", one.id), ("look", "succeeded", read.id), ("pay", "failed", failed.id),
    ]  # fmt: skip
    assert {(c.undoable, c.cost, c.locks, c.approval) for c in tree.calls} == {(0, "", "", "")}
    assert [c.result for c in tree.calls] == ['"ok"', '"ok"', None]
    said = [event for event in ledger.events(run) if event.what == "forked"]
    assert [(event.call, event.by_whom, json.loads(event.facts)["fork"]) for event in said] == [
        (failed.id, "ann", "fork")
    ]
    assert [event.what for event in ledger.events(fork)] == ["run", "shared", "shared", "shared"]


@check
def what_a_fork_shares_is_answered_and_not_started(ledger: Ledger) -> None:
    run = ledger.run()
    one = ledger.do(run)
    failed = ledger.settle(ledger.start(run, "pay"), "failed", error='["E", "no"]').call
    fork = opened(ledger, forked(ledger, run, one, failed))
    before = len(ledger.calls())
    answer = asked(ledger, fork, one)
    assert (answer.verdict, answer.call.shared) == ("replay", one.id)
    assert asked(ledger, fork, failed).verdict == "failed"
    assert asked(ledger, fork, one).verdict == "replay"
    assert len(ledger.calls()) == before


@check
def reads_that_a_fork_shares_are_answered_in_order_until_it_does_something_of_its_own(ledger: Ledger) -> None:
    run = ledger.run()
    reads = []
    for word in ("first", "second", "third"):
        call = ledger.start(run, "look", kind="read", key="r")
        reads.append(ledger.settle(call, result=f'"{word}"').call)
    one = ledger.do(run)
    fork = opened(ledger, forked(ledger, run, *reads, one))
    assert [asked(ledger, fork, reads[0]).call.result for _ in range(2)] == ['"first"', '"second"']
    ledger.start(fork, "book")
    live = asked(ledger, fork, reads[0])
    assert (live.verdict, live.call.shared) == ("start", ""), "what is read now may have been changed"
    ledger.clock.now += LEASE_S + 1
    again = opened(ledger, fork, "g")
    assert asked(ledger, again, reads[0]).call.result == '"first"', "its program begins anew"


@check
def a_read_beyond_those_that_are_shared_is_live(ledger: Ledger) -> None:
    run = ledger.run()
    read = ledger.do(run, "look", kind="read", key="r")
    fork = opened(ledger, forked(ledger, run, read))
    assert asked(ledger, fork, read).verdict == "replay"
    assert asked(ledger, fork, read).verdict == "start"


@check
def a_call_of_the_whole_ledger_is_shared_before_its_run_has_committed(ledger: Ledger) -> None:
    run = ledger.run()
    one = ledger.do(run, scope="ledger", key="the one")
    other = ledger.do(run, "other")
    fork = opened(ledger, forked(ledger, run, one))
    assert ledger.admit(fork, key="the one", scope="ledger").verdict == "replay"
    assert ledger.admit(fork, other.tool, key="another", scope="ledger").verdict == "start"


@check
def a_fork_asked_for_again_is_the_same_fork(ledger: Ledger) -> None:
    run = ledger.run()
    one = ledger.do(run)
    word = fork_op(ledger, run, one)
    first = ledger(word)
    before = ledger.everything()
    word.repeated = True
    assert ledger(word) == first
    assert ledger(fork_op(ledger, run, one)).run == first.run
    assert ledger.everything() == before


@check
def an_id_that_is_taken_is_not_forked_over(ledger: Ledger) -> None:
    run, other = ledger.run(), ledger.run("other")
    one = ledger.do(run)
    before = ledger.everything()
    answer = ledger(fork_op(ledger, run, one, id="other"))
    assert (answer.how, answer.run) == ("taken", other)
    assert ledger.everything() == before


@check
def a_run_that_has_moved_or_goes_back_is_not_forked(ledger: Ledger) -> None:
    run = ledger.run()
    one = ledger.do(run)
    word = fork_op(ledger, run, one)
    ledger.roll_back(run)
    before = ledger.everything()
    assert ledger(word).how == "back"
    other = ledger.run("other")
    lost = ledger.start(other)
    late = fork_op(ledger, other, lost)
    ledger.settle(lost)
    assert ledger(late).how == "moved"
    assert len(ledger.runs()) == len(before[0]) + 1


@check
def a_run_is_not_taken_back_under_a_fork_without_a_persons_word(ledger: Ledger) -> None:
    run = ledger.run()
    one = ledger.do(run)
    fork = forked(ledger, run, one)
    answer = ledger.roll_back(run)
    assert (answer.how, [row.id for row in answer.forks]) == ("forked", ["fork"])
    kept = ledger.read(run)
    assert (kept.state, kept.goal, kept.goal_by) == ("open", "rollback", "self")
    ledger.close(run, "blocked", causes=("fork",))
    ledger(ops.BeginRollback(run.uid, "ann", "all the same", True))
    claimed = ledger.claim(ledger.read(run), force=True)
    assert claimed is not None
    assert ledger.roll_back(claimed, owner="b").how == "rolling"
    assert ledger.read(fork).state == "open"


@check
def a_fork_that_has_committed_stands_on_it_too_and_one_that_went_back_does_not(ledger: Ledger) -> None:
    run = ledger.run()
    one = ledger.do(run)
    kept, gone = forked(ledger, run, one), forked(ledger, run, one, id="gone")
    assert ledger.commit(opened(ledger, kept), owner="f").how == "committed"
    back = opened(ledger, gone, "g")
    assert ledger.roll_back(back, owner="g").how == "rolling"
    assert ledger.close(back, "rolled_back", owner="g").state == "rolled_back"
    assert [row.id for row in ledger.roll_back(run).forks] == ["fork"]
    assert [row.id for row in ledger(ReadForks(run.uid))] == ["fork"]


@check
def a_run_that_waited_for_a_fork_goes_on_when_that_is_gone(ledger: Ledger) -> None:
    run = ledger.run()
    one = ledger.do(run)
    fork = opened(ledger, forked(ledger, run, one))
    assert ledger.roll_back(run).how == "forked"
    blocked = ledger.close(run, "blocked", causes=("fork",))
    assert (blocked.state, blocked.wake_at) == ("blocked", None)
    ledger.roll_back(fork, owner="f")
    ledger.close(fork, "rolled_back", owner="f")
    woken = ledger.read(run)
    assert (woken.state, woken.goal, woken.wake_at) == ("open", "rollback", ledger.clock.now)


@check
def a_run_that_is_blocked_for_a_fork_that_has_just_gone_is_looked_at_again(ledger: Ledger) -> None:
    run = ledger.run()
    fork = opened(ledger, forked(ledger, run, ledger.do(run)))
    assert ledger.roll_back(run).how == "forked"
    ledger.roll_back(fork, owner="f")
    ledger.close(fork, "rolled_back", owner="f")
    assert ledger.close(run, "blocked", causes=("fork",)).wake_at == ledger.clock.now


@check
def what_a_fork_shares_it_never_takes_back(ledger: Ledger) -> None:
    run = ledger.run()
    one = ledger.do(run)
    fork = opened(ledger, forked(ledger, run, one))
    mine = own(ledger, fork)
    tree = ledger.roll_back(fork, owner="f").tree
    assert tree is not None
    shared = next(call for call in tree.calls if call.shared)
    op = ops.BeginCompensation(shared.id, "f", fork.epoch, 1, seen=shared)
    assert ledger(op) is None
    begun = ledger(ledger.compensate_op(mine, owner="f", epoch=fork.epoch))
    ledger.settle_compensation(begun, "compensated", owner="f", epoch=fork.epoch)
    assert ledger.close(fork, "rolled_back", owner="f").state == "rolled_back"
    assert (ledger.look(one).state, ledger.look(shared).state) == ("succeeded", "succeeded")
    assert ledger.open(fork.id, owner="f").how == "refused", "a new generation would not share what it shared"


@check
def a_fork_whose_run_was_taken_back_by_a_persons_word_takes_nothing_more(ledger: Ledger) -> None:
    run = ledger.run()
    one = ledger.do(run)
    fork = opened(ledger, forked(ledger, run, one))
    ledger(ops.BeginRollback(run.uid, "ann", "stop", True))
    assert ledger.roll_back(run).how == "rolling"
    assert ledger.commit(fork, owner="f").how == "rollback"
    assert ledger.admit(fork, "book").verdict == "ended"
    assert ledger.read(fork).goal == "rollback"


@check
def a_pivot_that_is_shared_has_passed_in_the_fork(ledger: Ledger) -> None:
    run = ledger.run()
    one = ledger.do(run)
    pivot = ledger.do(run, "wire", kind="pivot")
    before, after = forked(ledger, run, one), forked(ledger, run, one, pivot, id="after")
    assert (before.state, after.state) == ("open", "pivoted")
    assert ledger.look(ledger(ops.ReadRun("", uid=after.uid)).calls[1]).id == after.pivot
    fork = opened(ledger, after)
    assert ledger.admit(fork, "book").law == "after_pivot"
    assert ledger.roll_back(fork, owner="f").how == "refused"


@check
def children_are_shared_with_what_they_did(ledger: Ledger) -> None:
    run = ledger.run()
    child = ledger.child(run, "order/c")
    one = ledger.do(child)
    assert ledger.commit(child).how == "committed"
    half = ledger.child(run, "order/d")
    two = ledger.do(half, "two")
    ledger.do(half, "three")
    fork = opened(ledger, forked(ledger, run, one, two))
    found = ledger(ledger.child_op(fork, "fork/c", owner="f"))
    assert (found.how, found.run.state) == ("ended", "committed")
    found = ledger(ledger.child_op(fork, "fork/d", owner="f"))
    assert (found.how, found.run.state) == ("resumed", "open")
    assert asked(ledger, fork, two).verdict == "replay"


@check
def a_child_that_a_fork_does_not_stand_on_goes_back(ledger: Ledger) -> None:
    run = ledger.run()
    one = ledger.do(run)
    stood, free = ledger.child(run, "order/s"), ledger.child(run, "order/f")
    two = ledger.do(stood, "two")
    ledger.do(free, "three")
    forked(ledger, run, one, two)
    assert ledger.roll_back(stood).how == "forked"
    assert ledger.roll_back(free).how == "rolling"


@check
def a_fork_of_a_fork_stands_on_both(ledger: Ledger) -> None:
    run = ledger.run()
    one = ledger.do(run)
    first = opened(ledger, forked(ledger, run, one))
    mine = own(ledger, first)
    shared = next(call for call in ledger(ops.ReadRun("", uid=first.uid)).calls if call.shared)
    second = opened(ledger, forked(ledger, first, shared, mine, id="second"), "s")
    calls = ledger(ops.ReadRun("", uid=second.uid)).calls
    assert [call.shared for call in calls] == [one.id, mine.id]
    key = forked_key(one.key, second.uid)
    assert ledger.admit(second, one.tool, key=key).verdict == "replay"
    assert [row.id for row in ledger.roll_back(first, owner="f").forks] == ["second"]
    assert sorted(row.id for row in ledger.roll_back(run).forks) == ["fork", "second"]


@check
def a_fork_of_a_fork_of_what_was_taken_back_is_not_made(ledger: Ledger) -> None:
    run = ledger.run()
    one = ledger.do(run)
    first = opened(ledger, forked(ledger, run, one))
    shared = ledger(ops.ReadRun("", uid=first.uid)).calls[0]
    word = fork_op(ledger, first, shared, id="second")
    ledger(ops.BeginRollback(run.uid, "ann", "stop", True))
    assert ledger(word).how == "back"


@check
def a_plan_is_stale_when_somebody_has_forked_since(ledger: Ledger) -> None:
    run = ledger.run()
    one = ledger.do(run)
    word = planned(ledger, run)
    forked(ledger, run, one)
    assert ledger(word).how == "stale"


@check
def gc_leaves_a_tree_whole_while_a_fork_of_it_is_open(ledger: Ledger) -> None:
    run = ledger.run()
    one = ledger.start(run, args='{"a": 1}')
    one = ledger.settle(one).call
    assert ledger.commit(run).how == "committed"
    fork = opened(ledger, forked(ledger, run, one))
    ledger.clock.now += 1_000
    fork = opened(ledger, fork, "g")
    kept = ledger(ops.CollectGarbage(10.0))
    assert (kept.runs, dict(kept.kept)) == (0, {"open forks": 1})
    assert ledger.commit(fork, owner="g").how == "committed"
    ledger.clock.now += 1_000
    assert ledger(ops.CollectGarbage(10.0)).runs == 2

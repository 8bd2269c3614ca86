"""Opening runs and leases: who owns a tree of runs, and who may take it over."""

from __future__ import annotations

from amends.errors import LeaseLost, RunEnded
from amends.ledger import operations as ops
from amends.testing.conformance.ledger import LEASE_S, Ledger, raises
from amends.testing.conformance.prove import check, check_each


@check
def a_new_ledger_says_that_it_is_new_and_is_empty(ledger: Ledger) -> None:
    assert ledger.is_new
    assert ledger.everything() == ([], [], [])


@check
def a_new_run_is_open_and_owned(ledger: Ledger) -> None:
    opened = ledger.open("order", owner="a")
    assert opened.how == "fresh"
    assert (opened.run.state, opened.run.owner, opened.run.epoch, opened.run.generation) == ("open", "a", 1, 1)
    assert opened.run.lease_until == ledger.clock.now + LEASE_S
    assert ledger.read(opened.run) == opened.run


@check
def the_same_id_in_another_tenant_is_another_run(ledger: Ledger) -> None:
    one, other = ledger.run("order"), ledger.open("order", tenant="umbrella")
    assert other.how == "fresh"
    assert one.uid != other.run.uid


@check_each(["a", "b"])
def a_run_whose_lease_lives_is_busy_for_everybody(ledger: Ledger, owner: str) -> None:
    run = ledger.run("order", owner="a")
    opened = ledger.open("order", owner=owner)
    assert (opened.how, opened.run) == ("busy", run)


@check
def a_run_whose_lease_ended_is_resumed_under_the_next_epoch(ledger: Ledger) -> None:
    ledger.run("order", owner="a")
    ledger.clock.now += LEASE_S + 1
    opened = ledger.open("order", owner="b", history=True)
    assert opened.how == "resumed"
    assert (opened.run.owner, opened.run.epoch, opened.run.history) == ("b", 2, 1)
    assert ledger.read(opened.run) == opened.run


@check
def an_owner_that_is_certainly_dead_is_taken_over_at_once(ledger: Ledger) -> None:
    ledger.run("order", owner="a")
    assert ledger.open("order", owner="b", dead_owner="x").how == "busy"
    assert ledger.open("order", owner="b", dead_owner="a").how == "resumed"


@check
def another_input_for_the_same_id_is_a_conflict(ledger: Ledger) -> None:
    run = ledger.run("order", input="1 box")
    ledger.clock.now += LEASE_S + 1
    opened = ledger.open("order", input="2 boxes")
    assert (opened.how, opened.run) == ("conflict", run)
    assert ledger.open("order", input="1 box").how == "resumed"


@check
def a_committed_run_answers_from_its_record(ledger: Ledger) -> None:
    run = ledger.run()
    assert ledger.commit(run).how == "committed"
    opened = ledger.open()
    assert (opened.how, opened.run.state) == ("ended", "committed")


@check
def a_run_that_its_own_failure_rolled_back_opens_as_its_next_generation(ledger: Ledger) -> None:
    run = ledger.run()
    ledger.roll_back(run)
    ledger.close(run, "rolled_back")
    assert ledger.open(if_rolled_back="raise").how == "refused"
    again = ledger.open()
    assert (again.how, again.run.generation, again.run.epoch) == ("fresh", 2, 1)
    assert again.run.uid != run.uid
    assert ledger(ops.ReadRun("acme", "order")).run == again.run


@check
def a_run_that_a_person_rolled_back_is_not_opened_again(ledger: Ledger) -> None:
    run = ledger.run()
    ledger.roll_back(run, person=True)
    ledger.close(run, "rolled_back")
    assert ledger.open().how == "refused"


@check
def an_abandoned_run_is_not_opened_again(ledger: Ledger) -> None:
    run = ledger.run()
    ledger(ops.AbandonRun(run.uid, "ann", "no longer needed"))
    assert ledger.open().how == "refused"


@check
def a_child_is_not_opened_as_a_root(ledger: Ledger) -> None:
    run = ledger.run()
    child = ledger.child(run, "part")
    opened = ledger.open("part")
    assert (opened.how, opened.run) == ("refused", child)


@check
def an_interrupted_run_that_is_opened_again_goes_on(ledger: Ledger) -> None:
    run = ledger.run()
    ledger.do(run, "wire", kind="pivot")
    ledger.close(run, "blocked", causes=("open it again",), interrupted=True)
    opened = ledger.open()
    assert (opened.how, opened.run.state, opened.run.interrupted, opened.run.causes) == ("resumed", "pivoted", 0, "[]")


# ---- children -----------------------------------------------------------------------------


@check
def the_same_request_finds_the_same_child(ledger: Ledger) -> None:
    run = ledger.run()
    child = ledger.child(run, "part", input="x")
    assert (child.root, child.parent, child.state) == (run.uid, run.uid, "open")
    again = ledger(ledger.child_op(run, "part", input="x"))
    assert (again.how, again.run) == ("resumed", child)
    assert ledger(ledger.child_op(run, "part", input="y")).how == "conflict"


@check
def a_child_that_ended_answers_from_its_record(ledger: Ledger) -> None:
    run = ledger.run()
    child = ledger.child(run, "part")
    ledger.commit(child)
    assert ledger(ledger.child_op(run, "part")).how == "ended"


@check
def a_child_that_was_rolled_back_opens_as_its_next_generation(ledger: Ledger) -> None:
    run = ledger.run()
    child = ledger.child(run, "part")
    ledger.roll_back(child)
    ledger.close(child, "rolled_back")
    again = ledger(ledger.child_op(run, "part"))
    assert (again.how, again.run.generation) == ("fresh", 2)


@check
def a_run_that_is_ending_takes_no_new_child(ledger: Ledger) -> None:
    run = ledger.run()
    ledger.start(run, "wire", kind="pivot")
    with raises(RunEnded):
        ledger.child(run, "part")


@check
def an_old_owner_opens_no_child(ledger: Ledger) -> None:
    run = ledger.run()
    ledger.take_over(run)
    with raises(LeaseLost):
        ledger.child(run, "part")


# ---- taking over --------------------------------------------------------------------------


@check
def a_tree_is_claimed_only_when_its_lease_has_ended(ledger: Ledger) -> None:
    run = ledger.run()
    assert ledger.claim(run) is None
    ledger.clock.now += LEASE_S + 1
    claimed = ledger.claim(run)
    assert claimed is not None
    assert (claimed.owner, claimed.epoch) == ("b", 2)


@check
def of_two_claimers_one_is_faster(ledger: Ledger) -> None:
    run = ledger.run()
    ledger.take_over(run, owner="b")
    assert ledger.claim(run, owner="c") is None


@check
def a_dead_owner_is_claimed_at_once_and_nobody_elses_run(ledger: Ledger) -> None:
    run = ledger.run(owner="a")
    assert ledger.claim(run, dead_owner="z") is None
    assert ledger.claim(run, dead_owner="a") is not None


@check
def a_run_that_waits_for_a_person_is_claimed_only_by_force(ledger: Ledger) -> None:
    run = ledger.run()
    ledger(ops.ReleaseLease(run.uid, "a", 1, None, suspended=True))
    assert ledger.claim(run) is None
    assert ledger.claim(run, force=True) is not None


@check
def a_closed_run_is_not_claimed(ledger: Ledger) -> None:
    run = ledger.run()
    ledger.commit(run)
    ledger.clock.now += LEASE_S + 1
    assert ledger.claim(run, force=True) is None


@check
def a_takeover_turns_what_was_live_into_doubt_in_one_transaction(ledger: Ledger) -> None:
    run = ledger.run()
    done = ledger.do(run, "charge")
    child = ledger.child(run, "part")
    lost = ledger.start(child, "ship")
    read = ledger.start(run, "look", kind="read")
    before = len(ledger.events())
    ledger.take_over(run)
    assert ledger.look(done).state == "succeeded"
    assert (ledger.look(lost).state, ledger.look(lost).why) == ("in_doubt", "lost")
    assert (ledger.look(read).state, ledger.look(read).why) == ("failed", "lost")
    written = ledger.events()[before:]
    assert {event.to_state for event in written if event.call} == {"in_doubt", "failed"}
    assert len(written) == 3
    assert {event.epoch for event in written} == {2}


@check
def a_takeover_turns_a_compensation_into_doubt(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.do(run)
    ledger.roll_back(run)
    assert ledger(ledger.compensate_op(call)) is not None
    ledger.take_over(run)
    assert ledger.look(call).state == "compensation_in_doubt"


@check
def what_an_owner_with_a_lease_may_still_send_is_waited_for(ledger: Ledger) -> None:
    one, other = ledger.run("one", owner="a"), ledger.run("other", owner="dead")
    slow, dead = ledger.start(one, key="1"), ledger.start(other, key="2")
    ledger.claim(other, dead_owner="dead")
    ledger.take_over(one)
    assert ledger.look(dead).quiet_mono == 900.0
    assert ledger.look(slow).quiet_mono == ledger.mono(900.0) + LEASE_S


@check
def whoever_performs_a_call_elsewhere_is_waited_for_although_its_owner_is_dead(ledger: Ledger) -> None:
    one, other = ledger.run("one", owner="a"), ledger.run("other", owner="dead")
    slow, dead = ledger.start(one, key="1", remote_s=20.0), ledger.start(other, key="2", remote_s=20.0)
    assert ledger.look(dead).remote_s == 20.0
    ledger.claim(other, dead_owner="dead")
    ledger.take_over(one)
    assert ledger.look(dead).quiet_mono == 922.0
    assert ledger.look(slow).quiet_mono == ledger.mono(900.0) + LEASE_S + 22.0
    # A second takeover, from whichever host, does not forget it.
    ledger.claim(other, owner="c", dead_owner="b", boot="a third host", mono=7.0)
    assert (ledger.look(dead).quiet_mono, ledger.look(dead).remote_s) == (922.0, 20.0)


@check
def whoever_compensates_elsewhere_is_waited_for(ledger: Ledger) -> None:
    run = ledger.run(owner="dead")
    call = ledger.do(run, remote_s=10.0, owner="dead")
    ledger.roll_back(run, owner="dead")
    begun = ledger(ledger.compensate_op(ledger.look(call), owner="dead", remote_s=20.0))
    assert begun is not None
    assert begun.remote_s == 20.0
    ledger.claim(run, dead_owner="dead")
    assert (ledger.look(call).state, ledger.look(call).comp_mono) == ("compensation_in_doubt", 922.0)


@check
def a_start_beside_a_lost_one_is_waited_for_as_long_as_the_longer_of_them(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.start(run, remote_s=50.0)
    ledger.settle(call, "in_doubt")
    again = ledger(ops.StartCall(call.id, "a", 1, 2))
    assert again.remote_s == 50.0
    ledger.settle(again, "backing_off")
    assert ledger(ops.StartCall(call.id, "a", 1, 3)).remote_s == 0.0


@check
def a_clock_that_jumps_forward_takes_no_run_from_a_living_owner(ledger: Ledger) -> None:
    run, mono = ledger.run(), ledger.mono(500.0)
    ledger.clock.now += 3_600
    assert ledger.open(owner="b", mono=mono + 1).how == "busy"
    assert ledger.claim(run, mono=mono + 1) is None
    assert ledger.claim(run, boot="another host", mono=7.0) is None
    # Its next heartbeat is in time, even if another process has noted its silence.
    beat = ops.RenewLeases("a", {run.uid: 1}, LEASE_S, boot="boot", mono=mono + 10)
    assert set(ledger(beat).goals) == {run.uid}
    ledger.clock.now += 3_600
    assert ledger.claim(run, mono=mono + 11) is None
    assert ledger.claim(run, boot="another host", mono=7.0 + LEASE_S) is None
    assert ledger.read(run).owner == "a"


@check
def an_owner_that_stays_silent_for_a_whole_lease_is_taken_over_from_another_host(ledger: Ledger) -> None:
    run = ledger.run()
    ledger.clock.now += LEASE_S + 1
    assert ledger.claim(run, boot="another host", mono=7.0) is None
    assert [(root.id, due) for root, _, due in ledger(ops.DueRuns(None, 10))] == [("order", False)]
    assert ledger.claim(run, boot="another host", mono=7.0 + LEASE_S - 1) is None
    ledger.clock.now += LEASE_S
    assert [(root.id, due) for root, _, due in ledger(ops.DueRuns(None, 10))] == [("order", True)]
    assert ledger.claim(run, boot="a third host", mono=0.0) is not None


@check
def a_clock_that_was_set_back_keeps_no_abandoned_run(ledger: Ledger) -> None:
    run, mono = ledger.run(), ledger.mono(500.0)
    ledger.clock.now -= 3_600
    assert ledger.claim(run, mono=mono + LEASE_S + 1) is None
    assert ledger.claim(run, mono=mono + LEASE_S * 2) is None
    assert ledger.claim(run, mono=mono + LEASE_S * 2 + 1) is not None


@check
def a_clock_that_was_set_back_keeps_no_run_of_a_dead_owner_on_another_host(ledger: Ledger) -> None:
    """Ledger time stands still until the clock has caught up: silence is measured without it."""
    run = ledger.run()
    ledger.clock.now -= 3_600
    assert [(root.id, due) for root, _, due in ledger(ops.DueRuns(None, 10))] == [("order", True)]
    assert ledger.claim(run, boot="another host", mono=7.0) is None
    assert ledger.claim(run, boot="another host", mono=7.0 + LEASE_S - 1) is None
    assert ledger.claim(run, boot="a third host", mono=900.0) is None
    ledger.clock.now -= 3_600  # the third host does not know when the silence began, so it counts from now
    assert ledger.claim(run, boot="a third host", mono=900.0) is None
    ledger.clock.now += LEASE_S
    assert ledger.claim(run, boot="another host", mono=7.0 + LEASE_S) is not None


@check
def a_clock_that_was_set_back_takes_no_run_from_a_living_owner_on_another_host(ledger: Ledger) -> None:
    run, mono = ledger.run(), ledger.mono(500.0)
    ledger.clock.now -= 3_600
    for beats in range(6):
        assert ledger.claim(run, boot="another host", mono=7.0 + 20.0 * beats) is None
        beat = ops.RenewLeases("a", {run.uid: 1}, LEASE_S, boot="boot", mono=mono + 20.0 * beats)
        assert set(ledger(beat).goals) == {run.uid}
    assert ledger.read(run).owner == "a"


# ---- renewing and letting go --------------------------------------------------------------


@check
def an_owner_that_is_about_to_end_shortens_its_lease_and_is_taken_over_soon(ledger: Ledger) -> None:
    run, mono = ledger.run(), ledger.mono(500.0)
    call = ledger.start(run)
    ledger(ops.RenewLeases("a", {run.uid: 1}, 2.0, boot="boot", mono=mono))
    assert ledger.claim(run, mono=mono + 1.9) is None
    ledger.clock.now += 2.5
    assert ledger.claim(run, owner="b", boot="another host", mono=7.0) is None  # it notes the silence
    ledger.clock.now += 2.5
    taken = ledger.claim(run, owner="b", boot="another host", mono=9.5)
    assert taken is not None
    assert (taken.owner, taken.lease_s) == ("b", LEASE_S)
    assert ledger.look(call).state == "in_doubt"
    assert ledger.look(call).quiet_mono == 9.5 + 2.0  # so long it may have sent something


@check
def only_ones_own_leases_are_renewed(ledger: Ledger) -> None:
    mine, lost = ledger.run("mine", owner="a"), ledger.run("lost", owner="a")
    ledger.claim(lost, owner="b", dead_owner="a")
    ledger.clock.now += 10
    renewed = ledger(ops.RenewLeases("a", {mine.uid: 1, lost.uid: 1, "unknown": 1}, LEASE_S))
    assert dict(renewed.goals) == {mine.uid: ""}
    assert ledger.read(mine).lease_until == ledger.clock.now + LEASE_S
    assert ledger.read(lost).owner == "b"


@check
def a_renewal_tells_what_a_person_asked_for(ledger: Ledger) -> None:
    run = ledger.run()
    ledger(ops.BeginRollback(run.uid, "ann", "stop", True))
    assert dict(ledger(ops.RenewLeases("a", {run.uid: 1}, LEASE_S)).goals) == {run.uid: "rollback"}


@check
def a_renewal_tells_a_run_that_was_given_back_from_one_that_was_taken(ledger: Ledger) -> None:
    mine, taken, let, ended = (ledger.run(id) for id in ("mine", "taken", "let", "ended"))
    ledger.claim(taken, owner="b", dead_owner="a")
    ledger(ops.ReleaseLease(let.uid, "a", 1, None))
    ledger.commit(ended)
    for waits in (True, False):
        epochs = {run.uid: 1 for run in (mine, taken, let, ended)}
        renewed = ledger(ops.RenewLeases("a", epochs, LEASE_S, waits=waits))
        assert (set(renewed.goals), renewed.given_back, renewed.busy) == ({mine.uid}, {let.uid, ended.uid}, frozenset())


@check
def answers_from_the_record_are_counted_of_an_ended_tree_and_never_fewer(ledger: Ledger) -> None:
    run, other = ledger.run("one"), ledger.run("two")
    call, strange = ledger.do(run), ledger.do(other)
    ledger.commit(run)
    for count in (2, 1, 3, 3):
        ledger(ops.CountReplays(run.uid, {call.id: count, strange.id: 9, "call_nowhere": 1}))
        assert ledger.look(call).replays == max(count, 2)
    assert ledger.look(strange).replays == 0


@check
def a_run_that_was_let_go_belongs_to_whoever_comes(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.do(run)
    let = ledger(ops.ReleaseLease(run.uid, "a", 1, 5.0, replays={call.id: 3}))
    assert (let.owner, let.wake_at, let.suspended) == ("", ledger.clock.now + 5.0, 0)
    assert ledger.look(call).replays == 3
    assert ledger.open(owner="b").how == "resumed"


@check
def who_no_longer_owns_a_run_lets_nothing_go(ledger: Ledger) -> None:
    run = ledger.run(owner="a")
    claimed = ledger.take_over(run, owner="b")
    assert ledger(ops.ReleaseLease(run.uid, "a", 1, 0.0)) == claimed
    assert ledger.read(run) == claimed


# ---- runs that belong to a client ----------------------------------------------------------

CLIENT_S = 60.0
OURS = f"rollback+client{CLIENT_S}"


@check
def a_run_is_left_to_its_client_after_the_last_sign_of_its_owner(ledger: Ledger) -> None:
    run, mono = ledger.run(policy=OURS), ledger.mono(500.0)
    assert run.client_lease_s == CLIENT_S
    ledger.clock.now += LEASE_S + 1
    assert ledger.claim(run, dead_owner="a", mono=mono + LEASE_S + 1) is None
    assert ledger.read(run).wake_at == ledger.clock.now + CLIENT_S - LEASE_S - 1  # nobody looks at it before
    assert ledger.claim(run, dead_owner="a", mono=mono + CLIENT_S - 0.5, force=True) is None
    assert ledger.claim(run, dead_owner="a", mono=mono + CLIENT_S) is not None


@check
def a_client_finds_its_run_at_once_at_another_server(ledger: Ledger) -> None:
    ledger.run(policy=OURS)
    opened = ledger.open(owner="b", dead_owner="a")
    assert (opened.how, opened.run.client_lease_s) == ("resumed", CLIENT_S)


@check
def a_heartbeat_is_a_sign_of_the_owner(ledger: Ledger) -> None:
    run, mono = ledger.run(policy=OURS), ledger.mono(500.0)
    ledger.clock.now += 50
    ledger(ops.RenewLeases("a", {run.uid: 1}, LEASE_S, boot="boot", mono=mono + 50))
    assert ledger.claim(run, dead_owner="a", mono=mono + CLIENT_S + 49) is None
    assert ledger.claim(run, dead_owner="a", mono=mono + CLIENT_S + 50) is not None


@check
def a_clock_that_jumps_takes_no_run_from_its_client(ledger: Ledger) -> None:
    run, mono = ledger.run(policy=OURS), ledger.mono(500.0)
    ledger.clock.now += 3_600
    assert ledger.claim(run, dead_owner="a", mono=mono + 1) is None
    assert ledger.claim(run, boot="another host", mono=7.0) is None
    assert ledger.claim(run, boot="another host", mono=7.0 + CLIENT_S - 1) is None
    assert ledger.claim(run, boot="another host", mono=7.0 + CLIENT_S) is not None


@check
def a_goal_is_followed_although_the_client_may_live(ledger: Ledger) -> None:
    run = ledger.run(policy=OURS)
    ledger(ops.BeginRollback(run.uid, "anna", "stop", True))
    assert ledger.claim(run, dead_owner="a") is not None
    other = ledger.run("other", policy=OURS)
    ledger.roll_back(other)
    assert ledger.claim(other, dead_owner="a") is not None


@check
def a_run_that_was_let_go_is_left_to_its_client_for_the_rest_of_its_lease(ledger: Ledger) -> None:
    run = ledger.run(policy=OURS)
    ledger(ops.ReleaseLease(run.uid, "a", 1, 50.0, boot="boot", mono=700.0, silent_s=10.0))
    ledger.clock.now += 3_600  # a clock that jumps ends no client lease
    assert ledger.claim(run, mono=749.0) is None
    ledger.clock.now += 1
    assert ledger.claim(run, mono=750.0) is not None
    other = ledger.run("other", policy=OURS)
    ledger(ops.ReleaseLease(other.uid, "a", 1, 0.0))
    assert ledger.claim(other, mono=700.0) is not None  # to recovery, at once


@check
def a_server_asks_another_one_for_the_run_of_its_client(ledger: Ledger) -> None:
    run, mono = ledger.run(policy=OURS), ledger.mono(500.0)
    ledger.run("other", policy=OURS)
    program = ledger.run("program")
    assert ledger(ops.ListWanted("a")) == []
    assert ledger.open(owner="b").how == "busy"  # a program that opens it asks nobody
    assert ledger(ops.ListWanted("a")) == []
    assert ledger.open("program", owner="b", wants=True).how == "busy"
    assert ledger.read(program) == program  # it belongs to no client
    for _ in range(2):
        opened = ledger.open(owner="b", wants=True, mono=mono + 5)
        assert (opened.how, opened.run.owner, bool(opened.run.wanted)) == ("busy", "a", True)
    assert [one.id for one in ledger(ops.ListWanted("a"))] == ["order"]
    assert [one.uid for one in ledger(ops.ListWanted("a", limit=1))] == [run.uid]
    assert ledger(ops.ListWanted("b")) == []
    renewed = ledger(ops.RenewLeases("a", {run.uid: 1}, LEASE_S, boot="boot", mono=mono + 6))
    assert (set(renewed.goals), renewed.wanted) == ({run.uid}, {run.uid})
    assert ledger(ops.RenewLeases("a", {run.uid: 1}, LEASE_S, boot="boot", mono=mono + 6)).wanted == frozenset()
    assert ledger(ops.ListWanted("a")) == []
    ledger.open(owner="b", wants=True, mono=mono + 7)
    ledger(ops.ReleaseLease(run.uid, "a", 1, CLIENT_S, boot="boot", mono=mono + 7))
    assert ledger(ops.ListWanted("a")) == ledger(ops.ListWanted("")) == []
    opened = ledger.open(owner="b", wants=True, mono=mono + 8)
    assert (opened.how, opened.run.epoch, opened.run.wanted) == ("resumed", 2, "")


@check
def a_client_that_asks_another_server_is_alive(ledger: Ledger) -> None:
    run, mono = ledger.run(policy=OURS), ledger.mono(500.0)
    assert ledger.open(owner="b", wants=True, mono=mono + 50).how == "busy"
    assert ledger.open(owner="b", wants=True, mono=mono + 60).how == "busy"
    ledger.clock.now += CLIENT_S + LEASE_S + 100
    assert ledger.claim(run, dead_owner="a", mono=mono + 59 + CLIENT_S) is None
    assert ledger.claim(run, dead_owner="a", mono=mono + 60 + CLIENT_S) is not None


@check
def a_client_that_has_moved_is_not_silent_whatever_its_first_server_says(ledger: Ledger) -> None:
    mono = ledger.mono(500.0)
    # To recovery at once, or to its client for ten seconds; and asked for before the last heartbeat, or since.
    for number, (silent_s, is_wanted) in enumerate(((None, False), (50.0, False), (None, True))):
        run = ledger.run(f"order {number}", policy=OURS, mono=mono)
        if not is_wanted:
            ledger.open(run.id, owner="b", wants=True, mono=mono + 10)
        let = ops.ReleaseLease(
            run.uid, "a", 1, 0.0, is_wanted=is_wanted, boot="boot", mono=mono + 12, silent_s=silent_s
        )
        ledger(let)
        ledger.clock.now += CLIENT_S
        assert ledger.read(run).wake_at == ledger.clock.now
        assert ledger.claim(run, mono=mono + 11 + CLIENT_S) is None
        assert ledger.claim(run, mono=mono + 12 + CLIENT_S) is not None


@check
def what_a_server_asks_for_keeps_no_dead_owner_alive(ledger: Ledger) -> None:
    run, mono = ledger.run(policy=OURS), ledger.mono(500.0)
    for passed in (1.0, LEASE_S / 2, LEASE_S - 1):
        assert ledger.open(owner="b", wants=True, mono=mono + passed).how == "busy"
    ledger.clock.now += LEASE_S + 1
    opened = ledger.open(owner="b", wants=True, mono=mono + LEASE_S + 1)
    assert (opened.how, opened.run.uid, opened.run.owner) == ("resumed", run.uid, "b")


# ---- what recovery should look at ---------------------------------------------------------


@check
def due_runs_come_first_with_the_tools_that_they_need(ledger: Ledger) -> None:
    late, owned, waits, closed = (ledger.run(id) for id in ("late", "owned", "waits", "closed"))
    ledger.do(late, "charge", key="1")
    ledger.settle(ledger.start(late, "ship", key="2"), "failed")
    ledger.start(late, "look", key="3", kind="read")
    ledger(ops.ReleaseLease(late.uid, "a", 1, 0.0))
    ledger(ops.ReleaseLease(waits.uid, "a", 1, None, suspended=True))
    ledger.commit(closed)
    found = ledger(ops.DueRuns("acme", 10))
    assert [(root.id, tools, due) for root, tools, due in found] == [
        ("late", ("charge",), True), ("owned", (), False)
    ]  # fmt: skip
    assert found[1][0] == owned
    assert ledger(ops.DueRuns("umbrella", 10)) == []
    assert [root.id for root, *_ in ledger(ops.DueRuns(None, 1))] == ["late", "owned"]


@check
def the_run_that_waited_longest_is_due_first(ledger: Ledger) -> None:
    for id in ("first", "second", "third"):
        ledger(ops.ReleaseLease(ledger.run(id).uid, "a", 1, {"first": 3.0, "second": 1.0, "third": 2.0}[id]))
    ledger.clock.now += 5
    assert [root.id for root, *_ in ledger(ops.DueRuns(None, 10))] == ["second", "third", "first"]

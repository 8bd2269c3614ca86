"""What gc removes, what it never removes, and that it does so once whoever does it."""

from __future__ import annotations

from typing import Any, Final

from amends.ledger import operations as ops
from amends.ledger.rows import GONE, CallRow, RunRow
from amends.testing.conformance.ledger import Ledger
from tests.ledger.rules.registry import check, check_each

DAY_S: Final = 86_400.0
ARGS: Final = '{"card": "4111"}'
PAYLOADS: Final = ("args", "result", "error", "comp_error", "evidence", "loss", "locks")


def ended(ledger: Ledger, id: str = "order", **given: Any) -> tuple[RunRow, CallRow]:
    """A run with one call, committed a day ago."""
    run = ledger.run(id, input='"in"', **given)
    call = ledger.do(run, args=ARGS, key=f"key of {id}")
    ledger(ops.DecideCommit(run.uid, "a", run.epoch, '"out"'))
    ledger.clock.now += DAY_S
    return ledger.read(run), ledger.look(call)


def sweep(ledger: Ledger, **given: Any) -> ops.Swept:
    answer: ops.Swept = ledger(ops.CollectGarbage(given.pop("older_than_s", DAY_S / 2), **given))
    return answer


def is_whole(ledger: Ledger, run: RunRow) -> bool:
    return ledger.read(run).gone_at is None and not any(call.args.startswith(GONE) for call in ledger.calls())


@check
def payloads_go_and_identities_stay(ledger: Ledger) -> None:
    run, call = ended(ledger)
    events = ledger.events()
    swept = sweep(ledger)
    assert (swept.runs, swept.calls, swept.kept, swept.after) == (1, 1, (), None)
    assert swept.freed == sum(map(len, ('"in"', '"out"', ARGS, '"ok"')))
    after, bare = ledger.read(run), ledger.look(call)
    assert after.input.startswith(GONE)
    assert after.output.startswith(GONE)
    assert after.gone_at == after.lost_at == bare.lost_at == ledger.clock.now
    assert bare.args.startswith(GONE)
    assert bare.result is not None
    assert bare.result.startswith(GONE)
    same = [name for name in CallRow.__dataclass_fields__ if name not in PAYLOADS]
    assert [getattr(bare, name) for name in same] == [getattr(call, name) for name in same]
    same = [name for name in RunRow.__dataclass_fields__ if name not in ("input", "output", "gone_at")]
    assert [getattr(after, name) for name in same] == [getattr(run, name) for name in same]
    now = ledger.events()
    assert now[:-1] == events, "an event that was written stays as it is"
    assert (now[-1].what, now[-1].by_whom, now[-1].run) == ("payloads removed", "gc", run.uid)


@check
def what_was_removed_is_removed_once(ledger: Ledger) -> None:
    ended(ledger)
    sweep(ledger)
    before = ledger.everything()
    ledger.clock.now += DAY_S
    assert sweep(ledger) == ops.Swept(0, 0, 0, (), None)
    assert ledger.everything() == before


@check
def a_dry_run_says_the_same_and_changes_nothing(ledger: Ledger) -> None:
    ended(ledger)
    before = ledger.everything()
    said = sweep(ledger, dry_run=True)
    assert ledger.everything() == before
    assert said == sweep(ledger)


@check
def what_is_young_or_of_another_tenant_stays(ledger: Ledger) -> None:
    run, _ = ended(ledger)
    assert sweep(ledger, older_than_s=2 * DAY_S).runs == 0
    assert sweep(ledger, tenant="umbrella").runs == 0
    assert is_whole(ledger, run)
    assert sweep(ledger, tenant="acme").runs == 1


def _held_open(ledger: Ledger) -> RunRow:
    run = ledger.run()
    ledger.do(run, args=ARGS)
    return run


def _blocked(ledger: Ledger) -> RunRow:
    run = _held_open(ledger)
    ledger.settle(ledger.start(run, "ship", args=ARGS), "in_doubt")
    return ledger.close(run, "blocked", causes=("decide",))


def _child_ended_in_an_open_root(ledger: Ledger) -> RunRow:
    root = ledger.run()
    child = ledger.child(root)
    ledger.do(child, args=ARGS)
    ledger.commit(child)
    return root


def _suspended(ledger: Ledger) -> RunRow:
    run = _held_open(ledger)
    ledger(ops.ReleaseLease(run.uid, "a", 1, None, suspended=True))
    return run


def _rolling_back(ledger: Ledger) -> RunRow:
    run = _held_open(ledger)
    ledger.roll_back(run)
    return run


def _pivoted(ledger: Ledger) -> RunRow:
    run = ledger.run()
    ledger.do(run, "wire", kind="pivot", args=ARGS)
    return run


UNENDED: Final = {
    "open": _held_open, "blocked": _blocked, "suspended": _suspended, "rolling_back": _rolling_back,
    "pivoted": _pivoted, "a child that ended": _child_ended_in_an_open_root,
}  # fmt: skip


@check_each(UNENDED)
def nothing_of_a_tree_goes_before_its_root_ended(ledger: Ledger, make: Any) -> None:
    run = make(ledger)
    ledger.clock.now += 100 * DAY_S
    assert sweep(ledger, older_than_s=0.0) == ops.Swept(0, 0, 0, (), None)
    assert is_whole(ledger, run)


@check
def what_was_left_standing_stays_readable(ledger: Ledger) -> None:
    run = ledger.run()
    ledger.do(run, args=ARGS)
    ledger.settle(ledger.start(run, "ship", args=ARGS), "in_doubt")
    ledger(ops.AbandonRun(run.uid, "ann", "enough"))
    ledger.clock.now += DAY_S
    assert sweep(ledger) == ops.Swept(0, 0, 0, (("left standing", 1),), None)
    assert is_whole(ledger, run)


@check
def an_effect_that_came_late_into_an_ended_run_stays_readable(ledger: Ledger) -> None:
    run = ledger.run()
    child = ledger.child(run)
    call = ledger.settle(ledger.start(child, args=ARGS), "failed").call
    ledger.commit(child)
    ledger.commit(run)
    ledger(ops.NoteEvidence(call.id, 1, True, '"late"', "", "boot", 9.0, "late"))
    assert ledger.look(call).state == "succeeded"
    ledger.clock.now += DAY_S
    assert sweep(ledger).kept == (("left standing", 1),)
    assert is_whole(ledger, run)


@check
def a_whole_tree_goes_with_its_root(ledger: Ledger) -> None:
    root = ledger.run(input='"root"')
    child = ledger.child(root, input='"child"')
    calls = [ledger.do(one, args=ARGS, key=one.uid) for one in (root, child)]
    ledger.commit(child)
    ledger.commit(root)
    ledger.clock.now += DAY_S
    swept = sweep(ledger)
    assert (swept.runs, swept.calls) == (1, 2)
    assert all(ledger.read(one).input.startswith(GONE) for one in (root, child))
    assert all(ledger.look(call).lost_at is not None for call in calls)


@check
def what_says_nothing_is_kept_and_answered_for_ever(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.settle(ledger.start(run), "succeeded", result="null").call
    ledger.commit(run)
    ledger.clock.now += DAY_S
    assert sweep(ledger).runs == 1
    kept = ledger.look(call)
    assert (kept.args, kept.result, kept.lost_at) == ("{}", "null", None)


@check
def a_batch_ends_where_the_next_one_begins(ledger: Ledger) -> None:
    made = [ended(ledger, f"run {number}")[0] for number in range(5)]
    swept, total = sweep(ledger, limit=2), 0
    for _ in made:
        total += swept.runs
        if swept.after is None:
            break
        swept = sweep(ledger, limit=2, after=swept.after)
    assert total == len(made)
    assert all(ledger.read(run).gone_at is not None for run in made)


@check
def a_tree_that_is_kept_does_not_stand_in_the_way_of_the_next(ledger: Ledger) -> None:
    stuck = ledger.run("stuck")
    ledger.settle(ledger.start(stuck, key="stuck"), "in_doubt")
    ledger(ops.AbandonRun(stuck.uid, "ann", "enough"))
    run, _ = ended(ledger)
    first = sweep(ledger, limit=1)
    assert (first.runs, first.kept, first.after is None) == (0, (("left standing", 1),), False)
    assert sweep(ledger, limit=1, after=first.after).runs == 1
    assert ledger.read(run).gone_at is not None


@check
def an_identity_that_lost_its_words_still_answers(ledger: Ledger) -> None:
    """Asked again: the same call, its result stated as gone; with other arguments: a conflict, as ever."""
    run, call = ended(ledger)
    sweep(ledger)
    again = ledger.admit(run, args=ARGS, key="key of order")
    assert (again.verdict, again.call) == ("replay", ledger.look(call))
    assert again.call.result.startswith(GONE)
    assert ledger.admit(run, args="{}", key="key of order").verdict == "conflict"
    assert ledger.open(input='"in"').how == "ended"
    assert ledger.open(input='"other"').how == "conflict"


@check
def a_key_of_the_whole_ledger_is_not_free_again(ledger: Ledger) -> None:
    run = ledger.run("first")
    call = ledger.do(run, args=ARGS, key="shared", scope="ledger")
    ledger.commit(run)
    ledger.clock.now += DAY_S
    sweep(ledger)
    again = ledger.admit(ledger.run("second"), args=ARGS, key="shared", scope="ledger")
    assert (again.verdict, again.call.id) == ("replay", call.id)


def taken_back(ledger: Ledger, to: str = "failed") -> tuple[RunRow, CallRow]:
    run = ledger.run()
    call = ledger.settle(ledger.start(run, args=ARGS), to).call
    ledger.roll_back(run)
    ledger.close(run, "rolled_back")
    ledger.clock.now += DAY_S
    return run, call


@check
def late_evidence_of_what_lost_its_words_is_never_compensated_with_nothing(ledger: Ledger) -> None:
    run, call = taken_back(ledger)
    assert sweep(ledger).runs == 1
    ledger(ops.NoteEvidence(call.id, 1, True, '"late"', "", "boot", 9.0, "late"))
    late, root = ledger.look(call), ledger.read(run)
    assert (late.state, late.result, late.lost_at is not None) == ("succeeded", '"late"', True)
    assert (root.state, root.gone_at) == ("rolling_back", None)
    claimed = ledger.claim(root)
    assert claimed is not None
    before = ledger.everything()
    for seen in (None, late):
        assert ledger(ops.BeginCompensation(call.id, "b", claimed.epoch, 1, seen=seen)) is None
    assert ledger.everything() == before


@check
def what_was_taken_back_in_doubt_can_be_taken_back_once_more(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.settle(ledger.start(run, args=ARGS), "in_doubt").call
    ledger.roll_back(run)
    ledger.compensate(call, from_doubt=True)
    ledger.close(run, "rolled_back")
    ledger.clock.now += DAY_S
    assert sweep(ledger).kept == (("taken back in doubt", 1),)
    ledger(ops.NoteEvidence(call.id, 1, True, '"late"', "", "boot", 9.0, "late"))
    claimed = ledger.claim(ledger.read(run))
    assert claimed is not None
    again = ledger(ops.BeginCompensation(call.id, "b", claimed.epoch, 2))
    assert (again.state, again.args) == ("compensating", ARGS)


@check
def a_next_generation_is_not_touched(ledger: Ledger) -> None:
    old, _ = taken_back(ledger)
    new = ledger.run()
    assert new.generation == 2
    call = ledger.do(new, args=ARGS)
    assert sweep(ledger).runs == 1
    assert ledger.read(old).gone_at is not None
    assert ledger.read(new) == new
    assert ledger.look(call) == call

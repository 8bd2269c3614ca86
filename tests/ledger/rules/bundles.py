"""Records of other ledgers: whole, once, all or none, and never worked with."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from amends.errors import LedgerTampered, RunIsRecord, RunTaken
from amends.ledger import operations as ops
from amends.ledger.operations import DecideApproval, FindTrees, HasLoaded, ReadRecord, Record
from amends.ledger.rows import CallRow, RunRow
from amends.testing.conformance.ledger import Ledger, raises
from amends.testing.conformance.scenarios import ELSEWHERE, a_record, elsewhere, load_op, taken_out
from tests.ledger.rules.registry import check, check_each

RESTING: Final = ("owner", "opener", "lease_s", "lease_until", "wake_at", "suspended", "lease_boot", "lease_mono")
PLACES: Final = ("key", "use_key")


def load(ledger: Ledger, *records: Record) -> list[str]:
    answer: list[str] = ledger(load_op(ledger, *records))
    return answer


@check
def a_record_is_what_it_was_in_the_ledger_that_it_came_from(ledger: Ledger) -> None:
    record = a_record(elsewhere())
    assert load(ledger, record) == [record.root.uid]
    loaded: Record | None = ledger(ReadRecord(record.root.uid))
    assert loaded is not None
    assert [event.hash for event in loaded.events] == [event.hash for event in record.events]
    assert loaded.events == record.events
    for was, now in zip(record.runs, loaded.runs, strict=True):
        assert _but(was, *RESTING) == _but(now, *RESTING)
        assert (now.owner, now.wake_at, now.lease_until) == ("", None, 0.0)
    for before, after in zip(record.calls, loaded.calls, strict=True):
        assert _but(before, *PLACES) == _but(after, *PLACES)
    assert [_but(one, *PLACES, "tell_at") for one in loaded.approvals] == [
        _but(one, *PLACES, "tell_at") for one in record.approvals
    ]
    assert len(loaded.approvals) == 1


def _but(row: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(row, name) for name in type(row).__dataclass_fields__ if name not in names}


@check
def it_is_on_the_record_that_records_were_loaded(ledger: Ledger) -> None:
    record = a_record(elsewhere())
    load(ledger, record)
    mine = [run for run in ledger.runs() if not run.origin]
    assert [(run.state, run.owner, run.closed_at) for run in mine] == [("committed", "", ledger.clock.now)]
    assert [event.what for event in ledger.events(mine[0])] == ["run", "runs loaded", "run"]
    assert {event.by_whom for event in ledger.events(mine[0])} == {"loader"}
    assert ledger(HasLoaded())


@check
def the_record_of_a_load_says_who_by_which_token_why_and_what_once(ledger: Ledger) -> None:
    record = a_record(elsewhere())
    op = replace(load_op(ledger, record), by="ann", why="the auditor asked", token="tok_1")
    assert ledger(op) == ledger(replace(op, repeated=True)) == [record.root.uid]
    made = [event for event in ledger.events() if event.what == "runs loaded"]
    assert [event.by_whom for event in made] == ["ann"]
    last = record.events[-1]
    heads = [[record.root.origin, record.root.id, last.n, last.hash]]
    assert json.loads(made[0].facts) == {"heads": heads, "why": "the auditor asked", "token": "tok_1"}
    theirs = [event for event in ledger.events() if event.root == record.root.uid]
    assert [event.hash for event in theirs] == [event.hash for event in record.events], "a loaded chain stays as it is"


@check
def what_is_here_already_is_not_loaded_again(ledger: Ledger) -> None:
    other = elsewhere()
    record, second = a_record(other), a_record(other, "second")
    load(ledger, record)
    before = ledger.everything()
    assert load(ledger, record) == []
    assert ledger.everything() == before
    assert load(ledger, record, second) == [second.root.uid]


@check
def an_older_record_of_what_is_here_changes_nothing_and_a_newer_one_is_refused(ledger: Ledger) -> None:
    other = elsewhere()
    run = other.run("theirs")
    older = taken_out(other, run)
    other.do(run)
    newer = taken_out(other, run)
    other.commit(run)
    load(ledger, newer)
    before = ledger.everything()
    assert load(ledger, older) == []
    with raises(RunTaken) as refused:
        load(ledger, taken_out(other, run))
    assert refused.value.run_id == "theirs"
    assert ledger.everything() == before


@check
def an_id_that_is_taken_is_refused_before_anything_is_written(ledger: Ledger) -> None:
    ledger.do(ledger.run("theirs"))
    before = ledger.everything()
    other = elsewhere()
    free, record = a_record(other, "free"), a_record(other)
    with raises(RunTaken) as refused:
        load(ledger, free, record)
    assert refused.value.run_id == "theirs"
    assert ledger.everything() == before
    assert ledger(HasLoaded()) is False


@check
def a_call_or_an_approval_of_another_run_is_refused_as_well(ledger: Ledger) -> None:
    mine = ledger.do(ledger.run())
    record = a_record(elsewhere())
    first, *others = record.calls
    forged = replace(record, calls=(replace(first, id=mine.id), *others))
    before = ledger.everything()
    with raises(RunTaken):
        load(ledger, forged)
    assert ledger.everything() == before


@check
def a_broken_chain_is_refused_and_nothing_of_it_stays(ledger: Ledger) -> None:
    record = a_record(elsewhere())
    *rest, last = record.events
    before = ledger.everything()
    with raises(LedgerTampered):
        load(ledger, replace(record, events=(*rest, replace(last, hash="f" * 64))))
    with raises(LedgerTampered):
        load(ledger, replace(record, events=(replace(rest[0], by_whom="mallory"), *rest[1:], last)))
    assert ledger.everything() == before


@check
def generations_of_one_run_are_found_and_loaded_together_or_one_after_the_other(ledger: Ledger) -> None:
    other = elsewhere()
    for _ in range(3):
        run = other.run("theirs")
        other.roll_back(run)
        other.close(run, "rolled_back")
    trees: list[RunRow] = other(FindTrees("acme", "theirs"))
    assert [root.generation for root in trees] == [1, 2, 3]
    first, second, third = (taken_out(other, root) for root in trees)
    load(ledger, second)
    load(ledger, first, third)
    found: list[RunRow] = ledger(FindTrees("acme", "theirs"))
    assert [root.generation for root in found] == [1, 2, 3]
    assert ledger(FindTrees("acme", "nobody")) == []


@check
def time_here_is_not_that_of_the_record(ledger: Ledger) -> None:
    mine = ledger.run()
    load(ledger, a_record(elsewhere(now=9_000_000.0), "future"))
    load(ledger, a_record(elsewhere(now=5.0, made=2_000), "past"))
    call = ledger.do(mine)
    assert call.created_at == ledger.clock.now


CHANGES: Final[Mapping[str, Callable[[Ledger, RunRow, CallRow, str], ops.StoreOp[Any]]]] = {
    "opened": lambda ledger, run, _call, _asked: ledger.open_op(run.id),
    "opened as a child": lambda ledger, run, _call, _asked: ledger.child_op(ledger.run("mine"), f"{run.id}/child"),
    "rolled back": lambda _ledger, run, _call, _asked: ops.BeginRollback(run.uid, "ann", "stop", True),
    "abandoned": lambda _ledger, run, _call, _asked: ops.AbandonRun(run.uid, "ann", "stop"),
    "resolved": lambda _ledger, _run, call, _asked: ops.ResolveCall(call.id, "failed", "ann", "looked"),
    "learned": lambda _ledger, _run, call, _asked: ops.NoteEvidence(
        call.id, call.attempt, True, '"ok"', "", "boot", 1.0, "probe"
    ),
    "probed": lambda _ledger, _run, call, _asked: ops.NoteProbe(call.id, call.attempt, 1, "unknown", "", 5.0),
    "approved": lambda _ledger, _run, _call, asked: DecideApproval(asked, "withdraw", "ann", ""),
}


@check_each(CHANGES)
def a_record_is_not_(ledger: Ledger, change: Callable[[Ledger, RunRow, CallRow, str], ops.StoreOp[Any]]) -> None:
    record = a_record(elsewhere())
    load(ledger, record)
    doubt = next(call for call in record.calls if call.state == "in_doubt")
    op = change(ledger, record.root, doubt, record.approvals[0].id)
    before = ledger.everything(), ledger.approvals()
    with raises(RunIsRecord) as refused:
        ledger(op)
    assert refused.value.origin == ELSEWHERE
    assert (ledger.everything(), ledger.approvals()) == before


@check
def a_record_is_due_for_nobody_and_claimed_by_nobody(ledger: Ledger) -> None:
    record = a_record(elsewhere())
    load(ledger, record)
    ledger.clock.now += 1_000_000.0
    assert ledger(ops.DueRuns(None, 100)) == []
    assert ledger.claim(record.root, dead_owner=record.root.owner) is None
    assert ledger.claim(record.root, force=True) is None
    doubt = next(call for call in record.calls if call.state == "in_doubt")
    before = ledger.look(doubt)
    assert ledger(ops.WatchDoubt(doubt.id, doubt.attempt, "boot", 1.0)) == before == ledger.look(doubt)


@check
def a_request_never_meets_a_record(ledger: Ledger) -> None:
    other = elsewhere()
    run = other.run("theirs")
    other.do(run, key="shared", scope="ledger")
    load(ledger, taken_out(other, run))
    mine = ledger.run()
    assert ledger.admit(mine, key="shared", scope="ledger").verdict == "start"


@check
def gc_takes_the_words_of_a_record_and_leaves_its_chain(ledger: Ledger) -> None:
    other = elsewhere()
    run = other.run("theirs", input='"in"')
    other.do(run, args='{"card": "4111"}')
    other(ops.DecideCommit(run.uid, "a", run.epoch, '"out"'))
    load(ledger, taken_out(other, run))
    before = ledger.events()
    ledger.clock.now += 1_000_000.0
    swept: ops.Swept = ledger(ops.CollectGarbage(500_000.0))
    assert (swept.runs, swept.calls) == (2, 1), "the record, and the run that loaded it"
    assert [event for event in ledger.events() if event.root == run.uid] == [e for e in before if e.root == run.uid]
    assert ledger.read(run).lost_at is not None

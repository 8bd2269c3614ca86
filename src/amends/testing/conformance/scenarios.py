"""Scenarios: for every operation that changes something, a ledger where it has an effect, and the operation itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TypeAlias

from amends.budgets import ONE, amount_in, text_of
from amends.ledger import operations
from amends.ledger import operations as ops
from amends.ledger.operations import (
    AcceptCall,
    DraftCheckpoint,
    Forked,
    ForkRun,
    LoadRecords,
    NoteValue,
    PinKey,
    ReadRecord,
    Record,
    RewriteTexts,
    WriteCheckpoint,
)
from amends.ledger.plain import FailPlain, SettlePlain
from amends.ledger.rows import (
    ApprovalRow,
    BudgetDemand,
    CallCost,
    CallRow,
    CheckpointRow,
    Entry,
    LockRequest,
    Need,
    RunRow,
    Terms,
    write_timetable,
)
from amends.ledger.trees import tree_mark
from amends.replay.forks import Wish, made
from amends.stores.memory import MemoryStore
from amends.testing.conformance.ledger import LEASE_S, Ledger

Scenario: TypeAlias = Callable[[Ledger], ops.StoreOp[Any]]


def doubt(ledger: Ledger, run: RunRow, tool: str = "charge", **given: object) -> CallRow:
    return ledger.settle(ledger.start(run, tool, **given), "in_doubt").call


def open_fresh(ledger: Ledger) -> ops.StoreOp[Any]:
    return ledger.open_op(input="x")


def open_resumed(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    ledger.start(run, "ship")
    ledger.start(run, "look", kind="read")
    ledger.clock.now += LEASE_S + 1
    return ledger.open_op(owner="b")


def open_next_generation(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    ledger.roll_back(run)
    ledger.close(run, "rolled_back")
    return ledger.open_op()


def open_child(ledger: Ledger) -> ops.StoreOp[Any]:
    return ledger.child_op(ledger.run(), input="x")


def claim(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    ledger.start(run, "ship")
    ledger.clock.now += LEASE_S + 1
    return ledger.claim_op(run)


def renew(ledger: Ledger) -> ops.StoreOp[Any]:
    runs = [ledger.run("one"), ledger.run("two")]
    return ops.RenewLeases("a", {run.uid: 1 for run in runs}, LEASE_S)


def let_go(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    return ops.ReleaseLease(run.uid, "a", 1, 5.0, replays={ledger.do(run).id: 2})


def count_replays(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    call = ledger.do(run)
    ledger.commit(run)
    return ops.CountReplays(run.uid, {call.id: 2})


def admit_started(ledger: Ledger) -> ops.StoreOp[Any]:
    return ledger.admit_op(ledger.run())


def admit_read(ledger: Ledger) -> ops.StoreOp[Any]:
    return ledger.admit_op(ledger.run(), kind="read")


def admit_pivot(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    ledger.do(run, "charge")
    return ledger.admit_op(run, "wire", kind="pivot", after=("charge",))


def admit_staged(ledger: Ledger) -> ops.StoreOp[Any]:
    return ledger.admit_op(ledger.run(), "mail", kind="retriable")


def admit_staged_pivot(ledger: Ledger) -> ops.StoreOp[Any]:
    return ledger.admit_op(ledger.run(), "wire", kind="pivot", at_commit=True)


def admit_held_duplicate(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    ledger.do(run, key="1", args="1")
    return ledger.admit_op(ledger.take_over(run), key="2", args="2")


def admit_held_conflict(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    ledger.do(run, args="1")
    return ledger.admit_op(run, args="2", on_conflict="hold")


def admit_recorded_failure(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    ledger.settle(ledger.start(run), "failed")
    ledger.settle(ledger.start(run), "failed")
    return ledger.admit_op(ledger.take_over(run))


def start(ledger: Ledger) -> ops.StoreOp[Any]:
    call = ledger.settle(ledger.start(ledger.run()), "backing_off").call
    return ops.StartCall(call.id, "a", 1, 2)


def start_staged(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    call = ledger.admit(run, "mail", kind="retriable").call
    ledger.do(run, "wire", kind="pivot")
    assert call is not None
    return ops.StartCall(call.id, "a", 1, 1)


def admit_reading(ledger: Ledger) -> ops.StoreOp[Any]:
    """Make the call ready, with its locks: what is there before it is read first."""
    return ledger.admit_op(ledger.run(), reads=True, locks=LockRequest(("x",)))


def reading(ledger: Ledger) -> CallRow:
    """Return a call whose ``before`` is read now."""
    return ledger(admit_reading(ledger)).call  # type: ignore[no-any-return]


def prepare(ledger: Ledger) -> ops.StoreOp[Any]:
    call = yes(ledger, held(ledger, ledger.run(), locks=LockRequest(("x",))))
    return ops.PrepareCall(call.id, "a", 1)


def start_with_before(ledger: Ledger) -> ops.StoreOp[Any]:
    return ops.StartCall(reading(ledger).id, "a", 1, 1, before='"old"')


def drop(ledger: Ledger) -> ops.StoreOp[Any]:
    return ops.DropCall(reading(ledger).id, "a", 1, "before", '["OSError", "no"]')


def claim_reading(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    ledger.admit(run, reads=True, locks=LockRequest(("x",)))
    ledger.clock.now += LEASE_S + 1
    return ledger.claim_op(run)


def admit_next_value(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    ledger.do(run, args="1", on_conflict="next")
    return ledger.admit_op(run, args="2", on_conflict="next")


def admit_beside_put(ledger: Ledger) -> ops.StoreOp[Any]:
    """Ask for what the lock of a setter in doubt names."""
    run = ledger.run()
    doubt(ledger, run, "put", locks=LockRequest(("x",)), put=True)
    return ledger.admit_op(run, locks=LockRequest(("x",)))


def compensate_held_back(ledger: Ledger) -> ops.StoreOp[Any]:
    """Compensate what a later call of the same lock holds back, whose guard has said no."""
    run = ledger.run()
    older, newer = (ledger.do(run, tool, locks=LockRequest(("x",))) for tool in ("one", "two"))
    ledger.roll_back(run)
    begun = ledger(ledger.compensate_op(newer))
    ledger(ops.SettleCompensation(begun.id, "a", 1, 1, "compensation_failed", gave_up=True, guarded=True))
    return ledger.compensate_op(older)


def settle(ledger: Ledger) -> ops.StoreOp[Any]:
    return ledger.settle_op(ledger.start(ledger.run()))


def admit_plain(ledger: Ledger) -> ops.StoreOp[Any]:
    return ledger.plain_op(ledger.run(), call_ref="ref 'é'")


def admit_plain_read(ledger: Ledger) -> ops.StoreOp[Any]:
    return ledger.plain_op(ledger.run(), "look", kind="read", args='{"\N{BULLET}":1}')


def admit_plain_late(ledger: Ledger) -> ops.StoreOp[Any]:
    """After the deadline of the run a request is not plain."""
    run = ledger.run(deadline_s=1.0)
    ledger.clock.now += 2.0
    return ledger.plain_op(run)


def settle_plain(ledger: Ledger) -> ops.StoreOp[Any]:
    return SettlePlain(ledger.start_plain(ledger.run()), '"ok"')


def settle_plain_fenced(ledger: Ledger) -> ops.StoreOp[Any]:
    """After a takeover a settlement is not plain."""
    run = ledger.run()
    started = ledger.start_plain(run)
    ledger.take_over(run)
    return SettlePlain(started, '"ok"')


def fail_plain(ledger: Ledger) -> ops.StoreOp[Any]:
    return FailPlain(ledger.start_plain(ledger.run()), '["ValueError", "no"]', "boot", 5.0)


def fail_plain_fenced(ledger: Ledger) -> ops.StoreOp[Any]:
    """After a takeover a failure is not plain."""
    run = ledger.run()
    started = ledger.start_plain(run)
    ledger.take_over(run)
    return FailPlain(started, '["ValueError", "no"]', "boot", 5.0)


def fail_plain_referred(ledger: Ledger) -> ops.StoreOp[Any]:
    return FailPlain(ledger.start_plain(ledger.run(), call_ref="ref"), '["ValueError", "no"]', "boot", 5.0)


def fail_plain_late(ledger: Ledger) -> ops.StoreOp[Any]:
    """Long after its admission a failure is not plain."""
    started = ledger.start_plain(ledger.run())
    ledger.clock.now += 100.0
    return FailPlain(started, '["ValueError", "no"]', "boot", 5.0)


def settle_failed_for_good(ledger: Ledger) -> ops.StoreOp[Any]:
    row = ledger.start_plain(ledger.run(), args="[1]").row
    return ledger.settle_op(row, "failed", error='["NoEffect", "no"]', why="final no")


def _failed_plainly(ledger: Ledger, run: RunRow, **given: Any) -> CallRow:
    """Let a plain call fail after another of its tool has succeeded."""
    ledger(SettlePlain(ledger.start_plain(run, args="[0]"), '"ok"'))
    started = ledger.start_plain(run, args="[1]")
    failed: CallRow = ledger(ledger.settle_op(started.row, "failed", error='["E", "words"]', **given)).call
    return failed


def admit_after_failure(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    _failed_plainly(ledger, run)
    return ledger.plain_op(run, args="[1]")


def open_after_failure(ledger: Ledger) -> ops.StoreOp[Any]:
    """Take over a run whose last event is a failure."""
    _failed_plainly(ledger, ledger.run())
    ledger.clock.now += LEASE_S + 1
    return ledger.open_op(owner="b")


def evidence_of_failed(ledger: Ledger) -> ops.StoreOp[Any]:
    """Learn that a call that counts as failed has had its effect after all."""
    call = _failed_plainly(ledger, ledger.run())
    return ops.NoteEvidence(call.id, 1, True, '"late"', "", "boot", 700.0, "late return")


def compensate_failed(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    call = _failed_plainly(ledger, run)
    ledger(ops.NoteEvidence(call.id, 1, True, '"late"', "", "boot", 700.0, "late return"))
    ledger.roll_back(run)
    return ledger.compensate_op(ledger.look(call))


def collect_failed(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    _failed_plainly(ledger, run)
    ledger.commit(run)
    ledger.clock.now += 10
    return ops.CollectGarbage(1.0)


def erase_failed(ledger: Ledger) -> ops.StoreOp[Any]:
    """Erase why a call failed, which its event says too."""
    run = ledger.run(principal="alice")
    _failed_plainly(ledger, run, why="final no")
    ledger.commit(run)
    return ops.EraseTree(run.uid, "ann", "request 1", "wrk_1", scrubs=True)


def erase_collected(ledger: Ledger) -> ops.StoreOp[Any]:
    ledger(collect_failed(ledger))
    [run] = ledger.runs()
    return ops.EraseTree(run.uid, "ann", "request 1", "wrk_1", scrubs=True)


def rewrite_failed(ledger: Ledger) -> ops.StoreOp[Any]:
    call = _failed_plainly(ledger, ledger.run())
    return RewriteTexts(call.id, True, {"error": call.error}, {"error": "sealed:e"})


def settle_pivot(ledger: Ledger) -> ops.StoreOp[Any]:
    return ledger.settle_op(ledger.start(ledger.run(), "wire", kind="pivot"))


def settle_doomed(ledger: Ledger) -> ops.StoreOp[Any]:
    return ledger.settle_op(ledger.start(ledger.run()), "failed", doom=True)


def settle_fenced(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    call = ledger.start(run)
    ledger.take_over(run)
    return ledger.settle_op(call)


def evidence(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    call = doubt(ledger, run)
    ledger.roll_back(run)
    ledger.compensate(call, from_doubt=True)
    ledger.close(run, "rolled_back")
    return ops.NoteEvidence(call.id, 1, True, '"late"', "", "boot", 700.0, "late return")


def report_late(ledger: Ledger) -> ops.StoreOp[Any]:
    call = doubt(ledger, ledger.run(), remote_s=20.0)
    return ops.NoteReport(call.id, "execute", 1, 1, "worker", True, '"late"', "", "boot", 700.0)


def report_late_failure(ledger: Ledger) -> ops.StoreOp[Any]:
    call = doubt(ledger, ledger.run(), remote_s=20.0)
    error = '["ValueError", "sold out"]'
    return ops.NoteReport(call.id, "execute", 1, 1, "worker", False, None, error, "boot", 700.0, certain=True)


def report_late_compensation(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    call = ledger.do(run)
    ledger.roll_back(run)
    ledger(ledger.compensate_op(call, remote_s=20.0))
    ledger.take_over(run)
    return ops.NoteReport(call.id, "compensate", 1, 1, "worker", True, None, "", "boot", 700.0)


def admit_remote(ledger: Ledger) -> ops.StoreOp[Any]:
    return ledger.admit_op(ledger.run(), remote_s=20.0)


def compensate_remote(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    call = ledger.do(run, remote_s=20.0)
    ledger.roll_back(run)
    return ledger.compensate_op(ledger.look(call), remote_s=30.0)


def let_go_to_client(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run(policy="rollback+client60.0")
    return ops.ReleaseLease(run.uid, "a", 1, 50.0, boot="boot", mono=700.0, silent_s=10.0)


def open_wanted(ledger: Ledger) -> ops.StoreOp[Any]:
    ledger.run("order", policy="rollback+client60.0")
    return ledger.open_op("order", owner="b", wants=True)


def let_go_wanted(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run("order", policy="rollback+client60.0")
    ledger.open("order", owner="b", wants=True)
    return ops.ReleaseLease(run.uid, "a", 1, 0.0, boot="boot", mono=700.0)


def claim_clients(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run(policy="rollback+client600.0")
    return ledger.claim_op(run, dead_owner="a")


def renew_doubt(ledger: Ledger) -> ops.StoreOp[Any]:
    return ops.WatchDoubt(doubt(ledger, ledger.run(), remote_s=20.0).id, 1, "boot", 900.0, renewed=True)


def probe(ledger: Ledger) -> ops.StoreOp[Any]:
    return ops.NoteProbe(doubt(ledger, ledger.run()).id, 1, 1, "unknown", "no answer", 4.0)


def watch(ledger: Ledger) -> ops.StoreOp[Any]:
    return ops.WatchDoubt(doubt(ledger, ledger.run()).id, 1, "other boot", 3.0)


def resolve_by_probe(ledger: Ledger) -> ops.StoreOp[Any]:
    call = doubt(ledger, ledger.run(), "wire", kind="pivot")
    return ops.ResolveCall(call.id, "succeeded", "probe", "found", result='"ok"', owner="a", epoch=1)


def resolve_by_person(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    call = doubt(ledger, run)
    ledger.close(run, "blocked", causes=("decide",))
    return ops.ResolveCall(call.id, "failed", "ann", "I looked")


def asked_by_person(ledger: Ledger) -> ops.StoreOp[Any]:
    call = doubt(ledger, ledger.run())
    return ops.NoteProbe(call.id, 1, 0, "absent", "", None, by="person", paced=False)


def accept(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    call = ledger.do(run)
    ledger.roll_back(run)
    ledger.close(run, "blocked", causes=("decide",))
    return AcceptCall(call.id, "ann", "they keep it")


def decide(ledger: Ledger) -> ops.StoreOp[Any]:
    held = ledger(admit_held_duplicate(ledger)).call
    return ops.DecideCall(held.id, "replay", "ann", "the same")


def retry(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    ledger.do(run, "wire", kind="pivot")
    call = ledger.settle(ledger.start(run, "mail", kind="retriable"), "backing_off").call
    ledger.close(run, "blocked", causes=("retry",))
    return ops.RetryCall(call.id, "ann", "the server is back")


def roll_back(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    child = ledger.child(run)
    ledger.do(child)
    ledger.commit(child)
    ledger.admit(run, "mail", kind="retriable")
    return ops.BeginRollback(run.uid, "a", "it failed", False, owner="a", epoch=1)


def roll_back_by_person(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    ledger.close(run, "blocked", causes=("decide",))
    return ops.BeginRollback(run.uid, "ann", "stop", True)


def roll_back_planned(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    ledger.do(run)
    return planned(ledger, run)


def compensate(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    call = ledger.do(run)
    ledger.roll_back(run)
    return ledger.compensate_op(call)


def settle_compensation(ledger: Ledger) -> ops.StoreOp[Any]:
    begun = ledger(compensate(ledger))
    return ops.SettleCompensation(begun.id, "a", 1, 1, "compensated", boot="boot", mono=1.0)


def settle_compensation_and_begin(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    first, second = ledger.do(run), ledger.do(run, "two")
    ledger.roll_back(run)
    begun = ledger(ledger.compensate_op(second))
    return ops.SettleCompensation(begun.id, "a", 1, 1, "compensated", then=ledger.compensate_op(first))


def settle_compensation_and_close(ledger: Ledger) -> ops.StoreOp[Any]:
    begun = ledger(compensate(ledger))
    then = ops.CloseRun(begun.run, "a", 1, "rolled_back")
    return ops.SettleCompensation(begun.id, "a", 1, 1, "compensated", then=then)


def commit(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    return ops.DecideCommit(run.uid, "a", 1, '"done"', {ledger.do(run).id: 1})


def commit_forward(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    ledger.admit(run, "mail", kind="retriable")
    return ops.DecideCommit(run.uid, "a", 1)


def commit_pivot(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    ledger.admit(run, "wire", kind="pivot", at_commit=True)
    return ops.DecideCommit(run.uid, "a", 1)


def commit_unknown(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    unknown_pivot(ledger, run)
    return ops.DecideCommit(run.uid, "a", 1)


def unknown_pivot(ledger: Ledger, run: RunRow) -> CallRow:
    """Return a pivot of which a person said that nobody can know whether it happened."""
    call = doubt(ledger, run, "wire", kind="pivot", key=f"wire of {run.uid}")
    known: CallRow = ledger(ops.ResolveCall(call.id, "residue", "ann", "nobody can know"))
    return known


def commit_child(ledger: Ledger) -> ops.StoreOp[Any]:
    child = ledger.child(ledger.run())
    ledger.admit(child, "mail", kind="retriable")
    return ops.DecideCommit(child.uid, "a", 1)


def close_rolled_back(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    child = ledger.child(run)
    ledger.roll_back(run)
    assert ledger.read(child).state == "rolling_back"
    return ops.CloseRun(run.uid, "a", 1, "rolled_back")


def close_blocked(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    doubt(ledger, run)
    return ops.CloseRun(run.uid, "a", 1, "blocked", causes=("decide",), wake_s=5.0)


def abandon(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    ledger.do(run)
    doubt(ledger, ledger.child(run), "ship")
    return ops.AbandonRun(run.uid, "ann", "enough")


def finish(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    ledger.do(run, "wire", kind="pivot")
    ledger.close(run, "blocked", causes=("open it",), interrupted=True)
    return ops.FinishRun(run.uid, "ann", "all done")


def collect(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run(input="x")
    ledger.do(run, args='{"a": 1}')
    ledger.settle(ledger.start(run, "ship", args='{"b": 2}'), "failed", error='["E", "words"]')
    ledger.commit(run)
    ledger.clock.now += 10
    return ops.CollectGarbage(1.0)


def erase(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run(input="x", principal="alice", tags='["customer=alice"]')
    ledger.do(run, args='{"a": 1}')
    ledger.settle(ledger.start(run, "ship", args='{"b": 2}'), "failed", error='["E", "words"]')
    ledger.commit(ledger.child(run, input="y"))
    ledger.commit(run)
    return ops.EraseTree(run.uid, "ann", "request 1", "wrk_1", scrubs=True)


def end_scrub(ledger: Ledger) -> ops.StoreOp[Any]:
    ledger(erase(ledger))
    return ops.EndScrub("wrk_1")


def _costs(amount: int, per: str = "tenant", then: str = "refuse") -> CallCost:
    want = BudgetDemand("usd", 100 * ONE, per, "", "*", then, "", amount * ONE)
    return CallCost((("usd", amount * ONE, ONE),), (want,), wide=True)


def admit_costly(ledger: Ledger) -> ops.StoreOp[Any]:
    ledger.start(ledger.run("first"), costs=_costs(60))
    return ledger.admit_op(ledger.run(), costs=_costs(40))


def settle_costly(ledger: Ledger) -> ops.StoreOp[Any]:
    return ledger.settle_op(ledger.start(ledger.run(), costs=_costs(40)), spent=(("usd", 50 * ONE),))


def settle_costly_compensation(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    call = ledger.do(run, costs=_costs(40, "run"))
    ledger.roll_back(run)
    begun = ledger(ledger.compensate_op(call))
    return ops.SettleCompensation(begun.id, "a", 1, 1, "compensated", boot="boot", mono=1.0, seen=begun)


def commit_costly(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    ledger.admit(run, "mail", kind="retriable", costs=_costs(40))
    ledger.admit(run, "wire", kind="pivot", at_commit=True, costs=_costs(40))
    return ops.DecideCommit(run.uid, "a", 1)


def pin_key(ledger: Ledger) -> ops.StoreOp[Any]:
    ledger.run()
    return PinKey("a fingerprint")


def note_value(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    return NoteValue(run.uid, run.root, "a", 1, "", "val_1")


def load_records(ledger: Ledger) -> ops.StoreOp[Any]:
    return load_op(ledger, a_record(elsewhere()))


def drafted(ledger: Ledger, key: str = "", limit: int = 100) -> CheckpointRow:
    row: CheckpointRow | None = ledger(DraftCheckpoint("ldg_1", key, limit))
    assert row is not None, "something has happened"
    return row


def write_checkpoint(ledger: Ledger) -> ops.StoreOp[Any]:
    ledger.do(ledger.run())
    return WriteCheckpoint(drafted(ledger))


def rewrite(ledger: Ledger) -> ops.StoreOp[Any]:
    call = ledger.do(ledger.run(), args='{"a": 1}')
    return RewriteTexts(call.id, True, {"args": '{"a": 1}'}, {"args": "sealed:a"})


def admit_too_costly(ledger: Ledger) -> ops.StoreOp[Any]:
    return ledger.admit_op(ledger.run(), costs=_costs(101, then="rollback"))


def commit_too_costly(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    ledger.admit(run, "mail", kind="retriable", costs=_costs(60))
    ledger.admit(run, "wire", kind="pivot", at_commit=True, costs=_costs(60))
    return ops.DecideCommit(run.uid, "a", 1)


# ---- Approvals

EXPIRES_S: Final = 100.0


def need(ledger: Ledger, **given: Any) -> Need:
    """Return the approval that a rule demands."""
    return Need(ledger.new("apr"), ledger.new("nonce"), **{"expires_s": EXPIRES_S, "policy": "p", **given})


def held(ledger: Ledger, run: RunRow, tool: str = "charge", *, asks: Need | None = None, **given: Any) -> CallRow:
    """Return a call that waits for an approval."""
    admission = ledger.admit(run, tool, need=asks or need(ledger), **given)
    assert admission.verdict in ("held", "staged"), admission
    call: CallRow = admission.call
    return call


def request_of(ledger: Ledger, call: CallRow) -> ApprovalRow:
    """Return the newest approval request of a call."""
    found = ledger(operations.ReadApproval(ledger.look(call).approval))
    assert found is not None
    row: ApprovalRow = found.approval
    return row


def yes_op(ledger: Ledger, call: CallRow, by: str = "ann", **given: Any) -> operations.DecideApproval:
    """Return the operation by which a person approves the call."""
    row = request_of(ledger, call)
    word = {"verb": "approve", "by": by, "why": "fine", "digest": row.digest, **given}
    return operations.DecideApproval(row.id, **word)


def yes(ledger: Ledger, call: CallRow, by: str = "ann", **given: Any) -> CallRow:
    """Approve the call and return it."""
    ruled = ledger(yes_op(ledger, call, by, **given))
    assert ruled.void == "", ruled
    found: CallRow = ruled.call
    return found


def start_op(call: CallRow, *, owner: str = "a", epoch: int = 1, **given: Any) -> ops.StartCall:
    """Return the operation that starts the call."""
    return ops.StartCall(call.id, owner, epoch, call.attempt + 1, **given)


def admit_asked(ledger: Ledger) -> ops.StoreOp[Any]:
    return ledger.admit_op(ledger.run(), need=need(ledger))


def admit_asked_read(ledger: Ledger) -> ops.StoreOp[Any]:
    return ledger.admit_op(ledger.run(), "look", kind="read", need=need(ledger))


def admit_asked_staged(ledger: Ledger) -> ops.StoreOp[Any]:
    return ledger.admit_op(ledger.run(), "mail", kind="retriable", need=need(ledger))


def admit_changed(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    yes(ledger, held(ledger, run, args="1"))
    return ledger.admit_op(run, args="2", need=need(ledger))


def admit_expired(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    yes(ledger, held(ledger, run))
    ledger.clock.now += EXPIRES_S + 1
    return ledger.admit_op(run, need=need(ledger))


def admit_pivot_over_asked(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    yes(ledger, held(ledger, run, "mail", kind="retriable"))
    return ledger.admit_op(run, "wire", kind="pivot")


def start_approved(ledger: Ledger) -> ops.StoreOp[Any]:
    return start_op(yes(ledger, held(ledger, ledger.run())))


def start_expired(ledger: Ledger) -> ops.StoreOp[Any]:
    call = yes(ledger, held(ledger, ledger.run()))
    ledger.clock.now += EXPIRES_S + 1
    return start_op(call, terms=Terms("1", need(ledger)))


def approve(ledger: Ledger) -> ops.StoreOp[Any]:
    return yes_op(ledger, held(ledger, ledger.run()))


def approve_first_of_two(ledger: Ledger) -> ops.StoreOp[Any]:
    return yes_op(ledger, held(ledger, ledger.run(), asks=need(ledger, needed=2)))


def reject(ledger: Ledger) -> ops.StoreOp[Any]:
    call = held(ledger, ledger.run())
    return operations.DecideApproval(request_of(ledger, call).id, "reject", "ann", "no")


def reject_pivot(ledger: Ledger) -> ops.StoreOp[Any]:
    call = held(ledger, ledger.run(), "wire", kind="pivot", at_commit=True)
    return operations.DecideApproval(request_of(ledger, call).id, "reject", "ann", "no")


def withdraw(ledger: Ledger) -> ops.StoreOp[Any]:
    call = held(ledger, ledger.run())
    return operations.DecideApproval(request_of(ledger, call).id, "withdraw", "ann", "never mind")


def let_go_asked(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    held(ledger, run)
    return ops.ReleaseLease(run.uid, "a", 1, None, suspended=True)


def ask_again(ledger: Ledger) -> ops.StoreOp[Any]:
    call = held(ledger, ledger.run())
    ledger.clock.now += EXPIRES_S + 1
    return operations.RenewRequest(request_of(ledger, call).id, ledger.new("apr"), ledger.new("nonce"), "ann", "again")


def edit(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    call = held(ledger, run, args="1")
    instead = ledger.admit_op(run, args="2", need=need(ledger))
    return operations.EditApproval(request_of(ledger, call).id, "ann", "too much", instead)


def expire(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    yes(ledger, held(ledger, run))
    ledger.clock.now += EXPIRES_S + 1
    return operations.ExpireApprovals(run.uid, "a", 1)


def void(ledger: Ledger) -> ops.StoreOp[Any]:
    call = yes(ledger, held(ledger, ledger.run()))
    return operations.VoidApproval(request_of(ledger, call).id, "ann", "restored")


def delegate(ledger: Ledger) -> ops.StoreOp[Any]:
    ledger.run()
    return operations.Delegate(ledger.new("dlg"), "acme", "Ann", "bob", ledger.clock.now + 50, "away")


def halt(ledger: Ledger) -> ops.StoreOp[Any]:
    return operations.Halt(ledger.new("hlt"), "acme", "", "charge", "ann", "it charges twice")


def halt_again(ledger: Ledger) -> ops.StoreOp[Any]:
    ledger(halt(ledger))
    return operations.Halt(ledger.new("hlt"), None, "", "", "ben", "everything")


def unhalt(ledger: Ledger) -> ops.StoreOp[Any]:
    for _ in range(2):
        ledger(halt(ledger))
    return operations.Unhalt("acme", "", "charge", "ann", "it is tame", ledger.new("nonce"))


def permit(ledger: Ledger) -> ops.StoreOp[Any]:
    words, until = '{"rule": {}}', ledger.clock.now + EXPIRES_S
    return operations.Permit(ledger.new("prm"), "acme", "charge", words, "ann", "rent", until, 2)


def revoke_permit(ledger: Ledger) -> ops.StoreOp[Any]:
    return operations.RevokePermit(ledger(permit(ledger)).id, "acme", "ben", "no")


def make_token(ledger: Ledger) -> ops.StoreOp[Any]:
    until = ledger.clock.now + EXPIRES_S
    return operations.MakeToken(ledger.new("tok"), "acme", "clerk", '{"digest": "d"}', "ann", "the build", until)


def make_wide_token(ledger: Ledger) -> ops.StoreOp[Any]:
    op = make_token(ledger)
    assert isinstance(op, operations.MakeToken)
    return replace(op, tenant=None, agent="")


def end_token(ledger: Ledger) -> ops.StoreOp[Any]:
    return operations.EndToken(ledger(make_token(ledger)).id, "acme", "ben", "it leaked")


def end_expired_token(ledger: Ledger) -> ops.StoreOp[Any]:
    made = ledger(make_token(ledger))
    ledger.clock.now += EXPIRES_S + 1
    return operations.EndToken(made.id, None, "clock", "expired", expired=True)


def note_driver(ledger: Ledger) -> ops.StoreOp[Any]:
    return operations.NoteDriver(ledger.run().uid, "ada", ledger.new("nonce"), token="tok_1")


def order_work(ledger: Ledger) -> ops.StoreOp[Any]:
    words = '{"what": "checkpoint"}'
    return operations.OrderWork(ledger.new("wrk"), None, words, "ann", "before the move", token="tok_1")


def reserve(ledger: Ledger) -> ops.StoreOp[Any]:
    ledger(operations.ReserveTools("acme", ("ship",)))
    return operations.ReserveTools("acme", ("pay", "ship", "pay"))


def halt_by_token(ledger: Ledger) -> ops.StoreOp[Any]:
    op = halt(ledger)
    op.token = "tok_1"
    return op


def open_by_token(ledger: Ledger) -> ops.StoreOp[Any]:
    op = ledger.open_op("order")
    op.token = "tok_1"
    return op


def admit_permitted(ledger: Ledger) -> ops.StoreOp[Any]:
    given = ledger(permit(ledger))
    return ledger.admit_op(ledger.run(), need=need(ledger), permits=(given.id,))


def commit_over_asked(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    yes(ledger, held(ledger, run, "mail", kind="retriable"))
    return ops.DecideCommit(run.uid, "a", 1)


def roll_back_asked(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    held(ledger, run)
    return ops.BeginRollback(run.uid, "a", "it failed", False, owner="a", epoch=1)


def claim_notice(ledger: Ledger) -> ops.StoreOp[Any]:
    call = held(ledger, ledger.run())
    return operations.ClaimNotice(call.approval, ledger.new("tell"), 60.0)


def claim_late(ledger: Ledger) -> ops.StoreOp[Any]:
    """Remove from the outbox a request that expired before anybody was notified."""
    call = held(ledger, ledger.run())
    ledger.clock.now += EXPIRES_S + 1
    return operations.ClaimNotice(call.approval, ledger.new("tell"), 60.0)


def note_told(ledger: Ledger) -> ops.StoreOp[Any]:
    claim = claim_notice(ledger)
    found = ledger(claim)
    return operations.RecordNotice(found.approval.id, found.approval.teller)


def note_not_told(ledger: Ledger) -> ops.StoreOp[Any]:
    told = note_told(ledger)
    assert isinstance(told, operations.RecordNotice)
    return replace(told, error="OSError", retry_s=5.0)


TIMETABLE: Final = write_timetable(
    [
        Entry(60.0, "remind"), Entry(120.0, "escalate", ("lead",)), Entry(180.0, "refuse")
    ]
)  # fmt: skip


def unanswered(ledger: Ledger, after_s: float, **given: Any) -> ApprovalRow:
    """Return a request for a clerk that nobody has answered for so long."""
    need = Need(ledger.new("apr"), "nonce", roles=("clerk",), timetable=TIMETABLE)
    run = given.pop("run", None) or ledger.run(ledger.new("run"))
    row: ApprovalRow | None = ledger.admit(run, need=need, **given).approval
    assert row is not None, "the call waits for a person"
    ledger.clock.now += after_s
    return row


def remind(ledger: Ledger) -> ops.StoreOp[Any]:
    row = unanswered(ledger, 60.0)
    return operations.FollowTimetable(row.id, row.reached)


def escalate(ledger: Ledger) -> ops.StoreOp[Any]:
    """Escalate over a reminder that nobody carried out in time."""
    row = unanswered(ledger, 120.0)
    return operations.FollowTimetable(row.id, row.reached)


def refuse_unanswered(ledger: Ledger) -> ops.StoreOp[Any]:
    row = unanswered(ledger, 180.0)
    return operations.FollowTimetable(row.id, row.reached)


def refuse_unanswered_pivot(ledger: Ledger) -> ops.StoreOp[Any]:
    row = unanswered(ledger, 180.0, tool="wire", kind="pivot", at_commit=True)
    return operations.FollowTimetable(row.id, row.reached)


def approve_escalated(ledger: Ledger) -> ops.StoreOp[Any]:
    """Let the next role decide after its time has come, although no worker came by."""
    row = unanswered(ledger, 120.0)
    return operations.DecideApproval(row.id, "approve", "lea", "", row.digest, roles=("lead",))


def approve_too_late(ledger: Ledger) -> ops.StoreOp[Any]:
    row = unanswered(ledger, 180.0)
    return operations.DecideApproval(row.id, "approve", "carl", "", row.digest, roles=("clerk",))


ASKING: Final = (
    admit_asked, admit_asked_read, admit_asked_staged, admit_changed, admit_expired, admit_pivot_over_asked,
    start_approved, start_expired, approve, approve_first_of_two, reject, reject_pivot, withdraw, let_go_asked,
    ask_again, edit, expire, void, delegate, halt, halt_again, unhalt, permit, revoke_permit, admit_permitted,
    make_token, make_wide_token, end_token, end_expired_token, note_driver, order_work, reserve, halt_by_token,
    open_by_token, commit_over_asked, roll_back_asked,
    claim_notice, claim_late, note_told, note_not_told, remind, escalate, refuse_unanswered, refuse_unanswered_pivot,
    approve_escalated, approve_too_late,
)  # fmt: skip


# ---- Forks


def fork_op(ledger: Ledger, run: RunRow, *calls: CallRow, id: str = "fork") -> ForkRun:
    """Return the operation that forks the run after the last of these calls; the fork shares them all."""
    tree: ops.Tree | None = ledger(ops.ReadRun("", uid=run.uid))
    assert tree is not None
    wish = Wish("acme", run.id, calls[-1].id, id, "", "ann", ledger.new)
    ids = {call.id for call in calls}
    return made(tree, wish, [call for call in tree.calls if call.id in ids])


def forked(ledger: Ledger, run: RunRow, *calls: CallRow, id: str = "fork") -> RunRow:
    """Fork the run and return the fork."""
    answer: Forked = ledger(fork_op(ledger, run, *calls, id=id))
    assert answer.how == "forked", answer.how
    return answer.run


def opened(ledger: Ledger, fork: RunRow, owner: str = "f") -> RunRow:
    """Open the fork and return it."""
    answer = ledger.open(fork.id, owner=owner)
    assert answer.how == "resumed", answer.how
    return answer.run


def fork(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    child = ledger.child(run, "order/c")
    one, two = ledger.do(run, args='{"a": 1}'), ledger.do(child, "two")
    ledger.commit(child)
    return fork_op(ledger, run, one, two)


def roll_back_forked(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    forked(ledger, run, ledger.do(run))
    return ops.BeginRollback(run.uid, "a", "it failed", False, owner="a", epoch=run.epoch)


def close_fork(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    mine = opened(ledger, forked(ledger, run, ledger.do(run)))
    ledger.roll_back(run)
    ledger.close(run, "blocked", causes=("a fork",))
    ledger.roll_back(mine, owner="f")
    return ops.CloseRun(mine.uid, "f", mine.epoch, "rolled_back")


FORKING = (fork, roll_back_forked, close_fork)


# ---- Records of another ledger

ELSEWHERE: Final = "ldg-elsewhere"


def elsewhere(now: float = 5_000.0, *, made: int = 1_000) -> Ledger:
    """Return another ledger, with another clock and other ids."""
    other = Ledger(MemoryStore(), made=made)
    other.clock.now = now
    other.store._clock = other.clock  # type: ignore[attr-defined]
    return other


def taken_out(other: Ledger, run: RunRow, origin: str = ELSEWHERE) -> Record:
    record: Record | None = other(ReadRecord(run.root))
    assert record is not None
    return replace(record, runs=tuple(replace(one, origin=origin) for one in record.runs))


def a_record(other: Ledger, id: str = "theirs") -> Record:
    """Return an open tree with a child, a call that succeeded, one in doubt and one that waits for a person."""
    run = other.run(id, input='"in"')
    other.do(run, key=f"key of {id}", args='{"card": "4111"}')
    child = other.child(run, f"{id}/child")
    other.settle(other.start(child, key=f"other key of {id}"), "in_doubt", why="timeout")
    other.admit(run, key=f"asked of {id}", need=Need(other.new("appr"), "nonce"))
    return taken_out(other, run)


def load_op(ledger: Ledger, *records: Record) -> LoadRecords:
    uid = ledger.new("run")
    return LoadRecords(uid, f"load {uid}", "acme", "loader", records)


# ---- Rollback plans and budgets


def planned(ledger: Ledger, run: RunRow, plan: str = "p1") -> ops.BeginRollback:
    """Return a rollback that was planned as the run stands now."""
    tree: ops.Tree | None = ledger(ops.ReadRun("", uid=run.uid))
    assert tree is not None
    return ops.BeginRollback(run.uid, "ann", "stop", True, plan=plan, mark=tree_mark(tree.runs, tree.calls))


def bill(
    amount: int, *, cap: int = 100, unit: str = "usd", per: str = "tenant", who: str = "", back: int = ONE, **more: Any
) -> CallCost:
    """Return the cost of a call against one budget, in whole units."""
    words: dict[str, Any] = {"every": "", "tool": "*", "then": "refuse", **more}
    want = BudgetDemand(unit, cap * ONE, per, who=who, amount=amount * ONE, **words)
    return CallCost(((unit, amount * ONE, back),), (want,))


def books(ledger: Ledger) -> tuple[str, str]:
    """Return what is reserved and spent of all budgets together."""
    rows = ledger.slices()
    return tuple(text_of(sum(amount_in(getattr(row, name)) for row in rows)) for name in ("reserved", "spent"))  # type: ignore[return-value]


SCENARIOS: Final[dict[str, Scenario]] = {
    scenario.__name__: scenario
    for scenario in (
        open_fresh, open_resumed, open_next_generation, open_child, claim, renew, let_go, count_replays, admit_started, admit_read,
        admit_pivot, admit_staged, admit_staged_pivot, admit_held_duplicate, admit_held_conflict,
        admit_recorded_failure, admit_reading, prepare, start_with_before, drop, claim_reading, admit_next_value,
        admit_beside_put, compensate_held_back, start, start_staged, settle,
        admit_plain, admit_plain_read, admit_plain_late, settle_plain,
        settle_plain_fenced, fail_plain, fail_plain_fenced, fail_plain_referred, fail_plain_late, settle_failed_for_good,
        admit_after_failure, open_after_failure, evidence_of_failed, compensate_failed, collect_failed, erase_failed,
        erase_collected, rewrite_failed, settle_pivot, settle_doomed, settle_fenced, evidence,
        report_late, report_late_failure, report_late_compensation, admit_remote, compensate_remote, let_go_to_client,
        claim_clients, open_wanted, let_go_wanted, renew_doubt,
        probe, watch, resolve_by_probe, resolve_by_person, asked_by_person, accept, decide, retry, roll_back, roll_back_by_person,
        roll_back_planned, compensate,
        settle_compensation, settle_compensation_and_begin, settle_compensation_and_close,
        commit, commit_forward, commit_pivot, commit_unknown, commit_child, close_rolled_back, close_blocked,
        abandon, finish, collect, erase, end_scrub, *ASKING, admit_costly, settle_costly, settle_costly_compensation, commit_costly,
        admit_too_costly, commit_too_costly, pin_key, rewrite, note_value, load_records,
        write_checkpoint, *FORKING,
    )
}  # fmt: skip

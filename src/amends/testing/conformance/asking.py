"""For every operation about approvals a ledger in which it has something to do; see ``scenarios``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from amends.ledger import operations
from amends.ledger import operations as ops
from amends.ledger.rows import ApprovalRow, CallRow, Need, RunRow, Terms
from amends.testing.conformance.ledger import Ledger

EXPIRES_S: Final = 100.0


def need(ledger: Ledger, **given: Any) -> Need:
    """What a rule asks for."""
    return Need(ledger.new("apr"), ledger.new("nonce"), **{"expires_s": EXPIRES_S, "policy": "p", **given})


def held(ledger: Ledger, run: RunRow, tool: str = "charge", *, asks: Need | None = None, **given: Any) -> CallRow:
    """A call that somebody is asked about."""
    admission = ledger.admit(run, tool, need=asks or need(ledger), **given)
    assert admission.verdict in ("held", "staged"), admission
    call: CallRow = admission.call
    return call


def request_of(ledger: Ledger, call: CallRow) -> ApprovalRow:
    """The newest request about a call."""
    found = ledger(operations.ReadApproval(ledger.look(call).approval))
    assert found is not None
    row: ApprovalRow = found.approval
    return row


def yes_op(ledger: Ledger, call: CallRow, by: str = "ann", **given: Any) -> operations.DecideApproval:
    """A person's yes to it."""
    row = request_of(ledger, call)
    word = {"verb": "approve", "by": by, "why": "fine", "digest": row.digest, **given}
    return operations.DecideApproval(row.id, **word)


def yes(ledger: Ledger, call: CallRow, by: str = "ann", **given: Any) -> CallRow:
    """The call that a person said yes to."""
    ruled = ledger(yes_op(ledger, call, by, **given))
    assert ruled.void == "", ruled
    found: CallRow = ruled.call
    return found


def start_op(call: CallRow, *, owner: str = "a", epoch: int = 1, **given: Any) -> ops.StartCall:
    """Its first start."""
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
    return ops.LetGo(run.uid, "a", 1, None, suspended=True)


def ask_again(ledger: Ledger) -> ops.StoreOp[Any]:
    call = held(ledger, ledger.run())
    ledger.clock.now += EXPIRES_S + 1
    return operations.AskAgain(request_of(ledger, call).id, ledger.new("apr"), ledger.new("nonce"), "ann", "again")


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
    """What ran out before anybody was told of it leaves the outbox."""
    call = held(ledger, ledger.run())
    ledger.clock.now += EXPIRES_S + 1
    return operations.ClaimNotice(call.approval, ledger.new("tell"), 60.0)


def note_told(ledger: Ledger) -> ops.StoreOp[Any]:
    claim = claim_notice(ledger)
    found = ledger(claim)
    return operations.NoteTold(found.approval.id, found.approval.teller)


def note_not_told(ledger: Ledger) -> ops.StoreOp[Any]:
    told = note_told(ledger)
    assert isinstance(told, operations.NoteTold)
    return replace(told, error="OSError", retry_s=5.0)


ASKING: Final = (
    admit_asked, admit_asked_read, admit_asked_staged, admit_changed, admit_expired, admit_pivot_over_asked,
    start_approved, start_expired, approve, approve_first_of_two, reject, reject_pivot, withdraw, let_go_asked,
    ask_again, edit, expire, void, delegate, commit_over_asked, roll_back_asked,
    claim_notice, claim_late, note_told, note_not_told,
)  # fmt: skip

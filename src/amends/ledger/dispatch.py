"""Map each operation to the flow that performs it: the whole interface between engine and ledger, on one page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from amends.encoding.dataclass import changed
from amends.encoding.ids import call_id
from amends.ledger import (
    admission,
    approvals,
    audit,
    budgets,
    checkpoints,
    ending,
    erasure,
    events,
    forks,
    halts,
    late_reports,
    leases,
    locks,
    notices,
    opening,
    operations,
    permits,
    plain,
    reading,
    records,
    reserved,
    retention,
    settlement,
    tokens,
    work,
)
from amends.ledger.flow import Flow
from amends.ledger.rows import CallRow, Overrun, Terms, Unapproved


async def admit(op: operations.AdmitCall) -> operations.Admission:
    """Admit a call; if it waits for a person and a permit covers it, start it in this transaction."""
    answer = await admission.admit_call(op)
    call, asked = answer.call, answer.approval
    if not op.permits or call is None or asked is None or call.state != "held":
        return answer
    permit = await permits.permit_for(op.permits, call, asked)
    if permit is None:
        return answer
    if call.is_staged or op.reads:  # it starts later: with the commit, or when what is there before it was read
        call, _ = await permits.approve_by(permit, call, asked, by=op.owner)
        return answer if call.is_staged else operations.Admission("retry", call)
    terms = Terms(op.version, op.need, op.after, op.advise, op.permits)
    start = operations.StartCall(call.id, op.owner, op.epoch, call.attempt + 1, terms, op.outbox, remote_s=op.remote_s)
    started = await settlement.start_call(start)
    match started:
        case CallRow():
            return operations.Admission("start", started)
        case Overrun():
            return operations.Admission("refused", run=answer.run, law="budget", over=started)
        case Unapproved():  # a budget asks a person
            return operations.Admission("held", started.call, run=answer.run, approval=started.approval)
        case None:
            return answer
        case _:  # a lock is in its way: it waits for that, and no longer for a person
            return operations.Admission("retry", call)


async def admit_plain(op: plain.AdmitPlain) -> operations.Admission:
    """Admit a plain call as any other: what is asked for again, or is not plain after all, is decided there."""
    return await admission.admit_call(op.general())


async def settle_plain(op: plain.SettlePlain) -> operations.Settled:
    """Settle a plain call as any other."""
    return await settlement.settle_call(op.general())


async def fail_plain(op: plain.FailPlain) -> operations.Settled:
    """Settle a plain call that failed as any other."""
    return await settlement.settle_call(op.general())


async def turn_plain(op: plain.TurnPlain) -> operations.Rollback:
    """Begin the rollback as any other; if this was done before and the answer was lost, say what was begun with it.

    Nobody but this owner can have begun the first attempt in this epoch, and it runs no body without an answer.
    """
    began = await ending.begin_rollback(op.general())
    if not op.repeated or began.tree is None:
        return began
    first = call_id(op.left[-1].started.op.number)
    mine = [call for call in began.tree.calls if call.id == first and call.state == "compensating"]
    return changed(began, {"begun": mine[0]}) if mine and mine[0].comp_attempt == 1 else began


async def undone_plain(op: plain.UndonePlain) -> operations.Settled:
    """Settle a compensation as any other, and do what follows it."""
    return await ending.settle_compensation(op.general())


INTENTS: Final[dict[type[operations.StoreOp[Any]], Callable[[Any], Flow[Any]]]] = {
    operations.OpenRun: opening.open_run,
    operations.OpenChild: opening.open_child,
    operations.ClaimRun: leases.claim_run,
    operations.RenewLeases: leases.renew_leases,
    operations.ReleaseLease: leases.release_lease,
    operations.CountReplays: leases.note_replays,
    operations.DueRuns: leases.due_runs,
    operations.ListWanted: leases.list_wanted,
    operations.AdmitCall: admit,
    plain.AdmitPlain: admit_plain,
    plain.SettlePlain: settle_plain,
    plain.FailPlain: fail_plain,
    plain.TurnPlain: turn_plain,
    plain.UndonePlain: undone_plain,
    operations.StartCall: settlement.start_call,
    operations.PrepareCall: settlement.prepare_call,
    operations.DropCall: settlement.drop_call,
    operations.SettleCall: settlement.settle_call,
    operations.NoteEvidence: settlement.note_evidence,
    operations.NoteReport: late_reports.note_report,
    operations.NoteProbe: settlement.note_probe,
    operations.WatchDoubt: settlement.watch_doubt,
    operations.ResolveCall: settlement.resolve_call,
    operations.DecideCall: settlement.decide_call,
    operations.RetryCall: settlement.retry_call,
    operations.BeginRollback: ending.begin_rollback,
    operations.BeginCompensation: ending.begin_compensation,
    operations.SettleCompensation: ending.settle_compensation,
    operations.DecideCommit: ending.decide_commit,
    operations.CloseRun: ending.close_run,
    operations.AbandonRun: ending.abandon_run,
    operations.FinishRun: ending.finish_run,
    operations.ReadRun: reading.read_run,
    operations.ReadCall: reading.read_call,
    operations.ListRuns: reading.list_runs,
    operations.CountRuns: reading.count_runs,
    operations.WaitingRuns: reading.waiting_runs,
    operations.ReadOutlines: reading.read_outlines,
    operations.ListUnfinished: reading.list_unfinished,
    operations.SearchCalls: reading.search_calls,
    operations.ReadEvents: events.read_events,
    operations.ReadEventsBack: events.read_events_back,
    operations.ReadNewestEvent: events.read_newest_event,
    operations.ListLocks: locks.list_locks,
    operations.ReadChains: audit.read_chains,
    operations.NoteValue: settlement.note_value,
    operations.AcceptCall: settlement.accept_call,
    operations.ForkRun: forks.fork_run,
    operations.ReadForks: forks.read_forks,
    operations.ReadAnswers: forks.read_answers,
    operations.ListBudgets: budgets.list_budgets,
    operations.ReadSlices: budgets.read_slices,
    operations.CollectGarbage: retention.collect_garbage,
    operations.EraseTree: erasure.erase_tree,
    operations.ReadScrub: erasure.read_scrub,
    operations.EndScrub: erasure.end_scrub,
    operations.PinKey: retention.pin_key,
    operations.RewriteTexts: retention.rewrite_texts,
    operations.DecideApproval: approvals.decide_approval,
    operations.RenewRequest: approvals.ask_again,
    operations.EditApproval: lambda op: approvals.edit_approval(op, admission.admit_new_call),
    operations.ExpireApprovals: approvals.expire_approvals,
    operations.VoidApproval: approvals.void_approval,
    operations.Delegate: approvals.delegate,
    operations.Permit: permits.permit,
    operations.RevokePermit: permits.revoke_permit,
    operations.ListPermits: permits.list_permits,
    operations.MakeToken: tokens.make_token,
    operations.EndToken: tokens.end_token,
    operations.NoteDriver: tokens.note_driver,
    operations.ReadToken: tokens.read_token,
    operations.ListTokens: tokens.list_tokens,
    operations.OrderWork: work.order_work,
    operations.Halt: halts.halt,
    operations.Unhalt: halts.unhalt,
    operations.ListHalts: halts.list_halts,
    operations.ReadApproval: approvals.read_approval,
    operations.SearchApprovals: approvals.search_approvals,
    operations.FindTrees: records.find_trees,
    operations.ReadRecord: records.read_record,
    operations.LoadRecords: records.load_records,
    operations.HasLoaded: records.has_loaded,
    operations.DueNotices: notices.due_notices,
    operations.DueRequests: approvals.due_requests,
    operations.FollowTimetable: approvals.follow_timetable,
    operations.ReserveTools: reserved.reserve_tools,
    operations.ReadReserved: reserved.read_reserved,
    operations.ClaimNotice: notices.claim_notice,
    operations.RecordNotice: notices.note_told,
    operations.DraftCheckpoint: checkpoints.draft_checkpoint,
    operations.WriteCheckpoint: checkpoints.write_checkpoint,
    operations.ReadCheckpoints: checkpoints.read_checkpoints,
    operations.ReadHashes: audit.read_hashes,
}

READS: Final[frozenset[type[operations.StoreOp[Any]]]] = frozenset(
    {
        operations.ReadRun,
        operations.ReadCall,
        operations.ListRuns,
        operations.CountRuns,
        operations.WaitingRuns,
        operations.ReadOutlines,
        operations.ListUnfinished,
        operations.SearchCalls,
        operations.ReadEvents,
        operations.ReadEventsBack,
        operations.ReadNewestEvent,
        operations.DueRuns,
        operations.ListWanted,
        operations.ListLocks,
        operations.ReadChains,
        operations.ReadForks,
        operations.ReadAnswers,
        operations.ListBudgets,
        operations.ReadSlices,
        operations.FindTrees,
        operations.ReadRecord,
        operations.HasLoaded,
        operations.ReadApproval,
        operations.SearchApprovals,
        operations.ListHalts,
        operations.ListPermits,
        operations.ReadToken,
        operations.ListTokens,
        operations.DueNotices,
        operations.DueRequests,
        operations.ReadReserved,
        operations.DraftCheckpoint,
        operations.ReadCheckpoints,
        operations.ReadHashes,
        operations.ReadScrub,
    }
)
"""Operations that change nothing: a store may answer them without taking its write lock."""


def intent(op: operations.StoreOp[Any]) -> Flow[Any]:
    """Return the flow that performs ``op``, over the rows of one transaction."""
    flow = INTENTS[type(op)](op)
    if not op.token:
        return flow
    return tokens.signed(flow, op.token, only=op.uid if isinstance(op, operations.LoadRecords) else "")

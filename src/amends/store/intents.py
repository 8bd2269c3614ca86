"""Which flow answers which operation: the whole seam between engine and ledger, on one page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from amends import (
    approvalops,
    auditops,
    budgetops,
    bundleops,
    checkpointops,
    deskops,
    forkops,
    ledger,
    noticeops,
    sealops,
    valueops,
)
from amends.flow import Flow
from amends.store import (
    admission,
    approvals,
    auditing,
    checkpoints,
    desk,
    ending,
    forking,
    loading,
    notices,
    opening,
    reading,
    retention,
    sealing,
    settlement,
    values,
)

INTENTS: Final[dict[type[ledger.StoreOp[Any]], Callable[[Any], Flow[Any]]]] = {
    ledger.OpenRun: opening.open_run,
    ledger.OpenChild: opening.open_child,
    ledger.ClaimRun: opening.claim_run,
    ledger.RenewLeases: opening.renew_leases,
    ledger.LetGo: opening.let_go,
    ledger.DueRuns: opening.due_runs,
    ledger.AdmitCall: admission.admit_call,
    ledger.StartCall: settlement.start_call,
    ledger.SettleCall: settlement.settle_call,
    ledger.NoteEvidence: settlement.note_evidence,
    ledger.NoteProbe: settlement.note_probe,
    ledger.WatchDoubt: settlement.watch_doubt,
    ledger.ResolveCall: settlement.resolve_call,
    ledger.DecideCall: settlement.decide_call,
    ledger.RetryCall: settlement.retry_call,
    ledger.BeginRollback: ending.begin_rollback,
    ledger.BeginCompensation: ending.begin_compensation,
    ledger.SettleCompensation: ending.settle_compensation,
    ledger.DecideCommit: ending.decide_commit,
    ledger.CloseRun: ending.close_run,
    ledger.AbandonRun: ending.abandon_run,
    ledger.FinishRun: ending.finish_run,
    ledger.ReadRun: reading.read_run,
    ledger.ReadCall: reading.read_call,
    ledger.ListRuns: reading.list_runs,
    ledger.SearchCalls: reading.search_calls,
    ledger.ReadEvents: reading.read_events,
    ledger.ListLocks: reading.list_locks,
    auditops.ReadChains: auditing.read_chains,
    valueops.NoteValue: values.note_value,
    deskops.AcceptCall: desk.accept_call,
    forkops.ForkRun: forking.fork_run,
    forkops.ReadForks: forking.read_forks,
    budgetops.ListBudgets: reading.list_budgets,
    ledger.CollectGarbage: retention.collect_garbage,
    sealops.PinKey: sealing.pin_key,
    sealops.RewriteTexts: sealing.rewrite_texts,
    approvalops.DecideApproval: approvals.decide_approval,
    approvalops.AskAgain: approvals.ask_again,
    approvalops.EditApproval: approvals.edit_approval,
    approvalops.ExpireApprovals: approvals.expire_approvals,
    approvalops.VoidApproval: approvals.void_approval,
    approvalops.Delegate: approvals.delegate,
    approvalops.ReadApproval: approvals.read_approval,
    approvalops.SearchApprovals: approvals.search_approvals,
    bundleops.FindTrees: loading.find_trees,
    bundleops.ReadRecord: loading.read_record,
    bundleops.LoadRecords: loading.load_records,
    bundleops.HasLoaded: loading.has_loaded,
    noticeops.DueNotices: notices.due_notices,
    noticeops.ClaimNotice: notices.claim_notice,
    noticeops.NoteTold: notices.note_told,
    checkpointops.DraftCheckpoint: checkpoints.draft_checkpoint,
    checkpointops.WriteCheckpoint: checkpoints.write_checkpoint,
    checkpointops.ReadCheckpoints: checkpoints.read_checkpoints,
    checkpointops.ReadHashes: checkpoints.read_hashes,
}

READS: Final[frozenset[type[ledger.StoreOp[Any]]]] = frozenset(
    {
        ledger.ReadRun,
        ledger.ReadCall,
        ledger.ListRuns,
        ledger.SearchCalls,
        ledger.ReadEvents,
        ledger.DueRuns,
        ledger.ListLocks,
        auditops.ReadChains,
        forkops.ReadForks,
        budgetops.ListBudgets,
        bundleops.FindTrees,
        bundleops.ReadRecord,
        bundleops.HasLoaded,
        approvalops.ReadApproval,
        approvalops.SearchApprovals,
        noticeops.DueNotices,
        checkpointops.DraftCheckpoint,
        checkpointops.ReadCheckpoints,
        checkpointops.ReadHashes,
    }
)
"""Operations that change nothing: a store may answer them without taking its write lock."""


def intent(op: ledger.StoreOp[Any]) -> Flow[Any]:
    """The flow that answers ``op``, over the rows of one transaction."""
    return INTENTS[type(op)](op)

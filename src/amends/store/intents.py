"""Which flow answers which operation: the whole seam between engine and ledger, on one page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from amends import ops
from amends.flow import Flow
from amends.store import admission, ending, opening, reading, settlement

INTENTS: Final[dict[type[ops.StoreOp[Any]], Callable[[Any], Flow[Any]]]] = {
    ops.OpenRun: opening.open_run,
    ops.OpenChild: opening.open_child,
    ops.ClaimRun: opening.claim_run,
    ops.RenewLeases: opening.renew_leases,
    ops.LetGo: opening.let_go,
    ops.DueRuns: opening.due_runs,
    ops.AdmitCall: admission.admit_call,
    ops.StartCall: settlement.start_call,
    ops.SettleCall: settlement.settle_call,
    ops.NoteEvidence: settlement.note_evidence,
    ops.NoteProbe: settlement.note_probe,
    ops.WatchDoubt: settlement.watch_doubt,
    ops.ResolveCall: settlement.resolve_call,
    ops.DecideCall: settlement.decide_call,
    ops.RetryCall: settlement.retry_call,
    ops.BeginRollback: ending.begin_rollback,
    ops.BeginCompensation: ending.begin_compensation,
    ops.SettleCompensation: ending.settle_compensation,
    ops.DecideCommit: ending.decide_commit,
    ops.CloseRun: ending.close_run,
    ops.AbandonRun: ending.abandon_run,
    ops.FinishRun: ending.finish_run,
    ops.ReadRun: reading.read_run,
    ops.ReadCall: reading.read_call,
    ops.ListRuns: reading.list_runs,
    ops.SearchCalls: reading.search_calls,
    ops.ReadEvents: reading.read_events,
}

READS: Final[frozenset[type[ops.StoreOp[Any]]]] = frozenset(
    {ops.ReadRun, ops.ReadCall, ops.ListRuns, ops.SearchCalls, ops.ReadEvents, ops.DueRuns}
)
"""Operations that change nothing: a store may answer them without taking its write lock."""


def intent(op: ops.StoreOp[Any]) -> Flow[Any]:
    """The flow that answers ``op``, over the rows of one transaction."""
    return INTENTS[type(op)](op)

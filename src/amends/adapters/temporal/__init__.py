"""Run agents on Temporal: a ``workflow`` is a run, an activity is a call, and a worker only adds ``AmendsPlugin``.

See ``docs/how-to/temporal.md``.
"""

from amends.adapters.durable_runs import Decided, Decision, Ending, Outcome, PendingApproval
from amends.adapters.temporal.plugin import AmendsPlugin
from amends.adapters.temporal.runs import APPROVALS_QUERY, DECISION_UPDATE, LOOK_SIGNAL, DurableRun, durable_run

__all__ = [
    "APPROVALS_QUERY",
    "DECISION_UPDATE",
    "LOOK_SIGNAL",
    "AmendsPlugin",
    "Decided",
    "Decision",
    "DurableRun",
    "Ending",
    "Outcome",
    "PendingApproval",
    "durable_run",
]

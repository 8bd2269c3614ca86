"""amends: an agent's tool calls, written down before they run, run at most once, and taken back when the task fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amends.attempts import Attempt
from amends.budget import Budget, BudgetState, Cost, CostLine
from amends.context import current_call, current_run, spent
from amends.doubted import Doubt, Evidence
from amends.errors import (
    Error,
    Held,
    InDoubt,
    LedgerError,
    Refused,
    RolledBack,
    RunBlocked,
    ToolError,
    UsageError,
    Waiting,
)
from amends.model import (
    Absent,
    Answer,
    Approval,
    Call,
    Collected,
    Event,
    Happened,
    Lock,
    NoEffect,
    Probed,
    Request,
    Residue,
    Retry,
    RunInfo,
    Schema,
    Staged,
    Unknown,
    Yes,
)
from amends.planned import Next, Planned, Preview, RollbackPlan
from amends.reconciled import Mismatch, Reconciliation
from amends.report import Report
from amends.rules import Rule
from amends.run import Run
from amends.runtime import Runtime
from amends.secret import Secret
from amends.tool import Declaration, Tool, declare, tool

if TYPE_CHECKING:
    from amends.aio import AsyncRuntime
    from amends.aiorun import AsyncRun
    from amends.attempts import AsyncAttempt

__version__ = "0.1.0.dev0"

__all__ = [
    "Absent",
    "Answer",
    "Approval",
    "AsyncAttempt",
    "AsyncRun",
    "AsyncRuntime",
    "Attempt",
    "Budget",
    "BudgetState",
    "Call",
    "Collected",
    "Cost",
    "CostLine",
    "Declaration",
    "Doubt",
    "Error",
    "Event",
    "Evidence",
    "Happened",
    "Held",
    "InDoubt",
    "LedgerError",
    "Lock",
    "Mismatch",
    "Next",
    "NoEffect",
    "Planned",
    "Preview",
    "Probed",
    "Reconciliation",
    "Refused",
    "Report",
    "Request",
    "Residue",
    "Retry",
    "RollbackPlan",
    "RolledBack",
    "Rule",
    "Run",
    "RunBlocked",
    "RunInfo",
    "Runtime",
    "Schema",
    "Secret",
    "Staged",
    "Tool",
    "ToolError",
    "Unknown",
    "UsageError",
    "Waiting",
    "Yes",
    "current_call",
    "current_run",
    "declare",
    "spent",
    "tool",
]


def __getattr__(name: str) -> Any:
    # The async surface is loaded when it is asked for: a blocking program need not pay for it.
    if name in ("AsyncRuntime", "AsyncRun", "AsyncAttempt"):
        from amends import aio, aiorun, attempts

        return getattr({"AsyncRuntime": aio, "AsyncRun": aiorun}.get(name, attempts), name)
    raise AttributeError(f"module 'amends' has no attribute {name!r}")

"""amends: an agent's tool calls, written down before they run, run at most once, and taken back when the task fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from amends.tool import Declaration, Tool, declare, tool

if TYPE_CHECKING:
    from amends.aio import AsyncRuntime
    from amends.aiorun import AsyncRun
    from amends.attempts import AsyncAttempt, Attempt
    from amends.budget import Budget, BudgetState, Cost, CostLine
    from amends.checkpoint import Checkpoint
    from amends.compared import Comparison
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
        ToolCall,
        Unknown,
        Yes,
    )
    from amends.planned import Next, Planned, Preview, RollbackPlan
    from amends.reconciled import Mismatch, Reconciliation
    from amends.replayed import Replayed
    from amends.report import Report
    from amends.rules import Rule, RuleTest, RuleVerdict
    from amends.run import Run
    from amends.runtime import Runtime
    from amends.secret import Secret
    from amends.verified import Problem, Verified

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
    "Checkpoint",
    "Collected",
    "Comparison",
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
    "Problem",
    "Reconciliation",
    "Refused",
    "Replayed",
    "Report",
    "Request",
    "Residue",
    "Retry",
    "RollbackPlan",
    "RolledBack",
    "Rule",
    "RuleTest",
    "RuleVerdict",
    "Run",
    "RunBlocked",
    "RunInfo",
    "Runtime",
    "Schema",
    "Secret",
    "Staged",
    "Tool",
    "ToolCall",
    "ToolError",
    "Unknown",
    "UsageError",
    "Verified",
    "Waiting",
    "Yes",
    "current_call",
    "current_run",
    "declare",
    "spent",
    "tool",
]

_WHERE: Final = {
    "aio": ("AsyncRuntime",),
    "aiorun": ("AsyncRun",),
    "attempts": ("AsyncAttempt", "Attempt"),
    "budget": ("Budget", "BudgetState", "Cost", "CostLine"),
    "checkpoint": ("Checkpoint",),
    "compared": ("Comparison",),
    "context": ("current_call", "current_run", "spent"),
    "doubted": ("Doubt", "Evidence"),
    "errors": (
        "Error",
        "Held",
        "InDoubt",
        "LedgerError",
        "Refused",
        "RolledBack",
        "RunBlocked",
        "ToolError",
        "UsageError",
        "Waiting",
    ),
    "model": (
        "Absent",
        "Answer",
        "Approval",
        "Call",
        "Collected",
        "Event",
        "Happened",
        "Lock",
        "NoEffect",
        "Probed",
        "Request",
        "Residue",
        "Retry",
        "RunInfo",
        "Schema",
        "Staged",
        "ToolCall",
        "Unknown",
        "Yes",
    ),
    "planned": ("Next", "Planned", "Preview", "RollbackPlan"),
    "reconciled": ("Mismatch", "Reconciliation"),
    "replayed": ("Replayed",),
    "report": ("Report",),
    "rules": ("Rule", "RuleTest", "RuleVerdict"),
    "run": ("Run",),
    "runtime": ("Runtime",),
    "secret": ("Secret",),
    "verified": ("Problem", "Verified"),
}
"""Where each name is. ``tool`` alone is there at once: its module has its name, and would take its place."""
_MODULE_OF: Final = {name: module for module, names in _WHERE.items() for name in names}


def __getattr__(name: str) -> Any:
    # Loaded when it is asked for: `amends --help` needs no engine, and a blocking program nothing async.
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'amends' has no attribute {name!r}")
    from importlib import import_module

    found = getattr(import_module(f"amends.{_MODULE_OF[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})

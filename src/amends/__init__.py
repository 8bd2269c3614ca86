"""amends: tool calls of AI agents, recorded before they run, run at most once, and compensated when the task fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from amends.budgets import Budget, BudgetState, Cost, CostLine
    from amends.drivers.context import current_call, current_run, spent
    from amends.encoding.chain import Checkpoint
    from amends.encoding.secret import Secret
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
        Feed,
        Halt,
        Happened,
        Lock,
        Missing,
        NoEffect,
        Now,
        Once,
        Permit,
        Probed,
        Request,
        Residue,
        Retry,
        RunInfo,
        Schema,
        Staged,
        Token,
        ToolCall,
        Unknown,
        WorkLost,
        Yes,
    )
    from amends.report import (
        Comparison,
        Doubt,
        Evidence,
        InboxItem,
        Mismatch,
        Next,
        Planned,
        Preview,
        Problem,
        Reconciliation,
        Replayed,
        Report,
        RollbackPlan,
        Verified,
    )
    from amends.run import AsyncAttempt, AsyncRun, Attempt, Run
    from amends.runtime import AsyncRuntime, Runtime
    from amends.tools.declarations import declare
    from amends.tools.rules import Rule, RuleTest, RuleVerdict
    from amends.tools.spec import Declaration
    from amends.tools.tool import Tool, tool
    from amends.tools.toolkits import declare_all

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
    "Feed",
    "Halt",
    "Happened",
    "Held",
    "InDoubt",
    "InboxItem",
    "LedgerError",
    "Lock",
    "Mismatch",
    "Missing",
    "Next",
    "NoEffect",
    "Now",
    "Once",
    "Permit",
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
    "Token",
    "Tool",
    "ToolCall",
    "ToolError",
    "Unknown",
    "UsageError",
    "Verified",
    "Waiting",
    "WorkLost",
    "Yes",
    "current_call",
    "current_run",
    "declare",
    "declare_all",
    "spent",
    "tool",
]

_WHERE: Final = {
    "budgets": (
        "Budget",
        "BudgetState",
        "Cost",
        "CostLine",
    ),
    "drivers.context": (
        "current_call",
        "current_run",
        "spent",
    ),
    "encoding.chain": ("Checkpoint",),
    "encoding.secret": ("Secret",),
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
        "Feed",
        "Halt",
        "Happened",
        "Lock",
        "Missing",
        "NoEffect",
        "Permit",
        "Now",
        "Once",
        "Probed",
        "Request",
        "Residue",
        "Retry",
        "RunInfo",
        "Schema",
        "Staged",
        "Token",
        "ToolCall",
        "Unknown",
        "WorkLost",
        "Yes",
    ),
    "report": (
        "Comparison",
        "Doubt",
        "Evidence",
        "InboxItem",
        "Mismatch",
        "Next",
        "Planned",
        "Preview",
        "Problem",
        "Reconciliation",
        "Replayed",
        "Report",
        "RollbackPlan",
        "Verified",
    ),
    "run": (
        "AsyncAttempt",
        "AsyncRun",
        "Attempt",
        "Run",
    ),
    "runtime": (
        "AsyncRuntime",
        "Runtime",
    ),
    "tools.declarations": ("declare",),
    "tools.rules": (
        "Rule",
        "RuleTest",
        "RuleVerdict",
    ),
    "tools.spec": ("Declaration",),
    "tools.tool": (
        "Tool",
        "tool",
    ),
    "tools.toolkits": ("declare_all",),
}
"""The module of each public name that is imported lazily."""
_MODULE_OF: Final = {name: module for module, names in _WHERE.items() for name in names}


def __getattr__(name: str) -> Any:
    # Load each name on first use: `amends --help` needs no engine, and a blocking program nothing async.
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'amends' has no attribute {name!r}")
    from importlib import import_module

    found = getattr(import_module(f"amends.{_MODULE_OF[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})

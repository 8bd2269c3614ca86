"""amends: an agent's tool calls, written down before they run, run at most once, and taken back when the task fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amends.context import current_call, current_run
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
)
from amends.planned import Next, Planned, Preview, RollbackPlan
from amends.report import Report
from amends.run import Attempt, Run
from amends.runtime import Runtime
from amends.secret import Secret
from amends.tool import Declaration, Tool, declare, tool

if TYPE_CHECKING:
    from amends.aio import AsyncRuntime
    from amends.aiorun import AsyncAttempt, AsyncRun

__version__ = "0.1.0.dev0"

__all__ = [
    "Absent",
    "Answer",
    "AsyncAttempt",
    "AsyncRun",
    "AsyncRuntime",
    "Attempt",
    "Call",
    "Collected",
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
    "Next",
    "NoEffect",
    "Planned",
    "Preview",
    "Probed",
    "Refused",
    "Report",
    "Request",
    "Residue",
    "Retry",
    "RollbackPlan",
    "RolledBack",
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
    "current_call",
    "current_run",
    "declare",
    "tool",
]


def __getattr__(name: str) -> Any:
    # The async surface is loaded when it is asked for: a blocking program need not pay for it.
    if name in ("AsyncRuntime", "AsyncRun", "AsyncAttempt"):
        from amends import aio, aiorun

        return getattr(aio if name == "AsyncRuntime" else aiorun, name)
    raise AttributeError(f"module 'amends' has no attribute {name!r}")

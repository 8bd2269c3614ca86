"""Testing with amends: a runtime in memory with its own clock, and crash tests for your own tools.

Use ``runtime`` for unit tests, ``check_tool`` for one tool and its compensation, ``simulate`` for a whole task that
crashes everywhere, ``Kit`` for all your tools against your own sandbox, in processes that are killed. The simulator that
tests amends itself is here, too (``Simulation``, ``World``, ``CHECKERS``), and
the suite that proves a store (``prove_store``).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from amends.testing.check_tool import check_tool
from amends.testing.checkers import CHECKERS, Violation, check_all
from amends.testing.clock import Clock
from amends.testing.runtime import TestRuntime, runtime
from amends.testing.simulate import Verdict, simulate
from amends.testing.simulation import Crash, Fault, Simulation
from amends.testing.world import World

if TYPE_CHECKING:
    from amends.testing.conformance.prove import CHECKS as STORE_CHECKS
    from amends.testing.conformance.prove import Proof, Skipped, check_store, prove_store
    from amends.testing.kit.checks import CheckedTool, ToolCheck
    from amends.testing.kit.kit import Kit

__all__ = [
    "CHECKERS",
    "STORE_CHECKS",
    "CheckedTool",
    "Clock",
    "Crash",
    "Fault",
    "Kit",
    "Proof",
    "Simulation",
    "Skipped",
    "TestRuntime",
    "ToolCheck",
    "Verdict",
    "Violation",
    "World",
    "check_all",
    "check_store",
    "check_tool",
    "prove_store",
    "runtime",
    "simulate",
]

# Loaded on first use: a test of a tool needs neither the suite for stores nor processes of its own.
_LATER: Final = {
    "CheckedTool": ("kit.checks", "CheckedTool"),
    "Kit": ("kit.kit", "Kit"),
    "Proof": ("conformance", "Proof"),
    "STORE_CHECKS": ("conformance", "CHECKS"),
    "Skipped": ("conformance", "Skipped"),
    "ToolCheck": ("kit.checks", "ToolCheck"),
    "check_store": ("conformance", "check_store"),
    "prove_store": ("conformance", "prove_store"),
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, own = _LATER[name]
    return getattr(import_module(f"amends.testing.{module}"), own)

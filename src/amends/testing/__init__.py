"""Testing with amends: a runtime in memory with its own clock, and the simulator for your own tools.

``runtime`` for unit tests, ``check_tool`` for one tool with its twin, ``simulate`` for a whole task under every crash.
The simulator that tests amends itself is here too (``Simulation``, ``World``, ``CHECKERS``).
"""

from __future__ import annotations

from amends.testing.checkers import CHECKERS, Violation, check_all
from amends.testing.clock import Clock
from amends.testing.runtime import TestRuntime, runtime
from amends.testing.simulate import Verdict, check_tool, simulate
from amends.testing.simulation import Crash, Fault, Simulation
from amends.testing.world import World

__all__ = [
    "CHECKERS",
    "Clock",
    "Crash",
    "Fault",
    "Simulation",
    "TestRuntime",
    "Verdict",
    "Violation",
    "World",
    "check_all",
    "check_tool",
    "runtime",
    "simulate",
]

"""What the kit checks of a tool: the names, which violation belongs to which, and what to do about each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

CheckState: TypeAlias = Literal["ok", "broken", "warning", "not declared", "not checked"]

FIXES: Final[Mapping[str, str]] = {
    "example": "give arguments with which the call succeeds in the sandbox, as reset() leaves it",
    "snapshot": "let snapshot() return what the tool changes, as plain data without times and random values",
    "read": "declare another kind: a read may be repeated at any time",
    "before": "let the function only read",
    "compensation": "let the compensation undo everything that the body changes",
    "compensation twice": 'let a second start change nothing; if it sets a value say idempotent="put"; or do not declare it',
    "compensation of nothing": "let it return where there is nothing to undo, or do not declare absent_ok",
    "probe": "let the function only read",
    "probe before": "look for the effect of this call alone: by current_call().key, or by its arguments",
    "probe during": "look where the body writes, and return Happened(result) with the result of the body",
    "probe after": "return Absent() once the compensation has removed the effect",
    "idempotent": 'send current_call().key and let the destination keep it; say "put" if it sets a value; or do not declare it',
    "result": "annotate what the tool returns, with a type that the ledger can record",
    "key": "make key= of the arguments alone: no time, no random number, no id of an object",
    "crashes": "correct what is broken above; amends.testing.check_tool shows every schedule",
    "kills": "correct what is broken above; if nothing is, the body does more than one thing: let it do one, or give it a probe",
    "time": "give the tool a timeout=, or the kit more time",
}
"""What to do about each check that is broken, in the order of the table."""
OF_VIOLATION: Final[Mapping[str, str]] = {
    "changes_something": "snapshot",
    "read_changes_nothing": "read",
    "before_changes_nothing": "before",
    "compensation_restores": "compensation",
    "compensates_twice": "compensation twice",
    "late_compensation": "compensation twice",
    "compensates_nothing": "compensation of nothing",
    "probe_changes_nothing": "probe",
    "probe_before": "probe before",
    "probe_finds_it": "probe during",
    "probe_result": "probe during",
    "probe_sees_it_gone": "probe after",
    "idempotent": "idempotent",
    "late_landing": "idempotent",
    "result_type": "result",
    "key_stable": "key",
}
"""The check to which a violation of ``check_tool`` belongs; every other one is found by a simulated crash."""


@dataclass(frozen=True, slots=True)
class ToolCheck:
    """One check of one tool."""

    name: str
    state: CheckState
    what: str = ""
    """What was seen, if it is not ok."""
    fix: str = ""
    """What to do, if it is broken."""


@dataclass(frozen=True, slots=True)
class CheckedTool:
    """What the kit found about one tool."""

    tool: str
    kind: str
    where: str
    checks: tuple[ToolCheck, ...]
    seconds: float = 0.0

    @property
    def broken(self) -> tuple[ToolCheck, ...]:
        """The checks that failed."""
        return tuple(one for one in self.checks if one.state == "broken")

    @property
    def state(self) -> CheckState:
        """The state of the whole: broken if one check is."""
        if self.broken:
            return "broken"
        return "ok" if any(one.state == "ok" for one in self.checks) else "not checked"

    def raise_if_broken(self) -> None:
        """Fail a test, with every check that failed and what to do about it."""
        __tracebackhide__ = True  # pytest shows the line of the test
        if self.broken:
            raise AssertionError(str(self))

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        checks = [{"name": one.name, "state": one.state, "what": one.what, "fix": one.fix} for one in self.checks]
        return {
            "tool": self.tool, "kind": self.kind, "where": self.where, "state": self.state,
            "checks": checks, "seconds": round(self.seconds, 3),
        }  # fmt: skip

    def __str__(self) -> str:
        """Return what failed, one check per line."""
        failed = "".join(f"\n  {one.name}: {one.what}\n    to fix: {one.fix}" for one in self.broken)
        return f"{self.tool} ({self.where}): {len(self.broken)} of {len(self.checks)} checks failed{failed}"
